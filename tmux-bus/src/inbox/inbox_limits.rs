use std::time::Duration;

/// The longest message that may be left, in bytes. A message that is typed may have 1 MiB; the rest
/// is for the lines that are added to it.
pub(crate) const MAX_LEFT_MESSAGE: usize = 1_000_000;

/// Bounds of an [`Inbox`](crate::Inbox). In the YAML file: `inbox` of the section `cluster`.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{AgentConfig, ClusterConfig, InboxLimits};
///
/// let limits = InboxLimits::default().max_messages(50).keep(Duration::from_secs(3600));
/// let config = ClusterConfig::builder("team")
///     .agent(AgentConfig::new("coder"))
///     .inbox(limits)
///     .build()?;
/// assert_eq!(config.inbox.max_messages, 50);
/// # Ok::<(), tmux_bus::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InboxLimits {
    /// The longest message, in bytes: 1,000,000, which is also the largest possible value.
    pub max_message_bytes: usize,
    /// Messages of one agent that are not delivered yet, the uncertain ones included: 1,000.
    pub max_messages: usize,
    /// How long a message waits before it becomes a dead letter: 7 days.
    pub keep: Duration,
}

impl Default for InboxLimits {
    fn default() -> Self {
        Self {
            max_message_bytes: MAX_LEFT_MESSAGE,
            max_messages: 1_000,
            keep: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

impl InboxLimits {
    /// Sets the longest message, in bytes.
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Sets the number of messages of one agent that are not delivered yet.
    #[must_use]
    pub fn max_messages(mut self, messages: usize) -> Self {
        self.max_messages = messages;
        self
    }

    /// Sets how long a message waits before it becomes a dead letter.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }
}
