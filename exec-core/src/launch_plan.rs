//! From a request, a command and its parameters to a program with arguments and environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use uuid::Uuid;

use crate::child::ChildPlan;
use crate::process_table::TAG_VARIABLE;
use crate::{CommandConfig, EnvPolicy, Error, LaunchRequest, ProcessParameters, Result};

/// The program that is started and the plan to start it.
pub(crate) fn plan(
    id: Uuid,
    request: &LaunchRequest,
    command: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<(String, ChildPlan)> {
    let workspace = &request.context.workspace_path;
    let env = environment(id, request, command, parameters)?;
    let agent = parameters.binary.as_deref().unwrap_or(&command.binary);
    let mut args: Vec<OsString> = Vec::new();
    let binary = match &parameters.wrapper {
        Some(wrapper) => {
            args.extend(wrapper.args.iter().map(OsString::from));
            args.push(agent.into());
            wrapper.binary.as_str()
        }
        None => agent,
    };
    args.extend(parameters.args.iter().map(OsString::from));
    let plan = ChildPlan {
        program: find_program(binary, workspace, &env)?,
        args,
        env,
        working_directory: workspace.clone(),
        stdin: parameters.stdin_payload.is_some() || parameters.keep_stdin_open,
    };
    Ok((binary.to_owned(), plan))
}

/// What the child's environment has beyond ours, or not.
fn environment(
    id: Uuid,
    request: &LaunchRequest,
    command: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<BTreeMap<OsString, Option<OsString>>> {
    let mut env = BTreeMap::new();
    if parameters.env_policy != EnvPolicy::All {
        for (name, _) in std::env::vars_os() {
            // A name that is not UTF-8 is on nobody's list.
            if !parameters.env_policy.passes(&name.to_string_lossy()) {
                env.insert(name, None);
            }
        }
    }
    for (name, value) in command.env.iter().chain(&parameters.env) {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::InvalidVariable { name: name.clone() });
        }
        env.insert(name.into(), Some(value.into()));
    }
    let context = &request.context;
    let id = id.to_string();
    let own: [(&str, Option<&OsStr>); 9] = [
        (
            "NORMALIZED_EXECUTION_KIND",
            Some(request.kind.as_str().as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_PROFILE",
            Some(context.profile_label.as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_PROJECT_ID",
            Some(context.project_id.as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_ACTUAL_PROJECT_ID",
            Some(context.actual_project_id.as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_WORKSPACE",
            Some(context.workspace_path.as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_SESSION_ID",
            Some(request.session_id.as_str().as_ref()),
        ),
        (
            "NORMALIZED_EXECUTION_VARIANT",
            context.variant_label.as_deref().map(OsStr::new),
        ),
        (TAG_VARIABLE, Some(id.as_ref())),
        ("PWD", Some(context.workspace_path.as_ref())),
    ];
    for (name, value) in own {
        // One without a value goes: a host that is itself run by an agent has inherited it.
        env.insert(name.into(), value.map(OsString::from));
    }
    Ok(env)
}

/// Finds a program as a shell in the workspace would, but for empty entries of `PATH`.
fn find_program(
    binary: &str,
    workspace: &Path,
    env: &BTreeMap<OsString, Option<OsString>>,
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
    let path = match env.get(OsStr::new("PATH")) {
        Some(changed) => changed.clone(),
        None => std::env::var_os("PATH"),
    };
    let Some(path) = path else {
        return Err(not_found(
            "the agent's environment has no PATH: pass it on or give the full path".into(),
        ));
    };
    std::env::split_paths(&path)
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| workspace.join(folder).join(binary))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            not_found("it is not on PATH: install it, or give the full path in the profile".into())
        })
}
