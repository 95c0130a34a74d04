//! Reads outgoing messages of the Agent Client Protocol, one per line of standard input, with the types
//! of its schema.

use std::io::BufRead;

use agent_client_protocol_schema::v1::{
    CancelNotification, InitializeRequest, LoadSessionRequest, NewSessionRequest, PromptRequest,
    RequestPermissionResponse, ResumeSessionRequest, SetSessionConfigOptionRequest,
    SetSessionModeRequest,
};
use agent_client_protocol_schema::v1::{JsonRpcMessage, Notification, Request, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

fn main() {
    let mut count = 0;
    for line in std::io::stdin().lock().lines() {
        check_line(&line.expect("a line"));
        count += 1;
    }
    assert!(count > 0, "no messages");
    println!("{count} messages are those of the protocol");
}

/// Reads the message with a type of the schema, and writes it again: no field may be unknown to it.
fn check<T: DeserializeOwned + Serialize>(line: &str) {
    let typed: JsonRpcMessage<T> =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let again = serde_json::to_value(&typed).unwrap();
    let mut lost = Vec::new();
    missing(&serde_json::from_str(line).unwrap(), &again, "", &mut lost);
    assert_eq!(lost, [""; 0], "{line}");
}

/// The fields of `sent` that are not in `known`. A value that is the default may be left out.
fn missing(sent: &Value, known: &Value, path: &str, lost: &mut Vec<String>) {
    match (sent, known) {
        (Value::Object(sent), Value::Object(known)) => {
            for (key, value) in sent {
                let path = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => missing(value, known, &path, lost),
                    None if *value == Value::Bool(false) || *value == Value::Array(Vec::new()) => {}
                    None => lost.push(path),
                }
            }
        }
        (Value::Array(sent), Value::Array(known)) if sent.len() == known.len() => {
            for (sent, known) in sent.iter().zip(known) {
                missing(sent, known, path, lost);
            }
        }
        (sent, known) if sent == known => {}
        _ => lost.push(path.to_owned()),
    }
}

fn check_line(line: &str) {
    let value: Value = serde_json::from_str(line).unwrap();
    match value["method"].as_str().unwrap_or_default() {
        "initialize" => check::<Request<InitializeRequest>>(line),
        "session/new" => check::<Request<NewSessionRequest>>(line),
        "session/load" => check::<Request<LoadSessionRequest>>(line),
        "session/resume" => check::<Request<ResumeSessionRequest>>(line),
        "session/prompt" => check::<Request<PromptRequest>>(line),
        "session/set_mode" => check::<Request<SetSessionModeRequest>>(line),
        "session/set_config_option" => check::<Request<SetSessionConfigOptionRequest>>(line),
        "session/cancel" => check::<Notification<CancelNotification>>(line),
        // Extensions, and a request that is not part of version 1 any more but of its agents.
        "_session/steering" | "_barrier" | "session/set_model" => check::<Request<Value>>(line),
        "" => check::<Response<RequestPermissionResponse>>(line),
        other => panic!("{other} is not checked"),
    }
}
