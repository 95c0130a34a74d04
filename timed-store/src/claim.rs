use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::state::State;
use crate::{Error, SessionId};

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a claim that was not granted gives no right to the value"]
pub enum Claim<T> {
    /// The value is this session's until the lease ends.
    Granted(Lease<T>),
    /// Another session has it. Nothing was changed: what this session held, it still holds.
    Busy {
        /// Who has it; of several candidates, who has the one that is free soonest.
        holder: SessionId,
        /// How much longer, if that session does not refresh it.
        expires_in: Duration,
    },
}

impl<T> Claim<T> {
    /// The lease, if the claim was granted.
    pub fn granted(self) -> Option<Lease<T>> {
        match self {
            Self::Granted(lease) => Some(lease),
            Self::Busy { .. } => None,
        }
    }
}

/// A value that this session holds.
///
/// It is a receipt, not a guard: dropping it changes nothing, because the value belongs to the
/// session and not to the process. `refresh` makes it last longer, `remove` gives it up.
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
    pub fn into_value(self) -> T {
        self.value
    }

    /// The fencing token: larger than that of every earlier claim in this file. Who acts on a
    /// shared resource passes it along, and the resource refuses tokens below the largest one
    /// it has seen; so a holder that slept through its timeout can do no harm.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// How long the lease lasted when it was granted.
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

/// Takes the candidate that the own session has already, else the first that nobody has.
pub(crate) fn claim_any<T>(state: &mut State<'_>, candidates: Vec<T>) -> Result<Claim<T>, Error>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let mine = state.mine().and_then(|entry| state.decode::<T>(entry).ok());
    let held = mine.and_then(|mine| candidates.iter().position(|candidate| *candidate == mine));

    // An entry that we cannot understand might be the very value asked for: that is an error,
    // not a free value.
    let others = state
        .others()
        .iter()
        .map(|entry| state.decode::<T>(entry).map(|value| (value, entry)));
    let others = others.collect::<Result<Vec<_>, _>>()?;
    // A value that was stored, not claimed, can have several holders: it is free with the last.
    let holder = |candidate: &T| {
        let holders = others
            .iter()
            .filter(|(value, _)| value == candidate)
            .map(|(_, entry)| *entry);
        holders.max_by_key(|entry| state.expires_in(entry))
    };

    let mut soonest: Option<(SessionId, Duration)> = None;
    let order = held
        .into_iter()
        .chain((0..candidates.len()).filter(|at| Some(*at) != held));
    let mut free = None;
    for at in order {
        let Some(entry) = holder(&candidates[at]) else {
            free = Some(at);
            break;
        };
        let expires_in = state.expires_in(entry);
        if soonest
            .as_ref()
            .is_none_or(|(_, other)| expires_in < *other)
        {
            soonest = Some((SessionId::of_entry(&*entry.session), expires_in));
        }
    }

    match (free, soonest) {
        (Some(at), _) => {
            let value = candidates.into_iter().nth(at).ok_or_else(no_candidates)?;
            let token = state.store_claimed(&value, held == Some(at))?;
            Ok(Claim::Granted(Lease {
                value,
                token,
                expires_in: state.ttl(),
            }))
        }
        (None, Some((holder, expires_in))) => Ok(Claim::Busy { holder, expires_in }),
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
