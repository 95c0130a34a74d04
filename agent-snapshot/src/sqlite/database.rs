use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::message_chain::ChainEnd;
use crate::backend::{self, SavePlan, Stamp, StreamChange};
use crate::shared::private_file::{self, FileError};
use crate::storage::{StoredStamp, Swap};
use crate::{AgentId, AgentInfo, AgentSnapshot, Error};

/// One connection to the database.
pub(super) struct Database {
    connection: Connection,
    location: String,
    path: PathBuf,
    busy_timeout: Duration,
    /// Device and inode of the file.
    identity: (u64, u64),
}

/// The rows of one agent.
pub(super) struct StoredRows {
    pub(super) stored: StoredStamp,
    body: String,
    head: String,
    messages: Vec<String>,
}

/// The value of `user_version`; 0 is an empty database.
const VERSION: i64 = 2;

// A delete keeps the row in `agents`: it holds the epoch, and its number is never used again.
const SCHEMA: &str = "
    CREATE TABLE agents (
        number INTEGER PRIMARY KEY,
        agent TEXT NOT NULL UNIQUE,
        epoch_floor INTEGER NOT NULL DEFAULT 0,
        stamp TEXT,
        state TEXT,
        last INTEGER,
        labels TEXT,
        bytes INTEGER NOT NULL DEFAULT 0,
        changed INTEGER NOT NULL DEFAULT 0
    ) STRICT;
    CREATE TABLE heads (number INTEGER PRIMARY KEY, head TEXT NOT NULL) STRICT;
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        agent INTEGER NOT NULL,
        previous INTEGER,
        json TEXT NOT NULL,
        seq INTEGER
    ) STRICT;
    CREATE TABLE damaged (
        agent TEXT NOT NULL,
        part TEXT NOT NULL,
        contents BLOB,
        kept_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    ) STRICT;
    CREATE VIEW stream AS
        SELECT a.agent, m.seq, m.json FROM agents a JOIN messages m ON m.agent = a.number;
";

/// Version 1 had no numbers in the rows of messages, and nothing for a list.
const FROM_VERSION_1: &str = "
    ALTER TABLE agents ADD COLUMN labels TEXT;
    ALTER TABLE agents ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE agents ADD COLUMN changed INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE messages ADD COLUMN seq INTEGER;
    CREATE VIEW stream AS
        SELECT a.agent, m.seq, m.json FROM agents a JOIN messages m ON m.agent = a.number;
    UPDATE agents SET bytes = sums.bytes FROM (
        SELECT agent, sum(octet_length(json)) AS bytes FROM messages GROUP BY agent) AS sums
    WHERE sums.agent = number;
    -- The time of the last save is not known. From now on an unused agent can expire.
    UPDATE agents SET changed = unixepoch() * 1000;
";

fn identity(path: &Path) -> Result<(u64, u64), Error> {
    let metadata = std::fs::metadata(path).map_err(FileError::io("use", path))?;
    Ok((metadata.dev(), metadata.ino()))
}

impl Database {
    /// Opens a database for writing, and creates it if there is none.
    pub(super) fn create(path: &Path, busy_timeout: Duration) -> Result<Self, Error> {
        create_private(path)?;
        let deadline = Instant::now() + busy_timeout;
        // SQLite does not wait for a lock when it changes the journal mode or recovers a WAL. If
        // several processes open a new database at once, some of them get "database is locked".
        loop {
            let database = Self::open(path, busy_timeout)?;
            match database.prepare() {
                Ok(()) => return Ok(database),
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    database.roll_back();
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Opens an existing database.
    pub(super) fn open(path: &Path, busy_timeout: Duration) -> Result<Self, Error> {
        let location = path.display().to_string();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Before the file is opened: if it is replaced in between, the next call opens it again.
        let identity = identity(path)?;
        let connection = Connection::open_with_flags(path, flags)
            .and_then(|connection| {
                connection.busy_timeout(busy_timeout)?;
                connection.pragma_update(None, "synchronous", "FULL")?;
                Ok(connection)
            })
            .map_err(|error| failed("open", &location, error))?;
        Ok(Self {
            connection,
            location,
            path: path.to_owned(),
            busy_timeout,
            identity,
        })
    }

    /// Opens the file again if it was replaced, as by a restored backup. SQLite would go on with the
    /// deleted one, and every save would be lost.
    pub(super) fn follow_file(&mut self) -> Result<(), Error> {
        if identity(&self.path)? != self.identity {
            tracing::warn!(path = %self.path.display(), "the database file was replaced");
            // A failed `prepare` leaves a transaction open; dropping the connection ends it. The next
            // call tries again.
            let fresh = Self::open(&self.path, self.busy_timeout)?;
            fresh.prepare()?;
            *self = fresh;
        }
        Ok(())
    }

    /// Creates or migrates the tables, and then turns the WAL on: so the database file itself
    /// always has the tables.
    fn prepare(&self) -> Result<(), Error> {
        let failed = |error| self.failed("prepare", error);
        self.begin()?;
        let pragma = |name: &str| {
            let sql = format!("PRAGMA {name}");
            self.connection.query_row(&sql, [], |row| row.get(0))
        };
        let version: i64 = pragma("user_version").map_err(failed)?;
        let pages: i64 = pragma("page_count").map_err(failed)?;
        match version {
            0 if pages > 0 && !self.has_tables().map_err(failed)? && self.is_wal()? => {
                // An older version of this crate turned the WAL on first, and so may a copy.
                return Err(Error::Storage {
                    action: "open",
                    location: self.location.clone(),
                    source:
                        "it has no tables but a write-ahead log: it was copied without its -wal \
                             file; copy both, or use a backup"
                            .into(),
                });
            }
            0 => self.connection.execute_batch(SCHEMA).map_err(failed)?,
            1 => self.migrate_from_1().map_err(failed)?,
            VERSION => {}
            newer => {
                return Err(Error::UnsupportedVersion {
                    what: format!("the database {}", self.location),
                    found: newer.unsigned_abs(),
                    supported: VERSION.unsigned_abs(),
                });
            }
        }
        if version != VERSION {
            self.connection
                .pragma_update(None, "user_version", VERSION)
                .map_err(failed)?;
        }
        self.commit()?;
        self.connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(failed)
    }

    fn has_tables(&self) -> rusqlite::Result<bool> {
        let sql = "SELECT count(*) FROM sqlite_schema";
        let count: i64 = self.connection.query_row(sql, [], |row| row.get(0))?;
        Ok(count > 0)
    }

    fn is_wal(&self) -> Result<bool, Error> {
        let mode: String = self
            .connection
            .query_row("PRAGMA journal_mode", [], |row| row.get(0))
            .map_err(|error| self.failed("prepare", error))?;
        Ok(mode == "wal")
    }

    fn migrate_from_1(&self) -> rusqlite::Result<()> {
        self.connection.execute_batch(FROM_VERSION_1)?;
        let mut select = self.connection.prepare(
            "SELECT last, stamp FROM agents WHERE last IS NOT NULL AND stamp IS NOT NULL",
        )?;
        let ends = select
            .query_map([], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?))
            })?
            .collect::<rusqlite::Result<Vec<_>>>()?;
        let mut number = self.connection.prepare(
            "WITH RECURSIVE chain (id, previous, seq) AS (
                 SELECT id, previous, ?2 FROM messages WHERE id = ?1
                 UNION ALL SELECT m.id, m.previous, chain.seq - 1
                 FROM chain JOIN messages m ON m.id = chain.previous AND m.id < chain.id)
             UPDATE messages SET seq = chain.seq FROM chain WHERE messages.id = chain.id",
        )?;
        for (last, stamp) in ends {
            // A stamp that cannot be read is damage, which a load reports.
            if let Some(stamp) = Stamp::from_text(&stamp) {
                number.execute(params![last, stamp.next.cast_signed() - 1])?;
            }
        }
        Ok(())
    }

    pub(super) fn begin(&self) -> Result<(), Error> {
        // A transaction that starts with a read fails at its first write if another process has
        // written in between; `IMMEDIATE` takes the write lock first.
        self.execute("BEGIN IMMEDIATE", "begin a transaction in")
    }

    pub(super) fn commit(&self) -> Result<(), Error> {
        self.execute("COMMIT", "commit to")
    }

    pub(super) fn roll_back(&self) {
        // Fails only if SQLite has already rolled back.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    fn execute(&self, sql: &str, action: &'static str) -> Result<(), Error> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute([]))
            .map_err(|error| self.failed(action, error))?;
        Ok(())
    }

    /// Compare-and-swap of the stamp, within a transaction.
    pub(super) fn swap(
        &self,
        agent: &AgentId,
        expected: &StoredStamp,
        plan: &SavePlan,
    ) -> Result<Swap, Error> {
        let (end, len) = match self.agent_row(agent)? {
            Some(row) => {
                let stored = row.stored(agent, &self.location)?;
                if stored != *expected {
                    return Ok(Swap::Changed(stored));
                }
                let len = stored
                    .stamp
                    .map_or(0, |stamp| stamp.next - stamp.stream_start);
                (row.end, len)
            }
            None if *expected != StoredStamp::default() => {
                return Ok(Swap::Changed(StoredStamp::default()));
            }
            None => (self.insert_agent(agent)?, 0),
        };
        self.write(end, len, plan)
            .map_err(|error| self.failed("save to", error))?;
        Ok(Swap::Done)
    }

    /// Writes a plan. The stored chain has `len` messages.
    fn write(&self, mut end: ChainEnd, len: u64, plan: &SavePlan) -> rusqlite::Result<()> {
        let replaces = plan.stream == StreamChange::Replace;
        if replaces {
            end.remove(&self.connection, len)?;
            end.last = None;
        }
        let ChainEnd { agent, last } = end.append(&self.connection, plan.from, &plan.messages)?;
        let bytes: usize = plan.messages.iter().map(String::len).sum();
        if let Some(head) = &plan.head {
            self.connection
                .prepare_cached("INSERT OR REPLACE INTO heads (number, head) VALUES (?1, ?2)")?
                .execute(params![agent, head])?;
        }
        self.connection
            .prepare_cached(
                "UPDATE agents SET stamp = ?2, state = ?3, last = ?4, labels = ?5,
                 bytes = iif(?6, 0, bytes) + ?7, changed = ?8 WHERE number = ?1",
            )?
            .execute(params![
                agent,
                plan.stamp.to_text(),
                plan.body,
                last,
                plan.labels,
                replaces,
                i64::try_from(bytes).unwrap_or(i64::MAX),
                now_millis()
            ])?;
        Ok(())
    }

    /// Deletes the agents that were not saved since `before`, in milliseconds since 1970, within a
    /// transaction. Calls `begin` before it deletes an agent.
    pub(super) fn expire(
        &self,
        before: i64,
        begin: impl Fn(&AgentId),
    ) -> Result<Vec<AgentId>, Error> {
        let failed = |error| self.failed("expire the agents of", error);
        let mut select = self
            .connection
            .prepare_cached(
                "SELECT agent FROM agents WHERE stamp IS NOT NULL AND changed <= ?1 ORDER BY agent",
            )
            .map_err(failed)?;
        let names = select
            .query_map([before], |row| row.get::<_, String>(0))
            .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
            .map_err(failed)?;
        let mut expired = Vec::new();
        for name in names {
            let agent = AgentId::new(name)?;
            let readable = self
                .rows(&agent)
                .and_then(|rows| rows.map(|rows| rows.assemble(&agent, "")).transpose());
            match readable {
                Ok(_) => {
                    begin(&agent);
                    self.delete(&agent)?;
                    expired.push(agent);
                }
                Err(error) if error.is_damaged() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(expired)
    }

    /// Removes the oldest hidden messages until `keep` are left, within a transaction.
    pub(super) fn cap_stream(&self, agent: &AgentId, keep: u64) -> Result<u64, Error> {
        let Some(row) = self.agent_row(agent)? else {
            return Ok(0);
        };
        let Some(mut stamp) = row.stored(agent, &self.location)?.stamp else {
            return Ok(0);
        };
        let start = stamp.capped_start(keep);
        if start == stamp.stream_start {
            return Ok(0);
        }
        stamp.stream_start = start;
        let cap = || {
            let (removed, bytes) = row.end.remove_before(&self.connection, start)?;
            self.connection
                .prepare_cached(
                    "UPDATE agents SET stamp = ?2, bytes = bytes - ?3, last = iif(?4, NULL, last)
                     WHERE number = ?1",
                )?
                .execute(params![
                    row.end.agent,
                    stamp.to_text(),
                    bytes,
                    start == stamp.next
                ])?;
            Ok(removed)
        };
        cap().map_err(|error| self.failed("cap a stream in", error))
    }

    /// A page of the list.
    pub(super) fn page(&self, after: &str, limit: usize) -> Result<Vec<AgentInfo>, Error> {
        let read = || {
            let mut statement = self.connection.prepare_cached(
                "SELECT agent, stamp, labels, changed, a.bytes + coalesce(octet_length(state), 0)
                     + coalesce(octet_length(head), 0)
                 FROM agents a LEFT JOIN heads USING (number)
                 WHERE stamp IS NOT NULL AND agent > ?1 ORDER BY agent LIMIT ?2",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![after, limit], |row| {
                let name: String = row.get(0)?;
                let stamp: String = row.get(1)?;
                let labels: Option<String> = row.get(2)?;
                let changed: i64 = row.get(3)?;
                let bytes: i64 = row.get(4)?;
                Ok((name, stamp, labels, changed, bytes))
            })?;
            rows.collect::<rusqlite::Result<Vec<_>>>()
        };
        let rows = read().map_err(|error| self.failed("list the agents of", error))?;
        rows.into_iter()
            .map(|(name, stamp, labels, changed, bytes)| {
                let millis = Duration::from_millis(changed.cast_unsigned());
                Ok(AgentInfo::from_parts(
                    AgentId::new(name)?,
                    Stamp::from_text(&stamp).as_ref(),
                    labels.as_deref(),
                    bytes.cast_unsigned(),
                    UNIX_EPOCH + millis,
                ))
            })
            .collect()
    }

    fn insert_agent(&self, agent: &AgentId) -> Result<ChainEnd, Error> {
        self.connection
            .prepare_cached("INSERT INTO agents (agent) VALUES (?1)")
            .and_then(|mut statement| statement.insert([agent.as_str()]))
            .map(|agent| ChainEnd { agent, last: None })
            .map_err(|error| self.failed("save to", error))
    }

    /// All rows of an agent except hidden messages, as of one moment.
    pub(super) fn rows(&self, agent: &AgentId) -> Result<Option<StoredRows>, Error> {
        self.in_snapshot(|| {
            let Some(row) = self.agent_row(agent)? else {
                return Ok(None);
            };
            let stored = row.stored(agent, &self.location)?;
            let Some(view) = stored.stamp.as_ref().map(|stamp| stamp.first..stamp.next) else {
                return Ok(Some(StoredRows {
                    stored,
                    body: String::new(),
                    head: String::new(),
                    messages: Vec::new(),
                }));
            };
            let failed = |error| self.unreadable(agent, error);
            let text = |sql: &str| {
                let mut statement = self.connection.prepare_cached(sql)?;
                let text = statement.query_row([row.end.agent], |row| row.get(0));
                Ok(text.optional()?.flatten())
            };
            let body: Option<String> =
                text("SELECT state FROM agents WHERE number = ?1").map_err(failed)?;
            let head: Option<String> =
                text("SELECT head FROM heads WHERE number = ?1").map_err(failed)?;
            let messages = row.end.read(&self.connection, view.end, &view);
            Ok(Some(StoredRows {
                stored,
                body: body.unwrap_or_default(),
                head: head.unwrap_or_default(),
                messages: messages.map_err(failed)?,
            }))
        })
    }

    /// The messages of the stream in `range`, with the number of the first one.
    pub(super) fn stream(
        &self,
        agent: &AgentId,
        range: &Range<u64>,
    ) -> Result<Option<(u64, Vec<String>)>, Error> {
        self.in_snapshot(|| {
            let Some(row) = self.agent_row(agent)? else {
                return Ok(None);
            };
            let Some(stamp) = row.stored(agent, &self.location)?.stamp else {
                return Ok(None);
            };
            let first = range.start.max(stamp.stream_start);
            let range = first..range.end.min(stamp.next).max(first);
            let messages = row
                .end
                .read(&self.connection, stamp.next, &range)
                .map_err(|error| self.unreadable(agent, error))?;
            if messages.len() as u64 != range.end - range.start {
                return Err(Error::Damaged {
                    agent: agent.clone(),
                    location: self.location.clone(),
                    reason: format!(
                        "it should have messages {} to {}, but it has {} messages",
                        range.start,
                        range.end,
                        messages.len()
                    ),
                });
            }
            Ok(Some((first, messages)))
        })
    }

    /// Removes an agent except its epoch, within a transaction.
    pub(super) fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        let Some(row) = self.agent_row(agent)? else {
            return Ok(());
        };
        let stored = row.stored(agent, &self.location);
        let damaged = match self.rows(agent) {
            Ok(Some(rows)) => rows.assemble(agent, &self.location).is_err(),
            Ok(None) => false,
            Err(error) if error.is_damaged() => true,
            Err(error) => return Err(error),
        };
        if damaged {
            self.keep_aside(agent, row.end.agent)
                .map_err(|error| self.failed("keep damaged rows aside in", error))?;
        }
        let stamp = stored.ok().and_then(|stored| stored.stamp);
        let (epoch, len) = stamp.map_or((0, 0), |stamp| {
            (stamp.epoch, stamp.next - stamp.stream_start)
        });
        self.forget(row.end, len, row.epoch_floor.max(epoch))
            .map_err(|error| self.failed("delete from", error))
    }

    fn forget(&self, end: ChainEnd, len: u64, floor: u64) -> rusqlite::Result<()> {
        end.remove(&self.connection, len)?;
        self.connection
            .prepare_cached("DELETE FROM heads WHERE number = ?1")?
            .execute([end.agent])?;
        self.connection
            .prepare_cached(
                "UPDATE agents SET epoch_floor = ?2, stamp = NULL, state = NULL, last = NULL,
                 labels = NULL, bytes = 0 WHERE number = ?1",
            )?
            .execute(params![end.agent, floor.cast_signed()])?;
        Ok(())
    }

    fn keep_aside(&self, agent: &AgentId, number: i64) -> rusqlite::Result<()> {
        self.connection.execute(
            "INSERT INTO damaged (agent, part, contents)
             SELECT ?1, 'stamp', CAST(stamp AS BLOB) FROM agents WHERE number = ?2
             UNION ALL SELECT ?1, 'state', CAST(state AS BLOB) FROM agents WHERE number = ?2
             UNION ALL SELECT ?1, 'head', CAST(head AS BLOB) FROM heads WHERE number = ?2
             UNION ALL SELECT ?1, 'message ' || id, CAST(json AS BLOB) FROM messages
             WHERE agent = ?2",
            params![agent.as_str(), number],
        )?;
        Ok(())
    }

    pub(super) fn list(&self) -> Result<Vec<AgentId>, Error> {
        let failed = |error| self.failed("list the agents of", error);
        let mut statement = self
            .connection
            .prepare_cached("SELECT agent FROM agents WHERE stamp IS NOT NULL ORDER BY agent")
            .map_err(failed)?;
        let agents = statement
            .query_map([], |row| row.get::<_, String>(0))
            .and_then(Iterator::collect::<rusqlite::Result<Vec<_>>>)
            .map_err(failed)?;
        agents.into_iter().map(AgentId::new).collect()
    }

    fn agent_row(&self, agent: &AgentId) -> Result<Option<AgentRow>, Error> {
        self.connection
            .prepare_cached("SELECT number, epoch_floor, stamp, last FROM agents WHERE agent = ?1")
            .and_then(|mut statement| {
                statement
                    .query_row([agent.as_str()], |row| {
                        Ok(AgentRow {
                            end: ChainEnd {
                                agent: row.get(0)?,
                                last: row.get(3)?,
                            },
                            epoch_floor: row.get::<_, i64>(1)?.cast_unsigned(),
                            stamp: row.get(2)?,
                        })
                    })
                    .optional()
            })
            .map_err(|error| self.unreadable(agent, error))
    }

    /// Runs several reads on one state of the database, although another process may write.
    fn in_snapshot<T>(&self, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if !self.connection.is_autocommit() {
            return read();
        }
        self.execute("BEGIN", "begin a transaction in")?;
        let result = read();
        self.roll_back();
        result
    }

    /// A row that SQLite cannot read is damage. Any other error may be temporary.
    fn unreadable(&self, agent: &AgentId, error: rusqlite::Error) -> Error {
        use rusqlite::Error as E;
        let damaged = matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
        ) || matches!(
            error,
            E::FromSqlConversionFailure(..) | E::InvalidColumnType(..) | E::Utf8Error(..)
        );
        if !damaged {
            return self.failed("load from", error);
        }
        Error::Damaged {
            agent: agent.clone(),
            location: self.location.clone(),
            reason: error.to_string(),
        }
    }

    fn failed(&self, action: &'static str, error: rusqlite::Error) -> Error {
        failed(action, &self.location, error)
    }
}

struct AgentRow {
    end: ChainEnd,
    epoch_floor: u64,
    stamp: Option<String>,
}

impl AgentRow {
    fn stored(&self, agent: &AgentId, location: &str) -> Result<StoredStamp, Error> {
        let stamp = self.stamp.as_deref().map(|text| {
            Stamp::from_text(text).ok_or_else(|| Error::Damaged {
                agent: agent.clone(),
                location: location.to_owned(),
                reason: "its stamp is not readable".to_owned(),
            })
        });
        Ok(StoredStamp {
            stamp: stamp.transpose()?,
            epoch_floor: self.epoch_floor,
        })
    }
}

impl StoredRows {
    pub(super) fn assemble(
        &self,
        agent: &AgentId,
        location: &str,
    ) -> Result<Option<AgentSnapshot>, Error> {
        let Some(stamp) = &self.stored.stamp else {
            return Ok(None);
        };
        let messages = &self.messages;
        backend::assemble(agent, location, stamp, &self.body, &self.head, messages).map(Some)
    }
}

fn now_millis() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    i64::try_from(since.unwrap_or_default().as_millis()).unwrap_or(i64::MAX)
}

fn is_busy(error: &Error) -> bool {
    let Error::Storage { source, .. } = error else {
        return false;
    };
    let code = source
        .downcast_ref::<rusqlite::Error>()
        .and_then(rusqlite::Error::sqlite_error_code);
    matches!(
        code,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}

fn failed(action: &'static str, location: &str, error: rusqlite::Error) -> Error {
    Error::Storage {
        action,
        location: location.to_owned(),
        source: Box::new(error),
    }
}

/// Creates the file if there is none, and refuses files that are not private. SQLite gives the
/// files beside the database the mode of the database.
fn create_private(path: &Path) -> Result<(), FileError> {
    private_file::create_folder(path.parent().unwrap_or(Path::new("")))?;
    let created = private_file::open(path, File::options().write(true).create_new(true));
    match created {
        Err(FileError::Io { source, .. }) if source.kind() == std::io::ErrorKind::AlreadyExists => {
            private_file::check_unopened(path)?;
        }
        created => drop(created?),
    }
    for suffix in ["-wal", "-shm"] {
        match private_file::check_unopened(&beside(path, suffix)) {
            Err(error) if error.is_not_found() => {}
            checked => checked?,
        }
    }
    Ok(())
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
