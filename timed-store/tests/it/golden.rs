//! The file format, byte for byte.

use std::time::Duration;

use serde_json::json;

use crate::support::{Place, s};

#[test]
fn a_file_of_the_original_tool_is_read_and_keeps_its_entries() {
    let place = Place::new();
    place.write(include_str!("../golden/original-tool.json"));
    let store = place.store("つくよみ \"quoted\"");
    let others = store.get_other_entries().unwrap();
    let values: Vec<&str> = others.values().map(String::as_str).collect();
    assert_eq!(values, ["angie", "tsukuyomi"]);
    store.store(&s("alma")).unwrap();
    assert_eq!(
        place.text(),
        include_str!("../golden/original-tool-after-our-store.json")
    );
    assert_eq!(store.restore().unwrap(), Some(s("alma")));
}

/// `JSON.stringify` without indentation, as other writers of the format use it.
#[test]
fn a_file_on_one_line_is_read_and_keeps_its_entries() {
    let place = Place::new();
    let pretty = include_str!("../golden/original-tool.json");
    let json: serde_json::Value = serde_json::from_str(pretty).unwrap();
    place.write(&json.to_string());
    let store = place.store("12345");
    assert_eq!(store.restore().unwrap(), Some(s("angie")));
    store.store(&s("alma")).unwrap();
    let storage = &place.json()["storage"];
    let other = "w0t0p0:8B5C1D2E-0A1B-4C3D-9E8F-001122334455";
    assert_eq!(storage[other], json["storage"][other]);
    assert_eq!(storage["12345"]["data"], "alma");
}

/// The original tool reads `storage[session].data` and `.updated_at`, by JSON.parse and
/// `new Date`.
#[test]
fn our_file_has_the_specified_form() {
    let place = Place::new();
    assert!(
        place
            .store("a")
            .claim(s("tsukuyomi"))
            .unwrap()
            .granted()
            .is_some()
    );
    place.clock.advance(Duration::from_secs(1));
    place
        .builder("b")
        .ttl(Duration::from_secs(60))
        .open()
        .unwrap()
        .store(&s("angie"))
        .unwrap();
    // The identity is random.
    let id = s(place.json()["timed_store"]["id"].as_str().unwrap());
    let text = place.text().replace(&id, "0123456789abcdef");
    assert_eq!(text, include_str!("../golden/ours.json"));

    for golden in [
        include_str!("../golden/ours.json"),
        include_str!("../golden/ours-0.1.json"),
    ] {
        let other = Place::new();
        other.write(golden);
        assert_eq!(other.store("a").restore().unwrap(), Some(s("tsukuyomi")));
    }
}

#[test]
fn unknown_fields_survive_our_rewrite() {
    let place = Place::new();
    place.write(include_str!("../golden/unknown-fields.json"));
    place.clock.advance(Duration::from_secs(5));
    assert!(place.store("a").refresh().unwrap());
    assert_eq!(
        place.text(),
        include_str!("../golden/unknown-fields-after-our-refresh.json")
    );
    place.store("a").store(&s("dia")).unwrap();
    let entry = &place.json()["storage"]["a"];
    assert_eq!(entry["style"], json!({"speed": 1.5, "tags": ["x"]}));
    assert_eq!(entry["data"], "dia");
}

#[test]
fn any_serde_value_is_kept() {
    use std::collections::BTreeMap;
    use timed_store::SessionId;
    use timed_store::blocking::TimedStorage;
    type Value = BTreeMap<String, Option<Vec<f64>>>;
    let place = Place::new();
    let session = SessionId::new("a\n\"\\/\u{7f}\u{2028}").unwrap();
    let store = TimedStorage::<Value>::builder(place.path())
        .session(session)
        .open()
        .unwrap();
    let value = Value::from([(s("\"}{"), Some(vec![0.1, -1e300])), (s("]"), None)]);
    store.store(&value).unwrap();
    assert_eq!(store.restore().unwrap(), Some(value));
}

#[test]
fn the_last_entry_of_a_duplicate_session_counts() {
    let place = Place::new();
    let entry =
        |value| format!(r#""a":{{"data":"{value}","updated_at":"2025-08-18T10:20:30.456Z"}}"#);
    place.write(&format!(
        r#"{{"storage":{{{},{}}}}}"#,
        entry("x"),
        entry("y")
    ));
    let store = place.store("a");
    assert_eq!(store.restore().unwrap(), Some(s("y")));
    assert!(store.refresh().unwrap());
    store.store(&s("z")).unwrap();
    assert_eq!(place.text().matches("\"a\":").count(), 1);
    assert_eq!(store.restore().unwrap(), Some(s("z")));
}
