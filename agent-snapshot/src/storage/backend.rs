//! For authors of a [`SnapshotStorage`](crate::SnapshotStorage): how to judge a save, which parts
//! to write, and how to put a snapshot together again.
//!
//! A storage keeps four parts for each agent: the *body* (the snapshot without its messages), the
//! *head* (pinned messages and summary), the *stream* of messages by sequence number, and a small
//! [`Stamp`]. A save does the following in one atomic step:
//!
//! 1. It reads the stored stamp, and makes sure that the rest can be loaded (rule 3 of the
//!    contract).
//! 2. It calls [`HandleMemory::plan`], which judges the save ([`plan`] does it for a storage that does
//!    not notice that it went back in time).
//! 3. It writes the parts in the [`SavePlan`], including the new stamp.
//!
//! A load reads all four parts and calls [`assemble`], which finds missing and changed parts. A
//! delete removes them and keeps the highest epoch: it becomes the `epoch_floor` of [`plan`].
//!
//! The example
//! [`own_backend`](https://docs.rs/crate/agent-snapshot/latest/source/examples/own_backend.rs) is a
//! complete storage.
//!
//! # Theory
//!
//! The stamp is all that a save needs to know about the stored data.
//!
//! | question | answer |
//! |---|---|
//! | Is it a repeat? | equal `digest`, which covers body, head and links; stored `epoch` not below the floor |
//! | Is it newer? | (`tick`, `revision`) and `epoch`, rules 5 and 7 |
//! | Does it continue the stream? | the history has `link` before number `next` (see `History`) |
//! | Did the head change? | another `head` digest |
//! | Did the storage go back in time? | older than the state that the writer last loaded or saved, rule 15 |
//!
//! The repeat is looked for first: the answer to the first attempt may have been lost, and the
//! repeat of it is not "newer" than itself. A stamp below the epoch floor is older than a delete: a
//! holder from before the delete must get a conflict (rule 7), also for a repeat.
//!
//! **Example.** Stored is tick 7 with next 12. The agent saves tick 8, and the connection breaks before
//! the answer. It saves tick 8 again. If the first attempt was stored, the stored digest equals the
//! new one: `None`, success. If it was not, stored is still tick 7: 8 > 7, and the plan appends from
//! number 12. Another writer's tick 8 has another digest and is not newer than 8: `Conflict`.
//!
//! **Race.** The stamp may be outdated when the plan is executed. So each backend executes the plan only
//! if the stored stamp is still the one that was judged: under a lock (file), in the same
//! transaction (SQLite, PostgreSQL), in the same script (Redis).

use std::fmt;

use xxhash_rust::xxh3::xxh3_128;

pub use super::handle_memory::HandleMemory;
pub use super::stamp::Stamp;
use crate::conversation::Message;
use crate::snapshot::Ancestor;
use crate::{AgentId, AgentSnapshot, Error, History, Position};

/// The parts that a save writes in one atomic step.
///
/// ```
/// use agent_snapshot::backend::{StreamChange, plan};
/// use agent_snapshot::conversation::Message;
/// use agent_snapshot::{AgentId, AgentSnapshot};
///
/// let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// snapshot.memory.short_term_history.push(Message::user("one"));
/// let first = plan(&snapshot, None, 0)?.expect("nothing is stored yet");
/// assert_eq!((first.stream, first.messages.len()), (StreamChange::Replace, 1));
///
/// snapshot.tick_index += 1;
/// snapshot.memory.short_term_history.push(Message::user("two"));
/// let second = plan(&snapshot, Some(&first.stamp), 0)?.expect("a newer tick");
/// assert_eq!(second.stream, StreamChange::Append);
/// assert_eq!((second.from, second.messages.len()), (1, 1));
/// assert_eq!(second.head, None);
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SavePlan {
    /// Replaces the stored stamp.
    pub stamp: Stamp,
    /// Replaces the stored body.
    pub body: String,
    /// Replaces the stored head, a JSON array. `None`: the stored head stays.
    pub head: Option<String>,
    /// Whether the stored stream is kept or removed before `messages` are appended.
    pub stream: StreamChange,
    /// The messages from number `from` on, each as JSON.
    pub messages: Vec<String>,
    /// The number of the first of `messages`.
    pub from: u64,
    /// Replaces the stored labels, a JSON object: for a list that does not read the body.
    pub labels: String,
}

/// The change that a save makes to the stored stream.
///
/// ```
/// use agent_snapshot::backend::StreamChange;
///
/// fn write(stream: &mut Vec<String>, change: StreamChange, new: Vec<String>) {
///     if change == StreamChange::Replace {
///         stream.clear();
///     }
///     stream.extend(new);
/// }
/// let mut stream = vec!["old".to_owned()];
/// write(&mut stream, StreamChange::Append, vec!["new".to_owned()]);
/// assert_eq!(stream, ["old", "new"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamChange {
    /// The stored messages stay, and the new ones follow.
    Append,
    /// The stored messages are removed first.
    Replace,
}

impl fmt::Debug for SavePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavePlan")
            .field("stamp", &self.stamp)
            .field("stream", &self.stream)
            .field("from", &self.from)
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

/// Judges a save. `None` means that the save is a repeat and there is nothing to write.
///
/// `stored` is the stamp of the last save. `epoch_floor` is the highest epoch of a deleted
/// snapshot of this agent, 0 if there was none.
///
/// # Errors
///
/// [`Error::Conflict`] if the snapshot is not newer, [`Error::Rewound`] if it would remove messages
/// that this snapshot did not save or load, [`Error::Encode`] if it cannot be written as JSON that
/// can be read again.
pub fn plan(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    epoch_floor: u64,
) -> Result<Option<SavePlan>, Error> {
    judge(snapshot, stored, epoch_floor, &Intent::Save(None))
}

/// As [`plan`], but for [`overwrite`](crate::SnapshotStorage::overwrite): stored messages that the
/// history does not continue are removed.
///
/// # Errors
///
/// As [`plan`], without [`Error::Rewound`].
pub fn plan_overwrite(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    epoch_floor: u64,
) -> Result<Option<SavePlan>, Error> {
    judge(snapshot, stored, epoch_floor, &Intent::Overwrite)
}

/// The permission that the caller of a save gives.
#[derive(Clone, Debug)]
pub(crate) enum Intent {
    /// To continue the stored state, with the ancestor of the snapshot in this storage.
    Save(Option<Ancestor>),
    /// To replace the stored state.
    Overwrite,
}

pub(crate) fn judge(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    epoch_floor: u64,
    intent: &Intent,
) -> Result<Option<SavePlan>, Error> {
    let history = &snapshot.memory.short_term_history;
    let mut new = history.encode_since(stored.map(|stored| (stored.next, stored.link)))?;
    let continues = new.continues;
    // A view may reach back to messages that a cap has deleted. Then the history is written anew; it
    // has all messages that the stream has.
    let appends =
        continues && stored.is_some_and(|stored| stored.stream_start <= history.first_seq());
    if continues && !appends {
        new = history.encode_since(None)?;
    }
    let head_digest = history.head_digest()?;
    let body = snapshot.body_json()?;

    let mut stamp = Stamp {
        tick: snapshot.tick_index,
        revision: snapshot.revision,
        epoch: snapshot.epoch,
        digest: 0,
        stream_start: match stored {
            Some(stored) if appends => stored.stream_start,
            _ => new.from,
        },
        first: history.first_seq(),
        next: history.next_seq(),
        first_link: new.first_link,
        link: new.link,
        pinned: history.pinned().len() as u64,
        summary: history.summary().is_some(),
        head: head_digest,
    };
    stamp.digest = stamp.digest_with(&body);

    if let Some(stored) = stored
        && stored.digest == stamp.digest
        && stored.epoch >= epoch_floor
    {
        return Ok(None);
    }
    check_newer(snapshot, stored, epoch_floor)?;
    if let Intent::Save(ancestor) = intent {
        check_not_rewound(snapshot, stored, ancestor.as_ref(), continues)?;
    }
    snapshot.lineage.plan(stamp.digest);

    let head = if appends && stored.is_some_and(|stored| stored.head == head_digest) {
        None
    } else {
        Some(history.head_json()?)
    };
    Ok(Some(SavePlan {
        stamp,
        body,
        head,
        stream: if appends {
            StreamChange::Append
        } else {
            StreamChange::Replace
        },
        messages: new.messages,
        from: new.from,
        labels: serde_json::to_string(&snapshot.labels).map_err(|source| Error::Encode {
            what: "the labels".to_owned(),
            source: source.into(),
        })?,
    }))
}

/// Rules 5 and 7 of the contract.
fn check_newer(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    epoch_floor: u64,
) -> Result<(), Error> {
    let new = (snapshot.tick_index, snapshot.revision);
    let (old, epoch) = match stored {
        Some(stored) => (
            Some((stored.tick, stored.revision)),
            stored.epoch.max(epoch_floor),
        ),
        None => (None, epoch_floor),
    };
    let is_newer = match old {
        _ if snapshot.epoch < epoch => false,
        None => true,
        Some(old) if snapshot.epoch > epoch => new >= old,
        Some(old) => new > old,
    };
    if is_newer {
        return Ok(());
    }
    let (stored_tick, stored_revision) = old.unwrap_or_default();
    Err(Error::Conflict {
        agent: snapshot.agent_id.clone(),
        tick: snapshot.tick_index,
        revision: snapshot.revision,
        epoch: snapshot.epoch,
        stored_tick,
        stored_revision,
        stored_epoch: epoch,
    })
}

/// Rule 15 of the contract: a save never removes messages that this writer does not know.
///
/// The writer's ancestor is the state that it last loaded or saved. There are three cases:
///
/// - The stored state is older than the ancestor, or at the same position with other contents: the
///   storage went back in time, and another writer may have continued from there.
/// - The history does not continue the stored stream, and the stored state is not the ancestor: the
///   save would remove messages of another writer, or messages that survived a rewind.
/// - The history does not continue the stored stream, and the stored state *is* the ancestor: the
///   writer replaces a history that it knows. That is allowed.
///
/// **Example.** The writer saved tick 2,421 and has messages 2,400 to 2,421 in memory. A replica with
/// tick 1,410 is promoted. The next save finds tick 1,410: older than the ancestor, refused. Without
/// the check the messages 1,410 to 2,399 would be missing in the stream, so the stream would have
/// to be replaced, and 1,410 messages would be lost.
fn check_not_rewound(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    ancestor: Option<&Ancestor>,
    continues: bool,
) -> Result<(), Error> {
    let position = stored.map(Position::from);
    let went_back = ancestor.is_some_and(|ancestor| match (stored, &position) {
        (Some(stored), Some(position)) => {
            position.is_before(&ancestor.position)
                || (*position == ancestor.position && stored.digest != ancestor.digest)
        }
        _ => true,
    });
    let removes_unknown = stored.is_some_and(|stored| {
        !continues
            && stored.stream_start < stored.next
            && !snapshot.lineage.has_planned(stored.digest)
            && ancestor.is_none_or(|ancestor| ancestor.digest != stored.digest)
    });
    if !went_back && !removes_unknown {
        return Ok(());
    }
    Err(Error::Rewound {
        agent: snapshot.agent_id.clone(),
        committed: ancestor.map_or_else(|| Position::of(snapshot), |ancestor| ancestor.position),
        stored: position,
    })
}

/// Puts a snapshot together. `messages` is the tail in view: `stamp.first` up to, not including,
/// `stamp.next`.
///
/// # Errors
///
/// [`Error::Damaged`] with `location` if a part cannot be read, belongs to another agent or tick, or
/// messages are missing; [`Error::UnsupportedVersion`] if a newer version of this crate wrote it.
pub fn assemble<T: AsRef<str>>(
    agent: &AgentId,
    location: &str,
    stamp: &Stamp,
    body: &str,
    head: &str,
    messages: impl IntoIterator<Item = T>,
) -> Result<AgentSnapshot, Error> {
    let damaged = |reason: String| Error::Damaged {
        agent: agent.clone(),
        location: location.to_owned(),
        reason,
    };
    if stamp.digest_with(body) != stamp.digest || xxh3_128(head.as_bytes()) != stamp.head {
        return Err(damaged("its digest does not match".to_owned()));
    }
    let mut snapshot = AgentSnapshot::from_json(body).map_err(|error| match error {
        Error::UnsupportedVersion {
            found, supported, ..
        } => Error::UnsupportedVersion {
            what: format!("agent {agent} in {location}"),
            found,
            supported,
        },
        error => damaged(format!("its body is not readable: {}", cause(&error))),
    })?;
    if snapshot.agent_id != *agent {
        return Err(damaged(format!(
            "it is the body of agent {}",
            snapshot.agent_id
        )));
    }
    let order = (snapshot.tick_index, snapshot.revision, snapshot.epoch);
    if order != (stamp.tick, stamp.revision, stamp.epoch) {
        return Err(damaged("its body belongs to another tick".to_owned()));
    }
    let mut pinned: Vec<Message> = serde_json::from_str(head)
        .map_err(|error| damaged(format!("its pinned messages are not readable: {error}")))?;
    if pinned.len() as u64 != stamp.pinned.saturating_add(u64::from(stamp.summary)) {
        return Err(damaged("its pinned messages are not complete".to_owned()));
    }
    let summary = if stamp.summary { pinned.pop() } else { None };
    let mut history = History::from_parts(pinned, summary, stamp.first, stamp.first_link);
    for json in messages {
        let json = json.as_ref();
        let message = serde_json::from_str(json).map_err(|error| {
            let seq = history.next_seq();
            damaged(format!("message {seq} is not readable: {error}"))
        })?;
        history.push_stored(message, json);
    }
    // Fewer messages than the stamp says are damage, not a shorter history.
    if history.next_seq() != stamp.next {
        return Err(damaged(format!(
            "it should have messages {} to {}, but it has {} messages",
            stamp.first,
            stamp.next,
            history.tail_len()
        )));
    }
    if history.link_before(stamp.next) != Some(stamp.link) {
        return Err(damaged("its messages do not match their digest".to_owned()));
    }
    snapshot.memory.short_term_history = history;
    Ok(snapshot)
}

/// Reads stored messages and numbers them from `first` on.
///
/// # Errors
///
/// [`Error::Damaged`] with `location` if a message cannot be read.
pub fn decode_messages<T: AsRef<str>>(
    agent: &AgentId,
    location: &str,
    first: u64,
    messages: impl IntoIterator<Item = T>,
) -> Result<Vec<(u64, Message)>, Error> {
    (first..)
        .zip(messages)
        .map(|(seq, json)| {
            let message = serde_json::from_str(json.as_ref()).map_err(|error| Error::Damaged {
                agent: agent.clone(),
                location: location.to_owned(),
                reason: format!("message {seq} is not readable: {error}"),
            })?;
            Ok((seq, message))
        })
        .collect()
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
