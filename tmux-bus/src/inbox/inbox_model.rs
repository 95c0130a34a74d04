//! What the records of an inbox file mean.
//!
//! | record | from | to |
//! |---|---|---|
//! | `left` | (new) | waiting |
//! | `sending` | waiting | sending |
//! | `not_sent` | sending | waiting, in the same place |
//! | `delivered` | sending, uncertain | delivered |
//! | `uncertain` | sending | uncertain |
//! | `dead` | waiting, sending | dead |
//! | `resent` | uncertain, dead | waiting, in the same place |
//! | `removed` | waiting, uncertain, dead | (gone) |
//!
//! A record that does not fit the state is ignored. **Invariant.** Only a waiting message can
//! become sending, and the text is typed only after `sending` is on disk. A message returns to
//! waiting only by `not_sent`, which is written when the sender has proof that nothing was
//! submitted, or by the decision of a person. So the prefix of a file never leads to a second
//! delivery: a prefix that lacks `sending` was written before the first key, and one that has it is
//! not waiting.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::inbox_entry::DeadReason;
use super::inbox_record::InboxRecord;
use super::message_id::MessageId;

/// Delivered messages of an agent that stay listed. The log of the cluster has all of them.
const KEPT_DELIVERED: usize = 20;

/// Dead letters of an agent that stay listed; then the oldest one is dropped.
const KEPT_DEAD: usize = 1_000;

/// About the length of the lines of a delivered message, which are kept without its text.
const DELIVERED_BYTES: u64 = 300;

/// Where a line is in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinePosition {
    pub(super) offset: u64,
    pub(super) len: usize,
}

#[derive(Clone, Debug)]
pub(super) struct Letter {
    pub(super) id: MessageId,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) at: u64,
    pub(super) expires: u64,
    pub(super) is_agent: bool,
    /// The line that has the text.
    pub(super) line: LinePosition,
    pub(super) state: LetterState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LetterState {
    Waiting,
    Sending,
    Uncertain(String),
    Dead(DeadReason),
    Delivered(u64),
}

impl Letter {
    pub(super) fn is_expired(&self, now: u64) -> bool {
        self.state == LetterState::Waiting && self.expires <= now
    }

    fn live_bytes(&self) -> u64 {
        match self.state {
            LetterState::Delivered(_) => DELIVERED_BYTES,
            _ => self.line.len as u64 + DELIVERED_BYTES,
        }
    }
}

/// The messages of all agents, in the order in which they were left. Bounded: texts stay in the
/// file, and settled messages are dropped.
#[derive(Debug, Default)]
pub(super) struct InboxModel {
    letters: BTreeMap<u64, Letter>,
    numbers: HashMap<MessageId, u64>,
    agents: BTreeMap<String, AgentLetters>,
    next: u64,
    live_bytes: u64,
    /// Waiting messages by the time when they expire.
    expiries: BTreeSet<(u64, u64)>,
}

/// The messages of one agent by state.
#[derive(Debug, Default)]
struct AgentLetters {
    waiting: BTreeSet<u64>,
    /// Sending and uncertain ones.
    open: BTreeSet<u64>,
    dead: BTreeSet<u64>,
    delivered: BTreeSet<u64>,
}

impl AgentLetters {
    fn of(&mut self, state: &LetterState) -> &mut BTreeSet<u64> {
        match state {
            LetterState::Waiting => &mut self.waiting,
            LetterState::Sending | LetterState::Uncertain(_) => &mut self.open,
            LetterState::Dead(_) => &mut self.dead,
            LetterState::Delivered(_) => &mut self.delivered,
        }
    }
}

impl InboxModel {
    pub(super) fn apply(&mut self, record: InboxRecord, line: LinePosition) {
        match record {
            InboxRecord::Left(left) => {
                if self.numbers.contains_key(&left.id) {
                    return;
                }
                let letter = Letter {
                    id: left.id,
                    from: left.from,
                    to: left.to,
                    at: left.at,
                    expires: left.expires,
                    is_agent: left.is_agent,
                    line,
                    state: LetterState::Waiting,
                };
                self.insert(self.next, letter);
                self.next += 1;
            }
            InboxRecord::Sending { id } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Waiting => Some(LetterState::Sending),
                    _ => None,
                });
            }
            InboxRecord::NotSent { id } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Sending => Some(LetterState::Waiting),
                    _ => None,
                });
            }
            InboxRecord::Delivered { id, at } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Sending | LetterState::Uncertain(_) => {
                        Some(LetterState::Delivered(at))
                    }
                    _ => None,
                });
            }
            InboxRecord::Uncertain { id, reason } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Sending => Some(LetterState::Uncertain(reason)),
                    _ => None,
                });
            }
            InboxRecord::Dead { id, reason } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Waiting | LetterState::Sending => Some(LetterState::Dead(reason)),
                    _ => None,
                });
            }
            InboxRecord::Resent { id, expires } => {
                self.change(&id, |letter| match letter.state {
                    LetterState::Uncertain(_) | LetterState::Dead(_) => {
                        letter.expires = expires;
                        Some(LetterState::Waiting)
                    }
                    _ => None,
                });
            }
            InboxRecord::Removed { id } => {
                if let Some(&number) = self.numbers.get(&id)
                    && let Some(letter) = self.letters.get(&number)
                    && !matches!(
                        letter.state,
                        LetterState::Sending | LetterState::Delivered(_)
                    )
                {
                    self.remove(number);
                }
            }
        }
    }

    fn change(&mut self, id: &MessageId, next: impl FnOnce(&mut Letter) -> Option<LetterState>) {
        let Some(&number) = self.numbers.get(id) else {
            return;
        };
        let Some(mut letter) = self.remove(number) else {
            return;
        };
        if let Some(state) = next(&mut letter) {
            letter.state = state;
        }
        let to = letter.to.clone();
        self.insert(number, letter);
        self.drop_settled(&to);
    }

    /// Drops the oldest settled messages beyond the bounds.
    fn drop_settled(&mut self, agent: &str) {
        let Some(letters) = self.agents.get(agent) else {
            return;
        };
        let oldest = |set: &BTreeSet<u64>, kept: usize| match set.len() > kept {
            true => set.first().copied(),
            false => None,
        };
        let delivered = oldest(&letters.delivered, KEPT_DELIVERED);
        let dead = oldest(&letters.dead, KEPT_DEAD);
        if let Some(number) = dead {
            tracing::warn!(%agent, "dropping the oldest of {KEPT_DEAD} dead letters");
            self.remove(number);
        }
        if let Some(number) = delivered {
            self.remove(number);
        }
    }

    fn insert(&mut self, number: u64, letter: Letter) {
        self.live_bytes += letter.live_bytes();
        self.numbers.insert(letter.id.clone(), number);
        let agent = self.agents.entry(letter.to.clone()).or_default();
        agent.of(&letter.state).insert(number);
        if letter.state == LetterState::Waiting {
            self.expiries.insert((letter.expires, number));
        }
        self.letters.insert(number, letter);
    }

    fn remove(&mut self, number: u64) -> Option<Letter> {
        let letter = self.letters.remove(&number)?;
        self.live_bytes -= letter.live_bytes();
        self.numbers.remove(&letter.id);
        self.expiries.remove(&(letter.expires, number));
        if let Some(agent) = self.agents.get_mut(&letter.to) {
            agent.of(&letter.state).remove(&number);
        }
        Some(letter)
    }

    pub(super) fn letter(&self, id: &MessageId) -> Option<&Letter> {
        self.letters.get(self.numbers.get(id)?)
    }

    /// In the order in which they were left.
    pub(super) fn letters(&self) -> impl Iterator<Item = &Letter> {
        self.letters.values()
    }

    /// Messages of an agent that are not settled. Expired ones do not count.
    pub(super) fn unsettled(&self, agent: &str, now: u64) -> usize {
        let Some(letters) = self.agents.get(agent) else {
            return 0;
        };
        // All of them: a message that was sent again keeps its place and expires later than those behind it.
        let expired = letters
            .waiting
            .iter()
            .filter(|number| self.letters[number].is_expired(now));
        letters.waiting.len() - expired.count() + letters.open.len()
    }

    /// The first waiting message of each agent.
    pub(super) fn heads(&self) -> impl Iterator<Item = &Letter> {
        let heads = self.agents.values();
        heads.filter_map(|agent| self.letters.get(agent.waiting.first()?))
    }

    pub(super) fn next_expiry(&self) -> Option<u64> {
        self.expiries.first().map(|(at, _)| *at)
    }

    pub(super) fn waiting(&self) -> impl Iterator<Item = &Letter> {
        let waiting = self.agents.values().flat_map(|agent| &agent.waiting);
        waiting.filter_map(|number| self.letters.get(number))
    }

    pub(super) fn open(&self) -> impl Iterator<Item = &Letter> {
        let open = self.agents.values().flat_map(|agent| &agent.open);
        open.filter_map(|number| self.letters.get(number))
    }

    /// About the length of a file that has only what is listed.
    pub(super) fn live_bytes(&self) -> u64 {
        self.live_bytes
    }
}
