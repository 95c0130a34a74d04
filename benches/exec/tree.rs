//! A process tree like that of an agent, and a count of its processes that is independent of all
//! contenders.

use std::process::Command;
use std::time::Duration;

/// A launcher, an agent, and two tools in sessions of their own, one of which has another child:
/// seven processes. All of them end on `TERM`.
pub const SEVEN: &str = "
    sh -c '
        setsid sh -c \"sleep 600 & sleep 601; :\" &
        setsid sh -c \"sleep 602; :\" &
        wait
    ' &
    wait";

/// Environment variable that marks the processes of a tree that exec-core has not started.
pub const MARK: &str = "EXEC_BENCH_TREE";

/// A mark that is unique on this machine.
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
            // Empty for a zombie.
            let environ = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let mut variables = environ.split(|byte| *byte == 0);
            variables.any(|variable| variable == wanted.as_bytes())
        })
        .collect()
}

/// Waits until the tree has all seven processes and the leaves have become `sleep`. Race: during an
/// exec the environment of a process is empty, so the process would not be counted.
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

/// Kills the processes that a contender has left, and returns their number.
pub fn end_marked(mark: &str) -> usize {
    let left = marked(mark);
    for pid in &left {
        let _ = Command::new("kill").args(["-9", pid]).status();
    }
    left.len()
}
