//! Keeps the pastes of all processes apart from a client that is attaching.
//!
//! A paste changes a buffer, which can crash tmux during an attach; `client_process.rs` has the theory.

use std::path::Path;

use crate::Error;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::timing::ATTACH_LOCK_LIMIT;

/// Exclusive for an attach, shared for pastes.
#[derive(Debug)]
pub(crate) struct AttachLock(FifoLock);

impl AttachLock {
    pub(crate) fn new(folder: &Path) -> Self {
        Self(FifoLock::new(&folder.join("attach")))
    }

    /// `None` if a process has held it for too long.
    pub(crate) async fn lock(&self, access: Access) -> Result<Option<LockedFile>, Error> {
        if let Some(lock) = self.0.try_lock(access)? {
            return Ok(Some(lock));
        }
        let waiting = self.0.wait(access)?;
        match tokio::time::timeout(ATTACH_LOCK_LIMIT, waiting).await {
            Ok(lock) => Ok(Some(lock?)),
            Err(_) => Ok(None),
        }
    }
}
