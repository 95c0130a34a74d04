use std::ffi::OsString;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::message_chain::ChainEnd;
use crate::backend::{self, SavePlan, Stamp, StreamChange};
use crate::shared::private_file::{self, FileError};
use crate::storage::{StoredStamp, Swap};
use crate::{AgentId, AgentSnapshot, Error};

/// One connection to the database.
pub(super) struct Database {
    connection: Connection,
    location: String,
}

/// The rows of one agent.
pub(super) struct StoredRows {
    pub(super) stored: StoredStamp,
    body: String,
    head: String,
    messages: Vec<String>,
}

/// The value of `user_version`; 0 is an empty database.
const VERSION: i64 = 1;

// A delete keeps the row in `agents`: it holds the epoch, and its number is never used again.
const SCHEMA: &str = "
    CREATE TABLE agents (
        number INTEGER PRIMARY KEY,
        agent TEXT NOT NULL UNIQUE,
        epoch_floor INTEGER NOT NULL DEFAULT 0,
        stamp TEXT,
        state TEXT,
        last INTEGER
    ) STRICT;
    CREATE TABLE heads (number INTEGER PRIMARY KEY, head TEXT NOT NULL) STRICT;
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        agent INTEGER NOT NULL,
        previous INTEGER,
        json TEXT NOT NULL
    ) STRICT;
    CREATE TABLE damaged (
        agent TEXT NOT NULL,
        part TEXT NOT NULL,
        contents BLOB,
        kept_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    ) STRICT;
";

impl Database {
    /// Opens a database for writing, and creates it if there is none.
    pub(super) fn create(path: &Path, busy_timeout: Duration) -> Result<Self, Error> {
        create_private(path)?;
        let database = Self::open(path, busy_timeout)?;
        database.prepare()?;
        Ok(database)
    }

    /// Opens an existing database.
    pub(super) fn open(path: &Path, busy_timeout: Duration) -> Result<Self, Error> {
        let location = path.display().to_string();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
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
        })
    }

    fn prepare(&self) -> Result<(), Error> {
        let failed = |error| self.failed("prepare", error);
        self.connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(failed)?;
        self.begin()?;
        let version: i64 = self
            .connection
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(failed)?;
        if version == 0 {
            self.connection
                .execute_batch(SCHEMA)
                .and_then(|()| self.connection.pragma_update(None, "user_version", VERSION))
                .map_err(failed)?;
        } else if version > VERSION {
            return Err(Error::UnsupportedVersion {
                what: format!("the database {}", self.location),
                found: version.unsigned_abs(),
                supported: VERSION.unsigned_abs(),
            });
        }
        self.commit()
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
        if plan.stream == StreamChange::Replace {
            end.remove(&self.connection, len)?;
            end.last = None;
        }
        let ChainEnd { agent, last } = end.append(&self.connection, &plan.messages)?;
        if let Some(head) = &plan.head {
            self.connection
                .prepare_cached("INSERT OR REPLACE INTO heads (number, head) VALUES (?1, ?2)")?
                .execute(params![agent, head])?;
        }
        self.connection
            .prepare_cached(
                "UPDATE agents SET stamp = ?2, state = ?3, last = ?4 WHERE number = ?1",
            )?
            .execute(params![agent, plan.stamp.to_text(), plan.body, last])?;
        Ok(())
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
            Err(error) => error.is_damaged(),
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
                "UPDATE agents SET epoch_floor = ?2, stamp = NULL, state = NULL, last = NULL
                 WHERE number = ?1",
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
