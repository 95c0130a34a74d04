use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use redis::{Client, IntoConnectionInfo, RedisError, Script};
use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::connection::{Acknowledgement, Call, Connection, is_wrong_type, tcp_settings};
use super::subscriber::Subscriber;
use crate::format::TokenRecord;
use crate::store::{
    Backend, Changes, Decision, Patience, Queue, Runtime, Settings, Source, Value, no_candidates,
};
use crate::transaction::OwnChange;
use crate::{Entries, Entry, Error, Incident, OwnerProcess, SessionId, Transaction};

/// How long a ticket lives without renewal. A waiter renews it at least once in [`LOOK`].
const TICKET_MS: u64 = 3000;

/// How often a waiter looks without news: messages can be lost.
const LOOK: Duration = Duration::from_secs(1);

/// Keeps the entries in a hash of a Redis server. See the module's theory.
pub(crate) struct RedisBackend {
    settings: Arc<Settings>,
    server: Arc<RedisServer>,
}

/// What the slots of a handle share.
struct RedisServer {
    client: Client,
    connection: Connection,
    runtime: Handle,
    acknowledgement: Option<Acknowledgement>,
    /// The address, for errors. It has no password.
    location: String,
    key: String,
    request_key: String,
    /// The number of the last change. The lock is held during a change: the server remembers the
    /// last one only.
    changes: AsyncMutex<()>,
    last_request: AtomicU64,
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
        // The address is not shown: it may contain a password.
        let info = url.into_connection_info();
        let client = info.and_then(|info| Client::open(info.set_tcp_settings(tcp_settings())));
        let client = client.map_err(|_| Error::Invalid {
            what: "server address",
            value: url
                .split(['@', '?'])
                .next_back()
                .unwrap_or_default()
                .to_owned(),
            reason: "it is not of the form redis://host:port/database",
        })?;
        let location = client.get_connection_info().addr().to_string();
        let failed = |source: RedisError| Error::Server {
            action: "connect to",
            location: location.clone(),
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
                changes: AsyncMutex::new(()),
                last_request: AtomicU64::new(0),
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
    async fn read(&self, field: &str) -> Result<Reading, Error> {
        let call = self.server.call(
            "read",
            &self.server.scripts.read,
            vec![field.to_owned()],
            None,
        );
        let (answer, _) = call.await?;
        let mut parts = answer.into_iter();
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
        self.evict(ended).await;
        Ok(Reading { version, entries })
    }

    /// Removes entries whose owner process has ended. The next look does it, if it fails.
    async fn evict(&self, ended: Vec<String>) {
        if ended.is_empty() {
            return;
        }
        let evict = self
            .server
            .call("change", &self.server.scripts.evict, ended, None);
        if let Err(error) = evict.await {
            let path = self.settings.path.display();
            tracing::warn!(%path, %error, "cannot remove the entry of a process that has ended");
        }
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
    async fn change(&self, change: OwnEntryChange) -> Result<Option<bool>, Error> {
        let OwnEntryChange {
            operation,
            version,
            token,
            data,
        } = change;
        let optional = |number: Option<u64>| number.map(|n| n.to_string()).unwrap_or_default();
        let _alone = self.server.changes.lock().await;
        let arguments = vec![
            self.server.next_request(),
            self.own_field(),
            operation.to_owned(),
            optional(version),
            optional(token),
            self.settings.ttl_ms.to_string(),
            self.owner(false)?,
            data,
        ];
        let acknowledgement = match operation {
            "store" | "refresh" => self.server.acknowledgement,
            // A lost removal keeps the value busy for longer, which is safe.
            _ => None,
        };
        let script = &self.server.scripts.change;
        let call = self
            .server
            .call("change", script, arguments, acknowledgement);
        let (answer, acknowledged) = call.await?;
        match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["done", was_there, earlier] => {
                let is_changed = operation == "store" || was_there == "1";
                if let Some(wanted) = acknowledgement.filter(|_| is_changed)
                    && acknowledged < wanted.replicas
                {
                    let token = match operation {
                        "store" => 0,
                        _ => RemoteEntry::parse("", earlier, 0)
                            .and_then(|e| e.token)
                            .unwrap_or(0),
                    };
                    return Err(self.withdraw(token, earlier, wanted, acknowledged).await);
                }
                Ok(Some(was_there == "1"))
            }
            ["conflict"] => Ok(None),
            _ => Err(self.server.damaged()),
        }
    }

    /// Takes back a change that was not acknowledged. The caller holds the lock of the changes.
    async fn withdraw(
        &self,
        token: u64,
        earlier: &str,
        wanted: Acknowledgement,
        acknowledged: u32,
    ) -> Error {
        let arguments = vec![
            self.server.next_request(),
            self.own_field(),
            self.settings.session.as_str().to_owned(),
            token.to_string(),
            earlier.to_owned(),
        ];
        let script = &self.server.scripts.withdraw;
        match self.server.call("change", script, arguments, None).await {
            Err(error) => error,
            Ok(_) => Error::NotAcknowledged {
                location: self.server.location.clone(),
                wanted: wanted.replicas,
                acknowledged,
            },
        }
    }
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
        self.change(change).await.map(drop)
    }

    async fn remove<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        _patience: Patience,
    ) -> Result<bool, Error> {
        let change = OwnEntryChange {
            token,
            ..OwnEntryChange::new("remove")
        };
        Ok(self.change(change).await?.unwrap_or(false))
    }

    async fn refresh<R: Runtime, T: Value>(
        &self,
        token: Option<u64>,
        _patience: Patience,
    ) -> Result<bool, Error> {
        let change = OwnEntryChange {
            token,
            ..OwnEntryChange::new("refresh")
        };
        Ok(self.change(change).await?.unwrap_or(false))
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
        let mut turn = match queue {
            Queue::Barge { .. } => None,
            Queue::Join { turn, .. } => Some(turn),
        };
        let values = candidates
            .iter()
            .map(canonical)
            .collect::<Result<Vec<_>, _>>()?;
        let _alone = self.server.changes.lock().await;
        loop {
            let ticket = turn.as_ref().and_then(|turn| turn.as_ref());
            let mut arguments = vec![
                self.server.next_request(),
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
            ];
            arguments.extend(values.iter().cloned());
            let script = &self.server.scripts.claim;
            let wanted = self.server.acknowledgement;
            let call = self.server.call("change", script, arguments, wanted);
            let (answer, acknowledged) = call.await?;
            let answer: Vec<&str> = answer.iter().map(String::as_str).collect();
            let (decision, ticket, holders) = match answer[..] {
                ["granted", candidate, token, id, earlier] => {
                    let (Ok(candidate), Ok(token)) = (candidate.parse(), token.parse()) else {
                        return Err(self.server.damaged());
                    };
                    if let Some(wanted) = wanted
                        && acknowledged < wanted.replicas
                    {
                        return Err(self.withdraw(token, earlier, wanted, acknowledged).await);
                    }
                    let decision = Decision::Granted {
                        candidate,
                        token,
                        expires_in: Duration::from_millis(self.settings.ttl_ms),
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
            self.evict(ended).await;
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
            if self.change(change).await?.is_some() {
                return Ok(answer);
            }
        }
    }

    async fn leave<R: Runtime>(&self, turn: RedisTurn) {
        let leave = self
            .server
            .call("change", &self.server.scripts.leave, vec![turn.0], None);
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
    fn next_request(&self) -> String {
        let last = self.last_request.fetch_add(1, Ordering::Relaxed);
        (last + 1).to_string()
    }

    async fn call(
        &self,
        action: &'static str,
        (script, text): &(Script, &'static str),
        arguments: Vec<String>,
        acknowledgement: Option<Acknowledgement>,
    ) -> Result<(Vec<String>, u32), Error> {
        let call = Call {
            script,
            text,
            keys: [&self.key, &self.request_key],
            arguments,
        };
        let answer = self.connection.call(&call, acknowledgement).await;
        answer.map_err(|error| {
            if is_wrong_type(&error) {
                return self.damaged();
            }
            Error::Server {
                action,
                location: self.location.clone(),
                source: error.into(),
            }
        })
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
