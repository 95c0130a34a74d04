//! The service, its settings, the table of its live executions, and the end of the host.

mod active_execution_registry;
mod execution_service;
mod execution_service_builder;
mod known_sessions;
mod open_live;
mod run;
mod shutdown;
mod stop_on_drop;
mod termination_signal;

pub use active_execution_registry::ActiveExecutionRegistry;
pub use execution_service::ExecutionService;
pub use execution_service_builder::ExecutionServiceBuilder;
pub use run::{Run, RunResult};
pub use shutdown::{ShutdownGuard, ShutdownReport};
pub use termination_signal::termination_signal;

pub(crate) use execution_service::{CheckedRequest, ServiceInner};
pub(crate) use known_sessions::KnownSessions;
