//! From checked parameters to a supervised process.

use std::path::Path;
use std::slice;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::watch;
use tracing::field::Empty;
use tracing::{Instrument, Span};

use super::activity::{Activity, WatchdogLimits};
use super::live_execution::{CurrentSession, IdState, LiveExecution, Progress};
use super::run_tracker::RunTracker;
use super::session_resolution::{LookupSlot, RunningLookup, SessionResolution};
use super::supervisor::{StdinFeed, Supervisor};
use crate::admission::AdmissionSlot;
use crate::budget::BudgetMeter;
use crate::live::{LiveEngine, LiveLink, LiveOptions, Observed, SessionChain};
use crate::output::{EventLog, LineHandler, Pump, RawLog};
use crate::process::{Child, LaunchPlan, Pipes};
use crate::records::{LaunchRecord, LiveRecord, milliseconds};
use crate::service::{CheckedRequest, ServiceInner};
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{self, PROCESS_LIST, TreeRoot, is_alive};
use crate::supervision::record_context;
use crate::telemetry::{
    AGENT_NAME, CONVERSATION_ID, ERROR_TYPE, INPUT_TOKENS, INVOKE_AGENT, OPERATION, OTEL_NAME,
    OUTPUT_TOKENS, RESPONSE_MODEL,
};
use crate::{
    Error, EventKind, Execution, ExecutionContext, ExecutionId, ExecutionKind, LaunchRequest,
    OutputStream, ProcessParameters, Sandbox, SessionResolutionContext, Usage,
};

/// A running process, with its pipes and log files.
struct SpawnedChild {
    child: Child,
    pipes: Pipes,
    raw_logs: Option<[RawLog; 2]>,
    input_log: Option<RawLog>,
    started_at: SystemTime,
    /// `started_at` on the monotonic clock.
    start_instant: Instant,
}

/// A launch whose process runs.
struct Launched {
    id: ExecutionId,
    spawned: SpawnedChild,
    request: LaunchRequest,
    parameters: ProcessParameters,
    used_before: Option<Usage>,
    admission: Option<AdmissionSlot>,
    budget: Option<BudgetMeter>,
    live: Option<LiveStart>,
}

/// What a live session needs beside its parameters.
pub(crate) struct LiveStart {
    pub(crate) options: LiveOptions,
    /// The number of the last message before this process.
    pub(crate) last_message: u64,
    pub(crate) chain: Arc<SessionChain>,
}

impl ServiceInner {
    /// Starts the process. There is no await in here: the start is not interrupted by
    /// cancellation.
    pub(crate) fn start(
        &self,
        checked: CheckedRequest,
        parameters: ProcessParameters,
        slot: Option<LookupSlot>,
        admission: Option<AdmissionSlot>,
        live: Option<LiveStart>,
    ) -> Result<Execution, Error> {
        // Held until the execution is in the registry, so that a shutdown finds it.
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::ShuttingDown);
        }
        let CheckedRequest {
            request,
            command,
            used_before,
            ..
        } = checked;
        let id = ExecutionId::mint();
        let mut plan = LaunchPlan::new(&id, &request, &command, &parameters)?;
        if let Some(sandbox) = &parameters.sandbox {
            plan.enclose(sandbox, &self.bubblewrap, self.settings.end_with_host)?;
        }
        self.registry.register(&request.session_id)?;
        let started = self
            .open_budget(&id, &request, live.is_none())
            .and_then(|budget| {
                let id_awaited = live.is_some()
                    || parameters.session_id_resolver.is_some()
                    || parameters.session_id_lookup.is_some();
                let spawned = self.spawn(&id, &request, &plan, live.is_some(), id_awaited);
                match spawned {
                    Ok(spawned) => Ok((spawned, budget)),
                    Err(error) => {
                        budget.into_iter().for_each(|mut budget| budget.cancel());
                        Err(error)
                    }
                }
            });
        match started {
            Ok((spawned, budget)) => {
                let launched = Launched {
                    id,
                    spawned,
                    request,
                    parameters,
                    used_before,
                    admission,
                    budget,
                    live,
                };
                Ok(self.supervise(launched, Some(&plan), slot))
            }
            Err(error) => {
                self.undo(&id, &request);
                Err(error)
            }
        }
    }

    fn open_budget(
        &self,
        id: &ExecutionId,
        request: &LaunchRequest,
        is_one_turn: bool,
    ) -> Result<Option<BudgetMeter>, Error> {
        if request.budgets.is_empty() {
            return Ok(None);
        }
        let settings = &self.settings;
        let (budgets, prices) = (request.budgets.clone(), settings.prices.clone());
        BudgetMeter::open(
            budgets,
            u64::from(is_one_turn),
            &settings.state_dir,
            id,
            &request.session_id,
            prices,
        )
        .map(Some)
    }

    fn spawn(
        &self,
        id: &ExecutionId,
        request: &LaunchRequest,
        plan: &LaunchPlan,
        is_live: bool,
        id_awaited: bool,
    ) -> Result<SpawnedChild, Error> {
        let context = &request.context;
        let started_at = SystemTime::now();
        let sandbox = plan.enforced();
        // The records are JSON.
        let is_text = sandbox.is_none_or(Sandbox::is_utf8);
        self.owner.launching(LiveRecord {
            execution_id: id.clone(),
            session_id: request.session_id.clone(),
            profile: context.profile_label.clone(),
            process: None,
            start: context
                .workspace_path
                .to_str()
                .filter(|_| is_text)
                .map(|workspace| LaunchRecord {
                    at: milliseconds(started_at),
                    variant: context.variant_label.clone(),
                    kind: request.kind,
                    workspace: workspace.to_owned(),
                    id_awaited,
                    sandbox: sandbox.cloned().map(Box::new),
                }),
            is_id_reported: false,
        })?;
        let raw_logs = match &self.settings.log_dir {
            Some(folder) => Some(RawLog::create_both(folder, id)?),
            None => None,
        };
        let input_log = match &self.settings.log_dir {
            Some(folder) if is_live => Some(RawLog::create(RawLog::input_path(folder, id))?),
            _ => None,
        };
        let start_instant = Instant::now();
        let (child, pipes) = Child::spawn(plan, id.as_str()).map_err(|source| Error::Spawn {
            binary: plan.binary.clone(),
            source,
        })?;
        // Without a mark, and if the tag is hidden, another host finds the process by its id only. With
        // a mark, the supervisor records it: a launch is shorter without.
        if !process_tree::HAS_MARKS
            && let Some(leader) = process_tree::key_of(child.pid())
            && let Err(error) = self.owner.started(id, leader)
        {
            tracing::error!(%error, "cannot record the process id");
        }
        Ok(SpawnedChild {
            child,
            pipes,
            raw_logs,
            input_log,
            started_at,
            start_instant,
        })
    }

    /// Makes an execution of a dead host one of this service; `None` if its process has just ended, if
    /// the record is too old, or if the session has another execution.
    pub(crate) fn adopt(&self, record: &LiveRecord) -> Result<Option<Execution>, Error> {
        let closed = self.closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return Err(Error::ShuttingDown);
        }
        let (Some(start), Some((pid, start_time))) = (&record.start, record.process) else {
            return Ok(None);
        };
        let opened = Child::of_another_host(pid);
        let opened = opened.map_err(Error::io("open a process in", Path::new(PROCESS_LIST)))?;
        let Some((child, pipes)) = opened else {
            return Ok(None);
        };
        // After the open: the id of the handle is not reused from now on.
        if !is_alive(ProcessKey { pid, start_time })
            || self.registry.register(&record.session_id).is_err()
        {
            return Ok(None);
        }
        if let Err(error) = self.owner.launching(record.clone()) {
            let _ = self.owner.ended(&record.execution_id);
            self.registry.unregister(&record.session_id);
            return Err(error);
        }
        let mut parameters = ProcessParameters::new::<String>([]);
        parameters.sandbox = start.sandbox.as_deref().cloned();
        let started_at = SystemTime::UNIX_EPOCH + Duration::from_millis(start.at);
        let age = started_at.elapsed().unwrap_or_default();
        let now = Instant::now();
        let launched = Launched {
            id: record.execution_id.clone(),
            spawned: SpawnedChild {
                child,
                pipes,
                raw_logs: None,
                input_log: None,
                started_at,
                start_instant: now.checked_sub(age).unwrap_or(now),
            },
            request: LaunchRequest {
                kind: start.kind,
                context: record_context(record, start),
                session_id: record.session_id.clone(),
                text: String::new(),
                budgets: Vec::new(),
            },
            parameters,
            used_before: None,
            admission: None,
            budget: None,
            live: None,
        };
        Ok(Some(self.supervise(launched, None, None)))
    }

    fn undo(&self, id: &ExecutionId, request: &LaunchRequest) {
        self.registry.unregister(&request.session_id);
        if let Err(error) = self.owner.ended(id) {
            tracing::error!(%error, "cannot undo the record of a launch");
        }
        if let Some(folder) = &self.settings.log_dir {
            let paths = RawLog::paths(folder, id);
            for path in paths.into_iter().chain([RawLog::input_path(folder, id)]) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    fn supervise(
        &self,
        launched: Launched,
        plan: Option<&LaunchPlan>,
        slot: Option<LookupSlot>,
    ) -> Execution {
        let Launched {
            id,
            spawned,
            request,
            parameters,
            used_before,
            admission,
            budget,
            live: live_start,
        } = launched;
        let process_id = spawned.child.pid();
        let span = execution_span(&id, process_id, &request.context);
        let lookup = parameters.session_id_lookup.zip(slot);
        let resolved = request.kind == ExecutionKind::FollowUp
            || (lookup.is_none()
                && parameters.session_id_resolver.is_none()
                && live_start.is_none());
        let log_dir = self.settings.log_dir.as_ref();
        let activity = Arc::new(Activity::new());
        let run = Arc::new(Mutex::new(RunTracker::new(
            used_before,
            parameters.failure_classifier,
            span.clone(),
        )));
        let link = live_start
            .zip(parameters.protocol_driver)
            .map(|(start, driver)| {
                let policy = start.options.policy.clone();
                let policy = policy.or(parameters.permission_policy).unwrap_or_default();
                let workspace = request.context.workspace_path.clone();
                let engine = LiveEngine::new(driver, policy, workspace, start.options.queue)
                    .numbered_after(start.last_message)
                    .observed_by(observer(Arc::clone(&run)));
                LiveLink::new(engine, start.options, start.chain, Arc::clone(&activity))
            });
        let live = Arc::new(LiveExecution {
            kind: request.kind,
            process_id,
            started_at: spawned.started_at,
            start_instant: spawned.start_instant,
            log: EventLog::new(self.settings.memory_policy),
            log_paths: log_dir.map(|folder| RawLog::paths(folder, &id)),
            input_log_path: log_dir
                .filter(|_| link.is_some())
                .map(|folder| RawLog::input_path(folder, &id)),
            sandbox: match plan {
                Some(plan) => plan.enforced().cloned(),
                // As the dead host has recorded it.
                None => parameters.sandbox,
            },
            root: TreeRoot::new(Some(id.to_string()), Some(process_id)),
            registry: Arc::clone(&self.registry),
            scanner: Arc::clone(&self.scanner),
            history: Arc::clone(&self.history),
            owner: Arc::downgrade(&self.owner),
            session: Mutex::new(CurrentSession {
                id: request.session_id.clone(),
                state: match resolved {
                    true => IdState::Settled,
                    false => IdState::Open,
                },
                is_another: false,
            }),
            has_parser: parameters.event_parser.is_some(),
            budget: budget.map(Mutex::new),
            activity: Arc::clone(&activity),
            run,
            link,
            progress: watch::Sender::new(Progress {
                resolved,
                ..Progress::default()
            }),
            stop_asked: watch::Sender::new(None),
            ladder: parameters
                .stop_ladder
                .unwrap_or_else(|| self.settings.stop_ladder.clone()),
            context: request.context,
            id,
        });
        let execution = Execution {
            live: Arc::clone(&live),
        };
        tracing::info!(id = %live.id, session_id = %request.session_id, "started");
        live.log.push(EventKind::Started { process_id });
        if resolved {
            let session_id = request.session_id.clone();
            live.log.push(EventKind::SessionResolved { session_id });
        }
        if let Some(control) = live.control() {
            control.open();
        }
        // After the first events: from now on, callers can give messages to a live session.
        self.registry.attach(&request.session_id, execution.clone());

        let handler = |stream| LineHandler::new(stream, Arc::clone(&live), Arc::clone(&activity));
        let stdout_lines = handler(OutputStream::Stdout)
            .parsing(parameters.event_parser, parameters.session_id_resolver);
        let stderr_lines = handler(OutputStream::Stderr);
        let [stdout_log, stderr_log] = match spawned.raw_logs {
            Some(logs) => logs.map(Some),
            None => [None, None],
        };
        let max_line_bytes = self.settings.max_line_bytes;
        // The output of an adopted process is lost: its silence means nothing.
        let limits = match plan {
            Some(_) => self.settings.watchdogs,
            None => WatchdogLimits::default(),
        };
        let Pipes {
            stdin,
            stdout,
            stderr,
        } = spawned.pipes;
        let supervisor = Box::new(Supervisor {
            known_sessions: Arc::clone(&self.known_sessions),
            owner: Arc::clone(&self.owner),
            admission,
            child: Arc::new(spawned.child),
            stdin: stdin.map(|pipe| StdinFeed {
                pipe,
                payload: parameters.stdin_payload.unwrap_or_default(),
                keep_open: parameters.keep_stdin_open,
                log: spawned.input_log,
            }),
            stdout: Pump::new(stdout, max_line_bytes, stdout_log, stdout_lines),
            stderr: Pump::new(stderr, max_line_bytes, stderr_log, stderr_lines),
            activity,
            limits,
            resolution: SessionResolution {
                lookup: lookup.map(|(lookup, slot)| {
                    let mut context = SessionResolutionContext::new(
                        request.session_id,
                        &live.context.workspace_path,
                        live.started_at,
                        process_id,
                    );
                    context.env = plan.map(LaunchPlan::full_env).unwrap_or_default();
                    RunningLookup {
                        lookup,
                        context,
                        _slot: slot,
                    }
                }),
                timeout: self.settings.resolution_timeout,
            },
            execution: live,
        });
        // The future of `run` is four kilobytes. It is allocated in the new task, so that the
        // launch does not wait for it.
        tokio::spawn(async move { Box::pin(supervisor.run()).await }.instrument(span));
        execution
    }
}

/// Without a parent: the execution can outlive the span in which it was launched.
fn execution_span(id: &ExecutionId, process_id: u32, context: &ExecutionContext) -> Span {
    tracing::info_span!(
        parent: None,
        "execution",
        id = %id,
        profile = context.profile_label,
        pid = process_id,
        { OTEL_NAME } = format!("{INVOKE_AGENT} {}", context.profile_label),
        { OPERATION } = INVOKE_AGENT,
        { AGENT_NAME } = context.profile_label,
        { CONVERSATION_ID } = Empty,
        { RESPONSE_MODEL } = Empty,
        { INPUT_TOKENS } = Empty,
        { OUTPUT_TOKENS } = Empty,
        { ERROR_TYPE } = Empty,
        traceparent = context.traceparent,
    )
}

/// Completes events and failures by what is known of the run.
fn observer(run: Arc<Mutex<RunTracker>>) -> impl FnMut(Observed<'_>) + Send + 'static {
    move |observed| {
        let mut run = run.lock().unwrap_or_else(PoisonError::into_inner);
        match observed {
            Observed::Event(event) => run.observe(slice::from_mut(event)),
            Observed::Failure(failure) => run.complete_failure(failure),
        }
    }
}
