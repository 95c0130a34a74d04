//! The page over live sessions of a real process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use examples::board::Change;
use examples::board::sources::LiveSource;
use examples::scripted_agent;
use exec_core::{
    Budget, CommandConfig, ExecutionContext, ExecutionService, LiveRequest, LiveSession,
    PermissionAction, PermissionPolicy, PermissionRule,
};
use exec_profiles::ProfileRegistry;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::board::Board;
use crate::client::Client;
use crate::page::{ANSWER, open, stop, write};

/// The scripted agent as a profile; its program is the board's, not that of the test.
fn service(folder: &Path) -> ExecutionService {
    let mut profile = scripted_agent::profile(&folder.join("conversations")).unwrap();
    let CommandConfig { args, env, .. } = profile.command;
    profile.command = CommandConfig::new(env!("CARGO_BIN_EXE_board"), args);
    profile.command.env = env;
    let profiles = ProfileRegistry::new();
    profiles.register(profile).unwrap();
    ExecutionService::builder(profiles)
        .state_dir(folder.join("state"))
        .open()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_shown_against_the_budget_that_stops_the_session() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path());
    let _guard = service.shutdown_on_drop(Duration::from_secs(10));
    let context = ExecutionContext::for_workspace(scripted_agent::LABEL, folder.path()).unwrap();
    let limit = 0.002;
    let request = LiveRequest::new(context)
        .policy(PermissionPolicy::allow_all())
        .budget(Budget::for_session().cost_usd(limit));
    let session = service.open_live(request).await.unwrap();
    let source = LiveSource::new();
    source.add("writer", session, None);
    let board = Board::of(Arc::new(source)).await;
    board.feed.push(Change::Budget(examples::board::Budget {
        agent: Some("writer".to_owned()),
        cost_usd: Some(limit),
        tokens: None,
    }));
    let tab = open(&board).await;
    tab.click(".agent[data-agent=writer]").await;
    write(&tab, "short [[tool true]] [[say yes]]").await;
    tab.shows("#usage li", "of $0.002").await;
    assert_eq!(
        tab.eval("document.querySelectorAll('#usage .over').length")
            .await,
        0
    );
    let long = "long ".repeat(200);
    write(&tab, &format!("long [[tool true]] [[say {long}]]")).await;
    tab.shows("#failures .class", "budget").await;
    tab.shows(".agent[data-agent=writer]", "stopped by a budget")
        .await;
    tab.until("document.querySelectorAll('#usage .over').length === 1")
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_session_is_steered_from_the_page() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path());
    let _guard = service.shutdown_on_drop(Duration::from_secs(10));
    let context = ExecutionContext::for_workspace(scripted_agent::LABEL, folder.path()).unwrap();
    // What the agent always does is allowed by a rule; the rest is asked.
    let rule = PermissionRule::new(PermissionAction::Allow).command("true");
    let policy = PermissionPolicy::default().rule(rule);
    let request = LiveRequest::new(context).policy(policy);
    let session = service.open_live(request).await.unwrap();
    let source = LiveSource::new();
    source.add("writer", session.clone(), Some(Duration::from_secs(600)));
    let board = Board::of(Arc::new(source)).await;
    let tab = open(&board).await;
    tab.shows(".agent[data-agent=writer]", "session open").await;
    tab.click(".agent[data-agent=writer]").await;

    write(&tab, "hello [[tool true]] [[say good morning]]").await;
    tab.shows(ANSWER, "good morning").await;
    tab.shows("#settled .end", "by policy").await;
    tab.shows(".agent[data-agent=writer] .cost", "$").await;
    for (decision, word) in [("deny", "denied"), ("allow", "allowed")] {
        let prompt = format!("please [[tool touch {word}.txt]] [[say {word}, says the user]]");
        write(&tab, &prompt).await;
        tab.shows("#needs .ask pre", &format!("touch {word}.txt"))
            .await;
        tab.shows(".agent[data-agent=writer]", "needs you").await;
        tab.click(&format!("[data-answer={decision}]")).await;
        tab.shows(ANSWER, &format!("{word}, says the user")).await;
        tab.shows("#settled .class", word).await;
        tab.shows("#settled .end", "by page").await;
    }
    assert!(folder.path().join("allowed.txt").exists());
    assert!(!folder.path().join("denied.txt").exists());

    write(&tab, "[[slow 600]]").await;
    tab.shows(".agent[data-agent=writer]", "working").await;
    write(&tab, "later").await;
    tab.shows("#queue .sub", "later").await;
    tab.click("#queue .take-back").await;
    tab.until("document.querySelectorAll('#queue li').length === 0")
        .await;
    tab.click("[data-act=interrupt]").await;
    tab.shows(".msg .body", "interrupted").await;
    tab.click("#tab-output").await;
    tab.shows("#output .tool", "touch allowed.txt").await;
    tab.click("#tab-messages").await;

    // Killed in a turn with an open question: the request is void, and the session comes back.
    write(&tab, "[[tool reboot]]").await;
    tab.shows("#needs .ask pre", "reboot").await;
    let pid = i32::try_from(session.execution().process_id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    tab.shows(".agent[data-agent=writer]", "exited").await;
    tab.until("document.querySelectorAll('#needs .ask').length === 0")
        .await;
    tab.shows("#failures .class", "exited").await;
    tab.click("[data-act=restart]").await;
    tab.shows(".agent[data-agent=writer]", "session open").await;
    write(&tab, "again [[tool true]] [[say still here]]").await;
    tab.shows(ANSWER, "still here").await;
    assert_eq!(
        tab.eval("board.messages.some((m) => m.text === 'later')")
            .await,
        false
    );
    // Each process counts its requests from one: this one has the number of a settled request.
    write(&tab, "more [[tool touch again.txt]] [[say done again]]").await;
    tab.shows("#needs .ask pre", "touch again.txt").await;
    tab.click("[data-answer=allow]").await;
    tab.shows(ANSWER, "done again").await;
    assert!(folder.path().join("again.txt").exists());
    // What was asked and never answered was not done.
    stop(&tab).await;
    tab.shows(".agent[data-agent=writer]", "exited").await;
}

/// A live session of the scripted agent, which may do anything.
async fn session(service: &ExecutionService, folder: &Path) -> LiveSession {
    let context = ExecutionContext::for_workspace(scripted_agent::LABEL, folder).unwrap();
    let request = LiveRequest::new(context).policy(PermissionPolicy::allow_all());
    service.open_live(request).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_answer_to_the_program_itself_is_shown_as_the_program_gets_it() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path());
    let _guard = service.shutdown_on_drop(Duration::from_secs(10));
    let session = session(&service, folder.path()).await;
    let source = LiveSource::new();
    source.add("writer", session.clone(), None);
    let board = Board::of(Arc::new(source)).await;
    let mut client = Client::open(&board).await;
    // The agent also says something before it uses its tool.
    let turn = session.prompt("[[tool true]] [[say good morning]]");
    let is_answer = |event: &Value| event["message"]["kind"] == "result";
    let shown = client.event_when(is_answer).await;
    let report = turn.unwrap().ended().await.unwrap();
    assert_eq!(report.text, "good morning");
    assert_eq!(shown["message"]["text"], "good morning");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_waited_for_a_replaced_session_is_not_lost_in_silence() {
    let folder = tempfile::tempdir().unwrap();
    let service = service(folder.path());
    let _guard = service.shutdown_on_drop(Duration::from_secs(10));
    let first = session(&service, folder.path()).await;
    let source = LiveSource::new();
    source.add("writer", first.clone(), None);
    let board = Board::of(Arc::new(source.clone())).await;
    let mut client = Client::open(&board).await;
    client.agent("writer").await;
    for text in ["[[slow 600]]", "later"] {
        client
            .ok(json!({"type": "send", "agent": "writer", "text": text}))
            .await;
    }
    let waits = |event: &Value| event["item"]["text"] == "later";
    client.event_when(waits).await;
    first.execution().stop().await.unwrap();
    source.add("writer", session(&service, folder.path()).await, None);
    let is_told = |event: &Value| event["failure"]["class"] == "not_sent";
    let told = client.event_when(is_told).await;
    let message = "a message was not delivered: the session has ended\nlater";
    assert_eq!(told["failure"]["message"], message);
}
