//! Recovery of corrupt files beside parsing a good file of the same size.

use std::path::Path;
use std::time::{Duration, Instant};

use benches::{Bench, Goal, median, scratch};
use timed_store::Durability;

use crate::{ME, open};

const TIME: &str = "\"updated_at\":\"2025-08-18T10:20:30.456Z\"";

/// Damage that keeps a parser busy: each part of the file looks like the start of an entry.
fn damages(size: usize) -> [(&'static str, String); 3] {
    let repeat = |part: &str| part.repeat(size / part.len());
    let entry = |end: &str| format!("\"session-1\":{{\"data\":\"operator-1\",{TIME}{end}");
    // Without an entry the file would be that of another program, and refused at once.
    let first = "{\"storage\":{".to_owned() + &entry("},\n");
    [
        (
            "objects without an end",
            first.clone() + "\"s\":" + &repeat("{\"a\":"),
        ),
        (
            "entries without closing braces",
            "{\"storage\":{".to_owned() + &repeat(&entry(",\n")),
        ),
        (
            "cut entries",
            first + &repeat("\"s\":{\"data\":\"x\",\"upd\n"),
        ),
    ]
}

pub(crate) fn compare(bench: &mut Bench) {
    let folder = scratch();
    let file = folder.path().join("state.json");
    let size = if bench.is_smoke() {
        100_000
    } else {
        10_000_000
    };
    let good: Vec<String> = (0..size / 100)
        .map(|at| format!("\"session-{at}\":{{\"data\":\"operator \\\"{at}\\\"\",{TIME},\"ttl_ms\":99999999999999}}"))
        .collect();
    let good = format!("{{\"storage\":{{\n{}\n}}}}\n", good.join(",\n"));
    let read = |text: &str| {
        time(&file, text, || {
            let store = open(&file, ME, Durability::Process);
            assert_eq!(store.restore().unwrap(), None);
        })
    };
    let parse = read(&good) / good.len() as f64;
    for (name, text) in damages(size) {
        let recover = read(&text) / text.len() as f64;
        bench.figure(
            &format!("read of 10 MB of damage ({name}) beside 10 MB of good data"),
            recover / parse,
            "",
            Some(Goal::at_most(10.0).limited_by(
                "the search decides every position of the file, with a table of a number for \
                 each byte; a good file is stepped over. The figure varies by a third from run \
                 to run",
            )),
        );
    }
    for (name, text) in damages(size / 10) {
        let store = time(&file, &text, || {
            let store = open(&file, ME, Durability::Process);
            store.store(&"operator-2".to_owned()).unwrap();
        });
        bench.figure(
            &format!("store into 1 MB of damage ({name}), the lock is held for less"),
            store * 1e3,
            "ms",
            Some(Goal::at_most(100.0)),
        );
    }
}

/// The median time of an operation on the file, in seconds.
fn time(file: &Path, text: &str, operation: impl Fn()) -> f64 {
    let times: Vec<Duration> = (0..5)
        .map(|_| {
            std::fs::write(file, text).unwrap();
            let start = Instant::now();
            operation();
            start.elapsed()
        })
        .collect();
    median(&times).as_secs_f64()
}
