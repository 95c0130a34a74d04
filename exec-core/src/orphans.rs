use std::sync::Arc;

use tokio::task::JoinSet;

use crate::error::Result;
use crate::history::What;
use crate::launch_plan::TAG_VARIABLE;
use crate::service::Inner;
use crate::shared::proc_stat::ProcessKey;
use crate::shared::process_tree::{ProcessScanner, TreeEnder, TreeRoot};
use crate::state::{Estate, LiveRecord, boot_id};
use crate::stop::stop;
use crate::{Error, ExecutionService, SessionId};

/// What earlier runs of this host had left behind.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ReapReport {
    /// The executions that nobody supervised any more, also those that had ended since.
    pub executions: Vec<ReapedExecution>,
}

/// One execution that had lost its host.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReapedExecution {
    /// The id of the launch.
    pub execution_id: String,
    /// The session, as it was known at the start.
    pub session_id: SessionId,
    /// The profile.
    pub profile_label: String,
    /// How many processes were still alive, and were ended.
    pub processes: usize,
    /// Processes that could not be ended. The execution stays on record for the next time.
    pub survivors: Vec<u32>,
}

impl Inner {
    /// The host may have died before it did so; a second line says nothing new.
    fn write_down_start(&self, record: &LiveRecord) {
        let Some(start) = &record.start else { return };
        self.history.write_at(
            start.at,
            &record.execution_id.to_string(),
            What::Started {
                session_id: record.session_id.clone(),
                profile: record.profile.clone(),
                variant: start.variant.clone(),
                kind: start.kind,
                workspace: start.workspace.clone().into(),
                process_id: record.process.map(|(pid, _)| pid),
            },
        );
    }
}

impl ExecutionService {
    /// Ends what earlier runs of this host have left behind: the processes of executions whose
    /// owner no longer holds the lock of its record. Call it after the start, or whenever.
    ///
    /// It leaves alone whatever is owned by a service that lives, in this process or another one;
    /// whatever another host program has started; processes of other users; and processes that
    /// merely have a number that one of ours once had.
    ///
    /// # Errors
    /// [`Error::State`] if the records cannot be read or removed. What was ended stays ended.
    ///
    /// # Cancel safety
    /// Dropped early, what is not done is left for the next call.
    pub async fn reap_orphans(&self) -> Result<ReapReport> {
        let inner = self.inner();
        let settings = &inner.settings;
        let boot_id = boot_id().map_err(|source| Error::ProcessTable { source })?;
        let scanner = Arc::new(ProcessScanner::new(TAG_VARIABLE));
        let mut report = ReapReport::default();
        for estate in Estate::find_all(&settings.state_dir, &settings.host_name)? {
            let same_boot = estate.header.boot_id == boot_id;
            for record in &estate.live {
                inner.write_down_start(record);
            }
            let mut reaping = JoinSet::new();
            for record in estate.live.clone() {
                let (service, scanner) = (self.clone(), Arc::clone(&scanner));
                reaping.spawn(async move { service.reap(&scanner, record, same_boot).await });
            }
            let reaped = reaping.join_all().await;
            let all_ended = reaped
                .iter()
                .all(|execution| execution.survivors.is_empty());
            for execution in &reaped {
                inner.history.write(&execution.execution_id, What::Reaped);
            }
            report.executions.extend(reaped);
            if all_ended {
                estate.remove()?;
            }
        }
        Ok(report)
    }

    async fn reap(
        &self,
        scanner: &ProcessScanner,
        record: LiveRecord,
        same_boot: bool,
    ) -> ReapedExecution {
        let inner = self.inner();
        let leader = record
            .process
            .filter(|_| same_boot)
            .map(|(pid, start_time)| ProcessKey { pid, start_time });
        let roots = [TreeRoot::recorded(
            Some(record.execution_id.to_string()),
            leader,
        )];
        let uid = rustix::process::geteuid().as_raw();
        let tree = TreeEnder::new(scanner, &roots).only_uid(uid);
        let tree = stop(tree, &inner.settings.stop_ladder, || {}).await.end;
        tracing::info!(
            execution_id = %record.execution_id,
            processes = tree.processes,
            "reaped an execution of an earlier run"
        );
        ReapedExecution {
            execution_id: record.execution_id.to_string(),
            session_id: record.session_id,
            profile_label: record.profile,
            processes: tree.processes,
            survivors: tree.survivors,
        }
    }
}
