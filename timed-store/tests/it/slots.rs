//! Several values for one session.

use timed_store::{Claim, Error};

use crate::support::{Place, Store, s};

fn is_granted(store: &Store, value: &str) -> bool {
    store.claim(s(value)).unwrap().granted().is_some()
}

#[test]
fn each_slot_has_an_entry_of_its_own() {
    let place = Place::new();
    let a = place.store("a");
    let (one, two) = (a.slot("one").unwrap(), a.slot("two").unwrap());
    for (store, value) in [(&a, "x"), (&one, "y"), (&two, "z")] {
        assert!(is_granted(store, value));
    }
    assert_eq!(one.restore().unwrap(), Some(s("y")));
    assert!(one.remove().unwrap() && !one.remove().unwrap());
    assert_eq!(a.restore().unwrap(), Some(s("x")));
    assert_eq!(two.restore().unwrap(), Some(s("z")));
    assert!(two.refresh().unwrap());
}

#[test]
fn the_specified_file_holds_the_default_slot_only() {
    let place = Place::new();
    let a = place.store("a");
    a.store(&s("x")).unwrap();
    a.slot("one").unwrap().store(&s("y")).unwrap();
    assert_eq!(place.json()["storage"].as_object().unwrap().len(), 1);
    assert_eq!(place.json()["storage"]["a"]["data"], "x");
    let slots = place.folder.path().join("state.json.slots");
    let slots: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(slots).unwrap()).unwrap();
    assert_eq!(slots["storage"]["a#one"]["data"], "y");
}

#[test]
fn a_value_has_one_session_over_all_slots() {
    let place = Place::new();
    let (a, b) = (place.store("a"), place.store("b"));
    let (a_one, b_one) = (a.slot("one").unwrap(), b.slot("one").unwrap());
    assert!(is_granted(&a, "x") && is_granted(&a_one, "y"));
    for (store, value, expected) in [
        (&b, "x", "a"),
        (&b_one, "x", "a"),
        (&b, "y", "a#one"),
        (&b_one, "y", "a#one"),
    ] {
        match store.claim(s(value)).unwrap() {
            Claim::Busy { holder, .. } => assert_eq!(holder.as_str(), expected),
            Claim::Granted(lease) => panic!("{lease:?}"),
        }
    }
    // The slots of one session do not exclude each other.
    assert!(is_granted(&a, "y") && is_granted(&a_one, "x"));
    a_one.remove().unwrap();
    assert!(is_granted(&b_one, "x") && !is_granted(&b_one, "y"));
}

#[test]
fn own_slots_are_not_among_the_others() {
    let place = Place::new();
    let (a, b) = (place.store("a"), place.store("b"));
    let one = a.slot("one").unwrap();
    a.store(&s("x")).unwrap();
    one.store(&s("y")).unwrap();
    b.slot("two").unwrap().store(&s("z")).unwrap();
    for store in [&a, &one] {
        let others = store.get_other_entries().unwrap();
        let others: Vec<(&str, &str)> = others
            .iter()
            .map(|(session, value)| (session.as_str(), value.as_str()))
            .collect();
        assert_eq!(others, [("b#two", "z")]);
        let entries = store.entries().unwrap();
        assert_eq!(entries.others().count(), 1);
        assert_eq!(entries.iter().count(), 3);
        assert_eq!(
            entries.mine().unwrap().value(),
            &store.restore().unwrap().unwrap()
        );
        let counted = store
            .transaction(|entries| entries.others().count())
            .unwrap();
        assert_eq!(counted, 1);
    }
    assert_eq!(b.get_other_entries().unwrap().len(), 2);
}

#[test]
fn tokens_grow_over_all_slots() {
    let place = Place::new();
    let a = place.store("a");
    let one = a.slot("one").unwrap();
    let mut last = 0;
    for round in 0..6 {
        let store = if round % 2 == 0 { &a } else { &one };
        let lease = store.claim(round.to_string()).unwrap().granted().unwrap();
        assert!(lease.token() > last);
        last = lease.token();
    }
    assert!(a.validate(last).unwrap() && one.validate(last).unwrap());
}

#[test]
fn the_name_of_a_slot_is_checked() {
    let a = Place::new().store("a");
    for name in ["", "a#b", "a b", "ü", &"x".repeat(65)] {
        assert!(matches!(a.slot(name), Err(Error::Invalid { .. })), "{name}");
    }
    assert!(a.slot("Port_1.x-y").is_ok());
}

/// A session whose own id looks like a slot of another one is still another session.
#[test]
fn an_id_with_the_separator_is_a_session_of_its_own() {
    let place = Place::new();
    let (a, odd) = (place.store("a"), place.store("a#one"));
    assert!(is_granted(&odd, "x"));
    let one = a.slot("one").unwrap();
    assert!(!is_granted(&one, "x"));
    assert!(is_granted(&one, "y"));
    assert!(!is_granted(&odd, "y"));
    assert_eq!(odd.restore().unwrap(), Some(s("x")));
}

/// The lock file was removed, and the first write goes to the file without an identity.
#[test]
fn a_new_file_gets_the_identity_of_the_other_one() {
    let place = Place::new();
    let a = place.store("a");
    let lease = a.claim(s("x")).unwrap().granted().unwrap();
    std::fs::remove_file(place.lock_file()).unwrap();
    a.slot("one").unwrap().store(&s("y")).unwrap();
    let later = a.claim(s("z")).unwrap().granted().unwrap();
    assert_eq!(later.store_id(), lease.store_id());
    assert!(later.token() > lease.token());
}
