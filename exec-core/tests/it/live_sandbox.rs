//! Live sessions in a sandbox, with real bubblewrap. `scripts/setup` installs it.

use std::fs;
use std::os::unix::fs::symlink;

use exec_core::{
    Decision, ExecutionKind, LiveRequest, LiveSession, LiveStatus, PermissionAction,
    PermissionPolicy, PermissionRule, ReadAccess, Sandbox, StopAction, StopLadder, StopOutcome,
    StopReport, StoppedBy, TurnOutcome,
};

use crate::lab::{DEADLINE, Lab, Scripted, alive, until, within};
use crate::live_agent::{AGENT, answer, live_parameters, live_script, open, open_with};

/// A profile whose agent runs this script in a sandbox.
fn sandboxed(text: &str) -> Scripted {
    live_script(text).live(|request, parameters| {
        live_parameters(request, parameters);
        parameters.sandbox = Some(Sandbox::new());
        // The agent ends with its input; on a loaded machine the end of its sandbox may take a while.
        let ladder = StopLadder::kill_at_once();
        parameters.stop_ladder = Some(ladder.then(StopAction::CloseStdin, DEADLINE));
    })
}

fn agent() -> Scripted {
    sandboxed(AGENT)
}

/// The agent runs the rest of a prompt `run` as a command, and says whether it succeeded. A prompt
/// `gated` asks for the command first.
fn running_agent() -> Scripted {
    let agent = AGENT
        .replace(
            "say) echo",
            r#"run) if (eval "$*") 2>/dev/null; then echo "say done"; else echo "say refused"; fi; echo done ;;
                gated) busy=1; gated=$*; echo "ask g $*" ;;
                say) echo"#,
        )
        .replace(
            "answer) busy=;",
            r#"answer) busy=; case $rest in "g allow") (eval "$gated") 2>/dev/null ;; esac;"#,
        );
    sandboxed(&agent)
}

async fn stop(session: &LiveSession) -> StopReport {
    match within("the stop", session.execution().stop())
        .await
        .unwrap()
    {
        StopOutcome::Stopped(report) => report,
        StopOutcome::NotFound => panic!("not found"),
    }
}

fn kill(pid: u32) {
    // SAFETY: no memory is involved; the process belongs to this test.
    let sent = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(sent, 0);
}

/// The id of a process in the sandbox, as the process itself sees it.
fn inner_id(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let last = ids.unwrap().split_whitespace().last().unwrap();
    last.parse().unwrap()
}

#[tokio::test]
async fn prompts_are_answered_and_an_interrupt_keeps_the_session() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent())).await;
    assert_eq!(session.session_id().native_id(), "native-1");
    for text in ["one", "two", "three"] {
        assert_eq!(answer(&session, &format!("say {text}")).await, text);
    }
    let turn = session.prompt("work").unwrap();
    let report = within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    assert_eq!(report.turn().outcome, TurnOutcome::Interrupted);
    assert_eq!(answer(&session, "say four").await, "four");
    let exit = within("the close", session.close()).await.unwrap();
    assert!(exit.is_success(), "{exit:?}");
    assert_eq!(exit.stopped_by, None, "it ended with its input");
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn the_execution_and_the_history_say_what_is_enforced() {
    let lab = Lab::outside_of_tmp();
    let service = lab.service(agent());
    let session = open(&lab, &service).await;
    let workspace = lab.workspace().canonicalize().unwrap();
    let enforced = session.execution().sandbox().unwrap().clone();
    assert_eq!(
        (enforced.read.clone(), enforced.write.clone()),
        (ReadAccess::All, vec![workspace])
    );
    within("the close", session.close()).await.unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    assert_eq!(resumed.execution().sandbox(), Some(&enforced));
    within("the close", resumed.close()).await.unwrap();
    let entries = service.history().load().unwrap().entries;
    assert_eq!(entries.len(), 2);
    for entry in entries {
        assert_eq!(entry.sandbox.as_ref(), Some(&enforced));
    }
    let without = open(&lab, &lab.service(crate::live_agent::agent())).await;
    assert_eq!(without.execution().sandbox(), None);
    within("the close", without.close()).await.unwrap();
}

#[tokio::test]
async fn writes_outside_of_the_workspace_are_refused_in_every_turn() {
    let lab = Lab::outside_of_tmp();
    let outside = lab.path("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, lab.workspace().join("given")).unwrap();
    let session = open(&lab, &lab.service(running_agent())).await;
    let refused = [
        format!("run touch {}/new", outside.display()),
        "run touch ../outside/new".to_owned(),
        "run touch given/new".to_owned(),
    ];
    for attempt in &refused {
        assert_eq!(answer(&session, attempt).await, "refused", "{attempt}");
    }
    assert_eq!(answer(&session, "run touch new").await, "done");
    assert_eq!(answer(&session, "run touch /tmp/new").await, "done");
    let turn = session.prompt("work").unwrap();
    within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    assert_eq!(answer(&session, &refused[0]).await, "refused");
    within("the close", session.close()).await.unwrap();
    let resumed = within("the resume", session.resume()).await.unwrap();
    assert_eq!(answer(&resumed, &refused[0]).await, "refused");
    within("the close", resumed.close()).await.unwrap();
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    assert!(lab.workspace().join("new").exists());
}

/// An allowed command is still in the sandbox; a command that the sandbox would permit still needs
/// the permission.
#[tokio::test]
async fn the_permission_policy_stays_in_front_of_the_sandbox() {
    let lab = Lab::outside_of_tmp();
    let service = lab.service(running_agent());
    let policy = PermissionPolicy::default()
        .rule(PermissionRule::new(PermissionAction::Allow).command("touch *"))
        .rule(PermissionRule::new(PermissionAction::Deny).command("touch denied"));
    let session = open_with(&service, LiveRequest::new(lab.context()).policy(policy)).await;
    assert_eq!(answer(&session, "gated touch allowed").await, "g allow");
    assert_eq!(answer(&session, "gated touch denied").await, "g deny");
    assert_eq!(answer(&session, "gated touch ../outside").await, "g allow");
    let turn = session.prompt("gated mkdir answered").unwrap();
    let asks = |status: &LiveStatus| *status == LiveStatus::WaitingForPermission;
    within("the question", session.wait_for(asks))
        .await
        .unwrap();
    assert!(!lab.workspace().join("answered").exists());
    session.answer("g", Decision::Allow).unwrap();
    within("the turn", turn.ended()).await.unwrap();
    within("the close", session.close()).await.unwrap();
    let exists = |name: &str| lab.workspace().join(name).exists();
    assert!(exists("allowed") && exists("answered"));
    assert!(!exists("denied") && !lab.path("outside").exists());
    let entry = service.history().load().unwrap().entries.remove(0);
    assert_eq!(
        (entry.permissions.len(), entry.sandbox.is_some()),
        (4, true)
    );
}

/// A prompt `tools` starts four tools: plain, in a session of its own, without environment, and
/// without parent.
fn agent_with_tools(lab: &Lab) -> Scripted {
    let sleeper = lab.workspace().join("sleeper");
    symlink("/bin/sleep", &sleeper).unwrap();
    let sleeper = sleeper.display();
    let tools = format!(
        "tools) busy=1
                    {sleeper} 61 &
                    setsid {sleeper} 62 &
                    env -i /usr/bin/setsid {sleeper} 63 &
                    (env -i /usr/bin/setsid {sleeper} 64 &)
                    echo 'say tools' ;;
                say) echo"
    );
    sandboxed(&AGENT.replace("say) echo", &tools))
}

/// The tools that run, with the argument of each.
fn tools(lab: &Lab) -> Vec<(String, u32)> {
    let lines = lab.commands().into_iter().filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let is_tool = words.first()?.ends_with(b"/sleeper");
        is_tool.then(|| (String::from_utf8_lossy(words[1]).into_owned(), pid))
    });
    let mut tools: Vec<_> = lines.collect();
    tools.sort();
    tools
}

async fn start_tools(lab: &Lab, session: &LiveSession) -> exec_core::Turn {
    let turn = session.prompt("tools").unwrap();
    let all = ["61", "62", "63", "64"];
    until("the tools", || {
        let running = tools(lab);
        running.iter().map(|(name, _)| name.as_str()).eq(all)
    })
    .await;
    turn
}

#[tokio::test]
async fn no_tool_is_left_after_a_stop_or_a_close() {
    for is_close in [false, true] {
        let lab = Lab::new();
        let session = open(&lab, &lab.service(agent_with_tools(&lab))).await;
        let turn = start_tools(&lab, &session).await;
        if is_close {
            within("the close", session.close()).await.unwrap();
        } else {
            let report = stop(&session).await;
            assert_eq!(report.exit.stopped_by, Some(StoppedBy::Caller));
        }
        assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Interrupted);
    }
}

#[tokio::test]
async fn no_tool_is_left_after_the_child_was_killed_and_the_session_resumes() {
    for with_host in [false, true] {
        let lab = Lab::new();
        let builder = lab.builder(agent_with_tools(&lab));
        let builder = match with_host {
            true => builder.end_with_host(),
            false => builder,
        };
        let session = open(&lab, &builder.open().unwrap()).await;
        let turn = start_tools(&lab, &session).await;
        kill(session.execution().process_id());
        let report = within("the turn", turn.ended()).await.unwrap();
        assert_eq!(report.outcome, TurnOutcome::Uncertain);
        let exit = within("the end", session.execution().wait()).await.unwrap();
        assert_eq!((exit.signal, exit.stopped_by), (Some(9), None));
        assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));

        let resumed = within("the resume", session.resume()).await.unwrap();
        assert_eq!(resumed.execution().kind(), ExecutionKind::FollowUp);
        assert_eq!(resumed.session_id(), session.session_id());
        assert_eq!(answer(&resumed, "say again").await, "again");
        assert!(lab.written("read").contains("open native-1\n"));
        within("the close", resumed.close()).await.unwrap();
        assert_eq!(lab.commands(), [0; 0]);
    }
}

#[tokio::test]
async fn an_interrupt_names_tools_by_their_outside_ids_and_ends_them_on_request() {
    let lab = Lab::new();
    let session = open(&lab, &lab.service(agent_with_tools(&lab))).await;
    let turn = start_tools(&lab, &session).await;
    let mut running: Vec<u32> = tools(&lab).into_iter().map(|(_, pid)| pid).collect();
    running.sort_unstable();
    for pid in &running {
        assert_ne!(inner_id(*pid), *pid, "the namespace has ids of its own");
    }
    let report = within("the interrupt", session.interrupt(turn.id()))
        .await
        .unwrap();
    assert_eq!(report.turn().outcome, TurnOutcome::Interrupted);
    assert_eq!(report.process_ids(), running);
    assert!(running.iter().all(|pid| alive(*pid)), "only on request");
    within("the end", session.end_processes(&report))
        .await
        .unwrap();
    assert_eq!(tools(&lab), []);
    assert_eq!(answer(&session, "say b").await, "b", "the session is kept");
    within("the close", session.close()).await.unwrap();
    assert_eq!(lab.commands(), [0; 0]);
}

/// The start of a process is known by the clock tick, a hundredth of a second. A first turn can start
/// in the tick of the agent's own start.
#[tokio::test]
async fn an_interrupt_right_after_the_start_does_not_report_the_agent_itself() {
    let lab = Lab::new();
    let service = lab.service(agent());
    for _ in 0..10 {
        let session = open(&lab, &service).await;
        let turn = session.prompt("work").unwrap();
        let report = within("the interrupt", session.interrupt(turn.id()))
            .await
            .unwrap();
        assert_eq!(report.process_ids(), [0; 0]);
        within("the end", session.end_processes(&report))
            .await
            .unwrap();
        assert_eq!(answer(&session, "say b").await, "b");
        within("the close", session.close()).await.unwrap();
    }
}
