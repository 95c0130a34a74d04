use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{Error, Execution, SessionId};

/// How many former ids of sessions are kept. The oldest ones are forgotten.
const MAX_ALIASES: usize = 4096;

/// The sessions that have a live execution, with the executions.
///
/// The service's process map and this registry are one table, so they cannot disagree: a session
/// moves from its minted id to the agent's own id in a single step. The former id stays an alias:
/// every lookup accepts it, and so does a follow-up. The latest 4096 aliases are kept, also after
/// the end of their execution.
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
/// assert_eq!(registry.active_sessions(), [resolved]);
/// assert!(registry.is_active(&minted), "the former id is an alias");
/// # Ok::<(), exec_core::Error>(())
/// ```
#[derive(Default)]
pub struct ActiveExecutionRegistry {
    table: Mutex<SessionTable>,
}

#[derive(Default)]
struct SessionTable {
    /// `None` from the registration to the spawn, and for sessions that callers registered.
    sessions: HashMap<SessionId, Option<Execution>>,
    /// Former id -> current id. Invariant: no current id is itself a former one, so that one step
    /// of a lookup suffices.
    aliases: HashMap<SessionId, SessionId>,
    /// The former ids, oldest first.
    alias_order: VecDeque<SessionId>,
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
        let mut table = self.lock();
        let current = table.current(session_id).clone();
        if table.sessions.contains_key(&current) {
            return Err(Error::SessionBusy { session: current });
        }
        table.sessions.insert(current, None);
        Ok(())
    }

    /// Removes a session. Idempotent. Its aliases stay, for later follow-ups.
    pub fn unregister(&self, session_id: &SessionId) {
        let mut table = self.lock();
        let current = table.current(session_id).clone();
        table.sessions.remove(&current);
    }

    /// Gives an active session another id, in one step. The old id becomes an alias. Has no effect
    /// on a session that is not active.
    ///
    /// # Errors
    ///
    /// [`Error::SessionBusy`] if the new id belongs to another active session, as its current id or as
    /// an alias; nothing changes.
    pub fn update_session_id(&self, old: &SessionId, new: &SessionId) -> Result<(), Error> {
        self.rename_if(old, new, || true)
    }

    /// Whether the session has a live execution.
    pub fn is_active(&self, session_id: &SessionId) -> bool {
        let table = self.lock();
        table.sessions.contains_key(table.current(session_id))
    }

    /// The active sessions with their current ids, sorted.
    pub fn active_sessions(&self) -> Vec<SessionId> {
        let mut sessions: Vec<_> = self.lock().sessions.keys().cloned().collect();
        sessions.sort_unstable();
        sessions
    }

    /// The current id of a session: another one if the given id is an alias.
    pub(crate) fn current_id(&self, session_id: &SessionId) -> SessionId {
        self.lock().current(session_id).clone()
    }

    pub(crate) fn execution(&self, session_id: &SessionId) -> Option<Execution> {
        let table = self.lock();
        table
            .sessions
            .get(table.current(session_id))
            .cloned()
            .flatten()
    }

    pub(crate) fn executions(&self) -> Vec<Execution> {
        self.lock().sessions.values().flatten().cloned().collect()
    }

    /// Adds the execution to a registered session.
    pub(crate) fn attach(&self, session_id: &SessionId, execution: Execution) {
        let mut table = self.lock();
        let current = table.current(session_id).clone();
        table.sessions.insert(current, Some(execution));
    }

    /// As [`update_session_id`](Self::update_session_id), if `commit` returns `true`. It runs
    /// under the lock.
    pub(crate) fn rename_if(
        &self,
        old: &SessionId,
        new: &SessionId,
        commit: impl FnOnce() -> bool,
    ) -> Result<(), Error> {
        let mut table = self.lock();
        let old = table.current(old).clone();
        // An alias belongs to its session as the current id does: lookups accept both.
        let owner = table.current(new);
        if *owner != old && table.sessions.contains_key(owner) {
            return Err(Error::SessionBusy {
                session: owner.clone(),
            });
        }
        if commit()
            && let Some(execution) = table.sessions.remove(&old)
        {
            table.sessions.insert(new.clone(), execution);
            table.add_alias(old, new);
        }
        Ok(())
    }

    /// Runs `read` while no session can change its id.
    pub(crate) fn hold<T>(&self, read: impl FnOnce() -> T) -> T {
        let _sessions = self.lock();
        read()
    }

    fn lock(&self) -> MutexGuard<'_, SessionTable> {
        // No code that can panic runs under the lock.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SessionTable {
    fn current<'a>(&'a self, id: &'a SessionId) -> &'a SessionId {
        self.aliases.get(id).unwrap_or(id)
    }

    fn add_alias(&mut self, old: SessionId, new: &SessionId) {
        if old == *new {
            return;
        }
        // The id may return to a session that once had it.
        if self.aliases.remove(new).is_some() {
            self.alias_order.retain(|alias| alias != new);
        }
        for current in self.aliases.values_mut() {
            if *current == old {
                *current = new.clone();
            }
        }
        self.alias_order.push_back(old.clone());
        self.aliases.insert(old, new.clone());
        if self.alias_order.len() > MAX_ALIASES
            && let Some(oldest) = self.alias_order.pop_front()
        {
            self.aliases.remove(&oldest);
        }
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
    fn an_alias_of_another_session_is_refused() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        registry.register(&id("3")).unwrap();
        let refused = registry.update_session_id(&id("3"), &id("1")).unwrap_err();
        assert!(refused.is_session_busy());
        assert_eq!(registry.current_id(&id("1")), id("2"));
        assert_eq!(registry.active_sessions(), [id("2"), id("3")]);
        registry.unregister(&id("2"));
        registry.update_session_id(&id("3"), &id("1")).unwrap();
        assert_eq!(registry.active_sessions(), [id("1")]);
    }

    #[test]
    fn an_update_that_is_repeated_with_the_former_id_changes_nothing() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        assert_eq!(registry.active_sessions(), [id("2")]);
        assert_eq!(registry.current_id(&id("1")), id("2"));
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
    fn every_former_id_is_an_alias_of_the_current_one() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        registry.update_session_id(&id("1"), &id("3")).unwrap();
        assert_eq!(registry.active_sessions(), [id("3")]);
        for former in ["1", "2", "3"] {
            assert!(registry.is_active(&id(former)), "{former}");
            assert_eq!(registry.current_id(&id(former)), id("3"));
            assert!(registry.register(&id(former)).is_err(), "{former}");
        }
        registry.unregister(&id("1"));
        assert_eq!(registry.active_sessions(), []);
        assert_eq!(registry.current_id(&id("2")), id("3"), "for a follow-up");
    }

    #[test]
    fn an_id_that_returns_is_no_alias_of_itself() {
        let registry = ActiveExecutionRegistry::new();
        registry.register(&id("1")).unwrap();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        registry.update_session_id(&id("2"), &id("1")).unwrap();
        assert_eq!(registry.current_id(&id("2")), id("1"));
        assert_eq!(registry.current_id(&id("1")), id("1"));
    }

    #[test]
    fn the_number_of_aliases_is_bounded() {
        let registry = ActiveExecutionRegistry::new();
        for n in 0..MAX_ALIASES + 10 {
            let (old, new) = (id(&format!("old-{n}")), id(&format!("new-{n}")));
            registry.register(&old).unwrap();
            registry.update_session_id(&old, &new).unwrap();
            registry.unregister(&new);
        }
        let table = registry.lock();
        assert_eq!(table.aliases.len(), MAX_ALIASES);
        assert_eq!(table.alias_order.len(), MAX_ALIASES);
        assert!(!table.aliases.contains_key(&id("old-9")));
        assert!(table.aliases.contains_key(&id("old-10")));
    }

    #[test]
    fn an_update_does_not_revive_an_ended_session() {
        let registry = ActiveExecutionRegistry::new();
        registry.update_session_id(&id("1"), &id("2")).unwrap();
        assert_eq!(registry.active_sessions(), []);
    }
}
