//! Agents in tmux panes: the interface that people use, with exact answers by tmux-bus.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use examples::board::Hub;
use examples::board::sources::ClusterSource;
use examples::pane_agent::quoted;
use examples::{Result, pane_processes, with_causes};
use serde_json::{Value, json};
use tmux_bus::vocabulary::{AskReport, AskState, FailureKind, Reply, Request};
use tmux_bus::{
    AgentState, Bus, ClusterConfig, ClusterManager, Error, LogFilter, MessageLog, MessageType,
    Refusal, Server,
};
use tokio::sync::Mutex;

use crate::crew::Crew;
use crate::crew_agent::{CrewAgent, NoAnswer};
use crate::crew_file::Role;
use crate::report::{Report, Tone, first_line};

/// The name of the crew program in the log of messages.
pub const SENDER: &str = "crew";

/// The panes of a crew. They outlive the program.
pub struct Panes {
    config_file: PathBuf,
    log: PathBuf,
    /// The command `tmux-bus`.
    command: PathBuf,
    /// The longest time for an answer.
    limit: Duration,
    count: usize,
    page: Option<Hub>,
    /// What the page follows.
    shown: Mutex<Option<ClusterSource>>,
    report: Report,
    is_used: AtomicBool,
    /// Also the lock of starts and restarts.
    cluster: Mutex<Option<ClusterManager>>,
}

impl Panes {
    pub fn new(crew: &Crew, command: PathBuf, page: Option<Hub>, report: Report) -> Self {
        Self {
            config_file: crew.cluster_file(),
            log: crew.message_log(),
            command,
            limit: crew.file.wall_time(),
            count: crew.in_panes().count(),
            page,
            shown: Mutex::default(),
            report,
            is_used: AtomicBool::new(false),
            cluster: Mutex::default(),
        }
    }

    /// The command by which an agent outside of the panes asks one in them.
    pub fn outside_command(&self) -> String {
        format!(
            "{} --config {}",
            word(&self.command),
            word(&self.config_file)
        )
    }

    /// The command that shows the panes, if they run.
    pub fn attach_command(&self) -> Option<String> {
        let cluster = self.cluster.try_lock().ok()?;
        cluster
            .as_ref()
            .map(|cluster| format!("tmux -S {} attach", cluster.socket().display()))
    }

    /// The cluster, with this agent at work: a cluster that does not run is started, an agent that has ended is
    /// started again in its pane, and so is one that cannot be used.
    async fn with_agent(&self, name: &str, is_usable: bool) -> Result<()> {
        let mut held = self.cluster.lock().await;
        let cluster = match held.take() {
            Some(cluster) if cluster.status().await.is_ok() => cluster,
            _ => self.open().await?,
        };
        let cluster = held.insert(cluster);
        let status = cluster.status().await?;
        if status
            .agents
            .iter()
            .any(|agent| agent.name == name && (agent.exit.is_some() || !is_usable))
        {
            cluster.restart(name).await.map_err(start_error)?;
        }
        Ok(())
    }

    /// Uses the cluster that an earlier program has left; starts it if it does not run.
    async fn attach(&self) -> Result<()> {
        let mut held = self.cluster.lock().await;
        if held.is_none() {
            *held = Some(self.open().await?);
        }
        Ok(())
    }

    async fn open(&self) -> Result<ClusterManager> {
        let is_first = !self.is_used.swap(true, Ordering::Relaxed);
        let builder = || -> Result<_> {
            let config = ClusterConfig::load(&self.config_file)?;
            Ok(ClusterManager::builder(config)
                .log_file(&self.log)
                .command(&self.command))
        };
        let text = format!("starting {} agents in panes", self.count);
        let cluster = match builder()?.attach().await {
            Err(Error::NotRunning { .. } | Error::ServerGone { .. }) => {
                self.report
                    .event("starting", Tone::Dim, json!({"panes": self.count}), &text);
                builder()?.start().await.map_err(start_error)?
            }
            attached => attached.map_err(start_error)?,
        };
        let attach = format!("tmux -S {} attach", cluster.socket().display());
        self.report.event(
            "panes",
            Tone::Dim,
            json!({"attach": attach}),
            &format!("watch: {attach}"),
        );
        if let Some(page) = &self.page {
            let mut shown = self.shown.lock().await;
            match &*shown {
                Some(source) => source.started_again(cluster.clone()),
                None => {
                    let source = shown.insert(ClusterSource::new(cluster.clone()));
                    page.follow(Arc::new(source.clone()));
                }
            }
        }
        if is_first {
            tokio::spawn(print_messages(self.log.clone(), self.report));
        }
        Ok(cluster)
    }

    /// Whether this program has used the panes: they may belong to another one.
    pub fn is_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// Ends all agents in panes, with everything that they have started.
    pub async fn stop(&self) -> Result<()> {
        let config = ClusterConfig::load(&self.config_file)?;
        match Server::builder(&config.session_name)
            .key(&config.path)
            .attach()
            .await
        {
            Ok(server) => Ok(server.stop(Duration::from_secs(3)).await?),
            // A server that was killed leaves the folder of its socket.
            Err(Error::NotRunning { socket, .. }) => {
                if let Some(folder) = socket.parent() {
                    let _ = std::fs::remove_dir_all(folder);
                }
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn bus(&self) -> std::result::Result<Bus, Error> {
        let bus = Bus::builder()
            .config(&self.config_file)
            .command(&self.command);
        bus.sender(SENDER).connect().await
    }
}

/// The agent of one role.
pub struct PaneAgent {
    panes: Arc<Panes>,
    name: String,
    marker: String,
    is_usable: bool,
}

impl PaneAgent {
    pub fn new(panes: Arc<Panes>, role: &Role) -> Self {
        Self {
            panes,
            name: role.name.clone(),
            marker: role.marker.clone(),
            is_usable: true,
        }
    }

    async fn wait(&self, id: &str) -> std::result::Result<AskReport, Error> {
        let wait = Request::Wait {
            id: id.to_owned(),
            timeout_s: None,
        };
        match self.panes.bus().await?.call(wait).await? {
            Reply::Wait(report) => Ok(report),
            _ => Err(Error::UnknownAsk { id: id.to_owned() }),
        }
    }

    /// Prints where a person can answer, if the agent asks one.
    async fn tell_questions(&self) -> Infallible {
        let cluster = self.panes.cluster.lock().await.clone();
        if let Some(cluster) = cluster {
            let (limit, asks) = (self.panes.limit, AgentState::WaitingForApproval);
            if cluster.wait_for(&self.name, asks, limit).await.is_ok() {
                let attach = format!("tmux -S {} attach", cluster.socket().display());
                let text = format!(
                    "{} asks for approval: answer in its pane, {attach}",
                    self.name
                );
                let fields = json!({"role": self.name, "attach": attach});
                self.panes
                    .report
                    .event("approval", Tone::Bad, fields, &text);
            }
        }
        std::future::pending().await
    }
}

#[async_trait]
impl CrewAgent for PaneAgent {
    /// The ask runs in a process of its own: the answer can be had also after the end of this program.
    async fn send(&mut self, text: &str) -> Result<Value> {
        self.panes.with_agent(&self.name, self.is_usable).await?;
        self.is_usable = true;
        let ask = Request::Ask {
            to: self.name.clone(),
            text: text.to_owned(),
            detach: true,
            timeout_s: None,
            limit_s: Some(self.panes.limit.as_secs_f64()),
        };
        match self.panes.bus().await?.call(ask).await? {
            Reply::Ask(report) => Ok(json!({"ask": report.id})),
            other => Err(format!("unexpected reply: {other:?}").into()),
        }
    }

    async fn answer(&mut self, receipt: &Value) -> std::result::Result<String, NoAnswer> {
        // Before a wait that a program continues: the panes are shown, and are ended with this program.
        let attached = self.panes.attach().await;
        attached.map_err(|error| NoAnswer::ended(with_causes(&*error)))?;
        let id = receipt["ask"].as_str().unwrap_or_default();
        let report = tokio::select! {
            report = self.wait(id) => report,
            never = self.tell_questions() => match never {},
        };
        let report = report.map_err(|error| NoAnswer::ended(with_causes(&error)))?;
        if let (AskState::Answered, Some(answer)) = (report.state, report.answer) {
            let answer = answer.trim_end();
            return Ok(answer
                .strip_suffix(&self.marker)
                .unwrap_or(answer)
                .trim_end()
                .to_owned());
        }
        let failure = report
            .error
            .ok_or_else(|| NoAnswer::ended("the process that asked has ended"))?;
        // A program that is killed while it starts an agent misses how the agent sets up its terminal, and tmux 3.3
        // does not tell the next program. Nothing was sent, and only another start shows it.
        self.is_usable = failure.refusal != Some(Refusal::Unbracketed);
        Err(NoAnswer {
            reason: failure.message,
            partial: failure.partial.unwrap_or_default(),
            is_transient: !matches!(failure.kind, FailureKind::Timeout | FailureKind::NotAllowed),
        })
    }

    async fn process_id(&self) -> Option<u32> {
        let cluster = self.panes.cluster.lock().await.clone()?;
        let pane = cluster.get_pane(&self.name).ok()?.to_string();
        let mut tmux = tokio::process::Command::new("tmux");
        tmux.arg("-S").arg(cluster.socket());
        tmux.args(["display-message", "-p", "-t", &pane, "#{pane_pid}"]);
        let output = tmux.output().await.ok()?;
        let shell = String::from_utf8(output.stdout).ok()?.trim().parse().ok()?;
        pane_processes::program_below(shell)
    }

    fn ask_command(&self) -> Option<String> {
        Some(format!("{} ask", word(&self.panes.command)))
    }
}

/// A path as a word of a shell command, quoted only if it must be: the agents read it.
fn word(path: &Path) -> String {
    let word = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    match word.chars().all(is_plain) {
        true => word.into_owned(),
        false => quoted(&word),
    }
}

/// An agent that cannot start prints the reason in its pane: that is the error to show.
fn start_error(error: Error) -> Box<dyn std::error::Error + Send + Sync> {
    let Error::NotReady { agent, source, .. } = &error else {
        return error.into();
    };
    let shown = source.partial().unwrap_or_default().trim();
    format!("{}\n{agent} shows:\n{shown}", with_causes(&error)).into()
}

/// Prints the messages that the agents send to each other from now on.
async fn print_messages(log: PathBuf, report: Report) -> Result<()> {
    let earlier = MessageLog::load(&log, &LogFilter::default()).map_or(0, |log| log.entries.len());
    let mut messages = MessageLog::follow(&log, LogFilter::default());
    for number in 0.. {
        let message = messages.next().await?;
        let (from, to) = (&message.from_agent, &message.to_agent);
        if number < earlier || from == SENDER || to == SENDER {
            continue;
        }
        let fields = json!({"from": from, "to": to, "type": message.message_type, "content": message.content});
        let tone = match message.message_type {
            MessageType::Error => Tone::Bad,
            _ => Tone::Dim,
        };
        report.event(
            "message",
            tone,
            fields,
            &format!("{from} → {to}: {}", first_line(&message.content)),
        );
    }
    Ok(())
}
