use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::format::StoredEntry;
use crate::working_copy::WorkingCopy;
use crate::{Error, SessionId};

/// The answer to a claim.
///
/// ```
/// use timed_store::{Claim, SessionId, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("operators.json");
/// let open = |session: &str| {
///     TimedStorage::<String>::builder_at(&path)
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a claim that was not granted gives no right to the value"]
pub enum Claim<T> {
    /// The own session holds the value until the lease ends.
    Granted(Lease<T>),
    /// Another session holds it. Nothing has changed: the own session keeps the value that it
    /// held before.
    Busy {
        /// The session that holds it; of several candidates, the one that is free soonest.
        holder: SessionId,
        /// The time until it expires, unless that session refreshes it.
        expires_in: Duration,
    },
}

impl<T> Claim<T> {
    /// The lease of a granted claim.
    pub fn granted(self) -> Option<Lease<T>> {
        match self {
            Self::Granted(lease) => Some(lease),
            Self::Busy { .. } => None,
        }
    }
}

/// A value that the own session holds.
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
    value: T,
    token: u64,
    expires_in: Duration,
}

impl<T> Lease<T> {
    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// The value, owned.
    #[must_use]
    pub fn into_value(self) -> T {
        self.value
    }

    /// The fencing token: larger than the token of every earlier claim in this file.
    ///
    /// The holder sends it with each request to a shared resource, and the resource refuses
    /// tokens below the largest one that it has seen. A holder that was stopped longer than its
    /// timeout can then do no harm.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The time until the lease ends, counted from the grant.
    pub fn expires_in(&self) -> Duration {
        self.expires_in
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

/// The decision on a claim, with the granted candidate by its index. The candidates themselves stay
/// untouched, so that a backend can decide again after a conflict.
pub(crate) enum Decision {
    Granted {
        candidate: usize,
        token: u64,
        expires_in: Duration,
    },
    Busy {
        holder: SessionId,
        expires_in: Duration,
    },
}

impl Decision {
    pub(crate) fn into_claim<T>(self, candidates: Vec<T>) -> Result<Claim<T>, Error> {
        match self {
            Self::Busy { holder, expires_in } => Ok(Claim::Busy { holder, expires_in }),
            Self::Granted {
                candidate,
                token,
                expires_in,
            } => {
                let value = candidates.into_iter().nth(candidate);
                Ok(Claim::Granted(Lease {
                    value: value.ok_or_else(no_candidates)?,
                    token,
                    expires_in,
                }))
            }
        }
    }
}

/// Takes the candidate that the own session already holds, else the first free one.
pub(crate) fn decide<T>(copy: &mut WorkingCopy<'_>, candidates: &[T]) -> Result<Decision, Error>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let own = copy.own().and_then(|entry| copy.decode::<T>(entry).ok());
    let held = own.and_then(|own| candidates.iter().position(|candidate| *candidate == own));

    // An entry of another type may be the very value that is asked for: an error, not a free
    // value.
    let others = copy
        .others()
        .map(|entry| Ok((copy.decode::<T>(entry)?, entry)))
        .collect::<Result<Vec<(T, &StoredEntry<'_>)>, Error>>()?;
    // A value that was stored and not claimed can have several holders: the last one frees it.
    let time_of_holder = |candidate: &T| {
        let holders = others.iter().filter(|(value, _)| value == candidate);
        holders
            .map(|(_, entry)| (copy.expires_in(entry), *entry))
            .max_by_key(|(expires_in, _)| *expires_in)
    };

    let mut soonest: Option<(Duration, &StoredEntry<'_>)> = None;
    let mut free = None;
    let first = held.into_iter();
    for at in first.chain((0..candidates.len()).filter(|at| Some(*at) != held)) {
        match time_of_holder(&candidates[at]) {
            None => {
                free = Some(at);
                break;
            }
            Some(busy) if soonest.is_none_or(|(time, _)| busy.0 < time) => soonest = Some(busy),
            Some(_) => {}
        }
    }

    match (free, soonest) {
        (Some(candidate), _) => {
            let token = copy.store_claimed(&candidates[candidate], held == Some(candidate))?;
            Ok(Decision::Granted {
                candidate,
                token,
                expires_in: copy.ttl(),
            })
        }
        (None, Some((expires_in, entry))) => Ok(Decision::Busy {
            holder: SessionId::from_key(&*entry.session),
            expires_in,
        }),
        (None, None) => Err(no_candidates()),
    }
}

fn no_candidates() -> Error {
    Error::Invalid {
        what: "list of candidates",
        value: "[]".to_owned(),
        reason: "is empty",
    }
}
