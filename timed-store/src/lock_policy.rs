use std::time::Duration;

/// What an operation does while another process, thread or handle holds the lock.
///
/// ```
/// use std::time::Duration;
/// use timed_store::{LockPolicy, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = TimedStorage::<String>::builder_at(folder.path().join("operators.json"))
///     .lock(LockPolicy::Wait(Duration::from_secs(2)))
///     .open()?;
/// # store.restore()?;
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockPolicy {
    /// Fails at once with [`Error::Locked`](crate::Error::Locked). Never queues: if the lock is
    /// free, the operation takes it ahead of all waiters.
    #[default]
    Fail,
    /// Waits at most this long, then fails with [`Error::Locked`](crate::Error::Locked).
    ///
    /// Waiters are served first come, first served, across processes. Two exceptions: callers with
    /// [`Fail`](Self::Fail) do not queue, and a waiter takes a free lock out of turn, once a
    /// second and before it gives up. The second exception keeps the queue moving if a waiter was
    /// stopped (SIGSTOP) in front of the others.
    Wait(Duration),
}
