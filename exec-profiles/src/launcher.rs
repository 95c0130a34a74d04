use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use exec_core::CommandConfig;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::error::Result;

/// Which program a profile's `npx …` command becomes at the launch.
///
/// `npx` costs about a second and two more processes, so a native binary is taken where there is
/// one; the agent's own arguments stay the same. A command that is not `npx …` is left as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Launcher {
    /// The native binary if it is on `PATH`, else `npx` as the command says.
    #[default]
    Auto,
    /// The native binary; the launch fails if it is not on `PATH`.
    Native,
    /// This binary.
    NativeAt(PathBuf),
    /// `npx` as the command says.
    Npx,
    /// `npx` with this version of the package.
    NpxVersion(String),
}

impl Launcher {
    /// The command that is started for `command`.
    pub(crate) fn apply(
        &self,
        command: &CommandConfig,
        native_binary: Option<&str>,
    ) -> Result<CommandConfig> {
        let package = npx_package(command);
        let native = |binary: String| {
            let mut native = command.clone();
            native.binary = binary;
            if let Some(package) = package {
                native.args.drain(..=package);
            }
            native
        };
        match (self, package, native_binary) {
            (Self::Auto, Some(_), Some(name)) if is_on_path(name, command) => {
                Ok(native(name.to_owned()))
            }
            (Self::Auto, ..) | (Self::Npx, Some(_), _) => Ok(command.clone()),
            (Self::Native, Some(_), Some(name)) => Ok(native(name.to_owned())),
            (Self::Native, Some(_), None) => Err(Error::Launcher {
                reason: "the profile does not say how its native binary is called".to_owned(),
            }),
            (Self::Native, None, _) => Ok(command.clone()),
            (Self::NativeAt(path), ..) => match path.to_str() {
                Some(path) => Ok(native(path.to_owned())),
                None => Err(Error::Launcher {
                    reason: format!("the path {} is not UTF-8", path.display()),
                }),
            },
            (Self::NpxVersion(version), Some(index), _) => {
                if version.is_empty() || version.contains(|c: char| c.is_whitespace()) {
                    return Err(Error::Launcher {
                        reason: format!("{version:?} is not a version"),
                    });
                }
                let mut pinned = command.clone();
                let package = &mut pinned.args[index];
                package.truncate(name_length(package));
                package.push('@');
                package.push_str(version);
                Ok(pinned)
            }
            (Self::Npx | Self::NpxVersion(_), None, _) => Err(Error::Launcher {
                reason: format!(
                    "npx was asked for, but the command is {:?} and names no npm package",
                    command.binary
                ),
            }),
        }
    }
}

/// Where the package stands in the arguments of an `npx` command: after npx's own options.
fn npx_package(command: &CommandConfig) -> Option<usize> {
    if Path::new(&command.binary).file_name() != Some(OsStr::new("npx")) {
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

/// Looks on the `PATH` that the child will have.
fn is_on_path(name: &str, command: &CommandConfig) -> bool {
    let path = match command.env.get("PATH") {
        Some(path) => OsString::from(path),
        None => match std::env::var_os("PATH") {
            Some(path) => path,
            None => return false,
        },
    };
    std::env::split_paths(&path)
        // A relative folder would depend on the workspace: what lies there is not the agent.
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
        let got = launcher.apply(&command, Some("agent"));
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
    fn the_agents_own_arguments_stay_the_same() {
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
    fn a_command_without_npx_is_never_given_to_npx() {
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
