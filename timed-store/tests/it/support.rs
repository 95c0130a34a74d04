//! A store in a temporary folder, on a clock that the test moves.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tempfile::TempDir;
use timed_store::blocking::TimedStorage;
use timed_store::{Claim, Error, ManualClock, SessionId, TimedStorageBuilder};

/// 2025-08-18T10:20:30.456Z
pub(crate) const START_MS: u64 = 1_755_512_430_456;
pub(crate) const START: &str = "2025-08-18T10:20:30.456Z";

/// Far more than any operation takes, even on a busy machine.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) type Store = TimedStorage<String>;

pub(crate) struct Place {
    pub(crate) folder: TempDir,
    pub(crate) clock: ManualClock,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
            clock: ManualClock::new(time(START_MS)),
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }

    pub(crate) fn lock_file(&self) -> PathBuf {
        self.folder.path().join("state.json.flock")
    }

    pub(crate) fn builder(&self, session: &str) -> TimedStorageBuilder<Store> {
        Store::builder(self.path())
            .session(SessionId::new(session).unwrap())
            .manual_clock(self.clock.clone())
    }

    pub(crate) fn store(&self, session: &str) -> Store {
        self.builder(session).open().unwrap()
    }

    pub(crate) fn text(&self) -> String {
        std::fs::read_to_string(self.path()).unwrap()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    pub(crate) fn write(&self, text: &str) {
        write_private(&self.path(), text.as_bytes());
    }

    /// The names of all files in the folder, sorted.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .folder
            .path()
            .read_dir()
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

pub(crate) fn time(unix_ms: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(unix_ms)
}

pub(crate) fn write_private(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, bytes).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn s(text: &str) -> String {
    text.to_owned()
}

#[track_caller]
pub(crate) fn is_granted(claim: Result<Claim<String>, Error>) -> bool {
    claim.unwrap().granted().is_some()
}

/// The token of a granted claim.
#[track_caller]
pub(crate) fn token(claim: Result<Claim<String>, Error>) -> u64 {
    claim
        .unwrap()
        .granted()
        .expect("the claim is granted")
        .token()
}

/// Random numbers. To repeat a failed test, set `TIMED_STORE_SEED` to the number that it printed.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(what: &str) -> Self {
        let given = std::env::var("TIMED_STORE_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok());
        let random = given.map_or_else(Self::unrepeatable, Self);
        eprintln!("{what}: TIMED_STORE_SEED={}", random.0);
        random
    }

    pub(crate) fn unrepeatable() -> Self {
        use std::hash::{BuildHasher, RandomState};
        Self(RandomState::new().hash_one(0) | 1)
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// How long a test without a natural end runs.
pub(crate) fn endurance() -> Duration {
    let given = std::env::var("TIMED_STORE_SECONDS")
        .ok()
        .and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(given.unwrap_or(6))
}
