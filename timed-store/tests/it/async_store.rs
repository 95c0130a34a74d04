//! The async store: the same operations; waits do not block the runtime.

use std::time::Duration;

use timed_store::{Durability, Error, LockPolicy, SessionId, TimedStorage};

use crate::support::{LONG, Place, s};

#[tokio::test]
async fn the_async_store_is_the_same_store() {
    let place = Place::new();
    for durability in [Durability::Process, Durability::Power] {
        let store = TimedStorage::<String>::builder(place.path())
            .session(SessionId::new("a").unwrap())
            .manual_clock(place.clock.clone())
            .lock(LockPolicy::Wait(LONG))
            .durability(durability)
            .open()
            .unwrap();
        store.store(&s("x")).await.unwrap();
        assert_eq!(place.store("a").restore().unwrap(), Some(s("x")));
        assert!(store.refresh().await.unwrap());
        assert!(store.claim(s("x")).await.unwrap().granted().is_some());
        assert_eq!(
            store
                .transaction(|entries| entries.iter().count())
                .await
                .unwrap(),
            1
        );
        assert_eq!(store.entries().await.unwrap().mine().unwrap().value(), "x");
        assert!(store.get_other_entries().await.unwrap().is_empty());
        assert!(store.remove().await.unwrap());
        assert_eq!(store.restore().await.unwrap(), None);
    }
}

fn waiting(place: &Place, session: &str) -> TimedStorage<String> {
    TimedStorage::builder(place.path())
        .session(SessionId::new(session).unwrap())
        .manual_clock(place.clock.clone())
        .lock(LockPolicy::Wait(LONG))
        .open()
        .unwrap()
}

/// One thread runs all tasks here: if the wait for the lock blocked it, the lock would never be
/// released.
#[tokio::test]
async fn a_task_that_waits_for_the_lock_does_not_block_its_runtime() {
    let place = Place::new();
    let store = waiting(&place, "a");
    let held = ForeignLock::new(&place);
    let task = tokio::spawn({
        let store = store.clone();
        async move { store.store(&s("x")).await }
    });
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    held.release();
    task.await.unwrap().unwrap();
    assert_eq!(store.restore().await.unwrap(), Some(s("x")));
}

#[tokio::test]
async fn a_cancelled_wait_changes_nothing_and_keeps_no_lock() {
    let place = Place::new();
    let store = waiting(&place, "a");
    let held = ForeignLock::new(&place);
    let task = tokio::spawn({
        let store = store.clone();
        async move { store.store(&s("never")).await }
    });
    tokio::task::yield_now().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    held.release();
    assert_eq!(store.restore().await.unwrap(), None);
    assert!(!store.remove().await.unwrap());
}

#[tokio::test]
async fn contention_without_waiting_is_an_error_at_once() {
    let place = Place::new();
    let store = TimedStorage::<String>::open(place.path()).unwrap();
    let held = ForeignLock::new(&place);
    assert!(store.store(&s("x")).await.unwrap_err().is_locked());
    assert!(store.restore().await.unwrap_err().is_locked());
    held.release();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_lose_no_update() {
    let place = Place::new();
    let store = waiting(&place, "a");
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..25 {
                    let count = |entries: &mut timed_store::Transaction<String>| {
                        let count = entries
                            .mine()
                            .map_or(0, |entry| entry.value().parse::<usize>().unwrap());
                        entries.store((count + 1).to_string());
                    };
                    store.transaction(count).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(store.restore().await.unwrap(), Some(s("200")));
}

/// The timer is the runtime's: with paused time, the wait ends as soon as all tasks are idle.
#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_its_time() {
    let place = Place::new();
    let store = waiting(&place, "a");
    let held = ForeignLock::new(&place);
    match store.store(&s("x")).await.unwrap_err() {
        Error::Locked { waited, .. } => assert_eq!(waited, LONG),
        other => panic!("{other:?}"),
    }
    held.release();
    store.store(&s("x")).await.unwrap();
}

/// The lock, held outside the store.
struct ForeignLock(fd_lock::RwLock<std::fs::File>);

impl ForeignLock {
    fn new(place: &Place) -> Self {
        place.store("holder").remove().unwrap();
        let file = std::fs::File::open(place.lock_file()).unwrap();
        let mut lock = fd_lock::RwLock::new(file);
        std::mem::forget(lock.try_write().unwrap());
        Self(lock)
    }

    fn release(mut self) {
        drop(self.0.try_write().unwrap());
    }
}

/// A caller that goes on after each error must not become a busy loop.
#[tokio::test(start_paused = true)]
async fn a_watcher_pauses_between_two_reports_of_a_lasting_error() {
    let place = Place::new();
    std::fs::create_dir(place.path()).unwrap();
    let store = TimedStorage::<String>::builder(place.path())
        .open()
        .unwrap();
    let mut changes = store.watch();
    assert!(changes.next().await.is_err());
    let first = tokio::time::Instant::now();
    assert!(changes.next().await.is_err());
    assert!(first.elapsed() >= Duration::from_secs(1));
}
