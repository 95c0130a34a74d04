//! Eight processes at once: who gets how much done, and how long the unlucky ones wait.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use benches::{Bench, Goal};
use timed_store::Durability;

use crate::peers::Sqlite;
use crate::{Places, now_ms, open, value};

const MEMBERS: usize = 8;
const PART: &str = "BENCH_TIMED_STORE_PART";

pub(crate) fn is_member() -> bool {
    std::env::var_os(PART).is_some()
}

pub(crate) fn compare(bench: &mut Bench, size: usize) {
    let length = Duration::from_millis(if bench.is_smoke() { 50 } else { 3_000 });
    // FULL last: it is the slowest, and would still be writing when the next one begins.
    for part in [
        "restore",
        "store",
        "store-durably",
        "sqlite-normal",
        "sqlite-full",
    ] {
        let places = Places::new(size);
        let database = places.path("s.db");
        match part {
            "sqlite-normal" => drop(Sqlite::fill(&database, "NORMAL", size)),
            "sqlite-full" => drop(Sqlite::fill(&database, "FULL", size)),
            _ => {}
        }
        let path = if part.starts_with("sqlite") {
            &database
        } else {
            places.file()
        };
        let results = run(part, path, length);
        let total: f64 = results.iter().map(|result| result.operations).sum();
        let squares: f64 = results.iter().map(|result| result.operations.powi(2)).sum();
        let jain = total.powi(2) / (MEMBERS as f64 * squares);
        let worst = results
            .iter()
            .map(|result| result.p99_ms)
            .fold(0.0, f64::max);
        let name = |what: &str| format!("{MEMBERS} processes, {size} entries, {part}: {what}");
        let goal = (!part.starts_with("sqlite")).then(|| Goal::at_least(0.95));
        bench.figure(&name("Jain index"), jain, "", goal);
        bench.figure(
            &name("operations"),
            total / length.as_secs_f64(),
            "a second",
            None,
        );
        bench.figure(&name("largest p99"), worst, "ms", None);
    }
}

struct Outcome {
    operations: f64,
    p99_ms: f64,
}

fn run(part: &str, path: &Path, length: Duration) -> Vec<Outcome> {
    // Late enough that all have started by then.
    let begin = now_ms() + 300;
    let members: Vec<_> = (0..MEMBERS)
        .map(|number| {
            Command::new(std::env::current_exe().unwrap())
                .env(
                    PART,
                    format!("{part} {number} {begin} {}", length.as_millis()),
                )
                .env("BENCH_TIMED_STORE_PATH", path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap()
        })
        .collect();
    let outcomes = members.into_iter().map(|member| {
        let output = member.wait_with_output().unwrap();
        assert!(output.status.success(), "{part}: a process failed");
        let text = String::from_utf8(output.stdout).unwrap();
        let (operations, p99_ms) = text.trim().split_once(' ').unwrap();
        Outcome {
            operations: operations.parse().unwrap(),
            p99_ms: p99_ms.parse().unwrap(),
        }
    });
    outcomes.collect()
}

/// One of the eight.
pub(crate) fn play() {
    let part = std::env::var(PART).unwrap();
    let path = PathBuf::from(std::env::var_os("BENCH_TIMED_STORE_PATH").unwrap());
    let [part, number, begin, length] = part.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{part}")
    };
    let session = format!("session-{number}");
    let mut work: Box<dyn FnMut()> = match part {
        "restore" => {
            let store = open(&path, &session, Durability::Process);
            Box::new(move || assert!(store.restore().unwrap().is_some()))
        }
        "store" => {
            let store = open(&path, &session, Durability::Process);
            Box::new(move || store.store(&value()).unwrap())
        }
        "store-durably" => {
            let store = open(&path, &session, Durability::Power);
            Box::new(move || store.store(&value()).unwrap())
        }
        "sqlite-normal" | "sqlite-full" => {
            let synchronous = if part == "sqlite-full" {
                "FULL"
            } else {
                "NORMAL"
            };
            let handle = Sqlite::new(&path, synchronous).connect();
            Box::new(move || handle.store_as(&session, &value()))
        }
        other => panic!("no part {other}"),
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
