//! The task that stays with an execution from its start to its end.

use std::future::{pending, ready};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::slice;
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::Notify;

use crate::activity::{Activity, WatchdogLimits};
use crate::child::{Child, Remains};
use crate::execution::{Ended, ExecutionState};
use crate::history::What;
use crate::pump::Pump;
use crate::session_resolution::Resolution;
use crate::shared::process_tree::TreeEnder;
use crate::state::Owner;
use crate::stop::{StoppedTree, stop};
use crate::{EventKind, ExitReport, StopLadder, StoppedBy};

pub(crate) struct Supervisor {
    pub(crate) state: Watched,
    pub(crate) owner: Arc<Owner>,
    pub(crate) child: Child,
    pub(crate) stdin: Option<Stdin>,
    pub(crate) stdout: Pump,
    pub(crate) stderr: Pump,
    pub(crate) activity: Arc<Activity>,
    pub(crate) limits: WatchdogLimits,
    pub(crate) ladder: StopLadder,
    pub(crate) resolution: Resolution,
}

/// The state of an execution that is supervised.
pub(crate) struct Watched(pub(crate) Arc<ExecutionState>);

impl Deref for Watched {
    type Target = Arc<ExecutionState>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The child's standard input.
pub(crate) struct Stdin {
    pub(crate) pipe: pipe::Sender,
    pub(crate) payload: String,
    pub(crate) keep_open: bool,
}

type Ending<'a> = Pin<Box<dyn Future<Output = StoppedTree> + Send + 'a>>;

impl Supervisor {
    pub(crate) async fn run(mut self: Box<Self>) {
        let state = Arc::clone(&self.state);
        self.write_down_start();
        let close_stdin = Notify::new();
        let ladder = self.ladder.clone();
        let end_tree = || -> Ending<'_> {
            let tree = TreeEnder::new(&state.scanner, slice::from_ref(&state.root));
            Box::pin(stop(tree, &ladder, || close_stdin.notify_one()))
        };

        let (stopped_by, ending) = self.until_child_ends(&close_stdin, &end_tree).await;

        state
            .progress
            .send_modify(|progress| progress.child_ended = true);
        // What the child has written is in the pipes: nobody needs to wait any longer.
        self.stdout.drain();
        self.stderr.drain();
        self.resolution.last_look(&state);

        // Its tools may have outlived it. As long as it is not reaped its group is its own.
        let mut ending = ending.unwrap_or_else(end_tree);
        let tree = {
            let mut output = pin!(both(&mut self.stdout, &mut self.stderr));
            tokio::select! {
                tree = &mut ending => tree,
                () = &mut output => ending.await,
            }
        };
        self.finish(stopped_by, tree);
    }

    /// Everything that happens while the child runs. Gives who stopped it, and the stop, under way
    /// or done.
    async fn until_child_ends<'a>(
        &mut self,
        close_stdin: &Notify,
        end_tree: &impl Fn() -> Ending<'a>,
    ) -> (Option<StoppedBy>, Option<Ending<'a>>) {
        let state = &self.state;
        let mut stop_asked = state.stop_asked.subscribe();
        let mut stopped_by = None;
        let mut ending: Option<Ending<'a>> = None;
        let mut tree_ended = None;
        let mut output = pin!(both(&mut self.stdout, &mut self.stderr));
        let mut feeding = pin!(feed(self.stdin.take(), close_stdin));
        let mut resolving = pin!(self.resolution.run(state));
        let mut watchdog = pin!(self.activity.idle(self.limits));
        let (mut reading, mut writing, mut unresolved) = (true, true, true);
        loop {
            tokio::select! {
                () = self.child.ended() => {
                    let done = tree_ended.map(|tree| -> Ending<'a> { Box::pin(ready(tree)) });
                    return (stopped_by, done.or(ending));
                }
                () = &mut output, if reading => reading = false,
                () = &mut feeding, if writing => writing = false,
                () = &mut resolving, if unresolved => unresolved = false,
                fired = &mut watchdog, if stopped_by.is_none() => {
                    tracing::warn!(watchdog = ?fired, "watchdog fired");
                    state.log.push(EventKind::Watchdog(fired));
                    state.ask_to_stop(StoppedBy::Watchdog(fired));
                    stopped_by = *state.stop_asked.borrow();
                    ending = Some(end_tree());
                }
                Ok(by) = stop_asked.wait_for(Option::is_some), if stopped_by.is_none() => {
                    stopped_by = *by;
                    drop(by);
                    tracing::debug!("stopping");
                    ending = Some(end_tree());
                }
                tree = completed(&mut ending) => {
                    ending = None;
                    if tree.end.survivors.is_empty() {
                        // The child is gone with the others, only the word of it is not here yet.
                        tree_ended = Some(tree);
                    } else {
                        // The tree is as empty as it gets, and yet the child has not ended. Tell
                        // those who wait for the stop; it can only be waited for.
                        state.progress.send_modify(|progress| progress.survivors = tree.end.survivors);
                    }
                }
            }
        }
    }

    /// Not part of the launch: a crash before this loses nothing, because the process carries its
    /// tag and the tag is on record.
    fn write_down_start(&self) {
        let state = &self.state;
        if let Some(leader) = state.root.leader()
            && let Err(error) = self.owner.started(state.id, leader)
        {
            tracing::error!(%error, "cannot write down the process id");
        }
        state.history.write(
            &state.id.to_string(),
            What::Started {
                session_id: state.session_id(),
                profile: state.context.profile_label.clone(),
                variant: state.context.variant_label.clone(),
                kind: state.kind,
                workspace: state.context.workspace_path.clone(),
                process_id: Some(state.process_id),
            },
        );
    }

    fn finish(mut self: Box<Self>, stopped_by: Option<StoppedBy>, tree: StoppedTree) {
        let state = &self.state;
        self.stdout.finish();
        self.stderr.finish();
        let Remains {
            code,
            signal,
            cpu_time,
            peak_memory_bytes,
        } = self.child.reap();
        let session_id = state.session_id();
        tracing::info!(%session_id, code, signal, ?stopped_by, "ended");
        let exit = Arc::new(ExitReport {
            session_id: session_id.clone(),
            code,
            signal,
            stopped_by,
            stderr_tail: self.stderr.tail(),
            wall_time: state.started.elapsed(),
            cpu_time,
            peak_memory_bytes,
            truncated_lines: self.stdout.truncated_lines() + self.stderr.truncated_lines(),
            leftover_processes: match stopped_by {
                Some(_) => 0,
                None => tree.end.processes,
            },
        });
        let report = Box::new(ExitReport::clone(&exit));
        state
            .history
            .write(&state.id.to_string(), What::Ended { report });
        if let Err(error) = self.owner.ended(state.id) {
            tracing::error!(%error, "cannot write down the end");
        }
        state.registry.unregister(&session_id);
        state.log.push(EventKind::Exited(Arc::clone(&exit)));
        state.log.close();
        state.progress.send_modify(|progress| {
            progress.survivors = tree.end.survivors;
            progress.ended = Some(Ended {
                exit,
                processes: tree.end.processes,
                level: tree.level,
            });
        });
    }
}

/// A supervisor that is dropped before the end (perhaps before it ever ran) leaves nobody waiting.
impl Drop for Watched {
    fn drop(&mut self) {
        let state = &self.0;
        if state.progress.borrow().ended.is_some() {
            return;
        }
        tracing::error!(execution_id = %state.id, "the runtime ended before the execution");
        state.registry.unregister(&state.session_id());
        state.log.close();
        state
            .progress
            .send_modify(|progress| progress.abandoned = true);
    }
}

async fn both(stdout: &mut Pump, stderr: &mut Pump) {
    tokio::join!(stdout.run(), stderr.run());
}

async fn completed(ending: &mut Option<Ending<'_>>) -> StoppedTree {
    match ending {
        Some(ending) => ending.await,
        None => pending().await,
    }
}

/// Writes the payload while the output is read by others, and closes the pipe.
async fn feed(stdin: Option<Stdin>, close: &Notify) {
    let Some(Stdin {
        mut pipe,
        payload,
        keep_open,
    }) = stdin
    else {
        return;
    };
    let pipe = &mut pipe;
    let writing = async move {
        let written = pipe.write_all(payload.as_bytes()).await;
        drop(payload);
        match written {
            Ok(()) if keep_open => pending().await,
            Ok(()) => {}
            // An agent that has read enough closes its end, or has ended.
            Err(error) => tracing::debug!(%error, "the agent did not read all of its input"),
        }
    };
    tokio::select! {
        () = writing => {}
        () = close.notified() => {}
    }
}
