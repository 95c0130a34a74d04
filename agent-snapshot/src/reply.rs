use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Something that is to leave the process: obtainable only from a successful commit.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Reply {
    /// The same each time this reply is handed out, and never the same for another one: the
    /// receiver drops what it has already seen.
    pub key: String,
    /// What to send.
    pub payload: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A tool that was about to run: saved before it starts, gone once its tick is committed.
///
/// After a crash nobody knows whether it ran.
#[derive(Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolIntent {
    /// The same each time this call is reported: tools that take one can drop repeats.
    pub key: String,
    /// The tool's name.
    pub name: String,
    /// The tool's arguments.
    pub args: Value,
    /// Fields that this version does not know.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reply")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ToolIntent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolIntent")
            .field("key", &self.key)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
