//! Many processes at once: throughput, fairness, and the latency of the slowest process.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use benches::{Bench, Figure, Goal, thousands};
use timed_store::Durability;

use crate::peers::Sqlite;
use crate::{Places, now_ms, open, session_of, sizes, value};

const PART: &str = "BENCH_TIMED_STORE_PART";

/// The operation of the processes, and its name in the report. FULL is last: it still writes to disk
/// when the next operation starts.
const PARTS: [(&str, &str); 5] = [
    ("restore", "restore"),
    ("store", "store"),
    ("store-durably", "store, Durability::Power"),
    ("sqlite-normal", "SQLite NORMAL, handle kept"),
    ("sqlite-full", "SQLite FULL, handle kept"),
];

pub(crate) fn is_member() -> bool {
    std::env::var_os(PART).is_some()
}

/// Duration of a run.
pub(crate) fn length(bench: &Bench) -> Duration {
    Duration::from_millis(match (bench.is_smoke(), bench.is_full()) {
        (true, _) => 50,
        (_, false) => 600,
        (_, true) => 3_000,
    })
}

/// Eight processes on stores of each size.
pub(crate) fn compare(bench: &mut Bench) {
    for &size in sizes(bench).iter().filter(|size| **size != 100) {
        let crowds = PARTS.map(|(part, name)| (name, Crowd::run(bench, part, size, 8)));
        // Readers share the lock: overlapping readers could keep a writer out forever.
        let mixed = Crowd::run(bench, "store-among-readers", size, 8);
        let title = format!("8 processes at once, {} entries", thousands(size));
        let mut table = bench.table(
            &title,
            &[
                ("operations a second", ""),
                ("evenness (Jain index)", ""),
                ("p99 of the slowest", "ms"),
            ],
        );
        let fair = Goal::at_least(0.95)
            .limited_by("readers do not queue: the scheduler of the system divides two cores");
        for (name, crowd) in &crowds {
            let (rate, jain) = (crowd.rate().into(), Figure::from(crowd.jain()));
            let p99 = crowd.worst_p99_ms().into();
            table = if is_sqlite(name) {
                table.peer(name, [rate, jain, p99]).differs(IN_PLACE)
            } else {
                table.ours(name, [rate, jain.goal(fair.clone()), p99])
            };
        }
        let readers: f64 = (1..8).map(|member| mixed.rate_of(member)).sum();
        let alone = |rate: f64| [rate.into(), Figure::none(), Figure::none()];
        table
            .ours("store, by one among seven readers", alone(mixed.rate_of(0)))
            .ours("restore, by the seven readers", alone(readers))
            .report();
    }
}

const IN_PLACE: &str = "keeps its connection open; writes one row, not the file; a process that \
     finds the database locked sleeps and tries again, which starves some processes";

fn is_sqlite(name: &str) -> bool {
    name.starts_with("SQLite")
}

/// From one writer to 32.
pub(crate) fn grow(bench: &mut Bench) {
    let writers: &[usize] = if bench.is_smoke() {
        &[1, 2]
    } else {
        &[1, 2, 4, 8, 16, 32]
    };
    let parts = PARTS.iter().filter(|(part, _)| *part != "restore");
    let crowds: Vec<_> = parts
        .map(|&(part, name)| {
            let crowds: Vec<_> = writers
                .iter()
                .map(|&members| (members, Crowd::run(bench, part, 10, members)))
                .collect();
            (name, crowds)
        })
        .collect();
    let report = |bench: &mut Bench, name: &str, figure: fn(&Crowd) -> f64| {
        let mut growth = bench.growth(name, "writers", "");
        for (name, crowds) in &crowds {
            let points = crowds
                .iter()
                .map(|(members, crowd)| (*members, figure(crowd)));
            growth = if is_sqlite(name) {
                growth.peer(name, points)
            } else {
                growth.ours(name, points)
            };
        }
        growth.report();
    };
    report(bench, "stores a second, 10 entries", Crowd::rate);
    report(
        bench,
        "evenness (Jain index) of stores, 10 entries",
        Crowd::jain,
    );
}

/// The results of processes that ran at the same time.
struct Crowd {
    length: Duration,
    members: Vec<Member>,
}

struct Member {
    operations: f64,
    p99_ms: f64,
}

impl Crowd {
    fn run(bench: &Bench, part: &str, size: usize, members: usize) -> Self {
        bench.progress(&format!("{members} processes, {size} entries, {part}"));
        let length = length(bench);
        let places = Places::new(size);
        let database = places.path("s.db");
        let path = match part {
            "sqlite-normal" | "sqlite-full" => {
                Sqlite::fill(&database, synchronous(part), size);
                &database
            }
            _ => places.file(),
        };
        // Late enough that all processes have started.
        let begin = now_ms() + 200 + 10 * members as u64;
        let members: Vec<_> = (0..members)
            .map(|number| start(part, number, begin, length, path))
            .collect();
        let members = members.into_iter().map(|member| {
            let output = member.wait_with_output().unwrap();
            assert!(output.status.success(), "{part}: a process failed");
            let text = String::from_utf8(output.stdout).unwrap();
            let (operations, p99_ms) = text.trim().split_once(' ').unwrap();
            Member {
                operations: operations.parse().unwrap(),
                p99_ms: p99_ms.parse().unwrap(),
            }
        });
        Self {
            members: members.collect(),
            length,
        }
    }

    /// Jain's fairness index: 1 if all processes have the same throughput, 1/n if one has all of it.
    fn jain(&self) -> f64 {
        let squares = self.members.iter().map(|member| member.operations.powi(2));
        let (total, squares) = (self.total(), squares.sum::<f64>());
        total.powi(2) / (self.members.len() as f64 * squares)
    }

    fn total(&self) -> f64 {
        self.members.iter().map(|member| member.operations).sum()
    }

    fn rate(&self) -> f64 {
        self.total() / self.length.as_secs_f64()
    }

    fn rate_of(&self, member: usize) -> f64 {
        self.members[member].operations / self.length.as_secs_f64()
    }

    fn worst_p99_ms(&self) -> f64 {
        let p99 = self.members.iter().map(|member| member.p99_ms);
        p99.fold(0.0, f64::max)
    }
}

fn synchronous(part: &str) -> &'static str {
    if part == "sqlite-full" {
        "FULL"
    } else {
        "NORMAL"
    }
}

fn start(
    part: &str,
    number: usize,
    begin: u64,
    length: Duration,
    path: &Path,
) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .env(
            PART,
            format!("{part} {number} {begin} {}", length.as_millis()),
        )
        .env("BENCH_TIMED_STORE_PATH", path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs as one of the processes.
pub(crate) fn play() {
    let part = std::env::var(PART).unwrap();
    let path = PathBuf::from(std::env::var_os("BENCH_TIMED_STORE_PATH").unwrap());
    let [part, number, begin, length] = part.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{part}")
    };
    let session = session_of(number.parse().unwrap());
    let opened = |durability| open(&path, &session, durability);
    let mut work: Box<dyn FnMut()> = match (part, number) {
        ("store", _) | ("store-among-readers", "0") => {
            let store = opened(Durability::Process);
            Box::new(move || store.store(&value()).unwrap())
        }
        ("restore" | "store-among-readers", _) => {
            let store = opened(Durability::Process);
            Box::new(move || assert!(store.restore().unwrap().is_some()))
        }
        ("store-durably", _) => {
            let store = opened(Durability::Power);
            Box::new(move || store.store(&value()).unwrap())
        }
        ("sqlite-normal" | "sqlite-full", _) => {
            let handle = Sqlite::new(&path, synchronous(part)).connect();
            Box::new(move || handle.store_as(&session, &value()))
        }
        (other, _) => panic!("no part {other}"),
    };
    let begin: u64 = begin.parse().unwrap();
    std::thread::sleep(Duration::from_millis(begin.saturating_sub(now_ms())));
    let end = Instant::now() + Duration::from_millis(length.parse().unwrap());
    let mut times = Vec::new();
    while Instant::now() < end {
        let start = Instant::now();
        work();
        times.push(start.elapsed());
    }
    times.sort_unstable();
    let p99 = times[(times.len() * 99).div_ceil(100) - 1];
    println!("{} {}", times.len(), p99.as_secs_f64() * 1000.0);
}
