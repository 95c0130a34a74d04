//! The interface between a store and the place of its entries.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::changes::Changes;
use super::decision::Decision;
use super::runtime::Runtime;
use crate::{Entries, Error, Incident, SessionId, Transaction};

/// The values that a store holds.
pub(crate) trait Value: Serialize + DeserializeOwned {}

impl<T: Serialize + DeserializeOwned> Value for T {}

/// A place of entries: files, or a server. Each operation is one linearizable step.
///
/// Rules for every backend; `tests/it/clauses.rs` checks them:
///
/// 1. An operation sees the live entries only: age at most timeout, owner process not known to have
///    ended.
/// 2. An operation changes the entry of its handle only, apart from the removal of expired entries.
/// 3. A claim is granted if no other session has an equal value, in any slot. Its token is larger
///    than every token before, except that a session keeps the token of a value that it holds.
/// 4. A failed or cancelled operation has changed nothing, or its error says that this is unknown.
/// 5. Waiters for a value are served in the order in which they joined.
pub(crate) trait Backend {
    /// A place in the queue of the waiters. Dropping it leaves the queue.
    type Turn;

    async fn store<R: Runtime, T: Value>(&self, value: &T) -> Result<(), Error>;

    /// Removes the own entry; with a token, only if the entry has it.
    async fn remove<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        limit: WaitLimit,
    ) -> Result<bool, Error>;

    /// Restarts the time of the own entry; with a token, only if the entry has it.
    async fn refresh<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        limit: WaitLimit,
    ) -> Result<bool, Error>;

    async fn restore<R: Runtime, T: Value>(&self) -> Result<Option<T>, Error>;

    async fn other_values<R: Runtime, T: Value>(&self) -> Result<BTreeMap<SessionId, T>, Error>;

    /// All entries. A watcher passes its `changes`, to be told when the owner of an entry ends.
    async fn entries<R: Runtime, T: Value>(
        &self,
        watcher: Option<&Changes>,
    ) -> Result<Entries<T>, Error>;

    /// Whether `token` is the token of a live entry, of any session.
    async fn has_token<R: Runtime, T: Value>(&self, token: u64) -> Result<bool, Error>;

    async fn claim<R: Runtime, T: Value + PartialEq>(
        &self,
        candidates: &[T],
        queue: Queue<'_, Self::Turn>,
    ) -> Result<(Decision, Vec<Incident>), Error>;

    async fn transaction<R: Runtime, T: Value, A>(
        &self,
        body: &mut impl FnMut(&mut Transaction<T>) -> A,
    ) -> Result<A, Error>;

    /// Leaves the queue, for a waiter whose time is over. It takes `limit` at most.
    async fn leave<R: Runtime>(&self, turn: Self::Turn, limit: Duration);

    /// Starts to watch for changes.
    fn changes(&self) -> Changes;
}

/// How long a change of the own entry may wait for the lock of the files. On a server the two times
/// limit the whole change.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitLimit {
    /// As the handle's policy says.
    Policy,
    /// As the handle's policy says, but this long if that is longer.
    AtLeast(Duration),
    /// As the handle's policy says, but no longer than this.
    AtMost(Duration),
}

/// The queue of the waiters, as a claim sees it.
pub(crate) enum Queue<'a, Turn> {
    /// Takes a free value ahead of all waiters.
    Barge {
        /// How long the claim may wait for the lock or the server; `None` as the handle's policy
        /// says.
        limit: Option<Duration>,
    },
    /// Takes a value only if no earlier waiter wants it, else joins the queue.
    Join {
        turn: &'a mut Option<Turn>,
        /// The time of the waiter. The claim may wait a second longer for the lock or the server.
        left: Duration,
        changes: &'a Changes,
    },
}
