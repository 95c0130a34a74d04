//! The wait for one answer.

use std::time::Duration;

use tokio::time::Instant;

use crate::{
    answer,
    control::{Control, Request},
    detector::{Detector, Hit, Question, Sighting},
    error::{Error, PartialAnswer, Result},
    marker::Marker,
    pane_io::{AnswerEnd, ResponseOptions, Sent},
    tap::{End, Taken, deadline},
    transcript::Transcript,
    vt::{Step, Tokenizer},
};

/// After this a screen that is being drawn counts as drawn, and a line as printed.
const SETTLED: Duration = Duration::from_millis(30);

/// After this nothing more belongs to a word at the end of the output: agents print as they think,
/// and `CODING OK` may still become `CODING OKAY`.
const DECIDED: Duration = Duration::from_millis(300);

/// How much of the stream of a program that draws is kept.
const DRAWN: usize = 1 << 20;

/// The wait for one answer.
pub(crate) struct Reading<'a> {
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
    /// The markers that the screen showed already. Looked for only if the program draws.
    older: Option<Sighting>,
    /// The same before the last look.
    before: Sighting,
    checked_hits: usize,
    unchecked: bool,
    /// How many characters may have been printed before the question was there.
    early: u64,
}

/// How the wait ended.
struct Found {
    /// The marker's line in the transcript, where the program prints lines.
    line: Option<usize>,
}

impl<'a> Reading<'a> {
    pub(crate) fn new(
        control: &'a Control,
        sent: &'a Sent,
        marker: Marker,
        options: &ResponseOptions,
        limit: usize,
    ) -> Self {
        let submitted = &sent.submitted;
        let question = Question::new(marker, &submitted.folded);
        Self {
            control,
            sent,
            end: options.end,
            deadline: deadline(submitted.at, options.timeout),
            limit,
            tokenizer: Tokenizer::default(),
            transcript: Transcript::new(submitted.width),
            before: Sighting::default(),
            older: None,
            detector: Detector::new(&question, submitted.echoed),
            question,
            draws: false,
            linear: 0,
            scrolled: None,
            checked_hits: 0,
            unchecked: false,
            early: 0,
        }
    }

    /// Waits for the answer and returns it.
    pub(crate) async fn run(mut self) -> Result<String> {
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
            self.feed(&taken);
            if let Some(found) = self.look().await? {
                return Ok(found);
            }
            if taken.overflow || self.transcript.len() > self.limit {
                return Err(self.too_long());
            }
            if let Some(end) = taken.end {
                // What came between the look and the end is in the tap.
                let rest = tap.take();
                self.feed(&rest);
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

    fn feed(&mut self, taken: &Taken) {
        let (early, rest) = taken.bytes.split_at(taken.early);
        self.feed_bytes(early);
        if !early.is_empty() {
            self.early = self.detector.count();
        }
        self.feed_bytes(rest);
    }

    fn feed_bytes(&mut self, bytes: &[u8]) {
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
            return Ok(self.first_hit());
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
        let question = &self.question;
        let first = || Sighting::of(&self.sent.submitted.screen, question);
        let older = self.older.get_or_insert_with(first);
        self.before = older.clone();
        Ok(sighting.has_new(older).then_some(Found { line: None }))
    }

    async fn look_at_last(&mut self) -> Option<Found> {
        if self.draws
            && let Ok(Some(found)) = self.on_quiet(true).await
        {
            return Some(found);
        }
        // A program that ends restores the screen: its last lines are what the stream has.
        self.first_hit()
    }

    /// The first marker that was printed after the question. Among what may be older, the terminal's
    /// echo of the question tells, if there is one.
    fn first_hit(&self) -> Option<Found> {
        let echoed = self.sent.submitted.echoed;
        let after = self.detector.first_echo();
        let counts =
            |hit: &&Hit| hit.at > self.early || !echoed || after.is_some_and(|echo| echo < hit.at);
        let hit = self.detector.hits().iter().find(counts)?;
        Some(Found {
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
                self.feed(&taken);
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
        self.feed(&taken);
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
            self.older = Some(std::mem::take(&mut self.before));
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
            &submitted.folded,
            self.question.marker(),
        ))
    }

    fn transcript_answer(&self) -> String {
        let submitted = &self.sent.submitted;
        answer::from_transcript(&self.transcript.text(), &submitted.folded, submitted.echoed)
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
