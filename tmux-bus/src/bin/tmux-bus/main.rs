//! The command by which agents in tmux panes, and their user, talk to each other.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod arguments;
mod output;
mod worker;

use std::io::Read;
use std::process::ExitCode;

use tmux_bus::vocabulary::{Failure, FailureKind, Reply, Request};
use tmux_bus::{Bus, Error, LogFilter, MessageLog};

use arguments::{Arguments, Verb, folder_of_pane};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = match Arguments::read() {
        Ok(arguments) => arguments,
        Err(error) => return output::print_usage(&error),
    };
    let folder = arguments.folder.as_deref();
    match &arguments.verb {
        Verb::CarryOut { background, id } => {
            return worker::run(folder, background, Some(id)).await;
        }
        Verb::Deliver { background } => return worker::run(folder, background, None).await,
        _ => {}
    }
    let is_json = arguments.json;
    match run(arguments).await {
        Ok(code) => code,
        Err(failure) => {
            output::print_failure(&failure, is_json);
            ExitCode::from(failure.kind.exit_code())
        }
    }
}

async fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    let bus = connect(&arguments).await.map_err(|error| failure(&error))?;
    let is_json = arguments.json;
    let repeated = arguments.repeated();
    if let Verb::Log {
        from,
        to,
        follow: true,
        ..
    } = arguments.verb
    {
        return follow(&bus, from, to, is_json)
            .await
            .map_err(|error| failure(&error));
    }
    let request = request(arguments.verb).map_err(|error| failure(&error))?;
    let is_detached = matches!(request, Request::Ask { detach: true, .. });
    let is_own_inbox = matches!(request, Request::Inbox { agent: None });
    let reply = bus.call(request).await.map_err(|error| {
        let mut failure = failure(&error);
        if is_own_inbox && failure.kind == FailureKind::NotFound {
            failure.hint = Some("outside of the panes, name the agent: inbox AGENT".to_owned());
        }
        failure
    })?;
    output::print(&reply, &repeated, is_json, is_detached);
    Ok(ExitCode::from(exit_code(&reply, is_detached)))
}

async fn connect(arguments: &Arguments) -> Result<Bus, Error> {
    let mut builder = Bus::builder();
    if let Some(config) = &arguments.config {
        builder = builder.config(config);
    } else if let Some(folder) = arguments.folder.clone().or_else(folder_of_pane) {
        builder = builder.folder(folder);
    }
    if let Some(dir) = &arguments.runtime_dir {
        builder = builder.runtime_dir(dir);
    }
    if let Some(name) = &arguments.from {
        builder = builder.sender(name);
    }
    if let Ok(command) = std::env::current_exe() {
        builder = builder.command(command);
    }
    if !matches!(arguments.verb, Verb::Ask { detach: true, .. }) {
        let repeated = arguments.repeated();
        builder = builder.on_start(move |report| output::print_started(report, &repeated));
    }
    builder.connect().await
}

fn request(verb: Verb) -> Result<Request, Error> {
    Ok(match verb {
        Verb::Ask {
            to,
            text,
            detach,
            timeout,
            limit,
        } => Request::Ask {
            to,
            text: text_or_input(text)?,
            detach,
            timeout_s: timeout,
            limit_s: limit,
        },
        Verb::Post { to, text, now } => Request::Post {
            to,
            text: text_or_input(text)?,
            now,
        },
        Verb::Inbox { agent } => Request::Inbox { agent },
        Verb::Status => Request::Status {},
        Verb::Explain { agent } => Request::Explain { agent },
        Verb::Wait { id, timeout } => Request::Wait {
            id,
            timeout_s: timeout,
        },
        Verb::Log { from, to, last, .. } => Request::Log { from, to, last },
        Verb::CarryOut { .. } | Verb::Deliver { .. } => Request::Status {},
    })
}

/// Bytes that are read from the standard input. More than a message may have: the bus names its limit.
const MAX_INPUT: u64 = 16 << 20;

/// The text of a message; `-` is the standard input.
fn text_or_input(text: String) -> Result<String, Error> {
    if text != "-" {
        return Ok(text);
    }
    let mut input = String::new();
    let read = std::io::stdin().take(MAX_INPUT).read_to_string(&mut input);
    read.map_err(|source| Error::Io {
        action: "read",
        path: "standard input".into(),
        source,
    })?;
    // The end of the last line ends the input, not the message: `echo` and here-documents add it.
    input.truncate(input.trim_end_matches(['\r', '\n']).len());
    Ok(input)
}

async fn follow(
    bus: &Bus,
    from: Option<String>,
    to: Option<String>,
    is_json: bool,
) -> Result<ExitCode, Error> {
    let mut filter = LogFilter::default();
    if let Some(from) = from {
        filter = filter.from(from);
    }
    if let Some(to) = to {
        filter = filter.to(to);
    }
    let mut follower = MessageLog::follow(bus.log_file(), filter);
    loop {
        let entry = follower.next().await?;
        if output::print_entry(&entry, is_json).is_err() {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn failure(error: &Error) -> Failure {
    Failure::from(error)
}

/// An ask without an answer is no success.
fn exit_code(reply: &Reply, is_detached: bool) -> u8 {
    match reply {
        Reply::Ask(report) | Reply::Wait(report) => match (&report.error, &report.answer) {
            (Some(failure), _) => failure.kind.exit_code(),
            (None, None) if !is_detached => FailureKind::Timeout.exit_code(),
            _ => 0,
        },
        _ => 0,
    }
}
