use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Error;

/// The id of a message in an [`Inbox`](crate::Inbox).
///
/// ```
/// use tmux_bus::MessageId;
///
/// let id: MessageId = "6f1f4a52c2a94d2f9d0d7a3e8b1c5f60".parse()?;
/// assert_eq!(id.as_str(), "6f1f4a52c2a94d2f9d0d7a3e8b1c5f60");
/// assert!(MessageId::new("../x").is_err());
/// # Ok::<(), tmux_bus::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(String);

impl MessageId {
    /// Takes an id in its text form: letters and digits.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for any other text.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let value = text.into();
        let is_plain = value.bytes().all(|byte| byte.is_ascii_alphanumeric());
        if value.is_empty() || value.len() > 64 || !is_plain {
            return Err(Error::Invalid {
                what: "message id",
                value,
                reason: "it must have 1 to 64 letters and digits",
            });
        }
        Ok(Self(value))
    }

    pub(super) fn random() -> Self {
        Self(uuid::Uuid::new_v4().simple().to_string())
    }

    /// The text form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MessageId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl Serialize for MessageId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for MessageId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(text).map_err(serde::de::Error::custom)
    }
}
