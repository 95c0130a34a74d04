//! Claims: a value that only one session holds.

use std::path::PathBuf;
use std::time::Duration;

use timed_store::{Claim, Error, OwnerProcess, SessionId};

use crate::support::{Place, START_MS, Store, s, time, token, write_private};
use crate::worker::Worker;

const TTL: Duration = Duration::from_secs(4 * 60 * 60);

#[track_caller]
fn busy(claim: Result<Claim<String>, Error>) -> (String, Duration) {
    match claim.unwrap() {
        Claim::Busy { holder, expires_in } => (holder.to_string(), expires_in),
        Claim::Granted(lease) => panic!("granted: {lease:?}"),
    }
}

#[test]
fn a_claimed_value_is_busy_for_others_until_it_expires() {
    let place = Place::new();
    let (a, b) = (place.store("a"), place.store("b"));
    let first = token(a.claim(s("x")));
    place.clock.advance(TTL / 4);
    assert_eq!(busy(b.claim(s("x"))), (s("a"), TTL * 3 / 4));
    place.clock.advance(TTL * 3 / 4);
    assert_eq!(busy(b.claim(s("x"))), (s("a"), Duration::ZERO));
    place.clock.advance(Duration::from_millis(1));
    assert!(token(b.claim(s("x"))) > first);
    assert_eq!(a.restore().unwrap(), None);
}

#[test]
fn a_value_that_was_only_stored_is_busy_too() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    assert_eq!(busy(place.store("b").claim(s("x"))).0, "a");
}

#[test]
fn a_repeated_claim_refreshes_the_value_and_keeps_the_token() {
    let place = Place::new();
    let a = place.store("a");
    let first = token(a.claim(s("x")));
    place.clock.advance(TTL);
    assert_eq!(token(a.claim(s("x"))), first);
    place.clock.advance(TTL);
    assert_eq!(a.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_session_keeps_the_old_value_until_a_new_one_is_granted() {
    let place = Place::new();
    let (a, b) = (place.store("a"), place.store("b"));
    token(a.claim(s("x")));
    token(b.claim(s("y")));
    let before = place.text();
    assert_eq!(busy(a.claim(s("y"))).0, "b");
    assert_eq!(place.text(), before);
    assert_eq!(a.restore().unwrap(), Some(s("x")));
    token(a.claim(s("z")));
    token(b.claim(s("x")));
}

#[test]
fn claim_any_prefers_the_held_value_then_the_first_free_one() {
    let place = Place::new();
    let (a, b, c) = (place.store("a"), place.store("b"), place.store("c"));
    let all = || ["x", "y"].map(s);
    assert_eq!(a.claim_any(all()).unwrap().granted().unwrap().value(), "x");
    assert_eq!(b.claim_any(all()).unwrap().granted().unwrap().value(), "y");
    assert_eq!(
        b.claim_any(all()).unwrap().granted().unwrap().into_value(),
        "y"
    );
    place.clock.advance(TTL / 2);
    a.refresh().unwrap();
    assert_eq!(
        busy(c.claim_any(all())),
        (s("b"), TTL / 2),
        "the value that is free soonest"
    );
    assert!(matches!(c.claim_any([]), Err(Error::Invalid { .. })));
}

#[test]
fn tokens_only_grow() {
    let place = Place::new();
    let a = place.store("a");
    let mut last = 0;
    let mut grows = |claim| {
        let token = token(claim);
        assert!(token > last, "{token} after {last}");
        last = token;
    };
    grows(a.claim(s("x")));
    grows(a.claim(s("y")));
    a.remove().unwrap();
    grows(a.claim(s("y")));
    place.clock.advance(TTL * 2);
    grows(place.store("b").claim(s("y")));
    a.store(&s("z")).unwrap();
    grows(a.claim(s("z")));

    // From here on the clock is no help: it is set back before each loss.
    let id = a
        .claim(s("k"))
        .unwrap()
        .granted()
        .unwrap()
        .store_id()
        .to_owned();
    let mut back = START_MS;
    let mut lose = |lost: &[PathBuf]| {
        back -= 1_000_000;
        place.clock.set(time(back));
        for path in lost {
            std::fs::remove_file(path).unwrap();
        }
    };
    let slot = a.slot("extra").unwrap();
    let slots = place.folder.path().join("state.json.slots");
    for lost in [
        vec![place.lock_file()],
        vec![place.path()],
        vec![place.path(), place.lock_file()],
        vec![slots.clone(), place.lock_file()],
        vec![place.path(), slots.clone()],
    ] {
        a.store(&s("q")).unwrap();
        slot.store(&s("r")).unwrap();
        grows(a.claim(s("w")));
        grows(slot.claim(s("v")));
        a.remove().unwrap();
        slot.remove().unwrap();
        lose(&lost);
        let lease = place.store("c").claim(s("w")).unwrap().granted().unwrap();
        assert_eq!(lease.store_id(), id, "{lost:?}");
        grows(Ok(Claim::Granted(lease)));
        place.store("c").remove().unwrap();
    }

    // If all files are lost, the store is another one.
    place.clock.set(time(START_MS * 2));
    let lost: Vec<PathBuf> = place
        .folder
        .path()
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    for path in lost {
        std::fs::remove_file(path).unwrap();
    }
    let lease = a.claim(s("w")).unwrap().granted().unwrap();
    assert_ne!(lease.store_id(), id);
    grows(Ok(Claim::Granted(lease)));
}

/// Version 0.1 wrote no identity, and its counter is the first line of the lock file.
#[test]
fn a_store_of_version_0_1_keeps_its_tokens() {
    let place = Place::new();
    write_private(&place.lock_file(), b"00000001755512430999\n");
    place.write(include_str!("../golden/ours-0.1.json"));
    let a = place.store("a");
    let lease = a.claim(s("tsukuyomi")).unwrap().granted().unwrap();
    assert_eq!(lease.token(), 1_755_512_430_457, "a renewal");
    let id = lease.store_id().to_owned();
    let lease = a.claim(s("angie-2")).unwrap().granted().unwrap();
    assert_eq!((lease.token(), lease.store_id()), (1_755_512_431_000, &*id));
}

#[test]
fn a_token_that_json_tools_would_round_is_refused() {
    let place = Place::new();
    let a = place.store("a");
    token(a.claim(s("x")));
    std::fs::write(place.lock_file(), format!("{:020}\n", (1u64 << 53) - 1)).unwrap();
    let before = place.text();
    assert!(matches!(
        a.claim(s("y")),
        Err(Error::TokensExhausted { .. })
    ));
    assert_eq!(place.text(), before);
}

#[test]
fn a_store_ends_the_claim() {
    let place = Place::new();
    let a = place.store("a");
    token(a.claim(s("x")));
    assert!(a.entries().unwrap().mine().unwrap().token().is_some());
    a.store(&s("y")).unwrap();
    assert_eq!(a.entries().unwrap().mine().unwrap().token(), None);
}

fn start_owner(place: &Place) -> (Worker, OwnerProcess) {
    let worker = Worker::start("idle", place.folder.path());
    let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
    (worker, owner)
}

#[test]
fn a_dead_process_frees_the_entry_of_its_session() {
    let place = Place::new();
    let (mut worker, owner) = start_owner(&place);
    let store = Store::builder(place.path())
        .session(SessionId::of_process(owner))
        .manual_clock(place.clock.clone())
        .open()
        .unwrap();
    // In a container the namespace follows.
    let id = store.session().as_str().split('@').next();
    assert_eq!(id, Some(&*worker.pid().to_string()));
    store.store(&s("x")).unwrap();
    let other = place.store("b");
    assert_eq!(busy(other.claim(s("x"))).0, store.session().as_str());
    worker.kill();
    token(other.claim(s("x")));
    assert_eq!(other.get_other_entries().unwrap().len(), 0);
}

#[test]
fn a_dead_owner_frees_claimed_values_only() {
    let place = Place::new();
    let (mut worker, owner) = start_owner(&place);
    let open = |session| place.builder(session).owner(owner.clone()).open().unwrap();
    let (owned, stored) = (open("terminal"), open("other"));
    token(owned.claim(s("x")));
    stored.store(&s("y")).unwrap();
    worker.kill();
    token(place.store("b").claim(s("x")));
    assert_eq!(busy(place.store("b").claim(s("y"))).0, "other");
}

#[test]
fn a_process_with_the_same_id_but_another_start_is_another_one() {
    let place = Place::new();
    let (_worker, owner) = start_owner(&place);
    let owned = place.builder("a").owner(owner).open().unwrap();
    token(owned.claim(s("x")));
    let start = place.json()["storage"]["a"]["owner"]["start"]
        .as_u64()
        .unwrap();
    place.write(&place.text().replace(
        &format!("\"start\":{start}"),
        &format!("\"start\":{}", start - 1),
    ));
    token(place.store("b").claim(s("x")));
}

#[test]
fn a_terminal_session_outlives_its_processes_even_if_its_id_is_a_number() {
    let place = Place::new();
    let (mut worker, _) = start_owner(&place);
    let id = worker.pid().to_string();
    place.store(&id).store(&s("x")).unwrap();
    worker.kill();
    assert_eq!(busy(place.store("b").claim(s("x"))).0, id);
}

#[test]
fn a_token_record_that_is_too_large_does_not_start_the_tokens_again() {
    let place = Place::new();
    let a = place.store("a");
    let first = token(a.claim(s("x")));
    std::fs::remove_file(place.path()).unwrap();
    write_private(&place.lock_file(), b"09999999999999999999\n");
    place.clock.advance(Duration::from_secs(1));
    assert!(token(a.claim(s("y"))) > first);
}
