//! The state of a run: usage, failure, outcome, open tools.
//!
//! # Theory
//!
//! All events of both streams pass through here before they are published. The tracker completes
//! them (the half of the usage that the agent does not report, the class of a failure), and keeps
//! what the exit report needs, so that a stopped or crashed run reports what was known.
//!
//! **The failure of a run.** A failure is *pending* from its event until the agent itself makes
//! progress (text, a thought, a tool). A failure of a sub-agent is an event, but not pending: its
//! parent continues. At the end:
//!
//! | the agent has said | the process | failure of the report |
//! |---|---|---|
//! | finished, failure | any | the one it gives if it has a class, or else the pending one |
//! | finished, success | code 0, or stopped | none |
//! | nothing | stopped | the pending one, if there is one |
//! | nothing | code 0 | the pending one, if it was on standard output |
//! | success or nothing | another code, or a signal | the pending one, or else the last line of standard error |

use std::borrow::Cow;

use super::exit_report::StoppedBy;
use super::tool_spans::ToolSpans;
use crate::output::{MAX_MESSAGE, cut_at};
use crate::process::ChildExit;
use crate::telemetry::{CONVERSATION_ID, ERROR_TYPE, INPUT_TOKENS, OUTPUT_TOKENS, RESPONSE_MODEL};
use crate::{
    AgentEvent, AgentEventKind, Failure, FailureClassifier, FailureKind, Outcome, SessionId, Usage,
    UsageTotals,
};

pub(crate) struct RunTracker {
    /// The total of the session before this run, if it is known.
    before: Option<Usage>,
    usage: UsageTotals,
    pending: Option<Failure>,
    /// Whether `pending` was read from standard error.
    is_from_stderr: bool,
    finished: Option<(Outcome, Option<Failure>)>,
    model: Option<String>,
    /// The model has answered the agent itself.
    has_answered: bool,
    classifier: Option<Box<dyn FailureClassifier>>,
    tools: ToolSpans,
}

impl RunTracker {
    pub(crate) fn new(
        before: Option<Usage>,
        classifier: Option<Box<dyn FailureClassifier>>,
        execution_span: tracing::Span,
    ) -> Self {
        Self {
            before,
            usage: UsageTotals::default(),
            pending: None,
            is_from_stderr: false,
            finished: None,
            model: None,
            has_answered: false,
            classifier,
            tools: ToolSpans::new(execution_span),
        }
    }

    pub(crate) fn usage(&self) -> UsageTotals {
        self.usage
    }

    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered
    }

    pub(crate) fn has_classifier(&self) -> bool {
        self.classifier.is_some()
    }

    /// Completes the events and remembers what they say.
    pub(crate) fn observe(&mut self, events: &mut [AgentEvent]) {
        for event in events {
            self.tools.observe(&event.kind);
            let failure = match &mut event.kind {
                AgentEventKind::Usage(totals) => {
                    totals.complete(self.before.as_ref());
                    // An agent can report one half during the run, the other one at its end.
                    totals.run = totals.run.or(&self.usage.run);
                    totals.session = totals.session.or(&self.usage.session);
                    self.usage = *totals;
                    continue;
                }
                AgentEventKind::SessionStarted { model, .. } => {
                    self.model = model.clone();
                    continue;
                }
                AgentEventKind::Retry { failure, .. } | AgentEventKind::Error(failure) => failure,
                AgentEventKind::Finished {
                    outcome, failure, ..
                } => {
                    if let Some(failure) = failure {
                        classify(self.classifier.as_deref(), failure);
                    }
                    self.finished = Some((*outcome, failure.clone()));
                    continue;
                }
                AgentEventKind::Text { .. }
                | AgentEventKind::Thinking { .. }
                | AgentEventKind::ToolCall { .. }
                | AgentEventKind::ToolResult { .. } => {
                    if event.parent.is_none() {
                        self.pending = None;
                        self.has_answered = true;
                    }
                    continue;
                }
                AgentEventKind::RateLimit(_) => continue,
            };
            let retries = classify(self.classifier.as_deref(), failure);
            if event.parent.is_none() {
                self.pending = Some(failure.clone());
                self.is_from_stderr = false;
            }
            if retries && let AgentEventKind::Error(failure) = &event.kind {
                event.kind = retry(failure.clone());
            }
        }
    }

    /// Completes the class of a failure that is not part of an event.
    pub(crate) fn complete_failure(&self, failure: &mut Failure) {
        classify(self.classifier.as_deref(), failure);
    }

    /// The event of a line of standard error, if it tells of a known failure.
    pub(crate) fn observe_stderr(&mut self, line: &str) -> Option<AgentEvent> {
        let classifier = self.classifier.as_deref()?;
        let line = without_colours(&line[..cut_at(line, MAX_MESSAGE)]);
        let found = classifier.classify(&line)?;
        let failure = Failure::new(found.kind, line);
        self.pending = Some(failure.clone());
        self.is_from_stderr = true;
        Some(match found.retries {
            true => retry(failure).into(),
            false => AgentEventKind::Error(failure).into(),
        })
    }

    /// The run has ended: its spans get their last attributes and end.
    pub(crate) fn close_spans(&mut self, session_id: &SessionId, failure: Option<&Failure>) {
        let span = self.tools.execution();
        span.record(CONVERSATION_ID, session_id.as_str());
        span.record(RESPONSE_MODEL, self.model.as_deref());
        span.record(INPUT_TOKENS, self.usage.run.input_tokens);
        span.record(OUTPUT_TOKENS, self.usage.run.output_tokens);
        span.record(ERROR_TYPE, failure.map(|failure| failure.kind.name()));
        self.tools.close();
    }

    /// The failure of the exit report. See the table above.
    pub(crate) fn failure_at_exit(
        &self,
        exit: &ChildExit,
        stopped_by: Option<StoppedBy>,
        stderr_tail: &[String],
    ) -> Option<Failure> {
        let ended_well = stopped_by.is_some() || exit.code == Some(0);
        match &self.finished {
            Some((Outcome::Failure, reason)) => {
                // Claude that is stopped while it retries complains about the stop only.
                let has_class = |failure: &&Failure| failure.kind != FailureKind::Agent;
                let given = reason.as_ref().filter(has_class);
                let known = given.or(self.pending.as_ref()).or(reason.as_ref());
                Some(
                    known
                        .cloned()
                        .unwrap_or_else(|| last_words(exit, stderr_tail)),
                )
            }
            Some((Outcome::Success, _)) if ended_well => None,
            // The two streams have no common order: the agent may have recovered.
            None if stopped_by.is_none() && ended_well && self.is_from_stderr => None,
            None if ended_well => self.pending.clone(),
            _ => {
                let pending = self.pending.clone();
                Some(pending.unwrap_or_else(|| last_words(exit, stderr_tail)))
            }
        }
    }
}

/// Asks the classifier for the class of a failure that the parser does not know; `true` if the
/// text says that the agent tries again.
fn classify(classifier: Option<&dyn FailureClassifier>, failure: &mut Failure) -> bool {
    if failure.kind != FailureKind::Agent {
        return false;
    }
    let text = &failure.message[..cut_at(&failure.message, MAX_MESSAGE)];
    let Some(found) = classifier.and_then(|classifier| classifier.classify(text)) else {
        return false;
    };
    failure.kind = found.kind;
    found.retries
}

/// Some agents print colours even if standard error is not a terminal. Removes control sequences
/// of the form `ESC [ … letter`.
fn without_colours(line: &str) -> Cow<'_, str> {
    if !line.contains('\u{1b}') {
        return line.into();
    }
    let mut pieces = line.split("\u{1b}[");
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find(|c: char| c.is_ascii_alphabetic());
        text.push_str(end.map_or("", |end| &piece[end + 1..]));
    }
    text.into()
}

fn retry(failure: Failure) -> AgentEventKind {
    AgentEventKind::Retry {
        failure,
        attempt: None,
        max_attempts: None,
        delay: None,
    }
}

fn last_words(exit: &ChildExit, stderr_tail: &[String]) -> Failure {
    let line = stderr_tail
        .iter()
        .rev()
        .find(|line| !line.trim().is_empty());
    let message = match (line, exit.code, exit.signal) {
        (Some(line), _, _) => line.clone(),
        (None, Some(code), _) => format!("exit code {code}"),
        (None, None, Some(signal)) => format!("signal {signal}"),
        (None, None, None) => "unknown end".to_owned(),
    };
    Failure::new(FailureKind::Agent, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The failure of a stopped run that has reported these events.
    fn failure_of(events: impl IntoIterator<Item = AgentEventKind>) -> Option<FailureKind> {
        let mut tracker = RunTracker::new(None, None, tracing::Span::none());
        let mut events: Vec<_> = events.into_iter().map(AgentEvent::from).collect();
        tracker.observe(&mut events);
        let exit = ChildExit::default();
        let failure = tracker.failure_at_exit(&exit, Some(StoppedBy::TimeLimit), &[]);
        failure.map(|failure| failure.kind)
    }

    fn finished(kind: FailureKind) -> AgentEventKind {
        AgentEventKind::Finished {
            outcome: Outcome::Failure,
            text: None,
            failure: Some(Failure::new(kind, "the end")),
        }
    }

    #[test]
    fn a_run_that_was_stopped_while_it_retried_has_the_class_of_the_retry() {
        let retrying = retry(Failure::new(FailureKind::Authentication, "401"));
        let progress = AgentEventKind::Text {
            text: "on we go".to_owned(),
            delta: false,
        };
        let stopped = finished(FailureKind::Agent);
        let class = failure_of([retrying.clone(), stopped.clone()]);
        assert_eq!(class, Some(FailureKind::Authentication));
        let class = failure_of([retrying.clone(), finished(FailureKind::Overloaded)]);
        assert_eq!(class, Some(FailureKind::Overloaded));
        let class = failure_of([retrying, progress, stopped]);
        assert_eq!(class, Some(FailureKind::Agent));
    }
}
