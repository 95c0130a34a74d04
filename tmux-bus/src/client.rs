//! The control-mode client: one child process for all panes of a server.
//!
//! A client whose stdout is closed while a pane floods hangs, the server with it, until it is
//! killed. It must therefore be killed when this process lets go of it, and also when this process
//! itself is killed. A shell does that: it waits for the end of its own stdin, which this process
//! holds and never writes to, and the client reads its commands from a named pipe.

use std::{path::Path, process::Stdio};

use tokio::{
    io::AsyncReadExt,
    net::unix::pipe,
    process::{Child, ChildStdin, ChildStdout, Command},
};

use crate::{
    control::COMMAND_TIMEOUT,
    error::{Error, Result},
    parser::{Event, Parser},
};

/// Runs the client until the lifeline ends. Opening the pipe for both directions does not wait for a
/// writer; `-u`, because the texts of replies would be ASCII where the locale is not set; the shell gives its stdout up, so that the end of the client is the end of the stream.
const GUARD: &str = r#"
mkfifo -m 600 "$1" || exit
"$2" -u -S "$3" -C attach-session -f ignore-size -t "$4" <>"$1" &
client=$!
exec >/dev/null
read -r _
kill -9 "$client"
"#;

/// A client that is attached.
pub(crate) struct Client {
    pub(crate) stdin: pipe::Sender,
    pub(crate) stdout: ChildStdout,
    pub(crate) guard: Guard,
    /// What of the stream was read already, and what it said.
    pub(crate) parser: Parser,
    pub(crate) early: Vec<Event>,
}

/// Keeps the client alive. Dropping it kills the client.
pub(crate) struct Guard {
    _shell: Child,
    _lifeline: ChildStdin,
}

impl Client {
    /// Attaches to a session.
    pub(crate) async fn start(
        program: &Path,
        socket: &Path,
        folder: &Path,
        session: &str,
    ) -> Result<Self> {
        let commands = folder.join(format!("commands-{}", uuid::Uuid::new_v4().simple()));
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
            // An interrupt from the keyboard is for this process to handle.
            .process_group(0)
            .spawn()
            .map_err(|source| Error::failed("/bin/sh", source.to_string()))?;
        let (Some(lifeline), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::failed("attach-session", "the client has no pipes"));
        };
        let mut parser = Parser::default();
        let early = tokio::time::timeout(COMMAND_TIMEOUT, attached(&mut stdout, &mut parser))
            .await
            .map_err(|_| Error::TmuxTimeout {
                command: "attach-session".into(),
                after: COMMAND_TIMEOUT,
            })??;
        let opened = pipe::OpenOptions::new().open_sender(&commands);
        let _ = std::fs::remove_file(&commands);
        Ok(Self {
            stdin: opened.map_err(|source| Error::file("open", commands, source))?,
            stdout,
            guard: Guard {
                _shell: child,
                _lifeline: lifeline,
            },
            parser,
            early,
        })
    }
}

/// Waits for the block of the attach command itself and returns what came after it.
async fn attached(stdout: &mut ChildStdout, parser: &mut Parser) -> Result<Vec<Event>> {
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
            Event::End {
                ours: false,
                ok,
                body,
            } if outcome.is_none() => outcome = Some((ok, body)),
            event => early.push(event),
        });
    }
    match outcome {
        Some((false, message)) => Err(Error::failed(
            "attach-session",
            String::from_utf8_lossy(&message).trim(),
        )),
        _ => Ok(early),
    }
}
