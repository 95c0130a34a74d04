use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio_postgres::config::Host;
use tokio_postgres::types::Type;
use tokio_postgres::{Config, Row};

use super::connection::{Connection, ConnectionError, Parameter, Tls};
use super::save_queue::SaveQueue;
use crate::backend::{self, SavePlan, Stamp};
use crate::conversation::Message;
use crate::storage::{
    CompareAndSwap, StampCache, StoredStamp, Swap, overwrite_by_swap, save_by_swap, task_result,
    without_password,
};
use crate::{AgentId, AgentInfo, AgentSnapshot, Error, SnapshotStorage};

/// Keeps snapshots in PostgreSQL 12 or later: the history as rows, one row for the rest.
///
/// A save is one round trip and one transaction. Saves that arrive while another one is under way
/// share the next transaction, so 64 agents do not cost 64 commits. A lost connection is opened
/// again; a call fails after seven attempts: about six seconds if the server refuses connections. A
/// server that does not answer takes ten seconds for each host and attempt, for one caller after the
/// other. A statement has no limit: a row lock of another session, or a stopped server, blocks the
/// saves of this storage; `options=-c%20statement_timeout%3D30s` in the address sets one. An address may name several hosts,
/// `postgres://one,two/db?target_session_attrs=read-write`: after a failover the storage finds the
/// new primary.
///
/// Saves are as durable as the server: with `synchronous_commit = on` (the default) a save that has
/// returned survives a crash of the server, and a failover to a standby that
/// `synchronous_standby_names` lists. A failover to another standby may lose the last saves; the next
/// save of a writer is then [`Error::Rewound`].
///
/// It works behind PgBouncer in transaction mode: statements are unnamed, and nothing belongs to a
/// session. If the server behind the pooler may restart, set `server_login_retry` of PgBouncer to a
/// few seconds: until then it refuses every client, and the default of 15 is longer than the retries
/// here.
///
/// Tables and functions are in one schema, `agent_snapshot` by default, which is created and
/// migrated when the storage connects. Reading without this crate:
///
/// ```sql
/// SELECT seq, json::json ->> 'role', json::json ->> 'content'
/// FROM agent_snapshot.stream WHERE agent = 'worker_007' ORDER BY seq;
/// ```
///
/// Clones share the connection. Dropping the last clone closes it, after the queued saves.
///
/// ```no_run
/// use agent_snapshot::{AgentId, AgentSnapshot, PostgresStorage, SnapshotStorage};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), agent_snapshot::Error> {
/// let storage = PostgresStorage::connect("postgres://agent@localhost/agents").await?;
/// storage.save(&AgentSnapshot::new(AgentId::new("worker_007")?)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStorage {
    shared: Arc<Shared>,
}

struct Shared {
    connection: Arc<Connection>,
    saves: SaveQueue,
    location: String,
    schema: String,
    stamps: StampCache,
}

/// Options of a [`PostgresStorage`].
///
/// ```
/// use agent_snapshot::PostgresStorage;
///
/// let builder = PostgresStorage::builder("postgres://agent:secret@localhost/agents")
///     .schema("staging");
/// // `builder.connect().await` connects. A password is never shown:
/// assert!(!format!("{builder:?}").contains("secret"));
/// ```
#[derive(Clone)]
#[must_use = "nothing is opened until `connect`"]
pub struct PostgresStorageBuilder {
    url: String,
    schema: String,
    tls: Tls,
}

/// The version of the schema; 0 is an empty one.
const VERSION: i32 = 2;

/// Each brings the schema to the next version.
const MIGRATIONS: [&str; VERSION as usize] =
    [include_str!("schema.sql"), include_str!("schema_2.sql")];

impl PostgresStorageBuilder {
    /// Sets the schema that holds the tables: 1 to 40 of `a-z 0-9 _`, starting with a letter. The
    /// default is `agent_snapshot`.
    pub fn schema(mut self, schema: impl Into<String>) -> Self {
        self.schema = schema.into();
        self
    }

    /// Sets whether the connection is encrypted; the default is [`Tls::Off`].
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// Connects, and creates or migrates the schema.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the address or the name of the schema is not valid,
    /// [`Error::Storage`] if the server cannot be reached or refuses,
    /// [`Error::UnsupportedVersion`] if a newer version of this crate made the schema.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty schema is left.
    pub async fn connect(self) -> Result<PostgresStorage, Error> {
        let Self { url, schema, tls } = self;
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if schema.len() > 40
            || !schema.starts_with(|c: char| c.is_ascii_lowercase())
            || !schema.chars().all(is_letter)
        {
            let reason = "it must be 1 to 40 of a-z 0-9 _, starting with a letter";
            return Err(Error::invalid("schema", &schema, reason));
        }
        let mut config = parse(&url)?;
        if tls != Tls::Off {
            config.ssl_mode(tokio_postgres::config::SslMode::Require);
        }
        let location = location(&config);
        let failed = |source| Error::Storage {
            action: "connect to",
            location: location.clone(),
            source,
        };
        let connection = Connection::open(config, &tls).await.map_err(failed)?;
        let connection = Arc::new(connection);
        migrate(&connection, &schema, &location).await?;
        Ok(PostgresStorage {
            shared: Arc::new(Shared {
                saves: SaveQueue::start(connection.clone(), &schema),
                connection,
                location,
                schema,
                stamps: StampCache::default(),
            }),
        })
    }
}

/// Reads an address, without the password in any error.
///
/// The driver ends the password of an address at its first `@`, and that of a connection string at
/// its first space. The rest of a password that is not escaped would become the name of a host or of
/// an option: it would be looked up in the DNS, and be shown in errors.
fn parse(url: &str) -> Result<Config, Error> {
    let invalid = |reason| Error::invalid("storage address", &without_password(url), reason);
    let config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        if url.contains("password") || url.matches('@').count() > 1 {
            return invalid("it cannot be read; is the password quoted or escaped?".to_owned());
        }
        let reason = std::error::Error::source(&error);
        invalid(reason.map_or_else(|| error.to_string(), ToString::to_string))
    })?;
    // `?password=a@b`: the driver takes the `@` for the end of the user's name.
    let before_at = url.split_once('@').map_or("", |(before, _)| before);
    let is_in_query = before_at
        .split_once('?')
        .is_some_and(|(_, query)| query.contains('='));
    if is_in_query && url.contains("://") {
        let reason = "the query has an `@`; write it as %40".to_owned();
        return Err(invalid(reason));
    }
    let has_at = |host: &Host| matches!(host, Host::Tcp(name) if name.contains('@'));
    if config.get_hosts().iter().any(has_at) {
        return Err(invalid(
            "the name of the host has an `@`; write one in the password as %40".to_owned(),
        ));
    }
    Ok(config)
}

/// The hosts and the database, without user and password.
fn location(config: &Config) -> String {
    let hosts: Vec<String> = config
        .get_hosts()
        .iter()
        .map(|host| match host {
            Host::Tcp(name) => name.clone(),
            Host::Unix(path) => path.display().to_string(),
        })
        .collect();
    let database = config.get_dbname().unwrap_or_default();
    format!("postgres {}/{database}", hosts.join(","))
}

/// Brings the schema to the newest version. Processes that connect at the same time take turns.
async fn migrate(connection: &Connection, schema: &str, location: &str) -> Result<(), Error> {
    let failed = |source: ConnectionError| Error::Storage {
        action: "prepare",
        location: location.to_owned(),
        source: Box::new(source),
    };
    let found = version(connection, schema).await.map_err(failed)?;
    if found > VERSION {
        return Err(Error::UnsupportedVersion {
            what: format!("the schema {schema} in {location}"),
            found: u64::from(found.unsigned_abs()),
            supported: u64::from(VERSION.unsigned_abs()),
        });
    }
    if found == VERSION {
        return Ok(());
    }
    // The lock ends with the transaction, so it works behind a pooler. The version is read again
    // under the lock, in the same statement list, by the block below.
    let mut steps = String::new();
    for (step, sql) in (0..).zip(MIGRATIONS) {
        let sql = sql.replace("{schema}", schema);
        steps.push_str(&format!(
            "IF (SELECT version FROM {schema}.meta) = {step} THEN
                EXECUTE $migration${sql}$migration$;
                UPDATE {schema}.meta SET version = {step} + 1;
             END IF;"
        ));
    }
    // Any number that is only used here.
    let lock = xxhash_rust::xxh3::xxh3_64(schema.as_bytes()).cast_signed();
    let sql = format!(
        "BEGIN;
         SELECT pg_advisory_xact_lock({lock});
         CREATE SCHEMA IF NOT EXISTS {schema};
         CREATE TABLE IF NOT EXISTS {schema}.meta (version integer NOT NULL);
         INSERT INTO {schema}.meta SELECT 0 WHERE NOT EXISTS (SELECT FROM {schema}.meta);
         DO $steps$ BEGIN {steps} END $steps$;
         COMMIT;"
    );
    let result = connection.batch(&sql).await;
    if result.is_err() {
        // Otherwise the connection would stay in the failed transaction.
        let _ = connection.batch("ROLLBACK").await;
    }
    result.map_err(failed)
}

async fn version(connection: &Connection, schema: &str) -> Result<i32, ConnectionError> {
    let name = format!("{schema}.meta");
    let sql = "SELECT to_regclass($1) IS NOT NULL";
    let rows = connection.query(sql, &[(&name, Type::TEXT)]).await?;
    match rows.first() {
        Some(row) if row.try_get(0)? => {
            let sql = format!("SELECT version FROM {name}");
            let rows = connection.query(&sql, &[]).await?;
            Ok(rows.first().map_or(Ok(0), |row| row.try_get(0))?)
        }
        _ => Ok(0),
    }
}

impl PostgresStorage {
    /// Connects to `postgres://user@host/database`, or to a connection string in the form of
    /// libpq: `host=/run/postgresql dbname=agents`.
    ///
    /// # Errors
    ///
    /// As [`PostgresStorageBuilder::connect`].
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: at most an empty schema is left.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::builder(url).connect().await
    }

    /// A storage with options.
    pub fn builder(url: &str) -> PostgresStorageBuilder {
        PostgresStorageBuilder {
            url: url.to_owned(),
            schema: "agent_snapshot".to_owned(),
            tls: Tls::default(),
        }
    }

    fn location(&self) -> String {
        let Shared {
            location, schema, ..
        } = &*self.shared;
        format!("{location} schema {schema}")
    }

    fn failed(
        &self,
        action: &'static str,
        source: impl std::error::Error + Send + Sync + 'static,
    ) -> Error {
        Error::Storage {
            action,
            location: self.location(),
            source: Box::new(source),
        }
    }

    fn damaged(&self, agent: &AgentId, reason: impl Into<String>) -> Error {
        Error::Damaged {
            agent: agent.clone(),
            location: self.location(),
            reason: reason.into(),
        }
    }

    /// Runs a statement; `{schema}` in it is the name of the schema.
    async fn query(
        &self,
        action: &'static str,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let sql = sql.replace("{schema}", &self.shared.schema);
        let result = self.shared.connection.query(&sql, parameters).await;
        result.map_err(|error| self.failed(action, error))
    }

    fn column<'a, T: tokio_postgres::types::FromSql<'a>>(
        &self,
        row: &'a Row,
        index: usize,
    ) -> Result<T, Error> {
        let value = row.try_get(index);
        value.map_err(|error| self.failed("read an answer of", error))
    }

    fn stored(
        &self,
        agent: &AgentId,
        stamp: Option<&str>,
        floor: &str,
    ) -> Result<StoredStamp, Error> {
        let stamp = stamp.map(|text| {
            Stamp::from_text(text).ok_or_else(|| self.damaged(agent, "its stamp is not readable"))
        });
        let epoch_floor = floor
            .parse()
            .map_err(|_| self.damaged(agent, "its epoch is not readable"))?;
        Ok(StoredStamp {
            stamp: stamp.transpose()?,
            epoch_floor,
        })
    }

    /// Everything that is stored except hidden messages, as of one moment: one statement sees one
    /// state of the database.
    async fn fetch(&self, agent: &AgentId) -> Result<(StoredStamp, Option<AgentSnapshot>), Error> {
        let rows = self
            .query(
                "load from",
                "SELECT a.stamp, a.epoch_floor, a.state, a.head, ARRAY(
                     SELECT m.json FROM {schema}.messages m
                     WHERE m.agent = a.number AND CASE WHEN a.stamp ~ '^1( \\d+){3}( \\d{1,18}){3} '
                         THEN m.seq >= split_part(a.stamp, ' ', 6)::bigint END
                     ORDER BY m.seq)
                 FROM {schema}.agents a WHERE a.agent = $1",
                &[(&agent.as_str(), Type::TEXT)],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok((StoredStamp::default(), None));
        };
        let stamp: Option<&str> = self.column(row, 0)?;
        let stored = self.stored(agent, stamp, self.column(row, 1)?)?;
        let Some(stamp) = &stored.stamp else {
            return Ok((stored, None));
        };
        let body: Option<&str> = self.column(row, 2)?;
        let head: Option<&str> = self.column(row, 3)?;
        let messages: Vec<&str> = self.column(row, 4)?;
        let (body, head) = (body.unwrap_or_default(), head.unwrap_or_default());
        let location = self.location();
        let snapshot = backend::assemble(agent, &location, stamp, body, head, messages)?;
        Ok((stored, Some(snapshot)))
    }
}

#[async_trait]
impl CompareAndSwap for PostgresStorage {
    async fn read_stamp(&self, agent: &AgentId) -> Result<StoredStamp, Error> {
        Ok(self.fetch(agent).await?.0)
    }

    async fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: SavePlan,
    ) -> Result<Swap, Error> {
        let answer = self.shared.saves.swap(agent, expected, plan).await?;
        let answer = answer.map_err(|error| self.failed("save to", SharedError(error)))?;
        if answer.done {
            return Ok(Swap::Done);
        }
        let current = self.stored(agent, answer.stamp.as_deref(), &answer.floor)?;
        Ok(Swap::Changed(current))
    }
}

#[async_trait]
impl SnapshotStorage for PostgresStorage {
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
    /// have been created anew in between; then it has another incarnation and is kept. The same holds
    /// if another process deletes and creates it between the two statements: it was deleted meanwhile.
    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.shared.stamps.forget_deleted(agent);
        let sql = "SELECT incarnation FROM {schema}.agents WHERE agent = $1";
        let name: Parameter<'_> = (&agent.as_str(), Type::TEXT);
        let rows = self.query("delete from", sql, &[name]).await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        let incarnation: i64 = self.column(row, 0)?;
        let is_damaged = match self.fetch(agent).await {
            Err(error) if error.is_damaged() => true,
            result => {
                result?;
                false
            }
        };
        let sql = "SELECT {schema}.remove($1, $2, $3)";
        let parameters: [Parameter<'_>; 3] = [
            (&agent.as_str(), Type::TEXT),
            (&is_damaged, Type::BOOL),
            (&incarnation, Type::INT8),
        ];
        self.query("delete from", sql, &parameters).await?;
        Ok(())
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        let sql = "SELECT agent FROM {schema}.agents WHERE stamp IS NOT NULL ORDER BY agent";
        let rows = self.query("list the agents of", sql, &[]).await?;
        rows.iter()
            .map(|row| AgentId::new(self.column::<&str>(row, 0)?))
            .collect()
    }

    async fn page(&self, after: Option<&AgentId>, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let after = after.map_or("", AgentId::as_str);
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let rows = self
            .query(
                "list the agents of",
                "SELECT agent, stamp, labels, changed, bytes + coalesce(octet_length(state), 0)
                     + coalesce(octet_length(head), 0)
                 FROM {schema}.agents WHERE stamp IS NOT NULL AND agent > $1
                 ORDER BY agent LIMIT $2",
                &[(&after, Type::TEXT), (&limit, Type::INT8)],
            )
            .await?;
        let info = |row| {
            let stamp = Stamp::from_text(self.column(row, 1)?);
            let changed: SystemTime = self.column(row, 3)?;
            let bytes: i64 = self.column(row, 4)?;
            Ok(AgentInfo::from_parts(
                AgentId::new(self.column::<&str>(row, 0)?)?,
                stamp.as_ref(),
                self.column(row, 2)?,
                bytes.cast_unsigned(),
                changed,
            ))
        };
        rows.iter().map(info).collect()
    }

    async fn expire(&self, older_than: Duration) -> Result<Vec<AgentId>, Error> {
        // The server has no times before 4713 BC: 3,000 years are longer than any retention.
        let seconds = older_than.as_secs_f64().min(1e11);
        let storage = self.clone();
        // In a task: a dropped future must not keep the deletes from being noted.
        let expiry = tokio::spawn(async move {
            let sql = "SELECT {schema}.expire(now() - make_interval(secs => $1))";
            let rows = storage
                .query("expire the agents of", sql, &[(&seconds, Type::FLOAT8)])
                .await?;
            rows.iter()
                .map(|row| {
                    let agent = AgentId::new(storage.column::<&str>(row, 0)?)?;
                    storage.shared.stamps.forget_deleted(&agent);
                    Ok(agent)
                })
                .collect()
        });
        task_result(expiry.await)
    }

    async fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        let keep = keep.to_string();
        let sql = "SELECT {schema}.cap_stream($1, $2::numeric)";
        let parameters: [Parameter<'_>; 2] = [(&agent.as_str(), Type::TEXT), (&keep, Type::TEXT)];
        let rows = self.query("cap a stream in", sql, &parameters).await?;
        let removed = rows.first().map_or(Ok(0), |row| self.column::<i64>(row, 0));
        Ok(removed?.cast_unsigned())
    }

    async fn stream(
        &self,
        agent: &AgentId,
        range: Range<u64>,
    ) -> Result<Vec<(u64, Message)>, Error> {
        let bound = |seq: u64| i64::try_from(seq).unwrap_or(i64::MAX);
        let rows = self
            .query(
                "load from",
                "SELECT a.stamp, ARRAY(
                     SELECT m.json FROM {schema}.messages m
                     WHERE m.agent = a.number AND m.seq >= $2 AND m.seq < $3 ORDER BY m.seq)
                 FROM {schema}.agents a WHERE a.agent = $1 AND a.stamp IS NOT NULL",
                &[
                    (&agent.as_str(), Type::TEXT),
                    (&bound(range.start), Type::INT8),
                    (&bound(range.end), Type::INT8),
                ],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Ok(Vec::new());
        };
        let Some(stamp) = self.stored(agent, self.column(row, 0)?, "0")?.stamp else {
            return Ok(Vec::new());
        };
        let messages: Vec<&str> = self.column(row, 1)?;
        let first = range.start.max(stamp.stream_start);
        let expected = range.end.min(stamp.next).saturating_sub(first);
        if messages.len() as u64 != expected {
            return Err(self.damaged(agent, "its messages are not complete"));
        }
        backend::decode_messages(agent, &self.location(), first, messages)
    }
}

/// The error of a batch, which each of its callers gets.
#[derive(Debug)]
struct SharedError(Arc<ConnectionError>);

impl fmt::Display for SharedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for SharedError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&*self.0)
    }
}

impl fmt::Debug for PostgresStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStorage")
            .field("server", &self.shared.location)
            .field("schema", &self.shared.schema)
            .finish_non_exhaustive()
    }
}

// The address may contain a password.
impl fmt::Debug for PostgresStorageBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStorageBuilder")
            .field("url", &without_password(&self.url))
            .field("schema", &self.schema)
            .field("tls", &self.tls)
            .finish()
    }
}
