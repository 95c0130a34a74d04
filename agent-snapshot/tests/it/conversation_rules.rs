//! The rules of providers: written from their documentation and error messages, independently of
//! the code under test.

use std::collections::HashSet;

use agent_snapshot::conversation::{Message, Role, anthropic_request, openai_request};
use serde_json::Value;

/// Checks a list by the rules for lists and by the rules of both providers.
pub(crate) fn acceptable(messages: &[Message]) -> Result<(), String> {
    list_rules(&messages.iter().collect::<Vec<_>>())?;
    let request = anthropic_request(messages).map_err(|e| format!("anthropic_request: {e}"))?;
    anthropic_rules(&request).map_err(|e| format!("anthropic: {e}"))?;
    let request = openai_request(messages).map_err(|e| format!("openai_request: {e}"))?;
    openai_rules(&request).map_err(|e| format!("openai: {e}"))
}

/// Rules for the list itself, so that a conversion to a request cannot hide a fault.
pub(crate) fn list_rules(messages: &[&Message]) -> Result<(), String> {
    let mut index = 0;
    let mut spoken = false;
    while index < messages.len() {
        let message = messages[index];
        index += 1;
        match message.role {
            Role::System => continue,
            Role::Tool => return Err(format!("message {index}: orphaned tool message")),
            Role::User => spoken = true,
            _ if !spoken => return Err("the list does not start with a user message".into()),
            _ => {}
        }
        let mut expected: Vec<&str> = message.tool_calls.iter().map(|c| &*c.id).collect();
        while !expected.is_empty() {
            let Some(next) = messages.get(index) else {
                return Err(format!("unanswered at the end: {expected:?}"));
            };
            if next.role != Role::Tool || next.tool_results.is_empty() {
                return Err(format!(
                    "message {index}: unanswered before it: {expected:?}"
                ));
            }
            for result in &next.tool_results {
                let Some(at) = expected.iter().position(|id| *id == result.tool_call_id) else {
                    return Err(format!(
                        "message {index}: result for {}",
                        result.tool_call_id
                    ));
                };
                expected.swap_remove(at);
            }
            index += 1;
        }
    }
    Ok(())
}

/// Messages API: the first message is a user message, roles alternate, no content is blank, each
/// `tool_use` has its `tool_result` in the next message, and results come first there.
pub(crate) fn anthropic_rules(request: &Value) -> Result<(), String> {
    if let Some(system) = request.get("system") {
        let blocks = system.as_array().ok_or("system is not a list")?;
        for block in blocks {
            if blank(&block["text"]) {
                return Err("blank system block".into());
            }
        }
    }
    let messages = request["messages"].as_array().ok_or("no messages")?;
    let mut used = HashSet::new();
    let mut waiting: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role != if index % 2 == 0 { "user" } else { "assistant" } {
            return Err(format!("message {index} has role {role}"));
        }
        let content = message["content"].as_array().ok_or("no content")?;
        if content.is_empty() {
            return Err(format!("message {index} is empty"));
        }
        let mut text_seen = false;
        let mut calls = HashSet::new();
        for block in content {
            match block["type"].as_str() {
                Some("text") if blank(&block["text"]) => return Err("blank text".into()),
                Some("text") => text_seen = true,
                Some("tool_result") if role == "user" => {
                    let id = block["tool_use_id"].as_str().unwrap_or_default();
                    if text_seen {
                        return Err(format!("message {index}: text before a result"));
                    }
                    if !waiting.remove(id) {
                        return Err(format!("message {index}: unexpected tool_use_id {id}"));
                    }
                    if !block["content"].is_string() {
                        return Err("a result without content".into());
                    }
                }
                Some("tool_use") if role == "assistant" => {
                    let id = block["id"].as_str().unwrap_or_default();
                    if !used.insert(id) || !plain(id) || !block["input"].is_object() {
                        return Err(format!("message {index}: tool_use {id}"));
                    }
                    calls.insert(id);
                }
                other => return Err(format!("message {index}: block {other:?}")),
            }
        }
        if !waiting.is_empty() {
            return Err(format!("message {index}: no tool_result for {waiting:?}"));
        }
        waiting = calls;
    }
    if waiting.is_empty() {
        return Ok(());
    }
    Err(format!("no tool_result at the end for {waiting:?}"))
}

/// Chat Completions API: an assistant message with `tool_calls` is followed by one tool message
/// for each call, and by no other tool message; ids have at most 40 characters.
pub(crate) fn openai_rules(request: &Value) -> Result<(), String> {
    let messages = request["messages"].as_array().ok_or("no messages")?;
    let mut waiting: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        let role = message["role"].as_str().unwrap_or_default();
        if role == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            if !waiting.remove(id) {
                return Err(format!("message {index}: no preceding tool_calls for {id}"));
            }
            if !message["content"].is_string() {
                return Err(format!("message {index}: no content"));
            }
            continue;
        }
        if !waiting.is_empty() {
            return Err(format!("message {index}: no response for {waiting:?}"));
        }
        let calls = match (role, message.get("tool_calls")) {
            ("assistant", Some(calls)) => calls.as_array().ok_or("tool_calls")?,
            ("user" | "system" | "assistant", None) if message["content"].is_string() => continue,
            _ => return Err(format!("message {index}: role {role}")),
        };
        if calls.is_empty() {
            return Err(format!("message {index}: empty tool_calls"));
        }
        for call in calls {
            let id = call["id"].as_str().unwrap_or_default();
            let arguments = call["function"]["arguments"].as_str().unwrap_or_default();
            let arguments: Value = serde_json::from_str(arguments).map_err(|e| e.to_string())?;
            if id.len() > 40 || !waiting.insert(id) || !arguments.is_object() {
                return Err(format!("message {index}: call {id}"));
            }
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    Err(format!("no response at the end for {waiting:?}"))
}

fn blank(text: &Value) -> bool {
    text.as_str().is_none_or(|text| text.trim().is_empty())
}

fn plain(id: &str) -> bool {
    !id.is_empty()
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
}
