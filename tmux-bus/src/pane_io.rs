//! Messages into panes and answers out of them.

use std::{fmt, path::PathBuf, time::Duration};

use tokio::time::Instant;

use crate::{
    answer,
    control::{Control, Request},
    detector::{Detector, Question, Sighting},
    error::{Error, PartialAnswer, Result},
    marker::Marker,
    pane::PaneId,
    send::{SendOptions, Sender, Submitted},
    tap::End,
    transcript::Transcript,
    vt::{Step, Tokenizer},
};

/// How long an answer is waited for, as the specification has it.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// After this a screen that is being drawn counts as drawn, and a line as printed.
const SETTLED: Duration = Duration::from_millis(30);

/// After this nothing more belongs to a word at the end of the output: agents print as they think,
/// and `CODING OK` may still become `CODING OKAY`.
const DECIDED: Duration = Duration::from_millis(300);

/// How much of the stream of a program that draws is kept.
const DRAWN: usize = 1 << 20;

/// How an answer is read.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ResponseOptions {
    timeout: Duration,
    end: AnswerEnd,
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
#[derive(Debug, Clone)]
pub struct PaneIo {
    control: Control,
    folder: PathBuf,
    max_answer: usize,
}

/// A message that was submitted. Holds the pane's turn: until it is dropped or its answer is read,
/// no other sender, in this process or another, gets to the pane.
pub struct Sent {
    pane: PaneId,
    message: String,
    submitted: Submitted,
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
            reason: crate::Refusal::NoSuchPane,
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

/// The wait for one answer.
struct Reading<'a> {
    control: &'a Control,
    sent: &'a Sent,
    end: AnswerEnd,
    deadline: Instant,
    limit: usize,
    tokenizer: Tokenizer,
    transcript: Transcript,
    question: Question,
    detector: Detector,
    /// The program draws on the screen: then the screen is the answer, and the stream tells when to
    /// look at it.
    draws: bool,
    /// Line feeds since the last drawing.
    linear: usize,
    /// A marker in the stream that was followed by a screenful of lines.
    scrolled: Option<u64>,
    older: Sighting,
    /// The same before the last look.
    before: Sighting,
    checked_hits: usize,
    unchecked: bool,
}

/// How the wait ended.
struct Found {
    /// The marker's line in the transcript, where the program prints lines.
    line: Option<usize>,
}

impl<'a> Reading<'a> {
    fn new(
        control: &'a Control,
        sent: &'a Sent,
        marker: Marker,
        options: &ResponseOptions,
        limit: usize,
    ) -> Self {
        let submitted = &sent.submitted;
        let question = Question::new(marker, &sent.message);
        Self {
            control,
            sent,
            end: options.end,
            deadline: submitted.at + options.timeout,
            limit,
            tokenizer: Tokenizer::default(),
            transcript: Transcript::new(submitted.width),
            before: Sighting::default(),
            older: Sighting::of(&submitted.screen, &question),
            detector: Detector::new(&question, submitted.echoed),
            question,
            draws: false,
            linear: 0,
            scrolled: None,
            checked_hits: 0,
            unchecked: false,
        }
    }

    async fn run(mut self) -> Result<String> {
        loop {
            let found = self.wait().await?;
            if let Some(answer) = self.finish(found).await? {
                return Ok(answer);
            }
        }
    }

    /// Waits for the marker.
    async fn wait(&mut self) -> Result<Found> {
        let tap = &self.sent.submitted.tap;
        loop {
            let taken = tap.take();
            self.feed(&taken.bytes);
            if let Some(found) = self.look().await? {
                return Ok(found);
            }
            if taken.overflow || self.transcript.len() > self.limit {
                return Err(self.too_long());
            }
            if let Some(end) = taken.end {
                // What came between the look and the end is in the tap.
                let rest = tap.take();
                self.feed(&rest.bytes);
                self.detector.quiet();
                match self.look_at_last().await {
                    Some(found) => return Ok(found),
                    None => return Err(self.ended(end)),
                }
            }
            let now = Instant::now();
            if now >= self.deadline {
                return Err(self.timed_out());
            }
            // No timer runs but for the deadline, unless something hangs on what follows.
            let until = if self.draws && self.unchecked {
                taken.last + SETTLED
            } else if self.detector.is_undecided() {
                taken.last + DECIDED
            } else {
                self.deadline
            };
            if now >= until {
                if let Some(found) = self.on_quiet(now >= taken.last + DECIDED).await? {
                    return Ok(found);
                }
                continue;
            }
            tap.changed(until.min(self.deadline)).await;
        }
    }

    fn feed(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.unchecked = true;
        let height = self.sent.submitted.height;
        let Self {
            tokenizer,
            transcript,
            detector,
            draws,
            linear,
            scrolled,
            ..
        } = self;
        tokenizer.feed(bytes, |step| {
            detector.step(step, transcript.line_number());
            transcript.step(step);
            match step {
                Step::Draw => {
                    *draws = true;
                    *linear = 0;
                }
                Step::Feed => {
                    *linear += 1;
                    if *linear > height && scrolled.is_none() {
                        *scrolled = detector.hits().last().map(|hit| hit.at);
                    }
                }
                _ => {}
            }
        });
        // What was drawn is on the screen; a spinner that turns for an hour is not an answer.
        if self.draws && self.transcript.len() > DRAWN {
            self.transcript = Transcript::new(self.sent.submitted.width);
        }
    }

    /// Decides on what has come, without waiting.
    async fn look(&mut self) -> Result<Option<Found>> {
        if !self.draws {
            return Ok(self.detector.hits().first().map(|hit| Found {
                line: Some(hit.line),
            }));
        }
        if self.detector.hits().len() > self.checked_hits {
            return self.check_screen().await;
        }
        Ok(None)
    }

    async fn on_quiet(&mut self, decided: bool) -> Result<Option<Found>> {
        if decided {
            self.detector.quiet();
        }
        if !self.draws {
            return self.look().await;
        }
        if let Some(found) = self.check_screen().await? {
            return Ok(Some(found));
        }
        // A marker that ran off the screen within plain lines is new, unless the message is shown
        // below it: then it was an older one, printed again with the whole conversation.
        let echo = self.detector.last_echo();
        let new = self
            .scrolled
            .is_some_and(|at| echo.is_none_or(|echo| at > echo));
        Ok(new.then_some(Found { line: None }))
    }

    async fn check_screen(&mut self) -> Result<Option<Found>> {
        self.checked_hits = self.detector.hits().len();
        self.unchecked = false;
        let line = format!("capture-pane -p -J -t {}", self.sent.pane);
        let screen = match self.control.one("capture-pane", line).await {
            Ok(screen) => screen,
            // The tap tells what happened to the pane or the server.
            Err(Error::ServerGone { .. } | Error::TmuxFailed { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let sighting = Sighting::of(&screen, &self.question);
        self.before = self.older.clone();
        Ok(sighting
            .has_new(&mut self.older)
            .then_some(Found { line: None }))
    }

    async fn look_at_last(&mut self) -> Option<Found> {
        if self.draws
            && let Ok(Some(found)) = self.on_quiet(true).await
        {
            return Some(found);
        }
        // A program that ends restores the screen: its last lines are what the stream has.
        self.detector.hits().first().map(|hit| Found {
            line: Some(hit.line),
        })
    }

    /// Takes what belongs to the answer after the marker. None if it turns out not to be one.
    async fn finish(&mut self, found: Found) -> Result<Option<String>> {
        let tap = &self.sent.submitted.tap;
        match self.end {
            AnswerEnd::Quiet(quiet) => {
                tap.quiet(quiet, self.deadline.max(Instant::now() + quiet))
                    .await;
            }
            AnswerEnd::AtMarker => loop {
                // The rest of the marker's line.
                let taken = tap.take();
                self.feed(&taken.bytes);
                let complete = found
                    .line
                    .is_none_or(|line| self.transcript.line_number() > line);
                if complete || taken.end.is_some() || Instant::now() >= taken.last + SETTLED {
                    break;
                }
                tap.changed(taken.last + SETTLED).await;
            },
        }
        let taken = tap.take();
        self.feed(&taken.bytes);
        if taken.overflow {
            return Err(self.too_long());
        }
        let answer = match (found.line, self.draws) {
            (None, _) | (_, true) if taken.end.is_none() => self.screen_answer().await,
            _ => None,
        };
        let marker = self.question.marker();
        if let Some(answer) = &answer
            && answer::became_a_word(answer, marker)
        {
            self.older = std::mem::take(&mut self.before);
            return Ok(None);
        }
        let answer = answer.unwrap_or_else(|| self.transcript_answer());
        Ok(Some(match self.end {
            AnswerEnd::AtMarker => answer::until_marker(&answer, marker),
            AnswerEnd::Quiet(_) => answer,
        }))
    }

    /// What the pane shows of the answer, with what scrolled off since the submit.
    async fn screen_answer(&self) -> Option<String> {
        let pane = self.sent.pane;
        let size = format!("display-message -p -t {pane} \"#{{history_size}}\"");
        let now: usize = self
            .control
            .one("display-message", size)
            .await
            .ok()?
            .trim()
            .parse()
            .ok()?;
        let scrolled = now.saturating_sub(self.sent.submitted.history);
        let line = format!("capture-pane -p -J -S -{scrolled} -t {pane}");
        let body = self
            .control
            .run(Request::new("capture-pane", line))
            .await
            .ok()?
            .pop()?;
        let screen: String = String::from_utf8_lossy(&body)
            .lines()
            .map(|line| format!("{}\n", line.trim_end()))
            .collect();
        let submitted = &self.sent.submitted;
        Some(answer::from_screen(
            &screen,
            &submitted.screen,
            &self.sent.message,
            self.question.marker(),
        ))
    }

    fn transcript_answer(&self) -> String {
        answer::from_transcript(&self.transcript.text(), &self.sent.message)
    }

    fn partial(&self) -> PartialAnswer {
        PartialAnswer::new(self.transcript_answer())
    }

    fn ended(&self, end: End) -> Error {
        match end {
            End::Exited(exit) => Error::PaneDied {
                pane: self.sent.pane,
                exit,
                partial: self.partial(),
            },
            End::ServerGone => self.control.gone(self.partial()),
        }
    }

    fn timed_out(&self) -> Error {
        Error::ResponseTimeout {
            marker: self.question.marker().as_str().to_owned(),
            pane: self.sent.pane,
            partial: self.partial(),
        }
    }

    fn too_long(&self) -> Error {
        Error::AnswerTooLong {
            pane: self.sent.pane,
            limit: self.limit,
            partial: self.partial(),
        }
    }
}
