//! An agent that talks to others.

use std::time::Duration;

use crate::{
    cluster::ClusterManager,
    error::{Error, Result},
    message::{Message, MessageType},
    pane_io::{AnswerEnd, ResponseOptions, Sent},
    send::SendOptions,
};

/// How an agent asks another.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct AskOptions {
    timeout: Option<Duration>,
    end: Option<AnswerEnd>,
    send: SendOptions,
    nonce: bool,
}

impl AskOptions {
    /// How long to wait for the answer. The default is the receiver's `timeout_s`, or 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Where the answer ends, see [`ResponseOptions::end`].
    #[must_use]
    pub fn end(mut self, end: AnswerEnd) -> Self {
        self.end = Some(end);
        self
    }

    /// How the message is sent.
    #[must_use]
    pub fn send(mut self, send: SendOptions) -> Self {
        self.send = send;
        self
    }

    /// Asks for a marker made for this one request, at the end of the message: no older answer can
    /// have it. For agents that follow such a wish.
    #[must_use]
    pub fn nonce(mut self) -> Self {
        self.nonce = true;
        self
    }
}

/// An agent of a cluster, or an outsider, to send messages in its name. Each is logged.
#[derive(Debug, Clone)]
pub struct Agent {
    name: String,
    cluster: ClusterManager,
}

impl Agent {
    pub(crate) fn new(name: String, cluster: ClusterManager) -> Self {
        Self { name, cluster }
    }

    /// The agent's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message to another agent and returns its answer.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], and as [`PaneIo::send_message`](crate::PaneIo::send_message) and
    /// [`PaneIo::get_response`](crate::PaneIo::get_response). What was refused before anything was
    /// sent is not logged; what failed later is, as an `error`.
    ///
    /// # Cancel safety
    ///
    /// As [`PaneIo::send_message`](crate::PaneIo::send_message); an answer that comes later is not
    /// logged.
    pub async fn send_to(&self, to_agent: &str, content: &str) -> Result<String> {
        self.send_to_with(to_agent, content, &AskOptions::default())
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
        options: &AskOptions,
    ) -> Result<String> {
        let receiver = self.cluster.process(to_agent)?;
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

    /// Sends a message to another agent and does not wait for an answer.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to), but for those of an answer.
    ///
    /// # Cancel safety
    ///
    /// As [`send_to`](Self::send_to).
    pub async fn post_to(&self, to_agent: &str, content: &str) -> Result<()> {
        self.cluster.process(to_agent)?;
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
    ) -> Result<(Sent, Option<String>)> {
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
        // The message is on its way: its answer matters more than its log.
        self.cluster
            .logger()
            .log(message, kind)
            .inspect_err(report)
            .ok()
    }

    fn log_answer<E: std::borrow::Borrow<Error>>(
        &self,
        asked: &Message,
        id: Option<&str>,
        answer: &Result<String, E>,
    ) {
        let (kind, content) = match answer {
            Ok(answer) => (MessageType::Result, answer.clone()),
            Err(error) => (MessageType::Error, error.borrow().to_string()),
        };
        let message = Message::new(&asked.to_agent, &asked.from_agent, content);
        let logged = match id {
            Some(id) => self.cluster.logger().log_reply(&message, kind, id),
            None => self.cluster.logger().log(&message, kind),
        };
        let _ = logged.inspect_err(report);
    }
}

fn report(error: &Error) {
    tracing::error!(error = %error, cause = ?std::error::Error::source(error), "a message could not be logged");
}
