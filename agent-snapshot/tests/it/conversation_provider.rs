//! The JSON of providers in both directions, and the repair of lists that they would refuse.

use std::cell::RefCell;
use std::io::{BufWriter, Write};

use agent_snapshot::History;
use agent_snapshot::conversation::{
    Error, Message, Part, Provider, Role, StateManager, ToolCallRequest, ToolCallResult, repair,
};
use proptest::test_runner::TestCaseError;
use proptest::{prop_assert, prop_assert_eq};
use serde_json::{Value, json};

use crate::conversation_generated::{Kind, for_each};
use crate::conversation_rules::{acceptable, provider_rules};

/// Every provider gets each of these lists, as it is and after a trim: 8,000 requests. With
/// `CONVERSATION_CASES=100000`, the full run, each gets 10^5 histories.
const HISTORIES: u32 = 1_000;

#[test]
fn all_providers_accept_generated_histories() {
    for_each(Kind::Everything, HISTORIES, |list| {
        let repaired = repair(list.to_vec()).messages;
        for provider in Provider::ALL {
            let request = match provider.request(&repaired) {
                Ok(request) => request,
                // Nothing but blank texts and system messages.
                Err(Error::EmptyRequest) => continue,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            };
            provider_rules(provider, &request).map_err(TestCaseError::fail)?;
            // What was read back gives the same request.
            let read = provider.messages(&request).unwrap();
            let again = provider.request(&read).unwrap();
            prop_assert_eq!(&again, &request, "{}", provider);
        }
        let again = repair(repaired.clone());
        prop_assert_eq!(&again.messages, &repaired, "repair is not idempotent");
        Ok(())
    });
}

#[test]
fn all_providers_accept_histories_that_were_appended_and_trimmed() {
    for_each(Kind::Everything, HISTORIES, |list| {
        let state = StateManager::new(6_000).answer_tokens(500);
        let mut conversation = state.conversation(History::new()).unwrap();
        for message in repair(list.to_vec()).messages {
            // An oversize message ends the conversation.
            match state.append(&mut conversation, message) {
                Ok(_) => {}
                Err(Error::OverLimit { .. }) => break,
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
            if state.needs_trim(&conversation) {
                state.trim(&mut conversation).unwrap();
                prop_assert!(conversation.tokens() <= state.budget());
                prop_assert!(conversation.estimated_tokens() <= conversation.tokens());
            }
        }
        state.abort_open_calls(&mut conversation);
        for provider in Provider::ALL {
            match provider.request(conversation.iter()) {
                Ok(request) => {
                    provider_rules(provider, &request).map_err(TestCaseError::fail)?;
                }
                Err(Error::EmptyRequest) => {}
                Err(error) => return Err(TestCaseError::fail(error.to_string())),
            }
        }
        Ok(())
    });
}

fn asked(ids: &[&str]) -> Message {
    let calls = ids
        .iter()
        .map(|id| ToolCallRequest::new(*id, "read", json!({"path": "a"})));
    Message::assistant("Reading.").with_tool_calls(calls.collect())
}

fn answers(ids: &[&str]) -> Message {
    Message::tool(ids.iter().map(|id| answered(id, json!("ok"))).collect())
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
        Provider::Anthropic.request(&sample()).unwrap(),
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
                // Current models refuse a list that ends with an assistant message.
                {"role": "user", "content": [{"type": "text", "text": "(continue)"}]},
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
        Provider::OpenAiChat.request(&sample()).unwrap(),
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
    for provider in Provider::ALL {
        let request = provider.request(&odd).unwrap();
        provider_rules(provider, &request).unwrap();
        // Deterministic: a prompt cache depends on it.
        assert_eq!(request, provider.request(&odd).unwrap());
    }
}

#[test]
fn lists_that_providers_refuse_give_no_request() {
    let list = sample();
    let orphan = &list[3..];
    let open = &list[..4];
    let unnamed = [Message::user("go"), asked(&[""])];
    let twice = [
        asked(&["c"]),
        answers(&["c"]),
        asked(&["c"]),
        answers(&["c"]),
    ];
    for provider in Provider::ALL {
        let request = |list: &[Message]| provider.request(list).unwrap_err();
        assert!(matches!(request(orphan), Error::UnknownCall { .. }));
        assert!(matches!(request(open), Error::OpenCalls { calls } if calls == ["c2"]));
        assert!(matches!(request(&unnamed), Error::InvalidMessage { .. }));
        assert!(matches!(request(&twice), Error::DuplicateCall { .. }));
    }
}

#[test]
fn an_empty_request_is_an_error() {
    let blank = Message::user(" \n");
    let reasoning = Part::reasoning(Provider::Anthropic, "hm", "c2ln");
    let only_reasoning = Message::new(Role::Assistant).with_parts(vec![reasoning]);
    for list in [
        vec![],
        vec![Message::system("Be brief.")],
        vec![Message::system("Be brief."), blank, only_reasoning],
    ] {
        for provider in Provider::ALL {
            let error = provider.request(&list).unwrap_err();
            assert!(matches!(error, Error::EmptyRequest), "{provider}: {error}");
        }
    }
}

#[test]
fn the_rules_find_known_faults() {
    // Tests the checkers of the other tests, with lists and requests that providers refuse.
    let list = sample();
    for bad in [&list[2..], &list[3..], &list[..4]] {
        assert!(acceptable(bad).is_err());
    }
    let user = |content: Value| json!({"role": "user", "content": content});
    let text = json!({"type": "text", "text": "a"});
    let call = json!({"type": "tool_use", "id": "c", "name": "t", "input": {}});
    let answer = json!({"type": "tool_result", "tool_use_id": "c", "content": ""});
    let thinking = json!({"type": "thinking", "thinking": "", "signature": "c2ln"});
    let assistant = |content: Value| json!({"role": "assistant", "content": content});
    let anthropic = |messages: Value| json!({ "messages": messages });
    let function = json!({"name": "t", "arguments": "{}"});
    let chat_call = json!({"id": "c", "type": "function", "function": function});
    let item =
        |id: &str| json!({"type": "function_call", "call_id": id, "name": "t", "arguments": "{}"});
    let output = json!({"type": "function_call_output", "call_id": "c", "output": ""});
    let reasoning = json!({"type": "reasoning", "id": "rs", "summary": []});
    let gemini_call = json!({"functionCall": {"id": "c", "name": "t", "args": {}}});
    let signed =
        json!({"functionCall": {"id": "c", "name": "t", "args": {}}, "thoughtSignature": "c2ln"});
    let response = |id: &str| json!({"functionResponse": {"id": id, "name": "t", "response": {}}});
    let content = |role: &str, parts: Value| json!({"role": role, "parts": parts});
    let contents = |list: Value| json!({ "contents": list });
    for (provider, request) in [
        (Provider::Anthropic, anthropic(json!([]))),
        (
            Provider::Anthropic,
            anthropic(json!([assistant(json!([text]))])),
        ),
        (
            Provider::Anthropic,
            anthropic(json!([user(json!([text])), assistant(json!([text]))])),
        ),
        (
            Provider::Anthropic,
            anthropic(json!([
                user(json!([text])),
                assistant(json!([call])),
                user(json!([text, answer]))
            ])),
        ),
        (
            Provider::Anthropic,
            anthropic(json!([
                user(json!([text])),
                assistant(json!([call])),
                user(json!([text]))
            ])),
        ),
        (
            Provider::Anthropic,
            anthropic(json!([
                user(json!([text])),
                assistant(json!([text, thinking])),
                user(json!([text]))
            ])),
        ),
        (
            Provider::Anthropic,
            anthropic(json!([user(json!([{"type": "text", "text": " "}]))])),
        ),
        (Provider::OpenAiChat, anthropic(json!([]))),
        (
            Provider::OpenAiChat,
            anthropic(json!([{"role": "tool", "tool_call_id": "c", "content": ""}])),
        ),
        (
            Provider::OpenAiChat,
            anthropic(json!([{"role": "assistant", "content": null, "tool_calls": [chat_call]}])),
        ),
        (
            Provider::OpenAiChat,
            anthropic(json!([{"role": "assistant", "content": null}])),
        ),
        (Provider::OpenAiResponses, json!({"input": [item("c")]})),
        (Provider::OpenAiResponses, json!({"input": [output]})),
        (
            Provider::OpenAiResponses,
            json!({"input": [item("c"), item("c"), output, output]}),
        ),
        (
            Provider::OpenAiResponses,
            json!({"input": [reasoning, {"role": "user", "content": "a"}]}),
        ),
        (
            Provider::OpenAiResponses,
            json!({"input": [{"role": "user", "content": "a"}, reasoning]}),
        ),
        (Provider::Gemini, contents(json!([]))),
        (
            Provider::Gemini,
            contents(json!([content("model", json!([{"text": "a"}]))])),
        ),
        (
            Provider::Gemini,
            contents(json!([content("user", json!([{"text": ""}]))])),
        ),
        (
            Provider::Gemini,
            contents(json!([
                content("user", json!([{"text": "a"}])),
                content("model", json!([signed]))
            ])),
        ),
        (
            Provider::Gemini,
            contents(json!([
                content("user", json!([{"text": "a"}])),
                content("model", json!([signed])),
                content("user", json!([response("d")]))
            ])),
        ),
        (
            Provider::Gemini,
            contents(json!([
                content("user", json!([{"text": "a"}])),
                content("model", json!([gemini_call])),
                content("user", json!([response("c")]))
            ])),
        ),
    ] {
        assert!(
            provider_rules(provider, &request).is_err(),
            "{provider}: {request}"
        );
    }
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
    assert!(repaired.dropped.is_empty() && repaired.renamed.is_empty());
}

#[test]
fn repair_renames_calls_and_leads_results_to_the_newest_open_call() {
    let late = Message::tool(vec![answered("c", json!("late"))]);
    let repaired = repair(vec![
        Message::user("go"),
        asked(&["c"]),
        answers(&["c"]),
        asked(&["c", "c", ""]),
        Message::tool(vec![
            answered("c", json!("first")),
            answered("c", json!("second")),
        ]),
        Message::user("and?"),
        asked(&["c"]),
        Message::user("hurry"),
        late.clone(),
        late,
    ]);
    acceptable(&repaired.messages).unwrap();
    assert_eq!(repaired.renamed, ["c_2", "c_3", "c_4"]);
    assert_eq!(repaired.moved, ["c_4"]);
    assert_eq!(repaired.dropped, ["c"]);
    let aborted: Vec<_> = repaired.aborted.iter().map(|call| &*call.call).collect();
    assert_eq!(aborted, ["call"]);
    let second = &repaired.messages[4].tool_results;
    assert_eq!(second[0].tool_call_id, "c_2");
    assert_eq!(second[1].tool_call_id, "c_3");
    assert_eq!(repaired.messages[3].tool_calls[0].former_ids, ["c"]);
}

#[test]
#[ignore = "scripts/check-providers runs it, with the packages of the providers"]
fn requests_are_written() {
    let path = std::env::var_os("CONVERSATION_REQUESTS").unwrap();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path);
    let file = RefCell::new(BufWriter::new(file.unwrap()));
    for_each(Kind::Everything, HISTORIES, |list| {
        let repaired = repair(list.to_vec()).messages;
        for provider in Provider::ALL {
            if let Ok(request) = provider.request(&repaired) {
                let line = json!({"provider": provider, "request": request});
                writeln!(file.borrow_mut(), "{line}").unwrap();
            }
        }
        Ok(())
    });
}
