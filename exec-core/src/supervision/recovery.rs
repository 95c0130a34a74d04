//! The sessions of a host that has died.
//!
//! # Theory
//!
//! Every launch is in the journal of its host before its process exists, and leaves it when the
//! execution has ended. A journal whose lock is free belongs to a dead host: each of its records is
//! an execution without a supervisor. Recovery takes these records one session at a time.
//!
//! | the process of the record | what happens | state |
//! |---|---|---|
//! | alive, and no other execution has the session | it becomes an execution of this service | adopted |
//! | gone, and the agent knows the session by its id | leftover tools are ended | resumable |
//! | gone, and the agent's id is not known | leftover tools are ended | reaped |
//!
//! **Invariants.**
//! - A session is delivered once, under its current id: the id that the agent has reported, as far
//!   as the dead host had recorded it. A minted id that the agent never saw is never resumed: a
//!   follow-up with it would begin or continue another session.
//! - An execution always has an owner. Adoption writes the record to the journal of this service
//!   first, and only then ends it in the journal of the dead host. If this host dies in between,
//!   the record is in both, and the next recovery, which goes by the id of the execution, delivers
//!   it once.
//! - The records of a session are ended in the old journal right before it is delivered; that of an
//!   adopted one was written to the journal of this service before. A recovery that is cut off
//!   leaves the rest, and the last one if its records were not ended yet.
//! - A record whose processes could not be ended stays, for the next recovery. The record of an
//!   adopted execution never does: the next recovery would end its tree. If its end cannot be written
//!   (a full disk), the journal of this service keeps the old one locked, with the sessions in it that
//!   were not delivered yet. The next recovery of this service delivers them; other hosts find them
//!   when this service is gone.
//! - A process is the recorded one only if its start time fits, in the same boot. The check follows
//!   the open of its handle, so that the id cannot be reused in between.
//!
//! **Races.** Two hosts recover at the same time: each journal is locked by one of them.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::process::{TAG_VARIABLE, stop_tree};
use crate::records::{HistoryEvent, LaunchRecord, LiveRecord, OrphanedJournal, boot_id};
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{ProcessScanner, TreeEnder, is_alive};
use crate::{
    Error, Execution, ExecutionContext, ExecutionId, ExecutionKind, ExecutionService,
    FollowUpRequest, HistoryEntry, SessionId,
};

/// The sessions that dead hosts have left, one after the other; see [`ExecutionService::recover`].
///
/// Dropping it leaves the sessions that were not delivered for the next recovery.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// use exec_core::RecoveredState;
///
/// let mut recovery = service.recover().await?;
/// while let Some(session) = recovery.next().await? {
///     match &session.state {
///         // Its output is lost: let it end, or stop it, before a follow-up.
///         RecoveredState::Adopted(execution) => drop(execution.stop().await?),
///         RecoveredState::Resumable => {}
///         _ => continue,
///     }
///     if let Some(request) = session.follow_up("Continue where you left off.") {
///         service.send_follow_up(request).await?;
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is recovered until `next`"]
pub struct Recovery {
    service: ExecutionService,
    scanner: ProcessScanner,
    /// `None`: all its records are handled.
    journals: Vec<Option<OrphanedJournal>>,
    same_boot: Vec<bool>,
    sessions: VecDeque<LostSession>,
}

/// The executions of one session, the newest last.
#[derive(Debug)]
struct LostSession {
    session_id: SessionId,
    executions: Vec<LostExecution>,
}

#[derive(Debug)]
struct LostExecution {
    record: LiveRecord,
    /// The journals that have it, by index.
    journals: Vec<usize>,
    id_source: SessionIdEvidence,
}

/// A session that had lost its host.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// let mut recovery = service.recover().await?;
/// while let Some(session) = recovery.next().await? {
///     println!("{}: {:?}", session.session_id, session.evidence);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RecoveredSession {
    /// The session, with its current id.
    pub session_id: SessionId,
    /// The profile.
    pub profile_label: String,
    /// The variant of the profile.
    pub variant_label: Option<String>,
    /// The working directory; `None` if the record does not have it.
    pub workspace_path: Option<PathBuf>,
    /// What has become of it.
    pub state: RecoveredState,
    /// The facts that decided.
    pub evidence: RecoveryEvidence,
}

/// What has become of a recovered session.
///
/// ```
/// use exec_core::RecoveredState;
///
/// assert!(matches!(RecoveredState::Resumable, RecoveredState::Resumable));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RecoveredState {
    /// The agent is alive, and is an execution of this service: it is in the registry, keeps its
    /// session busy, and can be stopped. Its pipes have died with its host: its output is lost, and
    /// most agents end when they write the next line. Its exit code will not be known.
    Adopted(Execution),
    /// The agent has ended, and knows the session: a follow-up continues it. Whether the last
    /// prompt was carried out is not known; it is not sent again.
    Resumable,
    /// The agent has ended, and its own id of the session is not known. The session cannot be
    /// resumed.
    Reaped,
}

/// The facts that decided what has become of a recovered session.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// let mut recovery = service.recover().await?;
/// while let Some(session) = recovery.next().await? {
///     if !session.evidence.survivors.is_empty() {
///         eprintln!("still alive: {:?}", session.evidence.survivors);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryEvidence {
    /// The executions of the session that had lost their host, the newest last.
    pub executions: Vec<ExecutionId>,
    /// When the newest one was started.
    pub started_at: Option<SystemTime>,
    /// The process of the newest one.
    pub leader: LeaderEvidence,
    /// Where the session id is from.
    pub id_source: SessionIdEvidence,
    /// How many processes were alive and were ended.
    pub ended_processes: usize,
    /// Processes that could not be ended. The execution stays on record for the next recovery.
    pub survivors: Vec<u32>,
}

/// What is known of the process of a lost execution.
///
/// ```
/// use exec_core::LeaderEvidence;
///
/// assert_ne!(LeaderEvidence::Ended, LeaderEvidence::NotRecorded);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaderEvidence {
    /// A process with the recorded id and start time is alive.
    Alive {
        /// The process id.
        process_id: u32,
    },
    /// It has ended.
    Ended,
    /// It was started before the last boot.
    OfEarlierBoot,
    /// The host died before it recorded the process. If the process was started, it was found by
    /// its tag and ended.
    NotRecorded,
}

/// Where the id of a lost session is from.
///
/// ```
/// use exec_core::SessionIdEvidence;
///
/// assert_ne!(SessionIdEvidence::Assigned, SessionIdEvidence::Unknown);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionIdEvidence {
    /// The agent was given the id.
    Assigned,
    /// The agent has reported the id.
    Reported,
    /// The agent has an id of its own, which the host had not learned. The id is a minted one,
    /// which the agent does not know.
    Unknown,
}

impl RecoveredSession {
    /// A message to the session; `None` if it cannot be resumed. After
    /// [`Adopted`](RecoveredState::Adopted), the execution must end first.
    pub fn follow_up(&self, message: impl Into<String>) -> Option<FollowUpRequest> {
        let knows_session = self.evidence.id_source != SessionIdEvidence::Unknown;
        let can_resume = match &self.state {
            RecoveredState::Adopted(_) => knows_session,
            RecoveredState::Resumable => true,
            RecoveredState::Reaped => false,
        };
        let workspace_path = self.workspace_path.clone().filter(|_| can_resume)?;
        Some(FollowUpRequest {
            context: context(
                &self.session_id,
                &self.profile_label,
                self.variant_label.clone(),
                workspace_path,
            ),
            session_id: self.session_id.clone(),
            message: message.into(),
        })
    }
}

/// The context of a recorded launch. Its ids are parts of the session id.
fn context(
    session_id: &SessionId,
    profile_label: &str,
    variant_label: Option<String>,
    workspace_path: PathBuf,
) -> ExecutionContext {
    let (executor_type, project) = (session_id.executor_type(), session_id.actual_project_id());
    ExecutionContext {
        profile_label: profile_label.to_owned(),
        variant_label,
        executor_type: executor_type.to_owned(),
        project_id: format!("{executor_type}:{project}"),
        actual_project_id: project.to_owned(),
        workspace_path,
        traceparent: None,
    }
}

impl ExecutionService {
    /// Finds the sessions of hosts that have died, for example by a crash of this program before
    /// its restart. Each call of [`Recovery::next`] decides about one of them: it is adopted,
    /// resumable or reaped. Nothing is sent to an agent.
    ///
    /// As [`reap_orphans`](Self::reap_orphans), it considers executions of earlier runs under the
    /// same [host name](crate::ExecutionServiceBuilder::host_name), and no others. The difference:
    /// an agent that is alive is kept.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::NotPrivate`] if a record or the history cannot be read.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn recover(&self) -> Result<Recovery, Error> {
        let service = self.clone();
        let found = tokio::task::spawn_blocking(move || Recovery::find(service)).await;
        found.unwrap_or(Err(Error::ShuttingDown))
    }
}

impl Recovery {
    fn find(service: ExecutionService) -> Result<Self, Error> {
        let inner = service.inner();
        let settings = &inner.settings;
        let boot_id = boot_id()?;
        let mut journals = OrphanedJournal::find_all(&settings.state_dir, &settings.host_name)?;
        let entries = match journals.is_empty() && inner.owner.outdated().is_empty() {
            true => Vec::new(),
            false => inner.history.load()?.entries,
        };
        // The last step that can fail is done: an outdated journal must not be dropped.
        journals.append(&mut inner.owner.outdated());
        let entries: HashMap<&ExecutionId, &HistoryEntry> = entries
            .iter()
            .map(|entry| (&entry.execution_id, entry))
            .collect();
        let mut lost: BTreeMap<ExecutionId, LostExecution> = BTreeMap::new();
        for (index, journal) in journals.iter().enumerate() {
            for record in &journal.live {
                lost.entry(record.execution_id.clone())
                    .or_insert_with(|| LostExecution::new(record, &entries))
                    .journals
                    .push(index);
            }
        }
        let mut sessions: HashMap<SessionId, Vec<LostExecution>> = HashMap::new();
        for execution in lost.into_values() {
            let id = execution.record.session_id.clone();
            sessions.entry(id).or_default().push(execution);
        }
        let mut sessions: Vec<LostSession> = sessions
            .into_iter()
            .map(|(session_id, mut executions)| {
                executions.sort_by_key(LostExecution::started_at);
                LostSession {
                    session_id,
                    executions,
                }
            })
            .collect();
        sessions.sort_by_key(LostSession::started_at);
        Ok(Self {
            scanner: ProcessScanner::new(TAG_VARIABLE),
            same_boot: journals
                .iter()
                .map(|journal| journal.header.boot_id == boot_id)
                .collect(),
            journals: journals.into_iter().map(Some).collect(),
            sessions: sessions.into(),
            service,
        })
    }

    /// How many sessions are left.
    pub fn remaining(&self) -> usize {
        self.sessions.len()
    }

    /// The next session, the one that was started first; `None` after the last one.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a record cannot be written. The session stays on record.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a session that was not delivered is left for the next recovery.
    pub async fn next(&mut self) -> Result<Option<RecoveredSession>, Error> {
        let Some(session) = self.sessions.pop_front() else {
            self.remove_journals()?;
            return Ok(None);
        };
        let (recovered, settled) = self.decide(&session).await?;
        for execution in settled {
            match recovered.state {
                RecoveredState::Adopted(_) => self.disown(execution),
                _ => self.end_record(execution)?,
            }
        }
        let state = match &recovered.state {
            RecoveredState::Adopted(_) => "adopted",
            RecoveredState::Resumable => "resumable",
            RecoveredState::Reaped => "reaped",
        };
        tracing::info!(session_id = %recovered.session_id, state, "recovered a session");
        Ok(Some(recovered))
    }

    /// Also returns the executions that are adopted, or of which no process is left.
    async fn decide<'a>(
        &mut self,
        session: &'a LostSession,
    ) -> Result<(RecoveredSession, Vec<&'a LostExecution>), Error> {
        let inner = self.service.inner();
        let mut evidence = RecoveryEvidence {
            executions: Vec::new(),
            started_at: None,
            leader: LeaderEvidence::NotRecorded,
            id_source: SessionIdEvidence::Unknown,
            ended_processes: 0,
            survivors: Vec::new(),
        };
        let mut adopted = None;
        let mut settled = Vec::new();
        // Whether any of its executions has had a process.
        let mut was_started = false;
        let newest = session.executions.len() - 1;
        for (index, execution) in session.executions.iter().enumerate() {
            let record = &execution.record;
            let same_boot = execution
                .journals
                .iter()
                .any(|index| self.same_boot[*index]);
            let leader = leader_of(record, same_boot);
            evidence.executions.push(record.execution_id.clone());
            evidence.started_at = record.start.as_ref().map(|start| time(start.at));
            evidence.leader = leader;
            // A follow-up knows the id that an earlier execution has learned.
            if execution.id_source != SessionIdEvidence::Unknown {
                evidence.id_source = execution.id_source;
            }
            was_started |= record.process.is_some();
            inner.write_missing_start(record);
            if index == newest
                && let LeaderEvidence::Alive { .. } = leader
            {
                adopted = inner.adopt(record)?;
            }
            if adopted.is_some() {
                settled.push(execution);
            } else {
                let mut record = record.clone();
                if !same_boot {
                    record.process = None;
                }
                let roots = [record.root()];
                let uid = rustix::process::geteuid().as_raw();
                let tree = TreeEnder::new(&self.scanner, &roots).only_uid(uid);
                let ladder = &inner.settings.stop_ladder;
                let tree = stop_tree(tree, ladder, |_| {}, std::future::pending()).await;
                was_started |= tree.processes > 0;
                evidence.ended_processes += tree.processes;
                if tree.survivors.is_empty() {
                    settled.push(execution);
                    let history = &inner.history;
                    history.write(&record.execution_id, HistoryEvent::Reaped);
                }
                evidence.survivors.extend(tree.survivors);
            }
        }
        let record = &session.executions[newest].record;
        let start = record.start.as_ref();
        // A follow-up that never had a process continues a session that exists.
        let exists =
            was_started || start.is_some_and(|start| start.kind == ExecutionKind::FollowUp);
        let state = match adopted {
            Some(execution) => RecoveredState::Adopted(execution),
            None if exists && evidence.id_source != SessionIdEvidence::Unknown => {
                RecoveredState::Resumable
            }
            None => RecoveredState::Reaped,
        };
        let recovered = RecoveredSession {
            session_id: session.session_id.clone(),
            profile_label: record.profile.clone(),
            variant_label: start.and_then(|start| start.variant.clone()),
            workspace_path: start.map(|start| start.workspace.clone().into()),
            state,
            evidence,
        };
        Ok((recovered, settled))
    }

    fn end_record(&mut self, execution: &LostExecution) -> Result<(), Error> {
        let id = &execution.record.execution_id;
        for index in &execution.journals {
            if let Some(journal) = &mut self.journals[*index] {
                journal.ended(id)?;
            }
        }
        Ok(())
    }

    fn disown(&mut self, execution: &LostExecution) {
        for index in &execution.journals {
            if let Some(journal) = &mut self.journals[*index] {
                journal.disown(&execution.record.execution_id);
            }
        }
    }

    fn remove_journals(&mut self) -> Result<(), Error> {
        for place in &mut self.journals {
            if let Some(journal) = place
                && journal.live.is_empty()
            {
                journal.remove()?;
                *place = None;
            }
        }
        Ok(())
    }
}

/// Another host must not get a journal that names executions of this one.
impl Drop for Recovery {
    fn drop(&mut self) {
        let journals = self.journals.drain(..).flatten();
        let outdated = journals.filter(|journal| journal.is_outdated);
        self.service.inner().owner.outdated().extend(outdated);
    }
}

impl LostSession {
    fn started_at(&self) -> u64 {
        self.executions.first().map_or(0, LostExecution::started_at)
    }
}

impl LostExecution {
    /// The session gets its current id from the record, or from the history: an earlier version has
    /// written it only there.
    fn new(record: &LiveRecord, entries: &HashMap<&ExecutionId, &HistoryEntry>) -> Self {
        let mut record = record.clone();
        let entry = entries.get(&record.execution_id);
        let known = match entry {
            Some(entry) if !record.is_id_reported => &entry.session_id,
            _ => &record.session_id,
        };
        let id_source = match &record.start {
            _ if *known != record.session_id => SessionIdEvidence::Reported,
            // A live agent can confirm the id that it was given.
            _ if record.is_id_reported => SessionIdEvidence::Reported,
            _ if entry.is_some_and(|entry| entry.is_id_reported) => SessionIdEvidence::Reported,
            Some(start) if start.kind == ExecutionKind::FollowUp => SessionIdEvidence::Reported,
            Some(start) if !start.id_awaited => SessionIdEvidence::Assigned,
            _ => SessionIdEvidence::Unknown,
        };
        record.session_id = known.clone();
        record.is_id_reported = id_source == SessionIdEvidence::Reported;
        if let Some(start) = &mut record.start {
            // An adopted execution is recorded anew, under the current id.
            start.id_awaited = id_source == SessionIdEvidence::Unknown;
        }
        Self {
            record,
            journals: Vec::new(),
            id_source,
        }
    }

    fn started_at(&self) -> u64 {
        self.record.start.as_ref().map_or(0, |start| start.at)
    }
}

/// The context of a recorded launch.
pub(crate) fn record_context(record: &LiveRecord, start: &LaunchRecord) -> ExecutionContext {
    context(
        &record.session_id,
        &record.profile,
        start.variant.clone(),
        start.workspace.clone().into(),
    )
}

fn leader_of(record: &LiveRecord, same_boot: bool) -> LeaderEvidence {
    let Some((pid, start_time)) = record.process else {
        return LeaderEvidence::NotRecorded;
    };
    if !same_boot {
        return LeaderEvidence::OfEarlierBoot;
    }
    match is_alive(ProcessKey { pid, start_time }) {
        true => LeaderEvidence::Alive { process_id: pid },
        false => LeaderEvidence::Ended,
    }
}

fn time(milliseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)
}
