//! A private redis-server.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// When the server syncs its log to disk.
#[derive(Clone, Copy, Debug)]
pub enum SyncLog {
    /// Before each answer.
    EveryWrite,
    /// Once a second, which is the default of Redis.
    EverySecond,
}

const PROGRAM: &str = "redis-server";

/// A server that listens on a socket in its folder. Dropping it kills the process and waits for its
/// end; the data stays in the folder.
pub struct RedisServer {
    process: Child,
    socket: PathBuf,
}

impl RedisServer {
    /// Starts a server on the data that is in the folder, and waits until it answers.
    pub fn start(folder: &Path, sync: SyncLog) -> Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["--port", "0"]);
        Self::launch(command, folder, sync)
    }

    /// As [`start`](Self::start), and the server also listens on a port of 127.0.0.1, without a
    /// password: a replica needs it.
    pub fn start_on(port: u16, folder: &Path, sync: SyncLog) -> Result<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        Self::launch(command, folder, sync)
    }

    /// As [`start`](Self::start), and the server listens on port 6379 of an address, without a
    /// password: so only in a network of its own. `enter` is a command that executes another one in
    /// that network, such as `nsenter`.
    pub fn start_in(
        mut enter: Command,
        address: &str,
        folder: &Path,
        sync: SyncLog,
    ) -> Result<Self> {
        enter.args([PROGRAM, "--bind", address, "--protected-mode", "no"]);
        Self::launch(enter, folder, sync)
    }

    fn launch(mut command: Command, folder: &Path, sync: SyncLog) -> Result<Self> {
        let sync = match sync {
            SyncLog::EveryWrite => "always",
            SyncLog::EverySecond => "everysec",
        };
        let socket = folder.join("redis.sock");
        let process = command
            .args(["--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", sync])
            // The child process that rewrites the log would survive the kill of its parent.
            .args(["--auto-aof-rewrite-percentage", "0"])
            .args(["--maxmemory-policy", "noeviction"])
            .args(["--unixsocketperm", "700"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("cannot start redis-server ({error}); `./scripts/setup` installs it")
            })?;
        let server = Self { process, socket };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.answers() {
            if Instant::now() > deadline {
                return Err("redis-server gave no answer for 60 s".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// The server listens before its data is loaded, and answers every command with an error until
    /// then: an open connection is not enough.
    fn answers(&self) -> bool {
        let ping = || {
            let mut connection = UnixStream::connect(&self.socket)?;
            connection.set_read_timeout(Some(Duration::from_secs(5)))?;
            connection.write_all(b"PING\r\n")?;
            let mut answer = [0; 5];
            connection.read_exact(&mut answer)?;
            std::io::Result::Ok(answer == *b"+PONG")
        };
        ping().unwrap_or(false)
    }

    /// The id of the process.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The address of the server for `open_storage`.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket.display())
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
