//! The file format: `{"storage": {"<session>": {"data": …, "updated_at": "<stamp>", …}}}`.
//!
//! Entries are borrowed from the file's text and written back as they stood, so that fields of
//! other tools survive; only an entry that changes is taken apart.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use crate::stamp;

/// One file.
#[derive(Debug, Default)]
pub(crate) struct Document<'a> {
    pub(crate) entries: Vec<Entry<'a>>,
    /// Other keys beside `storage`, with their JSON.
    extra: Vec<(Cow<'a, str>, &'a RawValue)>,
}

/// One session's entry.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) session: Cow<'a, str>,
    /// The whole entry as JSON.
    pub(crate) text: Cow<'a, str>,
    pub(crate) fields: Fields<'a>,
}

/// The parts of an entry that we know.
#[derive(Debug, Deserialize)]
pub(crate) struct Fields<'a> {
    #[serde(borrow)]
    pub(crate) data: &'a RawValue,
    #[serde(borrow)]
    pub(crate) updated_at: Cow<'a, str>,
    /// The timeout it was stored with. Without it, that of the reader counts.
    pub(crate) ttl_ms: Option<u64>,
    /// The fencing token, if it was claimed.
    pub(crate) token: Option<u64>,
    /// A `Process`, if it ends with one.
    #[serde(borrow)]
    pub(crate) owner: Option<&'a RawValue>,
}

/// Reads a sound file.
pub(crate) fn parse(text: &str) -> Result<Document<'_>, serde_json::Error> {
    serde_json::from_str(text)
}

impl<'a> Document<'a> {
    pub(crate) fn of_entries(entries: Vec<Entry<'a>>) -> Self {
        Self {
            entries,
            extra: Vec::new(),
        }
    }

    /// One entry a line: easy on the eyes, and a damaged line damages no other.
    pub(crate) fn to_bytes(&self, added: Option<(&str, &str)>) -> Vec<u8> {
        let size: usize = self
            .entries
            .iter()
            .map(|entry| entry.session.len() + entry.text.len() + 8)
            .sum();
        let mut out = String::with_capacity(size + 32);
        out.push('{');
        for (key, value) in &self.extra {
            push_key(&mut out, key);
            out.push_str(value.get());
            out.push_str(",\n");
        }
        out.push_str("\"storage\":{");
        let entries = self
            .entries
            .iter()
            .map(|entry| (&*entry.session, &*entry.text));
        for (at, (session, text)) in entries.chain(added).enumerate() {
            out.push_str(if at == 0 { "\n" } else { ",\n" });
            push_key(&mut out, session);
            out.push_str(text);
        }
        out.push_str("\n}}\n");
        out.into_bytes()
    }
}

impl Fields<'_> {
    /// When it was stored, in Unix milliseconds, if the stamp can be read.
    pub(crate) fn stamp_ms(&self) -> Option<i64> {
        stamp::parse(&self.updated_at)
    }
}

/// A change of one field: its new JSON, or `None` to leave it out.
pub(crate) type Change<'c> = (&'c str, Option<String>);

/// The entry `text` with some fields changed; all others stay, in their order.
pub(crate) fn edit(text: &str, changes: &[Change<'_>]) -> Result<String, serde_json::Error> {
    let RawFields(old) = serde_json::from_str(text)?;
    let mut out = String::with_capacity(text.len() + 128);
    out.push('{');
    let mut push = |key: &str, value: &str| {
        if out.len() > 1 {
            out.push(',');
        }
        push_key(&mut out, key);
        out.push_str(value);
    };
    for (at, (key, value)) in old.iter().enumerate() {
        // Of a key that is there twice, the last one counts, as in JavaScript.
        let repeated = old[at + 1..].iter().any(|(later, _)| later == key);
        if !repeated && !changes.iter().any(|(name, _)| name == key) {
            push(key, value.get());
        } else if let Some((_, Some(value))) =
            changes.iter().find(|(name, _)| name == key && !repeated)
        {
            push(key, value);
        }
    }
    for (name, value) in changes {
        if let Some(value) = value
            .as_deref()
            .filter(|_| !old.iter().any(|(key, _)| key == name))
        {
            push(name, value);
        }
    }
    out.push('}');
    Ok(out)
}

fn push_key(out: &mut String, key: &str) {
    out.push_str(&serde_json::Value::from(key).to_string());
    out.push(':');
}

/// An object's fields in their order, whatever they are.
pub(crate) struct RawFields<'a>(pub(crate) Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for RawFields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = RawFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Vec::new();
                while let Some((Key(key), value)) = map.next_entry()? {
                    fields.push((key, value));
                }
                Ok(RawFields(fields))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Document<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Top;
        impl<'de> Visitor<'de> for Top {
            type Value = Document<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with `storage`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut storage = None;
                let mut extra = Vec::new();
                while let Some(Key(key)) = map.next_key()? {
                    if key == "storage" {
                        storage = Some(map.next_value::<Storage<'de>>()?.0);
                    } else {
                        extra.push((key, map.next_value()?));
                    }
                }
                let entries = storage.ok_or_else(|| A::Error::missing_field("storage"))?;
                Ok(Document { entries, extra })
            }
        }
        deserializer.deserialize_map(Top)
    }
}

struct Storage<'a>(Vec<Entry<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for Storage<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Storage<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of entries")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(Key(session)) = map.next_key()? {
                    let text: &'de RawValue = map.next_value()?;
                    let fields = serde_json::from_str(text.get()).map_err(A::Error::custom)?;
                    entries.push(Entry {
                        session,
                        text: text.get().into(),
                        fields,
                    });
                }
                Ok(Storage(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}
