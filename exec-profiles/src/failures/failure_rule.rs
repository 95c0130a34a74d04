use exec_core::FailureKind;
use serde::{Deserialize, Serialize};

/// How a failure of an agent is recognised by its text.
///
/// Rules are tried in their order; the first one whose texts all occur decides the class. A text
/// that matches no rule is a failure of class `agent`. In the user file:
///
/// ```toml
/// [[profiles.my-agent.failures]]
/// contains = ["plan is used up"]
/// class = "limited"                  # limited, overloaded, authentication, context_full,
/// scope = "month"                    # session_gone, network, agent
/// reset_in_after = "try again in "   # followed by a time span such as `2 days 3 hours` or `34.5s`
/// ```
///
/// ```
/// use exec_profiles::{FailureClass, FailureRule};
///
/// let mut rule = FailureRule::new(["busy", "try again"], FailureClass::Overloaded);
/// rule.retry = true;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct FailureRule {
    /// Texts that all occur, in any order. Upper and lower case are the same.
    pub contains: Vec<String>,
    /// The class.
    pub class: FailureClass,
    /// The limit, for class `limited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<String>,
    /// The text before the time of the reset in seconds (or milliseconds) since 1970, for class
    /// `limited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_epoch_after: Option<String>,
    /// The text before the time span until the reset, for class `limited`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_in_after: Option<String>,
    /// Whether the text says that the agent tries again. This holds even if another rule has decided
    /// the class. A rule of class `agent` with `retry` only says so: later rules decide the class.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retry: bool,
}

impl FailureRule {
    /// A rule with a class only.
    #[must_use]
    pub fn new<T: Into<String>>(
        contains: impl IntoIterator<Item = T>,
        class: FailureClass,
    ) -> Self {
        Self {
            contains: contains.into_iter().map(Into::into).collect(),
            class,
            scope: None,
            reset_epoch_after: None,
            reset_in_after: None,
            retry: false,
        }
    }

    /// The mistake in the rule, if there is one.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.contains.is_empty() || self.contains.iter().any(|text| text.trim().is_empty()) {
            return Err("`contains` needs at least one text, and none can be blank");
        }
        let has_limit = self.scope.is_some()
            || self.reset_epoch_after.is_some()
            || self.reset_in_after.is_some();
        if has_limit && self.class != FailureClass::Limited {
            return Err("`scope` and `reset_…` are for class `limited`");
        }
        Ok(())
    }
}

/// The class of a [`FailureRule`]: a [`FailureKind`] without its data.
///
/// ```
/// use exec_core::FailureKind;
/// use exec_profiles::FailureClass;
///
/// assert_eq!(FailureKind::from(FailureClass::Network), FailureKind::Network);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureClass {
    /// A usage limit or rate limit.
    Limited,
    /// The model's service is overloaded or fails.
    Overloaded,
    /// The agent is not logged in, or its key is refused.
    Authentication,
    /// The conversation does not fit into the model's context.
    ContextFull,
    /// The agent does not know the session.
    SessionGone,
    /// The model's service cannot be reached.
    Network,
    /// Any other failure.
    Agent,
}

impl From<FailureClass> for FailureKind {
    fn from(class: FailureClass) -> Self {
        match class {
            FailureClass::Limited => Self::Limited {
                scope: None,
                resets_at: None,
            },
            FailureClass::Overloaded => Self::Overloaded,
            FailureClass::Authentication => Self::Authentication,
            FailureClass::ContextFull => Self::ContextFull,
            FailureClass::SessionGone => Self::SessionGone,
            FailureClass::Network => Self::Network,
            FailureClass::Agent => Self::Agent,
        }
    }
}
