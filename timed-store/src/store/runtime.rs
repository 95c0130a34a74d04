//! How an operation waits. The async and the blocking store have this one difference; everything
//! else is written once, as async code.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::Error;

pub(crate) trait Runtime {
    /// Waits for `future`; `None` if it was not ready within `limit`.
    fn at_most<F: Future>(limit: Duration, future: F) -> impl Future<Output = Option<F::Output>>;

    /// Runs work that blocks for long (fsync). Once started, it runs to its end.
    fn run_blocking<R: Send + 'static>(
        work: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> impl Future<Output = Result<R, Error>>;
}

#[cfg(feature = "tokio")]
pub(crate) struct Tokio;

#[cfg(feature = "tokio")]
impl Runtime for Tokio {
    async fn at_most<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
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
    async fn at_most<F: Future>(limit: Duration, future: F) -> Option<F::Output> {
        struct Unpark(Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let end = Instant::now() + limit;
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Some(output);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            std::thread::park_timeout(left);
        }
    }

    async fn run_blocking<R: Send + 'static>(
        work: impl FnOnce() -> Result<R, Error> + Send + 'static,
    ) -> Result<R, Error> {
        work()
    }
}

/// Runs an operation of the [`Blocking`] runtime. The first poll completes it, because all its
/// waits happen inside `poll`.
pub(crate) fn block_on<F: Future>(operation: F) -> F::Output {
    let mut operation = pin!(operation);
    let mut context = Context::from_waker(Waker::noop());
    loop {
        if let Poll::Ready(output) = operation.as_mut().poll(&mut context) {
            return output;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_blocking_wait_ends_with_its_future_or_its_time() {
        let never = std::future::pending::<()>();
        assert_eq!(
            block_on(Blocking::at_most(Duration::from_millis(1), never)),
            None
        );
        let ready = std::future::ready(5);
        assert_eq!(block_on(Blocking::at_most(Duration::ZERO, ready)), Some(5));

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
        assert_eq!(block_on(Blocking::at_most(limit, woken)), Some(()));
        assert!(polls > 1);
    }
}
