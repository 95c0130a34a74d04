//! The process that delivers the inbox.
//!
//! # Theory
//!
//! A message that is left must not depend on a program that the user keeps running. So each `post`,
//! and each start of a cluster for which messages wait, starts a *courier* in the background. Two
//! locks in the folder of the session keep their number small: the holder of `courier` delivers,
//! the holder of `courier-next` waits for the first lock, and a third one ends at once.
//!
//! - **Invariant.** After a message was left and a courier was started for it, a living courier
//!   will look at the inbox once more: the successor releases `courier-next` before it looks.
//! - **Race.** A message is left while the courier finds the inbox empty, or dies: its successor
//!   looks again.
//! - **Race.** An agent is added to the cluster. The courier does not know its pane, and attaches
//!   again when the record of the cluster changes.
//! - **A failure is not the end.** If the courier cannot attach or deliver, it says why in the file
//!   `courier-problem`, which the verb `inbox` shows, and tries again after a pause that doubles up
//!   to [`COURIER_RETRY_LIMIT`]. Race: a tmux that is overloaded can fail to name a session that
//!   runs, so only [`GONE_TRIES`] such answers in a row mean that it is gone.
//! - It ends with the session, when the inbox is empty, or when all messages have expired. If it is
//!   killed, its successor delivers; if both are killed, the next `post`, `inbox`, attach or start
//!   starts another one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tokio::time::{Instant, sleep};

use super::background;
use super::bus::attach;
use crate::Error;
use crate::cluster::ClusterManager;
use crate::cluster::cluster_record::ClusterRecord;
use crate::inbox::{Inbox, MessageState};
use crate::log::FileWatch;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;
use crate::timing::{COURIER_RETRY, COURIER_RETRY_LIMIT};
use crate::vocabulary::Failure;

/// Starts a courier. Returns when it is certain that one will look at the inbox.
pub(crate) async fn start(command: &Path, session: &Path) -> Result<(), Error> {
    background::start(command, "deliver", session, None).await
}

/// Starts a courier if messages wait, for a cluster that has just been started.
pub(crate) async fn start_if_needed(cluster: &ClusterManager, command: Option<&Path>) {
    let Some(command) = command else {
        return;
    };
    let started = async {
        match has_waiting(cluster.inbox())? {
            true => start(command, cluster.pane_io().folder()).await,
            false => Ok(()),
        }
    };
    if let Err(error) = started.await {
        tracing::warn!(%error, "cannot deliver the messages of the inbox");
    }
}

/// Delivers in this process until the inbox is empty.
pub(super) async fn deliver(session: &Path, is_ready: impl FnOnce()) -> Result<(), Error> {
    background::leave_launch();
    let path = session.join("courier-next");
    let next = open(&path)?;
    let next = LockedFile::try_lock(next, Access::Exclusive).map_err(Error::io("lock", &path))?;
    is_ready();
    let Some(next) = next else {
        return Ok(());
    };
    let path = session.join("courier");
    let file = open(&path)?;
    let lock = tokio::task::spawn_blocking(move || LockedFile::lock(file, Access::Exclusive)).await;
    let lock = lock.map_err(|error| Error::unfinished("deliver", &error))?;
    let _lock = lock.map_err(Error::io("lock", &path))?;
    drop(next);
    deliver_all(session).await
}

/// How often in a row a session must be missing.
const GONE_TRIES: usize = 3;

async fn deliver_all(session: &Path) -> Result<(), Error> {
    let mut pause = COURIER_RETRY;
    let mut gone = 0;
    loop {
        let began = Instant::now();
        match deliver_once(session).await {
            Ok(DeliveryRound::Empty) => return Ok(()),
            Ok(DeliveryRound::RecordChanged) => continue,
            Err(error @ Error::NotRunning { .. }) => {
                gone += 1;
                if gone >= GONE_TRIES || !session.exists() {
                    return Err(error);
                }
            }
            Err(error) => {
                gone = 0;
                tracing::warn!(%error, "cannot deliver the inbox");
                // The next round tells whether the session is gone, too.
                if !matches!(error, Error::ServerGone { .. }) {
                    store_problem(session, &error);
                }
            }
        }
        if began.elapsed() > COURIER_RETRY_LIMIT {
            // It has delivered for a while: this is another failure.
            pause = COURIER_RETRY;
        }
        sleep(pause).await;
        pause = (2 * pause).min(COURIER_RETRY_LIMIT);
    }
}

/// How one round of deliveries has ended.
enum DeliveryRound {
    /// No message waits.
    Empty,
    /// The cluster has other agents now.
    RecordChanged,
}

async fn deliver_once(session: &Path) -> Result<DeliveryRound, Error> {
    let stamp = stamp(session);
    let record = ClusterRecord::load(session)?;
    let record = record.ok_or_else(|| Error::NotRunning {
        session: session.display().to_string(),
        socket: session.join("tmux"),
    })?;
    let cluster = attach(&record).await?;
    let _ = fs::remove_file(problem_file(session));
    tokio::select! {
        done = cluster.deliver_inbox_until_empty() => done.map(|()| DeliveryRound::Empty),
        () = record_changes(session, stamp) => Ok(DeliveryRound::RecordChanged),
    }
}

/// Why the last attempt to deliver has failed, if the courier has had no success since.
pub(super) fn problem(session: &Path) -> Result<Option<String>, Error> {
    let path = problem_file(session);
    let Some(mut file) = private_file::open_existing(&path, File::options().read(true))? else {
        return Ok(None);
    };
    let mut text = String::new();
    let read = file.read_to_string(&mut text);
    read.map_err(Error::io("read", &path))?;
    Ok(Some(text))
}

/// By a rename: a reader sees all of it or nothing.
fn store_problem(session: &Path, error: &Error) {
    let part = session.join("courier-problem.part");
    let mut options = File::options();
    let stored = private_file::open(&part, options.write(true).create(true).truncate(true))
        .map_err(Error::from)
        .and_then(|mut file| {
            let message = Failure::from(error).message;
            file.write_all(message.as_bytes())
                .and_then(|()| fs::rename(&part, problem_file(session)))
                .map_err(Error::io("write", &part))
        });
    if let Err(error) = stored {
        tracing::warn!(%error, "cannot tell that the inbox is not delivered");
    }
}

fn problem_file(session: &Path) -> PathBuf {
    session.join("courier-problem")
}

/// Waits until the record of the cluster is another one.
async fn record_changes(session: &Path, known: Option<(u64, i64, i64)>) {
    let mut watch = FileWatch::new();
    let path = session.join("cluster.json");
    loop {
        watch.arm(&path);
        let found = stamp(session);
        if found != known && found.is_some() {
            return;
        }
        watch.changed().await;
    }
}

/// Tells one version of the record from another: it is replaced as a whole.
fn stamp(session: &Path) -> Option<(u64, i64, i64)> {
    let metadata = fs::metadata(session.join("cluster.json")).ok()?;
    Some((metadata.ino(), metadata.mtime(), metadata.mtime_nsec()))
}

fn open(path: &Path) -> Result<File, Error> {
    let mut options = File::options();
    let options = options.create(true).truncate(false).write(true);
    Ok(private_file::open(path, options)?)
}

fn has_waiting(inbox: &Inbox) -> Result<bool, Error> {
    let entries = inbox.all_entries()?;
    let is_waiting = |state: &MessageState| *state == MessageState::Waiting;
    Ok(entries.iter().any(|entry| is_waiting(&entry.state)))
}
