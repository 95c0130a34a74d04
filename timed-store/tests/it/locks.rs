//! The lock: who is kept out, who may share, and that nobody keeps it for ever.

use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use timed_store::{Error, LockPolicy, SessionId};

use crate::support::{LONG, Place, Store, s, wait_until};
use crate::worker::Worker;

/// Runs `body` while another thread holds the lock.
fn while_locked<R>(place: &Place, body: impl FnOnce() -> R) -> R {
    let holder = place.store("holder");
    let (locked, is_locked) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            holder
                .transaction(|_| {
                    locked.send(()).unwrap();
                    // Also ends when `body` has panicked.
                    let _ = released.recv_timeout(LONG);
                })
                .unwrap();
        });
        is_locked.recv().unwrap();
        let result = body();
        drop(release);
        result
    })
}

/// The part of a process that holds the lock until it is killed.
pub(crate) fn hold(folder: &Path) {
    let store = Store::builder_at(folder.join("state.json"))
        .session(SessionId::new("holder").unwrap())
        .open()
        .unwrap();
    store
        .transaction(|entries| {
            entries.store(s("never written"));
            std::fs::write(folder.join("locked"), "").unwrap();
            std::thread::sleep(LONG * 10);
        })
        .unwrap();
}

fn start_holder(place: &Place) -> Worker {
    let worker = Worker::start("hold", place.folder.path());
    wait_until("the other process has the lock", || {
        place.folder.path().join("locked").exists()
    });
    worker
}

#[test]
fn contention_is_an_error_at_once_for_threads_and_handles_of_one_process() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    while_locked(&place, || {
        for result in [
            store.store(&s("y")),
            store.restore().map(|_| ()),
            store.remove().map(|_| ()),
            store.refresh().map(|_| ()),
            store.get_other_entries().map(|_| ()),
            store.claim(s("z")).map(|_| ()),
        ] {
            let error = result.unwrap_err();
            assert!(error.is_locked(), "{error:?}");
            let text = error.to_string();
            assert!(text.contains("state.json"), "{text}");
            if cfg!(target_os = "linux") {
                assert!(
                    text.contains(&format!("this process ({})", std::process::id())),
                    "{text}"
                );
            }
        }
    });
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn the_error_names_the_process_that_holds_the_lock_and_a_kill_frees_it() {
    let place = Place::new();
    let store = place.store("a");
    let mut worker = start_holder(&place);
    match store.store(&s("x")).unwrap_err() {
        Error::Locked {
            path,
            holder,
            waited,
        } => {
            assert_eq!((path, waited), (place.path(), Duration::ZERO));
            assert_eq!(holder, cfg!(target_os = "linux").then(|| worker.pid()));
        }
        other => panic!("{other:?}"),
    }
    worker.kill();
    store.store(&s("x")).unwrap();
    assert!(
        store.get_other_entries().unwrap().is_empty(),
        "what was not finished is not there"
    );
}

#[test]
fn a_wait_ends_with_the_lock_or_with_its_time() {
    let place = Place::new();
    let waits = |limit| {
        place
            .builder("a")
            .lock(LockPolicy::Wait(limit))
            .open()
            .unwrap()
    };
    let (patient, hasty) = (waits(LONG), waits(Duration::from_millis(10)));
    let mut worker = start_holder(&place);
    match hasty.store(&s("x")).unwrap_err() {
        Error::Locked { waited, .. } => assert_eq!(waited, Duration::from_millis(10)),
        other => panic!("{other:?}"),
    }
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| patient.store(&s("x")));
        worker.kill();
        storing.join().unwrap().unwrap();
    });
    assert_eq!(hasty.restore().unwrap(), Some(s("x")));
}

#[test]
fn readers_share_and_one_that_cannot_clean_answers_all_the_same() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let side = std::fs::File::open(place.folder.path().join("state.json.flock")).unwrap();
    let reader = fd_lock::RwLock::new(side);
    let reading = reader.try_read().unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    assert!(store.refresh().unwrap_err().is_locked());

    place.clock.advance(Duration::from_secs(5 * 3600));
    let before = place.text();
    assert_eq!(store.restore().unwrap(), None);
    assert_eq!(place.text(), before, "left to the next writer");
    place.write("nonsense");
    assert_eq!(store.restore().unwrap(), None);
    assert_eq!(place.text(), "nonsense");
    drop(reading);
    assert!(!store.remove().unwrap());
    assert_eq!(place.text(), "{\"storage\":{\n}}\n");
}

/// `sleep` is started inside of the transaction: the descriptor is not for it, and it may live
/// on.
#[test]
fn a_child_started_while_the_lock_is_held_does_not_keep_it() {
    let place = Place::new();
    let store = place.store("a");
    let mut child = store
        .transaction(|entries| {
            entries.store(s("x"));
            std::process::Command::new("sleep")
                .arg("600")
                .spawn()
                .unwrap()
        })
        .unwrap();
    let result = store.restore();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(result.unwrap(), Some(s("x")));
}

/// The same without exec, where the child has the very same descriptor.
#[test]
fn a_child_forked_while_the_lock_is_held_does_not_keep_it() {
    let place = Place::new();
    let store = place.store("a");
    let child = store
        .transaction(|entries| {
            entries.store(s("x"));
            // SAFETY: the child does nothing but to wait for its end.
            match unsafe { libc::fork() } {
                0 => loop {
                    // SAFETY: `pause` is async-signal-safe.
                    unsafe { libc::pause() };
                },
                pid => pid,
            }
        })
        .unwrap();
    let result = store.refresh();
    let child = rustix::process::Pid::from_raw(child).unwrap();
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    assert!(result.unwrap());
}

#[test]
fn threads_lose_no_update() {
    const THREADS: usize = 8;
    const ROUNDS: usize = 100;
    let place = Place::new();
    let open = |session: &str| {
        place
            .builder(session)
            .lock(LockPolicy::Wait(LONG))
            .open()
            .unwrap()
    };
    // One shared handle, one of its own for each: they exclude each other in the same way.
    let shared = open("shared");
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (shared, own) = (shared.clone(), open(&format!("thread-{thread}")));
            scope.spawn(move || {
                for round in 1..=ROUNDS {
                    shared
                        .transaction(|entries| {
                            let count = entries
                                .mine()
                                .map_or(0, |entry| entry.value().parse::<usize>().unwrap());
                            entries.store((count + 1).to_string());
                        })
                        .unwrap();
                    own.store(&round.to_string()).unwrap();
                    assert_eq!(own.restore().unwrap(), Some(round.to_string()));
                }
            });
        }
    });
    assert_eq!(
        shared.restore().unwrap(),
        Some((THREADS * ROUNDS).to_string())
    );
    let others = shared.get_other_entries().unwrap();
    assert_eq!(others.len(), THREADS);
    assert!(others.values().all(|value| *value == ROUNDS.to_string()));
}

/// The race that `claim` is there for: of sessions that all want one value, one gets it.
#[test]
fn one_of_many_threads_wins_each_value() {
    const ROUNDS: usize = 50;
    let place = Place::new();
    std::thread::scope(|scope| {
        let (won, wins) = mpsc::channel();
        for thread in 0..4 {
            let (place, won) = (&place, won.clone());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let session = format!("{round}-{thread}");
                    let store = place
                        .builder(&session)
                        .lock(LockPolicy::Wait(LONG))
                        .open()
                        .unwrap();
                    if store.claim(round.to_string()).unwrap().granted().is_some() {
                        won.send(round).unwrap();
                    }
                }
            });
        }
        drop(won);
        let mut wins: Vec<usize> = wins.iter().collect();
        wins.sort_unstable();
        assert_eq!(wins, (0..ROUNDS).collect::<Vec<_>>());
    });
}
