//! Live sessions of this program.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use exec_core::{
    AgentEvent, AgentEventKind, DropReason, Event, EventKind, ExitReport, Failure, FailureKind,
    LiveEvent, LiveSession, LiveState, LiveStatus, MessageId, OutputStream, PermissionRequest,
    SettledBy, StoppedBy, Turn, TurnId, TurnOutcome, UsageTotals, Watchdog,
};

use super::super::action::{Action, ActionError};
use super::super::board_model::cut_text;
use super::super::change::{AgentChange, Change};
use super::super::entities::{
    Ability, AgentState, Decision, Permission, QueueItem, Usage, milliseconds,
};
use super::super::hub::{Feed, lock, now};
use super::super::source::Source;
use super::used::{plus, usage};
use crate::{Result, with_causes};

/// Most bytes of an answer that are gathered: more than the board shows, so that it tells what it leaves out.
const MAX_TEXT: usize = 1 << 20;
/// Most bytes of a line without an end that are gathered before they are shown.
const MAX_PARTIAL: usize = 8 * 1024;

/// Follows live sessions of this process and steers them: messages, interrupts, permissions, stop,
/// and restart, which reopens the session by the agent's own means.
#[derive(Clone, Default)]
pub struct LiveSource(Arc<Shared>);

#[derive(Default)]
struct Shared {
    agents: Mutex<Vec<Arc<LiveAgent>>>,
    feed: OnceLock<Feed>,
}

struct LiveAgent {
    name: String,
    /// The deadline of permission requests, if it is shown.
    permission_limit: Option<Duration>,
    session: Mutex<LiveSession>,
    progress: Mutex<Progress>,
}

/// What the events have told so far.
#[derive(Default)]
struct Progress {
    /// The texts of messages from the page.
    prompts: BTreeMap<MessageId, String>,
    turn: Option<TurnId>,
    /// The answer of the turn so far: the last message of the agent itself, without its sub-agents.
    text: String,
    /// Whether the next piece continues `text`.
    continues: bool,
    /// The part of a line that deltas have brought.
    partial: String,
    /// What the processes before this one have used.
    earlier: Usage,
    /// What this process has used.
    run: Usage,
}

impl LiveSource {
    /// A source without sessions.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Shows a session under this name; it replaces a session that has ended.
    /// `permission_limit` is the deadline of its permission policy, if it should be shown.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub fn add(
        &self,
        name: impl Into<String>,
        session: LiveSession,
        permission_limit: Option<Duration>,
    ) {
        let name = name.into();
        let known = self.agent(&name).ok();
        if let (Some(agent), Some(feed)) = (known, self.0.feed.get()) {
            let before = std::mem::replace(&mut *lock(&agent.session), session);
            // No event tells of the messages that waited when it ended.
            let mut prompts = std::mem::take(&mut lock(&agent.progress).prompts);
            for queued in before.queued() {
                agent.gone(feed, queued.id, "dropped");
                if let Some(text) = prompts.remove(&queued.id) {
                    agent.not_delivered(feed, DropReason::SessionEnded, &text);
                }
            }
            for message in prompts.into_keys() {
                agent.gone(feed, message, "dropped");
            }
            agent.introduce(feed);
            feed.push(AgentChange::new(&agent.name).restarted());
            tokio::spawn(track(agent, feed.clone()));
            return;
        }
        let agent = Arc::new(LiveAgent {
            name,
            permission_limit,
            session: Mutex::new(session),
            progress: Mutex::default(),
        });
        let mut agents = lock(&self.0.agents);
        agents.push(agent.clone());
        // Under the lock: `follow` starts the sessions that are there when it sets the feed.
        if let Some(feed) = self.0.feed.get() {
            agent.introduce(feed);
            tokio::spawn(track(agent, feed.clone()));
        }
    }

    fn agent(&self, name: &str) -> std::result::Result<Arc<LiveAgent>, ActionError> {
        let agents = lock(&self.0.agents);
        let agent = agents.iter().find(|agent| agent.name == name).cloned();
        agent.ok_or_else(|| ActionError::new("unknown", "no such session"))
    }
}

#[async_trait]
impl Source for LiveSource {
    fn name(&self) -> String {
        "live sessions".to_owned()
    }

    async fn follow(&self, feed: Feed) -> Result<()> {
        {
            let agents = lock(&self.0.agents);
            if self.0.feed.set(feed.clone()).is_ok() {
                for agent in &*agents {
                    agent.introduce(&feed);
                    tokio::spawn(track(agent.clone(), feed.clone()));
                }
            }
        }
        std::future::pending().await
    }

    async fn perform(&self, action: Action) -> std::result::Result<(), ActionError> {
        let Some(feed) = self.0.feed.get() else {
            return Err(ActionError::new("busy", "not started yet"));
        };
        match action {
            Action::Send { agent, text } => self.agent(&agent)?.send(feed, text),
            Action::Interrupt { agent } => {
                let agent = self.agent(&agent)?;
                let turn = lock(&agent.progress).turn;
                let turn = turn.ok_or_else(|| ActionError::new("gone", "no turn is running"))?;
                let session = agent.session();
                session.interrupt(turn).await.map_err(refusal)?;
                Ok(())
            }
            Action::Stop { agent } => {
                let session = self.agent(&agent)?.session();
                session.execution().stop().await.map_err(refusal)?;
                Ok(())
            }
            Action::Restart { agent } => {
                let agent = self.agent(&agent)?;
                let resumed = agent.session().resume().await.map_err(refusal)?;
                *lock(&agent.session) = resumed;
                agent.introduce(feed);
                feed.push(AgentChange::new(&agent.name).restarted());
                tokio::spawn(track(agent, feed.clone()));
                Ok(())
            }
            Action::Answer {
                agent,
                permission,
                decision,
            } => {
                let agent = self.agent(&agent)?;
                let decision = match decision {
                    Decision::Allow => exec_core::Decision::Allow,
                    Decision::Deny => exec_core::Decision::Deny,
                };
                let session = agent.session();
                // A request of an earlier process ended with it.
                let id = permission.strip_prefix(&*agent.request(&session, ""));
                let id = id.ok_or_else(|| ActionError::new("gone", "its process has ended"))?;
                session.answer(id, decision).map_err(refusal)
            }
            Action::TakeBack { agent, item } => {
                let agent = self.agent(&agent)?;
                let message = serde_json::from_str(agent.native(&item));
                let message =
                    message.map_err(|_| ActionError::new("unknown", "no such message"))?;
                match agent.session().take_back(message) {
                    Some(_) => Ok(()),
                    None => Err(ActionError::new("gone", "the message no longer waits")),
                }
            }
        }
    }
}

impl LiveAgent {
    fn session(&self) -> LiveSession {
        lock(&self.session).clone()
    }

    /// An id of the session, made unique on the board.
    fn unique(&self, id: impl std::fmt::Display) -> String {
        format!("{}/{id}", self.name)
    }

    /// A permission request, made unique on the board: each process counts its requests anew.
    fn request(&self, session: &LiveSession, id: &str) -> String {
        format!("{}/{}/{id}", self.name, session.execution().id())
    }

    fn native<'a>(&self, id: &'a str) -> &'a str {
        let rest = id.strip_prefix(&*self.name);
        rest.and_then(|rest| rest.strip_prefix('/')).unwrap_or(id)
    }

    fn send(self: Arc<Self>, feed: &Feed, text: String) -> std::result::Result<(), ActionError> {
        let turn = {
            // Held during the call: the event of the delivery must find the text.
            let mut progress = lock(&self.progress);
            let turn = self.session().prompt(text.clone()).map_err(refusal)?;
            progress.prompts.insert(turn.message(), text);
            turn
        };
        let feed = feed.clone();
        tokio::spawn(async move { self.answer(&turn, &feed).await });
        Ok(())
    }

    /// Who and where the agent is.
    fn introduce(&self, feed: &Feed) {
        let session = self.session();
        let execution = session.execution();
        let context = execution.context();
        let kind = match &context.variant_label {
            Some(variant) => format!("{}:{variant}", context.profile_label),
            None => context.profile_label.clone(),
        };
        let place = format!(
            "process {}, {}",
            execution.process_id(),
            context.workspace_path.display()
        );
        let change = AgentChange::new(&self.name).kind(kind, place).can([
            Ability::Send,
            Ability::Interrupt,
            Ability::Stop,
            Ability::Restart,
        ]);
        feed.push(change);
    }

    /// The answer to a message from the page, when its turn has ended.
    async fn answer(&self, turn: &Turn, feed: &Feed) {
        // A message that was not delivered is told by its event.
        let Ok(report) = turn.ended().await else {
            return;
        };
        self.result(feed, turn.message(), &report.outcome, &report.text);
    }

    fn result(&self, feed: &Feed, message: MessageId, outcome: &TurnOutcome, text: &str) {
        let (kind, note) = match outcome {
            TurnOutcome::Completed => ("result", String::new()),
            TurnOutcome::Interrupted => ("info", "interrupted".to_owned()),
            TurnOutcome::Failed { failure } => ("error", failure.to_string()),
            _ => (
                "error",
                "the process ended; the outcome is uncertain".to_owned(),
            ),
        };
        let parts = [text, &*note].into_iter().filter(|part| !part.is_empty());
        let text = parts.collect::<Vec<_>>().join("\n\n");
        feed.push(Change::Message {
            id: self.unique(format_args!("{message}-answer")),
            from: self.name.clone(),
            to: "user".to_owned(),
            kind: kind.to_owned(),
            text,
            at: None,
            reply_to: Some(self.unique(message)),
        });
    }

    fn print(&self, feed: &Feed, stream: &'static str, text: &str) {
        if !text.is_empty() {
            feed.push(Change::Output {
                agent: self.name.clone(),
                stream,
                text: text.trim_end_matches('\n').to_owned(),
            });
        }
    }

    fn fail(&self, feed: &Feed, class: &str, failure: &Failure) {
        let resets = match &failure.kind {
            FailureKind::Limited { resets_at, .. } => resets_at.map(milliseconds),
            _ => None,
        };
        feed.push(Change::Failure {
            agent: self.name.clone(),
            class: class.to_owned(),
            message: failure.message.clone(),
            resets,
            at: None,
        });
    }

    fn fail_with(&self, feed: &Feed, class: &str, message: &str) {
        feed.push(Change::Failure {
            agent: self.name.clone(),
            class: class.to_owned(),
            message: message.to_owned(),
            resets: None,
            at: None,
        });
    }

    /// The state by the session itself, with the event that proves it.
    fn show_state(&self, feed: &Feed, state: &LiveState) {
        let (shown, what) = match &state.status {
            LiveStatus::Opening => (AgentState::Starting, "process started".to_owned()),
            LiveStatus::Idle => (AgentState::Idle, "session open, no turn".to_owned()),
            LiveStatus::Working { turn } => (AgentState::Working, format!("turn {turn}")),
            LiveStatus::WaitingForPermission => {
                (AgentState::Waiting, "permission asked".to_owned())
            }
            LiveStatus::Limited { .. } => (AgentState::Limited, "limit reached".to_owned()),
            // The event with the exit report says more.
            LiveStatus::Ended => return,
            _ => (AgentState::Unknown, "a state of a newer version".to_owned()),
        };
        let detail = format!("{what}, event {}", state.proof);
        feed.push(AgentChange::new(&self.name).state(shown, "event", detail));
    }

    fn take(&self, session: &LiveSession, feed: &Feed, event: &Event) {
        match &event.kind {
            EventKind::Output(output) => {
                for event in &output.events {
                    self.take_agent_event(feed, event);
                }
                if output.stream == OutputStream::Stderr {
                    self.print(feed, "err", &output.line.text());
                }
            }
            EventKind::Agent(events) => {
                for event in events {
                    self.take_agent_event(feed, event);
                }
            }
            EventKind::Live(event) => self.take_live_event(session, feed, event),
            EventKind::BudgetWarning(notice) => {
                self.print(feed, "note", &format!("budget nearly used, {notice}"));
            }
            EventKind::BudgetExceeded(notice) => {
                self.fail_with(feed, "budget", &notice.to_string());
            }
            EventKind::Watchdog(Watchdog::NoOutput) => {
                self.fail_with(feed, "stuck", "nothing printed for too long");
            }
            EventKind::Watchdog(_) => {
                self.fail_with(feed, "stuck", "still alive after its last event");
            }
            EventKind::Gap { missed } => {
                self.print(feed, "note", &format!("{missed} events were dropped"));
            }
            EventKind::Exited(report) => self.exited(feed, report),
            _ => {}
        }
    }

    fn take_agent_event(&self, feed: &Feed, event: &AgentEvent) {
        lock(&self.progress).gather(event);
        match &event.kind {
            AgentEventKind::Text { text, delta: false } => {
                self.print(feed, "text", text);
                return;
            }
            AgentEventKind::Text { text, delta: true } => {
                let lines = lock(&self.progress).whole_lines(text);
                self.print(feed, "text", &lines);
                return;
            }
            AgentEventKind::Thinking { text, delta: false } => self.print(feed, "think", text),
            AgentEventKind::ToolCall { name, input, .. } => {
                self.print(feed, "tool", &format!("{name}: {}", input.as_str()));
            }
            AgentEventKind::ToolResult {
                output, is_error, ..
            } => self.print(feed, if *is_error { "err" } else { "out" }, output),
            AgentEventKind::Usage(totals) => {
                let used = lock(&self.progress).used(totals);
                feed.push(AgentChange::new(&self.name).usage(used));
            }
            AgentEventKind::Error(failure) => self.fail(feed, failure.kind.name(), failure),
            AgentEventKind::Retry { failure, .. } => {
                self.print(feed, "err", &format!("tries again: {failure}"));
            }
            _ => return,
        }
        self.flush(feed);
    }

    fn flush(&self, feed: &Feed) {
        let partial = std::mem::take(&mut lock(&self.progress).partial);
        self.print(feed, "text", &partial);
    }

    fn take_live_event(&self, session: &LiveSession, feed: &Feed, event: &LiveEvent) {
        match event {
            LiveEvent::MessageQueued { message } => {
                let queued = session.queued();
                if let Some(queued) = queued.into_iter().find(|queued| queued.id == *message) {
                    feed.push(Change::Queued(QueueItem {
                        id: self.unique(message),
                        agent: self.name.clone(),
                        from: "user".to_owned(),
                        text: queued.text,
                        at: 0,
                    }));
                }
            }
            LiveEvent::MessageDelivered { message, turn } => {
                self.gone(feed, *message, "delivered");
                let text = lock(&self.progress).prompts.get(message).cloned();
                self.print(feed, "note", &format!("── turn {turn}"));
                if let Some(text) = text {
                    feed.push(Change::Message {
                        id: self.unique(message),
                        from: "user".to_owned(),
                        to: self.name.clone(),
                        kind: "task".to_owned(),
                        text,
                        at: None,
                        reply_to: None,
                    });
                }
            }
            LiveEvent::MessageDropped { message, reason } => {
                let outcome = match reason {
                    DropReason::TakenBack => "taken_back",
                    DropReason::Uncertain => "uncertain",
                    _ => "dropped",
                };
                let text = lock(&self.progress).prompts.remove(message);
                self.gone(feed, *message, outcome);
                if let Some(text) = text.filter(|_| *reason != DropReason::TakenBack) {
                    self.not_delivered(feed, *reason, &text);
                }
            }
            LiveEvent::TurnStarted { turn } => {
                let mut progress = lock(&self.progress);
                progress.turn = Some(*turn);
                progress.text.clear();
            }
            LiveEvent::TurnEnded { turn, outcome, .. } => self.turn_ended(feed, *turn, outcome),
            LiveEvent::PermissionAsked(request) => {
                feed.push(Change::Permission(self.permission(session, request)));
            }
            LiveEvent::PermissionSettled {
                permission,
                tool,
                decision,
                by,
            } => {
                if *by == SettledBy::Policy {
                    // What a rule decides is never asked: the request is shown with its end.
                    feed.push(Change::Permission(Permission {
                        id: self.request(session, permission),
                        agent: self.name.clone(),
                        tool: tool.clone(),
                        ..Permission::default()
                    }));
                }
                let decision = decision.map(|decision| match decision {
                    exec_core::Decision::Allow => Decision::Allow,
                    exec_core::Decision::Deny => Decision::Deny,
                });
                let by = match by {
                    SettledBy::Caller => "caller",
                    SettledBy::Policy => "policy",
                    SettledBy::Deadline => "deadline",
                    _ => "cancel",
                };
                feed.push(Change::PermissionSettled {
                    id: self.request(session, permission),
                    decision,
                    by: by.to_owned(),
                });
            }
            LiveEvent::CommandRefused { reason } => {
                self.fail_with(feed, "agent", reason);
            }
            _ => {}
        }
    }

    fn permission(&self, session: &LiveSession, request: &PermissionRequest) -> Permission {
        let detail = match &request.command {
            Some(command) => command.clone(),
            // The root stands for paths that are not all known.
            None if request.paths.iter().all(|path| path == Path::new("/")) => {
                request.input.as_str().to_owned()
            }
            None => {
                let paths = request.paths.iter().map(|path| path.display().to_string());
                paths.collect::<Vec<_>>().join("\n")
            }
        };
        let limit = self.permission_limit.map(|limit| limit.as_millis());
        let limit = limit.and_then(|limit| u64::try_from(limit).ok());
        Permission {
            id: self.request(session, &request.id),
            agent: self.name.clone(),
            tool: request.tool.clone(),
            detail,
            asked: 0,
            deadline: limit.map(|limit| now() + limit),
            settled: None,
        }
    }

    fn turn_ended(&self, feed: &Feed, turn: TurnId, outcome: &TurnOutcome) {
        self.flush(feed);
        let message = MessageId::from(turn);
        let (ours, text) = {
            let mut progress = lock(&self.progress);
            progress.turn = None;
            let ours = progress.prompts.remove(&message).is_some();
            (ours, std::mem::take(&mut progress.text))
        };
        if let TurnOutcome::Failed { failure } = outcome {
            self.fail(feed, failure.kind.name(), failure);
        }
        // The answer to a message from the page comes from its own report.
        if !ours {
            self.result(feed, message, outcome, &text);
        }
    }

    fn gone(&self, feed: &Feed, message: MessageId, outcome: &'static str) {
        let id = self.unique(message);
        feed.push(Change::QueuedGone { id, outcome });
    }

    /// A message from the page is lost: the page has nothing else that shows its text.
    fn not_delivered(&self, feed: &Feed, reason: DropReason, text: &str) {
        let class = match reason {
            DropReason::Uncertain => "uncertain",
            _ => "not_sent",
        };
        let message = format!("a message was not delivered: {reason}\n{text}");
        self.fail_with(feed, class, &message);
    }

    fn exited(&self, feed: &Feed, report: &ExitReport) {
        self.flush(feed);
        lock(&self.progress).turn = None;
        let mut how = match (report.code, report.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (_, Some(signal)) => format!("signal {signal}"),
            _ => "unknown end".to_owned(),
        };
        match &report.stopped_by {
            Some(StoppedBy::Caller) => how.push_str(", stopped"),
            Some(StoppedBy::Budget) => how.push_str(", stopped by a budget"),
            Some(StoppedBy::Watchdog(_)) => how.push_str(", stopped by a watchdog"),
            _ => {}
        }
        let used = {
            let mut progress = lock(&self.progress);
            let used = progress.used(&report.usage);
            progress.earlier = plus(progress.earlier, progress.run);
            progress.run = Usage::default();
            used
        };
        let change = AgentChange::new(&self.name).usage(used);
        feed.push(change.state(AgentState::Exited, "process", &how));
        let told = matches!(
            &report.stopped_by,
            Some(StoppedBy::Caller | StoppedBy::Budget | StoppedBy::Watchdog(_))
        );
        if !told && !report.is_success() {
            let words = report.stderr_tail.last().cloned().unwrap_or_default();
            let message = format!("the process has ended: {how}\n{words}");
            self.fail_with(feed, "exited", message.trim_end());
        }
    }
}

/// Reports the events of a session until the end of its process.
async fn track(agent: Arc<LiveAgent>, feed: Feed) {
    let session = agent.session();
    let mut events = session.execution().events();
    // Beside the events: an event is in the log a moment before the state that it proves.
    let states = async {
        let mut before = None;
        loop {
            let state = session
                .wait_for(|status| Some(status) != before.as_ref())
                .await;
            // The end of the process: the last event tells it.
            let Ok(state) = state else { break };
            agent.show_state(&feed, &state);
            if state.status == LiveStatus::Ended {
                break;
            }
            before = Some(state.status);
        }
    };
    let events = async {
        while let Some(event) = events.next().await {
            agent.take(&session, &feed, &event);
        }
    };
    tokio::join!(states, events);
}

impl Progress {
    /// Gathers the answer of the turn from its events. Its report may have another text, if the agent
    /// repeats the answer at the end of the turn.
    fn gather(&mut self, event: &AgentEvent) {
        if event.parent.is_some() {
            return;
        }
        match &event.kind {
            AgentEventKind::Text { text, delta } => {
                if !(*delta && self.continues) {
                    self.text.clear();
                }
                let (kept, _) = cut_text(text, MAX_TEXT - self.text.len());
                self.text.push_str(kept);
                self.continues = *delta;
            }
            // Agents report these in the middle of a message.
            AgentEventKind::Usage(_) | AgentEventKind::RateLimit(_) => {}
            _ => self.continues = false,
        }
    }

    /// The lines that a delta has completed: a line of the output never changes. A line that is too
    /// long is shown in pieces.
    fn whole_lines(&mut self, delta: &str) -> String {
        let before = self.partial.len();
        self.partial.push_str(delta);
        let end = match delta.rfind('\n') {
            Some(at) => before + at + 1,
            None if self.partial.len() > MAX_PARTIAL => self.partial.len(),
            None => 0,
        };
        let rest = self.partial.split_off(end);
        std::mem::replace(&mut self.partial, rest)
    }

    /// What the session has used: by the agent's own total, or else by the sum of its processes.
    fn used(&mut self, totals: &UsageTotals) -> Usage {
        self.run = usage(&totals.run);
        match usage(&totals.session) {
            session if session == Usage::default() => plus(self.earlier, self.run),
            session => session,
        }
    }
}

fn refusal(error: exec_core::Error) -> ActionError {
    let code = match &error {
        exec_core::Error::AlreadySettled { .. } => "already_settled",
        exec_core::Error::SessionEnded { .. } | exec_core::Error::TurnNotRunning { .. } => "gone",
        exec_core::Error::QueueFull { .. } | exec_core::Error::SessionBusy { .. } => "busy",
        exec_core::Error::EmptyPrompt { .. } => "invalid",
        _ => "failed",
    };
    ActionError::new(code, with_causes(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_the_last_message_of_the_agent_itself() {
        let mut progress = Progress::default();
        let text = |text: &str, delta| AgentEventKind::Text {
            text: text.into(),
            delta,
        };
        let thinking = AgentEventKind::Thinking {
            text: "hm".into(),
            delta: false,
        };
        progress.gather(&text("Let me look.", false).into());
        progress.gather(&thinking.into());
        progress.gather(&text("It is ", true).into());
        progress.gather(&AgentEvent::of_sub_agent("call", text("not this", false)));
        progress.gather(&text("done.", true).into());
        assert_eq!(progress.text, "It is done.");
        let long = "ä".repeat(MAX_TEXT);
        progress.gather(&text(&long, false).into());
        assert_eq!(progress.text.len(), MAX_TEXT);
    }

    #[test]
    fn deltas_make_whole_lines_and_an_endless_line_is_shown_in_pieces() {
        let mut progress = Progress::default();
        let mut lines = |delta: &str| progress.whole_lines(delta);
        assert_eq!(lines("a"), "");
        assert_eq!(lines("b\nc\nd"), "ab\nc\n");
        assert_eq!(lines("e\n"), "de\n");
        let shown: usize = (0..100_000).map(|_| lines("endless ").len()).sum();
        assert!(progress.partial.len() <= MAX_PARTIAL);
        assert_eq!(shown + progress.partial.len(), 800_000);
    }
}
