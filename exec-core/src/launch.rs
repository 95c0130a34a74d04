//! From checked parameters to a supervised process.

use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Instant, SystemTime};

use tokio::sync::watch;
use tracing::Instrument;
use uuid::Uuid;

use crate::activity::Activity;
use crate::child::{Child, Pipes};
use crate::error::Result;
use crate::event_log::EventLog;
use crate::execution::{ExecutionState, Progress, Session};
use crate::history;
use crate::launch_plan;
use crate::pump::{LineHandler, Pump};
use crate::raw_log::RawLog;
use crate::service::{Inner, Prepared};
use crate::session_resolution::{Lookup, Resolution, Turn};
use crate::shared::process_tree::TreeRoot;
use crate::state::{LiveRecord, Start};
use crate::supervisor::{Stdin, Supervisor, Watched};
use crate::{
    Error, EventKind, Execution, ExecutionKind, LaunchRequest, OutputStream, ProcessParameters,
    SessionResolutionContext,
};

/// A process that runs, and what was made for it.
struct Spawned {
    id: Uuid,
    child: Child,
    pipes: Pipes,
    raw_logs: Option<[RawLog; 2]>,
    started_at: SystemTime,
    started: Instant,
}

impl Inner {
    /// Starts the process. There is no await in here: it happens wholly or not at all.
    pub(crate) fn start(
        &self,
        prepared: Prepared,
        parameters: ProcessParameters,
        turn: Option<Turn>,
    ) -> Result<Execution> {
        let Prepared {
            request, command, ..
        } = prepared;
        let id = Uuid::new_v4();
        let (binary, mut plan) = launch_plan::plan(id, &request, &command, &parameters)?;
        self.registry.register(&request.session_id)?;
        match self.spawn(id, &request, &binary, &mut plan) {
            Ok(spawned) => Ok(self.supervise(spawned, request, parameters, plan, turn)),
            Err(error) => {
                self.take_back(id, &request);
                Err(error)
            }
        }
    }

    fn spawn(
        &self,
        id: Uuid,
        request: &LaunchRequest,
        binary: &str,
        plan: &mut Command,
    ) -> Result<Spawned> {
        let context = &request.context;
        let started_at = SystemTime::now();
        self.owner.launching(LiveRecord {
            execution_id: id,
            session_id: request.session_id.clone(),
            profile: context.profile_label.clone(),
            process: None,
            start: context.workspace_path.to_str().map(|workspace| Start {
                at: history::milliseconds(started_at),
                variant: context.variant_label.clone(),
                kind: request.kind,
                workspace: workspace.to_owned(),
            }),
        })?;
        let raw_logs = match &self.settings.log_dir {
            Some(folder) => {
                let [stdout, stderr] = RawLog::paths(folder, id);
                Some([RawLog::create(&stdout)?, RawLog::create(&stderr)?])
            }
            None => None,
        };
        let started = Instant::now();
        let (child, pipes) = Child::spawn(plan).map_err(|source| Error::Spawn {
            binary: binary.to_owned(),
            source,
        })?;
        Ok(Spawned {
            id,
            child,
            pipes,
            raw_logs,
            started_at,
            started,
        })
    }

    fn take_back(&self, id: Uuid, request: &LaunchRequest) {
        self.registry.unregister(&request.session_id);
        if let Err(error) = self.owner.ended(id) {
            tracing::error!(%error, "cannot take back a start");
        }
        if let Some(folder) = &self.settings.log_dir {
            for path in RawLog::paths(folder, id) {
                let _ = std::fs::remove_file(path);
            }
        }
    }

    fn supervise(
        &self,
        spawned: Spawned,
        request: LaunchRequest,
        parameters: ProcessParameters,
        plan: Command,
        turn: Option<Turn>,
    ) -> Execution {
        let process_id = spawned.child.pid();
        let lookup = parameters.session_id_lookup.zip(turn);
        // With nothing to read the id from, the one we have is final.
        let settled = request.kind == ExecutionKind::FollowUp
            || (lookup.is_none() && parameters.session_id_resolver.is_none());
        let state = Arc::new(ExecutionState {
            id: spawned.id,
            kind: request.kind,
            process_id,
            started_at: spawned.started_at,
            started: spawned.started,
            log: EventLog::new(self.settings.memory_policy),
            log_paths: self
                .settings
                .log_dir
                .as_ref()
                .map(|folder| RawLog::paths(folder, spawned.id)),
            root: TreeRoot::new(Some(spawned.id.to_string()), Some(process_id)),
            registry: Arc::clone(&self.registry),
            scanner: Arc::clone(&self.scanner),
            history: Arc::clone(&self.history),
            session: Mutex::new(Session {
                id: request.session_id.clone(),
                settled,
            }),
            progress: watch::Sender::new(Progress {
                settled,
                ..Progress::default()
            }),
            stop_asked: watch::Sender::new(None),
            context: request.context,
        });
        let execution = Execution {
            state: Arc::clone(&state),
        };
        self.registry.attach(&request.session_id, execution.clone());
        tracing::info!(id = %state.id, session_id = %request.session_id, "started");
        state.log.push(EventKind::Started { process_id });
        if settled {
            let session_id = request.session_id.clone();
            state.log.push(EventKind::SessionResolved { session_id });
        }

        let activity = Arc::new(Activity::new());
        let handler = |stream| LineHandler::new(stream, Arc::clone(&state), Arc::clone(&activity));
        let stdout_lines = handler(OutputStream::Stdout)
            .parsing(parameters.event_parser, parameters.session_id_resolver);
        let stderr_lines = handler(OutputStream::Stderr);
        let (stdout_log, stderr_log) = spawned.raw_logs.map_or((None, None), |[stdout, stderr]| {
            (Some(stdout), Some(stderr))
        });
        let max_line_bytes = self.settings.max_line_bytes;
        let Pipes {
            stdin,
            stdout,
            stderr,
        } = spawned.pipes;
        let payload = parameters.stdin_payload.unwrap_or_default();
        let span = tracing::info_span!(
            parent: None,
            "execution",
            id = %state.id,
            profile = state.context.profile_label,
            pid = process_id,
        );
        let supervisor = Box::new(Supervisor {
            owner: Arc::clone(&self.owner),
            child: spawned.child,
            stdin: stdin.map(|pipe| Stdin {
                pipe,
                payload,
                keep_open: parameters.keep_stdin_open,
            }),
            stdout: Pump::new(stdout, max_line_bytes, stdout_log, stdout_lines),
            stderr: Pump::new(stderr, max_line_bytes, stderr_log, stderr_lines),
            activity,
            limits: self.settings.watchdogs,
            ladder: parameters
                .stop_ladder
                .unwrap_or_else(|| self.settings.stop_ladder.clone()),
            resolution: Resolution {
                lookup: lookup.map(|(lookup, turn)| {
                    let mut context = SessionResolutionContext::new(
                        request.session_id,
                        &state.context.workspace_path,
                        state.started_at,
                        process_id,
                    );
                    context.env = launch_plan::full_env(&plan);
                    Lookup {
                        lookup,
                        context,
                        _turn: turn,
                    }
                }),
                timeout: self.settings.resolution_timeout,
            },
            state: Watched(state),
        });
        // What a supervisor keeps while it runs is four kilobytes: to allocate and fill them is for
        // its first turn, not for the launch.
        tokio::spawn(async move { Box::pin(supervisor.run()).await }.instrument(span));
        execution
    }
}
