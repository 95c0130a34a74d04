use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use uuid::Uuid;

use crate::AgentId;
use crate::conversation::Error;

/// The id of a stored conversation: 1 to 247 bytes, by the rules of [`AgentId`].
///
/// The storage keeps a session as an agent, whose id is this one behind `session.`.
///
/// ```
/// use agent_snapshot::conversation::SessionId;
///
/// let id: SessionId = "thread-42".parse()?;
/// assert_eq!(id.as_str(), "thread-42");
/// assert_eq!(id.agent().as_str(), "session.thread-42");
/// assert!(SessionId::new("../evil").is_err());
/// # Ok::<(), agent_snapshot::conversation::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(AgentId);

const PREFIX: &str = "session.";
/// The rest of an [`AgentId`] behind the prefix.
const MAX_BYTES: usize = 255 - PREFIX.len();

impl SessionId {
    /// Checks the rules above.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] with the rule that `id` breaks.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        // The id alone too: the prefix would hide a space at its start.
        let agent = AgentId::new(&id).and_then(|_| AgentId::new(format!("{PREFIX}{id}")));
        agent.map(Self).map_err(|error| Error::Invalid {
            what: "session id",
            value: id.chars().take(64).collect(),
            reason: match error {
                crate::Error::Invalid { reason, .. } if id.len() <= MAX_BYTES => reason,
                _ => format!("it is longer than {MAX_BYTES} bytes"),
            },
        })
    }

    pub(super) fn random() -> Result<Self, Error> {
        Self::new(Uuid::new_v4().to_string())
    }

    /// `None` for an agent that is not a session.
    pub(super) fn from_agent(agent: AgentId) -> Option<Self> {
        let id = agent.as_str().strip_prefix(PREFIX)?;
        (!id.is_empty()).then_some(Self(agent))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.as_str()[PREFIX.len()..]
    }

    /// The agent as which the storage keeps the session.
    #[must_use]
    pub fn agent(&self) -> &AgentId {
        &self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::new(s)
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}
