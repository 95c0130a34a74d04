use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::{Conversation, Summary, SummaryJob, window};
use crate::History;
use crate::conversation::provider::abort;
use crate::conversation::timestamps::now_rfc3339;
use crate::conversation::tokens::{TokenCount, fit_text};
use crate::conversation::{AbortedCall, Error, Estimator, Message, Provider, TokenCounter};

/// Keeps conversations within the context window of a model.
///
/// Stateless: it works on the [`Conversation`] it is given, and one serves all sessions. Options are
/// set before the first use.
///
/// ```
/// use agent_snapshot::History;
/// use agent_snapshot::conversation::{Message, StateManager};
///
/// let state = StateManager::new(1_000).answer_tokens(200);
/// let mut conversation = state.conversation(History::new())?;
/// state.append(&mut conversation, Message::system("Be brief."))?;
/// for n in 0..100 {
///     state.append(&mut conversation, Message::user(format!("question {n}")))?;
///     state.append(&mut conversation, Message::assistant("a long answer ".repeat(10)))?;
///     state.trim(&mut conversation)?;
/// }
/// assert!(conversation.tokens() <= 800);
/// let first = conversation.iter().next().unwrap();
/// assert_eq!(first.content.as_deref(), Some("Be brief."));
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone)]
pub struct StateManager {
    limit: usize,
    answer_tokens: usize,
    low_water: u8,
    counter: Arc<dyn TokenCounter>,
    provider: Option<Provider>,
    summary_prefix: String,
    summary_tokens: Option<usize>,
    summary_timeout: Duration,
}

/// The messages that a trim removed from view.
///
/// ```
/// use agent_snapshot::conversation::{Message, StateManager};
///
/// let state = StateManager::new(100).answer_tokens(0);
/// let messages = (0..50).map(|n| Message::user(format!("question {n}")));
/// let mut conversation = state.conversation(messages.collect())?;
/// let trimmed = state.trim(&mut conversation)?;
/// assert_eq!(trimmed.messages + conversation.iter().count(), 50);
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Trimmed {
    /// The number of messages.
    pub messages: usize,
    /// Their tokens.
    pub tokens: usize,
}

impl StateManager {
    /// For a model with a context window of `limit` tokens, including the answer.
    ///
    /// By default a quarter of the window, at most 4,096 tokens, is reserved for the answer, a
    /// trim goes down to 75 % of the rest, and [`Estimator`] counts.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            answer_tokens: (limit / 4).min(4_096),
            low_water: 75,
            counter: Arc::new(Estimator),
            provider: None,
            summary_prefix: "前文の要約：".into(),
            summary_tokens: None,
            summary_timeout: Duration::from_secs(60),
        }
    }

    /// Sets the tokens that are reserved for the answer of the model.
    #[must_use]
    pub fn answer_tokens(mut self, tokens: usize) -> Self {
        self.answer_tokens = tokens;
        self
    }

    /// Sets the low-water mark, in percent of the [`budget`](Self::budget): a trim goes down to it.
    /// Clamped to 1..=100.
    ///
    /// A trim changes the start of the request and so invalidates the prompt cache of the
    /// provider. A trim well below the budget keeps the prefix stable for many requests; at 100
    /// it changes with nearly every message.
    #[must_use]
    pub fn low_water(mut self, percent: u8) -> Self {
        self.low_water = percent.clamp(1, 100);
        self
    }

    /// Sets the token counter; the default is [`Estimator`].
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// Sets the provider whose formula counts images and documents. By default the formula that gives
    /// the most tokens counts.
    #[must_use]
    pub fn provider(mut self, provider: Provider) -> Self {
        self.provider = Some(provider);
        self
    }

    /// Sets the text before each summary; the default is `前文の要約：`.
    #[must_use]
    pub fn summary_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.summary_prefix = prefix.into();
        self
    }

    /// Sets the tokens that a summary may take; a longer one is cut. The default is an eighth of the
    /// [`budget`](Self::budget).
    #[must_use]
    pub fn summary_tokens(mut self, tokens: usize) -> Self {
        self.summary_tokens = Some(tokens);
        self
    }

    /// Sets how long a summariser may take; the default is one minute.
    #[must_use]
    pub fn summary_timeout(mut self, timeout: Duration) -> Self {
        self.summary_timeout = timeout;
        self
    }

    /// The tokens that the messages may take: the window without the answer and the fixed cost of
    /// a request.
    #[must_use]
    pub fn budget(&self) -> usize {
        self.limit
            .saturating_sub(self.answer_tokens)
            .saturating_sub(self.counter.per_request())
    }

    /// The tokens down to which a trim goes.
    #[must_use]
    pub fn low_water_mark(&self) -> usize {
        // In two steps: a budget without an end in sight (`usize::MAX`) must not overflow.
        let (budget, percent) = (self.budget(), usize::from(self.low_water));
        budget / 100 * percent + budget % 100 * percent / 100
    }

    /// Whether the conversation exceeds the [`budget`](Self::budget) and must be trimmed before
    /// it is sent.
    #[must_use]
    pub fn needs_trim(&self, conversation: &Conversation) -> bool {
        conversation.tokens() > self.budget()
    }

    /// Makes a conversation of a history: counts its messages, and checks that calls and results
    /// pair.
    ///
    /// # Errors
    ///
    /// As [`append`](Self::append), for the first message that breaks a rule, but without
    /// [`Error::OverLimit`], because a history may be trimmed, and with [`Error::DuplicateCall`],
    /// because a history is not changed. [`repair`](crate::conversation::repair()) makes a list
    /// acceptable.
    pub fn conversation(&self, history: History) -> Result<Conversation, Error> {
        self.conversation_with_key(history, Uuid::new_v4().to_string())
    }

    pub(crate) fn conversation_with_key(
        &self,
        history: History,
        key: String,
    ) -> Result<Conversation, Error> {
        Conversation::new(history, key, self)
    }

    /// Appends a message, and returns it as it was stored: with a new id, time stamp and call ids
    /// where they were missing.
    ///
    /// A call whose id another call has gets a new id as well: models and adapters reuse ids. The
    /// returned message has it. A result with the old id belongs to the newest open call that had
    /// this id:
    ///
    /// ```
    /// use agent_snapshot::History;
    /// use agent_snapshot::conversation::{Message, StateManager, ToolCallRequest, ToolCallResult};
    /// use serde_json::json;
    ///
    /// let state = StateManager::new(10_000);
    /// let mut conversation = state.conversation(History::new())?;
    /// state.append(&mut conversation, Message::user("Count to two."))?;
    /// for expected in ["call_0", "call_0_2"] {
    ///     let call = ToolCallRequest::new("call_0", "add", json!({}));
    ///     let asked = Message::assistant("").with_tool_calls(vec![call]);
    ///     let asked = state.append(&mut conversation, asked)?;
    ///     assert_eq!(asked.tool_calls[0].id, expected);
    ///     let result = Message::tool(vec![ToolCallResult::new("call_0", json!("done"))]);
    ///     let result = state.append(&mut conversation, result)?;
    ///     assert_eq!(result.tool_results[0].tool_call_id, expected);
    /// }
    /// # Ok::<(), agent_snapshot::conversation::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - A provider would refuse the list: [`Error::DuplicateMessage`], [`Error::UnknownCall`],
    ///   [`Error::AlreadyAnswered`], [`Error::OpenCalls`], [`Error::InvalidMessage`].
    /// - [`Error::OverLimit`]: the message would not fit even after a trim.
    ///
    /// The conversation is unchanged then.
    pub fn append<'a>(
        &self,
        conversation: &'a mut Conversation,
        mut message: Message,
    ) -> Result<&'a Message, Error> {
        conversation.rename_calls(&mut message);
        conversation.check(&message)?;
        let count = self.count(&message);
        if conversation.tokens() + count.tokens > self.budget() {
            let least = window::least(conversation, &message, count.tokens);
            if least > self.budget() {
                return Err(self.over_limit(least));
            }
        }
        message.id.get_or_insert_with(|| Uuid::new_v4().to_string());
        message.timestamp.get_or_insert_with(now_rfc3339);
        let seq = conversation.push(message, count);
        let appended = conversation.history().get(seq);
        appended.ok_or(Error::InvalidMessage {
            reason: "the history did not keep it",
        })
    }

    /// Trims the conversation to the low-water mark if it exceeds its budget: the oldest
    /// exchanges first. An assistant message leaves together with the results of its calls.
    ///
    /// The system prompt stays. The newest turn stays whole if it fits; otherwise its oldest
    /// exchanges leave, but not the user message that opened it. The view starts with a user
    /// message if the conversation has one.
    ///
    /// # Errors
    ///
    /// [`Error::OverLimit`] if the newest exchange alone does not fit. The conversation is
    /// unchanged then.
    pub fn trim(&self, conversation: &mut Conversation) -> Result<Trimmed, Error> {
        if !self.needs_trim(conversation) {
            return Ok(Trimmed::default());
        }
        let (before, len) = (conversation.tokens(), conversation.history().tail_len());
        let (cut, summary) = window::plan_trim(conversation, self)?;
        window::apply(conversation, self, &cut, summary);
        Ok(Trimmed {
            messages: len - conversation.history().tail_len(),
            tokens: before.saturating_sub(conversation.tokens()),
        })
    }

    /// A job for the messages that must leave the view; `None` if there are none. The conversation is
    /// then within its budget, or only its present summary is too long: call [`trim`](Self::trim).
    ///
    /// Run the job, then call [`apply_summary`](Self::apply_summary); if either fails, call
    /// [`trim`](Self::trim). Messages may be appended to the conversation while the job
    /// runs.
    ///
    /// # Errors
    ///
    /// As [`trim`](Self::trim).
    pub fn begin_summary(&self, conversation: &Conversation) -> Result<Option<SummaryJob>, Error> {
        if !self.needs_trim(conversation) {
            return Ok(None);
        }
        let cut = window::plan_summary(conversation, self)?;
        Ok(SummaryJob::new(conversation, self, &cut))
    }

    /// Replaces the summarised messages, and the previous summary, by the summary. Messages that
    /// were appended since the job was begun stay.
    ///
    /// # Errors
    ///
    /// [`Error::SummaryRejected`] if the summary was made for another conversation, or if another
    /// summary was applied since it was begun. The conversation is unchanged then.
    pub fn apply_summary(
        &self,
        conversation: &mut Conversation,
        summary: &Summary,
    ) -> Result<(), Error> {
        summary.apply(conversation, self)
    }

    /// Answers the open tool calls with an error result, and returns them. For a conversation
    /// whose process died before the results were appended.
    ///
    /// The message depends on the calls alone: two processes that abort the same calls append the
    /// same message.
    pub fn abort_open_calls(&self, conversation: &mut Conversation) -> Vec<AbortedCall> {
        let open = conversation.open_calls().to_vec();
        let asked = conversation.iter().rfind(|m| !m.tool_calls.is_empty());
        let Some(asked) = asked.filter(|_| !open.is_empty()) else {
            return Vec::new();
        };
        let (message, aborted) = abort(asked, &open);
        // Without the check of `append` for the budget: open calls make the list unusable, a list
        // over the budget can be trimmed.
        let count = self.count(&message);
        conversation.push(message, count);
        aborted
    }

    pub(super) fn count(&self, message: &Message) -> TokenCount {
        TokenCount::new(&*self.counter, self.provider, message)
    }

    pub(super) fn prefix(&self) -> &str {
        &self.summary_prefix
    }

    /// The tokens of the text of a summary.
    pub(super) fn max_summary_tokens(&self) -> usize {
        self.summary_tokens.unwrap_or(self.budget() / 8)
    }

    /// The tokens of a summary message of the largest allowed size.
    pub(super) fn summary_cost(&self) -> usize {
        let prefix = self.counter.count_text(&self.summary_prefix);
        self.counter.per_message() + prefix + self.max_summary_tokens()
    }

    pub(super) fn timeout(&self) -> Duration {
        self.summary_timeout
    }

    pub(super) fn over_limit(&self, needed: usize) -> Error {
        let budget = self.budget();
        Error::OverLimit {
            needed,
            budget,
            over: needed.saturating_sub(budget),
        }
    }

    /// The start of `text` that has at most `tokens` tokens.
    pub(crate) fn fit_text<'a>(&self, text: &'a str, tokens: usize) -> &'a str {
        fit_text(&*self.counter, text, tokens)
    }
}

impl fmt::Debug for StateManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateManager")
            .field("limit", &self.limit)
            .field("answer_tokens", &self.answer_tokens)
            .field("low_water", &self.low_water)
            .field("provider", &self.provider)
            .field("summary_timeout", &self.summary_timeout)
            .finish_non_exhaustive()
    }
}
