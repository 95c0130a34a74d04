//! From a request, a command and its parameters to a program with arguments and environment.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Access, access};
use uuid::Uuid;

use crate::error::Result;
use crate::{CommandConfig, EnvPolicy, Error, LaunchRequest, ProcessParameters};

/// Marks every process of an execution; children inherit it.
pub(crate) const TAG_VARIABLE: &str = "NORMALIZED_EXECUTION_ID";

/// The name of the program that is started, and the command to start it.
pub(crate) fn plan(
    id: Uuid,
    request: &LaunchRequest,
    command: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<(String, Command)> {
    let workspace = &request.context.workspace_path;
    let agent = parameters.binary.as_deref().unwrap_or(&command.binary);
    let binary = match &parameters.wrapper {
        Some(_) if agent.starts_with('-') => {
            return Err(Error::BinaryNotFound {
                binary: agent.to_owned(),
                hint: "the wrapper would take it for an option".to_owned(),
            });
        }
        Some(wrapper) => wrapper.binary.as_str(),
        None => agent,
    };
    let mut plan = Command::new(find_program(binary, workspace, || {
        child_path(command, parameters)
    })?);
    if let Some(wrapper) = &parameters.wrapper {
        plan.args(&wrapper.args).arg(agent);
    }
    plan.args(&parameters.args).current_dir(workspace);
    let has_input = parameters.stdin_payload.is_some() || parameters.keep_stdin_open;
    plan.stdin(if has_input {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    set_environment(&mut plan, id, request, command, parameters)?;
    Ok((binary.to_owned(), plan))
}

/// The whole environment of a child.
pub(crate) fn full_env(plan: &Command) -> BTreeMap<OsString, OsString> {
    let mut env: BTreeMap<_, _> = std::env::vars_os().collect();
    for (name, value) in plan.get_envs() {
        match value {
            Some(value) => env.insert(name.to_owned(), value.to_owned()),
            None => env.remove(name),
        };
    }
    env
}

fn set_environment(
    plan: &mut Command,
    id: Uuid,
    request: &LaunchRequest,
    command: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<()> {
    if parameters.env_policy != EnvPolicy::All {
        for (name, _) in std::env::vars_os() {
            // A name that is not UTF-8 is on nobody's list.
            if !parameters.env_policy.passes(&name.to_string_lossy()) {
                plan.env_remove(name);
            }
        }
    }
    for (name, value) in command.env.iter().chain(&parameters.env) {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::InvalidVariable { name: name.clone() });
        }
        plan.env(name, value);
    }
    let context = &request.context;
    plan.env("NORMALIZED_EXECUTION_KIND", request.kind.as_str())
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
        .env(TAG_VARIABLE, id.to_string())
        .env("PWD", &context.workspace_path);
    match &context.variant_label {
        Some(variant) => plan.env("NORMALIZED_EXECUTION_VARIANT", variant),
        // A host that is itself run by an agent has inherited one.
        None => plan.env_remove("NORMALIZED_EXECUTION_VARIANT"),
    };
    Ok(())
}

/// The `PATH` that the child will have.
fn child_path(command: &CommandConfig, parameters: &ProcessParameters) -> Option<OsString> {
    let given = parameters.env.get("PATH").or(command.env.get("PATH"));
    match given {
        Some(path) => Some(path.into()),
        None if parameters.env_policy.passes("PATH") => std::env::var_os("PATH"),
        None => None,
    }
}

/// Finds a program as a shell in the workspace would, but for entries of `PATH` that are not
/// absolute: what lies in a workspace is not the agent, unless the profile says so by a path.
fn find_program(
    binary: &str,
    workspace: &Path,
    child_path: impl FnOnce() -> Option<OsString>,
) -> Result<PathBuf> {
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
    std::env::split_paths(&path)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(binary))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            not_found("it is not on PATH: install it, or give the full path in the profile".into())
        })
}
