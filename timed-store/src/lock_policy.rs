use std::time::Duration;

/// The behaviour of an operation while another process, thread or handle holds the lock.
///
/// ```
/// use std::time::Duration;
/// use timed_store::{LockPolicy, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
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
    /// Waiters are served first come, first served, across processes. Three exceptions:
    ///
    /// - Callers with [`Fail`](Self::Fail) do not queue.
    /// - A waiter takes a free lock ahead of others, once a second and before it gives up. This
    ///   keeps the queue moving if a waiter was stopped (SIGSTOP) in front of the others.
    /// - A thread joins the queue for all callers of a handle and its clones. A caller that arrives
    ///   while this thread is blocked joins when the thread has served the caller before it. Within
    ///   a handle the order is always first come, first served.
    Wait(Duration),
}
