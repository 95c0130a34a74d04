//! A folder in memory that fails, forgets and reorders on request.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::{Arc, Mutex},
};

use super::fs::Fs;

/// What goes wrong, and at which step that changes something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// This step fails and does nothing. A failed sync forgets what it should have written,
    /// as Linux does: the next one succeeds without it.
    Fail(u64),
    /// This step fails after half of its bytes.
    Short(u64),
    /// The disk is full from this step on, until [`Simulated::heal`].
    Full(u64),
    /// The machine stops after this step; whatever was not synced may be lost.
    Crash(u64),
}

/// What a crash leaves of data that was written but not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unsynced {
    Lost,
    Kept,
    /// The last write of each file is cut in half.
    Cut,
    /// The last write of each file has zeros in its first half.
    Holes,
}

#[derive(Clone, Default)]
pub(super) struct Simulated(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    synced_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    steps: u64,
    fault: Option<Fault>,
    crashed: bool,
}

#[derive(Default, Clone)]
struct Contents {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Truncate(usize),
}

#[derive(Clone)]
enum NameChange {
    Set(String, usize),
    Remove(String),
    Rename(String, String),
}

impl Change {
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
                // When the making of `from` was lost, there is nothing to rename.
                if let Some(file) = names.remove(from) {
                    names.insert(to.clone(), file);
                }
            }
        }
    }
}

impl Simulated {
    pub(super) fn with(fault: Fault) -> Self {
        let simulated = Self::default();
        simulated.state().fault = Some(fault);
        simulated
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// How many steps have changed something.
    pub(super) fn steps(&self) -> u64 {
        self.state().steps
    }

    pub(super) fn crashed(&self) -> bool {
        self.state().crashed
    }

    pub(super) fn heal(&self) {
        self.state().fault = None;
    }

    /// Stops the machine now.
    pub(super) fn crash(&self) {
        self.state().crashed = true;
    }

    /// Takes a [`crash`](Self::crash) back.
    pub(super) fn uncrash(&self) {
        self.state().crashed = false;
    }

    /// The same folder with everything in it synced, and another fault.
    pub(super) fn copy_with(&self, fault: Fault) -> Self {
        let state = self.state();
        let files = state
            .files
            .iter()
            .map(|file| file.after_crash(Unsynced::Kept));
        let copy = State {
            files: files.collect(),
            names: state.names.clone(),
            synced_names: state.names.clone(),
            fault: Some(fault),
            ..State::default()
        };
        Self(Arc::new(Mutex::new(copy)))
    }

    /// Every folder that a crash may leave: any part of the unsynced changes of names, in
    /// any way of losing unsynced data.
    pub(super) fn after_crash(&self) -> Vec<(String, Self)> {
        let state = self.state();
        let changes = &state.unsynced_names;
        let mut images = Vec::new();
        let mut seen = HashSet::new();
        for unsynced in [
            Unsynced::Lost,
            Unsynced::Kept,
            Unsynced::Cut,
            Unsynced::Holes,
        ] {
            for subset in 0..1_u32 << changes.len() {
                let mut names = state.synced_names.clone();
                for (n, change) in changes.iter().enumerate() {
                    if subset >> n & 1 == 1 {
                        change.apply(&mut names);
                    }
                }
                let files = state.files.iter().map(|file| file.after_crash(unsynced));
                let files: Vec<Contents> = files.collect();
                let contents = names
                    .iter()
                    .map(|(name, file)| (name.clone(), files[*file].now.clone()));
                if !seen.insert(contents.collect::<Vec<_>>()) {
                    continue;
                }
                let image = State {
                    files,
                    synced_names: names.clone(),
                    names,
                    ..State::default()
                };
                let what = format!("{unsynced:?}, names {subset:b}/{}", changes.len());
                images.push((what, Self(Arc::new(Mutex::new(image)))));
            }
        }
        images
    }
}

impl Contents {
    fn after_crash(&self, unsynced: Unsynced) -> Self {
        let mut bytes = self.synced.clone();
        let last = self.unsynced.len().wrapping_sub(1);
        for (n, change) in self.unsynced.iter().enumerate() {
            match (change, unsynced) {
                (_, Unsynced::Lost) => {}
                (Change::Write(at, new), Unsynced::Cut) if n == last => {
                    Change::Write(*at, new[..new.len() / 2].to_vec()).apply(&mut bytes);
                }
                (Change::Write(at, new), Unsynced::Holes) if n == last => {
                    let mut new = new.clone();
                    let half = new.len() / 2;
                    new[..half].fill(0);
                    Change::Write(*at, new).apply(&mut bytes);
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

    fn change(&mut self, change: Change) {
        change.apply(&mut self.now);
        self.unsynced.push(change);
    }
}

fn full() -> io::Error {
    io::Error::from(io::ErrorKind::StorageFull)
}

/// What a step is to do.
#[derive(PartialEq)]
enum Go {
    On,
    Half,
}

impl State {
    /// Counts a step and says how far it gets. A crash lets it happen, and then nothing more.
    fn step(&mut self) -> io::Result<Go> {
        if self.crashed {
            return Err(io::Error::other("crashed"));
        }
        let step = self.steps;
        self.steps += 1;
        match self.fault {
            Some(Fault::Fail(at)) if at == step => Err(full()),
            Some(Fault::Full(at)) if at <= step => Err(full()),
            Some(Fault::Short(at)) if at == step => Ok(Go::Half),
            Some(Fault::Crash(at)) if at == step => {
                self.crashed = true;
                Ok(Go::On)
            }
            _ => Ok(Go::On),
        }
    }

    /// The caller of a step that ended in a crash never gets an answer.
    fn answer<T>(&self, value: T) -> io::Result<T> {
        if self.crashed {
            Err(io::Error::other("crashed"))
        } else {
            Ok(value)
        }
    }

    fn rename_or(&mut self, change: NameChange) -> io::Result<()> {
        if self.step()? == Go::Half {
            return Err(full());
        }
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
        self.answer(())
    }

    fn make(&mut self, name: &str) -> io::Result<usize> {
        if let Some(file) = self.names.get(name) {
            return Ok(*file);
        }
        self.files.push(Contents::default());
        let file = self.files.len() - 1;
        self.rename_or(NameChange::Set(name.to_owned(), file))?;
        Ok(file)
    }
}

impl Fs for Simulated {
    type File = usize;
    type Lock = ();

    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = self.state();
        let file = state
            .names
            .get(name)
            .map(|file| state.files[*file].now.clone());
        state.answer(file)
    }

    fn exists(&self, name: &str) -> io::Result<bool> {
        let state = self.state();
        state.answer(state.names.contains_key(name))
    }

    fn create(&self, name: &str) -> io::Result<usize> {
        let mut state = self.state();
        let file = state.make(name)?;
        if !state.files[file].now.is_empty() {
            if state.step()? == Go::Half {
                return Err(full());
            }
            state.files[file].change(Change::Truncate(0));
        }
        state.answer(file)
    }

    fn append(&self, name: &str) -> io::Result<usize> {
        self.state().make(name)
    }

    fn len(&self, file: &usize) -> io::Result<u64> {
        let state = self.state();
        state.answer(state.files[*file].now.len() as u64)
    }

    fn write(&self, file: &mut usize, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let go = state.step()?;
        let at = state.files[*file].now.len();
        let half = go == Go::Half;
        let bytes = if half {
            &bytes[..bytes.len() / 2]
        } else {
            bytes
        };
        state.files[*file].change(Change::Write(at, bytes.to_vec()));
        if half { Err(full()) } else { state.answer(()) }
    }

    fn truncate(&self, file: &mut usize, len: u64) -> io::Result<()> {
        let mut state = self.state();
        if state.step()? == Go::Half {
            return Err(full());
        }
        state.files[*file].change(Change::Truncate(len as usize));
        state.answer(())
    }

    fn sync(&self, file: &usize) -> io::Result<()> {
        let mut state = self.state();
        let step = state.step();
        let crashed = state.crashed;
        let contents = &mut state.files[*file];
        if crashed {
            // Nobody knows how much of it was done: the unsynced stays unsynced.
            return Err(io::Error::other("crashed"));
        }
        let unsynced = std::mem::take(&mut contents.unsynced);
        if matches!(step, Ok(Go::On)) {
            for change in &unsynced {
                change.apply(&mut contents.synced);
            }
            Ok(())
        } else {
            Err(io::Error::other("input/output error"))
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let change = NameChange::Rename(from.to_owned(), to.to_owned());
        self.state().rename_or(change)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        if !state.names.contains_key(name) {
            return state.answer(());
        }
        state.rename_or(NameChange::Remove(name.to_owned()))
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        if state.step()? == Go::Half {
            return Err(full());
        }
        if state.crashed {
            return state.answer(());
        }
        state.synced_names = state.names.clone();
        state.unsynced_names.clear();
        Ok(())
    }

    fn list(&self) -> io::Result<Vec<String>> {
        let state = self.state();
        state.answer(state.names.keys().cloned().collect())
    }

    fn lock(&self, _: &str) -> io::Result<()> {
        let state = self.state();
        state.answer(())
    }

    fn remove_lock(&self, _: &str) -> io::Result<()> {
        Ok(())
    }
}
