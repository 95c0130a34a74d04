//! One process, as its files in `/proc` tell it.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use memchr::memmem;
use rustix::io::Errno;
use uuid::Uuid;

/// Marks every process of an execution; children inherit it.
pub(crate) const TAG_VARIABLE: &str = "NORMALIZED_EXECUTION_ID";

/// How often, and how far apart, to look at a process that is in the middle of an exec.
const EXEC_LOOKS: u32 = 500;
const EXEC_PAUSE: Duration = Duration::from_micros(200);

/// More than `stat` ever holds and than most environments do.
pub(crate) const PIECE: usize = 8 << 10;

/// A process id with the time it was given out: the pair is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessKey {
    pub(crate) pid: u32,
    /// In clock ticks since the boot.
    pub(crate) start_time: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) key: ProcessKey,
    /// Of its folder in `/proc`. It lasts as long as the process, unless the kernel is short of
    /// memory: the same number with the same inode is the same process, without another read.
    pub(crate) inode: u64,
    pub(crate) parent: u32,
    pub(crate) group: u32,
    /// Neither a zombie nor gone.
    pub(crate) alive: bool,
    cpu_ticks: u64,
    resident_pages: u64,
    pub(crate) tag: Option<Uuid>,
}

impl Process {
    /// Time on the processor, with that of the children it has waited for.
    pub(crate) fn cpu_time(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_nanos(self.cpu_ticks.saturating_mul(1_000_000_000 / per_second))
    }

    pub(crate) fn resident_bytes(&self) -> u64 {
        self.resident_pages * rustix::param::page_size() as u64
    }
}

/// The start time of a process that exists, dead or alive.
pub(crate) fn process_key(pid: u32) -> io::Result<Option<ProcessKey>> {
    let stat = read_file(pid, "stat", &mut vec![0; PIECE])?.and_then(Stat::parse);
    Ok(stat.map(|stat| ProcessKey {
        pid,
        start_time: stat.start_time,
    }))
}

/// Whose process it is; `None` if it has ended.
pub(crate) fn owner_of(pid: u32) -> Option<u32> {
    let process = std::fs::metadata(format!("/proc/{pid}")).ok()?;
    Some(process.uid())
}

/// The start time that a process would get now, or a little less.
pub(crate) fn start_time_now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let per_second = rustix::param::clock_ticks_per_second();
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    seconds.saturating_sub(1).saturating_mul(per_second)
}

/// Differs from boot to boot: start times of another boot mean nothing.
pub(crate) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Reads a process; `None` if it has ended.
///
/// One that started before `since` is not searched for a tag, nor is one whose tag is known: what
/// was started by an execution stays its own, also when it has cleared its environment since.
pub(crate) fn read_process(
    pid: u32,
    inode: u64,
    since: u64,
    known: Option<&Process>,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Process>> {
    let mut looks = 0;
    loop {
        let Some(stat) = read_file(pid, "stat", buffer)?.and_then(Stat::parse) else {
            return Ok(None);
        };
        let key = ProcessKey {
            pid,
            start_time: stat.start_time,
        };
        let mut tag = known
            .filter(|known| known.key == key)
            .and_then(|known| known.tag);
        if tag.is_none() && stat.is_alive() && !stat.is_kernel_thread() && stat.start_time >= since
        {
            match read_tag(pid, &stat, buffer)? {
                Tag::Is(found) => tag = found,
                // It is in the middle of an exec: its old environment is gone or its new one not
                // yet there. To take that for 'not ours' would let it get away.
                Tag::Unreadable if looks < EXEC_LOOKS => {
                    looks += 1;
                    std::thread::sleep(EXEC_PAUSE);
                    continue;
                }
                Tag::Unreadable => tracing::debug!(pid, "cannot read an environment"),
            }
        }
        return Ok(Some(Process {
            key,
            inode,
            parent: stat.parent,
            group: stat.group,
            alive: stat.is_alive(),
            cpu_ticks: stat.cpu_ticks,
            resident_pages: stat.resident_pages,
            tag,
        }));
    }
}

enum Tag {
    Is(Option<Uuid>),
    Unreadable,
}

fn read_tag(pid: u32, stat: &Stat, buffer: &mut Vec<u8>) -> io::Result<Tag> {
    let Some(environ) = read_file(pid, "environ", buffer)? else {
        return Ok(Tag::Is(None));
    };
    let tag = find_tag(environ);
    let is_whole = stat.environment.is_some_and(|(start, end)| {
        end > 0 && end.checked_sub(start) == Some(environ.len() as u64)
    });
    Ok(if tag.is_some() || is_whole {
        Tag::Is(tag)
    } else {
        Tag::Unreadable
    })
}

fn find_tag(environ: &[u8]) -> Option<Uuid> {
    let name = TAG_VARIABLE.as_bytes();
    let at = memmem::find_iter(environ, name).find(|at| {
        (*at == 0 || environ[at - 1] == 0) && environ.get(at + name.len()) == Some(&b'=')
    })?;
    let value = &environ[at + name.len() + 1..];
    let end = memchr::memchr(0, value).unwrap_or(value.len());
    Uuid::try_parse_ascii(&value[..end]).ok()
}

/// Reads a file of a process; `None` if the process has ended or is not ours to look at.
///
/// `read_to_end` would ask for its size first, which is always 0, begin with small pieces, and
/// read once more to see the end: with a thousand processes that is most of the cost of a stop.
fn read_file<'a>(pid: u32, name: &str, buffer: &'a mut Vec<u8>) -> io::Result<Option<&'a [u8]>> {
    let mut file = match File::open(format!("/proc/{pid}/{name}")) {
        Ok(file) => file,
        Err(error) if is_out_of_sight(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut len = 0;
    loop {
        match file.read(&mut buffer[len..]) {
            Ok(0) => break,
            Ok(read) => len += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_out_of_sight(&error) => return Ok(None),
            Err(error) => return Err(error),
        }
        // These files fill the buffer as long as they have anything: what fits was all.
        if len < buffer.len() {
            break;
        }
        buffer.resize(2 * len, 0);
    }
    Ok(Some(&buffer[..len]))
}

fn is_out_of_sight(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::SRCH | Errno::ACCESS | Errno::PERM)
    )
}

/// The fields of `/proc/<pid>/stat` that we need; see `proc_pid_stat(5)`.
struct Stat {
    state: u8,
    parent: u32,
    group: u32,
    cpu_ticks: u64,
    threads: u64,
    start_time: u64,
    virtual_bytes: u64,
    resident_pages: u64,
    /// Where it begins and ends; zeros as long as an exec has not set it.
    environment: Option<(u64, u64)>,
}

impl Stat {
    fn is_kernel_thread(&self) -> bool {
        self.virtual_bytes == 0
    }

    /// Neither a zombie nor gone.
    fn is_alive(&self) -> bool {
        match self.state {
            // The first thread has ended, but not the others.
            b'Z' => self.threads > 1,
            b'X' | b'x' => false,
            _ => true,
        }
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The name in parentheses may itself hold anything, parentheses and spaces included.
        let rest = &stat[memchr::memrchr(b')', stat)? + 1..];
        let fields: Vec<&str> = std::str::from_utf8(rest)
            .ok()?
            .split_ascii_whitespace()
            .collect();
        // The manual counts from 1, and the first two fields are behind us.
        let field = |number: usize| fields.get(number - 3).copied();
        let number = |n: usize| field(n)?.parse::<u64>().ok();
        Some(Self {
            state: *field(3)?.as_bytes().first()?,
            parent: field(4)?.parse().ok()?,
            group: field(5)?.parse().ok()?,
            cpu_ticks: number(14)? + number(15)? + number(16)? + number(17)?,
            threads: number(20)?,
            start_time: number(22)?,
            virtual_bytes: number(23)?,
            resident_pages: number(24)?,
            environment: number(50).zip(number(51)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_process_cannot_mislead() {
        let line =
            b"7 (a) R 1 (b c) S 3 5 5 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 2 0 999 4096 12 x";
        let stat = Stat::parse(line).unwrap();
        assert_eq!(
            (
                stat.state,
                stat.parent,
                stat.group,
                stat.cpu_ticks,
                stat.threads
            ),
            (b'S', 3, 5, 100, 2)
        );
        assert_eq!((stat.start_time, stat.resident_pages), (999, 12));
    }

    #[test]
    fn the_tag_is_found_by_its_whole_name() {
        let id = Uuid::new_v4();
        assert_eq!(
            find_tag(format!("A=1\0{TAG_VARIABLE}={id}\0B=2\0").as_bytes()),
            Some(id)
        );
        assert_eq!(
            find_tag(format!("{TAG_VARIABLE}={id}").as_bytes()),
            Some(id)
        );
        assert_eq!(find_tag(format!("X{TAG_VARIABLE}={id}\0").as_bytes()), None);
        assert_eq!(find_tag(format!("{TAG_VARIABLE}X={id}\0").as_bytes()), None);
        assert_eq!(
            find_tag(format!("A={TAG_VARIABLE}={id}\0").as_bytes()),
            None
        );
        assert_eq!(find_tag(format!("{TAG_VARIABLE}=7\0").as_bytes()), None);
    }

    #[test]
    fn a_process_in_the_middle_of_an_exec_keeps_its_tag() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("again.sh"), "exec sh ./again.sh\n").unwrap();
        let tag = Uuid::new_v4();
        let mut child = std::process::Command::new("sh")
            .arg("./again.sh")
            .current_dir(dir.path())
            .env(TAG_VARIABLE, tag.to_string())
            .spawn()
            .unwrap();
        let mut buffer = vec![0; PIECE];
        for _ in 0..500 {
            let process = read_process(child.id(), 0, 0, None, &mut buffer)
                .unwrap()
                .unwrap();
            assert_eq!(process.tag, Some(tag));
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_child_of_now_started_after_now() {
        let now = start_time_now();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let key = process_key(child.id()).unwrap().unwrap();
        child.wait().unwrap();
        assert!(
            now <= key.start_time && key.start_time < now + 100_000,
            "{now} {key:?}"
        );
    }
}
