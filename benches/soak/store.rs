//! timed-store: eight processes claim, swap, refresh and release five values in one file.
//!
//! Guarantees: no value has two holders (each holder takes a kernel lock, which must be free);
//! fencing tokens only rise; every acknowledged change is stored, also after a kill of its process.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use examples::Result;
use timed_store::blocking::TimedStorage;
use timed_store::{Claim, LockPolicy, OwnerProcess, SessionId};

use crate::ledger::Ledger;
use crate::record::Record;
use crate::worker::{self, Random, Worker};

const SESSIONS: usize = 8;
/// The values are the numbers from 1 to this.
const VALUES: usize = 5;

/// Stands for no value in the journal.
const NOTHING: u64 = 0;
/// Stands for a claim that will lapse: after a kill its state is unknown.
const TO_LAPSE: u64 = u64::MAX;

/// Longer than any session holds a value without a refresh, even on a busy machine.
const TTL: Duration = Duration::from_secs(600);
/// The timeout of claims that lapse.
const BRIEF: Duration = Duration::from_millis(20);

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let folder = ledger.folder("store")?;
    let data = ledger.folder("store/store")?;
    let start = |session: usize| {
        let (folder, session) = (folder.to_string_lossy(), session.to_string());
        Worker::start(
            ledger,
            &["store", "--folder", &folder, "--session", &session],
        )
    };
    let mut workers = (0..SESSIONS).map(start).collect::<Result<Vec<_>>>()?;
    // The last one is never killed.
    ledger.watch("store session", workers[SESSIONS - 1].pid());
    let mut random = Random::new();
    while ledger.pace(random.millis(200, 800)) {
        workers[SESSIONS - 1].expect_alive()?;
        let session = random.below(SESSIONS - 1);
        workers.remove(session).kill()?;
        workers.insert(session, start(session)?);
    }
    for worker in workers {
        worker.finish()?;
    }
    let tokens = std::fs::read(folder.join("tokens"))?;
    let tokens = tokens.chunks(8);
    let count = tokens.len();
    if tokens.collect::<BTreeSet<_>>().len() != count {
        ledger.violation("a fencing token was issued twice".to_owned());
    }
    // Eight entries, and no temporary files of killed processes.
    Ok(ledger.judge_disk(&data, 64 << 10)?)
}

/// One of the processes.
#[derive(clap::Args)]
pub(crate) struct Session {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    session: usize,
}

impl Session {
    pub(crate) fn run(self) -> Result<()> {
        let mut holder = Holder::open(&self.folder, self.session)?;
        holder.take_up()?;
        let mut random = Random::new();
        while !worker::is_ending() {
            holder.step(&mut random)?;
            std::thread::sleep(random.millis(2, 10));
        }
        holder.release()
    }
}

struct Holder {
    name: String,
    folder: PathBuf,
    store: TimedStorage<u64>,
    brief: TimedStorage<u64>,
    /// The acknowledged value of the session, and the value of the pending request.
    journal: Record<2>,
    /// All tokens of all sessions in the order of receipt.
    tokens: File,
    /// Whether claims survive the process: those of even sessions do, those of odd ones do not.
    outlives: bool,
    held: Option<Held>,
}

struct Held {
    value: u64,
    token: u64,
    /// Locked while this session certainly holds the value; contains the last token of the value.
    proof: Record<1>,
}

/// Whether the proof file contains the token of this claim already. Unknown after a kill.
#[derive(Debug)]
enum Seen {
    Never,
    Before,
    Perhaps,
}

impl Holder {
    fn open(folder: &Path, session: usize) -> Result<Self> {
        let name = format!("session-{session}");
        let outlives = session.is_multiple_of(2);
        let open = |ttl| {
            let mut builder = TimedStorage::builder(folder.join("store/values.json"))
                .session(SessionId::new(&name)?)
                .lock(LockPolicy::Wait(Duration::from_secs(60)))
                .ttl(ttl);
            if !outlives {
                builder = builder.owner(OwnerProcess::current());
            }
            builder.open()
        };
        let (store, brief) = (open(TTL)?, open(BRIEF)?);
        let mut tokens = OpenOptions::new();
        let tokens = tokens.create(true).read(true).append(true);
        Ok(Self {
            journal: Record::open(folder.join(&name))?,
            tokens: tokens.open(folder.join("tokens"))?,
            folder: folder.to_owned(),
            name,
            store,
            brief,
            outlives,
            held: None,
        })
    }

    /// Checks the state that was acknowledged to the process before this one.
    fn take_up(&mut self) -> Result<()> {
        let [acknowledged, asked] = self.journal.read()?;
        if asked == TO_LAPSE {
            self.store.remove()?;
            return self.note_held();
        }
        let entries = self.store.entries()?;
        let found = entries.mine();
        let value = found.map_or(NOTHING, |entry| *entry.value());
        let right = match self.outlives {
            true => value == acknowledged || value == asked,
            false => value == NOTHING,
        };
        self.expect(right, || {
            format!(
                "has {value} after a kill, of {acknowledged} acknowledged and {asked} asked for"
            )
        });
        if let Some(entry) = found {
            self.hold(value, entry.token().unwrap_or(0), &Seen::Perhaps)?;
        }
        self.note_held()
    }

    fn step(&mut self, random: &mut Random) -> Result<()> {
        let value = 1 + random.below(VALUES) as u64;
        match (self.held.is_some(), random.below(8)) {
            (false, 0) => self.lapse(value),
            (false, 2..) | (true, 0 | 1) => self.claim(value),
            (true, 2 | 3) => self.release(),
            (true, 4 | 5) => self.refresh(),
            _ => self.check(),
        }
    }

    /// Claims a value. If the claim is granted, the value held before is released by it.
    fn claim(&mut self, value: u64) -> Result<()> {
        if self.held.as_ref().is_some_and(|held| held.value == value) {
            return self.check();
        }
        let latest = self.latest_token()?;
        // From here on this session may have lost the old value.
        let old = self.held.take().map(|held| (held.value, held.token));
        let had = old.map_or(NOTHING, |(value, _)| value);
        self.journal.write([had, value])?;
        match self.store.claim(value)? {
            Claim::Granted(lease) => {
                self.journal.write([value, value])?;
                let token = lease.token();
                self.expect(token > latest, || format!("got {token} after {latest}"));
                self.tokens.write_all(&token.to_be_bytes())?;
                self.hold(value, token, &Seen::Never)?;
                worker::count(old.map_or("store claims", |_| "store swaps"));
            }
            Claim::Busy { holder, .. } => {
                let other = holder.as_str() != self.name;
                self.expect(other, || "was refused its own value".to_owned());
                if let Some((value, token)) = old {
                    self.hold(value, token, &Seen::Before)?;
                }
                self.note_held()?;
                worker::count("store claims refused");
            }
        }
        Ok(())
    }

    fn refresh(&mut self) -> Result<()> {
        let refreshed = self.store.refresh()?;
        self.expect(refreshed, || "has nothing to refresh".to_owned());
        worker::count("store refreshes");
        Ok(())
    }

    fn release(&mut self) -> Result<()> {
        let Some(Held { value, proof, .. }) = self.held.take() else {
            return Ok(());
        };
        drop(proof);
        self.journal.write([value, NOTHING])?;
        let removed = self.store.remove()?;
        self.expect(removed, || "has nothing to release".to_owned());
        worker::count("store releases");
        self.note_held()?;
        self.check()
    }

    /// Makes a claim and does not refresh it, so that other sessions can claim the value soon.
    fn lapse(&mut self, value: u64) -> Result<()> {
        self.journal.write([NOTHING, TO_LAPSE])?;
        if let Claim::Granted(lease) = self.brief.claim(value)? {
            self.tokens.write_all(&lease.token().to_be_bytes())?;
            std::thread::sleep(BRIEF * 2);
            worker::count("store claims lapsed");
        }
        self.store.remove()?;
        self.note_held()
    }

    /// Checks that the session has its value, and that no value has two holders.
    fn check(&self) -> Result<()> {
        let entries = self.store.entries()?;
        let mine = entries.mine().map(|entry| (*entry.value(), entry.token()));
        let held = self.held.as_ref();
        let held = held.map(|held| (held.value, Some(held.token)));
        self.expect(mine == held, || format!("has {mine:?} and not {held:?}"));
        let values: Vec<_> = entries.iter().map(|(_, entry)| entry.value()).collect();
        let different = values.iter().collect::<BTreeSet<_>>().len();
        self.expect(different == values.len(), || {
            format!("sees two holders of one value: {values:?}")
        });
        worker::count("store reads");
        Ok(())
    }

    /// Proves that the value has no other holder: its lock must be free, and the token must be larger
    /// than that of every earlier holder.
    fn hold(&mut self, value: u64, token: u64, seen: &Seen) -> Result<()> {
        let proof = Record::open(self.folder.join(format!("proof-{value}")))?;
        let alone = proof.0.try_lock().is_ok();
        self.expect(alone, || format!("got {value}, which another one holds"));
        let [last] = proof.read()?;
        let right = match seen {
            Seen::Never => token > last,
            Seen::Before => token == last,
            Seen::Perhaps => token >= last,
        };
        self.expect(right, || {
            format!("has {value} ({seen:?} proven) with token {token} after {last}")
        });
        proof.write([token])?;
        self.held = Some(Held {
            value,
            token,
            proof,
        });
        Ok(())
    }

    fn expect(&self, right: bool, otherwise: impl FnOnce() -> String) {
        if !right {
            worker::violation(&format!("{} {}", self.name, otherwise()));
        }
    }

    /// The last token that any session has received. Every later claim must get a larger one.
    fn latest_token(&mut self) -> Result<u64> {
        let mut token = [0; 8];
        let length = self.tokens.seek(SeekFrom::End(0))?;
        if length >= 8 {
            self.tokens.read_exact_at(&mut token, length - 8)?;
        }
        Ok(u64::from_be_bytes(token))
    }

    fn note_held(&self) -> Result<()> {
        let value = self.held.as_ref().map_or(NOTHING, |held| held.value);
        Ok(self.journal.write([value, value])?)
    }
}
