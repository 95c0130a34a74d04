//! Sessions whose process is killed: every committed turn is stored exactly once.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use agent_snapshot::FileStorage;
use agent_snapshot::conversation::{
    JsonLinesEngine, Message, Role, SessionId, SessionManager, StateManager, ToolCallRequest,
    ToolCallResult,
};
use serde_json::json;

use crate::conversation_rules::acceptable;
use crate::kill_on_drop::{KillOnDrop, test_program};

async fn open(folder: &Path) -> (SessionManager, JsonLinesEngine) {
    let engine = JsonLinesEngine::new(folder.join("memory.jsonl"));
    let storage = FileStorage::open(folder.join("snapshots")).await.unwrap();
    let state = StateManager::new(800).answer_tokens(100);
    let sessions = SessionManager::new(Arc::new(storage), state).memory(engine.clone());
    (sessions, engine)
}

/// The program of the process that is killed, not a test. It takes turn after turn, prints the
/// number of each committed turn, and resets the session from time to time.
#[tokio::test]
#[ignore = "started by committed_turns_survive_sigkill"]
async fn child() {
    let Ok(folder) = env::var("CONVERSATION_CRASH_FOLDER") else {
        return;
    };
    let number = |name: &str| env::var(name).unwrap();
    let (sessions, _) = open(Path::new(&folder)).await;
    let id = SessionId::new(number("CONVERSATION_CRASH_SESSION")).unwrap();
    let mut session = sessions.get(&id).await.unwrap();
    session.abort_open_calls();
    let first: usize = number("CONVERSATION_CRASH_FIRST").parse().unwrap();
    for n in first.. {
        session.append(Message::user(format!("turn {n}"))).unwrap();
        let call = ToolCallRequest::new(format!("c{n}"), "step", json!({"n": n}));
        let asked = Message::assistant("").with_tool_calls(vec![call]);
        session.append(asked).unwrap();
        session.commit().await.unwrap();
        let result = ToolCallResult::new(format!("c{n}"), json!("done"));
        session.append(Message::tool(vec![result])).unwrap();
        session.append(Message::assistant("answer")).unwrap();
        session.commit().await.unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "\ncommitted {n}").unwrap();
        out.flush().unwrap();
        if n % 7 == 6 {
            session = sessions.reset(&id).await.unwrap();
        }
    }
}

/// Runs the child until it has committed `turns` turns, kills it, and returns their numbers.
fn run_and_kill(folder: &Path, session: &str, first: usize, turns: usize) -> Vec<usize> {
    let mut command = test_program("conversation_crash::child");
    command
        .env("CONVERSATION_CRASH_FOLDER", folder)
        .env("CONVERSATION_CRASH_SESSION", session)
        .env("CONVERSATION_CRASH_FIRST", first.to_string())
        .stdout(Stdio::piped());
    let mut child = KillOnDrop::spawn(&mut command).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut committed = Vec::new();
    while committed.len() < turns {
        let line = lines.next().expect("the child exited").unwrap();
        committed.extend(
            line.strip_prefix("committed ")
                .map(|n| n.parse::<usize>().unwrap()),
        );
    }
    drop(child);
    // The pipe may still hold numbers that it printed before it died.
    for line in lines.map_while(Result::ok) {
        let number = line.strip_prefix("committed ");
        committed.extend(number.and_then(|n| n.parse::<usize>().ok()));
    }
    committed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn committed_turns_survive_sigkill() {
    let rounds = env::var("CONVERSATION_CRASHES").map_or(20, |n| n.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (sessions, _) = open(folder.path()).await;
    let id = sessions
        .create("alice", Some("prompt"))
        .await
        .unwrap()
        .id()
        .clone();
    drop(sessions);
    let mut committed = Vec::new();
    for round in 0..rounds {
        let turns = 1 + (round * 5) % 11;
        committed.extend(run_and_kill(
            folder.path(),
            id.as_str(),
            round * 1_000,
            turns,
        ));
        let (sessions, engine) = open(folder.path()).await;
        let mut session = sessions.get(&id).await.unwrap();
        session.abort_open_calls();
        let view: Vec<Message> = session.messages().cloned().collect();
        // Killed right after a reset, the session has its system message alone: no request yet.
        if view.iter().any(|message| message.role != Role::System) {
            acceptable(&view).unwrap();
        }
        if round + 1 < rounds {
            continue;
        }
        sessions.destroy(&id).await.unwrap();
        assert!(sessions.offload_pending().await.unwrap().is_empty());
        let mut found: HashMap<String, usize> = HashMap::new();
        for offload in engine.offloads().unwrap() {
            for message in offload.messages.iter().filter(|m| m.role == Role::User) {
                *found.entry(message.content.clone().unwrap()).or_default() += 1;
            }
        }
        assert!(found.values().all(|times| *times == 1));
        for n in &committed {
            assert!(found.contains_key(&format!("turn {n}")), "turn {n} is lost");
        }
    }
}
