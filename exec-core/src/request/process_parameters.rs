use std::collections::BTreeMap;
use std::fmt;

use crate::{
    EnvPolicy, EventParser, FailureClassifier, PermissionPolicy, ProtocolDriver, Sandbox,
    SessionIdLookup, SessionIdResolver, StopLadder, Wrapper,
};

/// The parameters of one launch, made by a profile from a request.
///
/// Without [`session_id_resolver`](Self::session_id_resolver) and
/// [`session_id_lookup`](Self::session_id_lookup) the minted session id is final at once. That is
/// the strategy for agents that take an id as an argument.
///
/// ```
/// use exec_core::ProcessParameters;
///
/// let mut parameters = ProcessParameters::new(["exec", "--json"]);
/// parameters.stdin_payload = Some("the prompt".to_owned());
/// parameters.session_id_resolver = Some(Box::new(|line: &str| {
///     line.strip_prefix("session: ").map(str::to_owned)
/// }));
/// ```
#[non_exhaustive]
pub struct ProcessParameters {
    /// The program to start instead of the command's own (a native binary instead of `npx`).
    pub binary: Option<String>,
    /// All arguments of the program, including the arguments of the command.
    pub args: Vec<String>,
    /// Written to standard input, which is then closed. `None`: standard input is empty.
    pub stdin_payload: Option<String>,
    /// Keeps standard input open after the payload, for agents that run until its end. The ladder
    /// needs [`StopAction::CloseStdin`](crate::StopAction::CloseStdin) to end them gracefully.
    pub keep_stdin_open: bool,
    /// Reads the session id from standard output.
    pub session_id_resolver: Option<Box<dyn SessionIdResolver>>,
    /// Finds the session id elsewhere.
    pub session_id_lookup: Option<Box<dyn SessionIdLookup>>,
    /// Reads events from standard output. `None`: output lines have no events.
    pub event_parser: Option<Box<dyn EventParser>>,
    /// Speaks the protocol of a live session, in place of
    /// [`event_parser`](Self::event_parser) and [`session_id_resolver`](Self::session_id_resolver).
    /// Only for [`Profile::build_live_parameters`](crate::Profile::build_live_parameters).
    pub protocol_driver: Option<Box<dyn ProtocolDriver>>,
    /// Decides the permission requests of a live session. The policy of the session, if it has one,
    /// replaces it.
    pub permission_policy: Option<PermissionPolicy>,
    /// Recognises failures by their text. `None`: failures that the parser does not classify are of
    /// class [`FailureKind::Agent`](crate::FailureKind::Agent).
    pub failure_classifier: Option<Box<dyn FailureClassifier>>,
    /// How this agent is stopped. `None`: by the ladder of the service. A live session is cancelled
    /// first; if the ladder has no [`StopAction::CloseStdin`](crate::StopAction::CloseStdin), its
    /// standard input is closed before the first step, with a grace of eight seconds.
    pub stop_ladder: Option<StopLadder>,
    /// Variables to add after the variables of the command, under the same rule.
    pub env: BTreeMap<String, String>,
    /// Which of the host's variables the agent inherits.
    pub env_policy: EnvPolicy,
    /// A command in front of the agent's command.
    pub wrapper: Option<Wrapper>,
    /// The sandbox of the agent, around the wrapper. `None`: the agent has all rights of the user.
    pub sandbox: Option<Sandbox>,
}

impl ProcessParameters {
    /// Parameters with these arguments only.
    #[must_use]
    pub fn new<A: Into<String>>(args: impl IntoIterator<Item = A>) -> Self {
        Self {
            binary: None,
            args: args.into_iter().map(Into::into).collect(),
            stdin_payload: None,
            keep_stdin_open: false,
            session_id_resolver: None,
            session_id_lookup: None,
            event_parser: None,
            protocol_driver: None,
            permission_policy: None,
            failure_classifier: None,
            stop_ladder: None,
            env: BTreeMap::new(),
            env_policy: EnvPolicy::default(),
            wrapper: None,
            sandbox: None,
        }
    }
}

/// Leaves out the arguments and the payload: both may contain the prompt.
impl fmt::Debug for ProcessParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.stdin_payload.as_ref().map(String::len);
        f.debug_struct("ProcessParameters")
            .field("binary", &self.binary)
            .field("args", &self.args.len())
            .field("stdin_payload", &payload)
            .field("keep_stdin_open", &self.keep_stdin_open)
            .field("session_id_resolver", &self.session_id_resolver.is_some())
            .field("session_id_lookup", &self.session_id_lookup.is_some())
            .field("event_parser", &self.event_parser.is_some())
            .field("protocol_driver", &self.protocol_driver.is_some())
            .field("permission_policy", &self.permission_policy)
            .field("failure_classifier", &self.failure_classifier.is_some())
            .field("stop_ladder", &self.stop_ladder)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("env_policy", &self.env_policy)
            .field("wrapper", &self.wrapper)
            .field("sandbox", &self.sandbox)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CommandConfig;

    #[test]
    fn debug_shows_no_values_and_no_prompt() {
        let mut command = CommandConfig::new("agent", ["--run"]);
        command.env.insert("API_KEY".into(), "s3cret".into());
        let mut parameters = ProcessParameters::new(["the prompt"]);
        parameters.stdin_payload = Some("the prompt".into());
        let shown = format!("{command:?} {parameters:?}");
        assert!(shown.contains("API_KEY"), "{shown}");
        assert!(!shown.contains("s3cret"), "{shown}");
        assert!(!shown.contains("the prompt"), "{shown}");
    }
}
