use serde::{Deserialize, Serialize};

use super::sender::MAX_MESSAGE;

/// Why a message was refused. The program did not get it submitted: nothing was pasted, the program ended before
/// the submit, or the message was removed from the input line before Enter.
///
/// ```
/// use tmux_bus::Refusal;
///
/// assert_eq!(Refusal::Dead.to_string(), "the program in the pane has ended");
/// assert_eq!(serde_json::to_string(&Refusal::OwesAnswer)?, "\"owes_answer\"");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Refusal {
    /// The pane does not exist.
    #[error("the pane does not exist")]
    NoSuchPane,
    /// The program in the pane has ended.
    #[error("the program in the pane has ended")]
    Dead,
    /// The message switched the input line of the agent to another mode, such as a shell mode. It was removed, and
    /// Enter was not sent. As the source of [`Error::SubmitUnknown`](crate::Error::SubmitUnknown): the agent left
    /// the message in its input line after Enter.
    #[error("the agent did not take it")]
    NotTaken,
    /// The agent works, or its screen is not known, and did not become idle in time.
    #[error("the agent did not become idle in time")]
    Busy,
    /// The agent asks a person whether it may use a tool. A message would answer that question.
    #[error("the agent asks for approval: attach and answer it")]
    Approval,
    /// The agent shows a dialog. A message would answer it.
    #[error("the agent shows a dialog: attach and answer it")]
    Dialog,
    /// The input line of the agent has text that this crate did not type, or is in another mode.
    #[error("the input line of the agent has a draft: attach and send or delete it")]
    Draft,
    /// A person reads the scroll-back of the pane in copy mode, which a message would end.
    #[error("a person reads the scroll-back of the pane: leave copy mode with `q`")]
    CopyMode,
    /// The input of the pane is disabled.
    #[error("the input of the pane is disabled (`select-pane -e` enables it)")]
    InputOff,
    /// The agent has not yet answered an earlier message, whose sender has given up.
    #[error(
        "the agent still owes the answer to an earlier message (ClusterManager::reset gives that answer up)"
    )]
    OwesAnswer,
    /// The message is empty.
    #[error("it is empty")]
    Empty,
    /// The message is larger than 1 MiB.
    #[error("it is longer than {} bytes", MAX_MESSAGE)]
    TooLong,
    /// The message has a NUL byte, which a paste cannot carry.
    #[error("it has a NUL byte")]
    Nul,
    /// The message has the sequence that ends a bracketed paste.
    #[error("it has the sequence ESC[201~, which would end the paste inside the message")]
    PasteEnd,
    /// The message has a newline or a control character, and the program did not enable bracketed
    /// paste: each newline would submit.
    #[error(
        "it has a newline or a control character, and the program did not enable bracketed paste: each newline would submit (SendOptions::allow_unbracketed sends it anyway)"
    )]
    Unbracketed,
    /// The message has a special character of the pane's terminal, such as an interrupt. The
    /// terminal driver acts on it also inside a bracketed paste.
    #[error(
        "it has the byte {byte:#04x}, a special character of the pane's terminal (SendOptions::allow_unbracketed sends it anyway)"
    )]
    SpecialCharacter {
        /// The first such byte.
        byte: u8,
    },
    /// A line is longer than a terminal in canonical mode accepts.
    #[error(
        "a line of it has {length} bytes, and the pane's terminal accepts lines of at most {limit}"
    )]
    LineTooLong {
        /// Length of the longest line, in bytes.
        length: usize,
        /// The limit.
        limit: usize,
    },
}
