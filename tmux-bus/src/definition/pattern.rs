//! Regular expressions of a definition. They match in linear time, and their size is bounded, so that a
//! file of a user cannot block the process.

use regex::{Captures, Regex, RegexBuilder};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// Bound of one compiled pattern, and of its cache while it matches.
const MAX_COMPILED: usize = 1 << 20;

/// A pattern for one line of a screen, or for a title.
#[derive(Clone, Debug)]
pub(crate) struct Pattern(Regex);

impl Pattern {
    pub(crate) fn is_match(&self, line: &str) -> bool {
        self.0.is_match(line)
    }

    pub(crate) fn captures<'a>(&self, line: &'a str) -> Option<Captures<'a>> {
        self.0.captures(line)
    }

    /// The group `text` of a match.
    pub(crate) fn text<'a>(&self, line: &'a str) -> Option<&'a str> {
        Some(self.0.captures(line)?.name("text")?.as_str())
    }

    /// The matched part of a line.
    pub(crate) fn found<'a>(&self, line: &'a str) -> Option<&'a str> {
        self.0.find(line).map(|found| found.as_str())
    }

    fn has_group(&self, name: &str) -> bool {
        self.0.capture_names().flatten().any(|group| group == name)
    }
}

impl<'de> Deserialize<'de> for Pattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        RegexBuilder::new(&text)
            .size_limit(MAX_COMPILED)
            .dfa_size_limit(MAX_COMPILED)
            .build()
            .map(Self)
            // The first lines of the error draw the pattern; the last one has the reason.
            .map_err(|error| {
                let text = error.to_string();
                let reason = text.lines().last().unwrap_or_default();
                D::Error::custom(format!(
                    "bad pattern: {}",
                    reason.trim_start_matches("error: ")
                ))
            })
    }
}

/// For `deserialize_with`: a pattern with the group `text`.
pub(crate) fn with_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Pattern, D::Error> {
    with_groups(deserializer, &["text"])
}

/// As [`with_text`], for a key that may be missing.
pub(crate) fn with_text_if_any<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Pattern>, D::Error> {
    with_text(deserializer).map(Some)
}

/// For `deserialize_with`: a pattern with the groups `prefix` and `text`.
pub(crate) fn with_prefix_and_text<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Pattern, D::Error> {
    with_groups(deserializer, &["prefix", "text"])
}

fn with_groups<'de, D: Deserializer<'de>>(
    deserializer: D,
    groups: &[&str],
) -> Result<Pattern, D::Error> {
    let pattern = Pattern::deserialize(deserializer)?;
    match groups.iter().find(|group| !pattern.has_group(group)) {
        None => Ok(pattern),
        Some(group) => Err(D::Error::custom(format!(
            "this pattern needs a group `(?P<{group}>...)`"
        ))),
    }
}
