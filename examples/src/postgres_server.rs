//! A private PostgreSQL server.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::Result;

/// A server that listens on a socket in its folder, with the default durability: a commit waits for
/// the disk. Dropping it ends the server at once, as a crash: the next start recovers the log.
///
/// PostgreSQL refuses to run as root. For root the server runs as the user `postgres`, or as
/// `nobody`, and the folder is given to that user.
pub struct PostgresServer {
    process: Child,
    folder: PathBuf,
}

impl PostgresServer {
    /// Starts a server on the database in the folder, or on a new one in an empty folder, and waits until
    /// it answers. The path must be short, because it is that of a socket.
    pub fn start(folder: &Path) -> Result<Self> {
        if let Some((uid, gid)) = other_user() {
            chown(folder, Some(uid), Some(gid))?;
        }
        let data = folder.join("data");
        if !data.exists() {
            let made = program("initdb")?
                .args(["--auth=trust", "--username=postgres", "--encoding=UTF8"])
                .args(["--locale=C", "--pgdata"])
                .arg(&data)
                .output()?;
            if !made.status.success() {
                return Err(String::from_utf8_lossy(&made.stderr).into());
            }
        }
        let process = program("postgres")?
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(folder)
            .args(["-c", "listen_addresses="])
            .args(["-c", "dynamic_shared_memory_type=mmap"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Self {
            process,
            folder: folder.to_owned(),
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.answers()? {
            if Instant::now() > deadline {
                return Err("postgres gave no answer for 60 s".into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn answers(&self) -> Result<bool> {
        let status = program("psql")?
            .args([
                "--username=postgres",
                "--dbname=postgres",
                "--command=SELECT 1",
            ])
            .arg("--host")
            .arg(&self.folder)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        Ok(status.success())
    }

    /// The id of the first process of the server.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The address of the server for `open_storage`.
    pub fn url(&self) -> String {
        let folder = self.folder.display();
        format!("postgres:host={folder} user=postgres dbname=postgres")
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        if let Some(pid) = Pid::from_raw(self.process.id().cast_signed()) {
            let _ = kill_process(pid, Signal::QUIT);
        }
        let _ = self.process.wait();
    }
}

/// On PATH, or in the folder of a version, where distributions install it.
fn program(name: &str) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let versions = std::fs::read_dir("/usr/lib/postgresql");
    let versions = versions.into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    let found = folders.into_iter().map(|folder| folder.join(name));
    let found = found.into_iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        format!("{name} of PostgreSQL is not installed; `./scripts/setup postgres` installs it")
    })?;
    let mut command = Command::new(found);
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
    command.current_dir("/");
    Ok(command)
}

fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    Some(
        ids("postgres")
            .or_else(|| ids("nobody"))
            .unwrap_or((65_534, 65_534)),
    )
}
