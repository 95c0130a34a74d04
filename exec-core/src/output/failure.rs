//! Failures of agents and their classes.

use std::fmt;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

/// The longest message of a failure. The line that it was read from has the rest.
pub(crate) const MAX_MESSAGE: usize = 4 << 10;

/// An error that an agent has reported, with its class. `Debug` shows the size of the message.
///
/// ```
/// use exec_core::{Failure, FailureKind};
///
/// let failure = Failure::new(FailureKind::Authentication, "Not logged in · Please run /login");
/// let json = serde_json::to_string(&failure)?;
/// assert_eq!(json, r#"{"class":"authentication","message":"Not logged in · Please run /login"}"#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Failure {
    /// The class.
    #[serde(flatten)]
    pub kind: FailureKind,
    /// The agent's own words, at most 4 KiB of them.
    pub message: String,
}

impl Failure {
    /// A failure with this message. A longer one than 4 KiB is cut.
    #[must_use]
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let mut message = message.into();
        let end = cut_at(&message, MAX_MESSAGE);
        message.truncate(end);
        message.shrink_to_fit();
        Self { kind, message }
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("kind", &self.kind)
            .field("len", &self.message.len())
            .finish()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind.name(), self.message)
    }
}

/// The class of a [`Failure`]: what a caller can do about it.
///
/// ```
/// use exec_core::FailureKind;
///
/// let limited = FailureKind::Limited { scope: Some("five_hour".into()), resets_at: None };
/// assert_eq!(limited.name(), "limited");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "class", rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// A usage limit or rate limit. Wait for the reset.
    Limited {
        /// The limit, in the agent's words, such as `five_hour`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scope: Option<String>,
        /// When the limit is reset, if the agent says so. In JSON: seconds since 1970.
        #[serde(
            default,
            skip_serializing_if = "Option::is_none",
            with = "epoch_seconds"
        )]
        resets_at: Option<SystemTime>,
    },
    /// The model's service is overloaded or fails. Try again later.
    Overloaded,
    /// The agent is not logged in, or its key is refused. A repetition does not help.
    Authentication,
    /// The conversation does not fit into the model's context. Begin a new session.
    ContextFull,
    /// The agent does not know the session. Begin a new one.
    SessionGone,
    /// The model's service cannot be reached.
    Network,
    /// Any other failure.
    Agent,
}

impl FailureKind {
    /// The name in the JSON form, such as `context_full`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Limited { .. } => "limited",
            Self::Overloaded => "overloaded",
            Self::Authentication => "authentication",
            Self::ContextFull => "context_full",
            Self::SessionGone => "session_gone",
            Self::Network => "network",
            Self::Agent => "agent",
        }
    }

    /// The class of an HTTP status of a model's service. `None` for statuses that say too little,
    /// such as 400.
    ///
    /// ```
    /// use exec_core::FailureKind;
    ///
    /// assert_eq!(FailureKind::of_http_status(529), Some(FailureKind::Overloaded));
    /// assert_eq!(FailureKind::of_http_status(400), None);
    /// ```
    #[must_use]
    pub fn of_http_status(status: u64) -> Option<Self> {
        match status {
            401 | 403 => Some(Self::Authentication),
            402 | 429 => Some(Self::Limited {
                scope: None,
                resets_at: None,
            }),
            413 => Some(Self::ContextFull),
            500..=599 => Some(Self::Overloaded),
            _ => None,
        }
    }
}

/// Recognises the class of a failure by its text. A profile provides it.
///
/// The service asks it for the text of every reported failure of class [`FailureKind::Agent`], and
/// for every line of standard error. A line of standard error without a match is no failure.
///
/// 1. It does not block and does not panic.
/// 2. A long text is passed up to its first 4 KiB.
///
/// A closure is a classifier:
///
/// ```
/// use exec_core::{FailureClassifier, FailureKind, FailureMatch};
///
/// let classifier = |text: &str| {
///     let kind = text.contains("Overloaded").then_some(FailureKind::Overloaded)?;
///     Some(FailureMatch { kind, retries: text.contains("Retrying") })
/// };
/// assert_eq!(classifier.classify("Overloaded").unwrap().kind, FailureKind::Overloaded);
/// assert!(classifier.classify("fine").is_none());
/// ```
pub trait FailureClassifier: Send {
    /// The class, if the text is that of a known failure.
    fn classify(&self, text: &str) -> Option<FailureMatch>;
}

impl<F: Fn(&str) -> Option<FailureMatch> + Send> FailureClassifier for F {
    fn classify(&self, text: &str) -> Option<FailureMatch> {
        self(text)
    }
}

/// The result of a [`FailureClassifier`].
///
/// ```
/// use exec_core::{FailureKind, FailureMatch};
///
/// let found = FailureMatch { kind: FailureKind::Network, retries: true };
/// assert!(found.retries);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureMatch {
    /// The class.
    pub kind: FailureKind,
    /// Whether the text says that the agent tries again.
    pub retries: bool,
}

/// A notice of the agent about a usage limit.
///
/// ```
/// use exec_core::{RateLimit, RateLimitStatus};
///
/// let notice: RateLimit = serde_json::from_str(
///     r#"{"status":"rejected","scope":"five_hour","resets_at":1778565600}"#,
/// )?;
/// assert_eq!(notice.status, RateLimitStatus::Rejected);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateLimit {
    /// Whether requests are still accepted.
    pub status: RateLimitStatus,
    /// The limit, in the agent's words, such as `five_hour`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// When the limit is reset. In JSON: seconds since 1970.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "epoch_seconds"
    )]
    pub resets_at: Option<SystemTime>,
    /// The used part of the limit: 1.0 is all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<f64>,
}

impl RateLimit {
    /// A notice with this status only.
    #[must_use]
    pub fn new(status: RateLimitStatus) -> Self {
        Self {
            status,
            scope: None,
            resets_at: None,
            used: None,
        }
    }
}

/// The status of a [`RateLimit`].
///
/// ```
/// use exec_core::RateLimitStatus;
///
/// assert_eq!(serde_json::to_string(&RateLimitStatus::Warning)?, r#""warning""#);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum RateLimitStatus {
    /// Requests are accepted.
    Allowed,
    /// Requests are accepted, but the limit is near.
    Warning,
    /// Requests are refused until the reset.
    Rejected,
}

/// The last character boundary at or before `max`.
pub(crate) fn cut_at(text: &str, max: usize) -> usize {
    (0..=max.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default()
}

/// A time as whole seconds since 1970.
pub(crate) mod epoch_seconds {
    use std::time::{Duration, SystemTime};

    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(
        at: &Option<SystemTime>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let since = at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
        match since {
            Some(since) => serializer.serialize_some(&since.as_secs()),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<SystemTime>, D::Error> {
        let seconds = Option::<u64>::deserialize(deserializer)?;
        Ok(seconds
            .and_then(|seconds| SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_json_form_has_class_and_reset_in_one_object() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_778_565_600);
        let kind = FailureKind::Limited {
            scope: Some("weekly".into()),
            resets_at: Some(at),
        };
        let failure = Failure::new(kind, "limit");
        let json = serde_json::to_string(&failure).unwrap();
        assert_eq!(
            json,
            r#"{"class":"limited","scope":"weekly","resets_at":1778565600,"message":"limit"}"#
        );
        assert_eq!(serde_json::from_str::<Failure>(&json).unwrap(), failure);
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        let failure = Failure::new(FailureKind::Agent, "é".repeat(MAX_MESSAGE));
        assert!(failure.message.len() <= MAX_MESSAGE);
        assert!(failure.message.chars().all(|c| c == 'é'));
        assert!(!format!("{failure:?}").contains('é'));
    }
}
