//! A Redis server for the time of a run.

use std::{
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A server of its own that logs each write and syncs once a second.
pub struct RedisServer {
    folder: tempfile::TempDir,
    child: Child,
}

impl RedisServer {
    pub fn start() -> Self {
        // In the folder for temporary files: the name of a socket must be short.
        let folder = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", "0", "--unixsocket", "redis.sock", "--save", ""])
            .args(["--appendonly", "yes", "--appendfsync", "everysec"])
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed (apt install redis-server)");
        let server = Self { folder, child };
        let deadline = Instant::now() + Duration::from_secs(30);
        let client = redis::Client::open(server.url()).unwrap();
        while client.get_connection().is_err() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    pub fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url())
            .unwrap()
            .get_connection()
            .unwrap()
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
