//! One message to an agent, and its answer.
//!
//! # Theory
//!
//! 1. Wait for the lock of the pane.
//! 2. Wait until the agent owes no answer and may be typed to.
//! 3. Record that the agent owes an answer, see `owed_answer.rs`.
//! 4. Type and submit the message, and log it.
//! 5. Wait for the answer: by the hooks of the agent, or by the marker in its output.
//! 6. Settle the record, log the answer, give the lock back.
//!
//! Steps 3 to 6 run in a task of their own: a caller that gives up must not leave half a message in an input line, and
//! the answer is logged whether or not a caller waits for it.
//!
//! - **Timeout**, and every other error that does not prove the end of the turn. The caller gets the error and the pane is
//!   unlocked, but the record stays open. The task waits on for the late answer and logs it. The next sender, of any
//!   process, waits in step 2.
//! - **Invariant.** An answer that a hook reports is returned only if session and turn are those of this message.
//! - **Race.** The program is restarted between steps 3 and 4. The message then goes to the new program, which has another
//!   folder of events. The folder is chosen after the submit; all events in a new folder are new.

use std::error::Error as _;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::answer::Answer;
use super::answer_wait::{AnswerText, AnswerWait, HookWait};
use super::cluster_manager::ClusterManager;
use super::owed_answer::{OwedAnswer, OwedRecord};
use crate::answer::marker::Marker;
use crate::control::tap::deadline;
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::hook_rules::HookRules;
use crate::hook::{EventFolder, HookTurn, LaunchFolder};
use crate::inbox::Delivery;
use crate::log::{Message, MessageType};
use crate::pane::pane_lock::PaneLockGuard;
use crate::pane::typist::Typist;
use crate::pane::{PaneId, ResponseOptions, SendOptions};
use crate::timing::FIRST_EVENT_WAIT;
use crate::{Error, PartialAnswer};

/// One message to an agent.
#[derive(Debug)]
pub(crate) struct Ask {
    pub(super) cluster: ClusterManager,
    pub(super) pane: PaneId,
    /// As it is logged.
    pub(super) message: Message,
    /// As it is typed.
    pub(super) text: String,
    pub(super) marker: Marker,
    pub(super) wants_answer: bool,
    pub(super) response: ResponseOptions,
    pub(super) send: SendOptions,
    pub(super) without_marker: bool,
    /// Waits while the agent asks a person something.
    pub(super) waits_for_person: bool,
    pub(super) is_command: bool,
    /// For a message of an inbox.
    pub(crate) delivery: Option<Delivery>,
}

impl Ask {
    /// Sends the message and returns the answer; an empty one if none is wanted.
    pub(crate) async fn run(self) -> Result<Answer, Error> {
        self.start().await?.answer().await
    }

    /// Steps 1 and 2 of the theory, and starts the task of the others.
    pub(crate) async fn start(self) -> Result<StartedAsk, Error> {
        let (pane, io) = (self.pane, self.cluster.pane_io());
        let lock = io.lock(pane, &self.text).await?;
        let limit = deadline(Instant::now(), self.response.timeout);
        let typist = self.typist(limit)?;
        if let Some(typist) = &typist {
            // An agent that asks a person will not settle what it owes.
            io.refuse_question(typist).await?;
        }
        self.wait_until_settled(limit).await?;
        match &typist {
            Some(typist) => {
                // The first event of a new agent can take a while: it is waited for before the agent is seen idle.
                drop(self.hook(&self.launch()).await);
                io.admit(typist).await?;
            }
            None => self.wait_while_in_copy_mode(limit).await?,
        }
        let (reply, answer) = oneshot::channel();
        let task =
            tokio::spawn(async move { self.send_and_read(typist, lock, Reply(Some(reply))).await });
        Ok(StartedAsk { pane, answer, task })
    }

    /// How the message is typed, if the screen of the agent is known.
    fn typist(&self, limit: Instant) -> Result<Option<Typist>, Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_known = !monitor.definition().is_plain();
        Ok(is_known.then(|| Typist {
            monitor,
            limit,
            waits_for_person: self.waits_for_person,
            is_command: self.is_command,
        }))
    }

    /// Steps 3 to 6 of the theory.
    async fn send_and_read(
        mut self,
        typist: Option<Typist>,
        lock: PaneLockGuard,
        mut reply: Reply,
    ) {
        let delivery = self.delivery.take();
        let io = self.cluster.pane_io();
        let launch = self.launch();
        let bound = match self.wants_answer {
            true => self.response.timeout,
            // A notice has no time limit of its own, and the agent need not answer it.
            false => self.response.timeout / 10,
        };
        let mut record = OwedRecord::new(&self.message, &self.text, launch.clone(), bound);
        record.wants_answer = self.wants_answer;
        let mut hook = self.hook(&launch).await;
        let prepared = match &mut hook {
            Some(hook) => hook.events.skip_existing(),
            None => Ok(()),
        };
        let owed = prepared.and_then(|()| OwedAnswer::create(io.folder(), self.pane, record));
        let mut owed = match owed {
            Ok(owed) => owed,
            Err(error) => return reply.send(Err(error)),
        };
        if let Some(delivery) = &delivery
            && let Err(error) = delivery.begin().await
        {
            owed.settle();
            return reply.send(Err(error));
        }
        let sent = io
            .send_locked(self.pane, &self.text, &self.send, typist, lock)
            .await;
        if let Some(delivery) = delivery
            && let Err(error) = delivery.end(sent.as_ref().map(drop)).await
        {
            tracing::error!(%error, "cannot record a delivery, which is uncertain now");
            reply.send(Err(error));
        }
        let sent = match sent {
            Ok(sent) => sent,
            Err(error) => {
                if !matches!(error, Error::SubmitUnknown { .. }) {
                    owed.settle();
                }
                if !error.is_not_sent() {
                    let id = self.log();
                    self.log_reply(MessageType::Error, error.to_string(), id.as_deref());
                }
                return reply.send(Err(error));
            }
        };
        let id = self.log();
        let submitted_to = self.launch();
        if submitted_to != launch {
            hook = self.hook(&submitted_to).await;
            owed.set_launch(submitted_to);
        }
        if !self.wants_answer {
            reply.send(Ok(Answer::new(String::new(), None, &self.marker)));
            if hook.is_some() {
                // Its answer carries the ids of its turn.
                owed.settle();
                return;
            }
        }
        let since = owed.record.since();
        let mut wait = match hook {
            Some(hook) => AnswerWait::Hook(Box::new(HookWait {
                ask: &self,
                sent: &sent,
                turn: HookTurn::new(hook.rules, self.text.clone()),
                events: hook.events,
                is_silent: hook.is_silent,
                since,
            })),
            None => {
                let reader = io.reader(&sent, self.marker.clone(), &self.response);
                AnswerWait::Marker(Box::new(
                    match self.cluster.monitor(&self.message.to_agent) {
                        Ok(monitor) => reader.observed_by(&monitor),
                        Err(_) => reader,
                    },
                ))
            }
        };
        if self.wants_answer {
            let limit = deadline(sent.submitted.at, self.response.timeout);
            let read = wait.run(limit).await;
            let has_ended = wait.has_ended(&read);
            if has_ended {
                owed.settle();
            }
            let answer = self.finish(read, id.as_deref());
            if !has_ended {
                owed.add_message(id);
            }
            reply.send(answer);
            if has_ended {
                return;
            }
        } else {
            owed.add_message(id);
        }
        sent.release();
        if let Some(text) = wait.late_answer(&owed).await {
            self.log_late(&owed, &text);
        }
    }

    /// The answer for the caller, after it is logged.
    fn finish(&self, read: Result<AnswerText, Error>, id: Option<&str>) -> Result<Answer, Error> {
        let (text, altered) = match read {
            Ok(read) => read,
            Err(error) => {
                self.log_reply(MessageType::Error, error.to_string(), id);
                return Err(error);
            }
        };
        self.log_reply(MessageType::Result, text.clone(), id);
        let to = &self.message.to_agent;
        let mut answer = Answer::new(text, altered, &self.marker);
        if !answer.has_marker {
            tracing::warn!(agent = %to, marker = self.marker.as_str(), "an answer without its marker");
        }
        if answer.altered.is_some() {
            tracing::warn!(agent = %to, "the agent has changed the white space of a message");
        }
        if self.without_marker {
            answer.remove_marker(&self.marker);
        }
        Ok(answer)
    }

    fn log(&self) -> Option<String> {
        let kind = match self.wants_answer {
            true => MessageType::Task,
            false => MessageType::Info,
        };
        // The message is submitted: its answer matters more than its log.
        let logger = self.cluster.logger();
        logger.log(&self.message, kind).inspect_err(report).ok()
    }

    fn log_reply(&self, kind: MessageType, content: String, id: Option<&str>) {
        let reply = Message::new(&self.message.to_agent, &self.message.from_agent, content);
        let logger = self.cluster.logger();
        let logged = match id {
            Some(id) => logger.log_reply(&reply, kind, id),
            None => logger.log(&reply, kind),
        };
        let _ = logged.inspect_err(report);
    }

    /// Only for the process that has settled the record.
    pub(super) fn log_late(&self, owed: &OwedAnswer, text: &str) {
        let record = &owed.record;
        let reply = Message::new(&record.to, &record.from, text);
        let (logger, kind) = (self.cluster.logger(), MessageType::from("late"));
        let logged = match &record.message {
            Some(id) => logger.log_reply(&reply, kind, id),
            None => logger.log(&reply, kind),
        };
        let _ = logged.inspect_err(report);
    }

    /// The id of the launch that runs in the pane.
    pub(super) fn launch(&self) -> String {
        let panes = self.cluster.pane_io().panes().launch(self.pane);
        panes.unwrap_or_default()
    }

    /// The hooks of a launch; `None` if the agent has none, or was started without them, or they do not run.
    pub(super) async fn hook(&self, launch: &str) -> Option<LaunchHooks<'_>> {
        let rules = self.definition()?.hook.as_ref()?;
        let io = self.cluster.pane_io();
        let folder = LaunchFolder::new(io.folder(), launch);
        if !folder.events().is_dir() {
            return None;
        }
        let events = EventFolder::new(folder.events(), rules.event.clone());
        // An agent that reports its start does so about when it shows its input line.
        if !rules.ready.is_empty() && events.is_empty() {
            // A reader of its own: the events that end this wait can be those of the message.
            let mut reader = EventFolder::new(folder.events(), rules.event.clone());
            let first = tokio::time::timeout(FIRST_EVENT_WAIT, reader.next());
            if !folder.is_silent() && first.await.is_err() {
                folder.mark_silent();
                tracing::warn!(agent = %self.message.to_agent, "its hooks do not run");
            }
        }
        let is_silent = events.is_empty() && folder.is_silent();
        if is_silent && rules.transcript.is_none() {
            return None;
        }
        Some(LaunchHooks {
            rules,
            events,
            is_silent,
        })
    }

    pub(super) fn definition(&self) -> Option<&AgentDefinition> {
        let definition = self.cluster.definition(&self.message.to_agent);
        definition.map(AsRef::as_ref)
    }

    pub(super) async fn no_answer(&self) -> Error {
        Error::NoAnswer {
            pane: self.pane,
            partial: self.screen().await,
        }
    }

    pub(super) async fn timed_out(&self) -> Error {
        Error::ResponseTimeout {
            marker: self.marker.as_str().to_owned(),
            pane: self.pane,
            after: self.response.timeout,
            partial: self.screen().await,
        }
    }

    /// The text on the screen.
    pub(super) async fn screen(&self) -> PartialAnswer {
        let screen = self.cluster.pane_io().screen(self.pane).await;
        PartialAnswer::new(screen.unwrap_or_default().trim_end().to_owned())
    }
}

/// A message whose task runs.
pub(crate) struct StartedAsk {
    pane: PaneId,
    answer: oneshot::Receiver<Result<Answer, Error>>,
    task: JoinHandle<()>,
}

impl StartedAsk {
    /// The answer, or the error of the wait for it. Called once.
    pub(crate) async fn answer(&mut self) -> Result<Answer, Error> {
        // The runtime is shutting down, or the task panicked.
        let unfinished = |_| Error::SubmitUnknown {
            pane: self.pane,
            source: Box::new(Error::ShuttingDown),
        };
        (&mut self.answer).await.map_err(unfinished)?
    }

    /// Waits until no late answer will be logged any more.
    pub(crate) async fn end(self) {
        let _ = self.task.await;
    }
}

/// The hooks of one launch of an agent.
pub(super) struct LaunchHooks<'a> {
    pub(super) rules: &'a HookRules,
    pub(super) events: EventFolder,
    /// No event will come: only the screen and the transcript tell.
    pub(super) is_silent: bool,
}

/// Gives the result to the caller, once.
struct Reply(Option<oneshot::Sender<Result<Answer, Error>>>);

impl Reply {
    fn send(&mut self, result: Result<Answer, Error>) {
        if let Some(reply) = self.0.take() {
            // The caller may have given up.
            let _ = reply.send(result);
        }
    }
}

fn report(error: &Error) {
    tracing::error!(%error, cause = ?error.source(), "cannot log a message");
}
