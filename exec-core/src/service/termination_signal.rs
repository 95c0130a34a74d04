use std::io;
use std::mem::MaybeUninit;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for the signal that asks this program to end: `INT` (Ctrl-C), `TERM` or `HUP` (the terminal
/// is closed). The result is the number of the signal; programs that end because of it exit with
/// 128 plus that number.
///
/// Agents are in process groups of their own, so these signals end a host and not its agents. A
/// host that calls [`shutdown`](crate::ExecutionService::shutdown) after one of them leaves none:
///
/// ```no_run
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exec sleep 60");
/// # let request = doctest::request("go");
/// use std::time::Duration;
///
/// let signal = exec_core::termination_signal()?; // before the first launch
/// let execution = service.launch(request).await?;
/// tokio::select! {
///     report = execution.wait() => println!("{:?}", report?.code),
///     _ = signal => {}
/// }
/// service.shutdown(Duration::from_secs(10)).await;
/// # Ok(())
/// # }
/// ```
///
/// From the call on, the three signals no longer end this program. A signal that is ignored when
/// the program starts stays ignored: `nohup` ignores `HUP`, and a shell ignores `INT` in background
/// jobs.
///
/// # Errors
///
/// The error of the operating system, if a handler cannot be installed.
///
/// # Panics
///
/// Panics outside a tokio runtime with I/O enabled.
///
/// # Cancel safety
///
/// Cancel safe: the future can be dropped and created again. A signal that arrives in between is
/// lost.
pub fn termination_signal() -> io::Result<impl Future<Output = i32> + Send + Unpin + 'static> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ];
    let mut signals: Vec<(i32, Signal)> = Vec::new();
    for kind in kinds {
        let number = kind.as_raw_value();
        if !is_ignored(number)? {
            signals.push((number, signal(kind)?));
        }
    }
    Ok(std::future::poll_fn(move |cx| {
        let received = signals
            .iter_mut()
            .find_map(|(number, signal)| signal.poll_recv(cx).is_ready().then_some(*number));
        received.map_or(Poll::Pending, Poll::Ready)
    }))
}

fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer for the new action asks for the current one, which is written to the
    // second pointer.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: zeroed, and written by the call.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
