//! A scripted agent with a protocol of one word and a text per line, and its driver.
//!
//! | line to the agent | line of the agent |
//! |---|---|
//! | `open`, `open <id>` | `opened <id>` |
//! | `prompt <text>` | `say <text>`, `ask <id> <command>`, `done`, `failed <text>` |
//! | `interrupt` | `cancelled`, if a turn runs |
//! | `answer <id> Allow`, `void <id>` | |
//! | `steer <text>` | `steered yes`, `steered no` |
//!
//! The text of a prompt says what the agent does with it; see [`AGENT`].

use std::time::Duration;

use exec_core::{
    AgentEventKind, Decision, DriverCommand, DriverOutput, ExecutionKind, ExecutionService,
    Failure, FailureKind, LaunchRequest, LiveRequest, LiveSession, PermissionRequest,
    ProcessParameters, ProtocolDriver, RateLimit, RateLimitStatus, StopAction, StopLadder,
    ToolInput, TurnOutcome, UsageTotals,
};

use crate::lab::{Lab, Scripted, script, within};

/// What the agent does with the first word of a prompt: `say` answers the rest, `work` waits for an
/// interrupt, `ask` asks for a permission with the rest and reports the answer, `tool` starts a process
/// that outlives an interrupt, `die` ends like a crash after a first word, `exit` ends with a code,
/// `limit` fails with a usage limit, `raw` prints the rest as a line, `locked` fails with a missing
/// authentication and ends.
pub(crate) const AGENT: &str = r#"
while read -r word rest; do
    echo "$word $rest" >> read
    case $word in
        open) echo "opened ${rest:-native-1}" ;;
        prompt)
            set -f; set -- $rest; act=$1; shift; busy=
            case $act in
                say) echo "say $*"; echo done ;;
                work) busy=1; echo "say working" ;;
                ask) busy=1; echo "ask $*" ;;
                tool) busy=1; setsid sh -c 'echo $$ > tool; exec sleep 1000' & echo "say tool" ;;
                die) echo "say half"; kill -9 $$ ;;
                exit) exit "$1" ;;
                limit) echo "limited"; echo "failed usage limit reached" ;;
                raw) echo "$*" ;;
                locked) echo "unauthorized log in first"; exit 1 ;;
                usage) echo "usage $1"; echo done ;;
            esac ;;
        answer) busy=; echo "say $rest"; echo done ;;
        interrupt) if [ -n "$busy" ]; then busy=; echo cancelled; fi ;;
        steer)
            case $rest in
                no*) echo "steered no" ;;
                *) echo "say $rest"; echo "steered yes" ;;
            esac ;;
        mode) case $rest in bad) echo "refused no such mode" ;; esac ;;
    esac
done
"#;

/// The protocol of the table above.
pub(crate) struct WordDriver {
    /// The session to resume.
    pub(crate) resume: Option<String>,
    pub(crate) can_steer: bool,
}

impl ProtocolDriver for WordDriver {
    fn open(&mut self, out: &mut DriverOutput) {
        match &self.resume {
            Some(id) => out.send(format!("open {id}")),
            None => out.send("open"),
        }
    }

    fn line(&mut self, line: &str, out: &mut DriverOutput) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = || rest.to_owned();
        match word {
            "opened" => out.opened((!rest.is_empty()).then(text)),
            "refuse" => out.open_failed(Failure::new(FailureKind::SessionGone, text())),
            "say" => out.event(AgentEventKind::Text {
                text: text(),
                delta: false,
            }),
            "usage" => {
                let mut usage = UsageTotals::default();
                usage.run.output_tokens = rest.parse().ok();
                out.event(AgentEventKind::Usage(usage));
            }
            "limited" => {
                let notice = RateLimit::new(RateLimitStatus::Rejected);
                out.event(AgentEventKind::RateLimit(notice));
            }
            "done" => out.turn_ended(TurnOutcome::Completed, None),
            "cancelled" => out.turn_ended(TurnOutcome::Interrupted, None),
            "failed" => out.turn_ended(
                TurnOutcome::Failed {
                    failure: Failure::new(FailureKind::Agent, text()),
                },
                None,
            ),
            "unauthorized" => out.turn_ended(
                TurnOutcome::Failed {
                    failure: Failure::new(FailureKind::Authentication, text()),
                },
                None,
            ),
            "ask" => {
                let (id, command) = rest.split_once(' ').unwrap_or((rest, "ls"));
                let mut request = PermissionRequest::new(id, "Bash", ToolInput::default());
                request.command = Some(command.to_owned());
                out.asked(request);
            }
            "withdraw" => out.withdrawn(rest),
            "steered" => out.steered(rest == "yes"),
            "refused" => out.refused(rest),
            _ => {}
        }
    }

    fn command(&mut self, command: DriverCommand<'_>, out: &mut DriverOutput) {
        match command {
            DriverCommand::Prompt(text) => out.send(format!("prompt {text}")),
            DriverCommand::Steer(text) => out.send(format!("steer {text}")),
            DriverCommand::Interrupt => out.send("interrupt"),
            DriverCommand::Answer {
                permission,
                decision,
            } => {
                let word = match decision {
                    Decision::Allow => "allow",
                    Decision::Deny => "deny",
                };
                out.send(format!("answer {permission} {word}"));
            }
            DriverCommand::Withdraw { permission } => out.send(format!("void {permission}")),
            DriverCommand::SetMode(mode) => out.send(format!("mode {mode}")),
            _ => out.refused("no such command"),
        }
    }

    fn can_steer(&self) -> bool {
        self.can_steer
    }
}

/// A profile whose agent runs this script and speaks the protocol.
pub(crate) fn live_script(text: &str) -> Scripted {
    script(text).live(live_parameters)
}

/// The driver and the stop ladder of [`live_script`].
pub(crate) fn live_parameters(request: &LaunchRequest, parameters: &mut ProcessParameters) {
    let native_id = request.session_id.native_id();
    let resume = request.kind == ExecutionKind::FollowUp;
    parameters.protocol_driver = Some(Box::new(WordDriver {
        resume: resume.then(|| native_id.to_owned()),
        can_steer: request.context.variant_label.as_deref() == Some("steer"),
    }));
    parameters.stop_ladder = Some(
        StopLadder::kill_at_once()
            .then(StopAction::CloseStdin, Duration::from_secs(2))
            .then(StopAction::Terminate, Duration::from_secs(5)),
    );
}

/// A profile whose agent is [`AGENT`].
pub(crate) fn agent() -> Scripted {
    live_script(AGENT)
}

pub(crate) async fn open(lab: &Lab, service: &ExecutionService) -> LiveSession {
    open_with(service, LiveRequest::new(lab.context())).await
}

pub(crate) async fn open_with(service: &ExecutionService, request: LiveRequest) -> LiveSession {
    within("the session", service.open_live(request))
        .await
        .unwrap()
}

/// The answer to one prompt.
pub(crate) async fn answer(session: &LiveSession, prompt: &str) -> String {
    let turn = session.prompt(prompt).unwrap();
    let report = within("the turn", turn.ended()).await.unwrap();
    assert_eq!(report.outcome, TurnOutcome::Completed);
    report.text.clone()
}
