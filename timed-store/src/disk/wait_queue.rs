//! The waiters for values: a numbered file for each, which the waiter holds locked.
//!
//! The file holds the values that the waiter wants, as a JSON list. The kernel releases the lock of
//! a waiter that dies; the next look at the queue removes its file. All changes of the queue happen
//! under the exclusive lock of the store, apart from waiters that leave, so a number is never given
//! out twice.

use std::fs::{DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;

/// `<file>.flock-waiters/`
#[derive(Debug)]
pub(crate) struct WaitQueue(PathBuf);

/// A place in the queue. Dropping it leaves the queue.
#[derive(Debug)]
pub(crate) struct WaitTicket {
    number: u64,
    path: PathBuf,
    _locked: LockedFile,
}

impl WaitQueue {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self(folder)
    }

    /// The texts of the live tickets before `ticket`, or of all if there is none yet.
    pub(crate) fn earlier(&self, ticket: Option<&WaitTicket>) -> Result<Vec<String>, Error> {
        let mut texts = Vec::new();
        for (number, path) in self.tickets()? {
            if ticket.is_some_and(|ticket| number >= ticket.number) {
                break;
            }
            // For reading: to close a file that was open for writing is an event, which wakes all
            // waiters.
            let Some(mut file) = private_file::open_existing(&path, File::options().read(true))?
            else {
                continue;
            };
            let mut text = String::new();
            file.read_to_string(&mut text)
                .map_err(Error::io("read", &path))?;
            let is_dead = LockedFile::try_lock(file, Access::Shared)
                .map_err(Error::io("lock", &path))?
                .is_some();
            if is_dead {
                remove(&path).map_err(Error::io("remove", &path))?;
            } else {
                texts.push(text);
            }
        }
        Ok(texts)
    }

    /// Joins the queue at its end. Only for the holder of the store's exclusive lock.
    pub(crate) fn join(&self, text: &str) -> Result<WaitTicket, Error> {
        match DirBuilder::new().mode(0o700).create(&self.0) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create the folder", &self.0)(error));
            }
            _ => private_file::check_folder(&self.0)?,
        }
        let last = self.tickets()?.last().map(|(number, _)| *number);
        let number = last.map_or(0, |last| last + 1);
        // All digits are written, so that names sort like numbers.
        let path = self.0.join(format!("{number:020}"));
        let mut options = File::options();
        let file = private_file::open(&path, options.write(true).create_new(true))?;
        let locked = LockedFile::try_lock(file, Access::Exclusive);
        let locked = locked.map_err(Error::io("lock", &path))?;
        let locked = locked
            .ok_or_else(|| Error::io("lock", &path)(io::Error::from(io::ErrorKind::WouldBlock)))?;
        let ticket = WaitTicket {
            number,
            path,
            _locked: locked,
        };
        // The text follows the lock: a ticket without a lock is a dead one.
        (&*ticket._locked)
            .write_all(text.as_bytes())
            .map_err(Error::io("write", &ticket.path))?;
        Ok(ticket)
    }

    /// All tickets, lowest first.
    fn tickets(&self) -> Result<Vec<(u64, PathBuf)>, Error> {
        let failed = |error| Error::io("read", &self.0)(error);
        let folder = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            folder => folder.map_err(failed)?,
        };
        let mut tickets = Vec::new();
        for entry in folder {
            let path = entry.map_err(failed)?.path();
            if let Some(number) = number_of(&path) {
                tickets.push((number, path));
            }
        }
        tickets.sort_unstable();
        Ok(tickets)
    }
}

impl Drop for WaitTicket {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "cannot leave the queue");
        }
    }
}

fn number_of(path: &Path) -> Option<u64> {
    path.file_name()?.to_str()?.parse().ok()
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_in_the_order_of_their_joins_and_end_with_their_owner() {
        let folder = tempfile::tempdir().unwrap();
        let queue = WaitQueue::new(folder.path().join("waiters"));
        assert!(queue.earlier(None).unwrap().is_empty());
        let [first, second] = ["[1]", "[2]"].map(|text| queue.join(text).unwrap());
        assert_eq!(queue.earlier(None).unwrap(), ["[1]", "[2]"]);
        assert_eq!(queue.earlier(Some(&second)).unwrap(), ["[1]"]);
        assert!(queue.earlier(Some(&first)).unwrap().is_empty());
        drop(first);
        assert!(queue.earlier(Some(&second)).unwrap().is_empty());
        // The file of a killed process stays, without a lock.
        let dead = queue.0.join(format!("{:020}", 0));
        private_file::open(&dead, File::options().write(true).create(true)).unwrap();
        assert!(queue.earlier(Some(&second)).unwrap().is_empty());
        assert!(!dead.exists());
    }
}
