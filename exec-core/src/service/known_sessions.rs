use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};

use crate::{SessionId, Usage};

/// How many sessions are remembered. The oldest ones are forgotten.
const MAX_SESSIONS: usize = 4096;

/// The last known totals of sessions, for the usage of their follow-ups.
///
/// `None`: the history was read and does not contain the session.
#[derive(Default)]
pub(crate) struct KnownSessions {
    totals: Mutex<Totals>,
}

#[derive(Default)]
struct Totals {
    by_id: HashMap<SessionId, Option<Usage>>,
    order: VecDeque<SessionId>,
}

impl KnownSessions {
    pub(crate) fn get(&self, session_id: &SessionId) -> Option<Option<Usage>> {
        let totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        totals.by_id.get(session_id).copied()
    }

    pub(crate) fn put(&self, session_id: SessionId, usage: Option<Usage>) {
        let mut totals = self.totals.lock().unwrap_or_else(PoisonError::into_inner);
        let known = totals.by_id.insert(session_id.clone(), usage);
        if known.is_none() {
            totals.order.push_back(session_id);
            if totals.order.len() > MAX_SESSIONS
                && let Some(oldest) = totals.order.pop_front()
            {
                totals.by_id.remove(&oldest);
            }
        }
    }
}
