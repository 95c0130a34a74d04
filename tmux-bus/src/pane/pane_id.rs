use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// The id of a pane, such as `%3`. tmux never reuses an id, while indexes change when a
/// pane is closed.
///
/// It holds a number and is `Copy`, so it has no `as_str`. As text and in JSON it has the form of tmux.
///
/// ```
/// use tmux_bus::PaneId;
///
/// let pane = PaneId::new("%3")?;
/// assert_eq!(pane.to_string(), "%3");
/// assert_eq!(serde_json::to_string(&pane)?, "\"%3\"");
/// assert!(PaneId::new("0.3").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PaneId(u32);

impl PaneId {
    /// Parses the form of tmux, `%3`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other text.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let value = text.into();
        Self::parse(value.as_bytes()).ok_or(Error::Invalid {
            what: "pane id",
            value,
            reason: "it must have the form %3",
        })
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let digits = bytes.strip_prefix(b"%")?;
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        std::str::from_utf8(digits).ok()?.parse().ok().map(Self)
    }

    pub(crate) fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for PaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "%{}", self.0)
    }
}

impl FromStr for PaneId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl Serialize for PaneId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PaneId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}
