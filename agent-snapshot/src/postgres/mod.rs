//! Snapshots in PostgreSQL.
//!
//! # Theory
//!
//! Each change is one call of a function in the database, which is one transaction: compare-and-swap
//! of the stamp, the new messages as rows, the new body. So a save takes one round trip.
//!
//! **Batches.** A commit waits for the disk, or for a standby. While one batch of saves is under way,
//! other callers queue theirs, and the next call takes all of them: 64 agents share one commit. With
//! one caller each batch has one save. Two callers lock the rows of their agents in the same order,
//! so they cannot deadlock.
//!
//! **Pooling.** A pooler such as PgBouncer in transaction mode gives each transaction any of its server
//! connections. So nothing here belongs to a session: no named prepared statements (every statement
//! is sent with its parameter types, unnamed), no `SET`, no advisory lock beyond a transaction. The
//! tests run the conformance suite through a PgBouncer that gives no two transactions in a row the
//! same server connection.
//!
//! **Retries.** If the connection breaks, the outcome of a save is unknown. The same call is sent
//! again on a new connection. If the first one took effect, the second finds another stamp than
//! the expected one, the save is judged again, and its digest shows that it is a repeat. A delete
//! names the incarnation of the agent that it read: the second one finds another incarnation, and
//! keeps an agent that was created in between.

mod connection;
mod postgres_storage;
mod save_queue;

pub use connection::Tls;
pub use postgres_storage::{PostgresStorage, PostgresStorageBuilder};
