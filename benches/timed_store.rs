//! timed-store beside raw system calls, SQLite, redb, and a literal implementation of the
//! specification.
//!
//! A fresh handle is the case of a short-lived command: open, one operation, close.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use benches::{Bench, Goal, Row, Step, sample, scratch, thousands};
use tempfile::TempDir;
use timed_store::blocking::TimedStorage;
use timed_store::{Durability, LockPolicy, SessionId};

#[path = "timed_store/crowd.rs"]
mod crowd;
#[path = "timed_store/peers.rs"]
mod peers;
#[path = "timed_store/recovery.rs"]
mod recovery;
#[path = "timed_store/server.rs"]
mod server;

use peers::{Literal, Raw, Redb, Sqlite, SqliteHandle};

const ME: &str = "w0t0p0:6BC70640-E45D-4C47-8A7E-000000000000";

const OPENS: &str = "opens and closes a database, like a short-lived command";
const KEPT: &str = "keeps its connection open, which a short-lived command cannot do";
const ONE_PROCESS: &str = "refuses a second process while it is open";
const LITERAL: &str = "writes in place: a kill leaves a torn file and a stale lock file";
const WHOLE_FILE: &str = "each operation reads and checks the whole file, because any entry may \
     have expired; the index of a database finds one row";

fn main() {
    if crowd::is_member() {
        return crowd::play();
    }
    let bench = Bench::from_args("timed-store");
    let length = crowd::length(&bench).as_secs_f64();
    bench.steps(vec![
        Step::new("restore", 5, 2.0, |bench| {
            over_sizes(bench, "restore", restore);
            restore_names(bench);
        }),
        Step::new("store", 4, 2.0, |bench| over_sizes(bench, "store", store)),
        Step::new("store-durably", 4, 2.0, |bench| {
            over_sizes(bench, "store to survive a power cut", store_durably);
        }),
        Step::new("crowd", 0, 18.0 * (length + 0.3), crowd::compare),
        Step::new("writers", 0, 24.0 * (length + 0.4), crowd::grow),
        Step::new("recovery", 0, 10.0, recovery::compare),
        Step::new("redis", 1, 2.0, server::claim),
        Step::new("wake-up", 0, 14.0, server::wake_up),
    ]);
}

/// One comparison for each size, and the figures over the sizes.
fn over_sizes(bench: &mut Bench, name: &str, compare: fn(&mut Bench, usize) -> Vec<Row>) {
    let runs: Vec<_> = sizes(bench)
        .iter()
        .map(|&size| (size, compare(bench, size)))
        .collect();
    bench.growth(name, "entries", "ns").rows(&runs).report();
}

pub(crate) fn sizes(bench: &Bench) -> &'static [usize] {
    if bench.is_smoke() {
        &[10]
    } else {
        &[10, 100, 1_000, 10_000]
    }
}

/// The chart shows the smallest size and the largest that the crate is designed for.
fn run(comparison: benches::Comparison<'_>, size: usize) -> Vec<Row> {
    if size == 10 || size == 1_000 {
        comparison.headline().run()
    } else {
        comparison.run()
    }
}

fn restore(bench: &mut Bench, size: usize) -> Vec<Row> {
    let own = value_of(0);
    let places = Places::new(size);
    let (raw, literal) = (
        Raw::new(places.file()),
        Literal::new(&places.copy("literal.json")),
    );
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "NORMAL", size);
    let comparison = bench
        .compare(&format!("restore, {} entries", thousands(size)))
        .floor("open, lock, read, parse own entry", || {
            assert_eq!(raw.restore().as_deref(), Some(&*own));
        })
        .differs("parses by serde_json; does not look whether another entry has expired")
        .ours("restore, fresh handle", || {
            let store = places.open(Durability::Process);
            assert_eq!(store.restore().unwrap().as_deref(), Some(&*own));
        })
        .peer("the specification literally", || {
            assert_eq!(literal.restore().as_deref(), Some(&*own));
        })
        .differs(LITERAL)
        .peer("SQLite, fresh handle", || {
            assert_eq!(sqlite.connect().restore(), own);
        })
        .differs(OPENS)
        .peer("SQLite, handle kept", || assert_eq!(kept.restore(), own))
        .differs(KEPT)
        .peer("redb, fresh handle", || assert_eq!(redb.restore(), own))
        .differs(ONE_PROCESS)
        .goal(Goal::at_most_floor(1.2))
        .goal(Goal::peer_at_least("SQLite, fresh handle", 10.0).limited_by(WHOLE_FILE));
    run(comparison, size)
}

/// The best case: values without characters that JSON escapes.
fn restore_names(bench: &mut Bench) {
    let size = *sizes(bench).last().unwrap_or(&10).min(&1_000);
    let places = Places::with_values(size, |at| format!("operator-{at}"));
    let raw = Raw::new(places.file());
    bench
        .compare(&format!("restore, {} entries, names only", thousands(size)))
        .floor("open, lock, read, parse own entry", || {
            assert_eq!(raw.restore().as_deref(), Some("operator-0"));
        })
        .differs("parses by serde_json; does not look whether another entry has expired")
        .ours("restore, fresh handle", || {
            let store = places.open(Durability::Process);
            assert_eq!(store.restore().unwrap().as_deref(), Some("operator-0"));
        })
        .run();
}

fn store(bench: &mut Bench, size: usize) -> Vec<Row> {
    let places = Places::new(size);
    let (raw, literal) = (
        Raw::new(places.file()),
        Literal::new(&places.copy("literal.json")),
    );
    let persist = Raw::new(&places.copy("persist.json"));
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "NORMAL", size);
    let comparison = bench
        .compare(&format!("store, {} entries", thousands(size)))
        .floor("write, exchange, unlink", || raw.exchange())
        .differs("does not read the last version")
        .ours("store, fresh handle", || {
            places.open(Durability::Process).store(&value()).unwrap();
        })
        .peer("lock, read, parse, tempfile::persist", || {
            persist.persist(ME, &value());
        })
        .differs("drops unknown fields and does not remove expired entries")
        .peer("the specification literally", || literal.store(&value()))
        .differs(LITERAL)
        .peer("SQLite NORMAL, fresh handle", || {
            sqlite.connect().store(&value());
        })
        .differs(OPENS)
        .peer("SQLite NORMAL, handle kept", || kept.store(&value()))
        .differs(KEPT)
        .peer("redb without sync, fresh handle", || {
            redb.store(&value(), false);
        })
        .differs(ONE_PROCESS)
        .goal(Goal::peer_at_least(
            "lock, read, parse, tempfile::persist",
            3.0,
        ));
    run(comparison, size)
}

fn store_durably(bench: &mut Bench, size: usize) -> Vec<Row> {
    let places = Places::new(size);
    let raw = Raw::new(places.file());
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "FULL", size);
    let fresh = Goal::peer_at_least("SQLite FULL, fresh handle", 1.0);
    let commits = Goal::peer_at_least("SQLite FULL, handle kept", 1.0);
    let comparison = bench
        .compare(&format!(
            "store to survive a power cut, {} entries",
            thousands(size)
        ))
        .floor("write, sync, exchange, unlink, sync the folder", || {
            raw.exchange_durably();
        })
        .differs("does not read the last version")
        .ours("store, Durability::Power", || {
            places.open(Durability::Power).store(&value()).unwrap();
        })
        .peer("SQLite FULL, fresh handle", || {
            sqlite.connect().store(&value());
        })
        .differs(OPENS)
        .peer("SQLite FULL, handle kept", || kept.store(&value()))
        .differs(KEPT)
        .peer("redb, fresh handle", || redb.store(&value(), true))
        .differs(ONE_PROCESS)
        .goal(fresh.limited_by(
            "the whole file is written; for the largest file the raw calls alone take longer",
        ))
        .goal(commits.limited_by(
            "a new file and its name are two commits of the file system's journal; a log that \
             stays open is overwritten in place and needs none. Without the sync of the folder it \
             would be one commit and take a fifth less time, but the durability of the name would \
             depend on ext4",
        ));
    run(comparison, size)
}

/// Two databases, because a fresh handle must close the last connection to its database: that is
/// much of its cost.
fn sqlites(places: &Places, synchronous: &'static str, size: usize) -> (Sqlite, SqliteHandle) {
    let fill = |name| Sqlite::fill(&places.path(name), synchronous, size);
    (fill("fresh.db"), fill("kept.db").connect())
}

/// A new value in each call: a store of an unchanged value writes nothing.
pub(crate) fn value() -> String {
    static COUNT: AtomicUsize = AtomicUsize::new(1);
    value_of(COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The value of an entry: an operator and its task.
pub(crate) fn value_of(number: usize) -> String {
    format!("operator-{number}: {}", sample::message(number, 48))
}

/// A session id in the form of a terminal.
pub(crate) fn session_of(number: usize) -> String {
    format!("w0t{number}p0:6BC70640-E45D-4C47-8A7E-{number:012X}")
}

/// A folder with a filled store in it.
pub(crate) struct Places {
    folder: TempDir,
    file: std::path::PathBuf,
}

impl Places {
    pub(crate) fn new(size: usize) -> Self {
        Self::with_values(size, value_of)
    }

    fn with_values(size: usize, value: impl Fn(usize) -> String) -> Self {
        let folder = scratch();
        let file = folder.path().join("state.json");
        let places = Self { file, folder };
        // The store writes one entry and its lock file; the other entries get the same form.
        places
            .open(Durability::Process)
            .store(&"VALUE".to_owned())
            .unwrap();
        let text = std::fs::read_to_string(&places.file).unwrap();
        let line = text.lines().nth(1).unwrap().to_owned();
        let entry = |at: usize| {
            let value = serde_json::to_string(&value(at)).unwrap();
            line.replace(ME, &session_of(at))
                .replace("\"VALUE\"", &value)
        };
        // The own entry is in the middle: some contenders stop reading when they have found it.
        let lines: Vec<String> = (0..size).map(|at| entry((at + size / 2) % size)).collect();
        std::fs::write(
            &places.file,
            format!("{{\"storage\":{{\n{}\n}}}}\n", lines.join(",\n")),
        )
        .unwrap();
        places
    }

    pub(crate) fn open(&self, durability: Durability) -> TimedStorage<String> {
        open(&self.file, ME, durability)
    }

    pub(crate) fn file(&self) -> &std::path::Path {
        &self.file
    }

    pub(crate) fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn copy(&self, name: &str) -> std::path::PathBuf {
        std::fs::copy(&self.file, self.path(name)).unwrap();
        self.path(name)
    }
}

pub(crate) fn open(
    path: &std::path::Path,
    session: &str,
    durability: Durability,
) -> TimedStorage<String> {
    TimedStorage::builder(path)
        .session(SessionId::new(session).unwrap())
        .lock(LockPolicy::Wait(Duration::from_secs(60)))
        .durability(durability)
        .open()
        .unwrap()
}

pub(crate) fn now_ms() -> u64 {
    u64::try_from(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis(),
    )
    .unwrap()
}
