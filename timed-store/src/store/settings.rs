use std::path::PathBuf;
use std::sync::Arc;

use crate::clock::Clock;
use crate::disk::Location;
use crate::{Durability, Incident, LockPolicy, OwnerProcess, SessionId};

/// The options that a handle was opened with.
pub(crate) struct Settings {
    pub(crate) location: Arc<Location>,
    pub(crate) session: SessionId,
    pub(crate) ttl_ms: u64,
    pub(crate) owner: Option<OwnerProcess>,
    pub(crate) policy: LockPolicy,
    pub(crate) durability: Durability,
    pub(crate) clock: Clock,
    pub(crate) on_incident: Option<IncidentHandler>,
}

pub(crate) type IncidentHandler = Arc<dyn Fn(&Incident) + Send + Sync>;

impl Settings {
    /// The data file, for errors.
    pub(crate) fn path(&self) -> PathBuf {
        self.location.data.clone()
    }
}
