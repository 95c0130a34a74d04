//! The lock: mutual exclusion, waiting, and its end with the holder.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use rustix::process::Signal;
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
    let store = Store::builder(folder.join("state.json"))
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

/// The part of a process that waits for the lock.
pub(crate) fn wait(folder: &Path) {
    let store = Store::builder(folder.join("state.json"))
        .session(SessionId::new("waiter").unwrap())
        .lock(LockPolicy::Wait(LONG))
        .open()
        .unwrap();
    store.store(&s("served")).unwrap();
}

/// The number of waiters, in all processes.
pub(crate) fn waiters(place: &Place) -> usize {
    let queue = place
        .folder
        .path()
        .join("state.json.flock-queue")
        .read_dir();
    queue.map_or(0, |queue| {
        let names = queue.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.parse::<u64>().is_ok()).count()
    })
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
fn the_error_names_the_holder_and_a_kill_releases_the_lock() {
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
        "an unfinished transaction is not written"
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
    let (long, short) = (waits(LONG), waits(Duration::from_millis(10)));
    let mut worker = start_holder(&place);
    match short.store(&s("x")).unwrap_err() {
        Error::Locked { waited, .. } => assert_eq!(waited, Duration::from_millis(10)),
        other => panic!("{other:?}"),
    }
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| long.store(&s("x")));
        worker.kill();
        storing.join().unwrap().unwrap();
    });
    assert_eq!(short.restore().unwrap(), Some(s("x")));
}

#[test]
fn waiters_are_served_first_come_first_served() {
    const WAITERS: usize = 6;
    let place = Place::new();
    let open = |session: &str| {
        let builder = place.builder(session).lock(LockPolicy::Wait(LONG));
        builder.open().unwrap()
    };
    let (served, order) = mpsc::channel();
    std::thread::scope(|scope| {
        while_locked(&place, || {
            for number in 0..WAITERS {
                let (store, served) = (open(&number.to_string()), served.clone());
                scope.spawn(move || {
                    store.transaction(|_| served.send(number).unwrap()).unwrap();
                });
                wait_until("the thread waits", || waiters(&place) == number + 1);
            }
            // A caller that does not wait never queues.
            assert!(place.store("a").restore().unwrap_err().is_locked());
        });
        // A newcomer queues, even if it finds the lock free.
        open("newcomer").store(&s("last")).unwrap();
        let order: Vec<usize> = order.try_iter().collect();
        assert_eq!(order, (0..WAITERS).collect::<Vec<_>>());
    });
}

#[test]
fn readers_that_come_and_go_do_not_keep_a_writer_out() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    let writer = place.builder("w").lock(LockPolicy::Wait(LONG)).open();
    let writer = writer.unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for reader in ["r", "s", "t"] {
            let store = place.builder(reader).lock(LockPolicy::Wait(LONG)).open();
            let (store, is_done) = (store.unwrap(), &is_done);
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    store.restore().unwrap();
                }
            });
        }
        for round in 0..20 {
            writer.store(&round.to_string()).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
    });
}

/// A stopped process keeps its place in the queue, but does not take the lock.
#[test]
fn a_stopped_waiter_does_not_block_the_waiters_behind_it() {
    let place = Place::new();
    let mut stopped = while_locked(&place, || {
        let worker = Worker::start("wait", place.folder.path());
        wait_until("the process waits", || waiters(&place) == 1);
        worker.stop();
        worker
    });
    let store = place.builder("a").lock(LockPolicy::Wait(LONG)).open();
    let store = store.unwrap();
    for round in 0..2 {
        store.store(&round.to_string()).unwrap();
    }
    assert_eq!(waiters(&place), 1);
    stopped.signal(Signal::CONT);
    assert!(stopped.wait().success());
    let others = store.get_other_entries().unwrap();
    assert_eq!(others.values().collect::<Vec<_>>(), ["served"]);
}

/// `numbering` is the file that a process locks on its way into the queue, for microseconds.
#[test]
fn a_process_stopped_on_its_way_into_the_queue_does_not_block_others() {
    let place = Place::new();
    let wait = |limit| {
        let builder = place.builder("a").lock(LockPolicy::Wait(limit));
        builder.open().unwrap()
    };
    let queue = place.folder.path().join("state.json.flock-queue");
    DirBuilder::new().mode(0o700).create(&queue).unwrap();
    let mut options = File::options();
    let numbering = options.write(true).create(true).mode(0o600);
    let numbering = numbering.open(queue.join("numbering")).unwrap();
    let mut numbering = fd_lock::RwLock::new(numbering);
    let _stopped = numbering.write().unwrap();
    let store = wait(LONG);
    let mut worker = start_holder(&place);
    let hasty = wait(Duration::from_millis(300)).store(&s("x"));
    assert!(hasty.unwrap_err().is_locked());
    std::thread::scope(|scope| {
        let storing = scope.spawn(|| store.store(&s("x")));
        worker.kill();
        storing.join().unwrap().unwrap();
    });
}

#[test]
fn readers_share_and_answer_even_if_they_cannot_clean_up() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let reader = fd_lock::RwLock::new(File::open(place.lock_file()).unwrap());
    let reading = reader.try_read().unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    assert!(store.refresh().unwrap_err().is_locked());

    place.clock.advance(Duration::from_secs(5 * 3600));
    let before = place.text();
    assert_eq!(store.restore().unwrap(), None);
    assert_eq!(place.text(), before, "the next writer cleans up");
    place.write("nonsense");
    assert_eq!(store.restore().unwrap(), None);
    assert_eq!(place.text(), "nonsense");
    drop(reading);
    assert!(!store.remove().unwrap());
    assert_eq!(place.text(), "{\"storage\":{\n}}\n");
}

/// The child starts inside the transaction and outlives it. It does not inherit the descriptor.
#[test]
fn a_child_started_while_the_lock_is_held_does_not_keep_it() {
    let place = Place::new();
    let store = place.store("a");
    let _child = store
        .transaction(|entries| {
            entries.store(s("x"));
            Worker::start("idle", place.folder.path())
        })
        .unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

/// The same without exec: the child has the same descriptor.
#[test]
fn a_child_forked_while_the_lock_is_held_does_not_keep_it() {
    let place = Place::new();
    let store = place.store("a");
    let child = store
        .transaction(|entries| {
            entries.store(s("x"));
            // SAFETY: the child only waits for its end.
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
    // A shared handle and one per thread exclude each other in the same way.
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

/// The race that `claim` prevents: of all sessions that want one value, one gets it.
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
