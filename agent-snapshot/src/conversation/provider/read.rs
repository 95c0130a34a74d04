//! The common parts of the converters from provider JSON.

use serde_json::{Map, Value};

use super::Provider;
use crate::conversation::{Message, Part, Role, Source, ToolCallRequest};

/// Collects the pieces of one message.
#[derive(Default)]
pub(super) struct Pieces {
    pub(super) parts: Vec<Part>,
    pub(super) calls: Vec<ToolCallRequest>,
}

impl Pieces {
    pub(super) fn text(&mut self, text: &str, extra: Map<String, Value>) {
        self.parts.push(Part::Text {
            text: text.to_owned(),
            extra,
        });
    }

    pub(super) fn call(&mut self, call: ToolCallRequest) {
        self.parts.push(Part::Call {
            id: call.id.clone(),
        });
        self.calls.push(call);
    }

    pub(super) fn data(&mut self, provider: Provider, data: &Value) {
        self.parts.push(Part::Provider {
            provider,
            data: data.clone(),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    pub(super) fn finish(self, role: Role) -> Message {
        Message::assemble(role, self.parts, self.calls)
    }
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    let text = value.get(key).and_then(Value::as_str);
    text.ok_or_else(|| format!("a {} without the text `{key}`", kind(value)))
}

pub(super) fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value], String> {
    let list = value.get(key).and_then(Value::as_array);
    list.map(Vec::as_slice)
        .ok_or_else(|| format!("a {} without the list `{key}`", kind(value)))
}

/// The type of a block, for error messages.
fn kind(value: &Value) -> &str {
    let key = ["type", "role"].iter().find_map(|key| value.get(*key));
    key.and_then(Value::as_str).unwrap_or("value")
}

/// The fields of a block that are not among `known`, below the name of the provider.
pub(super) fn own_fields(provider: Provider, block: &Value, known: &[&str]) -> Map<String, Value> {
    let fields = block.as_object().into_iter().flatten();
    let others: Map<String, Value> = fields
        .filter(|(key, value)| !known.contains(&key.as_str()) && !value.is_null())
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    let mut extra = Map::new();
    if !others.is_empty() {
        extra.insert(provider.as_str().to_owned(), Value::Object(others));
    }
    extra
}

/// A data URL as base64, any other address as it is.
pub(super) fn url_source(url: &str) -> Source {
    let data = url.strip_prefix("data:");
    match data.and_then(|data| data.split_once(";base64,")) {
        Some((media_type, data)) => Source::base64(media_type, data),
        None => Source::url(url),
    }
}

/// Arguments that a model wrote as text. A model can write text that is not JSON; the tool gets it
/// as it is.
pub(super) fn arguments(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(args @ Value::Object(_)) => args,
        _ if text.trim().is_empty() => Value::Null,
        _ => serde_json::json!({ "input": text }),
    }
}
