//! The rules of providers: written from their documentation and error messages, independently of
//! the code under test.

use std::collections::HashSet;

use agent_snapshot::conversation::{Message, Provider, Role};
use serde_json::Value;

/// Checks a list by the rules for lists and by the rules of all providers.
pub(crate) fn acceptable(messages: &[Message]) -> Result<(), String> {
    list_rules(&messages.iter().collect::<Vec<_>>())?;
    for provider in Provider::ALL {
        let request = provider.request(messages);
        let request = request.map_err(|error| format!("{provider}: {error}"))?;
        provider_rules(provider, &request)?;
    }
    Ok(())
}

/// Checks a request by the rules of its provider.
pub(crate) fn provider_rules(provider: Provider, request: &Value) -> Result<(), String> {
    let checked = match provider {
        Provider::Anthropic => anthropic_rules(request),
        Provider::OpenAiChat => chat_rules(request),
        Provider::OpenAiResponses => responses_rules(request),
        _ => gemini_rules(request),
    };
    checked.map_err(|reason| format!("{provider}: {reason}"))
}

/// Rules for the list itself, so that a conversion to a request cannot hide a fault.
pub(crate) fn list_rules(messages: &[&Message]) -> Result<(), String> {
    let mut index = 0;
    let mut spoken = false;
    let mut ids = HashSet::new();
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
        if let Some(id) = expected.iter().find(|id| !ids.insert(**id)) {
            return Err(format!("message {index}: the call id {id} again"));
        }
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

/// Messages API.
///
/// The first and the last message are user messages and roles alternate; no content is blank; each
/// `tool_use` has its `tool_result` in the next message, and results come first there; `thinking` has
/// a signature and is never last; failed results contain only text.
fn anthropic_rules(request: &Value) -> Result<(), String> {
    keys(request, &["system", "messages"])?;
    if let Some(system) = request.get("system") {
        for block in filled(system, "system")? {
            keys(block, &["type", "text"])?;
            if block["type"] != "text" || blank(&block["text"]) {
                return Err("bad system block".into());
            }
        }
    }
    let messages = filled(&request["messages"], "messages")?;
    let mut used = HashSet::new();
    let mut waiting: HashSet<&str> = HashSet::new();
    for (index, message) in messages.iter().enumerate() {
        keys(message, &["role", "content"])?;
        let role = text(message, "role")?;
        if role != if index % 2 == 0 { "user" } else { "assistant" } {
            return Err(format!("message {index} has role {role}"));
        }
        let content = filled(&message["content"], "content")?;
        let mut others_seen = false;
        let mut calls = HashSet::new();
        for block in content {
            let kind = text(block, "type")?;
            if kind != "tool_result" {
                others_seen = true;
            }
            match (kind, role) {
                ("text", _) => anthropic_text(block)?,
                ("image" | "document", "user") => anthropic_media(block)?,
                ("tool_result", "user") => {
                    let id = text(block, "tool_use_id")?;
                    if others_seen {
                        return Err(format!("message {index}: something before a result"));
                    }
                    if !waiting.remove(id) {
                        return Err(format!("message {index}: unexpected tool_use_id {id}"));
                    }
                    anthropic_result(block)?;
                }
                ("tool_use", "assistant") => {
                    let id = text(block, "id")?;
                    let keyed = keys(block, &["type", "id", "name", "input", "caller"]);
                    let named = tool_name(text(block, "name")?);
                    if !used.insert(id) || !plain(id) || !named || !block["input"].is_object() {
                        return Err(format!("message {index}: tool_use {block}"));
                    }
                    keyed?;
                    calls.insert(id);
                }
                ("thinking", "assistant") => {
                    keys(block, &["type", "thinking", "signature"])?;
                    text(block, "thinking")?;
                    if blank(&block["signature"]) {
                        return Err("thinking without signature".into());
                    }
                }
                ("redacted_thinking", "assistant") => {
                    text(block, "data")?;
                }
                ("server_tool_use" | "web_search_tool_result", "assistant") => {}
                _ => return Err(format!("message {index}: block {kind} of {role}")),
            }
        }
        let last = content.last().map(|block| &block["type"]);
        if last.is_some_and(|kind| kind == "thinking" || kind == "redacted_thinking") {
            return Err(format!("message {index}: ends with thinking"));
        }
        if !waiting.is_empty() {
            return Err(format!("message {index}: no tool_result for {waiting:?}"));
        }
        waiting = calls;
    }
    // "This model does not support assistant message prefill. The conversation must end with a user
    // message."
    if messages.len() % 2 == 0 {
        return Err("ends with an assistant message".into());
    }
    Ok(())
}

fn anthropic_text(block: &Value) -> Result<(), String> {
    keys(block, &["type", "text", "citations"])?;
    if blank(&block["text"]) {
        return Err("blank text".into());
    }
    Ok(())
}

fn anthropic_media(block: &Value) -> Result<(), String> {
    keys(block, &["type", "source", "title", "context", "citations"])?;
    let source = &block["source"];
    let media_type = source["media_type"].as_str().unwrap_or_default();
    let allowed = match (text(block, "type")?, text(source, "type")?) {
        ("image", "base64") => {
            ["image/png", "image/jpeg", "image/gif", "image/webp"].contains(&media_type)
                && !blank(&source["data"])
        }
        ("document", "base64") => media_type == "application/pdf" && !blank(&source["data"]),
        ("document", "text") => media_type == "text/plain" && !blank(&source["data"]),
        (_, "url") => text(source, "url")?.starts_with("http"),
        (_, "file") => !blank(&source["file_id"]),
        _ => false,
    };
    if !allowed {
        return Err(format!("bad source {source}"));
    }
    Ok(())
}

fn anthropic_result(block: &Value) -> Result<(), String> {
    keys(block, &["type", "tool_use_id", "content", "is_error"])?;
    let failed = block["is_error"] == true;
    let content = match &block["content"] {
        Value::String(_) => return Ok(()),
        content => content.as_array().ok_or("a result without content")?,
    };
    for block in content {
        match text(block, "type")? {
            "text" => anthropic_text(block)?,
            _ if failed => return Err("a failed result with more than text".into()),
            _ => anthropic_media(block)?,
        }
    }
    Ok(())
}

/// Chat Completions API: an assistant message with `tool_calls` is followed by one tool message
/// for each call, and by no other tool message; ids have at most 40 characters; only user messages
/// have images and files.
fn chat_rules(request: &Value) -> Result<(), String> {
    keys(request, &["messages"])?;
    let messages = filled(&request["messages"], "messages")?;
    let mut waiting: HashSet<&str> = HashSet::new();
    let mut spoken = false;
    for (index, message) in messages.iter().enumerate() {
        let role = text(message, "role")?;
        spoken |= role != "system";
        if role == "tool" {
            keys(message, &["role", "tool_call_id", "content"])?;
            let id = text(message, "tool_call_id")?;
            if !waiting.remove(id) {
                return Err(format!("message {index}: no preceding tool_calls for {id}"));
            }
            text(message, "content")?;
            continue;
        }
        if !waiting.is_empty() {
            return Err(format!("message {index}: no response for {waiting:?}"));
        }
        let allowed = ["role", "content", "tool_calls", "reasoning_content"];
        keys(message, &allowed)?;
        if role != "assistant" && message.get("reasoning_content").is_some() {
            return Err(format!("message {index}: reasoning of {role}"));
        }
        match (role, &message["content"]) {
            ("user", Value::Array(_)) => {
                for part in filled(&message["content"], "content")? {
                    chat_part(part)?;
                }
            }
            ("user" | "system" | "assistant", content @ Value::String(_)) if !blank(content) => {}
            ("assistant", Value::Null) if message.get("tool_calls").is_some() => {}
            _ => return Err(format!("message {index}: content of {role}")),
        }
        let Some(calls) = message.get("tool_calls") else {
            continue;
        };
        if role != "assistant" {
            return Err(format!("message {index}: calls of {role}"));
        }
        for call in filled(calls, "tool_calls")? {
            keys(call, &["id", "type", "function"])?;
            let (id, function) = (text(call, "id")?, &call["function"]);
            keys(function, &["name", "arguments"])?;
            let named = tool_name(text(function, "name")?);
            let sized = !id.is_empty() && id.len() <= 40;
            if !sized || !waiting.insert(id) || !named || !json_object(function) {
                return Err(format!("message {index}: call {call}"));
            }
        }
    }
    if !waiting.is_empty() {
        return Err(format!("no response at the end for {waiting:?}"));
    }
    if !spoken {
        return Err("only system messages".into());
    }
    Ok(())
}

fn chat_part(part: &Value) -> Result<(), String> {
    let good = match text(part, "type")? {
        "text" => keys(part, &["type", "text"]).is_ok() && !blank(&part["text"]),
        "image_url" => {
            keys(&part["image_url"], &["url", "detail"])?;
            image_url(text(&part["image_url"], "url")?)
        }
        "file" => {
            let file = &part["file"];
            keys(file, &["filename", "file_data", "file_id"])?;
            match file["file_data"].as_str() {
                Some(data) => {
                    data.starts_with("data:application/pdf;base64,") && !blank(&file["filename"])
                }
                None => !blank(&file["file_id"]),
            }
        }
        _ => false,
    };
    if good {
        return Ok(());
    }
    Err(format!("bad part {part}"))
}

/// Responses API: every call has one output behind it; an item `reasoning` is followed by another
/// item of the same answer; only users and tools have images and files.
fn responses_rules(request: &Value) -> Result<(), String> {
    keys(request, &["input"])?;
    let input = filled(&request["input"], "input")?;
    let mut calls = HashSet::new();
    let mut waiting = HashSet::new();
    let mut spoken = false;
    let mut reasoned = false;
    for (index, item) in input.iter().enumerate() {
        let kind = item["type"].as_str().unwrap_or("message");
        let role = item["role"].as_str().unwrap_or_default();
        spoken |= role != "system";
        let is_answer = role == "assistant"
            || [
                "function_call",
                "custom_tool_call",
                "reasoning",
                "web_search_call",
            ]
            .contains(&kind);
        if reasoned && !is_answer {
            return Err(format!("item {index}: reasoning without a following item"));
        }
        reasoned = kind == "reasoning";
        match kind {
            "message" => {
                if !waiting.is_empty() {
                    return Err(format!("item {index}: no output for {waiting:?}"));
                }
                responses_message(item, role).map_err(|e| format!("item {index}: {e}"))?;
            }
            "reasoning" => {
                keys(item, &["type", "id", "summary", "encrypted_content"])?;
                text(item, "id")?;
                for part in item["summary"].as_array().ok_or("no summary")? {
                    keys(part, &["type", "text"])?;
                    text(part, "text")?;
                }
            }
            "function_call" => {
                keys(item, &["type", "call_id", "name", "arguments"])?;
                let id = text(item, "call_id")?;
                let sized = !id.is_empty() && id.len() <= 64;
                let named = tool_name(text(item, "name")?);
                if !sized || !calls.insert(id) || !named || !json_object(item) {
                    return Err(format!("item {index}: {item}"));
                }
                waiting.insert(id);
            }
            "custom_tool_call" => {
                keys(item, &["type", "call_id", "name", "input"])?;
                text(item, "input")?;
                waiting.insert(text(item, "call_id")?);
            }
            "function_call_output" | "custom_tool_call_output" => {
                keys(item, &["type", "call_id", "output"])?;
                let id = text(item, "call_id")?;
                if !waiting.remove(id) {
                    return Err(format!("item {index}: no call for {id}"));
                }
                if let Value::Array(parts) = &item["output"] {
                    parts.iter().try_for_each(responses_part)?;
                } else {
                    text(item, "output")?;
                }
            }
            "web_search_call" => {}
            other => return Err(format!("item {index}: {other}")),
        }
    }
    if reasoned {
        return Err("reasoning at the end".into());
    }
    if !waiting.is_empty() {
        return Err(format!("no output at the end for {waiting:?}"));
    }
    if !spoken {
        return Err("only system messages".into());
    }
    Ok(())
}

fn responses_message(item: &Value, role: &str) -> Result<(), String> {
    keys(item, &["role", "content", "phase"])?;
    match (role, &item["content"]) {
        ("user", Value::Array(_)) => filled(&item["content"], "content")?
            .iter()
            .try_for_each(responses_part),
        ("user" | "system" | "assistant", content @ Value::String(_)) if !blank(content) => Ok(()),
        _ => Err(format!("content of {role}")),
    }
}

fn responses_part(part: &Value) -> Result<(), String> {
    let good = match text(part, "type")? {
        "input_text" => keys(part, &["type", "text"]).is_ok() && !blank(&part["text"]),
        "input_image" => {
            keys(part, &["type", "detail", "image_url", "file_id"])?;
            text(part, "detail")?;
            match part["image_url"].as_str() {
                Some(url) => image_url(url),
                None => !blank(&part["file_id"]),
            }
        }
        "input_file" => {
            keys(
                part,
                &["type", "filename", "file_data", "file_url", "file_id"],
            )?;
            match (part["file_data"].as_str(), part["file_url"].as_str()) {
                (Some(data), _) => {
                    data.starts_with("data:application/pdf;base64,") && !blank(&part["filename"])
                }
                (None, Some(url)) => url.starts_with("http"),
                _ => !blank(&part["file_id"]),
            }
        }
        _ => false,
    };
    if good {
        return Ok(());
    }
    Err(format!("bad part {part}"))
}

/// `generateContent`: the first and the last content are of the user; a model content with calls
/// stands behind a user content, and before a user content with exactly its results; each part has
/// one kind of data; the first call of each step of the current turn has a signature.
fn gemini_rules(request: &Value) -> Result<(), String> {
    keys(request, &["systemInstruction", "contents"])?;
    if let Some(system) = request.get("systemInstruction") {
        for part in filled(&system["parts"], "systemInstruction")? {
            keys(part, &["text"])?;
            if blank(&part["text"]) {
                return Err("blank system part".into());
            }
        }
    }
    let contents = filled(&request["contents"], "contents")?;
    let mut waiting: Vec<(&str, &str)> = Vec::new();
    let mut last = "model";
    let mut unsigned = false;
    for (index, content) in contents.iter().enumerate() {
        keys(content, &["role", "parts"])?;
        let role = text(content, "role")?;
        if role == "model" && last == "model" {
            return Err(format!("content {index}: no user turn before it"));
        }
        last = role;
        let parts = filled(&content["parts"], "parts")?;
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        for part in parts {
            let (kind, data) = gemini_part(part).map_err(|e| format!("content {index}: {e}"))?;
            match (kind, role) {
                ("functionCall", "model") => {
                    keys(data, &["id", "name", "args"])?;
                    let pair = (text(data, "id")?, text(data, "name")?);
                    if !tool_name(pair.1) || !data["args"].is_object() {
                        return Err(format!("content {index}: {data}"));
                    }
                    unsigned |= calls.is_empty() && part.get("thoughtSignature").is_none();
                    calls.push(pair);
                }
                ("functionResponse", "user") => {
                    keys(data, &["id", "name", "response"])?;
                    if !data["response"].is_object() {
                        return Err(format!("content {index}: {data}"));
                    }
                    results.push((text(data, "id")?, text(data, "name")?));
                }
                ("functionCall" | "functionResponse", _) => {
                    return Err(format!("content {index}: {kind} of {role}"));
                }
                ("executableCode", "user") => return Err("code of the user".into()),
                _ => {}
            }
        }
        if results != waiting {
            return Err(format!("content {index}: {results:?} for {waiting:?}"));
        }
        if role == "user" && results.is_empty() {
            unsigned = false;
        }
        waiting = calls;
    }
    if last != "user" {
        return Err("ends with a model content".into());
    }
    if unsigned {
        return Err("a call of the current turn without signature".into());
    }
    Ok(())
}

fn gemini_part(part: &Value) -> Result<(&str, &Value), String> {
    let fields = part.as_object().ok_or("a part that is no object")?;
    let marks = ["thought", "thoughtSignature"];
    let mut data = fields.iter().filter(|(key, _)| !marks.contains(&&***key));
    let (Some((kind, value)), None) = (data.next(), data.next()) else {
        return Err(format!("{part} has not one kind of data"));
    };
    let media_type = value["mimeType"].as_str().unwrap_or_default();
    let known = ["image/png", "image/jpeg", "image/webp", "application/pdf"];
    let good = match kind.as_str() {
        "text" => !blank(value) || fields.contains_key("thoughtSignature"),
        "inlineData" => {
            keys(value, &["mimeType", "data"])?;
            known.contains(&media_type) && !blank(&value["data"])
        }
        "fileData" => {
            keys(value, &["mimeType", "fileUri"])?;
            known.contains(&media_type) && !blank(&value["fileUri"])
        }
        "functionCall" | "functionResponse" | "executableCode" => true,
        _ => false,
    };
    if good {
        return Ok((kind, value));
    }
    Err(format!("bad part {part}"))
}

fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    let text = value[key].as_str();
    text.ok_or_else(|| format!("no text {key} in {value}"))
}

fn filled<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>, String> {
    let list = value.as_array().filter(|list| !list.is_empty());
    list.ok_or_else(|| format!("{what} is not a list with entries"))
}

/// No API accepts fields that it does not know.
fn keys(value: &Value, allowed: &[&str]) -> Result<(), String> {
    let fields = value.as_object().ok_or("no object")?;
    match fields.keys().find(|key| !allowed.contains(&&***key)) {
        Some(key) => Err(format!("unknown field {key}")),
        None => Ok(()),
    }
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

/// The strictest: Gemini wants a letter or an underscore first.
fn tool_name(name: &str) -> bool {
    plain(name) && name.len() <= 64 && !name.starts_with(|c: char| c.is_ascii_digit() || c == '-')
}

fn json_object(function: &Value) -> bool {
    let arguments = function["arguments"].as_str().unwrap_or_default();
    serde_json::from_str::<Value>(arguments).is_ok_and(|args| args.is_object())
}

fn image_url(url: &str) -> bool {
    let data = ["png", "jpeg", "gif", "webp"]
        .iter()
        .find_map(|kind| url.strip_prefix(&format!("data:image/{kind};base64,")));
    data.is_some_and(|data| !data.is_empty()) || url.starts_with("http")
}
