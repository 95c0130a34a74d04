use xxhash_rust::xxh3::Xxh3;

/// The record of the last save that a storage keeps to judge the next one.
///
/// A storage stores it as text and hands it to [`plan`](super::backend::plan):
///
/// ```
/// use agent_snapshot::backend::{Stamp, plan};
/// use agent_snapshot::{AgentId, AgentSnapshot};
///
/// let snapshot = AgentSnapshot::new(AgentId::new("worker_007")?);
/// let first = plan(&snapshot, None, 0)?.expect("nothing is stored yet");
/// let stored = Stamp::from_text(&first.stamp.to_text());
/// assert_eq!(stored, Some(first.stamp));
/// // The same save again: there is nothing to write.
/// assert!(plan(&snapshot, stored.as_ref(), 0)?.is_none());
/// # Ok::<(), agent_snapshot::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stamp {
    /// `AgentSnapshot::tick_index`.
    pub tick: u64,
    /// `AgentSnapshot::revision`.
    pub revision: u64,
    /// `AgentSnapshot::epoch`.
    pub epoch: u64,
    /// Digest of the whole save. A repeat of the save has the same.
    pub digest: u128,
    /// The first number in the stream.
    pub stream_start: u64,
    /// The first number in view.
    pub first: u64,
    /// The number after the last message.
    pub next: u64,
    /// Digest of the stream before `first`.
    pub first_link: u128,
    /// Digest of the stream before `next`.
    pub link: u128,
    /// The number of pinned messages in the head.
    pub pinned: u64,
    /// Whether a summary follows them.
    pub summary: bool,
    /// Digest of the head.
    pub head: u128,
}

impl Stamp {
    /// The stamp as one line of text.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Self {
            tick,
            revision,
            epoch,
            digest,
            stream_start,
            first,
            next,
            first_link,
            link,
            pinned,
            summary,
            head,
        } = self;
        let summary = u8::from(*summary);
        format!(
            "1 {tick} {revision} {epoch} {stream_start} {first} {next} {pinned} {summary} \
             {digest:x} {first_link:x} {link:x} {head:x}"
        )
    }

    /// Reads the text of [`to_text`](Self::to_text); `None` if it is anything else.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        fn number(text: Option<&str>) -> Option<u64> {
            text?.parse().ok()
        }
        fn digest(text: Option<&str>) -> Option<u128> {
            u128::from_str_radix(text?, 16).ok()
        }
        let mut parts = text.strip_prefix("1 ")?.split(' ');
        let stamp = Self {
            tick: number(parts.next())?,
            revision: number(parts.next())?,
            epoch: number(parts.next())?,
            stream_start: number(parts.next())?,
            first: number(parts.next())?,
            next: number(parts.next())?,
            pinned: number(parts.next())?,
            summary: number(parts.next())? == 1,
            digest: digest(parts.next())?,
            first_link: digest(parts.next())?,
            link: digest(parts.next())?,
            head: digest(parts.next())?,
        };
        let is_ordered = stamp.stream_start <= stamp.first && stamp.first <= stamp.next;
        (is_ordered && parts.next().is_none()).then_some(stamp)
    }

    /// The first number of the stream if only the last `keep` messages stay, and all in view.
    pub(crate) fn capped_start(&self, keep: u64) -> u64 {
        let start = self.next.saturating_sub(keep).min(self.first);
        start.max(self.stream_start)
    }

    /// The digest of a save with this body. The links stand for the messages.
    pub(super) fn digest_with(&self, body: &str) -> u128 {
        let mut hash = Xxh3::new();
        hash.update(body.as_bytes());
        for part in [self.first_link, self.link, self.head] {
            hash.update(&part.to_le_bytes());
        }
        for part in [self.first, self.next, self.pinned] {
            hash.update(&part.to_le_bytes());
        }
        hash.digest128()
    }
}
