//! The tmux program, run for one command.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use super::tmux_version;
use crate::Error;
use crate::timing::TMUX_TIMEOUT;

/// The tmux program with the private socket of a server.
#[derive(Clone, Debug)]
pub(crate) struct TmuxProgram {
    pub(crate) program: PathBuf,
    pub(crate) socket: PathBuf,
}

impl TmuxProgram {
    pub(crate) async fn check_version(&self) -> Result<(), Error> {
        tmux_version::check(&run(&self.program, &["-V"], TMUX_TIMEOUT).await?)
    }

    /// Runs a command on the private server, without the user's configuration.
    pub(crate) async fn run(&self, args: &[&str]) -> Result<String, Error> {
        let socket = self.socket.to_string_lossy();
        let mut all = vec!["-u", "-f", "/dev/null", "-S", &socket];
        all.extend(args);
        run(&self.program, &all, TMUX_TIMEOUT).await
    }

    /// Whether the server has a session of exactly this name.
    pub(crate) async fn has_session(&self, session: &str) -> Result<bool, Error> {
        match self
            .run(&["has-session", "-t", &format!("={session}")])
            .await
        {
            Ok(_) => Ok(true),
            Err(Error::TmuxFailed { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

async fn run(program: &Path, args: &[&str], timeout: Duration) -> Result<String, Error> {
    let name = || {
        let command = args
            .iter()
            .find(|arg| arg.contains('-') && !arg.starts_with('-'))
            .or(args.last());
        format!("tmux {}", command.unwrap_or(&""))
    };
    let output = Command::new(program)
        .args(args)
        .env_remove("TMUX")
        .env_remove("TMUX_PANE")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(|source| Error::TmuxMissing {
            program: program.to_owned(),
            source,
        })?
        .wait_with_output();
    let output = tokio::time::timeout(timeout, output)
        .await
        .map_err(|_| Error::TmuxTimeout {
            command: name(),
            after: timeout,
        })?
        .map_err(|error| Error::failed(name(), error.to_string()))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        let message = if message.is_empty() {
            output.status.to_string()
        } else {
            message
        };
        return Err(Error::failed(name(), message));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_program_that_hangs_is_a_timeout() {
        let limit = Duration::from_millis(50);
        let hung = run(Path::new("sh"), &["-c", "exec sleep 600"], limit).await;
        let error = hung.unwrap_err();
        assert!(matches!(error, Error::TmuxTimeout { .. }), "{error:?}");
        assert!(error.is_timeout());
    }
}
