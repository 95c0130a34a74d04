use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{EventFormat, Launcher};

/// A profile of the user, as it stands in their file.
///
/// With [`binary`](Self::binary) it describes an agent of its own. Without, it changes another
/// profile: the one that [`base`](Self::base) names, or the built-in one with its own label.
///
/// The texts of `binary`, `args`, `append_args`, `follow_up_args`, `env` and `wrapper` may hold
/// `${VAR}` from the environment of the host and the placeholders `{prompt}`, `{session_id}` (the
/// agent's own) and `{workspace}`. Both are filled in at the launch, so a secret never rests in the
/// registry, and a variable that is not set refuses the launch and not the whole file. `$${` and
/// `{{prompt}}` stand for the plain text.
///
/// ```
/// use exec_profiles::{EventFormat, UserProfile};
///
/// let mut qwen = UserProfile::default();
/// qwen.binary = Some("qwen".into());
/// qwen.args = Some(vec!["--yolo".into(), "--session-id={session_id}".into()]);
/// qwen.follow_up_args = Some(vec!["--yolo".into(), "--resume={session_id}".into()]);
/// qwen.events = Some(EventFormat::Claude);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UserProfile {
    /// The profile to change; not together with `binary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The agent's program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// The arguments of a new chat; for a profile with a base, in place of the base's. The prompt
    /// goes to standard input unless `{prompt}` stands here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added after `args` and `follow_up_args`, in every variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// The arguments of a follow-up: all of them, with `{session_id}` somewhere. A profile with a
    /// base resumes as its base does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// How the agent's session id is found. By default it is minted if `args` holds
    /// `{session_id}`, and read from the events otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionIdSource>,
    /// How the output is read; raw by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventFormat>,
    /// Leaves standard input open after the prompt, for an agent that runs until its end (the
    /// first stop step is then `close_stdin`).
    #[serde(skip_serializing_if = "is_false")]
    pub keep_stdin_open: bool,
    /// Whether the agent can start without a prompt.
    #[serde(skip_serializing_if = "is_false")]
    pub accepts_empty_prompt: bool,
    /// The program that the npm package of an `npx` command installs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_binary: Option<String>,
    /// Whether that program is started in place of `npx`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// The host's variables that are passed on; all by default. A name may end in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_env: Option<Vec<String>>,
    /// The host's variables that are not passed on; not together with `pass_env`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_env: Vec<String>,
    /// A command in front of the agent's, such as `["nice", "-n", "10"]`; empty for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<Vec<String>>,
    /// The steps of a stop, before the kill that always comes last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<UserStopStep>>,
    /// Variables to add to the agent's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The variants, by label.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, UserVariant>,
}

/// A variant of a [`UserProfile`]: what is not given is the profile's.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UserVariant {
    /// The arguments of a new chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Added after the arguments and after the profile's `append_args`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// The arguments of a follow-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// Variables to add to those of the profile.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
}

/// How the session id of an agent from the user's file is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SessionIdSource {
    /// Made here and passed to the agent by `{session_id}`.
    Minted,
    /// The agent's own 'session started' event.
    Events,
    /// The first JSON line of standard output that has this field.
    Stdout {
        /// The field, such as `session_id` or `session.id`.
        field: String,
    },
    /// A file that the agent writes after it was started.
    Files {
        /// The folder; `~/` is the agent's home.
        dir: String,
        /// The file's name, with at most one `*`.
        name: String,
        /// The JSON field inside of it that holds the id.
        field: String,
    },
}

/// One step of a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserStopStep {
    /// What is done.
    pub action: UserStopAction,
    /// How long the agent may take to end before the next step.
    pub grace_ms: u64,
}

/// What a step of a stop does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UserStopAction {
    /// End of standard input.
    CloseStdin,
    /// `SIGINT`.
    Interrupt,
    /// `SIGTERM`.
    Terminate,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Names the variables, not their values.
impl fmt::Debug for UserProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserProfile")
            .field("base", &self.base)
            .field("binary", &self.binary)
            .field("args", &self.args)
            .field("append_args", &self.append_args)
            .field("follow_up_args", &self.follow_up_args)
            .field("session_id", &self.session_id)
            .field("events", &self.events)
            .field("launcher", &self.launcher)
            .field("wrapper", &self.wrapper)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("variants", &self.variants)
            .finish_non_exhaustive()
    }
}

/// Names the variables, not their values.
impl fmt::Debug for UserVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserVariant")
            .field("args", &self.args)
            .field("append_args", &self.append_args)
            .field("follow_up_args", &self.follow_up_args)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .finish()
    }
}
