//! Messages into panes and answers out of them.

use std::{fmt, path::PathBuf, time::Duration};

use crate::{
    control::Control,
    error::{Error, Refusal, Result},
    marker::Marker,
    pane::PaneId,
    reading::Reading,
    send::{SendOptions, Sender, Submitted},
};

/// How long an answer is waited for, as the specification has it.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// How an answer is read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ResponseOptions {
    pub(crate) timeout: Duration,
    pub(crate) end: AnswerEnd,
}

/// Where an answer ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEnd {
    /// After the marker, once the pane has been quiet for this long: agents also write the marker
    /// first and go on.
    Quiet(Duration),
    /// With the line of the marker, the specification's literal form.
    AtMarker,
}

impl Default for ResponseOptions {
    fn default() -> Self {
        Self {
            timeout: DEFAULT_TIMEOUT,
            end: AnswerEnd::Quiet(Duration::from_millis(300)),
        }
    }
}

impl ResponseOptions {
    /// How long to wait for the marker, from the submit on. The default is 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Where the answer ends. The default is [`AnswerEnd::Quiet`] with 300 ms.
    #[must_use]
    pub fn end(mut self, end: AnswerEnd) -> Self {
        self.end = end;
        self
    }
}

/// Sends messages to the panes of one server and reads the answers. Clones are cheap and share the
/// server's one control-mode client.
#[derive(Clone)]
pub struct PaneIo {
    control: Control,
    folder: PathBuf,
    max_answer: usize,
}

impl fmt::Debug for PaneIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaneIo")
            .field("session", &self.control.session())
            .finish_non_exhaustive()
    }
}

/// A message that was submitted. Holds the pane's turn: until it is dropped or its answer is read,
/// no other sender, in this process or another, gets to the pane.
pub struct Sent {
    pub(crate) pane: PaneId,
    pub(crate) message: String,
    pub(crate) submitted: Submitted,
}

impl Sent {
    /// The pane that has the message.
    #[must_use]
    pub fn pane(&self) -> PaneId {
        self.pane
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("pane", &self.pane)
            .field("bytes", &self.message.len())
            .finish_non_exhaustive()
    }
}

impl PaneIo {
    pub(crate) fn new(control: Control, folder: PathBuf, max_answer: usize) -> Self {
        Self {
            control,
            folder,
            max_answer,
        }
    }

    /// Sends a message to a pane and submits it, in turn with all other senders.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::QueueFull`] when nothing was sent, [`Error::NotSubmitted`]
    /// when the text stands in the pane without having been submitted, [`Error::SubmitUnknown`] when
    /// that cannot be known.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits for its turn, nothing is sent. Dropped later, the message is sent all
    /// the same: half a message in an input line would become the beginning of the next one.
    pub async fn send_message(&self, pane: PaneId, content: &str) -> Result<Sent> {
        self.send_message_with(pane, content, &SendOptions::default())
            .await
    }

    /// As [`send_message`](Self::send_message), with options.
    ///
    /// # Errors
    ///
    /// As [`send_message`](Self::send_message).
    ///
    /// # Cancel safety
    ///
    /// As [`send_message`](Self::send_message).
    pub async fn send_message_with(
        &self,
        pane: PaneId,
        content: &str,
        options: &SendOptions,
    ) -> Result<Sent> {
        let sender = Sender {
            control: self.control.clone(),
            folder: self.folder.clone(),
            pane,
            options: options.clone(),
            max_answer: self.max_answer,
        };
        sender.check(content)?;
        if !self.control.knows(pane) {
            self.control.list_panes().await?;
        }
        let queue = self.control.panes().queue(pane).ok_or(Error::Refused {
            pane,
            reason: Refusal::NoSuchPane,
        })?;
        let turn = queue.turn().await?;
        let message = content.to_owned();
        let sending = tokio::spawn(async move {
            let submitted = sender.send(&message, turn).await?;
            Ok(Sent {
                pane,
                message,
                submitted,
            })
        });
        match sending.await {
            Ok(sent) => sent,
            // The runtime is shutting down.
            Err(error) => Err(Error::SubmitUnknown {
                pane,
                source: Box::new(Error::failed("paste-buffer", error.to_string())),
            }),
        }
    }

    /// Waits for the answer to a message: for its marker, at most for `timeout` from the submit on.
    ///
    /// Only what the pane printed after the submit counts; the echo of the message, an older answer
    /// that is drawn again, and the marker inside another word do not.
    ///
    /// # Errors
    ///
    /// [`Error::ResponseTimeout`], [`Error::PaneDied`], [`Error::ServerGone`] and
    /// [`Error::AnswerTooLong`], each with what had been received.
    ///
    /// # Cancel safety
    ///
    /// Dropping it gives the answer up and lets the next sender go on.
    pub async fn get_response(
        &self,
        sent: Sent,
        marker: &str,
        timeout: Duration,
    ) -> Result<String> {
        self.get_response_with(sent, marker, &ResponseOptions::default().timeout(timeout))
            .await
    }

    /// As [`get_response`](Self::get_response), with options.
    ///
    /// # Errors
    ///
    /// As [`get_response`](Self::get_response).
    ///
    /// # Cancel safety
    ///
    /// As [`get_response`](Self::get_response).
    pub async fn get_response_with(
        &self,
        sent: Sent,
        marker: &str,
        options: &ResponseOptions,
    ) -> Result<String> {
        let marker = Marker::new(marker)?;
        Reading::new(&self.control, &sent, marker, options, self.max_answer)
            .run()
            .await
    }
}
