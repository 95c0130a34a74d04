//! Linux with the limits of macOS, so that the tests can run under them: `scripts/test-portable`.
//!
//! | limit | here |
//! |---|---|
//! | no pidfd | the end of a process is polled, signals go to the id after a check of the start time |
//! | the environment of Apple's programs is hidden | the environment of programs in `/bin`, `/usr/bin` and their like is hidden |
//! | no resource limit of another process can be read or set | no process has a mark |
//! | start times are wall-clock times | they are not used to leave out processes |

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;

use super::super::process_mark::ProcessMark;
use super::super::process_table::ProcessInfo;
use super::super::raw_pid;
use super::{Marking, linux};
use crate::shared::proc_stat::ProcessKey;

pub(in super::super) use linux::owner_of;
pub(crate) use linux::{boot_id, is_alive, key_of, start_time_now};

pub(crate) const HAS_MARKS: bool = false;
pub(in super::super) const START_TIMES_ARE_ORDERED: bool = false;

/// Between two looks at a process that is waited for.
const POLL: Duration = Duration::from_millis(5);

pub(in super::super) fn signal_by_id(key: ProcessKey, signal: Signal) -> Result<(), Errno> {
    match raw_pid(key.pid) {
        Some(pid) if key_of(key.pid) == Some(key) => rustix::process::kill_process(pid, signal),
        _ => Err(Errno::SRCH),
    }
}

pub(in super::super) fn mark_if_current(
    key: ProcessKey,
    _mark: Option<ProcessMark>,
) -> Option<Marking> {
    (key_of(key.pid) == Some(key)).then_some(Marking::Refused)
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

pub(in super::super) struct ProcessReader<'a>(linux::ProcessReader<'a>);

impl<'a> ProcessReader<'a> {
    pub(in super::super) fn new(variable: &'a str, since: u64) -> Self {
        Self(linux::ProcessReader::new(variable, since))
    }

    pub(in super::super) fn list(&mut self) -> io::Result<Vec<(u32, u64)>> {
        self.0.list()
    }

    /// A tag that an earlier scan found is kept, as on macOS.
    pub(in super::super) fn read(
        &mut self,
        pid: u32,
        known: Option<&ProcessInfo>,
    ) -> io::Result<Option<ProcessInfo>> {
        let mut read = self.0.read(pid, known)?;
        if let Some(process) = &mut read {
            process.mark = None;
            let was_known =
                known.is_some_and(|known| known.key == process.key && known.tag.is_some());
            if !was_known && is_system_program(pid) {
                process.tag = None;
            }
        }
        Ok(read)
    }
}

fn is_system_program(pid: u32) -> bool {
    let program = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
    ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/lib"]
        .iter()
        .any(|folder| program.starts_with(folder))
}

/// An id with its start time.
pub(crate) struct ProcessHandle {
    key: ProcessKey,
}

impl ProcessHandle {
    pub(crate) fn open(pid: u32) -> io::Result<Option<Self>> {
        Ok(key_of(pid).map(|key| Self { key }))
    }

    pub(crate) async fn ended(&self) -> io::Result<()> {
        while is_alive(self.key) {
            tokio::time::sleep(POLL).await;
        }
        Ok(())
    }

    pub(crate) fn send(&self, signal: Signal) -> Result<(), Errno> {
        signal_by_id(self.key, signal)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn start(program: &str) -> Child {
        let mut program = Command::new(program);
        program
            .arg("60")
            .env("PORTABLE_RS_TEST", "tagged")
            .spawn()
            .unwrap()
    }

    #[test]
    fn only_programs_of_the_system_hide_their_environment() {
        let dir = tempfile::tempdir().unwrap();
        let copy = dir.path().join("sleep");
        std::fs::copy("/bin/sleep", &copy).unwrap();
        let children = [start("/bin/sleep"), start(copy.to_str().unwrap())];
        let mut reader = ProcessReader::new("PORTABLE_RS_TEST", 0);
        let tags = children.map(|mut child| {
            let process = reader.read(child.id(), None).unwrap().unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            process.tag
        });
        assert_eq!(tags, [None, Some("tagged".to_owned())]);
    }

    #[tokio::test]
    async fn a_handle_waits_for_the_end_and_never_signals_a_reused_id() {
        let mut child = start("/bin/sleep");
        let handle = ProcessHandle::open(child.id()).unwrap().unwrap();
        let earlier = ProcessKey {
            start_time: handle.key.start_time - 1,
            ..handle.key
        };
        let reused = ProcessHandle { key: earlier };
        assert_eq!(reused.send(Signal::KILL), Err(Errno::SRCH));
        handle.send(Signal::KILL).unwrap();
        handle.ended().await.unwrap();
        assert!(!child.wait().unwrap().success());
    }
}
