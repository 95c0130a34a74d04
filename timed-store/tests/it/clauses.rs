//! The rules of every backend, checked on files and on a server.
//!
//! Time: a file has a clock that the test moves. A server has its own; there, moving the clock by
//! some time is the same as moving the times of all entries the other way. Real time passes
//! meanwhile, so the steps of the tests are minutes and the comparisons allow for some seconds.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use timed_store::{Change, Claim, Error, OwnerProcess, SessionId};

#[cfg(feature = "redis")]
use crate::redis_server::RedisServer;
use crate::support::{LONG, Place, Store, is_granted, s, token, wait_until};
use crate::worker::Worker;

const MINUTE: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(60 * 60);

/// A place for a store.
trait World {
    fn open(&self, session: &str, ttl: Duration, owner: Option<OwnerProcess>) -> Store;
    /// A store whose timers and times go with the system's clock.
    fn open_in_real_time(&self, session: &str, ttl: Duration) -> Store;
    fn advance(&self, by: Duration);
    fn waiters(&self) -> usize;

    fn store(&self, session: &str) -> Store {
        self.open(session, TTL, None)
    }
}

struct Files(Place);

impl World for Files {
    fn open(&self, session: &str, ttl: Duration, owner: Option<OwnerProcess>) -> Store {
        let mut builder = self.0.builder(session).ttl(ttl);
        if let Some(owner) = owner {
            builder = builder.owner(owner);
        }
        builder
            .lock(timed_store::LockPolicy::Wait(LONG))
            .open()
            .unwrap()
    }

    fn open_in_real_time(&self, session: &str, ttl: Duration) -> Store {
        Store::builder(self.0.path())
            .session(SessionId::new(session).unwrap())
            .lock(timed_store::LockPolicy::Wait(LONG))
            .ttl(ttl)
            .open()
            .unwrap()
    }

    fn advance(&self, by: Duration) {
        self.0.clock.advance(by);
    }

    fn waiters(&self) -> usize {
        let folder = self.0.folder.path().join("state.json.flock-waiters");
        folder.read_dir().map_or(0, Iterator::count)
    }
}

#[cfg(feature = "redis")]
struct Server(RedisServer);

#[cfg(feature = "redis")]
impl World for Server {
    fn open(&self, session: &str, ttl: Duration, owner: Option<OwnerProcess>) -> Store {
        let mut builder = Store::redis_builder(&self.0.url(), "state")
            .session(SessionId::new(session).unwrap())
            .ttl(ttl);
        if let Some(owner) = owner {
            builder = builder.owner(owner);
        }
        builder.connect().unwrap()
    }

    fn open_in_real_time(&self, session: &str, ttl: Duration) -> Store {
        self.open(session, ttl, None)
    }

    fn advance(&self, by: Duration) {
        let script = "
            local fields = redis.call('HGETALL', KEYS[1])
            for at = 1, #fields, 2 do
              local data, updated, rest = string.match(fields[at + 1], '^([^\\n]*\\n)(%d+)(\\n.*)$')
              if string.match(fields[at], '^[es]:') and updated then
                local moved = string.format('%.0f', updated - ARGV[1])
                redis.call('HSET', KEYS[1], fields[at], data .. moved .. rest)
              end
            end";
        let by = by.as_millis().to_string();
        let _: () = self
            .0
            .command(&["EVAL", script, "1", "timed-store:{state}", &by]);
    }

    fn waiters(&self) -> usize {
        let fields: Vec<String> = self.0.command(&["HKEYS", "timed-store:{state}"]);
        fields
            .iter()
            .filter(|field| field.starts_with("w:"))
            .count()
    }
}

/// Runs a clause on every backend.
fn on_every_backend(clause: impl Fn(&dyn World)) {
    clause(&Files(Place::new()));
    #[cfg(feature = "redis")]
    clause(&Server(RedisServer::start_with(&[])));
}

/// Times are equal up to the seconds that pass during a test.
fn is_near(found: Duration, expected: Duration) -> bool {
    found.abs_diff(expected) < Duration::from_secs(20)
}

#[test]
fn a_value_is_stored_restored_refreshed_and_removed_everywhere() {
    on_every_backend(|world| {
        let (a, b) = (world.store("a"), world.store("b"));
        assert_eq!(a.restore().unwrap(), None);
        assert!(!a.refresh().unwrap() && !a.remove().unwrap());
        a.store(&s("x\n\"é\"")).unwrap();
        b.store(&s("y")).unwrap();
        assert_eq!(a.restore().unwrap(), Some(s("x\n\"é\"")));
        assert!(a.refresh().unwrap());
        let others = b.get_other_entries().unwrap();
        assert_eq!(others.len(), 1);
        assert_eq!(others[&SessionId::new("a").unwrap()], "x\n\"é\"");
        assert!(a.remove().unwrap() && !a.remove().unwrap());
        assert_eq!(b.restore().unwrap(), Some(s("y")));
    });
}

#[test]
fn an_entry_expires_everywhere() {
    on_every_backend(|world| {
        let (a, b) = (world.open("a", 10 * MINUTE, None), world.store("b"));
        let first = token(a.claim(s("x")));
        world.advance(8 * MINUTE);
        match b.claim(s("x")).unwrap() {
            Claim::Busy { holder, expires_in } => {
                assert_eq!(holder.as_str(), "a");
                assert!(is_near(expires_in, 2 * MINUTE), "{expires_in:?}");
            }
            Claim::Granted(lease) => panic!("{lease:?}"),
        }
        assert!(a.refresh().unwrap());
        world.advance(8 * MINUTE);
        assert!(!is_granted(b.claim(s("x"))) && b.validate(first).unwrap());
        world.advance(4 * MINUTE);
        assert_eq!(a.restore().unwrap(), None);
        assert!(!b.validate(first).unwrap() && !a.refresh().unwrap());
        assert!(token(b.claim(s("x"))) > first);
    });
}

#[test]
fn claims_have_the_same_rules_everywhere() {
    on_every_backend(|world| {
        let (a, b, c) = (world.store("a"), world.store("b"), world.store("c"));
        let x = token(a.claim(s("x")));
        assert_eq!(token(a.claim(s("x"))), x, "a renewal keeps the token");
        let y = token(b.claim_any(["x", "y"].map(s)));
        assert!(y > x);
        assert!(!is_granted(a.claim(s("y"))));
        assert_eq!(
            a.restore().unwrap(),
            Some(s("x")),
            "a refused claim changes nothing"
        );
        assert!(token(a.claim(s("z"))) > y);
        assert!(is_granted(c.claim(s("x"))), "the old value is free");
        c.store(&s("stored")).unwrap();
        assert!(
            !is_granted(a.claim(s("stored"))),
            "a stored value is busy, too"
        );
        assert_eq!(c.entries().unwrap().mine().unwrap().token(), None);
        assert!(matches!(a.claim_any([]), Err(Error::Invalid { .. })));
        let ids = [a.claim(s("1")), b.claim(s("2"))]
            .map(|claim| claim.unwrap().granted().unwrap().store_id().to_owned());
        assert_eq!(ids[0], ids[1]);
    });
}

#[test]
fn slots_are_the_same_everywhere() {
    on_every_backend(|world| {
        let (a, b) = (world.store("a"), world.store("b"));
        let (a_one, b_one) = (a.slot("one").unwrap(), b.slot("one").unwrap());
        assert!(is_granted(a.claim(s("x"))) && is_granted(a_one.claim(s("y"))));
        assert!(!is_granted(b.claim(s("y"))) && !is_granted(b_one.claim(s("x"))));
        assert!(
            is_granted(a_one.claim(s("x"))),
            "slots of one session do not exclude"
        );
        assert!(is_granted(b_one.claim(s("y"))));
        let others = a_one.get_other_entries().unwrap();
        let keys: Vec<&str> = others.keys().map(SessionId::as_str).collect();
        assert_eq!(keys, ["b#one"]);
        let entries = a.entries().unwrap();
        assert_eq!((entries.iter().count(), entries.others().count()), (3, 1));
        assert!(a_one.remove().unwrap());
        assert_eq!(a.restore().unwrap(), Some(s("x")));
    });
}

#[test]
fn the_end_of_an_owner_on_this_machine_frees_its_value_everywhere() {
    on_every_backend(|world| {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = Worker::start("idle", folder.path());
        let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
        let (a, b) = (world.open("a", TTL, Some(owner)), world.store("b"));
        assert!(is_granted(a.claim(s("x"))));
        assert!(!is_granted(b.claim(s("x"))));
        worker.kill();
        assert!(b.get_other_entries().unwrap().is_empty());
        assert!(is_granted(b.claim(s("x"))));
    });
}

/// The entry of a dead owner is gone for its own session, too: another process of the session, or a
/// later process with the same id.
#[test]
fn the_end_of_an_owner_ends_the_entry_for_its_own_session_everywhere() {
    on_every_backend(|world| {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = Worker::start("idle", folder.path());
        let owner = || Some(OwnerProcess::with_pid(worker.pid()).unwrap());
        let (owned, slot) = (world.open("a", TTL, owner()), world.open("a", TTL, owner()));
        let slot = slot.slot("one").unwrap();
        let a = world.store("a");
        let a_slot = a.slot("one").unwrap();
        let first = token(owned.claim(s("x")));
        assert!(is_granted(slot.claim(s("y"))));
        worker.kill();
        assert!(!a_slot.refresh().unwrap() && !a_slot.remove().unwrap());
        assert!(token(a.claim(s("x"))) > first, "a grant, not a renewal");
    });
}

#[test]
fn a_renewal_by_another_handle_never_shortens_the_lease_everywhere() {
    on_every_backend(|world| {
        let folder = tempfile::tempdir().unwrap();
        let mut worker = Worker::start("idle", folder.path());
        let owner = OwnerProcess::with_pid(worker.pid()).unwrap();
        let (a, b) = (world.store("a"), world.store("b"));
        let first = token(a.claim(s("x")));
        let short = world.open("a", MINUTE, Some(owner));
        let lease = short.claim(s("x")).unwrap().granted().unwrap();
        assert_eq!((lease.token(), lease.expires_in()), (first, TTL));
        worker.kill();
        assert!(!is_granted(b.claim(s("x"))), "the first claim has no owner");
        world.advance(10 * MINUTE);
        assert!(!is_granted(b.claim(s("x"))), "it has an hour");
        let long = world.open("a", 2 * TTL, None);
        assert!(is_granted(long.claim(s("x"))));
        world.advance(TTL + 10 * MINUTE);
        assert!(!is_granted(b.claim(s("x"))), "it has two hours now");
    });
}

#[test]
fn transactions_lose_no_update_everywhere() {
    on_every_backend(|world| {
        let stores: Vec<Store> = (0..4).map(|_| world.store("counter")).collect();
        std::thread::scope(|scope| {
            for store in &stores {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let counted = store.transaction(|entries| {
                            let count = entries
                                .mine()
                                .map_or(0, |entry| entry.value().parse::<usize>().unwrap());
                            entries.store((count + 1).to_string());
                        });
                        counted.unwrap();
                    }
                });
            }
        });
        assert_eq!(stores[0].restore().unwrap(), Some(s("100")));
        assert!(stores[0].transaction(|entries| entries.remove()).unwrap());
        assert!(!stores[0].transaction(|entries| entries.refresh()).unwrap());
    });
}

#[test]
fn waiters_are_served_in_order_everywhere() {
    on_every_backend(|world| {
        let holder = world.open_in_real_time("holder", TTL);
        assert!(is_granted(holder.claim(s("x"))));
        let (served, order) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            for number in 0..5 {
                let store = world.open_in_real_time(&format!("waiter-{number}"), TTL);
                let served = served.clone();
                scope.spawn(move || {
                    assert!(is_granted(store.claim_within(s("x"), LONG)));
                    served.send(number).unwrap();
                    assert!(store.remove().unwrap());
                });
                wait_until("the waiter has joined", || world.waiters() == number + 1);
            }
            holder.remove().unwrap();
        });
        drop(served);
        assert_eq!(order.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(world.waiters(), 0);
    });
}

#[test]
fn a_wait_ends_with_the_holders_time_or_its_own_everywhere() {
    on_every_backend(|world| {
        let a = world.open_in_real_time("a", Duration::from_millis(500));
        let b = world.open_in_real_time("b", TTL);
        assert!(is_granted(a.claim(s("x"))));
        assert!(is_granted(b.claim_within(s("x"), LONG)));
        assert!(!is_granted(
            a.claim_within(s("x"), Duration::from_millis(30))
        ));
        assert_eq!(world.waiters(), 0, "it has left the queue");
    });
}

#[test]
fn a_watcher_is_told_changes_everywhere() {
    on_every_backend(|world| {
        let (a, b) = (
            world.open_in_real_time("a", TTL),
            world.open_in_real_time("b", TTL),
        );
        a.store(&s("x")).unwrap();
        let mut changes = b.watch();
        let mut next = || match changes.next().unwrap().unwrap() {
            Change::Set { session, entry } => format!("{session} = {}", entry.value()),
            Change::Removed { session } => format!("{session} is gone"),
            other => panic!("{other:?}"),
        };
        assert_eq!(next(), "a = x");
        b.slot("one").unwrap().store(&s("y")).unwrap();
        assert_eq!(next(), "b#one = y");
        a.remove().unwrap();
        assert_eq!(next(), "a is gone");
    });
}

#[test]
fn a_kept_lease_lives_and_its_loss_is_told_everywhere() {
    on_every_backend(|world| {
        // Long enough that a busy machine does not delay a refresh for two thirds of it.
        let ttl = Duration::from_secs(4);
        let a = world.open_in_real_time("a", ttl);
        let b = world.open_in_real_time("b", TTL);
        let lease = a.claim(s("x")).unwrap().granted().unwrap();
        let guard = a.keep_alive(lease).unwrap().release_on_drop();
        let longer = ttl + Duration::from_millis(500);
        assert!(!is_granted(b.claim_within(s("x"), longer)));
        assert!(!guard.is_lost());
        drop(guard);
        assert!(is_granted(b.claim(s("x"))));
        let lease = a.claim(s("y")).unwrap().granted().unwrap();
        let guard = a.keep_alive(lease).unwrap();
        a.remove().unwrap();
        guard.lost();
        assert!(guard.is_lost());
    });
}

const SESSIONS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 3] = ["x", "y", "z"];
/// Each session has another timeout, so that the use of a wrong one shows. Sums of steps stay away
/// from them.
const TTL_MINUTES: [u64; 3] = [15, 25, 65];

#[derive(Clone, Debug)]
enum Action {
    Store(usize),
    Remove,
    Refresh,
    Entries,
    ClaimAny(Vec<usize>),
    /// Stores the value if at most this many other sessions have an entry.
    Transaction(usize, usize),
    Advance(u64),
}

fn action() -> impl Strategy<Value = Action> {
    let value = 0..VALUES.len();
    prop_oneof![
        value.clone().prop_map(Action::Store),
        Just(Action::Remove),
        Just(Action::Refresh),
        Just(Action::Entries),
        prop::collection::vec(value.clone(), 1..4).prop_map(Action::ClaimAny),
        (value, 0..3usize).prop_map(|(value, others)| Action::Transaction(value, others)),
        (1..4u64).prop_map(|steps| Action::Advance(10 * steps)),
    ]
}

/// An entry of the model: value, time of the last change, token.
type ModelEntry = (usize, u64, Option<u64>);

/// The expected answers of the store. A slot is the second entry of a session: the key is (session,
/// slot).
#[derive(Default)]
struct Model {
    now: u64,
    entries: BTreeMap<(usize, bool), ModelEntry>,
    last_token: u64,
}

impl Model {
    fn left(&self, key: (usize, bool)) -> u64 {
        let (_, updated, _) = self.entries[&key];
        TTL_MINUTES[key.0] - (self.now - updated)
    }

    fn holders(&self, me: usize, value: usize) -> Vec<(usize, bool)> {
        let held = self
            .entries
            .iter()
            .filter(|(key, entry)| key.0 != me && entry.0 == value);
        held.map(|(key, _)| *key).collect()
    }

    fn act(&mut self, world: &dyn World, store: &Store, key: (usize, bool), action: &Action) {
        let now = self.now;
        self.entries
            .retain(|key, entry| now - entry.1 <= TTL_MINUTES[key.0]);
        let me = key.0;
        match action {
            Action::Store(value) => {
                store.store(&s(VALUES[*value])).unwrap();
                self.entries.insert(key, (*value, now, None));
            }
            Action::Remove => {
                assert_eq!(store.remove().unwrap(), self.entries.remove(&key).is_some());
            }
            Action::Refresh => {
                let mine = self.entries.get_mut(&key).map(|entry| entry.1 = now);
                assert_eq!(store.refresh().unwrap(), mine.is_some());
            }
            Action::Entries => {
                let entries = store.entries().unwrap();
                assert_eq!(entries.iter().count(), self.entries.len());
                let mine = self.entries.get(&key).map(|entry| s(VALUES[entry.0]));
                assert_eq!(store.restore().unwrap(), mine);
                let others = self.entries.keys().filter(|key| key.0 != me).count();
                assert_eq!(store.get_other_entries().unwrap().len(), others);
                for (key, (value, _, token)) in &self.entries {
                    let name = SESSIONS[key.0];
                    let name = if key.1 {
                        format!("{name}#two")
                    } else {
                        s(name)
                    };
                    let id = SessionId::new(name).unwrap();
                    let (_, found) = entries.iter().find(|(session, _)| **session == id).unwrap();
                    assert_eq!(
                        (found.value().as_str(), found.token()),
                        (VALUES[*value], *token)
                    );
                    let left = Duration::from_secs(60 * self.left(*key));
                    assert!(
                        is_near(found.expires_in(), left),
                        "{:?}",
                        found.expires_in()
                    );
                }
            }
            Action::ClaimAny(values) => {
                let mine = self.entries.get(&key).copied();
                let is_free = |value: &usize| self.holders(me, *value).is_empty();
                let held = mine.filter(|mine| values.contains(&mine.0) && is_free(&mine.0));
                let free = held
                    .map(|mine| mine.0)
                    .or_else(|| values.iter().copied().find(is_free));
                let answer = store
                    .claim_any(values.iter().map(|value| s(VALUES[*value])))
                    .unwrap();
                match (free, answer) {
                    (Some(value), Claim::Granted(lease)) => {
                        assert_eq!(lease.value(), VALUES[value]);
                        match held.and_then(|mine| mine.2) {
                            Some(token) => assert_eq!(lease.token(), token),
                            None => {
                                assert!(lease.token() > self.last_token);
                                self.last_token = lease.token();
                            }
                        }
                        self.entries.insert(key, (value, now, Some(lease.token())));
                    }
                    (None, Claim::Busy { expires_in, .. }) => {
                        let soonest = values.iter().map(|value| {
                            let holders = self.holders(me, *value).into_iter();
                            holders.map(|holder| self.left(holder)).max().unwrap()
                        });
                        let soonest = Duration::from_secs(60 * soonest.min().unwrap());
                        assert!(
                            is_near(expires_in, soonest),
                            "{expires_in:?}, not {soonest:?}"
                        );
                    }
                    (expected, answer) => panic!("{answer:?} instead of {expected:?}"),
                }
            }
            Action::Transaction(value, limit) => {
                let others = self.entries.keys().filter(|key| key.0 != me).count();
                let is_done = store.transaction(|entries| {
                    let is_free = entries.others().count() <= *limit;
                    if is_free {
                        entries.store(s(VALUES[*value]));
                    }
                    is_free
                });
                assert_eq!(is_done.unwrap(), others <= *limit);
                if others <= *limit {
                    self.entries.insert(key, (*value, now, None));
                }
            }
            Action::Advance(minutes) => {
                world.advance(Duration::from_secs(60 * minutes));
                self.now += minutes;
            }
        }
    }
}

type Script = Vec<(usize, bool, Action)>;

fn script() -> impl Strategy<Value = Script> {
    prop::collection::vec((0..SESSIONS.len(), any::<bool>(), action()), 1..50)
}

fn check_model(world: &dyn World, script: &Script) {
    let open = |me: usize| {
        let ttl = Duration::from_secs(60 * TTL_MINUTES[me]);
        let store = world.open(SESSIONS[me], ttl, None);
        let slot = store.slot("two").unwrap();
        [store, slot]
    };
    let stores: Vec<[Store; 2]> = (0..SESSIONS.len()).map(open).collect();
    let mut model = Model::default();
    for (me, slot, action) in script {
        let store = &stores[*me][usize::from(*slot)];
        model.act(world, store, (*me, *slot), action);
    }
    model.act(world, &stores[0][0], (0, false), &Action::Entries);
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(48))]

    #[test]
    fn files_behave_like_the_model(script in script()) {
        check_model(&Files(Place::new()), &script);
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_server_behaves_like_the_model() {
    let server = Server(RedisServer::start_with(&[]));
    let mut runner = proptest::test_runner::TestRunner::new(config(48));
    let result = runner.run(&script(), |script| {
        let _: () = server.0.command(&["FLUSHALL"]);
        check_model(&server, &script);
        Ok(())
    });
    result.unwrap();
}
