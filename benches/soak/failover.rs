//! timed-store on Redis: sessions claim three values while the replica is promoted, again and again.
//! Half of the time the old primary is dead; otherwise it still runs and serves its old clients, so
//! that there are two primaries for a while.
//!
//! Guarantees, with all replicas acknowledging and `appendfsync always`: no value has two holders
//! (each holder takes a kernel lock, which must be free); a later holder of a value has a larger token;
//! a granted claim survives every failover.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use examples::Result;
use examples::redis_server::{RedisServer, SyncLog};
use timed_store::blocking::TimedStorage;
use timed_store::{Claim, Error, OwnerProcess, SessionId};

use crate::ledger::Ledger;
use crate::record::Record;
use crate::worker::{self, Random, Worker};

const SESSIONS: usize = 6;
/// The values are the numbers from 1 to this.
const VALUES: usize = 3;
/// Longer than any run: a claim ends with its process or by a release.
const TTL: Duration = Duration::from_secs(24 * 3600);
/// The time of the replica to acknowledge. A grant that it does not have by then is withdrawn, which
/// is no violation: on a busy machine there are only fewer grants.
const WITHIN: Duration = Duration::from_secs(2);
/// For a server to follow another one; generous for a busy machine.
const SOON: Duration = Duration::from_secs(60);

pub(crate) fn run(ledger: &Arc<Ledger>) -> Result<()> {
    let folder = ledger.folder("failover")?;
    let mut pair = Pair::start(&folder)?;
    let start = |session: usize| {
        let (folder, session) = (folder.to_string_lossy(), session.to_string());
        let arguments = ["failover", "--folder", &folder, "--session", &session];
        Worker::start(ledger, &arguments)
    };
    let mut sessions = (0..SESSIONS).map(start).collect::<Result<Vec<_>>>()?;
    // The last one is never killed.
    ledger.watch("lease session", sessions[SESSIONS - 1].pid());
    let mut random = Random::new();
    let mut kill = |random: &mut Random| -> Result<()> {
        sessions[SESSIONS - 1].expect_alive()?;
        let session = random.below(SESSIONS - 1);
        sessions.remove(session).kill()?;
        sessions.insert(session, start(session)?);
        Ok(())
    };
    while ledger.pace(random.millis(500, 2_000)) {
        match random.below(6) {
            0 => {
                pair.primary.kill();
                pair.promote()?;
                pair.rejoin()?;
                ledger.count("failovers with a dead primary", 1);
            }
            1 => {
                pair.promote()?;
                // The sessions of before stay with the old primary, new ones reach the new one.
                for _ in 0..2 {
                    kill(&mut random)?;
                    ledger.pace(random.millis(300, 2_000));
                }
                pair.primary.kill();
                pair.rejoin()?;
                ledger.count("failovers with two primaries", 1);
            }
            _ => kill(&mut random)?,
        }
    }
    for session in sessions {
        session.finish()?;
    }
    ledger.expect_some("lease claims granted");
    Ok(())
}

/// Two servers. The address of the primary is a symbolic link to its socket, as a virtual IP address
/// is: clients that connect again find the new primary.
struct Pair {
    primary: Node,
    replica: Node,
    address: PathBuf,
}

impl Pair {
    fn start(folder: &Path) -> Result<Self> {
        let node = |name: &str| {
            let folder = folder.join(name);
            std::fs::create_dir(&folder)?;
            Node::start(folder)
        };
        let pair = Self {
            primary: node("a")?,
            replica: node("b")?,
            address: address(folder),
        };
        pair.replica.follow(&pair.primary)?;
        pair.redirect_to(&pair.primary)?;
        Ok(pair)
    }

    /// Makes the replica a primary, which new connections find. The old one is not asked.
    fn promote(&self) -> Result<()> {
        self.replica.command(&["REPLICAOF", "NO", "ONE"])?;
        self.redirect_to(&self.replica)
    }

    /// Starts the killed primary again, as the replica of the promoted one.
    fn rejoin(&mut self) -> Result<()> {
        std::mem::swap(&mut self.primary, &mut self.replica);
        self.replica.restart()?;
        self.replica.follow(&self.primary)
    }

    fn redirect_to(&self, node: &Node) -> Result<()> {
        let next = self.address.with_extension("next");
        std::os::unix::fs::symlink(node.folder.join("redis.sock"), &next)?;
        Ok(std::fs::rename(next, &self.address)?)
    }
}

fn address(folder: &Path) -> PathBuf {
    folder.join("primary.sock")
}

/// One of the servers.
struct Node {
    folder: PathBuf,
    port: u16,
    server: Option<RedisServer>,
}

impl Node {
    fn start(folder: PathBuf) -> Result<Self> {
        let mut node = Self {
            folder,
            port: 0,
            server: None,
        };
        node.restart()?;
        Ok(node)
    }

    fn kill(&mut self) {
        self.server = None;
    }

    /// Starts a killed server, on another port: the kernel may have given away the old one.
    fn restart(&mut self) -> Result<()> {
        self.port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let server = RedisServer::start_on(self.port, &self.folder, SyncLog::EveryWrite)?;
        self.server = Some(server);
        // By default a primary waits five seconds for further replicas before it sends its data.
        self.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"])?;
        Ok(())
    }

    /// Waits until this server has all data of the primary.
    fn follow(&self, primary: &Self) -> Result<()> {
        self.command(&["REPLICAOF", "127.0.0.1", &primary.port.to_string()])?;
        let deadline = Instant::now() + SOON;
        while !self
            .command(&["INFO", "replication"])?
            .contains("master_link_status:up")
        {
            if Instant::now() > deadline {
                return Err("a replica does not follow its primary".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn command(&self, words: &[&str]) -> Result<String> {
        let server = self.server.as_ref().ok_or("the server was killed")?;
        let mut connection = redis::Client::open(server.url())?.get_connection()?;
        let mut command = redis::Cmd::new();
        Ok(command.arg(words).query(&mut connection)?)
    }
}

/// A process with one session.
#[derive(clap::Args)]
pub(crate) struct Session {
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    session: usize,
}

impl Session {
    pub(crate) fn run(self) -> Result<()> {
        let Some(mut holder) = self.connect()? else {
            return Ok(());
        };
        let mut random = Random::new();
        while !worker::is_ending() {
            holder.step(&mut random)?;
            std::thread::sleep(random.millis(5, 40));
        }
        holder.release()
    }

    /// Connects as a new session: a call of a killed process can still be on its way to the server,
    /// and must not change the entry of its successor. `None` at the end of the run.
    fn connect(self) -> Result<Option<Holder>> {
        let url = format!("redis+unix://{}", address(&self.folder).display());
        let name = format!("session-{}-{}", self.session, uuid::Uuid::new_v4());
        while !worker::is_ending() {
            let builder = TimedStorage::redis_builder(&url, "values")
                .session(SessionId::new(&name)?)
                .ttl(TTL)
                .owner(OwnerProcess::current())
                .acknowledged_by(1, WITHIN);
            match settled(builder.connect())? {
                Some(store) => {
                    return Ok(Some(Holder {
                        name,
                        folder: self.folder,
                        store,
                        held: None,
                        token: 0,
                    }));
                }
                None => std::thread::sleep(Duration::from_millis(100)),
            }
        }
        Ok(None)
    }
}

struct Holder {
    name: String,
    folder: PathBuf,
    store: TimedStorage<u64>,
    held: Option<Held>,
    /// The last token.
    token: u64,
}

/// A granted claim.
struct Held {
    value: u64,
    token: u64,
    /// Locked while this session certainly holds the value; contains the last token of the value.
    _proof: Record<1>,
}

impl Holder {
    fn step(&mut self, random: &mut Random) -> Result<()> {
        let Some(Held { value, token, .. }) = self.held else {
            return self.claim(1 + random.below(VALUES) as u64);
        };
        match random.below(4) {
            0 => {
                // A refresh that is not acknowledged leaves the claim as it was.
                let refreshed = settled(self.store.refresh())?.unwrap_or(true);
                self.expect(refreshed, || format!("has lost {value}, at a refresh"));
                worker::count("lease refreshes");
                Ok(())
            }
            1 => {
                let current = settled(self.store.validate(token))?.unwrap_or(true);
                self.expect(current, || format!("has lost {value}, token {token}"));
                worker::count("lease checks");
                Ok(())
            }
            _ => self.release(),
        }
    }

    /// Only a claim that was granted and acknowledged counts. One with an unknown outcome may be
    /// stored: that keeps the value busy, and gives it to no other session.
    fn claim(&mut self, value: u64) -> Result<()> {
        match settled(self.store.claim(value))? {
            Some(Claim::Granted(lease)) => {
                worker::count("lease claims granted");
                self.hold(value, lease.token())
            }
            Some(Claim::Busy { .. }) => {
                worker::count("lease claims refused");
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn release(&mut self) -> Result<()> {
        let Some(Held { value, .. }) = self.held.take() else {
            return Ok(());
        };
        let removed = settled(self.store.remove())?.unwrap_or(true);
        self.expect(removed, || format!("has lost {value}, at its release"));
        worker::count("lease releases");
        Ok(())
    }

    fn hold(&mut self, value: u64, token: u64) -> Result<()> {
        let proof = Record::open(self.folder.join(format!("proof-{value}")))?;
        let alone = proof.0.try_lock().is_ok();
        self.expect(alone, || {
            format!("got {value}, which another session holds")
        });
        let [last] = proof.read()?;
        // A failover can lose a release. The claim of the same session then renews its entry.
        let is_renewal = token == last && token == self.token;
        self.expect(token > last || is_renewal, || {
            format!("got {value} with token {token} after {last}")
        });
        proof.write([token])?;
        self.token = token;
        self.held = Some(Held {
            value,
            token,
            _proof: proof,
        });
        Ok(())
    }

    fn expect(&self, right: bool, otherwise: impl FnOnce() -> String) {
        if !right {
            worker::violation(&format!("{} {}", self.name, otherwise()));
        }
    }
}

/// The outcome of a call; `None` if it has none because of a failover.
fn settled<T>(called: std::result::Result<T, Error>) -> Result<Option<T>> {
    match called {
        Ok(outcome) => Ok(Some(outcome)),
        Err(Error::NotAcknowledged { .. }) => {
            worker::count("lease calls not acknowledged");
            Ok(None)
        }
        Err(Error::Server { .. }) => {
            worker::count("lease calls without a server");
            Ok(None)
        }
        Err(error) => Err(error.into()),
    }
}
