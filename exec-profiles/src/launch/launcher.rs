use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use exec_core::CommandConfig;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The program that starts the agent of an `npx …` command.
///
/// `npx` takes about a second and two more processes, so the default is the native binary if it is
/// installed. The agent's own arguments are the same either way.
///
/// A command that is not `npx …` is changed only by [`NativeAt`](Self::NativeAt); the `npx` choices
/// refuse its launch.
///
/// ```
/// use exec_profiles::{Launcher, ProfileRegistry, builtin};
///
/// let registry = ProfileRegistry::new();
/// registry.register(builtin::gemini().with_launcher(Launcher::NpxVersion("0.61.0".into())))?;
/// registry.register(builtin::cursor().with_launcher(Launcher::NativeAt("/opt/agent".into())))?;
/// # Ok::<(), exec_profiles::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Launcher {
    /// The native binary if it is on `PATH`, otherwise the `npx` command.
    #[default]
    Auto,
    /// The native binary. The launch fails if it is not on `PATH`.
    Native,
    /// The binary at this path.
    NativeAt(PathBuf),
    /// The `npx` command.
    Npx,
    /// The `npx` command with this version of the package.
    NpxVersion(String),
}

impl Launcher {
    /// The command to start instead of `command`.
    pub(crate) fn apply(
        &self,
        mut command: CommandConfig,
        native_binary: Option<&str>,
    ) -> Result<CommandConfig, Error> {
        let refused = |reason: String| Err(Error::Launcher { reason });
        let package = npx_package(&command);
        let native = |mut command: CommandConfig, binary: &str| {
            command.binary = binary.to_owned();
            if let Some(package) = package {
                command.args.drain(..=package);
            }
            Ok(command)
        };
        match (self, package, native_binary) {
            (Self::Auto, Some(_), Some(name)) if is_on_path(name, &command) => {
                native(command, name)
            }
            (Self::Auto, ..) | (Self::Npx, Some(_), _) | (Self::Native, None, _) => Ok(command),
            (Self::Native, Some(_), Some(name)) => native(command, name),
            (Self::Native, Some(_), None) => {
                refused("the profile does not name its native binary".to_owned())
            }
            (Self::NativeAt(path), ..) => match path.to_str() {
                Some(path) => native(command, path),
                None => refused(format!("the path {} is not UTF-8", path.display())),
            },
            (Self::NpxVersion(version), Some(index), _) => {
                if version.is_empty() || version.contains(char::is_whitespace) {
                    return refused(format!("{version:?} is not a version"));
                }
                let package = &mut command.args[index];
                package.truncate(name_length(package));
                package.push('@');
                package.push_str(version);
                Ok(command)
            }
            (Self::Npx | Self::NpxVersion(_), None, _) => refused(format!(
                "it needs `npx`, but the command is {:?} and names no npm package",
                command.binary
            )),
        }
    }
}

/// The arguments up to the package of an `npx` command; none of another command.
pub(crate) fn launcher_args(command: &CommandConfig) -> &[String] {
    match npx_package(command) {
        Some(package) => &command.args[..=package],
        None => &[],
    }
}

/// Whether the program is `npx`, by its name or with a path.
pub(crate) fn is_npx(binary: &str) -> bool {
    Path::new(binary).file_name() == Some(OsStr::new("npx"))
}

/// The index of the package in the arguments of an `npx` command: it follows npx's own options.
fn npx_package(command: &CommandConfig) -> Option<usize> {
    if !is_npx(&command.binary) {
        return None;
    }
    command.args.iter().position(|arg| !arg.starts_with('-'))
}

/// The length of `@scope/name` in `@scope/name@version`.
fn name_length(package: &str) -> usize {
    let scope = usize::from(package.starts_with('@'));
    package[scope..]
        .find('@')
        .map_or(package.len(), |at| at + scope)
}

/// Searches the `PATH` of the child.
fn is_on_path(name: &str, command: &CommandConfig) -> bool {
    let path = match command.env.get("PATH") {
        Some(path) => OsString::from(path),
        None => env::var_os("PATH").unwrap_or_default(),
    };
    env::split_paths(&path)
        // A relative folder depends on the workspace, whose files are not trusted programs.
        .filter(|folder| folder.is_absolute())
        .any(|folder| is_executable(&folder.join(name)))
}

fn is_executable(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npx() -> CommandConfig {
        let mut command = CommandConfig::new("npx", ["-y", "@scope/agent@latest", "-p", "--json"]);
        command.env.insert("PATH".into(), String::new());
        command
    }

    #[track_caller]
    fn check(launcher: Launcher, command: CommandConfig, expected: Result<&[&str], &str>) {
        let got = launcher.apply(command, Some("agent"));
        let got = got
            .map(|c| {
                let mut words = vec![c.binary];
                words.extend(c.args);
                words
            })
            .map_err(|e| e.to_string());
        match (got, expected) {
            (Ok(words), Ok(expected)) => assert_eq!(words, expected),
            (Err(error), Err(expected)) => assert!(error.contains(expected), "{error}"),
            (got, expected) => panic!("{got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn the_agents_own_arguments_are_kept() {
        let as_defined: &[&str] = &["npx", "-y", "@scope/agent@latest", "-p", "--json"];
        check(Launcher::Auto, npx(), Ok(as_defined));
        check(Launcher::Npx, npx(), Ok(as_defined));
        check(Launcher::Native, npx(), Ok(&["agent", "-p", "--json"]));
        check(
            Launcher::NativeAt("/opt/a b/agent".into()),
            npx(),
            Ok(&["/opt/a b/agent", "-p", "--json"]),
        );
        check(
            Launcher::NpxVersion("1.2.3".into()),
            npx(),
            Ok(&["npx", "-y", "@scope/agent@1.2.3", "-p", "--json"]),
        );
        check(
            Launcher::NpxVersion("2".into()),
            CommandConfig::new("/usr/bin/npx", ["plain", "x"]),
            Ok(&["/usr/bin/npx", "plain@2", "x"]),
        );
    }

    #[test]
    fn a_command_without_npx_is_never_run_by_npx() {
        let direct = || CommandConfig::new("cursor-agent", ["-p"]);
        check(Launcher::Auto, direct(), Ok(&["cursor-agent", "-p"]));
        check(Launcher::Native, direct(), Ok(&["cursor-agent", "-p"]));
        check(
            Launcher::NativeAt("/x/agent".into()),
            direct(),
            Ok(&["/x/agent", "-p"]),
        );
        check(
            Launcher::NpxVersion("1".into()),
            direct(),
            Err("names no npm package"),
        );
        check(
            Launcher::NpxVersion(" ".into()),
            npx(),
            Err("not a version"),
        );
    }
}
