use crate::Error;

/// Runs a job that waits for the disk on tokio's threads for blocking work.
///
/// A started job runs to its end even if the future is dropped.
pub(crate) async fn run_blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let result = tokio::task::spawn_blocking(job).await;
    result.unwrap_or_else(|panicked_or_shut_down| {
        Err(Error::Storage {
            action: "finish a job on",
            place: "a background thread".to_owned(),
            source: Box::new(panicked_or_shut_down),
        })
    })
}
