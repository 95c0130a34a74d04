//! A private redis-server for each test, killed at its end.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::free_port::free_port;
use crate::kill_on_drop::KillOnDrop;

pub(crate) struct RedisServer {
    folder: tempfile::TempDir,
    arguments: Vec<String>,
    process: KillOnDrop,
}

impl RedisServer {
    /// A server on a private socket that syncs its log at every write.
    pub(crate) fn start() -> Self {
        Self::start_with(&[
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
            "--save",
            "",
        ])
    }

    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("redis.sock");
        let mut all = vec!["--port", "0", "--unixsocket", socket.to_str().unwrap()];
        all.extend(arguments);
        let all: Vec<String> = all.into_iter().map(str::to_owned).collect();
        let process = spawn(folder.path(), &all);
        let server = Self {
            folder,
            arguments: all,
            process,
        };
        server.wait_until_ready();
        server
    }

    /// A server that replicas can reach, too.
    pub(crate) fn start_on_loopback() -> Self {
        let port = free_port().to_string();
        Self::start_with(&["--port", &port, "--bind", "127.0.0.1", "--save", ""])
    }

    pub(crate) fn port(&self) -> u16 {
        let mut ports = self.arguments.windows(2).filter(|pair| pair[0] == "--port");
        ports.next_back().unwrap()[1].parse().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub(crate) fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection).unwrap()
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        self.process.kill_and_wait();
    }

    pub(crate) fn restart(&mut self) {
        let _ = std::fs::remove_file(self.socket());
        self.process = spawn(self.folder.path(), &self.arguments);
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        let client = redis::Client::open(self.url()).unwrap();
        wait_for("redis-server to answer", || {
            let mut connection = client.get_connection().ok()?;
            redis::cmd("PING").query::<String>(&mut connection).ok()
        });
    }
}

fn spawn(folder: &Path, arguments: &[String]) -> KillOnDrop {
    let mut command = Command::new("redis-server");
    command
        .current_dir(folder)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    KillOnDrop::spawn(&mut command)
        .expect("redis-server must be installed to run these tests (apt install redis-server)")
}

/// Three masters on loopback that share the slots.
pub(crate) struct RedisCluster {
    nodes: Vec<(u16, RedisServer)>,
}

impl RedisCluster {
    pub(crate) fn start() -> Self {
        let nodes: Vec<(u16, RedisServer)> = (0..3).map(|_| node()).collect();
        for (n, (_, server)) in nodes.iter().enumerate() {
            let first = 16384 * n / 3;
            let last = 16384 * (n + 1) / 3 - 1;
            server.command(&[
                "CLUSTER",
                "ADDSLOTSRANGE",
                &first.to_string(),
                &last.to_string(),
            ]);
            // With different epochs from the start, the nodes need not agree on them first.
            server.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(n + 1).to_string()]);
        }
        for (port, _) in &nodes[1..] {
            nodes[0]
                .1
                .command(&["CLUSTER", "MEET", "127.0.0.1", &port.to_string()]);
        }
        for (_, server) in &nodes {
            wait_for("the cluster to form", || {
                let info = format!("{:?}", server.command(&["CLUSTER", "INFO"]));
                let formed = info.contains("cluster_state:ok") && info.contains("known_nodes:3");
                formed.then_some(())
            });
        }
        Self { nodes }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.nodes[0].0)
    }

    /// The number of keys on each node.
    pub(crate) fn sizes(&self) -> Vec<i64> {
        let size = |server: &RedisServer| match server.command(&["DBSIZE"]) {
            redis::Value::Int(size) => size,
            other => panic!("{other:?}"),
        };
        self.nodes.iter().map(|(_, server)| size(server)).collect()
    }
}

fn node() -> (u16, RedisServer) {
    let port = free_port();
    let port_text = port.to_string();
    let server = RedisServer::start_with(&[
        "--port",
        &port_text,
        "--bind",
        "127.0.0.1",
        "--cluster-enabled",
        "yes",
        "--appendonly",
        "yes",
        "--appendfsync",
        "no",
        "--save",
        "",
    ]);
    (port, server)
}

#[track_caller]
fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
