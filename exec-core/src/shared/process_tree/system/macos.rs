//! macOS: processes through `libproc`, `sysctl` and `kqueue`. Type-checked, never run.
//!
//! `libc` has the calls of libproc and sysctl; rustix has `kqueue`, `kill` and `getsid`.
//!
//! Weaker than Linux:
//! - The environment of programs of Apple (`/bin/sh`, `/bin/sleep`) is hidden, also from root; it is
//!   cut off the answer of `KERN_PROCARGS2` without an error.
//! - No limit of another process can be read: there are no marks.
//! - There is no pidfd: the start time is compared right before a signal. A reuse of the id within
//!   these microseconds is not noticed.
//! - The start time is a wall-clock time. It tells two processes with the same id apart; it does not
//!   tell which of two processes is older, because the clock can be set back.
//! - Of processes of other users, only the parent, the group and the state are shown.

use std::ffi::{CStr, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use rustix::event::kqueue::{Event, EventFilter, EventFlags, ProcessEvents};
use rustix::io::{Errno, FdFlags};
use rustix::process::Signal;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::process_mark::ProcessMark;
use super::super::process_table::ProcessInfo;
use super::super::raw_pid;
use super::Marking;
use super::environment::{after_arguments, find_variable};
use crate::shared::proc_stat::ProcessKey;

pub(crate) const HAS_MARKS: bool = false;
pub(in super::super) const START_TIMES_ARE_ORDERED: bool = false;

/// The argument of `proc_pidinfo` that includes zombies.
const WITH_ZOMBIES: u64 = 1;
/// Room for processes that start between the count and the list.
const MORE_PROCESSES: usize = 64;
/// Between two looks at a process that has reported its end and is not a zombie yet.
const EXIT_POLL: Duration = Duration::from_millis(1);

pub(crate) fn boot_id() -> io::Result<String> {
    let mut id = [0_u8; 64];
    let len = sysctl_by_name(c"kern.bootsessionuuid", &mut id)?;
    let id = CStr::from_bytes_until_nul(&id[..len]).map_err(io::Error::other)?;
    Ok(id.to_string_lossy().into_owned())
}

/// The identity of a process that exists, as a zombie or alive.
pub(crate) fn key_of(pid: u32) -> Option<ProcessKey> {
    match BasicInfo::read(pid) {
        Ok(info) => info.map(|info| info.key),
        Err(error) => {
            tracing::error!(pid, %error, "cannot read the start time of a process");
            None
        }
    }
}

/// Whether the process has not ended; a zombie has.
pub(crate) fn is_alive(key: ProcessKey) -> bool {
    matches!(BasicInfo::read(key.pid), Ok(Some(info)) if info.key == key && info.is_alive())
}

/// Whether the process still has the id.
fn is_current(key: ProcessKey) -> bool {
    matches!(BasicInfo::read(key.pid), Ok(Some(info)) if info.key == key)
}

/// In microseconds since 1970, as the kernel notes it at a fork.
pub(crate) fn start_time_now() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let micros = now.unwrap_or_default().as_micros();
    u64::try_from(micros).unwrap_or(u64::MAX)
}

/// The real user of a process; `None` if it has ended.
pub(in super::super) fn owner_of(pid: u32) -> Option<u32> {
    let info: libc::proc_bsdshortinfo =
        pid_info(pid, libc::PROC_PIDT_SHORTBSDINFO, WITH_ZOMBIES).ok()?;
    Some(info.pbsi_ruid)
}

/// Sends a signal to the process with this id. A reuse of the id between the check and the signal
/// is not noticed.
pub(in super::super) fn signal_by_id(key: ProcessKey, signal: Signal) -> Result<(), Errno> {
    match raw_pid(key.pid) {
        Some(pid) if is_current(key) => rustix::process::kill_process(pid, signal),
        _ => Err(Errno::SRCH),
    }
}

pub(in super::super) fn mark_if_current(
    key: ProcessKey,
    _mark: Option<ProcessMark>,
) -> Option<Marking> {
    is_current(key).then_some(Marking::Refused)
}

/// No limit can carry a mark.
#[derive(Clone, Copy)]
pub(crate) enum MarkLimit {}

impl MarkLimit {
    pub(in super::super) fn of(_mark: ProcessMark) -> Option<Self> {
        None
    }

    pub(crate) fn set_for_this_process(self) -> Result<(), Errno> {
        match self {}
    }
}

/// What the kernel shows of a process.
struct BasicInfo {
    /// The start time is 0 for a process of another user.
    key: ProcessKey,
    parent: u32,
    group: u32,
    status: u32,
}

impl BasicInfo {
    /// `None` if there is no such process. An ended process is shown until it is reaped.
    ///
    /// While a process exits, it is neither among the living nor among the zombies for a moment, and
    /// looks as if it had been reaped.
    fn read(pid: u32) -> io::Result<Option<Self>> {
        match pid_info::<libc::proc_bsdinfo>(pid, libc::PROC_PIDTBSDINFO, WITH_ZOMBIES) {
            Ok(info) => Ok(Some(Self::of(pid, &info))),
            Err(Errno::SRCH) => Ok(None),
            Err(Errno::PERM | Errno::ACCESS) => Self::of_another_user(pid),
            Err(error) => Err(error.into()),
        }
    }

    fn of(pid: u32, info: &libc::proc_bsdinfo) -> Self {
        let seconds = info.pbi_start_tvsec.saturating_mul(1_000_000);
        Self {
            key: ProcessKey {
                pid,
                start_time: seconds.saturating_add(info.pbi_start_tvusec),
            },
            parent: info.pbi_ppid,
            group: info.pbi_pgid,
            status: info.pbi_status,
        }
    }

    fn of_another_user(pid: u32) -> io::Result<Option<Self>> {
        let flavor = libc::PROC_PIDT_SHORTBSDINFO;
        match pid_info::<libc::proc_bsdshortinfo>(pid, flavor, WITH_ZOMBIES) {
            Ok(info) => Ok(Some(Self {
                key: ProcessKey { pid, start_time: 0 },
                parent: info.pbsi_ppid,
                group: info.pbsi_pgid,
                status: info.pbsi_status,
            })),
            Err(Errno::SRCH | Errno::PERM | Errno::ACCESS) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn is_alive(&self) -> bool {
        self.status != libc::SZOMB
    }
}

/// One record of `proc_pidinfo`. `T` must be the struct of integers that belongs to the flavor.
fn pid_info<T>(pid: u32, flavor: c_int, arg: u64) -> Result<T, Errno> {
    let pid = c_int::try_from(pid).map_err(|_| Errno::SRCH)?;
    let size = c_int::try_from(size_of::<T>()).map_err(|_| Errno::OVERFLOW)?;
    let mut info = MaybeUninit::<T>::zeroed();
    // SAFETY: the kernel writes at most `size` bytes.
    let written = unsafe { libc::proc_pidinfo(pid, flavor, arg, info.as_mut_ptr().cast(), size) };
    if written == size {
        // SAFETY: all bytes were written, and all zeros would be a value, too.
        return Ok(unsafe { info.assume_init() });
    }
    let error = io::Error::last_os_error();
    Err(match Errno::from_io_error(&error) {
        Some(error) if written <= 0 => error,
        _ => Errno::IO,
    })
}

/// Reads processes with one buffer.
pub(in super::super) struct ProcessReader<'a> {
    variable: &'a str,
    /// As long as the longest answer can be: a shorter one would get its end, without the arguments.
    buffer: Vec<u8>,
}

impl<'a> ProcessReader<'a> {
    pub(in super::super) fn new(variable: &'a str, _since: u64) -> Self {
        Self {
            variable,
            buffer: Vec::new(),
        }
    }

    /// The ids of all processes. There is no inode.
    pub(in super::super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
        // SAFETY: without a buffer, the call only counts.
        let count = unsafe { libc::proc_listallpids(ptr::null_mut(), 0) };
        let mut room = usize::try_from(count).unwrap_or(0) + MORE_PROCESSES;
        loop {
            let mut pids: Vec<c_int> = vec![0; room];
            let bytes = c_int::try_from(size_of_val(&*pids)).map_err(io::Error::other)?;
            // SAFETY: the kernel writes at most this many bytes.
            let listed = unsafe { libc::proc_listallpids(pids.as_mut_ptr().cast(), bytes) };
            let Ok(listed @ 1..) = usize::try_from(listed) else {
                return Err(io::Error::last_os_error());
            };
            if listed < room {
                pids.truncate(listed);
                let pids = pids.into_iter().filter_map(|pid| u32::try_from(pid).ok());
                return Ok(pids.filter(|pid| *pid > 0).map(|pid| (pid, 0)).collect());
            }
            room *= 2;
        }
    }

    /// Reads a process; `None` if it has ended. A tag that an earlier scan found is kept: the program
    /// may have been replaced by one of Apple since.
    pub(in super::super) fn read(
        &mut self,
        pid: u32,
        known: Option<&ProcessInfo>,
    ) -> io::Result<Option<ProcessInfo>> {
        let all: Result<libc::proc_taskallinfo, _> = pid_info(pid, libc::PROC_PIDTASKALLINFO, 0);
        let (info, cpu_time, resident_bytes) = match all {
            Ok(all) => {
                let used = all
                    .ptinfo
                    .pti_total_user
                    .saturating_add(all.ptinfo.pti_total_system);
                let info = BasicInfo::of(pid, &all.pbsd);
                (info, from_mach_time(used), all.ptinfo.pti_resident_size)
            }
            Err(_) => match BasicInfo::read(pid)? {
                Some(info) => (info, Duration::ZERO, 0),
                None => return Ok(None),
            },
        };
        let known = known.filter(|known| known.key == info.key);
        let mut tag = known.and_then(|known| known.tag.clone());
        if tag.is_none() && info.is_alive() && info.key.start_time > 0 {
            tag = self.read_tag(pid);
        }
        let session = raw_pid(pid).and_then(|pid| rustix::process::getsid(Some(pid)).ok());
        Ok(Some(ProcessInfo {
            key: info.key,
            parent: info.parent,
            group: info.group,
            session: session.map_or(0, |session| session.as_raw_pid().cast_unsigned()),
            alive: info.is_alive(),
            stopped: info.status == libc::SSTOP,
            cpu_time,
            resident_bytes,
            tag,
            mark: None,
        }))
    }

    /// `None` also if the environment is hidden, or if the process has ended.
    fn read_tag(&mut self, pid: u32) -> Option<String> {
        self.buffer.resize(longest_arguments(), 0);
        let mut name = [
            libc::CTL_KERN,
            libc::KERN_PROCARGS2,
            c_int::try_from(pid).ok()?,
        ];
        let mut len = self.buffer.len();
        // SAFETY: the kernel writes at most `len` bytes, and the number of them to `len`.
        let failed = unsafe {
            let (name, count) = (name.as_mut_ptr(), 3);
            let buffer = self.buffer.as_mut_ptr().cast();
            libc::sysctl(name, count, buffer, &mut len, ptr::null_mut(), 0)
        };
        if failed != 0 {
            return None;
        }
        find_variable(after_arguments(self.buffer.get(..len)?)?, self.variable)
    }
}

/// The length of the longest arguments and environment that a process can have.
fn longest_arguments() -> usize {
    static LENGTH: OnceLock<usize> = OnceLock::new();
    *LENGTH.get_or_init(|| {
        let mut longest = [0; size_of::<c_int>()];
        let read = sysctl_by_name(c"kern.argmax", &mut longest);
        let longest = read.ok().map(|_| c_int::from_ne_bytes(longest));
        longest
            .and_then(|longest| usize::try_from(longest).ok())
            .unwrap_or(1 << 20)
    })
}

/// The length of the value.
fn sysctl_by_name(name: &CStr, value: &mut [u8]) -> io::Result<usize> {
    let mut len = value.len();
    let buffer: *mut c_void = value.as_mut_ptr().cast();
    // SAFETY: the kernel writes at most `len` bytes, and the number of them to `len`.
    let failed = unsafe { libc::sysctlbyname(name.as_ptr(), buffer, &mut len, ptr::null_mut(), 0) };
    match failed {
        0 => Ok(len.min(value.len())),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The unit depends on the processor: a nanosecond on Intel, 41.7 of them on Apple's own.
fn from_mach_time(time: u64) -> Duration {
    static UNIT: OnceLock<(u32, u32)> = OnceLock::new();
    let (numerator, denominator) = *UNIT.get_or_init(|| {
        #[allow(
            deprecated,
            reason = "the successor is another crate, for one function that does not change"
        )]
        // SAFETY: the call writes the struct of two integers.
        let unit = unsafe {
            let mut unit = libc::mach_timebase_info { numer: 0, denom: 0 };
            libc::mach_timebase_info(&mut unit);
            (unit.numer, unit.denom)
        };
        unit
    });
    let nanoseconds = u128::from(time) * u128::from(numerator) / u128::from(denominator.max(1));
    Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// A kernel queue that reports the end of one process. It refers to the process, also after the id
/// was reused; signals go to the id, after a check of the start time.
pub(crate) struct ProcessHandle {
    key: ProcessKey,
    /// `None` if the process had ended before.
    queue: Option<AsyncFd<OwnedFd>>,
}

impl ProcessHandle {
    /// `Ok(None)` if there is no such process.
    ///
    /// Race: the id can be reused between the two steps. The queue would then report the end of
    /// another process; so the start time is read again at the end.
    pub(crate) fn open(pid: u32) -> io::Result<Option<Self>> {
        let Some((key, pid)) = key_of(pid).zip(raw_pid(pid)) else {
            return Ok(None);
        };
        let queue = rustix::event::kqueue::kqueue()?;
        rustix::io::fcntl_setfd(&queue, FdFlags::CLOEXEC)?;
        let filter = EventFilter::Proc {
            pid,
            flags: ProcessEvents::EXIT,
        };
        let event = Event::new(filter, EventFlags::ADD, ptr::null_mut());
        let mut none: [Event; 0] = [];
        // SAFETY: the event refers to no descriptor.
        let added = unsafe { rustix::event::kqueue::kevent(&queue, &[event], &mut none[..], None) };
        match added {
            Ok(_) if !is_current(key) => return Ok(None),
            Ok(_) => {}
            // A zombie has no events, and neither has a process that is about to become one.
            Err(Errno::SRCH) => return Ok(Some(Self { key, queue: None })),
            Err(error) => return Err(error.into()),
        }
        #[allow(
            deprecated,
            reason = "the successor is unsafe because of types that lie about their descriptor; \
                      `OwnedFd` does not, and older versions of tokio have only this"
        )]
        let queue = AsyncFd::with_interest(queue, Interest::READABLE)?;
        let queue = Some(queue);
        Ok(Some(Self { key, queue }))
    }

    /// Waits until the process has ended, reaped or not.
    ///
    /// The event comes before the process is a zombie.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        if let Some(queue) = &self.queue {
            queue.readable().await?.retain_ready();
        }
        while is_alive(self.key) {
            tokio::time::sleep(EXIT_POLL).await;
        }
        Ok(())
    }

    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        signal_by_id(self.key, signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_listed_and_read() {
        let own = std::process::id();
        let mut reader = ProcessReader::new("PATH", 0);
        assert!(reader.list().unwrap().contains(&(own, 0)));
        let process = reader.read(own, None).unwrap().unwrap();
        assert!(process.alive && process.resident_bytes > 0 && process.key.start_time > 0);
        assert_eq!(process.tag, std::env::var("PATH").ok());
        assert_eq!(key_of(own), Some(process.key));
        assert!(is_alive(process.key) && process.key.start_time <= start_time_now());
        assert!(!boot_id().unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_end_of_a_process_is_seen_before_it_is_reaped() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let handle = ProcessHandle::open(child.id()).unwrap().unwrap();
        handle.send(Signal::KILL).unwrap();
        handle.ended().await.unwrap();
        let zombie = ProcessHandle::open(child.id()).unwrap().unwrap();
        zombie.ended().await.unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!is_current(handle.key));
    }
}
