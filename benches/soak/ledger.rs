//! The counts, measurements and violations of all areas.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::watch::Watched;

/// Shared by the threads of the areas.
pub(crate) struct Ledger {
    folder: PathBuf,
    run: String,
    began: Instant,
    pages: Mutex<Pages>,
    ending: Condvar,
}

#[derive(Default)]
struct Pages {
    ending: bool,
    counts: BTreeMap<String, u64>,
    violations: Vec<String>,
    watched: Vec<Watched>,
}

impl Ledger {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Self {
            folder,
            run: uuid::Uuid::new_v4().to_string(),
            began: Instant::now(),
            pages: Mutex::default(),
            ending: Condvar::new(),
        }
    }

    /// The tag in the environment of all processes of this run.
    pub(crate) fn run(&self) -> &str {
        &self.run
    }

    /// Creates the folder of an area.
    pub(crate) fn folder(&self, area: &str) -> std::io::Result<PathBuf> {
        let folder = self.folder.join(area);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    pub(crate) fn count(&self, what: &str, times: u64) {
        *self.pages().counts.entry(what.to_owned()).or_default() += times;
    }

    /// Records a violation if nothing of this kind was counted in a minute or more: a check that had
    /// nothing to check proves nothing.
    pub(crate) fn expect_some(&self, what: &str) {
        let count = self.pages().counts.get(what).copied();
        let is_long = self.began.elapsed() >= Duration::from_secs(60);
        if count.unwrap_or(0) == 0 && is_long && !self.is_broken() {
            self.violation(format!("no {what} in the whole run"));
        }
    }

    /// Records a violation of a guarantee and ends the run.
    pub(crate) fn violation(&self, text: String) {
        eprintln!("soak: VIOLATION: {text}");
        self.pages().violations.push(text);
        self.end();
    }

    pub(crate) fn is_broken(&self) -> bool {
        !self.pages().violations.is_empty()
    }

    pub(crate) fn end(&self) {
        self.pages().ending = true;
        self.ending.notify_all();
    }

    pub(crate) fn is_ending(&self) -> bool {
        self.pages().ending
    }

    /// Waits for `time` or for the end of the run. False at the end.
    pub(crate) fn pace(&self, time: Duration) -> bool {
        let waited = self
            .ending
            .wait_timeout_while(self.pages(), time, |pages| !pages.ending);
        let (pages, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !pages.ending
    }

    /// Starts to sample a long-lived process, which must not grow.
    pub(crate) fn watch(&self, name: &str, pid: u32) {
        self.watch_within(name, pid, Watched::RSS_KB);
    }

    /// As [`watch`](Self::watch), with another tolerance for memory.
    pub(crate) fn watch_within(&self, name: &str, pid: u32, rss_kb: u64) {
        self.pages().watched.push(Watched::new(name, pid, rss_kb));
    }

    pub(crate) fn sample_watched(&self) {
        self.pages().watched.iter_mut().for_each(Watched::sample);
    }

    pub(crate) fn judge_growth(&self) {
        let grown: Vec<_> = self
            .pages()
            .watched
            .iter()
            .flat_map(Watched::growth)
            .collect();
        grown.into_iter().for_each(|text| self.violation(text));
    }

    /// The files of a folder must not have more than `bytes` in total.
    pub(crate) fn judge_disk(&self, folder: &Path, bytes: u64) -> std::io::Result<()> {
        let used = disk_use(folder)?;
        self.count(&format!("{} KB on disk", name(folder)), used >> 10);
        if used > bytes {
            let folder = folder.display();
            self.violation(format!("{folder} uses {used} bytes, limit {bytes}"));
        }
        Ok(())
    }

    pub(crate) fn in_one_line(&self) -> String {
        let pages = self.pages();
        let counts = pages.counts.iter().map(|(what, n)| format!("{n} {what}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    pub(crate) fn print(&self, strays: usize) {
        let pages = self.pages();
        println!();
        for (what, count) in &pages.counts {
            println!("{what:<42} {count:>10}");
        }
        println!("{:<42} {strays:>10}", "processes left");
        println!("{:<42} {:>10}", "violations", pages.violations.len());
        println!("\n{}", Watched::HEADER);
        for watched in &pages.watched {
            println!("{watched}");
        }
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(folder: &Path) -> String {
    let name = folder.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

fn disk_use(folder: &Path) -> std::io::Result<u64> {
    let mut used = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let metadata = entry.metadata()?;
        used += match metadata.is_dir() {
            true => disk_use(&entry.path())?,
            false => metadata.len(),
        };
    }
    Ok(used)
}
