/// How the memory of the events of one execution stays bounded.
///
/// Events are kept for subscribers that are behind and for subscribers that join later. The bound
/// counts lines and the events parsed from them. A single event larger than the bound is kept
/// alone.
///
/// ```
/// use exec_core::MemoryPolicy;
///
/// assert_eq!(
///     MemoryPolicy::default(),
///     MemoryPolicy::DropOldest { max_bytes: 16 << 20 }
/// );
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryPolicy {
    /// At the bound, the oldest events are dropped. A subscriber that has not read them gets one
    /// [`EventKind::Gap`](crate::EventKind::Gap) in their place. The process never waits.
    ///
    /// In addition to the bound, each subscriber holds the events it has taken but not yet
    /// delivered: up to 256 KB or one event.
    DropOldest {
        /// The bound.
        max_bytes: usize,
    },
    /// At the bound, back-pressure: the output of the process is not read, so that the process
    /// blocks, until every subscriber has read the oldest events. Without subscribers, events
    /// that no former subscriber has read are kept. A subscriber therefore loses no event while
    /// it exists, and the first one loses none at all, however late it joins; a later one may
    /// begin with a gap.
    ///
    /// In addition to the bound: one read (up to 64 KB) and, when the process has ended, the
    /// contents of its pipes (up to 256 KB each), which are added without waiting.
    BlockChild {
        /// The bound.
        max_bytes: usize,
    },
}

impl Default for MemoryPolicy {
    /// [`DropOldest`](Self::DropOldest) with 16 MiB.
    fn default() -> Self {
        Self::DropOldest {
            max_bytes: 16 << 20,
        }
    }
}

impl MemoryPolicy {
    pub(super) fn max_bytes(self) -> usize {
        match self {
            Self::DropOldest { max_bytes } | Self::BlockChild { max_bytes } => max_bytes,
        }
    }
}
