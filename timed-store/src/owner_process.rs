use std::path::Path;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::shared::proc_stat::ProcStat;

/// A process that entries end with. Its start time distinguishes it from a later process with the
/// same id.
///
/// A system that names neither its boot nor its pid namespace (not Linux and not macOS, or without
/// `/proc`) cannot tell its processes from those of another machine. There a process counts as alive,
/// and its entries end with their timeout.
///
/// ```
/// use timed_store::{OwnerProcess, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// // Claims through this handle are free as soon as this process has ended.
/// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
///     .owner(OwnerProcess::current())
///     .open()?;
/// assert!(store.claim("tsukuyomi".to_owned())?.granted().is_some());
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OwnerProcess {
    pid: u32,
    /// Clock ticks since boot. Linux only; on other systems a reused id looks alive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    start: Option<u64>,
    /// Boot and namespaces in which `pid` and `start` have a meaning; see [`space`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    space: Option<String>,
}

impl OwnerProcess {
    /// The calling process.
    #[must_use]
    pub fn current() -> Self {
        Self::observe(std::process::id())
    }

    /// The running process `pid`.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if there is no such process.
    pub fn with_pid(pid: u32) -> Result<Self, Error> {
        let process = Self::observe(pid);
        if raw_pid(pid).is_none() || process.is_dead_here() {
            return Err(Error::Invalid {
                what: "process id",
                value: pid.to_string(),
                reason: "it is not the id of a running process",
            });
        }
        Ok(process)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    pub(crate) fn observe(pid: u32) -> Self {
        Self {
            pid,
            start: stat(pid).map(|stat| stat.start_time),
            space: space().clone(),
        }
    }

    /// Whether the numbers have a meaning for this process: same machine, boot and namespaces.
    #[cfg(target_os = "linux")]
    pub(crate) fn is_here(&self) -> bool {
        self.is_in(space().as_deref())
    }

    /// Without a space the numbers may be those of any machine.
    fn is_in(&self, space: Option<&str>) -> bool {
        space.is_some() && self.space.as_deref() == space
    }

    /// Whether the process has certainly ended. In doubt it is alive: a wrong 'ended' gives one
    /// value to two holders, a wrong 'alive' ends with the entry's timeout.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended_in(space().as_deref())
    }

    fn has_ended_in(&self, space: Option<&str>) -> bool {
        self.is_in(space) && self.is_dead_here()
    }

    /// Whether this machine has no such process.
    fn is_dead_here(&self) -> bool {
        let Some(pid) = raw_pid(self.pid) else {
            return false;
        };
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return true;
        }
        stat(self.pid).is_some_and(|now| {
            !now.is_alive() || self.start.is_some_and(|start| start != now.start_time)
        })
    }
}

/// For `kill`, zero is the group of the calling process. It is also the id of a parent outside our
/// pid namespace.
fn raw_pid(pid: u32) -> Option<Pid> {
    i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 0)
        .and_then(Pid::from_raw)
}

/// `None` if the operating system does not report it: not Linux, or `/proc` is hidden.
fn stat(pid: u32) -> Option<ProcStat> {
    ProcStat::read(pid).ok().flatten()
}

/// The boot, the pid namespace and the time namespace of this process.
///
/// The file can be shared with a container or survive a reboot: process ids of another pid
/// namespace mean nothing here, and the kernel reports start times in the time namespace of the
/// reader, so that a live process would look like another one. If two spaces differ, only the
/// timeout decides. The initial time namespace is left out, which is the form of version 0.1. macOS
/// has no namespaces of processes.
fn space() -> &'static Option<String> {
    static SPACE: OnceLock<Option<String>> = OnceLock::new();
    SPACE.get_or_init(|| {
        let namespace = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).ok();
        if cfg!(target_os = "macos") {
            return boot_id().map(str::to_owned);
        }
        let mut space = format!("{} {}", boot_id()?, namespace("pid")?.display());
        // A kernel without time namespaces has one time.
        if let Some(time) = namespace("time").filter(|time| *time != Path::new(INITIAL_TIME)) {
            space = format!("{space} {}", time.display());
        }
        Some(space)
    })
}

/// A random id that the kernel makes at each boot; `None` if the operating system has none.
pub(crate) fn boot_id() -> Option<&'static str> {
    static BOOT: OnceLock<Option<String>> = OnceLock::new();
    BOOT.get_or_init(read_boot_id).as_deref()
}

#[cfg(not(target_os = "macos"))]
fn read_boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim_end().to_owned())
}

#[cfg(target_os = "macos")]
fn read_boot_id() -> Option<String> {
    let mut id = [0_u8; 64];
    let mut length = id.len();
    // SAFETY: the kernel writes at most `length` bytes to `id`, and nothing is set.
    let done = unsafe {
        libc::sysctlbyname(
            c"kern.bootsessionuuid".as_ptr(),
            id.as_mut_ptr().cast(),
            &mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    let id = std::ffi::CStr::from_bytes_until_nul(id.get(..length)?).ok()?;
    let id = id.to_str().ok().filter(|id| done == 0 && !id.is_empty())?;
    Some(id.to_owned())
}

/// A name of this pid namespace that no other one has had since boot; `None` for the initial
/// namespace, and if the operating system reports none.
pub(crate) fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    let link = link.to_str().filter(|link| *link != INITIAL_PID)?;
    let number = link.trim_start_matches("pid:[").trim_end_matches(']');
    // The kernel can reuse the number of a namespace that ended before a reboot.
    let boot = boot_id().and_then(|boot| boot.split('-').next());
    Some(format!("{number}-{}", boot.unwrap_or_default()))
}

// The numbers of the initial namespaces are part of the kernel's interface (`linux/nsfs.h`).
const INITIAL_PID: &str = "pid:[4026531836]";
const INITIAL_TIME: &str = "time:[4026531834]";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_calling_process_is_alive() {
        assert!(!OwnerProcess::current().has_ended());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_reused_id_is_another_process() {
        let mut earlier = OwnerProcess::current();
        earlier.start = earlier.start.map(|start| start - 1);
        assert!(earlier.has_ended());
    }

    #[test]
    fn numbers_of_another_machine_mean_nothing() {
        let foreign = OwnerProcess {
            pid: i32::MAX as u32,
            start: Some(1),
            space: Some("elsewhere".to_owned()),
        };
        assert!(!foreign.has_ended());
    }

    /// A system that names no boot: the number may belong to any machine.
    #[test]
    fn a_process_without_a_space_counts_as_alive() {
        let process = OwnerProcess {
            pid: i32::MAX as u32,
            start: None,
            space: None,
        };
        assert!(process.is_dead_here());
        assert!(!process.has_ended_in(None));
        assert!(!process.has_ended_in(Some("here")));
    }

    #[test]
    fn an_ended_process_and_an_unreaped_one_have_ended() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = OwnerProcess::with_pid(child.id()).unwrap();
        assert!(!process.has_ended());
        child.kill().unwrap();
        if cfg!(target_os = "linux") {
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
            while !process.has_ended() {
                assert!(
                    std::time::Instant::now() < deadline,
                    "the zombie still counts as alive"
                );
                std::thread::yield_now();
            }
        }
        child.wait().unwrap();
        assert!(process.has_ended());
        assert!(OwnerProcess::with_pid(process.pid()).is_err());
    }
}
