use std::ops::Deref;

use super::cluster_manager::ClusterManager;
use crate::timing::STOP_GRACE;

/// Stops a cluster when it is dropped, see [`ClusterManager::stop_on_drop`].
///
/// `Drop` does what [`ClusterManager::stop`] does, on a thread of its own, and waits for it: it blocks the
/// calling thread for up to some seconds and reports a failure as a `tracing` error. It needs no runtime.
/// After a call of [`ClusterManager::stop`] it has nothing left to do.
///
/// ```
/// use tmux_bus::{ClusterConfig, ClusterManager, Error};
///
/// async fn one_question(config: ClusterConfig) -> Result<String, Error> {
///     let cluster = ClusterManager::start(config).await?.stop_on_drop();
///     cluster.outsider("user").send_to("grand_boss", "Are you there?").await
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard stops the cluster"]
pub struct StopOnDrop {
    cluster: ClusterManager,
    is_armed: bool,
}

impl StopOnDrop {
    pub(super) fn new(cluster: ClusterManager) -> Self {
        Self {
            cluster,
            is_armed: true,
        }
    }

    /// Gives the cluster back; it is not stopped.
    #[must_use]
    pub fn release(mut self) -> ClusterManager {
        self.is_armed = false;
        self.cluster.clone()
    }
}

impl Deref for StopOnDrop {
    type Target = ClusterManager;

    fn deref(&self) -> &ClusterManager {
        &self.cluster
    }
}

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if self.is_armed
            && let Err(error) = self.cluster.server().stop_blocking(STOP_GRACE)
        {
            tracing::error!(%error, "cannot stop the cluster");
        }
    }
}
