//! The request JSON of both providers, and the repair of lists that they would refuse.

use agent_snapshot::conversation::{
    Error, Message, Role, ToolCallRequest, ToolCallResult, anthropic_request, openai_request,
    repair,
};
use serde_json::{Value, json};

use crate::conversation_rules::{acceptable, anthropic_rules, openai_rules};

fn asked(ids: &[&str]) -> Message {
    let calls = ids
        .iter()
        .map(|id| ToolCallRequest::new(*id, "read", json!({"path": "a"})));
    Message::assistant("Reading.").with_tool_calls(calls.collect())
}

fn answered(id: &str, result: Value) -> ToolCallResult {
    ToolCallResult::new(id, result)
}

fn sample() -> Vec<Message> {
    vec![
        Message::system("Be brief."),
        Message::user("What is in a and b?"),
        asked(&["c1", "c2"]),
        Message::tool(vec![answered("c1", json!("text"))]),
        Message::tool(vec![ToolCallResult::error("c2", json!({"code": 2}))]),
        Message::user("And?"),
        Message::assistant("Text, and an error."),
    ]
}

#[test]
fn the_anthropic_request_is_as_documented() {
    assert_eq!(
        anthropic_request(&sample()).unwrap(),
        json!({
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "What is in a and b?"}]},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "Reading."},
                    {"type": "tool_use", "id": "c1", "name": "read", "input": {"path": "a"}},
                    {"type": "tool_use", "id": "c2", "name": "read", "input": {"path": "a"}},
                ]},
                {"role": "user", "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "text"},
                    {"type": "tool_result", "tool_use_id": "c2", "content": "{\"code\":2}",
                     "is_error": true},
                    {"type": "text", "text": "And?"},
                ]},
                {"role": "assistant", "content": [
                    {"type": "text", "text": "Text, and an error."},
                ]},
            ],
        })
    );
}

#[test]
fn the_openai_request_is_as_documented() {
    let call = |id: &str| {
        json!({"id": id, "type": "function",
               "function": {"name": "read", "arguments": "{\"path\":\"a\"}"}})
    };
    assert_eq!(
        openai_request(&sample()).unwrap(),
        json!({"messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is in a and b?"},
            {"role": "assistant", "content": "Reading.", "tool_calls": [call("c1"), call("c2")]},
            {"role": "tool", "tool_call_id": "c1", "content": "text"},
            {"role": "tool", "tool_call_id": "c2", "content": "Error: {\"code\":2}"},
            {"role": "user", "content": "And?"},
            {"role": "assistant", "content": "Text, and an error."},
        ]})
    );
}

#[test]
fn unusual_lists_become_acceptable_requests() {
    let long = "x".repeat(60);
    let odd = [
        Message::assistant("How can I help?"),
        Message::new(Role::User),
        Message::user("  "),
        Message::user("hello"),
        Message::system("A note in between."),
        Message::user("hello again"),
        Message::new(Role::Assistant).with_tool_calls(vec![
            ToolCallRequest::new(&long, "t", Value::Null),
            ToolCallRequest::new("functions.t:0", "t", json!({})),
        ]),
        Message::tool(vec![
            answered("functions.t:0", json!(1)),
            answered(&long, Value::Null),
        ]),
        Message::new(Role::Assistant),
    ];
    let anthropic = anthropic_request(&odd).unwrap();
    anthropic_rules(&anthropic).unwrap();
    let openai = openai_request(&odd).unwrap();
    openai_rules(&openai).unwrap();
    // Deterministic: a prompt cache depends on it.
    assert_eq!(anthropic, anthropic_request(&odd).unwrap());
    assert_eq!(
        openai["messages"][5],
        openai_request(&odd).unwrap()["messages"][5]
    );
}

#[test]
fn lists_that_providers_refuse_give_no_request() {
    type Render = fn(&[Message]) -> Result<Value, Error>;

    let list = sample();
    let orphan = &list[3..];
    let open = &list[..4];
    let unnamed = [Message::user("go"), asked(&[""])];
    let requests: [Render; 2] = [|list| anthropic_request(list), |list| openai_request(list)];
    for request in requests {
        assert!(matches!(request(orphan), Err(Error::UnknownCall { .. })));
        assert!(matches!(request(open), Err(Error::OpenCalls { calls }) if calls == ["c2"]));
        assert!(matches!(
            request(&unnamed),
            Err(Error::InvalidMessage { .. })
        ));
    }
}

#[test]
fn the_rules_find_known_faults() {
    // Tests the checkers of the other tests, with lists that providers refuse.
    let list = sample();
    for bad in [&list[2..], &list[3..], &list[..4]] {
        assert!(acceptable(bad).is_err());
    }
    let request = json!({"messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "c", "name": "t", "input": {}}]},
        {"role": "user", "content": [
            {"type": "text", "text": "first"},
            {"type": "tool_result", "tool_use_id": "c", "content": ""}]},
    ]});
    assert!(
        anthropic_rules(&request)
            .unwrap_err()
            .contains("text before")
    );
    let request = json!({"messages": [
        {"role": "user", "content": "a"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
    ]});
    assert!(openai_rules(&request).is_err());
}

#[test]
fn repair_moves_late_results_drops_unknown_ones_and_aborts_open_calls() {
    let list = vec![
        Message::tool(vec![answered("gone", json!("orphan"))]),
        Message::user("go"),
        asked(&["c1", "c2", "c3"]),
        Message::tool(vec![answered("c1", json!("in place"))]),
        Message::user("stop"),
        Message::tool(vec![
            answered("c2", json!("late")),
            answered("c1", json!("twice")),
        ]),
        Message::assistant("Stopped."),
    ];
    let repaired = repair(list);
    acceptable(&repaired.messages).unwrap();
    assert_eq!(repaired.moved, ["c2"]);
    assert_eq!(repaired.dropped, ["gone", "c1"]);
    let aborted: Vec<_> = repaired.aborted.iter().map(|call| &*call.call).collect();
    assert_eq!(aborted, ["c3"]);
    let results: Vec<_> = repaired
        .messages
        .iter()
        .flat_map(|m| &m.tool_results)
        .collect();
    let text = |index: usize| results[index].result.as_str().unwrap().to_owned();
    assert_eq!((text(0), text(1)), ("in place".into(), "late".into()));
    assert!(results[2].is_error && text(2).starts_with("aborted"));
}

#[test]
fn repair_leaves_a_list_without_faults_unchanged() {
    let list = sample();
    let repaired = repair(list.clone());
    assert_eq!(repaired.messages, list);
    assert!(repaired.aborted.is_empty() && repaired.moved.is_empty());
    assert!(repaired.dropped.is_empty());
}
