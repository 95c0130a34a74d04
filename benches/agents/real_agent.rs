//! One real agent program with a private home, a workspace and a model.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use examples::Result;
use tempfile::TempDir;

use crate::Context;
use crate::model::{Model, script};

pub(crate) struct RealAgent {
    pub(crate) name: String,
    pub(crate) model: Model,
    /// The environment of the program.
    pub(crate) env: BTreeMap<String, String>,
    pub(crate) workspace: PathBuf,
    programs: PathBuf,
    pub(crate) folder: TempDir,
}

impl RealAgent {
    /// `seeded`: the questions of a first run are answered in advance.
    pub(crate) fn prepare(context: &Context, name: &str, seeded: bool) -> Result<Self> {
        // With bubblewrap, Codex needs helper programs in its home, and creates none in /tmp.
        let parent = match home_of(name) {
            "codex" => context.agents_dir.clone(),
            _ => env::temp_dir(),
        };
        Self::prepare_in(&parent, context, name, seeded)
    }

    /// As [`prepare`](Self::prepare), with all files below `parent`.
    pub(crate) fn prepare_in(
        parent: &Path,
        context: &Context,
        name: &str,
        seeded: bool,
    ) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("agents-")
            .tempdir_in(parent)?;
        let home = folder.path().join("home");
        let workspace = home.join("project");
        fs::create_dir_all(&workspace)?;
        let git = Command::new("git")
            .args(["init", "-q"])
            .arg(&workspace)
            .status()?;
        if !git.success() {
            return Err("git init failed".into());
        }
        let model = Model::start(folder.path())?;
        let mut homes = Command::new("python3");
        homes
            .arg(script("homes.py"))
            .arg(home_of(name))
            .arg(&home)
            .arg(&model.url);
        if seeded {
            homes.arg(&workspace);
        }
        let output = homes.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let programs = context.agents_dir.join(name).join("node_modules/.bin");
        // The adapter of Claude needs a newer node than the others.
        let node = context.agents_dir.join("node22/node_modules/.bin");
        let node = match name {
            "claude-acp" => format!("{}:", node.display()),
            _ => String::new(),
        };
        let path = format!("{node}{}:{}", programs.display(), env::var("PATH")?);
        let mut env = BTreeMap::from([
            ("PATH".to_owned(), path),
            ("HOME".to_owned(), home.display().to_string()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ]);
        for line in String::from_utf8(output.stdout)?.lines() {
            if let Some((key, value)) = line.split_once('=') {
                env.insert(key.to_owned(), value.to_owned());
            }
        }
        Ok(Self {
            name: name.to_owned(),
            model,
            env,
            workspace,
            programs,
            folder,
        })
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// The installed program.
    pub(crate) fn program(&self) -> PathBuf {
        self.programs.join(match self.name.as_str() {
            "claude-acp" => "claude-agent-acp",
            name => name,
        })
    }

    /// The version that the program prints.
    pub(crate) fn version(&self) -> Result<String> {
        let output = Command::new(self.program())
            .arg("--version")
            .envs(&self.env)
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(text.lines().next().unwrap_or_default().trim().to_owned())
    }
}

/// The agent whose home an adapter uses.
pub(crate) fn home_of(name: &str) -> &str {
    name.strip_suffix("-acp").unwrap_or(name)
}
