//! The operations of a store, from the public call down to the lock, the read and the write.

pub(crate) mod config;

mod core;
mod decision;
mod file_backend;
mod runtime;
mod settings;
mod working_copy;

pub(crate) use core::Core;
#[cfg(feature = "tokio")]
pub(crate) use runtime::Tokio;
pub(crate) use runtime::{Blocking, Runtime, block_on};
pub(crate) use settings::{IncidentHandler, Settings};
pub(crate) use working_copy::LARGEST_NUMBER;
