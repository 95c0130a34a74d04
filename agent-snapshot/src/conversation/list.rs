use std::{collections::VecDeque, fmt};

use uuid::Uuid;

use super::{Message, Role, TokenCounter, pairing::Pairing};
use crate::{Error, History};

/// A [`History`] with what [`StateManager`](super::StateManager) computed about it: the tokens
/// of each message and the calls that wait for a result.
///
/// Kept up message by message, so that appending to 10,000 messages costs the tokens of the
/// one. Made by [`StateManager::open`](super::StateManager::open).
#[derive(Clone)]
pub struct Conversation {
    history: History,
    /// Tells conversations apart, so that a summary finds its own.
    key: String,
    /// One for each message of the tail.
    tail: VecDeque<Entry>,
    /// Of the pinned messages: the prompt, and the user message of a turn that was cut.
    prompt_tokens: usize,
    anchor_tokens: usize,
    summary_tokens: usize,
    tail_tokens: usize,
    pairing: Pairing,
    /// The number of the newest user message of the tail.
    last_user: Option<u64>,
}

/// What trimming needs to know about a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    pub(super) tokens: usize,
    pub(super) role: Role,
}

impl Conversation {
    /// Reads a history once.
    pub(super) fn open(
        history: History,
        key: Option<String>,
        counter: &dyn TokenCounter,
    ) -> Result<Self, Error> {
        let mut conversation = Self {
            key: key.unwrap_or_else(|| Uuid::new_v4().to_string()),
            tail: VecDeque::with_capacity(history.tail_len()),
            prompt_tokens: 0,
            anchor_tokens: 0,
            summary_tokens: 0,
            tail_tokens: 0,
            pairing: Pairing::default(),
            last_user: None,
            history,
        };
        let history = conversation.history.clone();
        conversation.count_head(counter);
        for message in history.pinned().iter().chain(history.summary()) {
            conversation.pairing.add_head(message);
        }
        for (seq, message) in history.tail() {
            conversation.pairing.check(message)?;
            conversation.note(seq, message, counter.count_message(message));
        }
        Ok(conversation)
    }

    /// The messages.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// The messages, to be put into a snapshot.
    #[must_use]
    pub fn into_history(self) -> History {
        self.history
    }

    /// Everything that the model sees, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.history.iter()
    }

    /// The tokens of everything that the model sees, the fixed cost of each message included.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.prompt_tokens + self.anchor_tokens + self.summary_tokens + self.tail_tokens
    }

    /// The calls of the newest assistant message that wait for a result.
    #[must_use]
    pub fn open_calls(&self) -> &[String] {
        self.pairing.open()
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn entries(&self) -> &VecDeque<Entry> {
        &self.tail
    }

    /// The tokens of the prompt, pinned or at the start of the tail.
    pub(super) fn prompt_tokens(&self) -> usize {
        match self.tail.front() {
            Some(first) if self.prompt_in_tail() => first.tokens,
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

    /// Appends a message that was checked and counted.
    pub(super) fn push(&mut self, message: Message, tokens: usize) {
        let seq = self.history.next_seq();
        self.note(seq, &message, tokens);
        self.history.push(message);
    }

    fn note(&mut self, seq: u64, message: &Message, tokens: usize) {
        self.pairing.add(message);
        self.tail.push_back(Entry {
            tokens,
            role: message.role,
        });
        self.tail_tokens += tokens;
        if message.role == Role::User {
            self.last_user = Some(seq);
        }
    }

    /// The message at a place of the tail.
    pub(super) fn tail_message(&self, index: usize) -> Option<&Message> {
        self.history.get(self.history.first_seq() + index as u64)
    }

    /// The place of the system prompt when it was never pinned: a plain list starts with it.
    pub(super) fn prompt_in_tail(&self) -> bool {
        self.history.first_seq() == 0
            && self.tail.front().is_some_and(|e| e.role == Role::System)
            && self.pinned_prompt().next().is_none()
    }

    /// The pinned messages that no trim takes away.
    pub(super) fn pinned_prompt(&self) -> impl Iterator<Item = &Message> {
        self.history
            .pinned()
            .iter()
            .filter(|message| message.role != Role::User)
    }

    /// The user message that an earlier cut inside its turn left in front.
    pub(super) fn pinned_user(&self) -> Option<&Message> {
        let mut pinned = self.history.pinned().iter();
        pinned.find(|message| message.role == Role::User)
    }

    /// The place of the newest user message in the tail.
    pub(super) fn last_user(&self) -> Option<usize> {
        Some((self.last_user? - self.history.first_seq()) as usize)
    }

    /// Changes what the model sees: other pinned messages and another summary (both where
    /// given), and the first `count` messages of the tail out of view.
    pub(super) fn cut(
        &mut self,
        pinned: Option<Vec<Message>>,
        summary: Option<Option<Message>>,
        count: usize,
        counter: &dyn TokenCounter,
    ) {
        for message in self.history.pinned().iter().chain(self.history.summary()) {
            self.pairing.remove(message);
        }
        for index in 0..count {
            if let Some(message) = self.history.get(self.history.first_seq() + index as u64) {
                self.pairing.remove(message);
            }
            self.tail_tokens -= self.tail.pop_front().map_or(0, |entry| entry.tokens);
        }
        self.history.drop_front(count);
        if let Some(pinned) = pinned {
            self.history.pin(pinned);
        }
        if let Some(summary) = summary {
            self.history.set_summary(summary);
        }
        for message in self.history.pinned().iter().chain(self.history.summary()) {
            self.pairing.add_head(message);
        }
        let first = self.history.first_seq();
        self.last_user = self.last_user.filter(|seq| *seq >= first);
        self.count_head(counter);
    }

    fn count_head(&mut self, counter: &dyn TokenCounter) {
        let count = |message: &Message| counter.count_message(message);
        self.prompt_tokens = self.pinned_prompt().map(count).sum();
        self.anchor_tokens = self.pinned_user().map_or(0, count);
        self.summary_tokens = self.history.summary().map_or(0, count);
    }

    /// The history after a save: what is out of view need not stay in memory.
    pub(super) fn release_hidden(&mut self) {
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
