//! A process that saves in a loop, killed with SIGKILL at random moments.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::time::Duration;

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, SnapshotStorage, open_storage};

use crate::kill_on_drop::{KillOnDrop, test_program};
#[cfg(feature = "postgres")]
use crate::postgres_server::{PostgresServer, wait_for};

/// Environment variable of the child: the address of its storage.
const CHILD: &str = "AGENT_SNAPSHOT_CRASH_CHILD";

/// Environment variable: how often to kill the child (1,000 by default, 200 for PostgreSQL).
const KILLS: &str = "AGENT_SNAPSHOT_KILLS";

/// The number of messages in view. Most messages are out of view.
const WINDOW: usize = 20;

fn agent() -> AgentId {
    AgentId::new("victim").unwrap()
}

/// The program of the process that is killed, not a test.
#[test]
#[ignore = "started by the tests below"]
fn child() {
    let Ok(url) = env::var(CHILD) else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let storage = open_storage(&url).await.unwrap();
        let loaded = storage.load(&agent()).await.unwrap();
        let mut snapshot = loaded.unwrap_or_else(|| AgentSnapshot::new(agent()));
        check(&snapshot);
        let mut out = std::io::stdout();
        loop {
            snapshot.tick_index += 1;
            let text = format!("{} {}", snapshot.tick_index, "x".repeat(300));
            let history = &mut snapshot.memory.short_term_history;
            history.push(Message::user(text));
            history.drop_front(history.tail_len().saturating_sub(WINDOW));
            let variables = &mut snapshot.memory.working_variables;
            variables.insert("tick".into(), snapshot.tick_index.into());
            storage.save(&snapshot).await.unwrap();
            snapshot.memory.short_term_history.release_hidden();
            writeln!(out, "ack {}", snapshot.tick_index).unwrap();
            out.flush().unwrap();
        }
    });
}

/// Checks that all parts are from the same tick.
fn check(snapshot: &AgentSnapshot) {
    let tick = snapshot.tick_index;
    let history = &snapshot.memory.short_term_history;
    assert_eq!(history.next_seq(), tick);
    assert_eq!(history.tail_len() as u64, tick.min(WINDOW as u64));
    if tick > 0 {
        assert_eq!(snapshot.memory.working_variables["tick"], tick);
        let (_, last) = history.tail().last().unwrap();
        assert!(
            last.content
                .as_ref()
                .unwrap()
                .starts_with(&format!("{tick} "))
        );
    }
}

/// Runs the child until it has acknowledged `acks` saves and `longer`, kills it, and returns the
/// last acknowledged tick.
fn kill_one(url: &str, acks: u64, longer: Duration) -> Option<u64> {
    let mut command = test_program("crash::child");
    let mut child = KillOnDrop::spawn(command.env(CHILD, url).stdout(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = None;
    let mut seen = 0;
    let tick = |line: &str| line.split("ack ").nth(1)?.trim().parse().ok();
    while seen < acks {
        let Some(line) = lines.next() else { break };
        if let Some(tick) = tick(&line.unwrap()) {
            last = Some(tick);
            seen += 1;
        }
    }
    // Not a synchronisation: the kill should hit another moment each time.
    std::thread::sleep(longer);
    child.kill_and_wait();
    // The pipe may hold further acknowledgements. The last line may be cut.
    for line in lines.map_while(Result::ok) {
        last = tick(&line).or(last);
    }
    last
}

/// Kills children that save to `child_url`, another spelling of `url`, and checks what is stored.
///
/// `wait_for_server` returns when nothing works on the save of the killed child any more.
async fn survives(url: &str, child_url: &str, kills: u64, wait_for_server: impl Fn()) {
    let kills: u64 = env::var(KILLS).map_or(kills, |kills| kills.parse().unwrap());
    let mut random = std::process::id() | 1;
    let seed = random;
    let storage = open_storage(url).await.unwrap();
    let mut acknowledged = 0;
    for kill in 0..kills {
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        // One of four is killed while it opens and loads.
        let acks = u64::from(random % 4);
        let longer = Duration::from_micros(u64::from(random / 4 % 3000));
        let last = {
            let url = child_url.to_owned();
            tokio::task::spawn_blocking(move || kill_one(&url, acks, longer))
                .await
                .unwrap()
        };
        wait_for_server();
        acknowledged = last.unwrap_or(acknowledged);
        let stored = storage.load(&agent()).await.unwrap();
        let tick = stored.as_ref().map_or(0, |stored| stored.tick_index);
        let fine = tick == acknowledged || tick == acknowledged + 1;
        assert!(
            fine,
            "kill {kill}, seed {seed}: tick {tick} is stored, {acknowledged} acknowledged"
        );
        if let Some(stored) = stored {
            check(&stored);
        }
        acknowledged = tick;
    }
    let stream = storage.stream(&agent(), 0..u64::MAX).await.unwrap();
    assert_eq!(stream.len() as u64, acknowledged);
    for (seq, message) in stream {
        assert!(
            message
                .content
                .unwrap()
                .starts_with(&format!("{} ", seq + 1))
        );
    }
    assert!(acknowledged > kills);
}

#[cfg(feature = "file")]
#[tokio::test]
async fn file_storage_survives_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("file:{}", folder.path().display());
    survives(&url, &url, 1000, || ()).await;
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_storage_survives_sigkill() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}/agents.db", folder.path().display());
    survives(&url, &url, 1000, || ()).await;
}

/// Fewer kills: each child connects to the server, which takes most of its time.
///
/// The server can still commit the last save of a killed client: it notices the end of the connection
/// only when it reads from it again.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn postgres_storage_survives_sigkill_of_its_client() {
    let server = PostgresServer::start();
    let backends = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'victim'";
    let wait_for_server = || {
        wait_for("the backend of the killed client to end", || {
            (server.sql(backends) == "0").then_some(())
        });
    };
    let child_url = format!("{}?application_name=victim", server.url());
    survives(&server.url(), &child_url, 200, wait_for_server).await;
}
