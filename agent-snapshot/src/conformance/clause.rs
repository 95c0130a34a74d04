//! The parts of a clause: its outcome, its fixture, and steps that many clauses share.

use std::pin::Pin;
use std::sync::Arc;

use super::Fixture;
use crate::conversation::Message;
use crate::{AgentId, AgentSnapshot, Error, SnapshotStorage};

#[derive(Clone, Copy)]
pub(super) struct Clause {
    /// The number of the rule in the contract.
    pub(super) rule: u8,
    pub(super) name: &'static str,
    pub(super) run: fn(ClauseFixture) -> Pin<Box<dyn Future<Output = ClauseResult> + Send>>,
}

/// Lists the clauses of a file, each with the number of its rule.
macro_rules! clauses {
    ($($rule:literal $name:ident),* $(,)?) => {
        pub(super) const CLAUSES: &[crate::conformance::clause::Clause] = &[$(
            crate::conformance::clause::Clause {
                rule: $rule,
                name: stringify!($name),
                run: |fixture| Box::pin($name(fixture)),
            },
        )*];
    };
}

/// Ends a clause with a reason unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($reason:tt)+) => {
        if !$condition {
            return Err(crate::conformance::clause::ClauseEnd::Failed(format!($($reason)+)));
        }
    };
}

pub(super) use clauses;
pub(super) use ensure;

pub(super) type ClauseResult = Result<(), ClauseEnd>;

/// Why a clause ended early.
pub(super) enum ClauseEnd {
    Failed(String),
    NotApplicable,
}

impl From<Error> for ClauseEnd {
    fn from(error: Error) -> Self {
        if error.is_unsupported() {
            return Self::NotApplicable;
        }
        let mut reason = format!("unexpected error: {error}");
        let mut source = std::error::Error::source(&error);
        while let Some(error) = source {
            reason.push_str(&format!(": {error}"));
            source = error.source();
        }
        Self::Failed(reason)
    }
}

impl From<tokio::task::JoinError> for ClauseEnd {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::Failed(error.to_string())
    }
}

pub(super) struct ClauseFixture(pub(super) Arc<dyn Fixture>);

impl ClauseFixture {
    pub(super) async fn open(&self) -> Result<Arc<dyn SnapshotStorage>, ClauseEnd> {
        Ok(self.0.open().await?)
    }
}

pub(super) fn id(name: &str) -> Result<AgentId, ClauseEnd> {
    Ok(AgentId::new(name)?)
}

/// A snapshot with one message for each tick.
pub(super) fn ticked(name: &str, ticks: u64) -> Result<AgentSnapshot, ClauseEnd> {
    let mut snapshot = AgentSnapshot::new(id(name)?);
    for _ in 0..ticks {
        tick(&mut snapshot);
    }
    Ok(snapshot)
}

pub(super) fn tick(snapshot: &mut AgentSnapshot) {
    snapshot.tick_index += 1;
    snapshot.revision = 0;
    snapshot.timestamp = 1_706_582_400_000 + snapshot.tick_index;
    let text = format!("message of tick {}", snapshot.tick_index);
    let variables = &mut snapshot.memory.working_variables;
    variables.insert("tick".to_owned(), snapshot.tick_index.into());
    snapshot.memory.short_term_history.push(Message::user(text));
}

/// Checks that this snapshot is stored.
pub(super) async fn stored(
    storage: &dyn SnapshotStorage,
    snapshot: &AgentSnapshot,
) -> ClauseResult {
    let Some(loaded) = storage.load(&snapshot.agent_id).await? else {
        return Err(ClauseEnd::Failed(format!(
            "{} is not stored",
            snapshot.agent_id
        )));
    };
    same(&loaded, snapshot)
}

pub(super) fn same(loaded: &AgentSnapshot, saved: &AgentSnapshot) -> ClauseResult {
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

/// Saves a snapshot, and checks that this handle and another one load the same.
pub(super) async fn round_trip(fixture: &ClauseFixture, snapshot: &AgentSnapshot) -> ClauseResult {
    let storage = fixture.open().await?;
    storage.save(snapshot).await?;
    stored(&*storage, snapshot).await?;
    stored(&*fixture.open().await?, snapshot).await
}

/// Checks that the save is refused as a conflict.
pub(super) async fn refused(
    storage: &dyn SnapshotStorage,
    snapshot: &AgentSnapshot,
) -> Result<Error, ClauseEnd> {
    match storage.save(snapshot).await {
        Err(error) if error.is_conflict() => Ok(error),
        Err(error) => Err(error.into()),
        Ok(()) => Err(ClauseEnd::Failed(format!("{snapshot:?} was accepted"))),
    }
}

/// The numbers and texts of the whole stream.
pub(super) async fn whole_stream(
    storage: &dyn SnapshotStorage,
    agent: &AgentId,
) -> Result<Vec<(u64, String)>, ClauseEnd> {
    let stream = storage.stream(agent, 0..u64::MAX).await?;
    let text = |message: Message| message.content.unwrap_or_default();
    Ok(stream
        .into_iter()
        .map(|(seq, message)| (seq, text(message)))
        .collect())
}
