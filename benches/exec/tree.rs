//! A process tree as agents make them, and a way to count it that belongs to no contender.

use std::process::Command;
use std::time::Duration;

/// A launcher, an agent, and two tools in sessions of their own, one with a child more: seven
/// processes, all of which end on `TERM`.
pub const SEVEN: &str = "
    sh -c '
        setsid sh -c \"sleep 600 & sleep 601; :\" &
        setsid sh -c \"sleep 602; :\" &
        wait
    ' &
    wait";

/// Marks the processes of a tree that was not started by us.
pub const MARK: &str = "EXEC_BENCH_TREE";

/// A mark that no other run on this machine has.
pub fn own_mark() -> String {
    std::process::id().to_string()
}

/// The living processes with this mark.
pub fn marked(mark: &str) -> Vec<String> {
    let wanted = format!("{MARK}={mark}");
    let entries = std::fs::read_dir("/proc").expect("/proc");
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
        .filter(|pid| {
            // A zombie has none.
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environ.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

/// Waits until the tree is complete: all seven are there, and the last ones have become what they
/// are to be. In the middle of an exec a process has no environment, and would not be counted.
pub async fn until_seven(mark: &str) {
    let is_leaf = |pid: &&String| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name.trim_end() == "sleep")
    };
    loop {
        let tree = marked(mark);
        if tree.len() == 7 && tree.iter().filter(is_leaf).count() == 3 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Ends what a contender has left behind; tells how many processes that were.
pub fn end_marked(mark: &str) -> usize {
    let left = marked(mark);
    for pid in &left {
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    left.len()
}
