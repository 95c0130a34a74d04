//! Damaged files: whole entries are kept, a copy of the damage is kept, and work continues.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use timed_store::{Error, Incident};

use crate::support::{Place, START, Store, s, write_private};

fn small_file() -> String {
    let place = Place::new();
    for (session, value) in [("a", "tsukuyomi"), ("b", "angie"), ("c", "alma")] {
        assert!(
            place
                .store(session)
                .claim(s(value))
                .unwrap()
                .granted()
                .is_some()
        );
    }
    place.text()
}

/// Opens a store that records its incidents.
fn watched(place: &Place, session: &str) -> (Store, Arc<Mutex<Vec<Incident>>>) {
    let incidents = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&incidents);
    let store = place
        .builder(session)
        .on_incident(move |incident| sink.lock().unwrap().push(incident.clone()));
    (store.open().unwrap(), incidents)
}

fn copy_of(incidents: &[Incident]) -> Option<PathBuf> {
    incidents.iter().find_map(|incident| match incident {
        Incident::Recovered { copy, .. } => Some(copy.clone()),
        _ => None,
    })
}

/// Stores into the damaged file, and checks that the file is then valid, that all lines in
/// `untouched` are in it, and that a copy of a corrupt file was kept.
fn check(place: &Place, damaged: &[u8], untouched: &[&str]) {
    write_private(&place.path(), damaged);
    let (store, incidents) = watched(place, "me");
    let shown = String::from_utf8_lossy(damaged);
    store
        .store(&s("mine"))
        .unwrap_or_else(|error| panic!("{error}: {shown}"));
    let text = place.text();
    let after: serde_json::Value =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {shown}"));
    assert_eq!(after["storage"]["me"]["data"], "mine", "{shown}");
    for line in untouched {
        assert!(text.contains(line), "lost {line}\nof {shown}\nkept {text}");
    }
    let incidents = std::mem::take(&mut *incidents.lock().unwrap());
    let is_valid = serde_json::from_slice::<serde_json::Value>(damaged).is_ok();
    match copy_of(&incidents) {
        Some(copy) => {
            assert_eq!(std::fs::read(&copy).unwrap(), damaged);
            std::fs::remove_file(copy).unwrap();
        }
        None => assert!(is_valid, "no copy of {shown}"),
    }
}

fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| line.starts_with("\""))
        .map(|line| line.trim_end_matches(','))
        .collect()
}

#[test]
fn every_truncation_keeps_every_whole_entry() {
    let (place, text) = (Place::new(), small_file());
    for length in 0..text.len() {
        let damaged = &text[..length];
        let whole: Vec<&str> = lines(&text)
            .into_iter()
            .filter(|line| damaged.contains(line))
            .collect();
        check(&place, damaged.as_bytes(), &whole);
    }
}

#[test]
fn every_single_byte_change_keeps_every_other_entry() {
    let text = small_file();
    assert_eq!(lines(&text).len(), 3);
    // Bytes with a meaning in JSON, and one that is invalid. With the variable set, all bytes; a
    // test beside the code tries all of them without files.
    let values: Vec<u8> = if std::env::var_os("TIMED_STORE_THOROUGH").is_some() {
        (0..=255).collect()
    } else {
        Vec::from(*b"\"\\{}:, 5\xff")
    };
    std::thread::scope(|scope| {
        for part in 0..2 {
            let (text, values) = (&text, &values);
            scope.spawn(move || {
                let place = Place::new();
                for at in (part..text.len()).step_by(2) {
                    let untouched: Vec<&str> = lines(text)
                        .into_iter()
                        .filter(|line| {
                            let start = text.find(line).unwrap();
                            !(start..start + line.len()).contains(&at)
                        })
                        .collect();
                    for value in values.iter().copied() {
                        let mut damaged = text.clone().into_bytes();
                        damaged[at] = value;
                        check(&place, &damaged, &untouched);
                    }
                }
            });
        }
    });
}

#[test]
fn a_reader_answers_from_the_whole_entries_and_recovers_the_file() {
    let place = Place::new();
    let text = small_file();
    place.write(&text[..text.len() - 4]);
    let (store, incidents) = watched(&place, "b");
    assert_eq!(store.restore().unwrap(), Some(s("angie")));
    let incidents = incidents.lock().unwrap();
    match incidents.as_slice() {
        [
            Incident::Recovered {
                path,
                copy,
                saved: 3,
                reason,
            },
        ] => {
            assert_eq!(*path, place.path());
            assert!(
                copy.to_str()
                    .unwrap()
                    .contains("state.json.corrupt-20250818T102030.456Z"),
                "{copy:?}"
            );
            assert!(reason.contains("EOF while parsing"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(place.json()["storage"].as_object().unwrap().len(), 3);
    assert_eq!(store.get_other_entries().unwrap().len(), 2);
    assert_eq!(incidents.len(), 1, "the file is not corrupt any more");
}

#[test]
fn two_corrupt_files_at_one_moment_have_two_copies() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    for text in ["one", "two"] {
        place.write(text);
        place.store("a").store(&s("x")).unwrap();
    }
    let copies: Vec<String> = place
        .files()
        .into_iter()
        .filter(|name| name.contains(".corrupt-"))
        .collect();
    assert_eq!(copies.len(), 2, "{copies:?}");
}

#[test]
fn an_unreadable_timestamp_is_dropped_and_reported() {
    let place = Place::new();
    place.write(&format!(
        r#"{{"storage":{{"a":{{"data":"x","updated_at":"yesterday"}},"b":{{"data":"y","updated_at":"{START}"}}}}}}"#
    ));
    let (store, incidents) = watched(&place, "me");
    assert_eq!(store.get_other_entries().unwrap().len(), 1);
    match incidents.lock().unwrap().as_slice() {
        [
            Incident::UnreadableTimestamp {
                session, timestamp, ..
            },
        ] => {
            assert_eq!((session.as_str(), timestamp.as_str()), ("a", "yesterday"));
        }
        other => panic!("{other:?}"),
    }
    assert!(place.json()["storage"].get("a").is_none());
    assert_eq!(
        place.files(),
        ["state.json", "state.json.flock"],
        "the file was not corrupt"
    );
}

#[test]
fn the_handler_may_use_the_store() {
    let place = Place::new();
    place.store("a").store(&s("x")).unwrap();
    place.write("nonsense");
    let inner = place.store("handler");
    let store = place
        .builder("a")
        .on_incident(move |_| inner.store(&s("called")).unwrap())
        .open()
        .unwrap();
    store.store(&s("x")).unwrap();
    assert_eq!(place.store("handler").restore().unwrap(), Some(s("called")));
}

/// JSON that is not a store.
const OTHER_SHAPES: [&str; 6] = [
    "[]",
    "null",
    "{}",
    r#"{"storage":[]}"#,
    r#"{"storage":{"a":5}}"#,
    r#"{"storage":{"a":{}}}"#,
];

#[test]
fn json_of_another_shape_is_corrupt() {
    let place = Place::new();
    // The lock file knows that there was a store.
    place.store("a").store(&s("x")).unwrap();
    for text in OTHER_SHAPES {
        place.write(text);
        let (store, incidents) = watched(&place, "me");
        assert!(store.entries().unwrap().iter().next().is_none());
        let copy = copy_of(&incidents.lock().unwrap()).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(std::fs::read_to_string(copy).unwrap(), text);
        assert_eq!(place.text(), "{\"storage\":{\n}}\n");
    }
}

#[test]
fn a_file_that_was_never_a_store_is_an_error_and_stays_unchanged() {
    let place = Place::new();
    let other_files = [
        "export PATH=/bin\n",
        "{\"version\": 1}",
        // The key `storage` of another program, whole and torn.
        r#"{"storage":{"type":"s3","bucket":"b"},"updated_at":"2025-08-18T10:20:30.456Z"}"#,
        r#"{"name":"app","storage":{"cache":{"data":"/var/cache"}}}"#,
        r#"{"storage":{"type":"s3","buck"#,
        "{\n  \"storage\": {\n    \"type\": \"s3\"",
        r#"["storage","updated_at"]"#,
        "the keys \"storage\" and \"data\"",
    ];
    for &text in OTHER_SHAPES.iter().chain(&other_files) {
        place.write(text);
        let store = place.store("a");
        for result in [
            store.restore().map(|_| ()),
            store.entries().map(|_| ()),
            store.get_other_entries().map(|_| ()),
            store.store(&s("x")),
            store.claim(s("x")).map(|_| ()),
            store.remove().map(|_| ()),
        ] {
            let error = result.unwrap_err();
            assert!(
                matches!(error, Error::NotAStore { .. }),
                "{text}: {error:?}"
            );
        }
        assert_eq!(place.text(), text);
        assert_eq!(place.files(), ["state.json", "state.json.flock"]);
    }
    // The remains of a store are recovered, also without a lock file.
    for text in [
        "",
        "\0\0\0\0",
        "{\"stor",
        "{\"storage\":{",
        "{\"storage\":{\n\"a\":{\"da",
        "{\n  \"storage\": {\n    \"a\": {\n      \"updated_at\": \"2025-08-1",
        r#"{"storage":{"a":{"data":5,"updated_at":"2025-08-18T10:20:30.456Z"},"b":6}}"#,
        r#"{"storage":[],"timed_store":{"id":"00000000000000ab","token":7}}"#,
    ] {
        let place = Place::new();
        place.write(text);
        assert_eq!(place.store("a").restore().unwrap(), None, "{text}");
        place.store("a").store(&s("x")).unwrap();
    }
}

#[test]
fn damage_is_in_the_result_of_the_operation() {
    let place = Place::new();
    let text = small_file();
    let damaged = &text[..text.find("\"c\"").unwrap()];
    place.write(damaged);
    let store = place.store("me");
    let entries = store.entries().unwrap();
    assert!(matches!(
        entries.incidents(),
        [Incident::Recovered { saved: 2, .. }]
    ));
    assert!(
        store.entries().unwrap().incidents().is_empty(),
        "it was repaired"
    );
    place.write(damaged);
    let lease = store.claim(s("alma")).unwrap().granted().unwrap();
    assert!(matches!(
        lease.incidents(),
        [Incident::Recovered { saved: 2, .. }]
    ));
    let lease = store.claim(s("alma")).unwrap().granted().unwrap();
    assert!(lease.incidents().is_empty());
}

#[test]
fn damage_that_a_result_has_no_room_for_can_be_asked_for() {
    let place = Place::new();
    let text = small_file();
    let damaged = &text[..text.find("\"c\"").unwrap()];
    let store = place.store("me");
    let operations: [(&str, &dyn Fn()); 7] = [
        ("restore", &|| drop(store.restore().unwrap())),
        ("store", &|| store.store(&s("x")).unwrap()),
        ("refresh", &|| assert!(!store.refresh().unwrap())),
        ("remove", &|| assert!(!store.remove().unwrap())),
        ("validate", &|| assert!(!store.validate(1).unwrap())),
        ("others", &|| drop(store.get_other_entries().unwrap())),
        ("transaction", &|| store.transaction(|_| ()).unwrap()),
    ];
    for (name, operation) in operations {
        place.write(damaged);
        operation();
        let met = store.clone().take_incidents();
        assert!(
            matches!(met[..], [Incident::Recovered { saved: 2, .. }]),
            "{name}: {met:?}"
        );
        assert_eq!(store.take_incidents(), [], "{name}");
    }
    // Slots share the list, which is bounded.
    let slot = store.slot("other").unwrap();
    for _ in 0..70 {
        write_private(
            &place.folder.path().join("state.json.slots"),
            damaged.as_bytes(),
        );
        slot.store(&s("x")).unwrap();
    }
    assert_eq!(store.take_incidents().len(), 64);
}

/// A reader cannot repair a file whose lock is held.
#[test]
fn damage_that_stays_is_reported_too() {
    let place = Place::new();
    let (store, incidents) = watched(&place, "b");
    let text = small_file();
    place.write(&text[..text.len() - 4]);
    // A second reader's shared lock keeps the cleanup out.
    write_private(&place.lock_file(), b"");
    let file = std::fs::File::open(place.lock_file()).unwrap();
    let lock = fd_lock::RwLock::new(file);
    let reading = lock.read().unwrap();
    let entries = store.entries().unwrap();
    assert!(matches!(
        entries.incidents(),
        [Incident::Damaged { saved: 3, .. }]
    ));
    assert_eq!(entries.iter().count(), 3);
    drop(reading);
    assert_eq!(incidents.lock().unwrap().len(), 1);
    assert!(matches!(
        store.entries().unwrap().incidents(),
        [Incident::Recovered { .. }]
    ));
}

/// A claim reads both files: damage in the other one may have cost the holder, too.
#[test]
fn damage_of_the_other_file_is_in_the_result() {
    let place = Place::new();
    let slots = place.folder.path().join("state.json.slots");
    let holder = place.store("a").slot("one").unwrap();
    assert!(holder.claim(s("x")).unwrap().granted().is_some());
    place.store("a").store(&s("w")).unwrap();
    for damaged in ["{\"storage\":{\n\"a#one\":{\"data\":", "precious"] {
        write_private(&slots, damaged.as_bytes());
        let (store, incidents) = watched(&place, "b");
        let lease = store.claim(s("x")).unwrap().granted().unwrap();
        let is_reported = |met: &[Incident]| matches!(met, [Incident::Damaged { path, saved: 0, .. }] if *path == slots);
        assert!(is_reported(lease.incidents()), "{:?}", lease.incidents());
        let entries = store.entries().unwrap();
        assert!(
            is_reported(entries.incidents()),
            "{:?}",
            entries.incidents()
        );
        assert_eq!(incidents.lock().unwrap().len(), 2);
        assert!(store.remove().unwrap());
    }
    // Both files are damaged.
    let (store, _) = watched(&place, "b");
    let text = place.text();
    place.write(&text[..text.len() - 4]);
    let entries = store.entries().unwrap();
    assert!(
        matches!(
            entries.incidents(),
            [Incident::Damaged { .. }, Incident::Recovered { .. }]
        ),
        "{:?}",
        entries.incidents()
    );
    // The file of another program, beside a store that was never used.
    let place = Place::new();
    write_private(&place.folder.path().join("state.json.slots"), b"precious");
    let store = place.store("b");
    assert!(matches!(
        store.claim(s("x")),
        Err(Error::NotAStore { path }) if path.ends_with("state.json.slots")
    ));
    assert!(matches!(store.entries(), Err(Error::NotAStore { .. })));
}

/// The entry may be that of the holder, too.
#[test]
fn an_unreadable_timestamp_in_the_other_file_is_in_the_result() {
    let place = Place::new();
    let slots = place.folder.path().join("state.json.slots");
    write_private(
        &slots,
        br#"{"storage":{"a#one":{"data":"x","updated_at":"yesterday"}}}"#,
    );
    let is_reported = |met: &[Incident]| matches!(met, [Incident::UnreadableTimestamp { path, .. }] if *path == slots);
    let store = place.store("b");
    let lease = store.claim(s("x")).unwrap().granted().unwrap();
    assert!(is_reported(lease.incidents()), "{:?}", lease.incidents());
    // The reader cleans its own file up, which does not report the other one.
    place
        .clock
        .advance(std::time::Duration::from_secs(5 * 3600));
    let entries = store.entries().unwrap();
    let met = entries.incidents();
    assert!(is_reported(met), "{met:?}");
    assert_eq!(store.take_incidents().len(), 2);
    store.slot("two").unwrap().store(&s("y")).unwrap();
    let met = store.take_incidents();
    assert!(is_reported(&met), "{met:?}");
    assert!(store.entries().unwrap().incidents().is_empty());
}

/// The reader cannot remove the entry.
#[test]
fn an_unreadable_timestamp_in_a_read_only_file_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.write(r#"{"storage":{"a":{"data":"x","updated_at":"yesterday"}}}"#);
    let read_only = std::fs::Permissions::from_mode(0o400);
    std::fs::set_permissions(place.path(), read_only).unwrap();
    let store = place.store("me");
    for _ in 0..2 {
        let entries = store.entries().unwrap();
        assert!(
            matches!(entries.incidents(), [Incident::UnreadableTimestamp { .. }]),
            "{:?}",
            entries.incidents()
        );
    }
    assert_eq!(store.take_incidents().len(), 2);
}
