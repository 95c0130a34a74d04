//! Claims that wait, and watching.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use timed_store::{Change, Claim, Error, LockPolicy, OwnerProcess, SessionId, TimedStorageBuilder};

use crate::support::{LONG, Place, Store, is_granted, s, wait_until};
use crate::worker::Worker;

/// The part of a process that waits for a value, notes its turn and releases the value.
pub(crate) fn wait_for(folder: &Path, session: &str) {
    let store = builder(folder, session).open().unwrap();
    let claim = store.claim_within(s("x"), LONG).unwrap();
    assert!(claim.granted().is_some());
    let order = std::fs::File::options()
        .create(true)
        .append(true)
        .open(folder.join("order"));
    writeln!(order.unwrap(), "{session}").unwrap();
    assert!(store.remove().unwrap());
}

/// A store on the system's clock, which the timers of a wait need.
fn builder(folder: &Path, session: &str) -> TimedStorageBuilder<Store> {
    Store::builder(folder.join("state.json"))
        .session(SessionId::new(session).unwrap())
        .lock(LockPolicy::Wait(LONG))
}

fn open(place: &Place, session: &str) -> Store {
    builder(place.folder.path(), session).open().unwrap()
}

fn waiters(place: &Place) -> usize {
    let folder = place.folder.path().join("state.json.flock-waiters");
    folder.read_dir().map_or(0, Iterator::count)
}

fn wait_for_waiters(place: &Place, count: usize) {
    wait_until("the waiters have joined", || waiters(place) == count);
}

fn order(place: &Place) -> Vec<String> {
    let order = std::fs::read_to_string(place.folder.path().join("order")).unwrap_or_default();
    order.lines().map(s).collect()
}

/// Runs `free` while another session waits for `x`, and checks that the waiter then gets it long
/// before its own time is over.
fn check_woken(place: &Place, free: impl FnOnce()) {
    let waiter = open(place, "waiter");
    let (sender, claims) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(waiter.claim_within(s("x"), 10 * LONG)).is_ok());
    wait_for_waiters(place, 1);
    free();
    let claim = claims.recv_timeout(LONG).expect("the waiter is woken");
    assert!(is_granted(claim));
    assert_eq!(waiters(place), 0);
}

#[test]
fn a_free_value_and_the_own_one_are_granted_at_once() {
    let place = Place::new();
    let a = open(&place, "a");
    assert!(is_granted(a.claim_within(s("x"), LONG)));
    assert!(is_granted(a.claim_within(s("x"), Duration::ZERO)));
    assert_eq!(waiters(&place), 0);
    assert!(matches!(
        a.claim_any_within([], LONG),
        Err(Error::Invalid { .. })
    ));
}

#[test]
fn a_release_wakes_the_waiter() {
    let place = Place::new();
    let a = open(&place, "a");
    assert!(is_granted(a.claim(s("x"))));
    check_woken(&place, || assert!(a.remove().unwrap()));
}

#[test]
fn another_claim_of_the_holder_wakes_the_waiter() {
    let place = Place::new();
    let a = open(&place, "a");
    assert!(is_granted(a.claim(s("x"))));
    check_woken(&place, || assert!(is_granted(a.claim(s("y")))));
}

#[test]
fn a_release_in_a_slot_wakes_the_waiter() {
    let place = Place::new();
    let slot = open(&place, "a").slot("two").unwrap();
    assert!(is_granted(slot.claim(s("x"))));
    check_woken(&place, || assert!(slot.remove().unwrap()));
}

/// Nothing happens to the file: the waiter's own timer wakes it.
#[test]
fn the_end_of_the_holders_time_wakes_the_waiter() {
    let place = Place::new();
    let holder = builder(place.folder.path(), "a").ttl(Duration::from_secs(2));
    assert!(is_granted(holder.open().unwrap().claim(s("x"))));
    check_woken(&place, || {});
}

#[test]
fn the_end_of_the_owner_process_wakes_the_waiter() {
    let place = Place::new();
    let mut worker = Worker::start("idle", place.folder.path());
    let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
    let holder = builder(place.folder.path(), "a").owner(owner);
    assert!(is_granted(holder.open().unwrap().claim(s("x"))));
    check_woken(&place, || worker.kill());
}

/// A tool that knows no lock rewrites the file in place.
#[test]
fn a_write_by_another_tool_wakes_the_waiter() {
    let place = Place::new();
    assert!(is_granted(open(&place, "a").claim(s("x"))));
    check_woken(&place, || place.write("{\"storage\":{}}"));
}

#[test]
fn any_of_several_candidates_ends_the_wait() {
    let place = Place::new();
    let (a, b, c) = (open(&place, "a"), open(&place, "b"), open(&place, "c"));
    assert!(is_granted(a.claim(s("x"))) && is_granted(b.claim(s("y"))));
    std::thread::scope(|scope| {
        let waiting = scope.spawn(move || c.claim_any_within(["x", "y"].map(s), LONG));
        wait_for_waiters(&place, 1);
        b.remove().unwrap();
        let lease = waiting.join().unwrap().unwrap().granted().unwrap();
        assert_eq!(lease.value(), "y");
    });
}

#[test]
fn waiters_are_served_in_the_order_of_their_arrival() {
    let place = Place::new();
    let holder = open(&place, "holder");
    assert!(is_granted(holder.claim(s("x"))));
    let names = ["1", "2", "3", "4", "5"];
    let mut workers = Vec::new();
    for (before, name) in names.iter().enumerate() {
        workers.push(Worker::start(
            &format!("wait-for {name}"),
            place.folder.path(),
        ));
        wait_for_waiters(&place, before + 1);
    }
    holder.remove().unwrap();
    for worker in &mut workers {
        assert!(worker.wait().success());
    }
    assert_eq!(order(&place), names);
}

#[test]
fn a_waiter_for_another_value_does_not_stand_in_the_way() {
    let place = Place::new();
    let (a, b) = (open(&place, "a"), open(&place, "b"));
    assert!(is_granted(a.claim(s("x"))) && is_granted(b.claim(s("y"))));
    std::thread::scope(|scope| {
        let first = open(&place, "first");
        let first = scope.spawn(move || first.claim_within(s("x"), LONG));
        wait_for_waiters(&place, 1);
        let second = open(&place, "second");
        let second = scope.spawn(move || second.claim_within(s("y"), LONG));
        wait_for_waiters(&place, 2);
        b.remove().unwrap();
        assert!(is_granted(second.join().unwrap()));
        assert!(!first.is_finished());
        a.remove().unwrap();
        assert!(is_granted(first.join().unwrap()));
    });
}

#[test]
fn a_dead_waiter_loses_its_place() {
    let place = Place::new();
    let holder = open(&place, "holder");
    assert!(is_granted(holder.claim(s("x"))));
    let mut first = Worker::start("wait-for 1", place.folder.path());
    wait_for_waiters(&place, 1);
    let mut second = Worker::start("wait-for 2", place.folder.path());
    wait_for_waiters(&place, 2);
    first.kill();
    holder.remove().unwrap();
    assert!(second.wait().success());
    assert_eq!(order(&place), ["2"]);
}

#[test]
fn a_stopped_waiter_is_overtaken() {
    let place = Place::new();
    let holder = open(&place, "holder");
    assert!(is_granted(holder.claim(s("x"))));
    let mut first = Worker::start("wait-for 1", place.folder.path());
    wait_for_waiters(&place, 1);
    // The waiter joins under the lock, and must not be stopped while it holds it.
    holder.transaction(|_| ()).unwrap();
    first.stop();
    let mut second = Worker::start("wait-for 2", place.folder.path());
    wait_for_waiters(&place, 2);
    holder.remove().unwrap();
    assert!(second.wait().success());
    assert_eq!(order(&place), ["2"]);
    first.signal(Signal::CONT);
    assert!(first.wait().success());
    assert_eq!(order(&place), ["2", "1"]);
}

#[test]
fn a_wait_ends_at_its_deadline_and_leaves_the_queue() {
    let place = Place::new();
    assert!(is_granted(open(&place, "a").claim(s("x"))));
    let waiter = open(&place, "waiter");
    match waiter
        .claim_within(s("x"), Duration::from_millis(50))
        .unwrap()
    {
        Claim::Busy { holder, .. } => assert_eq!(holder.as_str(), "a"),
        Claim::Granted(lease) => panic!("{lease:?}"),
    }
    assert_eq!(waiters(&place), 0);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_cancelled_wait_leaves_the_queue() {
    let place = Place::new();
    let holder = open(&place, "a");
    assert!(is_granted(holder.claim(s("x"))));
    let waiter = timed_store::TimedStorage::<String>::builder(place.path())
        .session(SessionId::new("waiter").unwrap())
        .open()
        .unwrap();
    let wait = tokio::spawn({
        let waiter = waiter.clone();
        async move { waiter.claim_within(s("x"), LONG).await }
    });
    while waiters(&place) == 0 {
        tokio::task::yield_now().await;
    }
    wait.abort();
    assert!(wait.await.unwrap_err().is_cancelled());
    assert_eq!(waiters(&place), 0);
    holder.remove().unwrap();
    assert_eq!(waiter.restore().await.unwrap(), None, "nothing was claimed");
}

/// One thread runs all tasks: a wait that blocked it would never end.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn many_tasks_wait_on_one_thread() {
    let place = Place::new();
    let holder = open(&place, "holder");
    assert!(is_granted(holder.claim(s("x"))));
    let tasks: Vec<_> = (0..10)
        .map(|number| {
            let store = timed_store::TimedStorage::<String>::builder(place.path())
                .session(SessionId::new(format!("task-{number}")).unwrap())
                .lock(LockPolicy::Wait(LONG))
                .open()
                .unwrap();
            tokio::spawn(async move {
                let claim = store.claim_within(s("x"), LONG).await.unwrap();
                assert!(claim.granted().is_some());
                assert!(store.remove().await.unwrap());
            })
        })
        .collect();
    while waiters(&place) < 10 {
        tokio::task::yield_now().await;
    }
    holder.remove().unwrap();
    for task in tasks {
        task.await.unwrap();
    }
}

#[track_caller]
fn check_change(change: Option<Result<Change<String>, Error>>, expected: &str) {
    let found = match change.unwrap().unwrap() {
        Change::Set { session, entry } => format!("{session} = {}", entry.value()),
        Change::Removed { session } => format!("{session} is gone"),
        other => panic!("{other:?}"),
    };
    assert_eq!(found, expected);
}

#[test]
fn a_watcher_is_told_all_changes_of_values() {
    let place = Place::new();
    let (a, b) = (open(&place, "a"), open(&place, "b"));
    a.store(&s("x")).unwrap();
    let mut changes = open(&place, "me").watch();
    check_change(changes.next(), "a = x");
    b.store(&s("y")).unwrap();
    check_change(changes.next(), "b = y");
    assert!(a.refresh().unwrap(), "not a change");
    a.slot("two").unwrap().store(&s("z")).unwrap();
    check_change(changes.next(), "a#two = z");
    a.remove().unwrap();
    check_change(changes.next(), "a is gone");
    b.store(&s("w")).unwrap();
    check_change(changes.next(), "b = w");
}

#[test]
fn a_watcher_is_told_when_an_entry_ends_by_itself() {
    let place = Place::new();
    let mut worker = Worker::start("idle", place.folder.path());
    let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
    let owned = builder(place.folder.path(), "owned").owner(owner);
    assert!(is_granted(owned.open().unwrap().claim(s("y"))));
    let short = builder(place.folder.path(), "short").ttl(Duration::from_secs(2));
    short.open().unwrap().store(&s("x")).unwrap();
    let mut changes = open(&place, "me").watch();
    check_change(changes.next(), "owned = y");
    check_change(changes.next(), "short = x");
    check_change(changes.next(), "short is gone");
    worker.kill();
    check_change(changes.next(), "owned is gone");
}

fn watch_on_a_thread(store: Store) -> std::sync::mpsc::Receiver<Told> {
    let (told, is_told) = std::sync::mpsc::channel();
    std::thread::spawn(move || store.watch().all(|change| told.send(Some(change)).is_ok()));
    is_told
}

type Told = Option<Result<Change<String>, Error>>;

#[test]
fn a_watcher_is_told_when_an_entry_of_its_own_session_ends_by_itself() {
    let place = Place::new();
    let mut worker = Worker::start("idle", place.folder.path());
    let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
    let owned = builder(place.folder.path(), "me").owner(owner);
    let owned = owned.open().unwrap();
    assert!(is_granted(owned.slot("one").unwrap().claim(s("y"))));
    let watcher = open(&place, "me");
    let is_told = watch_on_a_thread(watcher);
    check_change(is_told.recv_timeout(LONG).unwrap(), "me#one = y");
    worker.kill();
    check_change(is_told.recv_timeout(LONG).unwrap(), "me#one is gone");
}

/// The thread of a watcher blocks in the kernel; the writer changes the store while it waits.
#[test]
fn a_blocked_watcher_is_woken() {
    let place = Place::new();
    let (a, me) = (open(&place, "a"), open(&place, "me"));
    a.store(&s("x")).unwrap();
    let (told, is_told) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut changes = me.watch();
            for _ in 0..20 {
                told.send(changes.next()).unwrap();
            }
        });
        check_change(is_told.recv_timeout(LONG).unwrap(), "a = x");
        for count in 1..20 {
            a.store(&count.to_string()).unwrap();
            check_change(is_told.recv_timeout(LONG).unwrap(), &format!("a = {count}"));
        }
    });
}

/// The lock is held for the whole time. The policy of the handle would wait for longer.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_claim_with_a_limit_waits_for_the_lock_no_longer_than_its_limit() {
    let place = Place::new();
    let store = timed_store::TimedStorage::<String>::builder(place.path())
        .lock(LockPolicy::Wait(10 * LONG))
        .open()
        .unwrap();
    store.store(&s("w")).await.unwrap();
    let mut lock = fd_lock::RwLock::new(std::fs::File::open(place.lock_file()).unwrap());
    let _held = lock.try_write().unwrap();
    for limit in [Duration::ZERO, Duration::from_millis(50), LONG] {
        let start = tokio::time::Instant::now();
        let claim = store.claim_within(s("x"), limit).await;
        assert!(claim.is_err_and(|error| error.is_locked()));
        // The timers of the runtime have a resolution of a millisecond.
        let most = limit + Duration::from_millis(1010);
        assert!(
            start.elapsed() <= most,
            "{:?} of {limit:?}",
            start.elapsed()
        );
    }
}

/// A machine that sleeps: the clock of the store goes on, the timers of the runtime stand still.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn an_entry_that_expired_while_the_machine_slept_is_noticed() {
    const TTL: Duration = Duration::from_secs(4 * 3600);
    let place = Place::new();
    let open = |session: &str| {
        timed_store::TimedStorage::<String>::builder(place.path())
            .session(SessionId::new(session).unwrap())
            .manual_clock(place.clock.clone())
            .ttl(TTL)
            .open()
            .unwrap()
    };
    let sleep = async || {
        tokio::time::sleep(Duration::from_secs(1)).await;
        place.clock.advance(TTL + Duration::from_millis(1));
    };
    let (a, b) = (open("a"), open("b"));
    assert!(is_granted(a.claim(s("x")).await));
    let mut changes = b.watch();
    check_change(Some(changes.next().await), "a = x");
    let (told, ()) = tokio::join!(tokio::time::timeout(LONG, changes.next()), sleep());
    check_change(Some(told.expect("the watcher is woken")), "a is gone");
    drop(changes);

    assert!(is_granted(a.claim(s("x")).await));
    let waiting = tokio::time::timeout(LONG, b.claim_within(s("x"), 2 * TTL));
    let (claim, ()) = tokio::join!(waiting, sleep());
    assert!(is_granted(claim.expect("the waiter is woken")));
}

/// The watch of the kernel belongs to the old folder.
#[test]
fn a_watcher_is_told_of_changes_in_a_folder_that_was_made_again() {
    let place = Place::new();
    let folder = place.folder.path().join("inner");
    std::fs::create_dir(&folder).unwrap();
    let a = builder(&folder, "a").open().unwrap();
    a.store(&s("x")).unwrap();
    let me = builder(&folder, "me").open().unwrap();
    let is_told = watch_on_a_thread(me);
    check_change(is_told.recv_timeout(LONG).unwrap(), "a = x");
    std::fs::rename(&folder, place.folder.path().join("old")).unwrap();
    check_change(is_told.recv_timeout(LONG).unwrap(), "a is gone");
    for count in 0..2 {
        a.store(&count.to_string()).unwrap();
        check_change(is_told.recv_timeout(LONG).unwrap(), &format!("a = {count}"));
        std::fs::remove_dir_all(&folder).unwrap();
        check_change(is_told.recv_timeout(LONG).unwrap(), "a is gone");
    }
}
