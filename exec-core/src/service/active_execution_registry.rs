use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Execution, SessionId};

/// The sessions that have a live execution, with the executions.
///
/// The service's process map and this registry are one table, so they cannot disagree: a session
/// moves from its minted id to its final id in a single step.
///
/// ```
/// use exec_core::{ActiveExecutionRegistry, SessionId};
///
/// let registry = ActiveExecutionRegistry::new();
/// let minted = SessionId::mint("CODEX", "L3RtcA")?;
/// registry.register(&minted)?;
/// assert!(registry.register(&minted).unwrap_err().is_session_busy());
///
/// let resolved = minted.with_native_id("ses_4f")?;
/// registry.update_session_id(&minted, &resolved)?;
/// assert!(registry.is_active(&resolved) && !registry.is_active(&minted));
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Default)]
pub struct ActiveExecutionRegistry {
    /// `None` from the registration to the spawn, and for sessions that callers registered.
    sessions: Mutex<HashMap<SessionId, Option<Execution>>>,
}

impl ActiveExecutionRegistry {
    /// An empty registry.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks a session as active.
    ///
    /// # Errors
    ///
    /// [`Error::SessionBusy`] if it is active already.
    pub fn register(&self, session_id: &SessionId) -> Result<(), Error> {
        let mut sessions = self.lock();
        if sessions.contains_key(session_id) {
            return Err(Error::SessionBusy {
                session: session_id.clone(),
            });
        }
        sessions.insert(session_id.clone(), None);
        Ok(())
    }

    /// Removes a session. Idempotent.
    pub fn unregister(&self, session_id: &SessionId) {
        self.lock().remove(session_id);
    }

    /// Gives an active session another id, in one step. Has no effect on a session that is not
    /// active.
    ///
    /// # Errors
    ///
    /// [`Error::SessionBusy`] if the new id belongs to another active session; nothing changes.
    pub fn update_session_id(&self, old: &SessionId, new: &SessionId) -> Result<(), Error> {
        self.rename_if(old, new, || true)
    }

    /// Whether the session has a live execution.
    pub fn is_active(&self, session_id: &SessionId) -> bool {
        self.lock().contains_key(session_id)
    }

    /// The active sessions, sorted.
    pub fn active_sessions(&self) -> Vec<SessionId> {
        let mut sessions: Vec<_> = self.lock().keys().cloned().collect();
        sessions.sort_unstable();
        sessions
    }

    pub(crate) fn execution(&self, session_id: &SessionId) -> Option<Execution> {
        self.lock().get(session_id).cloned().flatten()
    }

    pub(crate) fn executions(&self) -> Vec<Execution> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Adds the execution to a registered session.
    pub(crate) fn attach(&self, session_id: &SessionId, execution: Execution) {
        self.lock().insert(session_id.clone(), Some(execution));
    }

    /// As [`update_session_id`](Self::update_session_id), if `commit` returns `true`. It runs
    /// under the lock.
    pub(crate) fn rename_if(
        &self,
        old: &SessionId,
        new: &SessionId,
        commit: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let mut sessions = self.lock();
        if old != new && sessions.contains_key(new) {
            return Err(Error::SessionBusy {
                session: new.clone(),
            });
        }
        if commit()
            && let Some(execution) = sessions.remove(old)
        {
            sessions.insert(new.clone(), execution);
        }
        Ok(())
    }

    /// Runs `read` while no session can change its id.
    pub(crate) fn hold<T>(&self, read: impl FnOnce() -> T) -> T {
        let _sessions = self.lock();
        read()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Option<Execution>>> {
        // No code that can panic runs under the lock.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ActiveExecutionRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ActiveExecutionRegistry")
            .field("sessions", &self.active_sessions())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(agent: &str) -> SessionId {
        SessionId::new("A", "p", agent).unwrap()
    }

    #[test]
    fn a_session_is_registered_once() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        assert!(matches!(
            registry.register(&id("1")),
            Err(Error::SessionBusy { .. })
        ));
        assert_eq!(registry.active_sessions(), [id("1")]);
        registry.unregister(&id("1"));
        registry.unregister(&id("1"));
        assert!(!registry.is_active(&id("1")));
    }

    #[test]
    fn the_id_of_another_session_is_refused() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.register(&id("2")).unwrap();
        assert!(registry.update_session_id(&id("1"), &id("2")).is_err());
        assert_eq!(registry.active_sessions(), [id("1"), id("2")]);
    }

    #[test]
    fn during_an_update_a_session_has_exactly_one_id() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("0")).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..10_000 {
                    let (old, new) = (id(&n.to_string()), id(&(n + 1).to_string()));
                    registry.update_session_id(&old, &new).unwrap();
                }
            });
            for _ in 0..10_000 {
                assert_eq!(registry.active_sessions().len(), 1);
            }
        });
    }

    #[test]
    fn an_update_does_not_revive_an_ended_session() {
        let registry = ActiveExecutionRegistry::new();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        assert_eq!(registry.active_sessions(), []);
    }
}
