//! A process that ends the executions of this host as soon as the host has ended.
//!
//! # Theory
//!
//! A host that gets SIGKILL cannot clean up, and the kernel offers nothing that ends a tree with
//! it: the parent-death signal needs code between fork and exec and reaches only the child, and
//! control groups need a delegation that users rarely have. So a second process waits for the end
//! of the host. It is a POSIX shell with a script in its command line: no file has to be installed,
//! and a large host is not copied.
//!
//! **Protocol.** The host holds the only writing end of a pipe, which is closed on exec. It writes
//! the id and the mark of an execution before the spawn, and again after its end. The kernel closes
//! the pipe when the host ends, for whatever reason. The shell then finds the processes of all live
//! executions by their tag in `/proc/<pid>/environ` or their mark in `/proc/<pid>/limits`, and ends
//! them: TERM, two seconds later KILL, until nothing is found.
//!
//! **Without `/proc`** (`host_watcher_ps.sh`), the shell finds them with `ps`: by the group of the
//! leader, by parents, and by the tag of programs that show their environment. The host writes the
//! process id of a leader after the spawn. What only the host's looks at a tree have found (see
//! `tree_memory.rs`) is not known to the shell.
//!
//! **Invariants.**
//! - The pipe of a watcher that lives is closed only by the end of the host, or by a drop of the
//!   last user of the service: it would end the executions. A watcher that must be replaced gets
//!   SIGKILL first.
//! - An execution is in `live` before its process exists, and a new watcher gets all of `live` as
//!   arguments. So it does not matter which lines the one before has read.
//! - The watcher is in its own process group and ignores INT, TERM and HUP: signals that a terminal
//!   sends to the host do not reach it.
//! - The watcher has neither the tag nor the mark of an execution in which the host itself runs. The
//!   watcher of that outer execution kills all processes that have them, and would kill this one
//!   before it has ended the inner executions.
//!
//! **Races.**
//! - The watcher dies: its monitor notices through a handle of the process, reports it as an error,
//!   and starts another. A launch that notices it first does the same.
//! - Watcher and host die together: the executions are left for `reap_orphans`. If a control group is
//!   killed as a whole, host, watcher and executions die together.
//! - The shell signals by process id. It reads the mark of a process right before the signal; a
//!   reuse of the id within these milliseconds is not noticed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::process::Signal;
#[cfg(target_os = "linux")]
use rustix::process::{Pid, Resource};

use crate::process::TAG_VARIABLE;
use crate::shared::process_tree::{ProcessHandle, ProcessMark};
use crate::{Error, ExecutionId};

const SHELL: &str = "/bin/sh";
#[cfg(all(target_os = "linux", not(portable_processes)))]
const SCRIPT: &str = include_str!("host_watcher.sh");
#[cfg(not(all(target_os = "linux", not(portable_processes))))]
const SCRIPT: &str = include_str!("host_watcher_ps.sh");
/// Whether the script needs the process ids of the leaders.
const NEEDS_LEADERS: bool = cfg!(not(all(target_os = "linux", not(portable_processes))));
/// The name in lists of processes.
const NAME: &str = "exec-core-watcher";
/// A watcher that has lived for less is started again after this time.
const RESTART_PAUSE: Duration = Duration::from_secs(1);

/// Ends all executions when this process ends. Dropping it has the same effect for executions that
/// are still live.
#[derive(Debug, Default)]
pub(crate) struct HostWatcher {
    shared: Arc<SharedWatcher>,
}

#[derive(Debug, Default)]
struct SharedWatcher {
    state: Mutex<WatcherState>,
}

#[derive(Default)]
struct WatcherState {
    /// The live executions by their ids, in the form of the script.
    live: BTreeMap<String, String>,
    process: Option<WatcherProcess>,
    /// How many watchers were started.
    started: u64,
}

struct WatcherProcess {
    /// Non-blocking: a watcher that does not read must not block a launch.
    pipe: File,
    handle: Arc<ProcessHandle>,
}

impl HostWatcher {
    /// To be called before the process of an execution is spawned, in a tokio runtime. Starts the
    /// watcher if there is none.
    pub(crate) fn add(&self, id: &ExecutionId) -> Result<(), Error> {
        let token = token(id, None);
        let mut state = self.shared.lock();
        state.live.insert(id.to_string(), token.clone());
        if state.send('+', &token) {
            return Ok(());
        }
        self.shared.start(&mut state).inspect_err(|_| {
            state.live.remove(id.as_str());
        })
    }

    /// To be called after the spawn.
    pub(crate) fn started(&self, id: &ExecutionId, leader: u32) {
        if !NEEDS_LEADERS {
            return;
        }
        let token = token(id, Some(leader));
        let mut state = self.shared.lock();
        if let Some(known) = state.live.get_mut(id.as_str()) {
            known.clone_from(&token);
            // A watcher that does not get the line is replaced by its monitor.
            state.send('+', &token);
        }
    }

    /// To be called when no process of the execution is left.
    pub(crate) fn remove(&self, id: &ExecutionId) {
        let mut state = self.shared.lock();
        if let Some(token) = state.live.remove(id.as_str()) {
            // A watcher that does not get the line is replaced by its monitor.
            state.send('-', &token);
        }
    }
}

fn token(id: &ExecutionId, leader: Option<u32>) -> String {
    match NEEDS_LEADERS {
        true => format!("{id}:{}", leader.unwrap_or(0)),
        false => format!("{id}:{}", ProcessMark::of(id.as_str()).limit()),
    }
}

impl SharedWatcher {
    fn lock(&self) -> MutexGuard<'_, WatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a watcher in place of one that has ended.
    fn start(self: &Arc<Self>, state: &mut WatcherState) -> Result<(), Error> {
        state.process = None;
        let failed = Error::io("start the watcher", Path::new(SHELL));
        let (child, process) = spawn(&state.live).map_err(failed)?;
        state.started += 1;
        tracing::debug!(pid = child.id(), "watcher started");
        let monitor = Monitor {
            shared: Arc::downgrade(self),
            handle: Arc::clone(&process.handle),
            number: state.started,
            since: Instant::now(),
            child,
        };
        state.process = Some(process);
        tokio::spawn(monitor.run());
        Ok(())
    }
}

impl WatcherState {
    /// `false` if there is no watcher, or if it does not read. It is then killed.
    fn send(&mut self, change: char, token: &str) -> bool {
        let Some(process) = &mut self.process else {
            return false;
        };
        // Less than a page: written as a whole or not at all.
        let line = format!("{change} {token}\n");
        match process.pipe.write_all(line.as_bytes()) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(%error, "the watcher does not read");
                let _ = process.handle.send(Signal::KILL);
                false
            }
        }
    }
}

fn spawn(live: &BTreeMap<String, String>) -> io::Result<(Child, WatcherProcess)> {
    let mut child = Command::new(SHELL)
        .args(["-c", SCRIPT, NAME, TAG_VARIABLE])
        .args(live.values())
        .env_remove(TAG_VARIABLE)
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    adopt(&mut child)
        .inspect_err(|_| {
            let _ = child.kill();
            let _ = child.wait();
        })
        .map(|process| (child, process))
}

fn adopt(child: &mut Child) -> io::Result<WatcherProcess> {
    let handle = ProcessHandle::open(child.id())?.ok_or(io::ErrorKind::NotFound)?;
    let pipe: OwnedFd = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?.into();
    rustix::io::ioctl_fionbio(&pipe, true)?;
    clear_mark(child);
    Ok(WatcherProcess {
        pipe: pipe.into(),
        handle: Arc::new(handle),
    })
}

#[cfg(not(target_os = "linux"))]
fn clear_mark(_child: &Child) {}

/// Removes the mark that a host inside another execution passes on to its children. The limits can
/// carry a mark; see `process_mark.rs`.
#[cfg(target_os = "linux")]
fn clear_mark(child: &Child) {
    for resource in [Resource::Rttime, Resource::Locks] {
        let mut limit = rustix::process::getrlimit(resource);
        if limit.current.and_then(ProcessMark::from_limit).is_none() {
            continue;
        }
        limit.current = limit.maximum;
        let pid = Pid::from_raw(child.id().cast_signed());
        if let Err(error) = rustix::process::prlimit(pid, resource, limit) {
            tracing::debug!(%error, "the watcher keeps the mark of the host");
        }
    }
}

/// Waits for the end of a watcher and starts the next one.
struct Monitor {
    shared: Weak<SharedWatcher>,
    child: Child,
    handle: Arc<ProcessHandle>,
    number: u64,
    since: Instant,
}

impl Monitor {
    async fn run(mut self) {
        if let Err(error) = self.handle.ended().await {
            tracing::error!(%error, "cannot wait for the watcher");
            return;
        }
        let status = self.child.wait();
        if self.shared.strong_count() == 0 {
            return;
        }
        let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
        tracing::error!(how, "the watcher has ended, starting another");
        let mut pause = RESTART_PAUSE.saturating_sub(self.since.elapsed());
        loop {
            tokio::time::sleep(pause).await;
            let Some(shared) = self.shared.upgrade() else {
                return;
            };
            let mut state = shared.lock();
            // A launch may have started one since.
            if state.started != self.number {
                return;
            }
            match shared.start(&mut state) {
                Ok(()) => return,
                Err(error) => tracing::error!(%error, "the host has no watcher, trying again"),
            }
            pause = (2 * pause).clamp(RESTART_PAUSE, 60 * RESTART_PAUSE);
        }
    }
}

impl std::fmt::Debug for WatcherState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatcherState")
            .field("live", &self.live.len())
            .field("started", &self.started)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::process_tree::{is_alive, key_of};

    fn tagged_sleep(id: &ExecutionId) -> Child {
        Command::new("sleep")
            .arg("60")
            .env(TAG_VARIABLE, id.as_str())
            .spawn()
            .unwrap()
    }

    fn path_of(tool: &str) -> String {
        let found = Command::new(SHELL)
            .args(["-c", "command -v \"$0\"", tool])
            .output();
        String::from_utf8(found.unwrap().stdout).unwrap()
    }

    #[test]
    fn the_script_uses_the_search_path_of_the_host_and_fails_at_once_without_its_tools() {
        // Without the standard folders, as on a system that has no tools there.
        let script = SCRIPT.replace(":}/usr/bin:/bin", "}");
        assert_ne!(script, SCRIPT);
        let dir = tempfile::tempdir().unwrap();
        let id = ExecutionId::mint();
        let mut sleep = tagged_sleep(&id);
        let run_script = || {
            let mut command = Command::new(SHELL);
            let token = token(&id, Some(sleep.id()));
            command.args(["-c", &script, NAME, TAG_VARIABLE, &token]);
            let command = command.env("PATH", dir.path()).stdin(Stdio::null());
            command.status().unwrap().code()
        };
        let without = run_script();
        let tools: &[&str] = match NEEDS_LEADERS {
            true => &["awk", "ps", "sleep", "uname"],
            false => &["grep", "sleep"],
        };
        for tool in tools {
            let link = dir.path().join(tool);
            std::os::unix::fs::symlink(path_of(tool).trim_end(), link).unwrap();
        }
        let with = run_script();
        let ended = sleep.try_wait().unwrap().is_some();
        let _ = sleep.kill();
        sleep.wait().unwrap();
        assert_eq!((without, with, ended), (Some(127), Some(0), true));
    }

    #[test]
    fn the_script_ends_the_live_executions_and_no_others() {
        let ids: Vec<_> = (0..4).map(|_| ExecutionId::mint()).collect();
        let mut sleeps: Vec<_> = ids.iter().map(tagged_sleep).collect();
        let token = |number: usize| token(&ids[number], Some(sleeps[number].id()));
        let live = [0, 1].map(|number| (ids[number].to_string(), token(number)));
        let live = BTreeMap::from(live);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let _guard = runtime.enter();
        let (mut child, mut process) = spawn(&live).unwrap();
        for line in [
            format!("- {}\n", token(1)),
            format!("+ {}\n", token(2)),
            format!("+ {}\n", token(2)),
            format!("- {}\n", token(3)),
            format!("+ {}\n", token(0)),
        ] {
            process.pipe.write_all(line.as_bytes()).unwrap();
        }
        drop(process);
        assert!(child.wait().unwrap().success());
        let alive = |sleep: &Child| is_alive(key_of(sleep.id()).unwrap());
        let left: Vec<_> = sleeps.iter().map(alive).collect();
        for sleep in &mut sleeps {
            let _ = sleep.kill();
            sleep.wait().unwrap();
        }
        assert_eq!(left, [false, true, false, true]);
    }
}
