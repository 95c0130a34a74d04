//! timed-store beside the raw system calls, SQLite, redb, and the specification done literally.
//!
//! A 'fresh handle' is what a short-lived command has: it opens, does one thing, and ends.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use benches::{Bench, Goal};
use tempfile::TempDir;
use timed_store::blocking::TimedStorage;
use timed_store::{Durability, LockPolicy, SessionId};

#[path = "timed_store/crowd.rs"]
mod crowd;
#[path = "timed_store/peers.rs"]
mod peers;

use peers::{Literal, Raw, Redb, Sqlite, SqliteHandle};

const ME: &str = "session-0";
const VALUE: &str = "operator-0";

fn main() {
    if crowd::is_member() {
        return crowd::play();
    }
    let mut bench = Bench::from_args("timed-store");
    let sizes: &[usize] = if bench.is_smoke() {
        &[10]
    } else {
        &[10, 1_000, 10_000]
    };
    for &size in sizes {
        restore(&mut bench, size);
        store(&mut bench, size);
        store_durably(&mut bench, size);
    }
    for &size in sizes {
        crowd::compare(&mut bench, size);
    }
}

fn restore(bench: &mut Bench, size: usize) {
    let places = Places::new(size);
    let (raw, literal) = (
        Raw::new(places.file()),
        Literal::new(&places.copy("literal.json")),
    );
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "NORMAL", size);
    let mut comparison = bench
        .compare(&format!("restore, {size} entries"))
        .floor("open, lock, read, parse own entry", || {
            assert_eq!(raw.restore().as_deref(), Some(VALUE))
        })
        .ours("restore, fresh handle", || {
            assert_eq!(
                places
                    .open(Durability::Process)
                    .restore()
                    .unwrap()
                    .as_deref(),
                Some(VALUE)
            );
        })
        .peer("the specification literally", || {
            assert_eq!(literal.restore().as_deref(), Some(VALUE))
        })
        .peer("SQLite, fresh handle", || {
            assert_eq!(sqlite.connect().restore(), VALUE)
        })
        .peer("SQLite, handle kept", || assert_eq!(kept.restore(), VALUE))
        .goal(Goal::at_most_floor(1.2))
        .goal(Goal::peer_at_least("SQLite, fresh handle", 10.0));
    if size <= 1_000 {
        comparison = comparison.peer("redb, fresh handle", || assert_eq!(redb.restore(), VALUE));
    }
    comparison.run();
}

fn store(bench: &mut Bench, size: usize) {
    let places = Places::new(size);
    let (raw, literal) = (
        Raw::new(places.file()),
        Literal::new(&places.copy("literal.json")),
    );
    let persist = Raw::new(&places.copy("persist.json"));
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "NORMAL", size);
    bench
        .compare(&format!("store, {size} entries"))
        .floor("write, exchange, unlink", || raw.exchange())
        .ours("store, fresh handle", || {
            places.open(Durability::Process).store(&value()).unwrap()
        })
        .peer("lock, read, parse, tempfile::persist", || {
            persist.persist(ME, &value())
        })
        .peer("the specification literally", || literal.store(&value()))
        .peer("SQLite NORMAL, fresh handle", || {
            sqlite.connect().store(&value())
        })
        .peer("SQLite NORMAL, handle kept", || kept.store(&value()))
        .peer("redb without sync, fresh handle", || {
            redb.store(&value(), false)
        })
        .goal(Goal::peer_at_least(
            "lock, read, parse, tempfile::persist",
            3.0,
        ))
        .run();
}

fn store_durably(bench: &mut Bench, size: usize) {
    let places = Places::new(size);
    let redb = Redb::fill(&places.path("r.db"), size);
    let (sqlite, kept) = sqlites(&places, "FULL", size);
    bench
        .compare(&format!("store to survive a power cut, {size} entries"))
        .ours("store, Durability::Power", || {
            places.open(Durability::Power).store(&value()).unwrap()
        })
        .peer("SQLite FULL, fresh handle", || {
            sqlite.connect().store(&value())
        })
        .peer("SQLite FULL, handle kept", || kept.store(&value()))
        .peer("redb, fresh handle", || redb.store(&value(), true))
        .goal(Goal::peer_at_least("SQLite FULL, fresh handle", 1.0))
        .goal(Goal::peer_at_least("SQLite FULL, handle kept", 1.0))
        .run();
}

/// Two databases, because closing the last connection to one is much of what a fresh handle
/// costs.
fn sqlites(places: &Places, synchronous: &'static str, size: usize) -> (Sqlite, SqliteHandle) {
    let fill = |name| Sqlite::fill(&places.path(name), synchronous, size);
    (fill("fresh.db"), fill("kept.db").connect())
}

/// Another one each time: storing what is there already writes nothing.
pub(crate) fn value() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("operator-{}", COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A folder with a filled store in it.
pub(crate) struct Places {
    folder: TempDir,
    file: std::path::PathBuf,
}

impl Places {
    pub(crate) fn new(size: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("state.json");
        let places = Self { file, folder };
        // One by the store itself, which makes the side file; the others in the same form.
        places
            .open(Durability::Process)
            .store(&VALUE.to_owned())
            .unwrap();
        let text = std::fs::read_to_string(&places.file).unwrap();
        let line = text.lines().nth(1).unwrap().to_owned();
        let entry = |at: usize| {
            line.replace(ME, &format!("session-{at}"))
                .replace(VALUE, &format!("operator-{at}"))
        };
        // The own entry stands in the middle, for those who stop when they have found it.
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
    TimedStorage::builder_at(path)
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
