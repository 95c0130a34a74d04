//! The list of tasks: each task is done once, whatever happens to the workers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent_snapshot::{
    AgentId, AgentSnapshot, Error, FileStorage, MemoryStorage, RedisStorage, SnapshotStorage,
};
use async_trait::async_trait;
use examples::redis_server::{RedisServer, SyncLog};
use examples::task_list::{Overtaken, Place, TakenTask, Task, TaskList};
use tempfile::TempDir;
use timed_store::TimedStorage;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

/// Short, so that a paused worker loses it soon.
const LEASE: Duration = Duration::from_millis(300);
/// Longer than any test.
const LONG_LEASE: Duration = Duration::from_secs(600);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn task(id: impl Into<String>, after: &[&str]) -> Task {
    Task {
        id: id.into(),
        role: String::new(),
        text: "work".to_owned(),
        after: after.iter().map(|&id| id.to_owned()).collect(),
    }
}

/// A place for claims and results: files, or a private Redis server for both.
struct Shelf {
    folder: TempDir,
    server: Option<RedisServer>,
}

impl Shelf {
    fn both() -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let server = RedisServer::start(folder.path(), SyncLog::EverySecond).unwrap();
        let server = Some(server);
        [Self::files(), Self { folder, server }]
    }

    fn files() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = None;
        Self { folder, server }
    }

    fn place(&self) -> Place {
        match &self.server {
            None => Place::Folder(self.folder.path().join("claims")),
            Some(server) => Place::Redis(server.url()),
        }
    }

    async fn storage(&self) -> Arc<dyn SnapshotStorage> {
        match &self.server {
            None => Arc::new(
                FileStorage::open(self.folder.path().join("results"))
                    .await
                    .unwrap(),
            ),
            Some(server) => Arc::new(RedisStorage::connect(&server.url()).await.unwrap()),
        }
    }

    /// As another process would open it.
    async fn list(&self, tasks: &[Task], lease: Duration) -> TaskList {
        self.list_on(self.storage().await, tasks, lease).await
    }

    async fn list_on(
        &self,
        storage: Arc<dyn SnapshotStorage>,
        tasks: &[Task],
        lease: Duration,
    ) -> TaskList {
        let list = TaskList::builder(self.place(), storage, tasks.to_vec());
        list.name("test").lease(lease).open().await.unwrap()
    }
}

/// Takes a task as soon as there is one.
async fn wait_for_task(list: &TaskList, worker: &str) -> TakenTask {
    loop {
        if let Some(taken) = list.take(worker, None).await.unwrap() {
            return taken;
        }
        list.changed().await;
    }
}

async fn answers(list: &TaskList) -> Vec<(String, String)> {
    let done = list.done().await.unwrap();
    done.into_iter()
        .map(|done| (done.worker, done.answer))
        .collect()
}

/// How many answers the storage has for a task.
async fn recorded(storage: &dyn SnapshotStorage, task: &str) -> usize {
    let id = AgentId::new(format!("task.test.{task}")).unwrap();
    storage.stream(&id, 0..100).await.unwrap().len()
}

#[track_caller]
fn overtaken(result: examples::Result<()>) -> Overtaken {
    let error = result.unwrap_err();
    error.downcast_ref::<Overtaken>().unwrap().clone()
}

#[test]
fn many_workers_do_each_task_once_and_in_order() {
    for shelf in Shelf::both() {
        runtime().block_on(async {
            // Three chains of ten tasks, and ten that wait for no other.
            let mut tasks = Vec::new();
            for chain in ["a", "b", "c"] {
                for at in 0..10 {
                    let before = format!("{chain}{}", at - 1);
                    let after: &[&str] = if at == 0 { &[] } else { &[&before] };
                    tasks.push(task(format!("{chain}{at}"), after));
                }
            }
            tasks.extend((0..10).map(|at| task(format!("free{at}"), &[])));
            let order = Arc::new(Mutex::new(Vec::new()));
            let mut workers = tokio::task::JoinSet::new();
            for host in 0..3 {
                let list = shelf.list(&tasks, LONG_LEASE).await;
                for worker in 0..2 {
                    let (list, order) = (list.clone(), Arc::clone(&order));
                    workers.spawn(async move {
                        let name = format!("host{host}-{worker}");
                        while !list.is_complete().await.unwrap() {
                            let Some(taken) = list.take(&name, None).await.unwrap() else {
                                list.changed().await;
                                continue;
                            };
                            let id = taken.task().id.clone();
                            tokio::task::yield_now().await;
                            order.lock().unwrap().push(id.clone());
                            taken.finish(&format!("did {id}")).await.unwrap();
                        }
                    });
                }
            }
            workers.join_all().await;
            let order = order.lock().unwrap().clone();
            let different: BTreeSet<&String> = order.iter().collect();
            assert_eq!((order.len(), different.len()), (40, 40), "{order:?}");
            for chain in ["a", "b", "c"] {
                let chain = order.iter().filter(|id| id.starts_with(chain));
                assert!(chain.is_sorted(), "{order:?}");
            }
            let storage = shelf.storage().await;
            let list = shelf.list(&tasks, LONG_LEASE).await;
            let done = list.done().await.unwrap();
            let ids = done.iter().map(|done| &done.id);
            assert!(ids.eq(tasks.iter().map(|task| &task.id)));
            for done in &done {
                assert_eq!(done.answer, format!("did {}", done.id));
                assert_eq!(recorded(&*storage, &done.id).await, 1);
            }
        });
    }
}

#[test]
fn a_worker_that_was_paused_past_its_lease_records_nothing() {
    for shelf in Shelf::both() {
        let tasks = [task("one", &[])];
        // A runtime that is not polled is a stopped process: it renews no lease.
        let paused = runtime();
        let late = paused.block_on(async {
            let list = shelf.list(&tasks, LEASE).await;
            wait_for_task(&list, "paused").await
        });
        let (token, awake) = (late.token(), runtime());
        let (list, taken) = awake.block_on(async {
            let list = shelf.list(&tasks, LONG_LEASE).await;
            let taken = wait_for_task(&list, "awake").await;
            (list, taken)
        });
        assert!(taken.token() > token);

        // It wakes up while the other one works.
        let refused = overtaken(paused.block_on(late.finish("too late")));
        let newest = taken.token();
        let task = "one".to_owned();
        assert_eq!(
            refused,
            Overtaken {
                task,
                token,
                newest
            }
        );
        awake.block_on(async {
            assert!(!list.is_complete().await.unwrap());
            taken.finish("in time").await.unwrap();
            let expected = [("awake".to_owned(), "in time".to_owned())];
            assert_eq!(answers(&list).await, expected);
            assert_eq!(recorded(&*shelf.storage().await, "one").await, 1);
        });
    }
}

#[test]
fn a_worker_that_wakes_up_after_the_end_changes_nothing() {
    for shelf in Shelf::both() {
        let tasks = [task("one", &[])];
        let paused = runtime();
        let late = paused.block_on(async {
            let list = shelf.list(&tasks, LEASE).await;
            wait_for_task(&list, "paused").await
        });
        let awake = runtime();
        awake.block_on(async {
            let list = shelf.list(&tasks, LONG_LEASE).await;
            let taken = wait_for_task(&list, "awake").await;
            taken.finish("in time").await.unwrap();
        });
        overtaken(paused.block_on(late.finish("too late")));
        awake.block_on(async {
            let list = shelf.list(&tasks, LONG_LEASE).await;
            let expected = [("awake".to_owned(), "in time".to_owned())];
            assert_eq!(answers(&list).await, expected);
            assert_eq!(recorded(&*shelf.storage().await, "one").await, 1);
        });
    }
}

#[test]
fn a_late_answer_counts_if_the_task_was_not_taken_again() {
    let shelf = Shelf::files();
    let tasks = [task("one", &[])];
    let paused = runtime();
    let late = paused.block_on(async {
        let list = shelf.list(&tasks, LEASE).await;
        wait_for_task(&list, "paused").await
    });
    let awake = runtime();
    awake.block_on(async {
        let claims = shelf.folder.path().join("claims/claims-test.json");
        let claims = TimedStorage::<String>::open(claims).unwrap();
        let mut changes = claims.watch();
        while claims.entries().await.unwrap().iter().next().is_some() {
            changes.next().await.unwrap();
        }
    });
    paused.block_on(late.finish("late")).unwrap();
    awake.block_on(async {
        let list = shelf.list(&tasks, LONG_LEASE).await;
        assert!(list.take("awake", None).await.unwrap().is_none());
        assert!(list.is_complete().await.unwrap());
        let expected = [("paused".to_owned(), "late".to_owned())];
        assert_eq!(answers(&list).await, expected);
    });
}

/// A storage in which one call can be stopped, and the answer of a save be lost.
#[derive(Debug)]
struct Rigged {
    inner: MemoryStorage,
    /// The number of the load that waits; 0 is none.
    stop_load: AtomicUsize,
    loads: AtomicUsize,
    reached: Notify,
    /// How many answers to saves of tick 1 are lost.
    lose_answers: AtomicUsize,
}

impl Rigged {
    fn new(inner: MemoryStorage) -> Self {
        Self {
            inner,
            stop_load: AtomicUsize::new(0),
            loads: AtomicUsize::new(0),
            reached: Notify::new(),
            lose_answers: AtomicUsize::new(0),
        }
    }
}

#[async_trait]
impl SnapshotStorage for Rigged {
    async fn save(&self, snapshot: &AgentSnapshot) -> Result<(), Error> {
        self.inner.save(snapshot).await?;
        let lose = |left: usize| left.checked_sub(1);
        let order = Ordering::Relaxed;
        if snapshot.tick_index == 1 && self.lose_answers.fetch_update(order, order, lose).is_ok() {
            return Err(Error::Storage {
                action: "save to",
                location: "the storage".to_owned(),
                source: "the answer was lost".into(),
            });
        }
        Ok(())
    }

    async fn load(&self, agent: &AgentId) -> Result<Option<AgentSnapshot>, Error> {
        let number = self.loads.fetch_add(1, Ordering::Relaxed) + 1;
        if number == self.stop_load.load(Ordering::Relaxed) {
            self.reached.notify_one();
            while self.stop_load.load(Ordering::Relaxed) != 0 {
                tokio::task::yield_now().await;
            }
        }
        self.inner.load(agent).await
    }

    async fn delete(&self, agent: &AgentId) -> Result<(), Error> {
        self.inner.delete(agent).await
    }

    async fn list(&self) -> Result<Vec<AgentId>, Error> {
        self.inner.list().await
    }
}

#[test]
fn a_worker_that_was_paused_between_claim_and_take_leaves_the_task_to_its_successor() {
    let shelf = Shelf::files();
    let tasks = [task("one", &[])];
    let memory = MemoryStorage::new();
    let rigged = Arc::new(Rigged::new(memory.clone()));
    let (paused, awake) = (runtime(), runtime());
    let late = paused.block_on(shelf.list_on(rigged.clone(), &tasks, LEASE));
    // The first load is before the claim, the second one after it.
    rigged.stop_load.store(2, Ordering::Relaxed);
    let mut taking = Box::pin(late.take("paused", None));
    paused.block_on(async {
        tokio::select! {
            taken = &mut taking => panic!("not stopped: {taken:?}"),
            () = rigged.reached.notified() => {}
        }
    });
    let (list, taken) = awake.block_on(async {
        let list = shelf
            .list_on(Arc::new(memory.clone()), &tasks, LONG_LEASE)
            .await;
        let taken = wait_for_task(&list, "awake").await;
        (list, taken)
    });
    rigged.stop_load.store(0, Ordering::Relaxed);
    assert!(paused.block_on(taking).unwrap().is_none());
    awake.block_on(async {
        taken.finish("in time").await.unwrap();
        let expected = [("awake".to_owned(), "in time".to_owned())];
        assert_eq!(answers(&list).await, expected);
    });
}

#[test]
fn an_answer_whose_save_was_not_acknowledged_is_recorded_once() {
    let shelf = Shelf::files();
    let tasks = [task("one", &[])];
    let memory = MemoryStorage::new();
    let rigged = Arc::new(Rigged::new(memory.clone()));
    runtime().block_on(async {
        let list = shelf.list_on(rigged.clone(), &tasks, LONG_LEASE).await;
        let taken = wait_for_task(&list, "worker").await;
        rigged.lose_answers.store(2, Ordering::Relaxed);
        taken.finish("done").await.unwrap();
        assert_eq!(rigged.lose_answers.load(Ordering::Relaxed), 0);
        assert_eq!(recorded(&memory, "one").await, 1);
        let expected = [("worker".to_owned(), "done".to_owned())];
        assert_eq!(answers(&list).await, expected);
    });
}

#[test]
fn a_task_is_offered_to_its_role_after_the_tasks_before_it() {
    let shelf = Shelf::files();
    let mut tasks = [task("plan", &[]), task("code", &["plan"])];
    tasks[0].role = "boss".to_owned();
    tasks[1].role = "coder".to_owned();
    runtime().block_on(async {
        let list = shelf.list(&tasks, LONG_LEASE).await;
        assert!(list.take("c", Some("coder")).await.unwrap().is_none());
        let plan = list.take("b", Some("boss")).await.unwrap().unwrap();
        assert_eq!(plan.task().id, "plan");
        assert!(list.take("x", None).await.unwrap().is_none());
        plan.finish("planned").await.unwrap();
        assert!(list.take("b", Some("boss")).await.unwrap().is_none());
        let code = list.take("c", Some("coder")).await.unwrap().unwrap();
        assert_eq!(code.task().id, "code");
    });
}

#[test]
fn a_task_that_is_given_back_is_free_at_once() {
    for shelf in Shelf::both() {
        let tasks = [task("one", &[])];
        runtime().block_on(async {
            let list = shelf.list(&tasks, LONG_LEASE).await;
            let other = shelf.list(&tasks, LONG_LEASE).await;
            let first = wait_for_task(&list, "first").await;
            assert!(other.take("second", None).await.unwrap().is_none());
            assert!(list.take("third", None).await.unwrap().is_none());
            first.give_back().await.unwrap();
            let second = other.take("second", None).await.unwrap();
            drop(second.unwrap());
            let third = list.take("third", None).await.unwrap();
            third.unwrap().finish("done").await.unwrap();
        });
    }
}
