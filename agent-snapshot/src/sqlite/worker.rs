use std::{
    io,
    sync::{Mutex, PoisonError},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use super::database::Database;
use crate::Error;

/// A thread that owns a connection and works through a bounded queue.
///
/// When the queue is full, callers wait. Dropping the worker lets the thread finish what is
/// queued and end by itself.
pub(super) struct Worker {
    queue: Mutex<Option<mpsc::Sender<Box<dyn Job>>>>,
    ended: tokio::sync::watch::Receiver<()>,
}

const QUEUE: usize = 1024;

/// Enough for every agent that waits; bounded so that the first one need not wait for ever.
const BATCH: usize = 256;

/// Something to do on the connection, and somebody who waits for it.
trait Job: Send {
    /// `false` when the transaction cannot be committed after this.
    fn run(&mut self, database: &Database) -> bool;
    fn fail(&mut self, error: Error);
    fn answer(self: Box<Self>);
}

struct Call<F, T> {
    job: F,
    result: Option<Result<T, Error>>,
    reply: oneshot::Sender<Result<T, Error>>,
}

impl<F, T> Job for Call<F, T>
where
    F: Fn(&Database) -> Result<T, Error> + Send,
    T: Send,
{
    fn run(&mut self, database: &Database) -> bool {
        let result = (self.job)(database);
        let committable = !matches!(result, Err(Error::Storage { .. }));
        self.result = Some(result);
        committable
    }

    fn fail(&mut self, error: Error) {
        self.result = Some(Err(error));
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            // Whoever asked may be gone; what was done is done.
            let _ = self.reply.send(result);
        }
    }
}

impl Worker {
    /// Runs each batch of jobs in one transaction: they share one sync.
    pub(super) fn writer(database: Database) -> io::Result<Self> {
        Self::start("snapshot-writer", move |queue| {
            let mut batch = Vec::new();
            let mut last = 0;
            while queue.blocking_recv_many(&mut batch, BATCH) > 0 {
                if last > 1 {
                    gather(queue, &mut batch);
                }
                last = batch.len();
                if !commit(&database, &mut batch) && batch.len() > 1 {
                    // Each for itself, so that only the one at fault gets the error.
                    for job in batch.chunks_mut(1) {
                        commit(&database, job);
                    }
                }
                for job in batch.drain(..) {
                    job.answer();
                }
            }
        })
    }

    /// Runs each job by itself.
    pub(super) fn reader(database: Database) -> io::Result<Self> {
        Self::start("snapshot-reader", move |queue| {
            while let Some(mut job) = queue.blocking_recv() {
                job.run(&database);
                job.answer();
            }
        })
    }

    fn start(
        name: &str,
        work: impl FnOnce(&mut mpsc::Receiver<Box<dyn Job>>) + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, mut receiver) = mpsc::channel(QUEUE);
        let (end, ended) = tokio::sync::watch::channel(());
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                work(&mut receiver);
                // The connection was closed with `work`.
                drop(end);
            })?;
        Ok(Self {
            queue: Mutex::new(Some(sender)),
            ended,
        })
    }

    /// Queues a job and waits for its result; `None` when the worker was closed.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        job: impl Fn(&Database) -> Result<T, Error> + Send + 'static,
    ) -> Option<Result<T, Error>> {
        let queue = self
            .queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()?;
        let (reply, answer) = oneshot::channel();
        let call = Box::new(Call {
            job,
            result: None,
            reply,
        });
        queue.send(call).await.ok()?;
        drop(queue);
        answer.await.ok()
    }

    /// Takes no more jobs and waits until those in the queue are done.
    pub(super) async fn close(&self) {
        drop(
            self.queue
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
        let mut ended = self.ended.clone();
        // An error means that the sender is gone: the thread has ended.
        while ended.changed().await.is_ok() {}
    }
}

/// Lets those who come at the same time as the first one join its commit: else it would go
/// alone, and they would wait for two syncs instead of one.
fn gather(queue: &mut mpsc::Receiver<Box<dyn Job>>, batch: &mut Vec<Box<dyn Job>>) {
    let mut before = 0;
    while batch.len() > before && batch.len() < BATCH {
        before = batch.len();
        thread::yield_now();
        while batch.len() < BATCH
            && let Ok(job) = queue.try_recv()
        {
            batch.push(job);
        }
    }
}

/// Runs jobs in one transaction. `false` when nothing was committed.
fn commit(database: &Database, jobs: &mut [Box<dyn Job>]) -> bool {
    if let Err(error) = database.begin() {
        return fail(jobs, error);
    }
    if !jobs.iter_mut().all(|job| job.run(database)) {
        database.roll_back();
        return false;
    }
    if let Err(error) = database.commit() {
        database.roll_back();
        return fail(jobs, error);
    }
    true
}

fn fail(jobs: &mut [Box<dyn Job>], error: Error) -> bool {
    // Only the first gets the cause: alone, the others get their own.
    if let Some(job) = jobs.first_mut() {
        job.fail(error);
    }
    false
}
