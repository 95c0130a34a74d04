//! One turn of a live session, as its caller sees it.

use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use super::live_event::{DropReason, MessageId, TurnId};
use super::protocol_driver::TurnOutcome;
use crate::{Error, UsageTotals};

/// A turn that a prompt has started, or will start when the turns before it have ended.
///
/// Cheap to clone. Dropping it changes nothing: the turn takes place, and its end is an event.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, session) = doctest::open_live().await;
/// let first = session.prompt("hello")?;
/// let second = session.prompt("and again")?; // waits for the end of the first
/// assert!(first.id() < second.id());
/// assert_eq!(second.ended().await?.text, "AND AGAIN");
/// # session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Turn {
    pub(super) id: TurnId,
    pub(super) end: watch::Receiver<Option<TurnResult>>,
}

/// How a turn ended, or why it never began.
pub(super) type TurnResult = Result<Arc<TurnReport>, DropReason>;

/// How a turn ended. `Debug` shows the size of the text.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, session) = doctest::open_live().await;
/// use exec_core::TurnOutcome;
///
/// let report = session.prompt("hello")?.ended().await?;
/// assert_eq!(report.outcome, TurnOutcome::Completed);
/// assert_eq!(report.text, "HELLO");
/// assert!(report.is_whole);
/// # session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq)]
#[non_exhaustive]
pub struct TurnReport {
    /// The turn.
    pub turn: TurnId,
    /// How it ended.
    pub outcome: TurnOutcome,
    /// The answer: the final text of the agent, or else its last message, as far as it was
    /// received. A last message is cut at 16 MiB.
    pub text: String,
    /// Whether nothing of `text` is missing: it was not cut, and no line that may have been a part of
    /// it was longer than [`max_line_bytes`](crate::ExecutionServiceBuilder::max_line_bytes). Such a line
    /// is not read; a turn whose end is in it lasts until the process ends. A turn that did not complete
    /// may have a text without holes that is not the whole answer.
    pub is_whole: bool,
    /// Tokens and cost of the run and of the session at the end of the turn, if the agent has
    /// reported them in this turn.
    pub usage: Option<UsageTotals>,
    /// The sequence number of the event that reports the end.
    pub sequence: u64,
}

impl Turn {
    /// The number of the turn, which is that of its message.
    pub fn id(&self) -> TurnId {
        self.id
    }

    /// The number of the message, to [take it back](crate::LiveSession::take_back).
    pub fn message(&self) -> MessageId {
        self.id.into()
    }

    /// Waits for the end of the turn. The end of the process ends it, too, with
    /// [`TurnOutcome::Uncertain`] and the text that was received.
    ///
    /// A turn whose message waits when the process ends goes on waiting for
    /// [`LiveSession::resume`](crate::LiveSession::resume), as long as there is a handle of the
    /// session.
    ///
    /// # Errors
    ///
    /// [`Error::NotDelivered`] if the message was dropped before it was delivered.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future has no effect.
    pub async fn ended(&self) -> Result<Arc<TurnReport>, Error> {
        let mut end = self.end.clone();
        let result = match end.wait_for(Option::is_some).await {
            Ok(end) => end.clone(),
            Err(_) => None,
        };
        let result = result.unwrap_or(Err(DropReason::SessionEnded));
        result.map_err(|reason| Error::NotDelivered {
            message: self.message(),
            reason,
        })
    }
}

impl fmt::Debug for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turn")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for TurnReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TurnReport")
            .field("turn", &self.turn)
            .field("outcome", &self.outcome)
            .field("len", &self.text.len())
            .field("is_whole", &self.is_whole)
            .field("usage", &self.usage)
            .field("sequence", &self.sequence)
            .finish()
    }
}
