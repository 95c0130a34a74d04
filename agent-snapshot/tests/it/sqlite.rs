//! SqliteStorage beyond the contract.

use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, SnapshotStorage, SqliteStorage};

fn ticked(ticks: u64) -> AgentSnapshot {
    let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
    for n in 0..ticks {
        snapshot.tick_index += 1;
        snapshot
            .memory
            .short_term_history
            .push(Message::user(n.to_string()));
    }
    snapshot
}

fn sql(path: &Path, sql: &str) {
    let database = rusqlite::Connection::open(path).unwrap();
    database.busy_timeout(Duration::from_secs(30)).unwrap();
    database.execute_batch(sql).unwrap();
}

/// `.backup` of the sqlite3 program.
pub(crate) fn back_up(path: &Path) {
    let copy = path.with_extension("backup");
    let _ = std::fs::remove_file(&copy);
    copy_pages(path, &copy);
}

/// `.restore` of the sqlite3 program, into a database that is open.
pub(crate) fn restore(path: &Path) {
    copy_pages(&path.with_extension("backup"), path);
}

fn copy_pages(from: &Path, to: &Path) {
    use rusqlite::backup::Backup;

    let from = rusqlite::Connection::open(from).unwrap();
    let mut to = rusqlite::Connection::open(to).unwrap();
    to.busy_timeout(Duration::from_secs(30)).unwrap();
    let backup = Backup::new(&from, &mut to).unwrap();
    backup
        .run_to_completion(1_000, Duration::from_millis(1), None)
        .unwrap();
}

fn count(path: &Path, table: &str) -> i64 {
    let database = rusqlite::Connection::open(path).unwrap();
    database
        .query_row(&format!("SELECT count(*) FROM {table}"), [], |row| {
            row.get(0)
        })
        .unwrap()
}

#[tokio::test]
async fn every_kind_of_damage_is_an_error_and_is_kept_aside() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    for damage in [
        "UPDATE agents SET stamp = 'x'",
        "UPDATE agents SET stamp = replace(stamp, '1 3 ', '1 4 ')",
        "UPDATE agents SET state = NULL",
        "UPDATE agents SET state = substr(state, 2)",
        "UPDATE agents SET state = replace(state, 'WAITING', 'RUNNING')",
        "DELETE FROM heads",
        "DELETE FROM messages WHERE id = (SELECT min(id) FROM messages)",
        "DELETE FROM messages WHERE id = (SELECT max(id) FROM messages)",
        "UPDATE messages SET json = replace(json, '1', '2')",
        "UPDATE messages SET previous = id",
        "UPDATE messages SET previous = NULL",
        "UPDATE messages SET agent = agent + 1",
        "UPDATE agents SET last = NULL",
        "UPDATE messages SET json = CAST(x'ff' AS TEXT)",
    ] {
        let storage = SqliteStorage::open(&path).await.unwrap();
        storage.save(&ticked(3)).await.unwrap();
        sql(&path, damage);
        let storage = SqliteStorage::open(&path).await.unwrap();
        let loaded = storage.load(&ticked(3).agent_id).await;
        if damage.contains("1 4 ") {
            // Stamp and state then have different ticks.
            assert!(loaded.is_err(), "{damage}");
        }
        let error = loaded.unwrap_err();
        assert!(error.is_damaged(), "{damage}: {error}");
        assert!(
            storage.save(&ticked(9)).await.unwrap_err().is_damaged(),
            "{damage}"
        );
        storage.delete(&ticked(3).agent_id).await.unwrap();
        assert!(count(&path, "damaged") > 0, "{damage}");
        sql(&path, "DELETE FROM damaged");
    }
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    std::fs::write(
        &path,
        "not a database, but long enough to look like one".repeat(100),
    )
    .unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = SqliteStorage::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
    assert!(error.to_string().contains("agents.db"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test]
async fn a_newer_database_is_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    SqliteStorage::open(&path)
        .await
        .unwrap()
        .close()
        .await
        .unwrap();
    sql(&path, "PRAGMA user_version = 3");
    let error = SqliteStorage::open(&path).await.unwrap_err();
    assert!(
        matches!(error, Error::UnsupportedVersion { found: 3, .. }),
        "{error}"
    );
}

#[tokio::test]
async fn the_database_is_private() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("new/agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    storage.save(&ticked(1)).await.unwrap();
    for name in ["agents.db", "agents.db-wal", "agents.db-shm"] {
        let mode = path
            .with_file_name(name)
            .metadata()
            .unwrap()
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test]
async fn a_database_that_others_can_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let set_mode = |path: &Path, mode| {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    let refused = async || {
        let error = SqliteStorage::open(&path).await.unwrap_err();
        assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    };
    for mode in [0o1777, 0o770] {
        set_mode(folder.path(), mode);
        refused().await;
        assert!(!path.exists());
    }
    set_mode(folder.path(), 0o700);

    let storage = SqliteStorage::open(&path).await.unwrap();
    storage.save(&ticked(1)).await.unwrap();
    for name in ["agents.db", "agents.db-wal", "agents.db-shm"] {
        let file = path.with_file_name(name);
        set_mode(&file, 0o660);
        refused().await;
        set_mode(&file, 0o600);
    }
    storage.save(&ticked(2)).await.unwrap();
}

#[tokio::test]
async fn a_link_is_refused_and_its_target_is_not_created() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("elsewhere");
    let path = folder.path().join("agents.db");
    symlink(&target, &path).unwrap();
    let error = SqliteStorage::open(&path).await.unwrap_err();
    assert!(matches!(error, Error::NotPrivate { .. }), "{error}");
    assert!(!target.exists());
}

#[tokio::test]
async fn interleaved_streams_are_read_and_removed_separately() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    let mut agents: Vec<AgentSnapshot> = ["a", "b", "c"]
        .map(|name| AgentSnapshot::new(AgentId::new(name).unwrap()))
        .into();
    for round in 0..30 {
        for (n, snapshot) in agents.iter_mut().enumerate() {
            // No message, one, or several in neighbouring rows.
            for message in 0..(round + n) % 4 {
                let text = format!("{n} {round} {message}");
                snapshot.memory.short_term_history.push(Message::user(text));
            }
            snapshot.tick_index += 1;
            storage.save(snapshot).await.unwrap();
        }
    }
    for snapshot in &agents {
        let loaded = storage.load(&snapshot.agent_id).await.unwrap();
        assert_eq!(loaded.as_ref(), Some(snapshot));
        let all: Vec<_> = snapshot.memory.short_term_history.tail().collect();
        for range in [0..5, 7..8, 20..1000, 3..3] {
            let part = storage.stream(&snapshot.agent_id, range.clone()).await;
            let expected: Vec<_> = all
                .iter()
                .filter(|(seq, _)| range.contains(seq))
                .map(|(seq, message)| (*seq, (*message).clone()))
                .collect();
            assert_eq!(part.unwrap(), expected, "{range:?}");
        }
    }
    storage.delete(&agents[1].agent_id).await.unwrap();
    for snapshot in [&agents[0], &agents[2]] {
        let loaded = storage.load(&snapshot.agent_id).await.unwrap();
        assert_eq!(loaded.as_ref(), Some(snapshot));
    }
    let kept = [&agents[0], &agents[2]].map(|snapshot| snapshot.memory.short_term_history.len());
    assert_eq!(count(&path, "messages"), kept.iter().sum::<usize>() as i64);
}

#[tokio::test]
async fn a_closed_storage_reports_it() {
    let folder = tempfile::tempdir().unwrap();
    let storage = SqliteStorage::open(folder.path().join("agents.db"))
        .await
        .unwrap();
    storage.save(&ticked(1)).await.unwrap();
    storage.close().await.unwrap();
    assert!(matches!(
        storage.save(&ticked(2)).await,
        Err(Error::Closed { .. })
    ));
    assert!(matches!(storage.list().await, Err(Error::Closed { .. })));
}

#[tokio::test]
async fn a_database_that_stays_locked_is_an_error_after_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let builder = SqliteStorage::builder(&path).busy_timeout(Duration::from_millis(20));
    let storage = builder.open().await.unwrap();
    let blocker = rusqlite::Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = storage.save(&ticked(1)).await.unwrap_err();
    assert!(error.is_backend_failure(), "{error}");
    blocker.execute_batch("ROLLBACK").unwrap();
    storage.save(&ticked(1)).await.unwrap();
}

/// Each save alone would wait for its own timeout: 40 seconds in all.
#[tokio::test]
async fn saves_that_wait_together_for_a_locked_database_share_the_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let builder = SqliteStorage::builder(&path).busy_timeout(Duration::from_millis(200));
    let storage = builder.open().await.unwrap();
    let blocker = rusqlite::Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut saves = tokio::task::JoinSet::new();
    for n in 0..200 {
        let storage = storage.clone();
        let snapshot = AgentSnapshot::new(AgentId::new(format!("agent {n}")).unwrap());
        saves.spawn(async move { storage.save(&snapshot).await });
    }
    let all = tokio::time::timeout(Duration::from_secs(20), saves.join_all());
    for result in all.await.expect("the saves are answered") {
        let error = result.unwrap_err();
        assert!(error.is_backend_failure(), "{error}");
    }
    blocker.execute_batch("ROLLBACK").unwrap();
    storage.save(&ticked(1)).await.unwrap();
}

#[tokio::test]
async fn a_newer_database_in_place_of_the_open_one_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let [path, newer, good] =
        ["agents.db", "newer.db", "good.db"].map(|name| folder.path().join(name));
    for database in [&newer, &good] {
        let storage = SqliteStorage::open(database).await.unwrap();
        storage.close().await.unwrap();
    }
    sql(
        &newer,
        "PRAGMA user_version = 99; PRAGMA journal_mode = DELETE",
    );
    let storage = SqliteStorage::builder(&path)
        .busy_timeout(Duration::from_millis(200))
        .open()
        .await
        .unwrap();
    storage.save(&ticked(1)).await.unwrap();

    let replace = |by: &Path| {
        for end in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        std::fs::rename(by, &path).unwrap();
    };
    replace(&newer);
    let (one, other) = (ticked(2), AgentSnapshot::new(AgentId::new("b").unwrap()));
    for _ in 0..2 {
        let (first, second, third) = tokio::join!(
            storage.save(&one),
            storage.save(&other),
            storage.load(&other.agent_id)
        );
        for error in [first.err(), second.err(), third.err()] {
            let error = error.expect("the database is newer");
            assert!(
                matches!(error, Error::UnsupportedVersion { found: 99, .. }),
                "{error:?}"
            );
        }
    }
    // The newer program is not kept out.
    sql(&path, "BEGIN IMMEDIATE; ROLLBACK");
    replace(&good);
    storage.save(&other).await.unwrap();
}

#[tokio::test]
async fn the_longest_timeout_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let builder = SqliteStorage::builder(folder.path().join("agents.db"));
    let storage = builder.busy_timeout(Duration::MAX).open().await.unwrap();
    storage.save(&ticked(1)).await.unwrap();
}

/// A table is missing: that is not the damage of an agent, which an expiry passes over.
#[tokio::test]
async fn an_expiry_that_fails_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    storage.save(&ticked(1)).await.unwrap();
    sql(&path, "DROP TABLE heads");
    let error = storage.expire(Duration::ZERO).await.unwrap_err();
    assert!(error.is_backend_failure(), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_another_process_holds_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    let blocker = rusqlite::Connection::open(&path).unwrap();
    blocker.execute_batch("BEGIN IMMEDIATE").unwrap();
    let saving = tokio::spawn(async move { storage.save(&ticked(1)).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!saving.is_finished());
    blocker.execute_batch("ROLLBACK").unwrap();
    saving.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_save_that_fails_does_not_fail_its_batch() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    sql(
        &path,
        "CREATE TRIGGER bad BEFORE INSERT ON messages WHEN new.json LIKE '%poison%'
         BEGIN SELECT RAISE(ABORT, 'poison'); END",
    );
    let mut bad = AgentSnapshot::new(AgentId::new("bad").unwrap());
    bad.tick_index = 1;
    bad.memory.short_term_history.push(Message::user("poison"));
    let good = ticked(3);
    let (first, second, third) = tokio::join!(storage.save(&good), storage.save(&bad), async {
        let mut other = AgentSnapshot::new(AgentId::new("b").unwrap());
        other.tick_index = 1;
        storage.save(&other).await
    });
    first.unwrap();
    third.unwrap();
    assert!(matches!(second.unwrap_err(), Error::Storage { .. }));
    assert_eq!(storage.list().await.unwrap().len(), 2);
}

/// Environment variable of a process below: the database, and the name of its agent.
const SAVER: &str = "AGENT_SNAPSHOT_SAVER";

/// The program of a process, not a test.
#[test]
#[ignore = "started by twenty_processes_share_a_new_database"]
fn saver() {
    let Ok(argument) = std::env::var(SAVER) else {
        return;
    };
    let (path, name) = argument.split_once('|').unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let storage = SqliteStorage::open(path).await.unwrap();
        let mut snapshot = AgentSnapshot::new(AgentId::new(name).unwrap());
        for n in 0..30 {
            snapshot.tick_index += 1;
            let text = format!("{name} {n}");
            snapshot.memory.short_term_history.push(Message::user(text));
            storage.save(&snapshot).await.unwrap();
        }
        storage.close().await.unwrap();
    });
}

#[tokio::test]
async fn twenty_processes_share_a_new_database() {
    use crate::kill_on_drop::{KillOnDrop, test_program};

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let start = |n: usize| {
        let argument = format!("{}|agent {n:02}", path.display());
        let mut command = test_program("sqlite::saver");
        command
            .env(SAVER, argument)
            .stdout(std::process::Stdio::null());
        KillOnDrop::spawn(&mut command).unwrap()
    };
    let processes: Vec<_> = (0..20).map(start).collect();
    for mut process in processes {
        assert!(process.wait().unwrap().success());
    }
    let storage = SqliteStorage::open(&path).await.unwrap();
    let page = storage.page(None, 100).await.unwrap();
    assert_eq!(page.len(), 20);
    for info in page {
        assert_eq!((info.position.unwrap().tick, info.messages), (30, 30));
        let stream = storage.stream(&info.agent, 0..100).await.unwrap();
        assert_eq!(stream.len(), 30);
    }
}

/// The query that the documentation shows.
#[tokio::test]
async fn plain_sql_reads_the_messages() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    let mut snapshot = AgentSnapshot::new(AgentId::new("worker_007").unwrap());
    for text in ["one", "二"] {
        snapshot.tick_index += 1;
        snapshot.memory.short_term_history.push(Message::user(text));
        storage.save(&snapshot).await.unwrap();
    }
    let database = rusqlite::Connection::open(&path).unwrap();
    let mut statement = database
        .prepare(
            "SELECT seq, json ->> 'role', json ->> 'content' FROM stream
             WHERE agent = 'worker_007' ORDER BY seq",
        )
        .unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap();
    let rows: Vec<(i64, String, String)> = rows.map(Result::unwrap).collect();
    let user = || "user".to_owned();
    assert_eq!(rows, [(0, user(), "one".into()), (1, user(), "二".into())]);
}

/// Takes away what version 2 added.
const TO_VERSION_1: &str = "
    DROP VIEW stream;
    ALTER TABLE messages DROP COLUMN seq;
    ALTER TABLE agents DROP COLUMN labels;
    ALTER TABLE agents DROP COLUMN bytes;
    ALTER TABLE agents DROP COLUMN changed;
    PRAGMA user_version = 1;
";

#[tokio::test]
async fn a_database_of_version_1_is_migrated() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    let mut snapshot = ticked(10);
    snapshot.memory.short_term_history.drop_front(4);
    storage.save(&snapshot).await.unwrap();
    storage.close().await.unwrap();
    sql(&path, TO_VERSION_1);

    let storage = SqliteStorage::open(&path).await.unwrap();
    let loaded = storage.load(&snapshot.agent_id).await.unwrap();
    assert_eq!(loaded.as_ref(), Some(&snapshot));
    let page = storage.page(None, 10).await.unwrap();
    assert_eq!(page[0].messages, 10);
    assert!(page[0].bytes > 100, "{page:?}");
    assert!(
        storage
            .expire(Duration::from_secs(3600))
            .await
            .unwrap()
            .is_empty()
    );
    // The numbers of the messages are right.
    assert_eq!(storage.cap_stream(&snapshot.agent_id, 8).await.unwrap(), 2);
    let stream = storage.stream(&snapshot.agent_id, 0..99).await.unwrap();
    let numbers: Vec<u64> = stream.iter().map(|(seq, _)| *seq).collect();
    assert_eq!(numbers, (2..10).collect::<Vec<_>>());
}

/// The tables are in the database file itself, so a copy without the WAL is older, not blank. A
/// file in WAL mode without tables, as 0.1 could leave it, is refused.
#[tokio::test]
async fn a_copy_without_its_wal_is_not_a_new_database() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("agents.db");
    let storage = SqliteStorage::open(&path).await.unwrap();
    storage.save(&ticked(3)).await.unwrap();
    let copy = folder.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    assert_eq!(count(&copy, "agents"), 0);

    let empty = folder.path().join("empty.db");
    let database = rusqlite::Connection::open(&empty).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    drop(database);
    std::fs::set_permissions(&empty, Permissions::from_mode(0o600)).unwrap();
    let error = SqliteStorage::open(&empty).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("-wal"), "{error}: {source}");
}
