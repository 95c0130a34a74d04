//! The contract of [`SnapshotStorage`] as a suite that any backend can run.
//!
//! ```
//! use agent_snapshot::{MemoryStorage, conformance};
//! use std::sync::Arc;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
//! assert!(report.passed(), "{report}");
//! # }
//! ```
//!
//! A backend that keeps its data outside of the process implements [`Fixture`], so that the
//! suite can open it a second time and damage it.

mod agents;
mod contents;
mod order;
mod report;
mod rest;
mod stream;
mod writers;

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{AgentId, AgentSnapshot, Error, SnapshotStorage, conversation::Message};

pub use report::{Outcome, Report, Verdict};

/// One empty place where a backend keeps its data.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// Opens the place; each call is another writer on the same data.
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error>;

    /// Makes what is stored for `agent` unreadable, behind the storage's back. `false` when
    /// this cannot be done; the clauses about damage do not apply then.
    async fn damage(&self, _agent: &AgentId) -> bool {
        false
    }
}

#[async_trait]
impl<S: SnapshotStorage + 'static> Fixture for Arc<S> {
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Error> {
        Ok(self.clone())
    }
}

/// Runs every clause, each on a fresh fixture.
///
/// Must run on a tokio runtime with its timer enabled. A clause that does not end within a
/// minute has failed.
///
/// # Cancel safety
///
/// Cancel safe: the clause that is running goes on in the background.
pub async fn run<F: Fixture + 'static>(new_fixture: impl AsyncFn() -> F) -> Report {
    let mut outcomes = Vec::new();
    for clause in all_clauses() {
        let place = Place(Arc::new(new_fixture().await));
        let task = tokio::spawn((clause.run)(place));
        let verdict = match tokio::time::timeout(Duration::from_secs(60), task).await {
            Ok(Ok(Ok(()))) => Verdict::Passed,
            Ok(Ok(Err(Stop::NotApplicable))) => Verdict::NotApplicable,
            Ok(Ok(Err(Stop::Failed(reason)))) => Verdict::Failed(reason),
            Ok(Err(panic)) => Verdict::Failed(panic.to_string()),
            Err(_) => Verdict::Failed("it did not end within 60 seconds".to_owned()),
        };
        outcomes.push(Outcome {
            rule: clause.rule,
            clause: clause.name.replace('_', " "),
            verdict,
        });
    }
    Report { outcomes }
}

#[derive(Clone, Copy)]
struct Clause {
    rule: u8,
    name: &'static str,
    run: fn(Place) -> Pin<Box<dyn Future<Output = Check> + Send>>,
}

fn all_clauses() -> Vec<Clause> {
    [
        contents::CLAUSES,
        order::CLAUSES,
        agents::CLAUSES,
        stream::CLAUSES,
        writers::CLAUSES,
        rest::CLAUSES,
    ]
    .into_iter()
    .flatten()
    .copied()
    .collect()
}

/// Lists the clauses of a file with the rule that each belongs to.
macro_rules! clauses {
    ($($rule:literal $name:ident),* $(,)?) => {
        pub(super) const CLAUSES: &[crate::conformance::Clause] = &[$(
            crate::conformance::Clause {
                rule: $rule,
                name: stringify!($name),
                run: |place| Box::pin($name(place)),
            },
        )*];
    };
}

/// Ends a clause with a reason unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(crate::conformance::Stop::Failed(format!($($reason)+)));
        }
    };
}

use clauses;
use ensure;

type Check = Result<(), Stop>;

enum Stop {
    Failed(String),
    NotApplicable,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        let mut reason = format!("unexpected error: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            reason.push_str(&format!(": {error}"));
            source = error.source();
        }
        Self::Failed(reason)
    }
}

impl From<tokio::task::JoinError> for Stop {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(error.to_string())
    }
}

struct Place(Arc<dyn Fixture>);

impl Place {
    async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, Stop> {
        Ok(self.0.open().await?)
    }
}

fn id(name: &str) -> Result<AgentId, Stop> {
    Ok(AgentId::new(name)?)
}

/// A snapshot with one message for each tick.
fn ticked(name: &str, ticks: u64) -> Result<AgentSnapshot, Stop> {
    let mut snapshot = AgentSnapshot::new(id(name)?);
    for _ in 0..ticks {
        tick(&mut snapshot);
    }
    Ok(snapshot)
}

fn tick(snapshot: &mut AgentSnapshot) {
    snapshot.tick_index += 1;
    snapshot.revision = 0;
    snapshot.timestamp = 1_706_582_400_000 + snapshot.tick_index;
    let text = format!("message of tick {}", snapshot.tick_index);
    let variables = &mut snapshot.memory.working_variables;
    variables.insert("tick".to_owned(), snapshot.tick_index.into());
    snapshot.memory.short_term_history.push(Message::user(text));
}

/// Checks that exactly this snapshot is stored.
async fn stored(storage: &dyn SnapshotStorage, snapshot: &AgentSnapshot) -> Check {
    let Some(loaded) = storage.load(&snapshot.agent_id).await? else {
        return Err(Stop::Failed(format!("{} is not stored", snapshot.agent_id)));
    };
    same(&loaded, snapshot)
}

fn same(loaded: &AgentSnapshot, saved: &AgentSnapshot) -> Check {
    ensure!(
        loaded.memory.short_term_history == saved.memory.short_term_history,
        "the history differs: loaded {:?}, saved {:?}",
        loaded.memory.short_term_history,
        saved.memory.short_term_history
    );
    ensure!(
        loaded == saved,
        "the snapshot differs: loaded {loaded:?}, saved {saved:?}"
    );
    Ok(())
}

/// Saves and checks that exactly this is loaded, by this handle and by another one.
async fn round_trip(place: &Place, snapshot: &AgentSnapshot) -> Check {
    let storage = place.open().await?;
    storage.save(snapshot).await?;
    stored(&*storage, snapshot).await?;
    stored(&*place.open().await?, snapshot).await
}

/// Checks that the save is refused as stale.
async fn refused(storage: &dyn SnapshotStorage, snapshot: &AgentSnapshot) -> Result<Error, Stop> {
    match storage.save(snapshot).await {
        Err(error) if error.is_conflict() => Ok(error),
        Err(error) => Err(error.into()),
        Ok(()) => Err(Stop::Failed(format!("{snapshot:?} was accepted"))),
    }
}

/// The numbers and texts of the whole stream.
async fn whole_stream(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
) -> Result<Vec<(u64, String)>, Stop> {
    let stream = storage.history(agent, 0..u64::MAX).await?;
    let text = |message: Message| message.content.unwrap_or_default();
    Ok(stream
        .into_iter()
        .map(|(seq, message)| (seq, text(message)))
        .collect())
}
