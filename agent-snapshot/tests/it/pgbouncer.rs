//! PostgresStorage behind a real PgBouncer in transaction mode. The conformance suite runs behind it,
//! too.

use std::sync::Arc;

use agent_snapshot::{AgentId, Error, PostgresStorage, SnapshotStorage};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::pgbouncer_server::{POOL_SIZE, PgBouncer};
use crate::postgres::{blank, tick};
use crate::postgres_server::PostgresServer;

/// 12 clients, each with its own connection to the pooler, save 8 agents each, all at once.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_share_the_few_connections_of_a_pooler() {
    const CLIENTS: usize = 12;
    let server = PostgresServer::start_with(&["fsync=off"]);
    let bouncer = PgBouncer::start(&server);
    let mut saving = Vec::new();
    for client in 0..CLIENTS {
        // All of them create the schema, or wait for the one that does.
        let url = bouncer.url();
        let storage = tokio::spawn(async move { PostgresStorage::connect(&url).await });
        saving.push(tokio::spawn(async move {
            let storage = Arc::new(storage.await.unwrap().unwrap());
            let agents = (0..8).map(|agent| {
                let (storage, mut snapshot) =
                    (storage.clone(), blank(&format!("{client} {agent}")));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        tick(&mut snapshot);
                        storage.save(&snapshot).await.unwrap();
                    }
                    let loaded = storage.load(&snapshot.agent_id).await.unwrap();
                    assert_eq!(loaded, Some(snapshot));
                })
            });
            for agent in agents.collect::<Vec<_>>() {
                agent.await.unwrap();
            }
            storage
        }));
    }
    // Kept, so that all clients are connected at the end.
    let mut storages = Vec::new();
    for saving in saving {
        storages.push(saving.await.unwrap());
    }
    assert_eq!(storages[0].list().await.unwrap().len(), CLIENTS * 8);
    let backends = server.sql(
        "SELECT count(*) FROM pg_stat_activity
         WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()",
    );
    assert!(
        backends.parse::<usize>().unwrap() <= POOL_SIZE,
        "{backends}"
    );
    let left = server.sql("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'");
    assert_eq!(left, "0");
}

/// Saves 300 ticks of one agent, and tells each tick that was acknowledged.
fn save_ticks(storage: PostgresStorage) -> (JoinHandle<PostgresStorage>, watch::Receiver<u64>) {
    let (acknowledged, seen) = watch::channel(0);
    let saving = tokio::spawn(async move {
        let mut snapshot = blank("a");
        while snapshot.tick_index < 300 {
            tick(&mut snapshot);
            // On a busy machine the restart may take longer than the retries of a save.
            while let Err(error) = storage.save(&snapshot).await {
                assert!(matches!(error, Error::Storage { .. }), "{error}");
            }
            acknowledged.send(snapshot.tick_index).unwrap();
        }
        storage
    });
    (saving, seen)
}

/// All 300 messages are there, each once.
async fn is_complete(storage: &PostgresStorage) {
    let agent = AgentId::new("a").unwrap();
    let stream = storage.stream(&agent, 0..u64::MAX).await.unwrap();
    let texts: Vec<_> = stream.iter().map(|(_, message)| &message.content).collect();
    let expected: Vec<_> = (1..=300).map(|tick| Some(format!("tick {tick}"))).collect();
    assert_eq!(texts, expected.iter().collect::<Vec<_>>());
}

/// A killed pooler leaves its last transaction to the server, which may commit it after the client
/// has sent the save again.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_killed_in_the_middle_costs_no_save() {
    let server = PostgresServer::start();
    let mut bouncer = PgBouncer::start(&server);
    let storage = PostgresStorage::connect(&bouncer.url()).await.unwrap();
    let (saving, mut seen) = save_ticks(storage);
    for limit in [20, 90, 150, 220] {
        seen.wait_for(|tick| *tick >= limit).await.unwrap();
        bouncer.kill();
        bouncer.restart();
    }
    is_complete(&saving.await.unwrap()).await;
}

/// The pooler stays; it reports the end of its connections with codes of its own.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_killed_behind_a_pooler_costs_no_save() {
    let mut server = PostgresServer::start();
    let bouncer = PgBouncer::start(&server);
    let storage = PostgresStorage::connect(&bouncer.url()).await.unwrap();
    let (saving, mut seen) = save_ticks(storage);
    for limit in [20, 90, 150, 220] {
        seen.wait_for(|tick| *tick >= limit).await.unwrap();
        server.kill();
        server.restart();
    }
    is_complete(&saving.await.unwrap()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_writers_behind_a_pooler_do_not_overwrite_each_other() {
    let server = PostgresServer::start_with(&["fsync=off"]);
    let bouncer = PgBouncer::start(&server);
    let one = PostgresStorage::connect(&bouncer.url()).await.unwrap();
    let two = PostgresStorage::connect(&bouncer.url()).await.unwrap();
    let mut snapshot = blank("a");
    for round in 1..=20 {
        tick(&mut snapshot);
        snapshot.labels.insert("writer".into(), "one".into());
        let mut other = snapshot.clone();
        other.labels.insert("writer".into(), "two".into());
        let saves = tokio::join!(one.save(&snapshot), two.save(&other));
        let (winner, error) = match saves {
            (Ok(()), Err(error)) => (snapshot.clone(), error),
            (Err(error), Ok(())) => (other, error),
            both => panic!("round {round}: {both:?}"),
        };
        assert!(matches!(error, Error::Conflict { .. }), "{error}");
        let stored = two.load(&winner.agent_id).await.unwrap();
        assert_eq!(stored.as_ref(), Some(&winner));
        snapshot = one.load(&winner.agent_id).await.unwrap().unwrap();
    }
}
