//! Entries on a Redis or Valkey server, for several machines.
//!
//! A store is one hash, `timed-store:{name}`; `prelude.lua` lists its fields. The braces make a hash
//! tag, so that all keys of a store are in one slot of a cluster.
//!
//! # Theory
//!
//! - *One script an operation.* The server runs a script as a whole, with its own clock: operations
//!   are linearizable, and the clocks of clients do not matter.
//! - *No double execution.* A client numbers its changes and sends one at a time. The server keeps
//!   the last number of each client with its answer. A call whose answer was lost is sent again
//!   with its number, and gets the remembered answer. A copy that arrives after a later call (a
//!   stalled connection) is refused.
//! - *Limits.* A call with a deadline ends with it, and says whether the server may have executed it. A
//!   copy may still be under way then, so the next read sends an empty change first: the server
//!   refuses the copy because its number is lower, so the read returns the current state.
//! - *Dropped guards* release on a thread with a runtime and a connection of its own, because the
//!   runtime of the handle may end before a task of it runs.
//! - *Failover.* Replication is asynchronous: a promoted replica may not know the last grants, and
//!   not the last token. So a token is larger than the server's time in milliseconds, too. With
//!   `acknowledged_by`, a `WAIT` follows the script on the same connection; a grant that too few
//!   replicas have is withdrawn, with a `WAIT` too: a replica with the grant only would lose the
//!   value that the session held before.
//! - *Waiting.* Every change is published on a channel with the name of the hash. Waiters keep a
//!   ticket in the hash, which they renew; the ticket of a dead waiter expires. Messages can be
//!   lost, so a waiter checks the store at least once a second.
//! - *Owner processes* are checked by clients on the same machine, which then remove the entry. Before
//!   a script renews or removes an entry with an owner that the client has not checked, it answers
//!   `check`.
//! - *Memory.* The server must not evict keys (`maxmemory-policy noeviction`): a store is one key, and
//!   a request that was forgotten would be executed again.

mod connection;
mod redis_backend;
mod redis_builder;
mod subscriber;

pub(crate) use redis_backend::RedisBackend;
pub use redis_builder::RedisBuilder;
pub(crate) use subscriber::Subscriber;
