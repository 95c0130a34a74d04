//! The contenders of timed-store.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use fd_lock::RwLock;
use redb::{Database, Durability, ReadableDatabase, TableDefinition};
use rusqlite::Connection;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::{ME, now_ms, session_of, value_of};

const TTL_MS: u64 = 4 * 60 * 60 * 1000;

/// The system calls and the parsing that every implementation needs.
pub(crate) struct Raw {
    path: PathBuf,
    lock: PathBuf,
    next: PathBuf,
    bytes: Vec<u8>,
}

impl Raw {
    pub(crate) fn new(path: &Path) -> Self {
        let beside = |suffix: &str| PathBuf::from(format!("{}{suffix}", path.display()));
        File::create(beside(".rawlock")).unwrap();
        Self {
            bytes: std::fs::read(path).unwrap(),
            path: path.to_owned(),
            lock: beside(".rawlock"),
            next: beside(".rawnext"),
        }
    }

    pub(crate) fn restore(&self) -> Option<String> {
        let lock = RwLock::new(File::open(&self.lock).unwrap());
        let _guard = lock.read().unwrap();
        let bytes = read(&self.path);
        let Top(own) = serde_json::from_slice(&bytes).unwrap();
        own.map(Cow::into_owned)
    }

    /// Replaces the file by another one of the same size.
    pub(crate) fn exchange(&self) {
        self.exchange_after(|_| ());
    }

    /// The same, so that it survives a power cut.
    pub(crate) fn exchange_durably(&self) {
        self.exchange_after(|next| next.sync_data().unwrap());
        let folder = File::open(self.path.parent().unwrap()).unwrap();
        folder.sync_all().unwrap();
    }

    fn exchange_after(&self, sync: impl FnOnce(&File)) {
        let mut lock = RwLock::new(File::open(&self.lock).unwrap());
        let _guard = lock.write().unwrap();
        let mut next = File::create_new(&self.next).unwrap();
        next.write_all(&self.bytes).unwrap();
        sync(&next);
        renameat_with(CWD, &self.next, CWD, &self.path, RenameFlags::EXCHANGE).unwrap();
        std::fs::remove_file(&self.next).unwrap();
    }

    /// The usual way: lock, read, parse, write a temporary file, rename.
    pub(crate) fn persist(&self, session: &str, value: &str) {
        let mut lock = RwLock::new(File::open(&self.lock).unwrap());
        let _guard = lock.write().unwrap();
        let mut all: Document = serde_json::from_slice(&read(&self.path)).unwrap();
        let now = now_ms().to_string();
        all.storage.insert(
            session.to_owned(),
            Entry {
                data: value.to_owned(),
                updated_at: now,
            },
        );
        let mut next = tempfile::NamedTempFile::new_in(self.path.parent().unwrap()).unwrap();
        serde_json::to_writer(std::io::BufWriter::new(&mut next), &all).unwrap();
        next.persist(&self.path).unwrap();
    }
}

fn read(path: &Path) -> Vec<u8> {
    let mut file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len() as usize;
    let mut bytes = Vec::with_capacity(size + 1);
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// The value of the own session; other entries are skipped.
struct Top<'a>(Option<Cow<'a, str>>);

impl<'de> Deserialize<'de> for Top<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct File<'a> {
            #[serde(borrow)]
            storage: Storage<'a>,
        }
        File::deserialize(deserializer).map(|file| Top(file.storage.0))
    }
}

struct Storage<'a>(Option<Cow<'a, str>>);

impl<'de: 'a, 'a> Deserialize<'de> for Storage<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
        #[derive(Deserialize)]
        struct Own<'a> {
            #[serde(borrow)]
            data: Cow<'a, str>,
        }
        struct Find;
        impl<'de> Visitor<'de> for Find {
            type Value = Storage<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("entries")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut own = None;
                while let Some(Key(key)) = map.next_key()? {
                    if key == ME {
                        own = Some(map.next_value::<Own<'de>>()?.data);
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Storage(own))
            }
        }
        deserializer.deserialize_map(Find)
    }
}

#[derive(Deserialize, Serialize)]
struct Document {
    storage: BTreeMap<String, Entry>,
}

#[derive(Deserialize, Serialize)]
struct Entry {
    data: String,
    updated_at: String,
}

/// The specification implemented literally: each operation creates and deletes a lock file, parses
/// all entries, and writes all entries.
pub(crate) struct Literal {
    path: PathBuf,
    lock: PathBuf,
}

impl Literal {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            lock: path.with_extension("lock"),
        }
    }

    pub(crate) fn restore(&self) -> Option<String> {
        self.operate(|all| all.storage.get(ME).map(|entry| entry.data.clone()))
    }

    pub(crate) fn store(&self, value: &str) {
        let entry = Entry {
            data: value.to_owned(),
            updated_at: "2999-01-01T00:00:00.000Z".to_owned(),
        };
        self.operate(|all| all.storage.insert(ME.to_owned(), entry));
    }

    fn operate<R>(&self, work: impl FnOnce(&mut Document) -> R) -> R {
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&self.lock)
            .unwrap();
        let mut all: Document =
            serde_json::from_slice(&std::fs::read(&self.path).unwrap()).unwrap();
        // Time stamps of this form compare as text.
        all.storage
            .retain(|_, entry| *entry.updated_at > *"2000-01-01T00:00:00.000Z");
        let answer = work(&mut all);
        std::fs::write(&self.path, serde_json::to_vec_pretty(&all).unwrap()).unwrap();
        std::fs::remove_file(&self.lock).unwrap();
        answer
    }
}

/// A table with an index. Writers delete expired rows, and readers ignore them.
pub(crate) struct Sqlite {
    path: PathBuf,
    synchronous: &'static str,
}

pub(crate) struct SqliteHandle(Connection);

impl Sqlite {
    pub(crate) fn new(path: &Path, synchronous: &'static str) -> Self {
        Self {
            path: path.to_owned(),
            synchronous,
        }
    }

    pub(crate) fn fill(path: &Path, synchronous: &'static str, size: usize) -> Self {
        let this = Self::new(path, synchronous);
        let mut handle = this.connect();
        let transaction = handle.0.transaction().unwrap();
        for at in 0..size {
            let row = (session_of(at), value_of(at), now_ms() as i64);
            transaction
                .execute("INSERT OR REPLACE INTO entries VALUES (?1, ?2, ?3)", row)
                .unwrap();
        }
        transaction.commit().unwrap();
        this
    }

    pub(crate) fn connect(&self) -> SqliteHandle {
        let connection = Connection::open(&self.path).unwrap();
        connection
            .busy_timeout(std::time::Duration::from_secs(60))
            .unwrap();
        connection
            .execute_batch(&format!(
                "PRAGMA journal_mode = WAL; PRAGMA synchronous = {};
                 CREATE TABLE IF NOT EXISTS entries (session TEXT PRIMARY KEY, data TEXT, updated_at INTEGER);
                 CREATE INDEX IF NOT EXISTS by_time ON entries (updated_at);",
                self.synchronous
            ))
            .unwrap();
        SqliteHandle(connection)
    }
}

impl SqliteHandle {
    pub(crate) fn restore(&self) -> String {
        let mut select = self
            .0
            .prepare_cached("SELECT data FROM entries WHERE session = ?1 AND updated_at >= ?2")
            .unwrap();
        select
            .query_row((ME, (now_ms() - TTL_MS) as i64), |row| row.get(0))
            .unwrap()
    }

    pub(crate) fn store(&self, value: &str) {
        self.store_as(ME, value);
    }

    pub(crate) fn store_as(&self, session: &str, value: &str) {
        self.0.execute_batch("BEGIN IMMEDIATE").unwrap();
        let mut delete = self
            .0
            .prepare_cached("DELETE FROM entries WHERE updated_at < ?1")
            .unwrap();
        delete.execute([(now_ms() - TTL_MS) as i64]).unwrap();
        let mut insert = self
            .0
            .prepare_cached("INSERT OR REPLACE INTO entries VALUES (?1, ?2, ?3)")
            .unwrap();
        insert.execute((session, value, now_ms() as i64)).unwrap();
        self.0.execute_batch("COMMIT").unwrap();
    }
}

/// redb allows one process at a time, so each operation opens a fresh handle.
pub(crate) struct Redb {
    path: PathBuf,
}

const TABLE: TableDefinition<'_, &str, (&str, u64)> = TableDefinition::new("entries");

impl Redb {
    pub(crate) fn fill(path: &Path, size: usize) -> Self {
        let database = Database::create(path).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(TABLE).unwrap();
            for at in 0..size {
                table
                    .insert(&*session_of(at), (&*value_of(at), now_ms()))
                    .unwrap();
            }
        }
        transaction.commit().unwrap();
        Self {
            path: path.to_owned(),
        }
    }

    pub(crate) fn restore(&self) -> String {
        let database = Database::open(&self.path).unwrap();
        let table = database.begin_read().unwrap().open_table(TABLE).unwrap();
        table.get(ME).unwrap().unwrap().value().0.to_owned()
    }

    pub(crate) fn store(&self, value: &str, sync: bool) {
        let database = Database::open(&self.path).unwrap();
        let mut transaction = database.begin_write().unwrap();
        transaction
            .set_durability(if sync {
                Durability::Immediate
            } else {
                Durability::None
            })
            .unwrap();
        transaction
            .open_table(TABLE)
            .unwrap()
            .insert(ME, (value, now_ms()))
            .unwrap();
        transaction.commit().unwrap();
    }
}
