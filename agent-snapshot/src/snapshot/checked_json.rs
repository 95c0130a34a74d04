use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::ser::{CompactFormatter, Formatter, Serializer};

use crate::Error;

/// `serde_json` reads 128 levels; the file format needs some around what is encoded here.
const MAX_DEPTH: usize = 120;

/// Whether the value has unknown fields, which could repeat the name of a known field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnknownFields {
    Absent,
    Present,
}

impl UnknownFields {
    pub(super) fn present_if(present: bool) -> Self {
        if present { Self::Present } else { Self::Absent }
    }
}

/// Writes JSON that can be read again.
///
/// A value that could be stored but not loaded would be lost, so it is refused here. There are two
/// such values: one that is nested too deeply, and one with an unknown field that has the name of
/// a known field (`extra["role"]` of a message). The second is found by reading the JSON back.
/// Only values with unknown fields pay for that: it would double the processor time of a save.
pub(super) fn encode<T: DeserializeOwned>(
    value: &impl Serialize,
    unknown_fields: UnknownFields,
    what: impl FnOnce() -> String,
) -> Result<String, Error> {
    let json = to_json(value).and_then(|json| {
        if unknown_fields == UnknownFields::Present {
            serde_json::from_str::<T>(&json)?;
        }
        Ok(json)
    });
    json.map_err(|source| Error::Encode {
        what: what(),
        source: source.into(),
    })
}

fn to_json(value: &impl Serialize) -> serde_json::Result<String> {
    let mut bytes = Vec::with_capacity(128);
    let formatter = DepthLimit { depth: 0 };
    value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
    String::from_utf8(bytes).map_err(serde::ser::Error::custom)
}

/// Writes compact JSON and fails at the first level below [`MAX_DEPTH`].
struct DepthLimit {
    depth: usize,
}

impl DepthLimit {
    fn enter(&mut self) -> io::Result<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            let reason = format!("it is nested more than {MAX_DEPTH} levels deep");
            return Err(io::Error::other(reason));
        }
        Ok(())
    }
}

impl Formatter for DepthLimit {
    fn begin_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        CompactFormatter.begin_array(writer)
    }

    fn end_array<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_array(writer)
    }

    fn begin_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.enter()?;
        CompactFormatter.begin_object(writer)
    }

    fn end_object<W: io::Write + ?Sized>(&mut self, writer: &mut W) -> io::Result<()> {
        self.depth -= 1;
        CompactFormatter.end_object(writer)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::conversation::{Message, ToolCallRequest};

    #[track_caller]
    fn check_depth(levels: usize, accepted: bool) {
        let value = (0..levels).fold(json!(0), |inner, level| {
            if level % 2 == 0 {
                json!([inner])
            } else {
                json!({ "k": inner })
            }
        });
        assert_eq!(to_json(&value).is_ok(), accepted, "{levels} levels");
    }

    #[test]
    fn more_than_120_levels_are_refused() {
        check_depth(0, true);
        check_depth(120, true);
        check_depth(121, false);
        // Siblings do not add up.
        let wide = Value::Array(vec![json!({ "k": [[]] }); 1000]);
        assert!(to_json(&wide).is_ok());
    }

    /// Digests are made from the text, so the text of a value must never change.
    #[track_caller]
    fn check_text(message: &Message) {
        let expected = serde_json::to_string(message).unwrap();
        assert_eq!(to_json(message).unwrap(), expected);
    }

    #[test]
    fn a_message_is_written_as_serde_json_writes_it() {
        let every = (0..=0x2ff).filter_map(char::from_u32).collect::<String>();
        check_text(&Message::user(format!("{every}日本{every}\u{10ffff}")));
        let arguments = json!({"content": "", "b": [1.5, {}, []]});
        let call = ToolCallRequest::new("1", "\"content\":\"", arguments);
        let mut message = Message::assistant("x").with_tool_calls(vec![call]);
        check_text(&message);
        let extra = json!({"content_type": "text", "z": {"content": ""}});
        message.extra = extra.as_object().unwrap().clone();
        check_text(&message);
    }

    proptest! {
        #[test]
        fn any_text_is_written_as_serde_json_writes_it(text in "(?s).{200,400}", id in ".*") {
            let mut message = Message::user(text);
            message.id = Some(id);
            check_text(&message);
        }
    }
}
