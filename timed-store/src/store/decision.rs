//! The decision on a claim.
//!
//! # Theory
//!
//! A candidate is *busy* if the live entry of another session has an equal value, otherwise *free*.
//! The order of the candidates is: the one that this session already holds, then the others as the
//! caller listed them. The first free candidate is granted.
//!
//! **Invariants.**
//! - Before: the working copy has the live entries only, and the lock is held. So a free candidate
//!   stays free until the write.
//! - After a grant: this session's entry has the candidate and a token. The token is the old one
//!   if the session already held this value under a token, otherwise a new one.
//! - After a refusal the working copy is unchanged.
//!
//! **Waiters.** A free candidate that an earlier waiter wants is passed over, unless this session
//! holds it already. If no other candidate is free, the claim is *queued*.
//!
//! **Several holders.** `store` does not check for equal values, so several sessions can hold one
//! value. A candidate becomes free when its last holder expires. The answer names the candidate
//! that becomes free first.
//!
//! **Example.** This session holds `b`. Another session holds `a` for 10 s more; two sessions hold
//! `c`, for 5 s and 20 s more.
//!
//! | candidates | order | decision |
//! |---|---|---|
//! | `a`, `b` | `b`, `a` | `b` is granted again, with its token |
//! | `a`, `d` | `a`, `d` | `d` is granted with a new token; `b` is given up |
//! | `a`, `c` | `a`, `c` | busy: `a` is free in 10 s, `c` in 20 s; the answer names the holder of `a` |

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::working_copy::WorkingCopy;
use crate::claim::SentAt;
use crate::clock::Moment;
use crate::format::{StoredEntry, TokenRecord};
use crate::{Claim, Error, Incident, Lease, SessionId};

/// The decision on a claim, with the granted candidate by its index. The candidates themselves stay
/// untouched, so that a backend can decide again after a conflict.
pub(crate) enum Decision {
    Granted {
        candidate: usize,
        token: u64,
        expires_in: Duration,
        store_id: String,
    },
    Busy {
        holder: SessionId,
        expires_in: Duration,
    },
    /// A candidate is free, but an earlier waiter wants it.
    Queued,
}

impl Decision {
    /// `None` if the claim is queued.
    pub(crate) fn into_claim<T>(
        self,
        candidates: Vec<T>,
        incidents: Vec<Incident>,
        sent: Moment,
    ) -> Result<Option<Claim<T>>, Error> {
        match self {
            Self::Queued => Ok(None),
            Self::Busy { holder, expires_in } => Ok(Some(Claim::Busy { holder, expires_in })),
            Self::Granted {
                candidate,
                token,
                expires_in,
                store_id,
            } => {
                let value = candidates.into_iter().nth(candidate);
                Ok(Some(Claim::Granted(Lease {
                    value: value.ok_or_else(no_candidates)?,
                    token,
                    expires_in,
                    store_id,
                    incidents,
                    sent: SentAt(sent),
                })))
            }
        }
    }
}

/// Decides a claim and stores a granted value; see the theory above. `ahead` are the values that
/// earlier waiters want.
pub(crate) fn decide<T>(
    copy: &mut WorkingCopy<'_>,
    candidates: &[T],
    ahead: &[T],
) -> Result<Decision, Error>
where
    T: Serialize + DeserializeOwned + PartialEq,
{
    let own_value = copy.own().and_then(|entry| copy.decode::<T>(entry).ok());
    let already_held = own_value.and_then(|own| candidates.iter().position(|value| *value == own));

    // An entry of another type may be the very value that is asked for: an error, not a free
    // value.
    let others = copy
        .others()
        .map(|entry| Ok((copy.decode::<T>(entry)?, entry)))
        .collect::<Result<Vec<(T, &StoredEntry<'_>)>, Error>>()?;
    let last_holder = |candidate: &T| {
        let holders = others.iter().filter(|(value, _)| value == candidate);
        holders
            .map(|(_, entry)| (copy.expires_in(entry), *entry))
            .max_by_key(|(expires_in, _)| *expires_in)
    };

    let listed = (0..candidates.len()).filter(|at| Some(*at) != already_held);
    let mut free = None;
    let mut is_queued = false;
    let mut free_soonest: Option<(Duration, &StoredEntry<'_>)> = None;
    for at in already_held.into_iter().chain(listed) {
        match last_holder(&candidates[at]) {
            None if already_held != Some(at) && ahead.contains(&candidates[at]) => is_queued = true,
            None => {
                free = Some(at);
                break;
            }
            Some(holder) if free_soonest.is_none_or(|(time, _)| holder.0 < time) => {
                free_soonest = Some(holder);
            }
            Some(_) => {}
        }
    }

    match (free, free_soonest) {
        (Some(candidate), _) => {
            let is_renewal = already_held == Some(candidate);
            let (token, expires_in) = copy.store_claimed(&candidates[candidate], is_renewal)?;
            Ok(Decision::Granted {
                candidate,
                token,
                expires_in,
                store_id: TokenRecord::id_text(copy.store_id()),
            })
        }
        (None, _) if is_queued => Ok(Decision::Queued),
        (None, Some((expires_in, entry))) => Ok(Decision::Busy {
            holder: SessionId::from_key(&*entry.session),
            expires_in,
        }),
        (None, None) => Err(no_candidates()),
    }
}

pub(crate) fn no_candidates() -> Error {
    Error::Invalid {
        what: "list of candidates",
        value: "[]".to_owned(),
        reason: "it is empty",
    }
}
