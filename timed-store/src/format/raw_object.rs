//! A JSON object whose keys and values stay text.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The members of an object in their order, with duplicates. Both parts borrow from the text.
pub(crate) struct RawObject<'a>(pub(crate) Vec<(&'a RawValue, &'a RawValue)>);

impl<'a> RawObject<'a> {
    pub(crate) fn parse(text: &'a str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The members with decoded keys; `None` if `text` is not an object.
    pub(crate) fn fields(text: &'a str) -> Option<Vec<(Cow<'a, str>, &'a str)>> {
        let members = Self::parse(text).ok()?.0.into_iter();
        members
            .map(|(key, value)| Some((decode_string(key.get())?, value.get())))
            .collect()
    }
}

/// Decodes a JSON string, without a copy if it has no escapes.
pub(crate) fn decode_string(json: &str) -> Option<Cow<'_, str>> {
    #[derive(serde::Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);
    serde_json::from_str(json).ok().map(|Text(text)| text)
}

/// The part of `text` from the start of `first` to the end of `last`, which are parts of it.
pub(crate) fn span<'a>(text: &'a str, first: &str, last: &str) -> &'a str {
    let offset = |part: &str| part.as_ptr().addr() - text.as_ptr().addr();
    &text[offset(first)..offset(last) + last.len()]
}

impl<'de> Deserialize<'de> for RawObject<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = RawObject<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(RawObject(members))
            }
        }
        deserializer.deserialize_map(Members)
    }
}
