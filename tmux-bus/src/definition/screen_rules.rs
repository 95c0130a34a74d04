//! Rules that tell the state of an agent by its screen and its title.

use std::time::Duration;

use serde::{Deserialize, Deserializer};

use super::pattern::{self, Pattern};

/// Lines that must and must not be on the screen.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScreenRule {
    pub(crate) id: String,
    /// Each of these patterns matches some line of the window.
    #[serde(default)]
    pub(crate) all: Vec<Pattern>,
    /// None of these patterns matches a line of the window.
    #[serde(default)]
    pub(crate) none: Vec<Pattern>,
    /// Each line of the window matches one of these patterns; no condition if there are none.
    #[serde(default)]
    pub(crate) only: Vec<Pattern>,
    /// Number of lines with text, from the bottom of the screen.
    #[serde(default = "default_window")]
    pub(crate) window: usize,
    #[serde(default)]
    pub(crate) place: RulePlace,
}

/// The lines of the window that a rule looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RulePlace {
    #[default]
    Anywhere,
    /// Lines above the input line. Without an input line the rule does not match.
    AboveInput,
    /// Lines below the input line. Without an input line the rule does not match.
    BelowInput,
    /// All lines. With an input line the rule does not match: what looks like a dialog is an answer.
    WithoutInput,
}

/// A question that a person has to answer before the agent takes messages.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DialogRule {
    pub(crate) id: String,
    pub(crate) all: Vec<Pattern>,
    #[serde(default)]
    pub(crate) none: Vec<Pattern>,
    #[serde(default = "default_window")]
    pub(crate) window: usize,
    #[serde(default)]
    pub(crate) place: RulePlace,
    /// What the dialog asks, and the remedy.
    pub(crate) say: String,
}

/// The state by the title of the terminal.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TitleRule {
    pub(crate) id: String,
    pub(crate) state: TitleState,
    pub(crate) pattern: Pattern,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TitleState {
    Working,
    Approval,
    /// Also shown while a dialog is open: counts only together with the input line.
    Idle,
}

/// Where the agent shows the text that is typed.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InputRules {
    /// The first line: groups `prefix` and `text`.
    #[serde(deserialize_with = "pattern::with_prefix_and_text")]
    pub(crate) line: Pattern,
    /// The following lines: group `text`. Not for a box.
    #[serde(default, deserialize_with = "pattern::with_text_if_any")]
    pub(crate) next: Option<Pattern>,
    /// The first line below the text.
    #[serde(default)]
    pub(crate) end: Option<Pattern>,
    /// The lower edge of a box. Text right of it belongs to a side bar.
    #[serde(default, rename = "box")]
    pub(crate) frame: Option<BoxRules>,
    /// A text that is shown while nothing is typed.
    #[serde(default)]
    pub(crate) placeholder: Option<Pattern>,
    /// A placeholder for a long paste.
    #[serde(default)]
    pub(crate) pasted: Option<Pattern>,
    /// Lines of an input line whose text is not a message, such as a shell mode.
    #[serde(default)]
    pub(crate) other_modes: Vec<Pattern>,
}

/// An input line inside a box.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BoxRules {
    pub(crate) end: Pattern,
    /// Rows of the box above the text.
    pub(crate) above: usize,
    /// Rows of the box below the text.
    pub(crate) below: usize,
}

/// When an agent with an input line is idle.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdleRules {
    /// Quiet time after which a screen counts as drawn.
    #[serde(
        default = "default_settle",
        rename = "settle_ms",
        deserialize_with = "milliseconds"
    )]
    pub(crate) settle: Duration,
    /// Lines below the input line that hide whether the agent works: the state is then unknown, except
    /// after a line of `done`.
    #[serde(default)]
    pub(crate) hold: Vec<Pattern>,
    /// Lines just above the input line that tell that the agent has finished.
    #[serde(default)]
    pub(crate) done: Vec<Pattern>,
}

impl Default for IdleRules {
    fn default() -> Self {
        Self {
            settle: default_settle(),
            hold: Vec::new(),
            done: Vec::new(),
        }
    }
}

/// Lines of a screen that do not belong to an answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DecorationRules {
    /// Lines that are removed.
    #[serde(default)]
    pub(crate) drop: Vec<Pattern>,
    /// The first line of a paragraph of the agent: group `text`.
    #[serde(default, deserialize_with = "pattern::with_text_if_any")]
    pub(crate) answer_first: Option<Pattern>,
    /// Other lines of the agent: group `text`.
    #[serde(default, deserialize_with = "pattern::with_text_if_any")]
    pub(crate) answer_next: Option<Pattern>,
    /// Lines that show the use of a tool.
    #[serde(default)]
    pub(crate) tool: Vec<Pattern>,
    /// Columns right of the input box belong to a side bar.
    #[serde(default)]
    pub(crate) side_bar: bool,
}

pub(super) fn milliseconds<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Duration, D::Error> {
    u32::deserialize(deserializer).map(|ms| Duration::from_millis(ms.into()))
}

fn default_window() -> usize {
    12
}

fn default_settle() -> Duration {
    Duration::from_millis(300)
}
