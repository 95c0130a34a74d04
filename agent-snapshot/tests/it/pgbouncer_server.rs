//! A private PgBouncer in transaction mode in front of a PostgreSQL server, on a Unix socket, killed at
//! its end.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use crate::kill_on_drop::KillOnDrop;
use crate::postgres_server::{PostgresServer, private_folder, program, wait_for};

pub(crate) struct PgBouncer {
    folder: tempfile::TempDir,
    process: KillOnDrop,
}

/// The number of connections to the server. Two transactions in a row never get the same one
/// (`server_round_robin`), so a statement that needs the session of an earlier one fails.
pub(crate) const POOL_SIZE: usize = 3;

/// The port is part of the name of the socket.
const PORT: u16 = 6432;

impl PgBouncer {
    pub(crate) fn start(server: &PostgresServer) -> Self {
        let folder = private_folder();
        let path = folder.path().display();
        let server = server.socket_folder().display();
        // A server that could not be reached is tried again after `server_login_retry` seconds, 15 by
        // default; until then every client is refused.
        let settings = format!(
            "[databases]
             * = host={server}
             [pgbouncer]
             pool_mode = transaction
             default_pool_size = {POOL_SIZE}
             max_client_conn = 200
             server_round_robin = 1
             server_login_retry = 1
             listen_port = {PORT}
             unix_socket_dir = {path}
             auth_type = trust
             auth_file = {path}/users.txt
            "
        );
        let settings: String = settings
            .lines()
            .map(|line| format!("{}\n", line.trim()))
            .collect();
        fs::write(folder.path().join("pgbouncer.ini"), settings).unwrap();
        fs::write(folder.path().join("users.txt"), "\"postgres\" \"\"\n").unwrap();
        let process = spawn(folder.path());
        let bouncer = Self { folder, process };
        bouncer.wait_until_ready();
        bouncer
    }

    pub(crate) fn url(&self) -> String {
        let host = self.folder.path().display().to_string();
        let host = host.replace('/', "%2F");
        format!("postgres://postgres@{host}:{PORT}/postgres")
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill_and_wait();
    }

    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.folder.path());
        self.wait_until_ready();
    }

    fn wait_until_ready(&self) {
        wait_for("PgBouncer", || {
            let mut psql = program("psql");
            psql.args(["--no-psqlrc", "--username=postgres", "--dbname=postgres"]);
            psql.arg("--host").arg(self.folder.path());
            psql.args(["--port", &PORT.to_string(), "--command", "SELECT 1"]);
            psql.output().unwrap().status.success().then_some(())
        });
    }
}

fn spawn(folder: &Path) -> KillOnDrop {
    let mut command = program("pgbouncer");
    command.arg("--quiet").arg(folder.join("pgbouncer.ini"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    KillOnDrop::spawn(&mut command).unwrap()
}
