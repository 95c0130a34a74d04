//! A thread that ends with the process.

use std::io;
use std::sync::{Mutex, PoisonError, mpsc};

type Job = Box<dyn FnOnce() + Send>;

static THREAD: Mutex<Option<mpsc::Sender<Job>>> = Mutex::new(None);

/// Runs a function in a thread that lives as long as this process, and waits for its result.
///
/// The parent-death signal of a child is sent when the *thread* that started the child ends. The
/// threads of a runtime end early: those for blocking calls after ten seconds without work.
pub(super) fn run<T: Send + 'static>(
    function: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (answer, result) = mpsc::sync_channel(1);
    let job: Job = Box::new(move || {
        let _ = answer.send(function());
    });
    send(job)?;
    result.recv().unwrap_or_else(|_| {
        Err(io::Error::other(
            "the thread that starts sandboxes has ended",
        ))
    })
}

fn send(job: Job) -> io::Result<()> {
    let mut thread = THREAD.lock().unwrap_or_else(PoisonError::into_inner);
    let jobs = match &mut *thread {
        Some(jobs) => jobs,
        none => none.insert(start()?),
    };
    jobs.send(job)
        .map_err(|_| io::Error::other("the thread that starts sandboxes has ended"))
}

fn start() -> io::Result<mpsc::Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    std::thread::Builder::new()
        .name("exec-core spawn".to_owned())
        .spawn(move || jobs.into_iter().for_each(|job| job()))?;
    Ok(sender)
}
