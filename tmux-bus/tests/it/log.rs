//! The log of messages.

use std::fmt;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tmux_bus::{Error, LogFilter, LogFollower, Message, MessageLog, MessageLogger, MessageType};

use crate::support::LONG;
use crate::worker::Worker;

fn message(from: &str, to: &str, content: &str) -> Message {
    Message::new(from, to, content)
}

#[test]
fn entries_have_the_specifications_keys() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs/messages.jsonl");
    let logger = MessageLogger::open(&path).unwrap();
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

/// Lines of the specification, lines of other programs, a damaged line and a torn one.
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
fn lines_of_other_programs_are_read_and_torn_lines_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    fs::write(&path, GOLDEN).unwrap();
    let log = MessageLog::load(&path, &LogFilter::default()).unwrap();
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
    let count = |filter: LogFilter| MessageLog::load(&path, &filter).unwrap().entries.len();
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
    assert!(MessageLog::load(dir.path().join("none"), &LogFilter::default()).is_err());
    // The torn line does not swallow the next entry.
    MessageLogger::open(&path)
        .unwrap()
        .log(&message("a", "b", "c"), MessageType::Info)
        .unwrap();
    assert_eq!(count(LogFilter::default().from("a")), 1);
}

async fn next_id(follower: &mut LogFollower) -> String {
    let next = tokio::time::timeout(LONG, follower.next()).await;
    next.expect("an entry").unwrap().id
}

#[track_caller]
fn append(path: &std::path::Path, text: &str) {
    let mut file = fs::File::options().append(true).open(path).unwrap();
    file.write_all(text.as_bytes()).unwrap();
}

async fn is_waiting(follower: &mut LogFollower) -> bool {
    let wait = Duration::from_millis(150);
    tokio::time::timeout(wait, follower.next()).await.is_err()
}

#[tokio::test]
async fn a_follower_gets_present_and_future_entries() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("logs/messages.jsonl");
    let mut follower = MessageLog::follow(&path, LogFilter::default().to("b"));
    assert!(is_waiting(&mut follower).await, "no file yet");
    let logger = MessageLogger::open(&path).unwrap();
    let log = |to: &str, text: &str| {
        let message = message("a", to, text);
        logger.log(&message, MessageType::Task).unwrap()
    };
    let first = log("b", "1");
    log("c", "2");
    assert_eq!(next_id(&mut follower).await, first);
    // Half a line waits for its other half.
    let line = r#"{"timestamp":"t","id":"x","from":"a","to":"b","type":"info","content":"3"}"#;
    append(&path, &line[..20]);
    assert!(is_waiting(&mut follower).await);
    append(&path, &format!("{}\n", &line[20..]));
    assert_eq!(next_id(&mut follower).await, "x");
    // A log that was replaced by a longer one.
    let old = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(
        &path,
        old.replace("\"x\"", "\"y\"") + &line.replace('3', "4") + "\n",
    )
    .unwrap();
    assert_eq!(next_id(&mut follower).await, first);
    assert_eq!(next_id(&mut follower).await, "y");
    assert_eq!(next_id(&mut follower).await, "x");
}

/// The next writer cuts a torn line off; the follower has read it already.
#[tokio::test]
async fn a_follower_survives_the_repair_of_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let logger = MessageLogger::open(&path).unwrap();
    let log = |text: &str| {
        let message = message("a", "b", text);
        logger.log(&message, MessageType::Task).unwrap()
    };
    let mut follower = MessageLog::follow(&path, LogFilter::default());
    let first = log("1");
    assert_eq!(next_id(&mut follower).await, first);
    append(&path, r#"{"timestamp":"torn"#);
    assert!(is_waiting(&mut follower).await);
    let second = log("2");
    assert_eq!(next_id(&mut follower).await, second);
}

#[test]
fn a_log_that_others_can_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let logger = MessageLogger::open(&path).unwrap();
    let message = message("a", "b", "c");
    logger.log(&message, MessageType::Info).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    for error in [
        logger.log(&message, MessageType::Info).unwrap_err(),
        MessageLog::load(&path, &LogFilter::default()).unwrap_err(),
    ] {
        assert!(matches!(error, Error::NotPrivate { .. }), "{error:?}");
        assert!(error.to_string().starts_with("refusing /"), "{error}");
    }
}

/// A part of [`Worker`].
pub fn write_entries(path: &str, name: &str) {
    let logger = MessageLogger::open(path).unwrap();
    for number in 0..100 {
        let content = format!("{number} {}", name.repeat(3_000));
        logger
            .log(&message(name, "all", &content), MessageType::Info)
            .unwrap();
    }
}

#[test]
fn processes_that_append_at_once_never_mix_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let names = ["a", "b", "c", "d"];
    let writers = names.map(|name| Worker::start(&format!("log {} {name}", path.display())));
    for mut writer in writers {
        assert!(writer.wait().success());
    }
    let log = MessageLog::load(&path, &LogFilter::default()).unwrap();
    assert!(log.skipped.is_empty(), "{:?}", log.skipped);
    assert_eq!(log.entries.len(), 400);
    for name in names {
        let own = log.entries.iter().filter(|entry| entry.from_agent == name);
        let contents: Vec<_> = own.map(|entry| entry.content.clone()).collect();
        let expected: Vec<_> = (0..100)
            .map(|number| format!("{number} {}", name.repeat(3_000)))
            .collect();
        assert!(contents == expected, "in order and whole");
    }
}

/// Collects the messages of events.
#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<String>>>);

impl tracing::field::Visit for Console {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
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
    let logger = MessageLogger::open(dir.path().join("log")).unwrap();
    // A second subscriber: with a single one, `tracing` asks only the subscriber of the thread that is
    // the first to reach an event. The thread of another test has none and would turn the event off.
    let _second = tracing::Dispatch::new(Console::default());
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
