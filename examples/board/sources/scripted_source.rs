//! Agents that are played inside of this program: for `board --demo` and for tests of the page.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::{Notify, oneshot};

use super::super::action::{Action, ActionError};
use super::super::change::{AgentChange, Change};
use super::super::entities::{
    Ability, AgentState, Claim, Decision, Permission, QueueItem, Snapshot, Usage,
};
use super::super::hub::{Feed, lock, now};
use super::super::source::Source;
use super::story::{Step, Story, steps_of};

/// Most messages that wait for one agent.
const MAX_WAITING: usize = 64;

/// Scripted agents. A message to one is answered with `done: ` and the message; directives in it
/// make the agent do more:
///
/// | directive | effect |
/// |---|---|
/// | `[[print TEXT]]` | prints a line |
/// | `[[ask COMMAND]]` | asks for the permission to run a command |
/// | `[[say TEXT]]` | answers with this text |
/// | `[[hold]]` | works until it is interrupted |
/// | `[[fail CLASS]]` | reports a failure of this class |
/// | `[[die]]` | ends as a killed process does |
pub struct ScriptedSource {
    agents: Vec<Arc<ScriptedAgent>>,
    story: Option<Story>,
    feed: OnceLock<Feed>,
    next_id: AtomicU64,
    /// Agent -> its claim.
    claims: Mutex<BTreeMap<String, Claim>>,
}

struct ScriptedAgent {
    id: String,
    name: String,
    role: String,
    kind: String,
    desk: Mutex<Desk>,
    /// A message waits, or the agent is started.
    wake: Notify,
    /// The turn must end.
    interrupt: Notify,
    /// The process must end.
    kill: Notify,
}

/// What an agent knows of its work.
#[derive(Default)]
struct Desk {
    running: bool,
    in_turn: bool,
    waiting: VecDeque<Waiting>,
    asked: BTreeMap<String, oneshot::Sender<Decision>>,
    turn: u64,
    tick: u64,
    epoch: u64,
    usage: Usage,
}

struct Waiting {
    id: String,
    from: String,
    text: String,
    steps: Vec<Step>,
    done: Option<oneshot::Sender<()>>,
}

/// How a turn has ended.
enum TurnEnd {
    Answered(String),
    Interrupted,
    Died,
}

impl ScriptedSource {
    /// Agents that wait for messages.
    #[must_use]
    pub fn new(names: &[&str]) -> Self {
        let agents = names.iter().map(|name| (*name, *name, "", "scripted"));
        Self::with_agents(agents, None)
    }

    /// The five agents of the specification at work on a story that repeats.
    #[must_use]
    pub fn story() -> Self {
        Self::with_agents(Story::AGENTS.into_iter(), Some(Story))
    }

    fn with_agents<'a>(
        agents: impl Iterator<Item = (&'a str, &'a str, &'a str, &'a str)>,
        story: Option<Story>,
    ) -> Self {
        let agents = agents.map(|(id, name, role, kind)| {
            let agent = ScriptedAgent {
                id: id.to_owned(),
                name: name.to_owned(),
                role: role.to_owned(),
                kind: kind.to_owned(),
                desk: Mutex::default(),
                wake: Notify::new(),
                interrupt: Notify::new(),
                kill: Notify::new(),
            };
            Arc::new(agent)
        });
        Self {
            agents: agents.collect(),
            story,
            feed: OnceLock::new(),
            next_id: AtomicU64::new(1),
            claims: Mutex::default(),
        }
    }

    fn new_id(&self, prefix: &str) -> String {
        let n = self.next_id.fetch_add(1, Ordering::Relaxed);
        format!("{prefix}{n}")
    }

    fn agent(&self, id: &str) -> Result<&Arc<ScriptedAgent>, ActionError> {
        let agent = self.agents.iter().find(|agent| agent.id == id);
        agent.ok_or_else(|| ActionError::new("unknown", format!("no agent `{id}`")))
    }

    /// Gives an agent a message; the result resolves when the agent has answered it.
    fn give(
        &self,
        from: &str,
        to: &ScriptedAgent,
        text: &str,
        steps: Vec<Step>,
    ) -> Result<oneshot::Receiver<()>, ActionError> {
        let (done, answered) = oneshot::channel();
        let id = self.new_id("m");
        let mut desk = lock(&to.desk);
        if desk.waiting.len() >= MAX_WAITING {
            return Err(ActionError::new("busy", "too many messages wait"));
        }
        desk.waiting.push_back(Waiting {
            id: id.clone(),
            from: from.to_owned(),
            text: text.to_owned(),
            steps,
            done: Some(done),
        });
        // Under the lock: the agent must not take the message before the page shows it.
        if let Some(feed) = self.feed.get() {
            feed.push(Change::Queued(QueueItem {
                id,
                agent: to.id.clone(),
                from: from.to_owned(),
                text: text.to_owned(),
                at: 0,
            }));
        }
        drop(desk);
        to.wake.notify_one();
        Ok(answered)
    }

    /// Plays the story again and again.
    async fn tell(&self, story: Story) {
        for round in 0.. {
            for (from, to, text, steps) in story.round(round) {
                let Ok(agent) = self.agent(to) else { continue };
                let from = self.agent(from).map_or(from, |agent| agent.name.as_str());
                if let Ok(answered) = self.give(from, agent, text, steps) {
                    let _ = answered.await;
                }
                tokio::time::sleep(Duration::from_millis(900)).await;
            }
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
    }

    async fn play(&self, agent: &ScriptedAgent, feed: &Feed) {
        loop {
            let next = {
                let mut desk = lock(&agent.desk);
                match desk.running {
                    true => desk.waiting.pop_front(),
                    false => None,
                }
            };
            let Some(mut message) = next else {
                tokio::select! {
                    () = agent.wake.notified() => {}
                    () = agent.kill.notified() => self.end(agent, feed, "stopped by the user"),
                }
                continue;
            };
            let end = self.turn(agent, feed, &mut message).await;
            let text = match end {
                TurnEnd::Answered(text) => text,
                TurnEnd::Interrupted => "interrupted".to_owned(),
                TurnEnd::Died => {
                    self.end(agent, feed, "signal 9");
                    continue;
                }
            };
            feed.push(Change::Message {
                id: self.new_id("m"),
                from: agent.name.clone(),
                to: message.from,
                kind: "result".to_owned(),
                text,
                at: None,
                reply_to: Some(message.id),
            });
            self.save(agent, feed);
            let detail = format!("turn {} ended", lock(&agent.desk).turn);
            let usage = lock(&agent.desk).usage;
            let idle = AgentChange::new(&agent.id).state(AgentState::Idle, "event", detail);
            feed.push(idle.usage(usage));
            if let Some(done) = message.done.take() {
                let _ = done.send(());
            }
        }
    }

    async fn turn(&self, agent: &ScriptedAgent, feed: &Feed, message: &mut Waiting) -> TurnEnd {
        let turn = {
            let mut desk = lock(&agent.desk);
            desk.turn += 1;
            desk.in_turn = true;
            desk.usage.input_tokens += 9_000 + 30 * message.text.len() as u64;
            desk.turn
        };
        let detail = format!("turn {turn} started");
        let working = AgentChange::new(&agent.id).state(AgentState::Working, "event", detail);
        feed.push(working);
        feed.push(Change::QueuedGone {
            id: message.id.clone(),
            outcome: "delivered",
        });
        feed.push(Change::Message {
            id: message.id.clone(),
            from: message.from.clone(),
            to: agent.name.clone(),
            kind: "task".to_owned(),
            text: message.text.clone(),
            at: None,
            reply_to: None,
        });
        let print = |stream, text: &str| {
            feed.push(Change::Output {
                agent: agent.id.clone(),
                stream,
                text: text.to_owned(),
            });
        };
        print("note", &format!("── turn {turn}, from {}", message.from));
        let work = self.take_steps(agent, feed, message, &print);
        let end = tokio::select! {
            end = work => end,
            () = agent.interrupt.notified() => TurnEnd::Interrupted,
            () = agent.kill.notified() => TurnEnd::Died,
        };
        lock(&agent.desk).in_turn = false;
        self.void_questions(agent, feed);
        self.claim(agent, feed, None);
        if let TurnEnd::Answered(text) = &end {
            let mut desk = lock(&agent.desk);
            desk.usage.output_tokens += 400 + 3 * text.len() as u64;
            let tokens = desk.usage.input_tokens + 5 * desk.usage.output_tokens;
            desk.usage.cost_usd = Some(tokens as f64 * 3.0e-6);
        }
        end
    }

    async fn take_steps(
        &self,
        agent: &ScriptedAgent,
        feed: &Feed,
        message: &Waiting,
        print: &(impl Fn(&'static str, &str) + Sync),
    ) -> TurnEnd {
        let mut answer = format!("done: {}", message.text);
        for step in &message.steps {
            match step {
                Step::Wait(time) => tokio::time::sleep(*time).await,
                Step::Print(stream, text) => print(stream, text),
                Step::Say(text) => answer.clone_from(text),
                Step::Hold => std::future::pending().await,
                Step::Die => return TurnEnd::Died,
                Step::Fail(class, text) => feed.push(Change::Failure {
                    agent: agent.id.clone(),
                    class: class.clone(),
                    message: text.clone(),
                    resets: (class == "limited").then(|| now() + 63_000),
                    at: None,
                }),
                Step::Claim(value) => self.claim(agent, feed, Some(value)),
                Step::Ask(tool, detail) => {
                    let allowed = self.ask(agent, feed, tool, detail).await == Decision::Allow;
                    let word = if allowed { "allowed" } else { "denied" };
                    print("tool", &format!("{tool}: {detail} ({word})"));
                    answer = format!("{word}: {detail}");
                }
            }
        }
        print("text", &answer);
        TurnEnd::Answered(answer)
    }

    async fn ask(&self, agent: &ScriptedAgent, feed: &Feed, tool: &str, detail: &str) -> Decision {
        const LIMIT: Duration = Duration::from_secs(120);
        let id = self.new_id("p");
        let (answer, answered) = oneshot::channel();
        lock(&agent.desk).asked.insert(id.clone(), answer);
        let asks = format!("permission asked: {tool}");
        feed.push(AgentChange::new(&agent.id).state(AgentState::Waiting, "event", asks));
        feed.push(Change::Permission(Permission {
            id: id.clone(),
            agent: agent.id.clone(),
            tool: tool.to_owned(),
            detail: detail.to_owned(),
            asked: 0,
            deadline: Some(now() + 120_000),
            settled: None,
        }));
        let decision = tokio::time::timeout(LIMIT, answered).await;
        let decision = match decision {
            Ok(Ok(decision)) => decision,
            _ => {
                let (decision, by) = (Some(Decision::Deny), "deadline".to_owned());
                feed.push(Change::PermissionSettled { id, decision, by });
                Decision::Deny
            }
        };
        let settled = format!("permission settled: {tool}");
        feed.push(AgentChange::new(&agent.id).state(AgentState::Working, "event", settled));
        decision
    }

    fn void_questions(&self, agent: &ScriptedAgent, feed: &Feed) {
        let asked = std::mem::take(&mut lock(&agent.desk).asked);
        for (id, _) in asked {
            let (decision, by) = (None, "cancel".to_owned());
            feed.push(Change::PermissionSettled { id, decision, by });
        }
    }

    /// Replaces the claim of an agent.
    fn claim(&self, agent: &ScriptedAgent, feed: &Feed, value: Option<&str>) {
        let mut claims = lock(&self.claims);
        claims.remove(&agent.id);
        if let Some(value) = value {
            let claim = Claim {
                store: "files".to_owned(),
                session: agent.id.clone(),
                value: value.to_owned(),
                token: Some(now()),
                expires: now() + 90_000,
            };
            claims.insert(agent.id.clone(), claim);
        }
        feed.push(Change::Claims {
            store: "files".to_owned(),
            claims: claims.values().cloned().collect(),
        });
    }

    fn save(&self, agent: &ScriptedAgent, feed: &Feed) {
        let mut desk = lock(&agent.desk);
        desk.tick += 1;
        feed.push(Change::Snapshot(Snapshot {
            agent: agent.id.clone(),
            tick: desk.tick,
            epoch: desk.epoch,
            messages: 2 * desk.turn,
            bytes: 800 * desk.turn,
            at: now(),
        }));
    }

    fn start(&self, agent: &ScriptedAgent, feed: &Feed) {
        {
            let mut desk = lock(&agent.desk);
            desk.running = true;
            desk.epoch += 1;
        }
        let change = AgentChange {
            name: Some(agent.name.clone()),
            ..AgentChange::new(&agent.id)
        };
        let change = change
            .role(&agent.role)
            .kind(&agent.kind, "inside of the board")
            .state(AgentState::Idle, "event", "session opened")
            .can([
                Ability::Send,
                Ability::Interrupt,
                Ability::Stop,
                Ability::Restart,
            ]);
        feed.push(change);
        agent.wake.notify_one();
    }

    fn end(&self, agent: &ScriptedAgent, feed: &Feed, why: &str) {
        lock(&agent.desk).running = false;
        feed.push(AgentChange::new(&agent.id).state(AgentState::Exited, "process", why));
        if why.starts_with("signal") {
            feed.push(Change::Failure {
                agent: agent.id.clone(),
                class: "exited".to_owned(),
                message: format!("the process was ended by {why}"),
                resets: None,
                at: None,
            });
        }
    }
}

#[async_trait]
impl Source for ScriptedSource {
    fn name(&self) -> String {
        "scripted".to_owned()
    }

    async fn follow(&self, feed: Feed) -> crate::Result<()> {
        let feed = self.feed.get_or_init(|| feed);
        for agent in &self.agents {
            self.start(agent, feed);
        }
        let agents = self.agents.iter().map(|agent| self.play(agent, feed));
        let agents = futures_util::future::join_all(agents);
        match self.story {
            Some(story) => _ = tokio::join!(agents, self.tell(story)),
            None => _ = agents.await,
        }
        Ok(())
    }

    async fn perform(&self, action: Action) -> Result<(), ActionError> {
        let feed = self.feed.get();
        let feed = feed.ok_or_else(|| ActionError::new("busy", "not started yet"))?;
        match action {
            Action::Send { agent, text } => {
                let steps = steps_of(&text);
                self.give("user", self.agent(&agent)?, &text, steps)?;
            }
            Action::Interrupt { agent } => {
                let agent = self.agent(&agent)?;
                let in_turn = lock(&agent.desk).in_turn;
                if !in_turn {
                    return Err(ActionError::new("gone", "no turn is running"));
                }
                agent.interrupt.notify_waiters();
            }
            Action::Stop { agent } => {
                let agent = self.agent(&agent)?;
                if !lock(&agent.desk).running {
                    return Err(ActionError::new("gone", "the agent is not running"));
                }
                agent.kill.notify_one();
            }
            Action::Restart { agent } => {
                let agent = self.agent(&agent)?;
                let running = lock(&agent.desk).running;
                if running {
                    return Err(ActionError::new("busy", "the agent is running"));
                }
                self.start(agent, feed);
                feed.push(AgentChange::new(&agent.id).restarted());
            }
            Action::Answer {
                agent,
                permission,
                decision,
            } => {
                let answer = lock(&self.agent(&agent)?.desk).asked.remove(&permission);
                let answer = answer.ok_or_else(|| ActionError::new("gone", "no longer asked"))?;
                let sent = answer.send(decision);
                sent.map_err(|_| ActionError::new("gone", "no longer asked"))?;
            }
            Action::TakeBack { agent, item } => {
                let mut desk = lock(&self.agent(&agent)?.desk);
                let at = desk.waiting.iter().position(|waiting| waiting.id == item);
                let at = at.ok_or_else(|| ActionError::new("gone", "already delivered"))?;
                desk.waiting.remove(at);
                drop(desk);
                let outcome = "taken_back";
                feed.push(Change::QueuedGone { id: item, outcome });
            }
        }
        Ok(())
    }
}
