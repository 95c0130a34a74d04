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
//! - **Timeout.** The caller gets the error and the pane is unlocked, but the record stays open. The task waits on for the
//!   late answer and logs it. The next sender, of any process, waits in step 2.
//! - **Invariant.** An answer that a hook reports is returned only if session and turn are those of this message.
//! - **Race.** The program is restarted between steps 3 and 4. The message then goes to the new program, which has another
//!   folder of events. The folder is chosen after the submit; all events in a new folder are new.

use std::error::Error as _;
use std::pin::pin;
use std::time::SystemTime;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use super::agent_monitor::Observation;
use super::answer::Answer;
use super::cluster_manager::ClusterManager;
use super::owed_answer::{OwedAnswer, OwedRecord};
use crate::answer::answer_reader::AnswerReader;
use crate::answer::marker::Marker;
use crate::control::tap::{OutputEnd, deadline};
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::hook_rules::{HookRules, TranscriptFormat};
use crate::hook::{self, EventFolder, HookTurn, LaunchFolder, TurnEnd};
use crate::log::{FileWatch, Message, MessageType};
use crate::pane::pane_lock::PaneLockGuard;
use crate::pane::typist::Typist;
use crate::pane::{PaneId, PaneIo, ResponseOptions, SendOptions, Sent};
use crate::state::AgentState;
use crate::timing::{HOOK_GRACE, PROMPT_QUIET, SPINNER_LIMIT, TRANSCRIPT_GRACE};
use crate::{Error, PartialAnswer, Refusal};

/// One message to an agent.
#[derive(Debug)]
pub(super) struct Ask {
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
}

impl Ask {
    /// Sends the message and returns the answer; an empty one if none is wanted.
    pub(super) async fn run(self) -> Result<Answer, Error> {
        let (pane, io) = (self.pane, self.cluster.pane_io());
        let lock = io.lock(pane, &self.text).await?;
        let limit = deadline(Instant::now(), self.response.timeout);
        self.wait_until_settled(limit).await?;
        let typist = self.typist(limit)?;
        if let Some(typist) = &typist {
            io.admit(typist).await?;
        }
        let (reply, answer) = oneshot::channel();
        tokio::spawn(async move { self.send_and_read(typist, lock, Reply(Some(reply))).await });
        // The runtime is shutting down, or the task panicked.
        let unfinished = |_| Error::SubmitUnknown {
            pane,
            source: Box::new(Error::ShuttingDown),
        };
        answer.await.map_err(unfinished)?
    }

    /// How the message is typed, if the screen of the agent is known.
    fn typist(&self, limit: Instant) -> Result<Option<Typist>, Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_known = !monitor.definition().is_plain();
        Ok(is_known.then(|| Typist {
            monitor: monitor.clone(),
            limit,
            waits_for_person: self.waits_for_person,
            is_command: self.is_command,
        }))
    }

    /// Steps 3 to 6 of the theory.
    async fn send_and_read(self, typist: Option<Typist>, lock: PaneLockGuard, mut reply: Reply) {
        let io = self.cluster.pane_io();
        let launch = self.launch();
        let bound = match self.wants_answer {
            true => self.response.timeout,
            // A notice has no time limit of its own, and the agent need not answer it.
            false => self.response.timeout / 10,
        };
        let record = OwedRecord::new(&self.message, &self.text, launch.clone(), bound);
        let mut hook = self.hook(&launch);
        let prepared = match &mut hook {
            Some(hook) => hook.events.skip_existing(),
            None => Ok(()),
        };
        let owed = prepared.and_then(|()| OwedAnswer::create(io.folder(), self.pane, record));
        let mut owed = match owed {
            Ok(owed) => owed,
            Err(error) => return reply.send(Err(error)),
        };
        let sent = match io
            .send_locked(self.pane, &self.text, &self.send, typist, lock)
            .await
        {
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
            hook = self.hook(&submitted_to);
            owed.record.launch = submitted_to;
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
        let mut reading = match hook {
            Some(hook) => Reading::Hook {
                ask: &self,
                sent: &sent,
                turn: HookTurn::new(hook.rules, self.text.clone()),
                events: hook.events,
                since,
            },
            None => {
                let reader = io.reader(&sent, self.marker.clone(), &self.response);
                Reading::Marker(Box::new(
                    match self.cluster.monitor(&self.message.to_agent) {
                        Ok(monitor) => reader.observed_by(monitor),
                        Err(_) => reader,
                    },
                ))
            }
        };
        if self.wants_answer {
            let limit = deadline(sent.submitted.at, self.response.timeout);
            let read = reading.run(limit).await;
            match read {
                Err(error @ Error::ResponseTimeout { .. }) => {
                    self.log_reply(MessageType::Error, error.to_string(), id.as_deref());
                    owed.add_message(id);
                    reply.send(Err(error));
                }
                read => {
                    owed.settle();
                    return reply.send(self.finish(read, id.as_deref()));
                }
            }
        } else {
            owed.add_message(id);
        }
        sent.release();
        self.wait_for_late_answer(&mut reading, &owed).await;
    }

    /// Waits until the answer comes, another process settles the record, or the bound is reached.
    async fn wait_for_late_answer(&self, reading: &mut Reading<'_>, owed: &OwedAnswer) {
        let limit = deadline(Instant::now(), owed.record.left());
        let mut watch = FileWatch::new();
        let settled_elsewhere = async {
            loop {
                watch.arm(owed.path());
                if !owed.is_open() {
                    return;
                }
                watch.changed().await;
            }
        };
        tokio::select! {
            read = reading.run(limit) => {
                if owed.settle() && let Ok((text, _)) = read {
                    self.log_late(owed, &text);
                }
            }
            () = settled_elsewhere => {}
        }
    }

    /// Waits until the pane owes no answer.
    async fn wait_until_settled(&self, limit: Instant) -> Result<(), Error> {
        let io = self.cluster.pane_io();
        for owed in OwedAnswer::of_pane(io.folder(), self.pane)? {
            let settled = tokio::time::timeout_at(limit, self.settle(&io, &owed)).await;
            if settled.is_err() {
                return Err(Error::Refused {
                    pane: self.pane,
                    reason: Refusal::OwesAnswer,
                    screen: self.screen().await,
                });
            }
            settled.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// Waits for the end of a turn that an earlier sender gave up.
    async fn settle(&self, io: &PaneIo, owed: &OwedAnswer) -> Result<(), Error> {
        let record = &owed.record;
        let bound = deadline(Instant::now(), record.left());
        let mut hook = self.hook(&record.launch);
        let mut turn = hook
            .as_ref()
            .map(|hook| HookTurn::new(hook.rules, record.text.clone()));
        let mut watch = FileWatch::new();
        let output = io.watch_output(self.pane);
        let mut idle = pin!(self.wait_for_idle(bound));
        loop {
            watch.arm(owed.path());
            if !owed.is_open() {
                return Ok(());
            }
            if Instant::now() >= bound || self.launch() != record.launch {
                owed.settle();
                return Ok(());
            }
            if let (Some(hook), Some(turn)) = (&mut hook, &mut turn) {
                hook.events.arm();
                let events = hook.events.read_new()?;
                let mut events = events
                    .into_iter()
                    .filter(|event| event.at >= record.since());
                if let Some(end) = events.find_map(|event| turn.observe(event)) {
                    let text = self.text_of(end, &record.text, record.since(), bound).await;
                    if owed.settle()
                        && let Ok(text) = text
                    {
                        self.log_late(owed, &text);
                    }
                    return Ok(());
                }
            } else if io.shows_prompt(self.pane).await? {
                owed.settle();
                return Ok(());
            }
            let stored = async {
                match &mut hook {
                    Some(hook) => hook.events.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = watch.changed() => {}
                () = stored => {}
                // Its turn has ended, and no hook has reported an answer.
                idle = &mut idle => {
                    owed.settle();
                    return idle;
                }
                () = output.changed(bound) => {}
                () = sleep_until(bound) => {}
            }
            let limit = bound.min(Instant::now() + SPINNER_LIMIT);
            output.quiet(PROMPT_QUIET, limit).await;
        }
    }

    /// The text at the end of a turn.
    async fn text_of(
        &self,
        end: TurnEnd,
        prompt: &str,
        since: SystemTime,
        limit: Instant,
    ) -> Result<String, Error> {
        match end {
            TurnEnd::Answer(text) => Ok(text),
            TurnEnd::Transcript(path) => {
                let limit = limit.min(Instant::now() + TRANSCRIPT_GRACE);
                let found = hook::read_gemini_chat(&path, prompt, since, limit).await;
                match found {
                    Some(text) => Ok(text),
                    None => Err(self.no_answer().await),
                }
            }
            TurnEnd::NoAnswer => Err(self.no_answer().await),
            TurnEnd::TooLong => Err(Error::AnswerTooLong {
                pane: self.pane,
                limit: hook::MAX_PAYLOAD,
                partial: self.screen().await,
            }),
        }
    }

    /// Waits until the screen shows the end of a turn that no hook reports: an interrupt by a person, or a payload that
    /// Codex cannot pass on. Never ends for agents whose hooks report every end.
    ///
    /// - **Race.** The screen is idle until the agent shows that it works. So an idle screen counts only after a
    ///   working one.
    /// - **Race.** The hook may come after the screen. It has [`HOOK_GRACE`] to come; then the agent must still be
    ///   idle.
    async fn silent_end(
        &self,
        rules: &HookRules,
        since: SystemTime,
        limit: Instant,
    ) -> Result<TurnEnd, Error> {
        if !rules.interrupt_is_silent {
            return std::future::pending().await;
        }
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_working = |seen: &Observation| seen.state == AgentState::Working;
        if monitor.wait_until(limit, is_working).await?.is_err() {
            return std::future::pending().await;
        }
        self.wait_for_idle(limit).await?;
        let codex = rules.transcript == Some(TranscriptFormat::CodexRollout);
        let receiver = self.cluster.agent_config(&self.message.to_agent)?;
        let found = codex.then(|| hook::read_codex_rollout(&receiver.env, &self.text, since));
        Ok(found.flatten().unwrap_or(TurnEnd::NoAnswer))
    }

    /// Waits until the agent is idle and stays so for [`HOOK_GRACE`]. Does not return after `limit`, or for a program
    /// that has no rules.
    async fn wait_for_idle(&self, limit: Instant) -> Result<(), Error> {
        let monitor = self.cluster.monitor(&self.message.to_agent)?;
        let is_idle = |seen: &Observation| seen.state == AgentState::Idle;
        while !monitor.definition().is_plain() {
            if monitor.wait_until(limit, is_idle).await?.is_err() {
                break;
            }
            sleep_until(Instant::now() + HOOK_GRACE).await;
            if is_idle(&monitor.observe().await?) {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// The answer for the caller, after it is logged.
    fn finish(
        &self,
        read: Result<(String, Option<String>), Error>,
        id: Option<&str>,
    ) -> Result<Answer, Error> {
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
    fn log_late(&self, owed: &OwedAnswer, text: &str) {
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
    fn launch(&self) -> String {
        let panes = self.cluster.pane_io().panes().launch(self.pane);
        panes.unwrap_or_default()
    }

    /// The hooks of a launch; `None` if the agent has none, or was started without them.
    fn hook(&self, launch: &str) -> Option<LaunchHooks<'_>> {
        let rules = self.definition()?.hook.as_ref()?;
        let io = self.cluster.pane_io();
        let folder = LaunchFolder::new(io.folder(), launch);
        let events = EventFolder::new(folder.events(), rules.event.clone());
        if !folder.events().is_dir() {
            return None;
        }
        // The user may have switched hooks off. An agent that reports its start would have done so by now.
        if !rules.ready.is_empty() && events.is_empty() {
            tracing::warn!(agent = %self.message.to_agent, "its hooks do not run: its answers are read from its output");
            return None;
        }
        Some(LaunchHooks { rules, events })
    }

    fn definition(&self) -> Option<&AgentDefinition> {
        let monitor = self.cluster.monitor(&self.message.to_agent).ok()?;
        Some(monitor.definition())
    }

    async fn no_answer(&self) -> Error {
        Error::NoAnswer {
            pane: self.pane,
            partial: self.screen().await,
        }
    }

    async fn timed_out(&self) -> Error {
        Error::ResponseTimeout {
            marker: self.marker.as_str().to_owned(),
            pane: self.pane,
            after: self.response.timeout,
            partial: self.screen().await,
        }
    }

    /// The text on the screen.
    async fn screen(&self) -> PartialAnswer {
        let screen = self.cluster.pane_io().screen(self.pane).await;
        PartialAnswer::new(screen.unwrap_or_default().trim_end().to_owned())
    }
}

/// The hooks of one launch of an agent.
struct LaunchHooks<'a> {
    rules: &'a HookRules,
    events: EventFolder,
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

/// The wait for one answer. It can be continued after its time limit.
enum Reading<'a> {
    Hook {
        ask: &'a Ask,
        sent: &'a Sent,
        turn: HookTurn<'a>,
        events: EventFolder,
        since: SystemTime,
    },
    Marker(Box<AnswerReader<'a>>),
}

impl Reading<'_> {
    /// The answer, and the message that the agent got if the agent has changed it.
    async fn run(&mut self, limit: Instant) -> Result<(String, Option<String>), Error> {
        match self {
            Self::Marker(reader) => {
                reader.extend_until(limit);
                Ok((reader.run().await?, None))
            }
            Self::Hook {
                ask,
                sent,
                turn,
                events,
                since,
            } => {
                let end = wait_for_end(ask, sent, turn, events, *since, limit).await?;
                let text = ask.text_of(end, &ask.text, *since, limit).await?;
                Ok((text, turn.altered().map(str::to_owned)))
            }
        }
    }
}

/// Waits for the end of the turn.
async fn wait_for_end(
    ask: &Ask,
    sent: &Sent,
    turn: &mut HookTurn<'_>,
    events: &mut EventFolder,
    since: SystemTime,
    limit: Instant,
) -> Result<TurnEnd, Error> {
    let output = &sent.submitted.tap;
    let mut silent = pin!(ask.silent_end(turn.rules(), since, limit));
    loop {
        tokio::select! {
            stored = events.next() => {
                let mut stored = stored?.into_iter();
                if let Some(end) = stored.find_map(|event| turn.observe(event)) {
                    return Ok(end);
                }
            }
            end = &mut silent => return end,
            () = output.changed(limit) => {
                // The output itself does not matter.
                match output.take().end {
                    Some(OutputEnd::Exited(exit)) => {
                        return Err(Error::PaneDied { pane: ask.pane, exit, partial: ask.screen().await });
                    }
                    Some(OutputEnd::ServerGone) => {
                        return Err(ask.cluster.pane_io().gone());
                    }
                    None => {}
                }
            }
        }
        if Instant::now() >= limit {
            return Err(ask.timed_out().await);
        }
    }
}

fn report(error: &Error) {
    tracing::error!(%error, cause = ?error.source(), "cannot log a message");
}
