//! FileStorage beyond the contract: the files in its folder.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, FileStorage, SnapshotStorage};
use serde_json::Value;

fn tick(snapshot: &mut AgentSnapshot) {
    snapshot.tick_index += 1;
    let text = format!("tick {}", snapshot.tick_index);
    snapshot.memory.short_term_history.push(Message::user(text));
}

fn ticked(name: &str, ticks: u64) -> AgentSnapshot {
    let mut snapshot = AgentSnapshot::new(AgentId::new(name).unwrap());
    for _ in 0..ticks {
        tick(&mut snapshot);
    }
    snapshot
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[tokio::test]
async fn the_first_save_and_close_leave_plain_json() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let path = folder.path().join("worker_007.json");
    let mut snapshot = ticked("worker_007", 1);
    storage.save(&snapshot).await.unwrap();
    let tick_in_file = || {
        let json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["tick_index"].as_u64().unwrap()
    };
    assert_eq!(tick_in_file(), 1);
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    assert_eq!(tick_in_file(), 1);
    storage.compact(&snapshot.agent_id).await.unwrap();
    assert_eq!(tick_in_file(), 2);
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    storage.close().await.unwrap();
    assert_eq!(tick_in_file(), 3);

    // The file has the specified keys, and one key of the storage.
    let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    json.as_object_mut().unwrap().remove("file_storage");
    let plain: Value = serde_json::from_str(&snapshot.to_json().unwrap()).unwrap();
    assert_eq!(json, plain);
}

#[tokio::test]
async fn with_the_option_the_json_is_always_up_to_date() {
    let folder = tempfile::tempdir().unwrap();
    let builder = FileStorage::builder(folder.path()).rewrite_every_save();
    let storage = builder.open().await.unwrap();
    let mut snapshot = ticked("a", 0);
    for _ in 0..5 {
        tick(&mut snapshot);
        storage.save(&snapshot).await.unwrap();
        let text = std::fs::read_to_string(folder.path().join("a.json")).unwrap();
        let read = AgentSnapshot::from_json(&text).unwrap();
        assert_eq!(read.tick_index, snapshot.tick_index);
        assert_eq!(read.memory, snapshot.memory);
    }
    assert_eq!(names(folder.path()), ["a.json", "a.lock"]);
}

#[tokio::test]
async fn the_log_is_compacted_when_it_is_long() {
    let folder = tempfile::tempdir().unwrap();
    let builder = FileStorage::builder(folder.path())
        .rewrite_every(10)
        .without_sync();
    let storage = builder.open().await.unwrap();
    let mut snapshot = ticked("a", 0);
    let mut rewritten = 0;
    let mut last = String::new();
    for _ in 0..1000 {
        tick(&mut snapshot);
        storage.save(&snapshot).await.unwrap();
        let log = names(folder.path())
            .into_iter()
            .find(|name| name.ends_with(".log"));
        if log.as_ref() != Some(&last) {
            rewritten += 1;
            last = log.unwrap();
        }
    }
    // Each time the log is four times as long as the JSON file.
    assert!((3..20).contains(&rewritten), "{rewritten}");
    assert_eq!(names(folder.path()).len(), 3);
}

#[tokio::test]
async fn files_and_folder_are_private() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("data/snapshots");
    let storage = FileStorage::open(&folder).await.unwrap();
    storage.save(&ticked("a", 1)).await.unwrap();
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    for name in names(&folder) {
        assert_eq!(mode(&folder.join(&name)), 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_folder_or_file_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let check = |error: Error| {
        assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    };
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    for mode in [0o777, 0o1777, 0o770] {
        set_mode(folder.path(), mode);
        check(FileStorage::open(folder.path()).await.unwrap_err());
    }
    assert!(names(folder.path()).is_empty());

    set_mode(folder.path(), 0o700);
    let storage = FileStorage::open(folder.path()).await.unwrap();
    storage.save(&ticked("a", 1)).await.unwrap();
    for name in ["a.json", "a.1.log", "a.lock"] {
        let path = folder.path().join(name);
        set_mode(&path, 0o620);
        let fresh = FileStorage::open(folder.path()).await.unwrap();
        check(fresh.save(&ticked("a", 2)).await.unwrap_err());
        set_mode(&path, 0o600);
    }
    storage.save(&ticked("a", 2)).await.unwrap();
}

#[tokio::test]
async fn links_in_the_folder_are_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let precious = "not a snapshot";
    for name in ["a.json.tmp", "a.1.log", "a.lock", "a.json"] {
        std::fs::write(elsewhere.path(), precious).unwrap();
        let link = folder.path().join(name);
        symlink(elsewhere.path(), &link).unwrap();
        let storage = FileStorage::open(folder.path()).await.unwrap();
        let error = storage.save(&ticked("a", 1)).await.unwrap_err();
        assert!(matches!(error, Error::NotPrivate { .. }), "{name}: {error}");
        let kept = std::fs::read_to_string(elsewhere.path()).unwrap();
        assert_eq!(kept, precious, "{name}");
        for name in names(folder.path()) {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
    }
}

#[tokio::test]
async fn a_file_of_another_program_is_read_and_continued() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("golden/sample.json");
    std::fs::write(folder.path().join("worker_007.json"), text).unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let agent = AgentId::new("worker_007").unwrap();
    let mut snapshot = storage.load(&agent).await.unwrap().unwrap();
    assert_eq!(snapshot, AgentSnapshot::from_json(text).unwrap());
    assert_eq!(storage.list().await.unwrap(), std::slice::from_ref(&agent));
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    assert_eq!(storage.load(&agent).await.unwrap(), Some(snapshot));
    assert_eq!(storage.stream(&agent, 0..9).await.unwrap().len(), 4);
}

/// A folder of version 0.1.0: JSON, log and archive.
#[tokio::test]
async fn a_folder_of_the_first_version_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("golden.json", include_str!("golden/golden.json")),
        ("golden.2.log", include_str!("golden/golden.2.log")),
        ("golden.1.history", include_str!("golden/golden.1.history")),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let agent = AgentId::new("golden").unwrap();
    let snapshot = storage.load(&agent).await.unwrap().unwrap();
    assert_eq!(snapshot, golden(5));
    let stream = storage.stream(&agent, 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 5);
    assert_eq!(stream[0].1.content.as_deref(), Some("tick 1"));
    storage.save(&golden(6)).await.unwrap();
}

fn golden(ticks: u64) -> AgentSnapshot {
    let mut snapshot = ticked("golden", 0);
    snapshot
        .memory
        .short_term_history
        .pin(vec![Message::system("be brief")]);
    for _ in 0..ticks {
        tick(&mut snapshot);
        if snapshot.tick_index == 3 {
            snapshot.memory.short_term_history.drop_front(2);
        }
    }
    snapshot
}

/// With `AGENT_SNAPSHOT_BLESS` set, the golden files are replaced: only for an intended change of
/// the format.
#[tokio::test]
async fn golden_folder_is_what_is_written_today() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    for ticks in 1..=3 {
        storage.save(&golden(ticks)).await.unwrap();
    }
    storage.compact(&golden(3).agent_id).await.unwrap();
    for ticks in 4..=5 {
        storage.save(&golden(ticks)).await.unwrap();
    }
    for name in ["golden.json", "golden.2.log", "golden.1.history"] {
        let written = std::fs::read_to_string(folder.path().join(name)).unwrap();
        let kept = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/it/golden")
            .join(name);
        if std::env::var_os("AGENT_SNAPSHOT_BLESS").is_some() {
            std::fs::write(&kept, &written).unwrap();
        }
        assert_eq!(written, std::fs::read_to_string(kept).unwrap(), "{name}");
    }
}

async fn damaged(change: impl Fn(&Path)) -> Error {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    for ticks in 1..=3 {
        storage.save(&ticked("a", ticks)).await.unwrap();
    }
    change(folder.path());
    let error = storage.load(&AgentId::new("a").unwrap()).await.unwrap_err();
    assert!(error.is_damaged(), "{error}");
    let saved = storage.save(&ticked("a", 4)).await;
    let reread = FileStorage::open(folder.path()).await.unwrap();
    assert!(reread.save(&ticked("a", 9)).await.is_err(), "{saved:?}");
    let before: Vec<String> = names(folder.path());
    storage.delete(&AgentId::new("a").unwrap()).await.unwrap();
    assert!(
        names(folder.path())
            .iter()
            .any(|name| name.contains("damaged")),
        "{before:?}"
    );
    assert!(storage.list().await.unwrap().is_empty());
    storage.save(&ticked("a", 1)).await.unwrap();
    error
}

#[tokio::test]
async fn every_kind_of_damage_is_an_error_and_is_kept_aside() {
    fn edit(folder: &Path, name: &str, change: impl Fn(String) -> String) {
        let path = folder.join(name);
        let text = std::fs::read_to_string(&path).unwrap();
        let changed = change(text.clone());
        assert_ne!(text, changed);
        std::fs::write(path, changed).unwrap();
    }
    damaged(|folder| edit(folder, "a.json", |text| text.replace("tick 1", "tick 7"))).await;
    damaged(|folder| edit(folder, "a.json", |text| text[..text.len() - 9].to_owned())).await;
    damaged(|folder| edit(folder, "a.json", |_| String::new())).await;
    damaged(|folder| edit(folder, "a.1.log", |text| text.replace("tick 2", "tick 7"))).await;
    damaged(|folder| edit(folder, "a.1.log", |text| text.replace("tick 3", "tick 7"))).await;
    damaged(|folder| edit(folder, "a.1.log", |text| text[9..].to_owned())).await;
    damaged(|folder| std::fs::remove_file(folder.join("a.json")).unwrap()).await;
    damaged(|folder| std::fs::remove_file(folder.join("a.1.log")).unwrap()).await;
    let by_hand = damaged(|folder| edit(folder, "a.json", |text| format!("{text} "))).await;
    assert!(
        by_hand
            .to_string()
            .contains("remove its \"file_storage\" key"),
        "{by_hand}"
    );
}

#[tokio::test]
async fn a_damaged_archive_is_an_error_of_the_stream_only() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let mut snapshot = ticked("a", 5);
    snapshot.memory.short_term_history.drop_front(4);
    storage.save(&snapshot).await.unwrap();
    let path = folder.path().join("a.1.history");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("tick 2", "tick 7")).unwrap();
    assert_eq!(
        storage.load(&snapshot.agent_id).await.unwrap().as_ref(),
        Some(&snapshot)
    );
    let error = storage.stream(&snapshot.agent_id, 0..9).await.unwrap_err();
    assert!(error.is_damaged(), "{error}");
    assert_eq!(
        storage
            .stream(&snapshot.agent_id, 4..9)
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn a_file_that_cannot_be_read_is_an_error_and_not_a_blank_agent() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    // A folder in place of the file fails for every user, also for root.
    std::fs::create_dir(folder.path().join("a.json")).unwrap();
    let error = storage.load(&AgentId::new("a").unwrap()).await.unwrap_err();
    assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
    assert!(error.to_string().contains("a.json"), "{error}");
    assert!(storage.save(&ticked("a", 1)).await.is_err());
    let error = storage.expire(Duration::ZERO).await.unwrap_err();
    assert!(error.to_string().contains("a.json"), "{error}");
}

#[tokio::test]
async fn a_deleted_agent_without_an_epoch_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    storage.save(&ticked("a", 3)).await.unwrap();
    storage.delete(&AgentId::new("a").unwrap()).await.unwrap();
    assert_eq!(names(folder.path()), [] as [&str; 0]);
}

#[tokio::test]
async fn the_storage_key_of_a_file_does_not_get_into_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    storage.save(&ticked("a", 1)).await.unwrap();
    let text = std::fs::read_to_string(folder.path().join("a.json")).unwrap();
    let mut read = AgentSnapshot::from_json(&text).unwrap();
    assert!(read.extra.contains_key("file_storage"));
    tick(&mut read);
    storage.save(&read).await.unwrap();
    storage.close().await.unwrap();
    let loaded = FileStorage::open(folder.path()).await.unwrap();
    assert_eq!(
        loaded.load(&read.agent_id).await.unwrap(),
        Some(ticked("a", 2))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn more_agents_than_open_files_work_and_are_compacted() {
    let folder = tempfile::tempdir().unwrap();
    let builder = FileStorage::builder(folder.path()).without_sync();
    let storage = builder.open().await.unwrap();
    for round in 1..=2 {
        for n in 0..300 {
            storage
                .save(&ticked(&format!("agent_{n}"), round))
                .await
                .unwrap();
        }
    }
    assert_eq!(storage.list().await.unwrap().len(), 300);
    let last = storage
        .load(&AgentId::new("agent_7").unwrap())
        .await
        .unwrap();
    assert_eq!(last, Some(ticked("agent_7", 2)));

    // Also the agents whose log is not open any more.
    storage.close().await.unwrap();
    for n in 0..300 {
        let json = std::fs::read_to_string(folder.path().join(format!("agent_{n}.json"))).unwrap();
        let read = AgentSnapshot::from_json(&json).unwrap();
        assert_eq!(read.tick_index, 2, "agent {n}");
    }
}

/// Zeros in the middle of the log are damage, wherever they are. The last line is the only one
/// that a crash can tear.
/// After a failed write the disk may not have what the page cache shows, so the next call writes
/// everything again.
#[tokio::test]
async fn a_failed_write_is_not_forgotten_among_many_agents() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let mut snapshot = ticked("a", 1);
    storage.save(&snapshot).await.unwrap();
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    // A folder in place of the temporary file makes the rewrite fail.
    let obstacle = folder.path().join("a.json.tmp");
    std::fs::create_dir(&obstacle).unwrap();
    storage.compact(&snapshot.agent_id).await.unwrap_err();
    std::fs::remove_dir(&obstacle).unwrap();

    for n in 0..300 {
        let other = AgentId::new(format!("other {n}")).unwrap();
        storage.load(&other).await.unwrap();
    }
    storage.save(&snapshot).await.unwrap();
    assert!(!folder.path().join("a.1.log").exists());
    assert_eq!(
        storage.load(&snapshot.agent_id).await.unwrap(),
        Some(snapshot)
    );
}

#[tokio::test]
async fn calls_for_an_unknown_agent_leave_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let unknown = AgentId::new("unknown").unwrap();
    assert_eq!(storage.load(&unknown).await.unwrap(), None);
    assert!(storage.stream(&unknown, 0..9).await.unwrap().is_empty());
    assert_eq!(names(folder.path()), [""; 0]);
    assert_eq!(storage.cap_stream(&unknown, 0).await.unwrap(), 0);
    storage.compact(&unknown).await.unwrap();
    storage.delete(&unknown).await.unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
    // It compacts every agent that was used.
    storage.close().await.unwrap();
    assert_eq!(names(folder.path()), [""; 0]);
}

#[tokio::test]
async fn an_agent_without_its_json_file_is_listed_as_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let mut snapshot = ticked("a", 1);
    storage.save(&snapshot).await.unwrap();
    tick(&mut snapshot);
    storage.save(&snapshot).await.unwrap();
    std::fs::remove_file(folder.path().join("a.json")).unwrap();

    let storage = FileStorage::open(folder.path()).await.unwrap();
    assert!(
        storage
            .load(&snapshot.agent_id)
            .await
            .unwrap_err()
            .is_damaged()
    );
    assert_eq!(
        storage.list().await.unwrap(),
        std::slice::from_ref(&snapshot.agent_id)
    );
    storage.delete(&snapshot.agent_id).await.unwrap();
    assert!(storage.list().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_damaged_file_of_a_long_id_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let snapshot = ticked(&"long-".repeat(50), 3);
    storage.save(&snapshot).await.unwrap();
    let names = names(folder.path());
    let json = names.iter().find(|name| name.ends_with(".json")).unwrap();
    assert!(json.contains('~'), "{json}");
    let path = folder.path().join(json);
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &text[..text.len() - 20]).unwrap();
    assert_eq!(storage.list().await.unwrap(), [snapshot.agent_id]);
}

#[tokio::test]
async fn zeros_in_the_middle_of_the_log_are_damage() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let mut snapshot = ticked("a", 1);
    for _ in 0..20 {
        storage.save(&snapshot).await.unwrap();
        tick(&mut snapshot);
    }
    let path = folder.path().join("a.1.log");
    let good = std::fs::read(&path).unwrap();
    let last = good[..good.len() - 1]
        .iter()
        .rposition(|byte| *byte == b'\n');
    let last = last.unwrap() + 1;
    let agent = &snapshot.agent_id;
    for n in 0..25 {
        let at = last * n / 25;
        for len in [1, 16, 300] {
            let mut bytes = good.clone();
            bytes[at..(at + len).min(last)].fill(0);
            std::fs::write(&path, &bytes).unwrap();
            let storage = FileStorage::open(folder.path()).await.unwrap();
            let error = storage.load(agent).await.unwrap_err();
            assert!(error.is_damaged(), "{len} zeros at {at}: {error}");
        }
    }
    let mut torn = good.clone();
    torn[last + 5..].fill(0);
    std::fs::write(&path, &torn).unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    assert_eq!(storage.load(agent).await.unwrap().unwrap().tick_index, 19);
}

#[tokio::test]
async fn a_long_id_is_inside_its_file_and_is_compared() {
    let folder = tempfile::tempdir().unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let (one, two) = (ticked(&"x".repeat(254), 1), ticked(&"x".repeat(255), 1));
    storage.save(&one).await.unwrap();
    storage.save(&two).await.unwrap();
    let files = names(folder.path());
    let json: Vec<_> = files
        .iter()
        .filter(|name| name.ends_with(".json"))
        .collect();
    assert_eq!(json.len(), 2);
    assert!(
        json[0].starts_with("xxxxxxxx") && json[0].len() < 110,
        "{json:?}"
    );
    // As if both ids had the same digest.
    let (from, to) = (folder.path().join(json[0]), folder.path().join(json[1]));
    std::fs::copy(from, to).unwrap();
    let storage = FileStorage::open(folder.path()).await.unwrap();
    let loaded = [
        storage.load(&one.agent_id).await,
        storage.load(&two.agent_id).await,
    ];
    let refused = loaded.iter().filter(|loaded| loaded.is_err()).count();
    assert_eq!(refused, 1, "{loaded:?}");
}
