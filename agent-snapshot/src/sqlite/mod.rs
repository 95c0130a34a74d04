//! Snapshots in a SQLite database.

mod database;
mod message_chain;
mod sqlite_storage;
mod worker;

pub use sqlite_storage::{SqliteStorage, SqliteStorageBuilder};
