//! The folder of a crew, and the settings that its members share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::{AgentId, SnapshotStorage, open_storage};
use examples::{Result, pane_agent, scripted_agent};
use exec_core::ExecutionService;
use exec_profiles::ProfileRegistry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use timed_store::{LockPolicy, OwnerProcess, SessionId, TimedStorage};
use tmux_bus::ClusterConfig;

pub(crate) const GRAND_BOSS: &str = "grand_boss";
pub(crate) const MIDDLE_MANAGER: &str = "middle_manager";
pub(crate) const CODING: &str = "coding_writing_specialist";
pub(crate) const RESEARCH: &str = "research_analysis_specialist";
pub(crate) const TESTING: &str = "testing_specialist";

/// An agent of the specification.
pub(crate) struct Role {
    pub(crate) name: &'static str,
    pub(crate) role: &'static str,
    pub(crate) marker: &'static str,
    pub(crate) personality: &'static str,
}

#[rustfmt::skip]
pub(crate) const ROLES: [Role; 5] = [
    Role { name: GRAND_BOSS, role: "grand_boss", marker: "GRAND BOSS OK",
        personality: include_str!("../config/personalities/grand_boss.txt") },
    Role { name: MIDDLE_MANAGER, role: "middle_manager", marker: "MIDDLE MANAGER OK",
        personality: include_str!("../config/personalities/middle_manager.txt") },
    Role { name: CODING, role: "specialist_coding_writing", marker: "CODING OK",
        personality: include_str!("../config/personalities/coding_writing_specialist.txt") },
    Role { name: RESEARCH, role: "specialist_research_analysis", marker: "RESEARCH OK",
        personality: include_str!("../config/personalities/research_analysis_specialist.txt") },
    Role { name: TESTING, role: "specialist_testing", marker: "TESTING OK",
        personality: include_str!("../config/personalities/testing_specialist.txt") },
];

/// A crew and its folder. The crews of one parent folder share the list of names in it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Crew {
    pub(crate) id: String,
    pub(crate) folder: PathBuf,
    /// The profile of the coding agents.
    pub(crate) agents: String,
    /// `file`, `sqlite`, or the address of a storage.
    pub(crate) storage: String,
}

impl Crew {
    /// Creates the folder with the configuration of the cluster. The command of each agent is this
    /// program.
    pub(crate) fn create(shared: &Path, agents: &str, storage: &str) -> Result<Self> {
        let id = uuid::Uuid::new_v4().simple().to_string()[..6].to_owned();
        let folder = std::path::absolute(shared)?.join(format!("crew-{id}"));
        let (agents, storage) = (agents.to_owned(), storage.to_owned());
        let crew = Self {
            id,
            folder,
            agents,
            storage,
        };
        let profiles = crew.profiles()?;
        if profiles.get_profile(&crew.agents).is_none() {
            let known = profiles.labels().join(", ");
            return Err(format!("unknown profile `{}`; known: {known}", crew.agents).into());
        }
        fs::create_dir_all(crew.folder.join("config/personalities")).map_err(|error| {
            let folder = crew.folder.display();
            format!("cannot create {folder}: {error}; choose another folder with --dir")
        })?;
        fs::create_dir(crew.workspace())?;
        let program = pane_agent::quoted(&scripted_agent::this_program()?);
        let folder = crew
            .folder
            .to_str()
            .ok_or("the folder's path is not UTF-8")?;
        let mut members = Vec::new();
        for (index, role) in ROLES.iter().enumerate() {
            let personality = format!("config/personalities/{}.txt", role.name);
            fs::write(crew.folder.join(&personality), role.personality)?;
            let folder = pane_agent::quoted(folder);
            members.push(json!({
                "name": role.name, "role": role.role, "marker": role.marker, "pane_index": index,
                "personality_prompt_path": personality, "timeout_s": 60,
                "command": format!("exec {program} member {folder} {}", role.name),
            }));
        }
        let session = format!("crew-{}", crew.id);
        let cluster = json!({"name": session, "session_name": session, "work_dir": "."});
        // JSON is valid YAML.
        let config = json!({"cluster": cluster, "agents": members});
        fs::write(crew.config_file(), serde_json::to_vec_pretty(&config)?)?;
        fs::write(crew.folder.join("crew.json"), serde_json::to_vec(&crew)?)?;
        Ok(crew)
    }

    pub(crate) fn load(folder: &Path) -> Result<Self> {
        Ok(serde_json::from_slice(&fs::read(
            folder.join("crew.json"),
        )?)?)
    }

    pub(crate) fn config_file(&self) -> PathBuf {
        self.folder.join("config/cluster.yaml")
    }

    pub(crate) fn config(&self) -> Result<ClusterConfig> {
        Ok(ClusterConfig::load(self.config_file())?)
    }

    /// The folder in which the coding agents work.
    pub(crate) fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    pub(crate) fn is_scripted(&self) -> bool {
        self.agents == scripted_agent::LABEL
    }

    /// The session of a member in the list of names.
    pub(crate) fn session(&self, member: &str) -> String {
        format!("crew-{}:{member}", self.id)
    }

    /// The names of the members of all crews in the parent folder. The entry of a member expires
    /// when its process ends.
    pub(crate) fn names(&self, member: &str) -> Result<TimedStorage<String>> {
        let file = self.folder.with_file_name("names.json");
        TimedStorage::builder(file)
            .session(SessionId::new(self.session(member))?)
            .owner(OwnerProcess::current())
            .lock(LockPolicy::Wait(Duration::from_secs(10)))
            .open()
            .map_err(Into::into)
    }

    pub(crate) async fn snapshots(&self) -> Result<Arc<dyn SnapshotStorage>> {
        let folder = self.folder.display();
        let address = match self.storage.as_str() {
            "file" => format!("file:{folder}/snapshots"),
            "sqlite" => format!("sqlite:{folder}/snapshots.db"),
            address => address.to_owned(),
        };
        Ok(open_storage(&address).await?)
    }

    pub(crate) fn agent_id(&self, member: &str) -> Result<AgentId> {
        Ok(AgentId::new(format!("{}.{member}", self.id))?)
    }

    pub(crate) fn profiles(&self) -> Result<ProfileRegistry> {
        let registry = ProfileRegistry::new();
        let home = self.folder.join("state/scripted-agent");
        registry.register(scripted_agent::profile(&home)?)?;
        Ok(registry)
    }

    /// The service that starts the coding agents of a member. Each member has its own record of
    /// executions.
    pub(crate) fn executions(&self, member: &str) -> Result<ExecutionService> {
        let service = ExecutionService::builder(self.profiles()?)
            .state_dir(self.folder.join("state").join(member))
            .host_name(format!("crew-{}-{member}", self.id));
        Ok(service.open()?)
    }
}
