//! The connections of the board.
//!
//! Any user of the machine can connect to a port of loopback, and a connection costs a descriptor of
//! a process that also follows agents. So a connection that has not proved itself has a time limit,
//! however slowly it sends, and only some of them are served at once; the others wait in the queue
//! of the system. Connections of clients with the token or the cookie do not count.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Sleep;

/// Accepts connections, with limits for those without a proof.
pub(super) struct GuardedListener {
    listener: TcpListener,
    places: Arc<Semaphore>,
    limit: Duration,
}

/// A connection. It fails at its time limit, unless it has proved itself.
pub(super) struct GuardedStream {
    stream: TcpStream,
    limit: Pin<Box<Sleep>>,
    place: ConnectionPlace,
}

/// The place of a connection among those without a proof; a request carries it to its handler.
#[derive(Clone)]
pub(super) struct ConnectionPlace(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl GuardedListener {
    pub(super) fn new(listener: TcpListener, places: usize, limit: Duration) -> Self {
        Self {
            listener,
            places: Arc::new(Semaphore::new(places)),
            limit,
        }
    }
}

impl Listener for GuardedListener {
    type Io = GuardedStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (GuardedStream, SocketAddr) {
        // The semaphore is never closed.
        let place = self.places.clone().acquire_owned().await.ok();
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let stream = GuardedStream {
            stream,
            limit: Box::pin(tokio::time::sleep(self.limit)),
            place: ConnectionPlace(Arc::new(Mutex::new(place))),
        };
        (stream, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Connected<IncomingStream<'_, GuardedListener>> for ConnectionPlace {
    fn connect_info(stream: IncomingStream<'_, GuardedListener>) -> Self {
        stream.io().place.clone()
    }
}

impl ConnectionPlace {
    /// The client has proved itself: its connection has no limit any more.
    pub(super) fn leave(&self) {
        self.place().take();
    }

    fn is_left(&self) -> bool {
        self.place().is_none()
    }

    fn place(&self) -> std::sync::MutexGuard<'_, Option<OwnedSemaphorePermit>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl GuardedStream {
    /// An error after the time limit. The task is woken at the limit.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match self.place.is_left() || self.limit.as_mut().poll(context).is_pending() {
            true => Ok(()),
            false => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

impl AsyncRead for GuardedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for GuardedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
