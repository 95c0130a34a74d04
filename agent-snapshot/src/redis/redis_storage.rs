use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use async_trait::async_trait;
use redis::{Client, Cmd, FromRedisValue, RedisError, Script, ScriptInvocation};
use tokio::task::JoinSet;

use super::connection::Connection;
use super::server_warnings::server_warnings;
use crate::backend::{self, SavePlan, Stamp, StreamChange};
use crate::conversation::Message;
use crate::storage::{
    CompareAndSwap, StampCache, StoredStamp, Swap, overwrite_by_swap, save_by_swap, task_result,
    without_password,
};
use crate::{AgentId, AgentInfo, AgentSnapshot, Error, SnapshotStorage};

/// Keeps snapshots in Redis 6 or later, on one server or a cluster.
///
/// An agent is a hash and a list under one hash tag. Each change is one script, so it takes effect
/// as a whole or not at all, also on a cluster. A lost connection is opened again; a call fails
/// after six attempts: about three seconds if the server refuses connections, up to a minute if it
/// does not answer.
///
/// Saves are as durable as the server: with `appendonly yes` and `appendfsync always` every save
/// is, with `everysec` up to a second is lost. [`warnings`](Self::warnings) and the log name
/// settings of the server that may lose data. Replication is asynchronous: a failover may lose the
/// last saves.
///
/// Clones share the connection. Dropping the last clone closes it and loses nothing.
///
/// ```no_run
/// use agent_snapshot::{AgentId, AgentSnapshot, RedisStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = RedisStorage::connect("redis://127.0.0.1:6379/0").await?;
/// for warning in storage.warnings() {
///     eprintln!("{warning}");
/// }
/// storage.save(&AgentSnapshot::new(AgentId::new("worker_007")?)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisStorage {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Connection,
    location: String,
    prefix: String,
    /// Milliseconds; 0 means that agents do not expire.
    ttl: u64,
    warnings: Vec<String>,
    stamps: StampCache,
    save: Script,
    stream: Script,
    delete: Script,
    cap: Script,
    evicted: Script,
}

/// Options of a [`RedisStorage`].
///
/// ```
/// use std::time::Duration;
/// use agent_snapshot::RedisStorage;
///
/// let builder = RedisStorage::builder("redis://user:secret@127.0.0.1/0")
///     .prefix("staging")
///     .ttl(Duration::from_secs(30 * 24 * 3600));
/// // `builder.connect().await` connects. A password is never shown:
/// assert!(!format!("{builder:?}").contains("secret"));
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened until `connect`"]
pub struct RedisStorageBuilder {
    url: String,
    prefix: String,
    ttl: Option<Duration>,
}

impl RedisStorageBuilder {
    /// Sets the first part of every key; the default is `agent-snapshot`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sets the time without a save after which an agent is removed, with its epoch; the default is
    /// never.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the address or the prefix is not valid, [`Error::Storage`] if the
    /// server cannot be reached.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: connecting changes nothing.
    pub async fn connect(self) -> Result<RedisStorage, Error> {
        let Self { url, prefix, ttl } = self;
        if prefix.contains(['{', '}']) {
            return Err(Error::invalid("key prefix", &prefix, "it contains a brace"));
        }
        let client = Client::open(url.as_str()).map_err(|error| {
            Error::invalid(
                "storage address",
                &without_password(&url),
                error.to_string(),
            )
        })?;
        let location = client.get_connection_info().addr().to_string();
        let failed = |source: RedisError| Error::Storage {
            action: "connect to",
            location: location.clone(),
            source: Box::new(source),
        };
        let connection = Connection::open(client).await.map_err(failed)?;
        let warnings = server_warnings(&connection).await.map_err(failed)?;
        for warning in &warnings {
            tracing::warn!(server = location, "{warning}");
        }
        Ok(RedisStorage {
            shared: Arc::new(Shared {
                connection,
                location,
                prefix,
                ttl: ttl.map_or(0, |ttl| u64::try_from(ttl.as_millis()).unwrap_or(0)),
                warnings,
                stamps: StampCache::default(),
                save: Script::new(include_str!("save.lua")),
                stream: Script::new(include_str!("stream.lua")),
                delete: Script::new(include_str!("delete.lua")),
                cap: Script::new(include_str!("cap.lua")),
                evicted: Script::new(
                    "return redis.call('EXISTS', KEYS[1]) == 0 and redis.call('EXISTS', KEYS[2]) == 1",
                ),
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
    /// Cancel safe: connecting changes nothing.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A storage with options.
    pub fn builder(url: &str) -> RedisStorageBuilder {
        RedisStorageBuilder {
            url: url.to_owned(),
            prefix: "agent-snapshot".to_owned(),
            ttl: None,
        }
    }

    /// The settings of the server that may lose data, as found when connecting.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.shared.warnings
    }

    /// The keys of the hash and the list. The braces are the hash tag.
    fn keys(&self, agent: &AgentId) -> (String, String) {
        let record = format!("{}:{{{}}}", self.shared.prefix, agent.encoded());
        let messages = format!("{record}:messages");
        (record, messages)
    }

    fn index(&self) -> String {
        format!("{}:agents", self.shared.prefix)
    }

    /// Every agent that was ever saved, in ascending order.
    async fn index_members(&self) -> Result<Vec<AgentId>, Error> {
        let mut command = Cmd::new();
        command.arg("SMEMBERS").arg(self.index());
        let names: Result<Vec<String>, _> = self.shared.connection.query(&command).await;
        let names = names.map_err(|error| self.failed("list the agents of", error))?;
        let mut agents: Vec<AgentId> = names.into_iter().flat_map(AgentId::new).collect();
        agents.sort();
        Ok(agents)
    }

    /// The entry of an agent in a list; `None` if it is not stored.
    async fn info(&self, agent: AgentId) -> Result<Option<AgentInfo>, Error> {
        let (record, _) = self.keys(&agent);
        let mut fields = Cmd::new();
        fields
            .arg("HMGET")
            .arg(&record)
            .arg(&["stamp", "labels", "changed", "bytes", "body"]);
        let answer = self.shared.connection.query::<[Option<String>; 5]>(&fields);
        let [stamp, labels, changed, bytes, body] = match answer.await {
            Ok(fields) => fields,
            // Damaged, but stored.
            Err(error) if error.code() == Some("WRONGTYPE") => {
                return Ok(Some(AgentInfo::new(agent)));
            }
            Err(error) => return Err(self.failed("list the agents of", error)),
        };
        let Some(stamp) = stamp else { return Ok(None) };
        let number = |text: Option<String>| text.and_then(|text| text.parse().ok()).unwrap_or(0);
        let size = number(bytes) + number(body);
        let changed = UNIX_EPOCH + Duration::from_millis(number(changed));
        let stamp = Stamp::from_text(&stamp);
        Ok(Some(AgentInfo::from_parts(
            agent,
            stamp.as_ref(),
            labels.as_deref(),
            size,
            changed,
        )))
    }

    fn failed(&self, action: &'static str, source: RedisError) -> Error {
        Error::Storage {
            action,
            location: self.shared.location.clone(),
            source: Box::new(source),
        }
    }

    fn damaged(&self, agent: &AgentId, reason: impl Into<String>) -> Error {
        Error::Damaged {
            agent: agent.clone(),
            location: self.location(agent),
            reason: reason.into(),
        }
    }

    fn location(&self, agent: &AgentId) -> String {
        format!("{} key {}", self.shared.location, self.keys(agent).0)
    }

    async fn query<T: FromRedisValue>(
        &self,
        agent: &AgentId,
        action: &'static str,
        command: &Cmd,
    ) -> Result<T, Error> {
        let result = self.shared.connection.query(command).await;
        result.map_err(|error| self.refused(agent, action, error))
    }

    async fn invoke<T: FromRedisValue>(
        &self,
        agent: &AgentId,
        action: &'static str,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Error> {
        let result = self.shared.connection.invoke(script).await;
        result.map_err(|error| self.refused(agent, action, error))
    }

    /// A key of another type is damage. A script hides the code of the error in its text.
    fn refused(&self, agent: &AgentId, action: &'static str, error: RedisError) -> Error {
        if error.code() == Some("WRONGTYPE") || error.to_string().contains("WRONGTYPE") {
            return self.damaged(agent, "a key has another type");
        }
        self.failed(action, error)
    }

    /// Reads and checks what is stored, in two steps: the hash, then the messages in view.
    ///
    /// A script would be one step, but carrying the messages through Lua takes the server longer
    /// than the second round trip: at 100 messages of 1 KB a load took 1.3 times as long.
    ///
    /// Race: a save between the two steps. An append does no harm, because the messages of one
    /// stamp keep their places in the list. If the stream was replaced or deleted, the digests do
    /// not match; then the hash has another stamp, and both steps are repeated. A mismatch with the
    /// same stamp twice is damage.
    async fn fetch(&self, agent: &AgentId) -> Result<(StoredStamp, Option<AgentSnapshot>), Error> {
        let location = self.location(agent);
        let (record, _) = self.keys(agent);
        let mut command = Cmd::new();
        command
            .arg("HMGET")
            .arg(record)
            .arg(&["stamp", "floor", "state", "head"]);
        let mut doubted = None;
        loop {
            let [stamp, floor, body, head]: [Option<String>; 4] =
                self.query(agent, "load from", &command).await?;
            let floor_is_absent = floor.is_none();
            let floor = floor.as_deref().unwrap_or("0");
            let stored = self.stored(agent, stamp.as_deref().unwrap_or_default(), floor)?;
            let Some(stamp) = &stored.stamp else {
                if floor_is_absent {
                    self.check_not_evicted(agent).await?;
                }
                return Ok((stored, None));
            };
            let messages = self.view(agent, stamp).await?;
            let (body, head) = (body.unwrap_or_default(), head.unwrap_or_default());
            match backend::assemble(agent, &location, stamp, &body, &head, messages) {
                Err(error) if error.is_damaged() && doubted.as_ref() != stored.stamp.as_ref() => {
                    doubted = stored.stamp;
                }
                result => return Ok((stored, Some(result?))),
            }
        }
    }

    /// A server with an eviction policy removes keys one by one. A list without its record is what
    /// is left of an agent, not a new one. If the list is gone too, the loss cannot be
    /// detected.
    async fn check_not_evicted(&self, agent: &AgentId) -> Result<(), Error> {
        let (record, messages) = self.keys(agent);
        // One command for both keys: a first save between two commands would look like an eviction.
        let mut script = self.shared.evicted.key(record);
        if self
            .invoke(agent, "load from", script.key(messages))
            .await?
        {
            return Err(self.damaged(agent, "its record is missing, but its messages exist"));
        }
        Ok(())
    }

    /// The id that the first save after a delete gave the agent. It is empty if there is none: no agent
    /// is stored, an earlier version created it, or its key has another type.
    async fn incarnation(&self, agent: &AgentId) -> Result<String, Error> {
        let (record, _) = self.keys(agent);
        let mut command = Cmd::new();
        command.arg("HGET").arg(record).arg("incarnation");
        match self.query(agent, "delete from", &command).await {
            Err(error) if error.is_damaged() => Ok(String::new()),
            result => result.map(Option::unwrap_or_default),
        }
    }

    /// Deletes an agent that was not saved for `age` milliseconds; `false` if it was.
    async fn expire_agent(&self, agent: &AgentId, age: u64) -> Result<bool, Error> {
        let (record, messages) = self.keys(agent);
        let mut script = self.shared.delete.key(&record);
        // The keys for damaged data are not used here.
        script.key(&messages).key(&record).key(&messages);
        script.arg(0).arg(self.shared.ttl).arg(age);
        let is_expired = self.invoke(agent, "delete from", &script).await?;
        if is_expired {
            self.shared.stamps.forget_deleted(agent);
        }
        Ok(is_expired)
    }

    /// The messages in view.
    async fn view(&self, agent: &AgentId, stamp: &Stamp) -> Result<Vec<String>, Error> {
        if stamp.first == stamp.next {
            return Ok(Vec::new());
        }
        let (_, messages) = self.keys(agent);
        let index = |seq: u64| i64::try_from(seq - stamp.stream_start).unwrap_or(i64::MAX);
        let mut command = Cmd::new();
        command
            .arg("LRANGE")
            .arg(messages)
            .arg(index(stamp.first))
            .arg(index(stamp.next - 1));
        self.query(agent, "load from", &command).await
    }

    fn stored(&self, agent: &AgentId, stamp: &str, floor: &str) -> Result<StoredStamp, Error> {
        let stamp = match stamp {
            "" => None,
            stamp => Some(
                Stamp::from_text(stamp)
                    .ok_or_else(|| self.damaged(agent, "its stamp is not readable"))?,
            ),
        };
        let epoch_floor = floor
            .parse()
            .map_err(|_| self.damaged(agent, "its epoch is not readable"))?;
        Ok(StoredStamp { stamp, epoch_floor })
    }
}

#[async_trait]
impl CompareAndSwap for RedisStorage {
    async fn read_stamp(&self, agent: &AgentId) -> Result<StoredStamp, Error> {
        Ok(self.fetch(agent).await?.0)
    }

    async fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: SavePlan,
    ) -> Result<Swap, Error> {
        if expected.stamp.is_none() {
            let mut command = Cmd::new();
            command.arg("SADD").arg(self.index()).arg(agent.as_str());
            let added: Result<u64, _> = self.shared.connection.query(&command).await;
            added.map_err(|error| self.failed("save to", error))?;
        }
        let (record, messages) = self.keys(agent);
        let SavePlan {
            stamp,
            body,
            head,
            stream,
            messages: new,
            labels,
            ..
        } = plan;
        let old = expected.stamp.as_ref();
        let mut script = self.shared.save.key(record);
        script
            .key(messages)
            .arg(old.map(Stamp::to_text).unwrap_or_default())
            .arg(expected.epoch_floor)
            .arg(old.map_or(0, |old| old.next - old.stream_start))
            .arg(stamp.to_text())
            .arg(body)
            .arg(head.unwrap_or_default())
            .arg(stamp.next - stamp.first)
            .arg(stamp.epoch)
            .arg(stamp.stream_start)
            .arg(u8::from(stream == StreamChange::Replace))
            .arg(self.shared.ttl)
            .arg(labels)
            .arg(uuid::Uuid::new_v4().to_string());
        for json in new {
            script.arg(json);
        }
        let answer: Vec<String> = self.invoke(agent, "save to", &script).await?;
        match answer.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            ["done"] => Ok(Swap::Done),
            ["changed", stamp, floor] => Ok(Swap::Changed(self.stored(agent, stamp, floor)?)),
            _ => Err(self.damaged(agent, "its messages are not complete")),
        }
    }
}

#[async_trait]
impl SnapshotStorage for RedisStorage {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        save_by_swap(self, &self.shared.stamps, snapshot).await
    }

    async fn overwrite(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        overwrite_by_swap(self, &self.shared.stamps, snapshot).await
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let (stored, snapshot) = self.fetch(agent).await?;
        if let Some(snapshot) = &snapshot {
            self.shared.stamps.set(snapshot, stored);
        }
        Ok(snapshot)
    }

    /// The incarnation is read first. A delete whose answer was lost is sent again, and the agent may
    /// have been created anew in between; then it has another incarnation and is kept.
    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.stamps.forget_deleted(agent);
        let incarnation = self.incarnation(agent).await?;
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
            .arg(self.shared.ttl)
            .arg("")
            .arg(incarnation);
        let _: u64 = self.invoke(agent, "delete from", &script).await?;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let page = self.page(None, usize::MAX).await?;
        Ok(page.into_iter().map(|info| info.agent).collect())
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let mut agents = self.index_members().await?;
        agents.retain(|agent| after.is_none_or(|after| agent > after));
        let mut page = Vec::new();
        // The agents are in different slots of a cluster, so each one takes a command of its own.
        for agents in agents.chunks(64) {
            if page.len() >= limit {
                break;
            }
            let mut reads = JoinSet::new();
            for agent in agents {
                let (storage, agent) = (self.clone(), agent.clone());
                reads.spawn(async move { storage.info(agent).await });
            }
            while let Some(info) = reads.join_next().await {
                page.extend(task_result(info)?);
            }
        }
        page.sort_by(|one, two| one.agent.cmp(&two.agent));
        page.truncate(limit);
        Ok(page)
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        let age = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
        let mut expired = Vec::new();
        for agent in self.index_members().await? {
            // In a task: a dropped future must not keep the delete from being noted.
            let (storage, name) = (self.clone(), agent.clone());
            let expiry = tokio::spawn(async move { storage.expire_agent(&name, age).await });
            match task_result(expiry.await) {
                Ok(true) => expired.push(agent),
                Ok(false) => {}
                Err(error) if error.is_damaged() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(expired)
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        loop {
            let (record, messages) = self.keys(agent);
            let mut command = Cmd::new();
            command.arg("HGET").arg(&record).arg("stamp");
            let text: Option<String> = self.query(agent, "load from", &command).await?;
            let text = text.unwrap_or_default();
            let Some(mut stamp) = self.stored(agent, &text, "0")?.stamp else {
                return Ok(0);
            };
            let start = stamp.capped_start(keep);
            let removed = start - stamp.stream_start;
            if removed == 0 {
                return Ok(0);
            }
            stamp.stream_start = start;
            let mut script = self.shared.cap.key(record);
            script.key(messages).arg(text).arg(stamp.to_text());
            script.arg(start).arg(removed);
            // Otherwise an agent has saved in between.
            if self.invoke(agent, "cap a stream in", &script).await? {
                return Ok(removed);
            }
        }
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        if range.is_empty() {
            return Ok(Vec::new());
        }
        // Nearly every stream starts at 0. Otherwise the script returns the stamp with the start.
        let mut start = 0;
        loop {
            let (record, messages) = self.keys(agent);
            let first = range.start.max(start);
            let index = |seq: u64| i64::try_from(seq - start).unwrap_or(i64::MAX);
            let last = range.end - 1;
            let mut script = self.shared.stream.key(record);
            script.key(messages).arg(start);
            if last < first {
                return Ok(Vec::new());
            }
            script.arg(index(first)).arg(index(last));
            let (stamp, messages): (String, Option<Vec<String>>) =
                self.invoke(agent, "load from", &script).await?;
            let Some(stamp) = self.stored(agent, &stamp, "0")?.stamp else {
                return Ok(Vec::new());
            };
            let Some(messages) = messages else {
                if start == stamp.stream_start {
                    return Err(self.damaged(agent, "its stream does not start at its stamp"));
                }
                start = stamp.stream_start;
                continue;
            };
            let expected = range.end.min(stamp.next).saturating_sub(first);
            if messages.len() as u64 != expected {
                return Err(self.damaged(agent, "its messages are not complete"));
            }
            return backend::decode_messages(agent, &self.location(agent), first, messages);
        }
    }
}

impl fmt::Debug for RedisStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStorage")
            .field("server", &self.shared.location)
            .field("prefix", &self.shared.prefix)
            .finish_non_exhaustive()
    }
}

// The address may contain a password.
impl fmt::Debug for RedisStorageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStorageBuilder")
            .field("url", &without_password(&self.url))
            .field("prefix", &self.prefix)
            .field("ttl", &self.ttl)
            .finish()
    }
}
