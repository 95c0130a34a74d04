//! Sessions: conversations of many users, in a storage that many processes share.
//!
//! # Theory
//!
//! No process owns a session, and nothing is locked while a turn runs: a lock would outlive its
//! process or expire under it. Instead every save is a compare-and-swap on the tick of the
//! session's snapshot. The process that saves first wins; the loser *rebases*: it loads the
//! session again, appends its own uncommitted messages behind the new ones, checks the pairing of
//! calls and results again, and repeats the save.
//!
//! **Example.**
//!
//! | time | process A | process B | stream |
//! |---|---|---|---|
//! | 1 | gets the session, tick 5 | gets the session, tick 5 | m0 |
//! | 2 | appends a1, commits tick 6 | appends b1 | m0, a1 |
//! | 3 | | commits tick 6: conflict | m0, a1 |
//! | 4 | | loads tick 6, rebases b1, commits tick 7 | m0, a1, b1 |
//!
//! **Invariants.** For every interleaving of processes and every crash:
//!
//! 1. *A committed message is never lost.* A save appends to the stream; a conflict changes
//!    nothing.
//! 2. *A message is stored once.* If the answer of a save is lost, the next commit conflicts with
//!    it, finds its own messages in the stream by their ids, and leaves them out.
//! 3. *A message never enters another conversation.* A reset changes `start`; a rebase that finds
//!    another `start` fails with `SessionReset`. Each session has a random `incarnation`; a rebase
//!    that finds another one, because the id is in use again, fails with `UnknownSession`.
//! 4. *An ended session stays ended.* `load` treats it as unknown, and after its deletion the
//!    storage refuses the old epoch.
//!
//! [`delivery`] describes how an ended conversation reaches long-term memory.

mod delivery;
mod session;
mod session_id;
mod session_manager;
mod session_record;
mod session_store;

pub use delivery::Offloaded;
pub use session::{Committed, Session, SummaryOutcome};
pub use session_id::SessionId;
pub use session_manager::{Expired, SessionInfo, SessionManager};
