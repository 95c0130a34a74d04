//! A list of tasks that workers share, on one machine or on several: each task is done once.
//!
//! Claims are leases of `timed-store`, in a file or on a Redis server. Results are snapshots of
//! `agent-snapshot`, one for each task, in any of its storages.
//!
//! # Theory
//!
//! A lease alone does not keep a task with one worker. A worker that is stopped (SIGSTOP, a
//! suspended virtual machine) or cut off for longer than its lease does not know, when it wakes up,
//! that another worker has the task. So the storage of the results decides: **the epoch of a
//! task's snapshot is the fencing token of the newest worker that took the task.**
//!
//! | step | save | accepted if |
//! |---|---|---|
//! | take with token `t` | tick 0, epoch `t` | tick 0 is stored, or nothing, with an epoch below `t` |
//! | finish with token `t` | tick 1, epoch `t`, the answer | tick 0 is stored with epoch `t` |
//!
//! Both are compare-and-swap in the storage, by its rules 5 and 7: an epoch never falls, and neither
//! does a tick.
//!
//! **Invariant.** A task goes from tick 0 to tick 1 once. A worker finishes only after it took the
//! task, so tick 0 was stored with its token `t`. If a worker with a larger token has taken the task
//! since, the stored epoch is above `t`, and the finish is a conflict. If a worker has finished it,
//! tick 1 is stored: a later take reads it, or its save of tick 0 is a conflict, and then reads it.
//!
//! **Races.**
//! - A takes (token 5) and is stopped. The lease expires, B takes (token 9): epoch 9. A wakes up and
//!   finishes with epoch 5: [`Overtaken`], and nothing is recorded.
//! - A is stopped between its claim and its take. It wakes up after B has taken: epoch 5 is below 9,
//!   so A leaves the task alone. A hydration, which always raises the epoch, would fence off B.
//! - A finishes between the load and the save of B's take: tick 0 after tick 1 is a conflict. B loads
//!   again and finds the answer.
//! - A finishes late, but the task was not taken again: the answer counts. The next take finds it.
//! - The answer to A's save is lost, and B takes before A repeats it. B finds tick 1, so the task is
//!   done, by A. A's repetition is a repeat or a conflict; A reads its own token and succeeds.
//!
//! **Effects elsewhere.** A resource outside of the storage needs the same two steps: the taker
//! announces its token there first, which fences off older tokens and tells whether the effect was
//! made; then it makes the effect with its token, which the resource compares with the newest one.
//! A resource that cannot compare may get an effect twice.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::fmt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use agent_snapshot::conversation::Message;
use agent_snapshot::{AgentId, AgentSnapshot, SnapshotStorage, Status};
use serde::{Deserialize, Serialize};
use timed_store::{Claim, KeepAlive, LockPolicy, OwnerProcess, SessionId, TimedStorage, Watch};
use tokio::sync::{Mutex as AsyncMutex, Notify};

use crate::Result;

/// How long a task stays with a worker that shows no sign of life.
pub const LEASE: Duration = Duration::from_secs(10);

/// How long [`TaskList::changed`] waits at most: a message of the server can be lost, and the end of a
/// task that another list took is no change of this one.
const LOOK: Duration = Duration::from_secs(1);

/// How long a change waits for the lock of a file. The machine may be so busy that ten seconds are too short;
/// a lease that ends meanwhile is noticed, but a program that gives up ends all its tasks.
pub const LOCK_LIMIT: Duration = Duration::from_secs(60);

/// Pause before a save is repeated that the storage did not answer.
const RETRY: Duration = Duration::from_millis(200);

/// How often a take is repeated after a conflict. Two are enough, unless other programs save the same
/// snapshots.
const MAX_ATTEMPTS: u32 = 8;

/// A piece of work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Unique in its list.
    pub id: String,
    /// The role of the workers that may take it.
    #[serde(default)]
    pub role: String,
    /// The prompt.
    pub text: String,
    /// The tasks that must be done before.
    #[serde(default)]
    pub after: Vec<String>,
}

/// Where the claims are.
#[derive(Clone)]
pub enum Place {
    /// In a file in this folder, for the processes of one machine.
    Folder(PathBuf),
    /// On the Redis server with this address, for several machines.
    Redis(String),
}

/// The address may contain a password.
impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => f.debug_tuple("Folder").field(folder).finish(),
            Self::Redis(_) => f.debug_tuple("Redis").finish_non_exhaustive(),
        }
    }
}

/// A task with its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DoneTask {
    /// The task.
    pub id: String,
    /// The worker that has done it.
    pub worker: String,
    /// What the worker has found.
    pub answer: String,
    /// The fencing token of the worker.
    pub token: u64,
}

/// The list. Clones share one connection and one session of claims.
#[derive(Clone)]
pub struct TaskList {
    shared: Arc<Shared>,
}

struct Shared {
    name: String,
    tasks: Vec<Task>,
    storage: Arc<dyn SnapshotStorage>,
    claims: TimedStorage<String>,
    /// One take at a time: the slots of one session do not exclude each other.
    taking: AsyncMutex<()>,
    takes: AtomicU64,
    /// A task that is done stays done, so its result is loaded once.
    done: Mutex<BTreeMap<String, DoneTask>>,
    watch: AsyncMutex<Watch<String>>,
    woken: Notify,
}

/// The options of a [`TaskList`].
#[must_use = "nothing is opened until `open`"]
pub struct TaskListBuilder {
    place: Place,
    storage: Arc<dyn SnapshotStorage>,
    tasks: Vec<Task>,
    name: Option<String>,
    lease: Duration,
}

impl TaskListBuilder {
    /// Sets the name of the list in its place and in the storage. The default is a digest of the
    /// tasks: workers with the same tasks share a list.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets how long a task stays with a worker that shows no sign of life; the default is [`LEASE`].
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Checks the tasks, and opens the list.
    pub async fn open(self) -> Result<TaskList> {
        check(&self.tasks)?;
        let name = match self.name {
            Some(name) => name,
            None => digest(&serde_json::to_vec(&self.tasks)?),
        };
        for task in &self.tasks {
            snapshot_id(&name, &task.id)?;
        }
        // A session of its own, also for a worker that is restarted under the same name: a claim of
        // a value that the session holds already would get the token of the earlier process.
        let session = SessionId::new(format!("tasks-{}", uuid::Uuid::new_v4().simple()))?;
        let claims: TimedStorage<String> = match self.place {
            Place::Folder(folder) => {
                let mut private = std::fs::DirBuilder::new();
                private.recursive(true).mode(0o700).create(&folder)?;
                TimedStorage::builder(folder.join(format!("claims-{name}.json")))
                    .session(session)
                    .owner(OwnerProcess::current())
                    .lock(LockPolicy::Wait(LOCK_LIMIT))
                    .ttl(self.lease)
                    .open()?
            }
            Place::Redis(url) => {
                TimedStorage::redis_builder(&url, &format!("tasks-{name}"))
                    .session(session)
                    .owner(OwnerProcess::current())
                    .ttl(self.lease)
                    .connect()
                    .await?
            }
        };
        Ok(TaskList {
            shared: Arc::new(Shared {
                name,
                tasks: self.tasks,
                storage: self.storage,
                watch: AsyncMutex::new(claims.watch()),
                claims,
                taking: AsyncMutex::default(),
                takes: AtomicU64::new(0),
                done: Mutex::default(),
                woken: Notify::new(),
            }),
        })
    }
}

impl TaskList {
    /// Opens a list with the default options.
    pub async fn open(
        place: Place,
        storage: Arc<dyn SnapshotStorage>,
        tasks: Vec<Task>,
    ) -> Result<Self> {
        Self::builder(place, storage, tasks).open().await
    }

    /// Starts to open a list with options.
    pub fn builder(
        place: Place,
        storage: Arc<dyn SnapshotStorage>,
        tasks: Vec<Task>,
    ) -> TaskListBuilder {
        TaskListBuilder {
            place,
            storage,
            tasks,
            name: None,
            lease: LEASE,
        }
    }

    /// The name of the list.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// All tasks.
    pub fn tasks(&self) -> &[Task] {
        &self.shared.tasks
    }

    /// Claims one ready, unfinished task for `worker`, of the role if one is given. The lease is renewed
    /// until the task is finished or dropped, and ends with the process.
    ///
    /// `None`: no task is ready, or other workers have them all. Wait for [`changed`](Self::changed),
    /// unless [`is_complete`](Self::is_complete).
    pub async fn take(&self, worker: &str, role: Option<&str>) -> Result<Option<TakenTask>> {
        let shared = &*self.shared;
        let _alone = shared.taking.lock().await;
        let entries = shared.claims.entries().await?;
        let held = entries.iter().map(|(_, entry)| entry.value().clone());
        let held: BTreeSet<String> = held.collect();
        // Loaded at most once in this call.
        let mut unfinished = BTreeSet::new();
        for task in &shared.tasks {
            if role.is_some_and(|role| role != task.role) || held.contains(&task.id) {
                continue;
            }
            if self.is_done(&task.id, &mut unfinished).await? {
                continue;
            }
            let mut is_ready = true;
            for before in &task.after {
                is_ready = is_ready && self.is_done(before, &mut unfinished).await?;
            }
            if !is_ready {
                continue;
            }
            if let Some(taken) = self.take_one(worker, task).await? {
                return Ok(Some(taken));
            }
        }
        Ok(None)
    }

    /// Claims a task, and fences off its earlier workers in the storage. See the theory above.
    async fn take_one(&self, worker: &str, task: &Task) -> Result<Option<TakenTask>> {
        let shared = &*self.shared;
        let number = shared.takes.fetch_add(1, Ordering::Relaxed);
        let slot = shared.claims.slot(&slot_name(worker, number))?;
        let lease = match slot.claim(task.id.clone()).await? {
            Claim::Granted(lease) => lease,
            Claim::Busy { .. } => return Ok(None),
        };
        let guard = slot.keep_alive(lease)?.release_on_drop();
        let token = guard.lease().token();
        let id = snapshot_id(&shared.name, &task.id)?;
        let mut attempts = 0;
        loop {
            attempts += 1;
            let stored = shared.storage.load(&id).await?;
            let mut snapshot = stored.unwrap_or_else(|| AgentSnapshot::new(id.clone()));
            if let Some(done) = read_done(task, &snapshot) {
                self.remember(done);
                guard.release().await?;
                return Ok(None);
            }
            if snapshot.epoch > token {
                return Ok(None);
            }
            snapshot.epoch = token;
            snapshot.holder = Some(format!("{worker}/{token}"));
            snapshot.status = Status::RUNNING;
            snapshot.set_timestamp(SystemTime::now());
            match shared.storage.save(&snapshot).await {
                Ok(()) => {
                    return Ok(Some(TakenTask {
                        list: self.clone(),
                        task: task.clone(),
                        worker: worker.to_owned(),
                        guard,
                        snapshot,
                    }));
                }
                // Another worker has saved since the load: a larger epoch, or tick 1. The next round
                // finds it.
                Err(error)
                    if (error.is_conflict() || error.is_rewound()) && attempts < MAX_ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The results so far, in the order of the list.
    pub async fn done(&self) -> Result<Vec<DoneTask>> {
        let mut unfinished = BTreeSet::new();
        for task in &self.shared.tasks {
            self.is_done(&task.id, &mut unfinished).await?;
        }
        let done = self.shared.done();
        let tasks = self.shared.tasks.iter();
        Ok(tasks
            .filter_map(|task| done.get(&task.id).cloned())
            .collect())
    }

    /// Whether all tasks are done.
    pub async fn is_complete(&self) -> Result<bool> {
        let mut unfinished = BTreeSet::new();
        for task in &self.shared.tasks {
            if !self.is_done(&task.id, &mut unfinished).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until a claim was taken, released or has expired, for a second at most.
    pub async fn changed(&self) {
        let shared = &*self.shared;
        let watched = async {
            let mut watch = shared.watch.lock().await;
            // An error is a reason to look, too.
            let _ = watch.next().await;
            // Changes that came together are one reason to look.
            while let Ok(Ok(_)) = tokio::time::timeout(Duration::ZERO, watch.next()).await {}
            shared.woken.notify_waiters();
        };
        tokio::select! {
            () = watched => {}
            () = shared.woken.notified() => {}
            () = tokio::time::sleep(LOOK) => {}
        }
    }

    async fn is_done(&self, task: &str, unfinished: &mut BTreeSet<String>) -> Result<bool> {
        let shared = &*self.shared;
        if shared.done().contains_key(task) {
            return Ok(true);
        }
        if unfinished.contains(task) {
            return Ok(false);
        }
        let stored = shared
            .storage
            .load(&snapshot_id(&shared.name, task)?)
            .await?;
        let task = shared.tasks.iter().find(|known| known.id == task);
        let found = stored.zip(task);
        let done = found.and_then(|(snapshot, task)| read_done(task, &snapshot));
        match (done, task) {
            (Some(done), _) => {
                self.remember(done);
                Ok(true)
            }
            (None, task) => {
                unfinished.extend(task.map(|task| task.id.clone()));
                Ok(false)
            }
        }
    }

    fn remember(&self, done: DoneTask) {
        self.shared.done().insert(done.id.clone(), done);
    }
}

impl Shared {
    fn done(&self) -> MutexGuard<'_, BTreeMap<String, DoneTask>> {
        self.done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for TaskList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskList")
            .field("name", &self.shared.name)
            .field("tasks", &self.shared.tasks.len())
            .field("done", &self.shared.done().len())
            .finish_non_exhaustive()
    }
}

/// A task that a worker has taken.
///
/// Dropping it gives the task back: other workers can take it at once. The drop waits for the
/// server, for two seconds at most; [`give_back`](Self::give_back) does not block the thread.
pub struct TakenTask {
    list: TaskList,
    task: Task,
    worker: String,
    guard: KeepAlive<String>,
    /// As saved when the task was taken.
    snapshot: AgentSnapshot,
}

impl TakenTask {
    /// The task.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// The fencing token, for effects outside of the list: larger than the token of every worker that
    /// took the task before.
    pub fn token(&self) -> u64 {
        self.guard.lease().token()
    }

    /// Waits until the lease is lost. Another worker may have the task; to go on with the work is a waste
    /// of time, but not harmful.
    pub async fn lost(&self) {
        self.guard.lost().await;
    }

    /// Records the answer, and releases the task.
    ///
    /// The error is [`Overtaken`] if another worker has taken the task since; then nothing is recorded. A
    /// lost lease alone is no error: if no other worker has the task, the answer counts.
    pub async fn finish(self, answer: &str) -> Result<()> {
        let Self {
            list,
            task,
            worker,
            guard,
            mut snapshot,
        } = self;
        let token = guard.lease().token();
        snapshot.tick_index = 1;
        snapshot.status = Status::STOPPED;
        snapshot.set_timestamp(SystemTime::now());
        let memory = &mut snapshot.memory;
        memory
            .working_variables
            .insert(WORKER.into(), worker.into());
        memory.working_variables.insert(TOKEN.into(), token.into());
        memory.short_term_history.push(Message::assistant(answer));
        let storage = &list.shared.storage;
        loop {
            let error = match storage.save(&snapshot).await {
                Ok(()) => break,
                Err(error) => error,
            };
            if error.is_conflict() || error.is_rewound() {
                let stored = storage.load(&snapshot.agent_id).await?;
                let done = stored.as_ref().and_then(|stored| read_done(&task, stored));
                if done.is_some_and(|done| done.token == token) {
                    break;
                }
                let newest = stored.map_or(0, |stored| stored.epoch);
                let task = task.id;
                return Err(Overtaken {
                    task,
                    token,
                    newest,
                }
                .into());
            }
            if !error.is_backend_failure() || guard.is_lost() {
                return Err(error.into());
            }
            // The outcome is unknown; the same save may be repeated.
            tokio::time::sleep(RETRY).await;
        }
        if let Some(done) = read_done(&task, &snapshot) {
            list.remember(done);
        }
        // The answer is recorded. A claim that stays is removed by its expiry.
        let _ = guard.release().await;
        Ok(())
    }

    /// Gives the task back without an answer.
    pub async fn give_back(self) -> Result<()> {
        self.guard.release().await?;
        Ok(())
    }
}

impl fmt::Debug for TakenTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TakenTask")
            .field("task", &self.task.id)
            .field("worker", &self.worker)
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}

/// Another worker has taken the task in the meantime; the answer was not recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overtaken {
    /// The task.
    pub task: String,
    /// The token of the late worker.
    pub token: u64,
    /// The token of the newest worker.
    pub newest: u64,
}

impl fmt::Display for Overtaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            task,
            token,
            newest,
        } = self;
        write!(
            f,
            "task {task}: token {token} was overtaken by token {newest}; the answer is not recorded"
        )
    }
}

impl Error for Overtaken {}

const WORKER: &str = "worker";
const TOKEN: &str = "token";

/// The result in a snapshot; `None` at tick 0.
fn read_done(task: &Task, snapshot: &AgentSnapshot) -> Option<DoneTask> {
    if snapshot.tick_index == 0 {
        return None;
    }
    let variables = &snapshot.memory.working_variables;
    let worker = variables.get(WORKER).and_then(|worker| worker.as_str());
    let token = variables.get(TOKEN).and_then(|token| token.as_u64());
    let answer = snapshot.memory.short_term_history.iter().next_back();
    let answer = answer.and_then(|message| message.content.clone());
    Some(DoneTask {
        id: task.id.clone(),
        worker: worker.unwrap_or_default().to_owned(),
        answer: answer.unwrap_or_default(),
        token: token.unwrap_or_default(),
    })
}

fn snapshot_id(list: &str, task: &str) -> Result<AgentId> {
    Ok(AgentId::new(format!("task.{list}.{task}"))?)
}

/// The characters of a slot are restricted; the number makes it unique.
fn slot_name(worker: &str, number: u64) -> String {
    let allowed = |c: char| {
        let is_allowed = c.is_ascii_alphanumeric() || "._-".contains(c);
        if is_allowed { c } else { '_' }
    };
    let worker: String = worker.chars().take(40).map(allowed).collect();
    format!("{worker}.{number}")
}

/// Ids are unique, `after` names known tasks, and every task can become ready.
fn check(tasks: &[Task]) -> Result<()> {
    let mut open: BTreeMap<&str, &Task> = BTreeMap::new();
    for task in tasks {
        if open.insert(&task.id, task).is_some() {
            return Err(format!("two tasks have the id `{}`", task.id).into());
        }
    }
    for task in tasks {
        if let Some(unknown) = task.after.iter().find(|id| !open.contains_key(id.as_str())) {
            let id = &task.id;
            return Err(
                format!("task `{id}` is after `{unknown}`, which is not in the list").into(),
            );
        }
    }
    loop {
        let is_blocked = |task: &Task| task.after.iter().any(|id| open.contains_key(id.as_str()));
        let ready = open.values().filter(|task| !is_blocked(task));
        let ready: Vec<&str> = ready.map(|task| task.id.as_str()).collect();
        if ready.is_empty() {
            break;
        }
        for id in ready {
            open.remove(id);
        }
    }
    match open.keys().next() {
        None => Ok(()),
        Some(id) => Err(format!("task `{id}` waits for itself").into()),
    }
}

/// FNV-1a: the same on every machine and in every version, unlike the hasher of the standard library.
pub fn digest(bytes: &[u8]) -> String {
    let mut digest = 0xcbf2_9ce4_8422_2325_u64;
    for byte in bytes {
        digest = (digest ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    format!("{digest:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks(list: &[(&str, &[&str])]) -> Vec<Task> {
        let task = |(id, after): &(&str, &[&str])| Task {
            id: (*id).to_owned(),
            role: String::new(),
            text: String::new(),
            after: after.iter().map(|id| (*id).to_owned()).collect(),
        };
        list.iter().map(task).collect()
    }

    #[track_caller]
    fn refused(list: &[(&str, &[&str])], expected: &str) {
        let error = check(&tasks(list)).map_err(|error| error.to_string());
        assert_eq!(error, Err(expected.to_owned()));
    }

    #[test]
    fn a_list_that_cannot_be_done_is_refused() {
        refused(&[("a", &[]), ("a", &[])], "two tasks have the id `a`");
        refused(
            &[("a", &["b"])],
            "task `a` is after `b`, which is not in the list",
        );
        refused(&[("a", &["a"])], "task `a` waits for itself");
        refused(
            &[("a", &[]), ("b", &["a", "c"]), ("c", &["b"])],
            "task `b` waits for itself",
        );
        let diamond = tasks(&[("d", &["b", "c"]), ("b", &["a"]), ("c", &["a"]), ("a", &[])]);
        assert!(check(&diamond).is_ok());
    }

    #[test]
    fn the_digest_is_that_of_fnv_1a() {
        assert_eq!(digest(b""), "cbf29ce484222325");
        assert_eq!(digest(b"foobar"), "85944171f73967e8");
    }

    #[test]
    fn a_slot_name_has_allowed_characters_only() {
        assert_eq!(slot_name("host 1/é", 3), "host_1__.3");
    }
}
