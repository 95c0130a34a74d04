//! The lookup of a session id in the files that an agent writes.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use exec_core::{CommandConfig, SessionIdLookup, SessionResolutionContext};

use crate::events::Json;

/// The specified interval between two scans.
const SCAN_INTERVAL: Duration = Duration::from_millis(500);

/// The most that is read of one session file: the id is near the start, the conversation follows.
const READ_LIMIT: u64 = 8 * 1024 * 1024;

/// The folders of an agent's session files, for a home folder. Computed for every scan, because the
/// agent may create the index that names its folder only after its start.
pub(crate) type SessionFolders = Box<dyn Fn(Option<&Path>) -> Vec<PathBuf> + Send + Sync>;

/// Finds the session id in a file that the agent writes after its start.
///
/// Races: other sessions of the same project may write their files at the same time. So a file counts
/// only if it did not exist before the launch, and the service lets one launch per profile and
/// workspace search at a time. The id is read from the content of the file, because some agents
/// shorten it in the name.
pub(crate) struct SessionFiles {
    folders: SessionFolders,
    /// File names with at most one `*` each.
    patterns: Vec<String>,
    /// The JSON field of the id.
    field: String,
    /// The variables for the agent's home folder, in order of precedence.
    home_variables: &'static [&'static str],
    /// The home folder that was searched for `old`.
    home: Option<PathBuf>,
    /// The files that existed before the launch.
    old: HashSet<PathBuf>,
}

impl SessionFiles {
    /// Collects the existing files, so it must be called before the spawn.
    pub(crate) fn new(
        folders: SessionFolders,
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
            // The agent may not have created the folder yet.
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

    /// The id in the newest of the new files that contains one.
    fn scan(&self, context: &SessionResolutionContext) -> Option<String> {
        // `old` is valid for one home folder: in another one, every file would look new.
        let home = first_set(self.home_variables, |name| {
            context.env(name).map(OsStr::to_owned)
        });
        if home != self.home {
            tracing::warn!("cannot find the session file: the agent's home folder has changed");
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
            // Blocking is acceptable: a scan lists a few names and reads one short file.
            if let Some(id) = self.scan(context) {
                return Some(id);
            }
            tokio::time::sleep(SCAN_INTERVAL).await;
        }
    }

    fn last_look(&mut self, context: &SessionResolutionContext) -> Option<String> {
        self.scan(context)
    }
}

fn first_set(names: &[&str], variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    names
        .iter()
        .filter_map(|name| variable(name))
        .find(|value| !value.is_empty())
        .map(PathBuf::from)
}

/// Whether `name` matches a pattern with at most one `*`.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => {
            name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
        }
        None => pattern == name,
    }
}

/// The id in the first line of a JSON lines file, or in a JSON document.
///
/// A file that the agent has not completely written yet gives `None`; a later scan reads it again.
fn id_inside(path: &Path, field: &str) -> Option<String> {
    let mut file = BufReader::new(File::open(path).ok()?.take(READ_LIMIT));
    let mut text = String::new();
    file.read_line(&mut text).ok()?;
    if Json::document(&text).is_none() {
        file.read_to_string(&mut text).ok()?;
    }
    Json::document(&text)?.at(field).text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
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
