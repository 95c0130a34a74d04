//! The end of executions whose host has died.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::history::HistoryEvent;
use super::owner_journal::{LiveRecord, OrphanedJournal, boot_id};
use crate::process::{TAG_VARIABLE, stop_tree};
use crate::service::ServiceInner;
use crate::shared::process_tree::{ProcessScanner, TreeEnder};
use crate::{Error, ExecutionId, ExecutionService, SessionId};

/// The executions that [`reap_orphans`](ExecutionService::reap_orphans) found.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// let report = service.reap_orphans().await?;
/// for execution in &report.executions {
///     println!("{}: {} processes", execution.session_id, execution.processes);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReapReport {
    /// The executions that had lost their host, including executions whose
    /// processes had already ended.
    pub executions: Vec<ReapedExecution>,
}

/// One execution that had lost its host.
///
/// ```
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/doctest.rs"));
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (_folder, service) = doctest::open("exit 0");
/// for execution in service.reap_orphans().await?.executions {
///     if !execution.survivors.is_empty() {
///         eprintln!("{} is still alive: {:?}", execution.session_id, execution.survivors);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReapedExecution {
    /// The id of the launch.
    pub execution_id: ExecutionId,
    /// The session, as far as its id was known.
    pub session_id: SessionId,
    /// The profile.
    pub profile_label: String,
    /// How many processes were still alive.
    pub processes: usize,
    /// Processes that could not be ended. The execution stays on record for the next call.
    pub survivors: Vec<u32>,
}

impl ExecutionService {
    /// Ends the processes of executions whose service is gone. Call it after the start, or at any
    /// time.
    ///
    /// It does not touch: executions of a running service (in this process or another one),
    /// executions of another host program, processes of other users, processes with a reused id.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] or [`Error::NotPrivate`] if a record cannot be read or removed. Processes
    /// that were ended stay ended.
    ///
    /// # Cancel safety
    ///
    /// Cancel safe: dropping the future leaves the other executions for the next call.
    pub async fn reap_orphans(&self) -> Result<ReapReport, Error> {
        let inner = self.inner();
        let settings = &inner.settings;
        let boot_id = boot_id()?;
        let scanner = Arc::new(ProcessScanner::new(TAG_VARIABLE));
        let mut report = ReapReport::default();
        let (folder, host) = (settings.state_dir.clone(), settings.host_name.clone());
        let found = tokio::task::spawn_blocking(move || OrphanedJournal::find_all(&folder, &host));
        for mut journal in found.await.unwrap_or(Err(Error::ShuttingDown))? {
            let same_boot = journal.header.boot_id == boot_id;
            let mut reaping = JoinSet::new();
            for record in journal.live.clone() {
                inner.write_missing_start(&record);
                let (service, scanner) = (self.clone(), Arc::clone(&scanner));
                reaping.spawn(async move { service.reap(&scanner, record, same_boot).await });
            }
            let reaped = reaping.join_all().await;
            let has_ended = |execution: &&ReapedExecution| execution.survivors.is_empty();
            let ended = reaped.iter().filter(has_ended);
            let ended: Vec<_> = ended.map(|one| one.execution_id.clone()).collect();
            report.executions.extend(reaped);
            for id in &ended {
                inner.history.write(id, HistoryEvent::Reaped);
            }
            if ended.len() == journal.live.len() {
                journal.remove()?;
                continue;
            }
            for id in &ended {
                journal.ended(id)?;
            }
        }
        Ok(report)
    }

    async fn reap(
        &self,
        scanner: &ProcessScanner,
        mut record: LiveRecord,
        same_boot: bool,
    ) -> ReapedExecution {
        if !same_boot {
            record.process = None;
        }
        let roots = [record.root()];
        let uid = rustix::process::geteuid().as_raw();
        let tree = TreeEnder::new(scanner, &roots).only_uid(uid);
        let ladder = &self.inner().settings.stop_ladder;
        let tree = stop_tree(tree, ladder, |_| {}, std::future::pending()).await;
        tracing::info!(
            execution_id = %record.execution_id,
            processes = tree.processes,
            "reaped an execution of an earlier run"
        );
        ReapedExecution {
            execution_id: record.execution_id,
            session_id: record.session_id,
            profile_label: record.profile,
            processes: tree.processes,
            survivors: tree.survivors,
        }
    }
}

impl ServiceInner {
    /// The host may have died before it wrote the start to the history. A second start line has
    /// no effect.
    pub(crate) fn write_missing_start(&self, record: &LiveRecord) {
        let Some(start) = &record.start else { return };
        self.history.write_at(
            start.at,
            &record.execution_id,
            HistoryEvent::Started {
                session_id: record.session_id.clone(),
                profile: record.profile.clone(),
                variant: start.variant.clone(),
                kind: start.kind,
                workspace: start.workspace.clone().into(),
                process_id: record.process.map(|(pid, _)| pid),
                sandbox: start.sandbox.as_deref().cloned(),
            },
        );
    }
}
