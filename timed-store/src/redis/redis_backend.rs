use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, RedisError, Script};
use tokio::runtime::Handle;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncMutexGuard};
use tokio::time::{Instant, timeout_at};

use super::connection::{
    Acknowledgement, Call, CallError, CallFailure, Connection, Deadline, is_wrong_type,
    tcp_settings, within,
};
use super::subscriber::Subscriber;
use crate::format::TokenRecord;
use crate::store::{
    Backend, Changes, Decision, Queue, Runtime, Settings, Source, Value, WaitLimit, no_candidates,
};
use crate::transaction::OwnChange;
use crate::{Entries, Entry, Error, Incident, OwnerProcess, SessionId, Transaction};

/// How long a ticket lives without renewal. A waiter renews it at least once in [`LOOK`].
const TICKET_MS: u64 = 3000;

/// How often a waiter checks the store without a notification: messages can be lost.
const LOOK: Duration = Duration::from_secs(1);

/// How long a claim with a limit may take beyond it: for the answer of an attempt that was sent in
/// time, and to withdraw a grant that was not acknowledged.
const GRACE: Duration = Duration::from_secs(1);

/// Keeps the entries in a hash of a Redis server. See the module's theory.
pub(crate) struct RedisBackend {
    settings: Arc<Settings>,
    server: Arc<RedisServer>,
}

/// The part of a handle that its slots share.
struct RedisServer {
    client: Client,
    connection: Connection,
    runtime: Handle,
    acknowledgement: Option<Acknowledgement>,
    /// The address, for errors. It has no password.
    location: String,
    key: String,
    request_key: String,
    /// When the server last answered a change. The lock is held during a change: the server
    /// remembers the last one only.
    changes: AsyncMutex<Instant>,
    /// The number of the last change.
    last_request: AtomicU64,
    /// Whether the last change has no answer: a copy of it may still be under way.
    is_doubtful: AtomicBool,
    subscriber: Mutex<Weak<Subscriber>>,
    scripts: Scripts,
}

struct Scripts {
    change: (Script, &'static str),
    claim: (Script, &'static str),
    read: (Script, &'static str),
    evict: (Script, &'static str),
    leave: (Script, &'static str),
    withdraw: (Script, &'static str),
}

macro_rules! script {
    ($file:literal) => {{
        const TEXT: &str = concat!(include_str!("prelude.lua"), include_str!($file));
        (Script::new(TEXT), TEXT)
    }};
}

/// The right to send a change.
struct Alone<'a> {
    last_answer: AsyncMutexGuard<'a, Instant>,
    /// When the operation began, or a later answer of the server. The time of its repetitions counts
    /// from here: while the server is away, the calls of a handle give up together, and not each
    /// after the time of all calls before it.
    start: Instant,
}

/// A place in the queue: the field of the ticket. It expires if it is only dropped.
pub(crate) struct RedisTurn(String);

impl RedisBackend {
    pub(super) async fn connect(
        url: &str,
        name: &str,
        mut settings: Settings,
        acknowledgement: Option<Acknowledgement>,
    ) -> Result<Self, Error> {
        if name.is_empty() || name.contains(['{', '}', '\n']) {
            return Err(Error::Invalid {
                what: "store name",
                value: name.to_owned(),
                reason: "it must not be empty, and has no braces and no line break",
            });
        }
        // Without a provider of the process, rustls would panic if two are compiled in. An error
        // says that the process has one.
        #[cfg(feature = "redis-tls")]
        let _ = rustls::crypto::ring::default_provider().install_default();
        let info = url.into_connection_info();
        let client = info.and_then(|info| Client::open(info.set_tcp_settings(tcp_settings())));
        let client = client.map_err(|_| Error::Invalid {
            what: "server address",
            value: scheme_of(url),
            reason: "it is not of the form redis://host:port/database",
        })?;
        let location = client.get_connection_info().addr().to_string();
        let failed = |source: RedisError| Error::Server {
            action: "connect to",
            location: location.clone(),
            may_be_done: false,
            source: source.into(),
        };
        let waits = acknowledgement.map_or(Duration::ZERO, |acknowledged| acknowledged.within);
        let connection = Connection::open(&client, waits).await.map_err(failed)?;
        if connection.is_cluster() && acknowledgement.is_some() {
            return Err(Error::Invalid {
                what: "acknowledgement",
                value: location,
                reason: "WAIT does not work on a cluster; use one server with its replicas",
            });
        }
        let key = format!("timed-store:{{{name}}}");
        settings.path = format!("{location} {key}").into();
        let client_id = TokenRecord::id_text(RandomState::new().hash_one(std::process::id()));
        Ok(Self {
            settings: Arc::new(settings),
            server: Arc::new(RedisServer {
                client,
                connection,
                runtime: Handle::try_current().map_err(|_| Error::ShuttingDown)?,
                acknowledgement,
                location,
                request_key: format!("{key}:request:{client_id}"),
                key,
                changes: AsyncMutex::new(Instant::now()),
                last_request: AtomicU64::new(0),
                is_doubtful: AtomicBool::new(false),
                subscriber: Mutex::new(Weak::new()),
                scripts: Scripts {
                    change: script!("change.lua"),
                    claim: script!("claim.lua"),
                    read: script!("read.lua"),
                    evict: script!("evict.lua"),
                    leave: script!("leave.lua"),
                    withdraw: script!("withdraw.lua"),
                },
            }),
        })
    }

    pub(crate) fn with_settings(&self, settings: Arc<Settings>) -> Self {
        Self {
            settings,
            server: Arc::clone(&self.server),
        }
    }

    pub(super) fn settings(&self) -> &Arc<Settings> {
        &self.settings
    }

    /// The field of this handle's entry.
    fn own_field(&self) -> String {
        let kind = self.settings.slot.as_ref().map_or("e", |_| "s");
        format!("{kind}:{}", self.settings.key())
    }

    fn owner(&self, is_claimed: bool) -> Result<String, Error> {
        match self.settings.owner_of(is_claimed) {
            Some(owner) => json(owner),
            None => Ok(String::new()),
        }
    }

    /// Reads the live entries.
    ///
    /// Race: a change was given up or cancelled, and a copy of it waits in the network. A read could
    /// overtake it on a new connection, and its answer would be false a moment later. So an empty
    /// change comes first: the server refuses every copy with a lower number.
    async fn read(&self, field: &str) -> Result<Reading, Error> {
        // If the lock is held, the change that holds it does the same.
        if self.server.is_doubtful.load(Ordering::Relaxed)
            && let Ok(last_answer) = self.server.changes.try_lock()
        {
            let start = Instant::now();
            let alone = &mut Alone { last_answer, start };
            let mut arguments = vec![self.own_field(), "none".to_owned()];
            arguments.resize(8, String::new());
            let script = &self.server.scripts.change;
            let fence = self.server.numbered(alone, script, arguments, None, None);
            fence
                .await
                .map_err(|error| in_doubt(error, "read", false))?;
        }
        let script = &self.server.scripts.read;
        let call = self
            .server
            .call("read", script, vec![field.to_owned()], None);
        let mut parts = call.await?.into_iter();
        let mut number = || parts.next().and_then(|text| text.parse().ok());
        let (Some(now_ms), Some(version)) = (number(), number()) else {
            return Err(self.server.damaged());
        };
        let rest: Vec<String> = parts.collect();
        let mut entries = Vec::new();
        let mut ended = Vec::new();
        for [field, text] in rest.as_chunks::<2>().0 {
            let Some(entry) = RemoteEntry::parse(field, text, now_ms) else {
                continue;
            };
            if entry.has_ended() {
                ended.extend([field.clone(), text.clone()]);
            } else {
                entries.push(entry);
            }
        }
        // The next reader does it, if it fails.
        if !ended.is_empty()
            && let Err(error) = self.evict(ended, None).await
        {
            let path = self.settings.path.display();
            tracing::warn!(%path, %error, "cannot remove the entry of a process that has ended");
        }
        Ok(Reading { version, entries })
    }

    /// Removes entries whose owner process has ended: fields and texts.
    async fn evict(&self, ended: Vec<String>, deadline: Deadline) -> Result<(), Error> {
        let evict = self
            .server
            .call("change", &self.server.scripts.evict, ended, deadline);
        // The operation itself has not begun.
        let evicted = evict
            .await
            .map_err(|error| in_doubt(error, "change", false));
        evicted.map(drop)
    }

    fn decode<T: Value>(&self, entry: &RemoteEntry) -> Result<T, Error> {
        serde_json::from_str(&entry.data).map_err(|source| Error::Decode {
            path: self.settings.path.clone(),
            session: SessionId::from_key(entry.key()),
            source: source.into(),
        })
    }

    fn is_other(&self, entry: &RemoteEntry) -> bool {
        !self.settings.is_own_session(entry.key(), entry.is_slot())
    }

    fn to_entries<T: Value>(&self, reading: &Reading) -> Result<Entries<T>, Error> {
        let mut all = BTreeMap::new();
        let mut others = BTreeSet::new();
        for entry in &reading.entries {
            let key = SessionId::from_key(entry.key());
            if self.is_other(entry) {
                others.insert(key.clone());
            }
            let decoded = Entry {
                value: self.decode(entry)?,
                token: entry.token,
                expires_in: entry.expires_in,
            };
            all.insert(key, decoded);
        }
        Ok(Entries {
            own: SessionId::from_key(self.settings.key()),
            others,
            all,
            incidents: Vec::new(),
        })
    }

    /// Changes the own entry; `None` if another change came between.
    async fn change(
        &self,
        change: OwnEntryChange,
        deadline: Deadline,
    ) -> Result<Option<bool>, Error> {
        let OwnEntryChange {
            operation,
            version,
            token,
            data,
        } = change;
        let optional = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
        let acknowledgement = match operation {
            "store" | "refresh" => self.server.acknowledgement,
            // A lost removal keeps the value busy for longer, which is safe.
            _ => None,
        };
        let mut alone = self.server.alone(deadline).await?;
        let mut running = self.running_owner()?;
        loop {
            let arguments = vec![
                self.own_field(),
                operation.to_owned(),
                optional(version),
                optional(token),
                self.settings.ttl_ms.to_string(),
                self.owner(false)?,
                data.clone(),
                running,
            ];
            let script = &self.server.scripts.change;
            let call =
                self.server
                    .numbered(&mut alone, script, arguments, acknowledgement, deadline);
            let (answer, acknowledged) = call.await?;
            match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
                ["done", was_there, earlier, written] => {
                    if let Some(wanted) = acknowledgement.filter(|_| !written.is_empty())
                        && acknowledged < wanted.replicas
                    {
                        let (texts, outcome) = ((written, earlier), (wanted, acknowledged));
                        let withdrawn = self.withdraw(&mut alone, texts, outcome, deadline);
                        return Err(withdrawn.await);
                    }
                    return Ok(Some(was_there == "1"));
                }
                ["check", own] => running = self.check_owner(own, deadline).await?,
                ["conflict"] => return Ok(None),
                _ => return Err(self.server.damaged()),
            }
        }
    }

    /// The owner of this handle's claims, if it runs. The server asks for a check of any other one.
    fn running_owner(&self) -> Result<String, Error> {
        match self.settings.owner_of(true) {
            Some(owner) if !owner.has_ended() => json(owner),
            _ => Ok(String::new()),
        }
    }

    /// Checks the owner of the own entry, whose text the server has sent: returns it if it runs, and
    /// removes the entry if it has ended.
    async fn check_owner(&self, text: &str, deadline: Deadline) -> Result<String, Error> {
        let field = self.own_field();
        let ended = RemoteEntry::parse(&field, text, 0).filter(RemoteEntry::has_ended);
        if ended.is_some() {
            self.evict(vec![field, text.to_owned()], deadline).await?;
            return Ok(String::new());
        }
        Ok(text.splitn(5, '\n').nth(4).unwrap_or_default().to_owned())
    }

    /// Takes back a change that was not acknowledged.
    ///
    /// The withdrawal needs an acknowledgement as well: a replica that has the change only, and takes
    /// over, would give the earlier value of the session to another one.
    async fn withdraw(
        &self,
        alone: &mut Alone<'_>,
        (written, earlier): (&str, &str),
        (wanted, acknowledged): (Acknowledgement, u32),
        deadline: Deadline,
    ) -> Error {
        let arguments = vec![
            self.own_field(),
            self.settings.session.as_str().to_owned(),
            written.to_owned(),
            earlier.to_owned(),
        ];
        let data = |text: &str| text.split('\n').next().unwrap_or_default().to_owned();
        let has_earlier = !earlier.is_empty() && data(earlier) != data(written);
        let left = deadline.map_or(Duration::MAX, |end| end - Instant::now());
        let acknowledgement = has_earlier.then_some(Acknowledgement {
            within: wanted.within.min(left / 2),
            ..wanted
        });
        let script = &self.server.scripts.withdraw;
        let call = self
            .server
            .numbered(alone, script, arguments, acknowledgement, deadline);
        match call.await {
            // The change was done, whatever has become of the withdrawal.
            Err(error) => in_doubt(error, "change", true),
            Ok((answer, withdrawn)) => Error::NotAcknowledged {
                location: self.server.location.clone(),
                wanted: wanted.replicas,
                acknowledged,
                earlier_may_be_lost: has_earlier
                    && (withdrawn < wanted.replicas || answer.get(1).is_none_or(|it| it != "1")),
            },
        }
    }
}

impl RedisBackend {
    /// Releases the value of a dropped guard, within `limit`.
    ///
    /// The connection of the handle belongs to a runtime that may be about to end, or that waits for
    /// this very drop. So a thread with a runtime and a connection of its own does it, and the drop
    /// waits for the thread: at the end of `main` nothing else would.
    pub(crate) fn release_on_thread(&self, token: u64, limit: Duration) -> Result<bool, Error> {
        let failed = |source| Error::Thread { source };
        let (server, field) = (Arc::clone(&self.server), self.own_field());
        let releasing = std::thread::Builder::new()
            .name("timed-store-release".to_owned())
            .spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()
                    .map_err(failed)?;
                let released = runtime.block_on(server.release(field, token, limit));
                // A name that is being looked up would delay the end.
                runtime.shutdown_background();
                released
            })
            .map_err(failed)?;
        releasing.join().unwrap_or(Err(Error::ShuttingDown))
    }
}

/// The scheme of an address that is not valid. The rest is not shown: a password may be in any part
/// of it.
fn scheme_of(url: &str) -> String {
    let is_scheme = |text: &str| {
        text.chars()
            .all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    match url.split_once("://") {
        Some((scheme, _)) if is_scheme(scheme) => format!("{scheme}://…"),
        _ => "…".to_owned(),
    }
}

/// The deadline of a claim, and the time that the replicas have.
fn limits(queue: &Queue<'_, RedisTurn>) -> (Deadline, Duration) {
    match queue {
        Queue::Barge { limit: None } => (None, Duration::MAX),
        // The last attempt of a waiter. The second half of the time is for a withdrawal.
        Queue::Barge { limit: Some(limit) } => (after(*limit), *limit / 2),
        Queue::Join { left, .. } => (after(left.saturating_add(GRACE)), *left),
    }
}

/// The error of a call that was a part of another operation.
fn in_doubt(error: Error, action: &'static str, may_be_done: bool) -> Error {
    match error {
        Error::Server {
            location, source, ..
        } => Error::Server {
            action,
            location,
            may_be_done,
            source,
        },
        other => other,
    }
}

/// `None` if the time is beyond the clock's range.
fn after(limit: Duration) -> Deadline {
    Instant::now().checked_add(limit)
}

/// A change of the own entry.
struct OwnEntryChange {
    operation: &'static str,
    /// The version that the change depends on.
    version: Option<u64>,
    /// The token that the own entry must have.
    token: Option<u64>,
    data: String,
}

impl OwnEntryChange {
    fn new(operation: &'static str) -> Self {
        Self {
            operation,
            version: None,
            token: None,
            data: String::new(),
        }
    }
}

impl Backend for RedisBackend {
    type Turn = RedisTurn;

    async fn store<R: Runtime, T: Value>(&self, value: &T) -> Result<(), Error> {
        let change = OwnEntryChange {
            data: canonical(value)?,
            ..OwnEntryChange::new("store")
        };
        self.change(change, None).await.map(drop)
    }

    async fn remove<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        limit: WaitLimit,
    ) -> Result<bool, Error> {
        let change = OwnEntryChange {
            token,
            ..OwnEntryChange::new("remove")
        };
        let deadline = match limit {
            WaitLimit::Policy => None,
            WaitLimit::AtLeast(limit) | WaitLimit::AtMost(limit) => after(limit),
        };
        Ok(self.change(change, deadline).await?.unwrap_or(false))
    }

    async fn refresh<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        _limit: WaitLimit,
    ) -> Result<bool, Error> {
        let change = OwnEntryChange {
            token,
            ..OwnEntryChange::new("refresh")
        };
        Ok(self.change(change, None).await?.unwrap_or(false))
    }

    async fn restore<R: Runtime, T: Value>(&self) -> Result<Option<T>, Error> {
        let reading = self.read(&self.own_field()).await?;
        let own = reading.entries.first();
        own.map(|entry| self.decode(entry)).transpose()
    }

    async fn other_values<R: Runtime, T: Value>(&self) -> Result<BTreeMap<SessionId, T>, Error> {
        let reading = self.read("").await?;
        let others = reading.entries.iter().filter(|entry| self.is_other(entry));
        others
            .map(|entry| Ok((SessionId::from_key(entry.key()), self.decode(entry)?)))
            .collect()
    }

    async fn entries<R: Runtime, T: Value>(
        &self,
        _watcher: Option<&Changes>,
    ) -> Result<Entries<T>, Error> {
        self.to_entries(&self.read("").await?)
    }

    async fn has_token<R: Runtime, T: Value>(&self, token: u64) -> Result<bool, Error> {
        let reading = self.read("").await?;
        Ok(reading
            .entries
            .iter()
            .any(|entry| entry.token == Some(token)))
    }

    async fn claim<R: Runtime, T: Value + PartialEq>(
        &self,
        candidates: &[T],
        queue: Queue<'_, RedisTurn>,
    ) -> Result<(Decision, Vec<Incident>), Error> {
        if candidates.is_empty() {
            return Err(no_candidates());
        }
        let (deadline, wait_limit) = limits(&queue);
        let mut turn = match queue {
            Queue::Barge { .. } => None,
            Queue::Join { turn, .. } => Some(turn),
        };
        let values = candidates
            .iter()
            .map(canonical)
            .collect::<Result<Vec<_>, _>>()?;
        let mut alone = self.server.alone(deadline).await?;
        let mut running = self.running_owner()?;
        loop {
            let ticket = turn.as_ref().and_then(|turn| turn.as_ref());
            let mut arguments = vec![
                self.own_field(),
                self.settings.session.as_str().to_owned(),
                self.settings.ttl_ms.to_string(),
                self.owner(true)?,
                TokenRecord::id_text(TokenRecord::new(0).store_id),
                turn.as_ref().map_or("barge", |_| "join").to_owned(),
                ticket
                    .map(|RedisTurn(ticket)| ticket.clone())
                    .unwrap_or_default(),
                TICKET_MS.to_string(),
                running.clone(),
            ];
            arguments.extend(values.iter().cloned());
            let script = &self.server.scripts.claim;
            let wanted = self.server.acknowledgement.map(|wanted| Acknowledgement {
                within: wanted.within.min(wait_limit),
                ..wanted
            });
            let call = self
                .server
                .numbered(&mut alone, script, arguments, wanted, deadline);
            let (answer, acknowledged) = call.await?;
            let answer: Vec<&str> = answer.iter().map(String::as_str).collect();
            let (decision, ticket, holders) = match answer[..] {
                ["granted", candidate, token, id, earlier, written] => {
                    let entry = RemoteEntry::parse("", written, 0);
                    let (Ok(candidate), Ok(token), Some(entry)) =
                        (candidate.parse(), token.parse(), entry)
                    else {
                        return Err(self.server.damaged());
                    };
                    if let Some(wanted) = wanted
                        && acknowledged < wanted.replicas
                    {
                        let (texts, outcome) = ((written, earlier), (wanted, acknowledged));
                        let withdrawn = self.withdraw(&mut alone, texts, outcome, deadline);
                        return Err(withdrawn.await);
                    }
                    let decision = Decision::Granted {
                        candidate,
                        token,
                        // At the time 0 the whole timeout is left.
                        expires_in: entry.expires_in,
                        store_id: id.to_owned(),
                    };
                    return Ok((decision, Vec::new()));
                }
                ["busy", holder, left, ticket, ref holders @ ..] => {
                    let left = left.parse().map_err(|_| self.server.damaged())?;
                    let decision = Decision::Busy {
                        holder: SessionId::from_key(holder),
                        expires_in: Duration::from_millis(left),
                    };
                    (decision, ticket, holders)
                }
                ["queued", ticket, ref holders @ ..] => (Decision::Queued, ticket, holders),
                ["check", own] => {
                    running = self.check_owner(own, deadline).await?;
                    continue;
                }
                ["exhausted"] => {
                    return Err(Error::TokensExhausted {
                        path: self.settings.path.clone(),
                    });
                }
                _ => return Err(self.server.damaged()),
            };
            if let Some(turn) = &mut turn {
                **turn = Some(RedisTurn(ticket.to_owned()));
            }
            let mut ended = Vec::new();
            for [field, text] in holders.as_chunks::<2>().0 {
                let entry = RemoteEntry::parse(field, text, 0);
                if entry.is_some_and(|entry| entry.has_ended()) {
                    ended.extend([(*field).to_owned(), (*text).to_owned()]);
                }
            }
            if ended.is_empty() {
                return Ok((decision, Vec::new()));
            }
            self.evict(ended, deadline).await?;
        }
    }

    async fn transaction<R: Runtime, T: Value, A>(
        &self,
        body: &mut impl FnMut(&mut Transaction<T>) -> A,
    ) -> Result<A, Error> {
        loop {
            let reading = self.read("").await?;
            let mut transaction = Transaction {
                entries: self.to_entries(&reading)?,
                ttl: Duration::from_millis(self.settings.ttl_ms),
                change: OwnChange::None,
            };
            let answer = body(&mut transaction);
            let (operation, data) = match transaction.change {
                // A transaction that changes nothing is a read, which was one step.
                OwnChange::None => return Ok(answer),
                OwnChange::Refresh => ("refresh", String::new()),
                OwnChange::Remove => ("remove", String::new()),
                OwnChange::Store => {
                    let own = transaction.entries.mine();
                    let data = own.map(|entry| canonical(&entry.value)).transpose()?;
                    ("store", data.unwrap_or_default())
                }
            };
            let change = OwnEntryChange {
                version: Some(reading.version),
                data,
                ..OwnEntryChange::new(operation)
            };
            match (transaction.change, self.change(change, None).await?) {
                (_, None) => {}
                // The entry expired between the read and the change, and an expiry is not a
                // conflict. `body` was told that it refreshed the entry.
                (OwnChange::Refresh, Some(false)) => {}
                (_, Some(_)) => return Ok(answer),
            }
        }
    }

    async fn leave<R: Runtime>(&self, turn: RedisTurn, limit: Duration) {
        let script = &self.server.scripts.leave;
        let leave = self
            .server
            .call("change", script, vec![turn.0], after(limit));
        if let Err(error) = leave.await {
            let path = self.settings.path.display();
            tracing::warn!(%path, %error, "cannot leave the queue; the place expires");
        }
    }

    fn changes(&self) -> Changes {
        let mut current = self
            .server
            .subscriber
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let subscriber = current.upgrade().unwrap_or_else(|| {
            let client = self.server.client.clone();
            let channel = self.server.key.clone();
            Arc::new(Subscriber::start(&self.server.runtime, client, channel))
        });
        *current = Arc::downgrade(&subscriber);
        let signal = Arc::clone(subscriber.signal());
        Changes::new(signal, Source::Server(subscriber), Some(LOOK))
    }
}

impl RedisServer {
    /// A call with a number, which the server executes once.
    async fn numbered(
        &self,
        alone: &mut Alone<'_>,
        script: &(Script, &'static str),
        mut arguments: Vec<String>,
        acknowledgement: Option<Acknowledgement>,
        deadline: Deadline,
    ) -> Result<(Vec<String>, u32), Error> {
        let last = self.last_request.fetch_add(1, Ordering::Relaxed);
        arguments.insert(0, (last + 1).to_string());
        self.is_doubtful.store(true, Ordering::Relaxed);
        let call = self.prepared(script, arguments);
        let answer = self
            .connection
            .call(&call, acknowledgement, deadline, alone.start);
        let answer = answer
            .await
            .map_err(|failure| self.failed("change", failure))?;
        self.is_doubtful.store(false, Ordering::Relaxed);
        alone.start = Instant::now();
        *alone.last_answer = alone.start;
        Ok(answer)
    }

    /// A call without a number, which may be executed twice, and which needs no acknowledgement.
    async fn call(
        &self,
        action: &'static str,
        script: &(Script, &'static str),
        arguments: Vec<String>,
        deadline: Deadline,
    ) -> Result<Vec<String>, Error> {
        let call = self.prepared(script, arguments);
        let answer = self.connection.call(&call, None, deadline, Instant::now());
        let (answer, _) = answer
            .await
            .map_err(|failure| self.failed(action, failure))?;
        Ok(answer)
    }

    fn prepared<'a>(
        &'a self,
        (script, text): &'a (Script, &'static str),
        arguments: Vec<String>,
    ) -> Call<'a> {
        Call {
            script,
            text,
            keys: [&self.key, &self.request_key],
            arguments,
        }
    }

    fn failed(&self, action: &'static str, failure: CallFailure) -> Error {
        let CallFailure {
            cause,
            may_be_executed,
        } = failure;
        if let CallError::Redis(error) = &cause
            && is_wrong_type(error)
        {
            return self.damaged();
        }
        Error::Server {
            action,
            location: self.location.clone(),
            may_be_done: may_be_executed && action == "change",
            source: cause.into(),
        }
    }

    /// Waits for the other changes of this handle. If the time is over then, nothing was sent.
    async fn alone(&self, deadline: Deadline) -> Result<Alone<'_>, Error> {
        let start = Instant::now();
        let last_answer = match deadline {
            None => self.changes.lock().await,
            Some(end) => timeout_at(end, self.changes.lock()).await.map_err(|_| {
                let failure = CallFailure {
                    cause: CallError::TimedOut,
                    may_be_executed: false,
                };
                self.failed("change", failure)
            })?,
        };
        Ok(Alone {
            start: start.max(*last_answer),
            last_answer,
        })
    }

    /// Removes an entry on a connection of its own, which works on any runtime.
    ///
    /// The request has a key of its own too: the numbers of the handle's requests must arrive in
    /// their order. The token keeps a later claim, and a refresh that is under way finds no entry.
    async fn release(&self, field: String, token: u64, limit: Duration) -> Result<bool, Error> {
        let deadline = after(limit);
        let not_sent = |cause| CallFailure {
            cause,
            may_be_executed: false,
        };
        let connection = within(deadline, Connection::open(&self.client, Duration::ZERO)).await;
        let connection = connection.map_err(|cause| self.failed("change", not_sent(cause)))?;
        let client_id = TokenRecord::id_text(RandomState::new().hash_one(token));
        let (script, text) = &self.scripts.change;
        // Request, field, operation, version, token, ttl, owner, data, owner that runs.
        let token = token.to_string();
        let arguments = ["1", &field, "remove", "", &token, "0", "", "", "*"];
        let call = Call {
            script,
            text,
            keys: [&self.key, &format!("{}:request:{client_id}", self.key)],
            arguments: arguments.map(str::to_owned).to_vec(),
        };
        let answer = connection.call(&call, None, deadline, Instant::now()).await;
        let (answer, _) = answer.map_err(|failure| self.failed("change", failure))?;
        Ok(answer.get(1).is_some_and(|was_there| was_there == "1"))
    }

    fn damaged(&self) -> Error {
        Error::NotAStore {
            path: format!("{} {}", self.location, self.key).into(),
        }
    }
}

/// The live entries at one moment.
struct Reading {
    version: u64,
    entries: Vec<RemoteEntry>,
}

/// An entry of the hash; `prelude.lua` describes its form.
struct RemoteEntry {
    field: String,
    token: Option<u64>,
    owner: Option<OwnerProcess>,
    data: String,
    expires_in: Duration,
}

impl RemoteEntry {
    /// `None` if it is not an entry, or has expired at `now_ms`.
    fn parse(field: &str, text: &str, now_ms: u64) -> Option<Self> {
        let mut parts = text.splitn(5, '\n');
        let data = parts.next()?;
        let updated: u64 = parts.next()?.parse().ok()?;
        let ttl: u64 = parts.next()?.parse().ok()?;
        let token: u64 = parts.next()?.parse().ok()?;
        let owner = parts.next()?;
        let left = ttl.checked_sub(now_ms.saturating_sub(updated))?;
        Some(Self {
            field: field.to_owned(),
            token: Some(token).filter(|token| *token > 0),
            owner: serde_json::from_str(owner).ok(),
            data: data.to_owned(),
            expires_in: Duration::from_millis(left),
        })
    }

    fn key(&self) -> &str {
        self.field.get(2..).unwrap_or_default()
    }

    fn is_slot(&self) -> bool {
        self.field.starts_with('s')
    }

    fn has_ended(&self) -> bool {
        self.owner.as_ref().is_some_and(OwnerProcess::has_ended)
    }
}

/// The JSON of a value, with sorted keys: the server compares texts.
fn canonical<T: Value>(value: &T) -> Result<String, Error> {
    fn sorted(value: serde_json::Value) -> serde_json::Value {
        use serde_json::Value as Json;
        match value {
            Json::Object(members) => {
                let members: BTreeMap<String, Json> = members.into_iter().collect();
                let members = members.into_iter().map(|(key, value)| (key, sorted(value)));
                Json::Object(members.collect())
            }
            Json::Array(items) => Json::Array(items.into_iter().map(sorted).collect()),
            other => other,
        }
    }
    let value = serde_json::to_value(value).map_err(|source| Error::Encode {
        source: source.into(),
    })?;
    Ok(sorted(value).to_string())
}

fn json<T: serde::Serialize>(value: &T) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|source| Error::Encode {
        source: source.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_values_have_equal_texts() {
        let one: serde_json::Value =
            serde_json::from_str(r#"{"b":[{"y":1,"x":2}],"a":"é"}"#).unwrap();
        let two: serde_json::Value =
            serde_json::from_str(r#"{"a":"\u00e9","b":[{"x":2,"y":1}]}"#).unwrap();
        assert_eq!(canonical(&one).unwrap(), canonical(&two).unwrap());
        assert_eq!(canonical(&"a\nb".to_owned()).unwrap(), r#""a\nb""#);
    }

    #[test]
    fn an_entry_is_live_while_its_age_is_at_most_its_timeout() {
        let text = "\"x\"\n1000\n50\n7\n";
        let left = |now| RemoteEntry::parse("e:a", text, now).map(|entry| entry.expires_in);
        assert_eq!(
            left(990),
            Some(Duration::from_millis(50)),
            "a time ahead of the clock"
        );
        assert_eq!(left(1050), Some(Duration::ZERO));
        assert_eq!(left(1051), None);
        assert!(RemoteEntry::parse("e:a", "\"x\"\n1000", 0).is_none());
    }
}
