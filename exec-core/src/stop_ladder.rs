use std::time::Duration;

/// How an execution is asked to end before it is made to.
///
/// The steps are taken in order, each on the whole process tree, until the tree is empty. `KILL`
/// follows the last step and is not part of the list: no ladder can leave it out.
///
/// The default is `TERM` with five seconds of grace.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopStep {
    /// What is done.
    pub action: StopAction,
    /// How long the tree may take to end before the next step.
    pub grace: Duration,
}

/// What a [`StopStep`] does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StopAction {
    /// Close the agent's standard input: for agents that run until its end
    /// ([`keep_stdin_open`](crate::ProcessParameters::keep_stdin_open)).
    CloseStdin,
    /// `SIGINT` to every process of the tree. A host that ignores it itself, as one in the
    /// background of a shell script does, passes that on: its agents heed only the next step.
    Interrupt,
    /// `SIGTERM` to every process of the tree.
    Terminate,
}

impl StopLadder {
    /// The ladder without steps: `KILL` straight away. Also the start for a ladder of one's own.
    pub fn kill_at_once() -> Self {
        Self { steps: Vec::new() }
    }

    /// Adds a step at the end.
    #[must_use]
    pub fn then(mut self, action: StopAction, grace: Duration) -> Self {
        self.steps.push(StopStep { action, grace });
        self
    }

    /// The steps before `KILL`, in order.
    pub fn steps(&self) -> &[StopStep] {
        &self.steps
    }
}

impl Default for StopLadder {
    fn default() -> Self {
        Self::kill_at_once().then(StopAction::Terminate, Duration::from_secs(5))
    }
}
