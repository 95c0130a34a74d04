//! The one way in which these tests start programs: an environment of its own for each test, a time
//! limit for each command, and a check that no process is left.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

/// Environment variable of every process of a sandbox. Child processes inherit it.
const TAG: &str = "EXAMPLES_TEST_SANDBOX";

/// Generous: a command takes a few seconds on an idle machine.
const LIMIT: Duration = Duration::from_secs(100);

/// The signals after which a program must leave nothing.
pub(crate) const SIGNALS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::HUP];

/// `home` is the home and the working folder of the programs, `tmp` their folder for temporary
/// files, and `bin` is first on their `PATH`. Dropping it kills every process that is left.
pub(crate) struct Sandbox {
    folder: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for name in ["home", "tmp", "bin"] {
            std::fs::create_dir(folder.path().join(name)).unwrap();
        }
        Self { folder }
    }

    pub(crate) fn with_tmux() -> Self {
        let tmux = Command::new("tmux").arg("-V").output();
        assert!(
            tmux.is_ok(),
            "this test needs tmux: `./scripts/setup tmux` installs it"
        );
        Self::new()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.folder.path().join("tmp")
    }

    pub(crate) fn bin(&self) -> PathBuf {
        self.folder.path().join("bin")
    }

    /// The command of an example. Agents that are installed on this machine are not on its `PATH`.
    pub(crate) fn example(&self, name: &str) -> Command {
        let path = std::env::var_os("PATH").unwrap();
        let path = std::env::split_paths(&path).filter(|folder| !folder.join("claude").exists());
        let path = std::env::join_paths([self.bin()].into_iter().chain(path));
        let mut command = Command::new(program(name));
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
    pub(crate) fn run(&self, command: &mut Command) -> Output {
        command.stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let (done, output) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(child.wait_with_output()));
        let output = output.recv_timeout(LIMIT);
        output.expect("the program hangs").unwrap()
    }

    /// The standard output of a command that succeeds.
    #[track_caller]
    pub(crate) fn ok(&self, command: &mut Command) -> String {
        let output = self.run(command);
        let (out, err) = (stdout(&output), stderr(&output));
        assert!(output.status.success(), "{command:?}: {out}{err}");
        out
    }

    /// The JSON values, one a line, that a successful command prints.
    #[track_caller]
    pub(crate) fn json_lines(&self, command: &mut Command) -> Vec<Value> {
        let text = self.ok(command);
        let values = text.lines().map(serde_json::from_str);
        values
            .collect::<Result<_, _>>()
            .unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The only JSON value that a successful command prints.
    #[track_caller]
    pub(crate) fn json(&self, command: &mut Command) -> Value {
        let mut values = self.json_lines(command);
        assert_eq!(values.len(), 1, "{values:#?}");
        values.remove(0)
    }

    /// The command fails with this exit code, prints nothing on standard output, and each of the
    /// texts on standard error.
    #[track_caller]
    pub(crate) fn refuses(&self, command: &mut Command, code: i32, expected: &[&str]) {
        let output = self.run(command);
        assert_eq!((output.status.code(), &*stdout(&output)), (Some(code), ""));
        let told = stderr(&output);
        for text in expected {
            assert!(told.contains(text), "`{text}` is missing: {told}");
        }
    }

    /// Sends a signal to a program, which must end with the exit code of that signal.
    #[track_caller]
    pub(crate) fn ends_by(&self, child: &mut Child, signal: Signal) {
        kill_process(Pid::from_child(child), signal).unwrap();
        eventually("the program ends", || child.try_wait().unwrap().is_some());
        let code = child.wait().unwrap().code();
        assert_eq!(code, Some(128 + signal.as_raw()), "{signal:?}");
    }

    /// Starts a program and stops (SIGSTOP) a process that it starts, so that the program waits for
    /// it. `text` is part of the command line of that process.
    #[track_caller]
    pub(crate) fn start_frozen(&self, command: impl Fn() -> Command, text: &str) -> Child {
        for _ in 0..50 {
            let mut program = with_default_signals(&command())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            while program.try_wait().unwrap().is_none() {
                for process in self.processes() {
                    let pid = process.split(':').next().and_then(|pid| pid.parse().ok());
                    let Some(pid) = pid.and_then(Pid::from_raw) else {
                        continue;
                    };
                    if process.contains(text) && freeze(pid) {
                        return program;
                    }
                }
            }
        }
        panic!("the program always ended before its process was stopped");
    }

    /// Puts a shell script on the `PATH`.
    pub(crate) fn install(&self, name: &str, script: &str) {
        let path = self.bin().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
    }

    /// The process ids and command lines of all live processes of the sandbox, tmux servers
    /// included.
    pub(crate) fn processes(&self) -> Vec<String> {
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
        // A deadline, because tmux answers before its process has ended.
        while !self.processes().is_empty() {
            assert!(
                Instant::now() < limit,
                "still running: {:#?}",
                self.processes()
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The home folder holds exactly these, and the temporary folder nothing but the empty folder
    /// for the sockets of tmux-bus.
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

impl Drop for Sandbox {
    fn drop(&mut self) {
        for process in self.processes() {
            let pid = process.split(':').next().unwrap_or_default().to_owned();
            let _ = Command::new("kill").args(["-9", &pid]).output();
        }
    }
}

/// The same command, for a test that sends it a signal. A shell ignores INT in background jobs, nohup
/// ignores HUP, and children inherit that.
pub(crate) fn with_default_signals(command: &Command) -> Command {
    let mut wrapped = Command::new("/usr/bin/env");
    wrapped
        .arg("--default-signal=INT,TERM,HUP")
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

/// Stops a process, or returns false if it ended before.
fn freeze(pid: Pid) -> bool {
    if kill_process(pid, Signal::STOP).is_err() {
        return false;
    }
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        match stat
            .rsplit_once(") ")
            .and_then(|(_, rest)| rest.chars().next())
        {
            Some('T') => return true,
            None | Some('Z' | 'X') => return false,
            Some(_) => std::thread::yield_now(),
        }
    }
}

/// Cargo builds the examples of a package before it runs its tests, in a folder beside them.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let target = test.parent().and_then(|deps| deps.parent()).unwrap();
    let program = target.join("examples").join(name);
    assert!(
        program.exists(),
        "{} is not built: run `cargo build -p examples --examples`, or all tests with `cargo test -p examples`",
        program.display()
    );
    program
}

/// The sorted names of the entries of a folder.
pub(crate) fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[track_caller]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < limit, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
