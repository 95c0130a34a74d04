use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::ask_folder::{AskFolder, AskRequest};
use super::bus_builder::{BusBuilder, OnStart};
use super::{background, courier, detached_ask};
use crate::Error;
use crate::cluster::cluster_record::ClusterRecord;
use crate::cluster::readiness::attach_command;
use crate::cluster::wait_graph::{WaitEdge, WaitGraph};
use crate::cluster::{
    AgentConfig, ClusterBuilder, ClusterConfig, ClusterManager, SendToOptions, frame,
};
use crate::control::tap::deadline;
use crate::inbox::{Inbox, MessageId, MessageState, on_a_thread};
use crate::log::{LogFilter, MessageLog, MessageLogger};
use crate::pane::sender::MAX_MESSAGE;
use crate::timing::ASK_LIMIT;
use crate::vocabulary::{
    AgentReport, AskReport, AskState, ExplainReport, Failure, InboxItem, InboxReport, LogReport,
    PostReport, PostState, Reply, Request, StatusReport,
};

/// Number of log entries without a given number.
const LAST_ENTRIES: usize = 20;

/// A running cluster as one caller sees it: the verbs of the [`vocabulary`](crate::vocabulary), in
/// the name of a proven sender.
///
/// The command `tmux-bus` is this type with arguments. The sender is the agent in whose pane the
/// calling process runs, also over several parents; outside of all panes it is `user`, or the name
/// given by [`BusBuilder::sender`]. Dropping it ends waits, not asks.
///
/// ```no_run
/// use tmux_bus::Bus;
/// use tmux_bus::vocabulary::{Reply, Request};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), tmux_bus::Error> {
/// let bus = Bus::builder().config("config/cc-cluster.yaml").connect().await?;
/// let (to, text) = ("grand_boss".to_owned(), "Are you there?".to_owned());
/// let request = Request::Ask { to, text, detach: false, timeout_s: None, limit_s: None };
/// if let Reply::Ask(report) = bus.call(request).await? {
///     println!("{}", report.answer.unwrap_or_default());
/// }
/// # Ok(())
/// # }
/// ```
pub struct Bus {
    folder: PathBuf,
    record: ClusterRecord,
    config: ClusterConfig,
    sender: BusSender,
    command: Option<PathBuf>,
    on_start: Option<OnStart>,
    cluster: OnceCell<ClusterManager>,
}

/// The sender of the messages.
#[derive(Debug)]
pub(super) struct BusSender {
    pub(super) name: String,
    /// Whether it is an agent of the cluster.
    pub(super) is_agent: bool,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus")
            .field("folder", &self.folder)
            .field("sender", &self.sender)
            .finish_non_exhaustive()
    }
}

impl Bus {
    /// Options for finding a cluster.
    pub fn builder() -> BusBuilder {
        BusBuilder::default()
    }

    pub(super) fn new(
        folder: PathBuf,
        record: ClusterRecord,
        config: ClusterConfig,
        sender: BusSender,
        command: Option<PathBuf>,
        on_start: Option<OnStart>,
    ) -> Self {
        Self {
            folder,
            command: command.or_else(|| record.command.clone()),
            record,
            config,
            sender,
            on_start,
            cluster: OnceCell::new(),
        }
    }

    /// The name of the sender.
    #[must_use]
    pub fn sender(&self) -> &str {
        &self.sender.name
    }

    /// The file of the message log.
    #[must_use]
    pub fn log_file(&self) -> &Path {
        &self.record.log
    }

    /// Carries out a verb.
    ///
    /// An ask runs in a process of its own, so it continues when this call, or this process, ends;
    /// `wait` gets its answer. An ask that failed is a reply with the failure, not an error.
    ///
    /// # Errors
    ///
    /// [`Error::UnknownAgent`], [`Error::UnknownAsk`], [`Error::NotAllowed`],
    /// [`Error::MessageTooLong`]. [`Error::TooManyAsks`] if 1,000 asks, or 256 MiB of asks, run or
    /// have just ended. [`Error::Cycle`] if the sender is an agent and the receiver waits for it.
    /// Otherwise as [`Agent::post_to`](crate::Agent::post_to), [`ClusterManager::status`] and
    /// [`ClusterManager::explain`].
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a message may have been sent. An ask continues, and can be waited for.
    pub async fn call(&self, request: Request) -> Result<Reply, Error> {
        match request {
            Request::Ask {
                to,
                text,
                detach,
                timeout_s,
                limit_s,
            } => {
                let limit = limit_s.map_or(ASK_LIMIT, seconds);
                let timeout = match detach {
                    true => AskWait::No,
                    false => AskWait::Until(until(timeout_s)),
                };
                Ok(Reply::Ask(self.ask(to, text, limit, timeout).await?))
            }
            Request::Wait { id, timeout_s } => {
                Ok(Reply::Wait(self.wait(&id, until(timeout_s)).await?))
            }
            Request::Post { to, text, now } => Ok(Reply::Post(self.post(to, &text, now).await?)),
            Request::Inbox { agent } => Ok(Reply::Inbox(self.inbox(agent).await?)),
            Request::Status {} => Ok(Reply::Status(self.status().await?)),
            Request::Explain { agent } => Ok(Reply::Explain(self.explain(&agent).await?)),
            Request::Log { from, to, last } => Ok(Reply::Log(self.log(from, to, last)?)),
        }
    }

    /// Delivers the messages of the inbox in this process, until none waits. For the command
    /// `tmux-bus`.
    #[doc(hidden)]
    pub async fn deliver(folder: &Path, is_ready: impl FnOnce(&str)) -> Result<(), Error> {
        courier::deliver(folder, || is_ready(background::READY)).await
    }

    /// Carries out, in this process, an ask that another process has stored. For the command
    /// `tmux-bus`.
    #[doc(hidden)]
    pub async fn carry_out(
        folder: &Path,
        id: &str,
        is_ready: impl FnOnce(&str),
    ) -> Result<(), Error> {
        detached_ask::carry_out(folder, id, || is_ready(background::READY)).await
    }

    async fn ask(
        &self,
        to: String,
        text: String,
        limit: Duration,
        wait: AskWait,
    ) -> Result<AskReport, Error> {
        self.check_receiver(&to)?;
        if text.len() > MAX_MESSAGE {
            // Before it is stored.
            return Err(Error::MessageTooLong {
                agent: to,
                length: text.len(),
                limit: MAX_MESSAGE,
            });
        }
        // Before the message is sent; a detached ask keeps no agent from answering.
        let _edge = match wait {
            AskWait::No => None,
            AskWait::Until(_) => self.enter_wait(&to).await?,
        };
        let request = AskRequest {
            from: self.sender.name.clone(),
            is_agent: self.sender.is_agent,
            to,
            text,
            limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX),
        };
        let ask = AskFolder::create(&self.folder, &request)?;
        let started = detached_ask::start(self.command(), &self.folder, &ask).await;
        // A process that is slow to start could still take an ask whose caller was told of a
        // failure.
        if let Err(error) = started
            && ask.take()?.is_some()
        {
            return Err(error);
        }
        let report = ask.running(&request);
        if let Some(on_start) = &self.on_start {
            on_start(&report);
        }
        match wait {
            AskWait::No => Ok(report),
            AskWait::Until(limit) => ask.wait(&request, limit).await,
        }
    }

    async fn wait(&self, id: &str, limit: Option<Instant>) -> Result<AskReport, Error> {
        let (ask, request) = AskFolder::open(&self.folder, id)?;
        if self.sender.is_agent && request.from != self.sender.name {
            // The answer belongs to another agent.
            return Err(Error::UnknownAsk { id: id.to_owned() });
        }
        let at_once = ask.wait(&request, Some(Instant::now())).await?;
        if at_once.state != AskState::Running {
            return Ok(at_once);
        }
        let _edge = self.enter_wait(&request.to).await?;
        ask.wait(&request, limit).await
    }

    async fn post(&self, to: String, text: &str, now: bool) -> Result<PostReport, Error> {
        self.check_receiver(&to)?;
        let (state, id) = match now {
            true => {
                self.post_now(&to, text).await?;
                (PostState::Delivered, None)
            }
            false => {
                let id = self.leave(&to, text).await?;
                let started = courier::start(self.command(), &self.folder).await;
                // A caller that is told of a failure sends the message again, so it must not stay.
                // It cannot be taken back if another courier has it.
                if let Err(error) = started
                    && self.messages().take_back(&id).is_ok()
                {
                    return Err(error);
                }
                (PostState::Waiting, Some(id.as_str().to_owned()))
            }
        };
        Ok(PostReport {
            from: self.sender.name.clone(),
            to,
            state,
            id,
        })
    }

    async fn post_now(&self, to: &str, text: &str) -> Result<(), Error> {
        let cluster = self.cluster().await?;
        let sender = match self.sender.is_agent {
            true => cluster.agent(&self.sender.name)?,
            false => cluster.outsider(&self.sender.name),
        };
        let options = SendToOptions::default().framed();
        sender.post_to_with(to, text, &options).await
    }

    async fn leave(&self, to: &str, text: &str) -> Result<MessageId, Error> {
        // What the agent would get; a text that no terminal can take is refused when it is left.
        let text = match self.sender.is_agent {
            true => frame::neutral(text),
            false => text.to_owned(),
        };
        let (inbox, from, to) = (self.messages(), self.sender.name.clone(), to.to_owned());
        on_a_thread(move || inbox.leave(&from, &to, &text)).await
    }

    async fn inbox(&self, agent: Option<String>) -> Result<InboxReport, Error> {
        let agent = agent.unwrap_or_else(|| self.sender.name.clone());
        self.agent_config(&agent)?;
        let mut report = InboxReport {
            agent,
            waiting: Vec::new(),
            uncertain: Vec::new(),
            dead: Vec::new(),
            problem: None,
        };
        let (inbox, agent) = (self.messages(), report.agent.clone());
        for entry in on_a_thread(move || inbox.entries(&agent)).await? {
            let (list, reason) = match entry.state {
                MessageState::Waiting | MessageState::Sending => (&mut report.waiting, None),
                MessageState::Uncertain { reason } => (&mut report.uncertain, Some(reason)),
                MessageState::Dead { reason } => (&mut report.dead, Some(reason.to_string())),
                MessageState::Delivered { .. } => continue,
            };
            list.push(InboxItem {
                id: entry.id.as_str().to_owned(),
                from: entry.from,
                at_ms: milliseconds(entry.left_at).unwrap_or_default(),
                text: entry.text,
                reason,
            });
        }
        if !report.waiting.is_empty() {
            // All couriers may have been killed.
            let started = courier::start(self.command(), &self.folder).await;
            report.problem = match started {
                Ok(()) => courier::problem(&self.folder)?,
                Err(error) => Some(Failure::from(&error).message),
            };
        }
        Ok(report)
    }

    /// The inbox of the cluster.
    fn messages(&self) -> Inbox {
        builder(&self.record).inbox()
    }

    fn command(&self) -> &Path {
        self.command.as_deref().unwrap_or(Path::new("tmux-bus"))
    }

    async fn status(&self) -> Result<StatusReport, Error> {
        let status = self.cluster().await?.status().await?;
        let agents = status.agents.iter().map(|agent| AgentReport {
            name: agent.name.clone(),
            role: agent.role.to_string(),
            pane: agent.pane.to_string(),
            definition: agent.definition.clone(),
            state: agent.state.to_string(),
            evidence: agent.evidence.to_string(),
            busy: agent.busy,
            exit: agent.exit.map(|exit| exit.to_string()),
            last_activity_ms: agent.last_activity.and_then(milliseconds),
        });
        Ok(StatusReport {
            agents: agents.collect(),
            attach: attach_command(&status.socket, &status.session),
            session: status.session,
            you: self.sender.name.clone(),
        })
    }

    async fn explain(&self, agent: &str) -> Result<ExplainReport, Error> {
        let seen = self.cluster().await?.explain(agent).await?;
        Ok(ExplainReport {
            agent: seen.agent,
            definition: seen.definition,
            state: seen.state.to_string(),
            evidence: seen.evidence.to_string(),
            advice: seen.advice,
            title: seen.title,
            screen: seen.screen,
            tried: seen.tried.into_iter().map(|rule| rule.rule).collect(),
        })
    }

    fn log(
        &self,
        from: Option<String>,
        to: Option<String>,
        last: Option<usize>,
    ) -> Result<LogReport, Error> {
        let mut filter = LogFilter::default();
        if let Some(from) = from {
            filter = filter.from(from);
        }
        if let Some(to) = to {
            filter = filter.to(to);
        }
        let mut entries = match MessageLog::load(&self.record.log, &filter) {
            Err(error) if error.is_not_found() => Vec::new(),
            log => log?.entries,
        };
        let first = entries.len().saturating_sub(last.unwrap_or(LAST_ENTRIES));
        entries.drain(..first);
        Ok(LogReport { entries })
    }

    /// The cluster, attached to when it is first needed.
    async fn cluster(&self) -> Result<&ClusterManager, Error> {
        self.cluster.get_or_try_init(|| attach(&self.record)).await
    }

    fn agent_config(&self, name: &str) -> Result<&AgentConfig, Error> {
        let agents = &self.config.agents;
        let found = agents.iter().find(|agent| agent.name == name);
        found.ok_or_else(|| Error::UnknownAgent {
            name: name.to_owned(),
            known: agents.iter().map(|agent| agent.name.clone()).collect(),
        })
    }

    fn check_receiver(&self, to: &str) -> Result<(), Error> {
        self.agent_config(to)?;
        let from = &self.sender.name;
        if !self.sender.is_agent || self.agent_config(from)?.allows(to) {
            return Ok(());
        }
        Err(self.refused(
            to,
            Error::NotAllowed {
                from: from.clone(),
                to: to.to_owned(),
            },
        ))
    }

    /// Records that the sender waits, if it is an agent.
    async fn enter_wait(&self, to: &str) -> Result<Option<WaitEdge>, Error> {
        if !self.sender.is_agent {
            return Ok(None);
        }
        let graph = WaitGraph::new(&self.folder);
        let edge = graph.enter(&self.sender.name, to).await;
        edge.map(Some).map_err(|error| self.refused(to, error))
    }

    /// Logs a refusal.
    fn refused(&self, to: &str, error: Error) -> Error {
        if let Ok(logger) = MessageLogger::open(&self.record.log) {
            logger.log_refusal(&self.sender.name, to, &error);
        }
        error
    }
}

/// How long a caller waits for an answer.
#[derive(Clone, Copy)]
enum AskWait {
    No,
    /// `None`: until the ask has ended.
    Until(Option<Instant>),
}

fn until(timeout_s: Option<f64>) -> Option<Instant> {
    timeout_s.map(|timeout| deadline(Instant::now(), seconds(timeout)))
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX)
}

fn milliseconds(at: SystemTime) -> Option<u64> {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    u64::try_from(since.as_millis()).ok()
}

fn builder(record: &ClusterRecord) -> ClusterBuilder {
    ClusterManager::builder(record.config())
        .runtime_dir(&record.runtime_dir)
        .program(&record.tmux)
        .log_file(&record.log)
}

/// Attaches to a cluster without changing it.
pub(super) async fn attach(record: &ClusterRecord) -> Result<ClusterManager, Error> {
    builder(record).attach_unchanged().await
}
