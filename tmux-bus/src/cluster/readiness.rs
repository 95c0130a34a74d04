//! Whether a started agent is ready for messages.

use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::agent_config::AgentConfig;
use super::agent_monitor::{AgentMonitor, Observation, until};
use super::answer_wait::AnswerWait;
use super::owed_answer::{OwedAnswer, OwedRecord};
use crate::answer::marker::Marker;
use crate::log::Message;
use crate::pane::typist::Typist;
use crate::pane::{ResponseOptions, SendOptions};
use crate::state::AgentState;
use crate::timing::DIALOG_SETTLE;
use crate::tmux::Server;
use crate::tmux::launch::shell_word;
use crate::{Error, PartialAnswer};

/// Waits until one agent is ready.
pub(super) struct Readiness<'a> {
    pub(super) server: &'a Server,
    pub(super) monitor: &'a AgentMonitor,
    pub(super) agent: &'a AgentConfig,
    pub(super) question: Option<&'a str>,
    /// How long a person may take to answer the dialogs of the agent.
    pub(super) dialogs: Option<Duration>,
}

/// Why an agent is not ready.
pub(super) struct Unready {
    pub(super) advice: String,
    pub(super) source: Error,
}

impl From<Error> for Unready {
    fn from(source: Error) -> Self {
        Self {
            advice: source.to_string(),
            source,
        }
    }
}

impl Readiness<'_> {
    /// Waits until the agent is idle and, if there is a question, has answered it.
    pub(super) async fn wait(&self) -> Result<(), Unready> {
        let limit = until(self.agent.timeout);
        let Some(question) = self.question else {
            return self.wait_for_idle(limit, self.agent.timeout).await;
        };
        if self.monitor.definition().is_plain() {
            // A program may have a prompt that the heuristic does not know: the answer decides.
            let half = self.agent.timeout / 2;
            match self.wait_for_idle(until(half), half).await {
                Err(unready) if !unready.source.is_timeout() => return Err(unready),
                _ => {}
            }
        } else {
            self.wait_for_idle(limit, self.agent.timeout).await?;
            // Never into a dialog, and never behind the draft of a person.
            let admitted = self
                .monitor
                .wait_until(limit, Observation::admits_a_message);
            if let Err(seen) = admitted.await? {
                return Err(self.unready(&seen, self.agent.timeout));
            }
        }
        let io = self.server.pane_io();
        let pane = self.monitor.pane();
        let lock = io.lock(pane, question).await?;
        let typist = (!self.monitor.definition().is_plain()).then(|| Typist {
            monitor: self.monitor.clone(),
            limit,
            waits_for_person: false,
            is_command: false,
        });
        let marker = Marker::new(&self.agent.marker)?;
        let launch = io.panes().launch(pane).unwrap_or_default();
        let message = Message::new("user", &self.agent.name, question);
        let record = OwedRecord::new(&message, question, launch, self.agent.timeout);
        let owed = OwedAnswer::create(io.folder(), pane, record)?;
        let options = SendOptions::default();
        let sent = io.send_locked(pane, question, &options, typist, lock).await;
        let sent = sent.inspect_err(|error| {
            if !matches!(error, Error::SubmitUnknown { .. }) {
                owed.settle();
            }
        })?;
        // In a task of its own: a program that answers after the limit, or after a caller that gave up, must not
        // answer another message with it.
        let (reply, answer) = oneshot::channel();
        let monitor = self.monitor.clone();
        tokio::spawn(async move {
            let left = limit.saturating_duration_since(Instant::now());
            let options = ResponseOptions::default().timeout(left);
            let reader = io.reader(&sent, marker, &options).observed_by(&monitor);
            let mut wait = AnswerWait::Marker(Box::new(reader));
            let read = wait.run(limit).await;
            let has_ended = wait.has_ended(&read);
            if has_ended {
                owed.settle();
            }
            // The caller may have given up.
            let _ = reply.send(read);
            if !has_ended {
                sent.release();
                wait.late_answer(&owed).await;
            }
        });
        answer.await.map_err(|_| Error::ShuttingDown)??;
        Ok(())
    }

    /// An agent that got a message counts as ready: a waiting sender can send before the agent is seen
    /// idle, and a working agent is not.
    async fn wait_for_idle(&self, mut limit: Instant, after: Duration) -> Result<(), Unready> {
        let pane = self.monitor.pane();
        let panes = self.server.control().panes();
        let is_ready =
            |seen: &Observation| seen.state == AgentState::Idle || panes.got_message(pane);
        let mut answered_by = None;
        loop {
            let is_news = |seen: &Observation| is_ready(seen) || seen.state.needs_a_person();
            let seen = match self.monitor.wait_until(limit, is_news).await? {
                Ok(seen) if is_ready(&seen) => return Ok(()),
                Ok(seen) => seen,
                // A sender of another process is not in our table, but it holds the lock.
                Err(seen)
                    if seen.exit.is_none() && panes.lock(pane).is_some_and(|l| l.is_held()) =>
                {
                    return Ok(());
                }
                Err(seen) => return Err(self.unready(&seen, after)),
            };
            // The person is told at once, not after the timeout.
            let advice = self.advice(&seen);
            tracing::warn!(agent = %self.agent.name, state = %seen.state, "{advice}");
            let answered = match self.dialogs {
                Some(dialogs) => *answered_by.get_or_insert_with(|| until(dialogs)),
                // A screen that is being drawn can look like a dialog for a moment.
                None => (Instant::now() + DIALOG_SETTLE).min(limit),
            };
            let is_other = |next: &Observation| next.state != seen.state;
            if let Err(seen) = self.monitor.wait_until(answered, is_other).await? {
                return Err(self.unready(&seen, after));
            }
            if self.dialogs.is_some() {
                limit = until(self.agent.timeout);
            }
        }
    }

    fn unready(&self, seen: &Observation, after: Duration) -> Unready {
        let screen = PartialAnswer::new(seen.screen.text());
        let pane = self.monitor.pane();
        let source = match seen.exit {
            Some(exit) => Error::PaneDied {
                pane,
                exit,
                partial: screen,
            },
            None => Error::StateTimeout {
                pane,
                wanted: AgentState::Idle,
                found: seen.state.clone(),
                after,
                screen,
            },
        };
        Unready {
            advice: self.advice(seen),
            source,
        }
    }

    fn advice(&self, seen: &Observation) -> String {
        advice(seen, self.server)
    }
}

/// What an agent shows, and what a person can do about it.
pub(super) fn advice(seen: &Observation, server: &Server) -> String {
    let shown = match (&seen.state, &seen.say) {
        (AgentState::Exited, say) => {
            let ended = format!("its program has ended ({})", seen.evidence.rule);
            match say {
                Some(say) => format!("{ended}. {say}"),
                None => ended,
            }
        }
        (_, Some(say)) => say.clone(),
        (AgentState::WaitingForApproval, _) => "it asks for approval".to_owned(),
        (AgentState::Unknown, _) => "no rule knows what it shows".to_owned(),
        (state, _) => format!("it is {state}"),
    };
    format!(
        "{} (attach with: {})",
        shown.trim_end_matches('.'),
        attach_command(server.socket(), server.session())
    )
}

/// The command line that shows the agents to a person.
pub(crate) fn attach_command(socket: &Path, session: &str) -> String {
    format!("tmux -S {} attach -t {session}", shell_word(socket))
}
