//! The Chat Completions API of OpenAI.

use std::mem;

use serde_json::{Map, Value, json};

use super::Provider;
use super::read::{self, Pieces};
use super::write::{self, is_blank, with_own};
use crate::conversation::part::Piece;
use crate::conversation::{Message, Part, Role, Source, ToolCallRequest, ToolCallResult};

const OWN: Provider = Provider::OpenAiChat;

/// `None` if no message but system messages has contents.
pub(super) fn request(messages: &[&Message]) -> Option<Value> {
    let mut out = Vec::new();
    let mut spoken = false;
    // Images of results: a tool message takes only text, and only tool messages may follow a call
    // until all its results are there.
    let mut media = Vec::new();
    for message in messages {
        if message.role != Role::Tool && !media.is_empty() {
            out.push(json!({"role": "user", "content": mem::take(&mut media)}));
        }
        let written = match message.role {
            Role::System => text_message("system", message),
            Role::User => user(message),
            Role::Assistant => assistant(message),
            Role::Tool => {
                for result in &message.tool_results {
                    out.push(tool(result, &mut media));
                }
                None
            }
        };
        spoken |= message.role == Role::Tool;
        if let Some(written) = written {
            spoken |= message.role != Role::System;
            out.push(written);
        }
    }
    if !media.is_empty() {
        out.push(json!({"role": "user", "content": media}));
    }
    spoken.then(|| json!({ "messages": out }))
}

/// A message that is only text.
fn text_message(role: &str, message: &Message) -> Option<Value> {
    let text: String = message.texts().collect();
    (!is_blank(&text)).then(|| json!({"role": role, "content": text}))
}

fn user(message: &Message) -> Option<Value> {
    if message.parts.is_empty() {
        return text_message("user", message);
    }
    let parts = message
        .pieces()
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Text { text, .. } if is_blank(text) => None,
            Piece::Text { text, .. } => Some(text_part(text)),
            Piece::Part(part) => content_part(part),
            Piece::Call(_) => None,
        });
    let content = write::short_list(parts.collect(), "text");
    content.map(|content| json!({"role": "user", "content": content}))
}

fn assistant(message: &Message) -> Option<Value> {
    let mut content = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    let mut own = Map::new();
    for piece in message.pieces() {
        match piece {
            Piece::Text { text, .. } => content.push_str(text),
            Piece::Call(call) => calls.push(tool_call(call)),
            Piece::Part(Part::Reasoning {
                provider: OWN,
                text,
                extra,
                ..
            }) => {
                reasoning.push_str(text);
                let fields = extra.get(OWN.as_str()).and_then(Value::as_object);
                own.extend(fields.cloned().unwrap_or_default());
            }
            Piece::Part(part) => content.push_str(&write::stand_in(part).unwrap_or_default()),
        }
    }
    let mut written = json!({"role": "assistant"});
    if !is_blank(&content) {
        written["content"] = Value::String(content);
    } else if calls.is_empty() {
        return None;
    } else {
        written["content"] = Value::Null;
    }
    if !calls.is_empty() {
        written["tool_calls"] = Value::Array(calls);
    }
    // The API of OpenAI never returns this field; other servers want it back.
    if !reasoning.is_empty() {
        written["reasoning_content"] = Value::String(reasoning);
    }
    if let Some(written) = written.as_object_mut() {
        written.extend(own);
    }
    Some(written)
}

fn tool_call(call: &ToolCallRequest) -> Value {
    let call_json = json!({
        "id": write::call_id(&call.id),
        "type": "function",
        "function": {
            "name": OWN.tool_name(&call.name),
            "arguments": write::object(&call.args).to_string(),
        },
    });
    with_own(call_json, OWN, Some(&call.extra))
}

/// The message of a result. Its images and documents go to `media`.
fn tool(result: &ToolCallResult, media: &mut Vec<Value>) -> Value {
    let mut text = write::marked_text(result).unwrap_or_default().into_owned();
    let mut behind = Vec::new();
    for part in &result.parts {
        match part {
            Part::Text { text: more, .. } => text.push_str(more),
            part => behind.extend(content_part(part)),
        }
    }
    let id = write::call_id(&result.tool_call_id);
    if !behind.is_empty() {
        media.push(text_part(&format!("[from the result of {id}]")));
        media.append(&mut behind);
    }
    json!({"role": "tool", "tool_call_id": id, "content": text})
}

fn text_part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn content_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => (!is_blank(text)).then(|| text_part(text)),
        Part::Provider {
            provider: OWN,
            data,
        } => Some(data.clone()),
        Part::Image { .. } | Part::Document { .. } => {
            media_part(part).or_else(|| write::stand_in(part).map(|text| text_part(&text)))
        }
        _ => None,
    }
}

/// `None` if the API has no form for the image or document.
fn media_part(part: &Part) -> Option<Value> {
    match part {
        Part::Image { source, extra } => {
            let url = match source {
                Source::Base64 { media_type, data } if write::is_image_type(media_type) => {
                    write::data_url(media_type, data)
                }
                Source::Url { url, .. } if url.starts_with("http") => url.clone(),
                _ => return None,
            };
            let image = with_own(json!({ "url": url }), OWN, Some(extra));
            Some(json!({"type": "image_url", "image_url": image}))
        }
        Part::Document { source, name, .. } => {
            if let Some(text) = write::document_text(source) {
                let text = write::titled(name.as_deref(), &text);
                return (!is_blank(&text)).then(|| text_part(&text));
            }
            let file = match source {
                Source::Base64 { media_type, data } if media_type == "application/pdf" => {
                    let name = name.as_deref().unwrap_or("document.pdf");
                    json!({"filename": name, "file_data": write::data_url(media_type, data)})
                }
                Source::File {
                    provider: Provider::OpenAiChat | Provider::OpenAiResponses,
                    id,
                } => json!({ "file_id": id }),
                _ => return None,
            };
            Some(json!({"type": "file", "file": file}))
        }
        _ => None,
    }
}

pub(super) fn messages(json: &Value) -> Result<Vec<Message>, String> {
    let list = match json {
        Value::Array(list) => list.iter().collect(),
        json if json.get("choices").is_some() => {
            let choices = read::list(json, "choices")?;
            let first = choices.first().and_then(|choice| choice.get("message"));
            vec![first.ok_or("a response without a message")?]
        }
        json if json.get("messages").is_some() => read::list(json, "messages")?.iter().collect(),
        json => vec![json],
    };
    list.into_iter().map(read_message).collect()
}

fn read_message(message: &Value) -> Result<Message, String> {
    let role = match read::text(message, "role")? {
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "system" | "developer" => Role::System,
        "tool" => {
            let id = read::text(message, "tool_call_id")?;
            let content = message.get("content").unwrap_or(&Value::Null);
            let text = match content {
                Value::Array(parts) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
                content => content.as_str().unwrap_or_default().to_owned(),
            };
            return Ok(Message::tool(vec![ToolCallResult::new(id, json!(text))]));
        }
        other => return Err(format!("the role `{other}`")),
    };
    let mut pieces = Pieces::default();
    // Servers differ in the name.
    for key in ["reasoning_content", "reasoning"] {
        if let Some(text) = message[key].as_str().filter(|text| !text.is_empty()) {
            let details = message.get("reasoning_details").filter(|d| d.is_array());
            let details = details.map(|d| json!({ "reasoning_details": d }));
            pieces.parts.push(Part::Reasoning {
                provider: OWN,
                text: text.to_owned(),
                signature: None,
                extra: details.map_or_else(Map::new, |details| {
                    Map::from_iter([(OWN.as_str().to_owned(), details)])
                }),
            });
            break;
        }
    }
    match message.get("content") {
        Some(Value::String(text)) if !text.is_empty() => pieces.text(text, Map::new()),
        Some(Value::Array(parts)) => {
            for part in parts {
                read_part(part, &mut pieces)?;
            }
        }
        _ => {}
    }
    if let Some(refusal) = message["refusal"].as_str() {
        pieces.text(refusal, Map::new());
    }
    let calls = message["tool_calls"].as_array();
    for call in calls.into_iter().flatten() {
        let function = call.get("function").ok_or("a call without a function")?;
        let id = call["id"].as_str().unwrap_or_default();
        let args = read::arguments(function["arguments"].as_str().unwrap_or_default());
        let mut read = ToolCallRequest::new(id, read::text(function, "name")?, args);
        // For instance the signatures of Gemini behind this API.
        read.extra = read::own_fields(OWN, call, &["id", "type", "function", "index"]);
        pieces.call(read);
    }
    Ok(pieces.finish(role))
}

fn read_part(part: &Value, pieces: &mut Pieces) -> Result<(), String> {
    match read::text(part, "type")? {
        "text" => pieces.text(read::text(part, "text")?, Map::new()),
        "refusal" => pieces.text(read::text(part, "refusal")?, Map::new()),
        "image_url" => {
            let image = &part["image_url"];
            pieces.parts.push(Part::Image {
                source: read::url_source(read::text(image, "url")?),
                extra: read::own_fields(OWN, image, &["url"]),
            });
        }
        "file" => {
            let file = &part["file"];
            let source = match (file["file_data"].as_str(), file["file_id"].as_str()) {
                (Some(data), _) => read::url_source(data),
                (None, Some(id)) => Source::File {
                    provider: OWN,
                    id: id.to_owned(),
                },
                _ => return Err("a file without data".to_owned()),
            };
            pieces.parts.push(Part::Document {
                source,
                name: file["filename"].as_str().map(str::to_owned),
                extra: Map::new(),
            });
        }
        _ => pieces.data(OWN, part),
    }
    Ok(())
}
