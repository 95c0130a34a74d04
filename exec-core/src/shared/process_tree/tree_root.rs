use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use super::process_mark::ProcessMark;
use super::system;
use super::tree_memory::TreeMemory;
use crate::shared::proc_stat::ProcessKey;

/// Identifies the processes of one tree: a tag, a leader, or both.
#[derive(Debug)]
pub(crate) struct TreeRoot {
    /// The value of the tag variable.
    pub(crate) tag: Option<String>,
    /// The mark that belongs to the tag.
    pub(super) mark: Option<ProcessMark>,
    pid: Option<u32>,
    leader: OnceLock<Option<ProcessKey>>,
    /// Empty on a system with marks.
    memory: Mutex<TreeMemory>,
}

impl TreeRoot {
    /// A tree whose leader is `pid`, if there is one. Until the leader is first asked for, the
    /// caller must know that the id is not reused: the process is our unreaped child, or was just
    /// reported alive.
    pub(crate) fn new(tag: Option<String>, pid: Option<u32>) -> Self {
        Self {
            mark: tag.as_deref().map(ProcessMark::of),
            tag,
            pid,
            leader: OnceLock::new(),
            memory: Mutex::default(),
        }
    }

    /// A tree that was started earlier, perhaps by another process. The id of the leader may have
    /// been reused since: only a process with the same start time is the leader.
    pub(crate) fn recorded(tag: Option<String>, leader: Option<ProcessKey>) -> Self {
        Self {
            mark: tag.as_deref().map(ProcessMark::of),
            tag,
            pid: None,
            leader: OnceLock::from(leader),
            memory: Mutex::default(),
        }
    }

    /// The start time is read when it is first needed, not at the launch: the read costs a tenth
    /// of a spawn.
    pub(crate) fn leader(&self) -> Option<ProcessKey> {
        *self.leader.get_or_init(|| system::key_of(self.pid?))
    }

    /// No process of the tree is older than this.
    pub(super) fn since(&self) -> u64 {
        match system::START_TIMES_ARE_ORDERED {
            true => self.leader().map_or(0, |leader| leader.start_time),
            false => 0,
        }
    }

    pub(super) fn memory(&self) -> MutexGuard<'_, TreeMemory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
