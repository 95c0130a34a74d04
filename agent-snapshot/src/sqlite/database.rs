use std::{ops::Range, path::Path};

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};

use super::stream::{End, Rows};
use crate::{
    AgentId, AgentSnapshot, Error,
    backend::{self, Stamp, Stream, Write},
    private,
    swap::{Known, Swapped},
};

/// The tables, as one connection sees them.
pub(super) struct Database {
    connection: Connection,
    place: String,
}

/// The rows of one agent.
pub(super) struct Stored {
    stamp: Option<Stamp>,
    epoch_floor: u64,
    state: String,
    head: String,
    messages: Rows,
}

/// Kept in `user_version`; 0 is an empty database.
const VERSION: i64 = 1;

// `agents` keeps a row after a delete: it holds the epoch, and numbers are not used again.
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
    /// Opens or creates a database for writing.
    pub(super) fn create(path: &Path) -> Result<Self, Error> {
        create_private(path).map_err(|source| Error::Storage {
            operation: "creating the database",
            place: path.display().to_string(),
            source: Box::new(source),
        })?;
        let database = Self::open(path)?;
        database.prepare()?;
        Ok(database)
    }

    /// Opens a database that exists.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let place = path.display().to_string();
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .and_then(|connection| {
                connection.busy_timeout(std::time::Duration::from_secs(30))?;
                connection.pragma_update(None, "synchronous", "FULL")?;
                connection.set_prepared_statement_cache_capacity(32);
                Ok(connection)
            })
            .map_err(|error| failed("opening the database", &place, error))?;
        Ok(Self { connection, place })
    }

    fn prepare(&self) -> Result<(), Error> {
        let failed = |error| self.failed("preparing the database", error);
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
                what: format!("the database {}", self.place),
                found: version.unsigned_abs(),
                supported: VERSION.unsigned_abs(),
            });
        }
        self.commit()
    }

    pub(super) fn begin(&self) -> Result<(), Error> {
        // Immediate: a transaction that starts with a read could not always go on to write.
        self.execute("BEGIN IMMEDIATE", "beginning a transaction")
    }

    pub(super) fn commit(&self) -> Result<(), Error> {
        self.execute("COMMIT", "committing")
    }

    pub(super) fn roll_back(&self) {
        // Fails only where SQLite has rolled back by itself.
        let _ = self.connection.execute_batch("ROLLBACK");
    }

    fn execute(&self, sql: &str, operation: &'static str) -> Result<(), Error> {
        self.connection
            .prepare_cached(sql)
            .and_then(|mut statement| statement.execute([]))
            .map_err(|error| self.failed(operation, error))?;
        Ok(())
    }

    /// Writes a save if what is stored is still `known`. Part of a transaction.
    pub(super) fn swap(
        &self,
        agent: &AgentId,
        known: &Known,
        write: &Write,
    ) -> Result<Swapped, Error> {
        let (end, len) = match self.agent_row(agent)? {
            Some(row) => {
                let stored = row.known(agent, &self.place)?;
                if stored != *known {
                    return Ok(Swapped::Changed(stored));
                }
                (
                    row.end,
                    stored.stamp.map_or(0, |stamp| stamp.next - stamp.start),
                )
            }
            None if *known != Known::default() => return Ok(Swapped::Changed(Known::default())),
            None => (self.insert_agent(agent)?, 0),
        };
        self.write(end, len, write)
            .map_err(|error| self.failed("saving", error))?;
        Ok(Swapped::Done)
    }

    /// Writes a save where the stored stream has `len` messages.
    fn write(&self, mut end: End, len: u64, write: &Write) -> rusqlite::Result<()> {
        if write.stream == Stream::Replace {
            end.remove(&self.connection, len)?;
            end.last = None;
        }
        let End { agent, last } = end.append(&self.connection, &write.messages)?;
        if let Some(head) = &write.head {
            self.connection
                .prepare_cached("INSERT OR REPLACE INTO heads (number, head) VALUES (?1, ?2)")?
                .execute(params![agent, head])?;
        }
        self.connection
            .prepare_cached(
                "UPDATE agents SET stamp = ?2, state = ?3, last = ?4 WHERE number = ?1",
            )?
            .execute(params![agent, write.stamp.to_text(), write.state, last])?;
        Ok(())
    }

    fn insert_agent(&self, agent: &AgentId) -> Result<End, Error> {
        self.connection
            .prepare_cached("INSERT INTO agents (agent) VALUES (?1)")
            .and_then(|mut statement| statement.insert([agent.as_str()]))
            .map(|agent| End { agent, last: None })
            .map_err(|error| self.failed("saving", error))
    }

    /// Everything that is stored for an agent, from one moment.
    pub(super) fn record(&self, agent: &AgentId) -> Result<Option<Stored>, Error> {
        self.snapshot(|| {
            let Some(row) = self.agent_row(agent)? else {
                return Ok(None);
            };
            let Known { stamp, epoch_floor } = row.known(agent, &self.place)?;
            let Some(range) = stamp.as_ref().map(|stamp| stamp.first..stamp.next) else {
                return Ok(Some(Stored {
                    stamp: None,
                    epoch_floor,
                    state: String::new(),
                    head: String::new(),
                    messages: Rows::default(),
                }));
            };
            let failed = |error| self.unreadable(agent, error);
            let state = self
                .connection
                .prepare_cached("SELECT state FROM agents WHERE number = ?1")
                .and_then(|mut statement| {
                    statement.query_row([row.end.agent], |row| row.get::<_, Option<String>>(0))
                })
                .map_err(failed)?;
            let head = self
                .connection
                .prepare_cached("SELECT head FROM heads WHERE number = ?1")
                .and_then(|mut statement| {
                    statement
                        .query_row([row.end.agent], |row| row.get(0))
                        .optional()
                })
                .map_err(failed)?;
            Ok(Some(Stored {
                stamp,
                epoch_floor,
                state: state.unwrap_or_default(),
                head: head.unwrap_or_default(),
                messages: row
                    .end
                    .read(&self.connection, range.end, &range)
                    .map_err(failed)?,
            }))
        })
    }

    /// The messages of the stream within `range`, with the number of the first one.
    pub(super) fn stream(
        &self,
        agent: &AgentId,
        range: &Range<u64>,
    ) -> Result<Option<(u64, Rows)>, Error> {
        self.snapshot(|| {
            let Some(row) = self.agent_row(agent)? else {
                return Ok(None);
            };
            let Some(stamp) = row.known(agent, &self.place)?.stamp else {
                return Ok(None);
            };
            let first = range.start.max(stamp.start);
            let range = first..range.end.min(stamp.next).max(first);
            let messages = row
                .end
                .read(&self.connection, stamp.next, &range)
                .map_err(|error| self.unreadable(agent, error))?;
            if messages.len() as u64 != range.end - range.start {
                return Err(Error::Damaged {
                    agent: agent.clone(),
                    place: self.place.clone(),
                    reason: format!(
                        "messages {} to {} should be there, but there are {}",
                        range.start,
                        range.end,
                        messages.len()
                    ),
                });
            }
            Ok(Some((first, messages)))
        })
    }

    /// Forgets an agent but for its epoch. Part of a transaction.
    pub(super) fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        let Some(row) = self.agent_row(agent)? else {
            return Ok(());
        };
        let known = row.known(agent, &self.place);
        let damaged = match self.record(agent) {
            Ok(Some(stored)) => stored.assemble(agent, &self.place).is_err(),
            Ok(None) => false,
            Err(error) => error.is_damaged(),
        };
        if damaged {
            self.keep_aside(agent, row.end.agent)
                .map_err(|error| self.failed("keeping damaged data aside", error))?;
        }
        let stamp = known.ok().and_then(|known| known.stamp);
        let (epoch, len) = stamp.map_or((0, 0), |stamp| (stamp.epoch, stamp.next - stamp.start));
        self.forget(row.end, len, row.epoch_floor.max(epoch))
            .map_err(|error| self.failed("deleting", error))
    }

    fn forget(&self, end: End, len: u64, floor: u64) -> rusqlite::Result<()> {
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
        let failed = |error| self.failed("listing agents", error);
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
                            end: End {
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

    /// Reads from one moment, though another process may write meanwhile.
    fn snapshot<T>(&self, read: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        if !self.connection.is_autocommit() {
            return read();
        }
        self.execute("BEGIN", "beginning a transaction")?;
        let result = read();
        self.roll_back();
        result
    }

    /// A row that SQLite cannot read is damage; anything else may pass.
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
            return self.failed("loading", error);
        }
        Error::Damaged {
            agent: agent.clone(),
            place: self.place.clone(),
            reason: error.to_string(),
        }
    }

    fn failed(&self, operation: &'static str, error: rusqlite::Error) -> Error {
        failed(operation, &self.place, error)
    }
}

struct AgentRow {
    end: End,
    epoch_floor: u64,
    stamp: Option<String>,
}

impl AgentRow {
    fn known(&self, agent: &AgentId, place: &str) -> Result<Known, Error> {
        let stamp = self.stamp.as_deref().map(|text| {
            Stamp::from_text(text).ok_or_else(|| Error::Damaged {
                agent: agent.clone(),
                place: place.to_owned(),
                reason: "its stamp is not readable".to_owned(),
            })
        });
        Ok(Known {
            stamp: stamp.transpose()?,
            epoch_floor: self.epoch_floor,
        })
    }
}

impl Stored {
    pub(super) fn known(&self) -> Known {
        Known {
            stamp: self.stamp.clone(),
            epoch_floor: self.epoch_floor,
        }
    }

    pub(super) fn assemble(
        self,
        agent: &AgentId,
        place: &str,
    ) -> Result<Option<AgentSnapshot>, Error> {
        let Some(stamp) = &self.stamp else {
            return Ok(None);
        };
        let messages = self.messages.iter();
        backend::assemble(agent, place, stamp, &self.state, &self.head, messages).map(Some)
    }
}

fn failed(operation: &'static str, place: &str, error: rusqlite::Error) -> Error {
    Error::Storage {
        operation,
        place: place.to_owned(),
        source: Box::new(error),
    }
}

/// SQLite gives the files beside the database the same mode.
fn create_private(path: &Path) -> std::io::Result<()> {
    if let Some(parent) = path.parent() {
        private::folder(parent)?;
    }
    match private::file().write(true).create_new(true).open(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}
