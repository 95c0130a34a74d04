//! The steps of a stop.

use std::time::Duration;

/// The steps by which an execution is asked to end before it is killed.
///
/// Each step applies to the whole process tree. The next one follows when the grace of the step
/// has passed and processes are left. `KILL` always comes last and is not part of the list.
///
/// The default is `TERM` with a grace of five seconds.
///
/// ```
/// use std::time::Duration;
/// use exec_core::{StopAction, StopLadder};
///
/// let ladder = StopLadder::kill_at_once()
///     .then(StopAction::Interrupt, Duration::from_secs(2))
///     .then(StopAction::Terminate, Duration::from_secs(1));
/// assert_eq!(ladder.steps().len(), 2);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopLadder {
    steps: Vec<StopStep>,
}

/// One step of a [`StopLadder`].
///
/// ```
/// use std::time::Duration;
/// use exec_core::{StopAction, StopLadder};
///
/// let first = StopLadder::default().steps()[0];
/// assert_eq!(first.action, StopAction::Terminate);
/// assert_eq!(first.grace, Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopStep {
    /// The action of the step.
    pub action: StopAction,
    /// How long the tree may take to end before the next step.
    pub grace: Duration,
}

/// The action of a [`StopStep`].
///
/// ```
/// use std::time::Duration;
/// use exec_core::{StopAction, StopLadder};
///
/// // For an agent that ends with its input.
/// let ladder = StopLadder::kill_at_once().then(StopAction::CloseStdin, Duration::from_secs(10));
/// assert_eq!(ladder.steps()[0].action, StopAction::CloseStdin);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopAction {
    /// Closes the agent's standard input: for agents that run until its end
    /// ([`keep_stdin_open`](crate::ProcessParameters::keep_stdin_open)).
    CloseStdin,
    /// `SIGINT` to every process of the tree. On macOS an agent inherits the signal as ignored from
    /// a host that ignores it, such as one in the background of a shell script, and then reacts only
    /// to the next step.
    Interrupt,
    /// `SIGTERM` to every process of the tree.
    Terminate,
}

impl StopLadder {
    /// The ladder without steps: `KILL` at once. Add steps with [`then`](Self::then).
    #[must_use]
    pub fn kill_at_once() -> Self {
        Self { steps: Vec::new() }
    }

    /// Adds a step at the end.
    #[must_use]
    pub fn then(mut self, action: StopAction, grace: Duration) -> Self {
        self.steps.push(StopStep { action, grace });
        self
    }

    /// The steps before `KILL`.
    pub fn steps(&self) -> &[StopStep] {
        &self.steps
    }
}

impl Default for StopLadder {
    fn default() -> Self {
        Self::kill_at_once().then(StopAction::Terminate, Duration::from_secs(5))
    }
}
