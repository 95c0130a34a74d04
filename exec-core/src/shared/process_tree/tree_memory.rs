//! What earlier looks at a running tree have found.
//!
//! # Theory
//!
//! Without marks, a process that has lost its parent and shows no tag belongs to no tree that a scan
//! could tell. So a running tree is looked at again and again ([`ProcessScanner::watch`]), and the
//! memory of the tree has
//!
//! - the processes of the last look: they stay in the tree when their parents end;
//! - the *families* of the last look: groups and sessions that a process of the tree has created. A
//!   process that starts in one between two looks is found, whatever has become of its parent.
//!
//! **Invariant.** A family never contains a process of another tree. A group or session is only
//! remembered if the process whose id it has was seen in the tree: the session of the host, which
//! the leader shares, is no family. The kernel does not reuse the id of a group or session that has
//! members; a family without a living process is forgotten at the next look, and so is one whose id
//! belongs to another process by now.
//!
//! **Example.** Agent 40 starts `setsid sh` (41), which starts a server (42) and ends.
//!
//! | | look | found by |
//! |---|---|---|
//! | 41 runs | 40, 41; family 41 | parents |
//! | 41 starts 42 and ends; the parent of 42 is init | 40, 42; family 41 | session 41 |
//!
//! If 41 starts 42 and ends before the first look, 42 is not found: that is the difference to a mark.
//!
//! [`ProcessScanner::watch`]: super::process_scanner::ProcessScanner::watch

use std::collections::{HashMap, HashSet};

use super::process_table::ProcessInfo;
use crate::shared::proc_stat::ProcessKey;

#[derive(Debug, Default)]
pub(super) struct TreeMemory {
    members: HashSet<ProcessKey>,
    /// The id of a group or session, and the start time of the process that has created it.
    families: HashMap<u32, u64>,
}

impl TreeMemory {
    pub(super) fn has(&self, process: &ProcessInfo) -> bool {
        self.members.contains(&process.key)
            || self.families.contains_key(&process.group)
            || self.families.contains_key(&process.session)
    }

    /// Replaces the memory by a new look. `tree`: the living processes of the tree. `start_time`: the
    /// start time of the process that has an id now.
    pub(super) fn update(
        &mut self,
        tree: &[&ProcessInfo],
        start_time: impl Fn(u32) -> Option<u64>,
    ) {
        let members: HashSet<ProcessKey> = tree.iter().map(|process| process.key).collect();
        let mut creators = std::mem::take(&mut self.families);
        let seen = self.members.iter().chain(&members);
        creators.extend(seen.map(|key| (key.pid, key.start_time)));
        for id in tree
            .iter()
            .flat_map(|process| [process.group, process.session])
        {
            if let Some(&created) = creators.get(&id)
                && start_time(id).is_none_or(|current| current == created)
            {
                self.families.insert(id, created);
            }
        }
        self.members = members;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, group: u32, session: u32) -> ProcessInfo {
        ProcessInfo {
            key: ProcessKey { pid, start_time: 1 },
            parent: 1,
            group,
            session,
            alive: true,
            stopped: false,
            cpu_time: std::time::Duration::ZERO,
            resident_bytes: 0,
            tag: None,
            mark: None,
        }
    }

    #[test]
    fn a_family_is_remembered_as_long_as_it_lives() {
        let mut memory = TreeMemory::default();
        // The leader is in the session of the host, 7.
        let (leader, shell) = (process(40, 40, 7), process(41, 41, 41));
        memory.update(&[&leader, &shell], |_| Some(1));
        assert!(memory.has(&leader) && memory.has(&shell));
        assert!(memory.has(&process(42, 41, 41)) && memory.has(&process(43, 43, 41)));
        assert!(memory.has(&process(44, 40, 7)));
        assert!(!memory.has(&process(45, 45, 7)), "the session of the host");

        // 41 has ended.
        let server = process(42, 41, 41);
        memory.update(&[&leader, &server], |id| (id != 41).then_some(1));
        assert!(memory.has(&process(43, 43, 41)));
        memory.update(&[&leader], |_| Some(1));
        assert!(!memory.has(&process(43, 43, 41)), "the family has ended");
    }

    #[test]
    fn a_family_with_a_reused_id_is_forgotten() {
        let mut memory = TreeMemory::default();
        let shell = process(41, 41, 41);
        memory.update(&[&shell], |_| Some(1));
        let other = process(42, 41, 41);
        memory.update(&[&other], |_| Some(2));
        assert!(!memory.has(&process(43, 41, 41)));
    }
}
