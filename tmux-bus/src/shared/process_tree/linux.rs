//! Processes through `/proc` and pidfds.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::time::Duration;

use memchr::memmem;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::process_table::ProcessInfo;
use super::raw_pid;
use crate::shared::proc_stat::{self, ProcStat, ProcessKey};

/// How often to read the environment of a process that is in the middle of an exec, and the pause
/// between two reads.
const EXEC_READS: u32 = 500;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

pub(super) fn key_of(pid: u32) -> Option<ProcessKey> {
    ProcessKey::of(pid).unwrap_or_else(|error| {
        tracing::error!(pid, %error, "cannot read the start time of a process");
        None
    })
}

/// Whether the process still has the id.
pub(super) fn is_current(key: ProcessKey) -> bool {
    matches!(ProcessKey::of(key.pid), Ok(Some(current)) if current == key)
}

/// The user of a process; `None` if it has ended.
pub(super) fn owner_of(pid: u32) -> Option<u32> {
    Some(std::fs::metadata(format!("/proc/{pid}")).ok()?.uid())
}

/// Reads processes with one buffer.
pub(super) struct ProcessReader<'a> {
    variable: &'a str,
    /// Older processes are not searched for a tag.
    since: u64,
    buffer: Vec<u8>,
}

impl<'a> ProcessReader<'a> {
    pub(super) fn new(variable: &'a str, since: u64) -> Self {
        Self {
            variable,
            since,
            buffer: Vec::new(),
        }
    }

    /// The ids of all processes, with the inodes of their folders.
    pub(super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
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
    /// A tag that an earlier scan found is kept: a process belongs to the tree that started it,
    /// also after it has cleared its environment.
    ///
    /// Race: during an exec the old environment is gone and the new one not yet set up; both
    /// `environ` and the addresses in `stat` can then be empty or disagree. A process read at that
    /// moment would look untagged and escape the stop, so it is read again until the environment
    /// is as long as `stat` says.
    pub(super) fn read(
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
            let may_have_tag =
                stat.is_alive() && !stat.is_kernel_thread() && stat.start_time >= self.since;
            if tag.is_none() && may_have_tag {
                match self.read_tag(&stat, pid)? {
                    Tag::Known(found) => tag = found,
                    Tag::Unknown if reads < EXEC_READS => {
                        reads += 1;
                        std::thread::sleep(EXEC_PAUSE);
                        continue;
                    }
                    Tag::Unknown => tracing::debug!(pid, "cannot read an environment"),
                }
            }
            return Ok(Some(ProcessInfo {
                key,
                parent: stat.parent,
                group: stat.group,
                alive: stat.is_alive(),
                cpu_ticks: stat.cpu_ticks,
                resident_pages: stat.resident_pages,
                tag,
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
}

enum Tag {
    Known(Option<String>),
    /// The process is in the middle of an exec.
    Unknown,
}

fn find_variable(environ: &[u8], name: &str) -> Option<String> {
    let name = name.as_bytes();
    let at = memmem::find_iter(environ, name).find(|at| {
        (*at == 0 || environ[at - 1] == 0) && environ.get(at + name.len()) == Some(&b'=')
    })?;
    let value = &environ[at + name.len() + 1..];
    let end = memchr::memchr(0, value).unwrap_or(value.len());
    String::from_utf8(value[..end].to_vec()).ok()
}

/// A descriptor that refers to one process, also after the process id was reused.
pub(crate) struct Pidfd {
    fd: AsyncFd<OwnedFd>,
}

impl Pidfd {
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

    #[track_caller]
    fn check(environ: &str, expected: Option<&str>) {
        let found = find_variable(environ.as_bytes(), "TAG");
        assert_eq!(found.as_deref(), expected, "{environ:?}");
    }

    #[test]
    fn the_variable_is_found_by_its_whole_name() {
        check("A=1\0TAG=x\0B=2\0", Some("x"));
        check("TAG=x", Some("x"));
        check("TAG=", Some(""));
        check("XTAG=x\0", None);
        check("TAGX=x\0", None);
        check("A=TAG=x\0", None);
        check("A=TAG=x\0TAG=y\0", Some("y"));
        check("", None);
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
