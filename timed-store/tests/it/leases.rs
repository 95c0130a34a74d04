//! Leases that are kept alive, checked and released.

use std::time::Duration;

use timed_store::SessionId;

use crate::locks::waiters;
use crate::support::{LONG, Place, Store, s, wait_until};

/// A store on the system's clock, which the refreshes need.
fn open(place: &Place, session: &str, ttl: Duration) -> Store {
    Store::builder(place.path())
        .session(SessionId::new(session).unwrap())
        .lock(timed_store::LockPolicy::Wait(LONG))
        .ttl(ttl)
        .open()
        .unwrap()
}

/// The timestamp of session `a`.
fn updated_at(place: &Place) -> serde_json::Value {
    place.json()["storage"]["a"]["updated_at"].clone()
}

#[test]
fn a_token_is_valid_while_its_entry_lives() {
    let place = Place::new();
    let (a, b) = (place.store("a"), place.store("b"));
    let token = a.claim(s("x")).unwrap().granted().unwrap().token();
    assert!(a.validate(token).unwrap() && b.validate(token).unwrap());
    assert!(!a.validate(token + 1).unwrap());
    let next = a.claim(s("y")).unwrap().granted().unwrap().token();
    assert!(!b.validate(token).unwrap() && b.validate(next).unwrap());
    place.clock.advance(Duration::from_secs(5 * 3600));
    assert!(!b.validate(next).unwrap());
}

/// The entry's timestamp moves although the holder does nothing.
#[test]
fn a_kept_lease_is_refreshed() {
    let place = Place::new();
    let a = open(&place, "a", Duration::from_secs(6));
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let mut before = updated_at(&place);
    let guard = a.keep_alive(lease).unwrap();
    for _ in 0..2 {
        wait_until("the lease is refreshed", || updated_at(&place) != before);
        before = updated_at(&place);
    }
    assert!(!guard.is_lost());
    assert!(a.validate(guard.lease().token()).unwrap());
    drop(guard);
    assert_eq!(
        a.restore().unwrap(),
        Some(s("x")),
        "a drop only stops the refreshes"
    );
}

#[test]
fn a_lost_lease_is_told() {
    let place = Place::new();
    let a = open(&place, "a", Duration::from_millis(600));
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    a.remove().unwrap();
    guard.lost();
    assert!(guard.is_lost());
    assert!(!guard.release().unwrap());
}

/// A new claim of the same session has another token: the old lease must not refresh it.
#[test]
fn a_guard_leaves_a_later_claim_alone() {
    let place = Place::new();
    let a = open(&place, "a", Duration::from_millis(600));
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap().release_on_drop();
    a.remove().unwrap();
    let later = open(&place, "a", LONG)
        .claim(s("x"))
        .unwrap()
        .granted()
        .unwrap();
    guard.lost();
    drop(guard);
    assert!(a.validate(later.token()).unwrap());
}

/// The file cannot be read: no refresh succeeds until the time of the lease is over.
#[test]
fn a_lease_that_cannot_be_refreshed_is_lost() {
    let place = Place::new();
    let a = open(&place, "a", Duration::from_millis(600));
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    std::fs::remove_file(place.path()).unwrap();
    std::fs::create_dir(place.path()).unwrap();
    guard.lost();
    assert!(guard.is_lost());
}

#[test]
fn a_guard_releases_on_drop_by_option() {
    let place = Place::new();
    let a = open(&place, "a", LONG);
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    drop(a.keep_alive(lease).unwrap().release_on_drop());
    assert_eq!(a.restore().unwrap(), None);
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    assert!(a.keep_alive(lease).unwrap().release().unwrap());
    assert_eq!(a.restore().unwrap(), None);
}

/// Runs `release` while the lock is held, and unlocks when it waits.
fn under_a_held_lock<R: Send>(place: &Place, release: impl FnOnce() -> R + Send) -> R {
    let mut lock = fd_lock::RwLock::new(std::fs::File::open(place.lock_file()).unwrap());
    let held = lock.try_write().unwrap();
    std::thread::scope(|scope| {
        let releasing = scope.spawn(release);
        wait_until("the release waits", || {
            waiters(place) > 0 || releasing.is_finished()
        });
        drop(held);
        releasing.join().unwrap()
    })
}

/// The policy of the handle is to fail at once. A caller can repeat that, but not with a guard that
/// is gone.
#[test]
fn a_guard_waits_for_the_lock_to_release() {
    let place = Place::new();
    let a = place.store("a");
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap().release_on_drop();
    under_a_held_lock(&place, || drop(guard));
    assert_eq!(a.restore().unwrap(), None);

    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    assert!(under_a_held_lock(&place, || guard.release()).unwrap());
    assert_eq!(a.restore().unwrap(), None);
}

#[cfg(feature = "tokio")]
#[tokio::test]
async fn the_async_guard_is_the_same() {
    let place = Place::new();
    let a = timed_store::TimedStorage::<String>::builder(place.path())
        .session(SessionId::new("a").unwrap())
        .ttl(Duration::from_millis(600))
        .open()
        .unwrap();
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap().release_on_drop();
    place.store("a").remove().unwrap();
    guard.lost().await;
    assert!(guard.is_lost());
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    drop(a.keep_alive(lease).unwrap().release_on_drop());
    assert_eq!(a.restore().await.unwrap(), None);
}

/// A store whose clock and timers the test moves.
#[cfg(feature = "tokio")]
fn open_async(place: &Place, ttl: Duration) -> timed_store::TimedStorage<String> {
    timed_store::TimedStorage::builder(place.path())
        .session(SessionId::new("a").unwrap())
        .manual_clock(place.clock.clone())
        .lock(timed_store::LockPolicy::Wait(100 * ttl))
        .ttl(ttl)
        .open()
        .unwrap()
}

/// The time of a lease counts from its claim: a lease that is kept late has little time left.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_lease_that_is_kept_late_is_refreshed_at_once() {
    let place = Place::new();
    let a = open_async(&place, Duration::from_secs(90));
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let before = updated_at(&place);
    let late = Duration::from_secs(85);
    place.clock.advance(late);
    tokio::time::advance(late).await;
    let guard = a.keep_alive(lease).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_ne!(updated_at(&place), before);
    assert!(!guard.is_lost());
}

/// An entry keeps the timeout that it was claimed with, whichever handle refreshes it.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_handle_with_a_longer_timeout_keeps_a_lease_in_its_own_time() {
    let place = Place::new();
    let short = open_async(&place, Duration::from_secs(90));
    let lease = short.claim(s("x")).await.unwrap().granted().unwrap();
    let before = updated_at(&place);
    let long = open_async(&place, Duration::from_secs(24 * 3600));
    let guard = long.keep_alive(lease).unwrap();
    let later = Duration::from_secs(60);
    place.clock.advance(later);
    tokio::time::sleep(later).await;
    assert_ne!(updated_at(&place), before);
    assert!(!guard.is_lost());
}

/// Only the store knows of a refresh by the holder.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_lease_that_was_refreshed_by_hand_can_be_kept_later_than_its_time() {
    let place = Place::new();
    let a = open_async(&place, Duration::from_secs(90));
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    for _ in 0..2 {
        let later = Duration::from_secs(60);
        place.clock.advance(later);
        tokio::time::advance(later).await;
        assert!(a.refresh().await.unwrap());
    }
    let guard = a.keep_alive(lease).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!guard.is_lost());
}

/// The refresh waits for the lock for longer than the lease has time.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_refresh_that_waits_does_not_delay_the_news_of_the_loss() {
    let place = Place::new();
    let ttl = Duration::from_secs(90);
    let a = open_async(&place, ttl);
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let mut lock = fd_lock::RwLock::new(std::fs::File::open(place.lock_file()).unwrap());
    let _held = lock.try_write().unwrap();
    let start = tokio::time::Instant::now();
    let guard = a.keep_alive(lease).unwrap();
    guard.lost().await;
    // The timers of the runtime have a resolution of a millisecond.
    assert!(start.elapsed() <= ttl + Duration::from_millis(2));
}

#[test]
fn a_blocking_refresh_waits_no_longer_than_the_lease() {
    let place = Place::new();
    let a = place
        .builder("a")
        .lock(timed_store::LockPolicy::Wait(100 * LONG))
        .ttl(Duration::from_millis(600))
        .open()
        .unwrap();
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    let mut lock = fd_lock::RwLock::new(std::fs::File::open(place.lock_file()).unwrap());
    let _held = lock.try_write().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    wait_until("the loss is told", || guard.is_lost());
}

/// The thread of the runtime does other work, so the refresher does not run.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_lease_is_lost_when_its_time_is_over_even_if_no_task_ran() {
    let place = Place::new();
    let a = timed_store::TimedStorage::<String>::builder(place.path())
        .session(SessionId::new("a").unwrap())
        .ttl(Duration::from_secs(2))
        .open()
        .unwrap();
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    let b = open(&place, "b", LONG);
    wait_until("the value is free", || {
        b.claim(s("x")).unwrap().granted().is_some()
    });
    assert!(guard.is_lost());
}

#[cfg(feature = "tokio")]
#[test]
fn a_guard_that_outlives_its_runtime_is_lost() {
    let place = Place::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let guard = runtime.block_on(async {
        let a = open_async(&place, LONG);
        let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
        a.keep_alive(lease).unwrap()
    });
    assert!(!guard.is_lost());
    drop(runtime);
    assert!(guard.is_lost());
}

/// A machine that sleeps: the clock of the store goes on, the timers of the runtime stand still.
#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_lease_that_ended_while_the_machine_slept_is_lost() {
    let place = Place::new();
    let ttl = Duration::from_secs(4 * 3600);
    let a = open_async(&place, ttl);
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    place.clock.advance(ttl);
    let told = tokio::time::timeout(Duration::from_secs(15), guard.lost()).await;
    assert!(told.is_ok());
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap();
    place.clock.advance(ttl);
    assert!(guard.is_lost(), "without a pause");
}

/// The release waits for the lock when it is cancelled. The drop of the guard does it then.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn a_cancelled_release_is_done_by_the_drop() {
    let place = Place::new();
    let a = open_async(&place, LONG);
    let lease = a.claim(s("x")).await.unwrap().granted().unwrap();
    let guard = a.keep_alive(lease).unwrap().release_on_drop();
    let mut lock = fd_lock::RwLock::new(std::fs::File::open(place.lock_file()).unwrap());
    let held = lock.try_write().unwrap();
    let mut release = Box::pin(guard.release());
    let released = tokio::time::timeout(Duration::ZERO, &mut release).await;
    assert!(released.is_err(), "it waits");
    std::thread::scope(|scope| {
        scope.spawn(move || drop(release));
        drop(held);
    });
    assert_eq!(a.restore().await.unwrap(), None);
}
