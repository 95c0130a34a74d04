//! The Messages API of Anthropic.

use serde_json::{Map, Value, json};

use super::Provider;
use super::read::{self, Pieces};
use super::write::{self, is_blank, with_own};
use crate::conversation::part::Piece;
use crate::conversation::{Message, Part, Role, Source, ToolCallRequest, ToolCallResult};

const OWN: Provider = Provider::Anthropic;

/// A message of the request.
struct Turn {
    role: &'static str,
    /// Results of tools, which must come first.
    results: Vec<Value>,
    blocks: Vec<Value>,
}

/// `None` if no message has contents.
pub(super) fn request(messages: &[&Message]) -> Option<Value> {
    let mut system = Vec::new();
    let mut turns: Vec<Turn> = Vec::new();
    for message in messages {
        let mut turn = Turn {
            role: if message.role == Role::Assistant {
                "assistant"
            } else {
                "user"
            },
            results: Vec::new(),
            blocks: Vec::new(),
        };
        let pieces = message.pieces().into_iter();
        turn.blocks = pieces
            .filter_map(|piece| block(message.role, piece))
            .collect();
        if message.role == Role::System {
            system.append(&mut turn.blocks);
            continue;
        }
        for result in &message.tool_results {
            let (result, behind) = result_block(result);
            turn.results.push(result);
            turn.blocks.extend(behind);
        }
        match turns.last_mut() {
            Some(last) if last.role == turn.role => {
                last.results.append(&mut turn.results);
                last.blocks.append(&mut turn.blocks);
            }
            _ => turns.push(turn),
        }
    }
    for turn in &mut turns {
        // "The final block in an assistant message cannot be `thinking`."
        while turn.blocks.last().is_some_and(is_thinking) {
            turn.blocks.pop();
        }
    }
    turns.retain(|turn| !turn.results.is_empty() || !turn.blocks.is_empty());
    let first = turns.first()?.role;
    let last = turns.last()?.role;
    let note = |text: &str| json!({"role": "user", "content": [{"type": "text", "text": text}]});
    let mut out = Vec::with_capacity(turns.len() + 2);
    if first == "assistant" {
        out.push(note(write::START));
    }
    for turn in merged(turns) {
        let mut content = turn.results;
        content.extend(turn.blocks);
        out.push(json!({"role": turn.role, "content": content}));
    }
    if last == "assistant" {
        out.push(note(write::CONTINUE));
    }
    let mut request = Map::new();
    if !system.is_empty() {
        request.insert("system".into(), Value::Array(system));
    }
    request.insert("messages".into(), Value::Array(out));
    Some(Value::Object(request))
}

/// Turns that were separated by an empty one can be of the same role.
fn merged(turns: Vec<Turn>) -> Vec<Turn> {
    let mut out: Vec<Turn> = Vec::with_capacity(turns.len());
    for mut turn in turns {
        match out.last_mut() {
            Some(last) if last.role == turn.role => {
                last.results.append(&mut turn.results);
                last.blocks.append(&mut turn.blocks);
            }
            _ => out.push(turn),
        }
    }
    out
}

fn is_thinking(block: &Value) -> bool {
    let kind = block["type"].as_str().unwrap_or_default();
    kind == "thinking" || kind == "redacted_thinking"
}

fn block(role: Role, piece: Piece<'_>) -> Option<Value> {
    match piece {
        // Only users have images and documents.
        Piece::Part(part) if role == Role::Assistant && write::stand_in(part).is_some() => {
            write::stand_in(part).map(|text| text_block(&text))
        }
        Piece::Text { text, .. } if is_blank(text) => None,
        Piece::Text { text, extra } => Some(with_own(text_block(text), OWN, extra)),
        Piece::Call(call) => {
            let block = json!({
                "type": "tool_use",
                "id": write::call_id(&call.id),
                "name": OWN.tool_name(&call.name),
                "input": write::object(&call.args),
            });
            Some(with_own(block, OWN, Some(&call.extra)))
        }
        Piece::Part(part) => part_block(part),
    }
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn part_block(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => (!is_blank(text)).then(|| text_block(text)),
        Part::Reasoning {
            provider: OWN,
            text,
            signature: Some(signature),
            extra,
        } => {
            let block = json!({"type": "thinking", "thinking": text, "signature": signature});
            Some(with_own(block, OWN, Some(extra)))
        }
        Part::Provider {
            provider: OWN,
            data,
        } => Some(data.clone()),
        Part::Image { extra, .. } | Part::Document { extra, .. } => match media_block(part) {
            Some(block) => Some(with_own(block, OWN, Some(extra))),
            None => write::stand_in(part).map(|text| text_block(&text)),
        },
        _ => None,
    }
}

/// `None` if the API has no form for the image or document.
fn media_block(part: &Part) -> Option<Value> {
    let source = |source: &Source| match source {
        Source::Url { url, .. } if url.starts_with("http") => {
            Some(json!({"type": "url", "url": url}))
        }
        Source::File { provider: OWN, id } => Some(json!({"type": "file", "file_id": id})),
        _ => None,
    };
    match part {
        Part::Image {
            source: Source::Base64 { media_type, data },
            ..
        } if write::is_image_type(media_type) => Some(json!({
            "type": "image",
            "source": {"type": "base64", "media_type": media_type, "data": data},
        })),
        Part::Image { source: from, .. } => Some(json!({"type": "image", "source": source(from)?})),
        Part::Document {
            source: from, name, ..
        } => {
            let source = match (from, write::document_text(from)) {
                (_, Some(text)) if is_blank(&text) => return None,
                (_, Some(text)) => {
                    json!({"type": "text", "media_type": "text/plain", "data": text})
                }
                (Source::Base64 { media_type, data }, None) if media_type == "application/pdf" => {
                    json!({"type": "base64", "media_type": media_type, "data": data})
                }
                _ => source(from)?,
            };
            let mut block = json!({"type": "document", "source": source});
            if let Some(name) = name {
                block["title"] = json!(name);
            }
            Some(block)
        }
        _ => None,
    }
}

/// The block of a result, and the blocks that stand behind all results: "all content must be type
/// `text` if `is_error` is true".
fn result_block(result: &ToolCallResult) -> (Value, Vec<Value>) {
    let mut block = json!({
        "type": "tool_result",
        "tool_use_id": write::call_id(&result.tool_call_id),
    });
    let text = write::result_text(result);
    let mut behind = Vec::new();
    if result.parts.is_empty() {
        block["content"] = json!(text.unwrap_or_default());
    } else {
        let text = text.filter(|text| !is_blank(text));
        let mut content = Vec::from_iter(text.map(|text| text_block(&text)));
        content.extend(result.parts.iter().filter_map(part_block));
        if result.is_error {
            let is_text = |block: &Value| block["type"] == "text";
            (content, behind) = content.into_iter().partition(is_text);
        }
        block["content"] = write::short_list(content, "text").unwrap_or_else(|| json!(""));
    }
    if result.is_error {
        block["is_error"] = Value::Bool(true);
    }
    (with_own(block, OWN, Some(&result.extra)), behind)
}

pub(super) fn messages(json: &Value) -> Result<Vec<Message>, String> {
    let mut out = Vec::new();
    match json.get("system") {
        Some(Value::String(text)) => out.push(Message::system(text)),
        Some(Value::Array(blocks)) => {
            for block in blocks {
                out.push(Message::system(read::text(block, "text")?));
            }
        }
        _ => {}
    }
    let list = match json {
        Value::Array(list) => list.as_slice(),
        json if json.get("messages").is_some() => read::list(json, "messages")?,
        json => std::slice::from_ref(json),
    };
    for message in list {
        read_message(message, &mut out)?;
    }
    Ok(out)
}

fn read_message(message: &Value, out: &mut Vec<Message>) -> Result<(), String> {
    let role = match read::text(message, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" => Role::System,
        other => return Err(format!("the role `{other}`")),
    };
    let content = message.get("content").unwrap_or(&Value::Null);
    if let Value::String(text) = content {
        let mut message = Message::new(role);
        message.content = Some(text.clone());
        out.push(message);
        return Ok(());
    }
    let mut pieces = Pieces::default();
    let mut results = Vec::new();
    for block in read::list(message, "content")? {
        match block["type"].as_str() {
            Some("tool_result") => results.push(read_result(block)?),
            Some("tool_use") => {
                let (id, name) = (read::text(block, "id")?, read::text(block, "name")?);
                let args = block.get("input").cloned().unwrap_or_default();
                let mut call = ToolCallRequest::new(id, name, args);
                let known = ["type", "id", "name", "input", "cache_control"];
                call.extra = read::own_fields(OWN, block, &known);
                pieces.call(call);
            }
            _ => pieces.parts.push(read_part(block)?),
        }
    }
    if !results.is_empty() {
        out.push(Message::tool(results));
    }
    if !pieces.is_empty() {
        out.push(pieces.finish(role));
    }
    Ok(())
}

fn read_part(block: &Value) -> Result<Part, String> {
    let kind = read::text(block, "type")?;
    let extra = |known: &[&str]| {
        let known = [known, &["type", "cache_control"]].concat();
        read::own_fields(OWN, block, &known)
    };
    let source = block.get("source").and_then(read_source);
    Ok(match (kind, source) {
        ("text", _) => Part::Text {
            text: read::text(block, "text")?.to_owned(),
            extra: extra(&["text"]),
        },
        ("thinking", _) => Part::Reasoning {
            provider: OWN,
            text: read::text(block, "thinking")?.to_owned(),
            signature: block["signature"].as_str().map(str::to_owned),
            extra: extra(&["thinking", "signature"]),
        },
        ("image", Some(source)) => Part::Image {
            source,
            extra: extra(&["source"]),
        },
        ("document", Some(source)) => Part::Document {
            source,
            name: block["title"].as_str().map(str::to_owned),
            extra: extra(&["source", "title"]),
        },
        _ => {
            let mut data = block.clone();
            if let Some(data) = data.as_object_mut() {
                data.remove("cache_control");
            }
            Part::Provider {
                provider: OWN,
                data,
            }
        }
    })
}

fn read_source(source: &Value) -> Option<Source> {
    let field = |key: &str| source.get(key)?.as_str();
    Some(match field("type")? {
        "base64" => Source::base64(field("media_type")?, field("data")?),
        "url" => Source::url(field("url")?),
        "file" => Source::File {
            provider: OWN,
            id: field("file_id")?.to_owned(),
        },
        "text" => Source::Text {
            text: field("data")?.to_owned(),
        },
        _ => return None,
    })
}

fn read_result(block: &Value) -> Result<ToolCallResult, String> {
    let id = read::text(block, "tool_use_id")?;
    let mut result = match block.get("content") {
        Some(Value::Array(blocks)) => {
            let mut parts: Vec<Part> = blocks.iter().map(read_part).collect::<Result<_, _>>()?;
            let text = match parts.first() {
                Some(Part::Text { text, extra }) if extra.is_empty() => Some(json!(text)),
                _ => None,
            };
            if text.is_some() {
                parts.remove(0);
            }
            let empty = if parts.is_empty() {
                json!("")
            } else {
                Value::Null
            };
            ToolCallResult::new(id, text.unwrap_or(empty)).with_parts(parts)
        }
        Some(Value::String(text)) => ToolCallResult::new(id, json!(text)),
        _ => ToolCallResult::new(id, json!("")),
    };
    result.is_error = block["is_error"].as_bool().unwrap_or(false);
    let known = [
        "type",
        "tool_use_id",
        "content",
        "is_error",
        "cache_control",
    ];
    result.extra = read::own_fields(OWN, block, &known);
    Ok(result)
}
