use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, Weak};

use tokio::sync::Mutex;

use crate::process::start_time_now;
use crate::process_table::{ProcessTable, Wanted};

/// Reads the process table for everyone who asks at the same time.
///
/// One reading costs milliseconds; a hundred executions that are stopped at once share it.
#[derive(Debug, Default)]
pub(crate) struct ProcessScanner {
    /// Nothing that is looked for started before this.
    since: u64,
    begun: AtomicU64,
    latest: Mutex<(u64, Arc<ProcessTable>)>,
    /// What those want who wait for a table.
    wanted: std::sync::Mutex<Vec<Weak<Wanted>>>,
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

    /// A table that was read after this call, with what is wanted.
    pub(crate) async fn scan(&self, wanted: Wanted) -> io::Result<Arc<ProcessTable>> {
        // Before the number is looked at: who reads a table with a higher one knows of this, as
        // long as this call waits.
        let wanted = Arc::new(wanted);
        self.lock_wanted().push(Arc::downgrade(&wanted));
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut latest = self.latest.lock().await;
        if latest.0 > begun_before {
            return Ok(Arc::clone(&latest.1));
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let (since, of_all) = (self.since, self.wanted_by_all(&wanted));
        let previous = Arc::clone(&latest.1);
        let table =
            tokio::task::spawn_blocking(move || ProcessTable::read(since, &of_all, &previous))
                .await
                .map_err(io::Error::other)??;
        *latest = (number, Arc::new(table));
        Ok(Arc::clone(&latest.1))
    }

    fn wanted_by_all(&self, own: &Wanted) -> Wanted {
        let mut all = own.clone();
        self.lock_wanted().retain(|wanted| match wanted.upgrade() {
            Some(wanted) => {
                all.also(&wanted);
                true
            }
            None => false,
        });
        all
    }

    fn lock_wanted(&self) -> std::sync::MutexGuard<'_, Vec<Weak<Wanted>>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
