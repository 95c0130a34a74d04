//! The cost of a long history: each tick adds a message of 1 KB, and nothing is trimmed.

use std::cell::RefCell;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_snapshot::{
    AgentSnapshot, FileStorage, MemoryStorage, PostgresStorage, RedisStorage, SnapshotStorage,
    SqliteStorage,
};
use benches::{Bench, Figure, Goal, Outside, median, python, sample, scratch, thousands};
use examples::postgres_server::PostgresServer;
use examples::redis_server::RedisServer;
use tokio::runtime::Runtime;

use crate::raw::{self, Agent};
use crate::together;

const MESSAGE: usize = 1 << 10;

/// Saves and loads of each contender at each size. Few, because each save adds a message.
const SAMPLES: usize = 10;

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
    let socket = tempfile::tempdir_in("/tmp").unwrap();
    let postgres = PostgresServer::start(socket.path()).unwrap();
    let url = postgres.url();
    let rows = PostgresStorage::connect(url.strip_prefix("postgres:").unwrap());
    let mut ours = [
        Ours::new("MemoryStorage", Arc::new(MemoryStorage::new())),
        Ours::new("FileStorage", Arc::new(runtime.block_on(file).unwrap())),
        Ours::new("SqliteStorage", Arc::new(runtime.block_on(sqlite).unwrap())),
        Ours::new("RedisStorage", Arc::new(server.unwrap())),
        Ours::new("PostgresStorage", Arc::new(runtime.block_on(rows).unwrap())),
    ];
    let database = raw::database(&folder.path().join("raw.db"));
    let connection = RefCell::new(raw::connect(redis));
    let mut whole = [
        Whole {
            name: "rewriting a file",
            save: &|agent| raw::rewrite_file(folder.path(), &agent.snapshot),
            load: &|_| {
                let bytes = fs::read(folder.path().join("floor.json")).unwrap();
                serde_json::from_slice(&bytes).unwrap()
            },
            agent: Agent::new("raw", MESSAGE),
        },
        Whole {
            name: "raw rusqlite, rewriting the row",
            save: &|agent| raw::replace_row(&database, &agent.snapshot),
            load: &|agent| raw::load_row(&database, &agent.snapshot.agent_id),
            agent: Agent::new("raw", MESSAGE),
        },
        Whole {
            name: "raw SET of the whole",
            save: &|agent| raw::set(&mut connection.borrow_mut(), &agent.snapshot),
            load: &|_| raw::get(&mut connection.borrow_mut()),
            agent: Agent::new("raw", MESSAGE),
        },
    ];
    let mut langgraph = langgraph(bench, &folder.path().join("langgraph"));
    let (mut saves, mut loads) = (Vec::new(), Vec::new());
    for &size in sizes {
        bench.progress(&format!("growth to {} messages", thousands(size)));
        for ours in &mut ours {
            ours.grow(runtime, size);
        }
        for whole in &mut whole {
            whole.agent.grow_to(size);
        }
        let name = format!("save of one more message, {} messages", thousands(size));
        let mut comparison = bench.compare(&name).only_samples(SAMPLES);
        for ours in &mut ours {
            comparison = comparison
                .ours_timed(ours.name, || {
                    settle();
                    ours.save(runtime)
                })
                .differs(COLD);
        }
        for whole in &mut whole {
            comparison = comparison
                .peer_timed(whole.name, || {
                    settle();
                    whole.save()
                })
                .differs("writes the whole history in each save");
        }
        if let Some(langgraph) = &mut langgraph {
            langgraph.ask(&format!("grow {size}"));
            comparison = comparison
                .peer_timed(LANGGRAPH, || {
                    settle();
                    langgraph.time("save")
                })
                .differs(EVERY_CHECKPOINT);
        }
        saves.push((size, comparison.run()));

        let name = format!("load, {} messages", thousands(size));
        let mut comparison = bench.compare(&name).only_samples(SAMPLES);
        for ours in &ours {
            comparison = comparison.ours_timed(ours.name, || ours.load(runtime));
        }
        for whole in &whole {
            comparison = comparison.peer_timed(whole.name, || whole.load());
        }
        if let Some(langgraph) = &mut langgraph {
            comparison = comparison.peer_timed(LANGGRAPH, || langgraph.time("load"));
        }
        loads.push((size, comparison.run()));
    }
    for (name, runs) in [("save of one more message", saves), ("load", loads)] {
        bench.growth(name, "messages", "ns").rows(&runs).report();
    }
    let last = sizes.last().copied().unwrap_or_default();
    figures(bench, runtime, &mut ours, last);
    for ours in ours {
        runtime.block_on(ours.storage.close()).unwrap();
    }
    ticks(bench, runtime);
}

/// Flushes the disk cache. Otherwise the sync of one contender also writes the data that another
/// one, such as Redis, has left in the cache.
fn settle() {
    rustix::fs::sync();
}

const COLD: &str = "with cold caches, because other contenders write megabytes in between; with \
    warm caches a save takes as long as one of a new agent";
const LANGGRAPH: &str = "LangGraph SqliteSaver";
const EVERY_CHECKPOINT: &str = "writes the whole history in each save and keeps every checkpoint";

/// LangGraph's SqliteSaver in its own folder, if it is installed.
fn langgraph(bench: &mut Bench, folder: &Path) -> Option<Outside> {
    fs::create_dir(folder).unwrap();
    let texts: Vec<String> = (1..=1_000).map(|n| sample::message(n, MESSAGE)).collect();
    let data = folder.with_extension("json");
    fs::write(&data, serde_json::to_vec(&texts).unwrap()).unwrap();
    bench.outside(
        "LangGraph",
        python("langgraph_peer.py").arg(folder).arg(data),
    )
}

/// One of our storages, and an agent that it saves tick by tick.
struct Ours {
    name: &'static str,
    storage: Arc<dyn SnapshotStorage>,
    agent: Agent,
    /// Times of the saves without other contenders in between.
    times: Vec<Duration>,
    /// Bytes that these saves wrote, and the bytes of their messages.
    written: u64,
    information: usize,
}

impl Ours {
    fn new(name: &'static str, storage: Arc<dyn SnapshotStorage>) -> Self {
        Self {
            name,
            storage,
            agent: Agent::new("growth", MESSAGE),
            times: Vec::new(),
            written: 0,
            information: 0,
        }
    }

    fn grow(&mut self, runtime: &Runtime, size: usize) {
        let before = bytes_written();
        while self.agent.snapshot.memory.short_term_history.len() < size {
            let took = self.save(runtime);
            self.times.push(took);
            self.information += self.agent.last().len();
        }
        self.written += bytes_written() - before;
    }

    /// The next tick.
    fn save(&mut self, runtime: &Runtime) -> Duration {
        let snapshot = self.agent.grow();
        let start = Instant::now();
        runtime.block_on(self.storage.save(snapshot)).unwrap();
        start.elapsed()
    }

    /// The time of a save with the long history divided by that of a new agent. Both take turns: the
    /// first and the last saves of a run are not comparable, because other conditions change too.
    fn old_by_new(&mut self, runtime: &Runtime, turns: usize) -> f64 {
        let mut new = Self {
            agent: Agent::new("new", MESSAGE),
            ..Self::new(self.name, Arc::clone(&self.storage))
        };
        // The first save creates the files and is not counted.
        new.save(runtime);
        let (old, new): (Vec<_>, Vec<_>) = (0..turns)
            .map(|_| (self.save(runtime), new.save(runtime)))
            .unzip();
        median(&old).as_secs_f64() / median(&new).as_secs_f64()
    }

    fn load(&self, runtime: &Runtime) -> Duration {
        let start = Instant::now();
        let id = &self.agent.snapshot.agent_id;
        black_box(runtime.block_on(self.storage.load(id)).unwrap());
        start.elapsed()
    }
}

/// A contender that writes the whole history in each save. It can start at any size.
struct Whole<'a> {
    name: &'static str,
    save: &'a dyn Fn(&Agent),
    load: &'a dyn Fn(&Agent) -> AgentSnapshot,
    agent: Agent,
}

impl Whole<'_> {
    fn save(&mut self) -> Duration {
        self.agent.grow();
        let start = Instant::now();
        (self.save)(&self.agent);
        start.elapsed()
    }

    fn load(&self) -> Duration {
        let start = Instant::now();
        black_box((self.load)(&self.agent));
        start.elapsed()
    }
}

fn figures(bench: &mut Bench, runtime: &Runtime, ours: &mut [Ours], messages: usize) {
    let together = bytes_together(bench, runtime);
    let turns = if bench.is_smoke() { 5 } else { 200 };
    let mut table = bench.table(
        &format!("save by save to {} messages of 1 KB", thousands(messages)),
        &[
            ("then a save / one of a new agent", ""),
            ("in all", "s"),
            ("bytes written / information", ""),
        ],
    );
    for ours in ours {
        let total: Duration = ours.times.iter().sum();
        let ratio = Figure::from(ours.old_by_new(runtime, turns)).goal(Goal::at_most(1.15));
        let bytes = Figure::from(ours.written as f64 / ours.information as f64);
        let bytes = match ours.name {
            "FileStorage" => bytes.goal(Goal::at_most(3.0)),
            "SqliteStorage" => bytes.goal(Goal::at_most(3.0).limited_by(SQLITE_BYTES)),
            _ => Figure::none(),
        };
        table = table.ours(ours.name, [ratio, total.as_secs_f64().into(), bytes]);
    }
    table
        .ours(
            "SqliteStorage, 64 agents together",
            [Figure::none(), Figure::none(), together.into()],
        )
        .report();
}

/// The median of the last 5 % divided by that of the first 5 %, without the save that creates the
/// files.
fn last_by_first(times: &[Duration]) -> f64 {
    let window = (times.len() / 20).max(1);
    let (first, last) = (&times[1..=window], &times[times.len() - window..]);
    median(last).as_secs_f64() / median(first).as_secs_f64()
}

const SQLITE_BYTES: &str = "a commit writes whole pages of 4 KB, even for a message of 1 KB: the \
    page of the message, that of the agent's row, and in every third commit two more; the \
    checkpoint writes new pages a second time. Pages of 512 bytes, the smallest, would reach 3.4 \
    and take three times the processor time with 64 agents. Agents that save together share pages";

/// Bytes written for each byte of a message, if agents share their commits.
fn bytes_together(bench: &Bench, runtime: &Runtime) -> f64 {
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
    let each = (0..rounds).map(|_| {
        agent.grow();
        agent.last().len()
    });
    let information = each.sum::<usize>() * AGENTS;
    written as f64 / information as f64
}

/// The bytes that this process has passed to write calls so far.
fn bytes_written() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// The total time of the first ticks of an agent, in turns with LangGraph.
fn ticks(bench: &mut Bench, runtime: &Runtime) {
    let ticks = if bench.is_smoke() { 20 } else { 1_000 };
    let folder = scratch();
    let [files, database, peer] = ["files", "sqlite", "langgraph"].map(|n| folder.path().join(n));
    fs::create_dir(&database).unwrap();
    let mut langgraph = langgraph(bench, &peer);
    let file = runtime.block_on(FileStorage::open(&files)).unwrap();
    let sqlite = SqliteStorage::open(database.join("ours.db"));
    let sqlite = runtime.block_on(sqlite).unwrap();
    let mut ours = [
        (Ours::new("FileStorage", Arc::new(file)), files),
        (Ours::new("SqliteStorage", Arc::new(sqlite)), database),
    ];
    let mut theirs = Vec::new();
    for _ in 0..ticks {
        for (ours, _) in &mut ours {
            let took = ours.save(runtime);
            ours.times.push(took);
        }
        theirs.extend(langgraph.as_mut().map(|langgraph| langgraph.time("save")));
    }
    let mut table = bench.table(
        &format!(
            "{} saves, a message of 1 KB more each, in turns",
            thousands(ticks)
        ),
        &[
            ("last saves / first", ""),
            ("in all", "s"),
            ("on disk", "MB"),
        ],
    );
    let row = |times: &[Duration], bytes: u64| {
        let total: Duration = times.iter().sum();
        let figures = [
            last_by_first(times),
            total.as_secs_f64(),
            bytes as f64 / 1e6,
        ];
        figures.map(Figure::from)
    };
    for (ours, folder) in &ours {
        table = table.ours(ours.name, row(&ours.times, size_of(folder)));
    }
    if let Some(langgraph) = &mut langgraph {
        let bytes = langgraph.ask("size").parse().unwrap();
        table = table
            .peer(LANGGRAPH, row(&theirs, bytes))
            .differs(EVERY_CHECKPOINT);
    }
    table.report();
}

/// The bytes of the files in a folder.
fn size_of(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    entries
        .map(|entry| match entry.metadata().unwrap() {
            kind if kind.is_dir() => size_of(&entry.path()),
            file => file.len(),
        })
        .sum()
}
