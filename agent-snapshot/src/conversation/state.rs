use std::{fmt, sync::Arc, time::Duration};

use uuid::Uuid;

use super::{
    AbortedCall, Conversation, Estimator, Message, Summary, SummaryJob, TokenCounter,
    repair::{abort, now},
    window,
};
use crate::{Error, History};

/// Keeps conversations within the model's context window. Stateless: it works on the
/// [`Conversation`] handed to it, and one serves all sessions.
///
/// ```
/// use agent_snapshot::{History, conversation::{Message, StateManager}};
///
/// let state = StateManager::new(1_000).answer_room(200);
/// let mut conversation = state.open(History::new())?;
/// state.append(&mut conversation, Message::system("Be brief."))?;
/// for n in 0..100 {
///     state.append(&mut conversation, Message::user(format!("question {n}")))?;
///     state.append(&mut conversation, Message::assistant("a long answer ".repeat(10)))?;
///     state.trim(&mut conversation)?;
/// }
/// assert!(conversation.tokens() <= 800);
/// let first = conversation.iter().next().unwrap();
/// assert_eq!(first.content.as_deref(), Some("Be brief."));
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone)]
pub struct StateManager {
    limit: usize,
    answer: usize,
    low_water: u8,
    counter: Arc<dyn TokenCounter>,
    summary_prefix: String,
    summary_room: Option<usize>,
    summary_timeout: Duration,
}

/// What a trim took out of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Trimmed {
    /// The number of messages.
    pub messages: usize,
    /// The tokens that were freed.
    pub tokens: usize,
}

impl StateManager {
    /// For a model with a context window of `limit` tokens, answer included. Unless said
    /// otherwise a quarter of it, but at most 4,096, is left for the answer, trimming goes
    /// down to 75 %, and tokens are counted by [`Estimator`].
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            answer: (limit / 4).min(4_096),
            low_water: 75,
            counter: Arc::new(Estimator),
            summary_prefix: "前文の要約：".into(),
            summary_room: None,
            summary_timeout: Duration::from_secs(60),
        }
    }

    /// How many tokens are left for the model's answer.
    #[must_use]
    pub fn answer_room(mut self, tokens: usize) -> Self {
        self.answer = tokens;
        self
    }

    /// How far a trim goes, in percent of the room for messages.
    ///
    /// A trim changes the start of the prompt, and a provider's prompt cache with it. One that
    /// makes room for a while keeps the prefix stable in between; 100 changes it with nearly
    /// every message. Values outside of 1 to 100 are taken as the nearer of the two.
    #[must_use]
    pub fn low_water(mut self, percent: u8) -> Self {
        self.low_water = percent.clamp(1, 100);
        self
    }

    /// How tokens are counted.
    #[must_use]
    pub fn counter(mut self, counter: impl TokenCounter + 'static) -> Self {
        self.counter = Arc::new(counter);
        self
    }

    /// What a summary starts with, `前文の要約：` if not set.
    #[must_use]
    pub fn summary_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.summary_prefix = prefix.into();
        self
    }

    /// How many tokens a summary may take; a longer one is cut. An eighth of the room for
    /// messages if not set.
    #[must_use]
    pub fn summary_room(mut self, tokens: usize) -> Self {
        self.summary_room = Some(tokens);
        self
    }

    /// How long a summariser may take, one minute if not set.
    #[must_use]
    pub fn summary_timeout(mut self, timeout: Duration) -> Self {
        self.summary_timeout = timeout;
        self
    }

    /// The tokens that messages may take: the limit without the answer and the fixed cost of
    /// a request.
    #[must_use]
    pub fn room(&self) -> usize {
        self.limit
            .saturating_sub(self.answer)
            .saturating_sub(self.counter.per_request())
    }

    /// The tokens down to which a trim goes.
    #[must_use]
    pub fn low_water_mark(&self) -> usize {
        self.room() * usize::from(self.low_water) / 100
    }

    /// Whether the conversation has to be trimmed before it is sent.
    #[must_use]
    pub fn is_over(&self, conversation: &Conversation) -> bool {
        conversation.tokens() > self.room()
    }

    /// Takes up a history: counts its messages and checks how calls and results pair.
    ///
    /// # Errors
    ///
    /// What [`append`](Self::append) says of the first message that does not fit. A history
    /// with unanswered calls in the middle can be made good by [`repair`](super::repair()).
    pub fn open(&self, history: History) -> Result<Conversation, Error> {
        Conversation::open(history, None, &*self.counter)
    }

    pub(super) fn open_as(&self, history: History, key: String) -> Result<Conversation, Error> {
        Conversation::open(history, Some(key), &*self.counter)
    }

    /// Appends a message and returns it as it was stored: a missing id, time stamp and call id
    /// are filled in.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateMessage`], [`Error::DuplicateCall`], [`Error::UnknownCall`],
    /// [`Error::AlreadyAnswered`], [`Error::OpenCalls`] and [`Error::InvalidMessage`] for what
    /// a provider would refuse; [`Error::OverLimit`] when the message would not fit even with
    /// everything else trimmed away. Nothing is changed then.
    pub fn append<'a>(
        &self,
        conversation: &'a mut Conversation,
        mut message: Message,
    ) -> Result<&'a Message, Error> {
        conversation.check(&message)?;
        let tokens = self.counter.count_message(&message);
        let least = window::least(conversation, &message, tokens);
        if least > self.room() {
            return Err(self.over_limit(least));
        }
        for call in &mut message.tool_calls {
            if call.id.is_empty() {
                // At most 40 characters of `[A-Za-z0-9_-]`: what both providers take.
                call.id = format!("call_{}", Uuid::new_v4().simple());
            }
        }
        message.id.get_or_insert_with(|| Uuid::new_v4().to_string());
        message.timestamp.get_or_insert_with(now);
        conversation.push(message, tokens);
        conversation
            .tail_message(conversation.entries().len() - 1)
            .ok_or(Error::InvalidMessage {
                reason: "the appended message is gone",
            })
    }

    /// Trims the conversation down to the low-water mark, if it is over its room: oldest
    /// first, by whole exchanges (an assistant message with its calls goes with all of their
    /// results).
    ///
    /// The system prompt stays. So does the newest turn while it fits; a turn that does not
    /// is trimmed inside, behind the user message that opened it. What is left always starts
    /// with a user message, if there is one.
    ///
    /// # Errors
    ///
    /// [`Error::OverLimit`] when the newest exchange does not fit alone. Nothing is changed
    /// then.
    pub fn trim(&self, conversation: &mut Conversation) -> Result<Trimmed, Error> {
        if !self.is_over(conversation) {
            return Ok(Trimmed::default());
        }
        let (before, len) = (conversation.tokens(), conversation.history().tail_len());
        let (cut, summary) = window::plan(conversation, self)?;
        window::apply(conversation, self, &cut, summary);
        Ok(Trimmed {
            messages: len - conversation.history().tail_len(),
            tokens: before.saturating_sub(conversation.tokens()),
        })
    }

    /// What has to be summarised before [`trim`](Self::trim) would drop it; `None` while the
    /// conversation fits.
    ///
    /// Run the job, with the conversation free for further messages meanwhile, then
    /// [`apply_summary`](Self::apply_summary); on failure, [`trim`](Self::trim).
    ///
    /// # Errors
    ///
    /// As [`trim`](Self::trim).
    pub fn begin_summary(&self, conversation: &Conversation) -> Result<Option<SummaryJob>, Error> {
        if !self.is_over(conversation) {
            return Ok(None);
        }
        let cut = window::plan_for_summary(conversation, self)?;
        Ok(SummaryJob::new(conversation, self, &cut))
    }

    /// Puts a summary in the place of what it summarises, and of the summary before it.
    /// Messages that were appended meanwhile stay.
    ///
    /// # Errors
    ///
    /// [`Error::SummaryRejected`] when the summary is of another conversation, or another one
    /// was applied since it was begun. Nothing is changed then.
    pub fn apply_summary(
        &self,
        conversation: &mut Conversation,
        summary: &Summary,
    ) -> Result<(), Error> {
        summary.apply(conversation, self)
    }

    /// Answers the calls that wait for a result as aborted, for instance after a crash in the
    /// middle of a tool call, and tells which. The answer's id is the same whoever makes it.
    pub fn abort_open_calls(&self, conversation: &mut Conversation) -> Vec<AbortedCall> {
        let open = conversation.open_calls().to_vec();
        if open.is_empty() {
            return Vec::new();
        }
        let asked = conversation.iter().rfind(|m| !m.tool_calls.is_empty());
        let Some((message, aborted)) = asked.map(|asked| abort(asked, &open)) else {
            return Vec::new();
        };
        // Not `append`: a list that cannot be sent is worse than one that must be trimmed.
        let tokens = self.counter.count_message(&message);
        conversation.push(message, tokens);
        aborted
    }

    pub(super) fn tokens(&self) -> &dyn TokenCounter {
        &*self.counter
    }

    pub(super) fn prefix(&self) -> &str {
        &self.summary_prefix
    }

    pub(super) fn summary_tokens(&self) -> usize {
        self.summary_room.unwrap_or(self.room() / 8)
    }

    pub(super) fn timeout(&self) -> Duration {
        self.summary_timeout
    }

    pub(super) fn over_limit(&self, needed: usize) -> Error {
        let room = self.room();
        Error::OverLimit {
            needed,
            room,
            over: needed.saturating_sub(room),
        }
    }

    /// The start of `text` that takes at most `tokens`.
    pub(super) fn fit_text<'a>(&self, text: &'a str, tokens: usize) -> &'a str {
        if self.counter.count_text(text) <= tokens {
            return text;
        }
        let (mut fits, mut too_long) = (0_usize, text.len());
        loop {
            let middle = fits.midpoint(too_long);
            let Some(middle) = (fits + 1..=middle)
                .rev()
                .find(|i| text.is_char_boundary(*i))
            else {
                break;
            };
            if self.counter.count_text(&text[..middle]) <= tokens {
                fits = middle;
            } else {
                too_long = middle;
            }
        }
        &text[..fits]
    }
}

impl fmt::Debug for StateManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StateManager")
            .field("limit", &self.limit)
            .field("answer", &self.answer)
            .field("low_water", &self.low_water)
            .field("summary_timeout", &self.summary_timeout)
            .finish_non_exhaustive()
    }
}
