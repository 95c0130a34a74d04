//! The file of a daemon.

use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_snapshot::AgentId;
use examples::{Result, scripted_agent};
use exec_core::{
    ExecutionContext, ExecutionService, LiveRequest, PermissionPolicy, PermissionRule, SessionId,
};
use exec_profiles::ProfileRegistry;
use serde::Deserialize;

/// What a daemon runs. All paths are absolute after [`load`](Self::load).
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DaemonConfig {
    #[serde(skip)]
    pub(crate) file: PathBuf,
    #[serde(default = "default_folder")]
    pub(crate) folder: PathBuf,
    /// The claims of agents. Daemons with different folders can share it.
    claims: Option<PathBuf>,
    storage: Option<String>,
    #[serde(rename = "agent")]
    pub(crate) agents: Vec<AgentConfig>,
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentConfig {
    pub(crate) name: String,
    profile: String,
    variant: Option<String>,
    #[serde(default)]
    workspace: PathBuf,
    /// Precedes the first message of a session.
    #[serde(default)]
    pub(crate) personality: String,
    /// The first message.
    pub(crate) prompt: String,
    #[serde(default)]
    permissions: Vec<PermissionRule>,
    #[serde(default)]
    pub(crate) restart: RestartConfig,
}

/// When an agent that has died is started again.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RestartConfig {
    first_s: f64,
    max_s: f64,
    pub(crate) give_up_after: usize,
    within_s: f64,
    /// Sent to an agent that has died at work. The last message follows if the agent may not have it.
    pub(crate) message: String,
}

impl Default for RestartConfig {
    fn default() -> Self {
        Self {
            first_s: 1.0,
            max_s: 60.0,
            give_up_after: 5,
            within_s: 600.0,
            message:
                "You were interrupted. Look at what is done, do not repeat it, and do the rest of \
                      the last message."
                    .to_owned(),
        }
    }
}

fn default_folder() -> PathBuf {
    PathBuf::from(".daemon")
}

impl DaemonConfig {
    pub(crate) fn load(file: &Path) -> Result<Self> {
        let name = file.display();
        let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {name}: {e}"))?;
        let config: Self = toml::from_str(&text).map_err(|e| format!("{name}: {e}"))?;
        let file = std::path::absolute(file)?;
        config.check(file)
    }

    fn check(mut self, file: PathBuf) -> Result<Self> {
        let base = file.parent().unwrap_or(Path::new("/")).to_owned();
        self.folder = base.join(&self.folder);
        self.claims = self.claims.map(|claims| base.join(claims));
        // A daemon that is started in another folder must find the same snapshots.
        if let Some((scheme @ ("file" | "sqlite"), path)) =
            self.storage.as_deref().and_then(|it| it.split_once(':'))
        {
            self.storage = Some(format!("{scheme}:{}", base.join(path).display()));
        }
        for (index, agent) in self.agents.iter_mut().enumerate() {
            agent.workspace = base.join(&agent.workspace);
            let name = &agent.name;
            // The name is part of file names and claims.
            let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.len() > 50 || !name.chars().all(is_allowed) {
                let rule = "1 to 50 letters, digits, dots, underscores or hyphens";
                return Err(
                    format!("the name of agent {index}, {name:?}, must have {rule}").into(),
                );
            }
            let restart = &agent.restart;
            for seconds in [restart.first_s, restart.max_s, restart.within_s] {
                Duration::try_from_secs_f64(seconds)
                    .map_err(|error| format!("agent {name}: restart: {seconds}: {error}"))?;
            }
        }
        let mut names: Vec<&str> = self.agents.iter().map(|agent| &*agent.name).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("two agents have the name {}", twice[0]).into());
        }
        self.file = file;
        Ok(self)
    }

    pub(crate) fn not_running(&self) -> String {
        format!("no daemon runs for {}", self.file.display())
    }

    pub(crate) fn claims_file(&self) -> PathBuf {
        let claims = self.claims.clone();
        claims.unwrap_or_else(|| self.folder.join("claims.json"))
    }

    pub(crate) fn storage(&self) -> String {
        let files = || format!("file:{}", self.folder.join("snapshots").display());
        self.storage.clone().unwrap_or_else(files)
    }

    pub(crate) fn executions(&self) -> Result<ExecutionService> {
        let registry = ProfileRegistry::new();
        let home = self.folder.join("scripted-agent");
        registry.register(scripted_agent::profile(&home)?)?;
        let service = ExecutionService::builder(registry)
            .state_dir(self.folder.join("executions"))
            .host_name("daemon");
        Ok(service.open()?)
    }
}

impl AgentConfig {
    pub(crate) fn id(&self) -> Result<AgentId> {
        Ok(AgentId::new(&self.name)?)
    }

    /// Opens the session, or a new one.
    pub(crate) fn live_request(
        &self,
        session: Option<SessionId>,
    ) -> std::result::Result<LiveRequest, exec_core::Error> {
        let mut context = ExecutionContext::for_workspace(&self.profile, &self.workspace)?;
        context.variant_label.clone_from(&self.variant);
        let request = match session {
            Some(session) => LiveRequest::resume(context, session),
            None => LiveRequest::new(context),
        };
        // No person answers questions: what no rule allows is denied at once.
        let policy = PermissionPolicy::default().deadline(Duration::ZERO);
        let rules = self.permissions.iter().cloned();
        Ok(request.policy(rules.fold(policy, PermissionPolicy::rule)))
    }
}

impl RestartConfig {
    /// The delay after `earlier` restarts.
    pub(crate) fn delay(&self, earlier: usize) -> Duration {
        let factor = 2f64.powi(i32::try_from(earlier.min(60)).unwrap_or(60));
        Duration::from_secs_f64((self.first_s * factor).min(self.max_s))
    }

    /// The time in which restarts count.
    pub(crate) fn window(&self) -> Duration {
        Duration::from_secs_f64(self.within_s)
    }
}
