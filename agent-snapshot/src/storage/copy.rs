//! Copies of whole storages: between backends, to a backup, and back.

#[cfg(feature = "file")]
use std::path::Path;

use crate::conversation::Message;
use crate::{AgentId, AgentSnapshot, Error, History, Position, SnapshotStorage};

/// The result of a [`copy`].
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage, copy};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let (from, to) = (MemoryStorage::new(), MemoryStorage::new());
/// from.save(&AgentSnapshot::new(AgentId::new("worker_007")?)).await?;
/// let report = copy(&from, &to).await?;
/// assert_eq!((report.agents, report.messages), (1, 0));
/// assert_eq!(to.list().await?, from.list().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CopyReport {
    /// The number of agents that were copied and verified.
    pub agents: u64,
    /// The number of their messages, in view or not.
    pub messages: u64,
    /// Agents that `from` cannot read. They were not copied.
    pub damaged: Vec<AgentId>,
}

/// Copies every agent with its whole stream, and verifies each copy by reading it.
///
/// An agent that `to` has already is not overwritten: the same state is a success, an older one is
/// continued, anything else is an error. So an interrupted copy can be repeated. If the stream in
/// `from` was capped since, an earlier copy is [`Error::Rewound`], or [`Error::Conflict`] if the agent
/// has not saved since: delete the copy first.
///
/// Agents should not save meanwhile; one that does is copied at one of its ticks. The epochs of
/// deleted agents are not copied, so start the agents on the new storage only after the old ones
/// have ended. If `from` has no streams, the messages in view are copied.
///
/// The time of the last change ([`AgentInfo::changed`](crate::AgentInfo::changed)) starts anew: a copy
/// is a save. So [`expire`](SnapshotStorage::expire) never deletes an agent of the copy earlier than one
/// of the original. The snapshot keeps its own `timestamp`.
///
/// # Errors
///
/// The errors of the two storages; [`Error::Damaged`] with the location "the copy" if a copy does
/// not read like its original.
///
/// # Cancel safety
///
/// Cancel safe: each agent is copied or not. It may be repeated.
pub async fn copy(
    from: &dyn SnapshotStorage,
    to: &dyn SnapshotStorage,
) -> Result<CopyReport, Error> {
    let mut report = CopyReport::default();
    for agent in from.list().await? {
        let whole = match read_whole(from, &agent).await {
            Ok(Some(whole)) => whole,
            Ok(None) => continue,
            Err(error) if error.is_damaged() => {
                tracing::warn!(%agent, %error, "not copied");
                report.damaged.push(agent);
                continue;
            }
            Err(error) => return Err(error),
        };
        to.save(&whole.snapshot).await?;
        verify_agent(&whole, to).await?;
        report.agents += 1;
        report.messages += whole.stream.len() as u64;
    }
    Ok(report)
}

/// Compares two storages agent by agent, messages included, and returns the agents that differ.
///
/// ```
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage, verify};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let (one, two) = (MemoryStorage::new(), MemoryStorage::new());
/// let agent = AgentId::new("worker_007")?;
/// one.save(&AgentSnapshot::new(agent.clone())).await?;
/// assert_eq!(verify(&one, &two).await?, [agent]);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// The errors of the two storages, except damage: a damaged agent differs.
///
/// # Cancel safety
///
/// Cancel safe: reading changes nothing.
pub async fn verify(
    one: &dyn SnapshotStorage,
    two: &dyn SnapshotStorage,
) -> Result<Vec<AgentId>, Error> {
    let mut agents = one.list().await?;
    agents.extend(two.list().await?);
    agents.sort();
    agents.dedup();
    let mut different = Vec::new();
    for agent in agents {
        let same = match (read_whole(one, &agent).await, read_whole(two, &agent).await) {
            (Ok(Some(one)), Ok(Some(two))) => one.is_like(&two),
            (Err(error), _) | (_, Err(error)) if !error.is_damaged() => return Err(error),
            _ => false,
        };
        if !same {
            different.push(agent);
        }
    }
    Ok(different)
}

/// Copies a storage into a new folder, which a [`FileStorage`](crate::FileStorage) reads: plain JSON
/// and streams, without logs. The copy is verified.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// # let folder = tempfile::tempdir().unwrap();
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage, backup, restore};
///
/// let storage = MemoryStorage::new();
/// storage.save(&AgentSnapshot::new(AgentId::new("worker_007")?)).await?;
/// let path = folder.path().join("2026-11-17");
/// assert_eq!(backup(&storage, &path).await?.agents, 1);
///
/// let fresh = MemoryStorage::new();
/// assert_eq!(restore(&path, &fresh).await?.agents, 1);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`copy`]; [`Error::Invalid`] if the folder has files already.
///
/// # Cancel safety
///
/// Cancel safe: an incomplete folder may be left. Remove it and start again.
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub async fn backup(
    storage: &dyn SnapshotStorage,
    folder: impl AsRef<Path>,
) -> Result<CopyReport, Error> {
    let folder = folder.as_ref();
    let is_used = std::fs::read_dir(folder).is_ok_and(|mut files| files.next().is_some());
    if is_used {
        let name = folder.display().to_string();
        return Err(Error::invalid("backup folder", &name, "it is not empty"));
    }
    let files = crate::FileStorage::open(folder).await?;
    let report = copy(storage, &files).await?;
    files.close().await?;
    Ok(report)
}

/// Copies a [`backup`] into a storage, and verifies the copy. Agents that the storage has in a newer
/// or another state are an error, and are not overwritten.
///
/// # Errors
///
/// As [`copy`]; [`Error::Invalid`] if there is no such folder.
///
/// # Cancel safety
///
/// Cancel safe: each agent is restored or not. It may be repeated.
#[cfg(feature = "file")]
#[cfg_attr(docsrs, doc(cfg(feature = "file")))]
pub async fn restore(
    folder: impl AsRef<Path>,
    storage: &dyn SnapshotStorage,
) -> Result<CopyReport, Error> {
    let folder = folder.as_ref();
    if !folder.is_dir() {
        let name = folder.display().to_string();
        return Err(Error::invalid("backup folder", &name, "there is none"));
    }
    copy(&crate::FileStorage::open(folder).await?, storage).await
}

/// Makes a new agent from the messages of another one before message `at`, with its pinned messages,
/// variables, labels and extra fields. Events, replies and tool intents are not taken over.
///
/// The variables and the pinned messages are those of today, also if `at` is long ago: a storage keeps
/// no earlier ones. A caller that needs others sets them in the result and saves it with the next
/// `tick_index`.
///
/// If `at` is in view, the new agent has the view of the old one up to there, with its summary.
/// Otherwise it has all messages from the start of the stream in view, and no summary.
///
/// ```
/// use agent_snapshot::conversation::Message;
/// use agent_snapshot::{AgentId, AgentSnapshot, MemoryStorage, SnapshotStorage, fork};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = MemoryStorage::new();
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// for text in ["one", "two", "three"] {
///     snapshot.memory.short_term_history.push(Message::user(text));
/// }
/// storage.save(&snapshot).await?;
/// let fork = fork(&storage, &snapshot.agent_id, 2, AgentId::new("worker_008")?).await?;
/// assert_eq!(fork.memory.short_term_history.len(), 2);
/// assert_eq!(storage.list().await?.len(), 2);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::Invalid`] if there is no such agent or message, or the new agent exists already;
/// otherwise the errors of the storage.
///
/// # Cancel safety
///
/// Cancel safe: the new agent is saved or not.
pub async fn fork(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
    at: u64,
    new_agent: AgentId,
) -> Result<AgentSnapshot, Error> {
    let invalid = |reason: &str| Error::invalid("fork", &format!("{agent} at {at}"), reason);
    let Some(Whole { snapshot, stream }) = read_whole(storage, agent).await? else {
        return Err(invalid("there is no such agent"));
    };
    let old = &snapshot.memory.short_term_history;
    let start = stream.first().map_or(old.next_seq(), |(seq, _)| *seq);
    if at < start || at > old.next_seq() {
        let reason = format!("the messages are {start} to {}", old.next_seq());
        return Err(invalid(&reason));
    }
    if storage.load(&new_agent).await?.is_some() {
        return Err(invalid(&format!("{new_agent} exists already")));
    }
    let in_view = at >= old.first_seq();
    let summary = old.summary().filter(|_| in_view).cloned();
    let messages = stream.into_iter().take_while(|(seq, _)| *seq < at);
    // The numbers start anew: the new agent has a stream of its own.
    let mut history = History::new();
    history.pin(old.pinned().to_vec());
    history.extend(messages.map(|(_, message)| message));
    if in_view {
        history.drop_front((old.first_seq() - start) as usize);
        history.set_summary(summary);
    }
    let mut fork = AgentSnapshot::new(new_agent);
    fork.set_timestamp(std::time::SystemTime::now());
    fork.memory.short_term_history = history;
    fork.memory.working_variables = snapshot.memory.working_variables;
    fork.memory.extra = snapshot.memory.extra;
    fork.labels = snapshot.labels;
    fork.extra = snapshot.extra;
    match storage.save(&fork).await {
        // A deleted agent of this id left its epoch.
        Err(Error::Conflict { stored_epoch, .. }) if stored_epoch > fork.epoch => {
            fork.epoch = stored_epoch;
            storage.save(&fork).await?;
        }
        result => result?,
    }
    Ok(fork)
}

/// An agent with its whole stream in memory.
struct Whole {
    snapshot: AgentSnapshot,
    stream: Vec<(u64, Message)>,
}

impl Whole {
    fn is_like(&self, other: &Self) -> bool {
        self.snapshot == other.snapshot && self.stream == other.stream
    }
}

/// Reads an agent in two steps: the snapshot, then the stream.
///
/// Race: the agent replaces its history or is deleted between the steps, and the stream does not fit
/// the snapshot. Then both steps are repeated. A mismatch at the same position twice is damage.
async fn read_whole(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
) -> Result<Option<Whole>, Error> {
    let mut doubted = None;
    loop {
        let Some(mut snapshot) = storage.load(agent).await? else {
            return Ok(None);
        };
        let view = &snapshot.memory.short_term_history;
        let next = view.next_seq();
        let stream = match storage.stream(agent, 0..next).await {
            Err(error) if error.is_unsupported() => view
                .tail()
                .map(|(seq, message)| (seq, message.clone()))
                .collect(),
            stream => stream?,
        };
        let start = stream.first().map_or(next, |(seq, _)| *seq);
        let has_gap = stream.len() as u64 != next - start;
        let has_view = start <= view.first_seq();
        // Of the same length, but perhaps of another history.
        let differs = view
            .tail()
            .rev()
            .zip(stream.iter().rev())
            .any(|(in_view, (seq, message))| in_view != (*seq, message));
        if has_gap || !has_view || differs {
            let position = Some(Position::of(&snapshot));
            if doubted == position {
                return Err(Error::Damaged {
                    agent: agent.clone(),
                    location: "the source".to_owned(),
                    reason: format!("its stream does not fit its messages {start} to {next}"),
                });
            }
            doubted = position;
            continue;
        }
        let pinned = view.pinned().to_vec();
        let hidden = (view.first_seq() - start) as usize;
        let mut history = History::from_parts(pinned, view.summary().cloned(), start, 0);
        history.extend(stream.iter().map(|(_, message)| message.clone()));
        history.drop_front(hidden);
        snapshot.memory.short_term_history = history;
        return Ok(Some(Whole { snapshot, stream }));
    }
}

async fn verify_agent(original: &Whole, to: &dyn SnapshotStorage) -> Result<(), Error> {
    let agent = &original.snapshot.agent_id;
    let copy = read_whole(to, agent).await?;
    if copy.is_some_and(|copy| copy.is_like(original)) {
        return Ok(());
    }
    Err(Error::Damaged {
        agent: agent.clone(),
        location: "the copy".to_owned(),
        reason: "it differs from its original".to_owned(),
    })
}
