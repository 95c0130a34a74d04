//! Talks with a coding agent in a live session: one process for the whole conversation.
//!
//! ```sh
//! cargo run -p examples --example chat
//! cargo run -p examples --example chat -- --agent claude-code --allow 'cargo test *'
//! cargo run -p examples --example chat -- --agent codex --resume SESSION_ID
//! echo '{"id":1,"command":"prompt","text":"Count the files"}' |
//!     cargo run -p examples --example chat -- --json
//! ```
//!
//! Each line is a message. While the agent works, messages wait in a queue. `y` and `n` answer the
//! oldest permission request. Ctrl-C interrupts the turn and keeps the session; without a turn, or a
//! second time, it ends the program. `/help` lists the other commands. At the end of the input the
//! program waits for the last turn; permission requests are then denied.
//!
//! The default agent is a scripted stand-in, so no agent must be installed. The record of executions,
//! the log of both directions and the conversations of the stand-in are in `--state`.
//!
//! With `--json` each line of the input is a command and each line of the output an event or a reply;
//! `docs/live-json.md` describes both.
//!
//! Exit codes: 0 the conversation has ended, 1 the agent could not be started or has ended by itself, 2
//! wrong arguments, 128 + n ended by signal n (130: Ctrl-C).
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

mod input;
mod screen;

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use examples::live_json::{carry_out, event_json, parse_command, reply_json};
use examples::{Interrupted, Result, scripted_agent};
use exec_core::{
    Decision, Event, EventKind, EventStream, ExecutionContext, ExecutionService, LiveEvent,
    LiveRequest, LiveSession, LiveStatus, PermissionAction, PermissionPolicy, PermissionRule,
    SessionId, Steered, TurnId, termination_signal,
};
use exec_profiles::ProfileRegistry;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::input::{Typed, read_lines};
use crate::screen::{Screen, shown};

/// Talks with a coding agent in a live session
#[derive(Parser)]
#[command(name = "chat")]
struct Arguments {
    /// The agent: the label of a profile
    #[arg(long, value_name = "LABEL", default_value = scripted_agent::LABEL)]
    agent: String,
    /// The variant of its profile
    #[arg(long, value_name = "LABEL")]
    variant: Option<String>,
    /// The folder in which the agent works
    #[arg(long, value_name = "DIR", default_value = ".")]
    workspace: PathBuf,
    /// A TOML or JSON file with your own profiles
    #[arg(long, value_name = "FILE")]
    profiles: Option<PathBuf>,
    /// The folder for records and logs [default: .chat in the workspace]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Continue this session instead of a new one
    #[arg(long, value_name = "SESSION_ID")]
    resume: Option<SessionId>,
    /// Allow this command without a question; `*` as the last word stands for any words. Can be repeated
    #[arg(long, value_name = "COMMAND")]
    allow: Vec<String>,
    /// Read commands and print events as JSON
    #[arg(long)]
    json: bool,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    if let Some(code) = scripted_agent::run_if_asked() {
        return code;
    }
    examples::report(run(Arguments::parse()).await)
}

async fn run(arguments: Arguments) -> Result<ExitCode> {
    if !arguments.workspace.is_dir() {
        let workspace = arguments.workspace.display();
        return Err(format!("Workspace path does not exist: {workspace}").into());
    }
    let state = match &arguments.state {
        Some(state) => state.clone(),
        None => arguments.workspace.join(".chat"),
    };
    keep_out_of_git(&state)?;
    let registry = ProfileRegistry::new();
    registry.register(scripted_agent::profile(&state.join("scripted-agent"))?)?;
    if let Some(file) = &arguments.profiles {
        // An invalid profile is reported; the other profiles are loaded.
        for error in registry.load_user_file(file)?.errors {
            eprintln!("warning: {error}");
        }
    }
    let mut context = ExecutionContext::for_workspace(&arguments.agent, &arguments.workspace)?;
    context.variant_label = arguments.variant;
    let mut request = match arguments.resume {
        None => LiveRequest::new(context),
        Some(session) => LiveRequest::resume(context, session),
    };
    if !arguments.allow.is_empty() {
        let rules = arguments.allow.into_iter();
        let rules = rules.map(|it| PermissionRule::new(PermissionAction::Allow).command(it));
        request = request.policy(rules.fold(PermissionPolicy::default(), PermissionPolicy::rule));
    }
    let service = ExecutionService::builder(registry)
        .state_dir(&state)
        .log_dir(state.join("logs"))
        .open()?;
    // Processes of an earlier run that was killed may still be alive.
    service.reap_orphans().await?;

    let session = examples::until_signal(async { Ok(service.open_live(request).await?) }).await?;
    let screen = match arguments.json {
        true => None,
        false => Some(Screen::new(&arguments.agent)),
    };
    let ended = Chat::new(session, screen).run().await;
    service.shutdown(Duration::from_secs(10)).await;
    ended
}

/// The folder has the prompts and the raw output, and an agent may run `git add --all`.
fn keep_out_of_git(state: &Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(state)?;
    Ok(std::fs::write(state.join(".gitignore"), "*\n")?)
}

/// How the loop goes on.
enum Step {
    Continue,
    /// The conversation is over.
    End(ExitCode),
}

struct Chat {
    session: LiveSession,
    events: EventStream,
    /// `None`: JSON.
    screen: Option<Screen>,
    /// The turn that runs, according to the events so far.
    turn: Option<TurnId>,
    /// The turn that a first Ctrl-C has interrupted.
    interrupted: Option<TurnId>,
    /// The input has ended.
    is_last: bool,
    /// Commands of JSON whose replies are not printed yet.
    replies: JoinSet<()>,
    /// The process has ended without a failure.
    has_succeeded: bool,
}

impl Chat {
    fn new(session: LiveSession, screen: Option<Screen>) -> Self {
        Self {
            events: session.execution().events(),
            session,
            screen,
            turn: None,
            interrupted: None,
            is_last: false,
            replies: JoinSet::new(),
            has_succeeded: false,
        }
    }

    async fn run(mut self) -> Result<ExitCode> {
        let mut lines = read_lines();
        let mut signal = termination_signal()?;
        loop {
            let step = tokio::select! {
                // First what has happened: a Ctrl-C then means what is on the screen.
                biased;
                event = self.events.next() => match event {
                    Some(event) => self.event(&event),
                    None => tokio::select! {
                        number = &mut signal => {
                            Step::End(Interrupted { signal: number }.exit_code())
                        }
                        step = self.ended(&mut lines) => step?,
                    },
                },
                number = &mut signal => {
                    signal = termination_signal()?;
                    self.signal(number).await?
                }
                line = lines.recv(), if !self.is_last => match line {
                    Some(line) => self.line(&line).await?,
                    None => {
                        self.is_last = true;
                        Step::Continue
                    }
                },
                // After the last line the end of a command can be the last thing that happens.
                Some(_) = self.replies.join_next() => Step::Continue,
            };
            if let Step::End(code) = step {
                return Ok(code);
            }
            if self.is_last && self.has_nothing_to_do() {
                self.session.close().await?;
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// Whether all messages are answered. At the end of the input no person can answer the agent, so its permission
    /// requests are denied.
    fn has_nothing_to_do(&self) -> bool {
        for request in self.session.permissions() {
            let _ = self.session.answer(&request.id, Decision::Deny);
        }
        // An agent at its limit stays so until the next turn.
        let status = self.session.state().status;
        let is_idle = matches!(status, LiveStatus::Idle | LiveStatus::Limited { .. });
        // A command that has not run yet may be a prompt.
        self.replies.is_empty()
            && self.turn.is_none()
            && self.session.queued().is_empty()
            && is_idle
    }

    fn event(&mut self, event: &Event) -> Step {
        match &event.kind {
            EventKind::Live(LiveEvent::TurnStarted { turn }) => self.turn = Some(*turn),
            EventKind::Live(LiveEvent::TurnEnded { .. }) => self.turn = None,
            EventKind::Exited(report) => self.has_succeeded = report.is_success(),
            _ => {}
        }
        match &mut self.screen {
            Some(screen) => screen.event(event),
            None => println!("{}", event_json(event)),
        }
        Step::Continue
    }

    /// The process has ended by itself. In a terminal the session can be resumed.
    async fn ended(&mut self, lines: &mut mpsc::Receiver<String>) -> Result<Step> {
        let failed = Ok(Step::End(ExitCode::FAILURE));
        let Some(screen) = &mut self.screen else {
            // The reply to `close` comes with the last event.
            while self.replies.join_next().await.is_some() {}
            return match self.has_succeeded {
                true => Ok(Step::End(ExitCode::SUCCESS)),
                false => failed,
            };
        };
        let session = self.session.session_id();
        screen.note(&format!("the agent has ended; /resume continues {session}"));
        while let Some(line) = lines.recv().await {
            match Typed::parse(&line) {
                Typed::Resume => {
                    self.session = self.session.resume().await?;
                    self.events = self.session.execution().events();
                    return Ok(Step::Continue);
                }
                Typed::Quit => return Ok(Step::End(ExitCode::SUCCESS)),
                Typed::Nothing => {}
                _ => screen.note("only /resume and /quit: the agent has ended"),
            }
        }
        failed
    }

    async fn signal(&mut self, number: i32) -> Result<Step> {
        let turn = self.turn.filter(|turn| self.interrupted != Some(*turn));
        match turn {
            Some(turn) if number == Signal::INT.as_raw() => {
                self.interrupted = Some(turn);
                self.note("interrupting; Ctrl-C again ends the program");
                let session = self.session.clone();
                let is_json = self.screen.is_none();
                // In the background: the events of the agent go on.
                tokio::spawn(async move {
                    let text = match session.interrupt(turn).await {
                        Ok(report) if report.process_ids().is_empty() => return,
                        Ok(report) => format!("still running: {:?}", report.process_ids()),
                        Err(error) => error.to_string(),
                    };
                    if !is_json {
                        eprintln!("{}", shown(&text));
                    }
                });
                Ok(Step::Continue)
            }
            _ => {
                self.note("ending …");
                self.session.close().await?;
                let interrupted = Interrupted { signal: number };
                Ok(Step::End(interrupted.exit_code()))
            }
        }
    }

    async fn line(&mut self, line: &str) -> Result<Step> {
        match self.screen {
            Some(_) => self.typed(Typed::parse(line)).await,
            None => {
                self.command(line);
                Ok(Step::Continue)
            }
        }
    }

    /// A line of JSON. In the background: the reply to an interrupt follows the end of its turn.
    fn command(&mut self, line: &str) {
        let session = self.session.clone();
        let (id, parsed) = parse_command(line);
        self.replies.spawn(async move {
            let result = match parsed {
                Ok(command) => carry_out(&session, command).await,
                Err(error) => Err(error),
            };
            println!("{}", reply_json(id, result));
        });
    }

    async fn typed(&mut self, typed: Typed) -> Result<Step> {
        let session = &self.session;
        let done: Result<Option<String>> = match typed {
            Typed::Nothing => Ok(None),
            Typed::Quit => {
                session.close().await?;
                return Ok(Step::End(ExitCode::SUCCESS));
            }
            Typed::Help => Ok(Some(input::HELP.to_owned())),
            Typed::Unknown(command) => Ok(Some(format!("unknown: {command}; see /help"))),
            Typed::Resume => Ok(Some("the agent runs".to_owned())),
            Typed::Answer(decision) => match session.permissions().first() {
                Some(request) => {
                    let answered = session.answer(&request.id, decision);
                    answered.map(|()| None).map_err(Into::into)
                }
                // A word like any other.
                None => say(session, input::word(decision)),
            },
            Typed::Message(text) => say(session, &text),
            Typed::Steer(text) => match session.steer(text).await {
                Ok(Steered::Injected(turn)) => Ok(Some(format!("put into turn {turn}"))),
                Ok(Steered::Queued(_)) => Ok(Some("it waits for the end of the turn".to_owned())),
                Err(error) => Err(error.into()),
            },
            Typed::Queue => Ok(Some(queue(session))),
            Typed::TakeBack(number) => Ok(Some(match take_back(session, number) {
                Some(text) => format!("taken back: {text}"),
                None => format!("message {number} does not wait"),
            })),
            Typed::Mode(mode) => session.set_mode(&mode).map(|()| None).map_err(Into::into),
            Typed::Model(model) => session.set_model(&model).map(|()| None).map_err(Into::into),
        };
        match done {
            Ok(Some(text)) => self.note(&text),
            Ok(None) => {}
            // A refused command does not end the conversation.
            Err(error) => self.note(&examples::with_causes(&*error)),
        }
        Ok(Step::Continue)
    }

    fn note(&mut self, text: &str) {
        if let Some(screen) = &mut self.screen {
            screen.note(text);
        }
    }
}

fn say(session: &LiveSession, text: &str) -> Result<Option<String>> {
    session.prompt(text)?;
    Ok(None)
}

fn queue(session: &LiveSession) -> String {
    let queued = session.queued();
    if queued.is_empty() {
        return "no message waits".to_owned();
    }
    let lines = queued.iter().map(|it| format!("{}: {}", it.id, it.text));
    lines.collect::<Vec<_>>().join("\n")
}

fn take_back(session: &LiveSession, number: u64) -> Option<String> {
    let queued = session.queued().into_iter();
    let mut queued = queued.map(|it| it.id);
    let id = queued.find(|id| id.to_string() == number.to_string())?;
    session.take_back(id).map(|taken| taken.text)
}
