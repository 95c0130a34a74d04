//! For those who write a [`SnapshotStorage`](crate::SnapshotStorage): what to compare, what
//! to write, and how to put it together again.
//!
//! A storage keeps four things for each agent: the *state* (all but the messages), the *head*
//! (pinned messages and summary), the *stream* of messages by sequence number, and a small
//! [`Stamp`]. In one atomic step a save
//!
//! 1. reads the stored stamp, and makes sure that the rest can be loaded (rule 3),
//! 2. asks [`plan`] what to do,
//! 3. writes what the [`Write`] says, the new stamp included.
//!
//! A load reads all four and calls [`assemble`], which notices what is missing. A delete leaves
//! the highest epoch behind: it is [`plan`]'s `epoch_floor`.

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{AgentId, AgentSnapshot, Error, History, conversation::Message};

/// What a storage remembers about the last save, to judge the next one.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stamp {
    /// `AgentSnapshot::tick_index`.
    pub tick: u64,
    /// `AgentSnapshot::revision`.
    pub revision: u64,
    /// `AgentSnapshot::epoch`.
    pub epoch: u64,
    /// Identifies the save: a repeat has the same.
    pub digest: u128,
    /// The first number in the stream.
    pub start: u64,
    /// The first number in view.
    pub first: u64,
    /// The number after the last.
    pub next: u64,
    /// Digest of the stream up to `first`.
    pub first_link: u128,
    /// Digest of the stream up to `next`.
    pub link: u128,
    /// The number of pinned messages in the head.
    pub pinned: u64,
    /// Whether a summary follows them.
    pub summary: bool,
    /// Digest of the head.
    pub head: u128,
}

impl Stamp {
    /// The stamp as one line of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self {
            tick,
            revision,
            epoch,
            digest,
            start,
            first,
            next,
            first_link,
            link,
            pinned,
            summary,
            head,
        } = self;
        let summary = u8::from(*summary);
        format!(
            "1 {tick} {revision} {epoch} {start} {first} {next} {pinned} {summary} \
             {digest:x} {first_link:x} {link:x} {head:x}"
        )
    }

    /// Reads what [`to_text`](Self::to_text) wrote.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        fn number(text: Option<&str>) -> Option<u64> {
            text?.parse().ok()
        }
        fn digest(text: Option<&str>) -> Option<u128> {
            u128::from_str_radix(text?, 16).ok()
        }
        let mut parts = text.strip_prefix("1 ")?.split(' ');
        let stamp = Self {
            tick: number(parts.next())?,
            revision: number(parts.next())?,
            epoch: number(parts.next())?,
            start: number(parts.next())?,
            first: number(parts.next())?,
            next: number(parts.next())?,
            pinned: number(parts.next())?,
            summary: number(parts.next())? == 1,
            digest: digest(parts.next())?,
            first_link: digest(parts.next())?,
            link: digest(parts.next())?,
            head: digest(parts.next())?,
        };
        let ordered = stamp.start <= stamp.first && stamp.first <= stamp.next;
        (ordered && parts.next().is_none()).then_some(stamp)
    }

    /// Identifies a save by all of its contents.
    fn digest_with(&self, state: &str) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(state.as_bytes());
        for part in [self.first_link, self.link, self.head] {
            hash.update(&part.to_le_bytes());
        }
        for part in [self.first, self.next, self.pinned] {
            hash.update(&part.to_le_bytes());
        }
        hash.digest128()
    }
}

/// What a save has to write, in one atomic step.
#[derive(Clone)]
#[non_exhaustive]
pub struct Write {
    /// Replaces the stored stamp.
    pub stamp: Stamp,
    /// Replaces the stored state.
    pub state: String,
    /// Replaces the stored head, where it changed: a JSON array.
    pub head: Option<String>,
    /// What becomes of the stored stream.
    pub stream: Stream,
    /// The messages from number `from` on, each as JSON.
    pub messages: Vec<String>,
    /// The number of the first of `messages`.
    pub from: u64,
}

/// What becomes of the stored stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// It stays, and the new messages follow.
    Append,
    /// It is removed first.
    Replace,
}

impl std::fmt::Debug for Write {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("stamp", &self.stamp)
            .field("stream", &self.stream)
            .field("from", &self.from)
            .field("messages", &self.messages.len())
            .finish_non_exhaustive()
    }
}

/// Judges a save: `None` when it is a repeat and nothing is to be done.
///
/// `stored` is the stamp of the last save, `epoch_floor` the highest epoch that a deleted
/// snapshot of this agent had (0 if there was none).
///
/// # Errors
///
/// [`Error::Conflict`] when the snapshot is not newer, [`Error::Encode`] when it cannot be
/// written as JSON.
pub fn plan(
    snapshot: &AgentSnapshot,
    stored: Option<&Stamp>,
    epoch_floor: u64,
) -> Result<Option<Write>, Error> {
    let history = &snapshot.memory.short_term_history;
    let encoded = history.encode_since(stored.map(|stored| (stored.next, stored.link)))?;
    let head_digest = history.head_digest()?;
    let state = snapshot.state_json()?;

    let mut stamp = Stamp {
        tick: snapshot.tick_index,
        revision: snapshot.revision,
        epoch: snapshot.epoch,
        digest: 0,
        start: match stored {
            Some(stored) if encoded.continues => stored.start,
            _ => encoded.from,
        },
        first: history.first_seq(),
        next: history.next_seq(),
        first_link: encoded.first_link,
        link: encoded.link,
        pinned: history.pinned().len() as u64,
        summary: history.summary().is_some(),
        head: head_digest,
    };
    stamp.digest = stamp.digest_with(&state);

    if let Some(stored) = stored
        && stored.digest == stamp.digest
        && stored.epoch >= epoch_floor
    {
        return Ok(None);
    }
    check_newer(snapshot, stored, epoch_floor)?;

    let head = if encoded.continues && stored.is_some_and(|stored| stored.head == head_digest) {
        None
    } else {
        Some(history.head_json()?)
    };
    Ok(Some(Write {
        stamp,
        state,
        head,
        stream: if encoded.continues && stored.is_some() {
            Stream::Append
        } else {
            Stream::Replace
        },
        messages: encoded.messages,
        from: encoded.from,
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
    let newer = match old {
        _ if snapshot.epoch < epoch => false,
        None => true,
        Some(old) if snapshot.epoch > epoch => new >= old,
        Some(old) => new > old,
    };
    if newer {
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

/// Puts a snapshot together: the messages are those in view, `stamp.first` to `stamp.next`.
///
/// # Errors
///
/// [`Error::Damaged`] with `place` when a part cannot be read, belongs to another agent or
/// tick, or messages are missing; [`Error::UnsupportedVersion`] when a newer version of this
/// crate wrote it.
pub fn assemble<T: AsRef<str>>(
    agent: &AgentId,
    place: &str,
    stamp: &Stamp,
    state: &str,
    head: &str,
    messages: impl IntoIterator<Item = T>,
) -> Result<AgentSnapshot, Error> {
    let damaged = |reason: String| Error::Damaged {
        agent: agent.clone(),
        place: place.to_owned(),
        reason,
    };
    if stamp.digest_with(state) != stamp.digest || xxh3_128(head.as_bytes()) != stamp.head {
        return Err(damaged("its digest does not match".to_owned()));
    }
    let mut snapshot = AgentSnapshot::from_json(state).map_err(|error| match error {
        Error::UnsupportedVersion {
            found, supported, ..
        } => Error::UnsupportedVersion {
            what: format!("agent {agent} in {place}"),
            found,
            supported,
        },
        error => damaged(format!("its state is not readable: {}", cause(&error))),
    })?;
    if snapshot.agent_id != *agent {
        return Err(damaged(format!(
            "it is the state of agent {}",
            snapshot.agent_id
        )));
    }
    let order = (snapshot.tick_index, snapshot.revision, snapshot.epoch);
    if order != (stamp.tick, stamp.revision, stamp.epoch) {
        return Err(damaged("its state is that of another tick".to_owned()));
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
    // Fewer are damage, not a shorter history; and each one is what was saved.
    if history.next_seq() != stamp.next {
        return Err(damaged(format!(
            "messages {} to {} should be there, but there are {}",
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

/// Reads messages whose first one has the number `first`.
///
/// # Errors
///
/// [`Error::Damaged`] with `place` when one cannot be read.
pub fn decode_messages<T: AsRef<str>>(
    agent: &AgentId,
    place: &str,
    first: u64,
    messages: impl IntoIterator<Item = T>,
) -> Result<Vec<(u64, Message)>, Error> {
    (first..)
        .zip(messages)
        .map(|(seq, json)| {
            let message = serde_json::from_str(json.as_ref()).map_err(|error| Error::Damaged {
                agent: agent.clone(),
                place: place.to_owned(),
                reason: format!("message {seq} is not readable: {error}"),
            })?;
            Ok((seq, message))
        })
        .collect()
}

fn cause(error: &Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
