//! A private PostgreSQL server for each test, on a Unix socket, killed at its end.
//!
//! PostgreSQL refuses to run as root. If the tests do, the server runs as the user `postgres`, or
//! as `nobody`.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::kill_on_drop::KillOnDrop;

pub(crate) struct PostgresServer {
    folder: tempfile::TempDir,
    settings: Vec<String>,
    process: KillOnDrop,
    _new: Option<Arc<tempfile::TempDir>>,
}

impl PostgresServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with settings such as `fsync=off`.
    pub(crate) fn start_with(settings: &[&str]) -> Self {
        Self::start_new(private_folder(), settings)
    }

    /// A server on a port of 127.0.0.1 that accepts TLS, and its certificate for `localhost`.
    #[cfg(feature = "postgres-tls")]
    pub(crate) fn start_with_tls(port: u16) -> (Self, String) {
        let folder = private_folder();
        let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
        let mut openssl = program("openssl");
        openssl.args(["req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]);
        openssl.args([
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-subj",
            "/CN=localhost",
        ]);
        openssl.args(["-addext", "subjectAltName=DNS:localhost"]);
        openssl.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        openssl
            .arg("-out")
            .arg(&certificate)
            .arg("-keyout")
            .arg(&key);
        run(&mut openssl);
        let pem = std::fs::read_to_string(&certificate).unwrap();
        let settings = [
            "ssl=on".to_owned(),
            format!("ssl_cert_file={}", certificate.display()),
            format!("ssl_key_file={}", key.display()),
            "listen_addresses=127.0.0.1".to_owned(),
            format!("port={port}"),
        ];
        let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
        (Self::start_new(folder, &settings), pem)
    }

    fn start_new(folder: tempfile::TempDir, settings: &[&str]) -> Self {
        let new = new_database();
        let mut copy = program("cp");
        copy.arg("-R").arg(new.path().join("data"));
        run(copy.arg(folder.path().join("data")));
        let mut server = Self::start_in(folder, settings);
        server._new = Some(new);
        server
    }

    /// A standby of this server.
    pub(crate) fn standby(&self) -> Self {
        let folder = private_folder();
        let mut copy = program("pg_basebackup");
        copy.args(["--write-recovery-conf", "--checkpoint=fast", "--no-sync"]);
        copy.args(["--username=postgres", "--host"])
            .arg(self.folder.path());
        copy.arg("--pgdata").arg(folder.path().join("data"));
        run(&mut copy);
        Self::start_in(folder, &[])
    }

    fn start_in(folder: tempfile::TempDir, settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|&text| text.to_owned()).collect();
        let process = spawn(folder.path(), &settings);
        let server = Self {
            folder,
            settings,
            process,
            _new: None,
        };
        server.wait_until_ready();
        server
    }

    pub(crate) fn socket_folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn url(&self) -> String {
        let host = self.folder.path().display().to_string();
        format!("postgres://postgres@{}/postgres", host.replace('/', "%2F"))
    }

    /// Runs SQL with psql and returns its output, a line for each row.
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.try_sql(sql)
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub(crate) fn try_sql(&self, sql: &str) -> Result<String, String> {
        let mut psql = program("psql");
        psql.args(["--no-psqlrc", "--quiet", "--tuples-only", "--no-align"]);
        psql.args([
            "--set=ON_ERROR_STOP=1",
            "--username=postgres",
            "--dbname=postgres",
        ]);
        psql.arg("--host").arg(self.folder.path());
        let mut ports = self.settings.iter();
        if let Some(port) = ports.find_map(|setting| setting.strip_prefix("port=")) {
            psql.args(["--port", port]);
        }
        let output = psql.args(["--command", sql]).output().unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// SIGKILL of the server and, as its memory is gone, of all its processes.
    ///
    /// A process of a killed server can still commit. So the server is stopped first, which starts no
    /// new process then, and the call waits until all are gone.
    pub(crate) fn kill(&mut self) {
        let server = Pid::from_child(&self.process);
        kill_process(server, Signal::STOP).unwrap();
        let workers = children_of(server);
        self.process.kill_and_wait();
        for worker in &workers {
            let _ = kill_process(*worker, Signal::KILL);
        }
        wait_for("the processes of the killed server to end", || {
            workers
                .iter()
                .all(|worker| !is_alive(*worker))
                .then_some(())
        });
    }

    pub(crate) fn restart(&mut self) {
        // The processes of the killed server end by themselves; until then the start is refused.
        wait_for("the server to start again", || {
            self.process = spawn(self.folder.path(), &self.settings);
            loop {
                if self.is_ready() {
                    return Some(());
                }
                if self.process.try_wait().unwrap().is_some() {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
    }

    fn is_ready(&self) -> bool {
        self.try_sql("SELECT 1").is_ok()
    }

    fn wait_until_ready(&self) {
        wait_for("the PostgreSQL server", || self.is_ready().then_some(()));
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        // Immediate shutdown: unlike SIGKILL it frees the shared memory.
        let pid = Pid::from_raw(self.process.id().cast_signed());
        if let Some(pid) = pid
            && matches!(self.process.try_wait(), Ok(None))
        {
            let _ = kill_process(pid, Signal::QUIT);
            let _ = self.process.wait();
        }
    }
}

/// A folder with a new database to copy: `initdb` takes five times as long as a copy. It is removed with
/// the last server that holds it, as a static value is never dropped.
fn new_database() -> Arc<tempfile::TempDir> {
    static NEW: Mutex<Weak<tempfile::TempDir>> = Mutex::new(Weak::new());
    let mut shared = NEW.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(new) = shared.upgrade() {
        return new;
    }
    let new = Arc::new(private_folder());
    let mut initdb = program("initdb");
    initdb.args(["--auth=trust", "--username=postgres", "--encoding=UTF8"]);
    initdb.args(["--locale=C", "--no-sync", "--pgdata"]);
    run(initdb.arg(new.path().join("data")));
    *shared = Arc::downgrade(&new);
    new
}

fn spawn(folder: &Path, settings: &[String]) -> KillOnDrop {
    let mut command = program("postgres");
    command.arg("-D").arg(folder.join("data"));
    command.arg("-k").arg(folder);
    for setting in [
        "listen_addresses=",
        "dynamic_shared_memory_type=mmap",
        "shared_buffers=32MB",
        "max_connections=60",
    ] {
        command.args(["-c", setting]);
    }
    for setting in settings {
        command.args(["-c", setting]);
    }
    command.stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDrop::spawn(&mut command).unwrap()
}

fn children_of(parent: Pid) -> Vec<Pid> {
    let parent = parent.as_raw_nonzero().to_string();
    let pids = all_processes().into_iter();
    pids.filter(|pid| stat_field(*pid, 1).is_some_and(|field| field == parent))
        .filter_map(Pid::from_raw)
        .collect()
}

/// Whether the process exists and is not a zombie.
fn is_alive(pid: Pid) -> bool {
    stat_field(pid.as_raw_nonzero().get(), 0).is_some_and(|state| state != "Z")
}

#[cfg(target_os = "linux")]
fn all_processes() -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.collect()
}

#[cfg(not(target_os = "linux"))]
fn all_processes() -> Vec<i32> {
    let listed = Command::new("ps").args(["-A", "-o", "pid="]).output();
    let listed = String::from_utf8(listed.unwrap().stdout).unwrap();
    let pids = listed.lines().filter_map(|line| line.trim().parse().ok());
    pids.collect()
}

/// A field of a process: 0 is the state, 1 the parent.
#[cfg(not(target_os = "linux"))]
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let shown = Command::new("ps")
        .args(["-o", "state=,ppid=", "-p", &pid.to_string()])
        .output();
    let shown = String::from_utf8(shown.ok()?.stdout).ok()?;
    let field = shown.split_whitespace().nth(index)?;
    // The state is followed by flags.
    let len = if index == 0 { 1 } else { field.len() };
    field.get(..len).map(str::to_owned)
}

/// A field of `/proc/<pid>/stat` behind the name: 0 is the state, 1 the parent.
#[cfg(target_os = "linux")]
fn stat_field(pid: i32, index: usize) -> Option<String> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(index).map(str::to_owned)
}

/// A program of the server or the pooler, run as a user that is not root.
pub(crate) fn program(name: &str) -> Command {
    let mut command = Command::new(find(name));
    if let Some((uid, gid)) = other_user() {
        command.uid(uid).gid(gid);
    }
    // The folder of the tests may be closed to that user.
    command.current_dir("/");
    command
}

/// Where distributions install each version, or on PATH. In this order: `/usr/bin/psql` of Debian is a
/// Perl script that looks for the program and takes ten times as long.
fn find(name: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).collect::<Vec<_>>();
    let versions = |folder: &str, bin: &str| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let mut found: Vec<PathBuf> = entries.map(|entry| entry.path().join(bin)).collect();
        found.sort();
        found.reverse();
        found
    };
    let debian = versions("/usr/lib/postgresql", "bin");
    let mut fedora = versions("/usr", "bin");
    fedora.retain(|path| path.to_string_lossy().starts_with("/usr/pgsql-"));
    // Debian installs pgbouncer there; the PATH of a user may lack it.
    let system = vec![PathBuf::from("/usr/sbin")];
    [debian, fedora, on_path, system]
        .concat()
        .into_iter()
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
        .unwrap_or_else(|| {
            panic!("{name} must be installed to run these tests (scripts/setup, or apt install postgresql pgbouncer)")
        })
}

fn other_user() -> Option<(u32, u32)> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let ids = |name: &str| {
        let line = users
            .lines()
            .find(|line| line.starts_with(&format!("{name}:")))?;
        let fields: Vec<&str> = line.split(':').collect();
        Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?))
    };
    Some(
        ids("postgres")
            .or_else(|| ids("nobody"))
            .unwrap_or((65_534, 65_534)),
    )
}

/// A folder of the user of the server. The path of a socket must be short.
pub(crate) fn private_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir_in("/tmp").unwrap();
    if let Some((uid, gid)) = other_user() {
        chown(folder.path(), Some(uid), Some(gid)).unwrap();
    }
    folder
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
}

#[track_caller]
pub(crate) fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited a minute for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
