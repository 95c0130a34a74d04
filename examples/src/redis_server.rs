//! A redis-server of one's own.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Result;

/// A server on a socket in a folder that syncs every write. Dropping it kills it, and it is gone
/// then; its data stays in the folder.
pub struct RedisServer {
    process: Child,
    socket: PathBuf,
}

impl RedisServer {
    /// Starts it, with what an earlier one has left in the folder.
    pub fn start(folder: &Path) -> Result<Self> {
        let socket = folder.join("redis.sock");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "always"])
            // The child that rewrites the log would outlive the kill of its parent.
            .args(["--auto-aof-rewrite-percentage", "0"])
            .args(["--maxmemory-policy", "noeviction"])
            .arg("--unixsocket")
            .arg(&socket)
            .arg("--dir")
            .arg(folder)
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| {
                format!("redis-server cannot be started ({error}); `./scripts/setup` installs it")
            })?;
        let server = Self { process, socket };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.answers() {
            if Instant::now() > deadline {
                return Err("redis-server does not answer after 60 s".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// It listens before it has loaded its data, and refuses everything until then.
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

    /// Its address for `open_storage`.
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
