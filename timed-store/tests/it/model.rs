//! The store against a model (a map), on a clock that the test moves.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use timed_store::Claim;

use crate::support::{Place, START_MS, Store, s, time};

const SESSIONS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "y", "z"];
/// Each session has another timeout, so that the use of a wrong one shows.
const TTL_MS: [u64; 3] = [1000, 1500, 4000];

#[derive(Clone, Debug)]
enum Action {
    Store(usize),
    Remove,
    Others,
    Restore,
    Refresh,
    Entries,
    Claim(usize),
    ClaimAny(Vec<usize>),
    /// Stores the value if at most this many other sessions have an entry.
    Transaction(usize, usize),
    Advance(u64),
    SetBack(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let value = 0..VALUES.len();
    prop_oneof![
        value.clone().prop_map(Action::Store),
        Just(Action::Remove),
        Just(Action::Others),
        Just(Action::Restore),
        Just(Action::Refresh),
        Just(Action::Entries),
        value.clone().prop_map(Action::Claim),
        prop::collection::vec(value.clone(), 1..4).prop_map(Action::ClaimAny),
        (value, 0..3usize).prop_map(|(value, others)| Action::Transaction(value, others)),
        prop_oneof![Just(1), Just(999), Just(1000), Just(1001), 0..3000u64]
            .prop_map(Action::Advance),
        (1..2000u64).prop_map(Action::SetBack),
    ]
}

#[derive(Clone, Debug)]
struct ModelEntry {
    value: usize,
    timestamp: u64,
    ttl: u64,
    token: Option<u64>,
}

#[derive(Default)]
struct Model {
    now: u64,
    entries: BTreeMap<usize, ModelEntry>,
    last_token: u64,
}

impl Model {
    /// The cleanup of every operation; a writer also sets timestamps in the future to now.
    fn clean(&mut self, writes: bool) {
        let now = self.now;
        self.entries
            .retain(|_, entry| now.saturating_sub(entry.timestamp) <= entry.ttl);
        if writes {
            self.entries
                .values_mut()
                .for_each(|entry| entry.timestamp = entry.timestamp.min(now));
        }
    }

    fn left(&self, entry: &ModelEntry) -> u64 {
        entry.ttl - self.now.saturating_sub(entry.timestamp)
    }

    /// Of several sessions that stored one value, the one that holds it longest.
    fn holder(&self, me: usize, value: usize) -> Option<usize> {
        let holders = self
            .entries
            .iter()
            .filter(|(session, entry)| **session != me && entry.value == value);
        holders
            .max_by_key(|(_, entry)| self.left(entry))
            .map(|(session, _)| *session)
    }

    fn put(&mut self, me: usize, value: usize, token: Option<u64>) {
        self.entries.insert(
            me,
            ModelEntry {
                value,
                timestamp: self.now,
                ttl: TTL_MS[me],
                token,
            },
        );
    }

    fn claim_any(&mut self, me: usize, candidates: &[usize], answer: Claim<String>) {
        self.clean(true);
        let mine = self.entries.get(&me).cloned();
        let held = mine.as_ref().filter(|mine| {
            candidates.contains(&mine.value) && self.holder(me, mine.value).is_none()
        });
        let free = candidates
            .iter()
            .copied()
            .find(|value| self.holder(me, *value).is_none());
        match (held.map(|mine| mine.value).or(free), answer) {
            (Some(value), Claim::Granted(lease)) => {
                assert_eq!(lease.value(), VALUES[value]);
                assert_eq!(lease.expires_in(), Duration::from_millis(TTL_MS[me]));
                match held.and_then(|mine| mine.token) {
                    Some(token) => assert_eq!(lease.token(), token),
                    None => {
                        assert!(lease.token() > self.last_token);
                        self.last_token = lease.token();
                    }
                }
                self.put(me, value, Some(lease.token()));
            }
            (None, Claim::Busy { holder, expires_in }) => {
                let soonest = candidates
                    .iter()
                    .map(|value| self.left(&self.entries[&self.holder(me, *value).unwrap()]));
                assert_eq!(expires_in.as_millis(), u128::from(soonest.min().unwrap()));
                let holder = SESSIONS
                    .iter()
                    .position(|session| *session == holder.as_str())
                    .unwrap();
                assert!(candidates.contains(&self.entries[&holder].value) && holder != me);
            }
            (expected, answer) => panic!("{answer:?} instead of {expected:?}"),
        }
    }

    fn act(&mut self, store: &Store, me: usize, action: &Action) {
        match action {
            Action::Store(value) => {
                store.store(&s(VALUES[*value])).unwrap();
                self.clean(true);
                self.put(me, *value, None);
            }
            Action::Remove => {
                self.clean(true);
                assert_eq!(store.remove().unwrap(), self.entries.remove(&me).is_some());
            }
            Action::Others => {
                self.clean(false);
                let others = store.get_other_entries().unwrap();
                let others: Vec<_> = others
                    .iter()
                    .map(|(session, value)| (session.as_str(), value.as_str()))
                    .collect();
                let expected = self.entries.iter().filter(|(session, _)| **session != me);
                let expected: Vec<_> = expected
                    .map(|(session, entry)| (SESSIONS[*session], VALUES[entry.value]))
                    .collect();
                assert_eq!(others, expected);
            }
            Action::Restore => {
                self.clean(false);
                let expected = self.entries.get(&me).map(|entry| s(VALUES[entry.value]));
                assert_eq!(store.restore().unwrap(), expected);
            }
            Action::Refresh => {
                self.clean(true);
                let now = self.now;
                let mine = self.entries.get_mut(&me).map(|entry| entry.timestamp = now);
                assert_eq!(store.refresh().unwrap(), mine.is_some());
            }
            Action::Entries => {
                self.clean(false);
                let entries = store.entries().unwrap();
                assert_eq!(entries.mine().is_some(), self.entries.contains_key(&me));
                assert_eq!(entries.iter().count(), self.entries.len());
                for ((session, found), (number, expected)) in entries.iter().zip(&self.entries) {
                    assert_eq!(session.as_str(), SESSIONS[*number]);
                    assert_eq!(found.value(), VALUES[expected.value]);
                    assert_eq!(found.token(), expected.token);
                    assert_eq!(
                        found.expires_in().as_millis(),
                        u128::from(self.left(expected))
                    );
                }
            }
            Action::Claim(value) => {
                let answer = store.claim(s(VALUES[*value])).unwrap();
                self.claim_any(me, &[*value], answer);
            }
            Action::ClaimAny(values) => {
                let answer = store
                    .claim_any(values.iter().map(|value| s(VALUES[*value])))
                    .unwrap();
                self.claim_any(me, values, answer);
            }
            Action::Transaction(value, limit) => {
                self.clean(true);
                let expected = self
                    .entries
                    .keys()
                    .filter(|session| **session != me)
                    .count()
                    <= *limit;
                let done = store.transaction(|entries| {
                    let free = entries.others().count() <= *limit;
                    if free {
                        entries.store(s(VALUES[*value]));
                    }
                    free
                });
                assert_eq!(done.unwrap(), expected);
                if expected {
                    self.put(me, *value, None);
                }
            }
            Action::Advance(ms) => self.now += ms,
            Action::SetBack(ms) => self.now -= ms,
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_like_a_map_with_a_clock(
        actions in prop::collection::vec((0..SESSIONS.len(), action()), 1..60)
    ) {
        let place = Place::new();
        let stores: Vec<Store> = (0..SESSIONS.len())
            .map(|me| place.builder(SESSIONS[me]).ttl(Duration::from_millis(TTL_MS[me])).open().unwrap())
            .collect();
        let mut model = Model { now: START_MS, ..Model::default() };
        for (me, action) in &actions {
            model.act(&stores[*me], *me, action);
            place.clock.set(time(model.now));
        }
        for (me, store) in stores.iter().enumerate() {
            model.act(store, me, &Action::Entries);
        }
    }
}
