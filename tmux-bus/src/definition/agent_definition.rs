//! What is known about one agent program.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;

use super::hook_rules::HookRules;
use super::screen_rules::{
    DecorationRules, DialogRule, IdleRules, InputRules, ScreenRule, TitleRule, milliseconds,
};

/// One agent program: how it is started, how its state is read, how text is typed into it and how its
/// answer is obtained. The key of a definition is its name.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AgentDefinition {
    /// Filled in after reading: the name is the key of the table.
    #[serde(skip)]
    pub(crate) name: String,
    /// Names of programs. A command that runs one of them is this agent.
    #[serde(default)]
    pub(crate) commands: Vec<String>,
    /// The command line for `sh` of an agent without a command. `{personality}` is the path of the
    /// personality, quoted.
    #[serde(default)]
    pub(crate) command: Option<String>,
    #[serde(default)]
    pub(crate) launch: LaunchRules,
    #[serde(default)]
    pub(crate) hook: Option<HookRules>,
    #[serde(default)]
    pub(crate) submit: SubmitRules,
    /// Missing for a program whose input line is found by a heuristic.
    #[serde(default)]
    pub(crate) input: Option<InputRules>,
    #[serde(default)]
    pub(crate) approval: Vec<ScreenRule>,
    #[serde(default)]
    pub(crate) dialog: Vec<DialogRule>,
    #[serde(default)]
    pub(crate) title: Vec<TitleRule>,
    #[serde(default)]
    pub(crate) working: Vec<ScreenRule>,
    /// Screens with an input line that takes no messages yet: a dialog may follow.
    #[serde(default)]
    pub(crate) starting: Vec<ScreenRule>,
    #[serde(default)]
    pub(crate) idle: IdleRules,
    #[serde(default)]
    pub(crate) decoration: DecorationRules,
}

impl AgentDefinition {
    /// Whether nothing is known about the screen of the program: its prompt is found by a heuristic.
    pub(crate) fn is_plain(&self) -> bool {
        self.input.is_none()
    }
}

/// Additions to the command of an agent. Placeholders are expanded at each launch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaunchRules {
    /// Arguments behind those of the command.
    #[serde(default)]
    pub(crate) args: Vec<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    /// Files in the private folder of the launch.
    #[serde(default)]
    pub(crate) file: Vec<LaunchFile>,
    /// Files that the agent reads if a variable of `env` is not set, by variable. They are merged into the
    /// file that the variable names.
    #[serde(default)]
    pub(crate) default_files: BTreeMap<String, Vec<PathBuf>>,
    /// Variables of `env` that name a file which the agent reads only if root owns it with all its folders. For
    /// other users they are not set.
    #[serde(default)]
    pub(crate) root_files: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaunchFile {
    /// A name in the private folder.
    pub(crate) path: String,
    /// A text with placeholders.
    #[serde(default)]
    pub(crate) content: Option<String>,
    /// A file that is part of this crate, in place of `content`.
    #[serde(default)]
    pub(crate) source: Option<HookSource>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub(crate) enum HookSource {
    #[serde(rename = "opencode.js")]
    Opencode,
}

/// How a message is typed.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubmitRules {
    /// Time between the paste and Enter: some agents take an early Enter for a part of the paste.
    #[serde(default, rename = "delay_ms", deserialize_with = "milliseconds")]
    pub(crate) delay: Duration,
    /// Quiet time of the pane that ends an answer on the screen; zero for the general one.
    #[serde(default, rename = "quiet_ms", deserialize_with = "milliseconds")]
    pub(crate) quiet: Duration,
    /// First characters that make a command of a message.
    #[serde(default)]
    pub(crate) special_first: Vec<char>,
    /// Keys that remove a typed line.
    #[serde(default)]
    pub(crate) clear_keys: Vec<String>,
    /// Whether the agent follows the request for a marker that is made for one message.
    #[serde(default)]
    pub(crate) nonce: bool,
    /// Whether a message of another agent begins with a line that says so; the default is yes for an agent whose
    /// screen is known.
    #[serde(default)]
    pub(crate) frame: Option<bool>,
}
