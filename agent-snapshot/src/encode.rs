use serde::{Serialize, de::DeserializeOwned, ser::Error as _};

use crate::{Error, conversation::Message};

/// `serde_json` reads 128 levels; some are needed around what is encoded here.
const MAX_DEPTH: usize = 120;

/// Whether unknown fields go along, which may have the name of a known one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extra {
    None,
    Some,
}

/// Writes JSON that can be read again: what cannot must be refused here, for once it is
/// stored it is lost.
pub(crate) fn encode<T: DeserializeOwned>(
    value: &impl Serialize,
    extra: Extra,
    what: impl FnOnce() -> String,
) -> Result<String, Error> {
    checked::<T>(serde_json::to_string(value), extra, what)
}

/// [`encode`] for a message.
pub(crate) fn encode_message(message: &Message, extra: Extra) -> Result<String, Error> {
    checked::<Message>(message_json(message), extra, || "a message".to_owned())
}

fn checked<T: DeserializeOwned>(
    json: serde_json::Result<String>,
    extra: Extra,
    what: impl FnOnce() -> String,
) -> Result<String, Error> {
    let encoded = json.and_then(|json| {
        if is_too_deep(&json) {
            let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(serde_json::Error::custom(reason));
        }
        if extra == Extra::Some {
            serde_json::from_str::<T>(&json)?;
        }
        Ok(json)
    });
    encoded.map_err(|source| Error::Encode {
        what: what(),
        source,
    })
}

/// A shorter text is not worth the detour.
const LONG: usize = 256;

/// What `serde_json` writes, to the letter, but in a fraction of the time: it looks at each byte
/// of a text by itself, and the text is nearly all of a message.
fn message_json(message: &Message) -> serde_json::Result<String> {
    let Some(text) = message.content.as_deref().filter(|text| text.len() >= LONG) else {
        return serde_json::to_string(message);
    };
    let json = serde_json::to_string(&Message {
        id: message.id.clone(),
        timestamp: message.timestamp.clone(),
        role: message.role,
        content: Some(String::new()),
        tool_calls: message.tool_calls.clone(),
        tool_results: message.tool_results.clone(),
        extra: message.extra.clone(),
    })?;
    // A quote inside of a string is escaped, so this is the field itself.
    let field = "\"content\":\"";
    let Some(at) = json.find(field) else {
        return serde_json::to_string(message);
    };
    let (before, after) = json.split_at(at + field.len());
    let mut out = String::with_capacity(json.len() + text.len() + text.len() / 8);
    out.push_str(before);
    push_escaped(&mut out, text);
    out.push_str(after);
    Ok(out)
}

/// Appends the inside of a JSON string.
fn push_escaped(out: &mut String, text: &str) {
    const CHUNK: usize = 32;
    let escaped = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
    let mut from = 0;
    for (n, chunk) in text.as_bytes().chunks(CHUNK).enumerate() {
        // Without a way out of the loop the compiler looks at sixteen bytes at a time.
        if !chunk.iter().fold(false, |any, byte| any | escaped(*byte)) {
            continue;
        }
        for (i, byte) in chunk.iter().enumerate() {
            if !escaped(*byte) {
                continue;
            }
            let at = n * CHUNK + i;
            out.push_str(&text[from..at]);
            from = at + 1;
            match byte {
                b'"' => out.push_str("\\\""),
                b'\\' => out.push_str("\\\\"),
                b'\n' => out.push_str("\\n"),
                b'\r' => out.push_str("\\r"),
                b'\t' => out.push_str("\\t"),
                0x08 => out.push_str("\\b"),
                0x0c => out.push_str("\\f"),
                _ => out.push_str(&format!("\\u{byte:04x}")),
            }
        }
    }
    out.push_str(&text[from..]);
}

fn is_too_deep(json: &str) -> bool {
    // Nearly always there are so few that they cannot be; counting is many times faster.
    brackets(json) > MAX_DEPTH && depth(json) > MAX_DEPTH
}

/// How many `[` and `{` there are, be it in strings.
fn brackets(json: &str) -> usize {
    // In counters of one byte, over as many bytes as they can count: the compiler then takes
    // sixteen bytes at a time. The two differ in one bit.
    let count = |chunk: &[u8]| {
        chunk
            .iter()
            .fold(0_u8, |count, byte| count + u8::from(byte | 0x20 == b'{'))
    };
    let chunks = json.as_bytes().chunks(usize::from(u8::MAX));
    chunks.map(|chunk| usize::from(count(chunk))).sum()
}

/// How deep arrays and objects are nested in JSON text.
fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'\\' => {
                            bytes.next();
                        }
                        b'"' => break,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::conversation::ToolCallRequest;

    #[test]
    fn depth_counts_brackets_outside_of_strings() {
        for (json, expected) in [
            ("1", 0),
            ("[]", 1),
            (r#"{"a":[{}]}"#, 3),
            (r#"["[[[","\"[[[",{}]"#, 2),
            (r#"[[],[]]"#, 2),
        ] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }

    /// Links are digests of the text: another spelling of the same would be another history.
    #[track_caller]
    fn check(message: &Message) {
        let expected = serde_json::to_string(message).unwrap();
        assert_eq!(message_json(message).unwrap(), expected);
    }

    #[test]
    fn a_message_is_written_as_serde_json_writes_it() {
        let every = (0..=0x2ff).filter_map(char::from_u32).collect::<String>();
        for start in 0..64 {
            let text = format!("{}{every}日本{every}\u{10ffff}", "x".repeat(start));
            check(&Message::user(text));
        }
        for len in LONG - 1..LONG + 40 {
            check(&Message::user("x".repeat(len)));
            check(&Message::user("\"".repeat(len)));
            check(&Message::user(format!("{}\n", "x".repeat(len))));
        }
        let mut message = Message::assistant("\"content\":\"".repeat(99)).with_tool_calls(vec![
            ToolCallRequest::new("1", "\"content\":\"", json!({"content": "", "b": [1.5]})),
        ]);
        check(&message);
        message.id = Some("\"content\":\"".to_owned());
        message.timestamp = Some("content".to_owned());
        let extra = json!({"content_type": "text", "z": {"content": ""}});
        message.extra = extra.as_object().unwrap().clone();
        check(&message);
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_serde_json_writes_it(text in "(?s).{200,400}", id in ".*") {
            let mut message = Message::user(text);
            message.id = Some(id);
            check(&message);
        }
    }

    #[test]
    fn brackets_are_counted_wherever_they_stand() {
        for (json, expected) in [
            (String::new(), 0),
            ("[{".to_owned(), 2),
            ("]}(;:{".to_owned(), 1),
            ("[".repeat(1000), 1000),
            (format!("{}{{", "x".repeat(1021)), 1),
        ] {
            assert_eq!(brackets(&json), expected, "{json}");
        }
    }
}
