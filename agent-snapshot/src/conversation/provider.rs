use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use super::{Message, Role, ToolCallResult, pairing::Pairing};
use crate::Error;

/// The messages as the `system` and `messages` of an Anthropic Messages request. Add `model`,
/// `max_tokens` and `tools`.
///
/// All system messages go into `system`, in their order, because the API takes none in
/// between. Neighbours of one role become one message, results before text. A list that
/// starts with the assistant gets a user message `(start)` in front; messages without any
/// content are left out. Call ids that the API would refuse are replaced.
///
/// # Errors
///
/// What a provider would refuse: see [`StateManager::append`](super::StateManager::append).
/// Unanswered calls are [`Error::OpenCalls`].
pub fn anthropic_request<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
) -> Result<Value, Error> {
    let mut pairing = Pairing::default();
    let mut system = Vec::new();
    let mut out: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        take_up(&mut pairing, message)?;
        let (role, blocks) = match message.role {
            Role::System => {
                system.extend(text_block(message));
                continue;
            }
            Role::User => ("user", text_block(message).into_iter().collect()),
            Role::Tool => (
                "user",
                message.tool_results.iter().map(result_block).collect(),
            ),
            Role::Assistant => {
                let calls = message.tool_calls.iter().map(|call| {
                    json!({
                        "type": "tool_use",
                        "id": call_id(&call.id),
                        "name": call.name,
                        "input": object(&call.args),
                    })
                });
                (
                    "assistant",
                    text_block(message).into_iter().chain(calls).collect(),
                )
            }
        };
        let blocks: Vec<Value> = blocks;
        if blocks.is_empty() {
            continue;
        }
        if out.is_empty() && role == "assistant" {
            out.push(("user", vec![json!({"type": "text", "text": "(start)"})]));
        }
        match out.last_mut() {
            Some((last, content)) if *last == role => content.extend(blocks),
            _ => out.push((role, blocks)),
        }
    }
    closed(&pairing)?;
    let messages: Vec<Value> = out
        .into_iter()
        .map(|(role, content)| json!({"role": role, "content": content}))
        .collect();
    let mut request = Map::new();
    if !system.is_empty() {
        request.insert("system".into(), Value::Array(system));
    }
    request.insert("messages".into(), Value::Array(messages));
    Ok(Value::Object(request))
}

/// The messages as the `messages` of an OpenAI Chat Completions request. Add `model` and
/// `tools`.
///
/// Each result becomes a message of its own; a failed one is marked by `Error: ` in front,
/// because the API has no field for it. Call ids that the API would refuse are replaced.
///
/// # Errors
///
/// As [`anthropic_request`].
pub fn openai_request<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Result<Value, Error> {
    let mut pairing = Pairing::default();
    let mut out = Vec::new();
    for message in messages {
        take_up(&mut pairing, message)?;
        let content = message.content.as_deref().unwrap_or_default();
        match message.role {
            Role::System => out.push(json!({"role": "system", "content": content})),
            Role::User => out.push(json!({"role": "user", "content": content})),
            Role::Assistant if message.tool_calls.is_empty() => {
                out.push(json!({"role": "assistant", "content": content}));
            }
            Role::Assistant => {
                let calls = message.tool_calls.iter().map(|call| {
                    let arguments = object(&call.args).to_string();
                    json!({
                        "id": call_id(&call.id),
                        "type": "function",
                        "function": {"name": call.name, "arguments": arguments},
                    })
                });
                out.push(json!({
                    "role": "assistant",
                    "content": message.content,
                    "tool_calls": calls.collect::<Vec<_>>(),
                }));
            }
            Role::Tool => out.extend(message.tool_results.iter().map(|result| {
                let text = result_text(result);
                let text = if result.is_error {
                    format!("Error: {text}")
                } else {
                    text
                };
                json!({
                    "role": "tool",
                    "tool_call_id": call_id(&result.tool_call_id),
                    "content": text,
                })
            })),
        }
    }
    closed(&pairing)?;
    Ok(json!({ "messages": out }))
}

fn take_up(pairing: &mut Pairing, message: &Message) -> Result<(), Error> {
    pairing.check(message)?;
    if message.tool_calls.iter().any(|call| call.id.is_empty()) {
        return Err(Error::InvalidMessage {
            reason: "a tool call without id",
        });
    }
    pairing.add(message);
    Ok(())
}

fn closed(pairing: &Pairing) -> Result<(), Error> {
    if pairing.open().is_empty() {
        return Ok(());
    }
    Err(Error::OpenCalls {
        calls: pairing.open().to_vec(),
    })
}

/// Blank text blocks are refused.
fn text_block(message: &Message) -> Option<Value> {
    let text = message.content.as_deref()?;
    (!text.trim().is_empty()).then(|| json!({"type": "text", "text": text}))
}

fn result_block(result: &ToolCallResult) -> Value {
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": call_id(&result.tool_call_id),
        "content": result_text(result),
    });
    if result.is_error {
        block["is_error"] = Value::Bool(true);
    }
    block
}

fn result_text(result: &ToolCallResult) -> String {
    match &result.result {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

fn object(args: &Value) -> Value {
    match args {
        Value::Null => json!({}),
        args => args.clone(),
    }
}

/// An id that both take: 1 to 40 of `[A-Za-z0-9_-]`. Always the same for the same id, so that
/// a prompt cache sees the same prefix.
fn call_id(id: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if id.len() <= 40 && id.bytes().all(plain) {
        return id.to_owned();
    }
    format!("call_{:032x}", xxh3_128(id.as_bytes()))
}
