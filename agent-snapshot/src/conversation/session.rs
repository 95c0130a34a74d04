use std::{collections::HashSet, fmt};

use super::{
    AbortedCall, Conversation, Message, SessionId, SessionManager, Summary, Trimmed,
    session_record::Stored,
};
use crate::{Error, History};

/// A session in the hands of one caller, for instance for one turn.
///
/// Nothing is locked: others may work on the same session, in this process or another. What
/// is appended here is stored by [`commit`](Self::commit); dropping a session gives up what
/// was not.
pub struct Session {
    manager: SessionManager,
    id: SessionId,
    stored: Stored,
    conversation: Conversation,
    memory_error: Option<Error>,
}

/// What a commit did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Committed {
    /// How many messages of others were found in the storage and taken in before ours.
    pub merged: usize,
    /// What was taken out of view to stay within the window.
    pub trimmed: Trimmed,
    /// Whether what was taken out of view was summarised.
    pub summary: SummaryOutcome,
}

/// Whether a commit made a summary.
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum SummaryOutcome {
    /// None was needed, or there is no summariser.
    #[default]
    None,
    /// One was made.
    Made,
    /// It failed, took too long, or another one of this session is being made; the
    /// conversation was trimmed without it.
    Failed(Error),
}

/// How a conversation is to be changed before it is saved.
enum Change<'a> {
    Window,
    Summary(&'a Summary),
    Nothing,
}

/// Each conflict means that somebody else got through; so many in a row mean trouble.
const ATTEMPTS: usize = 64;

impl Session {
    pub(super) fn new(
        manager: SessionManager,
        id: SessionId,
        stored: Stored,
    ) -> Result<Self, Error> {
        let history = stored.snapshot.memory.short_term_history.clone();
        let conversation = manager.state().open_as(history, stored.key())?;
        Ok(Self {
            manager,
            id,
            stored,
            conversation,
            memory_error: None,
        })
    }

    pub(super) fn with_memory_error(mut self, error: Option<Error>) -> Self {
        self.memory_error = error;
        self
    }

    /// The session's name.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// Whose session it is.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.stored.record.user
    }

    /// The conversation, with what is not committed yet.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// Everything that the model sees, in order.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.conversation.iter()
    }

    /// The messages that no successful commit has stored yet, oldest first.
    #[must_use]
    pub fn uncommitted(&self) -> Vec<Message> {
        let history = self.conversation.history();
        (self.stored_next()..history.next_seq())
            .filter_map(|seq| history.get(seq).cloned())
            .collect()
    }

    /// Why long-term memory had nothing to say when this session was created or reset.
    #[must_use]
    pub fn memory_error(&self) -> Option<&Error> {
        self.memory_error.as_ref()
    }

    /// Appends a message, to be stored by the next [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// As [`StateManager::append`](super::StateManager::append).
    pub fn append(&mut self, message: Message) -> Result<&Message, Error> {
        self.manager.state().append(&mut self.conversation, message)
    }

    /// Answers unanswered calls as aborted, to be stored by the next commit. For a session
    /// whose last process died in the middle of a tool call: whether it did, or still works
    /// on it, is for the caller to know.
    pub fn abort_open_calls(&mut self) -> Vec<AbortedCall> {
        self.manager
            .state()
            .abort_open_calls(&mut self.conversation)
    }

    /// Stores what was appended, and trims the conversation when it is over its window: by
    /// the manager's summariser, if it has one, else by dropping the oldest exchanges from
    /// view. They stay in the full history.
    ///
    /// When others have stored something meanwhile, theirs is read and ours appended to it.
    /// With a summariser our messages are stored before it is asked.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownSession`] when the session has ended, [`Error::SessionReset`] when it
    /// was reset; what [`append`](Self::append) says when ours does not fit behind theirs,
    /// for instance a second result for one call; [`Error::OverLimit`] when everything is
    /// stored, but the newest exchange does not fit the window; storage errors. What is not
    /// stored is still in [`uncommitted`](Self::uncommitted).
    ///
    /// # Cancel safety
    ///
    /// The messages may or may not be stored; a later commit finds out, and stores no message
    /// twice.
    pub async fn commit(&mut self) -> Result<Committed, Error> {
        let mut committed = Committed::default();
        if self.manager.summarizing().is_none() {
            self.save(&Change::Window, &mut committed).await?;
            return Ok(committed);
        }
        if !self.uncommitted().is_empty() {
            self.save(&Change::Nothing, &mut committed).await?;
        }
        if self.manager.state().is_over(&self.conversation) {
            self.summarize(&mut committed).await?;
        }
        Ok(committed)
    }

    async fn summarize(&mut self, committed: &mut Committed) -> Result<(), Error> {
        let failed = match self.make_summary().await {
            Ok(None) => return Ok(()),
            Ok(Some(summary)) => match self.save(&Change::Summary(&summary), committed).await {
                Ok(()) => {
                    committed.summary = SummaryOutcome::Made;
                    return Ok(());
                }
                Err(error @ Error::SummaryRejected { .. }) => error,
                Err(error) => return Err(error),
            },
            Err(error @ (Error::Summary { .. } | Error::SummaryRejected { .. })) => error,
            Err(error) => return Err(error),
        };
        tracing::warn!(session = %self.id, error = %failed, "trimming without a summary");
        committed.summary = SummaryOutcome::Failed(failed);
        self.save(&Change::Window, committed).await
    }

    async fn make_summary(&self) -> Result<Option<Summary>, Error> {
        let Some(summarizer) = self.manager.summarizing() else {
            return Ok(None);
        };
        let Some(_turn) = self.manager.begin_summary(&self.id) else {
            return Err(Error::SummaryRejected {
                reason: "another one of this session is being made",
            });
        };
        match self.manager.state().begin_summary(&self.conversation)? {
            Some(job) => job.run(&*summarizer).await.map(Some),
            None => Ok(None),
        }
    }

    /// Saves the conversation, changed, on top of whatever is stored by then.
    async fn save(&mut self, change: &Change<'_>, committed: &mut Committed) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let over = self.change(change, committed)?;
            let mut next = self.stored.next()?;
            next.memory.short_term_history = self.conversation.history().clone();
            if !self.changed() {
                return over.map_or(Ok(()), Err);
            }
            match self.manager.storage().save(&next).await {
                Ok(()) => {
                    self.conversation.release_hidden();
                    next.memory.short_term_history = self.conversation.history().clone();
                    self.stored.snapshot = next;
                    return over.map_or(Ok(()), Err);
                }
                Err(error) if error.is_conflict() => {
                    committed.merged += self.rebase().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy {
            session: self.id.to_string(),
        })
    }

    /// Returns the error that must not keep the messages from being stored.
    fn change(
        &mut self,
        change: &Change<'_>,
        committed: &mut Committed,
    ) -> Result<Option<Error>, Error> {
        let state = self.manager.state();
        let before = self.conversation.history().tail_len();
        let tokens = self.conversation.tokens();
        match change {
            Change::Nothing => return Ok(None),
            Change::Window => {}
            Change::Summary(summary) => state.apply_summary(&mut self.conversation, summary)?,
        }
        // Also after a summary: others may have added much meanwhile.
        let over = state.trim(&mut self.conversation).err();
        committed.trimmed = Trimmed {
            messages: before - self.conversation.history().tail_len(),
            tokens: tokens.saturating_sub(self.conversation.tokens()),
        };
        Ok(over)
    }

    /// Reads what is stored now and appends ours to it. Returns how many messages of others
    /// there were. Changes nothing when it fails.
    async fn rebase(&mut self) -> Result<usize, Error> {
        let stored = self.manager.load(&self.id).await?;
        if stored.record.start != self.stored.record.start {
            return Err(Error::SessionReset {
                session: self.id.to_string(),
            });
        }
        let history = stored.snapshot.memory.short_term_history.clone();
        let new = self.stored_next()..history.next_seq();
        let theirs = self.manager.storage().history(self.id.agent(), new).await?;
        let known: HashSet<&str> = theirs.iter().filter_map(|(_, m)| m.id.as_deref()).collect();
        let mut conversation = self.manager.state().open_as(history, stored.key())?;
        let mut twice = 0;
        for message in self.uncommitted() {
            // Stored by a save whose answer was lost.
            if message.id.as_deref().is_some_and(|id| known.contains(id)) {
                twice += 1;
                continue;
            }
            self.manager.state().append(&mut conversation, message)?;
        }
        self.conversation = conversation;
        self.stored = stored;
        Ok(theirs.len() - twice)
    }

    fn changed(&self) -> bool {
        let (ours, stored) = (
            self.conversation.history(),
            &self.stored.snapshot.memory.short_term_history,
        );
        let summary = |history: &History| history.summary().and_then(|m| m.id.clone());
        (ours.first_seq(), ours.next_seq()) != (stored.first_seq(), stored.next_seq())
            || summary(ours) != summary(stored)
    }

    fn stored_next(&self) -> u64 {
        self.stored.snapshot.memory.short_term_history.next_seq()
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.id)
            .field("conversation", &self.conversation)
            .finish_non_exhaustive()
    }
}
