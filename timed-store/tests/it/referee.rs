//! Many processes claim, refresh and remove while the test kills and stops them. A referee checks
//! the result without the store's help.
//!
//! Mutual exclusion is proven by marker files: a session with a grant creates one for its value,
//! which fails if another session's marker exists. Durability is proven by a journal per session,
//! written before and after every operation: the successor of a killed process reads there which
//! values it may find.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use timed_store::{Claim, LockPolicy, SessionId};

use crate::support::{LONG, Place, Random, Store, endurance, s};
use crate::worker::Worker;

pub(crate) const SESSIONS: usize = 6;
const VALUES: [&str; 4] = ["w", "x", "y", "z"];

/// The place of the store: a file in the folder, or a server.
fn open(folder: &Path, session: &str, ttl: Duration, server: Option<&str>) -> Store {
    let session = SessionId::new(session).unwrap();
    match server {
        None => Store::builder(folder.join("state.json"))
            .session(session)
            .lock(LockPolicy::Wait(LONG))
            .ttl(ttl)
            .open()
            .unwrap(),
        #[cfg(feature = "redis")]
        Some(url) => loop {
            let builder = Store::redis_builder(url, "state").session(session.clone());
            match builder.ttl(ttl).connect() {
                Ok(store) => return store,
                // The referee resets connections and kills the server.
                Err(timed_store::Error::Server { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        },
        #[cfg(not(feature = "redis"))]
        Some(url) => panic!("no server without the feature `redis`: {url}"),
    }
}

/// The part of one session: claims until it is killed. The arguments are the session, the timeout
/// and the address of a server, if there is one.
pub(crate) fn claim_for_ever(folder: &Path, arguments: &str) {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let (session, ttl, server) = (arguments[0], arguments[1], arguments.get(2).copied());
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let player = Player {
        store: open(folder, session, ttl, server),
        folder: folder.to_owned(),
        session: s(session),
        expires: ttl < LONG,
    };
    player.play();
}

struct Player {
    store: Store,
    folder: PathBuf,
    session: String,
    /// With a short timeout a stopped process loses its value. Then only tokens are checked.
    expires: bool,
}

impl Player {
    fn play(&self) {
        let mut random = Random::unrepeatable();
        let mut mine = self.take_over();
        loop {
            let value = VALUES[random.below(4) as usize];
            match random.below(9) {
                0..4 => self.claim(&mut mine, vec![s(value)], Duration::ZERO),
                4 => self.claim(&mut mine, VALUES.map(s).to_vec(), Duration::ZERO),
                8 => self.claim(&mut mine, vec![s(value)], Duration::from_millis(5)),
                5 => {
                    let refreshed = self.store.refresh().unwrap();
                    assert!(
                        self.expires || refreshed == mine.is_some(),
                        "{}: refresh",
                        self.session
                    );
                }
                6 => self.remove(&mut mine),
                _ => {
                    let found = self.store.restore().unwrap();
                    assert!(
                        self.expires || found == mine,
                        "{}: {found:?}, not {mine:?}",
                        self.session
                    );
                }
            }
        }
    }

    /// Takes over from a predecessor that was killed at any moment.
    fn take_over(&self) -> Option<String> {
        let found = self.store.restore().unwrap();
        if let Ok(journal) = fs::read_to_string(self.path("journal", &self.session)) {
            let possible: Vec<Option<String>> = serde_json::from_str(&journal).unwrap();
            assert!(
                self.expires || possible.contains(&found),
                "{}: {found:?} is none of {possible:?}",
                self.session
            );
        }
        if let Some(value) = found.as_ref().filter(|_| !self.expires) {
            self.mark(value);
        }
        for value in VALUES
            .iter()
            .filter(|value| found.as_deref() != Some(value))
        {
            self.unmark(value);
        }
        found
    }

    /// A claim with a limit waits in the queue of the value.
    fn claim(&self, mine: &mut Option<String>, candidates: Vec<String>, limit: Duration) {
        let mut possible: Vec<Option<String>> = candidates.iter().cloned().map(Some).collect();
        possible.push(mine.clone());
        self.journal(&possible);
        // Removed before: with the grant, any session may take the old value.
        if let Some(value) = mine.as_ref().filter(|value| !candidates.contains(value)) {
            self.unmark(value);
        }
        let claim = if limit.is_zero() {
            self.store.claim_any(candidates)
        } else {
            self.store.claim_any_within(candidates, limit)
        };
        match claim {
            // A claim with a limit does not wait for a server that is away.
            #[cfg(feature = "redis")]
            Err(timed_store::Error::Server { may_be_done, .. }) if !limit.is_zero() => {
                let found = self.store.restore().unwrap();
                let expected = if may_be_done {
                    &possible[..]
                } else {
                    &possible[possible.len() - 1..]
                };
                assert!(
                    self.expires || expected.contains(&found),
                    "{}: {found:?} is none of {expected:?}",
                    self.session
                );
                *mine = found;
                self.log("cut\n");
            }
            Err(error) => panic!("{}: {error:?}", self.session),
            Ok(Claim::Granted(lease)) => {
                *mine = Some(lease.value().clone());
                self.log(&format!("{} {}\n", lease.token(), lease.value()));
            }
            Ok(Claim::Busy { holder, .. }) => {
                assert_ne!(holder.as_str(), self.session);
                self.log("busy\n");
            }
        }
        if let Some(value) = mine.as_ref() {
            self.mark(value);
        }
        self.journal(std::slice::from_ref(mine));
    }

    fn remove(&self, mine: &mut Option<String>) {
        self.journal(&[mine.clone(), None]);
        if let Some(value) = mine.as_ref() {
            self.unmark(value);
        }
        let removed = self.store.remove().unwrap();
        assert!(
            self.expires || removed == mine.is_some(),
            "{}: remove",
            self.session
        );
        *mine = None;
        self.journal(&[None]);
    }

    fn mark(&self, value: &str) {
        if self.expires {
            return;
        }
        // Written completely before it gets its name, because the writer may be killed.
        let draft = self.path("draft", &self.session);
        // Removed first, because the last draft may be the marker itself under another name.
        let _ = fs::remove_file(&draft);
        fs::write(&draft, &self.session).unwrap();
        if fs::hard_link(&draft, self.path("marker", value)).is_err() {
            let holder = fs::read_to_string(self.path("marker", value)).unwrap_or_default();
            assert_eq!(holder, self.session, "`{value}` has two holders");
        }
    }

    fn unmark(&self, value: &str) {
        let marker = self.path("marker", value);
        if !self.expires && fs::read_to_string(&marker).is_ok_and(|holder| holder == self.session) {
            fs::remove_file(marker).unwrap();
        }
    }

    fn journal(&self, possible: &[Option<String>]) {
        let draft = self.path("journal-draft", &self.session);
        fs::write(&draft, serde_json::to_string(possible).unwrap()).unwrap();
        fs::rename(draft, self.path("journal", &self.session)).unwrap();
    }

    fn log(&self, line: &str) {
        let path = self.path("log", &self.session);
        OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)
            .unwrap()
            .write_all(line.as_bytes())
            .unwrap();
    }

    fn path(&self, what: &str, which: &str) -> PathBuf {
        self.folder.join(format!("{what}-{which}"))
    }
}

/// Checks that no two entries of the file have the same value, at any moment.
fn check_file(path: &Path) {
    let Ok(text) = fs::read_to_string(path) else {
        return;
    };
    let json: serde_json::Value = serde_json::from_str(&text).expect("the file is always whole");
    let mut holders = BTreeMap::new();
    for (session, entry) in json["storage"].as_object().unwrap() {
        let other = holders.insert(entry["data"].as_str().unwrap(), session);
        assert_eq!(other, None, "two holders: {text}");
    }
}

fn referee(ttl_ms: u64, length: Duration) {
    let place = Place::new();
    let folder = place.folder.path();
    let start = |number: usize| Worker::start(&format!("claim session-{number} {ttl_ms}"), folder);
    let mut workers: Vec<Worker> = (0..SESSIONS).map(start).collect();
    let mut random = Random::new("referee");
    let (mut kills, mut stops) = (0, 0);
    let end = Instant::now() + length;
    // On a busy machine a step takes long: the time may be over before enough has happened.
    let last = end + 5 * LONG;
    let is_enough = || check_logs(folder).1 > 50 || Instant::now() > last;
    while Instant::now() < end || kills <= 3 || stops <= 3 || !is_enough() {
        let pause = Instant::now() + Duration::from_millis(5 + random.below(20));
        while Instant::now() < pause {
            check_file(&place.path());
            std::thread::sleep(Duration::from_micros(500));
        }
        let number = random.below(SESSIONS as u64) as usize;
        workers[number].must_run();
        if random.below(2) == 0 {
            workers[number].kill();
            workers[number] = start(number);
            kills += 1;
        } else {
            workers[number].signal(Signal::STOP);
            std::thread::sleep(Duration::from_millis(random.below(3 * ttl_ms.min(20))));
            workers[number].signal(Signal::CONT);
            stops += 1;
        }
    }
    for worker in &mut workers {
        worker.must_run();
        worker.kill();
    }
    let (rounds, grants, tokens) = check_logs(folder);
    eprintln!(
        "referee, timeout {ttl_ms} ms: {rounds} rounds, {grants} grants, {tokens} tokens, \
         {kills} kills, {stops} stops"
    );
    assert!(grants > 50, "too little happened to prove anything");
}

/// Checks that no token was given out twice and that no session saw tokens go back. Returns the
/// numbers of claims, grants and tokens.
pub(crate) fn check_logs(folder: &Path) -> (usize, usize, usize) {
    let (mut rounds, mut grants) = (0, 0);
    let mut owners: BTreeMap<u64, (usize, String)> = BTreeMap::new();
    for number in 0..SESSIONS {
        let mut last = 0;
        let log =
            fs::read_to_string(folder.join(format!("log-session-{number}"))).unwrap_or_default();
        rounds += log.lines().count();
        for (token, value) in log.lines().filter_map(|line| line.split_once(' ')) {
            let token: u64 = token.parse().unwrap();
            assert!(
                token >= last,
                "session {number} got token {token} after {last}"
            );
            let first = owners.entry(token).or_insert((number, s(value)));
            assert_eq!(
                *first,
                (number, s(value)),
                "token {token} was given out twice"
            );
            (last, grants) = (token, grants + 1);
        }
    }
    (rounds, grants, owners.len())
}

#[test]
fn no_value_has_two_holders_and_no_live_entry_is_lost() {
    referee(LONG.as_millis() as u64 * 60, endurance());
}

#[test]
fn tokens_never_go_back_when_stopped_holders_lose_their_values() {
    referee(30, endurance() / 2);
}
