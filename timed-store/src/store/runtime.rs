//! How an operation waits. The async and the blocking store have this one difference; everything
//! else is written once, as async code.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::Error;

pub(crate) trait Runtime: 'static {
    /// The time of the timers.
    fn now() -> Instant;

    /// Runs `future` to its end, beside the caller. `context` is that of the store.
    fn spawn(
        context: &RuntimeContext,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error>;

    /// Waits for `future`; `None` if it was not ready within `limit`.
    fn at_most<F>(limit: Duration, future: F) -> impl Future<Output = Option<F::Output>> + Send
    where
        F: Future + Send,
        F::Output: Send;

    /// Runs work that blocks for long (fsync). Once started, it runs to its end.
    fn run_blocking<R: Send + 'static>(
        work: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> impl Future<Output = Result<R, Error>> + Send;
}

#[cfg(feature = "tokio")]
pub(crate) struct Tokio;

#[cfg(feature = "tokio")]
impl Runtime for Tokio {
    fn now() -> Instant {
        tokio::time::Instant::now().into_std()
    }

    fn spawn(
        _context: &RuntimeContext,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let runtime = tokio::runtime::Handle::try_current();
        runtime.map_err(|_| Error::ShuttingDown)?.spawn(future);
        Ok(())
    }

    async fn at_most<F>(limit: Duration, future: F) -> Option<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        tokio::time::timeout(limit, future).await.ok()
    }

    async fn run_blocking<R: Send + 'static>(
        work: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            Err(failed) => match failed.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Error::ShuttingDown),
            },
        }
    }
}

/// Waits on the calling thread, inside `poll`.
pub(crate) struct Blocking;

impl Runtime for Blocking {
    fn now() -> Instant {
        Instant::now()
    }

    fn spawn(
        context: &RuntimeContext,
        future: impl Future<Output = ()> + Send + 'static,
    ) -> Result<(), Error> {
        let context = context.clone();
        std::thread::Builder::new()
            .name("timed-store".to_owned())
            .spawn(move || block_on(&context, future))
            .map(drop)
            .map_err(|source| Error::Thread { source })
    }

    async fn at_most<F>(limit: Duration, future: F) -> Option<F::Output>
    where
        F: Future + Send,
        F::Output: Send,
    {
        let end = Instant::now().checked_add(limit);
        park_until(end, future)
    }

    async fn run_blocking<R: Send + 'static>(
        work: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        work()
    }
}

/// Runs an operation of the [`Blocking`] runtime on this thread.
pub(crate) fn block_on<F: Future>(context: &RuntimeContext, operation: F) -> F::Output {
    let _entered = context.enter();
    let mut operation = pin!(operation);
    loop {
        if let Some(output) = park_until(None, operation.as_mut()) {
            return output;
        }
    }
}

/// Polls `future` on this thread until it is ready; `None` if the time is over. Calls nest: a wait
/// inside `future` that uses this function blocks inside `poll`.
fn park_until<F: Future>(end: Option<Instant>, future: F) -> Option<F::Output> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return Some(output);
        }
        match end.map(|end| end.saturating_duration_since(Instant::now())) {
            Some(Duration::ZERO) => return None,
            Some(left) => std::thread::park_timeout(left),
            None => std::thread::park(),
        }
    }
}

/// The Tokio runtime that a blocking store on a server needs for its connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuntimeContext {
    #[cfg(feature = "redis")]
    runtime: Option<Arc<PrivateRuntime>>,
}

#[cfg(not(feature = "redis"))]
impl RuntimeContext {
    /// There is nothing to enter.
    fn enter(&self) -> Option<()> {
        None
    }
}

#[cfg(feature = "redis")]
impl RuntimeContext {
    /// A runtime on a thread of its own. It ends with the last clone.
    pub(crate) fn with_runtime() -> Result<Self, Error> {
        let failed = |source| Error::Thread { source };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(failed)?;
        let handle = runtime.handle().clone();
        let (end, ended) = tokio::sync::oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("timed-store-redis".to_owned())
            .spawn(move || {
                // Ends when the sender is dropped.
                let _ = runtime.block_on(ended);
                runtime.shutdown_background();
            })
            .map_err(failed)?;
        Ok(Self {
            runtime: Some(Arc::new(PrivateRuntime { handle, _end: end })),
        })
    }

    fn enter(&self) -> Option<tokio::runtime::EnterGuard<'_>> {
        self.runtime.as_ref().map(|runtime| runtime.handle.enter())
    }
}

#[cfg(feature = "redis")]
#[derive(Debug)]
struct PrivateRuntime {
    handle: tokio::runtime::Handle,
    _end: tokio::sync::oneshot::Sender<()>,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn run<F: Future>(operation: F) -> F::Output {
        block_on(&RuntimeContext::default(), operation)
    }

    #[test]
    fn a_blocking_wait_ends_with_its_future_or_its_time() {
        let never = std::future::pending::<()>();
        assert_eq!(
            run(Blocking::at_most(Duration::from_millis(1), never)),
            None
        );
        let ready = std::future::ready(5);
        assert_eq!(run(Blocking::at_most(Duration::ZERO, ready)), Some(5));

        let (sender, wakers) = mpsc::channel::<Waker>();
        std::thread::spawn(move || wakers.recv().unwrap().wake());
        let mut polls = 0;
        let woken = std::future::poll_fn(|context| {
            polls += 1;
            // A park can end without a reason: the sender is gone after the first poll.
            match sender.send(context.waker().clone()) {
                Ok(()) if polls == 1 => Poll::Pending,
                _ => Poll::Ready(()),
            }
        });
        let limit = Duration::from_secs(60);
        assert_eq!(run(Blocking::at_most(limit, woken)), Some(()));
        assert!(polls > 1);
    }
}
