use std::fs;

use rustix::process::Signal;

use super::{INIT, INIT_NAME};

/// The signal that a process gets in a step of a stop, in place of `signal`.
///
/// - None, if it carries an agent: the outer `bwrap`, or the shell that is process 1. The agent
///   would be killed with it, without its grace, and its exit status would be lost.
/// - `KILL`, if there is no agent yet, or no longer. Process 1 of a namespace ignores the other
///   signals, and would wait for an outer `bwrap` that has died of them.
///
/// Read from `/proc`, so that it also holds for executions of an earlier host. A program that gives
/// itself the command line of a carrier escapes the steps of the ladder, as one that ignores the
/// signals does; it does not escape the `KILL` that follows.
pub(crate) fn signal_in_step(pid: u32, signal: Signal) -> Option<Signal> {
    let Ok(command_line) = fs::read(format!("/proc/{pid}/cmdline")) else {
        return Some(signal);
    };
    let words: Vec<&[u8]> = command_line.split(|byte| *byte == 0).collect();
    if !words.contains(&INIT_NAME.as_bytes()) || !words.contains(&INIT.as_bytes()) {
        return Some(signal);
    }
    let carries = match id_in_namespace(pid) {
        Some(1) => has_child(&pid.to_string()),
        // The subshell that becomes the agent has the command line of process 1.
        Some(_) => return Some(signal),
        None => children(&pid.to_string())
            .iter()
            .any(|child| has_child(child)),
    };
    (!carries).then_some(Signal::KILL)
}

/// Whether the process of a sandboxed execution is the shell or the agent: processes 1 and 2 of the
/// namespace. Their ids are not reused in it: the kernel gives ids below 300 only once.
pub(crate) fn is_shell_or_agent(pid: u32) -> bool {
    let ids = namespace_ids(pid);
    // A tool in a namespace of its own has a third id.
    matches!(ids.get(1), Some(1 | 2))
}

/// The id in the innermost namespace, if that is not the one of this host.
fn id_in_namespace(pid: u32) -> Option<u32> {
    namespace_ids(pid).into_iter().skip(1).last()
}

/// The ids of a process, from the namespace of this host inwards.
fn namespace_ids(pid: u32) -> Vec<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let ids = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let ids = ids.unwrap_or_default().split_whitespace();
    ids.map_while(|id| id.parse().ok()).collect()
}

/// Whether process 1 has started the process that becomes the agent.
fn has_child(process_1: &str) -> bool {
    !children(process_1).is_empty()
}

fn children(pid: &str) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_whitespace().map(str::to_owned).collect()
}
