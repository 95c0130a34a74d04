//! Executions that a state folder of exec-core records.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use exec_core::{FailureKind, History, HistoryEntry, HistoryState};

use super::super::change::{AgentChange, Change};
use super::super::entities::{AgentState, Usage, milliseconds};
use super::super::hub::{Feed, lock};
use super::super::source::Source;
use super::used::{self, plus};
use crate::Result;

/// The time between two looks while a client is there.
const LOOK: Duration = Duration::from_secs(1);
/// Most sessions that are shown: the newest.
const MAX_SESSIONS: usize = 100;

/// Shows the executions of other programs by their records: each session is an agent.
pub struct HistorySource {
    state_dir: PathBuf,
    /// Kept over an error of the records: nothing is told twice.
    told: Mutex<Told>,
}

/// What the board has been told.
#[derive(Default)]
struct Told {
    sessions: BTreeSet<String>,
    /// The executions whose failures are shown, as far as the records still have them.
    failures: BTreeSet<String>,
}

/// What tells that the records have changed.
type Fingerprint = Option<(u64, Option<SystemTime>)>;

impl HistorySource {
    /// A source for a state folder.
    #[must_use]
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            told: Mutex::default(),
        }
    }

    fn show(&self, entries: &[HistoryEntry], feed: &Feed) {
        let mut told = lock(&self.told);
        let mut sessions: BTreeMap<&str, Vec<&HistoryEntry>> = BTreeMap::new();
        for entry in entries {
            let session = entry.session_id.as_str();
            sessions.entry(session).or_default().push(entry);
        }
        let mut newest: Vec<(&str, Vec<&HistoryEntry>)> = sessions.into_iter().collect();
        newest.sort_by_key(|(_, entries)| entries.last().map(|entry| entry.started_at));
        newest.drain(..newest.len().saturating_sub(MAX_SESSIONS));
        let shown = newest.iter().map(|(session, _)| (*session).to_owned());
        let shown: BTreeSet<String> = shown.collect();
        // First, so that there is a place for the newer ones.
        for agent in told.sessions.difference(&shown).cloned() {
            feed.push(Change::AgentGone { agent });
        }
        told.sessions = shown;
        for (session, entries) in &newest {
            self.show_session(session, entries, feed);
            for entry in entries {
                self.show_failure(session, entry, &mut told.failures, feed);
            }
        }
        let recorded = entries.iter().map(|entry| entry.execution_id.as_str());
        let recorded: BTreeSet<&str> = recorded.collect();
        told.failures.retain(|id| recorded.contains(id.as_str()));
    }

    fn show_session(&self, id: &str, entries: &[&HistoryEntry], feed: &Feed) {
        let Some(last) = entries.last() else { return };
        let (state, detail) = match &last.state {
            HistoryState::Open => (AgentState::Working, "recorded as running".to_owned()),
            HistoryState::Reaped => (
                AgentState::Exited,
                "its host or its parser failed; its processes were ended".to_owned(),
            ),
            HistoryState::Ended(report) => {
                let how = match (report.code, report.signal) {
                    (Some(code), _) => format!("exit code {code}"),
                    (_, Some(signal)) => format!("signal {signal}"),
                    _ => "unknown end".to_owned(),
                };
                (AgentState::Exited, how)
            }
            _ => (
                AgentState::Unknown,
                "a record of a newer version".to_owned(),
            ),
        };
        let native = last.session_id.native_id();
        let short: String = native.chars().take(8).collect();
        let change = AgentChange {
            name: Some(format!("{} {short}", last.profile_label)),
            ..AgentChange::new(id)
        };
        let kind = match &last.variant_label {
            Some(variant) => format!("{}:{variant}", last.profile_label),
            None => last.profile_label.clone(),
        };
        let change = change
            .kind(kind, last.workspace_path.display().to_string())
            .role(match entries.len() {
                1 => "1 execution".to_owned(),
                n => format!("{n} executions"),
            })
            .state(state, "process", detail)
            .usage(usage(entries))
            .can([]);
        feed.push(change);
    }

    fn show_failure(
        &self,
        agent: &str,
        entry: &HistoryEntry,
        told: &mut BTreeSet<String>,
        feed: &Feed,
    ) {
        let HistoryState::Ended(report) = &entry.state else {
            return;
        };
        let (class, message) = match (&report.budget, &report.failure) {
            (Some(notice), _) => ("budget", notice.to_string()),
            (None, Some(failure)) => (failure.kind.name(), failure.message.clone()),
            (None, None) => return,
        };
        if !told.insert(entry.execution_id.as_str().to_owned()) {
            return;
        }
        let resets = match report.failure.as_ref().map(|failure| &failure.kind) {
            Some(FailureKind::Limited { resets_at, .. }) => resets_at.map(milliseconds),
            _ => None,
        };
        let ended = entry.started_at.checked_add(report.wall_time);
        feed.push(Change::Failure {
            agent: agent.to_owned(),
            class: class.to_owned(),
            message,
            resets,
            at: ended.map(milliseconds),
        });
    }
}

#[async_trait]
impl Source for HistorySource {
    fn name(&self) -> String {
        format!("state folder {}", self.state_dir.display())
    }

    async fn follow(&self, feed: Feed) -> Result<()> {
        let history = History::new(&self.state_dir);
        let mut before = None;
        loop {
            let found = fingerprint(&self.state_dir);
            if found.is_some() && found != before {
                self.show(&history.load()?.entries, &feed);
                before = found;
            }
            tokio::time::sleep(LOOK).await;
            feed.audience().await;
        }
    }
}

fn fingerprint(state_dir: &Path) -> Fingerprint {
    let found = std::fs::metadata(state_dir.join("history.jsonl")).ok()?;
    Some((found.len(), found.modified().ok()))
}

/// The sum of what the executions of a session have used.
fn usage(entries: &[&HistoryEntry]) -> Usage {
    entries.iter().fold(Usage::default(), |sum, entry| {
        let HistoryState::Ended(report) = &entry.state else {
            return sum;
        };
        plus(sum, used::usage(&report.usage.run))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::super::super::hub::Hub;
    use super::*;

    #[tokio::test]
    async fn a_failure_is_remembered_as_long_as_its_record() {
        let state = tempfile::tempdir().unwrap();
        let source = Arc::new(HistorySource::new(state.path()));
        let feed = Hub::new("test").follow(source.clone());
        for number in 1..=3 {
            let id = format!("6f9619ff-8b86-4d01-b42d-{number:012}");
            let started = json!({
                "at": 1, "execution_id": id, "event": "started", "session_id": "A:p:s",
                "profile": "a", "kind": "new", "workspace": "/tmp", "process_id": 7,
            });
            let report = json!({
                "session_id": "A:p:s", "code": 1, "signal": null, "stopped_by": null,
                "stderr_tail": [], "wall_time": {"secs": 2, "nanos": 0},
                "cpu_time": {"secs": 0, "nanos": 0}, "peak_memory_bytes": 1,
                "truncated_lines": 0, "leftover_processes": 0,
                "failure": {"class": "agent", "message": "it failed"},
            });
            let ended = json!({"at": 2, "execution_id": id, "event": "ended", "report": report});
            // The records before are rotated away.
            let text = format!("{started}\n{ended}\n");
            std::fs::write(state.path().join("history.jsonl"), text).unwrap();
            let records = History::new(state.path()).load().unwrap();
            source.show(&records.entries, &feed);
            assert!(lock(&source.told).failures.iter().eq([&id]));
        }
    }
}
