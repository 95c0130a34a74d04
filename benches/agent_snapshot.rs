//! Snapshots: save and load beside raw files, raw SQLite, raw Redis and raw PostgreSQL; many agents at
//! once; and the cost of a long history.

use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::{
    AgentSnapshot, FileStorage, MemoryStorage, RedisStorage, SnapshotStorage, SqliteStorage,
};
use benches::{Bench, Goal, Step, scratch};
use examples::redis_server::{RedisServer, SyncLog};
use tokio::runtime::Runtime;

#[path = "agent_snapshot/growth.rs"]
mod growth;
#[path = "agent_snapshot/postgres.rs"]
mod postgres;
#[path = "agent_snapshot/raw.rs"]
mod raw;

use raw::Agent;

fn main() {
    let bench = Bench::from_args("agent-snapshot");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    // Not on the disk of the benches: the path of a socket must be short.
    let folder = tempfile::tempdir().unwrap();
    let redis = RedisServer::start(folder.path(), SyncLog::EverySecond).unwrap();
    let sizes = [
        (1 << 10, "1 KB"),
        (10 << 10, "10 KB"),
        (100 << 10, "100 KB"),
        (1 << 20, "1 MB"),
    ];
    bench.steps(vec![
        Step::new("save", 12, 2.0, |bench| {
            for (size, name) in sizes {
                save(bench, &runtime, &redis, size, name);
            }
        }),
        Step::new("load", 12, 1.0, |bench| {
            for (size, name) in sizes {
                load(bench, &runtime, &redis, size, name);
            }
        }),
        Step::new("writers", 7, 1.0, |bench| writers(bench, &runtime)),
        Step::new("postgres", 4, 2.0, |bench| postgres::run(bench, &runtime)),
        Step::new("growth", 0, 30.0, |bench| {
            growth::run(bench, &runtime, &redis);
        }),
    ]);
}

fn save(bench: &mut Bench, runtime: &Runtime, redis: &RedisServer, size: usize, name: &str) {
    let folder = scratch();
    let at_10_kb = size == 10 << 10;
    let ours = |storage: Arc<dyn SnapshotStorage>, name: &str| {
        let agent = RefCell::new(Agent::new(name, size));
        move || {
            let mut agent = agent.borrow_mut();
            let snapshot = agent.tick();
            let start = Instant::now();
            runtime.block_on(storage.save(snapshot)).unwrap();
            start.elapsed()
        }
    };
    let file = FileStorage::open(folder.path().join("files"));
    let file = Arc::new(runtime.block_on(file).unwrap());
    let rewrite = |agent: &Agent| raw::rewrite_file(folder.path(), &agent.snapshot);
    let mut comparison = bench
        .compare(&format!("save {name}, file"))
        .floor_timed(
            "serialise, write, fsync, rename, fsync folder",
            by_hand(size, rewrite),
        )
        .differs("keeps only the last snapshot and does not compare the tick")
        .ours_timed("FileStorage", ours(file, "file"));
    if at_10_kb {
        comparison = comparison.goal(Goal::at_most_floor(0.6)).headline();
    }
    comparison.run();

    let sqlite = SqliteStorage::open(folder.path().join("ours.db"));
    let sqlite = Arc::new(runtime.block_on(sqlite).unwrap());
    let database = raw::database(&folder.path().join("raw.db"));
    let replace = |agent: &Agent| raw::replace_row(&database, &agent.snapshot);
    let append = |agent: &Agent| raw::append_row(&database, agent);
    let thread = raw::Thread::start(raw::database(&folder.path().join("thread.db")));
    let mut passed = Some(Agent::new("raw", size));
    let append_on_thread = || {
        let mut agent = passed.take().unwrap();
        agent.tick();
        let start = Instant::now();
        passed = Some(runtime.block_on(thread.append_row(agent)));
        start.elapsed()
    };
    let mut comparison = bench
        .compare(&format!("save {name}, SQLite"))
        .floor_timed("raw rusqlite, replacing a row", by_hand(size, replace))
        .differs("keeps only the last snapshot; blocks the calling thread")
        .peer_timed("raw rusqlite, appending a row", by_hand(size, append))
        .differs("no digests; blocks the calling thread")
        .peer_timed("the same on a thread, a channel each way", append_on_thread)
        .differs("no digests")
        .ours_timed("SqliteStorage", ours(sqlite, "sqlite"));
    if at_10_kb {
        let goal = Goal::at_most_floor(1.10);
        let goal = goal.limited_by(
            "the message to the writer thread and back, which the floor does not have; a raw \
             connection on a thread of its own takes as long",
        );
        comparison = comparison.goal(goal).headline();
    }
    comparison.run();

    let server = runtime.block_on(RedisStorage::connect(&redis.url()));
    let server = Arc::new(server.unwrap());
    let connection = RefCell::new(raw::connect(redis));
    let set = |agent: &Agent| raw::set(&mut connection.borrow_mut(), &agent.snapshot);
    let mut comparison = bench
        .compare(&format!("save {name}, Redis"))
        .floor_timed("raw SET", by_hand(size, set))
        .differs("keeps only the last snapshot, does not compare the tick, blocking connection")
        .ours_timed("RedisStorage", ours(server, &format!("save-{size}")));
    if at_10_kb {
        comparison = comparison.headline();
    }
    comparison.run();
}

/// The time of a save by raw calls, one tick each.
fn by_hand(size: usize, save: impl Fn(&Agent)) -> impl FnMut() -> Duration {
    let mut agent = Agent::new("raw", size);
    move || {
        agent.tick();
        let start = Instant::now();
        save(&agent);
        start.elapsed()
    }
}

fn load(bench: &mut Bench, runtime: &Runtime, redis: &RedisServer, size: usize, name: &str) {
    let folder = scratch();
    let mut agent = Agent::new(&format!("load-{size}"), size);
    let snapshot = agent.tick();
    let id = &snapshot.agent_id;
    let open = |storage: Arc<dyn SnapshotStorage>| {
        runtime.block_on(storage.save(snapshot)).unwrap();
        storage
    };
    let file = FileStorage::open(folder.path().join("f"));
    let sqlite = SqliteStorage::open(folder.path().join("o.db"));
    let connection = RefCell::new(raw::connect(redis));
    raw::set(&mut connection.borrow_mut(), snapshot);
    let redis = runtime.block_on(RedisStorage::connect(&redis.url()));
    let memory = open(Arc::new(MemoryStorage::new()));
    let file = open(Arc::new(runtime.block_on(file).unwrap()));
    let sqlite = open(Arc::new(runtime.block_on(sqlite).unwrap()));
    let redis = open(Arc::new(redis.unwrap()));
    let database = raw::database(&folder.path().join("raw.db"));
    raw::replace_row(&database, snapshot);
    raw::rewrite_file(folder.path(), snapshot);
    let path = folder.path().join("floor.json");
    let parse = |bytes: &[u8]| {
        black_box(serde_json::from_slice::<AgentSnapshot>(bytes).unwrap());
    };
    let load = |storage: Arc<dyn SnapshotStorage>| {
        move || {
            black_box(runtime.block_on(storage.load(id)).unwrap().unwrap());
        }
    };
    let headline = |comparison: benches::Comparison<'_>| {
        if size == 10 << 10 {
            comparison.headline().run();
        } else {
            comparison.run();
        }
    };
    headline(
        bench
            .compare(&format!("load {name}, file"))
            .floor("tokio::fs::read, parse", || {
                parse(&runtime.block_on(tokio::fs::read(&path)).unwrap());
            })
            .differs("one file, no lock, no log, no checksum")
            .ours("FileStorage", load(file))
            .ours("MemoryStorage", load(memory))
            .differs("the data is lost with the process")
            .peer("std::fs::read, parse", || parse(&fs::read(&path).unwrap()))
            .differs("like the floor, but blocks the calling thread"),
    );
    headline(
        bench
            .compare(&format!("load {name}, SQLite"))
            .floor("raw rusqlite", || {
                black_box(raw::load_row(&database, id));
            })
            .differs("no digests; blocks the calling thread")
            .ours("SqliteStorage", load(sqlite)),
    );
    headline(
        bench
            .compare(&format!("load {name}, Redis"))
            .floor("raw GET", || {
                black_box(raw::get(&mut connection.borrow_mut()));
            })
            .differs("keeps only the last snapshot, no digests, blocking connection")
            .ours("RedisStorage", load(redis)),
    );
}

/// Several agents save at the same time; the time for one save of each.
fn writers(bench: &mut Bench, runtime: &Runtime) {
    const EACH: &str = "a transaction for each save, one connection";
    const REPLACING: &str = "the same, replacing one row";
    let rounds = if bench.is_smoke() { 1 } else { 8 };
    let mut sqlite = Vec::new();
    let mut each = Vec::new();
    let mut files = Vec::new();
    for agents in [1, 2, 4, 8, 16, 32, 64] {
        let folder = scratch();
        let database = raw::database(&folder.path().join("one.db"));
        let storage = SqliteStorage::open(folder.path().join("ours.db"));
        let storage = runtime.block_on(storage).unwrap();
        let file = FileStorage::open(folder.path().join("files"));
        let file = runtime.block_on(file).unwrap();
        let pool = || -> Vec<Agent> {
            let name = |n| format!("agent-{n}");
            (0..agents)
                .map(|n| Agent::new(&name(n), 10 << 10))
                .collect()
        };
        let (mut appending, mut replacing) = (pool(), pool());
        let mut comparison = bench
            .compare(&match agents {
                1 => "1 agent saves 10 KB".to_owned(),
                _ => format!("{agents} agents save 10 KB each at once"),
            })
            .ours_timed(
                "SqliteStorage",
                together(runtime, Arc::new(storage), pool(), rounds),
            )
            .ours_timed("FileStorage", together(runtime, Arc::new(file), pool(), 2))
            .differs("one sync for each save")
            .peer_timed(EACH, || {
                one_by_one(&mut appending, |agent| raw::append_row(&database, agent))
            })
            .differs("no digests; a single writer, which never waits for another")
            .peer_timed(REPLACING, || {
                one_by_one(&mut replacing, |agent| {
                    raw::replace_row(&database, &agent.snapshot);
                })
            })
            .differs(
                "no digests; a single writer, which never waits for another; keeps only the last \
                 snapshot",
            );
        if agents == 64 {
            let goal = Goal::peer_at_least(EACH, 5.0).limited_by(
                "a group commit shares only the sync, which takes a third of a millisecond on \
                 this disk; each save still encodes, inserts and writes its own pages",
            );
            comparison = comparison.goal(goal).headline();
        }
        for row in comparison.run() {
            let points = match row.name.as_str() {
                "SqliteStorage" => &mut sqlite,
                EACH => &mut each,
                "FileStorage" => &mut files,
                _ => continue,
            };
            points.push((agents, agents as f64 / (row.median_ns / 1e9)));
        }
    }
    bench
        .growth("saves of 10 KB a second", "writers", "")
        .ours("SqliteStorage", sqlite)
        .ours("FileStorage", files)
        .peer(EACH, each)
        .report();
}

/// One save of each agent, one after the other.
fn one_by_one(agents: &mut [Agent], save: impl Fn(&Agent)) -> Duration {
    let mut took = Duration::ZERO;
    for agent in agents {
        agent.tick();
        let start = Instant::now();
        save(agent);
        took += start.elapsed();
    }
    took
}

/// Saves of all agents at the same time, `rounds` each; the time for one round.
fn together<'a>(
    runtime: &'a Runtime,
    storage: Arc<dyn SnapshotStorage>,
    agents: Vec<Agent>,
    rounds: u32,
) -> impl FnMut() -> Duration + 'a {
    let mut agents = agents;
    move || {
        let pool = std::mem::take(&mut agents);
        let start = Instant::now();
        agents = runtime.block_on(async {
            let save = |mut agent: Agent| {
                let storage = storage.clone();
                async move {
                    for _ in 0..rounds {
                        storage.save(agent.tick()).await.unwrap();
                    }
                    agent
                }
            };
            let tasks: Vec<_> = pool.into_iter().map(save).map(tokio::spawn).collect();
            let mut done = Vec::new();
            for task in tasks {
                done.push(task.await.unwrap());
            }
            done
        });
        start.elapsed() / rounds
    }
}
