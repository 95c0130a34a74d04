//! What the board shows of stores, storages and state folders of other programs.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentState, MemoryStorage};
use async_trait::async_trait;
use examples::board::sources::{ClaimsSource, HistorySource, SnapshotSource};
use examples::board::{Action, ActionError, AgentChange, Feed, Source};
use examples::scripted_agent;
use exec_core::{CommandConfig, ExecutionContext, ExecutionService, NewChatRequest};
use exec_profiles::ProfileRegistry;
use serde_json::{Value, json};
use timed_store::{LockPolicy, SessionId, TimedStorage};

use crate::board::Board;
use crate::client::Client;

#[tokio::test(flavor = "multi_thread")]
async fn claims_come_and_go_with_their_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ports.json");
    let session = |name: &str| {
        let store = TimedStorage::<Value>::builder(&file);
        let store = store.session(SessionId::new(name).unwrap());
        store.ttl(Duration::from_secs(900)).open().unwrap()
    };
    let source = ClaimsSource::new("ports", session("board"));
    let board = Board::of(Arc::new(source)).await;
    let mut client = Client::open(&board).await;
    let worker = session("worker");
    let lease = worker
        .claim(json!("4000\u{202e}"))
        .await
        .unwrap()
        .granted()
        .unwrap();
    let some = |event: &Value| {
        event["claims"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    };
    let event = client.event_when(some).await;
    let claim = &event["claims"][0];
    assert_eq!(claim["session"], "worker");
    assert_eq!(claim["value"], "4000‹U+202E›");
    assert_eq!(claim["token"], lease.token());
    let left = claim["expires"].as_u64().unwrap() - client.hello["now"].as_u64().unwrap();
    assert!((800_000..=1_000_000).contains(&left), "{left} ms");
    worker.remove().await.unwrap();
    let none = |event: &Value| event["claims"].as_array().is_some_and(Vec::is_empty);
    client.event_when(none).await;
}

/// Fails at first, as a source whose server is away.
struct Shaky(AtomicBool);

#[async_trait]
impl Source for Shaky {
    fn name(&self) -> String {
        "shaky".to_owned()
    }

    async fn follow(&self, feed: Feed) -> examples::Result<()> {
        if !self.0.swap(true, Ordering::Relaxed) {
            return Err("the server is away".into());
        }
        feed.push(AgentChange::new("back"));
        std::future::pending().await
    }

    async fn perform(&self, _: Action) -> Result<(), ActionError> {
        Err(ActionError::new("not_able", "nothing"))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_that_fails_is_reported_and_followed_again() {
    let board = Board::of(Arc::new(Shaky(AtomicBool::new(false)))).await;
    let mut client = Client::open(&board).await;
    client.agent("back").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_are_shown_while_other_programs_write_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ports.json");
    let writer = TimedStorage::<Value>::builder(&file)
        .session(SessionId::new("writer").unwrap())
        .lock(LockPolicy::Wait(Duration::from_secs(60)))
        .open()
        .unwrap();
    writer.store(&json!(0)).await.unwrap();
    let source = ClaimsSource::of_file("ports", &file).unwrap();
    let board = Board::of(Arc::new(source)).await;
    let mut client = Client::open(&board).await;
    let last = 300;
    let shown = json!(last.to_string());
    for number in 1..=last {
        writer.store(&json!(number)).await.unwrap();
    }
    client
        .event_when(|event| {
            assert_ne!(event["type"], "failure", "{event}");
            event["claims"][0]["value"] == shown
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storage_with_a_thousand_agents_is_followed() {
    let storage = Arc::new(MemoryStorage::new());
    let id = |number: usize| AgentId::new(format!("agent-{number:04}")).unwrap();
    for number in 0..1_000 {
        AgentState::hydrate(storage.clone(), id(number))
            .await
            .unwrap();
    }
    let board = Board::of(Arc::new(SnapshotSource::new("memory", storage.clone()))).await;
    let mut client = Client::open(&board).await;
    let (mut agent, _) = AgentState::hydrate(storage, id(500)).await.unwrap();
    for _ in 0..2 {
        agent.begin_tick().unwrap().commit().await.unwrap();
        let tick = agent.tick_index();
        let is_it = |event: &Value| {
            event["snapshot"]["agent"] == "agent-0500" && event["snapshot"]["tick"] == tick
        };
        client.event_when(is_it).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_are_shown_tick_by_tick() {
    let storage = Arc::new(MemoryStorage::new());
    let board = Board::of(Arc::new(SnapshotSource::new("memory", storage.clone()))).await;
    let mut client = Client::open(&board).await;
    let id = AgentId::new("worker").unwrap();
    let (mut agent, _) = AgentState::hydrate(storage, id).await.unwrap();
    for n in 1..=3_u64 {
        let mut tick = agent.begin_tick().unwrap();
        tick.history().push(Message::user("hello"));
        tick.commit().await.unwrap();
        let wanted = agent.tick_index();
        let event = client
            .event_when(|event| event["snapshot"]["tick"] == wanted)
            .await;
        assert_eq!(event["snapshot"]["agent"], "worker");
        assert_eq!(event["snapshot"]["messages"], n);
        assert_eq!(event["snapshot"]["epoch"], 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_state_folder_shows_sessions_with_usage_and_classed_failures() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let mut profile = scripted_agent::profile(&folder.path().join("conversations")).unwrap();
    let CommandConfig { args, env, .. } = profile.command;
    profile.command = CommandConfig::new(env!("CARGO_BIN_EXE_board"), args);
    profile.command.env = env;
    let profiles = ProfileRegistry::new();
    profiles.register(profile).unwrap();
    let service = ExecutionService::builder(profiles)
        .state_dir(&state)
        .open()
        .unwrap();
    let board = Board::of(Arc::new(HistorySource::new(&state))).await;
    let mut client = Client::open(&board).await;
    let context = ExecutionContext::for_workspace(scripted_agent::LABEL, folder.path()).unwrap();
    for prompt in ["count [[say three]]", "break [[crash]]"] {
        let (context, prompt) = (context.clone(), prompt.to_owned());
        let done = service
            .run(NewChatRequest { context, prompt })
            .await
            .unwrap();
        let session = done.session_id.as_str();
        let ended =
            |event: &Value| event["agent"]["id"] == session && event["agent"]["state"] == "exited";
        let event = client.event_when(ended).await;
        assert_eq!(event["agent"]["kind"], scripted_agent::LABEL);
        assert_eq!(event["agent"]["can"], json!([]));
        match &done.failure {
            None => {
                let used = &event["agent"]["usage"];
                assert_eq!(used["input_tokens"], done.usage.run.input_tokens.unwrap());
            }
            Some(failure) => {
                let event = client.event_when(|event| event["type"] == "failure").await;
                assert_eq!(event["failure"]["class"], failure.kind.name());
                assert_eq!(event["failure"]["agent"], session);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_is_told_once_and_with_its_time() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("history.jsonl");
    let record = |number: u64| {
        let id = format!("6f9619ff-8b86-4d01-b42d-{number:012}");
        let at = 1_700_000_000_000 + number;
        let session = format!("A:p:session-{number}");
        let started = json!({
            "at": at, "execution_id": id, "event": "started", "session_id": session,
            "profile": "a", "kind": "new", "workspace": "/tmp", "process_id": 7,
        });
        let report = json!({
            "session_id": session, "code": 1, "signal": null, "stopped_by": null, "stderr_tail": [],
            "wall_time": {"secs": 2, "nanos": 0}, "cpu_time": {"secs": 0, "nanos": 0},
            "peak_memory_bytes": 1, "truncated_lines": 0, "leftover_processes": 0,
            "failure": {"class": "agent", "message": format!("failure {number}")},
        });
        let ended =
            json!({"at": at + 2_000, "execution_id": id, "event": "ended", "report": report});
        format!("{started}\n{ended}\n")
    };
    std::fs::write(&file, record(1)).unwrap();
    let board = Board::of(Arc::new(HistorySource::new(state.path()))).await;
    let mut client = Client::open(&board).await;
    client.agent("A:p:session-1").await;
    // Other users could write to the file: it is refused for a moment.
    let mode = |mode| std::fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
    mode(0o666);
    std::fs::write(&file, record(1) + &record(2)).unwrap();
    let refused = |event: &Value| event["failure"]["class"] == "source";
    client.event_when(refused).await;
    mode(0o600);
    client.agent("A:p:session-2").await;
    client
        .event_when(|event| event["failure"]["message"] == "failure 2")
        .await;
    let state = Client::open(&board).await.state;
    let failures = state["failures"].as_array().unwrap().iter();
    let failures = failures.filter(|failure| failure["class"] == "agent");
    let told: Vec<_> = failures
        .map(|failure| (&failure["message"], failure["at"].as_u64().unwrap()))
        .collect();
    let expected = ["failure 1", "failure 2"].map(Value::from);
    let times = [1_700_000_002_001, 1_700_000_002_002];
    assert_eq!(told, [(&expected[0], times[0]), (&expected[1], times[1])]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_sessions_of_a_state_folder_are_shown() {
    let state = tempfile::tempdir().unwrap();
    let file = state.path().join("history.jsonl");
    let session = |number: usize| format!("A:p:session-{number}");
    let record = |number: usize| {
        let id = format!("6f9619ff-8b86-4d01-b42d-{number:012}");
        let started = json!({
            "at": 1_700_000_000_000_u64 + u64::try_from(number).unwrap(), "execution_id": id,
            "event": "started", "session_id": session(number), "profile": "a", "kind": "new",
            "workspace": "/tmp", "process_id": 7,
        });
        format!("{started}\n")
    };
    let records = |numbers: std::ops::Range<usize>| numbers.map(record).collect::<String>();
    std::fs::write(&file, records(0..250)).unwrap();
    let board = Board::of(Arc::new(HistorySource::new(state.path()))).await;
    let mut client = Client::open(&board).await;
    client.agent(&session(249)).await;
    // More than the board has places for.
    for (newest, count) in [(350, 100), (360, 10)] {
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text + &records(newest - count..newest)).unwrap();
        client.agent(&session(newest - 1)).await;
    }
    let client = Client::open(&board).await;
    let shown = client.state["agents"].as_array().unwrap();
    assert_eq!(shown.len(), 100);
    let is_old = |agent: &&Value| agent["id"] == *session(259);
    assert_eq!(shown.iter().find(is_old), None);
}
