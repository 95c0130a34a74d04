//! The loaded history: entries and statistics.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use super::history::{HistoryEvent, HistoryLine};
use crate::{Decision, ExecutionId, ExecutionKind, ExitReport, Sandbox, SessionId, SettledBy};

/// The executions in the history; see [`History::load`](crate::History::load).
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// # let request = doctest::request("go");
/// service.launch(request).await?.wait().await?;
/// let contents = service.history().load()?;
/// assert_eq!(contents.entries.len(), 1);
/// assert!(contents.skipped.is_empty());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct HistoryContents {
    /// The executions in the order of their start lines. An execution whose start line has been
    /// rotated out is left out. An execution whose host died before it wrote the line stands
    /// where `reap_orphans` added it.
    pub entries: Vec<HistoryEntry>,
    /// The lines that could not be parsed.
    pub skipped: Vec<SkippedLine>,
}

/// A damaged line of the history.
///
/// ```
/// use exec_core::History;
///
/// # let folder = tempfile::tempdir()?;
/// # let state_dir = folder.path();
/// for skipped in History::new(state_dir).load()?.skipped {
///     println!("{}:{}: {}", skipped.path.display(), skipped.line, skipped.reason);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedLine {
    /// The file: the current one or the rotated one.
    pub path: PathBuf,
    /// The number of the line, from 1.
    pub line: usize,
    /// The cause.
    pub reason: String,
}

/// One execution of the history.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// # let request = doctest::request("go");
/// # service.launch(request).await?.wait().await?;
/// for entry in service.history().load()?.entries {
///     println!("{} {} {}", entry.execution_id, entry.profile_label, entry.kind);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The id of the launch.
    pub execution_id: ExecutionId,
    /// The session, as far as it was resolved.
    pub session_id: SessionId,
    /// The id of the session at the start, if it was another one: an alias.
    pub former_session_id: Option<SessionId>,
    /// The profile.
    pub profile_label: String,
    /// The variant of the profile.
    pub variant_label: Option<String>,
    /// New or follow-up.
    pub kind: ExecutionKind,
    /// The working directory.
    pub workspace_path: PathBuf,
    /// When the process was started.
    pub started_at: SystemTime,
    /// The decisions about permission requests of a live session, oldest first, as far as they are
    /// kept.
    pub permissions: Vec<HistoryPermission>,
    /// The sandbox that was enforced; `None` without one.
    pub sandbox: Option<Sandbox>,
    /// Whether and how the execution ended.
    pub state: HistoryState,
    /// The agent has named the id, which can be the minted one.
    pub(crate) is_id_reported: bool,
}

/// A decision about a permission request of a live session.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::live_service();
/// for entry in service.history().load()?.entries {
///     for decided in entry.permissions {
///         println!("{}: {:?} by {}", decided.tool, decided.decision, decided.by);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryPermission {
    /// When it was settled.
    pub at: SystemTime,
    /// The id of the request; a long one is cut.
    pub permission: String,
    /// The tool; a long name is cut.
    pub tool: String,
    /// The answer; `None` if the request became void.
    pub decision: Option<Decision>,
    /// The origin of the decision.
    pub by: SettledBy,
}

/// Whether and how an execution of the history ended.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 3");
/// # let request = doctest::request("go");
/// # service.launch(request).await?.wait().await?;
/// use exec_core::HistoryState;
///
/// let entry = service.history().load()?.entries.remove(0);
/// assert!(matches!(entry.state, HistoryState::Ended(report) if report.code == Some(3)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HistoryState {
    /// It runs, or its host died and its processes were not ended since.
    Open,
    /// It ended.
    Ended(Box<ExitReport>),
    /// Its host died, and `reap_orphans` ended the processes that were left. Or code of its profile has
    /// panicked.
    Reaped,
}

/// The sums over the executions of one profile.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// # let request = doctest::request("go");
/// # service.launch(request).await?.wait().await?;
/// let statistics = service.history().load()?.statistics();
/// let profile = &statistics["scripted"];
/// assert_eq!((profile.executions, profile.succeeded), (1, 1));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProfileStatistics {
    /// All executions.
    pub executions: u64,
    /// Ended by themselves with code 0 and without a reported failure.
    pub succeeded: u64,
    /// Ended by themselves with another code, by a signal, or with a reported failure.
    pub failed: u64,
    /// Stopped: by a caller, a watchdog, a time limit, a budget, or a lost connection.
    pub stopped: u64,
    /// Ended by `reap_orphans`.
    pub reaped: u64,
    /// Not ended, as far as the history says.
    pub open: u64,
    /// The sum of the wall times of ended executions.
    pub wall_time: Duration,
    /// The sum of the CPU times of ended executions.
    pub cpu_time: Duration,
    /// The largest memory peak of an ended execution.
    pub peak_memory_bytes: u64,
}

impl HistoryContents {
    /// Sums up the executions by profile.
    pub fn statistics(&self) -> BTreeMap<String, ProfileStatistics> {
        let mut statistics: BTreeMap<String, ProfileStatistics> = BTreeMap::new();
        for entry in &self.entries {
            let profile = statistics.entry(entry.profile_label.clone()).or_default();
            profile.executions += 1;
            match &entry.state {
                HistoryState::Open => profile.open += 1,
                HistoryState::Reaped => profile.reaped += 1,
                HistoryState::Ended(report) => {
                    match (report.stopped_by, report.is_success()) {
                        (Some(_), _) => profile.stopped += 1,
                        (None, true) => profile.succeeded += 1,
                        (None, false) => profile.failed += 1,
                    }
                    // A file that was edited by hand can contain any number.
                    profile.wall_time = profile.wall_time.saturating_add(report.wall_time);
                    profile.cpu_time = profile.cpu_time.saturating_add(report.cpu_time);
                    profile.peak_memory_bytes =
                        profile.peak_memory_bytes.max(report.peak_memory_bytes);
                }
            }
        }
        statistics
    }

    /// `index` maps the ids of the entries to their places.
    pub(super) fn apply(&mut self, index: &mut HashMap<ExecutionId, usize>, line: HistoryLine) {
        let id = line.execution_id;
        let known = index.get(&id).copied();
        let entry = known.and_then(|place| self.entries.get_mut(place));
        match (line.event, entry) {
            (
                HistoryEvent::Started {
                    session_id,
                    profile,
                    variant,
                    kind,
                    workspace,
                    sandbox,
                    ..
                },
                None,
            ) => {
                index.insert(id.clone(), self.entries.len());
                self.entries.push(HistoryEntry {
                    execution_id: id,
                    session_id,
                    former_session_id: None,
                    profile_label: profile,
                    variant_label: variant,
                    kind,
                    workspace_path: workspace,
                    started_at: SystemTime::UNIX_EPOCH + Duration::from_millis(line.at),
                    permissions: Vec::new(),
                    sandbox,
                    state: HistoryState::Open,
                    is_id_reported: false,
                });
            }
            // `reap_orphans` writes the start again, in case that the host had not.
            (HistoryEvent::Started { .. }, Some(_)) => {}
            // The start has been rotated out.
            (_, None) => {}
            (
                HistoryEvent::Resolved {
                    session_id,
                    reported,
                },
                Some(entry),
            ) => {
                entry.rename(session_id);
                entry.is_id_reported |= reported;
            }
            (HistoryEvent::Ended { report }, Some(entry)) => {
                entry.rename(report.session_id.clone());
                entry.state = HistoryState::Ended(report);
            }
            (
                HistoryEvent::Permission {
                    permission,
                    tool,
                    decision,
                    by,
                },
                Some(entry),
            ) => entry.permissions.push(HistoryPermission {
                at: SystemTime::UNIX_EPOCH + Duration::from_millis(line.at),
                permission,
                tool,
                decision,
                by,
            }),
            (HistoryEvent::Reaped, Some(entry)) => entry.state = HistoryState::Reaped,
        }
    }
}

impl HistoryEntry {
    fn rename(&mut self, session_id: SessionId) {
        if self.session_id != session_id {
            let former = std::mem::replace(&mut self.session_id, session_id);
            self.former_session_id.get_or_insert(former);
        }
    }
}
