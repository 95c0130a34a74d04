use tokio::task::JoinError;

use crate::Error;

/// Runs a job that waits for the disk on tokio's threads for blocking work.
///
/// A started job runs to its end even if the future is dropped.
#[cfg(any(feature = "file", feature = "sqlite"))]
pub(crate) async fn run_blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    task_result(tokio::task::spawn_blocking(job).await)
}

/// The result of a task. A panic of the task continues in the caller.
pub(crate) fn task_result<T>(joined: Result<Result<T, Error>, JoinError>) -> Result<T, Error> {
    joined.unwrap_or_else(|error| match error.try_into_panic() {
        Ok(panic) => std::panic::resume_unwind(panic),
        Err(_) => Err(Error::ShuttingDown),
    })
}
