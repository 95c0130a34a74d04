//! The task that supervises one execution from its start to its end.
//!
//! # Theory
//!
//! States: running, stopping, child ended, tree ended. Before: the child is spawned, and its launch
//! is recorded. After: no process of the tree is left (or the survivors are reported), the pipes are
//! drained, the child is reaped, the exit report is published, and the session is free.
//!
//! **Invariants.**
//! - At most one stop runs: [`Supervisor::until_child_ends`] starts one for the first request. After
//!   the end of the child, [`Supervisor::run`] starts one if there was no request, if the stop of the
//!   first request has failed, or in place of one that has only closed the input of a live session.
//! - The child is reaped last, so that its process id and its group are not reused while the tree
//!   is ended.
//! - The exit report is published before the last event, and the session is free before both.
//!
//! **Races.**
//! - A stop is requested while the child ends by itself: if the end is seen first, `stopped_by`
//!   stays `None`, and the ladder ends the leftover processes.
//! - A watchdog and a caller request a stop at the same time: the first request decides
//!   ([`LiveExecution::ask_to_stop`]).
//! - A shutdown passes its limit during a stop: the manner of the request changes to `Kill`, and
//!   the stop breaks off its steps. A dropped [`ShutdownGuard`](crate::ShutdownGuard) ends the tree
//!   in a thread of its own (`Outside`), because this task may not run until then.
//! - A stop fails while the child lives: the survivors are published for the callers of the stop,
//!   and the loop waits for the child only.
//! - A stop finishes before the end of the child is seen: its result is kept in `finished_stop`.
//! - The runtime shuts down, or code of the profile panics: [`Drop`] publishes it, so that no caller
//!   waits for ever. After a panic, it ends the tree first.
//!
//! **Live sessions** have four differences (the theory of the protocol is in `live/live_control.rs`):
//! - Standard input stays open: [`feed_live`] writes what the session has for the agent, and waits if
//!   the agent does not read. Only this task waits, never a caller.
//! - A stop first cancels the running turn and waits for its end, for two seconds, and closes standard
//!   input before the first signal.
//! - An agent that has closed its input or its output and lives on is stopped after a second. The delay
//!   lets the end of the process be seen first, so that a crash is not reported as a stop.
//! - A close is not a stop if the agent has ended before the first signal. The processes that it leaves
//!   are ended, and counted, as those of an agent that has ended without a request.
//!
//! **Example.** A caller stops an agent that has started a tool in a session of its own:
//!
//! | step | `running_stop` | `finished_stop` |
//! |---|---|---|
//! | `stop_asked` changes to `Caller` | scans, sends TERM to both | |
//! | the agent ends, `child.ended()` returns | returned to `run`, still waits for the tool | |
//! | the pipes are drained, the session id becomes final | the tool ends, the next scan finds none | |
//! | `finish` reaps the agent and publishes the exit report | | |
//!
//! If the tool ends first and the scan finds no process before `child.ended()` returns, the result
//! moves to `finished_stop`, and `run` gets it as a stop that is already done.

use std::future::{pending, ready};
use std::pin::{Pin, pin};
use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use super::activity::{Activity, WatchdogLimits};
use super::live_execution::{ExecutionEnd, LiveExecution, StopManner, StopRequest};
use super::session_resolution::SessionResolution;
use crate::admission::AdmissionSlot;
use crate::budget::BudgetMeter;
use crate::live::LiveControl;
use crate::output::{Pump, RawLog};
use crate::process::{Child, ChildExit, StoppedTree, stop_tree};
use crate::records::{HistoryEvent, OwnerJournal};
use crate::service::KnownSessions;
use crate::shared::process_tree::TreeEnder;
use crate::{
    EventKind, ExitReport, StopAction, StopLadder, StopLevel, StopStep, StoppedBy, UsageTotals,
};

/// How long a live agent may take to end after its input has ended. The slowest ones need seven
/// seconds.
const END_OF_INPUT_GRACE: Duration = Duration::from_secs(8);

/// Dropping it before the end (the runtime is shut down, or it has panicked) reports the execution as
/// abandoned, so that no caller waits for ever.
pub(crate) struct Supervisor {
    pub(crate) execution: Arc<LiveExecution>,
    pub(crate) owner: Arc<OwnerJournal>,
    pub(crate) known_sessions: Arc<KnownSessions>,
    pub(crate) admission: Option<AdmissionSlot>,
    pub(crate) child: Arc<Child>,
    pub(crate) stdin: Option<StdinFeed>,
    pub(crate) stdout: Pump,
    pub(crate) stderr: Pump,
    pub(crate) activity: Arc<Activity>,
    pub(crate) limits: WatchdogLimits,
    pub(crate) resolution: SessionResolution,
}

/// The input for the child's standard input.
pub(crate) struct StdinFeed {
    pub(crate) pipe: pipe::Sender,
    pub(crate) payload: String,
    pub(crate) keep_open: bool,
    /// The log file of the input, for live sessions.
    pub(crate) log: Option<RawLog>,
}

/// A stop of the tree that is under way.
type RunningStop<'a> = Pin<Box<dyn Future<Output = StoppedTree> + Send + 'a>>;

impl Supervisor {
    pub(crate) async fn run(mut self: Box<Self>) {
        let execution = Arc::clone(&self.execution);
        self.record_start();
        let close_stdin = Notify::new();
        let has_signalled = AtomicBool::new(false);
        let begin_step = |level| match level {
            StopLevel::StdinClosed => close_stdin.notify_one(),
            _ => has_signalled.store(true, Ordering::Relaxed),
        };
        let (ladder, leftover_ladder) =
            (supervised_ladder(&execution), leftover_ladder(&execution));
        let stop_by = |ladder| -> RunningStop<'_> {
            let (execution, begin_step) = (&*execution, &begin_step);
            let tree = TreeEnder::new(&execution.scanner, slice::from_ref(&execution.root));
            Box::pin(async move {
                if let Some(control) = execution.control() {
                    tokio::select! {
                        () = control.cancel_turn() => {}
                        () = execution.kill_asked() => {}
                    }
                }
                stop_tree(tree, ladder, begin_step, execution.kill_asked()).await
            })
        };
        let stop = || stop_by(&ladder);

        let (mut stopped_by, mut running_stop) = self.until_child_ends(&close_stdin, &stop).await;
        let is_close = |request: &StopRequest| request.manner == StopManner::Close;
        let is_close = execution.stop_asked.borrow().as_ref().is_some_and(is_close);
        if is_close && !has_signalled.load(Ordering::Relaxed) {
            (stopped_by, running_stop) = (None, None);
        }

        let progress = &execution.progress;
        progress.send_modify(|progress| progress.child_ended = true);
        // All that the child has written is in the pipes.
        self.stdout.drain();
        self.stderr.drain();
        if let Some(control) = execution.control() {
            control.process_ended();
        }
        self.resolution.resolve_at_end(&execution);

        // Processes that the child started may have outlived it. Its group is not reused until it
        // is reaped.
        let mut running_stop = running_stop.unwrap_or_else(|| stop_by(&leftover_ladder));
        let tree = {
            let mut output = pin!(run_both(&mut self.stdout, &mut self.stderr, None));
            tokio::select! {
                tree = &mut running_stop => tree,
                () = &mut output => running_stop.await,
            }
        };
        // A stop counts the agent itself, too.
        let leftover_processes = match stopped_by {
            Some(_) => 0,
            None => tree.processes,
        };
        self.finish(stopped_by, leftover_processes, tree);
    }

    /// Handles everything until the child ends. Returns the origin of the stop and the stop itself,
    /// running or done. Both are `None` if the child ended by itself; a failed stop is `None`, too.
    /// See the theory above.
    async fn until_child_ends<'a>(
        &mut self,
        close_stdin: &Notify,
        stop: &impl Fn() -> RunningStop<'a>,
    ) -> (Option<StoppedBy>, Option<RunningStop<'a>>) {
        let execution = &self.execution;
        let mut stop_asked = execution.stop_asked.subscribe();
        let mut stopped_by = None;
        let mut running_stop: Option<RunningStop<'a>> = None;
        let mut finished_stop = None;
        let control = execution.control();
        let mut output = pin!(run_both(&mut self.stdout, &mut self.stderr, control));
        let mut feeding = pin!(feed(self.stdin.take(), control, close_stdin));
        let mut deadlines = pin!(run_deadlines(control));
        let mut resolving = pin!(self.resolution.run(execution));
        let mut watchdog = pin!(self.activity.idle(self.limits));
        let mut budgets = pin!(execution.watch_budgets());
        let mut looks = pin!(execution.scanner.watch(&execution.root));
        let (mut reading, mut writing, mut unresolved) = (true, true, true);
        let mut stopped_outside = false;
        loop {
            if stopped_by.is_some() {
                self.child.refuse_agent();
            }
            tokio::select! {
                () = self.child.ended() => {
                    let done = finished_stop.map(|tree| -> RunningStop<'a> { Box::pin(ready(tree)) });
                    return (stopped_by, done.or(running_stop));
                }
                () = &mut output, if reading => reading = false,
                () = &mut feeding, if writing => writing = false,
                () = &mut resolving, if unresolved => unresolved = false,
                () = &mut budgets => {}
                () = &mut looks => {}
                () = &mut deadlines => {}
                fired = &mut watchdog, if stopped_by.is_none() => {
                    tracing::warn!(watchdog = ?fired, "watchdog fired");
                    execution.log.push(EventKind::Watchdog(fired));
                    execution.ask_to_stop(StoppedBy::Watchdog(fired), StopManner::Ladder);
                    stopped_by = execution.stop_asked.borrow().map(|request| request.by);
                    running_stop = Some(stop());
                }
                Ok(asked) = stop_asked.wait_for(Option::is_some), if stopped_by.is_none() => {
                    let request = *asked;
                    drop(asked);
                    stopped_by = request.map(|request| request.by);
                    tracing::debug!("stopping");
                    if request.is_some_and(|request| request.manner == StopManner::Outside) {
                        stopped_outside = true;
                        close_stdin.notify_one();
                    } else {
                        running_stop = Some(stop());
                    }
                }
                // The other thread could not end the tree.
                () = execution.kill_asked(), if stopped_outside => {
                    stopped_outside = false;
                    running_stop = Some(stop());
                }
                tree = completed(&mut running_stop) => {
                    running_stop = None;
                    if tree.survivors.is_empty() {
                        // The child has ended with the others; `child.ended()` returns next.
                        finished_stop = Some(tree);
                    } else {
                        // The stop has failed. Its callers get the survivors now; the end of the
                        // child can only be waited for.
                        let survivors = tree.survivors;
                        let progress = &execution.progress;
                        progress.send_modify(|progress| progress.survivors = survivors);
                    }
                }
            }
        }
    }

    /// Not part of the launch, to keep it short. A crash before this loses nothing: the process
    /// carries its tag, and the journal has it.
    fn record_start(&self) {
        let execution = &self.execution;
        if let Some(leader) = execution.root.leader()
            && let Err(error) = self.owner.started(&execution.id, leader)
        {
            tracing::error!(%error, "cannot record the process id");
        }
        let context = &execution.context;
        execution.history.write(
            &execution.id,
            HistoryEvent::Started {
                session_id: execution.session_id(),
                profile: context.profile_label.clone(),
                variant: context.variant_label.clone(),
                kind: execution.kind,
                workspace: context.workspace_path.clone(),
                process_id: Some(execution.process_id),
                sandbox: execution.sandbox.clone(),
            },
        );
    }

    fn finish(
        mut self: Box<Self>,
        stopped_by: Option<StoppedBy>,
        leftover_processes: usize,
        tree: StoppedTree,
    ) {
        let execution = &self.execution;
        self.stdout.finish();
        self.stderr.finish();
        let child_exit = self.child.reap();
        let stderr_tail = self.stderr.tail();
        let (failure, usage) = {
            let mut run = execution.run();
            let failure = run.failure_at_exit(&child_exit, stopped_by, &stderr_tail);
            run.close_spans(&execution.session_id(), failure.as_ref());
            (failure, run.usage())
        };
        let budget = execution.with_budget(|budget| {
            budget.finish();
            budget.first_exceeded().cloned()
        });
        let budget = budget.flatten();
        let ChildExit {
            code,
            signal,
            cpu_time,
            peak_memory_bytes,
        } = child_exit;
        let session_id = execution.session_id();
        if usage != UsageTotals::default() {
            let total = Some(usage.session);
            self.known_sessions.put(session_id.clone(), total);
        }
        let class = failure.as_ref().map(|failure| failure.kind.name());
        tracing::info!(%session_id, code, signal, ?stopped_by, class, "ended");
        let exit = Arc::new(ExitReport {
            session_id: session_id.clone(),
            code,
            signal,
            stopped_by,
            budget,
            failure,
            usage,
            stderr_tail,
            wall_time: execution.start_instant.elapsed(),
            cpu_time,
            peak_memory_bytes,
            truncated_lines: self.stdout.truncated_lines() + self.stderr.truncated_lines(),
            leftover_processes,
        });
        let report = Box::new(ExitReport::clone(&exit));
        let history = &execution.history;
        history.write(&execution.id, HistoryEvent::Ended { report });
        if let Err(error) = self.owner.ended(&execution.id) {
            tracing::error!(%error, "cannot record the end");
        }
        // Before the end is published: a caller that waited for it may launch at once.
        drop(self.admission.take());
        execution.registry.unregister(&session_id);
        // Before the last event, so that a subscriber that has seen it gets the exit report.
        execution.progress.send_modify(|progress| {
            progress.survivors = tree.survivors;
            progress.end = Some(ExecutionEnd {
                exit: Arc::clone(&exit),
                processes: tree.processes,
                level: tree.level,
            });
        });
        execution.log.push(EventKind::Exited(exit));
        execution.log.close();
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let execution = &self.execution;
        if execution.progress.borrow().end.is_some() {
            return;
        }
        let abandoned = Abandoned(Arc::clone(execution));
        // A runtime that shuts down during a panic of the host drops the new task at once.
        let runtime = tokio::runtime::Handle::try_current();
        if std::thread::panicking()
            && let Ok(runtime) = runtime
        {
            let (child, owner) = (Arc::clone(&self.child), Arc::clone(&self.owner));
            let admission = self.admission.take();
            runtime.spawn(async move {
                abandoned.end(&child, &owner).await;
                drop(admission);
            });
        }
    }
}

/// An execution whose supervisor is gone. Dropping it publishes that.
struct Abandoned(Arc<LiveExecution>);

impl Abandoned {
    /// Code of the profile has panicked, against its contract: its agent must not go on without limits
    /// and without a stop. Its parser cannot be used any more, so there is no report.
    async fn end(&self, child: &Child, owner: &OwnerJournal) {
        let execution = &*self.0;
        tracing::error!(execution_id = %execution.id, "code of the profile has panicked");
        let (ladder, roots) = (leftover_ladder(execution), slice::from_ref(&execution.root));
        let tree = TreeEnder::new(&execution.scanner, roots);
        let tree = stop_tree(tree, &ladder, |_| {}, execution.kill_asked()).await;
        execution.with_budget(BudgetMeter::finish);
        if !tree.survivors.is_empty() {
            tracing::error!(pids = ?tree.survivors, "processes are still alive");
            return;
        }
        child.reap();
        execution.history.write(&execution.id, HistoryEvent::Reaped);
        if let Err(error) = owner.ended(&execution.id) {
            tracing::error!(%error, "cannot record the end");
        }
    }
}

impl Drop for Abandoned {
    fn drop(&mut self) {
        let execution = &*self.0;
        tracing::error!(execution_id = %execution.id, "the execution has lost its supervisor");
        if let Some(control) = execution.control() {
            control.process_ended();
        }
        execution.registry.unregister(&execution.session_id());
        execution.log.close();
        let progress = &execution.progress;
        progress.send_modify(|progress| progress.abandoned = true);
    }
}

async fn run_both(stdout: &mut Pump, stderr: &mut Pump, live: Option<LiveControl<'_>>) {
    let stdout = async {
        stdout.run().await;
        if let Some(control) = live {
            control.pipe_closed().await;
        }
    };
    tokio::join!(stdout, stderr.run());
}

/// Does not return.
async fn run_deadlines(live: Option<LiveControl<'_>>) {
    match live {
        Some(control) => control.run_deadlines().await,
        None => pending().await,
    }
}

/// A live session is asked to end by the end of its input, whatever its profile says about processes
/// of one turn.
fn supervised_ladder(execution: &LiveExecution) -> StopLadder {
    let ladder = &execution.ladder;
    let closes = |step: &StopStep| step.action == StopAction::CloseStdin;
    if execution.link.is_none() || ladder.steps().iter().any(closes) {
        return ladder.clone();
    }
    let first = StopLadder::kill_at_once().then(StopAction::CloseStdin, END_OF_INPUT_GRACE);
    let rest = ladder.steps().iter();
    rest.fold(first, |ladder, step| ladder.then(step.action, step.grace))
}

/// The steps for processes that outlive the agent: the input of a live session has ended with it.
fn leftover_ladder(execution: &LiveExecution) -> StopLadder {
    let steps = execution.ladder.steps().iter();
    let is_live = execution.link.is_some();
    steps
        .filter(|step| !is_live || step.action != StopAction::CloseStdin)
        .fold(StopLadder::kill_at_once(), |ladder, step| {
            ladder.then(step.action, step.grace)
        })
}

async fn completed(running_stop: &mut Option<RunningStop<'_>>) -> StoppedTree {
    match running_stop {
        Some(running_stop) => running_stop.await,
        None => pending().await,
    }
}

/// Writes the payload, and closes the pipe or keeps it open until `close`.
async fn feed(stdin: Option<StdinFeed>, live: Option<LiveControl<'_>>, close: &Notify) {
    let Some(StdinFeed {
        mut pipe,
        payload,
        keep_open,
        log,
    }) = stdin
    else {
        return;
    };
    if let Some(control) = live {
        tokio::select! {
            () = feed_live(pipe, log, control) => {}
            () = close.notified() => {}
        }
        return control.input_closed();
    }
    let pipe = &mut pipe;
    let writing = async move {
        let written = pipe.write_all(payload.as_bytes()).await;
        drop(payload);
        match written {
            Ok(()) if keep_open => pending().await,
            Ok(()) => {}
            // The agent has closed its end, or has ended.
            Err(error) => tracing::debug!(%error, "the agent did not read all of its input"),
        }
    };
    tokio::select! {
        () = writing => {}
        () = close.notified() => {}
    }
}

/// Writes the lines of a live session as they come. Returns only when the agent has closed its end and
/// lives on.
async fn feed_live(mut pipe: pipe::Sender, mut log: Option<RawLog>, control: LiveControl<'_>) {
    loop {
        let line = tokio::select! {
            line = control.next_input() => line,
            // The bytes in the pipe are lost, and perhaps no later write reports the closed pipe.
            () = reader_gone(&pipe) => {
                tracing::debug!("the agent has closed its input");
                control.input_closed();
                return control.pipe_closed().await;
            }
        };
        if let Some(file) = &mut log
            && let Err(error) = file.write(line.as_bytes())
        {
            let message = format!("{}: {error}", file.path().display());
            tracing::error!(%message, "cannot write the log file");
            let log_failed = EventKind::LogFailed { message };
            control.execution.log.push(log_failed);
            log = None;
        }
        if let Err(error) = pipe.write_all(line.as_bytes()).await {
            tracing::debug!(%error, "the agent has closed its input");
            control.input_closed();
            return control.pipe_closed().await;
        }
        control.input_written(&line);
    }
}

/// Waits until nothing can read the pipe any more.
async fn reader_gone(pipe: &pipe::Sender) {
    match pipe.ready(Interest::ERROR).await {
        Ok(ready) if ready.is_error() => {}
        _ => pending().await,
    }
}
