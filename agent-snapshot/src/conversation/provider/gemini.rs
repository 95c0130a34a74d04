//! The `generateContent` API of Gemini.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::Provider;
use super::read::{self, Pieces};
use super::write::{self, is_blank, with_own};
use crate::conversation::part::Piece;
use crate::conversation::{Message, Part, Role, Source, ToolCallRequest, ToolCallResult};

const OWN: Provider = Provider::Gemini;

/// Models since Gemini 3 refuse calls of the current turn that have no signature of theirs. The
/// documentation names this text for calls that another model made.
const FOREIGN_CALL: &str = "skip_thought_signature_validator";

/// A content of the request. One with results stands alone behind its calls.
struct Content {
    role: &'static str,
    /// Results of calls, with the places of the calls: the API matches results with calls by their
    /// order where it gave no ids.
    results: Vec<(usize, Value)>,
    parts: Vec<Value>,
}

/// `None` if no message but system messages has contents.
pub(super) fn request(messages: &[&Message]) -> Option<Value> {
    let mut system = Vec::new();
    let mut contents: Vec<Content> = Vec::new();
    // The calls of the newest assistant message: id, name and place.
    let mut calls: HashMap<&str, (usize, &str)> = HashMap::new();
    for message in messages {
        let mut parts: Vec<Value> = message.pieces().into_iter().filter_map(part_of).collect();
        match message.role {
            Role::System => system.append(&mut parts),
            Role::User => push(&mut contents, "user", parts),
            Role::Assistant => {
                let named = message.tool_calls.iter().enumerate();
                calls = named
                    .map(|(at, call)| (call.id.as_str(), (at, call.name.as_str())))
                    .collect();
                push(&mut contents, "model", parts);
            }
            Role::Tool => {
                for result in &message.tool_results {
                    let (at, name) = calls
                        .get(&*result.tool_call_id)
                        .copied()
                        .unwrap_or_default();
                    push_result(&mut contents, result, at, name);
                }
            }
        }
    }
    // The current turn is what follows the last message of the user.
    let is_turn = |content: &&mut Content| content.role == "model" || !content.results.is_empty();
    for content in contents.iter_mut().rev().take_while(is_turn) {
        sign_first_call(&mut content.parts);
    }
    let mut out = Vec::with_capacity(contents.len() + 2);
    let note = |text: &str| json!({"role": "user", "parts": [{"text": text}]});
    if contents.first()?.role == "model" {
        out.push(note(write::START));
    }
    let last = contents.last()?.role;
    for mut content in contents {
        content.results.sort_by_key(|(place, _)| *place);
        let results = content.results.into_iter().map(|(_, result)| result);
        let parts: Vec<Value> = results.chain(content.parts).collect();
        out.push(json!({"role": content.role, "parts": parts}));
    }
    if last == "model" {
        out.push(note(write::CONTINUE));
    }
    let mut request = json!({ "contents": out });
    if !system.is_empty() {
        request["systemInstruction"] = json!({ "parts": system });
    }
    Some(request)
}

fn push(contents: &mut Vec<Content>, role: &'static str, parts: Vec<Value>) {
    if parts.is_empty() {
        return;
    }
    match contents.last_mut() {
        Some(last) if last.role == role && last.results.is_empty() => last.parts.extend(parts),
        _ => contents.push(Content {
            role,
            results: Vec::new(),
            parts,
        }),
    }
}

fn push_result(contents: &mut Vec<Content>, result: &ToolCallResult, place: usize, name: &str) {
    // Only media stand behind the results; texts belong into the response.
    let parts = result.parts.iter().filter_map(part);
    let (texts, media): (Vec<Value>, Vec<Value>) = parts.partition(|part| part["text"].is_string());
    let texts = texts.iter().filter_map(|part| part["text"].as_str());
    let text = write::result_text(result);
    let text: Vec<&str> = text.as_deref().into_iter().chain(texts).collect();
    let response = match &result.result {
        _ if result.is_error => json!({"error": text.join("\n")}),
        _ if text.is_empty() => json!({}),
        value @ Value::Object(fields)
            if text.len() == 1
                && !fields.contains_key("output")
                && !fields.contains_key("error") =>
        {
            value.clone()
        }
        value if text.len() == 1 && !value.is_null() => json!({ "output": value }),
        _ => json!({"output": text.join("\n")}),
    };
    let response = json!({"functionResponse": {
        "id": write::call_id(&result.tool_call_id),
        "name": OWN.tool_name(name),
        "response": response,
    }});
    if contents.last().is_none_or(|last| last.results.is_empty()) {
        contents.push(Content {
            role: "user",
            results: Vec::new(),
            parts: Vec::new(),
        });
    }
    if let Some(content) = contents.last_mut() {
        content.results.push((place, response));
        content.parts.extend(media);
    }
}

fn sign_first_call(parts: &mut [Value]) {
    let first = parts
        .iter_mut()
        .find(|part| part.get("functionCall").is_some());
    if let Some(call) = first.filter(|call| call.get("thoughtSignature").is_none()) {
        call["thoughtSignature"] = json!(FOREIGN_CALL);
    }
}

fn part_of(piece: Piece<'_>) -> Option<Value> {
    match piece {
        Piece::Text { text, extra } => {
            let part = with_own(json!({ "text": text }), OWN, extra);
            (!is_blank(text) || part.get("thoughtSignature").is_some()).then_some(part)
        }
        Piece::Call(call) => {
            let part = json!({"functionCall": {
                "id": write::call_id(&call.id),
                "name": OWN.tool_name(&call.name),
                "args": write::object(&call.args),
            }});
            Some(with_own(part, OWN, Some(&call.extra)))
        }
        Piece::Part(piece) => part(piece),
    }
}

fn part(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text, .. } => (!is_blank(text)).then(|| json!({ "text": text })),
        Part::Reasoning {
            provider: OWN,
            text,
            signature,
            extra,
        } => {
            let mut part = json!({"text": text, "thought": true});
            if let Some(signature) = signature {
                part["thoughtSignature"] = json!(signature);
            } else if is_blank(text) {
                return None;
            }
            Some(with_own(part, OWN, Some(extra)))
        }
        Part::Provider {
            provider: OWN,
            data,
        } => Some(data.clone()),
        Part::Image { extra, .. } | Part::Document { extra, .. } => match media(part) {
            Some(media) => Some(with_own(media, OWN, Some(extra))),
            None => write::stand_in(part).map(|text| json!({ "text": text })),
        },
        _ => None,
    }
}

/// `None` if the API has no form for the image or document.
fn media(part: &Part) -> Option<Value> {
    let (source, name, fallback) = match part {
        Part::Image { source, .. } => (source, None, "image/jpeg"),
        Part::Document { source, name, .. } => (source, name.as_deref(), "application/pdf"),
        _ => return None,
    };
    if let Some(text) = write::document_text(source) {
        let text = write::titled(name, &text);
        return (!is_blank(&text)).then(|| json!({ "text": text }));
    }
    match source {
        Source::Base64 { media_type, data } if is_media_type(media_type) => {
            Some(json!({"inlineData": {"mimeType": media_type, "data": data}}))
        }
        Source::Url { url, media_type } => {
            let media_type = media_type
                .as_deref()
                .unwrap_or_else(|| by_name(url, fallback));
            Some(json!({"fileData": {"mimeType": media_type, "fileUri": url}}))
        }
        _ => None,
    }
}

fn is_media_type(media_type: &str) -> bool {
    let types = [
        "image/png",
        "image/jpeg",
        "image/webp",
        "image/heic",
        "image/heif",
        "application/pdf",
    ];
    let kind = media_type.split('/').next().unwrap_or_default();
    types.contains(&media_type) || kind == "audio" || kind == "video"
}

/// The media type by the end of an address.
fn by_name<'a>(url: &str, fallback: &'a str) -> &'a str {
    let path = url.split(['?', '#']).next().unwrap_or_default();
    match path.rsplit('.').next().unwrap_or_default() {
        "png" => "image/png",
        "jpg" | "jpeg" => "image/jpeg",
        "webp" => "image/webp",
        "pdf" => "application/pdf",
        _ => fallback,
    }
}

pub(super) fn messages(json: &Value) -> Result<Vec<Message>, String> {
    let mut reader = Reader::default();
    let system = json
        .get("systemInstruction")
        .or(json.get("system_instruction"));
    for part in system
        .and_then(|s| s["parts"].as_array())
        .into_iter()
        .flatten()
    {
        reader.out.push(Message::system(read::text(part, "text")?));
    }
    let list = match json {
        Value::Array(list) => list.iter().collect(),
        json if json.get("candidates").is_some() => {
            let candidates = read::list(json, "candidates")?;
            let first = candidates.first().and_then(|first| first.get("content"));
            vec![first.ok_or("a response without content")?]
        }
        json if json.get("contents").is_some() => read::list(json, "contents")?.iter().collect(),
        json if json.get("parts").is_some() => vec![json],
        _ => return Err("JSON that is neither contents nor a response".to_owned()),
    };
    for content in list {
        reader.content(content)?;
    }
    Ok(reader.finish())
}

#[derive(Default)]
struct Reader {
    out: Vec<Message>,
    /// The calls without a result: their id, whether we made it, and their name.
    open: Vec<(String, bool, String)>,
    made: usize,
}

impl Reader {
    fn content(&mut self, content: &Value) -> Result<(), String> {
        let role = match content["role"].as_str() {
            Some("model") => Role::Assistant,
            Some("user" | "function") | None => Role::User,
            Some(other) => return Err(format!("the role `{other}`")),
        };
        let mut pieces = Pieces::default();
        let mut results: Vec<ToolCallResult> = Vec::new();
        if role == Role::Assistant {
            self.open.clear();
        }
        // The last candidate of a stream can be without parts.
        let parts = content.get("parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            let part = camel_case(part);
            if let Some(call) = part.get("functionCall") {
                pieces.call(self.call(&part, call)?);
            } else if let Some(response) = part.get("functionResponse") {
                results.push(self.result(response)?);
            } else {
                let read = read_part(&part);
                match results.last_mut() {
                    // An image behind a result belongs to it.
                    Some(result) if matches!(read, Part::Image { .. } | Part::Document { .. }) => {
                        result.parts.push(read);
                    }
                    _ => pieces.parts.push(read),
                }
            }
        }
        if !results.is_empty() {
            self.out.push(Message::tool(results));
        }
        if !pieces.is_empty() {
            self.out.push(pieces.finish(role));
        }
        Ok(())
    }

    fn call(&mut self, part: &Value, call: &Value) -> Result<ToolCallRequest, String> {
        let name = read::text(call, "name")?;
        let given = call["id"].as_str().filter(|id| !id.is_empty());
        let id = match given {
            Some(id) => id.to_owned(),
            None => {
                self.made += 1;
                format!("call_{}", self.made)
            }
        };
        self.open
            .push((id.clone(), given.is_none(), name.to_owned()));
        let args = call.get("args").cloned().unwrap_or_default();
        let mut read = ToolCallRequest::new(id, name, args);
        read.extra = read::own_fields(OWN, part, &["functionCall"]);
        Ok(read)
    }

    /// A result belongs to the call with its id, or else to the first call of its name.
    fn result(&mut self, response: &Value) -> Result<ToolCallResult, String> {
        let name = read::text(response, "name")?;
        let id = response["id"].as_str().unwrap_or_default();
        let by_id = self.open.iter().position(|(open, ..)| open == id);
        let at = by_id.or_else(|| self.open.iter().position(|(_, _, open)| open == name));
        let id = match at {
            Some(at) => self.open.remove(at).0,
            None => id.to_owned(),
        };
        let value = response.get("response").cloned().unwrap_or_default();
        let fields = value.as_object().map_or(0, Map::len);
        let mut result = match (value.get("output"), value.get("error")) {
            (Some(output), None) if fields == 1 => ToolCallResult::new(id, output.clone()),
            (None, Some(error)) if fields == 1 => ToolCallResult::error(id, error.clone()),
            _ => ToolCallResult::new(id, value),
        };
        let parts = response.get("parts").and_then(Value::as_array);
        for part in parts.into_iter().flatten() {
            result.parts.push(read_part(&camel_case(part)));
        }
        Ok(result)
    }

    /// A call that is still open and got its id here loses it: it must not have the id of a call in
    /// another response.
    fn finish(mut self) -> Vec<Message> {
        let made = self.open.iter().filter(|(_, made, _)| *made);
        let made: Vec<&String> = made.map(|(id, ..)| id).collect();
        if let Some(last) = self.out.last_mut() {
            for call in &mut last.tool_calls {
                if made.contains(&&call.id) {
                    call.id.clear();
                }
            }
            for part in &mut last.parts {
                if let Part::Call { id } = part
                    && made.contains(&&*id)
                {
                    id.clear();
                }
            }
        }
        self.out
    }
}

fn read_part(part: &Value) -> Part {
    let blob = part.get("inlineData").or(part.get("fileData"));
    let media_type = blob.and_then(|blob| blob["mimeType"].as_str());
    let data = blob.and_then(|blob| blob["data"].as_str());
    let uri = blob.and_then(|blob| blob["fileUri"].as_str());
    let source = match (data, uri) {
        (Some(data), _) => Some(Source::base64(media_type.unwrap_or_default(), data)),
        (None, Some(url)) => Some(Source::Url {
            url: url.to_owned(),
            media_type: media_type.map(str::to_owned),
        }),
        _ => None,
    };
    let is_image = media_type.is_some_and(|media_type| media_type.starts_with("image/"));
    let extra = |known: &[&str]| read::own_fields(OWN, part, known);
    match (part["text"].as_str(), source) {
        (Some(text), _) if part["thought"] == true => Part::Reasoning {
            provider: OWN,
            text: text.to_owned(),
            signature: part["thoughtSignature"].as_str().map(str::to_owned),
            extra: extra(&["text", "thought", "thoughtSignature"]),
        },
        (Some(text), _) => Part::Text {
            text: text.to_owned(),
            extra: extra(&["text"]),
        },
        (None, Some(source)) if is_image => Part::Image {
            source,
            extra: extra(&["inlineData", "fileData"]),
        },
        (None, Some(source)) => Part::Document {
            source,
            name: None,
            extra: extra(&["inlineData", "fileData"]),
        },
        (None, None) => Part::Provider {
            provider: OWN,
            data: part.clone(),
        },
    }
}

/// The API accepts both spellings of its fields. The fields of arguments and results keep theirs.
fn camel_case(part: &Value) -> Value {
    const FIELDS: [(&str, &str); 9] = [
        ("function_call", "functionCall"),
        ("function_response", "functionResponse"),
        ("inline_data", "inlineData"),
        ("file_data", "fileData"),
        ("mime_type", "mimeType"),
        ("file_uri", "fileUri"),
        ("thought_signature", "thoughtSignature"),
        ("executable_code", "executableCode"),
        ("code_execution_result", "codeExecutionResult"),
    ];
    let Value::Object(fields) = part else {
        return part.clone();
    };
    let renamed = fields.iter().map(|(key, value)| {
        let known = FIELDS.iter().find(|(snake, _)| snake == key);
        let key = known.map_or(key.as_str(), |(_, camel)| camel);
        let value = match key {
            "inlineData" | "fileData" => camel_case(value),
            _ => value.clone(),
        };
        (key.to_owned(), value)
    });
    Value::Object(renamed.collect())
}
