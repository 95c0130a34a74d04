//! The JSON of a snapshot.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, MemoryStorage, SnapshotStorage, Status};
use serde_json::{Value, json};

/// The specification's sample without its comments.
const SAMPLE: &str = r#"{
  "agent_id": "worker_007",
  "tick_index": 42,
  "timestamp": 1706582400000,
  "status": "WAITING_FOR_EVENT",
  "memory": {
    "short_term_history": [
      { "role": "user", "content": "..." },
      { "role": "assistant", "content": "..." }
    ],
    "working_variables": {
      "current_file_path": "/tmp/report.txt",
      "retry_count": 0
    }
  },
  "event_queue_backup": [
    { "source": "mcp", "type": "task", "payload": "..." }
  ]
}"#;

fn value(json: &str) -> Value {
    serde_json::from_str(json).unwrap()
}

#[test]
fn the_specified_sample_survives_key_for_key() {
    let snapshot = AgentSnapshot::from_json(SAMPLE).unwrap();
    assert_eq!(snapshot.agent_id.as_str(), "worker_007");
    assert_eq!(snapshot.tick_index, 42);
    let since_1970 = Duration::from_millis(1_706_582_400_000);
    assert_eq!(snapshot.timestamp(), UNIX_EPOCH + since_1970);
    assert_eq!(snapshot.status, Status::WAITING_FOR_EVENT);
    assert_eq!(snapshot.schema_version(), 1);
    assert_eq!(snapshot.event_queue_backup[0].kind, "task");
    assert_eq!(value(&snapshot.to_json().unwrap()), value(SAMPLE));
}

#[test]
fn unknown_fields_survive_at_every_level() {
    let mut sample = value(SAMPLE);
    sample["x"] = json!({"a": [1, 2.5, null]});
    sample["status"] = json!("DREAMING");
    sample["memory"]["x"] = json!("m");
    sample["memory"]["short_term_history"][0]["x"] = json!(1e300);
    sample["memory"]["short_term_history"][1]["tool_calls"] =
        json!([{"id": "c1", "name": "ls", "args": {"path": "/"}, "x": true}]);
    sample["event_queue_backup"][0]["x"] = json!(u64::MAX);
    let snapshot = AgentSnapshot::from_json(&sample.to_string()).unwrap();
    assert_eq!(value(&snapshot.to_json().unwrap()), sample);
}

#[test]
fn a_newer_schema_is_refused_by_name_whatever_else_it_holds() {
    let error = AgentSnapshot::from_json(r#"{"schema_version": 2, "agent": 7}"#).unwrap_err();
    assert!(matches!(
        error,
        Error::UnsupportedVersion {
            found: 2,
            supported: 1,
            ..
        }
    ));
    assert!(error.to_string().contains("schema version 2"));
    assert!(
        serde_json::from_str::<AgentSnapshot>(
            &SAMPLE.replace("\"status\"", "\"schema_version\": 2, \"status\"")
        )
        .is_err()
    );
}

#[test]
fn a_trimmed_history_survives_with_its_numbers() {
    let mut snapshot = AgentSnapshot::from_json(SAMPLE).unwrap();
    let history = &mut snapshot.memory.short_term_history;
    history.pin(vec![Message::system("be brief")]);
    history.drop_front(1);
    history.set_summary(Some(Message::system("前文の要約：…")));
    let read = AgentSnapshot::from_json(&snapshot.to_json().unwrap()).unwrap();
    assert_eq!(read, snapshot);
    assert_eq!(read.memory.short_term_history.first_seq(), 1);
    assert_eq!(read.memory.short_term_history.pinned().len(), 1);
}

#[test]
fn a_time_stamp_has_milliseconds() {
    let mut snapshot = AgentSnapshot::from_json(SAMPLE).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    snapshot.set_timestamp(time);
    assert_eq!(snapshot.timestamp(), time - Duration::from_nanos(456_789));
    assert_eq!(
        value(&snapshot.to_json().unwrap())["timestamp"],
        1_000_000_000_123_u64
    );
    snapshot.set_timestamp(UNIX_EPOCH - Duration::from_secs(1));
    assert_eq!(snapshot.timestamp(), UNIX_EPOCH);
    snapshot.set_timestamp(SystemTime::now());
    let read = AgentSnapshot::from_json(&snapshot.to_json().unwrap()).unwrap();
    assert_eq!(read, snapshot);
}

#[test]
fn debug_shows_no_contents() {
    let mut snapshot = AgentSnapshot::from_json(&SAMPLE.replace("...", "SECRET")).unwrap();
    snapshot
        .memory
        .short_term_history
        .pin(vec![Message::system("SECRET")]);
    let shown = format!(
        "{snapshot:?} {:?} {:?}",
        snapshot.memory, snapshot.event_queue_backup
    );
    assert!(
        !shown.contains("SECRET") && !shown.contains("report.txt"),
        "{shown}"
    );
}

#[tokio::test]
async fn the_stream_outlives_trimming_in_the_same_storage() {
    let storage = MemoryStorage::new();
    let agent = AgentId::new("a").unwrap();
    let mut snapshot = AgentSnapshot::new(agent.clone());
    for n in 0..10 {
        snapshot.tick_index += 1;
        let history = &mut snapshot.memory.short_term_history;
        history.push(Message::user(n.to_string()));
        history.drop_front(history.tail_len().saturating_sub(2));
        storage.save(&snapshot).await.unwrap();
        snapshot.memory.short_term_history.release_hidden();
    }
    let loaded = storage.load(&agent).await.unwrap().unwrap();
    assert_eq!(loaded, snapshot);
    assert_eq!(loaded.memory.short_term_history.len(), 2);
    let all = storage.stream(&agent, 0..u64::MAX).await.unwrap();
    let numbers: Vec<u64> = all.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, (0..10).collect::<Vec<_>>());
    assert_eq!(all[3].1.content.as_deref(), Some("3"));
}

/// A value that can be written but not read again would be lost.
#[tokio::test]
async fn what_could_not_be_read_again_is_refused() {
    let storage = MemoryStorage::new();
    let deep = (0..130).fold(json!(0), |inner, _| json!([inner]));
    let mut snapshots = vec![AgentSnapshot::from_json(SAMPLE).unwrap(); 5];
    snapshots[0].extra.insert("status".into(), json!(1));
    snapshots[1]
        .memory
        .extra
        .insert("short_term_history".into(), json!([]));
    snapshots[2]
        .memory
        .working_variables
        .insert("deep".into(), deep.clone());
    let mut message = Message::user("x");
    message.extra.insert("role".into(), json!("user"));
    snapshots[3].memory.short_term_history.push(message);
    let mut message = Message::user("x");
    message.extra.insert("deep".into(), deep);
    snapshots[4].memory.short_term_history.pin(vec![message]);
    for snapshot in &snapshots {
        let error = storage.save(snapshot).await.unwrap_err();
        assert!(matches!(error, Error::Encode { .. }), "{error}");
    }
    assert_eq!(storage.list().await.unwrap(), []);
}

/// The optional key is absent when it is empty, and has this form otherwise.
#[test]
fn labels_are_an_optional_key() {
    let golden = include_str!("golden/labels.json");
    let mut snapshot = AgentSnapshot::from_json(golden).unwrap();
    assert_eq!(snapshot.labels["project"], "atlas");
    assert_eq!(format!("{}\n", snapshot.to_json().unwrap()), golden);
    snapshot.labels.clear();
    assert!(!snapshot.to_json().unwrap().contains("labels"));
}
