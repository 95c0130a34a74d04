//! The common parts of the converters to requests.

use std::borrow::Cow;

use serde_json::{Map, Value, json};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::Provider;
use crate::conversation::tokens::decode_base64;
use crate::conversation::view::Pairing;
use crate::conversation::{Error, Message, Part, Source, ToolCallResult};

/// The text of a user message before a list that starts with an assistant message.
pub(super) const START: &str = "(start)";
/// The text of a user message behind a list that ends with an assistant message.
pub(super) const CONTINUE: &str = "(continue)";

/// Checks that calls and results pair, and that every call has a result.
pub(super) fn checked<'a>(
    messages: impl IntoIterator<Item = &'a Message>,
) -> Result<Vec<&'a Message>, Error> {
    let mut pairing = Pairing::default();
    let mut list = Vec::new();
    for message in messages {
        pairing.check(message)?;
        if message.tool_calls.iter().any(|call| call.id.is_empty()) {
            return Err(Error::InvalidMessage {
                reason: "a tool call without id",
            });
        }
        pairing.add(message);
        list.push(message);
    }
    pairing.check_closed()?;
    Ok(list)
}

/// Adds the fields that `extra` has for this provider.
pub(super) fn with_own(
    mut block: Value,
    provider: Provider,
    extra: Option<&Map<String, Value>>,
) -> Value {
    let own = extra.and_then(|extra| extra.get(provider.as_str())?.as_object());
    if let (Some(block), Some(own)) = (block.as_object_mut(), own) {
        block.extend(own.clone());
    }
    block
}

/// Providers refuse blank texts.
pub(super) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// The result as text; `None` if only the parts of the result are to be sent.
pub(super) fn result_text(result: &ToolCallResult) -> Option<Cow<'_, str>> {
    match &result.result {
        Value::Null if !result.parts.is_empty() => None,
        Value::String(text) => Some(Cow::Borrowed(text)),
        value => Some(Cow::Owned(value.to_string())),
    }
}

/// The result as text, for a provider that has no field for failures.
pub(crate) fn marked_text(result: &ToolCallResult) -> Option<Cow<'_, str>> {
    let text = result_text(result);
    match (result.is_error, text) {
        (true, text) => Some(Cow::Owned(format!(
            "Error: {}",
            text.as_deref().unwrap_or_default()
        ))),
        (false, text) => text,
    }
}

pub(super) fn object(args: &Value) -> Value {
    match args {
        Value::Null => json!({}),
        args => args.clone(),
    }
}

/// An id that all providers accept: 1 to 40 characters of `[A-Za-z0-9_-]`. Deterministic, so that a
/// prompt cache sees the same prefix in every request.
pub(super) fn call_id(id: &str) -> Cow<'_, str> {
    if id.len() <= 40 && id.bytes().all(is_plain) {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!("call_{:032x}", xxh3_128(id.as_bytes())))
}

/// A name that all providers accept: 1 to 64 characters of `[A-Za-z0-9_-]`, the first no digit and no
/// hyphen, as Gemini wants it.
pub(super) fn tool_name(name: &str) -> String {
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if starts_well && name.len() <= 64 && name.bytes().all(is_plain) {
        return name.to_owned();
    }
    let mut safe = String::with_capacity(64);
    if !starts_well {
        safe.push('_');
    }
    let plain = |c: char| {
        if c.is_ascii() && is_plain(c as u8) {
            c
        } else {
            '_'
        }
    };
    safe.extend(name.chars().map(plain).take(50));
    // 48 bits: a request has tens of tools.
    let digest = xxh3_64(name.as_bytes()) >> 16;
    format!("{safe}_{digest:012x}")
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// The image formats that all providers accept.
pub(super) fn is_image_type(media_type: &str) -> bool {
    let types = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    types.contains(&media_type)
}

/// The text of a text document.
pub(super) fn document_text(source: &Source) -> Option<Cow<'_, str>> {
    match source {
        Source::Text { text } => Some(Cow::Borrowed(text)),
        Source::Base64 { media_type, data } if media_type.starts_with("text/") => {
            let bytes = decode_base64(data);
            Some(Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()))
        }
        _ => None,
    }
}

/// A text document for a provider that has no form for it.
pub(super) fn titled(name: Option<&str>, text: &str) -> String {
    match name {
        Some(name) => format!("{name}:\n{text}"),
        None => text.to_owned(),
    }
}

/// The text that stands for an image or a document that the provider cannot take; `None` for other
/// parts.
pub(super) fn stand_in(part: &Part) -> Option<String> {
    let (kind, source, name) = match part {
        Part::Image { source, .. } => ("image", source, None),
        Part::Document { source, name, .. } => ("document", source, name.as_deref()),
        _ => return None,
    };
    let described = match source {
        _ if name.is_some() => name.unwrap_or_default(),
        Source::Base64 { media_type, .. } => media_type,
        Source::Url { url, .. } => url,
        Source::File { id, .. } => id,
        Source::Text { .. } => "text",
    };
    Some(format!("[{kind}: {described}]"))
}

/// A list of contents; a single text as a string, which is the same for the provider. `None` if the
/// list is empty.
pub(super) fn short_list(mut list: Vec<Value>, text_type: &str) -> Option<Value> {
    match &mut list[..] {
        [] => None,
        [single] if single["type"] == text_type => Some(single["text"].take()),
        _ => Some(Value::Array(list)),
    }
}

/// A data URL.
pub(super) fn data_url(media_type: &str, data: &str) -> String {
    format!("data:{media_type};base64,{data}")
}
