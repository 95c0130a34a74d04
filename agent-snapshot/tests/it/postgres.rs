//! PostgresStorage against real servers.

use std::sync::Arc;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, Error, PostgresStorage, SnapshotStorage};

use crate::postgres_server::{PostgresServer, wait_for};
use crate::rewind;

pub(crate) fn tick(snapshot: &mut AgentSnapshot) {
    snapshot.tick_index += 1;
    let text = format!("tick {}", snapshot.tick_index);
    snapshot.memory.short_term_history.push(Message::user(text));
}

pub(crate) fn blank(name: &str) -> AgentSnapshot {
    AgentSnapshot::new(AgentId::new(name).unwrap())
}

async fn connect(server: &PostgresServer) -> PostgresStorage {
    PostgresStorage::connect(&server.url()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_in_the_middle_loses_no_acknowledged_save() {
    let mut server = PostgresServer::start();
    let storage = connect(&server).await;
    let (acknowledged, mut seen) = tokio::sync::watch::channel(blank("a"));
    let saving = tokio::spawn(async move {
        let mut snapshot = blank("a");
        while snapshot.tick_index < 400 {
            tick(&mut snapshot);
            // The outcome of a failed save is unknown, so the same save is repeated.
            while let Err(error) = storage.save(&snapshot).await {
                assert!(matches!(error, Error::Storage { .. }), "{error}");
            }
            acknowledged.send(snapshot.clone()).unwrap();
        }
        storage
    });
    for limit in [30, 120, 250] {
        seen.wait_for(|snapshot| snapshot.tick_index >= limit)
            .await
            .unwrap();
        server.kill();
        let before = seen.borrow().clone();
        server.restart();
        let fresh = connect(&server).await;
        let stored = fresh.load(&before.agent_id).await.unwrap().unwrap();
        assert!(stored.tick_index >= before.tick_index);
        let next = stored.memory.short_term_history.next_seq();
        assert_eq!(next, stored.tick_index);
    }
    let storage = saving.await.unwrap();
    let agent = AgentId::new("a").unwrap();
    let stream = storage.stream(&agent, 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len(), 400);
}

/// Both servers, in the order in which they are tried.
fn both(one: &PostgresServer, two: &PostgresServer) -> String {
    format!(
        "host={},{} user=postgres dbname=postgres target_session_attrs=read-write",
        one.socket_folder().display(),
        two.socket_folder().display()
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_with_synchronous_commit_loses_nothing() {
    let mut primary = PostgresServer::start();
    let standby = primary.standby();
    primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'");
    primary.sql("SELECT pg_reload_conf()");
    let synchronous = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
    wait_for("the standby to be synchronous", || {
        (primary.sql(synchronous) == "1").then_some(())
    });
    let storage = PostgresStorage::connect(&both(&primary, &standby)).await;
    let storage: Arc<dyn SnapshotStorage> = Arc::new(storage.unwrap());
    let mut agent = rewind::hydrate(&storage).await;
    rewind::work(&mut agent, 200).await;
    primary.kill();
    standby.sql("SELECT pg_promote()");
    standby.sql("ALTER SYSTEM SET synchronous_standby_names = ''");
    standby.sql("SELECT pg_reload_conf()");
    rewind::work(&mut agent, 50).await;
    assert_eq!(rewind::stored_messages(&storage).await, 250);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_saves_is_reported_and_deletes_nothing() {
    let mut primary = PostgresServer::start_with(&["fsync=off"]);
    let standby = primary.standby();
    let storage = PostgresStorage::connect(&both(&primary, &standby)).await;
    let storage: Arc<dyn SnapshotStorage> = Arc::new(storage.unwrap());
    let mut agent = rewind::hydrate(&storage).await;
    rewind::work(&mut agent, 300).await;
    let lag = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn = pg_current_wal_lsn()";
    wait_for("the standby to have all saves", || {
        (primary.sql(lag) == "1").then_some(())
    });
    // The standby is promoted before the primary dies, so the last saves are lost.
    standby.sql("SELECT pg_promote()");
    rewind::work(&mut agent, 200).await;
    primary.kill();
    rewind::nothing_is_deleted(&storage, &mut agent, 300).await;
    agent.adopt_stored().await.unwrap();
    rewind::work(&mut agent, 10).await;
    assert_eq!(rewind::stored_messages(&storage).await, 310);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_is_created_once_and_a_newer_one_is_refused() {
    let server = PostgresServer::start_with(&["fsync=off"]);
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move { PostgresStorage::connect(&url).await })
        })
        .collect();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    assert_eq!(server.sql("SELECT version FROM agent_snapshot.meta"), "2");
    server.sql("UPDATE agent_snapshot.meta SET version = 9");
    let error = PostgresStorage::connect(&server.url()).await.unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion { found: 9, .. }));
}

/// The statements that the documentation shows, and no statement that a pooler cannot pass on.
#[tokio::test(flavor = "multi_thread")]
async fn plain_sql_reads_the_stream_and_no_statement_belongs_to_a_session() {
    let server = PostgresServer::start_with(&["fsync=off"]);
    let storage = connect(&server).await;
    let mut snapshot = blank("worker_007");
    for _ in 0..3 {
        tick(&mut snapshot);
        storage.save(&snapshot).await.unwrap();
        storage.load(&snapshot.agent_id).await.unwrap();
    }
    let rows = server.sql(
        "SELECT seq, json::json ->> 'role', json::json ->> 'content'
         FROM agent_snapshot.stream WHERE agent = 'worker_007' ORDER BY seq",
    );
    assert_eq!(rows, "0|user|tick 1\n1|user|tick 2\n2|user|tick 3");
    // Every backend of the storage is idle between two calls, outside a transaction and without
    // locks that outlive one.
    let left = server.sql(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'
         UNION ALL SELECT count(*) FROM pg_stat_activity
         WHERE application_name = 'agent-snapshot' AND state <> 'idle'",
    );
    assert_eq!(left, "0\n0");
}

#[tokio::test(flavor = "multi_thread")]
async fn saves_that_wait_together_share_a_transaction() {
    let server = PostgresServer::start();
    let storage = connect(&server).await;
    let mut snapshots: Vec<_> = (0..64).map(|n| blank(&format!("agent {n}"))).collect();
    for snapshot in &snapshots {
        storage.save(snapshot).await.unwrap();
    }
    let commits = || {
        let rows = "SELECT count(DISTINCT xmin::text) FROM agent_snapshot.agents";
        server.sql(rows).parse::<u64>().unwrap()
    };
    assert_eq!(commits(), 64);
    let tasks: Vec<_> = snapshots
        .drain(..)
        .map(|mut snapshot| {
            let storage = storage.clone();
            tokio::spawn(async move {
                tick(&mut snapshot);
                storage.save(&snapshot).await.unwrap();
                snapshot
            })
        })
        .collect();
    for task in tasks {
        let snapshot = task.await.unwrap();
        let loaded = storage.load(&snapshot.agent_id).await.unwrap();
        assert_eq!(loaded, Some(snapshot));
    }
    assert!(commits() < 32, "{} transactions", commits());
}

/// Makes each save fail with an SQLSTATE if it writes the agent `agent`, or any agent if it is empty.
/// The sequence `failures` counts: it is not rolled back.
fn refuse_saves(server: &PostgresServer, agent: &str, code: &str) {
    server.sql(&format!(
        "CREATE SEQUENCE failures;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF '{agent}' IN ('', NEW.agent) THEN
                 PERFORM nextval('failures');
                 RAISE EXCEPTION 'refused' USING ERRCODE = '{code}';
             END IF;
             RETURN NEW;
         END $$;
         CREATE TRIGGER refuse BEFORE UPDATE ON agent_snapshot.agents
             FOR EACH ROW EXECUTE FUNCTION refuse();"
    ));
}

/// Saves three agents at once and returns which saves succeeded. The stamps are cached and there is
/// one thread, so the three saves are queued before the task of the queue runs: one batch.
async fn save_three_at_once(storage: &PostgresStorage, then: impl FnOnce()) -> (bool, bool, bool) {
    let (mut one, mut two, mut three) = (blank("one"), blank("two"), blank("three"));
    for snapshot in [&mut one, &mut two, &mut three] {
        storage.save(snapshot).await.unwrap();
        tick(snapshot);
    }
    then();
    let saves = tokio::join!(storage.save(&one), storage.save(&two), storage.save(&three));
    (saves.0.is_ok(), saves.1.is_ok(), saves.2.is_ok())
}

#[tokio::test]
async fn a_save_that_the_server_refuses_does_not_fail_the_others_of_its_batch() {
    let server = PostgresServer::start();
    let storage = connect(&server).await;
    let refuse = || refuse_saves(&server, "two", "23514");
    let saved = save_three_at_once(&storage, refuse).await;
    assert_eq!(saved, (true, false, true));
    // Once in the batch, once alone.
    assert_eq!(server.sql("SELECT last_value FROM failures"), "2");
}

#[tokio::test]
async fn a_batch_is_not_split_after_a_temporary_error() {
    let server = PostgresServer::start();
    let storage = connect(&server).await;
    let refuse = || refuse_saves(&server, "", "40001");
    let saved = save_three_at_once(&storage, refuse).await;
    assert_eq!(saved, (false, false, false));
    // The attempts of one statement.
    assert_eq!(server.sql("SELECT last_value FROM failures"), "7");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unreachable_server_is_an_error_that_names_it_without_the_password() {
    let url = "postgres://agent:secret@127.0.0.1:1/agents?connect_timeout=1";
    let error = PostgresStorage::connect(url).await.unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
    let text = format!("{error} {error:?}");
    assert!(
        text.contains("127.0.0.1") && !text.contains("secret"),
        "{text}"
    );
}

/// The driver takes the rest of a password that is not escaped for a host or an option.
#[tokio::test]
async fn a_password_is_in_no_error_of_a_wrong_address() {
    for url in [
        "postgres://agent:p@secret@127.0.0.1/agents",
        "postgres://agent:p@secret:1@127.0.0.1:1/agents",
        "postgres://agent:p@ss?secret=1@127.0.0.1/agents",
        "postgres://agent:secret@127.0.0.1:port/agents",
        "postgres://127.0.0.1/agents?password=a&secret=b",
        "postgres://127.0.0.1/agents?password=a@secret&port=x",
        "postgres:host=127.0.0.1 password=a secret=b",
        "postgres:host=127.0.0.1 password='a' secret",
        "postgres:host=127.0.0.1 password=secret://x port=x",
    ] {
        let Err(error) = agent_snapshot::open_storage(url).await else {
            panic!("{url} is no address");
        };
        assert!(matches!(error, Error::Invalid { .. }), "{url}: {error}");
        let causes = std::iter::successors(Some(&error as &dyn std::error::Error), |error| {
            error.source()
        });
        let shown: String = causes.map(|error| format!("{error:?} {error} ")).collect();
        assert!(!shown.contains("secret"), "{url}: {shown}");
        let builder = PostgresStorage::builder(url);
        assert!(!format!("{builder:?}").contains("secret"), "{url}");
    }
}

#[tokio::test]
async fn a_server_that_accepts_and_never_answers_is_an_error() {
    // The kernel accepts the connection.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let url = format!("postgres://agent@127.0.0.1:{port}/agents?connect_timeout=1");
    let connecting = PostgresStorage::connect(&url);
    let result = tokio::time::timeout(Duration::from_secs(60), connecting).await;
    let error = result.expect("the connect never ends").unwrap_err();
    assert!(matches!(error, Error::Storage { .. }), "{error}");
}

#[cfg(feature = "postgres-tls")]
#[tokio::test(flavor = "multi_thread")]
async fn tls_is_used_if_asked_for_and_checks_the_certificate() {
    use agent_snapshot::Tls;

    let port = crate::free_port::free_port();
    let (server, certificate) = PostgresServer::start_with_tls(port);
    let connect = async |host: &str, tls: Tls| {
        let url = format!("postgres://postgres@{host}:{port}/postgres");
        PostgresStorage::builder(&url).tls(tls).connect().await
    };
    let storage = connect("localhost", Tls::Roots(certificate.clone())).await;
    let storage = storage.unwrap();
    storage.save(&blank("a")).await.unwrap();
    let encrypted = "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name = 'agent-snapshot'";
    assert_eq!(server.sql(encrypted), "t");

    // Another host name than that in the certificate, and an authority that is not known.
    let by_address = connect("127.0.0.1", Tls::Roots(certificate)).await;
    assert!(by_address.is_err());
    assert!(connect("localhost", Tls::SystemRoots).await.is_err());
    let url = format!("postgres://postgres@localhost:{port}/postgres?sslmode=require");
    assert!(PostgresStorage::connect(&url).await.is_err());
}
