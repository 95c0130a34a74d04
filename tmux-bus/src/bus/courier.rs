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
//! - It ends with the session, when the inbox is empty, or when all messages have expired.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::background;
use super::bus::attach;
use crate::Error;
use crate::cluster::ClusterManager;
use crate::cluster::cluster_record::ClusterRecord;
use crate::inbox::{Inbox, MessageState};
use crate::log::FileWatch;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;

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

async fn deliver_all(session: &Path) -> Result<(), Error> {
    loop {
        let stamp = stamp(session);
        let record = ClusterRecord::load(session)?;
        let record = record.ok_or_else(|| Error::NotRunning {
            session: session.display().to_string(),
            socket: session.join("tmux"),
        })?;
        let cluster = attach(&record).await?;
        tokio::select! {
            done = cluster.deliver_inbox_until_empty() => return done,
            () = record_changes(session, stamp) => {}
        }
    }
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
