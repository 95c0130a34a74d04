//! Linux: processes through `/proc`, pidfds and `prlimit`.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirEntryExt;
use std::time::Duration;

use memchr::memmem;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::super::process_mark::ProcessMark;
use super::super::process_table::ProcessInfo;
use super::super::raw_pid;
use super::Marking;
use super::environment::find_variable;
use crate::shared::proc_stat::{self, ProcStat, ProcessKey};

/// How often to read the environment of a process that is in the middle of an exec, and the pause
/// between two reads.
const EXEC_READS: u32 = 500;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

/// The limits that can carry a mark, with their names in `/proc/<pid>/limits`; the second one is
/// for processes whose hard limit of the first one is low.
const CARRIERS: [(Resource, &str); 2] = [
    (Resource::Rttime, "Max realtime timeout"),
    (Resource::Locks, "Max file locks"),
];

pub(crate) const HAS_MARKS: bool = true;
/// Clock ticks since boot.
pub(in super::super) const START_TIMES_ARE_ORDERED: bool = true;

pub(crate) fn boot_id() -> io::Result<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    Ok(id.trim().to_owned())
}

/// The identity of a process that exists, as a zombie or alive.
pub(crate) fn key_of(pid: u32) -> Option<ProcessKey> {
    ProcessKey::of(pid).unwrap_or_else(|error| {
        tracing::error!(pid, %error, "cannot read the start time of a process");
        None
    })
}

/// Whether the process has not ended; a zombie has.
pub(crate) fn is_alive(key: ProcessKey) -> bool {
    let stat = ProcStat::read(key.pid).ok().flatten();
    stat.is_some_and(|stat| stat.is_alive() && stat.start_time == key.start_time)
}

pub(crate) fn start_time_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    let nanoseconds = u64::try_from(now.tv_nsec).unwrap_or(0);
    seconds * hertz + nanoseconds * hertz / 1_000_000_000
}

/// Whether the process still has the id.
fn is_current(key: ProcessKey) -> bool {
    matches!(ProcessKey::of(key.pid), Ok(Some(current)) if current == key)
}

/// The real user of a process; `None` if it has ended. The owner of `/proc/<pid>` is the effective
/// user, which a set-user-id program changes.
pub(in super::super) fn owner_of(pid: u32) -> Option<u32> {
    let mut buffer = Vec::new();
    let status = proc_stat::read_file(pid, "status", &mut buffer).ok()??;
    let mut lines = status.split(|byte| *byte == b'\n');
    let users = lines.find_map(|line| line.strip_prefix(b"Uid:"))?;
    let mut users = std::str::from_utf8(users).ok()?.split_ascii_whitespace();
    users.next()?.parse().ok()
}

/// Sends a signal to the process with this id. A reuse of the id between the check and the signal
/// is not noticed.
pub(in super::super) fn signal_by_id(key: ProcessKey, signal: Signal) -> Result<(), Errno> {
    match raw_pid(key.pid) {
        Some(pid) if is_current(key) => rustix::process::kill_process(pid, signal),
        _ => Err(Errno::SRCH),
    }
}

/// Sets the mark of a process that a scan has found. `None` if the process has ended.
///
/// Race: `prlimit` takes an id, and the id may be reused after the scan. An unrelated process with
/// the mark would be ended as part of the tree. So the start time is compared afterwards, and the
/// limit of an unrelated process is put back.
pub(in super::super) fn mark_if_current(
    key: ProcessKey,
    mark: Option<ProcessMark>,
) -> Option<Marking> {
    let Some((pid, mark)) = raw_pid(key.pid).zip(mark) else {
        return is_current(key).then_some(Marking::Unchanged);
    };
    let (marking, changed) = change_mark(pid, mark);
    if is_current(key) {
        return Some(marking);
    }
    if let Some((resource, previous)) = changed {
        let _ = rustix::process::prlimit(Some(pid), resource, previous);
    }
    None
}

/// A limit that carries a mark.
#[derive(Clone, Copy)]
pub(crate) struct MarkLimit {
    resource: Resource,
    limit: Rlimit,
}

impl MarkLimit {
    /// The first limit that can carry the mark in this process and its children.
    pub(in super::super) fn of(mark: ProcessMark) -> Option<Self> {
        CARRIERS.iter().find_map(|&(resource, _)| {
            let maximum = rustix::process::getrlimit(resource).maximum;
            let limit = Rlimit {
                current: Some(mark.limit()),
                maximum,
            };
            maximum
                .is_none_or(|maximum| maximum >= mark.limit())
                .then_some(Self { resource, limit })
        })
    }

    /// One system call: may be used between `vfork` and `exec`.
    pub(crate) fn set_for_this_process(self) -> Result<(), Errno> {
        rustix::process::setrlimit(self.resource, self.limit)
    }
}

/// Sets the mark. Returns the limit that has changed, with its previous value.
///
/// The soft limit and the hard limit can only be set together. All processes of a tree have the
/// hard limit of this process, except for one that has lowered its own: its limits are put back.
fn change_mark(pid: Pid, mark: ProcessMark) -> (Marking, Option<(Resource, Rlimit)>) {
    let Some(MarkLimit { resource, limit }) = MarkLimit::of(mark) else {
        return (Marking::Refused, None);
    };
    match rustix::process::prlimit(Some(pid), resource, limit) {
        Ok(previous) if previous == limit => (Marking::Unchanged, None),
        Ok(previous) if previous.maximum == limit.maximum => {
            (Marking::New, Some((resource, previous)))
        }
        Ok(previous) => {
            let _ = rustix::process::prlimit(Some(pid), resource, previous);
            (Marking::Refused, None)
        }
        Err(error) => {
            tracing::debug!(?pid, %error, "cannot mark a process");
            (Marking::Refused, None)
        }
    }
}

/// Reads processes with one buffer.
pub(in super::super) struct ProcessReader<'a> {
    variable: &'a str,
    /// Older processes are searched neither for a tag nor for a mark.
    since: u64,
    buffer: Vec<u8>,
}

impl<'a> ProcessReader<'a> {
    pub(in super::super) fn new(variable: &'a str, since: u64) -> Self {
        Self {
            variable,
            since,
            buffer: Vec::new(),
        }
    }

    /// The ids of all processes, with the inodes of their folders.
    pub(in super::super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
        let mut listed = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            if let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            {
                listed.push((pid, entry.ino()));
            }
        }
        Ok(listed)
    }

    /// Reads a process; `None` if it has ended.
    ///
    /// A tag or mark that an earlier scan found is kept: a process belongs to the tree that started
    /// it, also after it has cleared its environment. So both files are read once for most processes.
    /// The tag does not replace the mark: a program can set a tag of its own.
    ///
    /// The mark is all that shows the tree of a process without memory (`has_no_memory`).
    ///
    /// Race: during an exec the old environment is gone and the new one not yet set up; both
    /// `environ` and the addresses in `stat` can then be empty or disagree. A process read at that
    /// moment would look untagged and escape the stop. Its mark does not change; a process without
    /// one is read again until the environment is as long as `stat` says.
    pub(in super::super) fn read(
        &mut self,
        pid: u32,
        known: Option<&ProcessInfo>,
    ) -> io::Result<Option<ProcessInfo>> {
        let mut reads = 0;
        loop {
            let Some(stat) = ProcStat::read_with(pid, &mut self.buffer)? else {
                return Ok(None);
            };
            let key = ProcessKey {
                pid,
                start_time: stat.start_time,
            };
            let known = known.filter(|known| known.key == key);
            let mut tag = known.and_then(|known| known.tag.clone());
            let mut mark = known.and_then(|known| known.mark);
            if stat.is_alive() && stat.start_time >= self.since {
                let found = match tag {
                    Some(_) => Tag::Known(tag),
                    None if stat.has_no_memory() => Tag::Known(None),
                    None => self.read_tag(&stat, pid)?,
                };
                if mark.is_none() {
                    mark = self.read_mark(pid)?;
                }
                tag = match found {
                    Tag::Known(found) => found,
                    Tag::Unknown if mark.is_none() && reads < EXEC_READS => {
                        reads += 1;
                        std::thread::sleep(EXEC_PAUSE);
                        continue;
                    }
                    Tag::Unknown => {
                        tracing::debug!(pid, "cannot read an environment");
                        None
                    }
                };
            }
            return Ok(Some(ProcessInfo {
                key,
                parent: stat.parent,
                group: stat.group,
                session: stat.session,
                alive: stat.is_alive(),
                stopped: stat.state == b'T',
                cpu_time: ticks(stat.cpu_ticks),
                resident_bytes: stat.resident_pages * rustix::param::page_size() as u64,
                tag,
                mark,
            }));
        }
    }

    fn read_tag(&mut self, stat: &ProcStat, pid: u32) -> io::Result<Tag> {
        let Some(environ) = proc_stat::read_file(pid, "environ", &mut self.buffer)? else {
            return Ok(Tag::Known(None));
        };
        let tag = find_variable(environ, self.variable);
        let (start, end) = stat.environment;
        let is_whole = end > 0 && end.checked_sub(start) == Some(environ.len() as u64);
        Ok(if tag.is_some() || is_whole {
            Tag::Known(tag)
        } else {
            Tag::Unknown
        })
    }

    fn read_mark(&mut self, pid: u32) -> io::Result<Option<ProcessMark>> {
        let limits = proc_stat::read_file(pid, "limits", &mut self.buffer)?;
        Ok(limits.and_then(find_mark))
    }
}

fn ticks(count: u64) -> Duration {
    let hertz = rustix::param::clock_ticks_per_second().max(1);
    Duration::from_millis(count.saturating_mul(1000) / hertz)
}

enum Tag {
    Known(Option<String>),
    /// The process is in the middle of an exec.
    Unknown,
}

/// The mark in the text of `/proc/<pid>/limits`.
fn find_mark(limits: &[u8]) -> Option<ProcessMark> {
    CARRIERS.iter().find_map(|(_, name)| {
        let at = memmem::find(limits, name.as_bytes())?;
        let values = std::str::from_utf8(&limits[at + name.len()..]).ok()?;
        let soft = values.split_ascii_whitespace().next()?;
        ProcessMark::from_limit(soft.parse().ok()?)
    })
}

/// A pidfd: refers to one process, also after the process id was reused.
pub(crate) struct ProcessHandle {
    fd: AsyncFd<OwnedFd>,
}

impl ProcessHandle {
    /// `Ok(None)` if there is no such process.
    pub(crate) fn open(pid: u32) -> io::Result<Option<Self>> {
        let Some(pid) = raw_pid(pid) else {
            return Ok(None);
        };
        let fd = match rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK) {
            Ok(fd) => fd,
            Err(Errno::SRCH) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        #[allow(
            deprecated,
            reason = "the successor is unsafe because of types that lie about their descriptor; \
                      `OwnedFd` does not, and older versions of tokio have only this"
        )]
        let fd = AsyncFd::with_interest(fd, Interest::READABLE)?;
        Ok(Some(Self { fd }))
    }

    /// Waits until the process has ended, reaped or not.
    pub(crate) async fn ended(&self) -> io::Result<()> {
        self.fd.readable().await.map(drop)
    }

    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        rustix::process::pidfd_send_signal(self.fd.get_ref(), signal)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_in_the_first_limit_that_carries_one() {
        let mark = ProcessMark::of("a tag");
        let text = |locks: &str, rttime: &str| {
            format!(
                "Limit                     Soft Limit           Hard Limit           Units     \n\
                 Max file locks            {locks:<20} unlimited            locks     \n\
                 Max realtime timeout      {rttime:<20} unlimited            us        \n"
            )
        };
        let number = mark.limit().to_string();
        let find = |locks: &str, rttime: &str| find_mark(text(locks, rttime).as_bytes());
        assert_eq!(find("unlimited", "unlimited"), None);
        assert_eq!(find("unlimited", &number), Some(mark));
        assert_eq!(find(&number, "200000"), Some(mark));
        assert_eq!(find("64", "200000"), None);
        assert_eq!(find_mark(b""), None);
    }

    #[test]
    fn a_mark_is_inherited_without_the_environment_and_is_read_again() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read go; env -i setsid sleep 60 & echo $!; wait"])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mark = ProcessMark::of("inherited");
        let key = key_of(shell.id()).unwrap();
        assert_eq!(mark_if_current(key, Some(mark)), Some(Marking::New));
        assert_eq!(mark_if_current(key, Some(mark)), Some(Marking::Unchanged));
        drop(shell.stdin.take());
        let mut line = String::new();
        let stdout = shell.stdout.take().unwrap();
        io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
        let pid: u32 = line.trim().parse().unwrap();

        let mut reader = ProcessReader::new("LINUX_RS_TEST", 0);
        let process = reader.read(pid, None).unwrap().unwrap();
        let mut earlier = process.key;
        earlier.start_time -= 1;
        let other = ProcessMark::of("other");
        let reused = mark_if_current(earlier, Some(other));
        let after = reader.read(pid, None).unwrap().unwrap();
        signal_by_id(process.key, Signal::KILL).unwrap();
        shell.wait().unwrap();
        assert_eq!((process.tag, process.mark), (None, Some(mark)));
        assert_eq!(reused, None);
        assert_eq!(after.mark, Some(mark), "a reused id must keep its limit");
    }

    #[test]
    fn a_process_in_the_middle_of_an_exec_keeps_its_tag() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("again.sh"), "exec sh ./again.sh\n").unwrap();
        let mut child = std::process::Command::new("sh")
            .arg("./again.sh")
            .current_dir(dir.path())
            .env("LINUX_RS_TEST", "tagged")
            .spawn()
            .unwrap();
        let mut reader = ProcessReader::new("LINUX_RS_TEST", 0);
        for _ in 0..500 {
            let process = reader.read(child.id(), None).unwrap().unwrap();
            assert_eq!(process.tag.as_deref(), Some("tagged"));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
