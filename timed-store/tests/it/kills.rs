//! SIGKILL at random moments of a write loop, with a concurrent reader that takes no lock.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use timed_store::SessionId;

use crate::support::{LONG, Place, Random, Store, s, wait_until};
use crate::worker::Worker;

/// Large enough that a write takes long enough to be hit.
const SIZE: usize = 100_000;

/// The part of the killed process. Values count up; each is filled with one digit.
pub(crate) fn store_for_ever(folder: &Path) {
    let store = Store::builder(folder.join("state.json"))
        .session(SessionId::new("w").unwrap())
        .open()
        .unwrap();
    let mut count = store.restore().unwrap().map_or(0, |value| number(&value));
    loop {
        count += 1;
        let filling = (b'0' + (count % 10) as u8) as char;
        store
            .store(&format!(
                "{count} {}",
                String::from(filling).repeat(SIZE - count % 1000)
            ))
            .unwrap();
    }
}

fn number(value: &str) -> usize {
    let (count, filling) = value.split_once(' ').unwrap();
    let count: usize = count.parse().unwrap();
    assert_eq!(filling.len(), SIZE - count % 1000);
    assert!(
        filling
            .bytes()
            .all(|byte| byte == b'0' + (count % 10) as u8),
        "a mixture of versions"
    );
    count
}

/// The number in the file, read without any lock.
fn peek(path: &Path) -> usize {
    let text = std::fs::read_to_string(path).expect("the file is always there");
    let json: serde_json::Value = serde_json::from_str(&text).expect("the file is always whole");
    assert_eq!(json["storage"]["bystander"]["data"], "still here");
    json["storage"]["w"]["data"].as_str().map_or(0, number)
}

#[test]
fn no_kill_leaves_the_file_missing_or_torn() {
    /// At least this many kills, and this many of them in the middle of a write.
    const KILLS: usize = 20;
    const HITS: usize = 3;
    let place = Place::new();
    Store::builder(place.path())
        .session(SessionId::new("bystander").unwrap())
        .open()
        .unwrap()
        .store(&s("still here"))
        .unwrap();
    let mut random = Random::new("kills");
    let (done, reads) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut kills, mut hits) = (0, 0);
    let deadline = Instant::now() + LONG;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut last = 0;
            while !done.load(Ordering::Relaxed) {
                let count = peek(&place.path());
                assert!(
                    count >= last,
                    "{count} after {last}: an old version came back"
                );
                last = count;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut last = 0;
        while (kills < KILLS || hits < HITS) && Instant::now() < deadline {
            let mut worker = Worker::start("store", place.folder.path());
            wait_until("the writer writes", || {
                peek(&place.path()) > last || reader.is_finished()
            });
            // Every other kill waits for a write, which is a small part of the loop.
            let next = place.folder.path().join("state.json.flock-next");
            let limit = if kills % 2 == 0 { 5_000 } else { 300 };
            while kills % 2 == 1
                && !next.exists()
                && !reader.is_finished()
                && Instant::now() < deadline
            {}
            let end = Instant::now() + Duration::from_micros(random.below(limit));
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            worker.kill();
            last = peek(&place.path());
            kills += 1;
            hits += usize::from(place.files().contains(&s("state.json.flock-next")));
            if reader.is_finished() {
                break;
            }
        }
        done.store(true, Ordering::Relaxed);
        reader.join().unwrap();
    });
    let reads = reads.into_inner();
    eprintln!("kills: {kills}, {hits} in the middle of a write; {reads} reads without a lock");
    assert!(hits >= HITS, "too few kills hit a write to show anything");
    assert!(reads > KILLS, "the reader hardly ran");

    let store = place.store("after");
    store.store(&s("x")).unwrap();
    assert_eq!(
        place.files(),
        ["state.json", "state.json.flock"],
        "the next writer removes the rest"
    );
}
