//! One scan of the process table for many callers.
//!
//! # Theory
//!
//! A caller notes its `since`, then reads how many scans have begun, then waits for the lock. A
//! scan increments `begun`, then takes the lowest `since` of all callers that wait.
//!
//! **Invariants.**
//! - A table with `number > begun_before` began after this call.
//! - A successful scan covers every caller whose `fetch_min` came before its `swap`. A caller whose
//!   `fetch_min` came later sees the incremented `begun`, so it does not take that table.
//!
//! **Race.** A scan that fails, or whose future is dropped, has taken the `since` of its waiters
//! with it. The next scan may start later than they need: hence `since() <= own_since` is checked.
//!
//! **Example.** X scans for `since` 50 while Y (30) and Z (70) wait. Y gets the lock and scans with
//! 30; Z uses Y's table, because its number is above the one that Z noted. If Y is cancelled
//! during its scan, Z scans with 70. A caller W (30) that waits behind Z, and noted its 30 before
//! Y's swap, finds a table that begins at 70, and scans itself.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{future, slice};

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::process_table::ProcessTable;
use super::system;
use super::tree_root::TreeRoot;

/// Between two looks at a running tree, on a system without marks. One look reads all processes of
/// the machine: some milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Reads the process table for all callers that wait at the same time.
///
/// One scan takes milliseconds; a hundred trees that are ended at once share it.
#[derive(Debug)]
pub(crate) struct ProcessScanner {
    tag_variable: &'static str,
    /// How many scans have begun.
    begun: AtomicU64,
    /// The lowest `since` of the callers that wait for the next scan.
    since: AtomicU64,
    latest: Mutex<LatestScan>,
    /// The looks at all trees begin at multiples of the interval from here, so that they share scans.
    epoch: Instant,
}

#[derive(Debug, Default)]
struct LatestScan {
    number: u64,
    table: Arc<ProcessTable>,
}

impl ProcessScanner {
    /// Searches environments for the variable of this name.
    pub(crate) fn new(tag_variable: &'static str) -> Self {
        Self {
            tag_variable,
            begun: AtomicU64::new(0),
            since: AtomicU64::new(u64::MAX),
            latest: Mutex::default(),
            epoch: Instant::now(),
        }
    }

    /// A table whose scan began after this call and that covers these trees. Each scan is a look at
    /// them; see `tree_memory.rs`.
    pub(crate) async fn scan(&self, roots: &[TreeRoot]) -> io::Result<Arc<ProcessTable>> {
        let table = self.read(roots).await?;
        roots.iter().for_each(|root| table.remember(root));
        Ok(table)
    }

    async fn read(&self, roots: &[TreeRoot]) -> io::Result<Arc<ProcessTable>> {
        let own_since = roots.iter().map(TreeRoot::since).min().unwrap_or(0);
        self.since.fetch_min(own_since, Ordering::SeqCst);
        let begun_before = self.begun.load(Ordering::SeqCst);
        let mut latest = self.latest.lock().await;
        // Another caller may have scanned while this one waited for the lock.
        if latest.number > begun_before && latest.table.since() <= own_since {
            return Ok(Arc::clone(&latest.table));
        }
        let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        let since = self.since.swap(u64::MAX, Ordering::SeqCst).min(own_since);
        let (variable, previous) = (self.tag_variable, Arc::clone(&latest.table));
        let read = move || ProcessTable::read(variable, since, &previous);
        let table = tokio::task::spawn_blocking(read)
            .await
            .map_err(io::Error::other)??;
        *latest = LatestScan {
            number,
            table: Arc::new(table),
        };
        Ok(Arc::clone(&latest.table))
    }

    /// Looks at a running tree again and again, so that a later stop finds processes that have lost
    /// their parents; see `tree_memory.rs`. Does not return, and does nothing on a system with marks.
    ///
    /// Cancel safe.
    pub(crate) async fn watch(&self, root: &TreeRoot) {
        if system::HAS_MARKS {
            return future::pending().await;
        }
        loop {
            let looks = self.epoch.elapsed().as_nanos() / LOOK_INTERVAL.as_nanos() + 1;
            let next = LOOK_INTERVAL.saturating_mul(u32::try_from(looks).unwrap_or(u32::MAX));
            tokio::time::sleep_until(self.epoch + next).await;
            if let Err(error) = self.scan(slice::from_ref(root)).await {
                tracing::warn!(%error, "cannot look at a running tree");
            }
        }
    }
}
