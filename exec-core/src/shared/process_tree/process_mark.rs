//! A mark that a process inherits and does not lose by accident.
//!
//! # Theory
//!
//! The tag in the environment is lost when a program clears its environment (`env -i`, `sudo`, a
//! build tool with a clean sandbox). A resource limit is not: `fork` and `exec` keep it, and so do
//! `setsid`, a double fork and a set-user-id program. So every process of a tree also has a number
//! as one of its *soft* limits that stands for "no limit" in practice:
//!
//! ```text
//! mark = 2^62 | 61 bits of the tag        (RLIMIT_RTTIME, in microseconds: 146,000 years)
//! ```
//!
//! The limit counts only time that a thread spends under a real-time scheduling policy without a
//! blocking call. If the hard limit is lower than the mark, the mark goes to `RLIMIT_LOCKS`, which
//! Linux has not enforced since version 2.4. Raising a soft limit below its hard limit needs no
//! privilege. The marks of all processes are readable in `/proc/<pid>/limits`, also for programs
//! of other users, whose environments are not.
//!
//! A new process sets the mark itself, between its creation and the start of its program; see
//! `marked_spawn.rs` in exec-core. A process that another program starts gets the mark from outside
//! (`prlimit`). A process that it has started before then has the tag, or a parent in the tree, and
//! gets the mark from the first scan that finds it; see `tree_ender.rs`.
//!
//! **Loss of the mark.** A program that sets this very limit loses it. An executor inside an execution
//! gives its own children its own mark, as it gives them its own tag; `ProcessTable::tree` follows
//! the tags of inner executions.

use super::system::MarkLimit;

/// The bits that tell a mark from an ordinary limit: the highest three are 010.
const FLAG: u64 = 1 << 62;
const ID_BITS: u32 = 61;

/// The number that all processes of a tree have as a resource limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProcessMark(u64);

impl ProcessMark {
    /// The mark that belongs to a tag. The same in every version: a later host compares it.
    pub(crate) fn of(tag: &str) -> Self {
        // FNV-1a.
        let hash = tag.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        // The upper bits depend on every byte; the lowest ones do not.
        Self(FLAG | (hash >> (64 - ID_BITS)))
    }

    /// `None` if the limit is no mark.
    pub(crate) fn from_limit(limit: u64) -> Option<Self> {
        (limit >> ID_BITS == FLAG >> ID_BITS).then_some(Self(limit))
    }

    /// How a child of this process can carry the mark; `None` if all hard limits are too low.
    pub(crate) fn available_limit(self) -> Option<MarkLimit> {
        MarkLimit::of(self)
    }

    /// The limit that carries the mark.
    pub(crate) fn limit(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_of_a_tag_never_changes() {
        let mark = ProcessMark::of("c0ffee00-0000-4000-8000-000000000000");
        assert_eq!(mark.limit(), 5_124_401_092_722_986_346);
        assert_eq!(ProcessMark::from_limit(mark.limit()), Some(mark));
    }

    #[test]
    fn an_ordinary_limit_is_no_mark() {
        for limit in [0, 1, 200_000, FLAG - 1, FLAG + (1 << 61), 1 << 63, u64::MAX] {
            assert_eq!(ProcessMark::from_limit(limit), None, "{limit}");
        }
        assert!(ProcessMark::from_limit(FLAG).is_some());
    }

    #[test]
    fn similar_tags_have_different_marks() {
        let marks: std::collections::HashSet<_> = (0..100_000)
            .map(|n| ProcessMark::of(&format!("c0ffee00-0000-4000-8000-{n:012}")))
            .collect();
        assert_eq!(marks.len(), 100_000);
    }
}
