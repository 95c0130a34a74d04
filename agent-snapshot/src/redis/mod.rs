//! Snapshots in Redis.
//!
//! An agent has two keys under one hash tag, so that they are in one slot of a cluster:
//!
//! | key | type | contents |
//! |---|---|---|
//! | `agent-snapshot:{worker_007}` | hash | `stamp`, `state`, `head`; `view`, `epoch`, `start` for scripts and operators; `labels`, `changed`, `bytes` (size of the messages) and `body` (size of the rest) for lists; `incarnation`, another one after each delete; `floor`: the epoch floor |
//! | `agent-snapshot:{worker_007}:messages` | list | the stream, from number `start` on |
//!
//! The set `agent-snapshot:agents` names the agents. It is in another slot, so a save cannot change
//! it in the same step. The name is added before the first save: a listed agent may have no
//! snapshot, which `list` checks, but no snapshot is missing from the list.

mod connection;
mod redis_storage;
mod server_warnings;

pub use redis_storage::{RedisStorage, RedisStorageBuilder};
