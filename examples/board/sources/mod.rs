//! The kinds of agents that the board can follow.

mod claims_source;
mod cluster_source;
mod history_source;
mod left_messages;
mod live_source;
mod pane_questions;
mod scripted_source;
mod snapshot_source;
mod story;
mod used;

pub use claims_source::ClaimsSource;
pub use cluster_source::ClusterSource;
pub use history_source::HistorySource;
pub use live_source::LiveSource;
pub use scripted_source::ScriptedSource;
pub use snapshot_source::SnapshotSource;
