//! The daemon: it holds the agents, recovers what a killed one has left, and keeps each agent running.
//!
//! # Theory: nothing runs twice
//!
//! The start, in this order, each step before the next one:
//!
//! 1. **The lock of the folder.** A kernel lock, which ends with its process. A second daemon is
//!    refused.
//! 2. **A claim for each agent**, owned by this process. It excludes daemons with another folder that
//!    share the file of the claims. A claim that is lost, because this process was stopped for longer
//!    than its lease, ends the daemon.
//! 3. **Recovery.** The journal of a killed daemon names every process that it had started. An agent
//!    that is alive is adopted and stopped: its pipes ended with its host, so it gets no input, and its
//!    output has no reader. Only then a new process continues its session.
//! 4. **Hydration** raises the epoch of each snapshot: a save of an earlier holder is refused.

use std::collections::HashMap;
use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::time::{Duration, Instant};

use agent_snapshot::{AgentState, open_storage};
use examples::{Interrupted, Result};
use exec_core::{ExecutionService, RecoveredState, termination_signal};
use futures_util::future::select_all;
use timed_store::{Claim, KeepAlive, LockPolicy, OwnerProcess, SessionId, TimedStorage};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::agent_keeper::{AgentKeeper, Letter};
use crate::config::DaemonConfig;
use crate::control::{self, ControlCall, ControlRequest};

/// How long agents have to end.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// The lease of an agent. After a reboot the claims of the last boot block a start for this time.
const LEASE: Duration = Duration::from_secs(60);
/// Messages that wait for one agent to save them.
const MAX_LETTERS: usize = 16;

/// Prints a line with the time since the start.
#[derive(Clone, Copy)]
pub(crate) struct Log(Instant);

impl Log {
    pub(crate) fn line(self, who: &str, text: &str) {
        let text = text.lines().next().unwrap_or_default();
        let seconds = self.0.elapsed().as_secs_f64();
        // Not `println!`: the agents outlive the reader of the log.
        let _ = writeln!(std::io::stdout(), "[{seconds:8.1} s] {who}: {text}");
    }
}

/// Runs the agents until a signal or a `stop`.
pub(crate) async fn run(config: &DaemonConfig) -> Result<()> {
    let log = Log(Instant::now());
    let mut signal = termination_signal()?;
    let lock = lock_folder(config)?;
    let claims = claim_agents(config).await?;
    let mut lost = select_all(claims.iter().map(|claim| Box::pin(claim.lost())));
    let service = config.executions()?;
    // An early return leaves no agent.
    let _guard = service.shutdown_on_drop(STOP_LIMIT);
    recover(&service, log).await?;

    let storage = open_storage(&config.storage()).await?;
    let mut keepers = JoinSet::new();
    let mut letters = HashMap::new();
    for agent in &config.agents {
        let (state, _) = AgentState::hydrate(storage.clone(), agent.id()?).await?;
        let (sender, inbox) = mpsc::channel(MAX_LETTERS);
        letters.insert(agent.name.clone(), sender);
        let keeper = AgentKeeper::new(agent.clone(), service.clone(), state, inbox, log);
        keepers.spawn(keeper.run());
    }
    let listener = control::listen(config)?;
    log.line("daemon", &format!("runs {} agents", config.agents.len()));

    let mut calls = JoinSet::new();
    let end = loop {
        tokio::select! {
            number = &mut signal => break Err(Interrupted { signal: number }.into()),
            _ = &mut lost => break Err("another daemon has taken an agent: this one was stopped for too long".into()),
            accepted = listener.accept() => {
                let (stream, _) = accepted?;
                calls.spawn(control::accept(stream));
            }
            Some(call) = calls.join_next() => match call? {
                Some(call) if matches!(call.request, ControlRequest::Stop) => break Ok(call),
                Some(call) => deliver(call, &letters),
                None => {}
            },
            Some(kept) = keepers.join_next() => kept?,
        }
    };
    // A turn that is cut off here is continued after the next start, as after a crash.
    keepers.shutdown().await;
    let report = service.shutdown(STOP_LIMIT).await;
    let stopped = format!("stopped {} agents", report.executions);
    log.line("daemon", &stopped);
    storage.close().await?;
    // Before the reply: a start that follows a `stop` is not refused.
    drop(lost);
    drop(claims);
    drop(lock);
    let end: Result<ControlCall> = end;
    end?.reply(Ok(stopped)).await;
    Ok(())
}

/// Hands a message to the keeper of its agent, which replies when the message is saved.
fn deliver(call: ControlCall, letters: &HashMap<String, mpsc::Sender<Letter>>) {
    let ControlRequest::Send { agent, text } = &call.request else {
        return;
    };
    let sender = letters.get(agent).cloned();
    let text = text.clone();
    let unknown = format!("there is no agent {agent}");
    let in_doubt = format!(
        "the daemon ends: whether the message for {agent} was saved is not known; `status` counts those that wait"
    );
    tokio::spawn(async move {
        let Some(sender) = sender else {
            return call.reply(Err(unknown.into())).await;
        };
        let (saved, is_saved) = tokio::sync::oneshot::channel();
        let _ = sender.send(Letter { text, saved }).await;
        let result = is_saved.await.unwrap_or_else(|_| Err(in_doubt.into()));
        call.reply(result).await;
    });
}

/// The lock ends with the value, or with the process.
fn lock_folder(config: &DaemonConfig) -> Result<File> {
    let folder = &config.folder;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    let metadata = folder.symlink_metadata()?;
    let is_ours = metadata.is_dir() && metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || metadata.mode() & 0o022 != 0 {
        let rule = "it must be a folder of yours that group and others cannot write to";
        return Err(format!("refusing {}: {rule}", folder.display()).into());
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o600);
    let file = options.open(folder.join("lock"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let folder = folder.display();
            let file = config.file.display();
            Err(format!("another daemon runs in {folder}; `daemon stop {file}` ends it").into())
        }
        Err(TryLockError::Error(error)) => Err(error.into()),
    }
}

async fn claim_agents(config: &DaemonConfig) -> Result<Vec<KeepAlive<String>>> {
    // A session of its own for each daemon: processes of one session share their claims.
    let id = Uuid::new_v4().simple().to_string();
    let session = format!("daemon-{}-{}", std::process::id(), &id[..8]);
    let store = TimedStorage::<String>::builder(config.claims_file())
        .session(SessionId::new(session)?)
        .owner(OwnerProcess::current())
        .ttl(LEASE)
        .lock(LockPolicy::Wait(Duration::from_secs(10)))
        .open()?;
    let mut claims = Vec::new();
    let agents = config.agents.iter().map(|agent| &agent.name);
    for name in agents {
        let slot = store.slot(name)?;
        match slot.claim(name.clone()).await? {
            Claim::Granted(lease) => claims.push(slot.keep_alive(lease)?.release_on_drop()),
            Claim::Busy { holder, expires_in } => {
                let left = expires_in.as_secs();
                return Err(format!(
                    "agent {name} is held by {holder} for {left} s, unless it ends before"
                )
                .into());
            }
        }
    }
    if claims.is_empty() {
        return Err(format!("{} names no agent", config.file.display()).into());
    }
    Ok(claims)
}

/// Ends the agents that a killed daemon has left.
async fn recover(service: &ExecutionService, log: Log) -> Result<()> {
    let mut recovery = service.recover().await?;
    while let Some(session) = recovery.next().await? {
        let id = &session.session_id;
        let found = match &session.state {
            RecoveredState::Adopted(execution) => {
                execution.stop().await?;
                "adopted and stopped"
            }
            RecoveredState::Resumable => "resumable",
            _ => "reaped",
        };
        log.line("daemon", &format!("recovered {id}: {found}"));
    }
    Ok(())
}
