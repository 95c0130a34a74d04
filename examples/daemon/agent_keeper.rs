//! Keeps one agent running.
//!
//! # Theory: the life of a message
//!
//! A message is an event in the snapshot of its agent. It leaves the queue in the commit that saves its
//! answer. Before the agent can read it, a commit notes that it is being delivered (`delivering`); another
//! one notes the first sign that the agent works on it (`delivered`).
//!
//! | the daemon or the agent dies | the next start |
//! |---|---|
//! | before the note | delivers the message |
//! | after `delivering` | resumes the session and sends the text of `restart.message`, and the message below it: the agent may have begun with it or not |
//! | after `delivered` | resumes the session and sends the text of `restart.message` alone: the agent has the message in its session |
//! | after the answer is saved | has nothing to do |
//!
//! An agent that does not know the session has stored nothing of it, so it cannot have begun: it gets
//! the message in a new session, below the conversation that the snapshot has.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime};

use agent_snapshot::conversation::{Message, Role};
use agent_snapshot::{AgentState, Error as StorageError, Event, Status, Tick};
use examples::{Result, with_causes};
use exec_core::{
    AgentEventKind, Error, Execution, ExecutionService, FailureKind, LimitPolicy, LiveSession,
    SessionId, TurnOutcome,
};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::config::AgentConfig;
use crate::daemon::Log;

/// Messages of an earlier session that a new one is told.
const MAX_TOLD: usize = 20;

/// The pause before a save is repeated.
const SAVE_AGAIN: Duration = Duration::from_secs(1);

/// How far the first message of the queue is.
const NOTES: [&str; 2] = ["delivering", "delivered"];

/// A message for an agent.
pub(crate) struct Letter {
    pub(crate) text: String,
    /// Told when the message is saved, or why not.
    pub(crate) saved: oneshot::Sender<Result<String>>,
}

pub(crate) struct AgentKeeper {
    config: AgentConfig,
    service: ExecutionService,
    state: AgentState,
    letters: mpsc::Receiver<Letter>,
    /// The latest restarts.
    restarts: VecDeque<Instant>,
    log: Log,
}

/// Why an agent does not run.
enum Fall {
    /// It is started again.
    Restart(String),
    /// A repetition does not help.
    Final(String),
}

impl AgentKeeper {
    pub(crate) fn new(
        config: AgentConfig,
        service: ExecutionService,
        state: AgentState,
        letters: mpsc::Receiver<Letter>,
        log: Log,
    ) -> Self {
        Self {
            config,
            service,
            state,
            letters,
            restarts: VecDeque::new(),
            log,
        }
    }

    /// Runs the agent until the daemon ends.
    pub(crate) async fn run(mut self) {
        let reason = match self.keep().await {
            Ok(reason) => reason,
            Err(error) => with_causes(&*error),
        };
        self.say(&format!("gave up: {reason}"));
        while let Some(letter) = self.letters.recv().await {
            let name = &self.config.name;
            let refusal = format!("agent {name} has given up: {reason}; start the daemon again");
            let _ = letter.saved.send(Err(refusal.into()));
        }
    }

    /// Returns why it gave up.
    async fn keep(&mut self) -> Result<String> {
        if self.state.tick_index() == 0 {
            // Idempotent: an event with an id is queued once, even if this runs again.
            let prompt = Event::new("file", "prompt", json!(self.config.prompt));
            let queued = self.state.enqueue(prompt.with_id("prompt")).await;
            self.settle(queued).await?;
        }
        let (tick, messages) = (self.state.tick_index(), self.state.history().len());
        self.say(&format!("hydrated: tick {tick}, {messages} messages"));
        loop {
            let fall = match self.open().await? {
                Ok(session) => {
                    let served = self.serve(&session).await;
                    // Also if the snapshot cannot be saved: another daemon may have the agent.
                    session.close().await?;
                    served?
                }
                Err(fall) => fall,
            };
            let reason = match fall {
                Fall::Final(reason) => return self.give_up(reason).await,
                Fall::Restart(reason) => reason,
            };
            let Some(delay) = self.next_delay() else {
                let restarts = self.restarts.len();
                let reason = format!("{restarts} restarts did not help: {reason}");
                return self.give_up(reason).await;
            };
            let count = self.restarts.len();
            let delay_s = delay.as_secs_f64();
            self.say(&format!(
                "{reason}; restart {count} follows in {delay_s:.2} s"
            ));
            let supervision = json!({"state": "restarting", "restarts": count, "delay_s": delay_s, "reason": reason});
            self.save(|tick| set(tick, "supervision", supervision))
                .await?;
            self.wait(delay).await;
        }
    }

    /// Opens the session that the snapshot has, or a new one.
    async fn open(&mut self) -> Result<std::result::Result<LiveSession, Fall>> {
        loop {
            let known = self.state.variables().get("session").cloned();
            let known: Option<SessionId> = known.map(serde_json::from_value).transpose()?;
            let request = match self.config.live_request(known.clone()) {
                Ok(request) => request,
                Err(error) => return Ok(Err(Fall::Final(with_causes(&error)))),
            };
            let error = match self.service.open_live(request).await {
                Ok(session) => {
                    let opened = self.opened(&session, known.is_some()).await;
                    if let Err(error) = opened {
                        // Another daemon may have the agent: no second process of it stays.
                        session.close().await?;
                        return Err(error);
                    }
                    return Ok(Ok(session));
                }
                Err(error) => error,
            };
            let reason = with_causes(&error);
            let kind = match error {
                Error::NotOpened { failure, .. } => failure.kind,
                Error::Io { .. } | Error::Spawn { .. } => FailureKind::Agent,
                _ => return Ok(Err(Fall::Final(reason))),
            };
            if kind != FailureKind::SessionGone || known.is_none() {
                return Ok(Err(fall(&kind, reason)));
            }
            self.say("the agent does not know its session: a new one begins");
            self.save(|tick| {
                for name in ["session", "introduced"].into_iter().chain(NOTES) {
                    tick.variables().remove(name);
                }
            })
            .await?;
        }
    }

    async fn opened(&mut self, session: &LiveSession, is_resumed: bool) -> Result<()> {
        let (id, pid) = (session.session_id(), session.execution().process_id());
        let how = if is_resumed { "resumed" } else { "began" };
        self.say(&format!("{how} session {id}, process {pid}"));
        let restarts = self.restarts.len();
        let supervision = json!({"state": "running", "restarts": restarts, "process": pid});
        self.save(|tick| {
            set(tick, "session", json!(id));
            set(tick, "supervision", supervision);
            tick.set_status(Status::WAITING_FOR_EVENT);
        })
        .await
    }

    /// Delivers messages until the agent ends or cannot go on.
    async fn serve(&mut self, session: &LiveSession) -> Result<Fall> {
        loop {
            let Some(event) = self.state.events().first().cloned() else {
                tokio::select! {
                    Some(letter) = self.letters.recv() => self.take(letter).await,
                    exit = session.execution().wait() => {
                        let exit = exit?;
                        let how = exit.signal.map_or("by itself".to_owned(), |it| format!("by signal {it}"));
                        return Ok(Fall::Restart(format!("it ended {how}")));
                    }
                }
                continue;
            };
            let text = self.text(&event);
            self.save(|tick| {
                set(tick, "delivering", json!(event.id));
                set(tick, "introduced", json!(true));
                tick.set_status(Status::RUNNING);
            })
            .await?;
            // Limits of the provider are waited for.
            let limits = LimitPolicy::new();
            let mut sign = std::pin::pin!(first_sign(session.execution(), SystemTime::now()));
            let mut has_begun = false;
            let mut turn = std::pin::pin!(session.run_turn(text, &limits));
            let report = loop {
                tokio::select! {
                    report = &mut turn => break report,
                    () = &mut sign, if !has_begun => {
                        has_begun = true;
                        self.save(|tick| set(tick, "delivered", json!(event.id))).await?;
                    }
                    Some(letter) = self.letters.recv() => self.take(letter).await,
                }
            };
            let report = match report {
                Ok(report) => report,
                Err(error) => return Ok(Fall::Restart(with_causes(&error))),
            };
            match &report.outcome {
                TurnOutcome::Completed if report.is_whole => {
                    self.answered(&event, &report.text, session).await?;
                }
                TurnOutcome::Completed => {
                    let reason = "its answer has holes, or is too long";
                    return Ok(Fall::Final(reason.to_owned()));
                }
                TurnOutcome::Failed { failure } => {
                    return Ok(fall(&failure.kind, failure.to_string()));
                }
                _ => return Ok(Fall::Restart("it died at work".to_owned())),
            }
        }
    }

    async fn answered(&mut self, event: &Event, answer: &str, session: &LiveSession) -> Result<()> {
        let id = session.session_id();
        self.save(|tick| {
            tick.next_event();
            tick.history().push(Message::user(asked(event)));
            tick.history().push(Message::assistant(answer));
            for name in NOTES {
                tick.variables().remove(name);
            }
            // The agent may have reported an id of its own.
            set(tick, "session", json!(id));
            tick.set_status(Status::WAITING_FOR_EVENT);
        })
        .await?;
        self.say(&format!("answered: {answer}"));
        Ok(())
    }

    /// What the agent is sent for a message.
    fn text(&self, event: &Event) -> String {
        let mut text = asked(event).to_owned();
        let is_noted = |name| self.state.variables().get(name) == Some(&json!(event.id));
        let [delivering, delivered] = NOTES.map(is_noted);
        let message = &self.config.restart.message;
        if delivered {
            return message.clone();
        }
        if delivering {
            return format!("{message}\n\n{text}");
        }
        if self.state.variables().contains_key("introduced") {
            return text;
        }
        let history = self.state.history();
        if !history.is_empty() {
            let told = history.iter().skip(history.len().saturating_sub(MAX_TOLD));
            let told: Vec<String> = told.map(told_line).collect();
            text = format!("The conversation so far:\n{}\n\n{text}", told.join("\n"));
        }
        match self.config.personality.is_empty() {
            true => text,
            false => format!("{}\n\n{text}", self.config.personality),
        }
    }

    /// Saves a message, and tells its sender.
    async fn take(&mut self, letter: Letter) {
        let event = Event::new("user", "message", json!(letter.text));
        let saved = self.state.enqueue(event).await;
        let saved = self.settle(saved).await;
        let name = &self.config.name;
        let _ = letter
            .saved
            .send(saved.map(|()| format!("saved for {name}")));
    }

    /// Takes messages for a time.
    async fn wait(&mut self, delay: Duration) {
        let end = tokio::time::Instant::now() + delay;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(end) => return,
                Some(letter) = self.letters.recv() => self.take(letter).await,
            }
        }
    }

    /// The delay of the next restart; `None` after too many.
    fn next_delay(&mut self) -> Option<Duration> {
        let restart = &self.config.restart;
        let (now, window) = (Instant::now(), restart.window());
        self.restarts.retain(|at| now.duration_since(*at) < window);
        if self.restarts.len() >= restart.give_up_after {
            return None;
        }
        let delay = restart.delay(self.restarts.len());
        self.restarts.push_back(now);
        Some(delay)
    }

    async fn give_up(&mut self, reason: String) -> Result<String> {
        let restarts = self.restarts.len();
        let supervision = json!({"state": "gave up", "restarts": restarts, "reason": reason});
        self.save(|tick| {
            set(tick, "supervision", supervision);
            tick.set_status(Status::FAILED);
        })
        .await?;
        Ok(reason)
    }

    async fn save(&mut self, change: impl FnOnce(&mut Tick<'_>)) -> Result<()> {
        let mut tick = self.state.begin_tick()?;
        change(&mut tick);
        let saved = tick.commit().await.map(drop);
        self.settle(saved).await
    }

    /// Repeats a save that the storage has not answered until it does: a server that is restarted ends no agent. Any
    /// other error is final, such as the conflict with another daemon.
    async fn settle(&mut self, saved: std::result::Result<(), StorageError>) -> Result<()> {
        let mut saved = saved;
        let mut is_told = false;
        loop {
            match saved {
                Err(error) if error.is_backend_failure() => {
                    if !std::mem::replace(&mut is_told, true) {
                        let reason = with_causes(&error);
                        self.say(&format!(
                            "the storage does not answer: {reason}; the save is repeated"
                        ));
                    }
                }
                other => return Ok(other?),
            }
            tokio::time::sleep(SAVE_AGAIN).await;
            saved = self.state.retry_commit().await.map(drop);
        }
    }

    fn say(&self, text: &str) {
        self.log.line(&self.config.name, text);
    }
}

/// Returns when the agent works on a message that was sent after `since`.
async fn first_sign(execution: &Execution, since: SystemTime) {
    let mut events = execution.events();
    while let Some(event) = events.next().await {
        let mut events = event.agent_events().iter();
        // The model has answered, so the session has the message.
        let is_answer = events.any(|event| {
            matches!(
                event.kind,
                AgentEventKind::Text { .. }
                    | AgentEventKind::Thinking { .. }
                    | AgentEventKind::ToolCall { .. }
            )
        });
        if is_answer && event.at >= since {
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn set(tick: &mut Tick<'_>, name: &str, value: Value) {
    tick.variables().insert(name.to_owned(), value);
}

fn asked(event: &Event) -> &str {
    event.payload.as_str().unwrap_or_default()
}

fn told_line(message: &Message) -> String {
    let who = match message.role {
        Role::User => "Asked",
        _ => "You answered",
    };
    format!("{who}: {}", message.content.as_deref().unwrap_or_default())
}

/// The table of [`exec_core::RestartPolicy`], for live sessions.
fn fall(kind: &FailureKind, reason: String) -> Fall {
    match kind {
        FailureKind::Authentication | FailureKind::ContextFull => Fall::Final(reason),
        _ => Fall::Restart(reason),
    }
}
