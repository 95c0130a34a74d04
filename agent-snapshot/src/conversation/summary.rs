use std::{error::Error as StdError, fmt};

use async_trait::async_trait;
use uuid::Uuid;

use super::{
    Conversation, Message, StateManager,
    repair::now,
    window::{self, Cut},
};
use crate::Error;

/// Makes one text of many messages, usually by asking a model.
#[async_trait]
pub trait Summarizer: Send + Sync {
    /// Summarises `request.messages`, and `request.previous` with them, in at most
    /// `request.max_tokens`. A longer answer is cut.
    ///
    /// # Errors
    ///
    /// Any; the conversation is trimmed without a summary then, and the error reported.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when it takes longer than
    /// [`summary_timeout`](StateManager::summary_timeout).
    async fn summarize(
        &self,
        request: &SummaryRequest,
    ) -> Result<String, Box<dyn StdError + Send + Sync>>;
}

/// What a [`Summarizer`] is asked.
#[derive(Clone)]
#[non_exhaustive]
pub struct SummaryRequest {
    /// The summary that the new one replaces, without its prefix: fold it in.
    pub previous: Option<String>,
    /// The messages that will be out of view, oldest first.
    pub messages: Vec<Message>,
    /// How long the answer may be.
    pub max_tokens: usize,
}

/// A summary to be made: see [`StateManager::begin_summary`].
///
/// Holds copies, so the conversation is free while it [`run`](Self::run)s. Dropping it gives
/// the summary up.
#[derive(Clone)]
pub struct SummaryJob {
    request: SummaryRequest,
    place: Place,
    state: StateManager,
}

/// A finished summary, for [`StateManager::apply_summary`].
#[derive(Clone)]
pub struct Summary {
    message: Message,
    place: Place,
}

/// Where a summary belongs.
#[derive(Clone)]
struct Place {
    conversation: String,
    /// The id of the summary that is folded in.
    previous: Option<String>,
    /// Everything before this number is summarised.
    until: u64,
}

impl SummaryJob {
    /// `None` when the cut drops nothing.
    pub(super) fn new(
        conversation: &Conversation,
        state: &StateManager,
        cut: &Cut,
    ) -> Option<Self> {
        let history = conversation.history();
        let body = usize::from(conversation.prompt_in_tail());
        // The question behind a cut turn is given too: its tool rounds mean little without.
        let mut messages: Vec<Message> = conversation.pinned_user().cloned().into_iter().collect();
        let dropped = history.tail().take(cut.at).skip(body);
        messages.extend(dropped.map(|(_, message)| message.clone()));
        if cut.at <= body {
            return None;
        }
        let previous = history.summary().map(|message| {
            let text = message.content.as_deref().unwrap_or_default();
            text.strip_prefix(state.prefix()).unwrap_or(text).to_owned()
        });
        Some(Self {
            request: SummaryRequest {
                previous,
                messages,
                max_tokens: state.summary_tokens(),
            },
            place: Place {
                conversation: conversation.key().to_owned(),
                previous: history.summary().and_then(|message| message.id.clone()),
                until: history.first_seq() + cut.at as u64,
            },
            state: state.clone(),
        })
    }

    /// What the summariser is asked.
    #[must_use]
    pub fn request(&self) -> &SummaryRequest {
        &self.request
    }

    /// Has the summary made.
    ///
    /// # Errors
    ///
    /// [`Error::Summary`] when the summariser fails, takes too long or says nothing.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: a job can be run again.
    pub async fn run(&self, summarizer: &dyn Summarizer) -> Result<Summary, Error> {
        let asked = summarizer.summarize(&self.request);
        let failed = |source| Error::Summary { source };
        let text = tokio::time::timeout(self.state.timeout(), asked)
            .await
            .map_err(|_| failed("the summariser took too long".into()))?
            .map_err(failed)?;
        let text = self.state.fit_text(text.trim(), self.request.max_tokens);
        if text.is_empty() {
            return Err(failed("the summary is empty".into()));
        }
        let mut message = Message::system(format!("{}{text}", self.state.prefix()));
        message.id = Some(format!("summary-{}", Uuid::new_v4()));
        message.timestamp = Some(now());
        Ok(Summary {
            message,
            place: self.place.clone(),
        })
    }
}

impl Summary {
    pub(super) fn apply(
        &self,
        conversation: &mut Conversation,
        state: &StateManager,
    ) -> Result<(), Error> {
        let rejected = |reason| Err(Error::SummaryRejected { reason });
        if self.place.conversation != conversation.key() {
            return rejected("it belongs to another conversation");
        }
        let history = conversation.history();
        // One that a trim dropped meanwhile is folded into this one all the same.
        let present = history.summary().and_then(|message| message.id.as_ref());
        if history.summary().is_some() && present != self.place.previous.as_ref() {
            return rejected("another summary was made meanwhile");
        }
        let at = self.place.until.saturating_sub(history.first_seq()) as usize;
        let cut = window::cut_at(conversation, at);
        let message = self.message.clone();
        window::apply_with(conversation, state, &cut, Some(Some(message)));
        Ok(())
    }
}

impl fmt::Debug for SummaryRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SummaryRequest")
            .field("previous", &self.previous.is_some())
            .field("messages", &self.messages.len())
            .field("max_tokens", &self.max_tokens)
            .finish()
    }
}

impl fmt::Debug for SummaryJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SummaryJob")
            .field("request", &self.request)
            .field("until", &self.place.until)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary")
            .field("until", &self.place.until)
            .finish_non_exhaustive()
    }
}
