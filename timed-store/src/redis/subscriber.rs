use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_core::Stream;
use redis::Client;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::store::Signal;

/// The pause before a lost subscription is opened again. Waiters check the store once a second by
/// themselves.
const PAUSE: Duration = Duration::from_millis(200);

/// Listens to the changes of a store on a connection of its own. Dropping it ends the task.
pub(crate) struct Subscriber {
    signal: Arc<Signal>,
    task: JoinHandle<()>,
}

impl Subscriber {
    pub(super) fn start(runtime: &Handle, client: Client, channel: String) -> Self {
        let signal = Arc::new(Signal::default());
        let task = runtime.spawn(listen(client, channel, Arc::clone(&signal)));
        Self { signal, task }
    }

    pub(super) fn signal(&self) -> &Arc<Signal> {
        &self.signal
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").finish_non_exhaustive()
    }
}

async fn listen(client: Client, channel: String, signal: Arc<Signal>) {
    loop {
        if let Err(error) = listen_once(&client, &channel, &signal).await {
            tracing::debug!(%error, "cannot listen to the changes");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn listen_once(
    client: &Client,
    channel: &str,
    signal: &Signal,
) -> Result<(), redis::RedisError> {
    let mut subscription = client.get_async_pubsub().await?;
    subscription.subscribe(channel).await?;
    // Changes before the subscription were not delivered.
    signal.notify();
    let mut messages = pin!(subscription.into_on_message());
    while poll_fn(|context| messages.as_mut().poll_next(context))
        .await
        .is_some()
    {
        signal.notify();
    }
    Ok(())
}
