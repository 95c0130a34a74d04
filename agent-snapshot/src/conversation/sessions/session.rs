use std::collections::HashSet;
use std::fmt;

use super::session_record::StoredSession;
use super::session_store::SaveOutcome;
use super::{SessionId, SessionManager};
use crate::History;
use crate::conversation::{
    AbortedCall, Conversation, Error, Message, Summarizer, Summary, Trimmed,
};

/// A session as one caller sees it, for instance for one turn.
///
/// Nothing is locked: other processes may work on the same session at the same time. Appended
/// messages are stored by [`commit`](Self::commit). Dropping a session discards the messages that
/// were not committed, and leaves the stored session as it is.
///
/// ```
/// use std::sync::Arc;
///
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conversation::{Message, SessionManager, StateManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// let storage = Arc::new(MemoryStorage::new());
/// let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// let mut session = sessions.create("alice", None).await?;
/// session.append(Message::user("hello"))?;
/// assert_eq!(session.uncommitted().len(), 1);
/// session.commit().await?;
/// assert!(session.uncommitted().is_empty());
/// # Ok(())
/// # }
/// ```
pub struct Session {
    manager: SessionManager,
    id: SessionId,
    /// The session as it was last loaded or saved. The messages of `conversation` from its next
    /// sequence number on are not committed.
    stored: StoredSession,
    conversation: Conversation,
    memory_error: Option<Error>,
}

/// The result of a commit.
///
/// ```
/// # use std::sync::Arc;
/// # use agent_snapshot::MemoryStorage;
/// # use agent_snapshot::conversation::{Message, SessionManager, StateManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// # let storage = Arc::new(MemoryStorage::new());
/// # let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// let mut one = sessions.create("alice", None).await?;
/// let mut two = sessions.get(one.id()).await?;
/// one.append(Message::user("from one"))?;
/// two.append(Message::user("from two"))?;
/// one.commit().await?;
/// let committed = two.commit().await?;
/// assert_eq!(committed.merged, 1);
/// assert_eq!(two.messages().count(), 2);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Committed {
    /// The number of messages that other processes had stored, and that now precede ours.
    pub merged: usize,
    /// The messages that a trim removed from view.
    pub trimmed: Trimmed,
    /// Whether the removed messages were summarised.
    pub summary: SummaryOutcome,
}

/// Whether a commit made a summary.
///
/// ```
/// # use std::sync::Arc;
/// # use agent_snapshot::MemoryStorage;
/// # use agent_snapshot::conversation::{SessionManager, StateManager};
/// use agent_snapshot::conversation::SummaryOutcome;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// # let storage = Arc::new(MemoryStorage::new());
/// # let sessions = SessionManager::new(storage, StateManager::new(10_000));
/// # let mut session = sessions.create("alice", None).await?;
/// if let SummaryOutcome::Failed(error) = session.commit().await?.summary {
///     println!("trimmed without a summary: {error}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub enum SummaryOutcome {
    /// There was no message to summarise, or the manager has no summariser.
    #[default]
    None,
    /// The removed messages were summarised.
    Made,
    /// The summariser failed or timed out, or another summary of this session was under way. The
    /// conversation was trimmed without a summary.
    Failed(Error),
}

/// The change that a save makes to the view.
enum ViewChange<'a> {
    Nothing,
    Trim,
    Summary(&'a Summary),
}

/// Every lost race means that another commit succeeded. So many in a row mean overload.
const ATTEMPTS: usize = 64;

impl Session {
    pub(super) fn new(
        manager: SessionManager,
        id: SessionId,
        stored: StoredSession,
    ) -> Result<Self, Error> {
        let history = stored.snapshot.memory.short_term_history.clone();
        let conversation = manager
            .state()
            .conversation_with_key(history, stored.key())?;
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

    /// The id of the session.
    #[must_use]
    pub fn id(&self) -> &SessionId {
        &self.id
    }

    /// The user of the session.
    #[must_use]
    pub fn user(&self) -> &str {
        &self.stored.record.user
    }

    /// The conversation, including uncommitted messages.
    #[must_use]
    pub fn conversation(&self) -> &Conversation {
        &self.conversation
    }

    /// The messages that the model sees, in order, including uncommitted ones.
    pub fn messages(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.conversation.iter()
    }

    /// The messages that no successful commit has stored yet, oldest first.
    #[must_use]
    pub fn uncommitted(&self) -> Vec<Message> {
        let history = self.conversation.history();
        (self.stored.next_seq()..history.next_seq())
            .filter_map(|seq| history.get(seq).cloned())
            .collect()
    }

    /// Why long-term memory added nothing to the system prompt, if it failed when this session
    /// was created or reset.
    #[must_use]
    pub fn memory_error(&self) -> Option<&Error> {
        self.memory_error.as_ref()
    }

    /// Appends a message, to be stored by the next [`commit`](Self::commit).
    ///
    /// # Errors
    ///
    /// As [`StateManager::append`](crate::conversation::StateManager::append).
    pub fn append(&mut self, message: Message) -> Result<&Message, Error> {
        self.manager.state().append(&mut self.conversation, message)
    }

    /// Answers the open tool calls with an error result, to be stored by the next
    /// [`commit`](Self::commit), and returns them.
    ///
    /// For a session whose process died before the results were stored. The session does not check
    /// whether that process still runs: the caller must know.
    pub fn abort_open_calls(&mut self) -> Vec<AbortedCall> {
        self.manager
            .state()
            .abort_open_calls(&mut self.conversation)
    }

    /// Stores the appended messages, and trims the view if it exceeds its budget. With a
    /// summariser, the removed messages are summarised. They stay in the stream in any case.
    ///
    /// If other processes have committed since the session was read, our messages are appended
    /// behind theirs. A summariser is called after our messages are stored.
    ///
    /// # Errors
    ///
    /// - [`Error::UnknownSession`]: the session has ended.
    /// - [`Error::SessionReset`]: the session was reset.
    /// - [`Error::Busy`]: other processes committed first, many times in a row.
    /// - As [`append`](Self::append): our messages do not fit behind the messages of another
    ///   process, for instance as the second result of a call.
    /// - [`Error::OverLimit`]: everything is stored, but the newest exchange exceeds the budget.
    /// - [`Error::Storage`], [`Error::DamagedSession`].
    ///
    /// Messages that were not stored are still [`uncommitted`](Self::uncommitted).
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the messages are stored or not, and a later commit stores none twice.
    pub async fn commit(&mut self) -> Result<Committed, Error> {
        let mut committed = Committed::default();
        let Some(summarizer) = self.manager.summarizer.clone() else {
            self.save(&ViewChange::Trim, &mut committed).await?;
            return Ok(committed);
        };
        self.save(&ViewChange::Nothing, &mut committed).await?;
        if self.manager.state().needs_trim(&self.conversation) {
            self.summarize(&*summarizer, &mut committed).await?;
        }
        Ok(committed)
    }

    async fn summarize(
        &mut self,
        summarizer: &dyn Summarizer,
        committed: &mut Committed,
    ) -> Result<(), Error> {
        let applied = match self.make_summary(summarizer).await {
            Ok(Some(summary)) => self.save(&ViewChange::Summary(&summary), committed).await,
            // Without its previous summary the conversation is within its budget.
            Ok(None) => return self.save(&ViewChange::Trim, committed).await,
            Err(error) => Err(error),
        };
        let failed = match applied {
            Ok(()) => {
                committed.summary = SummaryOutcome::Made;
                return Ok(());
            }
            Err(error @ (Error::Summary { .. } | Error::SummaryRejected { .. })) => error,
            Err(error) => return Err(error),
        };
        tracing::warn!(session = %self.id, error = %failed, "trimming without a summary");
        committed.summary = SummaryOutcome::Failed(failed);
        self.save(&ViewChange::Trim, committed).await
    }

    async fn make_summary(&self, summarizer: &dyn Summarizer) -> Result<Option<Summary>, Error> {
        let _slot = self.manager.summary_slot(&self.id)?;
        match self.manager.state().begin_summary(&self.conversation)? {
            Some(job) => job.run(summarizer).await.map(Some),
            None => Ok(None),
        }
    }

    /// Changes the view and saves the conversation, behind the messages that other processes have
    /// stored: the module documentation of `sessions` describes the races.
    async fn save(
        &mut self,
        change: &ViewChange<'_>,
        committed: &mut Committed,
    ) -> Result<(), Error> {
        for _ in 0..ATTEMPTS {
            let over_limit = self.change_view(change, committed)?;
            if !self.has_changes() {
                return over_limit.map_or(Ok(()), Err);
            }
            let mut next = self.stored.next()?;
            next.memory.short_term_history = self.conversation.history().clone();
            if self.manager.store().swap(&next).await? == SaveOutcome::Saved {
                self.conversation.release_hidden();
                next.memory.short_term_history = self.conversation.history().clone();
                self.stored.snapshot = next;
                return over_limit.map_or(Ok(()), Err);
            }
            committed.merged += self.rebase().await?;
        }
        Err(Error::Busy {
            session: self.id.clone(),
        })
    }

    /// Returns the [`Error::OverLimit`] of a trim: it must not keep the messages from being stored.
    fn change_view(
        &mut self,
        change: &ViewChange<'_>,
        committed: &mut Committed,
    ) -> Result<Option<Error>, Error> {
        let state = self.manager.state();
        let before = self.conversation.history().tail_len();
        let tokens = self.conversation.tokens();
        match change {
            ViewChange::Nothing => return Ok(None),
            ViewChange::Trim => {}
            ViewChange::Summary(summary) => state.apply_summary(&mut self.conversation, summary)?,
        }
        // After a summary too: other processes may have added many messages while it was made.
        let over_limit = state.trim(&mut self.conversation).err();
        committed.trimmed = Trimmed {
            messages: before - self.conversation.history().tail_len(),
            tokens: tokens.saturating_sub(self.conversation.tokens()),
        };
        Ok(over_limit)
    }

    /// Loads the session and appends the uncommitted messages to it. Returns how many messages
    /// other processes have stored. Changes nothing if it fails.
    async fn rebase(&mut self) -> Result<usize, Error> {
        let stored = self.manager.store().load(&self.id).await?;
        if stored.record.incarnation != self.stored.record.incarnation {
            return Err(Error::UnknownSession {
                session: self.id.clone(),
            });
        }
        if stored.record.start != self.stored.record.start {
            return Err(Error::SessionReset {
                session: self.id.clone(),
            });
        }
        let range = self.stored.next_seq()..stored.next_seq();
        let added = self.manager.store().stream(&self.id, range).await?;
        let added_ids: HashSet<&str> = added
            .iter()
            .filter_map(|(_, message)| message.id.as_deref())
            .collect();
        let history = stored.snapshot.memory.short_term_history.clone();
        let state = self.manager.state();
        let mut conversation = state.conversation_with_key(history, stored.key())?;
        let mut ours = 0;
        for message in self.uncommitted() {
            // Stored by a save of ours whose answer was lost.
            if message
                .id
                .as_deref()
                .is_some_and(|id| added_ids.contains(id))
            {
                ours += 1;
                continue;
            }
            state.append(&mut conversation, message)?;
        }
        self.conversation = conversation;
        self.stored = stored;
        Ok(added.len() - ours)
    }

    fn has_changes(&self) -> bool {
        let view = |history: &History| {
            let summary = history.summary().and_then(|message| message.id.clone());
            (history.first_seq(), history.next_seq(), summary)
        };
        let stored = &self.stored.snapshot.memory.short_term_history;
        view(self.conversation.history()) != view(stored)
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
