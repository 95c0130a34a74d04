use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::clock::Clock;
use crate::disk::Location;
use crate::{Durability, Error, Incident, LockPolicy, OwnerProcess, SessionId};

/// The options of a handle that every backend needs.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The data file, or the address of the server. Errors name it.
    pub(crate) path: PathBuf,
    pub(crate) session: SessionId,
    /// `None` is the default slot, the only one that the specification knows.
    pub(crate) slot: Option<String>,
    pub(crate) ttl_ms: u64,
    pub(crate) owner: Option<OwnerProcess>,
    pub(crate) on_incident: Option<IncidentHandler>,
    /// The incidents of this handle, its clones and its slots that no caller has taken.
    pub(crate) found: Arc<Mutex<VecDeque<Incident>>>,
}

/// How many incidents a handle keeps; the oldest are dropped.
const MAX_INCIDENTS: usize = 64;

/// The options of a handle on a file.
#[derive(Clone)]
pub(crate) struct FileSettings {
    pub(crate) location: Arc<Location>,
    pub(crate) policy: LockPolicy,
    pub(crate) durability: Durability,
    pub(crate) clock: Clock,
}

pub(crate) type IncidentHandler = Arc<dyn Fn(&Incident) + Send + Sync>;

/// Stands between session and slot in the key of a named slot. The name of a slot does not
/// contain it.
const SEPARATOR: char = '#';

impl Settings {
    /// The key of this handle's entry.
    pub(crate) fn key(&self) -> String {
        match &self.slot {
            None => self.session.as_str().to_owned(),
            Some(slot) => format!("{}{SEPARATOR}{slot}", self.session),
        }
    }

    /// Whether `key` is the key of this handle's entry. `slots` says that it stands among the named
    /// slots.
    pub(crate) fn is_own_entry(&self, key: &str, slots: bool) -> bool {
        match &self.slot {
            None => !slots && key == self.session.as_str(),
            Some(slot) => slots && split(key) == (self.session.as_str(), slot.as_str()),
        }
    }

    /// Whether `key` belongs to this handle's session, in any slot.
    pub(crate) fn is_own_session(&self, key: &str, slots: bool) -> bool {
        let session = if slots { split(key).0 } else { key };
        session == self.session.as_str()
    }

    /// The owner that an entry gets: claimed ones the handle's owner, all others the process of a
    /// process session.
    pub(crate) fn owner_of(&self, is_claimed: bool) -> Option<&OwnerProcess> {
        let owner = self.owner.as_ref().filter(|_| is_claimed);
        owner.or_else(|| self.session.process())
    }

    /// The same options for another slot.
    pub(crate) fn with_slot(&self, slot: &str) -> Result<Self, Error> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if slot.is_empty() || slot.len() > 64 || !slot.chars().all(is_allowed) {
            return Err(Error::Invalid {
                what: "slot name",
                value: slot.to_owned(),
                reason: "it must have 1 to 64 letters, digits, dots, underscores or hyphens",
            });
        }
        Ok(Self {
            slot: Some(slot.to_owned()),
            ..self.clone()
        })
    }

    pub(crate) fn take_incidents(&self) -> Vec<Incident> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.drain(..).collect()
    }

    pub(crate) fn report(&self, incidents: &[Incident]) {
        for incident in incidents {
            tracing::error!("{incident}");
            {
                let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
                if found.len() == MAX_INCIDENTS {
                    found.pop_front();
                }
                found.push_back(incident.clone());
            }
            // Without the lock: the handler may use the store.
            if let Some(handler) = &self.on_incident {
                handler(incident);
            }
        }
    }
}

/// Session and slot of a key among the named slots.
fn split(key: &str) -> (&str, &str) {
    key.rsplit_once(SEPARATOR).unwrap_or((key, ""))
}
