//! A crew in its folder, and the stores that its parts share.
//!
//! | in the folder | contents |
//! |---|---|
//! | `crew.json` | the description, as it was checked; a later start uses it |
//! | `config/cluster.yaml` | the agents in panes, for tmux-bus |
//! | `roles.json`, `claims-<id>.json` | which process holds which role, and which task |
//! | `workspace/` | the folder in which the agents work |
//! | `state/` | the executions of the headless agents |
//! | `snapshots`, `snapshots.db` | the states of the roles, unless the storage is a server |
//! | `logs/messages.jsonl` | the messages of the agents in panes |

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::{AgentId, SnapshotStorage, open_storage};
use examples::task_list::{LOCK_LIMIT, Place};
use examples::{Result, pane_agent, scripted_agent};
use exec_core::{Budget, ExecutionService};
use exec_profiles::ProfileRegistry;
use serde::{Deserialize, Serialize};
use serde_json::json;
use timed_store::{LockPolicy, OwnerProcess, SessionId, TimedStorage};

use crate::crew_file::{CrewFile, Lives, PANE_AGENTS, Role, storage_address};

/// How long an agent in a pane may take to start.
const START_LIMIT_S: u32 = 180;
/// A role on a server is free this long after the last sign of its holder.
const ROLE_TTL: Duration = Duration::from_secs(10);

/// A crew. Several processes can have the same one: each role is held by one of them.
#[derive(Serialize, Deserialize)]
pub struct Crew {
    /// Part of every name that the crew uses outside of its folder.
    pub id: String,
    pub file: CrewFile,
    #[serde(skip)]
    pub folder: PathBuf,
    /// The server that the processes of several machines share.
    pub redis: Option<String>,
}

impl Crew {
    /// The crew in this folder, or a new one. `given` is what the command line describes: with it, a folder that has
    /// another crew is refused.
    pub fn open(folder: &Path, given: Option<CrewFile>, redis: Option<String>) -> Result<Self> {
        let folder = std::path::absolute(folder)?;
        check_private(&folder, 0o022)?;
        let mut crew = match fs::read(folder.join("crew.json")) {
            Ok(stored) => {
                let stored: Self = serde_json::from_slice(&stored)?;
                if given.is_some_and(|given| given != stored.file)
                    || redis.is_some_and(|url| Some(url) != stored.redis)
                {
                    let reason =
                        "it has another crew; give no other arguments to continue that one";
                    return Err(format!("refusing {}: {reason}", folder.display()).into());
                }
                stored
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let file = folder.join("crew.json");
                return Err(format!("cannot read {}: {error}", file.display()).into());
            }
            Err(_) => {
                let file = given.map_or_else(CrewFile::builtin, Ok)?;
                let id = match &redis {
                    Some(_) => file.list_name(),
                    None => format!(
                        "{}-{}",
                        file.name,
                        &uuid::Uuid::new_v4().simple().to_string()[..6]
                    ),
                };
                Self {
                    id,
                    file,
                    folder: PathBuf::new(),
                    redis,
                }
            }
        };
        crew.folder = folder;
        Ok(crew)
    }

    /// Writes the files. Of two programs that begin in the same new folder at once, the second one gets the crew of
    /// the first.
    pub fn create(self) -> Result<Self> {
        let scripts = format!("workspace/{}", scripted_agent::SCRIPTS);
        for name in [
            "",
            "config",
            "config/personalities",
            "workspace",
            &scripts,
            "state",
        ] {
            let folder = self.folder.join(name);
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&folder);
            made.map_err(|error| {
                format!(
                    "cannot create {}: {error}; choose a folder with --dir",
                    folder.display()
                )
            })?;
        }
        // A link is made once, and its file is whole.
        let next = format!("crew.json.{}", uuid::Uuid::new_v4().simple());
        self.write(&next, &serde_json::to_vec_pretty(&self)?)?;
        let linked = fs::hard_link(self.folder.join(&next), self.folder.join("crew.json"));
        fs::remove_file(self.folder.join(&next))?;
        match linked {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        let Self { file, redis, .. } = self;
        let crew = Self::open(&self.folder, Some(file), redis)?;
        crew.write_config()?;
        Ok(crew)
    }

    fn write_config(&self) -> Result<()> {
        let scripts = format!("workspace/{}", scripted_agent::SCRIPTS);
        for (task, script) in self.file.scripts() {
            self.write(&format!("{scripts}/{task}"), script.as_bytes())?;
        }
        let mut agents = Vec::new();
        for (index, role) in self.in_panes().enumerate() {
            let personality = format!("config/personalities/{}.txt", role.name);
            self.write(&personality, role.personality.as_bytes())?;
            let known = PANE_AGENTS.iter().find(|(label, _)| *label == role.agent);
            let command = match (&role.command, known) {
                (Some(command), _) => Some(command.clone()),
                (None, Some(_)) => None,
                (None, None) => Some(pane_agent::command_with_memory(
                    &role.marker,
                    &self.memory(&role.name),
                )?),
            };
            agents.push(json!({
                "name": role.name, "role": role.name, "marker": role.marker, "pane_index": index,
                "personality_prompt_path": personality, "timeout_s": START_LIMIT_S,
                "agent": known.map(|(_, name)| *name), "command": command,
            }));
        }
        if !agents.is_empty() {
            let cluster =
                json!({"name": self.id, "session_name": self.id, "work_dir": "workspace"});
            // JSON is valid YAML.
            let config = serde_json::to_vec_pretty(&json!({"cluster": cluster, "agents": agents}))?;
            self.write("config/cluster.yaml", &config)?;
        }
        Ok(())
    }

    /// The roles whose agents live in panes.
    pub fn in_panes(&self) -> impl Iterator<Item = &Role> {
        self.file
            .roles
            .iter()
            .filter(|role| role.lives == Lives::Pane)
    }

    pub fn cluster_file(&self) -> PathBuf {
        self.folder.join("config/cluster.yaml")
    }

    pub fn message_log(&self) -> PathBuf {
        self.folder.join("logs/messages.jsonl")
    }

    pub fn workspace(&self) -> PathBuf {
        self.folder.join("workspace")
    }

    /// Where the conversation of a scripted agent in a pane is stored.
    fn memory(&self, role: &str) -> PathBuf {
        self.folder.join(format!("state/{role}.jsonl"))
    }

    /// Where claims live.
    pub fn place(&self) -> Place {
        match &self.redis {
            Some(url) => Place::Redis(url.clone()),
            None => Place::Folder(self.folder.clone()),
        }
    }

    pub async fn storage(&self) -> Result<Arc<dyn SnapshotStorage>> {
        let address = storage_address(&self.file.storage, self.redis.as_deref(), &self.folder);
        Ok(open_storage(&address).await?)
    }

    pub fn agent_id(&self, role: &str) -> Result<AgentId> {
        Ok(AgentId::new(format!("{}.{role}", self.id))?)
    }

    /// The store of the holders of roles, for one role of this process. The end of the process frees the role.
    pub async fn roles(&self, role: &str) -> Result<TimedStorage<String>> {
        let session = SessionId::new(format!("{role}@{}", worker()))?;
        let owner = OwnerProcess::current();
        Ok(match &self.redis {
            Some(url) => {
                let name = format!("{}-roles", self.id);
                TimedStorage::redis_builder(url, &name)
                    .session(session)
                    .owner(owner)
                    .ttl(ROLE_TTL)
                    .connect()
                    .await?
            }
            None => {
                let store = TimedStorage::builder(self.folder.join("roles.json"))
                    .session(session)
                    .owner(owner);
                store.lock(LockPolicy::Wait(LOCK_LIMIT)).open()?
            }
        })
    }

    /// The service that runs the headless agents.
    pub fn executions(&self) -> Result<ExecutionService> {
        let profiles = ProfileRegistry::new();
        profiles.register(scripted_agent::profile(
            &self.folder.join("state/scripted-agent"),
        )?)?;
        let service = ExecutionService::builder(profiles).state_dir(self.folder.join("state"));
        Ok(service.host_name(&self.id).open()?)
    }

    /// The budget of all headless agents together.
    pub fn budget(&self) -> Option<Budget> {
        self.file.budget(&self.id)
    }

    /// Replaces a private file in one step.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.folder.join(name);
        let next = path.with_extension(format!("next-{}", std::process::id()));
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&next)?;
        file.write_all(bytes)?;
        Ok(fs::rename(next, path)?)
    }
}

/// The name of this process among the workers of all machines.
pub fn worker() -> String {
    let host = rustix::system::uname();
    format!(
        "{}-{}",
        host.nodename().to_string_lossy(),
        std::process::id()
    )
}

/// A folder for a new crew, below the temporary folder, that only this user can read.
pub fn default_folder() -> Result<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let parent = std::env::temp_dir().join(format!("crew-{user}"));
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&parent)?;
    check_private(&parent, 0o077)?;
    Ok(parent.join(&uuid::Uuid::new_v4().simple().to_string()[..8]))
}

/// Refuses a folder of another user, and one on which others have these rights. One that is not there is fine.
fn check_private(folder: &Path, rights: u32) -> Result<()> {
    let Ok(found) = fs::symlink_metadata(folder) else {
        return Ok(());
    };
    let user = rustix::process::getuid().as_raw();
    if !found.is_dir() || found.uid() != user || found.mode() & rights != 0 {
        let path = folder.display();
        return Err(format!("refusing {path}: not a private folder; choose one with --dir").into());
    }
    Ok(())
}
