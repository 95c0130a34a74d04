//! Helper processes: this test binary, started again with a part to play.

use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::support::LONG;
use crate::{files, kills, locks, namespaces, referee, waiting};

const PART: &str = "TIMED_STORE_PART";

/// Not a test: with the variable set, this process plays the named part. Its exit code is the
/// result.
#[test]
fn play() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let folder = std::env::var("TIMED_STORE_FOLDER").unwrap();
    let folder = Path::new(&folder);
    match part.split_once(' ').unwrap_or((&part, "")) {
        ("idle", _) => std::thread::sleep(LONG * 10),
        ("hold", _) => locks::hold(folder),
        ("wait", _) => locks::wait(folder),
        ("store", _) => kills::store_for_ever(folder),
        ("claim", session) => referee::claim_for_ever(folder, session),
        ("claim-detected", name) => namespaces::claim_detected(folder, name),
        ("claim-in-time", _) => namespaces::claim_in_another_time(folder),
        ("read-only", _) => namespaces::read_only(folder),
        ("wait-for", arguments) => waiting::wait_for(folder, arguments),
        #[cfg(feature = "redis")]
        ("release-at-end", url) => crate::redis::release_at_the_end_of_main(url),
        #[cfg(feature = "redis-tls")]
        ("tls", url) => crate::redis::use_tls(url),
        ("unprivileged", name) => files::unprivileged(folder, name),
        ("foreign-file-in-namespace", _) => files::foreign_file_in_namespace(folder),
        (other, _) => panic!("no part `{other}`"),
    }
    std::process::exit(0);
}

/// The arguments of unshare(1) for new namespaces; also a user namespace if this is not root.
pub(crate) fn unshare<'a>(namespaces: &[&'a str]) -> Vec<&'a str> {
    let mut args = Vec::new();
    if !rustix::process::geteuid().is_root() {
        args.extend(["--user", "--map-root-user"]);
    }
    args.extend(namespaces);
    let allowed = Command::new("unshare").args(&args).arg("true").status();
    assert!(
        allowed.is_ok_and(|status| status.success()),
        "`unshare {}` is refused: run the test as root, or allow user namespaces \
         (`sysctl user.max_user_namespaces`, `sysctl kernel.unprivileged_userns_clone`, \
         `sysctl kernel.apparmor_restrict_unprivileged_userns`)",
        args.join(" ")
    );
    args
}

/// A process that is killed when this is dropped.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(part: &str, folder: &Path) -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()), part, folder)
    }

    /// The same through another program, which runs the command line of its arguments.
    pub(crate) fn start_under(program: &str, args: &[&str], part: &str, folder: &Path) -> Self {
        let mut command = Command::new(program);
        command.args(args).arg(std::env::current_exe().unwrap());
        Self::start_by(command, part, folder)
    }

    pub(crate) fn start_by(mut command: Command, part: &str, folder: &Path) -> Self {
        command.args(["--exact", "worker::play", "--nocapture", "--test-threads=1"]);
        command.env(PART, part).env("TIMED_STORE_FOLDER", folder);
        Self(command.stdout(Stdio::null()).spawn().unwrap())
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.0.id() as i32).unwrap(), signal).unwrap();
    }

    /// Stops the process. A signal takes effect later, and a thread could still take a lock until
    /// then: the kernel reports the stop when all threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_raw(self.0.id() as i32);
        let (_, status) = waitpid(pid, WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "the process ended instead: {status:?}");
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.0.wait().unwrap()
    }

    /// Panics if the process has ended: only a failed check ends it.
    #[track_caller]
    pub(crate) fn must_run(&mut self) {
        if let Some(status) = self.0.try_wait().unwrap() {
            panic!("a worker ended with {status}: see above");
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
