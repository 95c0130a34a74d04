//! The JSON of the vocabulary, which other programs depend on.

use serde::Serialize;
use serde::de::DeserializeOwned;
use tmux_bus::vocabulary::{Failure, Reply, Request};
use tmux_bus::{Error, PartialAnswer, Refusal};

const GOLDEN: &str = include_str!("../data/vocabulary.jsonl");

#[track_caller]
fn check<T: Serialize + DeserializeOwned>(line: &str) {
    let value: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    assert_eq!(serde_json::to_string(&value).unwrap(), line);
}

#[test]
fn requests_and_replies_have_their_documented_form() {
    let (requests, replies) = GOLDEN.split_once("\n\n").unwrap();
    requests.lines().for_each(check::<Request>);
    replies.lines().for_each(check::<Reply>);
}

#[test]
fn missing_keys_of_a_request_have_defaults_and_unknown_ones_are_refused() {
    let parse = serde_json::from_str::<Request>;
    let request = parse(r#"{"verb":"ask","to":"b","text":"x"}"#).unwrap();
    assert!(matches!(
        request,
        Request::Ask {
            detach: false,
            timeout_s: None,
            ..
        }
    ));
    assert!(!format!("{request:?}").contains("\"x\""));
    assert!(parse(r#"{"verb":"ask","to":"b","text":"x","from":"c"}"#).is_err());
    assert!(parse(r#"{"verb":"shout","to":"b"}"#).is_err());
}

#[test]
fn failures_have_kind_message_and_hint() {
    let check = |error: Error, code: u8, expected: &str| {
        let failure = Failure::from(&error);
        assert_eq!(serde_json::to_string(&failure).unwrap(), expected);
        assert_eq!(failure.kind.exit_code(), code);
    };
    let chain = ["b", "a", "b"].map(str::to_owned).to_vec();
    check(
        Error::Cycle { chain },
        4,
        r#"{"kind":"cycle","message":"`b` cannot wait for `a`, which waits for it: b -> a -> b","hint":"answer the message that you have got by your reply, without asking back","chain":["b","a","b"]}"#,
    );
    let (from, to) = ("a".to_owned(), "b".to_owned());
    check(
        Error::NotAllowed { from, to },
        4,
        r#"{"kind":"not_allowed","message":"`a` may not send messages to `b`: `may_message` in the configuration does not name it","hint":"ask an agent that you may send to; `status` lists all agents"}"#,
    );
    check(
        Error::NoCluster,
        2,
        r#"{"kind":"usage","message":"no cluster is named: name its configuration or its folder, or run this in a pane of it","hint":"--config FILE names its configuration, --folder DIR the folder of its socket"}"#,
    );
    let id = "0123456789ab".to_owned();
    check(
        Error::UnknownAsk { id },
        3,
        r#"{"kind":"not_found","message":"there is no ask `0123456789ab`","hint":"ids are printed by `ask`, and end with the cluster"}"#,
    );
    let refused = Error::Refused {
        pane: "%1".parse().unwrap(),
        reason: Refusal::Dialog,
        screen: PartialAnswer::default(),
    };
    check(
        refused,
        4,
        r#"{"kind":"refused","message":"the message for pane %1 was not sent: the agent shows a dialog: attach and answer it","hint":"`explain` shows the screen of the agent; `post` leaves a message","refusal":"dialog"}"#,
    );
    let io = Error::Io {
        action: "read",
        path: "x".into(),
        source: std::io::ErrorKind::NotFound.into(),
    };
    check(
        io,
        1,
        r#"{"kind":"failed","message":"cannot read x: entity not found"}"#,
    );
}
