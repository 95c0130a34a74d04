//! Private redis-servers, and a proxy that stands for a bad network.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use redis::{Client, Connection, FromRedisValue};
use tempfile::TempDir;

use crate::support::wait_until;

/// A server on a port of its own. Dropping it kills the process.
pub(crate) struct RedisServer {
    process: Child,
    port: u16,
    folder: PathBuf,
    options: Vec<String>,
    _temporary: Option<TempDir>,
}

impl RedisServer {
    /// A server that keeps every acknowledged change over a kill.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--appendonly", "yes", "--appendfsync", "always"])
    }

    pub(crate) fn start_with(options: &[&str]) -> Self {
        let temporary = tempfile::tempdir().unwrap();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let folder = temporary.path().to_owned();
        let port = free_port();
        let mut server = Self {
            process: spawn(&folder, port, &options),
            port,
            folder,
            options,
            _temporary: Some(temporary),
        };
        server.wait_until_ready();
        server
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn connect(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// Runs a command, given as words.
    pub(crate) fn command<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::Cmd::new();
        command.arg(words);
        command.query(&mut self.connect()).unwrap()
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Starts the killed server again, on its data.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(&self.folder, self.port, &self.options);
        self.wait_until_ready();
    }

    fn wait_until_ready(&mut self) {
        let (port, process) = (self.port, &mut self.process);
        wait_until("redis-server answers", || {
            if let Some(status) = process.try_wait().unwrap() {
                panic!("redis-server ended with {status}: see above");
            }
            let client = Client::open(format!("redis://127.0.0.1:{port}/0")).unwrap();
            let Ok(mut connection) = client.get_connection() else {
                return false;
            };
            let mut command = redis::Cmd::new();
            command.arg("PING").query::<String>(&mut connection).is_ok()
        });
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn spawn(folder: &Path, port: u16, options: &[String]) -> Child {
    Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
        ])
        .args(["--auto-aof-rewrite-percentage", "0"])
        .args(["--repl-diskless-sync-delay", "0"])
        .args(["--logfile", "server.log", "--dir"])
        .arg(folder)
        .args(options)
        .stdout(Stdio::null())
        .spawn()
        .expect("cannot start redis-server; `./scripts/setup` installs it")
}

/// A port of 127.0.0.1 that no other test of this process gets and no program uses.
///
/// The ports are below those that a kernel gives to outgoing connections (32768 and more on
/// Linux): such a connection could take the port before the server listens on it.
pub(crate) fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let start = u16::try_from(std::process::id() % 10_000 * 97 % 10_000).unwrap();
    std::iter::repeat_with(|| 10_000 + (start + TAKEN.fetch_add(1, Ordering::Relaxed)) % 10_000)
        .take(10_000)
        .find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .expect("a free port between 10000 and 20000")
}

/// Forwards connections to a server, until it is told to misbehave. Dropping it closes all.
pub(crate) struct Proxy {
    port: u16,
    network: Arc<Network>,
}

#[derive(Default)]
struct Network {
    is_ended: AtomicBool,
    /// Nothing passes, in either direction, and nothing is lost: it waits.
    is_stalled: AtomicBool,
    /// Answers of the server wait.
    holds_answers: AtomicBool,
    /// Requests to the server wait.
    holds_requests: AtomicBool,
    /// Answers of the server are thrown away, and the connection is closed.
    loses_answers: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    pub(crate) fn start(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let network = Arc::new(Network::default());
        std::thread::spawn({
            let network = Arc::clone(&network);
            move || {
                for client in listener.incoming() {
                    if network.is_ended.load(Ordering::SeqCst) {
                        return;
                    }
                    let Ok(client) = client else { continue };
                    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
                        continue;
                    };
                    network.forward(client, server);
                }
            }
        });
        Self { port, network }
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    pub(crate) fn stall(&self, is_stalled: bool) {
        self.network.is_stalled.store(is_stalled, Ordering::SeqCst);
    }

    pub(crate) fn stall_answers(&self, is_stalled: bool) {
        self.network
            .holds_answers
            .store(is_stalled, Ordering::SeqCst);
    }

    pub(crate) fn stall_requests(&self, is_stalled: bool) {
        self.network
            .holds_requests
            .store(is_stalled, Ordering::SeqCst);
    }

    /// Loses the next answer, and the connection with it.
    pub(crate) fn lose_next_answer(&self) {
        self.network.loses_answers.store(true, Ordering::SeqCst);
    }

    pub(crate) fn has_lost_it(&self) -> bool {
        !self.network.loses_answers.load(Ordering::SeqCst)
    }

    pub(crate) fn reset_all(&self) {
        for connection in self.network.connections.lock().unwrap().drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.network.is_ended.store(true, Ordering::SeqCst);
        self.stall(false);
        self.reset_all();
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Network {
    fn forward(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        for stream in [&client, &server] {
            let _ = stream.set_nodelay(true);
            let mut connections = self.connections.lock().unwrap();
            connections.push(stream.try_clone().unwrap());
        }
        let pairs = [
            (
                client.try_clone().unwrap(),
                server.try_clone().unwrap(),
                false,
            ),
            (server, client, true),
        ];
        for (from, to, is_answer) in pairs {
            let network = Arc::clone(self);
            std::thread::spawn(move || network.copy(from, to, is_answer));
        }
    }

    fn copy(&self, mut from: TcpStream, mut to: TcpStream, is_answer: bool) {
        let mut buffer = [0; 16 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let is_held = || {
                self.is_stalled.load(Ordering::SeqCst)
                    || is_answer && self.holds_answers.load(Ordering::SeqCst)
                    || !is_answer && self.holds_requests.load(Ordering::SeqCst)
            };
            while is_held() && !self.is_ended.load(Ordering::SeqCst) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            if is_answer && self.loses_answers.swap(false, Ordering::SeqCst) {
                break;
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }
}
