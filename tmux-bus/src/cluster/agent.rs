//! An agent that sends messages to others.

use std::borrow::Borrow;
use std::error::Error as _;
use std::time::Duration;

use super::cluster_manager::ClusterManager;
use crate::Error;
use crate::log::{Message, MessageType};
use crate::pane::SendOptions;
use crate::pane::{AnswerEnd, ResponseOptions, Sent};

/// How [`Agent::send_to_with`] sends a message and reads its answer.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{SendToOptions, SendOptions};
///
/// let options = SendToOptions::default()
///     .timeout(Duration::from_secs(600))
///     .send(SendOptions::default().allow_unbracketed());
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SendToOptions {
    timeout: Option<Duration>,
    end: Option<AnswerEnd>,
    send: SendOptions,
    nonce: bool,
}

impl SendToOptions {
    /// Sets the time limit for the answer; the default is `timeout_s` of the receiver, or 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets where the answer ends; the default is that of [`ResponseOptions::end`].
    #[must_use]
    pub fn end(mut self, end: AnswerEnd) -> Self {
        self.end = Some(end);
        self
    }

    /// Sets how the message is sent; the default is [`SendOptions::default`].
    #[must_use]
    pub fn send(mut self, send: SendOptions) -> Self {
        self.send = send;
        self
    }

    /// Adds a request for a marker that is made for this message, which no older answer can have.
    /// For agents that follow such a request.
    #[must_use]
    pub fn nonce(mut self) -> Self {
        self.nonce = true;
        self
    }
}

/// An agent of a cluster, or an outsider, to send messages in its name. Each message is logged.
///
/// ```
/// use tmux_bus::{Agent, Error};
///
/// async fn review(boss: &Agent) -> Result<String, Error> {
///     boss.post_to("middle_manager", "The review starts now.").await?;
///     boss.send_to("coding_writing_specialist", "Summarise your changes.").await
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Agent {
    name: String,
    cluster: ClusterManager,
}

impl Agent {
    pub(crate) fn new(name: String, cluster: ClusterManager) -> Self {
        Self { name, cluster }
    }

    /// The name of the agent.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message to another agent and returns its answer.
    ///
    /// Writes the log on the calling thread: a stopped process that holds the lock of the log delays
    /// the call.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], and as [`PaneIo::send_message`](crate::PaneIo::send_message) and
    /// [`PaneIo::get_response`](crate::PaneIo::get_response). A message that was refused is not
    /// logged; a later failure is logged as an `error`.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: as [`PaneIo::send_message`](crate::PaneIo::send_message). An answer that
    /// arrives later is not logged.
    pub async fn send_to(&self, to_agent: &str, content: &str) -> Result<String, Error> {
        self.send_to_with(to_agent, content, &SendToOptions::default())
            .await
    }

    /// As [`send_to`](Self::send_to), with options.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to).
    ///
    /// # Cancel safety
    ///
    /// As [`send_to`](Self::send_to).
    pub async fn send_to_with(
        &self,
        to_agent: &str,
        content: &str,
        options: &SendToOptions,
    ) -> Result<String, Error> {
        let receiver = self.cluster.agent_config(to_agent)?;
        let mut marker = receiver.marker.clone();
        let mut content = content.to_owned();
        if options.nonce {
            let nonce = uuid::Uuid::new_v4().simple().to_string();
            marker = format!("{marker} {}", &nonce[..8]);
            content = format!("{content} (end your answer with this line: {marker})");
        }
        let message = Message::new(&self.name, to_agent, content);
        let (sent, id) = self
            .send(&message, MessageType::Task, &options.send)
            .await?;
        let mut response =
            ResponseOptions::default().timeout(options.timeout.unwrap_or(receiver.timeout));
        if let Some(end) = options.end {
            response = response.end(end);
        }
        let answer = self
            .cluster
            .pane_io()
            .get_response_with(sent, &marker, &response)
            .await;
        self.log_answer(&message, id.as_deref(), &answer);
        answer
    }

    /// Sends a message to another agent without waiting for an answer.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), without the errors of the answer.
    ///
    /// # Cancel safety
    ///
    /// As [`send_to`](Self::send_to).
    pub async fn post_to(&self, to_agent: &str, content: &str) -> Result<(), Error> {
        self.cluster.agent_config(to_agent)?;
        let message = Message::new(&self.name, to_agent, content);
        self.send(&message, MessageType::Info, &SendOptions::default())
            .await
            .map(drop)
    }

    async fn send(
        &self,
        message: &Message,
        kind: MessageType,
        options: &SendOptions,
    ) -> Result<(Sent, Option<String>), Error> {
        let pane = self.cluster.get_pane(&message.to_agent)?;
        match self
            .cluster
            .pane_io()
            .send_message_with(pane, &message.content, options)
            .await
        {
            Ok(sent) => Ok((sent, self.log(message, kind))),
            Err(error) => {
                if !error.is_not_sent() {
                    let id = self.log(message, kind);
                    self.log_answer(message, id.as_deref(), &Err(&error));
                }
                Err(error)
            }
        }
    }

    fn log(&self, message: &Message, kind: MessageType) -> Option<String> {
        // The message is submitted: its answer matters more than its log.
        self.cluster
            .logger()
            .log(message, kind)
            .inspect_err(report)
            .ok()
    }

    fn log_answer<E: Borrow<Error>>(
        &self,
        message: &Message,
        id: Option<&str>,
        answer: &Result<String, E>,
    ) {
        let (kind, content) = match answer {
            Ok(answer) => (MessageType::Result, answer.clone()),
            Err(error) => (MessageType::Error, error.borrow().to_string()),
        };
        let reply = Message::new(&message.to_agent, &message.from_agent, content);
        let logged = match id {
            Some(id) => self.cluster.logger().log_reply(&reply, kind, id),
            None => self.cluster.logger().log(&reply, kind),
        };
        let _ = logged.inspect_err(report);
    }
}

fn report(error: &Error) {
    tracing::error!(%error, cause = ?error.source(), "cannot log a message");
}
