//! The contract of [`SnapshotStorage`](crate::SnapshotStorage) as a suite that any backend can
//! run.
//!
//! ```
//! use std::sync::Arc;
//! use agent_snapshot::{MemoryStorage, conformance};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
//! assert!(report.passed(), "{report}");
//! # }
//! ```
//!
//! A backend that keeps its data outside the process implements [`Fixture`], so that the suite can
//! open it a second time and damage it.

mod agents;
mod clause;
mod contents;
mod fixture;
mod lifecycle;
mod operators;
mod order;
mod report;
mod rewind;
mod stream;
mod writers;

use std::sync::Arc;
use std::time::Duration;

use self::clause::{Clause, ClauseEnd, ClauseFixture};

pub use self::fixture::Fixture;
pub use self::report::{Outcome, Report, Verdict};

/// Only a call that hangs takes this long: on a machine with a load of 19, clauses of SQLite took more
/// than a minute.
const CLAUSE_TIMEOUT: Duration = Duration::from_secs(600);

/// Runs every clause, each on a fresh fixture.
///
/// Needs a tokio runtime with its timer enabled. A clause that takes longer than ten
/// minutes has failed.
///
/// # Cancel safety
///
/// Cancel safe: the current clause continues in the background.
pub async fn run<F: Fixture + 'static>(new_fixture: impl AsyncFn() -> F) -> Report {
    let mut outcomes = Vec::new();
    for clause in all_clauses() {
        let fixture = ClauseFixture(Arc::new(new_fixture().await));
        let task = tokio::spawn((clause.run)(fixture));
        let verdict = match tokio::time::timeout(CLAUSE_TIMEOUT, task).await {
            Ok(Ok(Ok(()))) => Verdict::Passed,
            Ok(Ok(Err(ClauseEnd::NotApplicable))) => Verdict::NotApplicable,
            Ok(Ok(Err(ClauseEnd::Failed(reason)))) => Verdict::Failed(reason),
            Ok(Err(panic)) => Verdict::Failed(panic.to_string()),
            Err(_) => Verdict::Failed("it did not end within ten minutes".to_owned()),
        };
        outcomes.push(Outcome {
            rule: clause.rule,
            clause: clause.name.replace('_', " "),
            verdict,
        });
    }
    Report { outcomes }
}

fn all_clauses() -> Vec<Clause> {
    [
        contents::CLAUSES,
        order::CLAUSES,
        agents::CLAUSES,
        stream::CLAUSES,
        writers::CLAUSES,
        lifecycle::CLAUSES,
        rewind::CLAUSES,
        operators::CLAUSES,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}
