//! Brings the agents of a session to a configuration: starts new ones, restarts changed ones, stops
//! removed ones.
//!
//! # Theory
//!
//! Each launch stores a digest of what decides how the program is started (command, variables,
//! working folder, personality, name of its definition) as an option of the pane, in the same step
//! of tmux that starts the program. A later configuration with the same digest leaves the agent
//! alone: same process, same pane.
//!
//! | the session has | the configuration has | action |
//! |---|---|---|
//! | no pane | the agent | new pane, start |
//! | a pane without a program | the agent | start: another process died between the two steps |
//! | a program with another digest | the agent | end the program, start it again in its pane |
//! | a program without a digest | the agent | none: an older version of this crate has started it |
//! | a program, or one that has ended | not the agent | end it, remove the pane, make dead letters of its messages |
//!
//! - **Race.** Two processes attach at once. The whole comparison is under the lock of the file
//!   `reconcile` in the folder of the session; the second one finds the digests of the first.
//!   Waiting until agents are ready is outside of the lock.
//! - **Race.** A process attaches while another one starts the cluster. The start takes the same
//!   path, so the later one of the two finds all panes.
//! - **Crash.** Every step is found again by the next process: a pane without a program, an old
//!   digest, an agent that is not in the configuration. A pane that was created and not named yet
//!   stays empty.
//! - The first agents share a window in the tiled layout. An agent that is added later gets a
//!   window of its own, because a new layout would resize running programs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::JoinSet;

use super::cluster_builder::{DEFINITION_OPTION, DIGEST_OPTION};
use super::cluster_config::ClusterConfig;
use super::cluster_manager::{Cluster, end_program};
use crate::Error;
use crate::control::command_queue::Request;
use crate::control::quoting::{quote, quote_literal};
use crate::definition::agent_definition::AgentDefinition;
use crate::pane::PaneId;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::tmux::Server;

/// An agent in the session.
#[derive(Clone, Debug)]
pub(super) struct RunningAgent {
    pub(super) pane: PaneId,
    /// The name of its definition, empty before its first launch.
    pub(super) definition: String,
    digest: String,
    is_launched: bool,
}

impl RunningAgent {
    /// Whether the program is to be started, or started again, for a definition with this digest.
    fn differs(&self, digest: &str) -> bool {
        !self.is_launched || (!self.digest.is_empty() && self.digest != digest)
    }
}

/// The agents of the session, by name.
pub(super) async fn running_agents(
    server: &Server,
) -> Result<BTreeMap<String, RunningAgent>, Error> {
    let session = server.session();
    let line = format!(
        "list-panes -s -t ={session}: -F \"#{{pane_id}}\t#{{@tmux_bus_launch}}\t#{{{DEFINITION_OPTION}}}\t#{{{DIGEST_OPTION}}}\t#{{@tmux_bus_agent}}\""
    );
    let list = server.control().run_one("list-panes", line).await?;
    let parse = |line: &str| {
        let mut fields = line.splitn(5, '\t');
        let pane = PaneId::parse(fields.next()?.as_bytes())?;
        let is_launched = !fields.next()?.is_empty();
        let (definition, digest) = (fields.next()?.to_owned(), fields.next()?.to_owned());
        let agent = fields.next().filter(|agent| !agent.is_empty())?;
        let running = RunningAgent {
            pane,
            definition,
            digest,
            is_launched,
        };
        Some((agent.to_owned(), running))
    };
    Ok(list.lines().filter_map(parse).collect())
}

/// Changes the agents of a session. Holds the lock.
pub(super) struct Reconciler<'a> {
    server: &'a Server,
    config: &'a ClusterConfig,
    running: BTreeMap<String, RunningAgent>,
    _lock: LockedFile,
}

impl<'a> Reconciler<'a> {
    /// Waits for the lock.
    pub(super) async fn lock(server: &'a Server, config: &'a ClusterConfig) -> Result<Self, Error> {
        let lock = FifoLock::new(&server.pane_io().folder().join("reconcile"));
        let lock = match lock.try_lock(Access::Exclusive)? {
            Some(lock) => lock,
            None => lock.wait(Access::Exclusive)?.await?,
        };
        Ok(Self {
            server,
            config,
            running: running_agents(server).await?,
            _lock: lock,
        })
    }

    /// Which agents keep running as they are, by the definitions of the configuration. The others
    /// are to be started.
    pub(super) fn unchanged(
        &self,
        definitions: &[Arc<AgentDefinition>],
    ) -> Result<BTreeMap<&'a str, RunningAgent>, Error> {
        let mut unchanged = BTreeMap::new();
        for (agent, definition) in self.config.agents.iter().zip(definitions) {
            let digest = agent.digest(&self.config.work_dir, definition)?;
            if let Some(running) = self.running.get(&agent.name)
                && !running.differs(&digest)
            {
                unchanged.insert(agent.name.as_str(), running.clone());
            }
        }
        Ok(unchanged)
    }

    /// Creates the panes that are missing, all of them before the first program starts: no program
    /// is resized while it draws. Returns the panes of all agents of the configuration.
    pub(super) async fn create_panes(&self) -> Result<BTreeMap<String, PaneId>, Error> {
        let control = self.server.control();
        if self.running.is_empty() {
            // The name of the agent, not the title, which the program sets.
            let border = "set-option -gw pane-border-status top ; set-option -gw pane-border-format \" #{@tmux_bus_agent} \"";
            let request = Request::new("set-option", border.to_owned()).blocks(2);
            control.run(request).await?;
        }
        let mut panes = BTreeMap::new();
        for agent in &self.config.agents {
            if let Some(running) = self.running.get(&agent.name) {
                panes.insert(agent.name.clone(), running.pane);
                continue;
            }
            let pane = match self.running.is_empty() {
                true => self.server.create_pane().await?,
                false => self.server.create_window().await?,
            };
            let name = quote(&agent.name);
            let option = format!("set-option -p -t {pane} @tmux_bus_agent {name}");
            control.run_one("set-option", option).await?;
            let name = quote_literal(&agent.name);
            let title = format!("select-pane -t {pane} -T {name}");
            control.run_one("select-pane", title).await?;
            panes.insert(agent.name.clone(), pane);
        }
        Ok(panes)
    }

    /// Starts these agents, in place of programs that may run in their panes, and stops those that
    /// the configuration does not have. An agent that cannot be started does not stop the others.
    pub(super) async fn apply(
        self,
        cluster: &Arc<Cluster>,
        names: &[String],
    ) -> Result<StartResults, Error> {
        let launched = in_parallel(cluster, names, |cluster, name| {
            let running = self.running.get(&name).filter(|agent| agent.is_launched);
            let pane = running.map(|agent| agent.pane);
            async move {
                if let Some(pane) = pane {
                    end_program(&cluster.server, pane).await?;
                }
                cluster.launch_agent(&name).await
            }
        });
        let launched = launched.await?;
        let known: BTreeSet<&str> = self.config.agents.iter().map(|a| a.name.as_str()).collect();
        for (name, running) in &self.running {
            if known.contains(name.as_str()) {
                continue;
            }
            tracing::info!(agent = %name, "stopping an agent that was removed");
            end_program(self.server, running.pane).await?;
            let kill = format!("kill-pane -t {}", running.pane);
            self.server.control().run_one("kill-pane", kill).await?;
        }
        cluster.inbox.bury_removed(&known)?;
        Ok(launched)
    }
}

/// The results of starts, in the order of the configuration.
pub(super) type StartResults = Vec<(String, Result<(), Error>)>;

/// Waits until each started agent is ready. An agent that does not become ready does not end the
/// wait for the others.
pub(super) async fn wait_until_ready(
    cluster: &Arc<Cluster>,
    launched: StartResults,
) -> Result<(), Error> {
    let started = launched.iter().filter(|(_, started)| started.is_ok());
    let names: Vec<String> = started.map(|(name, _)| name.clone()).collect();
    let mut ready = in_parallel(cluster, &names, |cluster, name| async move {
        cluster.wait_until_ready(&name).await
    })
    .await?
    .into_iter();
    let results = launched.into_iter().map(|(name, started)| match started {
        Ok(()) => ready.next().unwrap_or((name, Ok(()))),
        Err(error) => (name, Err(error)),
    });
    let mut failed = results.filter_map(|(name, result)| Some((name, result.err()?)));
    let Some((_, mut first)) = failed.next() else {
        return Ok(());
    };
    let rest: Vec<_> = failed.collect();
    for (_, error) in &rest {
        tracing::warn!("{error}");
    }
    if let Error::NotReady { others, .. } = &mut first {
        others.extend(rest.into_iter().map(|(name, _)| name));
    }
    Err(first)
}

async fn in_parallel<F>(
    cluster: &Arc<Cluster>,
    names: &[String],
    work: impl Fn(Arc<Cluster>, String) -> F,
) -> Result<StartResults, Error>
where
    F: Future<Output = Result<(), Error>> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    for (position, name) in names.iter().enumerate() {
        let done = work(Arc::clone(cluster), name.clone());
        tasks.spawn(async move { (position, done.await) });
    }
    let mut results = BTreeMap::new();
    while let Some(done) = tasks.join_next().await {
        let (position, result) = done.map_err(|error| Error::unfinished("start", &error))?;
        results.insert(position, result);
    }
    let names = names.iter().cloned();
    Ok(names.zip(results.into_values()).collect())
}
