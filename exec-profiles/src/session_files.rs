use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use exec_core::{CommandConfig, SessionIdLookup, SessionResolutionContext};
use serde_json::Value;

/// How often the folders are looked at, as specified.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// Of one session file: the id stands near its start, the rest is the conversation.
const READ_LIMIT: u64 = 8 * 1024 * 1024;

/// Where an agent writes its session files, worked out anew for each look (an agent may create
/// the index that leads to the folder only once it runs).
pub(crate) type Folders = Box<dyn Fn(Option<&Path>) -> Vec<PathBuf> + Send + Sync>;

/// Finds the session id inside of a file that the agent wrote after it was started.
///
/// Only files that were not there before count: an older session of the same project may be
/// written to at the same moment. The id is read from inside of the file, never from its name,
/// which some agents shorten.
pub(crate) struct SessionFiles {
    folders: Folders,
    /// File names with at most one `*` each.
    patterns: Vec<String>,
    /// The JSON field that holds the id.
    field: String,
    /// The variables that may name the agent's home folder; the first that is set does.
    home_variables: &'static [&'static str],
    /// The child's home folder, under which `old` was collected.
    home: Option<PathBuf>,
    /// What was there before the launch.
    old: HashSet<PathBuf>,
}

impl SessionFiles {
    /// Notes what is there now: to be called before the process is started.
    pub(crate) fn new(
        folders: Folders,
        patterns: &[&str],
        field: &str,
        home_variables: &'static [&'static str],
        command: &CommandConfig,
    ) -> Self {
        let home = first_set(home_variables, |name| match command.env.get(name) {
            Some(home) => Some(home.into()),
            None => std::env::var_os(name),
        });
        let mut files = Self {
            folders,
            patterns: patterns.iter().map(|&pattern| pattern.to_owned()).collect(),
            field: field.to_owned(),
            home_variables,
            home,
            old: HashSet::new(),
        };
        files.old = files.matching().collect();
        files
    }

    fn matching(&self) -> impl Iterator<Item = PathBuf> {
        (self.folders)(self.home.as_deref())
            .into_iter()
            // A folder that is not there yet holds no files yet.
            .filter_map(|folder| fs::read_dir(folder).ok())
            .flatten()
            .flatten()
            .filter(|entry| {
                entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| self.patterns.iter().any(|p| matches(p, name)))
            })
            .map(|entry| entry.path())
    }

    /// The id in the new file. With several new files, the newest that holds one.
    fn look(&self, context: &SessionResolutionContext) -> Option<String> {
        // A child with another home writes where no old files were noted: all would look new.
        let home = first_set(self.home_variables, |name| {
            context.env(name).map(OsStr::to_owned)
        });
        if home != self.home {
            tracing::warn!("the agent has another home folder than its profile expected");
            return None;
        }
        let mut new: Vec<_> = self
            .matching()
            .filter(|path| !self.old.contains(path))
            .filter_map(|path| Some((fs::metadata(&path).ok()?.modified().ok()?, path)))
            .collect();
        new.sort();
        new.iter()
            .rev()
            .find_map(|(_, path)| id_inside(path, &self.field))
    }
}

#[async_trait]
impl SessionIdLookup for SessionFiles {
    async fn resolve_session_id(&mut self, context: &SessionResolutionContext) -> Option<String> {
        loop {
            // A handful of names and one short file: cheaper than a hop to another thread.
            if let Some(id) = self.look(context) {
                return Some(id);
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    }

    fn last_look(&mut self, context: &SessionResolutionContext) -> Option<String> {
        self.look(context)
    }
}

fn first_set(names: &[&str], variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    names
        .iter()
        .filter_map(|name| variable(name))
        .find(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Whether `name` fits a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        None => pattern == name,
    }
}

/// The id in a file of JSON lines (in the first line) or in a JSON document.
///
/// A file that is only half written has no id yet; the next look finds it.
fn id_inside(path: &Path, field: &str) -> Option<String> {
    let mut file = BufReader::new(File::open(path).ok()?.take(READ_LIMIT));
    let mut text = String::new();
    file.read_line(&mut text).ok()?;
    let document: Value = match serde_json::from_str(&text) {
        Ok(line) => line,
        Err(_) => {
            file.read_to_string(&mut text).ok()?;
            serde_json::from_str(&text).ok()?
        }
    };
    field_text(&document, field)
}

/// The text at a dotted path: `session.id`.
pub(crate) fn field_text(document: &Value, field: &str) -> Option<String> {
    let value = field
        .split('.')
        .try_fold(document, |value, key| value.get(key))?;
    value.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_have_one_star() {
        for (pattern, name, expected) in [
            ("session-*.json*", "session-1.json", false),
            ("session-*", "session-1.json", true),
            ("session-*.json", "session-.json", true),
            ("ab*ba", "aba", false),
            ("*", "", true),
            ("x", "x", true),
            ("x", "xy", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}
