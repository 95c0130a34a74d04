use std::fmt;

use super::agent_state::{AgentState, Evidence};

/// How the state of an agent was found, see
/// [`ClusterManager::explain`](crate::ClusterManager::explain). Its `Display` is a report for a
/// person; its `Debug` does not show the screen.
///
/// ```
/// use tmux_bus::{ClusterManager, Error};
///
/// async fn why(cluster: &ClusterManager, agent: &str) -> Result<String, Error> {
///     Ok(cluster.explain(agent).await?.to_string())
/// }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Explanation {
    /// The agent.
    pub agent: String,
    /// The name of its definition, such as `claude`.
    pub definition: String,
    /// Its state.
    pub state: AgentState,
    /// Why it is believed to be in that state.
    pub evidence: Evidence,
    /// What a person can do about it, if the agent waits for one.
    pub advice: Option<String>,
    /// The title of its terminal.
    pub title: String,
    /// The text on its screen.
    pub screen: String,
    /// The rules in the order in which they were tried, up to the one that matched.
    pub tried: Vec<TriedRule>,
}

/// A rule of an [`Explanation`].
///
/// ```
/// use tmux_bus::Explanation;
///
/// fn matched(explanation: &Explanation) -> Option<&str> {
///     let rule = explanation.tried.iter().find(|rule| rule.matched);
///     rule.map(|rule| rule.rule.as_str())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TriedRule {
    /// The rule, such as `dialog:trust`.
    pub rule: String,
    /// Whether it matched.
    pub matched: bool,
}

impl fmt::Debug for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Explanation")
            .field("agent", &self.agent)
            .field("definition", &self.definition)
            .field("state", &self.state)
            .field("evidence", &self.evidence)
            .field("tried", &self.tried)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "agent `{}` ({}) is {} ({})",
            self.agent, self.definition, self.state, self.evidence
        )?;
        if let Some(advice) = &self.advice {
            writeln!(f, "{advice}")?;
        }
        writeln!(f, "title: {}", self.title)?;
        writeln!(f, "rules:")?;
        for rule in &self.tried {
            let mark = if rule.matched { "matched" } else { "no" };
            writeln!(f, "  {:<28} {mark}", rule.rule)?;
        }
        writeln!(f, "screen:")?;
        for line in self.screen.lines() {
            writeln!(f, "  | {line}")?;
        }
        Ok(())
    }
}
