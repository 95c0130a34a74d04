//! Runs a coding agent in a workspace and prints its events live.
//!
//! ```sh
//! cargo run -p examples --example run_agent -- "Count the files here"
//! cargo run -p examples --example run_agent -- --profile claude-code --variant plan "Plan a test"
//! cargo run -p examples --example run_agent -- --follow-up SESSION_ID "And now the folders"
//! cargo run -p examples --example run_agent -- --list
//! ```
//!
//! The default profile is a scripted stand-in, so no agent must be installed. Ctrl-C, `TERM` and
//! `HUP` stop the agent and every process that it has started. The record of executions and the conversations of
//! the stand-in are in `--state`.
//!
//! Exit codes: 0 the agent succeeded, 1 the agent failed or could not be started, 2 wrong
//! arguments, 128 + n stopped by signal n (130: Ctrl-C).
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use examples::{Interrupted, Result, availability, scripted_agent};
use exec_core::{
    AgentEvent, AgentEventKind, EventKind, ExecutionContext, ExecutionService, ExitReport,
    FollowUpRequest, LaunchRequest, NewChatRequest, OutputStream, SessionId, Usage,
    termination_signal,
};
use exec_profiles::ProfileRegistry;
use serde_json::{Value, json};

/// Runs a coding agent in a workspace and prints its events
#[derive(Parser)]
#[command(name = "run_agent")]
struct Arguments {
    /// The agent
    #[arg(long, value_name = "LABEL", default_value = scripted_agent::LABEL)]
    profile: String,
    /// The variant of its profile
    #[arg(long, value_name = "LABEL")]
    variant: Option<String>,
    /// The folder in which the agent works
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// A TOML or JSON file with your own profiles
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// The folder for the record of executions [default: .run_agent in the workspace]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Continue this session instead of a new one
    #[arg(long, value_name = "SESSION_ID")]
    follow_up: Option<SessionId>,
    /// Print each event as one line of JSON
    #[arg(long)]
    json: bool,
    /// List the profiles and whether each can run on this machine
    #[arg(long)]
    list: bool,
    /// The task of the agent
    #[arg(required_unless_present = "list")]
    prompt: Option<String>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    examples::report(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    let state = match &arguments.state {
        Some(state) => state.clone(),
        None => arguments.workspace.join(".run_agent"),
    };
    let registry = ProfileRegistry::new();
    registry.register(scripted_agent::profile(&state.join("scripted-agent"))?)?;
    if let Some(file) = &arguments.profiles {
        // An invalid profile is reported; the other profiles are loaded.
        for error in registry.load_user_file(file)?.errors {
            eprintln!("warning: {error}");
        }
    }
    if arguments.list {
        list(&registry);
        return Ok(ExitCode::SUCCESS);
    }

    let mut context = ExecutionContext::for_workspace(&arguments.profile, &arguments.workspace)?;
    context.variant_label = arguments.variant;
    let text = arguments.prompt.unwrap_or_default();
    let request = match arguments.follow_up {
        None => LaunchRequest::try_from(NewChatRequest {
            context,
            prompt: text,
        })?,
        Some(session_id) => LaunchRequest::try_from(FollowUpRequest {
            context,
            session_id,
            message: text,
        })?,
    };
    // Checked before the state folder is created: it lies in the workspace by default, and a
    // mistyped workspace must not be created.
    if !arguments.workspace.is_dir() {
        let workspace = arguments.workspace.display();
        return Err(format!("Workspace path does not exist: {workspace}").into());
    }
    let service = ExecutionService::builder(registry)
        .state_dir(&state)
        .open()?;
    // Processes of an earlier run that was killed may still be alive.
    let reaped = service.reap_orphans().await?;
    if !reaped.executions.is_empty() {
        let count = reaped.executions.len();
        eprintln!("note: stopped {count} executions left by an earlier run");
    }

    let mut signal = termination_signal()?;
    let execution = service.launch(request).await?;
    let mut events = execution.events();
    let mut show = Show::new(arguments.json);
    let mut interrupted = None;
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(event) => show.event(&event.kind),
                None => break,
            },
            signal = &mut signal, if interrupted.is_none() => {
                interrupted = Some(Interrupted { signal });
                say("stopping …");
                // In the background, because events continue until all processes have ended.
                let service = service.clone();
                tokio::spawn(async move {
                    let report = service.shutdown(Duration::from_secs(10)).await;
                    say(&format!("stopped {} processes", report.processes));
                });
            }
        }
    }
    let report = execution.wait().await?;
    if let Some(interrupted) = interrupted {
        return Ok(interrupted.exit_code());
    }
    show.finished(&report);
    Ok(match report.is_success() && !show.failed {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// As `eprintln!`, which panics if the terminal is gone.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Prints events as text or as JSON lines.
struct Show {
    json: bool,
    colour: bool,
    failed: bool,
}

impl Show {
    fn new(json: bool) -> Self {
        Self {
            json,
            colour: std::io::stdout().is_terminal(),
            failed: false,
        }
    }

    fn event(&mut self, kind: &EventKind) {
        match kind {
            EventKind::Started { process_id } => {
                self.line(
                    "started",
                    "2",
                    &format!("process {process_id}"),
                    json!({"process_id": process_id}),
                );
            }
            EventKind::SessionResolved { session_id } => {
                self.line(
                    "session",
                    "2",
                    session_id.as_str(),
                    json!({"session_id": session_id}),
                );
            }
            EventKind::SessionMismatch { asked, reported } => {
                let text = format!("asked for {asked}, but the agent continues {reported}");
                self.line(
                    "mismatch",
                    "31",
                    &text,
                    json!({"asked": asked, "reported": reported}),
                );
            }
            EventKind::Output(output) => {
                for event in &output.events {
                    self.agent(event);
                }
                // A line that is no event of the agent is shown as it is.
                if output.events.is_empty() {
                    let name = match output.stream {
                        OutputStream::Stdout => "raw",
                        OutputStream::Stderr => "stderr",
                    };
                    let text = output.line.text();
                    self.line(name, "2", &text, json!({"text": text}));
                }
            }
            EventKind::Gap { missed } => {
                self.line(
                    "gap",
                    "31",
                    &format!("{missed} events"),
                    json!({"missed": missed}),
                );
            }
            EventKind::Agent(events) => {
                for event in events {
                    self.agent(event);
                }
            }
            // `finished` prints the end.
            EventKind::Exited(_) => {}
            other => self.line(
                "notice",
                "33",
                &format!("{other:?}"),
                json!({"text": format!("{other:?}")}),
            ),
        }
    }

    fn agent(&mut self, event: &AgentEvent) {
        let mut whole = serde_json::to_value(event).unwrap_or_default();
        // The field `type` of the event becomes `event` in our output.
        let name = match whole
            .as_object_mut()
            .and_then(|fields| fields.remove("type"))
        {
            Some(Value::String(name)) => name,
            _ => "event".to_owned(),
        };
        let (colour, text) = match &event.kind {
            AgentEventKind::Text { text, .. } => ("0", text.clone()),
            AgentEventKind::Thinking { text, .. } => ("2", text.clone()),
            AgentEventKind::ToolCall { name, input, .. } => ("36", format!("{name} {input}")),
            AgentEventKind::ToolResult {
                output, is_error, ..
            } => (
                if *is_error { "31" } else { "36" },
                output.trim_end().to_owned(),
            ),
            AgentEventKind::Usage(totals) => {
                let count = |tokens: Option<u64>| tokens.map_or("?".to_owned(), |n| n.to_string());
                let used = |usage: &Usage| {
                    let (input, output) = (count(usage.input_tokens), count(usage.output_tokens));
                    format!("{input} tokens in, {output} out")
                };
                let (run, session) = (used(&totals.run), used(&totals.session));
                ("2", format!("{run}; the session: {session}"))
            }
            AgentEventKind::Retry { failure, .. } => ("33", failure.to_string()),
            AgentEventKind::Error(failure) => ("31", failure.to_string()),
            AgentEventKind::Finished { outcome, .. } => {
                self.failed = *outcome == exec_core::Outcome::Failure;
                ("2", format!("{outcome:?}").to_lowercase())
            }
            _ => ("2", whole.to_string()),
        };
        // The name `finished` is for the last line, which has the exit report.
        let name = if name == "finished" { "outcome" } else { &name };
        self.line(name, colour, &text, whole);
    }

    fn finished(&self, report: &ExitReport) {
        let how = match (report.code, report.signal) {
            (Some(code), _) => format!("exit code {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown end".to_owned(),
        };
        let failure = match &report.failure {
            Some(failure) => format!("{failure}\n"),
            None => String::new(),
        };
        let text = format!(
            "{failure}{how} after {:.1} s, CPU time {:.2} s, peak memory {} MB\n{}",
            report.wall_time.as_secs_f64(),
            report.cpu_time.as_secs_f64(),
            report.peak_memory_bytes / 1_000_000,
            report.session_id,
        );
        let fields = json!({"session_id": report.session_id, "exit": report});
        self.line("finished", "1", &text, fields);
    }

    fn line(&self, name: &str, colour: &str, text: &str, mut fields: Value) {
        if self.json {
            fields["event"] = json!(name);
            println!("{fields}");
            return;
        }
        for (at, line) in text.lines().enumerate() {
            let name = if at == 0 { name } else { "" };
            match self.colour {
                true => println!("{name:>15}  \x1b[{colour}m{line}\x1b[0m"),
                false => println!("{name:>15}  {line}"),
            }
        }
    }
}

/// Prints each profile and whether its program works on this machine.
fn list(registry: &ProfileRegistry) {
    for label in registry.labels() {
        let availability = availability::of_profile(registry, &label);
        let variants = registry.get_profile(&label).map_or(Vec::new(), |profile| {
            let labels = profile.variants.into_iter().map(|variant| variant.label);
            labels.collect()
        });
        let variants = match variants.is_empty() {
            true => String::new(),
            false => format!("; variants: {}", variants.join(", ")),
        };
        println!("{label:<14} {availability}{variants}");
    }
}
