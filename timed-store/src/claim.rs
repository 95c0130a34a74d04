use std::fmt;
use std::time::Duration;

use crate::clock::Moment;
use crate::{Incident, SessionId};

/// The answer to a claim.
///
/// ```
/// use timed_store::{Claim, SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("operators.json");
/// let open = |session: &str| {
///     TimedStorage::<String>::builder(&path)
///         .session(SessionId::new(session)?)
///         .open()
/// };
/// let first = open("terminal-1")?.claim("tsukuyomi".to_owned())?;
/// assert!(first.granted().is_some());
/// match open("terminal-2")?.claim("tsukuyomi".to_owned())? {
///     Claim::Granted(lease) => panic!("terminal-1 holds it: {lease:?}"),
///     Claim::Busy { holder, .. } => assert_eq!(holder.as_str(), "terminal-1"),
/// }
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "a claim that was not granted gives no right to the value"]
pub enum Claim<T> {
    /// This session holds the value until the lease ends.
    Granted(Lease<T>),
    /// Another session holds it. Nothing has changed: this session keeps the value that it held
    /// before.
    Busy {
        /// The holding session; of several candidates, the holder of the one that is free soonest.
        holder: SessionId,
        /// The time until it expires, unless that session refreshes it.
        expires_in: Duration,
    },
}

impl<T> Claim<T> {
    /// The lease of a granted claim.
    #[must_use]
    pub fn granted(self) -> Option<Lease<T>> {
        match self {
            Self::Granted(lease) => Some(lease),
            Self::Busy { .. } => None,
        }
    }
}

/// A value that this session holds.
///
/// A lease is a receipt, not a guard: dropping it changes nothing, because the value belongs to
/// the session and not to the process. `refresh` extends it, `remove` ends it.
///
/// ```
/// use timed_store::blocking::TimedStorage;
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = TimedStorage::<String>::open(folder.path().join("operators.json"))?;
/// let lease = store.claim("tsukuyomi".to_owned())?.granted().expect("no other session holds it");
/// // Send the token with every request to the shared resource.
/// println!("{} with token {}", lease.value(), lease.token());
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Lease<T> {
    pub(crate) value: T,
    pub(crate) token: u64,
    pub(crate) expires_in: Duration,
    pub(crate) store_id: String,
    pub(crate) incidents: Vec<Incident>,
    pub(crate) sent: SentAt,
}

/// The moment before a claim was sent. The claim of a value that the session holds already gives an
/// equal lease, so it does not count in comparisons.
#[derive(Clone, Copy)]
pub(crate) struct SentAt(pub(crate) Moment);

impl PartialEq for SentAt {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for SentAt {}

impl<T> Lease<T> {
    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// Returns the value and drops the lease.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// The fencing token: larger than the token of every earlier grant in this store. A claim of a
    /// value that the session holds keeps its token.
    ///
    /// The holder sends it with each request to a shared resource, and the resource refuses
    /// tokens below the largest one that it has seen. A holder that was stopped longer than its
    /// timeout can then do no harm.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The identity of the store, made with its first file. Tokens of two identities cannot be
    /// compared: if all files of a store were deleted, a new one begins.
    pub fn store_id(&self) -> &str {
        &self.store_id
    }

    /// Damage that the claim found, in either file of the store. If damage has cost entries, the value
    /// may have another holder, which does not know that its lease has ended.
    pub fn incidents(&self) -> &[Incident] {
        &self.incidents
    }

    /// The time until the lease ends, counted from the grant.
    pub fn expires_in(&self) -> Duration {
        self.expires_in
    }
}

// Values belong to the caller and may be secret: `Debug` does not show them, and needs no `T: Debug`.

impl<T> fmt::Debug for Claim<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted(lease) => f.debug_tuple("Granted").field(lease).finish(),
            Self::Busy { holder, expires_in } => f
                .debug_struct("Busy")
                .field("holder", holder)
                .field("expires_in", expires_in)
                .finish(),
        }
    }
}

impl<T> fmt::Debug for Lease<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lease")
            .field("token", &self.token)
            .field("expires_in", &self.expires_in)
            .finish_non_exhaustive()
    }
}
