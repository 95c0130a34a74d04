//! The fields of an entry of the user file.

use std::collections::BTreeMap;
use std::fmt;

use exec_core::{PermissionRule, SandboxSetting, StopLadder};
use serde::{Deserialize, Serialize};

use super::stop_steps;
use crate::{EventFormat, FailureRule, Launcher, LiveProtocol};

/// An entry of the user file.
///
/// With [`binary`](Self::binary) it describes a new agent. Without, it changes a profile that is
/// registered in code: the one that [`base`](Self::base) names, or else the one with its own label.
///
/// The texts of `binary`, `args`, `append_args`, `follow_up_args`, `live_args`, `env`, `wrapper` and the
/// paths of `sandbox` are templates. They may contain host variables (`${VAR}`) and the placeholders
/// `{prompt}`, `{session_id}` (the agent's own id) and `{workspace}`. The launch expands them, so the
/// registry never stores a secret, and a variable that is not set refuses only that launch. Write
/// `$${` and `{{prompt}}` for the literal text.
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
    /// The label of the profile to change; excludes `binary`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// The program of the agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub binary: Option<String>,
    /// The arguments of a new chat; in a change, they replace those of the base. The prompt goes to
    /// standard input unless one of them contains `{prompt}`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Arguments to add to `args`, `follow_up_args` and `live_args` in every variant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// All arguments of a follow-up; one of them contains `{session_id}`. Only with `binary`: a change
    /// inherits the follow-up of its base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// The source of the session id. Default: minted if `args` contains `{session_id}`, otherwise
    /// the events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionIdSource>,
    /// The format of the output. Default: raw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub events: Option<EventFormat>,
    /// Keeps standard input open after the prompt, for an agent that ends at the end of its input.
    /// Start `stop` with `close_stdin` for such an agent.
    #[serde(skip_serializing_if = "is_false")]
    pub keep_stdin_open: bool,
    /// Whether the agent can start without a prompt.
    #[serde(skip_serializing_if = "is_false")]
    pub accepts_empty_prompt: bool,
    /// The program that the npm package of an `npx` command installs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub native_binary: Option<String>,
    /// Selects between `npx` and the native binary.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launcher: Option<Launcher>,
    /// The host variables that the agent inherits. Default: all. A name may end in `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pass_env: Option<Vec<String>>,
    /// The host variables that the agent does not inherit; excludes `pass_env`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub drop_env: Vec<String>,
    /// A command that runs the agent's command, such as `["nice", "-n", "10"]`; an empty list
    /// removes the wrapper of the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrapper: Option<Vec<String>>,
    /// The sandbox, in the file as `"off"` or as a table `{ write = ["{workspace}"], read = "all", hide =
    /// ["~/.ssh"] }`; see [`Sandbox`](exec_core::Sandbox). It replaces the sandbox of the base as a
    /// whole, except for the folders that the agent itself needs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSetting>,
    /// The steps of a stop, in the file as `[{ action = "interrupt", grace_ms = 2000 }]`. The actions
    /// are `close_stdin`, `interrupt` and `terminate`. `KILL` always follows the last step.
    #[serde(with = "stop_steps", skip_serializing_if = "Option::is_none")]
    pub stop: Option<StopLadder>,
    /// Rules that recognise failures by their text, before those of the base and the common ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<FailureRule>,
    /// The protocol of live sessions, for an agent with a `binary`: `acp`, `claude` or `codex`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<LiveProtocol>,
    /// The arguments of a live session; in a change, they replace those of the base. `append_args` are
    /// added.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_args: Option<Vec<String>>,
    /// Which permission requests of live sessions are allowed, denied or asked; in a change, in
    /// addition to the rules of the base. Of all rules that match, the strictest decides.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRule>,
    /// How long a question stays open before it is denied. Default: ten minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permission_deadline_ms: Option<u64>,
    /// Variables to add to the agent's environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The variants, by label.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variants: BTreeMap<String, UserVariant>,
}

/// A variant of a [`UserProfile`]. A field that is not set is inherited from the profile.
///
/// ```
/// use exec_profiles::{UserProfile, UserVariant};
///
/// let mut readonly = UserVariant::default();
/// readonly.append_args = vec!["--disallowed-tools=Bash,Edit,Write".into()];
/// let mut claude = UserProfile::default();
/// claude.variants.insert("readonly".into(), readonly);
/// ```
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct UserVariant {
    /// The arguments of a new chat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Arguments to add after the `append_args` of the profile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub append_args: Vec<String>,
    /// The arguments of a follow-up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub follow_up_args: Option<Vec<String>>,
    /// The arguments of a live session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub live_args: Option<Vec<String>>,
    /// Rules for permission requests, in addition to those of the profile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub permissions: Vec<PermissionRule>,
    /// Variables to add to the `env` of the profile.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The sandbox, in place of the sandbox of the profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxSetting>,
}

/// The source of the session id of an agent that the user file describes.
///
/// In the file: `session_id = { from = "stdout", field = "session.id" }`.
///
/// ```
/// use exec_profiles::{SessionIdSource, UserProfile};
///
/// let mut agent = UserProfile::default();
/// agent.binary = Some("my-agent-cli".into());
/// agent.follow_up_args = Some(vec!["--continue={session_id}".into()]);
/// agent.session_id = Some(SessionIdSource::Stdout { field: "session.id".into() });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "from", rename_all = "snake_case", deny_unknown_fields)]
#[non_exhaustive]
pub enum SessionIdSource {
    /// The service mints the id and passes it to the agent in `{session_id}`.
    Minted,
    /// The first event that starts a session.
    Events,
    /// The first JSON line on standard output with this field.
    Stdout {
        /// The field, such as `session_id` or `session.id`.
        field: String,
    },
    /// A file that the agent writes after its start.
    Files {
        /// The folder; `~/` is the home folder of the agent.
        dir: String,
        /// The name of the file, with at most one `*`.
        name: String,
        /// The JSON field of the id.
        field: String,
    },
}

fn is_false(value: &bool) -> bool {
    !value
}

/// Shows the names of environment variables without their values.
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
            .field("protocol", &self.protocol)
            .field("live_args", &self.live_args)
            .field("permissions", &self.permissions)
            .field("sandbox", &self.sandbox)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("variants", &self.variants)
            .finish_non_exhaustive()
    }
}

/// Shows the names of environment variables without their values.
impl fmt::Debug for UserVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserVariant")
            .field("args", &self.args)
            .field("append_args", &self.append_args)
            .field("follow_up_args", &self.follow_up_args)
            .field("live_args", &self.live_args)
            .field("permissions", &self.permissions)
            .field("env", &self.env.keys().collect::<Vec<_>>())
            .field("sandbox", &self.sandbox)
            .finish()
    }
}
