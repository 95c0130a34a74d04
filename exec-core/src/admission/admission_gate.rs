//! The gate that every launch passes: first come, first served, across processes.
//!
//! # Theory
//!
//! An execution that runs holds one of `max_running` *slots*: a locked file. A launch takes the
//! *gate*, a FIFO lock, then waits for a free slot and for free memory, and releases the gate. So
//! only the first launch in the queue looks for a slot, and no launch overtakes it.
//!
//! **Invariants.**
//! - At most `max_running` slots are locked, because there are no more files: the cap does not
//!   depend on counting. Services with different caps use the slots `0..max_running` each, so the
//!   largest cap of a state folder holds for all of them together.
//! - A slot is released when its execution has ended, or by the kernel when the host dies. The
//!   agents of a killed host may live on without a slot, until they end, or `reap_orphans` or the
//!   watcher of `end_with_host` ends them. `recover` adopts them, and gives them no slot.
//! - A launch that waits in the queue or for a slot holds no slot and no other lock that a running
//!   execution needs, so the queue always moves on. A launch that waits for memory holds the slot that
//!   it will use; it also holds the gate, so no other launch could take the slot.
//!
//! **Races.**
//! - A launch is dropped while it waits: its ticket, gate and watch are dropped with it. The thread of
//!   its [`FifoLock`] stays blocked until the launch before it is served. So that a caller that repeats
//!   launches with a time limit does not pile up threads, the locks of such launches are kept
//!   (`abandoned`), and from `MAX_ABANDONED` of them on, the next launch in the queue gets the oldest
//!   one. Its ticket is taken when the thread is free: only then can other launches overtake it.
//! - A host dies while it holds the gate: the kernel releases the lock, and the next launch has it.
//! - A slot is released between the look at the slots and the wait: the watch is started before the
//!   look ([`SlotWatch`](super::slot_folder::SlotWatch)).
//!
//! **Example.** `max_running` is 2; processes A, B and C launch one execution each.
//!
//! | step | gate | slots |
//! |---|---|---|
//! | A and B pass | free | A, B |
//! | C takes the gate and finds no slot | C | A, B |
//! | A launches again: it queues behind C | C, then A | A, B |
//! | B's process is killed | A | A, C |

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::WaitReason;
use super::free_memory::free_memory;
use super::slot_folder::{SlotFile, SlotFolder};
use super::wait_list::WaitTicket;
use crate::Error;
use crate::shared::fifo_lock::FifoLock;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;

/// How often the free memory is read while a launch waits for it: the kernel has no event for it
/// that works without a control group of our own.
const MEMORY_INTERVAL: Duration = Duration::from_millis(250);

/// From this number of abandoned locks on, a launch uses one of them.
const MAX_ABANDONED: usize = 8;

/// The conditions of a launch; `None` is off.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AdmissionRules {
    pub(crate) max_running: Option<usize>,
    pub(crate) min_free_memory: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct AdmissionGate {
    rules: AdmissionRules,
    gate_path: PathBuf,
    /// The locks of launches that were dropped while they waited, the oldest first.
    abandoned: Mutex<VecDeque<FifoLock>>,
    slots: SlotFolder,
}

/// The right to run. Dropping it admits the next launch.
#[derive(Debug)]
pub(crate) struct AdmissionSlot {
    _file: Option<SlotFile>,
}

impl AdmissionGate {
    /// `None` without rules: such a service neither waits nor counts.
    pub(crate) fn open(state_dir: &Path, rules: AdmissionRules) -> Result<Option<Self>, Error> {
        if rules.max_running.is_none() && rules.min_free_memory.is_none() {
            return Ok(None);
        }
        let folder = state_dir.join("admission");
        private_file::create_folder(&folder)?;
        Ok(Some(Self {
            rules,
            gate_path: folder.join("gate"),
            abandoned: Mutex::default(),
            slots: SlotFolder::create(folder.join("slots"), rules.max_running.unwrap_or(0))?,
        }))
    }

    /// Waits until the launch may start. Dropping the future leaves the queue.
    pub(crate) async fn enter(&self, ticket: &WaitTicket) -> Result<AdmissionSlot, Error> {
        let gate = FifoLock::new(&self.gate_path);
        let _gate = match gate.try_lock(Access::Exclusive)? {
            Some(gate) => gate,
            None => {
                ticket.wait_because(WaitReason::Queue);
                self.wait_in_queue().await?
            }
        };
        let file = match self.rules.max_running {
            Some(max_running) => Some(self.take_slot(max_running, ticket).await?),
            None => None,
        };
        self.wait_for_memory(ticket).await?;
        Ok(AdmissionSlot { _file: file })
    }

    async fn wait_in_queue(&self) -> Result<LockedFile, Error> {
        let lock = self.lock_for_queue();
        let waiting = lock.wait(Access::Exclusive)?;
        let mut place = Place {
            gate: self,
            lock: Some(lock),
        };
        let locked = waiting.await?;
        place.lock = None;
        Ok(locked)
    }

    /// A lock of its own for each launch: the waiters of one `FifoLock` share a thread, which takes the
    /// tickets of later ones only when the first one has been served. Launches wait for hours, and
    /// other processes would overtake them.
    fn lock_for_queue(&self) -> FifoLock {
        let mut abandoned = self.abandoned();
        let reused = match abandoned.len() < MAX_ABANDONED {
            true => None,
            false => abandoned.pop_front(),
        };
        reused.unwrap_or_else(|| FifoLock::new(&self.gate_path))
    }

    fn abandoned(&self) -> MutexGuard<'_, VecDeque<FifoLock>> {
        self.abandoned
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn take_slot(&self, max_running: usize, ticket: &WaitTicket) -> Result<SlotFile, Error> {
        if let Some(slot) = self.slots.try_take()? {
            return Ok(slot);
        }
        ticket.wait_because(WaitReason::Slot { max_running });
        let mut watch = self.slots.watch();
        loop {
            if let Some(slot) = self.slots.try_take()? {
                return Ok(slot);
            }
            watch.released().await;
        }
    }

    async fn wait_for_memory(&self, ticket: &WaitTicket) -> Result<(), Error> {
        let Some(minimum) = self.rules.min_free_memory else {
            return Ok(());
        };
        loop {
            let free = free_memory()?;
            if free >= minimum {
                return Ok(());
            }
            ticket.wait_because(WaitReason::Memory { free, minimum });
            tokio::time::sleep(MEMORY_INTERVAL).await;
        }
    }
}

/// The place of a launch in the queue. Dropping it keeps the lock, whose thread may be blocked.
struct Place<'a> {
    gate: &'a AdmissionGate,
    /// `None` when the launch was served.
    lock: Option<FifoLock>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.gate.abandoned().extend(self.lock.take());
    }
}
