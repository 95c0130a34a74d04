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
                // Who was alone the last time is not waited for with.
                let crowded = last > 1;
                let join = |batch: &mut _| crowded && gather(queue, batch);
                if !commit(&database, &mut batch, join) && batch.len() > 1 {
                    // Each for itself, so that only the one at fault gets the error.
                    for job in std::mem::take(&mut batch) {
                        let mut alone = vec![job];
                        commit(&database, &mut alone, |_| false);
                        batch.append(&mut alone);
                    }
                }
                last = batch.len();
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

/// Lets those who come at the same time as the first ones join their commit: else they would
/// wait for two syncs instead of one. `false` when nobody came.
fn gather(queue: &mut mpsc::Receiver<Box<dyn Job>>, batch: &mut Vec<Box<dyn Job>>) -> bool {
    let before = batch.len();
    for attempt in 0..2 {
        if attempt > 0 {
            thread::yield_now();
        }
        while batch.len() < BATCH
            && let Ok(job) = queue.try_recv()
        {
            batch.push(job);
        }
        if batch.len() > before {
            return true;
        }
    }
    false
}

/// Runs jobs in one transaction, and those that `join` adds to them meanwhile: the callers
/// encode the next ones while these are inserted. `false` when nothing was committed.
fn commit(
    database: &Database,
    jobs: &mut Vec<Box<dyn Job>>,
    mut join: impl FnMut(&mut Vec<Box<dyn Job>>) -> bool,
) -> bool {
    if let Err(error) = database.begin() {
        return fail(jobs, error);
    }
    let mut done = 0;
    loop {
        if !jobs.iter_mut().skip(done).all(|job| job.run(database)) {
            database.roll_back();
            return false;
        }
        done = jobs.len();
        if !join(jobs) {
            break;
        }
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

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
            mpsc::{channel, sync_channel},
        },
    };

    use super::*;

    /// A job that says when it runs, and ends when it is let go.
    fn held() -> (
        impl Fn(&Database) -> Result<(), Error> + Send + 'static,
        std::sync::mpsc::Receiver<()>,
        std::sync::mpsc::Sender<()>,
    ) {
        let (runs, running) = sync_channel(8);
        let (release, released) = channel();
        let job = move |_: &Database| {
            let _ = runs.send(());
            // Let go for good once the other end is dropped.
            let _ = released.recv();
            Ok(())
        };
        (job, running, release)
    }

    /// Polls a call once, which queues it.
    async fn queue<T>(call: &mut (impl Future<Output = T> + Unpin)) {
        tokio::select! {
            biased;
            _ = call => panic!("it cannot have been answered"),
            () = async {} => {}
        }
    }

    #[tokio::test]
    async fn who_comes_while_a_batch_is_inserted_shares_its_commit() {
        let folder = tempfile::tempdir().unwrap();
        let database = Database::create(&folder.path().join("a.db")).unwrap();
        let worker = Worker::writer(database).unwrap();

        // Two that waited together.
        let (job, running, release) = held();
        let mut first = pin!(worker.call(job));
        queue(&mut first).await;
        running.recv().unwrap();
        let mut second = pin!(worker.call(|_| Ok(())));
        let mut third = pin!(worker.call(|_| Ok(())));
        queue(&mut second).await;
        queue(&mut third).await;
        drop(release);
        for call in [first.await, second.await, third.await] {
            call.unwrap().unwrap();
        }

        // The next one is running when another comes, which fails: both are rolled back, and
        // the first one runs a second time, alone.
        let (job, running, release) = held();
        let runs = Arc::new(AtomicU32::new(0));
        let counted = {
            let runs = runs.clone();
            move |database: &Database| {
                runs.fetch_add(1, Ordering::SeqCst);
                job(database)
            }
        };
        let mut first = pin!(worker.call(counted));
        queue(&mut first).await;
        running.recv().unwrap();
        let mut failing = pin!(worker.call(|_| {
            Err::<(), _>(Error::Storage {
                operation: "testing",
                place: String::new(),
                source: "it fails".into(),
            })
        }));
        queue(&mut failing).await;
        drop(release);
        first.await.unwrap().unwrap();
        failing.await.unwrap().unwrap_err();
        assert_eq!(runs.load(Ordering::SeqCst), 2);
    }
}
