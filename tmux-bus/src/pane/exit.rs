use std::fmt;

/// How the program in a pane ended.
///
/// ```
/// use tmux_bus::Exit;
///
/// assert_eq!(Exit::Status(3).to_string(), "exit status 3");
/// assert_eq!(Exit::Signal(9).to_string(), "signal 9");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Exit {
    /// It exited with this status.
    Status(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// The pane is gone, or the exit was not reported.
    Unknown,
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "exit status {status}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
            Self::Unknown => f.write_str("status unknown"),
        }
    }
}
