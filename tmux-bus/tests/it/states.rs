//! The state of agents: recorded output of the real programs, replayed in real panes.

use std::time::Duration;

use tmux_bus::{AgentState, Error, EvidenceSource};

use crate::recorded_agent::RecordedAgents;
use crate::support::{LONG, tmux};

fn dialog(id: &str) -> AgentState {
    AgentState::Dialog { id: id.to_owned() }
}

/// Replays moments and waits for the state of each.
async fn check(agent: &str, moments: &[(&str, AgentState)]) {
    let agents = RecordedAgents::new(&[(agent, "start/ready")]);
    let team = agents.builder().start().await.unwrap();
    for (moment, state) in moments {
        agents.show(agent, moment);
        let reached = team.wait_for(agent, state.clone(), LONG).await;
        if let Err(error) = reached {
            let explanation = team.explain(agent).await.unwrap();
            panic!("{agent} {moment}: {error}\n{explanation}");
        }
        let status = team.status().await.unwrap();
        let found = &status.agents[0];
        assert_eq!(found.definition, agent);
        assert_eq!(&found.state, state, "{agent} {moment}: {}", found.evidence);
    }
    assert_eq!(agents.typed(agent).matches("OK").count(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_claude_are_recognised() {
    use AgentState::{Idle, WaitingForApproval, Working};
    let moments = [
        ("working/working_text2", Working),
        ("working/finished", Idle),
        ("approval/open", WaitingForApproval),
        ("approval/denied", Idle),
        ("dialog_trust/trust", dialog("trust")),
        ("start/ready", Idle),
        ("dialog_first/theme", dialog("theme")),
        ("dialog_first/login", dialog("login")),
        ("short/done", Idle),
        ("dialog_key/api_key", dialog("api-key")),
    ];
    check("claude", &moments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_codex_are_recognised() {
    use AgentState::{Idle, WaitingForApproval, Working};
    let moments = [
        ("working/working_text", Working),
        ("working/finished", Idle),
        ("approval/open", WaitingForApproval),
        ("approval/denied", Idle),
        ("dialog_trust/trust", dialog("trust")),
        ("start/ready", Idle),
        ("dialog_login/login", dialog("login")),
        ("short/done", Idle),
    ];
    check("codex", &moments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_gemini_are_recognised() {
    use AgentState::{Idle, WaitingForApproval, Working};
    let moments = [
        ("working/working_first", Working),
        ("working/finished", Idle),
        ("approval/open", WaitingForApproval),
        ("approval/denied", Idle),
        ("dialog_trust/trust", dialog("trust")),
        ("start/ready", Idle),
        ("dialog_auth/auth", dialog("auth")),
        ("short/done", Idle),
    ];
    check("gemini", &moments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_states_of_opencode_are_recognised() {
    use AgentState::{Idle, WaitingForApproval, Working};
    let moments = [
        ("working/working_text", Working),
        ("working/finished", Idle),
        ("approval/open", WaitingForApproval),
        ("approval/denied", Idle),
    ];
    check("opencode", &moments).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dialog_at_the_start_is_named_and_never_answered() {
    let agents = RecordedAgents::new(&[("claude", "dialog_trust/trust")]);
    let started = agents.builder().startup_question("are you ready?").start();
    let error = started.await.unwrap_err();
    let team = agents.builder().attach().await.unwrap();
    let Error::NotReady { agent, advice, .. } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(agent, "claude");
    let attach = format!("tmux -S {} attach -t team", team.socket().display());
    assert!(advice.contains("whether you trust this folder"), "{advice}");
    assert!(
        advice.contains(&attach) && error.to_string().contains(advice),
        "{error}"
    );
    assert!(
        error
            .partial()
            .unwrap()
            .contains("Yes, I trust this folder")
    );
    assert!(!agents.typed("claude").contains("ready?"));
    // The cluster waits for the person.
    agents.show("claude", "start/ready");
    let ready = team.wait_for("claude", AgentState::Idle, LONG).await;
    ready.unwrap();
    assert!(!agents.typed("claude").contains("ready?"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_can_wait_for_the_person() {
    let agents = RecordedAgents::new(&[("claude", "dialog_first/theme")]);
    let starting = agents.builder().wait_for_dialogs(LONG).start();
    let starting = tokio::spawn(starting);
    agents.until_shown("Choose the text style");
    agents.show("claude", "dialog_first/login");
    agents.until_shown("Select login method");
    assert!(!starting.is_finished());
    agents.show("claude", "start/ready");
    let team = starting.await.unwrap().unwrap();
    assert_eq!(
        team.status().await.unwrap().agents[0].state,
        AgentState::Idle
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_and_the_rules_are_explained() {
    let agents = RecordedAgents::new(&[("claude", "draft/draft")]);
    let team = agents.builder().start().await.unwrap();
    let explanation = team.explain("claude").await.unwrap();
    assert_eq!(explanation.state, AgentState::Idle);
    assert_eq!(explanation.evidence.rule, "input:draft");
    assert_eq!(explanation.evidence.source, EvidenceSource::Screen);
    assert_eq!(explanation.title, "✳ Claude Code");
    let rules: Vec<_> = explanation
        .tried
        .iter()
        .map(|tried| tried.rule.as_str())
        .collect();
    assert!(
        rules.starts_with(&["approval:permission", "dialog:trust"]),
        "{rules:?}"
    );
    let matched: Vec<_> = explanation
        .tried
        .iter()
        .filter(|tried| tried.matched)
        .collect();
    assert_eq!(matched.len(), 1);
    assert_eq!(matched[0].rule, "input");
    assert!(explanation.to_string().contains("Claude Code v2.1.325"));

    agents.show("claude", "approval/open");
    let approval = AgentState::WaitingForApproval;
    team.wait_for("claude", approval, LONG).await.unwrap();
    let explanation = team.explain("claude").await.unwrap();
    assert!(explanation.advice.unwrap().contains("it asks for approval"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_for_a_state_ends_with_the_timeout_or_the_program() {
    let agents = RecordedAgents::new(&[("codex", "start/ready")]);
    let team = agents.builder().start().await.unwrap();
    let wait = |state, timeout| team.wait_for("codex", state, timeout);
    let error = wait(AgentState::Working, Duration::from_millis(50))
        .await
        .unwrap_err();
    assert!(error.is_timeout(), "{error:?}");
    assert!(
        error
            .to_string()
            .contains("was not working within 50ms: it is idle"),
        "{error}"
    );
    assert!(error.partial().unwrap().contains("OpenAI Codex"));

    let waiting = tokio::spawn({
        let team = team.clone();
        async move { team.wait_for("codex", AgentState::Working, LONG).await }
    });
    let gone = tokio::spawn({
        let team = team.clone();
        async move { team.wait_for("codex", AgentState::Exited, LONG).await }
    });
    let pid = tmux(team.socket(), &["display-message", "-p", "#{pane_pid}"]);
    let killed = std::process::Command::new("kill")
        .args(["-KILL", pid.trim()])
        .status();
    assert!(killed.unwrap().success());
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, Error::PaneDied { .. }), "{error:?}");
    gone.await.unwrap().unwrap();
    let status = team.status().await.unwrap();
    assert_eq!(status.agents[0].state, AgentState::Exited);
    assert_eq!(status.agents[0].evidence.source, EvidenceSource::Process);
}

/// Codex and Gemini show their input line before they know that they need a dialog.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_input_line_that_a_dialog_follows_is_not_ready() {
    for (agent, text) in [("codex", "Ask Codex"), ("gemini", "Type your message")] {
        let agents = RecordedAgents::new(&[(agent, "dialog_trust/splash")]);
        let starting = tokio::spawn(agents.builder().startup_question("ready?").start());
        agents.until_shown(text);
        let team = agents.builder().attach().await.unwrap();
        let explanation = team.explain(agent).await.unwrap();
        assert_eq!(explanation.evidence.rule, "starting:splash");
        assert!(!starting.is_finished());
        agents.show(agent, "dialog_trust/trust");
        let error = starting.await.unwrap().unwrap_err();
        assert!(error.to_string().contains("trust this folder"), "{error}");
        assert!(!agents.typed(agent).contains("ready?"));
    }
}
