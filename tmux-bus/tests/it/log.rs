//! The log of messages.

use std::{
    fs,
    io::Write,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;
use tmux_bus::{LogFilter, Message, MessageLog, MessageLogger, MessageType};

use crate::support::LONG;

fn message(from: &str, to: &str, content: &str) -> Message {
    Message::new(from, to, content)
}

#[test]
fn entries_have_the_specifications_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs/messages.jsonl");
    let logger = MessageLogger::new(&path).unwrap();
    let id = logger
        .log(
            &message("grand_boss", "middle_manager", "タスク分解して"),
            MessageType::Task,
        )
        .unwrap();
    let reply = logger
        .log_reply(
            &message("middle_manager", "grand_boss", "OK\nyes"),
            MessageType::Result,
            &id,
        )
        .unwrap();
    assert_ne!(id, reply);
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<serde_json::Map<String, Value>> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let mut keys: Vec<_> = lines[0].keys().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["content", "from", "id", "timestamp", "to", "type"]);
    assert_eq!(lines[0]["id"], id);
    assert_eq!(
        (&lines[0]["from"], &lines[0]["to"], &lines[0]["type"]),
        (
            &"grand_boss".into(),
            &"middle_manager".into(),
            &"task".into()
        )
    );
    let stamp = lines[0]["timestamp"].as_str().unwrap();
    assert!(
        stamp.ends_with('Z') && stamp.len() > 20 && &stamp[10..11] == "T",
        "ISO 8601 with zone: {stamp}"
    );
    assert_eq!(lines[1]["reply_to"], id);
    assert_eq!(lines[1]["content"], "OK\nyes");
}

/// Lines that the specification shows, that other programs wrote, and that were cut off.
const GOLDEN: &str = concat!(
    r#"{"timestamp":"2026-02-01T10:30:00.123456","id":"msg-001","from":"grand_boss","to":"middle_manager","type":"task","content":"タスク分解して"}"#,
    "\n",
    r#"{"timestamp":"2026-02-01T10:30:15+09:00","id":"msg-002","from_agent":"middle_manager","to_agent":"coding","type":"praise","content":"x","extra":1}"#,
    "\n",
    "\n",
    "not json\n",
    r#"{"timestamp":"2026-02-01T10:31:00Z","id":"msg-003","from":"coding","to":"middle_manager","type":"result","content":"CODING OK\n実装完了しました。","reply_to":"msg-002"}"#,
    "\n",
    r#"{"timestamp":"2026-02-01T10:31:00Z","id":"msg-0"#
);

#[test]
fn the_reader_takes_what_others_wrote_and_reports_what_is_torn() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    fs::write(&path, GOLDEN).unwrap();
    let log = MessageLog::read(&path, &LogFilter::default()).unwrap();
    let ids: Vec<_> = log.entries.iter().map(|e| e.id.as_str()).collect();
    assert_eq!(ids, ["msg-001", "msg-002", "msg-003"]);
    assert_eq!(log.entries[1].from_agent, "middle_manager");
    assert_eq!(
        log.entries[1].message_type,
        MessageType::Other("praise".into())
    );
    assert_eq!(
        log.skipped.iter().map(|s| s.line).collect::<Vec<_>>(),
        [4, 6]
    );
    let count = |filter: LogFilter| MessageLog::read(&path, &filter).unwrap().entries.len();
    assert_eq!(count(LogFilter::default().from("coding")), 1);
    assert_eq!(count(LogFilter::default().to("middle_manager")), 2);
    assert_eq!(
        count(
            LogFilter::default()
                .to("middle_manager")
                .message_type(MessageType::Task)
        ),
        1
    );
    assert_eq!(count(LogFilter::default().reply_to("msg-002")), 1);
    assert!(MessageLog::read(dir.path().join("none"), &LogFilter::default()).is_err());
    // The next entry is not swallowed by the torn line.
    MessageLogger::new(&path)
        .unwrap()
        .log(&message("a", "b", "c"), MessageType::Info)
        .unwrap();
    assert_eq!(count(LogFilter::default().from("a")), 1);
}

#[tokio::test]
async fn a_follower_gets_what_is_there_and_what_comes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs/messages.jsonl");
    let mut follower = MessageLog::follow(&path, LogFilter::default().to("b"));
    assert!(
        tokio::time::timeout(Duration::from_millis(150), follower.next())
            .await
            .is_err(),
        "no file yet"
    );
    let logger = MessageLogger::new(&path).unwrap();
    let first = logger
        .log(&message("a", "b", "1"), MessageType::Task)
        .unwrap();
    logger
        .log(&message("a", "c", "2"), MessageType::Task)
        .unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, follower.next())
            .await
            .unwrap()
            .unwrap()
            .id,
        first
    );
    // Half a line waits for its other half.
    let line = r#"{"timestamp":"t","id":"x","from":"a","to":"b","type":"info","content":"3"}"#;
    let mut file = fs::File::options().append(true).open(&path).unwrap();
    file.write_all(&line.as_bytes()[..20]).unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(250), follower.next())
            .await
            .is_err()
    );
    file.write_all(format!("{}\n", &line[20..]).as_bytes())
        .unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, follower.next())
            .await
            .unwrap()
            .unwrap()
            .id,
        "x"
    );
    // A log that was started anew.
    fs::remove_file(&path).unwrap();
    let second = logger
        .log(&message("a", "b", "4"), MessageType::Task)
        .unwrap();
    assert_eq!(
        tokio::time::timeout(LONG, follower.next())
            .await
            .unwrap()
            .unwrap()
            .id,
        second
    );
}

#[test]
#[ignore = "runs in a process of its own only"]
fn writer() {
    let Ok(path) = std::env::var("LOG_PATH") else {
        return;
    };
    let logger = MessageLogger::new(path).unwrap();
    let name = std::env::var("LOG_NAME").unwrap();
    for i in 0..100 {
        let content = format!("{i} {}", name.repeat(3_000));
        logger
            .log(&message(&name, "all", &content), MessageType::Info)
            .unwrap();
    }
}

#[test]
fn processes_that_append_at_once_never_mix_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let writers: Vec<_> = ["a", "b", "c", "d"]
        .into_iter()
        .map(|name| {
            Command::new(std::env::current_exe().unwrap())
                .args(["--quiet", "--exact", "--ignored", "log::writer"])
                .env("LOG_PATH", &path)
                .env("LOG_NAME", name)
                .stdout(Stdio::null())
                .spawn()
                .unwrap()
        })
        .collect();
    for mut writer in writers {
        assert!(writer.wait().unwrap().success());
    }
    let log = MessageLog::read(&path, &LogFilter::default()).unwrap();
    assert!(log.skipped.is_empty(), "{:?}", log.skipped);
    assert_eq!(log.entries.len(), 400);
    for name in ["a", "b", "c", "d"] {
        let own: Vec<_> = log
            .entries
            .iter()
            .filter(|e| e.from_agent == name)
            .collect();
        for (i, entry) in own.iter().enumerate() {
            assert_eq!(entry.content, format!("{i} {}", name.repeat(3_000)));
        }
        assert_eq!(own.len(), 100);
    }
}

/// Keeps the messages of events.
#[derive(Clone, Default)]
struct Console(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::field::Visit for Console {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0.lock().unwrap().push(format!("{value:?}"));
        }
    }
}

impl tracing::Subscriber for Console {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "tmux_bus::messages"
    }

    fn new_span(&self, _span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _span: &tracing::span::Id, _values: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _span: &tracing::span::Id, _follows: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _span: &tracing::span::Id) {}

    fn exit(&self, _span: &tracing::span::Id) {}
}

#[test]
fn the_console_line_of_the_specification_is_an_event() {
    let dir = tempfile::tempdir().unwrap();
    let logger = MessageLogger::new(dir.path().join("log")).unwrap();
    let console = Console::default();
    tracing::subscriber::with_default(console.clone(), || {
        logger
            .log(
                &message("grand_boss", "middle_manager", "タスク分解して"),
                MessageType::Task,
            )
            .unwrap();
    });
    let lines = console.0.lock().unwrap();
    let [line] = lines.as_slice() else {
        panic!("{lines:?}")
    };
    assert!(line.starts_with("[20"), "{line}");
    assert!(
        line.ends_with("] grand_boss → middle_manager (task): タスク分解して"),
        "{line}"
    );
}
