//! The service, its settings, and the table of its live executions.

mod active_execution_registry;
mod execution_service;
mod execution_service_builder;
mod known_sessions;
mod run;

pub use active_execution_registry::ActiveExecutionRegistry;
pub use execution_service::ExecutionService;
pub use execution_service_builder::ExecutionServiceBuilder;
pub use run::{Run, RunResult};

pub(crate) use execution_service::{CheckedRequest, ServiceInner};
pub(crate) use known_sessions::KnownSessions;
