use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// The id of an agent's conversation, which the agent calls a session:
/// `{EXECUTOR_TYPE}:{ACTUAL_PROJECT_ID}:{agent's own id}`.
///
/// The first two parts contain no `:`. The last part may, and is not always a UUID (`ses_…`,
/// `T-…`). It never starts with `-`, because it becomes an argument on command lines.
///
/// ```
/// use exec_core::SessionId;
///
/// let id: SessionId = "OPENCODE:L3RtcA:ses_4f".parse()?;
/// assert_eq!(id.executor_type(), "OPENCODE");
/// assert_eq!(id.actual_project_id(), "L3RtcA");
/// assert_eq!(id.native_id(), "ses_4f");
///
/// let bare = "ses_4f".parse::<SessionId>().unwrap_err();
/// assert!(bare.to_string().contains("{EXECUTOR_TYPE}:{ACTUAL_PROJECT_ID}:{id}"));
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SessionId {
    text: String,
    /// The offset of the second part.
    project: usize,
    /// The offset of the third part.
    agent: usize,
}

impl SessionId {
    /// The id with these parts.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if a part is empty or contains white space or control characters, if one of
    /// the first two contains a `:`, or if the last one starts with `-`.
    pub fn new(
        executor_type: &str,
        actual_project_id: &str,
        native_id: &str,
    ) -> Result<Self, Error> {
        let invalid = |reason| Error::Invalid {
            what: "session id",
            value: format!("{executor_type}:{actual_project_id}:{native_id}"),
            reason,
        };
        check_name("executor type", executor_type).map_err(invalid)?;
        check_name("actual project id", actual_project_id).map_err(invalid)?;
        check_native_id(native_id).map_err(invalid)?;
        let project = executor_type.len() + 1;
        Ok(Self {
            text: format!("{executor_type}:{actual_project_id}:{native_id}"),
            project,
            agent: project + actual_project_id.len() + 1,
        })
    }

    /// A new id with a random UUID as the last part.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), for the first two parts.
    pub fn mint(executor_type: &str, actual_project_id: &str) -> Result<Self, Error> {
        let uuid = uuid::Uuid::new_v4().to_string();
        Self::new(executor_type, actual_project_id, &uuid)
    }

    /// The id with the same first two parts and another last part.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new), for the last part.
    pub fn with_native_id(&self, native_id: &str) -> Result<Self, Error> {
        Self::new(self.executor_type(), self.actual_project_id(), native_id)
    }

    /// The first part: the kind of agent.
    pub fn executor_type(&self) -> &str {
        &self.text[..self.project - 1]
    }

    /// The second part: the project.
    pub fn actual_project_id(&self) -> &str {
        &self.text[self.project..self.agent - 1]
    }

    /// The last part: the id that the agent itself uses, for example for `--resume`.
    pub fn native_id(&self) -> &str {
        &self.text[self.agent..]
    }

    /// The whole id.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// The check of the first two parts; the error is the reason.
fn check_name(what: &str, value: &str) -> Result<(), String> {
    if value.contains(':') {
        return Err(format!("the {what} contains a ':'"));
    }
    check_text(what, value)
}

fn check_native_id(value: &str) -> Result<(), String> {
    if value.starts_with('-') {
        return Err("the agent's id starts with '-': the agent would read it as an option".into());
    }
    check_text("agent's id", value)
}

fn check_text(what: &str, value: &str) -> Result<(), String> {
    if value.is_empty() {
        return Err(format!("the {what} is empty"));
    }
    if value.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!(
            "the {what} contains white space or a control character"
        ));
    }
    Ok(())
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parts = text.splitn(3, ':');
        match (parts.next(), parts.next(), parts.next()) {
            (Some(executor_type), Some(project), Some(agent)) => {
                Self::new(executor_type, project, agent)
            }
            _ => Err(Error::Invalid {
                what: "session id",
                value: text.to_owned(),
                reason: "a session id is {EXECUTOR_TYPE}:{ACTUAL_PROJECT_ID}:{id}; if this is \
                         the agent's own id, put the other two parts in front of it"
                    .into(),
            }),
        }
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SessionId").field(&self.text).finish()
    }
}

impl TryFrom<String> for SessionId {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl From<SessionId> for String {
    fn from(id: SessionId) -> Self {
        id.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<[&str; 3], &str>) {
        match (text.parse::<SessionId>(), expected) {
            (Ok(id), Ok(parts)) => {
                assert_eq!(
                    [id.executor_type(), id.actual_project_id(), id.native_id()],
                    parts
                );
                assert_eq!(id.to_string(), text);
            }
            (Err(error), Err(reason)) => {
                let shown = error.to_string();
                assert!(shown.contains(reason), "{shown:?} does not say {reason:?}");
            }
            (got, expected) => panic!("{text:?}: got {got:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn an_id_has_exactly_three_parts() {
        check("A:b:c", Ok(["A", "b", "c"]));
        check("A:b:c:d:", Ok(["A", "b", "c:d:"]));
        check("A:b:ses_日本", Ok(["A", "b", "ses_日本"]));
        check("", Err("put the other two parts in front"));
        check("c0ffee", Err("put the other two parts in front"));
        check("A:b", Err("put the other two parts in front"));
    }

    #[test]
    fn ambiguous_parts_are_refused() {
        check(":b:c", Err("executor type is empty"));
        check("A::c", Err("project id is empty"));
        check("A:b:", Err("agent's id is empty"));
        check("A:b:-rf", Err("starts with '-'"));
        check("A:b:c d", Err("white space"));
        check("A:b:c\0", Err("control character"));
        assert!(SessionId::new("A:x", "b", "c").is_err());
        assert!(SessionId::new("A", "b:x", "c").is_err());
    }

    #[test]
    fn serde_validates() {
        let id = SessionId::mint("A", "b").unwrap();
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(serde_json::from_str::<SessionId>(&json).unwrap(), id);
        assert!(serde_json::from_str::<SessionId>("\"bare\"").is_err());
    }
}
