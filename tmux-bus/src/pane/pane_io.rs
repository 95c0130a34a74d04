//! Messages into panes and answers out of them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::pane_id::PaneId;
use super::pane_lock::PaneLockGuard;
use super::pane_table::PaneTable;
use super::sender::{SendOptions, Sender, Submitted};
use super::typist::{OwnText, Typist};
use crate::answer::answer_reader::AnswerReader;
use crate::answer::extract;
use crate::answer::marker::Marker;
use crate::cluster::agent_monitor::Observation;
use crate::control::command_queue::Request;
use crate::control::control_client::ControlClient;
use crate::control::tap::Tap;
use crate::state::AgentState;
use crate::timing::{ANSWER_QUIET, ANSWER_TIMEOUT};
use crate::{Error, PartialAnswer, Refusal};

/// How an answer is read.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{AnswerEnd, ResponseOptions};
///
/// let options = ResponseOptions::default()
///     .timeout(Duration::from_secs(120))
///     .end(AnswerEnd::AtMarker);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ResponseOptions {
    pub(crate) timeout: Duration,
    pub(crate) end: AnswerEnd,
}

/// Where an answer ends.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{AnswerEnd, ResponseOptions};
///
/// // An agent that pauses for up to a second after its marker.
/// let long_quiet = ResponseOptions::default().end(AnswerEnd::Quiet(Duration::from_secs(1)));
/// # let _ = long_quiet;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEnd {
    /// After the marker, when the pane has been quiet for this long: agents also write the marker
    /// first and continue.
    Quiet(Duration),
    /// With the line of the marker, the literal form of the specification.
    AtMarker,
}

impl Default for ResponseOptions {
    fn default() -> Self {
        Self {
            timeout: ANSWER_TIMEOUT,
            end: AnswerEnd::Quiet(ANSWER_QUIET),
        }
    }
}

impl ResponseOptions {
    /// Sets the time limit for the marker, from the submit on; the default is 30 s.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets where the answer ends; the default is [`AnswerEnd::Quiet`] with 300 ms.
    #[must_use]
    pub fn end(mut self, end: AnswerEnd) -> Self {
        self.end = end;
        self
    }
}

/// Sends messages to the panes of one server and reads the answers.
///
/// Clones are cheap and share the control-mode client of the server. Dropping one does not end
/// the server or its programs.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{Launch, Server};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let server = Server::builder("example").runtime_dir(dir.path()).start().await?;
/// let pane = server.open_pane(&Launch::new("while read -r x; do echo $x OK; done")).await?;
///
/// let io = server.pane_io();
/// let sent = io.send_message(pane, "hello").await?;
/// let answer = io.get_response(sent, "OK", Duration::from_secs(30)).await?;
/// assert_eq!(answer, "hello OK");
/// server.stop(Duration::ZERO).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PaneIo {
    control: ControlClient,
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

/// A submitted message. It holds the lock of the pane: until it is dropped or its answer is read,
/// every other sender, of this process or another, waits.
///
/// ```
/// use std::time::Duration;
/// use tmux_bus::{Launch, Server};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// let server = Server::builder("example").runtime_dir(dir.path()).start().await?;
/// let pane = server.open_pane(&Launch::new("exec cat")).await?;
///
/// let sent = server.pane_io().send_message(pane, "no answer needed").await?;
/// assert_eq!(sent.pane(), pane);
/// drop(sent);
/// server.stop(Duration::ZERO).await?;
/// # Ok(())
/// # }
/// ```
pub struct Sent {
    pub(crate) pane: PaneId,
    pub(crate) submitted: Submitted,
    bytes: usize,
}

impl Sent {
    /// The pane of the message.
    #[must_use]
    pub fn pane(&self) -> PaneId {
        self.pane
    }

    /// Admits the next sender while this answer is still read.
    pub(crate) fn release(&self) {
        self.submitted.release();
    }
}

impl fmt::Debug for Sent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent")
            .field("pane", &self.pane)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl PaneIo {
    pub(crate) fn new(control: ControlClient, folder: PathBuf, max_answer: usize) -> Self {
        Self {
            control,
            folder,
            max_answer,
        }
    }

    /// Sends a message to a pane and submits it. Waits for the lock of the pane, first come, first
    /// served among all senders.
    ///
    /// The wait has no limit: a sender that is stopped by a signal while it has the lock, or waits
    /// for it, blocks the pane. A caller that cannot wait sets a limit of its own and drops the
    /// future.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] and [`Error::QueueFull`] if nothing was sent, [`Error::NotSubmitted`] if
    /// the text may be in the input line of the program but is not submitted, [`Error::SubmitUnknown`] if the
    /// outcome is unknown, [`Error::ServerGone`] if the session has ended, [`Error::Io`] and
    /// [`Error::NotPrivate`] if the lock of the pane or the file of a long message cannot be used.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: while the call waits for the lock of the pane, dropping it sends nothing. Later
    /// the message is sent anyway, because half a message in an input line would become the beginning
    /// of the next one.
    pub async fn send_message(&self, pane: PaneId, content: &str) -> Result<Sent, Error> {
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
    ) -> Result<Sent, Error> {
        let lock = self.lock(pane, content).await?;
        self.send_locked(pane, content, options, None, lock).await
    }

    fn sender(&self, pane: PaneId, options: &SendOptions, typist: Option<Typist>) -> Sender {
        Sender {
            control: self.control.clone(),
            folder: self.folder.clone(),
            pane,
            options: options.clone(),
            max_answer: self.max_answer,
            typist,
        }
    }

    /// Refuses a message if the agent asks a person something, unless the message waits for that.
    pub(crate) async fn refuse_question(&self, typist: &Typist) -> Result<(), Error> {
        let sender = self.sender(typist.monitor.pane(), &SendOptions::default(), None);
        sender.refuse_question(typist).await
    }

    /// Waits until a message may be typed into an agent, for the holder of the pane's lock. Cancel
    /// safe: nothing is typed.
    pub(crate) async fn admit(&self, typist: &Typist) -> Result<(), Error> {
        let sender = self.sender(typist.monitor.pane(), &SendOptions::default(), None);
        sender.admit(typist, OwnText::Leave).await.map(drop)
    }

    /// Waits for the lock of a pane. Refuses text that no pane can take before it waits.
    pub(crate) async fn lock(&self, pane: PaneId, content: &str) -> Result<PaneLockGuard, Error> {
        Sender::check(pane, content)?;
        let panes = self.control.panes();
        if !panes.contains(pane) {
            self.control.list_panes_and_exits().await?;
        }
        let lock = panes.lock(pane);
        let lock = lock.ok_or_else(|| Error::refused(pane, Refusal::NoSuchPane))?;
        lock.lock().await.map_err(|error| {
            // The folder of the session, with the lock in it, is removed with the session.
            if error.is_not_found() {
                self.control.gone(PartialAnswer::default())
            } else {
                error
            }
        })
    }

    /// As [`send_message_with`](Self::send_message_with), for the holder of the pane's lock.
    pub(crate) async fn send_locked(
        &self,
        pane: PaneId,
        content: &str,
        options: &SendOptions,
        typist: Option<Typist>,
        lock: PaneLockGuard,
    ) -> Result<Sent, Error> {
        let sender = self.sender(pane, options, typist);
        let message = content.to_owned();
        let sending = tokio::spawn(async move { sender.send(&message, lock).await });
        match sending.await {
            Ok(submitted) => Ok(Sent {
                pane,
                submitted: submitted?,
                bytes: content.len(),
            }),
            // The runtime is shutting down, or the task panicked.
            Err(error) => Err(Error::SubmitUnknown {
                pane,
                source: Box::new(Error::unfinished("paste-buffer", &error)),
            }),
        }
    }

    /// A reader of the answer to a message.
    pub(crate) fn reader<'a>(
        &'a self,
        sent: &'a Sent,
        marker: Marker,
        options: &'a ResponseOptions,
    ) -> AnswerReader<'a> {
        AnswerReader::new(&self.control, sent, marker, options, self.max_answer)
    }

    pub(crate) fn panes(&self) -> &PaneTable {
        self.control.panes()
    }

    /// For a wait that the end of the server ends.
    pub(crate) fn gone(&self) -> Error {
        self.control.gone(PartialAnswer::default())
    }

    /// A tap that keeps no output and tells when there is some.
    pub(crate) fn watch_output(&self, pane: PaneId) -> Arc<Tap> {
        let tap = Arc::new(Tap::new(0));
        tap.open();
        self.control.panes().add_tap(pane, &tap);
        tap
    }

    /// The text on the screen of a pane.
    pub(crate) async fn screen(&self, pane: PaneId) -> Result<String, Error> {
        self.control.capture(pane).await
    }

    /// Whether a program that prints lines shows a prompt. Programs that draw show their input box also while they
    /// work.
    pub(crate) async fn shows_prompt(&self, pane: PaneId) -> Result<bool, Error> {
        let facts = "#{cursor_y} #{alternate_on}";
        let line = format!("display-message -p -t {pane} \"{facts}\" ; capture-pane -p -t {pane}");
        let request = Request::new("capture-pane", line).blocks(2);
        let bodies = self.control.run(request).await?;
        let [facts, screen] = bodies.as_slice() else {
            return Err(Error::failed("capture-pane", "incomplete answer"));
        };
        let facts = String::from_utf8_lossy(facts);
        let Some((row, "0")) = facts.trim().split_once(' ') else {
            return Ok(false);
        };
        let row: usize = row.parse().unwrap_or(usize::MAX);
        let screen = String::from_utf8_lossy(screen);
        Ok(screen.lines().nth(row).is_some_and(extract::is_prompt))
    }

    /// Whether the input line of an idle agent has a text that this crate typed and did not submit.
    pub(crate) fn has_own_draft(&self, pane: PaneId, seen: &Observation) -> bool {
        let sender = self.sender(pane, &SendOptions::default(), None);
        seen.state == AgentState::Idle && !seen.in_copy_mode && sender.has_own_draft(seen)
    }

    /// Whether the program of a pane runs, by a fresh list.
    pub(crate) async fn is_alive(&self, pane: PaneId) -> Result<bool, Error> {
        self.control.list_panes_and_exits().await?;
        let target = self.control.panes().target(pane);
        Ok(target.is_some_and(|target| target.exit.is_none()))
    }

    /// The folder of the session.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Waits for the answer to a message: for its marker, at most for `timeout` from the submit on.
    ///
    /// Only output after the submit counts. The echo of the message, an older answer that is drawn
    /// again, and the marker inside a longer word do not count.
    ///
    /// After an error the program may still print its answer, and a call for the next message would
    /// return it. A [`ClusterManager`](crate::ClusterManager) remembers the answers that its agents owe;
    /// a caller of this method opens a new pane.
    ///
    /// # Errors
    ///
    /// [`Error::ResponseTimeout`], [`Error::PaneDied`], [`Error::ServerGone`],
    /// [`Error::AnswerTooLong`] and [`Error::AnswerIncomplete`], each with the output received so far.
    /// [`Error::TmuxTimeout`] if tmux does not answer. [`Error::Invalid`] for an invalid marker.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: dropping the future gives the answer up and admits the next sender.
    pub async fn get_response(
        &self,
        sent: Sent,
        marker: &str,
        timeout: Duration,
    ) -> Result<String, Error> {
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
    ) -> Result<String, Error> {
        let marker = Marker::new(marker)?;
        self.reader(&sent, marker, options).run().await
    }
}
