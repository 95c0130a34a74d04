//! Live sessions of the scripted agent, through the service and a profile.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use exec_core::{
    CommandConfig, Decision, Error, ExecutionService, FailureKind, LiveRequest, LiveSession,
    LiveStatus, RestartPolicy, Steered, TurnOutcome, TurnReport,
};
use exec_profiles::{LiveConfig, LiveProtocol, ProfileDefinition, ProfileRegistry};
use tempfile::TempDir;

use crate::live_agent::{self, Fault, Step, Wire};
use crate::request::{context, message};
use crate::worker;

const FAULT: &str = "EXEC_PROFILES_TEST_FAULT";
const WIRE: &str = "EXEC_PROFILES_TEST_WIRE";

/// The test ends with a failure instead of a hang.
const LIMIT: Duration = Duration::from_secs(60);

const WIRES: [Wire; 3] = [Wire::Claude, Wire::Codex, Wire::Acp];

const FAULTS: [Fault; 6] = [
    Fault::None,
    Fault::HalfLines,
    Fault::WrongIds,
    Fault::Duplicates,
    Fault::UnknownRequests,
    Fault::Noise,
];

const STEPS: [Step; 6] = [
    Step::Initialize,
    Step::Open,
    Step::Prompt,
    Step::Ask,
    Step::Answer,
    Step::End,
];

/// The part of the agent, in a process of its own.
pub(crate) fn play(home: &Path) {
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let args: Vec<String> = std::env::args().collect();
    // The test harness has begun a line.
    io::stdout().write_all(b"\n").unwrap();
    let (wire, fault) = (WIRES[number(WIRE)], all_faults()[number(FAULT)]);
    if let Err(error) = live_agent::run(wire, fault, home.to_owned(), &args) {
        let _ = writeln!(io::stderr(), "live agent: {error}");
        std::process::exit(1);
    }
    // Without the summary of the test harness.
    std::process::exit(0);
}

fn all_faults() -> Vec<Fault> {
    let deaths = STEPS.map(Fault::Death);
    let others = [Fault::Silence, Fault::Flood];
    FAULTS.into_iter().chain(others).chain(deaths).collect()
}

struct Host {
    folder: TempDir,
    service: ExecutionService,
}

impl Host {
    fn new(wire: Wire, fault: Fault) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let host = Self {
            service: service(folder.path(), wire, fault),
            folder,
        };
        std::fs::create_dir(host.workspace()).unwrap();
        host
    }

    fn workspace(&self) -> std::path::PathBuf {
        self.folder.path().join("workspace")
    }

    async fn open(&self) -> Result<LiveSession, Error> {
        let request = LiveRequest::new(context("scripted", None, &self.workspace()));
        within(self.service.open_live(request)).await
    }
}

fn service(folder: &Path, wire: Wire, fault: Fault) -> ExecutionService {
    let faults = all_faults();
    let fault = faults.iter().position(|known| *known == fault).unwrap();
    let wire_number = WIRES.iter().position(|known| *known == wire).unwrap();
    let exe = std::env::current_exe().unwrap();
    let mut command = CommandConfig::new(exe.to_str().unwrap(), ["unused"]);
    command.env = worker::environment("live-agent", &folder.join("home"));
    command.env.insert(FAULT.to_owned(), fault.to_string());
    command.env.insert(WIRE.to_owned(), wire_number.to_string());
    let protocol = match wire {
        Wire::Claude => LiveProtocol::Claude,
        Wire::Codex => LiveProtocol::Codex,
        Wire::Acp => LiveProtocol::Acp,
    };
    let mut profile = ProfileDefinition::new("scripted", command);
    profile.live = Some(LiveConfig::new(
        protocol,
        worker::ARGS.into_iter().chain(["--"]),
    ));
    let registry = ProfileRegistry::empty();
    registry.register(profile).unwrap();
    ExecutionService::builder(registry)
        .state_dir(folder.join("state"))
        .open()
        .unwrap()
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(LIMIT, future).await;
    done.expect("the session makes no progress")
}

async fn say(session: &LiveSession, text: &str) -> Arc<TurnReport> {
    within(session.prompt(text).unwrap().ended()).await.unwrap()
}

async fn asked(session: &LiveSession) -> String {
    let waits = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within(session.wait_for(waits)).await.unwrap();
    session.permissions()[0].id.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_work_in_every_protocol_with_agents_that_are_lax() {
    for wire in WIRES {
        for fault in FAULTS {
            eprintln!("{wire:?} {fault:?}");
            let host = Host::new(wire, fault);
            let session = host.open().await.unwrap();
            let report = say(&session, "hello\n\"world\"").await;
            assert_eq!(report.outcome, TurnOutcome::Completed);
            // Repeated pieces of text are part of the text.
            let is_doubled = fault == Fault::Duplicates && wire != Wire::Claude;
            let times = if is_doubled { 2 } else { 1 };
            assert_eq!(report.text, "pong: hello\n\"world\"".repeat(times));

            for (decision, expected) in [
                (Decision::Allow, "ran: made"),
                (Decision::Deny, "not allowed"),
            ] {
                let turn = session.prompt("[[ask echo made]]").unwrap();
                let permission = asked(&session).await;
                session.answer(&permission, decision).unwrap();
                let again = session.answer(&permission, decision);
                assert!(matches!(again, Err(Error::AlreadySettled { .. })));
                let report = within(turn.ended()).await.unwrap();
                assert_eq!(report.text, expected.repeat(times));
            }

            let report = say(&session, "[[count]]").await;
            let refusals = report.text.rsplit(' ').nth(1).unwrap();
            let is_refused = fault == Fault::UnknownRequests;
            assert_eq!(refusals != "0", is_refused, "{}", report.text);
            let exit = within(session.close()).await.unwrap();
            assert_eq!(exit.code, Some(0), "{:?}", exit.stderr_tail);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_ends_the_turn_and_its_questions_and_keeps_the_session() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::None);
        let session = host.open().await.unwrap();
        for prompt in ["[[slow 60000]]", "[[ask touch never]]"] {
            let turn = session.prompt(prompt).unwrap();
            let permission = match prompt.contains("ask") {
                true => Some(asked(&session).await),
                false => None,
            };
            let report = within(session.interrupt(turn.id())).await.unwrap();
            assert_eq!(report.turn().outcome, TurnOutcome::Interrupted, "{wire:?}");
            if let Some(permission) = permission {
                let late = session.answer(&permission, Decision::Allow);
                assert!(matches!(late, Err(Error::AlreadySettled { .. })));
            }
            assert_eq!(say(&session, "next").await.text, "pong: next");
        }
        assert!(!host.workspace().join("never").exists());
        within(session.close()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_text_is_put_into_the_turn_where_the_protocol_can_do_that() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::None);
        let session = host.open().await.unwrap();
        // A steer ends the turn. Claude's turn has to end by itself.
        let prompt = match wire {
            Wire::Claude => "[[slow 500]]",
            Wire::Codex | Wire::Acp => "[[slow 60000]]",
        };
        let turn = session.prompt(prompt).unwrap();
        // Codex can be steered once it has named the turn.
        let mut events = session.execution().events();
        while !within(events.next())
            .await
            .unwrap()
            .agent_events()
            .iter()
            .any(|event| matches!(&event.kind, exec_core::AgentEventKind::Text { .. }))
        {}
        let steered = within(session.steer("left")).await.unwrap();
        let report = match (wire, steered) {
            (Wire::Claude, Steered::Queued(turn)) => within(turn.ended()).await.unwrap(),
            (Wire::Codex | Wire::Acp, Steered::Injected(into)) => {
                assert_eq!(into, turn.id());
                within(turn.ended()).await.unwrap()
            }
            (_, steered) => panic!("{wire:?}: {steered:?}"),
        };
        assert!(report.text.ends_with("pong: left"), "{:?}", report.text);
        within(session.close()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_session_knows_its_prompts_and_repeats_no_events() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::None);
        let session = host.open().await.unwrap();
        say(&session, "one").await;
        say(&session, "two").await;
        within(session.close()).await.unwrap();
        let resumed = within(session.resume()).await.unwrap();
        assert_eq!(resumed.session_id(), session.session_id());
        let report = say(&resumed, "[[count]]").await;
        assert_eq!(report.text, "2 earlier, 0 refusals", "{wire:?}");
        within(resumed.close()).await.unwrap();
        let mut events = resumed.execution().events();
        while let Some(event) = within(events.next()).await {
            for event in event.agent_events() {
                if let exec_core::AgentEventKind::Text { text, .. } = &event.kind {
                    assert!(!text.contains("replayed"), "{wire:?}: {text}");
                }
            }
        }
    }
}

// One thread: the agent gets the first prompt, and dies, only after the second one waits.
#[tokio::test]
async fn an_agent_that_dies_ends_its_turn_and_is_never_asked_again() {
    for wire in WIRES {
        for step in STEPS {
            // Claude opens its session with its first answer.
            if (wire, step) == (Wire::Claude, Step::Open) {
                continue;
            }
            eprintln!("{wire:?} {step:?}");
            let host = Host::new(wire, Fault::Death(step));
            let session = match (step, host.open().await) {
                (Step::Initialize | Step::Open, Err(_)) => continue,
                (_, session) => session.unwrap(),
            };
            let turn = session.prompt("[[ask echo x]]").unwrap();
            let behind = session.prompt("behind it").unwrap();
            if matches!(step, Step::Answer | Step::End) {
                session
                    .answer(&asked(&session).await, Decision::Allow)
                    .unwrap();
            }
            let report = within(turn.ended()).await.unwrap();
            assert_eq!(report.outcome, TurnOutcome::Uncertain);
            let exit = within(session.execution().wait()).await.unwrap();
            assert_eq!(exit.code, Some(3));
            assert_eq!(session.queued().len(), 1, "the other prompt waits");

            // The resumed process behaves; the prompt that may have run is not repeated.
            let state = host.folder.path().join("home");
            let stored = std::fs::read_dir(&state).unwrap().next().unwrap().unwrap();
            let prompts = std::fs::read_to_string(stored.path()).unwrap();
            assert_eq!(prompts, "[[ask echo x]]", "the agent got one prompt");
            drop(behind);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_agent_is_restarted_by_its_own_means_and_gets_what_waits() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::None);
        let restarts = RestartPolicy::new().backoff(Duration::ZERO, Duration::ZERO);
        let request = LiveRequest::new(context("scripted", None, &host.workspace()));
        let opening = host.service.open_live(request.restart(restarts));
        let session = within(opening).await.unwrap();
        say(&session, "one").await;
        let lost = session.prompt("[[slow 60000]]").unwrap();
        let kept = session.prompt("[[count]]").unwrap();
        let stored = || {
            let files = std::fs::read_dir(host.folder.path().join("home")).unwrap();
            let texts = files.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
            texts.collect::<String>()
        };
        within(async {
            while !stored().contains("slow") {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let pid = session.execution().process_id().to_string();
        let killed = std::process::Command::new("kill")
            .args(["-9", &pid])
            .status();
        assert!(killed.unwrap().success());
        let report = within(lost.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Uncertain, "{wire:?}");
        let report = within(kept.ended()).await.unwrap();
        assert_eq!(report.text, "2 earlier, 0 refusals", "{wire:?}");
        let next = within(session.restarted()).await.unwrap();
        assert_eq!(next.session_id(), session.session_id(), "{wire:?}");
        within(next.close()).await.unwrap();
        assert_eq!(stored().matches("slow").count(), 1, "{wire:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_agent_can_be_closed() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::Silence);
        let session = host.open().await.unwrap();
        let turn = session.prompt("hello").unwrap();
        within(session.close()).await.unwrap();
        let report = within(turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Uncertain);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_updates_does_not_hide_the_answer() {
    for wire in WIRES {
        let host = Host::new(wire, Fault::Flood);
        let session = host.open().await.unwrap();
        let report = say(&session, "hello").await;
        assert!(report.text.ends_with("pong: hello"), "{wire:?}");
        assert_eq!(report.outcome, TurnOutcome::Completed);
        within(session.close()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_does_not_exist_is_gone() {
    for wire in [Wire::Codex, Wire::Acp] {
        let host = Host::new(wire, Fault::None);
        let context = context("scripted", None, &host.workspace());
        let id = exec_core::SessionId::new(
            &context.executor_type,
            &context.actual_project_id,
            "no-such-session",
        );
        let request = LiveRequest::resume(context, id.unwrap());
        let error = within(host.service.open_live(request)).await.unwrap_err();
        let text = message(&error);
        assert!(text.contains("no such session"), "{text}");
        assert!(text.contains(FailureKind::SessionGone.name()), "{text}");
    }
}
