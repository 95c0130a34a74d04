//! What another process needs to find a running cluster: `cluster.json` in the folder of the
//! session.
//!
//! The command `tmux-bus` in a pane knows that folder from its environment. It needs no
//! configuration file, so it also works for clusters that were made in code, and with options of
//! the builder such as another log. It holds neither the commands of the agents nor their
//! environment, except for the folders in which transcripts are found.

use std::fs::{self, File};
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::agent_config::{AgentConfig, AgentRole};
use super::cluster_config::ClusterConfig;
use crate::Error;
use crate::inbox::InboxLimits;
use crate::shared::private_file;

/// The variables that lead to the transcripts of agents.
const TRANSCRIPT_VARIABLES: [&str; 3] = ["HOME", "CODEX_HOME", "GEMINI_CLI_HOME"];

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct ClusterRecord {
    pub(crate) session: String,
    /// The second part of the identity of the session.
    key: PathBuf,
    pub(crate) runtime_dir: PathBuf,
    /// The tmux program.
    pub(crate) tmux: PathBuf,
    pub(crate) log: PathBuf,
    /// The command `tmux-bus`.
    pub(crate) command: Option<PathBuf>,
    name: String,
    base_dir: PathBuf,
    work_dir: PathBuf,
    definitions: Option<PathBuf>,
    inbox: InboxRecord,
    agents: Vec<AgentRecord>,
}

#[derive(Debug, Serialize, Deserialize)]
struct InboxRecord {
    max_message_bytes: usize,
    max_messages: usize,
    keep_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct AgentRecord {
    name: String,
    role: String,
    personality: PathBuf,
    marker: String,
    pane_index: u32,
    agent: Option<String>,
    timeout_ms: u64,
    may_message: Option<Vec<String>>,
    transcripts: Vec<(String, String)>,
}

impl ClusterRecord {
    pub(super) fn new(
        config: &ClusterConfig,
        runtime_dir: PathBuf,
        tmux: PathBuf,
        log: PathBuf,
        definitions: Option<PathBuf>,
        command: Option<PathBuf>,
    ) -> Self {
        Self {
            session: config.session_name.clone(),
            key: config.path.clone(),
            runtime_dir,
            tmux,
            log,
            command,
            name: config.name.clone(),
            base_dir: config.base_dir.clone(),
            work_dir: config.work_dir.clone(),
            definitions,
            inbox: InboxRecord {
                max_message_bytes: config.inbox.max_message_bytes,
                max_messages: config.inbox.max_messages,
                keep_ms: u64::try_from(config.inbox.keep.as_millis()).unwrap_or(u64::MAX),
            },
            agents: config.agents.iter().map(AgentRecord::new).collect(),
        }
    }

    /// Writes the record into the folder of a session.
    pub(super) fn store(&self, session: &Path) -> Result<(), Error> {
        let path = path(session);
        let part = session.join(format!("cluster-{}", uuid::Uuid::new_v4().simple()));
        let bytes =
            serde_json::to_vec(self).map_err(|error| Error::io("write", &path)(error.into()))?;
        let mut file = private_file::open(&part, File::options().write(true).create_new(true))?;
        file.write_all(&bytes)
            .and_then(|()| fs::rename(&part, &path))
            .map_err(Error::io("write", &path))
    }

    /// Reads the record of a session; `None` if there is none.
    pub(crate) fn load(session: &Path) -> Result<Option<Self>, Error> {
        let path = path(session);
        let Some(file) = private_file::open_existing(&path, File::options().read(true))? else {
            return Ok(None);
        };
        let record = serde_json::from_reader(BufReader::new(file));
        record
            .map(Some)
            .map_err(|error| Error::io("read", &path)(error.into()))
    }

    /// The configuration, for a process that starts no agents.
    pub(crate) fn config(&self) -> ClusterConfig {
        ClusterConfig {
            path: self.key.clone(),
            base_dir: self.base_dir.clone(),
            name: self.name.clone(),
            session_name: self.session.clone(),
            work_dir: self.work_dir.clone(),
            agent_definitions: self.definitions.clone(),
            agents: self.agents.iter().map(AgentRecord::config).collect(),
            inbox: InboxLimits::default()
                .max_message_bytes(self.inbox.max_message_bytes)
                .max_messages(self.inbox.max_messages)
                .keep(Duration::from_millis(self.inbox.keep_ms)),
            warnings: Vec::new(),
        }
    }
}

fn path(session: &Path) -> PathBuf {
    session.join("cluster.json")
}

impl AgentRecord {
    fn new(agent: &AgentConfig) -> Self {
        // Of the process that starts the agents: the command runs with the variables of another
        // agent. Empty: not set.
        let transcripts = TRANSCRIPT_VARIABLES.iter().map(|&name| {
            let value = agent.env.get(name).cloned();
            let value = value.or_else(|| std::env::var(name).ok());
            (name.to_owned(), value.unwrap_or_default())
        });
        Self {
            name: agent.name.clone(),
            role: agent.role.as_str().to_owned(),
            personality: agent.personality_prompt_path.clone(),
            marker: agent.marker.clone(),
            pane_index: agent.pane_index,
            agent: agent.agent.clone(),
            timeout_ms: u64::try_from(agent.timeout.as_millis()).unwrap_or(u64::MAX),
            may_message: agent.may_message.clone(),
            transcripts: transcripts.collect(),
        }
    }

    fn config(&self) -> AgentConfig {
        AgentConfig {
            name: self.name.clone(),
            role: AgentRole::from(self.role.as_str()),
            personality_prompt_path: self.personality.clone(),
            personality_text: None,
            marker: self.marker.clone(),
            pane_index: self.pane_index,
            agent: self.agent.clone(),
            // Not known: the pane names the definition of what runs in it.
            command: Some(String::new()),
            timeout: Duration::from_millis(self.timeout_ms),
            may_message: self.may_message.clone(),
            env: self.transcripts.iter().cloned().collect(),
        }
    }
}
