//! The agents that are saved, and the same saves by raw calls.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot};
use benches::sample;
use examples::redis_server::RedisServer;
use rusqlite::{Connection, params};
use tokio::sync::oneshot;

/// An agent that adds one message of the given size in each tick.
pub struct Agent {
    pub snapshot: AgentSnapshot,
    size: usize,
}

impl Agent {
    pub fn new(name: &str, size: usize) -> Self {
        let snapshot = AgentSnapshot::new(AgentId::new(name).unwrap());
        Self { snapshot, size }
    }

    /// The next tick. All messages stay in view.
    pub fn grow(&mut self) -> &AgentSnapshot {
        self.snapshot.tick_index += 1;
        let text = sample::message(self.snapshot.tick_index as usize, self.size);
        let history = &mut self.snapshot.memory.short_term_history;
        history.push(Message::user(text));
        &self.snapshot
    }

    /// Ticks until the history has `messages` messages.
    pub fn grow_to(&mut self, messages: usize) {
        while self.snapshot.memory.short_term_history.len() < messages {
            self.grow();
        }
    }

    /// The next tick. Only the last message stays in view, so that a save handles only the change
    /// of the tick.
    pub fn tick(&mut self) -> &AgentSnapshot {
        self.grow();
        let history = &mut self.snapshot.memory.short_term_history;
        history.drop_front(history.tail_len().saturating_sub(1));
        history.release_hidden();
        &self.snapshot
    }

    /// The last message as JSON: the change of a tick.
    pub fn last(&self) -> String {
        let last = self.snapshot.memory.short_term_history.iter().next_back();
        serde_json::to_string(&last).unwrap()
    }
}

/// The whole snapshot as JSON.
pub fn json(snapshot: &AgentSnapshot) -> Vec<u8> {
    serde_json::to_vec(snapshot).unwrap()
}

/// Serialise, write, fsync, rename, fsync of the folder.
pub fn rewrite_file(folder: &Path, snapshot: &AgentSnapshot) {
    let temporary = folder.join("floor.tmp");
    let mut file = File::create(&temporary).unwrap();
    file.write_all(&json(snapshot)).unwrap();
    file.sync_all().unwrap();
    fs::rename(&temporary, folder.join("floor.json")).unwrap();
    File::open(folder).unwrap().sync_all().unwrap();
}

/// A database with the durability of ours.
pub fn database(path: &Path) -> Connection {
    let database = Connection::open(path).unwrap();
    database.pragma_update(None, "journal_mode", "WAL").unwrap();
    database.pragma_update(None, "synchronous", "FULL").unwrap();
    database
        .execute_batch(
            "CREATE TABLE snapshots (agent TEXT PRIMARY KEY, tick INTEGER, json BLOB);
             CREATE TABLE agents (agent TEXT PRIMARY KEY, tick INTEGER, state TEXT);
             CREATE TABLE messages (agent TEXT, tick INTEGER, json TEXT,
                                    PRIMARY KEY (agent, tick)) WITHOUT ROWID;",
        )
        .unwrap();
    database.busy_timeout(Duration::from_secs(30)).unwrap();
    database
}

/// One transaction: compare the tick, replace the row.
pub fn replace_row(database: &Connection, snapshot: &AgentSnapshot) {
    let json = json(snapshot);
    transaction(database, "snapshots", snapshot, |agent, tick| {
        database
            .prepare_cached("INSERT OR REPLACE INTO snapshots VALUES (?1, ?2, ?3)")
            .unwrap()
            .execute(params![agent, tick, json])
            .unwrap();
    });
}

/// One transaction: compare the tick, append the message, replace the rest of the state.
pub fn append_row(database: &Connection, agent: &Agent) {
    let message = agent.last();
    let mut state = AgentSnapshot::new(agent.snapshot.agent_id.clone());
    state.tick_index = agent.snapshot.tick_index;
    let state = String::from_utf8(json(&state)).unwrap();
    transaction(database, "agents", &agent.snapshot, |agent, tick| {
        database
            .prepare_cached("INSERT INTO messages VALUES (?1, ?2, ?3)")
            .unwrap()
            .execute(params![agent, tick, message])
            .unwrap();
        database
            .prepare_cached("INSERT OR REPLACE INTO agents VALUES (?1, ?2, ?3)")
            .unwrap()
            .execute(params![agent, tick, state])
            .unwrap();
    });
}

/// A connection on its own thread, as an async program needs it: requests and answers go through
/// channels.
pub struct Thread(mpsc::Sender<(Agent, oneshot::Sender<Agent>)>);

impl Thread {
    pub fn start(database: Connection) -> Self {
        let (queue, jobs) = mpsc::channel::<(Agent, oneshot::Sender<Agent>)>();
        thread::spawn(move || {
            for (agent, done) in jobs {
                append_row(&database, &agent);
                let _ = done.send(agent);
            }
        });
        Self(queue)
    }

    /// Calls [`append_row`] on the thread.
    pub async fn append_row(&self, agent: Agent) -> Agent {
        let (done, appended) = oneshot::channel();
        self.0.send((agent, done)).unwrap();
        appended.await.unwrap()
    }
}

fn transaction(
    database: &Connection,
    table: &str,
    snapshot: &AgentSnapshot,
    write: impl FnOnce(&str, i64),
) {
    let execute = |sql| {
        let mut statement = database.prepare_cached(sql).unwrap();
        statement.execute([]).unwrap();
    };
    execute("BEGIN IMMEDIATE");
    let tick = i64::try_from(snapshot.tick_index).unwrap();
    let agent = snapshot.agent_id.as_str();
    let stored: Option<i64> = database
        .prepare_cached(&format!("SELECT tick FROM {table} WHERE agent = ?1"))
        .unwrap()
        .query_row([agent], |row| row.get(0))
        .ok();
    assert!(stored.is_none_or(|stored| stored < tick));
    write(agent, tick);
    execute("COMMIT");
}

pub fn load_row(database: &Connection, agent: &AgentId) -> AgentSnapshot {
    let bytes: Vec<u8> = database
        .prepare_cached("SELECT json FROM snapshots WHERE agent = ?1")
        .unwrap()
        .query_row([agent.as_str()], |row| row.get(0))
        .unwrap();
    serde_json::from_slice(&bytes).unwrap()
}

pub fn connect(server: &RedisServer) -> redis::Connection {
    let client = redis::Client::open(server.url()).unwrap();
    client.get_connection().unwrap()
}

pub fn set(connection: &mut redis::Connection, snapshot: &AgentSnapshot) {
    redis::cmd("SET")
        .arg("raw")
        .arg(json(snapshot))
        .exec(connection)
        .unwrap();
}

pub fn get(connection: &mut redis::Connection) -> AgentSnapshot {
    let bytes: Vec<u8> = redis::cmd("GET").arg("raw").query(connection).unwrap();
    serde_json::from_slice(&bytes).unwrap()
}
