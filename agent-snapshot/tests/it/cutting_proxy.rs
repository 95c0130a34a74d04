//! A proxy in front of a server that loses one answer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// Passes bytes between 127.0.0.1 and the socket of a server, until a request contains `needle`. The
/// server executes this request and its answer is lost: the connection is cut, and new connections
/// wait until [`release`](Self::release).
pub(crate) struct CuttingProxy {
    port: u16,
    state: watch::Sender<State>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Passing,
    Cut,
    Released,
}

impl CuttingProxy {
    pub(crate) async fn start(server: PathBuf, needle: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, _) = watch::channel(State::Passing);
        let proxy = Self {
            port,
            state: state.clone(),
        };
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(pass(client, server.clone(), needle, state.clone()));
            }
        });
        proxy
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Waits until the server has executed the request and its answer is lost.
    pub(crate) async fn cut(&self) {
        let mut state = self.state.subscribe();
        state.wait_for(|state| *state == State::Cut).await.unwrap();
    }

    /// Lets the connections pass again.
    pub(crate) fn release(&self) {
        self.state.send_replace(State::Released);
    }
}

async fn pass(client: TcpStream, server: PathBuf, needle: &str, state: watch::Sender<State>) {
    let mut seen = state.subscribe();
    seen.wait_for(|state| *state != State::Cut).await.unwrap();
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = UnixStream::connect(server).await.unwrap().into_split();
    // Set before the request is passed on, so the answer cannot be missed.
    let is_losing = Arc::new(AtomicBool::new(false));
    let answers = tokio::spawn(answers(from_server, to_client, is_losing.clone()));
    let mut buffer = vec![0; 1 << 16];
    let mut recent = Vec::new();
    while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
        recent.extend_from_slice(&buffer[..read]);
        let found = recent
            .windows(needle.len())
            .any(|bytes| bytes == needle.as_bytes());
        let is_cut = found && *seen.borrow() == State::Passing;
        is_losing.store(is_cut, Ordering::SeqCst);
        recent.drain(..recent.len().saturating_sub(needle.len()));
        if to_server.write_all(&buffer[..read]).await.is_err() {
            return;
        }
        if is_cut {
            // Ends with the first bytes of the answer.
            let _ = answers.await;
            state.send_replace(State::Cut);
            return;
        }
    }
}

async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    is_losing: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 1 << 16];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if is_losing.load(Ordering::SeqCst) || to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
