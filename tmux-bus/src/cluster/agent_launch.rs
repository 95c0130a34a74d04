//! Starts the program of an agent: its personality, its hooks, and the way to the bus.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use super::agent_config::AgentConfig;
use super::agent_monitor::AgentMonitor;
use super::cluster_builder::{DEFINITION_OPTION, DIGEST_OPTION};
use super::cluster_manager::Cluster;
use super::cluster_record::ClusterRecord;
use super::primer;
use crate::Error;
use crate::definition::agent_definition::LaunchRules;
use crate::hook::LaunchFolder;
use crate::pane::PaneId;
use crate::shared::private_file;
use crate::tmux::Launch;
use crate::tmux::launch::{
    AGENT_VARIABLE, COMMAND_VARIABLE, FOLDER_VARIABLE, PERSONALITY_VARIABLE,
};

impl Cluster {
    /// Starts the program of an agent, with the hooks of its definition.
    pub(super) async fn launch(
        &self,
        agent: &AgentConfig,
        monitor: &AgentMonitor,
    ) -> Result<(), Error> {
        let (pane, definition) = (monitor.pane(), monitor.definition());
        let io = self.server.pane_io();
        let before = io.panes().launch(pane);
        let work_dir = &self.config.work_dir;
        let digest = agent.digest(work_dir, definition)?;
        let personality = self.write_personality(agent, pane)?;
        let mut launch = agent.launch(work_dir, definition, &personality);
        launch = self.with_bus(launch, agent, &personality);
        if definition.launch != LaunchRules::default() {
            let id = launch.new_id();
            let folder = LaunchFolder::new(io.folder(), &id);
            launch = definition.launch.inject(&folder, launch, &agent.env)?;
            launch = launch.id(id);
        }
        let options = [
            (DEFINITION_OPTION, definition.name.as_str()),
            (DIGEST_OPTION, digest.as_str()),
        ];
        self.server.launch_with(pane, &launch, &options).await?;
        if let Some(before) = before {
            LaunchFolder::new(io.folder(), &before).remove();
        }
        Ok(())
    }

    /// Tells other processes how to find this cluster.
    pub(super) fn store_record(&self) -> Result<(), Error> {
        let folder = self.server.folder();
        let record = ClusterRecord::new(
            &self.config,
            folder.base().to_owned(),
            self.server.program().to_owned(),
            absolute(self.logger.path())?,
            self.definitions.as_deref().map(absolute).transpose()?,
            self.command.clone(),
        );
        record.store(folder.path())
    }

    /// Writes the file with the personality of an agent and what it is told about the bus.
    fn write_personality(&self, agent: &AgentConfig, pane: PaneId) -> Result<PathBuf, Error> {
        let given = &agent.personality_prompt_path;
        let mut text = match &agent.personality_text {
            Some(text) => text.clone(),
            None => fs::read_to_string(given).map_err(Error::io("read", given))?,
        };
        if let Some(command) = &self.command {
            let names = self.config.agents.iter().map(|other| other.name.as_str());
            let others: Vec<_> = names
                .filter(|other| *other != agent.name && agent.allows(other))
                .collect();
            if !others.is_empty() {
                let primer = primer::primer(&agent.name, &others, command);
                text = format!("{}\n\n{primer}", text.trim_end());
            }
        }
        let folder = self.server.folder().path();
        let path = folder.join(format!("personality-{}", pane.number()));
        let mut options = File::options();
        let mut file = private_file::open(&path, options.write(true).create(true).truncate(true))?;
        file.write_all(text.trim_start().as_bytes())
            .map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// Adds the agent's name, the session folder and the command `tmux-bus` to its environment.
    fn with_bus(&self, launch: Launch, agent: &AgentConfig, personality: &Path) -> Launch {
        let folder = self.server.folder().path();
        let launch = launch
            .env(AGENT_VARIABLE, &agent.name)
            .env(FOLDER_VARIABLE, folder.to_string_lossy())
            .env(PERSONALITY_VARIABLE, personality.to_string_lossy());
        match &self.command {
            Some(command) => launch
                .env(COMMAND_VARIABLE, command.to_string_lossy())
                .also_on_path(command.parent().unwrap_or(Path::new("/"))),
            None => launch,
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, Error> {
    std::path::absolute(path).map_err(Error::io("make absolute", path))
}
