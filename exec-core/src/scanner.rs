use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Mutex;

use crate::process_table::{ProcessTable, start_time_now};

/// Reads the process table for everyone who asks at the same time.
///
/// One reading costs milliseconds; a hundred executions that are stopped at once share it.
#[derive(Debug, Default)]
pub(crate) struct ProcessScanner {
    /// Nothing that is looked for started before this.
    since: u64,
    begun: AtomicU64,
    latest: Mutex<(u64, Arc<ProcessTable>)>,
}

impl ProcessScanner {
    /// For processes that are started from now on.
    pub(crate) fn from_now() -> Self {
        Self {
            since: start_time_now(),
            ..Self::default()
        }
    }

    /// For all processes, however old.
    pub(crate) fn of_all() -> Self {
        Self::default()
    }

    /// A table that was read after this call.
    pub(crate) async fn scan(&self) -> io::Result<Arc<ProcessTable>> {
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut latest = self.latest.lock().await;
        if latest.0 > begun_before {
            return Ok(Arc::clone(&latest.1));
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let since = self.since;
        let previous = Arc::clone(&latest.1);
        let table = tokio::task::spawn_blocking(move || ProcessTable::read(since, &previous))
            .await
            .map_err(io::Error::other)??;
        *latest = (number, Arc::new(table));
        Ok(Arc::clone(&latest.1))
    }
}
