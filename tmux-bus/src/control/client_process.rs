//! The process of the control-mode client.
//!
//! A client whose stdout is closed while a pane floods hangs, and the tmux server with it, until
//! the client is killed. So it must be killed when this process drops it, and also when this process
//! itself is killed. A shell does that: it waits for the end of its own stdin (the *lifeline*), which
//! this process holds. The client reads its commands from a named pipe.
//!
//! # Crashes of tmux
//!
//! Up to tmux 3.6, the server marks a client as one of control mode before it has prepared it. It
//! follows a null pointer, and all agents end with it, if meanwhile
//! - that client ends,
//! - another client detaches, or
//! - a buffer changes (from 3.4 on).
//!
//! So the shell does not kill a client that is attaching: this process tells it by a line when the
//! client is attached. Attaches and kills of all processes exclude each other by signs in the folder:
//! the named pipe, and the file `leaving-<pid>`. Each shell first makes its sign and then looks for the
//! signs of the other kind, so at least one of two sees the other; the one that attaches gives way. An
//! [`AttachLock`] keeps attaches and pastes apart.
//!
//! All waits have a bound of a second or two: a process that is stopped while it attaches must not stop
//! the bus. A detach that a person asks for is not excluded.

use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::attach_lock::AttachLock;
use super::stream_parser::{BlockEnd, StreamEvent, StreamParser};
use crate::Error;
use crate::shared::kernel_lock::Access;
use crate::timing::TMUX_TIMEOUT;

/// Runs the client until the lifeline ends.
///
/// The pipe is opened in both directions, which does not wait for a writer. `-u`: otherwise
/// replies are ASCII where the locale is not set. The shell closes its stdout, so that the end of
/// the client is the end of the stream.
const GUARD: &str = r#"
umask 077
folder=${1%/*}
sign=$folder/leaving-$$
exists() { [ -e "$1" ]; }
looks=0
while mkfifo "$1" || exit; exists "$folder"/leaving-*; do
    rm -f "$1"
    [ "$looks" -lt 50 ] || rm -f "$folder"/leaving-*
    looks=$((looks + 1))
    sleep 0.02
done
"$2" -u -S "$3" -C attach-session -f ignore-size -t "$4" <>"$1" &
client=$!
exec >/dev/null
read -r _ || sleep 0.5
read -r _
rm -f "$1"
true >"$sign"
looks=0
while exists "$folder"/commands-* && [ "$looks" -lt 50 ]; do
    looks=$((looks + 1))
    sleep 0.02
done
kill -9 "$client"
wait "$client"
rm -f "$sign"
"#;

/// An attached client.
pub(crate) struct ClientProcess {
    pub(crate) stdin: pipe::Sender,
    pub(crate) stdout: ChildStdout,
    pub(crate) guard: ProcessGuard,
    /// The parser, and the events behind the block of the attach command.
    pub(crate) parser: StreamParser,
    pub(crate) early: Vec<StreamEvent>,
}

/// Keeps the client alive. Dropping it kills the client.
pub(crate) struct ProcessGuard {
    _shell: Child,
    _lifeline: ChildStdin,
}

impl ClientProcess {
    pub(crate) async fn start(
        program: &Path,
        socket: &Path,
        folder: &Path,
        session: &str,
    ) -> Result<Self, Error> {
        let lock = AttachLock::new(folder);
        let _lock = lock.lock(Access::Exclusive).await?;
        let commands = folder.join(format!("commands-{}", uuid::Uuid::new_v4().simple()));
        let pipe_file = PipeFile(&commands);
        let mut child = Command::new("/bin/sh")
            .args(["-c", GUARD, "tmux-bus"])
            .arg(&commands)
            .arg(program)
            .arg(socket)
            .arg(format!("={session}"))
            .env_remove("TMUX")
            .env_remove("TMUX_PANE")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            // An interrupt from the keyboard must not end the client.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::failed("/bin/sh", source.to_string()))?;
        let (Some(mut lifeline), Some(mut stdout)) = (child.stdin.take(), child.stdout.take())
        else {
            return Err(Error::failed("attach-session", "the client has no pipes"));
        };
        let mut parser = StreamParser::default();
        let early = tokio::time::timeout(TMUX_TIMEOUT, attached(&mut stdout, &mut parser))
            .await
            .map_err(|_| Error::TmuxTimeout {
                command: "attach-session".into(),
                after: TMUX_TIMEOUT,
            })??;
        let opened = pipe::OpenOptions::new().open_sender(&commands);
        drop(pipe_file);
        let told = lifeline.write_all(b"\n").await;
        told.map_err(|source| Error::failed("/bin/sh", source.to_string()))?;
        Ok(Self {
            stdin: opened.map_err(Error::io("open", &commands))?,
            stdout,
            guard: ProcessGuard {
                _shell: child,
                _lifeline: lifeline,
            },
            parser,
            early,
        })
    }
}

/// Removes the named pipe when both sides have opened it, and after an attach that failed or was given up.
struct PipeFile<'a>(&'a Path);

impl Drop for PipeFile<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.0);
    }
}

/// Waits for the block of the attach command and returns the events behind it.
async fn attached(
    stdout: &mut ChildStdout,
    parser: &mut StreamParser,
) -> Result<Vec<StreamEvent>, Error> {
    let mut buffer = vec![0; 4096];
    let mut early = Vec::new();
    let mut outcome = None;
    while outcome.is_none() {
        let count = stdout
            .read(&mut buffer)
            .await
            .map_err(|error| Error::failed("attach-session", error.to_string()))?;
        if count == 0 {
            return Err(Error::failed("attach-session", "the client ended"));
        }
        parser.feed(&buffer[..count], |event| match event {
            StreamEvent::End {
                ours: false,
                end,
                body,
            } if outcome.is_none() => outcome = Some((end, body)),
            event => early.push(event),
        });
    }
    match outcome {
        Some((BlockEnd::Failed, message)) => Err(Error::failed(
            "attach-session",
            String::from_utf8_lossy(&message).trim(),
        )),
        _ => Ok(early),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_attach_that_fails_leaves_no_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("tmux");
        let program = Path::new("false");
        let started = ClientProcess::start(program, &socket, dir.path(), "team").await;
        assert!(started.is_err());
        let names = std::fs::read_dir(dir.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        assert_eq!(
            names.filter(|name| name.starts_with("commands-")).count(),
            0
        );
    }
}
