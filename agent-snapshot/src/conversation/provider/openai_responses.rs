//! The Responses API of OpenAI.

use std::collections::HashSet;
use std::mem;

use serde_json::{Map, Value, json};

use super::Provider;
use super::read::{self, Pieces};
use super::write::{self, is_blank, with_own};
use crate::conversation::part::Piece;
use crate::conversation::{Message, Part, Role, Source, ToolCallRequest, ToolCallResult};

const OWN: Provider = Provider::OpenAiResponses;

/// A custom tool takes a text instead of JSON. Its call is kept with this one argument.
const CUSTOM_INPUT: &str = "input";

/// `None` if no message but system messages has contents.
pub(super) fn request(messages: &[&Message]) -> Option<Value> {
    let mut input = Vec::new();
    let mut custom = HashSet::new();
    let mut spoken = false;
    for message in messages {
        let before = input.len();
        match message.role {
            Role::System => {
                let text: String = message.texts().collect();
                if !is_blank(&text) {
                    input.push(json!({"role": "system", "content": text}));
                }
                continue;
            }
            Role::User => input.extend(user(message)),
            Role::Assistant => {
                let calls = message.tool_calls.iter();
                custom.extend(calls.filter(|c| is_custom(c)).map(|c| c.id.as_str()));
                assistant(message, &mut input);
            }
            Role::Tool => {
                for result in &message.tool_results {
                    let custom = custom.contains(result.tool_call_id.as_str());
                    input.push(output(result, custom));
                }
            }
        }
        spoken |= input.len() > before;
    }
    spoken.then(|| json!({ "input": input }))
}

fn user(message: &Message) -> Option<Value> {
    if message.parts.is_empty() {
        let text = message.content.as_deref().unwrap_or_default();
        return (!is_blank(text)).then(|| json!({"role": "user", "content": text}));
    }
    let parts = message
        .pieces()
        .into_iter()
        .filter_map(|piece| match piece {
            Piece::Text { text, .. } => text_part(text),
            Piece::Part(part) => content_part(part),
            Piece::Call(_) => None,
        });
    let content = write::short_list(parts.collect(), "input_text");
    content.map(|content| json!({"role": "user", "content": content}))
}

fn assistant(message: &Message, input: &mut Vec<Value>) {
    let start = input.len();
    let text_item = |text: &str| json!({"role": "assistant", "content": text});
    for piece in message.pieces() {
        let item = match piece {
            Piece::Text { text, .. } if is_blank(text) => None,
            Piece::Text { text, extra } => Some(with_own(text_item(text), OWN, extra)),
            Piece::Call(call) => Some(call_item(call)),
            Piece::Part(Part::Provider {
                provider: OWN,
                data,
            }) => Some(data.clone()),
            Piece::Part(Part::Reasoning {
                provider: OWN,
                text,
                signature,
                extra,
            }) => reasoning_item(text, signature.as_deref(), extra),
            Piece::Part(part) => write::stand_in(part).map(|text| text_item(&text)),
        };
        input.extend(item);
    }
    // "Item of type 'reasoning' was provided without its required following item."
    let is_reasoning = |item: &Value| item["type"] == "reasoning";
    while input.len() > start && input.last().is_some_and(is_reasoning) {
        input.pop();
    }
}

/// `None` without the id of the item, which the API requires.
fn reasoning_item(
    text: &str,
    signature: Option<&str>,
    extra: &Map<String, Value>,
) -> Option<Value> {
    let mut item = json!({"type": "reasoning", "summary": []});
    if !text.is_empty() {
        item["summary"] = json!([{"type": "summary_text", "text": text}]);
    }
    if let Some(signature) = signature {
        item["encrypted_content"] = json!(signature);
    }
    let item = with_own(item, OWN, Some(extra));
    item["id"].is_string().then_some(item)
}

fn is_custom(call: &ToolCallRequest) -> bool {
    let own = call.extra.get(OWN.as_str());
    own.is_some_and(|own| own["type"] == "custom_tool_call")
}

fn call_item(call: &ToolCallRequest) -> Value {
    let id = write::call_id(&call.id);
    let name = OWN.tool_name(&call.name);
    let item = match call.args.get(CUSTOM_INPUT).and_then(Value::as_str) {
        Some(text) if is_custom(call) => {
            json!({"type": "custom_tool_call", "call_id": id, "name": name, "input": text})
        }
        _ => json!({
            "type": "function_call",
            "call_id": id,
            "name": name,
            "arguments": write::object(&call.args).to_string(),
        }),
    };
    with_own(item, OWN, Some(&call.extra))
}

fn output(result: &ToolCallResult, custom: bool) -> Value {
    let text = write::marked_text(result);
    let output = if result.parts.is_empty() {
        json!(text.unwrap_or_default())
    } else {
        let text = text.and_then(|text| text_part(&text));
        let mut list = Vec::from_iter(text);
        list.extend(result.parts.iter().filter_map(content_part));
        write::short_list(list, "input_text").unwrap_or_else(|| json!(""))
    };
    let kind = if custom {
        "custom_tool_call_output"
    } else {
        "function_call_output"
    };
    json!({"type": kind, "call_id": write::call_id(&result.tool_call_id), "output": output})
}

fn text_part(text: &str) -> Option<Value> {
    (!is_blank(text)).then(|| json!({"type": "input_text", "text": text}))
}

fn content_part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => text_part(text),
        Part::Provider {
            provider: OWN,
            data,
        } => Some(data.clone()),
        Part::Image { .. } | Part::Document { .. } => {
            media_part(part).or_else(|| text_part(&write::stand_in(part)?))
        }
        _ => None,
    }
}

/// `None` if the API has no form for the image or document.
fn media_part(part: &Part) -> Option<Value> {
    let file_id = |source: &Source| match source {
        Source::File {
            provider: Provider::OpenAiChat | Provider::OpenAiResponses,
            id,
        } => Some(id.clone()),
        _ => None,
    };
    match part {
        Part::Image { source, extra } => {
            let mut image = json!({"type": "input_image", "detail": "auto"});
            match source {
                Source::Base64 { media_type, data } if write::is_image_type(media_type) => {
                    image["image_url"] = json!(write::data_url(media_type, data));
                }
                Source::Url { url, .. } if url.starts_with("http") => {
                    image["image_url"] = json!(url);
                }
                source => image["file_id"] = json!(file_id(source)?),
            }
            Some(with_own(image, OWN, Some(extra)))
        }
        Part::Document {
            source,
            name,
            extra,
        } => {
            if let Some(text) = write::document_text(source) {
                return text_part(&write::titled(name.as_deref(), &text));
            }
            let mut file = json!({"type": "input_file"});
            match source {
                Source::Base64 { media_type, data } if media_type == "application/pdf" => {
                    let name = name.as_deref().unwrap_or("document.pdf");
                    file["filename"] = json!(name);
                    file["file_data"] = json!(write::data_url(media_type, data));
                }
                Source::Url { url, .. } if url.starts_with("http") => file["file_url"] = json!(url),
                source => file["file_id"] = json!(file_id(source)?),
            }
            Some(with_own(file, OWN, Some(extra)))
        }
        _ => None,
    }
}

pub(super) fn messages(json: &Value) -> Result<Vec<Message>, String> {
    let mut out = Vec::new();
    if let Some(text) = json.get("instructions").and_then(Value::as_str)
        && json.get("input").is_some()
    {
        out.push(Message::system(text));
    }
    let items = match json {
        Value::Array(list) => list.as_slice(),
        json if json.get("input").is_some_and(Value::is_string) => {
            out.push(Message::user(read::text(json, "input")?));
            return Ok(out);
        }
        // A stored response can have both: the request and its answer.
        json if json.get("output").is_some_and(Value::is_array) => read::list(json, "output")?,
        json if json.get("input").is_some() => read::list(json, "input")?,
        json if json["type"] == "error" || !json.is_object() => {
            return Err("JSON that is neither items nor a response".to_owned());
        }
        json => std::slice::from_ref(json),
    };
    // The items of one answer are one message, and the outputs behind it are one message.
    let mut pieces = Pieces::default();
    let mut results = Vec::new();
    for item in items {
        let kind = item["type"].as_str().unwrap_or("message");
        let is_output = matches!(kind, "function_call_output" | "custom_tool_call_output");
        let role = match item["role"].as_str() {
            Some("user") => Role::User,
            Some("system" | "developer") => Role::System,
            _ => Role::Assistant,
        };
        if is_output || role != Role::Assistant {
            flush_answer(&mut pieces, &mut out);
        }
        if !is_output && !results.is_empty() {
            out.push(Message::tool(mem::take(&mut results)));
        }
        match kind {
            _ if is_output => results.push(read_output(item)?),
            "message" if role == Role::Assistant => read_content(item, &mut pieces)?,
            "message" => {
                let mut own = Pieces::default();
                read_content(item, &mut own)?;
                out.push(own.finish(role));
            }
            "reasoning" => pieces.parts.push(read_reasoning(item)?),
            "function_call" | "custom_tool_call" => pieces.call(read_call(item, kind)?),
            _ => pieces.data(OWN, item),
        }
    }
    flush_answer(&mut pieces, &mut out);
    if !results.is_empty() {
        out.push(Message::tool(results));
    }
    Ok(out)
}

fn flush_answer(pieces: &mut Pieces, out: &mut Vec<Message>) {
    if !pieces.is_empty() {
        out.push(mem::take(pieces).finish(Role::Assistant));
    }
}

fn read_content(item: &Value, pieces: &mut Pieces) -> Result<(), String> {
    if item["role"].as_str().is_none() {
        return Err("a message without the text `role`".to_owned());
    }
    // A model wants its answers back with the phase that it gave them.
    let phase = item.get("phase").filter(|phase| phase.is_string());
    let mut extra = Map::new();
    if let Some(phase) = phase {
        extra.insert(OWN.as_str().to_owned(), json!({ "phase": phase }));
    }
    let parts = match item.get("content") {
        Some(Value::String(text)) => {
            pieces.text(text, extra);
            return Ok(());
        }
        _ => read::list(item, "content")?,
    };
    for part in parts {
        match read::text(part, "type")? {
            "input_text" | "output_text" | "text" => {
                pieces.text(read::text(part, "text")?, extra.clone());
            }
            "refusal" => pieces.text(read::text(part, "refusal")?, extra.clone()),
            _ => pieces.parts.push(read_part(part)?),
        }
    }
    Ok(())
}

fn read_part(part: &Value) -> Result<Part, String> {
    let field = |key: &str| part[key].as_str().map(str::to_owned);
    let file = |id: String| Source::File { provider: OWN, id };
    Ok(match read::text(part, "type")? {
        "input_text" | "output_text" | "text" => Part::text(read::text(part, "text")?),
        "input_image" => {
            let url = part["image_url"].as_str().map(read::url_source);
            let mut extra = read::own_fields(OWN, part, &["type", "image_url", "file_id"]);
            // The default, which every image gets.
            let default = json!({"detail": "auto"});
            extra.retain(|_, own| *own != default);
            Part::Image {
                source: url
                    .or(field("file_id").map(file))
                    .ok_or("an image without data")?,
                extra,
            }
        }
        "input_file" => {
            let data = part["file_data"].as_str().map(read::url_source);
            let source = data
                .or(field("file_url").map(Source::url))
                .or(field("file_id").map(file));
            let known = ["type", "file_data", "file_url", "file_id", "filename"];
            Part::Document {
                source: source.ok_or("a file without data")?,
                name: field("filename"),
                extra: read::own_fields(OWN, part, &known),
            }
        }
        _ => Part::Provider {
            provider: OWN,
            data: part.clone(),
        },
    })
}

fn read_reasoning(item: &Value) -> Result<Part, String> {
    let summary = item["summary"].as_array().map_or(&[][..], Vec::as_slice);
    let text = match summary {
        [] => String::new(),
        [single] => read::text(single, "text")?.to_owned(),
        several => {
            let texts = several.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n\n")
        }
    };
    // The joined text cannot be split again.
    let known: &[&str] = match summary.len() {
        0 | 1 => &["type", "summary", "encrypted_content", "status"],
        _ => &["type", "encrypted_content", "status"],
    };
    Ok(Part::Reasoning {
        provider: OWN,
        text,
        signature: item["encrypted_content"].as_str().map(str::to_owned),
        extra: read::own_fields(OWN, item, known),
    })
}

fn read_call(item: &Value, kind: &str) -> Result<ToolCallRequest, String> {
    let (id, name) = (read::text(item, "call_id")?, read::text(item, "name")?);
    // `id` and `status` are those of the item, which belong to one response.
    let known = ["id", "call_id", "name", "arguments", "input", "status"];
    let mut call;
    if kind == "custom_tool_call" {
        let args = json!({CUSTOM_INPUT: read::text(item, "input")?});
        call = ToolCallRequest::new(id, name, args);
        call.extra = read::own_fields(OWN, item, &known);
    } else {
        let args = read::arguments(item["arguments"].as_str().unwrap_or_default());
        call = ToolCallRequest::new(id, name, args);
        call.extra = read::own_fields(OWN, item, &[&known[..], &["type"]].concat());
    }
    Ok(call)
}

fn read_output(item: &Value) -> Result<ToolCallResult, String> {
    let id = read::text(item, "call_id")?;
    let Some(Value::Array(list)) = item.get("output") else {
        let text = item["output"].as_str().unwrap_or_default();
        return Ok(ToolCallResult::new(id, json!(text)));
    };
    let mut parts: Vec<Part> = list.iter().map(read_part).collect::<Result<_, _>>()?;
    let text = match parts.first() {
        Some(Part::Text { text, .. }) => Some(json!(text)),
        _ => None,
    };
    if text.is_some() {
        parts.remove(0);
    }
    Ok(ToolCallResult::new(id, text.unwrap_or_default()).with_parts(parts))
}
