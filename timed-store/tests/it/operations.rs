//! The five operations of the specification.

use std::time::Duration;

use timed_store::{Error, SessionId};

use crate::support::{Place, START, START_MS, Store, s, time};

const TTL: Duration = Duration::from_secs(4 * 60 * 60);

#[test]
fn a_value_is_stored_restored_refreshed_and_removed() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("tsukuyomi")).unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("tsukuyomi")));
    assert!(store.refresh().unwrap());
    assert!(store.remove().unwrap());
    assert_eq!(store.restore().unwrap(), None);
    assert!(!store.remove().unwrap());
    assert!(!store.refresh().unwrap());
}

#[test]
fn the_first_write_creates_file_and_folder() {
    let place = Place::new();
    let path = place.folder.path().join("deep/er/state.json");
    let store = Store::builder(&path)
        .session(SessionId::new("a").unwrap())
        .open()
        .unwrap();
    store.store(&s("x")).unwrap();
    assert!(path.exists());
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn reading_a_missing_file_gives_nothing_and_creates_nothing() {
    let place = Place::new();
    let store = place.store("a");
    assert_eq!(store.restore().unwrap(), None);
    assert!(store.get_other_entries().unwrap().is_empty());
    assert!(store.entries().unwrap().mine().is_none());
    assert_eq!(place.files(), [""; 0]);

    let elsewhere = Store::open(place.folder.path().join("no/such/folder.json")).unwrap();
    assert_eq!(elsewhere.restore().unwrap(), None);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn other_entries_do_not_include_the_own_one() {
    let place = Place::new();
    for session in ["a", "b", "c"] {
        place.store(session).store(&session.to_uppercase()).unwrap();
    }
    let others = place.store("b").get_other_entries().unwrap();
    let others: Vec<_> = others
        .iter()
        .map(|(session, value)| (session.as_str(), value.as_str()))
        .collect();
    assert_eq!(others, [("a", "A"), ("c", "C")]);
}

#[test]
fn all_processes_of_a_session_share_its_entry() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    assert_eq!(place.store("a").restore().unwrap(), Some(s("x")));
    assert!(place.store("a").remove().unwrap());
    assert_eq!(place.store("a").restore().unwrap(), None);
}

#[test]
fn an_entry_is_valid_while_its_age_is_at_most_the_timeout() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    place.clock.advance(TTL);
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    place.clock.advance(Duration::from_millis(1));
    assert_eq!(store.restore().unwrap(), None);
    assert!(!store.refresh().unwrap());
}

#[test]
fn a_refresh_restarts_the_time() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    for _ in 0..3 {
        place.clock.advance(TTL);
        assert!(store.refresh().unwrap());
    }
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn an_expired_entry_is_invisible_to_others_and_cleaned_by_their_read() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    place.clock.advance(TTL + Duration::from_millis(1));
    let other = place.store("b");
    assert!(other.get_other_entries().unwrap().is_empty());
    assert_eq!(place.json(), serde_json::json!({"storage": {}}));
}

#[test]
fn a_read_with_nothing_to_clean_writes_nothing() {
    use std::os::unix::fs::MetadataExt;
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let inode = place.path().metadata().unwrap().ino();
    store.restore().unwrap();
    store.get_other_entries().unwrap();
    store.entries().unwrap();
    place.store("b").remove().unwrap();
    place.store("b").refresh().unwrap();
    store
        .transaction(|entries| assert!(entries.mine().is_some()))
        .unwrap();
    assert_eq!(place.path().metadata().unwrap().ino(), inode);
}

#[test]
fn a_reader_with_a_short_timeout_keeps_longer_entries() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    place.clock.advance(TTL / 2);
    let short = place
        .builder("b")
        .ttl(Duration::from_secs(1))
        .open()
        .unwrap();
    assert_eq!(short.get_other_entries().unwrap().len(), 1);
    short.store(&s("y")).unwrap();
    assert_eq!(place.store("a").restore().unwrap(), Some(s("x")));
    place.clock.advance(Duration::from_secs(2));
    assert_eq!(short.restore().unwrap(), None);
}

#[test]
fn the_timeout_of_the_reader_applies_to_entries_without_one() {
    let place = Place::new();
    place.write(&format!(
        r#"{{"storage":{{"a":{{"data":"x","updated_at":"{START}"}}}}}}"#
    ));
    place.clock.advance(Duration::from_secs(60));
    let long = place
        .builder("b")
        .ttl(Duration::from_secs(60))
        .open()
        .unwrap();
    assert_eq!(long.get_other_entries().unwrap().len(), 1);
    let short = place
        .builder("b")
        .ttl(Duration::from_secs(59))
        .open()
        .unwrap();
    assert_eq!(short.get_other_entries().unwrap().len(), 0);
}

#[test]
fn a_timestamp_ahead_of_the_clock_is_set_to_now_by_the_next_writer() {
    let place = Place::new();
    place.write(
        r#"{"storage":{"a":{"data":"x","updated_at":"2999-01-01T00:00:00.000Z","note":[1, 2]}}}"#,
    );
    let before = place.text();
    let store = place.store("b");
    assert_eq!(store.get_other_entries().unwrap().len(), 1);
    assert_eq!(place.text(), before, "a reader does not change it");
    assert!(!store.remove().unwrap());
    assert_eq!(
        place.json(),
        serde_json::json!({"storage": {"a": {"data": "x", "updated_at": START, "note": [1, 2]}}})
    );
    place.clock.advance(TTL + Duration::from_millis(1));
    assert!(store.get_other_entries().unwrap().is_empty());
}

#[test]
fn a_clock_set_back_does_not_expire_anything() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    place.clock.set(time(START_MS - 10 * 24 * 3600 * 1000));
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_value_of_another_type_is_an_error_that_names_the_session() {
    let place = Place::new();
    place.write(&format!(
        r#"{{"storage":{{"a":{{"data":5,"updated_at":"{START}"}}}}}}"#
    ));
    let before = place.text();
    for result in [
        place.store("a").restore().map(|_| ()),
        place.store("b").get_other_entries().map(|_| ()),
        place.store("b").claim(s("x")).map(|_| ()),
        place.store("b").transaction(|_| ()),
    ] {
        match result {
            Err(Error::Decode { session, .. }) => assert_eq!(session.as_str(), "a"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(place.text(), before);
    place.store("b").store(&s("x")).unwrap();
    place.store("a").store(&s("y")).unwrap();
    assert_eq!(place.store("a").restore().unwrap(), Some(s("y")));
}

#[test]
fn a_transaction_sees_all_and_changes_its_own() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    let store = place.store("b");
    let seen = store
        .transaction(|entries| {
            entries.store(s("y"));
            assert_eq!(entries.mine().unwrap().value(), "y");
            entries
                .iter()
                .map(|(session, entry)| format!("{session}={}", entry.value()))
                .collect::<Vec<_>>()
        })
        .unwrap();
    assert_eq!(seen, ["a=x", "b=y"]);
    assert_eq!(store.restore().unwrap(), Some(s("y")));
    assert!(store.transaction(|entries| entries.remove()).unwrap());
    assert_eq!(place.store("a").get_other_entries().unwrap().len(), 0);
}

#[test]
fn a_transaction_that_panics_changes_nothing_and_unlocks() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let before = place.text();
    let panicking = store.clone();
    let result = std::thread::spawn(move || {
        panicking.transaction(|entries| {
            entries.store(s("y"));
            panic!("expected by the test");
        })
    });
    assert!(result.join().is_err());
    assert_eq!(place.text(), before);
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_value_without_a_json_form_is_an_error_and_changes_nothing() {
    use std::collections::BTreeMap;
    use timed_store::blocking::TimedStorage;
    let place = Place::new();
    let store = TimedStorage::<BTreeMap<(u8, u8), u8>>::open(place.path()).unwrap();
    let error = store.store(&BTreeMap::from([((1, 2), 3)])).unwrap_err();
    assert!(matches!(error, Error::Encode { .. }), "{error:?}");
    assert_eq!(store.restore().unwrap(), None);
}

#[test]
fn the_timeout_comes_from_the_configuration() {
    let place = Place::new();
    let config = place.folder.path().join("config.json");
    let open = |text: &str| {
        std::fs::write(&config, text).unwrap();
        place.builder("a").ttl_from_config(&config)?.open()
    };
    open(r#"{"operatorTimeout": 1000, "other": true}"#)
        .unwrap()
        .store(&s("x"))
        .unwrap();
    assert_eq!(place.json()["storage"]["a"]["ttl_ms"], 1000);
    open("{}").unwrap().store(&s("x")).unwrap();
    assert_eq!(place.json()["storage"]["a"]["ttl_ms"], 14_400_000);
    for text in [r#"{"operatorTimeout": "1000"}"#, "[]", ""] {
        let error = open(text).unwrap_err();
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        assert!(error.to_string().contains("config.json"));
    }
    let missing = place
        .builder("a")
        .ttl_from_config(place.folder.path().join("none.json"));
    assert!(matches!(missing, Err(Error::Io { .. })));
}
