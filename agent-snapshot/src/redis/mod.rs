//! Snapshots in Redis.

mod connection;

use std::{fmt, ops::Range, sync::Arc, time::Duration};

use async_trait::async_trait;
use redis::{Client, Cmd, FromRedisValue, RedisError, Script, ScriptInvocation};
use tokio::task::JoinSet;

use self::connection::Connection;
use crate::{
    AgentId, AgentSnapshot, Error, SnapshotStorage,
    backend::{self, Stamp, Stream, Write},
    conversation::Message,
    open::without_password,
    swap::{self, Cache, Known, Swap, Swapped},
};

/// Keeps snapshots in Redis 6 or later, on one server or a cluster.
///
/// An agent is a hash and a list under one hash tag, and each change is one script, so it takes
/// place whole or not at all, also on a cluster. A lost connection is made again; calls wait
/// for about three seconds before they fail.
///
/// Durable as the server is: `appendonly yes` with `appendfsync always` for every save,
/// `everysec` to lose a second at most. A server that may evict keys or does not write to
/// disk is reported by [`warnings`](Self::warnings) and in the log when the connection is
/// made. Replication is asynchronous: a failover may lose the last saves.
///
/// Clones share the connection. Dropping it loses nothing.
#[derive(Clone)]
pub struct RedisStorage {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Connection,
    place: String,
    prefix: String,
    ttl: u64,
    warnings: Vec<String>,
    cache: Cache,
    save: Script,
    load: Script,
    history: Script,
    delete: Script,
}

/// A load of so many messages or fewer is one call.
const FEW: u64 = 64;

/// Options of a [`RedisStorage`].
#[derive(Clone)]
pub struct RedisStorageBuilder {
    url: String,
    prefix: String,
    ttl: Option<Duration>,
}

impl RedisStorageBuilder {
    /// Starts every key with `prefix` instead of `agent-snapshot`.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Forgets an agent that was not saved for this long, its epoch included.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::InvalidUrl`] when the address or the prefix is not understood,
    /// [`Error::Storage`] when the server cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(self) -> Result<RedisStorage, Error> {
        let Self { url, prefix, ttl } = self;
        let invalid = |reason: String| Error::InvalidUrl {
            url: without_password(&url),
            reason,
        };
        if prefix.contains(['{', '}']) {
            return Err(invalid(format!("the prefix {prefix:?} contains a brace")));
        }
        let client = Client::open(url.as_str()).map_err(|error| invalid(error.to_string()))?;
        let place = client.get_connection_info().addr().to_string();
        let failed = |source: RedisError| Error::Storage {
            operation: "connecting",
            place: place.clone(),
            source: Box::new(source),
        };
        let connection = Connection::open(client).await.map_err(failed)?;
        let warnings = warnings(&connection).await.map_err(failed)?;
        for warning in &warnings {
            tracing::warn!(server = place, "{warning}");
        }
        Ok(RedisStorage {
            shared: Arc::new(Shared {
                connection,
                place,
                prefix,
                ttl: ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(0)),
                warnings,
                cache: Cache::default(),
                save: Script::new(include_str!("save.lua")),
                load: Script::new(include_str!("load.lua")),
                history: Script::new(include_str!("history.lua")),
                delete: Script::new(include_str!("delete.lua")),
            }),
        })
    }
}

impl RedisStorage {
    /// Connects to `redis://host:port/db`, `redis+unix:///path/to/socket`, or any node of a
    /// cluster.
    ///
    /// # Errors
    ///
    /// As [`RedisStorageBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// Connects with options.
    #[must_use]
    pub fn builder(url: &str) -> RedisStorageBuilder {
        RedisStorageBuilder {
            url: url.to_owned(),
            prefix: "agent-snapshot".to_owned(),
            ttl: None,
        }
    }

    /// What about the server's settings may lose data, as found when connecting.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// Both under one hash tag: in one slot of a cluster.
    fn keys(&self, agent: &AgentId) -> (String, String) {
        let record = format!("{}:{{{}}}", self.shared.prefix, agent.encoded());
        let messages = format!("{record}:messages");
        (record, messages)
    }

    fn index(&self) -> String {
        format!("{}:agents", self.shared.prefix)
    }

    fn failed(&self, operation: &'static str, source: RedisError) -> Error {
        Error::Storage {
            operation,
            place: self.shared.place.clone(),
            source: Box::new(source),
        }
    }

    fn damaged(&self, agent: &AgentId, reason: impl Into<String>) -> Error {
        Error::Damaged {
            agent: agent.clone(),
            place: self.place(agent),
            reason: reason.into(),
        }
    }

    fn place(&self, agent: &AgentId) -> String {
        format!("{} key {}", self.shared.place, self.keys(agent).0)
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        agent: &AgentId,
        operation: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let result = self.shared.connection.invoke(script).await;
        result.map_err(|error| self.refused(agent, operation, error))
    }

    fn refused(&self, agent: &AgentId, operation: &'static str, error: RedisError) -> Error {
        match error.code() {
            Some("WRONGTYPE") => self.damaged(agent, "it is not what this storage writes"),
            _ if error.to_string().contains("WRONGTYPE") => {
                self.damaged(agent, "it is not what this storage writes")
            }
            _ => self.failed(operation, error),
        }
    }

    /// What is stored, checked.
    async fn fetch(&self, agent: &AgentId) -> Result<(Known, Option<AgentSnapshot>), Error> {
        let place = self.place(agent);
        let mut doubted = None;
        loop {
            let (record, list) = self.keys(agent);
            let mut script = self.shared.load.key(record);
            script.key(&list).arg(FEW);
            let (stamp, floor, state, head, few): (
                String,
                u64,
                String,
                String,
                Option<Vec<String>>,
            ) = self.invoke(agent, "loading", &script).await?;
            let known = self.known(agent, &stamp, floor)?;
            let Some(stamp) = &known.stamp else {
                return Ok((known, None));
            };
            let many = few.is_none();
            let messages = match few {
                Some(messages) => messages,
                None => self.view(agent, &list, stamp).await?,
            };
            match backend::assemble(agent, &place, stamp, &state, &head, messages) {
                // The stream may have been replaced or deleted between the two steps. Then the
                // stamp is another one now.
                Err(error)
                    if many && error.is_damaged() && doubted.as_ref() != known.stamp.as_ref() =>
                {
                    doubted = known.stamp;
                }
                result => return Ok((known, Some(result?))),
            }
        }
    }

    /// The messages in view, without a script: to carry many through Lua takes the server
    /// several times as long as to read them. Those of one stamp have their places for good,
    /// whatever is appended, and its digests tell whether these are the ones.
    async fn view(&self, agent: &AgentId, list: &str, stamp: &Stamp) -> Result<Vec<String>, Error> {
        let index = |seq: u64| i64::try_from(seq.saturating_sub(stamp.start)).unwrap_or(i64::MAX);
        let mut command = Cmd::new();
        command
            .arg("LRANGE")
            .arg(list)
            .arg(index(stamp.first))
            .arg(index(stamp.next.saturating_sub(1)));
        let messages = self.shared.connection.query(&command).await;
        messages.map_err(|error| self.refused(agent, "loading", error))
    }

    fn known(&self, agent: &AgentId, stamp: &str, epoch_floor: u64) -> Result<Known, Error> {
        let stamp = match stamp {
            "" => None,
            stamp => Some(
                Stamp::from_text(stamp)
                    .ok_or_else(|| self.damaged(agent, "its stamp is not readable"))?,
            ),
        };
        Ok(Known { stamp, epoch_floor })
    }
}

#[async_trait]
impl Swap for RedisStorage {
    async fn read(&self, agent: &AgentId) -> Result<Known, Error> {
        Ok(self.fetch(agent).await?.0)
    }

    async fn swap(&self, agent: &AgentId, known: &Known, write: Write) -> Result<Swapped, Error> {
        if known.stamp.is_none() {
            // First, so that whatever is stored is listed; `list` leaves out what is not.
            let mut command = Cmd::new();
            command.arg("SADD").arg(self.index()).arg(agent.as_str());
            let added: Result<u64, _> = self.shared.connection.query(&command).await;
            added.map_err(|error| self.failed("saving", error))?;
        }
        let (record, messages) = self.keys(agent);
        let Write {
            stamp,
            state,
            head,
            stream,
            messages: new,
            ..
        } = write;
        let old = known.stamp.as_ref();
        let mut script = self.shared.save.key(record);
        script
            .key(messages)
            .arg(old.map(Stamp::to_text).unwrap_or_default())
            .arg(known.epoch_floor)
            .arg(old.map_or(0, |old| old.next - old.start))
            .arg(stamp.to_text())
            .arg(state)
            .arg(head.unwrap_or_default())
            .arg(stamp.next - stamp.first)
            .arg(stamp.epoch)
            .arg(stamp.start)
            .arg(u8::from(stream == Stream::Replace))
            .arg(self.shared.ttl);
        for json in new {
            script.arg(json);
        }
        let answer: Vec<String> = self.invoke(agent, "saving", &script).await?;
        match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["done"] => Ok(Swapped::Done),
            ["changed", stamp, floor] => {
                let floor = floor
                    .parse()
                    .map_err(|_| self.damaged(agent, "its epoch is not readable"))?;
                Ok(Swapped::Changed(self.known(agent, stamp, floor)?))
            }
            _ => Err(self.damaged(agent, "its messages are not complete")),
        }
    }
}

#[async_trait]
impl SnapshotStorage for RedisStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        swap::save(self, &self.shared.cache, snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let (known, snapshot) = self.fetch(agent).await?;
        self.shared.cache.set(agent, known);
        Ok(snapshot)
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.cache.forget(agent);
        let damaged = match self.fetch(agent).await {
            Err(error) if error.is_damaged() => true,
            result => {
                result?;
                false
            }
        };
        let (record, messages) = self.keys(agent);
        let aside = format!("{record}:damaged:{}", uuid::Uuid::new_v4());
        let aside_messages = format!("{aside}:messages");
        let mut script = self.shared.delete.key(record);
        script
            .key(messages)
            .key(aside)
            .key(aside_messages)
            .arg(u8::from(damaged))
            .arg(self.shared.ttl);
        let _: u64 = self.invoke(agent, "deleting", &script).await?;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let mut command = Cmd::new();
        command.arg("SMEMBERS").arg(self.index());
        let names: Vec<String> = self
            .shared
            .connection
            .query(&command)
            .await
            .map_err(|error| self.failed("listing agents", error))?;
        let mut agents = Vec::new();
        // The agents are spread over the cluster: each is asked for by itself.
        for names in names.chunks(64) {
            let mut asked = JoinSet::new();
            for name in names {
                let Ok(agent) = AgentId::new(name) else {
                    continue;
                };
                let storage = self.clone();
                asked.spawn(async move {
                    let mut command = Cmd::new();
                    let (record, _) = storage.keys(&agent);
                    command.arg("HEXISTS").arg(record).arg("stamp");
                    match storage.shared.connection.query::<bool>(&command).await {
                        Ok(stored) => Ok(stored.then_some(agent)),
                        // Damaged, but there.
                        Err(error) if error.code() == Some("WRONGTYPE") => Ok(Some(agent)),
                        Err(error) => Err(storage.failed("listing agents", error)),
                    }
                });
            }
            while let Some(answer) = asked.join_next().await {
                let answer = answer.map_err(|panic| Error::Storage {
                    operation: "listing agents",
                    place: self.shared.place.clone(),
                    source: Box::new(panic),
                })?;
                agents.extend(answer?);
            }
        }
        agents.sort();
        Ok(agents)
    }

    async fn history(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        // Nearly every stream starts at 0; otherwise the answer says where.
        let mut start = 0;
        loop {
            let (record, messages) = self.keys(agent);
            let first = range.start.max(start);
            let index = |seq: u64| i64::try_from(seq - start).unwrap_or(i64::MAX);
            let last = range.end.saturating_sub(1);
            let mut script = self.shared.history.key(record);
            script.key(messages).arg(start);
            if last < first {
                return Ok(Vec::new());
            }
            script.arg(index(first)).arg(index(last));
            let (stamp, messages): (String, Option<Vec<String>>) =
                self.invoke(agent, "reading the history", &script).await?;
            let Some(stamp) = self.known(agent, &stamp, 0)?.stamp else {
                return Ok(Vec::new());
            };
            let Some(messages) = messages else {
                start = stamp.start;
                continue;
            };
            let expected = range.end.min(stamp.next).saturating_sub(first);
            if messages.len() as u64 != expected {
                return Err(self.damaged(agent, "its messages are not complete"));
            }
            return backend::decode_messages(agent, &self.place(agent), first, messages);
        }
    }
}

impl fmt::Debug for RedisStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStorage")
            .field("server", &self.shared.place)
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}

// The address may hold a password.
impl fmt::Debug for RedisStorageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStorageBuilder")
            .field("url", &without_password(&self.url))
            .field("prefix", &self.prefix)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// What about the server may lose data.
async fn warnings(connection: &Connection) -> Result<Vec<String>, RedisError> {
    // `INFO` is allowed where managed servers forbid `CONFIG`. A cluster answers for each
    // node; the settings of any of them are worth a warning.
    let mut info = String::new();
    for section in ["memory", "persistence"] {
        let answer: redis::Value = connection
            .query(Cmd::new().arg("INFO").arg(section))
            .await?;
        collect(&answer, &mut info);
    }
    let has = |line: &str| info.lines().any(|found| found == line);
    let setting = |key: &str| {
        let found = info.lines().filter_map(|line| line.strip_prefix(key));
        found
            .filter_map(|value| value.strip_prefix(':'))
            .collect::<Vec<_>>()
    };
    let mut warnings = Vec::new();
    let bounded = setting("maxmemory").iter().any(|limit| *limit != "0");
    let evicting = setting("maxmemory_policy")
        .into_iter()
        .find(|policy| *policy != "noeviction");
    if let Some(policy) = evicting.filter(|_| bounded) {
        warnings.push(format!(
            "the server may evict snapshots (maxmemory-policy {policy}): set it to noeviction"
        ));
    }
    if has("aof_enabled:0") {
        warnings.push(
            "the server does not log every write to disk (appendonly no): saves since its last \
             dump are lost when it stops"
                .to_owned(),
        );
    }
    Ok(warnings)
}

fn collect(value: &redis::Value, text: &mut String) {
    use redis::Value;
    match value {
        Value::BulkString(bytes) => text.push_str(&String::from_utf8_lossy(bytes)),
        Value::SimpleString(line) => text.push_str(line),
        Value::VerbatimString { text: line, .. } => text.push_str(line),
        Value::Array(values) => values.iter().for_each(|value| collect(value, text)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, value)| collect(value, text)),
        _ => {}
    }
}
