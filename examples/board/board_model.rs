//! The pure core of the board: changes in, events out. It does no I/O and has no clock: the caller
//! passes the time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::Serialize;
use serde_json::{Value, json};

use super::action::{Action, ActionError};
use super::board_event::BoardEvent;
use super::change::{AgentChange, Change};
use super::command::Command;
use super::entities::{
    Ability, Agent, AgentState, Budget, Claim, Decision, Failure, Message, Permission, QueueItem,
    Settlement, Snapshot,
};
use super::neutral_text::{neutral_line, neutral_text, visible_text};
use super::output_log::OutputLog;

/// How much the board keeps. What exceeds a limit is dropped, oldest first; agents beyond the limit
/// are not shown.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Agents.
    pub agents: usize,
    /// Messages.
    pub messages: usize,
    /// Bytes of all messages.
    pub message_bytes: usize,
    /// Bytes of one text.
    pub text_bytes: usize,
    /// Settled permission requests, and failures.
    pub records: usize,
    /// Open permission requests, waiting messages, and claims of one store.
    pub open: usize,
    /// Snapshots of one agent.
    pub snapshots: usize,
}

/// At most about 110 MB: 200 agents with 256 KiB of output each, 32 MiB of messages, and 24 MiB of
/// events in the ring.
impl Default for Limits {
    fn default() -> Self {
        Self {
            agents: 200,
            messages: 20_000,
            message_bytes: 32 * 1024 * 1024,
            text_bytes: 64 * 1024,
            records: 300,
            open: 1_000,
            snapshots: 60,
        }
    }
}

/// The state of the board.
///
/// Rules:
///
/// 1. An agent belongs to the source that has reported it first: that source gets its commands. An agent
///    of the same name from another source is not shown, and a failure tells so.
/// 2. A permission request is answered once. The first answer goes to the source; until the source
///    has confirmed it, and ever after, another answer is refused with the first one's decision.
/// 3. Text of agents is neutralised and bounded on its way in, so nothing behind needs to.
#[derive(Debug, Default)]
pub struct BoardModel {
    limits: Limits,
    agents: BTreeMap<String, OwnedAgent>,
    next_agent: u32,
    /// Agents that are not shown, because another source has one of the same name.
    hidden: BTreeSet<(usize, String)>,
    messages: VecDeque<Message>,
    message_bytes: usize,
    next_message: u64,
    permissions: VecDeque<OwnedPermission>,
    queue: VecDeque<(usize, QueueItem)>,
    claims: BTreeMap<String, Vec<Claim>>,
    snapshots: BTreeMap<String, VecDeque<Snapshot>>,
    failures: VecDeque<Failure>,
    next_failure: u64,
    budgets: Vec<Budget>,
}

#[derive(Debug, Default)]
struct OwnedAgent {
    agent: Agent,
    owner: usize,
    output: OutputLog,
}

#[derive(Debug)]
struct OwnedPermission {
    permission: Permission,
    owner: usize,
    /// The answer that its source is carrying out.
    answering: Option<Decision>,
    /// By what the request became void meanwhile.
    void_by: Option<String>,
}

/// How many messages the state contains; a client asks for older ones.
const STATE_MESSAGES: usize = 300;
/// How many messages one reply contains.
const PAGE_MESSAGES: usize = 1_000;

impl BoardModel {
    /// An empty board.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Takes a change of a source. The result is what clients must be told; output is not part of
    /// it, because clients ask for the output of one agent.
    pub fn apply(&mut self, source: usize, change: Change, now: u64) -> Vec<BoardEvent> {
        match change {
            Change::Agent(change) => self.change_agent(source, change, now),
            Change::AgentGone { agent } => self.remove_agent(source, &agent, now),
            Change::Message {
                id,
                from,
                to,
                kind,
                text,
                at,
                reply_to,
            } => {
                let (text, cut) = self.text(&text);
                self.next_message += 1;
                let message = Message {
                    number: self.next_message,
                    id,
                    from: name(&from),
                    to: name(&to),
                    kind: name(&kind),
                    text,
                    cut,
                    at: at.unwrap_or(now),
                    reply_to,
                };
                self.keep_message(message.clone());
                vec![BoardEvent::Message { message }]
            }
            Change::Output {
                agent,
                stream,
                text,
            } => {
                if let Some(owned) = self.owned(source, &agent) {
                    owned.output.push(stream, &neutral_text(&text));
                }
                Vec::new()
            }
            Change::Screen { agent, text } => {
                if let Some(owned) = self.owned(source, &agent) {
                    owned.output.set_screen(&neutral_text(&text));
                }
                Vec::new()
            }
            Change::Permission(permission) => self.ask(source, permission, now),
            Change::PermissionSettled { id, decision, by } => {
                self.settle(&id, decision, &by, now).into_iter().collect()
            }
            Change::Queued(item) => {
                let (text, _) = self.text(&item.text);
                let item = QueueItem {
                    agent: neutral_line(&item.agent),
                    from: name(&item.from),
                    text,
                    at: if item.at == 0 { now } else { item.at },
                    ..item
                };
                // Two sources can show one inbox.
                let is_known = self.queue.iter().any(|(_, known)| known.id == item.id);
                if is_known || self.queue.len() >= self.limits.open {
                    return Vec::new();
                }
                self.queue.push_back((source, item.clone()));
                vec![BoardEvent::Queued { item }]
            }
            Change::QueuedGone { id, outcome } => {
                let Some(at) = self.queue.iter().position(|(_, item)| item.id == id) else {
                    return Vec::new();
                };
                self.queue.remove(at);
                vec![BoardEvent::QueuedGone { id, outcome }]
            }
            Change::Claims { store, mut claims } => {
                claims.truncate(self.limits.open);
                for claim in &mut claims {
                    claim.value = neutral_line(cut_text(&claim.value, 512).0);
                    claim.session = name(&claim.session);
                    claim.store = name(&claim.store);
                }
                let store = name(&store);
                if self.claims.get(&store) == Some(&claims) {
                    return Vec::new();
                }
                self.claims.insert(store.clone(), claims.clone());
                vec![BoardEvent::Claims { store, claims }]
            }
            Change::Snapshot(mut snapshot) => {
                snapshot.agent = name(&snapshot.agent);
                let list = self.snapshots.entry(snapshot.agent.clone()).or_default();
                if list.back() == Some(&snapshot) {
                    return Vec::new();
                }
                if list.len() >= self.limits.snapshots {
                    list.pop_front();
                }
                list.push_back(snapshot.clone());
                vec![BoardEvent::Snapshot { snapshot }]
            }
            Change::Failure {
                agent,
                class,
                message,
                resets,
                at,
            } => {
                self.next_failure += 1;
                let failure = Failure {
                    number: self.next_failure,
                    agent: name(&agent),
                    class: name(&class),
                    message: neutral_text(cut_text(&message, 4_096).0).into_owned(),
                    resets,
                    at: at.unwrap_or(now),
                };
                if self.failures.len() >= self.limits.records {
                    self.failures.pop_front();
                }
                self.failures.push_back(failure.clone());
                vec![BoardEvent::Failure { failure }]
            }
            Change::Budget(budget) => {
                self.budgets.retain(|other| other.agent != budget.agent);
                self.budgets.push(budget.clone());
                vec![BoardEvent::Budget { budget }]
            }
        }
    }

    fn change_agent(&mut self, source: usize, change: AgentChange, now: u64) -> Vec<BoardEvent> {
        let id = neutral_line(&change.id);
        let owner = self.agents.get(&id).map(|owned| owned.owner);
        if owner.is_some_and(|owner| owner != source) {
            return self.hide(source, id, now);
        }
        let known = owner.is_some();
        if !known && self.agents.len() >= self.limits.agents {
            return Vec::new();
        }
        let owned = self.agents.entry(id.clone()).or_default();
        owned.owner = source;
        let before = owned.agent.clone();
        let agent = &mut owned.agent;
        agent.id.clone_from(&id);
        if !known {
            (agent.name, agent.since) = (id.clone(), now);
            agent.order = u32::MAX;
        }
        let set = |field: &mut String, value: Option<String>| {
            if let Some(value) = value {
                *field = name(&value);
            }
        };
        set(&mut agent.name, change.name);
        set(&mut agent.role, change.role);
        set(&mut agent.kind, change.kind);
        set(&mut agent.place, change.place);
        if let Some((state, mut evidence)) = change.state {
            evidence.detail = neutral_line(cut_text(&evidence.detail, 512).0);
            if agent.state != state {
                agent.since = now;
            }
            (agent.state, agent.evidence) = (state, evidence);
        }
        agent.restarts += u32::from(change.restarted);
        agent.usage = change.usage.unwrap_or(agent.usage);
        if let Some(can) = change.can {
            agent.can = can;
            if agent.order == u32::MAX {
                self.next_agent += 1;
                agent.order = self.next_agent;
            }
        }
        if known && *agent == before {
            return Vec::new();
        }
        let agent = agent.clone();
        let ended = agent.state == AgentState::Exited;
        let mut events = vec![BoardEvent::Agent { agent }];
        if ended {
            events.extend(self.void_permissions(source, &id, now));
        }
        events
    }

    /// The agent of this source, if it is shown.
    fn owned(&mut self, source: usize, agent: &str) -> Option<&mut OwnedAgent> {
        let owned = self.agents.get_mut(agent);
        owned.filter(|owned| owned.owner == source)
    }

    /// Tells once that an agent is not shown. As one agent, a command for one could reach the other.
    fn hide(&mut self, source: usize, agent: String, now: u64) -> Vec<BoardEvent> {
        if self.hidden.len() >= self.limits.open || !self.hidden.insert((source, agent.clone())) {
            return Vec::new();
        }
        let told = Change::Failure {
            agent,
            class: "source".to_owned(),
            message: "a second agent of this name is not shown".to_owned(),
            resets: None,
            at: None,
        };
        self.apply(source, told, now)
    }

    fn remove_agent(&mut self, source: usize, id: &str, now: u64) -> Vec<BoardEvent> {
        if self.owned(source, id).is_none() {
            return Vec::new();
        }
        self.agents.remove(id);
        let mut events = self.void_permissions(source, id, now);
        events.push(BoardEvent::AgentGone { id: id.to_owned() });
        events
    }

    /// An agent that has ended waits for no answer.
    fn void_permissions(&mut self, source: usize, agent: &str, now: u64) -> Vec<BoardEvent> {
        let is_its = |owned: &&OwnedPermission| {
            let OwnedPermission {
                permission, owner, ..
            } = owned;
            *owner == source && permission.agent == agent && permission.settled.is_none()
        };
        let open = self.permissions.iter().filter(is_its);
        let open: Vec<String> = open.map(|owned| owned.permission.id.clone()).collect();
        let settled = open.iter().map(|id| self.settle(id, None, "cancel", now));
        settled.flatten().collect()
    }

    fn ask(&mut self, source: usize, permission: Permission, now: u64) -> Vec<BoardEvent> {
        let is_open = |owned: &OwnedPermission| owned.permission.settled.is_none();
        let open = self
            .permissions
            .iter()
            .filter(|owned| is_open(owned))
            .count();
        let known = |owned: &OwnedPermission| owned.permission.id == permission.id;
        if open >= self.limits.open || self.permissions.iter().any(known) {
            return Vec::new();
        }
        if self.permissions.len() - open >= self.limits.records
            && let Some(oldest) = self.permissions.iter().position(|owned| !is_open(owned))
        {
            self.permissions.remove(oldest);
        }
        let permission = Permission {
            agent: neutral_line(&permission.agent),
            tool: name(&permission.tool),
            detail: detail(&permission.detail),
            asked: now,
            settled: None,
            ..permission
        };
        self.permissions.push_back(OwnedPermission {
            permission: permission.clone(),
            owner: source,
            answering: None,
            void_by: None,
        });
        vec![BoardEvent::Permission { permission }]
    }

    fn settle(
        &mut self,
        id: &str,
        decision: Option<Decision>,
        by: &str,
        now: u64,
    ) -> Option<BoardEvent> {
        let mut all = self.permissions.iter_mut();
        let owned = all.find(|owned| owned.permission.id == id)?;
        if owned.permission.settled.is_some() {
            return None;
        }
        // Race: a question in a pane disappears with the key, before the source has confirmed the answer.
        if owned.answering.is_some() && decision.is_none() {
            owned.void_by = Some(by.to_owned());
            return None;
        }
        // A source reports our own answer as that of its caller.
        let ours = owned.answering.is_some() && owned.answering == decision;
        let by = if ours { "page" } else { by }.to_owned();
        owned.permission.settled = Some(Settlement {
            decision,
            by,
            at: now,
        });
        let permission = owned.permission.clone();
        Some(BoardEvent::Permission { permission })
    }

    /// Turns a command into the action of a source, named by its number.
    ///
    /// An answer is reserved by this call: end it with [`Self::answered`].
    ///
    /// # Errors
    ///
    /// Nothing by that id is there, it cannot do that, or another answer was first.
    pub fn begin(&mut self, command: &Command) -> Result<(usize, Action), ActionError> {
        match command {
            Command::Send { agent, text } => {
                if text.trim().is_empty() {
                    return Err(ActionError::new("invalid", "the message is empty"));
                }
                if text.len() > self.limits.text_bytes {
                    let limit = self.limits.text_bytes;
                    let message = format!("the message is longer than {limit} bytes");
                    return Err(ActionError::new("invalid", message));
                }
                let owner = self.owner(agent, Ability::Send)?;
                let (agent, text) = (agent.clone(), text.clone());
                Ok((owner, Action::Send { agent, text }))
            }
            Command::Interrupt { agent } => {
                let owner = self.owner(agent, Ability::Interrupt)?;
                let agent = agent.clone();
                Ok((owner, Action::Interrupt { agent }))
            }
            Command::Stop { agent } => {
                let owner = self.owner(agent, Ability::Stop)?;
                let agent = agent.clone();
                Ok((owner, Action::Stop { agent }))
            }
            Command::Restart { agent } => {
                let owner = self.owner(agent, Ability::Restart)?;
                let agent = agent.clone();
                Ok((owner, Action::Restart { agent }))
            }
            Command::Answer {
                permission,
                decision,
            } => self.begin_answer(permission, *decision),
            Command::TakeBack { item } => {
                let found = self.queue.iter().find(|(_, queued)| queued.id == *item);
                let Some((owner, queued)) = found else {
                    let message = "the message no longer waits";
                    return Err(ActionError::new("gone", message));
                };
                let (agent, item) = (queued.agent.clone(), item.clone());
                Ok((*owner, Action::TakeBack { agent, item }))
            }
            Command::Open { .. } | Command::Watch { .. } | Command::Messages { .. } => {
                Err(ActionError::new("invalid", "not a command for an agent"))
            }
        }
    }

    fn owner(&self, agent: &str, ability: Ability) -> Result<usize, ActionError> {
        let Some(owned) = self.agents.get(agent) else {
            let message = format!("no agent `{}`", neutral_line(agent));
            return Err(ActionError::new("unknown", message));
        };
        if !owned.agent.can.contains(&ability) {
            let name = &owned.agent.name;
            let message = match ability {
                Ability::Send => format!("{name} takes no messages from here"),
                Ability::Interrupt => format!("{name} cannot be interrupted from here"),
                Ability::Stop => format!("{name} cannot be stopped from here"),
                Ability::Restart => format!("{name} cannot be restarted from here"),
            };
            return Err(ActionError::new("not_able", message));
        }
        Ok(owned.owner)
    }

    fn begin_answer(
        &mut self,
        id: &str,
        decision: Decision,
    ) -> Result<(usize, Action), ActionError> {
        let mut all = self.permissions.iter_mut();
        let Some(owned) = all.find(|owned| owned.permission.id == id) else {
            return Err(ActionError::new("unknown", "no such permission request"));
        };
        let words = |decision| match decision {
            Some(Decision::Allow) => "allowed",
            Some(Decision::Deny) => "denied",
            None => "void",
        };
        if let Some(settled) = &owned.permission.settled {
            let how = words(settled.decision);
            let message = format!("already {how} by {}", settled.by);
            return Err(ActionError::new("already_settled", message));
        }
        if owned.answering.is_some() {
            let message = format!("already {} by page", words(owned.answering));
            return Err(ActionError::new("already_settled", message));
        }
        owned.answering = Some(decision);
        let (agent, permission) = (owned.permission.agent.clone(), id.to_owned());
        let action = Action::Answer {
            agent,
            permission,
            decision,
        };
        Ok((owned.owner, action))
    }

    /// The source has carried out the answer, or could not: then the request is open again.
    pub fn answered(&mut self, id: &str, done: bool, now: u64) -> Option<BoardEvent> {
        let mut all = self.permissions.iter_mut();
        let owned = all.find(|owned| owned.permission.id == id)?;
        let decision = owned.answering.take()?;
        match (done, owned.void_by.take()) {
            (true, _) => self.settle(id, Some(decision), "page", now),
            (false, Some(by)) => self.settle(id, None, &by, now),
            (false, None) => None,
        }
    }

    /// The whole state but for older messages and output.
    pub fn state(&self) -> Value {
        let first = self.messages.len().saturating_sub(STATE_MESSAGES);
        let messages: Vec<&Message> = self.messages.range(first..).collect();
        let mut agents: Vec<&OwnedAgent> = self.agents.values().collect();
        agents.sort_by_key(|owned| owned.agent.order);
        json!({
            "agents": list(agents.iter().map(|owned| &owned.agent)),
            "messages": messages,
            "first_message": self.messages.front().map(|message| message.number),
            "permissions": list(self.permissions.iter().map(|owned| &owned.permission)),
            "queue": list(self.queue.iter().map(|(_, item)| item)),
            "claims": self.claims,
            "snapshots": list(self.snapshots.values().flatten()),
            "failures": self.failures,
            "budgets": self.budgets,
        })
    }

    /// The newest messages with a number below `before`, oldest first.
    pub fn messages_before(&self, before: u64, limit: usize) -> Vec<&Message> {
        let end = self
            .messages
            .partition_point(|message| message.number < before);
        let start = end.saturating_sub(limit.min(PAGE_MESSAGES));
        self.messages.range(start..end).collect()
    }

    /// The output of an agent.
    pub fn output(&self, agent: &str) -> Option<&OutputLog> {
        self.agents.get(agent).map(|owned| &owned.output)
    }

    fn text(&self, text: &str) -> (String, usize) {
        let (kept, cut) = cut_text(text, self.limits.text_bytes);
        (neutral_text(kept).into_owned(), cut)
    }

    fn keep_message(&mut self, message: Message) {
        self.message_bytes += message.text.len();
        self.messages.push_back(message);
        while self.messages.len() > self.limits.messages
            || self.message_bytes > self.limits.message_bytes
        {
            let Some(oldest) = self.messages.pop_front() else {
                break;
            };
            self.message_bytes -= oldest.text.len();
        }
    }
}

fn list<T: Serialize>(items: impl Iterator<Item = T>) -> Value {
    let items = items.map(|item| serde_json::to_value(item).unwrap_or(Value::Null));
    Value::Array(items.collect())
}

/// A name or label in one line, bounded.
fn name(text: &str) -> String {
    neutral_line(cut_text(text, 512).0)
}

/// What a person is asked to allow. The first line tells what is not shown: an agent could hide the
/// end of a command behind a long beginning. Nothing else is left out.
fn detail(text: &str) -> String {
    let (kept, cut) = cut_text(text, 16 * 1024);
    let kept = visible_text(kept);
    match cut {
        0 => kept,
        cut => format!("{cut} bytes at the end are not shown\n{kept}"),
    }
}

/// The first bytes of a text, cut between two characters, and how many bytes are left out.
pub(super) fn cut_text(text: &str, limit: usize) -> (&str, usize) {
    if text.len() <= limit {
        return (text, 0);
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (&text[..end], text.len() - end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn permission(id: &str) -> Change {
        Change::Permission(Permission {
            id: id.to_owned(),
            agent: "a".to_owned(),
            tool: "Bash".to_owned(),
            detail: "rm -r build".to_owned(),
            asked: 0,
            deadline: None,
            settled: None,
        })
    }

    fn message(text: &str) -> Change {
        Change::Message {
            id: "m".to_owned(),
            from: "a".to_owned(),
            to: "b".to_owned(),
            kind: "info".to_owned(),
            text: text.to_owned(),
            at: None,
            reply_to: None,
        }
    }

    fn answer(decision: Decision) -> Command {
        let permission = "p".to_owned();
        Command::Answer {
            permission,
            decision,
        }
    }

    fn with_agent() -> BoardModel {
        let mut model = BoardModel::new(Limits::default());
        let agent = AgentChange::new("a").can([Ability::Send]);
        assert_eq!(model.apply(3, agent.into(), 1).len(), 1);
        model
    }

    #[test]
    fn the_first_answer_wins_and_the_second_is_told() {
        let mut model = with_agent();
        model.apply(3, permission("p"), 5);
        let (owner, action) = model.begin(&answer(Decision::Deny)).unwrap();
        assert_eq!(owner, 3);
        assert!(matches!(
            action,
            Action::Answer {
                decision: Decision::Deny,
                ..
            }
        ));
        let refused = model.begin(&answer(Decision::Allow)).unwrap_err();
        assert_eq!(
            refused,
            ActionError::new("already_settled", "already denied by page")
        );
        let settled = model.answered("p", true, 9).unwrap();
        let BoardEvent::Permission { permission } = settled else {
            panic!("{settled:?}");
        };
        assert_eq!(permission.settled.unwrap().decision, Some(Decision::Deny));
        let refused = model.begin(&answer(Decision::Allow)).unwrap_err();
        assert_eq!(refused.code, "already_settled");
        assert_eq!(model.answered("p", true, 9), None);
    }

    #[test]
    fn an_answer_that_failed_leaves_the_request_open() {
        let mut model = with_agent();
        model.apply(3, permission("p"), 5);
        model.begin(&answer(Decision::Allow)).unwrap();
        assert_eq!(model.answered("p", false, 6), None);
        assert!(model.begin(&answer(Decision::Allow)).is_ok());
    }

    #[test]
    fn a_question_that_disappears_with_its_answer_was_answered() {
        for (done, by) in [(true, "page"), (false, "pane")] {
            let mut model = with_agent();
            model.apply(3, permission("p"), 5);
            model.begin(&answer(Decision::Allow)).unwrap();
            let (id, by_pane) = ("p".to_owned(), "pane".to_owned());
            let gone = Change::PermissionSettled {
                id,
                decision: None,
                by: by_pane,
            };
            assert!(model.apply(3, gone, 6).is_empty());
            let settled = model.answered("p", done, 7).unwrap();
            let BoardEvent::Permission { permission } = settled else {
                panic!("{settled:?}");
            };
            let settled = permission.settled.unwrap();
            assert_eq!(settled.decision, done.then_some(Decision::Allow));
            assert_eq!(settled.by, by);
        }
    }

    #[test]
    fn a_deadline_that_comes_first_wins() {
        let mut model = with_agent();
        model.apply(3, permission("p"), 5);
        let (id, by) = ("p".to_owned(), "deadline".to_owned());
        let decision = Some(Decision::Deny);
        let late = Change::PermissionSettled { id, decision, by };
        assert_eq!(model.apply(3, late, 7).len(), 1);
        let refused = model.begin(&answer(Decision::Allow)).unwrap_err();
        assert_eq!(refused.message, "already denied by deadline");
    }

    #[test]
    fn the_end_of_an_agent_voids_its_requests() {
        let mut model = with_agent();
        model.apply(3, permission("p"), 5);
        let ended = AgentChange::new("a").state(AgentState::Exited, "process", "signal 9");
        let events = model.apply(3, ended.into(), 8);
        assert_eq!(events.len(), 2);
        assert_eq!(
            model.begin(&answer(Decision::Allow)).unwrap_err().code,
            "already_settled"
        );
    }

    #[test]
    fn a_command_needs_an_agent_that_can() {
        let mut model = with_agent();
        let agent = "a".to_owned();
        let refused = model.begin(&Command::Stop { agent }).unwrap_err();
        assert_eq!(refused.code, "not_able");
        let (agent, text) = ("b".to_owned(), "x".to_owned());
        let refused = model.begin(&Command::Send { agent, text }).unwrap_err();
        assert_eq!(refused.code, "unknown");
        let (agent, text) = ("a".to_owned(), " \n".to_owned());
        let refused = model.begin(&Command::Send { agent, text }).unwrap_err();
        assert_eq!(refused.code, "invalid");
    }

    #[test]
    fn an_unchanged_agent_is_no_event() {
        let mut model = with_agent();
        let idle = || AgentChange::new("a").state(AgentState::Idle, "hook", "Stop");
        assert_eq!(model.apply(3, idle().into(), 5).len(), 1);
        assert_eq!(model.apply(3, idle().into(), 6).len(), 0);
    }

    #[test]
    fn an_agent_of_another_source_with_the_same_name_does_not_take_its_place() {
        let mut model = with_agent();
        model.apply(3, permission("p"), 5);
        let state = model.state();
        let other = || {
            let agent = AgentChange::new("a").can([Ability::Stop]);
            agent.state(AgentState::Exited, "process", "signal 9")
        };
        let told = model.apply(4, other().into(), 6);
        let [BoardEvent::Failure { failure }] = &told[..] else {
            panic!("{told:?}");
        };
        assert_eq!(failure.message, "a second agent of this name is not shown");
        assert!(model.apply(4, other().into(), 7).is_empty());
        let (agent, stream, text) = ("a".to_owned(), "out", "not mine".to_owned());
        let output = Change::Output {
            agent,
            stream,
            text,
        };
        model.apply(4, output, 7);
        assert!(model.output("a").unwrap().after(0, 1).is_empty());
        for part in ["agents", "permissions"] {
            assert_eq!(model.state()[part], state[part]);
        }
        let (agent, text) = ("a".to_owned(), "hello".to_owned());
        let (owner, _) = model.begin(&Command::Send { agent, text }).unwrap();
        assert_eq!(owner, 3);
    }

    #[test]
    fn messages_are_bounded_neutral_and_numbered_without_a_gap() {
        let mut model = BoardModel::new(Limits {
            messages: 10,
            text_bytes: 8,
            ..Limits::default()
        });
        for _ in 0..25 {
            model.apply(0, message("a\u{202e}äääää"), 1);
        }
        let state = model.state();
        assert_eq!(state["messages"].as_array().unwrap().len(), 10);
        assert_eq!(state["first_message"], 16);
        assert_eq!(state["messages"][9]["text"], "a‹U+202E›ää");
        assert_eq!(state["messages"][9]["cut"], 6);
        let numbers: Vec<u64> = model
            .messages_before(20, 3)
            .iter()
            .map(|m| m.number)
            .collect();
        assert_eq!(numbers, [17, 18, 19]);
    }

    /// Every text of every change is from an agent, a file or a server.
    #[test]
    fn no_change_brings_a_special_or_an_endless_text_to_the_page() {
        let trick = || format!("\u{1b}[2J<b>\u{202e}\u{9b}1A\u{0}{}", "x".repeat(1 << 20));
        let mut model = BoardModel::new(Limits::default());
        let agent = AgentChange {
            name: Some(trick()),
            role: Some(trick()),
            ..AgentChange::new("a\u{202e}")
        };
        let agent = agent.kind(trick(), trick()).can([Ability::Send]);
        let agent = agent.state(AgentState::Idle, "hook", trick());
        let changes = [
            agent.into(),
            Change::Message {
                id: "m".to_owned(),
                from: trick(),
                to: trick(),
                kind: trick(),
                text: trick(),
                at: None,
                reply_to: None,
            },
            Change::Permission(Permission {
                id: "p".to_owned(),
                agent: "a\u{202e}".to_owned(),
                tool: trick(),
                detail: trick(),
                ..Permission::default()
            }),
            Change::Queued(QueueItem {
                id: "q".to_owned(),
                agent: "a\u{202e}".to_owned(),
                from: trick(),
                text: trick(),
                at: 0,
            }),
            Change::Claims {
                store: trick(),
                claims: vec![Claim {
                    store: trick(),
                    session: trick(),
                    value: trick(),
                    token: None,
                    expires: 1,
                }],
            },
            Change::Snapshot(Snapshot {
                agent: trick(),
                tick: 1,
                epoch: 1,
                messages: 1,
                bytes: 1,
                at: 1,
            }),
            Change::Failure {
                agent: trick(),
                class: trick(),
                message: trick(),
                resets: None,
                at: None,
            },
        ];
        for change in changes {
            let events = model.apply(3, change, 1);
            check_texts(&json!(events));
        }
        check_texts(&model.state());
        // The request is one of the agent, whatever its name.
        let ended = AgentChange::new("a\u{202e}").state(AgentState::Exited, "process", "");
        assert_eq!(model.apply(3, ended.into(), 8).len(), 2);
    }

    #[track_caller]
    fn check_texts(value: &Value) {
        match value {
            Value::String(text) => {
                assert_eq!(neutral_text(text), *text);
                assert!(text.len() <= 128 * 1024, "{} bytes", text.len());
            }
            Value::Array(list) => list.iter().for_each(check_texts),
            Value::Object(map) => {
                for (key, value) in map {
                    assert_eq!(neutral_text(key), *key);
                    check_texts(value);
                }
            }
            _ => {}
        }
    }

    #[test]
    fn a_request_tells_that_its_end_is_not_shown() {
        let mut model = with_agent();
        let hidden = format!("echo {}; rm -r ~", " ".repeat(20_000));
        model.apply(
            3,
            Change::Permission(Permission {
                id: "p".to_owned(),
                agent: "a".to_owned(),
                detail: hidden,
                ..Permission::default()
            }),
            5,
        );
        let shown = model.state()["permissions"][0]["detail"].clone();
        let shown = shown.as_str().unwrap();
        assert!(
            shown.starts_with("3630 bytes at the end are not shown\n"),
            "{}",
            &shown[..60]
        );
    }

    #[test]
    fn a_request_shows_the_commands_inside_of_escape_sequences() {
        for hidden in [
            "ls \u{1b}]0;rm -r ~;\u{7}",
            "ls \u{9d}0;rm -r ~;\u{9c}",
            "ls \u{1b}P;rm -r ~;\u{1b}\\",
            "ls \u{1b}[;rm -r ~",
            "ls \u{9b};rm -r ~",
            "ls;\rrm -r ~",
        ] {
            let mut model = with_agent();
            let request = Permission {
                id: "p".to_owned(),
                agent: "a".to_owned(),
                detail: hidden.to_owned(),
                ..Permission::default()
            };
            model.apply(3, Change::Permission(request), 5);
            let state = model.state();
            let shown = state["permissions"][0]["detail"].as_str().unwrap();
            assert!(
                shown.contains("rm -r ~"),
                "{hidden:?} is shown as {shown:?}"
            );
            assert_eq!(neutral_text(shown), shown);
        }
    }

    #[test]
    fn a_message_that_waits_can_be_taken_back_once() {
        let mut model = with_agent();
        let item = QueueItem {
            id: "q1".to_owned(),
            agent: "a".to_owned(),
            from: "user".to_owned(),
            text: "later".to_owned(),
            at: 0,
        };
        assert_eq!(model.apply(3, Change::Queued(item), 1).len(), 1);
        let take_back = Command::TakeBack {
            item: "q1".to_owned(),
        };
        assert_eq!(model.begin(&take_back).unwrap().0, 3);
        let (id, outcome) = ("q1".to_owned(), "taken_back");
        assert_eq!(
            model.apply(3, Change::QueuedGone { id, outcome }, 2).len(),
            1
        );
        assert_eq!(model.begin(&take_back).unwrap_err().code, "gone");
    }
}
