//! Summaries: made outside the conversation, merged into it afterwards.
//!
//! # Theory
//!
//! Making a summary takes seconds, and the conversation continues. A [`SummaryJob`] therefore works
//! on copies, and its [`SummaryTarget`] names the messages that the result replaces. Before and
//! after [`Summary::apply`], the view has at most one summary. A new summary contains everything
//! that its predecessor contained, and the messages up to `until`.
//!
//! **Races.** Between `begin_summary` and `apply_summary`:
//!
//! | event | effect on `apply_summary` |
//! |---|---|
//! | messages are appended | none: their numbers are not below `until` |
//! | a trim removes messages from view | fewer messages are left to remove |
//! | a trim drops the predecessor | none: the job has a copy, and merges it |
//! | another summary is applied | rejected: this one does not contain the other's messages |
//! | the conversation is reset | rejected: another conversation |
//!
//! **Example.** The tail holds the numbers 0 to 9 and a job is begun with `until` = 6. While it runs,
//! 10 and 11 are appended and a trim moves the start of the tail to 4. Applying the summary removes
//! 4 and 5; the view is the prompt, the summary, and 6 to 11.

use std::error::Error as StdError;
use std::fmt;

use async_trait::async_trait;
use uuid::Uuid;

use super::conversation::SummaryChange;
use super::window::{self, Cut};
use super::{Conversation, StateManager};
use crate::conversation::timestamps::now_rfc3339;
use crate::conversation::{Error, Message};

/// Summarises messages, usually by a request to a model.
///
/// ```
/// use std::error::Error;
///
/// use agent_snapshot::conversation::{Summarizer, SummaryRequest};
///
/// struct Count;
///
/// #[async_trait::async_trait]
/// impl Summarizer for Count {
///     async fn summarize(
///         &self,
///         request: &SummaryRequest,
///     ) -> Result<String, Box<dyn Error + Send + Sync>> {
///         let previous = request.previous.as_deref().unwrap_or_default();
///         Ok(format!("{previous} and {} messages", request.messages.len()))
///     }
/// }
/// ```
#[async_trait]
pub trait Summarizer: Send + Sync {
    /// Summarises `request.previous` and `request.messages` in at most `request.max_tokens`
    /// tokens. A longer answer is cut.
    ///
    /// # Errors
    ///
    /// Any error. The conversation is then trimmed without a summary, and the error is reported.
    ///
    /// # Cancel safety
    ///
    /// Must be cancel safe: the future is dropped when it takes longer than
    /// [`summary_timeout`](StateManager::summary_timeout).
    async fn summarize(
        &self,
        request: &SummaryRequest,
    ) -> Result<String, Box<dyn StdError + Send + Sync>>;
}

/// The messages that a [`Summarizer`] has to summarise.
///
/// ```
/// use agent_snapshot::conversation::{Message, StateManager};
///
/// let state = StateManager::new(100).answer_tokens(0).summary_tokens(20);
/// let messages = (0..50).map(|n| Message::user(format!("question {n}")));
/// let conversation = state.conversation(messages.collect())?;
/// let job = state.begin_summary(&conversation)?.expect("it is over its budget");
/// let request = job.request();
/// assert_eq!(request.previous, None);
/// assert_eq!(request.messages[0].content.as_deref(), Some("question 0"));
/// assert_eq!(request.max_tokens, 20);
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct SummaryRequest {
    /// The summary that the new one replaces, without its prefix.
    pub previous: Option<String>,
    /// The messages that will leave the view, oldest first.
    pub messages: Vec<Message>,
    /// The tokens that the answer may take.
    pub max_tokens: usize,
}

/// A summary to be made, from [`StateManager::begin_summary`].
///
/// It holds copies: the conversation can be changed while the job [`run`](Self::run)s. Dropping
/// the job abandons the summary and changes nothing.
///
/// ```
/// # use std::error::Error;
/// use agent_snapshot::conversation::{Message, StateManager, Summarizer, SummaryRequest};
///
/// # struct Model;
/// # #[async_trait::async_trait]
/// # impl Summarizer for Model {
/// #     async fn summarize(&self, _: &SummaryRequest) -> Result<String, Box<dyn Error + Send + Sync>> {
/// #         Ok("many questions".into())
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::conversation::Error> {
/// let state = StateManager::new(100).answer_tokens(0).summary_prefix("Before: ");
/// let messages = (0..50).map(|n| Message::user(format!("question {n}")));
/// let mut conversation = state.conversation(messages.collect())?;
/// if let Some(job) = state.begin_summary(&conversation)? {
///     let summary = job.run(&Model).await?;
///     state.apply_summary(&mut conversation, &summary)?;
/// }
/// let first = conversation.iter().next().unwrap();
/// assert_eq!(first.content.as_deref(), Some("Before: many questions"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SummaryJob {
    request: SummaryRequest,
    target: SummaryTarget,
    state: StateManager,
}

/// A summary that was made, for [`StateManager::apply_summary`].
///
/// It belongs to the conversation from which it was begun:
///
/// ```
/// # use std::error::Error as StdError;
/// # use agent_snapshot::conversation::{Message, StateManager, Summarizer, SummaryRequest};
/// use agent_snapshot::conversation::Error;
///
/// # struct Model;
/// # #[async_trait::async_trait]
/// # impl Summarizer for Model {
/// #     async fn summarize(&self, _: &SummaryRequest) -> Result<String, Box<dyn StdError + Send + Sync>> {
/// #         Ok("many questions".into())
/// #     }
/// # }
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Error> {
/// # let state = StateManager::new(100).answer_tokens(0);
/// # let list = || (0..50).map(|n| Message::user(format!("question {n}"))).collect();
/// # let conversation = state.conversation(list())?;
/// # let mut other = state.conversation(list())?;
/// # let job = state.begin_summary(&conversation)?.expect("it is over its budget");
/// let summary = job.run(&Model).await?;
/// let applied = state.apply_summary(&mut other, &summary);
/// assert!(matches!(applied, Err(Error::SummaryRejected { .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Summary {
    message: Message,
    target: SummaryTarget,
}

/// Where a summary belongs.
#[derive(Clone)]
struct SummaryTarget {
    /// The key of the conversation.
    conversation: String,
    /// The id of the summary that is merged.
    previous: Option<String>,
    /// All messages before this sequence number are summarised.
    until: u64,
}

impl SummaryJob {
    /// `None` if the cut removes nothing.
    pub(super) fn new(
        conversation: &Conversation,
        state: &StateManager,
        cut: &Cut,
    ) -> Option<Self> {
        let history = conversation.history();
        let body = conversation.body_start();
        if cut.at <= body {
            return None;
        }
        let removed = history.tail().take(cut.at).skip(body);
        // Includes the anchor of a turn that was cut before: the tool rounds depend on its question.
        let messages = conversation
            .pinned_anchor()
            .into_iter()
            .chain(removed.map(|(_, message)| message))
            .cloned()
            .collect();
        let previous = history.summary().map(|message| {
            let text = message.content.as_deref().unwrap_or_default();
            text.strip_prefix(state.prefix()).unwrap_or(text).to_owned()
        });
        Some(Self {
            request: SummaryRequest {
                previous,
                messages,
                max_tokens: state.max_summary_tokens(),
            },
            target: SummaryTarget {
                conversation: conversation.key().to_owned(),
                previous: history.summary().and_then(|message| message.id.clone()),
                until: history.first_seq() + cut.at as u64,
            },
            state: state.clone(),
        })
    }

    /// The input of the summariser.
    #[must_use]
    pub fn request(&self) -> &SummaryRequest {
        &self.request
    }

    /// Lets `summarizer` make the summary.
    ///
    /// # Errors
    ///
    /// [`Error::Summary`] if the summariser fails, times out, or returns an empty text.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: the job can be run again.
    pub async fn run(&self, summarizer: &dyn Summarizer) -> Result<Summary, Error> {
        let failed = |source| Error::Summary { source };
        let summarized = summarizer.summarize(&self.request);
        let text = tokio::time::timeout(self.state.timeout(), summarized)
            .await
            .map_err(|_| failed("the summariser timed out".into()))?
            .map_err(failed)?;
        let text = self.state.fit_text(text.trim(), self.request.max_tokens);
        if text.is_empty() {
            return Err(failed("the summary is empty".into()));
        }
        let mut message = Message::system(format!("{}{text}", self.state.prefix()));
        message.id = Some(format!("summary-{}", Uuid::new_v4()));
        message.timestamp = Some(now_rfc3339());
        Ok(Summary {
            message,
            target: self.target.clone(),
        })
    }
}

impl Summary {
    /// The module documentation describes the races.
    pub(super) fn apply(
        &self,
        conversation: &mut Conversation,
        state: &StateManager,
    ) -> Result<(), Error> {
        let rejected = |reason| Err(Error::SummaryRejected { reason });
        if self.target.conversation != conversation.key() {
            return rejected("it belongs to another conversation");
        }
        if let Some(present) = conversation.history().summary()
            && present.id != self.target.previous
        {
            return rejected("another summary was applied since it was begun");
        }
        let cut = window::cut_at(conversation, self.target.until);
        let summary = SummaryChange::Replace(self.message.clone());
        window::apply(conversation, state, &cut, summary);
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
            .field("until", &self.target.until)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Summary")
            .field("until", &self.target.until)
            .finish_non_exhaustive()
    }
}
