//! A folder in memory that fails, forgets and reorders on request.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};

use super::folder::Folder;
use crate::shared::private_file::FileError;

/// A fault, and the number of the step at which it happens. Only operations that change something
/// are steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The step fails and does nothing. A failed sync forgets the data, as on Linux: the next sync
    /// succeeds without it.
    Fail(u64),
    /// The step fails after half of its bytes.
    Short(u64),
    /// The disk is full from this step on, until [`SimulatedFolder::heal`].
    Full(u64),
    /// The machine stops after this step. Data that was not synced may be lost.
    Crash(u64),
}

/// The part of unsynced data that a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// The last write of each file is cut in half.
    Cut,
    /// The last write of each file has zeros in its first half.
    Holes,
}

#[derive(Clone, Default)]
pub(super) struct SimulatedFolder(Arc<Mutex<Disk>>);

#[derive(Default)]
struct Disk {
    files: Vec<SimulatedFile>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    steps: u64,
    fault: Option<Fault>,
    crashed: bool,
}

#[derive(Default, Clone)]
struct SimulatedFile {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<FileChange>,
}

#[derive(Clone)]
enum FileChange {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
    Rename(String, String),
}

impl FileChange {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(at, new) => {
                bytes.resize(bytes.len().max(at + new.len()), 0);
                bytes[*at..at + new.len()].copy_from_slice(new);
            }
            Self::Truncate(len) => bytes.resize(*len, 0),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Set(name, file) => {
                names.insert(name.clone(), *file);
            }
            Self::Remove(name) => {
                names.remove(name);
            }
            Self::Rename(from, to) => {
                // If the creation of `from` was lost, there is nothing to rename.
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

impl SimulatedFolder {
    pub(super) fn with(fault: Fault) -> Self {
        let simulated = Self::default();
        simulated.disk().fault = Some(fault);
        simulated
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    /// The number of steps so far.
    pub(super) fn steps(&self) -> u64 {
        self.disk().steps
    }

    pub(super) fn crashed(&self) -> bool {
        self.disk().crashed
    }

    pub(super) fn heal(&self) {
        self.disk().fault = None;
    }

    /// Stops the machine now.
    pub(super) fn crash(&self) {
        self.disk().crashed = true;
    }

    /// Undoes a [`crash`](Self::crash).
    pub(super) fn uncrash(&self) {
        self.disk().crashed = false;
    }

    /// A copy of the folder with all data synced, and another fault.
    pub(super) fn copy_with(&self, fault: Fault) -> Self {
        let disk = self.disk();
        let files = disk
            .files
            .iter()
            .map(|file| file.after_crash(Unsynced::Kept));
        let copy = Disk {
            files: files.collect(),
            names: disk.names.clone(),
            synced_names: disk.names.clone(),
            fault: Some(fault),
            ..Disk::default()
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    /// Every folder that a crash may leave: any subset of the unsynced changes of names, with each
    /// way to lose unsynced data.
    pub(super) fn after_crash(&self) -> Vec<(String, Self)> {
        let disk = self.disk();
        let changes = &disk.unsynced_names;
        let mut images = Vec::new();
        let mut seen = HashSet::new();
        for unsynced in [
            Unsynced::Lost,
            Unsynced::Kept,
            Unsynced::Cut,
            Unsynced::Holes,
        ] {
            for subset in 0..1_u32 << changes.len() {
                let mut names = disk.synced_names.clone();
                for (n, change) in changes.iter().enumerate() {
                    if subset >> n & 1 == 1 {
                        change.apply(&mut names);
                    }
                }
                let files = disk.files.iter().map(|file| file.after_crash(unsynced));
                let files: Vec<SimulatedFile> = files.collect();
                let contents = names
                    .iter()
                    .map(|(name, file)| (name.clone(), files[*file].now.clone()));
                if !seen.insert(contents.collect::<Vec<_>>()) {
                    continue;
                }
                let image = Disk {
                    files,
                    synced_names: names.clone(),
                    names,
                    ..Disk::default()
                };
                let what = format!("{unsynced:?}, names {subset:b}/{}", changes.len());
                images.push((what, Self(Arc::new(Mutex::new(image)))));
            }
        }
        images
    }
}

impl SimulatedFile {
    fn after_crash(&self, unsynced: Unsynced) -> Self {
        let mut bytes = self.synced.clone();
        let last = self.unsynced.len().wrapping_sub(1);
        for (n, change) in self.unsynced.iter().enumerate() {
            match (change, unsynced) {
                (_, Unsynced::Lost) => {}
                (FileChange::Write(at, new), Unsynced::Cut) if n == last => {
                    FileChange::Write(*at, new[..new.len() / 2].to_vec()).apply(&mut bytes);
                }
                (FileChange::Write(at, new), Unsynced::Holes) if n == last => {
                    let mut new = new.clone();
                    let half = new.len() / 2;
                    new[..half].fill(0);
                    FileChange::Write(*at, new).apply(&mut bytes);
                }
                (change, _) => change.apply(&mut bytes),
            }
        }
        Self {
            now: bytes.clone(),
            synced: bytes,
            unsynced: Vec::new(),
        }
    }

    fn change(&mut self, change: FileChange) {
        change.apply(&mut self.now);
        self.unsynced.push(change);
    }
}

fn failure(reason: &str) -> FileError {
    FileError::io("use", Path::new("the simulated folder"))(io::Error::other(reason))
}

fn full() -> FileError {
    failure("the disk is full")
}

fn stopped() -> FileError {
    failure("the machine has stopped")
}

/// How far a step gets.
#[derive(PartialEq)]
enum Progress {
    Whole,
    Half,
}

impl Disk {
    /// Counts a step. A step that crashes takes effect; no later one does.
    fn step(&mut self) -> Result<Progress, FileError> {
        if self.crashed {
            return Err(stopped());
        }
        let step = self.steps;
        self.steps += 1;
        match self.fault {
            Some(Fault::Fail(at)) if at == step => Err(full()),
            Some(Fault::Full(at)) if at <= step => Err(full()),
            Some(Fault::Short(at)) if at == step => Ok(Progress::Half),
            Some(Fault::Crash(at)) if at == step => {
                self.crashed = true;
                Ok(Progress::Whole)
            }
            _ => Ok(Progress::Whole),
        }
    }

    /// The caller of a step that crashed never gets a success.
    fn answer<T>(&self, value: T) -> Result<T, FileError> {
        if self.crashed {
            Err(stopped())
        } else {
            Ok(value)
        }
    }

    fn change_name(&mut self, change: NameChange) -> Result<(), FileError> {
        if self.step()? == Progress::Half {
            return Err(full());
        }
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
        self.answer(())
    }

    fn open_or_create(&mut self, name: &str) -> Result<usize, FileError> {
        if let Some(file) = self.names.get(name) {
            return Ok(*file);
        }
        self.files.push(SimulatedFile::default());
        let file = self.files.len() - 1;
        self.change_name(NameChange::Set(name.to_owned(), file))?;
        Ok(file)
    }
}

impl Folder for SimulatedFolder {
    type File = usize;
    type Lock = ();
    type Version = (usize, Vec<u8>);

    fn path(&self) -> &Path {
        Path::new("")
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, FileError> {
        let disk = self.disk();
        let file = disk
            .names
            .get(name)
            .map(|file| disk.files[*file].now.clone());
        disk.answer(file)
    }

    fn exists(&self, name: &str) -> Result<bool, FileError> {
        let disk = self.disk();
        disk.answer(disk.names.contains_key(name))
    }

    fn is_file_at(&self, file: &usize, name: &str) -> Result<bool, FileError> {
        let disk = self.disk();
        disk.answer(disk.names.get(name) == Some(file))
    }

    fn version(&self, name: &str) -> Result<Option<(usize, Vec<u8>)>, FileError> {
        let disk = self.disk();
        let file = disk.names.get(name);
        disk.answer(file.map(|file| (*file, disk.files[*file].now.clone())))
    }

    fn modified(&self, name: &str) -> Result<Option<std::time::SystemTime>, FileError> {
        let disk = self.disk();
        let exists = disk.names.contains_key(name);
        disk.answer(exists.then_some(std::time::UNIX_EPOCH))
    }

    fn create(&self, name: &str) -> Result<usize, FileError> {
        let mut disk = self.disk();
        let file = disk.open_or_create(name)?;
        if !disk.files[file].now.is_empty() {
            if disk.step()? == Progress::Half {
                return Err(full());
            }
            disk.files[file].change(FileChange::Truncate(0));
        }
        disk.answer(file)
    }

    fn open_to_append(&self, name: &str) -> Result<usize, FileError> {
        self.disk().open_or_create(name)
    }

    fn len(&self, file: &usize) -> Result<u64, FileError> {
        let disk = self.disk();
        disk.answer(disk.files[*file].now.len() as u64)
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> Result<(), FileError> {
        let mut disk = self.disk();
        let progress = disk.step()?;
        let at = disk.files[*file].now.len();
        let half = progress == Progress::Half;
        let bytes = if half {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        disk.files[*file].change(FileChange::Write(at, bytes.to_vec()));
        if half { Err(full()) } else { disk.answer(()) }
    }

    fn truncate(&self, file: &mut usize, len: u64) -> Result<(), FileError> {
        let mut disk = self.disk();
        if disk.step()? == Progress::Half {
            return Err(full());
        }
        disk.files[*file].change(FileChange::Truncate(len as usize));
        disk.answer(())
    }

    fn sync(&self, file: &usize) -> Result<(), FileError> {
        let mut disk = self.disk();
        let step = disk.step();
        let crashed = disk.crashed;
        let contents = &mut disk.files[*file];
        if crashed {
            // It is unknown how much was written, so everything stays unsynced.
            return Err(stopped());
        }
        let unsynced = std::mem::take(&mut contents.unsynced);
        if matches!(step, Ok(Progress::Whole)) {
            for change in &unsynced {
                change.apply(&mut contents.synced);
            }
            Ok(())
        } else {
            Err(failure("input/output error"))
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        self.disk().change_name(change)
    }

    fn remove(&self, name: &str) -> Result<(), FileError> {
        let mut disk = self.disk();
        if !disk.names.contains_key(name) {
            return disk.answer(());
        }
        disk.change_name(NameChange::Remove(name.to_owned()))
    }

    fn sync_names(&self) -> Result<(), FileError> {
        let mut disk = self.disk();
        if disk.step()? == Progress::Half {
            return Err(full());
        }
        if disk.crashed {
            return disk.answer(());
        }
        disk.synced_names = disk.names.clone();
        disk.unsynced_names.clear();
        Ok(())
    }

    fn list(&self) -> Result<Vec<String>, FileError> {
        let disk = self.disk();
        disk.answer(disk.names.keys().cloned().collect())
    }

    fn lock(&self, _: &str) -> Result<(), FileError> {
        let disk = self.disk();
        disk.answer(())
    }
}
