//! A place of its own for programs that start others: afterwards it tells what is left of them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program;

/// Every process that is started here, and every one that those start, has this variable.
const TAG: &str = "EXAMPLES_TEST_OUTPOST";

/// For what takes some seconds at most.
const LIMIT: Duration = Duration::from_secs(100);

/// `home` for what the program writes, `tmp` as its folder for temporary files, `bin` first on
/// its `PATH`.
pub(crate) struct Outpost {
    folder: TempDir,
}

impl Outpost {
    pub(crate) fn new() -> Self {
        let tmux = Command::new("tmux").arg("-V").output();
        assert!(
            tmux.is_ok(),
            "these tests need tmux: install it (apt install tmux, brew install tmux)"
        );
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "tmp", "bin"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    /// The command of an example. Agents that are installed on this machine are not on its `PATH`.
    pub(crate) fn example(&self, name: &str) -> Command {
        let mut command = program::example(name);
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::split_paths(&path).filter(|folder| !folder.join("claude").exists());
        let path = std::env::join_paths([self.folder.path().join("bin")].into_iter().chain(path));
        command
            .env("PATH", path.unwrap())
            .env("HOME", self.home())
            .env("TMPDIR", self.tmp())
            .env(TAG, self.folder.path())
            .env_remove("XDG_RUNTIME_DIR")
            .env_remove("XDG_STATE_HOME")
            .env_remove("TMUX")
            .current_dir(self.home());
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(crate) fn run(&self, mut command: Command) -> Output {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let (done, output) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let output = output.recv_timeout(LIMIT);
        output.expect("the program hangs").unwrap()
    }

    /// Puts a shell script on the `PATH`.
    pub(crate) fn install(&self, name: &str, script: &str) {
        let path = self.folder.path().join("bin").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// All processes that were started here, tmux servers included.
    fn processes(&self) -> Vec<String> {
        let tag = format!("{TAG}={}", self.folder.path().display());
        let mut found = Vec::new();
        for entry in Path::new("/proc").read_dir().unwrap().flatten() {
            let environ = std::fs::read(entry.path().join("environ")).unwrap_or_default();
            if environ
                .split(|&byte| byte == 0)
                .any(|var| var == tag.as_bytes())
            {
                let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
                let line = String::from_utf8_lossy(&line).replace('\0', " ");
                found.push(format!("{}: {line}", entry.file_name().to_string_lossy()));
            }
        }
        found
    }

    #[track_caller]
    pub(crate) fn nothing_runs(&self) {
        let limit = Instant::now() + LIMIT;
        // tmux answers before its process is gone.
        while !self.processes().is_empty() {
            assert!(
                Instant::now() < limit,
                "still there: {:#?}",
                self.processes()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nothing but these is in the home folder, and nothing in the temporary one but the empty
    /// folder in which tmux-bus had its sockets.
    #[track_caller]
    pub(crate) fn holds(&self, expected: &[&str]) {
        assert_eq!(names(&self.home()), expected);
        for name in names(&self.tmp()) {
            assert!(name.starts_with("tmux-bus-"), "{name} is left");
            let left = names(&self.tmp().join(name));
            assert_eq!(left, Vec::<String>::new());
        }
    }
}

impl Drop for Outpost {
    fn drop(&mut self) {
        // Only what a failed test has left: a process that is gone meanwhile is none of ours.
        for process in self.processes() {
            let pid = process.split(':').next().unwrap_or_default().to_owned();
            let _ = Command::new("kill").args(["-9", &pid]).output();
        }
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < limit, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
