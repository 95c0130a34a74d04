//! The operations of a store, from the public call down to the lock, the read and the write.

pub(crate) mod config;

mod backend;
mod changes;
mod core;
mod decision;
mod file_backend;
mod keeper;
mod runtime;
mod settings;
mod working_copy;

pub(crate) use backend::Value;
#[cfg(feature = "redis")]
pub(crate) use backend::{Backend, Queue, WaitLimit};
pub(crate) use changes::{Changes, Signal, Source};
#[cfg(feature = "redis")]
pub(crate) use core::RELEASE_LIMIT;
pub(crate) use core::{AnyBackend, Core, EXPIRED, LONGEST_PAUSE};
#[cfg(feature = "redis")]
pub(crate) use decision::{Decision, no_candidates};
pub(crate) use file_backend::FileBackend;
pub(crate) use keeper::Keeper;
#[cfg(feature = "tokio")]
pub(crate) use runtime::Tokio;
pub(crate) use runtime::{Blocking, Runtime, RuntimeContext, block_on};
pub(crate) use settings::{FileSettings, IncidentHandler, Settings};
pub(crate) use working_copy::LARGEST_NUMBER;
