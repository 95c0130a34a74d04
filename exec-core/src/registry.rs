use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::{Error, Execution, SessionId};

/// Which sessions have a live execution, and which one.
///
/// The service's process map and this registry are one table, so they cannot disagree: a session
/// that gets its final id moves from the old to the new one in a single step.
#[derive(Default)]
pub struct ActiveExecutionRegistry {
    sessions: Mutex<HashMap<SessionId, Option<Execution>>>,
}

impl ActiveExecutionRegistry {
    /// An empty registry.
    pub fn new() -> Self {
        Self::default()
    }

    /// Marks a session as active.
    ///
    /// # Errors
    /// [`Error::SessionBusy`] if it already is.
    pub fn register(&self, session_id: &SessionId) -> Result<()> {
        let mut sessions = self.lock();
        if sessions.contains_key(session_id) {
            return Err(Error::SessionBusy {
                session_id: session_id.clone(),
            });
        }
        sessions.insert(session_id.clone(), None);
        Ok(())
    }

    /// Forgets a session; one that is not active is no error.
    pub fn unregister(&self, session_id: &SessionId) {
        self.lock().remove(session_id);
    }

    /// Gives an active session another id, in one step. A session that is not active stays so.
    ///
    /// # Errors
    /// [`Error::SessionBusy`] if the new id is that of another active session; nothing changes.
    pub fn update_session_id(&self, old: &SessionId, new: &SessionId) -> Result<()> {
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

    /// The live execution of a session.
    pub(crate) fn execution(&self, session_id: &SessionId) -> Option<Execution> {
        self.lock().get(session_id).cloned().flatten()
    }

    pub(crate) fn executions(&self) -> Vec<Execution> {
        self.lock().values().flatten().cloned().collect()
    }

    /// Ties a registered session to its execution.
    pub(crate) fn attach(&self, session_id: &SessionId, execution: Execution) {
        self.lock().insert(session_id.clone(), Some(execution));
    }

    /// As [`update_session_id`](Self::update_session_id), if `commit` agrees; it runs while nobody
    /// can look.
    pub(crate) fn rename_if(
        &self,
        old: &SessionId,
        new: &SessionId,
        commit: impl FnOnce() -> bool,
    ) -> Result<()> {
        let mut sessions = self.lock();
        if old != new && sessions.contains_key(new) {
            return Err(Error::SessionBusy {
                session_id: new.clone(),
            });
        }
        if commit()
            && let Some(execution) = sessions.remove(old)
        {
            sessions.insert(new.clone(), execution);
        }
        Ok(())
    }

    /// Runs `look` while no session can change its id.
    pub(crate) fn hold<T>(&self, look: impl FnOnce() -> T) -> T {
        let _sessions = self.lock();
        look()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionId, Option<Execution>>> {
        // Nothing that can panic runs under the lock.
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
    fn an_id_of_another_session_is_not_taken() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.register(&id("2")).unwrap();
        assert!(registry.update_session_id(&id("1"), &id("2")).is_err());
        assert_eq!(registry.active_sessions(), [id("1"), id("2")]);
    }

    #[test]
    fn a_session_is_never_in_both_places_or_in_neither() {
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
    fn renaming_a_session_that_ended_does_not_revive_it() {
        let registry = ActiveExecutionRegistry::new();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        assert_eq!(registry.active_sessions(), []);
    }
}
