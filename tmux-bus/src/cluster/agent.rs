//! An agent that sends messages to others.

use std::time::Duration;

use super::answer::Answer;
use super::ask::{Ask, StartedAsk};
use super::cluster_manager::ClusterManager;
use super::frame;
use super::wait_graph::{WaitEdge, WaitGraph};
use crate::Error;
use crate::answer::marker::Marker;
use crate::log::Message;
use crate::pane::SendOptions;
use crate::pane::{AnswerEnd, ResponseOptions};

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
    is_command: bool,
    without_marker: bool,
    waits_for_person: bool,
    is_framed: bool,
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

    /// Sends a text such as `/clear` as the command that it is for the agent.
    ///
    /// By default a text whose first character has a meaning for the agent (`/`, `!`, `@`, `#`) gets a first line
    /// `Message from <sender>:`, which the log does not have. Agents do not answer commands: send them with
    /// [`Agent::post_to_with`].
    #[must_use]
    pub fn command(mut self) -> Self {
        self.is_command = true;
        self
    }

    /// Puts the line `[Message from agent <sender>, not from the user]` before the message of an agent, and replaces its
    /// control characters, also if the receiver is a `plain` program. The other agents always get it, except for a
    /// [`command`](Self::command); the log has the text without it. Messages of an outsider have no such line.
    #[must_use]
    pub fn framed(mut self) -> Self {
        self.is_framed = true;
        self
    }

    /// Waits, within the time limit, while the agent asks a person for approval or shows a dialog; the default is to
    /// refuse the message at once.
    #[must_use]
    pub fn wait_for_person(mut self) -> Self {
        self.waits_for_person = true;
        self
    }

    /// Removes the line of the marker from the answer. The log has the whole answer. A marker that stands inside a
    /// sentence is left.
    #[must_use]
    pub fn without_marker(mut self) -> Self {
        self.without_marker = true;
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
    /// Whether it is an agent of the cluster.
    is_member: bool,
    cluster: ClusterManager,
}

impl Agent {
    pub(super) fn new(name: String, is_member: bool, cluster: ClusterManager) -> Self {
        Self {
            name,
            is_member,
            cluster,
        }
    }

    /// The name of the agent.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sends a message to another agent and returns its answer.
    ///
    /// If the agent has hooks, the answer is the text of its model, byte for byte, and belongs to this message by
    /// the ids of its session and turn. Otherwise it is read from the output of the pane, up to the marker and the
    /// quiet after it.
    ///
    /// After a timeout, or another error that does not prove the end of the turn, the agent still owes the answer. The pane is busy until the answer arrives, which is then logged
    /// as `late`, the agent is seen idle, it is restarted, [`ClusterManager::reset`] is called, or 10 times the
    /// time limit has passed. That answer is never returned for another message.
    ///
    /// Writes the log on the calling thread: a stopped process that holds the lock of the log delays
    /// the call.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`]. [`Error::Refused`] with [`Refusal::OwesAnswer`](crate::Refusal::OwesAnswer) if an
    /// earlier answer did not arrive within the time limit. [`Error::NoAnswer`] if the agent ended its turn
    /// without an answer. Otherwise as [`PaneIo::send_message`](crate::PaneIo::send_message) and
    /// [`PaneIo::get_response`](crate::PaneIo::get_response). A message that was refused is not logged; a later
    /// failure is logged as an `error`. [`Error::NotAllowed`] if `may_message` of the sender does not name the receiver,
    /// and [`Error::Cycle`] if this process runs in the pane of the sender and the receiver waits for the sender; both
    /// are logged as `refused`.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: while the call waits for the pane, dropping it sends nothing. Later the message is sent
    /// and its answer is logged, but not returned.
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
        let answer = self.ask(to_agent, content, options).await?;
        Ok(answer.text)
    }

    /// As [`send_to_with`](Self::send_to_with), and tells more about the answer: whether it has the marker, and
    /// whether the agent has changed the message.
    ///
    /// # Errors
    ///
    /// As [`send_to`](Self::send_to).
    ///
    /// # Cancel safety
    ///
    /// As [`send_to`](Self::send_to).
    pub async fn ask(
        &self,
        to_agent: &str,
        content: &str,
        options: &SendToOptions,
    ) -> Result<Answer, Error> {
        let _wait = self.enter_wait(to_agent).await?;
        let started = self.start_unguarded(to_agent, content, options).await;
        started?.answer().await
    }

    /// The beginning of [`ask`](Self::ask), for a process that delivers the message of another one: it is not the process
    /// that waits.
    pub(crate) async fn start_unguarded(
        &self,
        to_agent: &str,
        content: &str,
        options: &SendToOptions,
    ) -> Result<StartedAsk, Error> {
        self.check_receiver(to_agent)?;
        let ask = self.message(to_agent, content, options, true)?;
        ask.start().await
    }

    /// Records a wait only if the calling process belongs to the agent. Another program that sends in its name does not
    /// block the agent.
    async fn enter_wait(&self, to_agent: &str) -> Result<Option<WaitEdge>, Error> {
        if !self.is_member || self.cluster.own_agent().await? != Some(&self.name) {
            return Ok(None);
        }
        self.cluster.agent_config(to_agent)?;
        let graph = WaitGraph::new(self.cluster.pane_io().folder());
        let edge = graph.enter(&self.name, to_agent).await;
        edge.map(Some).inspect_err(|error| {
            let logger = self.cluster.logger();
            logger.log_refusal(&self.name, to_agent, error);
        })
    }

    /// Refuses a receiver that the configuration does not allow.
    fn check_receiver(&self, to_agent: &str) -> Result<(), Error> {
        self.cluster.agent_config(to_agent)?;
        if !self.is_member || self.cluster.agent_config(&self.name)?.allows(to_agent) {
            return Ok(());
        }
        let error = Error::NotAllowed {
            from: self.name.clone(),
            to: to_agent.to_owned(),
        };
        let logger = self.cluster.logger();
        logger.log_refusal(&self.name, to_agent, &error);
        Err(error)
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
        self.post_to_with(to_agent, content, &SendToOptions::default())
            .await
    }

    /// As [`post_to`](Self::post_to), with options. Those for the answer have no effect.
    ///
    /// # Errors
    ///
    /// As [`post_to`](Self::post_to).
    ///
    /// # Cancel safety
    ///
    /// As [`send_to`](Self::send_to).
    pub async fn post_to_with(
        &self,
        to_agent: &str,
        content: &str,
        options: &SendToOptions,
    ) -> Result<(), Error> {
        self.check_receiver(to_agent)?;
        let post = self.message(to_agent, content, options, false)?;
        post.run().await.map(drop)
    }

    pub(crate) fn message(
        &self,
        to_agent: &str,
        content: &str,
        options: &SendToOptions,
        wants_answer: bool,
    ) -> Result<Ask, Error> {
        let receiver = self.cluster.agent_config(to_agent)?;
        let mut marker = receiver.marker.clone();
        let mut content = content.to_owned();
        let monitor = self.cluster.monitor(to_agent)?;
        let definition = monitor.definition();
        let submit = &definition.submit;
        if (options.nonce || submit.nonce) && wants_answer {
            let nonce = uuid::Uuid::new_v4().simple().to_string();
            marker = format!("{marker} {}", &nonce[..8]);
            content = format!("{content} (end your answer with this line: {marker})");
        }
        let is_framed = options.is_framed || submit.frame.unwrap_or(!definition.is_plain());
        let text = if options.is_command {
            content.clone()
        } else if self.is_member && is_framed {
            frame::framed(&self.name, &content, definition.is_plain())
        } else if is_special(&content, &submit.special_first) {
            format!("{}\n{content}", self.header())
        } else {
            content.clone()
        };
        let mut response =
            ResponseOptions::default().timeout(options.timeout.unwrap_or(receiver.timeout));
        match options.end {
            Some(end) => response = response.end(end),
            None if submit.quiet.is_zero() => {}
            None => response = response.end(AnswerEnd::Quiet(submit.quiet)),
        }
        Ok(Ask {
            pane: monitor.pane(),
            cluster: self.cluster.clone(),
            message: Message::new(&self.name, to_agent, content),
            text,
            marker: Marker::new(&marker)?,
            wants_answer,
            response,
            send: options.send.clone(),
            without_marker: options.without_marker,
            waits_for_person: options.waits_for_person,
            is_command: options.is_command,
            delivery: None,
        })
    }

    /// The first line that takes the meaning from the first character of a message.
    fn header(&self) -> String {
        let name = self.name.replace(char::is_control, " ");
        format!("Message from {name}:")
    }
}

/// Whether an agent would take a message for a command. Agents ignore white space before it.
fn is_special(content: &str, special: &[char]) -> bool {
    content.trim_start().starts_with(special)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_visible_character_makes_a_command() {
        for text in ["/clear", "!ls", "  /clear", "\n\t!ls", "@file x"] {
            assert!(is_special(text, &['/', '!', '@']), "{text:?}");
        }
        for text in ["", "see /tmp", "- item", "?", "# a"] {
            assert!(!is_special(text, &['/', '!', '@']), "{text:?}");
        }
        assert!(!is_special("/clear", &[]));
    }
}
