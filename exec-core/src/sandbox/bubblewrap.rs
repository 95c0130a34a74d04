//! The search for bubblewrap, and the proof that it works.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::SHELL;
use crate::Error;
use crate::process::find_on_path;

/// Far above the tens of milliseconds that a working bubblewrap takes.
const PROBE_LIMIT: Duration = Duration::from_secs(20);
const INSTALL: &str = "install bubblewrap (package `bubblewrap`), or set `sandbox = \"off\"`";

/// The `bwrap` of this machine. A success is remembered, a failure is not.
#[derive(Debug, Default)]
pub(crate) struct Bubblewrap {
    program: OnceLock<PathBuf>,
}

impl Bubblewrap {
    /// The program, after it has started a process in new namespaces once. Blocks until then.
    pub(crate) fn working_program(&self) -> Result<&Path, Error> {
        if let Some(program) = self.program.get() {
            return Ok(program);
        }
        let Some(path) = std::env::var_os("PATH") else {
            return Err(refused("the host has no PATH", INSTALL));
        };
        let Some(program) = find_on_path("bwrap", &path) else {
            return Err(refused("bwrap is not on the PATH of the host", INSTALL));
        };
        probe(&program)?;
        Ok(self.program.get_or_init(|| program))
    }
}

/// Starts a shell that only exits, with the namespaces and file systems of every sandbox.
fn probe(program: &Path) -> Result<(), Error> {
    let failed = |reason: String| {
        let remedy = remedy(|path| std::fs::read_to_string(path).ok());
        Err(refused(&format!("{} {reason}", program.display()), &remedy))
    };
    let child = Command::new(program)
        .args(["--unshare-user", "--unshare-pid", "--unshare-ipc"])
        .args(["--as-pid-1", "--new-session", "--die-with-parent"])
        .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"])
        .args(["--tmpfs", "/tmp", "--", SHELL, "-c", "exit 0"])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => return failed(format!("cannot be started: {error}")),
    };
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < PROBE_LIMIT => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(None) => {
                let _ = child.kill();
                let _ = child.wait();
                return failed(format!("did not end within {PROBE_LIMIT:?}"));
            }
            Err(error) => return failed(format!("cannot be waited for: {error}")),
        }
    };
    if status.success() {
        return Ok(());
    }
    let mut printed = Vec::new();
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(4096).read_to_end(&mut printed);
    }
    let printed = String::from_utf8_lossy(&printed);
    failed(format!("failed ({status}): {}", printed.trim()))
}

/// The setting that most likely forbids the namespaces.
fn remedy(read: impl Fn(&str) -> Option<String>) -> String {
    for (setting, forbidden, allowed) in [
        ("user.max_user_namespaces", "0", "15000"),
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ] {
        let path = format!("/proc/sys/{}", setting.replace('.', "/"));
        if read(&path).is_some_and(|value| value.trim() == forbidden) {
            return format!(
                "user namespaces are forbidden by {setting} = {forbidden}: as root, run \
                 `sysctl -w {setting}={allowed}`"
            );
        }
    }
    "user namespaces may be forbidden: in a container, allow them with a seccomp profile and an \
     unmasked /proc (Docker: `--security-opt seccomp=unconfined --security-opt \
     systempaths=unconfined`)"
        .to_owned()
}

fn refused(reason: &str, remedy: &str) -> Error {
    Error::Sandbox {
        reason: format!("{reason}; {remedy}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remedy_names_the_setting() {
        let with = |name: &'static str, value: &'static str| {
            remedy(move |path| (path == format!("/proc/sys/{name}")).then(|| value.to_owned()))
        };
        let none = with("user/max_user_namespaces", "0\n");
        assert!(none.contains("sysctl -w user.max_user_namespaces=15000"));
        let debian = with("kernel/unprivileged_userns_clone", "0\n");
        assert!(debian.contains("sysctl -w kernel.unprivileged_userns_clone=1"));
        let ubuntu = with("kernel/apparmor_restrict_unprivileged_userns", "1\n");
        assert!(ubuntu.contains("sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"));
        assert!(with("user/max_user_namespaces", "96349\n").contains("seccomp"));
    }

    #[test]
    fn a_program_that_fails_is_refused_with_its_words() {
        use std::os::unix::fs::PermissionsExt;

        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("bwrap");
        let script =
            "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n";
        std::fs::write(&program, script).unwrap();
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
        let error = probe(&program).unwrap_err();
        assert!(error.to_string().contains("No permissions"), "{error}");
    }
}
