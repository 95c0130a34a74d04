//! PostgresStorage beside raw tokio-postgres.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::{AgentSnapshot, PostgresStorage, SnapshotStorage};
use benches::{Bench, Goal};
use examples::postgres_server::PostgresServer;
use tokio::runtime::Runtime;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, NoTls, Statement};

use crate::raw::{self, Agent};
use crate::together;

/// A connection of its own with a prepared statement.
struct Raw {
    client: Client,
    upsert: Statement,
}

impl Raw {
    fn connect(runtime: &Runtime, server: &PostgresServer) -> Self {
        runtime.block_on(async {
            let url = server.url();
            let config = url.strip_prefix("postgres:").unwrap();
            let (client, driver) = tokio_postgres::connect(config, NoTls).await.unwrap();
            tokio::spawn(driver);
            let table = "CREATE TABLE IF NOT EXISTS snapshots
                (agent text PRIMARY KEY, tick bigint, json text)";
            client.batch_execute(table).await.unwrap();
            let upsert = "INSERT INTO snapshots VALUES ($1, $2, $3) ON CONFLICT (agent) DO UPDATE
                SET tick = excluded.tick, json = excluded.json
                WHERE snapshots.tick < excluded.tick";
            let upsert = client.prepare(upsert).await.unwrap();
            Self { client, upsert }
        })
    }

    async fn upsert(&self, snapshot: &AgentSnapshot) {
        let json = String::from_utf8(raw::json(snapshot)).unwrap();
        let tick = snapshot.tick_index.cast_signed();
        let name = snapshot.agent_id.as_str();
        let parameters: [&(dyn ToSql + Sync); 3] = [&name, &tick, &json];
        let changed = self.client.execute(&self.upsert, &parameters).await;
        assert_eq!(changed.unwrap(), 1);
    }
}

pub fn run(bench: &mut Bench, runtime: &Runtime) {
    // Not on the disk of the benches: the path of a socket must be short.
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    let server = PostgresServer::start(folder.path()).unwrap();
    let url = server.url();
    let connect = || {
        let storage = PostgresStorage::connect(url.strip_prefix("postgres:").unwrap());
        Arc::new(runtime.block_on(storage).unwrap())
    };
    for (size, name) in [
        (1 << 10, "1 KB"),
        (10 << 10, "10 KB"),
        (100 << 10, "100 KB"),
    ] {
        let raw = Raw::connect(runtime, &server);
        let floor = RefCell::new(Agent::new(&format!("raw-{size}"), size));
        let ours = RefCell::new(Agent::new(&format!("ours-{size}"), size));
        let storage = connect();
        let mut comparison = bench
            .compare(&format!("save {name}, PostgreSQL"))
            .floor_timed("raw tokio-postgres, prepared upsert", || {
                let mut agent = floor.borrow_mut();
                let snapshot = agent.tick();
                let start = Instant::now();
                runtime.block_on(raw.upsert(snapshot));
                start.elapsed()
            })
            .differs("keeps only the last snapshot")
            .ours_timed("PostgresStorage", || {
                let mut agent = ours.borrow_mut();
                let snapshot = agent.tick();
                let start = Instant::now();
                runtime.block_on(storage.save(snapshot)).unwrap();
                start.elapsed()
            });
        if size == 10 << 10 {
            comparison = comparison.goal(Goal::at_most_floor(1.25)).headline();
        }
        comparison.run();
    }
    writers(bench, runtime, &connect);
}

fn writers(bench: &mut Bench, runtime: &Runtime, connect: &dyn Fn() -> Arc<PostgresStorage>) {
    const EACH: &str = "PostgresStorage, one save per round trip";
    let rounds = if bench.is_smoke() { 1 } else { 4 };
    let pool = |name: &str| -> Vec<Agent> {
        (0..64)
            .map(|n| Agent::new(&format!("{name}-{n}"), 10 << 10))
            .collect()
    };
    let storage = connect();
    let mut alone = pool("alone");
    let one_by_one = || -> Duration {
        let start = Instant::now();
        for agent in &mut alone {
            runtime.block_on(storage.save(agent.tick())).unwrap();
        }
        start.elapsed()
    };
    bench
        .compare("64 agents save 10 KB each, PostgreSQL")
        .ours_timed(
            "PostgresStorage",
            together(runtime, connect(), pool("together"), rounds),
        )
        .peer_timed(EACH, one_by_one)
        .goal(Goal::peer_at_least(EACH, 4.0).limited_by(
            "a batch shares the round trip and the commit; the server still runs the statements \
             of each save, on the same two cores",
        ))
        .headline()
        .run();
}
