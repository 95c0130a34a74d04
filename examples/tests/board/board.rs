//! A board inside of the test.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use examples::board::sources::ScriptedSource;
use examples::board::{BoardServer, BoardServerBuilder, Change, Feed, Hub, Source};
use tokio::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::task::JoinHandle;

/// The test that measures has the machine for itself, as far as this process is concerned.
static MACHINE: RwLock<()> = RwLock::const_new(());

#[expect(dead_code, reason = "held")]
enum Machine {
    Shared(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// A board with its server. Dropping it ends both.
pub(crate) struct Board {
    pub(crate) hub: Hub,
    /// The way of the first source's changes.
    pub(crate) feed: Feed,
    /// The address with the token.
    pub(crate) address: String,
    pub(crate) token: String,
    pub(crate) socket: SocketAddr,
    task: JoinHandle<()>,
    _machine: Machine,
}

impl Board {
    /// A board without agents, while no other test has a board.
    pub(crate) async fn alone() -> Self {
        let machine = Machine::Alone(MACHINE.write().await);
        Self::on(machine, Arc::new(ScriptedSource::new(&[]))).await
    }

    /// A board of scripted agents that wait for messages.
    pub(crate) async fn scripted(names: &[&str]) -> Self {
        Self::of(Arc::new(ScriptedSource::new(names))).await
    }

    pub(crate) async fn of(source: Arc<dyn Source>) -> Self {
        let machine = Machine::Shared(MACHINE.read().await);
        Self::on(machine, source).await
    }

    /// A board with other limits for connections without a proof.
    pub(crate) async fn with_unproved(connections: usize, limit: Duration) -> Self {
        let machine = Machine::Shared(MACHINE.read().await);
        let change = |server: BoardServerBuilder| server.unproved(connections, limit);
        Self::built(machine, Arc::new(ScriptedSource::new(&[])), change).await
    }

    async fn on(machine: Machine, source: Arc<dyn Source>) -> Self {
        Self::built(machine, source, |server| server).await
    }

    async fn built(
        machine: Machine,
        source: Arc<dyn Source>,
        change: impl FnOnce(BoardServerBuilder) -> BoardServerBuilder,
    ) -> Self {
        let hub = Hub::new("Demo crew");
        let feed = hub.follow(source);
        let server = change(BoardServer::builder(hub.clone()));
        let server = server.bind().await.unwrap();
        let (address, token) = (server.address(), server.token().to_owned());
        let socket = server.socket_address();
        let task = tokio::spawn(async move { server.serve().await.unwrap() });
        Self {
            hub,
            feed,
            address,
            token,
            socket,
            task,
            _machine: machine,
        }
    }

    /// The address without the token.
    pub(crate) fn bare_address(&self) -> String {
        format!("http://{}/", self.socket)
    }

    /// A message between two agents, as a source reports it.
    pub(crate) fn message(&self, n: u64, text: &str) {
        self.feed.push(Change::Message {
            id: format!("t{n}"),
            from: "alpha".to_owned(),
            to: "beta".to_owned(),
            kind: "info".to_owned(),
            text: text.to_owned(),
            at: None,
            reply_to: None,
        });
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.task.abort();
    }
}
