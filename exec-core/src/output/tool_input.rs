use std::fmt;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::Error;

/// The arguments of a tool call: JSON as the agent wrote it.
///
/// It is kept as text and parsed when it is asked for, so that it needs the memory of its text: a
/// tree of parsed values needs up to 80 times as much. `Debug` shows the size only.
///
/// ```
/// use exec_core::ToolInput;
///
/// let input = ToolInput::new(r#"{"command":"ls"}"#)?;
/// assert_eq!(input.as_str(), r#"{"command":"ls"}"#);
///
/// #[derive(serde::Deserialize)]
/// struct Shell {
///     command: String,
/// }
/// assert_eq!(input.parse::<Shell>()?.command, "ls");
/// assert!(ToolInput::new("{").is_err());
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
#[derive(Clone)]
pub struct ToolInput(Box<RawValue>);

impl ToolInput {
    /// Checks that the text is one JSON value.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is not. The error does not contain the text.
    pub fn new(json: &str) -> Result<Self, Error> {
        match serde_json::from_str(json) {
            Ok(raw) => Ok(Self(raw)),
            Err(error) => Err(Error::Invalid {
                what: "tool input",
                value: format!("{} bytes", json.len()),
                reason: error.to_string(),
            }),
        }
    }

    /// The JSON text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }

    /// Parses the JSON.
    ///
    /// # Errors
    ///
    /// The message of the JSON parser if the value has another shape.
    pub fn parse<T: DeserializeOwned>(
        &self,
    ) -> Result<T, Box<dyn std::error::Error + Send + Sync>> {
        Ok(serde_json::from_str(self.as_str())?)
    }
}

impl Default for ToolInput {
    /// `null`: the agent has reported no arguments.
    fn default() -> Self {
        Self(RawValue::NULL.to_owned())
    }
}

/// Compares the texts.
impl PartialEq for ToolInput {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for ToolInput {}

impl fmt::Display for ToolInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ToolInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolInput")
            .field("len", &self.as_str().len())
            .finish()
    }
}

impl Serialize for ToolInput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

/// Through a tree of values: serde's tagged enums buffer their contents, and raw text does not
/// survive that. Agents' output does not come this way.
impl<'de> Deserialize<'de> for ToolInput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let raw = serde_json::value::to_raw_value(&value).map_err(D::Error::custom)?;
        Ok(Self(raw))
    }
}
