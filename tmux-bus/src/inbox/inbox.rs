use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use super::inbox_entry::{DeadReason, InboxEntry, MessageState};
use super::inbox_file::{InboxFile, Sync};
use super::inbox_limits::InboxLimits;
use super::inbox_model::{InboxModel, Letter, LetterState};
use super::inbox_record::{InboxRecord, LeftRecord, millis, time};
use super::message_id::MessageId;
use crate::pane::sender::refusal_of_text;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::{Error, Refusal};

/// Messages that are left for the agents of a cluster.
///
/// A message is stored durably, and delivered by [`ClusterManager::deliver_inbox`] when its
/// receiver is idle, in the order in which the messages for one receiver were left. After any crash
/// each message is waiting, delivered, or listed as uncertain: it is never delivered twice, and
/// never lost. The files are private, and stay when the cluster is stopped.
///
/// All methods block the calling thread while another process writes, and until the disk has the
/// record. Clones are the same inbox.
///
/// ```
/// use tmux_bus::{AgentConfig, ClusterConfig, ClusterManager, MessageState};
///
/// let dir = tempfile::tempdir()?;
/// let config = ClusterConfig::builder("team")
///     .work_dir(dir.path())
///     .agent(AgentConfig::new("coder"))
///     .build()?;
/// // The cluster need not run.
/// let inbox = ClusterManager::builder(config).inbox();
/// let id = inbox.leave("user", "coder", "The review is done.")?;
/// let entries = inbox.entries("coder")?;
/// assert_eq!((&entries[0].id, &entries[0].state), (&id, &MessageState::Waiting));
/// inbox.take_back(&id)?;
/// assert!(inbox.entries("coder")?.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`ClusterManager::deliver_inbox`]: crate::ClusterManager::deliver_inbox
#[derive(Clone, Debug)]
pub struct Inbox {
    shared: Arc<SharedInbox>,
}

#[derive(Debug)]
struct SharedInbox {
    file: InboxFile,
    limits: InboxLimits,
    agents: Vec<String>,
    deliverer: FifoLock,
}

/// What a deliverer can do next.
pub(super) struct DeliveryPlan {
    /// The first message of each agent, with its receiver.
    pub(super) heads: Vec<(MessageId, String)>,
    /// When the next waiting message expires.
    pub(super) next_expiry: Option<SystemTime>,
}

impl Inbox {
    /// `owner` is the configuration of the cluster, relative to its base folder: a project can be moved.
    pub(crate) fn new(
        folder: PathBuf,
        owner: PathBuf,
        limits: InboxLimits,
        agents: Vec<String>,
    ) -> Self {
        Self {
            shared: Arc::new(SharedInbox {
                deliverer: FifoLock::new(&folder.join("deliverer")),
                file: InboxFile::new(folder, owner),
                limits,
                agents,
            }),
        }
    }

    /// Leaves a message. When the call returns, the message is on disk.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`]; [`Error::InboxFull`] and [`Error::MessageTooLong`] beyond the
    /// limits; [`Error::NotLeft`] for a text that no terminal can take; [`Error::Invalid`] if the
    /// inbox belongs to another configuration; [`Error::Io`] and [`Error::NotPrivate`].
    pub fn leave(&self, from: &str, to: &str, text: &str) -> Result<MessageId, Error> {
        let SharedInbox { limits, agents, .. } = &*self.shared;
        if !agents.iter().any(|agent| agent == to) {
            return Err(Error::UnknownAgent {
                name: to.to_owned(),
                known: agents.clone(),
            });
        }
        if text.len() > limits.max_message_bytes {
            return Err(Error::MessageTooLong {
                agent: to.to_owned(),
                length: text.len(),
                limit: limits.max_message_bytes,
            });
        }
        if let Some(reason) = refusal_of_text(text) {
            return Err(Error::NotLeft {
                agent: to.to_owned(),
                reason,
            });
        }
        let id = MessageId::random();
        self.shared.file.update(Sync::Disk, |model| {
            let now = millis(SystemTime::now());
            if model.unsettled(to, now) >= limits.max_messages {
                return Err(Error::InboxFull {
                    agent: to.to_owned(),
                    limit: limits.max_messages,
                });
            }
            let left = InboxRecord::Left(LeftRecord {
                id: id.clone(),
                from: from.to_owned(),
                to: to.to_owned(),
                text: text.to_owned(),
                at: now,
                expires: self.expiry(now),
                is_agent: agents.iter().any(|agent| agent == from),
            });
            Ok((vec![left], id.clone()))
        })
    }

    /// The messages for an agent, in the order in which they were left. Of the delivered messages
    /// the newest 20 are listed, of the dead letters the newest 1,000.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NotPrivate`].
    pub fn entries(&self, agent: &str) -> Result<Vec<InboxEntry>, Error> {
        self.list(|letter| letter.to == agent)
    }

    /// The messages for all agents, also for agents that are not part of the cluster any more.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] and [`Error::NotPrivate`].
    pub fn all_entries(&self) -> Result<Vec<InboxEntry>, Error> {
        self.list(|_| true)
    }

    fn list(&self, is_wanted: impl Fn(&Letter) -> bool) -> Result<Vec<InboxEntry>, Error> {
        self.shared.file.read(|model, texts| {
            let now = millis(SystemTime::now());
            // Outcomes are recorded under the lock that this call holds: without a deliverer the
            // outcome is unknown.
            let has_deliverer = self.shared.deliverer.is_held()?;
            let wanted = model.letters().filter(|letter| is_wanted(letter));
            let entry = |letter: &Letter| {
                let state = match letter.state.clone() {
                    LetterState::Waiting if letter.is_expired(now) => MessageState::Dead {
                        reason: DeadReason::Expired,
                    },
                    LetterState::Waiting => MessageState::Waiting,
                    LetterState::Sending if has_deliverer => MessageState::Sending,
                    LetterState::Sending => MessageState::Uncertain {
                        reason: DIED.to_owned(),
                    },
                    LetterState::Uncertain(reason) => MessageState::Uncertain { reason },
                    LetterState::Dead(reason) => MessageState::Dead { reason },
                    LetterState::Delivered(at) => MessageState::Delivered {
                        at: time(at).unwrap_or(SystemTime::UNIX_EPOCH),
                    },
                };
                Ok(InboxEntry {
                    id: letter.id.clone(),
                    from: letter.from.clone(),
                    to: letter.to.clone(),
                    text: match letter.state {
                        LetterState::Delivered(_) => String::new(),
                        _ => texts.text(letter)?,
                    },
                    left_at: time(letter.at).unwrap_or(SystemTime::UNIX_EPOCH),
                    state,
                })
            };
            wanted.map(entry).collect()
        })
    }

    /// Takes back a message that waits.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownMessage`]; [`Error::MessageState`] if it does not wait any more;
    /// [`Error::Io`] and [`Error::NotPrivate`].
    pub fn take_back(&self, id: &MessageId) -> Result<(), Error> {
        self.decide(id, "waiting", |letter| match letter.state {
            LetterState::Waiting => Some(InboxRecord::Removed { id: id.clone() }),
            _ => None,
        })
    }

    /// Delivers an uncertain message or a dead letter after all. It is the next message of its
    /// receiver, before those that were left later. An uncertain message that the agent has got is
    /// then delivered twice: look first.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownMessage`]; [`Error::MessageState`] if it is neither uncertain nor dead;
    /// [`Error::Io`] and [`Error::NotPrivate`].
    pub fn resend(&self, id: &MessageId) -> Result<(), Error> {
        let now = millis(SystemTime::now());
        let expires = self.expiry(now);
        self.settle(id, now, |id| InboxRecord::Resent { id, expires })
    }

    /// Removes an uncertain message or a dead letter from the list.
    ///
    /// # Errors
    ///
    /// As [`resend`](Self::resend).
    pub fn forget(&self, id: &MessageId) -> Result<(), Error> {
        let now = millis(SystemTime::now());
        self.settle(id, now, |id| InboxRecord::Removed { id })
    }

    fn settle(
        &self,
        id: &MessageId,
        now: u64,
        record: impl FnOnce(MessageId) -> InboxRecord,
    ) -> Result<(), Error> {
        self.end_abandoned()?;
        self.shared.file.update(Sync::Disk, |model| {
            let letter = find(model, id)?;
            let mut records = Vec::new();
            if letter.is_expired(now) {
                records.push(InboxRecord::Dead {
                    id: id.clone(),
                    reason: DeadReason::Expired,
                });
            } else if !matches!(
                letter.state,
                LetterState::Uncertain(_) | LetterState::Dead(_)
            ) {
                return Err(wrong_state(letter, "uncertain or dead"));
            }
            records.push(record(id.clone()));
            Ok((records, ()))
        })
    }

    fn decide(
        &self,
        id: &MessageId,
        needed: &'static str,
        record: impl FnOnce(&Letter) -> Option<InboxRecord>,
    ) -> Result<(), Error> {
        self.shared.file.update(Sync::Disk, |model| {
            let letter = find(model, id)?;
            let record = record(letter).ok_or_else(|| wrong_state(letter, needed))?;
            Ok((vec![record], ()))
        })
    }

    fn expiry(&self, now: u64) -> u64 {
        let keep = u64::try_from(self.shared.limits.keep.as_millis());
        now.saturating_add(keep.unwrap_or(u64::MAX))
    }

    /// Refuses the inbox of another cluster.
    pub(crate) fn check_owner(&self) -> Result<(), Error> {
        self.shared.file.is_claimed().map(drop)
    }

    /// Makes dead letters of the waiting messages for agents other than these.
    pub(crate) fn bury_removed(&self, agents: &BTreeSet<&str>) -> Result<(), Error> {
        let is_gone = |letter: &&Letter| !agents.contains(letter.to.as_str());
        let has_some = self
            .shared
            .file
            .read(|model, _| Ok(model.waiting().any(|letter| is_gone(&letter))))?;
        if !has_some {
            return Ok(());
        }
        self.shared.file.update(Sync::Disk, |model| {
            let gone = model.waiting().filter(is_gone);
            let records = gone.map(|letter| InboxRecord::Dead {
                id: letter.id.clone(),
                reason: DeadReason::AgentRemoved,
            });
            Ok((records.collect(), ()))
        })
    }

    // For the deliverer.

    /// The file, which every change writes to or replaces.
    pub(super) fn path(&self) -> &std::path::Path {
        self.shared.file.path()
    }

    /// Waits for the right to deliver. The kernel takes it from a process that dies.
    pub(super) async fn lock_delivery(&self) -> Result<LockedFile, Error> {
        crate::shared::private_file::create_folder(self.shared.file.folder())?;
        let lock = &self.shared.deliverer;
        Ok(match lock.try_lock(Access::Exclusive)? {
            Some(held) => held,
            None => lock.wait(Access::Exclusive)?.await?,
        })
    }

    /// Lists the messages as uncertain that a deliverer was sending when it died. Changes nothing
    /// while there is a deliverer.
    fn end_abandoned(&self) -> Result<(), Error> {
        match self.shared.deliverer.try_lock_barging(Access::Exclusive) {
            Ok(Some(_held)) => self.take_over(),
            Ok(None) => Ok(()),
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// As `end_abandoned`, for the holder of the right to deliver, which is not sending yet.
    pub(super) fn take_over(&self) -> Result<(), Error> {
        self.shared.file.update(Sync::Disk, |model| {
            let sending = model
                .open()
                .filter(|letter| letter.state == LetterState::Sending);
            let records = sending.map(|letter| InboxRecord::Uncertain {
                id: letter.id.clone(),
                reason: DIED.to_owned(),
            });
            Ok((records.collect(), ()))
        })
    }

    /// Makes dead letters of expired messages, and tells what is to be delivered.
    pub(super) fn plan(&self) -> Result<DeliveryPlan, Error> {
        let now = millis(SystemTime::now());
        let plan = |model: &InboxModel| DeliveryPlan {
            heads: model
                .heads()
                .map(|letter| (letter.id.clone(), letter.to.clone()))
                .collect(),
            next_expiry: model.next_expiry().and_then(time),
        };
        let has_expired = |model: &InboxModel| model.next_expiry().is_some_and(|at| at <= now);
        let read = self.shared.file.read(|model, _| {
            Ok(match has_expired(model) {
                true => None,
                false => Some(plan(model)),
            })
        })?;
        if let Some(plan) = read {
            return Ok(plan);
        }
        self.shared.file.update(Sync::Disk, |model| {
            let expired = model.waiting().filter(|letter| letter.is_expired(now));
            let records = expired.map(|letter| InboxRecord::Dead {
                id: letter.id.clone(),
                reason: DeadReason::Expired,
            });
            Ok((records.collect(), ()))
        })?;
        self.shared.file.read(|model, _| Ok(plan(model)))
    }

    /// A message that waits, with its text; `None` if it does not any more.
    pub(super) fn waiting(&self, id: &MessageId) -> Result<Option<(Letter, String)>, Error> {
        let now = millis(SystemTime::now());
        self.shared.file.read(|model, texts| {
            let letter = model
                .letter(id)
                .filter(|letter| is_deliverable(letter, now));
            letter
                .map(|letter| Ok((letter.clone(), texts.text(letter)?)))
                .transpose()
        })
    }

    pub(super) fn is_waiting(&self, id: &MessageId) -> Result<bool, Error> {
        let now = millis(SystemTime::now());
        self.shared.file.read(|model, _| {
            let letter = model.letter(id);
            Ok(letter.is_some_and(|letter| is_deliverable(letter, now)))
        })
    }

    /// Records that a message is about to be typed; `false` if it does not wait any more.
    pub(super) fn begin(&self, id: &MessageId) -> Result<bool, Error> {
        let now = millis(SystemTime::now());
        self.shared.file.update(Sync::Disk, |model| {
            let waits = model
                .letter(id)
                .is_some_and(|letter| is_deliverable(letter, now));
            let sending = waits.then(|| InboxRecord::Sending { id: id.clone() });
            Ok((sending.into_iter().collect(), waits))
        })
    }

    /// The record of what has become of a message that was begun.
    pub(super) fn outcome(id: &MessageId, sent: Result<(), &Error>) -> InboxRecord {
        let id = id.clone();
        match sent {
            Ok(()) => InboxRecord::Delivered {
                id,
                at: millis(SystemTime::now()),
            },
            Err(Error::Refused { reason, .. }) if is_for_good(*reason) => InboxRecord::Dead {
                id,
                reason: DeadReason::Refused(reason.to_string()),
            },
            // A text that the agent did not take would be typed and removed at each attempt: a person decides.
            Err(error) if error.is_not_sent() && !is_not_taken(error) => {
                InboxRecord::NotSent { id }
            }
            Err(error) => InboxRecord::Uncertain {
                id,
                reason: error.to_string(),
            },
        }
    }

    /// Makes a dead letter of a message that waits, and that its receiver will never take.
    pub(super) fn refuse(&self, id: &MessageId, reason: Refusal) -> Result<(), Error> {
        self.shared.file.update(Sync::Disk, |model| {
            let waits = model
                .letter(id)
                .is_some_and(|letter| letter.state == LetterState::Waiting);
            let dead = waits.then(|| InboxRecord::Dead {
                id: id.clone(),
                reason: DeadReason::Refused(reason.to_string()),
            });
            Ok((dead.into_iter().collect(), ()))
        })
    }

    pub(super) fn end(&self, outcome: InboxRecord) -> Result<(), Error> {
        let update = |_: &InboxModel| Ok((vec![outcome], ()));
        self.shared.file.update(Sync::Later, update)
    }
}

/// The reason of a message whose outcome was not recorded.
const DIED: &str = "the deliverer ended before it recorded the outcome";

fn find<'a>(model: &'a InboxModel, id: &MessageId) -> Result<&'a Letter, Error> {
    let letter = model.letter(id);
    letter.ok_or_else(|| Error::UnknownMessage { id: id.clone() })
}

fn wrong_state(letter: &Letter, needed: &'static str) -> Error {
    Error::MessageState {
        id: letter.id.clone(),
        found: match letter.state {
            LetterState::Waiting => "waiting",
            LetterState::Sending => "being sent",
            LetterState::Uncertain(_) => "uncertain",
            LetterState::Dead(_) => "dead",
            LetterState::Delivered(_) => "delivered",
        },
        needed,
    }
}

fn is_deliverable(letter: &Letter, now: u64) -> bool {
    letter.state == LetterState::Waiting && !letter.is_expired(now)
}

/// Whether the program of the agent will refuse the text again.
pub(super) fn is_for_good(reason: Refusal) -> bool {
    matches!(
        reason,
        Refusal::Empty
            | Refusal::TooLong
            | Refusal::Nul
            | Refusal::PasteEnd
            | Refusal::Unbracketed
            | Refusal::SpecialCharacter { .. }
            | Refusal::LineTooLong { .. }
    )
}

fn is_not_taken(error: &Error) -> bool {
    let reason = Refusal::NotTaken;
    matches!(error, Error::Refused { reason: found, .. } if *found == reason)
}
