use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::xxh3_128;

use crate::conversation::view::Pairing;
use crate::conversation::{Error, Message, Role, ToolCallResult};

/// The fields `system` and `messages` of a request to the Anthropic Messages API. Add `model`,
/// `max_tokens` and `tools`.
///
/// - All system messages go into `system`, in order: the API accepts none between messages.
/// - Neighbours of the same role become one message, results before text.
/// - If the list starts with an assistant message, a user message `(start)` is put before it.
/// - Messages without contents are left out.
/// - Call ids that the API would refuse are replaced.
///
/// ```
/// use agent_snapshot::conversation::{Message, anthropic_request};
/// use serde_json::json;
///
/// let request = anthropic_request(&[Message::system("Be brief."), Message::user("hello")])?;
/// assert_eq!(request, json!({
///     "system": [{"type": "text", "text": "Be brief."}],
///     "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}],
/// }));
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
///
/// # Errors
///
/// - The API would refuse the list: [`Error::DuplicateMessage`], [`Error::DuplicateCall`],
///   [`Error::UnknownCall`], [`Error::AlreadyAnswered`], [`Error::InvalidMessage`].
/// - [`Error::OpenCalls`]: a call has no result.
pub fn anthropic_request<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
) -> Result<Value, Error> {
    let mut pairing = Pairing::default();
    let mut system = Vec::new();
    let mut out: Vec<(&str, Vec<Value>)> = Vec::new();
    for message in messages {
        add(&mut pairing, message)?;
        let (role, blocks) = match message.role {
            Role::System => {
                system.extend(text_block(message));
                continue;
            }
            Role::User => ("user", Vec::from_iter(text_block(message))),
            Role::Tool => {
                let results = message.tool_results.iter().map(result_block);
                ("user", results.collect())
            }
            Role::Assistant => {
                let calls = message.tool_calls.iter().map(|call| {
                    json!({
                        "type": "tool_use",
                        "id": call_id(&call.id),
                        "name": call.name,
                        "input": object(&call.args),
                    })
                });
                let blocks = text_block(message).into_iter().chain(calls);
                ("assistant", blocks.collect())
            }
        };
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
    pairing.check_closed()?;
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

/// The field `messages` of a request to the OpenAI Chat Completions API. Add `model` and `tools`.
///
/// - Each result becomes a message of its own. The text of a failed one starts with `Error: `,
///   because the API has no field for it.
/// - Call ids that the API would refuse are replaced.
///
/// ```
/// use agent_snapshot::conversation::{Message, openai_request};
/// use serde_json::json;
///
/// let request = openai_request(&[Message::user("hello")])?;
/// assert_eq!(request, json!({"messages": [{"role": "user", "content": "hello"}]}));
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
///
/// # Errors
///
/// As [`anthropic_request`].
pub fn openai_request<'a>(messages: impl IntoIterator<Item = &'a Message>) -> Result<Value, Error> {
    let mut pairing = Pairing::default();
    let mut out = Vec::new();
    for message in messages {
        add(&mut pairing, message)?;
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
                let mark = if result.is_error { "Error: " } else { "" };
                json!({
                    "role": "tool",
                    "tool_call_id": call_id(&result.tool_call_id),
                    "content": format!("{mark}{}", result_text(result)),
                })
            })),
        }
    }
    pairing.check_closed()?;
    Ok(json!({ "messages": out }))
}

/// Checks a message behind the ones before it.
fn add(pairing: &mut Pairing, message: &Message) -> Result<(), Error> {
    pairing.check(message)?;
    if message.tool_calls.iter().any(|call| call.id.is_empty()) {
        return Err(Error::InvalidMessage {
            reason: "a tool call without id",
        });
    }
    pairing.add(message);
    Ok(())
}

/// The API refuses blank text blocks.
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

/// An id that both APIs accept: 1 to 40 characters of `[A-Za-z0-9_-]`. Deterministic, so that a
/// prompt cache sees the same prefix in every request.
fn call_id(id: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    if id.len() <= 40 && id.bytes().all(plain) {
        return id.to_owned();
    }
    format!("call_{:032x}", xxh3_128(id.as_bytes()))
}
