//! TOML and JSON: from the text of the user file to its entries, and the change of one entry.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use toml_edit::{DocumentMut, Item, Table};

use super::user_profile::UserProfile;
use crate::Error;

/// The syntax of the user file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileFormat {
    Toml,
    Json,
}

/// The entries in the order of the file, each with its profile or the mistake in it.
pub(super) type FileEntries = Vec<(String, Result<UserProfile, String>)>;

/// A mistake in the syntax of the user file. It does not quote the line, which may
/// contain a secret.
#[derive(Debug)]
pub(super) struct Mistake {
    position: String,
    reason: String,
}

impl FileFormat {
    pub(super) fn of(path: &Path) -> Result<Self, Mistake> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Ok(Self::Toml),
            Some("json") => Ok(Self::Json),
            _ => Err(Mistake::new(
                "name",
                "it ends neither in .toml nor in .json",
            )),
        }
    }

    pub(super) fn parse(self, text: &str) -> Result<FileEntries, Mistake> {
        let document: Document = match self {
            Self::Toml => {
                let parsed: Result<_, toml_edit::de::Error> = toml_edit::de::from_str(text);
                parsed.map_err(|error| Mistake::in_toml(text, error.span(), error.message()))?
            }
            Self::Json if text.trim().is_empty() => Document::default(),
            Self::Json => serde_json::from_str(text).map_err(Mistake::in_json)?,
        };
        let entries = document.profiles.0.into_iter();
        Ok(entries
            .map(|(label, value)| match value {
                Some(value) => (label, parse_entry(value)),
                None => (label, Err("the label occurs twice".to_owned())),
            })
            .collect())
    }

    /// Replaces the entry, or removes it for `None`. Everything else in the text is kept.
    pub(super) fn edit(
        self,
        text: &str,
        label: &str,
        profile: Option<&UserProfile>,
    ) -> Result<String, Mistake> {
        match self {
            Self::Toml => edit_toml(text, label, profile),
            Self::Json => edit_json(text, label, profile),
        }
    }
}

/// A comment at the end of the file belongs to the document, not to a table. toml_edit would print a
/// new last table before it, so the comment becomes the prefix of the new table.
fn edit_toml(text: &str, label: &str, profile: Option<&UserProfile>) -> Result<String, Mistake> {
    let mut document: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| {
        Mistake::in_toml(text, error.span(), error.message())
    })?;
    let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
    let profiles = document.entry("profiles").or_insert_with(|| {
        let mut table = Table::new();
        // Without a `[profiles]` line of its own.
        table.set_implicit(true);
        Item::Table(table)
    });
    let is_inline = profiles.is_inline_table();
    let profiles = profiles
        .as_table_like_mut()
        .ok_or_else(|| Mistake::new("profiles", "it is not a table"))?;
    let Some(profile) = profile else {
        let removed = profiles.remove(label);
        let comment = removed.as_ref().and_then(comment_above).unwrap_or_default();
        return Ok(format!("{}{document}", head(text, &comment)));
    };
    let mut entry = toml_edit::ser::to_document(profile)
        .map_err(|error| Mistake::in_entry(label, error))?
        .into_table();
    let is_last = !is_inline && !profiles.contains_key(label);
    match profiles.get_mut(label) {
        // In its place: an insertion would delete the comment of its key.
        Some(Item::Value(old)) => {
            let mut entry = entry.into_inline_table();
            *entry.decor_mut() = old.decor().clone();
            *old = entry.into();
            return Ok(document.to_string());
        }
        Some(Item::Table(old)) if !old.is_dotted() => {
            *entry.decor_mut() = old.decor().clone();
            entry.set_position(old.position());
        }
        Some(old) => entry
            .decor_mut()
            .set_prefix(comment_above(old).unwrap_or_default()),
        None if is_last => entry.decor_mut().set_prefix(trailing),
        None => {}
    }
    profiles.insert(label, Item::Table(entry));
    if is_last {
        document.set_trailing("");
    }
    Ok(document.to_string())
}

/// The text above a table, which may be the head of the file. That of dotted keys is above the first
/// one.
fn comment_above(entry: &Item) -> Option<String> {
    let table = entry.as_table()?;
    let prefix = match table.is_dotted() {
        false => table.decor().prefix()?.as_str(),
        true => {
            let values = table.get_values();
            let (path, _) = values.first()?;
            path.last()?.leaf_decor().prefix()?.as_str()
        }
    };
    prefix.map(str::to_owned)
}

/// The head of the file: the part of a first comment up to its last blank line. What follows is about
/// the first entry.
fn head<'a>(text: &str, comment: &'a str) -> &'a str {
    let (mut at, mut end) = (0, 0);
    for line in comment.split_inclusive('\n') {
        at += line.len();
        if line.ends_with('\n') && line.trim().is_empty() {
            end = at;
        }
    }
    match text.starts_with(comment) {
        true => &comment[..end],
        false => "",
    }
}

fn edit_json(text: &str, label: &str, profile: Option<&UserProfile>) -> Result<String, Mistake> {
    let mut document = match text.trim() {
        "" => Value::Object(Default::default()),
        text => {
            let entries: Document = serde_json::from_str(text).map_err(Mistake::in_json)?;
            // A tree of values would keep the last of them, and make a profile valid that is refused.
            let mut doubled = entries
                .profiles
                .0
                .iter()
                .filter(|(_, entry)| entry.is_none());
            if let Some((other, _)) = doubled.find(|(other, _)| other != label) {
                let position = format!("profiles.{other}");
                return Err(Mistake::new(&position, "the label occurs twice"));
            }
            serde_json::from_str(text).map_err(Mistake::in_json)?
        }
    };
    let profiles = document
        .as_object_mut()
        .map(|document| document.entry("profiles"))
        .map(|profiles| profiles.or_insert_with(|| Value::Object(Default::default())))
        .and_then(Value::as_object_mut)
        .ok_or_else(|| Mistake::new("profiles", "it is not an object"))?;
    match profile {
        Some(profile) => {
            let entry =
                serde_json::to_value(profile).map_err(|error| Mistake::in_entry(label, error))?;
            profiles.insert(label.to_owned(), entry);
        }
        None => {
            profiles.remove(label);
        }
    }
    Ok(format!("{document:#}\n"))
}

impl Mistake {
    fn new(position: &str, reason: &str) -> Self {
        Self {
            position: position.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn in_toml(text: &str, span: Option<Range<usize>>, reason: &str) -> Self {
        let before = span.and_then(|span| text.get(..span.start));
        let position = before.map_or_else(
            || "file".to_owned(),
            |before| {
                let line = before.matches('\n').count() + 1;
                let last = before.rsplit('\n').next().unwrap_or_default();
                format!("line {line}, column {}", last.chars().count() + 1)
            },
        );
        Self::new(&position, reason)
    }

    fn in_json(error: serde_json::Error) -> Self {
        let position = format!("line {}, column {}", error.line(), error.column());
        let text = error.to_string();
        let reason = text
            .rsplit_once(" at line ")
            .map_or(&*text, |(reason, _)| reason);
        Self::new(&position, reason)
    }

    /// The profile cannot be written in this format.
    fn in_entry(label: &str, error: impl fmt::Display) -> Self {
        Self::new(&format!("profiles.{label}"), &error.to_string())
    }

    pub(super) fn in_file(self, path: &Path) -> Error {
        Error::Config {
            path: path.to_owned(),
            position: self.position,
            reason: self.reason,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    profiles: RawEntries,
}

/// The entries before their types are checked, so that an invalid entry does not affect the others.
/// A label that occurs twice has no value: JSON allows it, and neither value can be preferred.
#[derive(Default)]
struct RawEntries(Vec<(String, Option<Value>)>);

impl<'de> Deserialize<'de> for RawEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = RawEntries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of profiles")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEntries, A::Error> {
                let mut entries: Vec<(String, Option<Value>)> = Vec::new();
                while let Some((label, value)) = map.next_entry::<String, Value>()? {
                    match entries.iter_mut().find(|(known, _)| *known == label) {
                        Some((_, value)) => *value = None,
                        None => entries.push((label, Some(value))),
                    }
                }
                Ok(RawEntries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

fn parse_entry(value: Value) -> Result<UserProfile, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        // Serde's message quotes the value, which may be a secret.
        if path.split('.').any(|field| field == "env") {
            return format!("{path}: the value of a variable must be a string");
        }
        match path.as_str() {
            "." => error.inner().to_string(),
            _ => format!("{path}: {}", error.inner()),
        }
    })
}
