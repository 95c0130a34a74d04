//! Agents in tmux panes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tmux_bus::{
    AgentStatus, ClusterManager, Error, LogFilter, LogFollower, MessageLog, MessageType,
    SendToOptions,
};
use tokio::sync::Mutex as AsyncMutex;

use super::super::action::{Action, ActionError};
use super::super::change::{AgentChange, Change};
use super::super::entities::{Ability, AgentState, QueueItem};
use super::super::hub::{Feed, lock, now};
use super::super::source::Source;
use super::left_messages::is_left;
use super::pane_questions::Question;
use crate::{Result, pane_processes, with_causes};

/// The time between two looks at the panes while a client is there. tmux reports no change of an
/// agent's state, only bytes.
pub(super) const LOOK: Duration = Duration::from_millis(700);
/// The time for an answer to a message from the page.
const ANSWER_LIMIT: Duration = Duration::from_secs(30 * 60);
/// The time in which a refusal belongs to the command and not to the list of failures.
const REFUSAL_LIMIT: Duration = Duration::from_millis(1_500);
/// The time for a stopped program to end by itself.
const STOP_GRACE: Duration = Duration::from_secs(3);
/// Most messages that wait for one agent.
const MAX_WAITING: usize = 64;

/// Follows a cluster: the state of its agents, their screens, the message log and the inbox. A
/// message from the page waits until the agent is idle; until then it can be taken back, as a message
/// that an agent has left.
///
/// A request for approval on the screen of an agent is a permission request. `Allow` presses Enter,
/// which takes the choice that all known agents highlight, and `Deny` presses Escape; both only if
/// the screen still shows the question that was answered.
#[derive(Clone)]
pub struct ClusterSource(pub(super) Arc<Shared>);

pub(super) struct Shared {
    cluster: Mutex<ClusterManager>,
    /// It keeps its place: no message is shown twice.
    log: AsyncMutex<LogFollower>,
    feed: OnceLock<Feed>,
    waiting: Mutex<BTreeMap<String, Waiting>>,
    /// The open question of each agent that waits for approval.
    pub(super) questions: Mutex<BTreeMap<String, Question>>,
}

/// The messages that wait for one agent.
#[derive(Default)]
struct Waiting {
    /// Id and text.
    messages: VecDeque<(String, String)>,
    /// Whether a task delivers them.
    delivering: bool,
}

impl ClusterSource {
    /// A source for a cluster that runs.
    #[must_use]
    pub fn new(cluster: ClusterManager) -> Self {
        let log = MessageLog::follow(cluster.logger().path(), LogFilter::default());
        Self(Arc::new(Shared {
            cluster: Mutex::new(cluster),
            log: AsyncMutex::new(log),
            feed: OnceLock::new(),
            waiting: Mutex::default(),
            questions: Mutex::default(),
        }))
    }

    /// Goes on with the same cluster after its tmux server was started again. Messages that wait are
    /// delivered there.
    pub fn started_again(&self, cluster: ClusterManager) {
        *lock(&self.0.cluster) = cluster;
    }

    pub(super) fn cluster(&self) -> ClusterManager {
        lock(&self.0.cluster).clone()
    }

    async fn follow_log(&self, feed: &Feed) -> Result<()> {
        let began = now();
        let mut log = self.0.log.lock().await;
        let mut told = String::new();
        loop {
            let entry = match log.next().await {
                Ok(entry) => entry,
                // The agents are shown also without the log; the next look may succeed.
                Err(error) => {
                    self.fail_once(feed, &mut told, &error);
                    tokio::time::sleep(LOOK).await;
                    continue;
                }
            };
            told.clear();
            let at = OffsetDateTime::parse(&entry.timestamp, &Rfc3339).ok();
            let at = at.map(|at| at.unix_timestamp_nanos() / 1_000_000);
            let at = at.and_then(|at| u64::try_from(at).ok());
            // An agent that is back before the next look was never seen as ended.
            if entry.message_type == MessageType::Error && at >= Some(began) {
                self.fail(feed, &entry.from_agent, "agent", &entry.content);
            }
            feed.push(Change::Message {
                id: entry.id,
                from: entry.from_agent,
                to: entry.to_agent,
                kind: entry.message_type.to_string(),
                text: entry.content,
                at,
                reply_to: entry.reply_to,
            });
        }
    }

    async fn follow_panes(&self, feed: &Feed) -> Result<()> {
        let mut told = String::new();
        let mut ended = BTreeMap::new();
        loop {
            let cluster = self.cluster();
            match cluster.status().await {
                Ok(status) => {
                    told.clear();
                    for agent in &status.agents {
                        self.show(feed, agent, &mut ended);
                    }
                    self.show_questions(feed, &status.agents).await;
                    self.show_screens(feed, &status.agents).await;
                }
                Err(error) => {
                    let message = with_causes(&error);
                    if message != told {
                        self.fail(feed, &self.name(), "source", &message);
                        for agent in &cluster.config().agents {
                            let change = AgentChange::new(&agent.name);
                            feed.push(change.state(AgentState::Unknown, "process", &message));
                        }
                    }
                    told = message;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                // A page that opens an agent's screen should not wait for the next look.
                () = feed.audience_changed() => {}
            }
            feed.audience().await;
        }
    }

    fn show(&self, feed: &Feed, agent: &AgentStatus, ended: &mut BTreeMap<String, String>) {
        let cluster = self.cluster();
        let socket = cluster.socket().display();
        let state = state_of(agent);
        let evidence = match agent.exit {
            Some(exit) => exit.to_string(),
            None if agent.state.needs_a_person() => {
                format!("{}: {}", agent.state, agent.evidence.rule)
            }
            // No rule says that the agent works, but a message to it has no answer yet.
            None if is_busy(agent) => "answers a message".to_owned(),
            None => agent.evidence.rule.clone(),
        };
        let source = match is_busy(agent) {
            true => "event".to_owned(),
            false => agent.evidence.source.to_string(),
        };
        let change = AgentChange::new(&agent.name)
            .role(agent.role.as_str())
            .kind(
                &agent.definition,
                format!("tmux -S {socket} attach -t '{}'", agent.pane),
            )
            .state(state, &source, &evidence)
            .can([
                Ability::Send,
                Ability::Interrupt,
                Ability::Stop,
                Ability::Restart,
            ]);
        feed.push(change);
        if state != AgentState::Exited {
            ended.remove(&agent.name);
        } else if ended.insert(agent.name.clone(), evidence.clone()).is_none() {
            self.fail(
                feed,
                &agent.name,
                "exited",
                &format!("the program has ended: {evidence}"),
            );
        }
    }

    async fn show_screens(&self, feed: &Feed, agents: &[AgentStatus]) {
        for agent in agents.iter().filter(|agent| feed.is_watched(&agent.name)) {
            // A pane that has just gone is shown by the next status.
            if let Ok(found) = self.cluster().explain(&agent.name).await {
                feed.push(Change::Screen {
                    agent: agent.name.clone(),
                    text: found.screen,
                });
            }
        }
    }

    /// Tells an error of the source, unless it was the last one that was told.
    pub(super) fn fail_once(&self, feed: &Feed, told: &mut String, error: &Error) {
        let message = with_causes(error);
        if message != *told {
            self.fail(feed, &self.name(), "source", &message);
        }
        *told = message;
    }

    pub(super) fn fail(&self, feed: &Feed, agent: &str, class: &str, message: &str) {
        feed.push(Change::Failure {
            agent: agent.to_owned(),
            class: class.to_owned(),
            message: message.to_owned(),
            resets: None,
            at: None,
        });
    }

    fn enqueue(&self, agent: &str, text: String) -> std::result::Result<(), ActionError> {
        let Some(feed) = self.0.feed.get() else {
            return Err(ActionError::new("busy", "not started yet"));
        };
        let id = new_id("c");
        let mut all = lock(&self.0.waiting);
        let waiting = all.entry(agent.to_owned()).or_default();
        if waiting.messages.len() >= MAX_WAITING {
            return Err(ActionError::new("busy", "too many messages wait"));
        }
        waiting.messages.push_back((id.clone(), text.clone()));
        let start = !std::mem::replace(&mut waiting.delivering, true);
        // Under the lock: the message must not be delivered before the page shows it.
        feed.push(queued(id, agent, text));
        drop(all);
        if start {
            let (source, feed, agent) = (self.clone(), feed.clone(), agent.to_owned());
            tokio::spawn(async move { source.deliver(&agent, &feed).await });
        }
        Ok(())
    }

    /// Delivers the messages of one agent, one after the other, each when the agent is idle.
    async fn deliver(&self, agent: &str, feed: &Feed) {
        let idle = tmux_bus::AgentState::Idle;
        let mut told = String::new();
        loop {
            let wait = Duration::from_secs(60);
            let cluster = self.cluster();
            let ready = cluster.wait_for(agent, idle.clone(), wait).await;
            let failed = ready.as_ref().is_err_and(|error| !error.is_timeout());
            let next = {
                let mut all = lock(&self.0.waiting);
                let waiting = all.entry(agent.to_owned()).or_default();
                if waiting.messages.is_empty() {
                    waiting.delivering = false;
                    return;
                }
                match ready {
                    Ok(()) => waiting.messages.pop_front(),
                    Err(_) => None,
                }
            };
            let Some((id, text)) = next else {
                if failed {
                    // An agent that has ended: until it is started again.
                    tokio::time::sleep(LOOK).await;
                }
                continue;
            };
            let outcome = "delivered";
            let gone = id.clone();
            feed.push(Change::QueuedGone { id: gone, outcome });
            let user = cluster.outsider("user");
            let options = SendToOptions::default().timeout(ANSWER_LIMIT);
            // The failure of a message that was sent is in the log, which is followed.
            match user.ask(agent, &text, &options).await {
                // Such as a draft in the input line, or a question that came between: it waits again.
                Err(error) if error.is_not_sent() => {
                    let reason = with_causes(&error);
                    if reason != told {
                        self.fail(feed, agent, "not_sent", &reason);
                    }
                    told = reason;
                    self.put_back(agent, id, text, feed);
                    tokio::time::sleep(LOOK).await;
                }
                // The log has such an error only if the message was sent before it.
                Err(error) if is_of_the_session(&error) => {
                    self.fail(feed, agent, "uncertain", &with_causes(&error));
                }
                _ => told.clear(),
            }
        }
    }

    /// A message that was not sent is the next one again.
    fn put_back(&self, agent: &str, id: String, text: String, feed: &Feed) {
        let mut all = lock(&self.0.waiting);
        let waiting = all.entry(agent.to_owned()).or_default();
        waiting.messages.push_front((id.clone(), text.clone()));
        feed.push(queued(id, agent, text));
    }

    /// Runs a command of tmux for the pane of an agent.
    pub(super) async fn tmux(
        &self,
        agent: &str,
        command: &str,
        arguments: &[&str],
    ) -> std::result::Result<String, ActionError> {
        let cluster = self.cluster();
        let pane = cluster.get_pane(agent);
        let pane = pane.map_err(|error| ActionError::failed(&error))?;
        let mut tmux = tokio::process::Command::new("tmux");
        tmux.arg("-S").arg(cluster.socket());
        tmux.args([command, "-t", &pane.to_string()])
            .args(arguments);
        let done = tmux.output().await;
        let done = done.map_err(|error| ActionError::failed(&error))?;
        match done.status.success() {
            true => Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned()),
            false => {
                let message = String::from_utf8_lossy(&done.stderr);
                Err(ActionError::new("failed", message.trim()))
            }
        }
    }

    /// Ends the program in the pane of an agent with all its processes; the pane stays for a restart.
    async fn stop(&self, agent: &str) -> std::result::Result<(), ActionError> {
        const LAUNCH: [&str; 2] = ["-p", "#{?pane_dead,,#{@tmux_bus_launch}}"];
        let launch = self.tmux(agent, "display-message", &LAUNCH).await?;
        if launch.is_empty() {
            return Err(ActionError::new("gone", "the program has ended already"));
        }
        // A program may take its time; the page sees its end.
        tokio::spawn(async move { pane_processes::end(&launch, STOP_GRACE).await });
        Ok(())
    }
}

#[async_trait]
impl Source for ClusterSource {
    fn name(&self) -> String {
        format!("cluster {}", self.cluster().config().name)
    }

    async fn follow(&self, feed: Feed) -> Result<()> {
        let feed = self.0.feed.get_or_init(|| feed);
        tokio::try_join!(
            self.follow_log(feed),
            self.follow_panes(feed),
            self.follow_inbox(feed)
        )?;
        Ok(())
    }

    async fn perform(&self, action: Action) -> std::result::Result<(), ActionError> {
        match action {
            Action::Send { agent, text } => self.enqueue(&agent, text),
            // The key with which people interrupt an agent in a terminal.
            Action::Interrupt { agent } => {
                self.tmux(&agent, "send-keys", &["Escape"]).await.map(drop)
            }
            Action::Stop { agent } => self.stop(&agent).await,
            Action::Restart { agent } => {
                let Some(feed) = self.0.feed.get().cloned() else {
                    return Err(ActionError::new("busy", "not started yet"));
                };
                let starting = AgentChange::new(&agent);
                feed.push(
                    starting
                        .state(AgentState::Starting, "process", "restart")
                        .restarted(),
                );
                let source = self.clone();
                let mut restart = tokio::spawn(async move {
                    let done = source.cluster().restart(&agent).await;
                    done.map_err(|error| {
                        let message = with_causes(&error);
                        source.fail(&feed, &agent, "agent", &message);
                        ActionError::new("failed", message)
                    })
                });
                // Slow agents take long to start: the page sees the state, the reply need not wait.
                match tokio::time::timeout(REFUSAL_LIMIT, &mut restart).await {
                    Ok(Ok(done)) => done,
                    Ok(Err(panicked)) => Err(ActionError::failed(&panicked)),
                    Err(_) => Ok(()),
                }
            }
            Action::TakeBack { item, .. } if is_left(&item) => {
                self.take_back_left(&item).await?;
                if let Some(feed) = self.0.feed.get() {
                    let outcome = "taken_back";
                    feed.push(Change::QueuedGone { id: item, outcome });
                }
                Ok(())
            }
            Action::TakeBack { agent, item } => {
                let mut all = lock(&self.0.waiting);
                let waiting = all.entry(agent).or_default();
                let at = waiting.messages.iter().position(|(id, _)| *id == item);
                let at = at.ok_or_else(|| ActionError::new("gone", "already delivered"))?;
                waiting.messages.remove(at);
                drop(all);
                if let Some(feed) = self.0.feed.get() {
                    let outcome = "taken_back";
                    feed.push(Change::QueuedGone { id: item, outcome });
                }
                Ok(())
            }
            Action::Answer {
                agent,
                permission,
                decision,
            } => self.answer(&agent, &permission, decision).await,
        }
    }
}

/// Whether the files or the server of the session are the reason, and not the agent.
fn is_of_the_session(error: &Error) -> bool {
    matches!(
        error,
        Error::Io { .. } | Error::NotPrivate { .. } | Error::ServerGone { .. }
    )
}

/// An id that no cluster of this program has: a board can follow several.
pub(super) fn new_id(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("{prefix}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

fn queued(id: String, agent: &str, text: String) -> Change {
    Change::Queued(QueueItem {
        id,
        agent: agent.to_owned(),
        from: "user".to_owned(),
        text,
        at: 0,
    })
}

/// Whether the agent works by our own knowledge alone.
fn is_busy(agent: &AgentStatus) -> bool {
    use tmux_bus::AgentState as Seen;
    let says_more = matches!(
        agent.state,
        Seen::Starting
            | Seen::WaitingForApproval
            | Seen::Dialog { .. }
            | Seen::Exited
            | Seen::Working
    );
    agent.busy && !says_more && agent.exit.is_none()
}

fn state_of(agent: &AgentStatus) -> AgentState {
    use tmux_bus::AgentState as Seen;
    if agent.exit.is_some() {
        return AgentState::Exited;
    }
    match agent.state {
        Seen::Starting => AgentState::Starting,
        Seen::WaitingForApproval | Seen::Dialog { .. } => AgentState::Waiting,
        Seen::Exited => AgentState::Exited,
        Seen::Working => AgentState::Working,
        _ if is_busy(agent) => AgentState::Working,
        Seen::Idle => AgentState::Idle,
        _ => AgentState::Unknown,
    }
}
