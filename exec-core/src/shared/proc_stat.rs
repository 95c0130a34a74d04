//! The fields of `/proc/<pid>/stat`, and the identity of a process.
//!
//! This file is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! Only Linux has these files. On other systems every read fails with
//! [`io::ErrorKind::Unsupported`]: the caller knows that nothing is known.

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]

use std::fs::File;
use std::io::{self, Read};

use rustix::io::Errno;

/// More than `stat` ever holds and than most environments do.
const PIECE: usize = 8 << 10;

/// A process id with its start time: the kernel reuses the id, but never the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    /// In clock ticks since boot; 0 on systems without `/proc`.
    pub(crate) start_time: u64,
}

impl ProcessKey {
    /// The key of a process that exists, as a zombie or alive.
    pub(crate) fn of(pid: u32) -> io::Result<Option<Self>> {
        let stat = ProcStat::read(pid)?;
        Ok(stat.map(|stat| Self {
            pid,
            start_time: stat.start_time,
        }))
    }
}

/// The fields of `/proc/<pid>/stat` that we use; see `proc_pid_stat(5)`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcStat {
    pub(crate) state: u8,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    pub(crate) session: u32,
    /// Time on the processor, including the children that it has waited for.
    pub(crate) cpu_ticks: u64,
    pub(crate) threads: u64,
    /// In clock ticks since boot.
    pub(crate) start_time: u64,
    pub(crate) virtual_bytes: u64,
    pub(crate) resident_pages: u64,
    /// The addresses where the environment starts and ends. Zero until an exec has set them, and
    /// for processes of other users.
    pub(crate) environment: (u64, u64),
}

impl ProcStat {
    /// `None` if the process has ended or is hidden from us.
    pub(crate) fn read(pid: u32) -> io::Result<Option<Self>> {
        Self::read_with(pid, &mut Vec::new())
    }

    /// As [`read`](Self::read), for callers that read many processes with one buffer.
    pub(crate) fn read_with(pid: u32, buffer: &mut Vec<u8>) -> io::Result<Option<Self>> {
        Ok(read_file(pid, "stat", buffer)?.and_then(Self::parse))
    }

    /// Whether any thread of the process still runs.
    ///
    /// A main thread that has ended is shown as a zombie while its sibling threads run: the
    /// process is then alive, with open files and children.
    pub(crate) fn is_alive(&self) -> bool {
        match self.state {
            b'Z' => self.threads > 1,
            b'X' | b'x' => false,
            _ => true,
        }
    }

    /// Whether there is no address space, and so no environment: a kernel thread, a process in the
    /// middle of its exit, or one whose main thread has ended while other threads run.
    pub(crate) fn has_no_memory(&self) -> bool {
        self.virtual_bytes == 0
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The second field is the program's name in parentheses, and may hold both spaces and
        // parentheses.
        let name_end = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
        let mut words = rest.split_ascii_whitespace();
        let state = *words.next()?.as_bytes().first()?;
        // Field numbers as in the manual, which counts from 1. Ask for them in ascending order.
        let mut next = 4;
        let mut number = |field: usize| {
            let skipped = field - next;
            next = field + 1;
            words.nth(skipped)?.parse::<u64>().ok()
        };
        Some(Self {
            state,
            parent: number(4)?.try_into().ok()?,
            group: number(5)?.try_into().ok()?,
            session: number(6)?.try_into().ok()?,
            cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
            threads: number(20)?,
            start_time: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
            environment: number(50).zip(number(51)).unwrap_or_default(),
        })
    }
}

/// Reads a file of a process; `None` if the process has ended or is hidden from us.
///
/// `read_to_end` would ask for the size first (always 0), start with small pieces, and read once
/// more to see the end. With hundreds of processes that is most of the cost of a scan.
pub(crate) fn read_file<'a>(
    pid: u32,
    name: &str,
    buffer: &'a mut Vec<u8>,
) -> io::Result<Option<&'a [u8]>> {
    if cfg!(not(target_os = "linux")) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut file = match File::open(format!("/proc/{pid}/{name}")) {
        Ok(file) => file,
        Err(error) if is_ended_or_hidden(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    buffer.resize(buffer.len().max(PIECE), 0);
    let mut len = 0;
    loop {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_ended_or_hidden(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        // The kernel fills the buffer while there is more: a read that leaves room was the last.
        if len < buffer.len() {
            break;
        }
        buffer.resize(2 * len, 0);
    }
    Ok(Some(&buffer[..len]))
}

fn is_ended_or_hidden(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] =
        b"7 (a) R 1 (b c) S 3 5 5 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 2 0 999 4096 12 x";

    #[test]
    fn parentheses_in_the_program_name_do_not_shift_the_fields() {
        let stat = ProcStat::parse(LINE).unwrap();
        assert_eq!((stat.state, stat.parent), (b'S', 3));
        assert_eq!((stat.group, stat.session), (5, 5));
        assert_eq!((stat.cpu_ticks, stat.threads), (100, 2));
        assert_eq!((stat.start_time, stat.virtual_bytes), (999, 4096));
        assert_eq!((stat.resident_pages, stat.environment), (12, (0, 0)));
    }

    #[test]
    fn a_zombie_is_alive_as_long_as_a_sibling_thread_is() {
        let check = |state, threads, expected| {
            let stat = ProcStat {
                state,
                threads,
                ..ProcStat::parse(LINE).unwrap()
            };
            assert_eq!(stat.is_alive(), expected, "{} {threads}", state as char);
        };
        check(b'S', 1, true);
        check(b'D', 1, true);
        check(b'T', 1, true);
        check(b'Z', 1, false);
        check(b'Z', 2, true);
        check(b'X', 1, false);
        check(b'x', 2, false);
    }

    #[test]
    fn a_cut_line_is_no_process() {
        for len in 0..LINE.len() - 5 {
            assert!(ProcStat::parse(&LINE[..len]).is_none(), "{len}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_unreaped_child_has_a_key_but_is_not_alive() {
        let own = ProcStat::read(std::process::id()).unwrap().unwrap();
        assert!(own.is_alive() && !own.has_no_memory() && own.environment.1 > 0);
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let key = ProcessKey::of(child.id()).unwrap().unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while ProcStat::read(key.pid).unwrap().unwrap().is_alive() {
            assert!(std::time::Instant::now() < deadline);
            std::thread::yield_now();
        }
        assert_eq!(ProcessKey::of(key.pid).unwrap(), Some(key));
        child.wait().unwrap();
        assert_ne!(ProcessKey::of(key.pid).unwrap(), Some(key));
    }
}
