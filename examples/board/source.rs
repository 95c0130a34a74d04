//! Where the board's agents are.

use async_trait::async_trait;

use super::action::{Action, ActionError};
use super::hub::Feed;

/// Follows agents and carries out commands.
///
/// 1. [`follow`](Self::follow) reports what is there, then every change, until it is dropped.
/// 2. [`perform`](Self::perform) gets actions for agents, permission requests and waiting messages
///    that this source has reported, several at once.
/// 3. Each permission request is answered at most once.
/// 4. The ids of agents are unique on the board, and the labels of stores, too. Of two agents with one id the first
///    is shown.
#[async_trait]
pub trait Source: Send + Sync {
    /// The name for failures of the source itself.
    fn name(&self) -> String;

    /// Reports changes until the end of the source. An error is shown on the board.
    async fn follow(&self, feed: Feed) -> crate::Result<()>;

    /// Carries out a command.
    async fn perform(&self, action: Action) -> Result<(), ActionError> {
        let _ = action;
        Err(ActionError::new("not_able", "this source only shows"))
    }
}
