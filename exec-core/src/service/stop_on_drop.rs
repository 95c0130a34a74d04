use crate::run::StopManner;
use crate::{Execution, StoppedBy};

/// Stops the execution of a future that is dropped before its end.
pub(super) struct StopOnDrop(Option<Execution>);

impl StopOnDrop {
    pub(super) fn new(execution: &Execution) -> Self {
        Self(Some(execution.clone()))
    }

    pub(super) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(execution) = &self.0 {
            let live = &execution.live;
            live.ask_to_stop(StoppedBy::Caller, StopManner::Ladder);
        }
    }
}
