//! One hold for each credential.
//!
//! # Theory
//!
//! A hold is a circuit breaker with three states. They are named like those of a gate: *open* lets
//! runs pass, which a circuit breaker calls closed.
//!
//! | state | a run that wants to send | changes |
//! |---|---|---|
//! | open | goes on | a limit is reported -> closed |
//! | closed until T | waits; at T one of the waiting runs becomes the probe | at T -> probing |
//! | probing | waits | the probe makes progress -> open; it reports a limit -> closed until later; it ends in another way -> closed until now, and the next one probes |
//!
//! **Invariant.** While a limit holds, at most one request of all runs is under way that began
//! after the limit was known. Exception: a run that must not wait until the reset makes its first
//! attempt without a pass.
//!
//! **Races.** A run that began before the limit was known reports it again, perhaps after the
//! reset: its report must not close a hold that a probe has since opened. So a pass has the number
//! of openings that it saw; a report of an earlier pass counts only while the hold has not been
//! opened since, or if it names a reset that is still to come.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use tokio::sync::watch;
use tokio::time::Instant;

use super::LimitPolicy;
use crate::WaitReason;
use crate::admission::WaitTicket;
use crate::process::LONGEST_LIMIT;

/// How many credentials are remembered. Open holds are forgotten first.
const MAX_HOLDS: usize = 1024;

#[derive(Default)]
pub(crate) struct CredentialHolds {
    holds: Mutex<HashMap<String, Arc<Hold>>>,
}

struct Hold {
    credential: String,
    state: watch::Sender<HoldState>,
}

#[derive(Clone, Copy)]
struct HoldState {
    gate: Gate,
    /// How many limits were reported since the last progress.
    failures: u32,
    /// How often it was opened.
    openings: u64,
}

#[derive(Clone, Copy)]
enum Gate {
    Open,
    Closed {
        until: Instant,
        resets_at: Option<SystemTime>,
    },
    Probing,
}

/// The right to send a request. Dropping the pass of a probe lets the next run probe.
pub(crate) struct HoldPass {
    hold: Arc<Hold>,
    is_probe: bool,
    openings: u64,
}

impl CredentialHolds {
    /// Waits until a request may be sent. `deadline`: gives up, with `None`.
    pub(crate) async fn pass(
        &self,
        credential: &str,
        ticket: &WaitTicket,
        deadline: Instant,
    ) -> Option<HoldPass> {
        let hold = self.hold(credential);
        let mut changes = hold.state.subscribe();
        loop {
            let mut pass = None;
            let now = Instant::now();
            hold.state.send_if_modified(|state| {
                let is_probe = match state.gate {
                    Gate::Open => false,
                    Gate::Closed { until, .. } if until <= now => true,
                    _ => return false,
                };
                pass = Some((is_probe, state.openings));
                if is_probe {
                    state.gate = Gate::Probing;
                }
                is_probe
            });
            if let Some((is_probe, openings)) = pass {
                return Some(HoldPass {
                    hold,
                    is_probe,
                    openings,
                });
            }
            let gate = changes.borrow_and_update().gate;
            let (until, resets_at) = match gate {
                Gate::Open => continue,
                Gate::Closed { until, resets_at } => (until, resets_at),
                Gate::Probing => (deadline, None),
            };
            // A reset beyond the deadline is not waited for at all.
            if until > deadline || deadline <= now {
                return None;
            }
            ticket.wait_because(WaitReason::Limit {
                credential: credential.to_owned(),
                resets_at,
            });
            tokio::select! {
                () = tokio::time::sleep_until(until.min(deadline)) => {}
                _ = changes.changed() => {}
            }
        }
    }

    fn hold(&self, credential: &str) -> Arc<Hold> {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        if holds.len() >= MAX_HOLDS && !holds.contains_key(credential) {
            holds.retain(|_, hold| !matches!(hold.state.borrow().gate, Gate::Open));
        }
        let hold = holds.entry(credential.to_owned()).or_insert_with(|| {
            Arc::new(Hold {
                credential: credential.to_owned(),
                state: watch::Sender::new(HoldState {
                    gate: Gate::Open,
                    failures: 0,
                    openings: 0,
                }),
            })
        });
        Arc::clone(hold)
    }
}

impl HoldPass {
    /// Whether the other runs wait for this one.
    pub(crate) fn is_probe(&self) -> bool {
        self.is_probe
    }

    /// The model has answered: there is no limit.
    pub(crate) fn progress(&mut self) {
        if !std::mem::take(&mut self.is_probe) {
            return;
        }
        tracing::info!(credential = self.hold.credential, "the limit is over");
        self.hold.state.send_modify(|state| {
            state.gate = Gate::Open;
            state.failures = 0;
            state.openings += 1;
        });
    }

    /// The agent has reported a limit.
    pub(crate) fn limited(&mut self, policy: &LimitPolicy, resets_at: Option<SystemTime>) {
        let is_probe = std::mem::take(&mut self.is_probe);
        let lies_ahead = resets_at.is_some_and(|at| at > SystemTime::now());
        let credential = &self.hold.credential;
        self.hold.state.send_if_modified(|state| {
            if !is_probe && state.openings != self.openings && !lies_ahead {
                return false;
            }
            // Others report the limit that the hold already waits for, or that is being probed.
            if !is_probe && matches!(state.gate, Gate::Probing) {
                return false;
            }
            let wait = policy.wait(resets_at, state.failures).min(LONGEST_LIMIT);
            let until = Instant::now() + wait;
            if let Gate::Closed { until: known, .. } = state.gate {
                if !lies_ahead || known > until {
                    return false;
                }
            } else {
                state.failures += 1;
            }
            tracing::info!(credential, ?wait, "a usage limit is reached");
            state.gate = Gate::Closed { until, resets_at };
            true
        });
    }
}

impl Drop for HoldPass {
    fn drop(&mut self) {
        if self.is_probe {
            self.hold.state.send_modify(|state| {
                state.gate = Gate::Closed {
                    until: Instant::now(),
                    resets_at: None,
                };
            });
        }
    }
}
