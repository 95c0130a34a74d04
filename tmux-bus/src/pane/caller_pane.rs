//! The pane that a process belongs to.
//!
//! # Theory
//!
//! The name of a sender is proven by the kernel, not claimed by the caller. The evidence, the
//! strongest first:
//!
//! 1. **Parents.** The program of a pane is this process or one of its ancestors.
//! 2. **Mark.** This process has the resource limit that the processes of a launch inherit. It
//!    finds a caller whose parent has ended (a double fork), also if its environment was cleared.
//!    Linux only.
//! 3. **Tag.** The environment has the id of a launch. A process can set that variable, so it
//!    counts only if no stronger evidence exists.
//!
//! A caller in another pid namespace, such as the sandbox of an agent, sees other process ids than
//! tmux does. One of its parents could have the id of another agent by accident, so only mark and
//! tag count there.
//!
//! A process without any of them is outside of all panes. On Linux a process leaves its pane only
//! if it loses its parent, clears its environment and changes the resource limit. A process that
//! copies the mark of another launch counts as that agent. Such a process runs as the user and
//! can reach the socket anyway, see SECURITY.md.

use super::pane_info::PaneInfo;
use crate::shared::proc_stat::ProcStat;
use crate::shared::process_tree::ProcessMark;
use crate::tmux::launch::LAUNCH_VARIABLE;

/// Ancestors that are looked at. A bound for a chain that changes while it is read.
const MAX_ANCESTORS: usize = 1_000;

/// The pane of an agent to which this process belongs. `namespace` is the pid namespace of the
/// process that has started the cluster, if it is known.
pub(crate) fn find<'a>(panes: &'a [PaneInfo], namespace: Option<&str>) -> Option<&'a PaneInfo> {
    let tag = std::env::var(LAUNCH_VARIABLE).ok();
    let sees_the_same_ids = namespace.is_none() || namespace == pid_namespace().as_deref();
    let found = sees_the_same_ids
        .then(|| by_parents(panes, std::process::id(), parent_of))
        .flatten()
        .or_else(|| by_mark(panes, &own_marks()))
        .or_else(|| by_tag(panes, tag.as_deref()?));
    found.filter(|pane| !pane.agent.is_empty())
}

/// The pid namespace of this process; `None` where the system does not tell.
pub(crate) fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(link.to_string_lossy().into_owned())
}

fn by_parents(
    panes: &[PaneInfo],
    mut pid: u32,
    parent_of: impl Fn(u32) -> Option<u32>,
) -> Option<&PaneInfo> {
    for _ in 0..MAX_ANCESTORS {
        let is_program = |pane: &&PaneInfo| pane.pid == pid && !pane.dead;
        if let Some(pane) = panes.iter().find(is_program) {
            return Some(pane);
        }
        pid = parent_of(pid).filter(|&parent| parent > 1)?;
    }
    None
}

fn by_mark<'a>(panes: &'a [PaneInfo], marks: &[ProcessMark]) -> Option<&'a PaneInfo> {
    let is_marked = |pane: &&PaneInfo| {
        !pane.launch.is_empty() && marks.contains(&ProcessMark::of(&pane.launch))
    };
    panes.iter().find(is_marked)
}

fn by_tag<'a>(panes: &'a [PaneInfo], tag: &str) -> Option<&'a PaneInfo> {
    panes
        .iter()
        .find(|pane| !tag.is_empty() && pane.launch == tag)
}

/// The marks among the resource limits of this process.
#[cfg(target_os = "linux")]
fn own_marks() -> Vec<ProcessMark> {
    use rustix::process::{Resource, getrlimit};
    let limits = [Resource::Rttime, Resource::Locks].map(|resource| getrlimit(resource).current);
    let marks = limits
        .into_iter()
        .flatten()
        .filter_map(ProcessMark::from_limit);
    marks.collect()
}

#[cfg(not(target_os = "linux"))]
fn own_marks() -> Vec<ProcessMark> {
    Vec::new()
}

fn parent_of(pid: u32) -> Option<u32> {
    match ProcStat::read(pid) {
        Ok(stat) => stat.map(|stat| stat.parent),
        Err(_) => {
            let pid = pid.to_string();
            let mut ps = std::process::Command::new("ps");
            let output = ps.args(["-o", "ppid=", "-p", &pid]).output().ok()?;
            String::from_utf8_lossy(&output.stdout).trim().parse().ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn panes() -> Vec<PaneInfo> {
        let line = |id, dead, pid, launch, agent| {
            format!("%{id}\t{dead}\t\t\t{pid}\t/dev/pts/{id}\t{launch}\t{agent}\t\t\n")
        };
        let list = [
            line(1, 0, 100, "launch-a", "a"),
            line(2, 0, 200, "launch-b", "b"),
            line(3, 1, 300, "launch-c", "c"),
        ];
        PaneInfo::parse_list(&list.concat())
    }

    fn name(pane: Option<&PaneInfo>) -> Option<&str> {
        pane.map(|pane| pane.agent.as_str())
    }

    #[test]
    fn a_process_belongs_to_the_pane_of_its_nearest_ancestor() {
        let panes = panes();
        // 201 -> 200 (b) -> 150 -> 100 (a): a cluster inside a cluster.
        let parent = |pid| match pid {
            201 => Some(200),
            200 => Some(150),
            150 => Some(100),
            301 => Some(300),
            100 | 300 | 400 => Some(1),
            1 => Some(0),
            _ => None,
        };
        let of = |pid| name(by_parents(&panes, pid, parent));
        assert_eq!(
            (of(201), of(200), of(150)),
            (Some("b"), Some("b"), Some("a"))
        );
        // The program of pane 3 has ended: its id may be that of another process.
        assert_eq!((of(301), of(400), of(999)), (None, None, None));
        let endless = |pid| Some(pid);
        assert_eq!(name(by_parents(&panes, 7, endless)), None);
    }

    #[test]
    fn process_ids_of_another_namespace_prove_nothing() {
        let pid = std::process::id();
        let panes = PaneInfo::parse_list(&format!("%1\t0\t\t\t{pid}\t/dev/pts/1\tlaunch\ta\t\t\n"));
        assert_eq!(name(find(&panes, None)), Some("a"));
        assert_eq!(name(find(&panes, pid_namespace().as_deref())), Some("a"));
        assert_eq!(name(find(&panes, Some("pid:[1]"))), None);
    }

    #[test]
    fn a_mark_and_a_tag_belong_to_one_launch() {
        let panes = panes();
        let mark = |launch| name(by_mark(&panes, &[ProcessMark::of(launch)]));
        assert_eq!((mark("launch-b"), mark("other")), (Some("b"), None));
        assert_eq!(name(by_tag(&panes, "launch-c")), Some("c"));
        assert_eq!(name(by_tag(&panes, "")), None);
    }
}
