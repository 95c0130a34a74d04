use std::collections::BTreeMap;
use std::fmt;

use crate::{EventParser, SessionIdLookup, SessionIdResolver, StopLadder};

/// A program with its arguments, as a profile defines it.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CommandConfig {
    /// The program: a name that is looked up on `PATH`, or a path (relative to the workspace).
    pub binary: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables to add to the child's environment. They may replace inherited ones, but never
    /// those the service sets itself (`NORMALIZED_EXECUTION_*`, `PWD`).
    pub env: BTreeMap<String, String>,
}

impl CommandConfig {
    /// A command without variables of its own.
    pub fn new<A: Into<String>>(
        binary: impl Into<String>,
        args: impl IntoIterator<Item = A>,
    ) -> Self {
        Self {
            binary: binary.into(),
            args: args.into_iter().map(Into::into).collect(),
            env: BTreeMap::new(),
        }
    }
}

/// Names the variables, not their values.
impl fmt::Debug for CommandConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandConfig")
            .field("binary", &self.binary)
            .field("args", &self.args)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// What a profile makes of a request: everything that one launch needs.
///
/// With neither [`session_id_resolver`](Self::session_id_resolver) nor
/// [`session_id_lookup`](Self::session_id_lookup) the id of the request is final at once: the
/// strategy of an agent that takes an id as an argument.
#[non_exhaustive]
pub struct ProcessParameters {
    /// The program to start in place of the command's own (a native binary where the command
    /// says `npx`).
    pub binary: Option<String>,
    /// The arguments of the program: all of them, the command's included.
    pub args: Vec<String>,
    /// Written to standard input, which is then closed. `None`: standard input is empty.
    pub stdin_payload: Option<String>,
    /// Leaves standard input open after the payload, for agents that run until its end. The
    /// ladder then needs [`StopAction::CloseStdin`](crate::StopAction::CloseStdin) to end them
    /// gently.
    pub keep_stdin_open: bool,
    /// Reads the session id from standard output.
    pub session_id_resolver: Option<Box<dyn SessionIdResolver>>,
    /// Finds the session id elsewhere.
    pub session_id_lookup: Option<Box<dyn SessionIdLookup>>,
    /// Reads events from standard output; without one every line is raw.
    pub event_parser: Option<Box<dyn EventParser>>,
    /// How this agent is stopped; `None`: as the service is set.
    pub stop_ladder: Option<StopLadder>,
    /// Variables to add after the command's own, under the same rule.
    pub env: BTreeMap<String, String>,
    /// Which of the host's variables the agent gets.
    pub env_policy: EnvPolicy,
    /// A command in front of the agent's.
    pub wrapper: Option<Wrapper>,
}

impl ProcessParameters {
    /// Parameters with these arguments and nothing else.
    pub fn new<A: Into<String>>(args: impl IntoIterator<Item = A>) -> Self {
        Self {
            binary: None,
            args: args.into_iter().map(Into::into).collect(),
            stdin_payload: None,
            keep_stdin_open: false,
            session_id_resolver: None,
            session_id_lookup: None,
            event_parser: None,
            stop_ladder: None,
            env: BTreeMap::new(),
            env_policy: EnvPolicy::default(),
            wrapper: None,
        }
    }
}

/// Leaves out the arguments and the payload: either may hold the prompt.
impl fmt::Debug for ProcessParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessParameters")
            .field("binary", &self.binary)
            .field("args", &self.args.len())
            .field(
                "stdin_payload",
                &self.stdin_payload.as_ref().map(String::len),
            )
            .field("keep_stdin_open", &self.keep_stdin_open)
            .field("session_id_resolver", &self.session_id_resolver.is_some())
            .field("session_id_lookup", &self.session_id_lookup.is_some())
            .field("event_parser", &self.event_parser.is_some())
            .field("stop_ladder", &self.stop_ladder)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("env_policy", &self.env_policy)
            .field("wrapper", &self.wrapper)
            .finish()
    }
}

/// Which of the host's variables a child inherits. A name that ends in `*` stands for every name
/// that begins like it.
///
/// The command's own variables and those of the service are added afterwards, whatever the policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvPolicy {
    /// All of them.
    #[default]
    All,
    /// All but these.
    AllExcept(Vec<String>),
    /// These and no others. Most programs need at least `PATH` and `HOME`.
    Only(Vec<String>),
}

impl EnvPolicy {
    /// Whether a variable of this name is passed on.
    pub fn passes(&self, name: &str) -> bool {
        let listed = |names: &[String]| {
            names.iter().any(|listed| match listed.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == listed,
            })
        };
        match self {
            Self::All => true,
            Self::AllExcept(names) => !listed(names),
            Self::Only(names) => listed(names),
        }
    }
}

/// A command that runs the agent's command: `bwrap …`, `systemd-run --scope …`, `nice`.
///
/// The agent's program and arguments are appended to its arguments. The agent's program is then
/// the wrapper's to find (it may exist only inside of a sandbox); a missing wrapper is an error of
/// the launch, like a missing agent without a wrapper.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// The wrapping program.
    pub binary: String,
    /// Its own arguments.
    pub args: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: EnvPolicy, name: &str, expected: bool) {
        assert_eq!(policy.passes(name), expected, "{policy:?} {name}");
    }

    #[test]
    fn policy_decides_by_name_and_prefix() {
        let names = || vec!["HOME".to_owned(), "LC_*".to_owned()];
        check(EnvPolicy::All, "ANY", true);
        check(EnvPolicy::Only(names()), "HOME", true);
        check(EnvPolicy::Only(names()), "HOMER", false);
        check(EnvPolicy::Only(names()), "LC_ALL", true);
        check(EnvPolicy::AllExcept(names()), "LC_ALL", false);
        check(EnvPolicy::AllExcept(names()), "PATH", true);
    }

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
