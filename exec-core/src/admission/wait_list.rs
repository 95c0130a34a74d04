//! The launches that wait.

use std::collections::BTreeMap;
use std::fmt;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;

use crate::{Error, SessionId};

/// A launch that waits; see [`ExecutionService::waiting`](crate::ExecutionService::waiting).
///
/// A snapshot: the reason can have changed since. Dropping it has no effect on the launch.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = tempfile::tempdir()?;
/// # let profiles = doctest::Script("exec sleep 60");
/// # let request = doctest::request("go");
/// use exec_core::{ExecutionService, WaitReason};
///
/// let service = ExecutionService::builder(profiles)
///     .max_running(1)
/// #   .state_dir(folder.path())
///     .open()?;
/// let first = service.launch(request.clone()).await?;
/// let second = tokio::spawn({
///     let service = service.clone();
///     async move { service.launch(request).await }
/// });
/// while service.waiting().is_empty() {
///     tokio::task::yield_now().await;
/// }
/// let waiting = service.waiting().remove(0);
/// println!("{} waits: {}", waiting.session_id, waiting.reason);
/// waiting.cancel();
/// assert!(second.await?.unwrap_err().is_cancelled());
/// # first.stop().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct WaitingLaunch {
    /// The session of the request.
    pub session_id: SessionId,
    /// The profile of the request.
    pub profile_label: String,
    /// Since when it waits.
    pub since: SystemTime,
    /// What it waits for.
    pub reason: WaitReason,
    ending: watch::Sender<Option<WaitEnd>>,
}

/// What a launch waits for. `Display` gives the reason as a short sentence.
///
/// ```
/// use exec_core::WaitReason;
///
/// let reason = WaitReason::Slot { max_running: 4 };
/// assert_eq!(reason.to_string(), "4 executions run, which is the maximum");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// Earlier launches of this state folder wait, too.
    Queue,
    /// As many executions run as [`max_running`](crate::ExecutionServiceBuilder::max_running)
    /// allows. This launch is the next one.
    Slot {
        /// The maximum.
        max_running: usize,
    },
    /// There is less free memory than
    /// [`min_free_memory`](crate::ExecutionServiceBuilder::min_free_memory) demands. This launch is
    /// the next one.
    Memory {
        /// The free memory in bytes, when it was last read.
        free: u64,
        /// The minimum in bytes.
        minimum: u64,
    },
    /// The credential has reached a usage limit; see [`LimitPolicy`](crate::LimitPolicy).
    Limit {
        /// The name of the credential.
        credential: String,
        /// When the limit is reset, if the agent has said so.
        resets_at: Option<SystemTime>,
    },
    /// The agent has failed, and is restarted later; see [`RestartPolicy`](crate::RestartPolicy).
    Restart {
        /// When.
        at: SystemTime,
    },
}

/// Why a wait ended without a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitEnd {
    Cancelled,
    ShuttingDown,
}

/// The waits of one service.
#[derive(Default)]
pub(crate) struct WaitList {
    entries: Mutex<Entries>,
}

#[derive(Default)]
struct Entries {
    /// By number, so that the oldest comes first.
    waiting: BTreeMap<u64, WaitingLaunch>,
    next: u64,
    closed: bool,
}

/// A possible entry of the list: it is added when the launch has to wait. Dropping it removes it.
pub(crate) struct WaitTicket {
    list: Arc<WaitList>,
    launch: WaitingLaunch,
    number: Mutex<Option<u64>>,
}

impl WaitingLaunch {
    /// Ends the wait: the launch fails with [`Error::Cancelled`] and its place in the queue is
    /// free. Has no effect on a launch that no longer waits.
    pub fn cancel(&self) {
        self.end(WaitEnd::Cancelled);
    }

    fn end(&self, end: WaitEnd) {
        self.ending.send_modify(|ending| {
            ending.get_or_insert(end);
        });
    }
}

impl WaitList {
    pub(crate) fn ticket(
        self: &Arc<Self>,
        session_id: &SessionId,
        profile_label: &str,
    ) -> WaitTicket {
        WaitTicket {
            list: Arc::clone(self),
            launch: WaitingLaunch {
                session_id: session_id.clone(),
                profile_label: profile_label.to_owned(),
                since: SystemTime::now(),
                reason: WaitReason::Queue,
                ending: watch::Sender::new(None),
            },
            number: Mutex::new(None),
        }
    }

    /// The oldest first.
    pub(crate) fn snapshot(&self) -> Vec<WaitingLaunch> {
        self.lock().waiting.values().cloned().collect()
    }

    /// Ends all waits, now and from now on: the service shuts down.
    pub(crate) fn close(&self) {
        let mut entries = self.lock();
        entries.closed = true;
        for launch in entries.waiting.values() {
            launch.end(WaitEnd::ShuttingDown);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WaitTicket {
    /// Lists the launch, or changes its reason.
    pub(crate) fn wait_because(&self, reason: WaitReason) {
        let mut entries = self.list.lock();
        let mut number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        let number = *number.get_or_insert_with(|| {
            entries.next += 1;
            entries.next
        });
        if entries.closed {
            self.launch.end(WaitEnd::ShuttingDown);
        }
        let is_news = match entries.waiting.get(&number) {
            // The amount of free memory changes at every look.
            Some(listed) => discriminant(&listed.reason) != discriminant(&reason),
            None => true,
        };
        if is_news {
            let session_id = &self.launch.session_id;
            tracing::info!(%session_id, %reason, "a launch waits");
        }
        let listed = entries.waiting.entry(number);
        listed.or_insert_with(|| self.launch.clone()).reason = reason;
    }

    /// Waits until the wait is to end; returns the error of the launch.
    pub(crate) async fn ended(&self) -> Error {
        let mut ending = self.launch.ending.subscribe();
        let ended = ending.wait_for(Option::is_some).await;
        match ended.map(|ended| *ended) {
            Ok(Some(WaitEnd::ShuttingDown)) => Error::ShuttingDown,
            _ => Error::Cancelled {
                session: self.launch.session_id.clone(),
            },
        }
    }

    /// Whether the launch had to wait.
    pub(crate) fn has_waited(&self) -> bool {
        let number = self.number.lock().unwrap_or_else(PoisonError::into_inner);
        number.is_some()
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        let number = self.number.get_mut();
        if let Some(number) = number.unwrap_or_else(PoisonError::into_inner) {
            self.list.lock().waiting.remove(number);
        }
    }
}

impl fmt::Debug for WaitingLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitingLaunch")
            .field("session_id", &self.session_id)
            .field("profile_label", &self.profile_label)
            .field("since", &self.since)
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

impl fmt::Display for WaitReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue => f.write_str("earlier launches wait, too"),
            Self::Slot { max_running } => {
                write!(f, "{max_running} executions run, which is the maximum")
            }
            Self::Memory { free, minimum } => {
                write!(
                    f,
                    "{free} bytes of memory are free, the minimum is {minimum}"
                )
            }
            Self::Limit { credential, .. } => {
                write!(f, "{credential} has reached a usage limit")
            }
            Self::Restart { .. } => f.write_str("the agent has failed and is restarted later"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(list: &Arc<WaitList>, native_id: &str) -> WaitTicket {
        list.ticket(&SessionId::new("A", "p", native_id).unwrap(), "a")
    }

    fn listed(list: &WaitList) -> Vec<String> {
        let name = |launch: &WaitingLaunch| launch.session_id.native_id().to_owned();
        list.snapshot().iter().map(name).collect()
    }

    #[test]
    fn a_launch_is_listed_from_its_first_wait_to_its_end() {
        let list = Arc::new(WaitList::default());
        let (first, second) = (ticket(&list, "1"), ticket(&list, "2"));
        assert!(listed(&list).is_empty() && !first.has_waited());
        second.wait_because(WaitReason::Queue);
        first.wait_because(WaitReason::Queue);
        second.wait_because(WaitReason::Slot { max_running: 1 });
        assert_eq!(listed(&list), ["2", "1"]);
        let shown = format!("{:?}", list.snapshot()[0]);
        assert!(!shown.contains("Sender"), "{shown}");
        assert_eq!(
            list.snapshot()[0].reason,
            WaitReason::Slot { max_running: 1 }
        );
        drop(second);
        assert_eq!(listed(&list), ["1"]);
        drop(first);
        assert!(listed(&list).is_empty());
    }

    #[tokio::test]
    async fn a_wait_is_cancelled_once_and_a_closed_list_ends_all() {
        let list = Arc::new(WaitList::default());
        let first = ticket(&list, "1");
        first.wait_because(WaitReason::Queue);
        list.snapshot()[0].cancel();
        assert!(first.ended().await.is_cancelled());
        let second = ticket(&list, "2");
        second.wait_because(WaitReason::Queue);
        list.close();
        assert!(matches!(second.ended().await, Error::ShuttingDown));
        let late = ticket(&list, "3");
        late.wait_because(WaitReason::Queue);
        assert!(matches!(late.ended().await, Error::ShuttingDown));
    }
}
