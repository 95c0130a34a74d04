//! The reader of the events that hooks store.
//!
//! # Theory
//!
//! The order of events is that of their files, by time of the last change and then by name. The clock of a file
//! system moves in steps of milliseconds, so the order of two events of the same moment means nothing.
//!
//! - **Race.** An event is stored between a read and the wait. The watch is armed before the read.
//! - **Bound.** When there are more than [`MANY`] files, those older than [`OLD`] are removed. All readers of the
//!   last minutes have seen them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::hook_event::{HookEvent, MAX_PAYLOAD};
use crate::Error;
use crate::log::FileWatch;
use crate::shared::private_file;

/// Number of files that are kept whatever their age.
const MANY: usize = 500;

/// Age of a file that no reader waits for any more.
const OLD: Duration = Duration::from_secs(600);

/// Reads each event of a folder once.
#[derive(Debug)]
pub(crate) struct EventFolder {
    path: PathBuf,
    /// Points to the name of the event in a payload.
    event: Option<String>,
    seen: HashSet<OsString>,
    /// Made by the first wait, because it needs the runtime.
    watch: Option<FileWatch>,
}

impl EventFolder {
    pub(crate) fn new(path: PathBuf, event: Option<String>) -> Self {
        Self {
            path,
            event,
            seen: HashSet::new(),
            watch: None,
        }
    }

    /// Passes over the events that are there.
    pub(crate) fn skip_existing(&mut self) -> Result<(), Error> {
        let files = self.list()?;
        self.seen = files.into_iter().map(|file| file.name).collect();
        Ok(())
    }

    /// Waits for new events and returns them in order.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: no event is lost.
    pub(crate) async fn next(&mut self) -> Result<Vec<HookEvent>, Error> {
        loop {
            // Before the read: an event after it must wake us.
            self.arm();
            let events = self.read_new()?;
            if !events.is_empty() {
                return Ok(events);
            }
            self.changed().await;
        }
    }

    /// From now on every event ends the next wait.
    pub(crate) fn arm(&mut self) {
        let watch = self.watch.get_or_insert_with(FileWatch::new);
        watch.arm(&self.path.join("event"));
    }

    /// Waits for an event since [`arm`](Self::arm).
    pub(crate) async fn changed(&self) {
        if let Some(watch) = &self.watch {
            watch.changed().await;
        }
    }

    /// Whether no event is stored.
    pub(crate) fn is_empty(&self) -> bool {
        self.list().is_ok_and(|files| files.is_empty())
    }

    /// The new events, in order.
    pub(crate) fn read_new(&mut self) -> Result<Vec<HookEvent>, Error> {
        let files = self.list()?;
        if files.len() > MANY {
            self.prune(&files);
        }
        let mut events = Vec::new();
        for file in &files {
            if !self.seen.contains(&file.name)
                && let Some(event) = self.read(file)?
            {
                events.push(event);
            }
        }
        self.seen = files.into_iter().map(|file| file.name).collect();
        Ok(events)
    }

    /// `None` if the file was removed in between.
    fn read(&self, file: &EventFile) -> Result<Option<HookEvent>, Error> {
        let path = self.path.join(&file.name);
        let Some(opened) = private_file::open_existing(&path, File::options().read(true))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let mut limited = opened.take(MAX_PAYLOAD as u64);
        limited
            .read_to_end(&mut bytes)
            .map_err(Error::io("read", &path))?;
        let name = file.name.to_string_lossy();
        Ok(Some(HookEvent::parse(
            &name,
            &bytes,
            file.at,
            self.event.as_deref(),
        )))
    }

    /// The complete files, in order. A missing folder has none: the agent was not started with hooks, or has
    /// ended.
    fn list(&self) -> Result<Vec<EventFile>, Error> {
        let failed = |error| Error::io("list", &self.path)(error);
        let entries = match fs::read_dir(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(failed)?,
        };
        let mut files = Vec::new();
        for entry in entries {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let bytes = name.as_encoded_bytes();
            if bytes.starts_with(b".") || !bytes.ends_with(b".json") {
                continue;
            }
            // `Err`: removed in between.
            if let Ok(at) = entry.metadata().and_then(|metadata| metadata.modified()) {
                files.push(EventFile { at, name });
            }
        }
        files.sort();
        Ok(files)
    }

    fn prune(&self, files: &[EventFile]) {
        let Some(limit) = SystemTime::now().checked_sub(OLD) else {
            return;
        };
        for file in files.iter().filter(|file| file.at < limit) {
            let _ = fs::remove_file(self.path.join(&file.name));
        }
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct EventFile {
    at: SystemTime,
    name: OsString,
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn store(folder: &Path, name: &str, age: Duration) {
        let path = folder.join(name);
        fs::write(&path, "{}").unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        file.set_modified(SystemTime::now() - age).unwrap();
    }

    fn kinds(events: &[HookEvent]) -> Vec<&str> {
        events.iter().map(|event| event.kind.as_str()).collect()
    }

    #[tokio::test]
    async fn each_event_is_read_once_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = EventFolder::new(dir.path().to_owned(), None);
        let seconds = Duration::from_secs;
        store(dir.path(), "old.1.0.json", seconds(9));
        folder.skip_existing().unwrap();
        store(dir.path(), "b.1.0.json", seconds(3));
        store(dir.path(), "a.1.0.json", seconds(2));
        store(dir.path(), ".part.1.0", seconds(1));
        store(dir.path(), "no-event", seconds(1));
        assert_eq!(kinds(&folder.next().await.unwrap()), ["b", "a"]);
        assert!(folder.read_new().unwrap().is_empty());
        store(dir.path(), "c.1.0.json", seconds(0));
        assert_eq!(kinds(&folder.next().await.unwrap()), ["c"]);
    }

    #[tokio::test]
    async fn an_event_wakes_the_reader_also_if_the_folder_did_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("launch/events");
        let mut folder = EventFolder::new(path.clone(), None);
        let reading = tokio::spawn(async move { folder.next().await.unwrap() });
        tokio::task::yield_now().await;
        private_file::create_folder(&path).unwrap();
        let part = path.join(".x");
        fs::write(&part, "{}").unwrap();
        fs::rename(part, path.join("Stop.1.0.json")).unwrap();
        let limit = Duration::from_secs(40);
        let events = tokio::time::timeout(limit, reading).await.unwrap().unwrap();
        assert_eq!(kinds(&events), ["Stop"]);
    }

    #[test]
    fn old_events_are_removed_only_when_there_are_many() {
        let dir = tempfile::tempdir().unwrap();
        let mut folder = EventFolder::new(dir.path().to_owned(), None);
        let count = || fs::read_dir(dir.path()).unwrap().count();
        for number in 0..MANY {
            store(dir.path(), &format!("old.1.{number}.json"), OLD * 2);
        }
        assert_eq!(folder.read_new().unwrap().len(), MANY);
        assert_eq!(count(), MANY);
        store(dir.path(), "new.1.0.json", Duration::ZERO);
        assert_eq!(kinds(&folder.read_new().unwrap()), ["new"]);
        assert_eq!(count(), 1);
    }

    #[test]
    fn a_file_that_others_can_write_to_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        store(dir.path(), "Stop.1.0.json", Duration::ZERO);
        let mode = fs::Permissions::from_mode(0o666);
        fs::set_permissions(dir.path().join("Stop.1.0.json"), mode).unwrap();
        let mut folder = EventFolder::new(dir.path().to_owned(), None);
        assert!(matches!(folder.read_new(), Err(Error::NotPrivate { .. })));
    }
}
