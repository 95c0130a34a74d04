//! Snapshots: saving and loading beside raw files, raw SQLite and raw Redis; many agents at
//! once; and what a long history costs.

use std::{
    cell::RefCell,
    fs::{self, File},
    hint::black_box,
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use agent_snapshot::{
    AgentId, AgentSnapshot, FileStorage, MemoryStorage, RedisStorage, SnapshotStorage,
    SqliteStorage, conversation::Message,
};
use benches::{Bench, Goal};
use rusqlite::{Connection, params};
use tokio::runtime::Runtime;

fn main() {
    let mut bench = Bench::from_args("agent-snapshot");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let redis = RedisServer::start();
    for (size, name) in [
        (1 << 10, "1 KB"),
        (10 << 10, "10 KB"),
        (100 << 10, "100 KB"),
        (1 << 20, "1 MB"),
    ] {
        save(&mut bench, &runtime, &redis, size, name);
        load(&mut bench, &runtime, &redis, size, name);
    }
    for agents in [1, 16, 64] {
        at_once(&mut bench, &runtime, agents);
    }
    growth(&mut bench, &runtime, &redis);
    langgraph(&mut bench);
}

/// An agent whose ticks each add one message of a size.
struct Agent {
    snapshot: AgentSnapshot,
    text: String,
}

impl Agent {
    fn new(name: &str, size: usize) -> Self {
        let snapshot = AgentSnapshot::new(AgentId::new(name).unwrap());
        let text = "0123456789abcdef".repeat(size / 16);
        Self { snapshot, text }
    }

    /// The next tick. Only the last messages stay in view, as in a real agent; the work is
    /// what the tick adds.
    fn tick(&mut self) -> &AgentSnapshot {
        self.snapshot.tick_index += 1;
        let history = &mut self.snapshot.memory.short_term_history;
        history.push(Message::user(self.text.clone()));
        history.drop_front(history.tail_len().saturating_sub(1));
        history.release_hidden();
        &self.snapshot
    }
}

/// What everybody writes by hand: the whole snapshot as JSON.
fn json(snapshot: &AgentSnapshot) -> Vec<u8> {
    serde_json::to_vec(snapshot).unwrap()
}

/// Serialise, write, fsync, rename, fsync of the folder.
fn floor_save(folder: &Path, snapshot: &AgentSnapshot) {
    let temporary = folder.join("floor.tmp");
    let mut file = File::create(&temporary).unwrap();
    file.write_all(&json(snapshot)).unwrap();
    file.sync_all().unwrap();
    fs::rename(&temporary, folder.join("floor.json")).unwrap();
    File::open(folder).unwrap().sync_all().unwrap();
}

fn raw_database(path: &Path) -> Connection {
    let database = Connection::open(path).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database.pragma_update(None, "synchronous", "FULL").unwrap();
    database
        .execute_batch("CREATE TABLE IF NOT EXISTS snapshots (agent TEXT PRIMARY KEY, tick INTEGER, json BLOB)")
        .unwrap();
    database.busy_timeout(Duration::from_secs(30)).unwrap();
    database
}

/// One transaction: compare the tick, replace the row.
fn raw_sqlite_save(database: &Connection, snapshot: &AgentSnapshot) {
    let json = json(snapshot);
    database
        .prepare_cached("BEGIN IMMEDIATE")
        .unwrap()
        .execute([])
        .unwrap();
    let tick = i64::try_from(snapshot.tick_index).unwrap();
    let stored: Option<i64> = database
        .prepare_cached("SELECT tick FROM snapshots WHERE agent = ?1")
        .unwrap()
        .query_row([snapshot.agent_id.as_str()], |row| row.get(0))
        .ok();
    assert!(stored.is_none_or(|stored| stored < tick));
    database
        .prepare_cached("INSERT OR REPLACE INTO snapshots VALUES (?1, ?2, ?3)")
        .unwrap()
        .execute(params![snapshot.agent_id.as_str(), tick, json])
        .unwrap();
    database
        .prepare_cached("COMMIT")
        .unwrap()
        .execute([])
        .unwrap();
}

fn save(bench: &mut Bench, runtime: &Runtime, redis: &RedisServer, size: usize, name: &str) {
    let folder = scratch();
    let at_10_kb = size == 10 << 10;
    let file = runtime
        .block_on(FileStorage::open(folder.path().join("files")))
        .unwrap();
    let sqlite = runtime
        .block_on(SqliteStorage::open(folder.path().join("ours.db")))
        .unwrap();
    let raw = raw_database(&folder.path().join("raw.db"));
    let ours = |storage: Arc<dyn SnapshotStorage>, name: &str| {
        let agent = RefCell::new(Agent::new(name, size));
        move || {
            let mut agent = agent.borrow_mut();
            let start = Instant::now();
            runtime.block_on(storage.save(agent.tick())).unwrap();
            start.elapsed()
        }
    };

    let agent = RefCell::new(Agent::new("floor", size));
    let mut comparison = bench
        .compare(&format!("save {name}, file"))
        .floor("serialise, write, fsync, rename, fsync folder", || {
            floor_save(folder.path(), agent.borrow_mut().tick());
        })
        .ours_timed("FileStorage", ours(Arc::new(file), "file"));
    if at_10_kb {
        comparison = comparison.goal(Goal::at_most_floor(0.6));
    }
    comparison.run();

    let agent = RefCell::new(Agent::new("raw", size));
    let mut comparison = bench
        .compare(&format!("save {name}, SQLite"))
        .floor("raw rusqlite, a transaction", || {
            raw_sqlite_save(&raw, agent.borrow_mut().tick())
        })
        .ours_timed("SqliteStorage", ours(Arc::new(sqlite), "sqlite"));
    if at_10_kb {
        comparison = comparison.goal(Goal::at_most_floor(1.10));
    }
    comparison.run();

    let storage = runtime
        .block_on(RedisStorage::connect(&redis.url()))
        .unwrap();
    let mut connection = redis.connection();
    let agent = RefCell::new(Agent::new("raw", size));
    bench
        .compare(&format!("save {name}, Redis"))
        .floor("raw SET", || {
            let json = json(agent.borrow_mut().tick());
            redis::cmd("SET")
                .arg("raw")
                .arg(json)
                .exec(&mut connection)
                .unwrap();
        })
        .ours_timed(
            "RedisStorage",
            ours(Arc::new(storage), &format!("save-{size}")),
        )
        .run();
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
    let memory = open(Arc::new(MemoryStorage::new()));
    let file = open(Arc::new(
        runtime
            .block_on(FileStorage::open(folder.path().join("f")))
            .unwrap(),
    ));
    let sqlite = runtime.block_on(SqliteStorage::open(folder.path().join("o.db")));
    let sqlite = open(Arc::new(sqlite.unwrap()));
    let redis = open(Arc::new(
        runtime
            .block_on(RedisStorage::connect(&redis.url()))
            .unwrap(),
    ));
    let raw = raw_database(&folder.path().join("raw.db"));
    raw_sqlite_save(&raw, snapshot);
    floor_save(folder.path(), snapshot);
    let load = |storage: Arc<dyn SnapshotStorage>| {
        move || {
            black_box(runtime.block_on(storage.load(id)).unwrap().unwrap());
        }
    };
    bench
        .compare(&format!("load {name}"))
        .floor("read and parse a file", || {
            let bytes = fs::read(folder.path().join("floor.json")).unwrap();
            black_box(serde_json::from_slice::<AgentSnapshot>(&bytes).unwrap());
        })
        .ours("FileStorage", load(file))
        .peer("raw rusqlite", || {
            let bytes: Vec<u8> = raw
                .prepare_cached("SELECT json FROM snapshots WHERE agent = ?1")
                .unwrap()
                .query_row([id.as_str()], |row| row.get(0))
                .unwrap();
            black_box(serde_json::from_slice::<AgentSnapshot>(&bytes).unwrap());
        })
        .peer("SqliteStorage", load(sqlite))
        .peer("RedisStorage", load(redis))
        .peer("MemoryStorage", load(memory))
        .run();
}

/// Agents that each save again and again, at the same time; the time for one save of each.
fn at_once(bench: &mut Bench, runtime: &Runtime, agents: usize) {
    let folder = scratch();
    let rounds = if bench.is_smoke() { 1 } else { 8 };
    let one = raw_database(&folder.path().join("one.db"));
    let together = |storage: Arc<dyn SnapshotStorage>| {
        let pool = RefCell::new(
            (0..agents)
                .map(|n| Agent::new(&format!("agent-{n}"), 10 << 10))
                .collect::<Vec<_>>(),
        );
        move || {
            let pool_now = std::mem::take(&mut *pool.borrow_mut());
            let start = Instant::now();
            let done = runtime.block_on(async {
                let tasks: Vec<_> = pool_now
                    .into_iter()
                    .map(|mut agent| {
                        let storage = storage.clone();
                        tokio::spawn(async move {
                            for _ in 0..rounds {
                                storage.save(agent.tick()).await.unwrap();
                            }
                            agent
                        })
                    })
                    .collect();
                let mut done = Vec::new();
                for task in tasks {
                    done.push(task.await.unwrap());
                }
                done
            });
            let elapsed = start.elapsed() / rounds;
            *pool.borrow_mut() = done;
            elapsed
        }
    };
    let sqlite = runtime
        .block_on(SqliteStorage::open(folder.path().join("ours.db")))
        .unwrap();
    let file = runtime
        .block_on(FileStorage::open(folder.path().join("files")))
        .unwrap();
    let turn = RefCell::new(
        (0..agents)
            .map(|n| Agent::new(&format!("one-{n}"), 10 << 10))
            .collect::<Vec<_>>(),
    );
    let mut comparison = bench
        .compare(&format!("{agents} agents save 10 KB at once"))
        .peer("a transaction for each save, one connection", || {
            for agent in turn.borrow_mut().iter_mut() {
                raw_sqlite_save(&one, agent.tick());
            }
        })
        .peer("FileStorage", {
            let save = together(Arc::new(file));
            move || {
                save();
            }
        })
        .ours_timed("SqliteStorage", together(Arc::new(sqlite)));
    if agents == 64 {
        comparison = comparison.goal(Goal::peer_at_least(
            "a transaction for each save, one connection",
            5.0,
        ));
    }
    comparison.run();
}

/// 10,000 ticks, each of which adds a message of 1 KB and trims nothing.
fn growth(bench: &mut Bench, runtime: &Runtime, redis: &RedisServer) {
    let ticks = if bench.is_smoke() { 300 } else { 10_000 };
    let folder = scratch();
    let file = runtime
        .block_on(FileStorage::open(folder.path().join("files")))
        .unwrap();
    let sqlite = runtime
        .block_on(SqliteStorage::open(folder.path().join("ours.db")))
        .unwrap();
    let server = runtime
        .block_on(RedisStorage::connect(&redis.url()))
        .unwrap();
    let storages: [(&str, Arc<dyn SnapshotStorage>); 4] = [
        ("MemoryStorage", Arc::new(MemoryStorage::new())),
        ("FileStorage", Arc::new(file)),
        ("SqliteStorage", Arc::new(sqlite)),
        ("RedisStorage", Arc::new(server)),
    ];
    for (name, storage) in storages {
        let mut agent = Agent::new("growth", 1 << 10);
        let mut times = Vec::with_capacity(ticks);
        let mut information = 0;
        let written = bytes_written();
        let start = Instant::now();
        for _ in 0..ticks {
            agent.snapshot.tick_index += 1;
            let message = Message::user(agent.text.clone());
            information += serde_json::to_vec(&message).unwrap().len();
            agent.snapshot.memory.short_term_history.push(message);
            let start = Instant::now();
            runtime.block_on(storage.save(&agent.snapshot)).unwrap();
            times.push(start.elapsed());
        }
        let total = start.elapsed();
        let written = bytes_written() - written;
        let window = ticks / 20;
        // The first save makes the files; the second half of a window is as warm as the last.
        let first = median(&times[1..=window]);
        let last = median(&times[ticks - window..]);
        let ratio = last.as_secs_f64() / first.as_secs_f64();
        bench.figure(
            &format!("growth to {ticks} messages, {name}: last saves / first"),
            ratio,
            "times",
            Some(Goal::at_most(1.15)),
        );
        bench.figure(
            &format!("growth to {ticks} messages, {name}: total"),
            total.as_secs_f64(),
            "s",
            None,
        );
        let share = written as f64 / information as f64;
        match name {
            "FileStorage" => {
                bench.figure(
                    &format!("growth, {name}: bytes written / information"),
                    share,
                    "times",
                    Some(Goal::at_most(3.0)),
                );
            }
            "SqliteStorage" => {
                bench.figure(
                    &format!("growth, {name}: bytes written, whole pages / information"),
                    share,
                    "times",
                    Some(Goal::at_most(3.0)),
                );
            }
            _ => {}
        }
        runtime.block_on(storage.close()).unwrap();
    }
}

/// What this process has handed to write calls so far.
fn bytes_written() -> u64 {
    let io = fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn median(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times[times.len() / 2]
}

/// LangGraph's SqliteSaver, where its packages are installed.
fn langgraph(bench: &mut Bench) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers/langgraph_peer.py");
    let ticks = if bench.is_smoke() { "20" } else { "1000" };
    let output = Command::new("python3").arg(script).arg(ticks).output();
    match output {
        Ok(output) if output.status.success() => {
            for line in String::from_utf8_lossy(&output.stdout).lines() {
                let mut parts = line.split('\t');
                if let (Some(name), Some(value), Some(unit)) =
                    (parts.next(), parts.next(), parts.next())
                {
                    bench.figure(name, value.parse().unwrap(), unit, None);
                }
            }
        }
        _ => println!(
            "agent-snapshot: LangGraph is not installed (pip install langgraph-checkpoint-sqlite): left out"
        ),
    }
}

/// On a real disk: a folder in memory would make every sync free.
fn scratch() -> tempfile::TempDir {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    fs::create_dir_all(&target).unwrap();
    tempfile::tempdir_in(target).unwrap()
}

/// A server of its own that logs each write and syncs once a second.
struct RedisServer {
    folder: tempfile::TempDir,
    child: Child,
}

impl RedisServer {
    fn start() -> Self {
        // In the folder for temporary files: the name of a socket must be short.
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed (apt install redis-server)");
        let server = Self { folder, child };
        let deadline = Instant::now() + Duration::from_secs(30);
        let client = redis::Client::open(server.url()).unwrap();
        while client.get_connection().is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .unwrap()
            .get_connection()
            .unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
