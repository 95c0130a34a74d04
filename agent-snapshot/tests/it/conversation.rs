//! Messages, and how calls and results pair.

use agent_snapshot::History;
use agent_snapshot::conversation::{
    Conversation, Error, Message, Part, Provider, Role, Source, StateManager, ToolCallRequest,
    ToolCallResult,
};
use serde_json::json;

fn calls(ids: &[&str]) -> Message {
    let calls = ids
        .iter()
        .map(|id| ToolCallRequest::new(*id, "tool", json!({"a": 1})));
    Message::assistant("").with_tool_calls(calls.collect())
}

fn results(ids: &[&str]) -> Message {
    let results = ids.iter().map(|id| ToolCallResult::new(*id, json!("ok")));
    Message::tool(results.collect())
}

fn start() -> (StateManager, Conversation) {
    let state = StateManager::new(10_000);
    let mut conversation = state.conversation(History::new()).unwrap();
    state
        .append(&mut conversation, Message::user("go"))
        .unwrap();
    (state, conversation)
}

/// The error of an append, which must leave the conversation unchanged.
#[track_caller]
fn refused(state: &StateManager, conversation: &mut Conversation, message: Message) -> Error {
    let (history, tokens) = (conversation.history().clone(), conversation.tokens());
    let open = conversation.open_calls().to_vec();
    let error = state.append(conversation, message).unwrap_err();
    assert_eq!(*conversation.history(), history);
    assert_eq!(conversation.tokens(), tokens);
    assert_eq!(conversation.open_calls(), open);
    error
}

#[test]
fn json_has_the_specified_names() {
    let text = r#"{"id":"m1","timestamp":"2026-01-01T00:00:00Z","role":"assistant","content":"x","tool_calls":[{"id":"c1","name":"read","args":{"p":1}}]}"#;
    let message: Message = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&message).unwrap(), text);
    let text = r#"{"id":"m2","timestamp":"2026-01-01T00:00:00Z","role":"tool","tool_results":[{"tool_call_id":"c1","result":[1,null],"is_error":false}]}"#;
    let message: Message = serde_json::from_str(text).unwrap();
    assert_eq!(serde_json::to_string(&message).unwrap(), text);
    for (name, role) in [
        ("user", Role::User),
        ("assistant", Role::Assistant),
        ("tool", Role::Tool),
        ("system", Role::System),
    ] {
        assert_eq!(serde_json::to_value(role).unwrap(), json!(name));
    }
}

#[test]
fn a_message_without_id_and_time_stamp_stays_without_them() {
    let text = r#"{"role":"user","content":"..."}"#;
    let message: Message = serde_json::from_str(text).unwrap();
    let state = StateManager::new(1_000);
    let conversation = state.conversation([message].into_iter().collect()).unwrap();
    let back = conversation.iter().next().unwrap();
    assert_eq!(serde_json::to_string(back).unwrap(), text);
}

#[test]
fn null_reads_like_a_missing_field() {
    let text = r#"{"role":"assistant","content":null,"tool_calls":null,"tool_results":null}"#;
    let message: Message = serde_json::from_str(text).unwrap();
    assert_eq!(message, Message::new(Role::Assistant));
}

#[test]
fn append_fills_in_missing_ids() {
    let (state, mut conversation) = start();
    let asked = state
        .append(&mut conversation, calls(&["", "given", ""]))
        .unwrap();
    assert!(asked.id.is_some() && asked.timestamp.is_some());
    let ids: Vec<String> = asked
        .tool_calls
        .iter()
        .map(|call| call.id.clone())
        .collect();
    assert_eq!(ids[1], "given");
    assert!(ids[0] != ids[2] && ids[0].starts_with("call_") && ids[0].len() <= 40);
    assert_eq!(conversation.open_calls(), ids);
}

#[test]
fn parallel_results_come_together_or_one_by_one_in_any_order() {
    let (state, mut conversation) = start();
    state
        .append(&mut conversation, calls(&["a", "b", "c"]))
        .unwrap();
    state.append(&mut conversation, results(&["c"])).unwrap();
    assert_eq!(conversation.open_calls(), ["a", "b"]);
    state
        .append(&mut conversation, results(&["b", "a"]))
        .unwrap();
    assert!(conversation.open_calls().is_empty());
    state
        .append(&mut conversation, Message::assistant("done"))
        .unwrap();
}

#[test]
fn append_refuses_what_providers_refuse() {
    let (state, mut conversation) = start();
    let c = &mut conversation;
    let error = refused(&state, c, results(&["unknown"]));
    assert!(matches!(error, Error::UnknownCall { call } if call == "unknown"));

    state.append(c, calls(&["a", "b"])).unwrap();
    let error = refused(&state, c, Message::user("and?"));
    assert!(matches!(error, Error::OpenCalls { calls } if calls == ["a", "b"]));
    let error = refused(&state, c, results(&["a", "a"]));
    assert!(matches!(error, Error::AlreadyAnswered { call } if call == "a"));
    state.append(c, results(&["a"])).unwrap();
    let error = refused(&state, c, results(&["a"]));
    assert!(matches!(error, Error::AlreadyAnswered { call } if call == "a"));
    let error = refused(&state, c, results(&["b", "unknown"]));
    assert!(matches!(error, Error::UnknownCall { .. }));
    state.append(c, results(&["b"])).unwrap();

    let mut twin = Message::user("again");
    twin.id = conversation.iter().next().unwrap().id.clone();
    let error = refused(&state, &mut conversation, twin);
    assert!(matches!(error, Error::DuplicateMessage { .. }));
}

#[test]
fn a_call_id_that_is_in_use_is_renamed_and_results_follow() {
    let (state, mut conversation) = start();
    let c = &mut conversation;
    let ids = |message: &Message| -> Vec<String> {
        let calls = message.tool_calls.iter().map(|call| call.id.clone());
        let results = message.tool_results.iter();
        calls
            .chain(results.map(|r| r.tool_call_id.clone()))
            .collect()
    };
    assert_eq!(ids(state.append(c, calls(&["a"])).unwrap()), ["a"]);
    assert_eq!(ids(state.append(c, results(&["a"])).unwrap()), ["a"]);
    assert_eq!(ids(state.append(c, calls(&["a"])).unwrap()), ["a_2"]);
    // After a crash, the old id still leads to the newest open call.
    let mut stored = state.conversation(c.history().clone()).unwrap();
    for c in [&mut stored, c] {
        assert_eq!(ids(state.append(c, results(&["a"])).unwrap()), ["a_2"]);
        let error = refused(&state, c, results(&["a"]));
        assert!(matches!(error, Error::AlreadyAnswered { call } if call == "a"));
        let asked = state.append(c, calls(&["a", "a", "b"])).unwrap();
        assert_eq!(ids(asked), ["a_3", "a_4", "b"]);
        // Both had the id: results come in the order of the calls.
        let answered = state.append(c, results(&["a", "b", "a"])).unwrap();
        assert_eq!(ids(answered), ["a_3", "b", "a_4"]);
    }
    // A history is not changed.
    let again = [calls(&["a"]), results(&["a"]), calls(&["a"])];
    let error = state.conversation(again.into_iter().collect()).unwrap_err();
    assert!(matches!(error, Error::DuplicateCall { call } if call == "a"));
}

#[test]
fn the_places_of_calls_are_renamed_with_them() {
    let (state, mut conversation) = start();
    let place = |id: &str| Part::Call { id: id.to_owned() };
    for expected in [["a", "a_2"], ["a_3", "a_4"]] {
        let asked = calls(&["a", "a"]).with_parts(vec![place("a"), Part::text("and"), place("a")]);
        let asked = state.append(&mut conversation, asked).unwrap();
        assert_eq!(asked.parts[0], place(expected[0]));
        assert_eq!(asked.parts[2], place(expected[1]));
        state
            .append(&mut conversation, results(&["a", "a"]))
            .unwrap();
    }
}

#[test]
fn malformed_messages_are_refused() {
    let (state, mut conversation) = start();
    let mut with_results = Message::user("x");
    with_results.tool_results = results(&["a"]).tool_results;
    let mut tool_text = results(&["a"]);
    tool_text.content = Some("text".into());
    let image = Part::image(Source::base64("image/png", "AA=="));
    let mut other_text = Message::user("one");
    other_text.parts = vec![Part::text("two")];
    let reasoning = Part::reasoning(Provider::Anthropic, "hm", "c2ln");
    for message in [
        Message::tool(Vec::new()),
        with_results,
        tool_text,
        results(&["a"]).with_parts(vec![image.clone()]),
        Message::system("x").with_parts(vec![image]),
        Message::user("x").with_parts(vec![reasoning]),
        other_text,
        Message::user("x").with_tool_calls(calls(&["a"]).tool_calls),
        Message::assistant("").with_tool_calls(vec![ToolCallRequest::new("a", "t", json!([1]))]),
    ] {
        let error = refused(&state, &mut conversation, message);
        assert!(matches!(error, Error::InvalidMessage { .. }), "{error}");
    }
}

#[test]
fn two_processes_that_abort_the_same_calls_append_the_same_message() {
    let (state, mut conversation) = start();
    state.append(&mut conversation, calls(&["a", "b"])).unwrap();
    state.append(&mut conversation, results(&["a"])).unwrap();
    let mut other = state.conversation(conversation.history().clone()).unwrap();
    let aborted = state.abort_open_calls(&mut conversation);
    assert_eq!(aborted.len(), 1);
    assert_eq!((&*aborted[0].call, &*aborted[0].name), ("b", "tool"));
    state.abort_open_calls(&mut other);
    assert_eq!(conversation.history(), other.history());
    let last = conversation.iter().next_back().unwrap();
    assert!(last.tool_results[0].is_error);
    assert_eq!(last.id.as_deref(), Some("aborted-b"));
    assert!(state.abort_open_calls(&mut conversation).is_empty());
    state
        .append(&mut conversation, Message::user("go on"))
        .unwrap();
}

#[test]
fn debug_shows_no_contents() {
    let (state, mut conversation) = start();
    let secret = Message::user("hunter2");
    state.append(&mut conversation, secret).unwrap();
    let call = ToolCallRequest::new("a", "t", json!({"password": "hunter2"}));
    let source = Source::base64("text/plain", "hunter2");
    let parts = vec![
        Part::reasoning(Provider::Anthropic, "hunter2", "hunter2"),
        Part::document(source, "hunter2"),
        Part::image(Source::url("https://hunter2")),
    ];
    let asked = Message::assistant("hunter2").with_tool_calls(vec![call]);
    let asked = asked.with_parts(parts);
    state.append(&mut conversation, asked).unwrap();
    let messages: Vec<&Message> = conversation.iter().collect();
    assert!(!format!("{conversation:?} {messages:?} {state:?}").contains("hunter2"));
}
