//! From a request, a command and its parameters to a program with arguments and environment.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use uuid::Uuid;

use crate::child::ChildPlan;
use crate::process_table::TAG_VARIABLE;
use crate::{CommandConfig, Error, LaunchRequest, ProcessParameters, Result};

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
        program: find_program(binary, workspace, env.get(OsStr::new("PATH")))?,
        args,
        env,
        working_directory: workspace.clone(),
        stdin: parameters.stdin_payload.is_some() || parameters.keep_stdin_open,
    };
    Ok((binary.to_owned(), plan))
}

fn environment(
    id: Uuid,
    request: &LaunchRequest,
    command: &CommandConfig,
    parameters: &ProcessParameters,
) -> Result<BTreeMap<OsString, OsString>> {
    let mut env: BTreeMap<OsString, OsString> = std::env::vars_os()
        .filter(|(name, _)| {
            // Names that are not UTF-8 are on nobody's list.
            parameters.env_policy.passes(&name.to_string_lossy())
        })
        .collect();
    for (name, value) in command.env.iter().chain(&parameters.env) {
        if name.is_empty() || name.contains(['=', '\0']) {
            return Err(Error::InvalidVariable { name: name.clone() });
        }
        env.insert(name.into(), value.into());
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
        // Removed where it has no value: a host that is itself run by an agent has inherited one.
        match value {
            Some(value) => env.insert(name.into(), value.into()),
            None => env.remove(OsStr::new(name)),
        };
    }
    Ok(env)
}

/// Finds a program as a shell in the workspace would, but for empty entries of `PATH`.
fn find_program(binary: &str, workspace: &Path, path: Option<&OsString>) -> Result<PathBuf> {
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
    let Some(path) = path else {
        return Err(not_found(
            "the agent's environment has no PATH: pass it on or give the full path".into(),
        ));
    };
    std::env::split_paths(path)
        .filter(|folder| !folder.as_os_str().is_empty())
        .map(|folder| workspace.join(folder).join(binary))
        .find(|program| program.is_file() && access(program, Access::EXEC_OK).is_ok())
        .ok_or_else(|| {
            not_found("it is not on PATH: install it, or give the full path in the profile".into())
        })
}
