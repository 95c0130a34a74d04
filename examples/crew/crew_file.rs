//! The file that describes a crew: roles, tasks, agents, budget and storage.
//!
//! [`CrewFile::load`] reads and checks all of it before anything is started: an unknown key, a name that no role or task
//! has, or a cycle of tasks is an error with the line. `examples/config/crew.toml` explains the keys.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use examples::task_list::{Task, digest};
use examples::{Result, scripted_agent};
use exec_core::Budget;
use serde::{Deserialize, Serialize};
use toml::Spanned;

/// Programs that can live in a pane without a `command`: the profile and the name by which tmux-bus knows it.
pub const PANE_AGENTS: [(&str, &str); 4] = [
    ("claude-code", "claude"),
    ("codex", "codex"),
    ("gemini", "gemini"),
    ("opencode", "opencode"),
];

/// A checked crew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CrewFile {
    /// Distinguishes crews that share a server.
    pub name: String,
    /// The text for `{goal}`.
    pub goal: String,
    /// `file`, `sqlite`, or the address of a storage.
    pub storage: String,
    /// The role whose agent is killed once at work, to show that it recovers.
    pub kill: Option<String>,
    pub budget: BudgetLimits,
    pub roles: Vec<Role>,
    tasks: Vec<TaskEntry>,
}

/// What the crew may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BudgetLimits {
    /// Of the whole crew.
    pub wall_time_s: Option<u64>,
    /// Of all headless agents together.
    pub tokens: Option<u64>,
    /// Of all headless agents together.
    pub cost_usd: Option<f64>,
}

/// An agent with a place in the crew.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Role {
    pub name: String,
    pub personality: String,
    /// The label of its profile.
    pub agent: String,
    pub lives: Lives,
    pub permissions: Permissions,
    /// The text that ends the answers of a program without hooks.
    pub marker: String,
    /// The command line in the pane, in place of the one that is known for the agent.
    pub command: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lives {
    #[default]
    Pane,
    Headless,
}

/// What a headless agent may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permissions {
    #[default]
    Allow,
    /// Each request is shown on the page, and denied after ten minutes.
    Ask,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct TaskEntry {
    id: String,
    role: String,
    text: String,
    after: Vec<String>,
    scripted: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FileForm {
    crew: CrewForm,
    #[serde(default)]
    budget: BudgetLimits,
    role: Vec<RoleForm>,
    task: Vec<TaskForm>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CrewForm {
    #[serde(default)]
    name: Option<Spanned<String>>,
    goal: String,
    #[serde(default)]
    storage: Option<Spanned<String>>,
    #[serde(default)]
    kill: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoleForm {
    name: Spanned<String>,
    personality: Option<String>,
    personality_file: Option<Spanned<String>>,
    agent: Option<Spanned<String>>,
    #[serde(default)]
    lives: Lives,
    #[serde(default)]
    permissions: Permissions,
    marker: Option<String>,
    command: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TaskForm {
    id: Spanned<String>,
    role: Spanned<String>,
    text: String,
    #[serde(default)]
    after: Vec<Spanned<String>>,
    #[serde(default)]
    scripted: String,
}

/// What is wrong, and the byte at which it is.
type Mistake = (usize, String);

impl CrewFile {
    /// Reads a file.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let text =
            fs::read_to_string(path).map_err(|error| format!("cannot read {shown}: {error}"))?;
        let folder = path.parent().unwrap_or(Path::new(""));
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))
        };
        Self::parse(&text, &shown, &read)
    }

    /// The crew of the specification.
    pub fn builtin() -> Result<Self> {
        macro_rules! file {
            ($name:literal) => {
                ($name, include_str!(concat!("../config/", $name)))
            };
        }
        let files = [
            file!("personalities/grand_boss.txt"),
            file!("personalities/middle_manager.txt"),
            file!("personalities/coding_writing_specialist.txt"),
            file!("personalities/research_analysis_specialist.txt"),
            file!("personalities/testing_specialist.txt"),
        ];
        let read = |name: &str| {
            let found = files.iter().find(|(known, _)| *known == name);
            found
                .map(|(_, text)| (*text).to_owned())
                .ok_or_else(|| format!("{name} is not built in"))
        };
        Self::parse(include_str!("../config/crew.toml"), "crew.toml", &read)
    }

    /// Reads the text of a file; `read` gets the files that it names.
    fn parse(
        text: &str,
        shown: &str,
        read: &dyn Fn(&str) -> std::result::Result<String, String>,
    ) -> Result<Self> {
        let form: std::result::Result<FileForm, Mistake> =
            toml::from_str(text).map_err(|error: toml::de::Error| {
                (
                    error.span().map_or(0, |span| span.start),
                    error.message().to_owned(),
                )
            });
        let checked = form.and_then(|form| form.check(read));
        checked.map_err(|(at, reason)| {
            let before = text.get(..at).unwrap_or(text);
            let line = before.matches('\n').count() + 1;
            format!("{shown}, line {line}: {reason}").into()
        })
    }

    /// Gives the kinds of agents to the roles, one after the other, again from the first when they are used up.
    pub fn mix(&mut self, agents: &[String]) -> Result<()> {
        for (role, agent) in self.roles.iter_mut().zip(agents.iter().cycle()) {
            check_agent(agent, role.lives, role.command.is_some())?;
            role.agent.clone_from(agent);
        }
        Ok(())
    }

    /// The tasks as the agents get them.
    pub fn tasks(&self) -> Vec<Task> {
        let task = |entry: &TaskEntry| {
            let mut text = entry.text.replace("{goal}", &self.goal);
            let is_scripted =
                |role: &&Role| role.name == entry.role && role.agent == scripted_agent::LABEL;
            if self.roles.iter().any(|role| is_scripted(&role)) && !entry.scripted.is_empty() {
                text = format!("{text}\n[[script {}]]", entry.id);
            }
            Task {
                id: entry.id.clone(),
                role: entry.role.clone(),
                text,
                after: entry.after.clone(),
            }
        };
        self.tasks.iter().map(task).collect()
    }

    /// The name of the list of tasks on a server. Another goal, and a file whose tasks have changed, are another
    /// list: the answers of one are not those of the other. The agents that do the tasks do not matter.
    pub fn list_name(&self) -> String {
        let tasks = self.tasks.iter();
        let tasks = tasks.map(|task| {
            let text = task.text.replace("{goal}", &self.goal);
            (&task.id, &task.role, text, &task.after)
        });
        let tasks: Vec<_> = tasks.collect();
        let digest = digest(format!("{tasks:?}").as_bytes());
        format!("{}-{}", self.name, &digest[..8])
    }

    /// The directives for scripted agents, by task.
    pub fn scripts(&self) -> impl Iterator<Item = (&str, &str)> {
        let tasks = self.tasks.iter();
        tasks.map(|entry| (entry.id.as_str(), entry.scripted.as_str()))
    }

    /// The role of this name.
    pub fn role(&self, name: &str) -> Option<&Role> {
        self.roles.iter().find(|role| role.name == name)
    }

    /// The budget of all headless agents of a group together.
    pub fn budget(&self, group: &str) -> Option<Budget> {
        let BudgetLimits {
            tokens, cost_usd, ..
        } = self.budget;
        let mut budget = Budget::for_group(group);
        if let Some(tokens) = tokens {
            budget = budget.tokens(tokens);
        }
        if let Some(usd) = cost_usd {
            budget = budget.cost_usd(usd);
        }
        (tokens.is_some() || cost_usd.is_some()).then_some(budget)
    }

    /// The time for the whole crew.
    pub fn wall_time(&self) -> Duration {
        self.budget
            .wall_time_s
            .map_or(Duration::from_secs(24 * 3600), Duration::from_secs)
    }
}

impl FileForm {
    fn check(
        self,
        read: &dyn Fn(&str) -> std::result::Result<String, String>,
    ) -> std::result::Result<CrewFile, Mistake> {
        let name = match &self.crew.name {
            Some(name) => named(name, "crew")?,
            None => "crew".to_owned(),
        };
        let storage = match &self.crew.storage {
            Some(storage) => {
                check_storage(storage.as_ref()).map_err(|reason| (storage.span().start, reason))?;
                storage.as_ref().clone()
            }
            None => "file".to_owned(),
        };
        if self.role.is_empty() || self.task.is_empty() {
            return Err((0, "a crew needs at least one role and one task".to_owned()));
        }
        let mut roles: Vec<Role> = Vec::new();
        for form in self.role {
            let role = form.check(read, &roles)?;
            roles.push(role);
        }
        let tasks = check_tasks(&self.task, &roles)?;
        if let Some(kill) = &self.crew.kill
            && !roles.iter().any(|role| role.name == *kill.as_ref())
        {
            let reason = format!("there is no role `{}`", kill.as_ref());
            return Err((kill.span().start, reason));
        }
        let (goal, budget) = (self.crew.goal, self.budget);
        let kill = self.crew.kill.map(Spanned::into_inner);
        Ok(CrewFile {
            name,
            goal,
            storage,
            kill,
            budget,
            roles,
            tasks,
        })
    }
}

impl RoleForm {
    fn check(
        self,
        read: &dyn Fn(&str) -> std::result::Result<String, String>,
        earlier: &[Role],
    ) -> std::result::Result<Role, Mistake> {
        let (name, at) = (named(&self.name, "role")?, self.name.span().start);
        if earlier.iter().any(|role| role.name == name) {
            return Err((at, format!("role `{name}` is there twice")));
        }
        let personality = match (self.personality, self.personality_file) {
            (Some(text), None) => text,
            (None, Some(file)) => {
                read(file.as_ref()).map_err(|reason| (file.span().start, reason))?
            }
            _ => {
                let reason =
                    format!("role `{name}` needs either `personality` or `personality_file`");
                return Err((at, reason));
            }
        };
        let agent = match self.agent {
            Some(agent) => {
                check_agent(agent.as_ref(), self.lives, self.command.is_some())
                    .map_err(|reason| (agent.span().start, reason))?;
                agent.into_inner()
            }
            None => scripted_agent::LABEL.to_owned(),
        };
        let marker = self
            .marker
            .unwrap_or_else(|| format!("{} OK", name.to_uppercase().replace(['_', '-'], " ")));
        if earlier.iter().any(|role| role.marker == marker) {
            return Err((at, format!("marker `{marker}` is there twice")));
        }
        let (lives, permissions, command) = (self.lives, self.permissions, self.command);
        Ok(Role {
            name,
            personality,
            agent,
            lives,
            permissions,
            marker,
            command,
        })
    }
}

fn check_tasks(forms: &[TaskForm], roles: &[Role]) -> std::result::Result<Vec<TaskEntry>, Mistake> {
    let mut tasks: Vec<TaskEntry> = Vec::new();
    let mut ids = BTreeSet::new();
    for form in forms {
        if !ids.insert(named(&form.id, "task")?) {
            return Err((
                form.id.span().start,
                format!("task `{}` is there twice", form.id.as_ref()),
            ));
        }
    }
    for form in forms {
        let role = form.role.as_ref();
        if !roles.iter().any(|known| known.name == *role) {
            return Err((form.role.span().start, format!("there is no role `{role}`")));
        }
        for name in &form.after {
            if !ids.contains(name.as_ref()) {
                return Err((
                    name.span().start,
                    format!("there is no task `{}`", name.as_ref()),
                ));
            }
        }
        tasks.push(TaskEntry {
            id: form.id.as_ref().clone(),
            role: role.clone(),
            text: form.text.clone(),
            after: form
                .after
                .iter()
                .map(|name| name.as_ref().clone())
                .collect(),
            scripted: form.scripted.clone(),
        });
    }
    // Tasks that can begin are taken away until none can: those that are left wait for each other.
    let mut left: Vec<&TaskEntry> = tasks.iter().collect();
    loop {
        let waiting: BTreeSet<&str> = left.iter().map(|task| task.id.as_str()).collect();
        let before = left.len();
        left.retain(|task| {
            task.after
                .iter()
                .any(|name| waiting.contains(name.as_str()))
        });
        if left.is_empty() {
            return Ok(tasks);
        }
        if left.len() == before {
            let form = forms
                .iter()
                .find(|form| waiting.contains(form.id.as_ref().as_str()));
            let at = form.map_or(0, |form| form.id.span().start);
            let names: Vec<&str> = waiting.into_iter().collect();
            return Err((
                at,
                format!("these tasks wait for each other: {}", names.join(", ")),
            ));
        }
    }
}

/// A name that is also part of a file name, a key and a shell word.
fn named(name: &Spanned<String>, what: &str) -> std::result::Result<String, Mistake> {
    let text = name.as_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match (1..=60).contains(&text.len()) && text.chars().all(is_plain) && !text.starts_with('-') {
        true => Ok(text.clone()),
        false => Err((
            name.span().start,
            format!("`{text}` is no name of a {what}: use letters, digits, `_` and `-`"),
        )),
    }
}

fn check_agent(agent: &str, lives: Lives, has_command: bool) -> std::result::Result<(), String> {
    if agent == scripted_agent::LABEL {
        return Ok(());
    }
    let known: Vec<String> = match lives {
        Lives::Pane if has_command => return Ok(()),
        Lives::Pane => PANE_AGENTS
            .iter()
            .map(|(label, _)| (*label).to_owned())
            .collect(),
        Lives::Headless => {
            let definitions = exec_profiles::profile_definitions().into_iter();
            definitions
                .filter(|known| known.live.is_some())
                .map(|known| known.label)
                .collect()
        }
    };
    match known.iter().any(|known| known == agent) {
        true => Ok(()),
        false => Err(format!(
            "unknown agent `{agent}`; known: {}, {}",
            scripted_agent::LABEL,
            known.join(", ")
        )),
    }
}

/// A storage in memory is refused: the crew could not continue after its end.
pub fn check_storage(storage: &str) -> std::result::Result<(), String> {
    let scheme = storage
        .split_once(':')
        .map_or(storage, |(scheme, _)| scheme);
    match scheme {
        "file" | "sqlite" | "redis" | "rediss" | "redis+unix" | "postgres" | "postgresql" => Ok(()),
        _ => Err(format!(
            "unknown storage `{scheme}`; known: file, sqlite, redis://, postgres://"
        )),
    }
}

/// The address of the storage for a checked `storage`. Several machines need a server, so files become the server of
/// the claims.
pub fn storage_address(storage: &str, redis: Option<&str>, folder: &Path) -> String {
    match (storage, redis) {
        ("file" | "sqlite", Some(url)) => url.to_owned(),
        ("file", None) => format!("file:{}", folder.join("snapshots").display()),
        ("sqlite", None) => format!("sqlite:{}", folder.join("snapshots.db").display()),
        (address, _) => address.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test panics")]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[crew]
goal = "G"
[[role]]
name = "a"
personality = "P"
[[task]]
id = "one"
role = "a"
text = "do {goal}"
"#;

    fn parse(text: &str) -> std::result::Result<CrewFile, String> {
        let read = |name: &str| Err(format!("cannot read {name}"));
        CrewFile::parse(text, "f.toml", &read).map_err(|error| error.to_string())
    }

    #[track_caller]
    fn refused(from: &str, to: &str, expected: &str) {
        assert!(GOOD.contains(from), "{from}");
        let error = parse(&GOOD.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(expected), "`{expected}` is missing: {error}");
    }

    #[test]
    fn a_small_file_gets_defaults() {
        let crew = parse(GOOD).unwrap();
        assert_eq!(
            (crew.roles[0].agent.as_str(), crew.roles[0].lives),
            ("scripted", Lives::Pane)
        );
        assert_eq!(crew.roles[0].marker, "A OK");
        assert_eq!(crew.tasks()[0].text, "do G");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        refused("goal", "gaol", "f.toml, line 3: unknown field `gaol`");
        refused(
            "personality =",
            "perzonality =",
            "f.toml, line 6: unknown field `perzonality`",
        );
        refused(
            "role = \"a\"",
            "role = \"b\"",
            "f.toml, line 9: there is no role `b`",
        );
        refused(
            "text",
            "after = [\"two\"]\ntext",
            "f.toml, line 10: there is no task `two`",
        );
        refused(
            "text",
            "after = [\"one\"]\ntext",
            "f.toml, line 8: these tasks wait for each other: one",
        );
        refused(
            "personality = \"P\"",
            "",
            "f.toml, line 5: role `a` needs either",
        );
        refused(
            "personality =",
            "personality_file =",
            "f.toml, line 6: cannot read P",
        );
        refused(
            "name = \"a\"",
            "name = \"a b\"",
            "f.toml, line 5: `a b` is no name of a role",
        );
        refused(
            "name",
            "agent = \"nobody\"\nname",
            "f.toml, line 5: unknown agent `nobody`; known: scripted, claude",
        );
        refused(
            "goal =",
            "storage = \"memory:\"\ngoal =",
            "f.toml, line 3: unknown storage `memory`",
        );
        refused(
            "[[role]]",
            "[[role]]\nname = \"a\"\npersonality = \"\"\n[[role]]",
            "line 8: role `a` is there twice",
        );
        refused(
            "text = \"do {goal}\"",
            "text = 7",
            "f.toml, line 10: invalid type",
        );
        refused(
            "goal",
            "kill = \"b\"\ngoal",
            "f.toml, line 3: there is no role `b`",
        );
        refused("[[task]]", "[[tsk]]", "unknown field `tsk`");
    }

    #[test]
    fn the_files_of_the_repository_are_right() {
        let crew = CrewFile::builtin().unwrap();
        assert_eq!((crew.roles.len(), crew.tasks().len()), (5, 7));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
        let mut three = CrewFile::load(&folder.join("three.toml")).unwrap();
        assert_eq!((three.roles.len(), three.tasks().len()), (3, 3));
        three
            .mix(&["codex".to_owned(), "gemini".to_owned()])
            .unwrap();
        let agents: Vec<&str> = three.roles.iter().map(|role| role.agent.as_str()).collect();
        assert_eq!(agents, ["codex", "gemini", "codex"]);
        assert!(three.mix(&["nobody".to_owned()]).is_err());
    }
}
