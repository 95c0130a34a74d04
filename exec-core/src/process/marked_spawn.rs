//! A spawn whose child has its mark from its first instruction on.
//!
//! # Theory
//!
//! std starts a program with `posix_spawn`, which cannot set a resource limit; with a `pre_exec`
//! closure it forks instead, which takes a hundred times longer in a host of one gigabyte. A mark
//! that is set from outside after the spawn comes too late on a busy machine: a shell that starts
//! a tool first thing has done so before the host is scheduled again (seen in four of four runs
//! with both cores busy). Such a tool is not marked. The limits of the host cannot be changed for
//! the time of the spawn either: children that other threads start meanwhile would inherit the
//! mark, and would be ended with the execution.
//!
//! So this module does what `posix_spawn` does inside glibc and musl, with one more step: `clone`
//! with `CLONE_VM | CLONE_VFORK`. The child shares the memory of the host, and the calling thread is
//! suspended until the child has called `execve` or has ended; other threads continue.
//!
//! **Rules for the child** until `execve`: no allocation, no lock, no panic, and no access to data
//! of other threads. It only makes system calls, with pointers that the parent has prepared. It
//! has a stack of its own. It shares the thread-local `errno` of the suspended thread.
//!
//! **Signals.** A handler of the host must not run in the child, on shared memory. All signals are
//! blocked in the thread before the `clone`. The child sets caught signals to their default action,
//! and then its mask to empty, as std does. Ignored signals stay ignored, except for `SIGPIPE`,
//! which std ignores in the host.
//!
//! **Errors.** The child stores the error number of the step that failed, and exits. The parent
//! reads it after the `clone` has returned, and reaps the child.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::process::Command;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::pipe::PipeFlags;

use super::child::reap_failed;
use super::lasting_thread;
use super::launch_plan::LaunchPlan;
use crate::sandbox::{AgentStart, CONTROL_FD};
use crate::shared::process_tree::{MarkLimit, ProcessMark};

/// The child needs a few hundred bytes, more in a build without optimisation.
const STACK_BYTES: usize = 64 << 10;
const LAST_SIGNAL: c_int = 64;

/// A started program, with our ends of its pipes.
pub(crate) struct SpawnedProcess {
    pub(crate) pid: u32,
    pub(crate) stdin: Option<OwnedFd>,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// Our end of the socket of a sandbox.
    pub(crate) control: Option<OwnedFd>,
}

/// Starts the program as the leader of a new process group, with the mark that belongs to `tag`.
pub(crate) fn spawn_marked(plan: &LaunchPlan, tag: &str) -> io::Result<SpawnedProcess> {
    let (child_stdin, stdin) = if plan.has_input {
        let (reader, writer) = pipe()?;
        (reader, Some(writer))
    } else {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let null = rustix::fs::open(c"/dev/null", flags, Mode::empty())?;
        (above_stdio(null)?, None)
    };
    let (stdout, child_stdout) = pipe()?;
    let (stderr, child_stderr) = pipe()?;

    let (control, child_control) = match &plan.sandbox {
        Some(_) => {
            let (ours, theirs) = AgentStart::socket()?;
            (Some(ours), Some(above(theirs, CONTROL_FD)?))
        }
        None => (None, None),
    };

    let command = &plan.command;
    let folder = match command.get_current_dir() {
        Some(folder) => Some(c_string(folder.as_os_str().to_owned().into_vec())?),
        None => None,
    };
    let parts = StartParts {
        arguments: arguments(command)?,
        environment: environment(plan)?,
        folder,
        stdio: [child_stdin, child_stdout, child_stderr],
        control: child_control,
        limit: ProcessMark::of(tag).available_limit(),
    };
    let dies_with_parent = plan
        .sandbox
        .as_ref()
        .is_some_and(|plan| plan.dies_with_parent);
    let pid = match dies_with_parent {
        true => lasting_thread::run(move || parts.start())?,
        false => parts.start()?,
    };
    Ok(SpawnedProcess {
        pid,
        stdin,
        stdout,
        stderr,
        control,
    })
}

/// What the child needs, owned.
struct StartParts {
    arguments: Vec<CString>,
    environment: Vec<CString>,
    folder: Option<CString>,
    stdio: [OwnedFd; 3],
    control: Option<OwnedFd>,
    limit: Option<MarkLimit>,
}

impl StartParts {
    fn start(self) -> io::Result<u32> {
        let (argv, envp) = (pointers(&self.arguments), pointers(&self.environment));
        let start = ChildStart {
            argv: &argv,
            envp: &envp,
            folder: self.folder.as_deref(),
            stdio: self.stdio.each_ref(),
            control: self.control.as_ref(),
            limit: self.limit,
            error: AtomicI32::new(0),
        };
        start.clone_child()
    }
}

/// All that the child needs; prepared by the parent.
struct ChildStart<'a> {
    /// The program, its arguments, and a null pointer.
    argv: &'a [*const c_char],
    envp: &'a [*const c_char],
    folder: Option<&'a CStr>,
    stdio: [&'a OwnedFd; 3],
    /// Becomes [`CONTROL_FD`].
    control: Option<&'a OwnedFd>,
    limit: Option<MarkLimit>,
    /// The error number of the step that failed.
    error: AtomicI32,
}

impl ChildStart<'_> {
    fn clone_child(&self) -> io::Result<u32> {
        let mut stack: Vec<MaybeUninit<u128>> = Vec::with_capacity(STACK_BYTES / 16);
        // SAFETY: the pointer is one past the end of the allocation, which is aligned to 16 bytes.
        let top = unsafe { stack.as_mut_ptr().add(stack.capacity()) };
        let argument = ptr::from_ref(self).cast_mut().cast::<c_void>();
        let blocked = BlockedSignals::all()?;
        // SAFETY: the thread is suspended until the child no longer uses the stack and the
        // argument; `run_child` keeps to the rules of the module.
        let pid = unsafe {
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            libc::clone(run_child, top.cast(), flags, argument)
        };
        let cloned = match u32::try_from(pid) {
            Ok(pid) => Ok(pid),
            Err(_) => Err(io::Error::last_os_error()),
        };
        drop(blocked);
        let pid = cloned?;
        match self.error.load(Ordering::Acquire) {
            0 => Ok(pid),
            error => {
                if let Some(pid) = rustix::process::Pid::from_raw(pid.cast_signed()) {
                    reap_failed(pid);
                }
                Err(io::Error::from_raw_os_error(error))
            }
        }
    }

    /// Runs in the child. Returns only if a step fails.
    fn exec(&self) -> Errno {
        if let Err(error) = self.set_up() {
            return error;
        }
        default_signals();
        // SAFETY: both arrays end with a null pointer, and all strings live in the suspended
        // parent.
        unsafe {
            libc::execve(self.argv[0], self.argv.as_ptr(), self.envp.as_ptr());
            Errno::from_raw_os_error(*libc::__errno_location())
        }
    }

    fn set_up(&self) -> Result<(), Errno> {
        rustix::process::setpgid(None, None)?;
        if let Some(limit) = self.limit {
            // A program without a mark is better than none; the tag is left.
            let _ = limit.set_for_this_process();
        }
        // The new descriptors are not closed by the exec.
        rustix::stdio::dup2_stdin(self.stdio[0])?;
        rustix::stdio::dup2_stdout(self.stdio[1])?;
        rustix::stdio::dup2_stderr(self.stdio[2])?;
        if let Some(control) = self.control {
            // Descriptors with this number are of no use from here on: the others are in place.
            // SAFETY: the descriptors of the child are its own.
            if unsafe { libc::dup2(control.as_raw_fd(), CONTROL_FD) } < 0 {
                // SAFETY: reads the error number of the suspended thread, as in `exec`.
                return Err(Errno::from_raw_os_error(unsafe {
                    *libc::__errno_location()
                }));
            }
        }
        match self.folder {
            Some(folder) => rustix::process::chdir(folder),
            None => Ok(()),
        }
    }
}

extern "C" fn run_child(argument: *mut c_void) -> c_int {
    // SAFETY: the parent passes a `ChildStart` and is suspended while it is used.
    let start = unsafe { &*argument.cast::<ChildStart<'_>>() };
    let error = start.exec();
    start.error.store(error.raw_os_error(), Ordering::Release);
    // SAFETY: ends the process without running the exit handlers of the host.
    unsafe { libc::_exit(127) }
}

/// Gives caught signals their default action and unblocks all. Runs in the child.
fn default_signals() {
    for signal in 1..=LAST_SIGNAL {
        // SAFETY: both calls get a valid or null pointer. The signal table of the child is its own.
        // Numbers that the C library reserves are refused by it.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            if libc::sigaction(signal, ptr::null(), action.as_mut_ptr()) != 0 {
                continue;
            }
            let handler = (*action.as_ptr()).sa_sigaction;
            let is_ignored = handler == libc::SIG_IGN && signal != libc::SIGPIPE;
            if handler == libc::SIG_DFL || is_ignored {
                continue;
            }
            let mut default = MaybeUninit::<libc::sigaction>::zeroed();
            (*default.as_mut_ptr()).sa_sigaction = libc::SIG_DFL;
            libc::sigaction(signal, default.as_ptr(), ptr::null_mut());
        }
    }
    // SAFETY: `sigemptyset` initialises the set.
    unsafe {
        let mut none = MaybeUninit::uninit();
        libc::sigemptyset(none.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, none.as_ptr(), ptr::null_mut());
    }
}

/// Blocks all signals of this thread until it is dropped.
struct BlockedSignals {
    previous: libc::sigset_t,
}

impl BlockedSignals {
    fn all() -> io::Result<Self> {
        let mut previous = MaybeUninit::uninit();
        // SAFETY: `sigfillset` initialises the set, `pthread_sigmask` the previous one.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            let error =
                libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), previous.as_mut_ptr());
            if error != 0 {
                return Err(io::Error::from_raw_os_error(error));
            }
            Ok(Self {
                previous: previous.assume_init(),
            })
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: the set was written by `pthread_sigmask`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.previous, ptr::null_mut()) };
    }
}

/// The reading and the writing end.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
    Ok((above_stdio(reader)?, above_stdio(writer)?))
}

/// Moves a descriptor out of the range of standard input, output and error, which a host may have
/// closed: the child must not overwrite one of its pipes with another.
fn above_stdio(fd: OwnedFd) -> io::Result<OwnedFd> {
    above(fd, 2)
}

fn above(fd: OwnedFd, last: i32) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > last {
        return Ok(fd);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), last + 1)?)
}

fn arguments(command: &Command) -> io::Result<Vec<CString>> {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|argument| c_string(argument.to_owned().into_vec()))
        .collect()
}

fn environment(plan: &LaunchPlan) -> io::Result<Vec<CString>> {
    plan.full_env()
        .into_iter()
        .map(|(name, value)| {
            let mut variable = name.into_vec();
            variable.push(b'=');
            variable.extend(value.into_vec());
            c_string(variable)
        })
        .collect()
}

fn c_string(bytes: Vec<u8>) -> io::Result<CString> {
    CString::new(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "an argument has a NUL byte"))
}

/// The pointers to the strings, and a null pointer.
fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    let pointers = strings.iter().map(|string| string.as_ptr());
    pointers.chain([ptr::null()]).collect()
}
