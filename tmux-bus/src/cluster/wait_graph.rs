//! Which agents wait for each other.
//!
//! # Theory
//!
//! An agent that waits for the answer of another one cannot answer itself. If `a` waits for `b` and
//! `b` asks `a`, both wait until their time limits. So each wait of an agent is an *edge* from the
//! asker to the asked one, and an edge that would close a cycle is refused at once.
//!
//! - An edge is a file in the folder `waits` of the session, locked by the process that waits. The
//!   kernel releases the lock when that process ends, so an edge of a dead process does not count;
//!   the next caller removes its file.
//! - **Invariant.** Check and record are one step: both happen under the lock of the folder. Of `a
//!   -> b` and `b -> a` at the same time the second one sees the first.
//! - **Race.** A file is visible only with its lock, because it is created and locked under the
//!   lock of the folder. A holder removes its file before it releases the lock. So a file without a
//!   lock belongs to a dead process.
//! - The edge belongs to the process that waits, not to the one that delivers the message: an agent
//!   that has asked in the background can still be asked.
//!
//! **Example.** `a -> b` and `b -> c` exist. `c` asks `a`: from `a` the edges lead over `b` to `c`,
//! so the chain is `c -> a -> b -> c`.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::Error;
use crate::shared::kernel_lock::{Access, LockedFile};
use crate::shared::private_file;

/// The waits of one cluster.
#[derive(Clone, Debug)]
pub(crate) struct WaitGraph {
    folder: PathBuf,
}

/// One wait. It ends when it is dropped, or with the process.
#[derive(Debug)]
pub(crate) struct WaitEdge {
    path: PathBuf,
    _lock: LockedFile,
}

#[derive(Serialize, Deserialize)]
struct EdgeRecord {
    from: String,
    to: String,
}

impl WaitGraph {
    /// Nothing is created. `session` is the folder of the session.
    pub(crate) fn new(session: &Path) -> Self {
        Self {
            folder: session.join("waits"),
        }
    }

    /// Records that `from` waits for `to`. Blocks for the moment in which another process does the
    /// same.
    ///
    /// # Errors
    ///
    /// [`Error::Cycle`] if `to` waits for `from`, directly or over others.
    pub(crate) fn enter(&self, from: &str, to: &str) -> Result<WaitEdge, Error> {
        self.create()?;
        let _lock = lock(&self.folder.join("lock"), Access::Exclusive)?;
        if let Some(chain) = chain(&self.edges()?, from, to) {
            return Err(Error::Cycle { chain });
        }
        let path = self.folder.join(uuid::Uuid::new_v4().simple().to_string());
        let lock = lock(&path, Access::Exclusive)?;
        let record = EdgeRecord {
            from: from.to_owned(),
            to: to.to_owned(),
        };
        let edge = WaitEdge {
            path: path.clone(),
            _lock: lock,
        };
        let bytes =
            serde_json::to_vec(&record).map_err(|error| Error::io("write", &path)(error.into()))?;
        (&*edge._lock)
            .write_all(&bytes)
            .map_err(Error::io("write", &path))?;
        Ok(edge)
    }

    /// The folder of the session is not created: it is removed with the session.
    fn create(&self) -> Result<(), Error> {
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(Error::io("create the folder", &self.folder)(error));
            }
            _ => {}
        }
        Ok(private_file::check_folder(&self.folder)?)
    }

    /// The edges of living processes, by asker. For the holder of the folder's lock.
    fn edges(&self) -> Result<BTreeMap<String, Vec<String>>, Error> {
        let failed = |error| Error::io("list", &self.folder)(error);
        let mut edges: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            if entry.file_name() == "lock" {
                continue;
            }
            let path = entry.path();
            let mut options = File::options();
            // `None`: its wait has just ended.
            let Some(file) = private_file::open_existing(&path, options.read(true))? else {
                continue;
            };
            let mut text = String::new();
            let is_read = (&file).read_to_string(&mut text).is_ok();
            let free = LockedFile::try_lock(file, Access::Shared);
            if free.map_err(Error::io("lock", &path))?.is_some() {
                let _ = fs::remove_file(&path);
            } else if is_read && let Ok(edge) = serde_json::from_str::<EdgeRecord>(&text) {
                edges.entry(edge.from).or_default().push(edge.to);
            }
        }
        Ok(edges)
    }
}

impl Drop for WaitEdge {
    fn drop(&mut self) {
        // Before the lock is released; the folder may be gone with its session.
        let _ = fs::remove_file(&self.path);
    }
}

fn lock(path: &Path, access: Access) -> Result<LockedFile, Error> {
    let mut options = File::options();
    let file = private_file::open(path, options.create(true).truncate(false).write(true))?;
    LockedFile::lock(file, access).map_err(Error::io("lock", path))
}

/// The agents from `from` over `to` back to `from`, if `to` already waits for `from`. The shortest
/// such chain.
fn chain(edges: &BTreeMap<String, Vec<String>>, from: &str, to: &str) -> Option<Vec<String>> {
    let mut queue = VecDeque::from([to]);
    // The asker of each agent on the way.
    let mut before = BTreeMap::from([(to, from)]);
    while let Some(agent) = queue.pop_front() {
        if agent == from {
            let mut chain = vec![from.to_owned()];
            let mut at = from;
            loop {
                at = before[at];
                chain.push(at.to_owned());
                if at == from {
                    chain.reverse();
                    return Some(chain);
                }
            }
        }
        for next in edges.get(agent).into_iter().flatten() {
            if !before.contains_key(next.as_str()) {
                before.insert(next, agent);
                queue.push_back(next);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph() -> (tempfile::TempDir, WaitGraph) {
        let dir = tempfile::tempdir().unwrap();
        let graph = WaitGraph::new(dir.path());
        (dir, graph)
    }

    #[track_caller]
    fn check_refused(graph: &WaitGraph, from: &str, to: &str, expected: &[&str]) {
        match graph.enter(from, to) {
            Err(Error::Cycle { chain }) => assert_eq!(chain, expected),
            other => panic!("expected a cycle, got {other:?}"),
        }
    }

    #[test]
    fn a_cycle_is_refused_with_its_chain() {
        let (_dir, graph) = graph();
        check_refused(&graph, "a", "a", &["a", "a"]);
        let first = graph.enter("a", "b").unwrap();
        check_refused(&graph, "b", "a", &["b", "a", "b"]);
        let second = graph.enter("b", "c").unwrap();
        let _other = graph.enter("b", "d").unwrap();
        check_refused(&graph, "c", "a", &["c", "a", "b", "c"]);
        // The shortest one is named.
        check_refused(&graph, "d", "b", &["d", "b", "d"]);
        drop(second);
        drop(graph.enter("c", "a").unwrap());
        drop(first);
        drop(graph.enter("c", "a").unwrap());
        // An agent may wait for several others, and be waited for by several.
        let _edges = ["x", "y", "z"].map(|to| graph.enter("w", to).unwrap());
        let _more = ["u", "v"].map(|from| graph.enter(from, "x").unwrap());
    }

    #[test]
    fn the_edge_of_a_dead_process_does_not_count_and_is_removed() {
        let (dir, graph) = graph();
        drop(graph.enter("x", "y").unwrap());
        // A file without a lock: its process was killed.
        let path = dir.path().join("waits/dead");
        fs::write(&path, r#"{"from":"a","to":"b"}"#).unwrap();
        let _edge = graph.enter("b", "a").unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn of_two_edges_at_once_that_close_a_cycle_one_is_refused() {
        let (_dir, graph) = graph();
        for _ in 0..50 {
            let start = std::sync::Barrier::new(2);
            let enter = |from: &'static str, to: &'static str| {
                let (graph, start) = (&graph, &start);
                move || {
                    start.wait();
                    let edge = graph.enter(from, to);
                    start.wait();
                    edge.is_ok()
                }
            };
            let entered = std::thread::scope(|scope| {
                let first = scope.spawn(enter("a", "b"));
                let second = scope.spawn(enter("b", "a"));
                [first.join().unwrap(), second.join().unwrap()]
            });
            assert!(entered[0] != entered[1], "{entered:?}");
        }
    }

    #[test]
    fn the_folder_of_a_session_that_is_gone_is_not_created() {
        let (dir, _) = graph();
        let gone = dir.path().join("gone");
        assert!(
            WaitGraph::new(&gone)
                .enter("a", "b")
                .unwrap_err()
                .is_not_found()
        );
        assert!(!gone.exists());
    }
}
