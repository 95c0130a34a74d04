use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{Access, access};

use crate::sandbox::{AgentView, Bubblewrap, Enclosure, Mounts, enclose};
use crate::{
    CommandConfig, EnvPolicy, Error, ExecutionId, LaunchRequest, ProcessParameters, Sandbox,
};

/// The variable that marks every process of an execution; children inherit it.
pub(crate) const TAG_VARIABLE: &str = "NORMALIZED_EXECUTION_ID";

/// A program with its arguments, environment and working directory.
pub(crate) struct LaunchPlan {
    /// The program as the profile names it, for error messages.
    pub(crate) binary: String,
    /// The program with an absolute path. It is not started by std; see `marked_spawn.rs`.
    pub(crate) command: Command,
    /// Whether standard input is a pipe; otherwise it is empty.
    pub(crate) has_input: bool,
    /// `None` without a sandbox.
    pub(crate) sandbox: Option<SandboxPlan>,
}

/// The sandbox around a program.
pub(crate) struct SandboxPlan {
    /// What is enforced, with real paths.
    pub(crate) enforced: Sandbox,
    /// Whether the kernel kills the sandbox at the end of the thread that starts it.
    pub(crate) dies_with_parent: bool,
}

impl LaunchPlan {
    pub(crate) fn new(
        id: &ExecutionId,
        request: &LaunchRequest,
        config: &CommandConfig,
        parameters: &ProcessParameters,
    ) -> Result<Self, Error> {
        let workspace = &request.context.workspace_path;
        let agent = parameters.binary.as_deref().unwrap_or(&config.binary);
        let binary = match &parameters.wrapper {
            Some(_) if agent.starts_with('-') => {
                return Err(Error::BinaryNotFound {
                    binary: agent.to_owned(),
                    hint: "the wrapper would read it as an option".to_owned(),
                });
            }
            Some(wrapper) => wrapper.binary.as_str(),
            None => agent,
        };
        let program = find_program(binary, workspace, || child_path(config, parameters))?;
        let mut command = Command::new(program);
        if let Some(wrapper) = &parameters.wrapper {
            command.args(&wrapper.args).arg(agent);
        }
        command.args(&parameters.args).current_dir(workspace);
        set_environment(&mut command, id, request, config, parameters)?;
        Ok(Self {
            binary: binary.to_owned(),
            command,
            has_input: parameters.stdin_payload.is_some()
                || parameters.keep_stdin_open
                || parameters.protocol_driver.is_some(),
            sandbox: None,
        })
    }

    /// Puts the program into a sandbox. Blocks until bubblewrap has once been seen to work.
    pub(crate) fn enclose(
        &mut self,
        sandbox: &Sandbox,
        bubblewrap: &Bubblewrap,
        dies_with_parent: bool,
    ) -> Result<(), Error> {
        let program = bubblewrap.working_program()?;
        let env = self.full_env();
        let workspace = self.command.get_current_dir().unwrap_or(Path::new("/"));
        let view = AgentView {
            workspace,
            env: &env,
        };
        let mounts = Mounts::resolve(sandbox, &view)?;
        mounts.check_visible(Path::new(self.command.get_program()))?;
        let enclosure = Enclosure {
            dies_with_parent,
            is_root: rustix::process::geteuid().is_root(),
        };
        let mut command = Command::new(program);
        command
            .args(enclose(&mounts, enclosure))
            .arg(self.command.get_program())
            .args(self.command.get_args())
            .current_dir(workspace);
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let temporary = env.get(OsStr::new("TMPDIR")).map(Path::new);
        if temporary.is_some_and(|folder| !mounts.is_writable(folder)) {
            command.env("TMPDIR", "/tmp");
        }
        self.command = command;
        self.sandbox = Some(SandboxPlan {
            enforced: mounts.enforced(),
            dies_with_parent,
        });
        Ok(())
    }

    /// The sandbox that is enforced, with real paths.
    pub(crate) fn enforced(&self) -> Option<&Sandbox> {
        self.sandbox.as_ref().map(|plan| &plan.enforced)
    }

    /// The whole environment of the child.
    pub(crate) fn full_env(&self) -> BTreeMap<OsString, OsString> {
        let mut env: BTreeMap<_, _> = std::env::vars_os().collect();
        for (name, value) in self.command.get_envs() {
            match value {
                Some(value) => env.insert(name.to_owned(), value.to_owned()),
                None => env.remove(name),
            };
        }
        env
    }
}

fn set_environment(
    command: &mut Command,
    id: &ExecutionId,
    request: &LaunchRequest,
    config: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<(), Error> {
    if parameters.env_policy != EnvPolicy::All {
        for (name, _) in std::env::vars_os() {
            if !parameters.env_policy.passes(&name.to_string_lossy()) {
                command.env_remove(name);
            }
        }
    }
    for (name, value) in config.env.iter().chain(&parameters.env) {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::Invalid {
                what: "name of an environment variable",
                value: name.clone(),
                reason: "it is empty, or it contains '=' or a NUL byte".to_owned(),
            });
        }
        command.env(name, value);
    }
    let context = &request.context;
    command
        .env("NORMALIZED_EXECUTION_KIND", request.kind.as_str())
        .env("NORMALIZED_EXECUTION_PROFILE", &context.profile_label)
        .env("NORMALIZED_EXECUTION_PROJECT_ID", &context.project_id)
        .env(
            "NORMALIZED_EXECUTION_ACTUAL_PROJECT_ID",
            &context.actual_project_id,
        )
        .env("NORMALIZED_EXECUTION_WORKSPACE", &context.workspace_path)
        .env(
            "NORMALIZED_EXECUTION_SESSION_ID",
            request.session_id.as_str(),
        )
        .env(TAG_VARIABLE, id.as_str())
        .env("PWD", &context.workspace_path);
    match &context.variant_label {
        Some(variant) => command.env("NORMALIZED_EXECUTION_VARIANT", variant),
        // A host that itself runs in an execution has inherited one.
        None => command.env_remove("NORMALIZED_EXECUTION_VARIANT"),
    };
    Ok(())
}

/// The `PATH` that the child will have.
fn child_path(config: &CommandConfig, parameters: &ProcessParameters) -> Option<OsString> {
    let given = parameters.env.get("PATH").or(config.env.get("PATH"));
    match given {
        Some(path) => Some(path.into()),
        None if parameters.env_policy.passes("PATH") => std::env::var_os("PATH"),
        None => None,
    }
}

/// Finds a program as a shell in the workspace would, except that relative entries of `PATH` are
/// ignored: a file of the workspace must not be taken for the agent unless the profile names its
/// path.
fn find_program(
    binary: &str,
    workspace: &Path,
    child_path: impl FnOnce() -> Option<OsString>,
) -> Result<PathBuf, Error> {
    let not_found = |hint: String| Error::BinaryNotFound {
        binary: binary.to_owned(),
        hint,
    };
    if binary.contains('/') {
        let program = workspace.join(binary);
        return if program.is_file() {
            Ok(program)
        } else {
            Err(not_found(format!("there is no file {}", program.display())))
        };
    }
    let Some(path) = child_path() else {
        return Err(not_found(
            "the agent's environment has no PATH: pass it on or give the full path".into(),
        ));
    };
    find_on_path(binary, &path).ok_or_else(|| {
        not_found("it is not on PATH: install it, or give the full path in the profile".into())
    })
}

/// Searches the absolute folders of a `PATH`.
pub(crate) fn find_on_path(binary: &str, path: &OsStr) -> Option<PathBuf> {
    std::env::split_paths(path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(binary))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
}
