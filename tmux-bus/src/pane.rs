//! The name of a pane.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// A pane's id, such as `%3`: tmux gives it once and never again, while indexes move when a pane dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PaneId(u32);

impl PaneId {
    /// Reads the form that tmux writes, `%3`, from bytes.
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

    fn from_str(text: &str) -> Result<Self> {
        Self::parse(text.as_bytes()).ok_or_else(|| Error::InvalidName {
            what: "pane",
            name: text.to_owned(),
            reason: "a pane is named by its id, such as %3",
        })
    }
}
