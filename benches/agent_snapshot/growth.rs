//! What a long history costs: each tick adds a message of 1 KB, and nothing is trimmed.

use std::{
    fs,
    hint::black_box,
    path::Path,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use agent_snapshot::{FileStorage, MemoryStorage, RedisStorage, SnapshotStorage, SqliteStorage};
use benches::{Bench, Goal};
use tokio::runtime::Runtime;

use crate::{
    raw::{self, Agent},
    redis_server::RedisServer,
    scratch, together,
};

const MESSAGE: usize = 1 << 10;

/// Figures over the number of messages.
type Points = Vec<(usize, f64)>;

/// What one contender takes, in nanoseconds.
#[derive(Default)]
struct Costs {
    save: Points,
    load: Points,
}

pub fn run(bench: &mut Bench, runtime: &Runtime, redis: &RedisServer) {
    let sizes: &[usize] = if bench.is_smoke() {
        &[10, 100]
    } else {
        &[10, 100, 1_000, 10_000]
    };
    let folder = scratch();
    let file = FileStorage::open(folder.path().join("files"));
    let sqlite = SqliteStorage::open(folder.path().join("ours.db"));
    let server = runtime.block_on(RedisStorage::connect(&redis.url()));
    let storages: [(&str, Arc<dyn SnapshotStorage>); 4] = [
        ("MemoryStorage", Arc::new(MemoryStorage::new())),
        ("FileStorage", Arc::new(runtime.block_on(file).unwrap())),
        ("SqliteStorage", Arc::new(runtime.block_on(sqlite).unwrap())),
        ("RedisStorage", Arc::new(server.unwrap())),
    ];
    let mut ours = Vec::new();
    for (name, storage) in storages {
        bench.progress(&format!("growth, {name}"));
        ours.push((name, grow(bench, runtime, name, &*storage, sizes)));
        runtime.block_on(storage.close()).unwrap();
    }
    bytes_together(bench, runtime);
    bench.progress("growth, the raw ways");
    let peers = [
        ("rewriting a file", rewriting_file(sizes)),
        ("raw rusqlite, rewriting the row", rewriting_row(sizes)),
        ("raw SET of the whole", setting(redis, sizes)),
        ("LangGraph SqliteSaver", langgraph(bench, sizes)),
    ];
    type Pick = fn(&Costs) -> &Points;
    let what: [(&str, Pick); 2] = [
        ("save of one more message", |costs| &costs.save),
        ("load", |costs| &costs.load),
    ];
    for (name, pick) in what {
        let mut growth = bench.growth(name, "messages", "ns");
        for (name, costs) in &ours {
            growth = growth.ours(name, pick(costs).clone());
        }
        for (name, costs) in &peers {
            growth = growth.peer(name, pick(costs).clone());
        }
        growth.report();
    }
}

/// Grows one agent tick by tick.
fn grow(
    bench: &mut Bench,
    runtime: &Runtime,
    name: &str,
    storage: &dyn SnapshotStorage,
    sizes: &[usize],
) -> Costs {
    let ticks = sizes.last().copied().unwrap_or_default();
    let mut agent = Agent::new("growth", MESSAGE);
    let mut times = Vec::with_capacity(ticks);
    let mut load = Vec::new();
    let mut information = 0;
    let (written, mut total) = (bytes_written(), Duration::ZERO);
    for tick in 1..=ticks {
        agent.grow();
        information += agent.last().len();
        let start = Instant::now();
        runtime.block_on(storage.save(&agent.snapshot)).unwrap();
        times.push(start.elapsed());
        total += start.elapsed();
        if sizes.contains(&tick) {
            let id = &agent.snapshot.agent_id;
            load.push(point(tick, || {
                black_box(runtime.block_on(storage.load(id)).unwrap());
            }));
        }
    }
    let written = bytes_written() - written;
    let window = ticks / 20;
    // The first save makes the files.
    let first = median(&times[1..=window]);
    let last = median(&times[ticks - window..]);
    bench.figure(
        &format!("growth to {ticks} messages, {name}: last saves / first"),
        last.as_secs_f64() / first.as_secs_f64(),
        "times",
        Some(Goal::at_most(1.15)),
    );
    bench.figure(
        &format!("growth to {ticks} messages, {name}: total"),
        total.as_secs_f64(),
        "s",
        None,
    );
    let goal = match name {
        "FileStorage" => Some(Goal::at_most(3.0)),
        "SqliteStorage" => Some(Goal::at_most(3.0).limited_by(SQLITE_BYTES)),
        _ => None,
    };
    if let Some(goal) = goal {
        bench.figure(
            &format!("growth, {name}: bytes written / information"),
            written as f64 / information as f64,
            "times",
            Some(goal),
        );
    }
    let save = sizes.iter().map(|&size| {
        // The tenth of the ticks that leads up to a size.
        let from = (size - size / 10).min(size - 5);
        (size, nanoseconds(median(&times[from..size])))
    });
    Costs {
        save: save.collect(),
        load,
    }
}

const SQLITE_BYTES: &str = "a commit of one message of 1 KB writes whole pages of 4 KB: the \
    message's, the agent's row, every third time two more, and new ones once again at the \
    checkpoint; the smallest pages that SQLite has, 512 bytes, would reach 3.4 and take three \
    times the processor time with 64 agents; agents that save together share the pages";

/// What agents write that share their commits.
fn bytes_together(bench: &mut Bench, runtime: &Runtime) {
    const AGENTS: usize = 64;
    let folder = scratch();
    let storage = SqliteStorage::open(folder.path().join("ours.db"));
    let storage = Arc::new(runtime.block_on(storage).unwrap());
    let agents = (0..AGENTS).map(|n| Agent::new(&format!("agent-{n}"), MESSAGE));
    let rounds = if bench.is_smoke() { 2 } else { 64 };
    let mut save = together(runtime, storage.clone(), agents.collect(), rounds);
    let written = bytes_written();
    save();
    runtime.block_on(storage.close()).unwrap();
    let written = bytes_written() - written;
    let mut agent = Agent::new("agent-0", MESSAGE);
    agent.grow();
    let information = agent.last().len() * AGENTS * rounds as usize;
    bench.figure(
        "growth, SqliteStorage, 64 agents together: bytes written / information",
        written as f64 / information as f64,
        "times",
        None,
    );
}

/// What this process has handed to write calls so far.
fn bytes_written() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn rewriting_file(sizes: &[usize]) -> Costs {
    let folder = scratch();
    rewriting(
        sizes,
        |agent| raw::rewrite_file(folder.path(), &agent.snapshot),
        |_| {
            let bytes = fs::read(folder.path().join("floor.json")).unwrap();
            black_box(serde_json::from_slice::<agent_snapshot::AgentSnapshot>(&bytes).unwrap());
        },
    )
}

fn rewriting_row(sizes: &[usize]) -> Costs {
    let folder = scratch();
    let database = raw::database(&folder.path().join("raw.db"));
    rewriting(
        sizes,
        |agent| raw::replace_row(&database, &agent.snapshot),
        |agent| {
            black_box(raw::load_row(&database, &agent.snapshot.agent_id));
        },
    )
}

fn setting(redis: &RedisServer, sizes: &[usize]) -> Costs {
    let connection = std::cell::RefCell::new(redis.connection());
    rewriting(
        sizes,
        |agent| raw::set(&mut connection.borrow_mut(), &agent.snapshot),
        |_| {
            let mut connection = connection.borrow_mut();
            let bytes: Vec<u8> = redis::cmd("GET")
                .arg("raw")
                .query(&mut *connection)
                .unwrap();
            black_box(serde_json::from_slice::<agent_snapshot::AgentSnapshot>(&bytes).unwrap());
        },
    )
}

/// Who writes everything each time need not be led up to a size tick by tick.
fn rewriting(sizes: &[usize], mut save: impl FnMut(&Agent), load: impl Fn(&Agent)) -> Costs {
    let mut costs = Costs::default();
    let mut agent = Agent::new("raw", MESSAGE);
    for &size in sizes {
        while agent.snapshot.memory.short_term_history.len() + 7 < size {
            agent.grow();
        }
        costs.save.push(point(size, || {
            agent.grow();
            save(&agent);
        }));
        costs.load.push(point(size, || load(&agent)));
    }
    costs
}

/// The middle of seven.
fn point(size: usize, mut work: impl FnMut()) -> (usize, f64) {
    let times: Vec<Duration> = (0..7)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        })
        .collect();
    (size, nanoseconds(median(&times)))
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

/// LangGraph's SqliteSaver, where its packages are installed.
fn langgraph(bench: &mut Bench, sizes: &[usize]) -> Costs {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/langgraph_peer.py");
    let ticks = if bench.is_smoke() { "20" } else { "1000" };
    let sizes = sizes.iter().map(usize::to_string);
    let output = Command::new("python3")
        .arg(script)
        .arg(ticks)
        .args(sizes)
        .output();
    let mut costs = Costs::default();
    let Some(output) = output.ok().filter(|output| output.status.success()) else {
        println!(
            "agent-snapshot: LangGraph is not installed (pip install langgraph-checkpoint-sqlite): left out"
        );
        return costs;
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        match parts[..] {
            ["save", size, ns] => costs
                .save
                .push((size.parse().unwrap(), ns.parse().unwrap())),
            ["load", size, ns] => costs
                .load
                .push((size.parse().unwrap(), ns.parse().unwrap())),
            [name, value, unit] => bench.figure(name, value.parse().unwrap(), unit, None),
            _ => panic!("not understood: {line}"),
        }
    }
    costs
}
