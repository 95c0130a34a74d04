use std::collections::VecDeque;
use std::fmt;

use super::pairing::Pairing;
use crate::History;
use crate::conversation::tokens::TokenCount;
use crate::conversation::{Error, Message, Role, StateManager};

/// A [`History`] with its token counts and its open tool calls, made by
/// [`StateManager::conversation`](super::StateManager::conversation).
///
/// Both are updated message by message: an append to 10,000 messages counts one message.
///
/// ```
/// use agent_snapshot::History;
/// use agent_snapshot::conversation::{Message, StateManager};
///
/// let state = StateManager::new(10_000);
/// let mut conversation = state.conversation(History::new())?;
/// state.append(&mut conversation, Message::user("hello"))?;
/// assert_eq!(conversation.iter().count(), 1);
/// assert!(conversation.tokens() > 0);
/// assert!(conversation.open_calls().is_empty());
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone)]
pub struct Conversation {
    history: History,
    /// Identifies the conversation, so that a summary cannot be applied to another one.
    key: String,
    /// One entry for each message of the tail.
    tail: VecDeque<TailEntry>,
    tail_tokens: usize,
    /// Tokens of the pinned system messages.
    prompt_tokens: usize,
    /// Tokens of the pinned user message: see [`window`](super::window).
    anchor_tokens: usize,
    summary_tokens: usize,
    /// The estimated part of all tokens of the view.
    estimated: usize,
    pairing: Pairing,
}

/// A message of the tail, as the window chooser sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct TailEntry {
    pub(super) tokens: usize,
    estimated: usize,
    pub(super) role: Role,
}

impl TailEntry {
    fn new(message: &Message, count: TokenCount) -> Self {
        Self {
            tokens: count.tokens,
            estimated: count.estimated,
            role: message.role,
        }
    }
}

/// The change that a cut makes to the summary in view.
pub(super) enum SummaryChange {
    Keep,
    Drop,
    Replace(Message),
}

impl Conversation {
    /// Counts a history, and checks how its calls and results pair.
    pub(super) fn new(history: History, key: String, state: &StateManager) -> Result<Self, Error> {
        let mut pairing = Pairing::default();
        for message in history.pinned().iter().chain(history.summary()) {
            pairing.add_head(message);
        }
        let mut tail = VecDeque::with_capacity(history.tail_len());
        for (_, message) in history.tail() {
            pairing.check(message)?;
            pairing.add(message);
            tail.push_back(TailEntry::new(message, state.count(message)));
        }
        let mut conversation = Self {
            history,
            key,
            tail_tokens: tail.iter().map(|entry| entry.tokens).sum(),
            tail,
            prompt_tokens: 0,
            anchor_tokens: 0,
            summary_tokens: 0,
            estimated: 0,
            pairing,
        };
        conversation.count_head(state);
        Ok(conversation)
    }

    /// The messages with their sequence numbers. A clone of it, for a snapshot, is cheap.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The messages that the model sees, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.history.iter()
    }

    /// The tokens of the messages that the model sees, including the fixed cost of each.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.prompt_tokens + self.anchor_tokens + self.summary_tokens + self.tail_tokens
    }

    /// The part of [`tokens`](Self::tokens) that is an estimate: images, documents, and data that
    /// only a provider can read. The rest is as exact as the
    /// [`TokenCounter`](crate::conversation::TokenCounter).
    #[must_use]
    pub fn estimated_tokens(&self) -> usize {
        self.estimated
    }

    /// The ids of the tool calls that have no result yet. All belong to the newest assistant
    /// message.
    #[must_use]
    pub fn open_calls(&self) -> &[String] {
        self.pairing.open()
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn tail(&self) -> &VecDeque<TailEntry> {
        &self.tail
    }

    /// The tokens of the prompt, whether it is pinned or the first message of the tail.
    pub(super) fn prompt_tokens(&self) -> usize {
        match self.tail.front() {
            Some(first) if self.body_start() > 0 => first.tokens,
            _ => self.prompt_tokens,
        }
    }

    pub(super) fn anchor_tokens(&self) -> usize {
        self.anchor_tokens
    }

    pub(super) fn summary_tokens(&self) -> usize {
        self.summary_tokens
    }

    pub(super) fn check(&self, message: &Message) -> Result<(), Error> {
        self.pairing.check(message)
    }

    /// Gives calls and results ids that fit the conversation.
    pub(super) fn rename_calls(&self, message: &mut Message) {
        self.pairing.rename(message);
    }

    /// Appends a message that was checked and counted, and returns its sequence number.
    pub(super) fn push(&mut self, message: Message, count: TokenCount) -> u64 {
        self.pairing.add(&message);
        self.tail.push_back(TailEntry::new(&message, count));
        self.tail_tokens += count.tokens;
        self.estimated += count.estimated;
        self.history.push(message)
    }

    /// The message at an index of the tail.
    pub(super) fn tail_message(&self, index: usize) -> Option<&Message> {
        self.history.get(self.history.first_seq() + index as u64)
    }

    /// The index of the first tail message that a cut may remove.
    ///
    /// 1 if the tail starts with the system prompt: a plain list of messages has it there, and it
    /// becomes a pinned message by the first cut. 0 otherwise.
    pub(super) fn body_start(&self) -> usize {
        let starts_with_prompt = self.history.first_seq() == 0
            && self.tail.front().is_some_and(|e| e.role == Role::System)
            && self.pinned_prompt().next().is_none();
        usize::from(starts_with_prompt)
    }

    /// The pinned messages that no cut removes.
    pub(super) fn pinned_prompt(&self) -> impl Iterator<Item = &Message> {
        let pinned = self.history.pinned().iter();
        pinned.filter(|message| message.role != Role::User)
    }

    /// The anchor that an earlier cut has pinned.
    pub(super) fn pinned_anchor(&self) -> Option<&Message> {
        let mut pinned = self.history.pinned().iter();
        pinned.find(|message| message.role == Role::User)
    }

    /// The index of the newest user message of the tail.
    pub(super) fn last_user(&self) -> Option<usize> {
        self.tail.iter().rposition(|entry| entry.role == Role::User)
    }

    /// Changes the view: `pinned` replaces the pinned messages, and the first `count` messages of
    /// the tail leave.
    pub(super) fn cut(
        &mut self,
        pinned: Vec<Message>,
        summary: SummaryChange,
        count: usize,
        state: &StateManager,
    ) {
        let count = count.min(self.tail.len());
        let head = self.history.pinned().iter().chain(self.history.summary());
        let dropped = self.history.tail().take(count);
        for message in head.chain(dropped.map(|(_, message)| message)) {
            self.pairing.remove(message);
        }
        let dropped = self.tail.drain(..count);
        self.tail_tokens -= dropped.map(|entry| entry.tokens).sum::<usize>();
        self.history.drop_front(count);
        self.history.pin(pinned);
        match summary {
            SummaryChange::Keep => {}
            SummaryChange::Drop => self.history.set_summary(None),
            SummaryChange::Replace(message) => self.history.set_summary(Some(message)),
        }
        for message in self.history.pinned().iter().chain(self.history.summary()) {
            self.pairing.add_head(message);
        }
        self.count_head(state);
    }

    fn count_head(&mut self, state: &StateManager) {
        let count = |message: &Message| state.count(message);
        let prompt: TokenCount = self.pinned_prompt().map(count).sum();
        let anchor: TokenCount = self.pinned_anchor().into_iter().map(count).sum();
        let summary: TokenCount = self.history.summary().into_iter().map(count).sum();
        self.prompt_tokens = prompt.tokens;
        self.anchor_tokens = anchor.tokens;
        self.summary_tokens = summary.tokens;
        let tail: usize = self.tail.iter().map(|entry| entry.estimated).sum();
        self.estimated = prompt.estimated + anchor.estimated + summary.estimated + tail;
    }

    /// Frees the messages that are out of view. Only after a save.
    pub(crate) fn release_hidden(&mut self) {
        self.history.release_hidden();
    }
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("history", &self.history)
            .field("tokens", &self.tokens())
            .field("open_calls", &self.open_calls())
            .finish_non_exhaustive()
    }
}
