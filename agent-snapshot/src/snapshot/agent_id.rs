use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// The id of an agent: the owner of a snapshot. Safe as a file name and as a key on every backend.
///
/// 1 to 255 bytes of UTF-8 without `/`, `\` and control characters, and without white space at
/// either end. Ids are case-sensitive.
///
/// ```
/// use agent_snapshot::AgentId;
///
/// let id = AgentId::new("worker_007")?;
/// assert_eq!(id.as_str(), "worker_007");
/// assert!(AgentId::new("../evil").is_err());
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(String);

const MAX_BYTES: usize = 255;

/// The encoded form is at most three times as long. With the longest suffix of `FileStorage` it
/// stays below the 255 bytes that file systems allow. Version 0.1 had no longer ids.
const MAX_BYTES_IN_FILE_NAME: usize = 64;

impl AgentId {
    /// Checks the rules above.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the rule that `id` breaks.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        let reason = if id.is_empty() {
            "it is empty"
        } else if id.len() > MAX_BYTES {
            "it is longer than 255 bytes"
        } else if id.contains(['/', '\\']) {
            "it contains a path separator"
        } else if id.contains(char::is_control) {
            "it contains a control character"
        } else if id.trim() != id {
            "it starts or ends with white space"
        } else {
            return Ok(Self(id));
        };
        // The whole of a long id would flood the log.
        let start: String = id.chars().take(MAX_BYTES_IN_FILE_NAME).collect();
        Err(Error::invalid("agent id", &start, reason))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The id in the characters `a-z 0-9 _ -` and `%xx` only, as backends use it in names and
    /// keys. Different ids stay different on a file system that folds case or normalises Unicode,
    /// and no dot of an id is mistaken for a suffix.
    ///
    /// Up to 765 bytes long, while file systems allow 255 in a name: a backend with a file for each
    /// agent shortens it, with a digest, and stores the id in the file.
    #[must_use]
    pub fn encoded(&self) -> String {
        use fmt::Write;
        let mut out = String::with_capacity(self.0.len());
        for byte in self.0.bytes() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-' => out.push(char::from(byte)),
                _ => {
                    let _ = write!(out, "%{byte:02x}");
                }
            }
        }
        if is_reserved(&out) {
            let first = out.remove(0);
            out.insert_str(0, &format!("%{:02x}", u32::from(first)));
        }
        out
    }

    /// The inverse of [`encoded`](Self::encoded); `None` if `name` is not the encoded form of an
    /// id.
    #[cfg(any(feature = "file", test))]
    pub(crate) fn from_encoded(name: &str) -> Option<Self> {
        let mut bytes = Vec::with_capacity(name.len());
        let mut rest = name.as_bytes();
        while let [first, tail @ ..] = rest {
            rest = tail;
            if *first == b'%' {
                let hex = std::str::from_utf8(rest.get(..2)?).ok()?;
                bytes.push(u8::from_str_radix(hex, 16).ok()?);
                rest = &rest[2..];
            } else {
                bytes.push(*first);
            }
        }
        let id = Self::new(String::from_utf8(bytes).ok()?).ok()?;
        // One id has one encoded form: `%61.json` is not the file of `a`.
        (id.encoded() == name).then_some(id)
    }

    /// The name of the agent's files without a suffix: the encoded id, or the start of it and a
    /// digest of the whole id. `~` is not in an encoded id, so the two forms never meet. Two ids
    /// with the same digest are found on load, because the file contains the whole id.
    #[cfg(feature = "file")]
    pub(crate) fn file_stem(&self) -> String {
        let encoded = self.encoded();
        if self.0.len() <= MAX_BYTES_IN_FILE_NAME {
            return encoded;
        }
        let mut end = MAX_BYTES_IN_FILE_NAME;
        // Not inside `%xx`.
        while encoded.as_bytes()[end - 2..end].contains(&b'%') {
            end -= 1;
        }
        let digest = xxhash_rust::xxh3::xxh3_128(self.0.as_bytes());
        format!("{}~{digest:032x}", &encoded[..end])
    }
}

/// Names of devices on Windows, with any extension. A folder may be on a share that Windows reads.
fn is_reserved(name: &str) -> bool {
    matches!(name, "con" | "prn" | "aux" | "nul")
        || matches!(
            name.as_bytes(),
            [b'c', b'o', b'm', b'1'..=b'9'] | [b'l', b'p', b't', b'1'..=b'9']
        )
}

impl fmt::Display for AgentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for AgentId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::new(s)
    }
}

impl Serialize for AgentId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for AgentId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(id: &str, encoded: &str) {
        let id = AgentId::new(id).unwrap();
        assert_eq!(id.encoded(), encoded);
        assert_eq!(AgentId::from_encoded(encoded), Some(id));
    }

    #[test]
    fn encoding_keeps_the_specified_name_and_escapes_the_rest() {
        check("worker_007", "worker_007");
        check("Worker", "%57orker");
        check("a.b", "a%2eb");
        check("..", "%2e%2e");
        check("日", "%e6%97%a5");
        check("a b", "a%20b");
        check("100%", "100%25");
        check("con", "%63on");
        check("{x}:y*", "%7bx%7d%3ay%2a");
    }

    #[cfg(feature = "file")]
    #[test]
    fn a_long_id_has_a_short_file_name_of_its_own() {
        let id = |text: String| AgentId::new(text).unwrap();
        let short = id("x".repeat(64));
        assert_eq!(short.file_stem(), short.encoded());
        let mut stems = std::collections::BTreeSet::new();
        for text in [
            "x".repeat(65),
            "x".repeat(255),
            "日".repeat(85),
            "日".repeat(84),
        ] {
            let stem = id(text).file_stem();
            assert!(stem.len() <= 97 && !stem.contains("%~"), "{stem}");
            assert!(AgentId::from_encoded(&stem).is_none());
            stems.insert(stem);
        }
        assert_eq!(stems.len(), 4);
    }

    #[test]
    fn other_spellings_of_an_encoded_id_are_rejected() {
        for name in ["%61", "%2E", "A", "%", "%2", "%zz", "", "%ff", "con"] {
            assert_eq!(AgentId::from_encoded(name), None, "{name}");
        }
    }

    #[test]
    fn bad_ids_get_a_clear_error() {
        let long = "x".repeat(300);
        for (id, reason) in [
            ("", "empty"),
            ("../evil", "path separator"),
            ("a\\b", "path separator"),
            ("a\0b", "control character"),
            ("a\nb", "control character"),
            (" a", "white space"),
            ("a\u{3000}", "white space"),
            (long.as_str(), "longer than 255 bytes"),
        ] {
            let error = AgentId::new(id).unwrap_err().to_string();
            assert!(error.contains(reason), "{id:?}: {error}");
            assert!(error.len() < 200);
        }
    }
}
