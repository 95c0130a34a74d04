//! The records of a service.
//!
//! ```text
//! <state>/owners/<uuid>.jsonl   one journal of each service, locked while the service lives
//! <state>/history.jsonl         the executions of all services
//! <state>/history.1.jsonl       the history before that
//! <state>/permissions.jsonl     the decisions of live sessions; `permissions.1.jsonl` before that
//! <state>/admission/            the queue and the slots; see `admission`
//! <state>/budgets/              what groups and sessions have used; see `budget`
//! ```
//!
//! A record in `owners/` decides which processes [`reap_orphans`](crate::ExecutionService::reap_orphans)
//! ends, so the folder and its files must be private.
//!
//! Nothing is synced to disk: a power cut also ends the processes that the records are about.

mod history;
mod history_contents;
mod host_watcher;
mod orphans;
mod owner_journal;

pub use history::History;
pub use history_contents::{
    HistoryContents, HistoryEntry, HistoryPermission, HistoryState, ProfileStatistics, SkippedLine,
};
pub use orphans::{ReapReport, ReapedExecution};

pub(crate) use history::{HistoryEvent, milliseconds};
pub(crate) use owner_journal::{LaunchRecord, LiveRecord, OrphanedJournal, OwnerJournal, boot_id};
