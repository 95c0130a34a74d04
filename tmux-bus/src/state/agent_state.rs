use std::fmt;

/// The state of an agent.
///
/// ```
/// use tmux_bus::AgentState;
///
/// let state = AgentState::Dialog { id: "trust".to_owned() };
/// assert!(state.needs_a_person() && !AgentState::Idle.needs_a_person());
/// assert_eq!(state.to_string(), "dialog (trust)");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AgentState {
    /// It has been started and has shown nothing yet.
    Starting,
    /// It waits for a message. Its input line may hold text that a person is typing.
    Idle,
    /// It works on a message.
    Working,
    /// It asks a person whether it may use a tool.
    WaitingForApproval,
    /// It asks a person something else, such as whether to trust the folder, to log in, or which theme
    /// to use. It takes no messages until the person has answered.
    Dialog {
        /// The dialog, by the name in the definition of the agent, such as `trust`.
        id: String,
    },
    /// Its program has ended.
    Exited,
    /// No rule matches what it shows.
    Unknown,
}

impl AgentState {
    /// Whether the agent waits for a person: a message would be taken for the answer of the person.
    #[must_use]
    pub fn needs_a_person(&self) -> bool {
        matches!(self, Self::WaitingForApproval | Self::Dialog { .. })
    }
}

impl fmt::Display for AgentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Starting => f.write_str("starting"),
            Self::Idle => f.write_str("idle"),
            Self::Working => f.write_str("working"),
            Self::WaitingForApproval => f.write_str("waiting for approval"),
            Self::Dialog { id } => write!(f, "dialog ({id})"),
            Self::Exited => f.write_str("exited"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// Why an agent is believed to be in its state.
///
/// ```
/// use tmux_bus::{AgentStatus, EvidenceSource};
///
/// fn is_certain(agent: &AgentStatus) -> bool {
///     matches!(agent.evidence.source, EvidenceSource::Hook | EvidenceSource::Process)
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evidence {
    /// Where the evidence comes from.
    pub source: EvidenceSource,
    /// The rule that matched, such as `dialog:trust`, or the event of a hook.
    pub rule: String,
}

impl Evidence {
    pub(crate) fn new(source: EvidenceSource, rule: impl Into<String>) -> Self {
        Self {
            source,
            rule: rule.into(),
        }
    }
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.source {
            // The rules of titles have it in their names.
            EvidenceSource::Title => f.write_str(&self.rule),
            source => write!(f, "{source}: {}", self.rule),
        }
    }
}

/// The source of an [`Evidence`], from the most to the least reliable.
///
/// ```
/// use tmux_bus::EvidenceSource;
///
/// assert_eq!(EvidenceSource::Screen.to_string(), "screen");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EvidenceSource {
    /// The program of the agent: it runs, or it has ended.
    Process,
    /// A hook of the agent reported it.
    Hook,
    /// The title of the terminal.
    Title,
    /// The screen.
    Screen,
}

impl fmt::Display for EvidenceSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Process => "process",
            Self::Hook => "hook",
            Self::Title => "title",
            Self::Screen => "screen",
        })
    }
}
