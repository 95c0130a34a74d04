use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::Error;

/// The id of one launch: a UUID.
///
/// Every process of the execution has it in its environment as `NORMALIZED_EXECUTION_ID`. A
/// session keeps its [`SessionId`](crate::SessionId) over many launches; each launch has an
/// execution id of its own.
///
/// ```
/// use exec_core::ExecutionId;
///
/// let id: ExecutionId = "6f9619ff-8b86-4d01-b42d-00cf4fc964ff".parse()?;
/// assert_eq!(id.as_str(), "6f9619ff-8b86-4d01-b42d-00cf4fc964ff");
/// assert!("not-a-uuid".parse::<ExecutionId>().is_err());
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ExecutionId(String);

impl ExecutionId {
    /// The id with this text.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the text is not a UUID.
    pub fn new(text: impl Into<String>) -> Result<Self, Error> {
        let text = text.into();
        match Uuid::try_parse(&text) {
            Ok(uuid) => Ok(Self(uuid.to_string())),
            Err(_) => Err(Error::Invalid {
                what: "execution id",
                value: text,
                reason: "it is not a UUID".to_owned(),
            }),
        }
    }

    pub(crate) fn mint() -> Self {
        Self(Uuid::new_v4().to_string())
    }

    /// The UUID in lower case with hyphens.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ExecutionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl TryFrom<String> for ExecutionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        Self::new(text)
    }
}

impl From<ExecutionId> for String {
    fn from(id: ExecutionId) -> Self {
        id.0
    }
}

impl fmt::Display for ExecutionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_uuid_has_one_spelling() {
        let id = ExecutionId::mint();
        let upper = id.as_str().to_uppercase();
        assert_eq!(ExecutionId::new(&upper).unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<ExecutionId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<ExecutionId>("\"1\"").is_err());
    }
}
