use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, OnceLock},
};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{
    Error,
    conversation::Message,
    encode::{Extra, encode},
};

/// The messages of one agent: an append-only stream, and the part of it that the model sees.
///
/// Every message that is pushed gets the next *sequence number* and stays in the stream for
/// good. What the model sees, [`iter`](Self::iter), is
///
/// 1. the *pinned* messages (the system prompt), which have no sequence number,
/// 2. at most one *summary* of what was dropped, without a number either,
/// 3. the *tail*: the messages from [`first_seq`](Self::first_seq) to
///    [`next_seq`](Self::next_seq).
///
/// Trimming moves `first_seq` forward; it never takes anything out of the stream. A storage
/// writes what was pushed since the last save, and keeps the whole stream readable through
/// [`SnapshotStorage::history`](crate::SnapshotStorage::history).
///
/// A clone shares its messages with the original and costs next to nothing.
///
/// ```
/// use agent_snapshot::{History, conversation::Message};
///
/// let mut history = History::new();
/// history.pin(vec![Message::system("Be brief.")]);
/// for n in 0..10 {
///     history.push(Message::user(format!("question {n}")));
/// }
/// history.drop_front(8);
/// history.set_summary(Some(Message::system("前文の要約：eight questions")));
/// assert_eq!((history.first_seq(), history.next_seq()), (8, 10));
/// assert_eq!(history.len(), 4);
/// ```
#[derive(Clone)]
pub struct History {
    pinned: Arc<[Message]>,
    summary: Option<Arc<Message>>,
    /// Digest of the pinned messages and the summary, made when it is first needed.
    head: OnceLock<u128>,
    /// Chunk `c` holds the sequence numbers `c * CHUNK ..`; the first one may start later
    /// (at `start`), the last one may be short.
    chunks: VecDeque<Arc<Vec<Arc<Entry>>>>,
    start: u64,
    first: u64,
    next: u64,
    /// The link before `start`.
    base: u128,
}

struct Entry {
    message: Message,
    /// Digest of the stream up to and including this message. Two histories with the same
    /// link at the same number are the same up to there, so a storage that keeps one link
    /// knows what is new without looking at what is old.
    link: OnceLock<u128>,
}

/// Small enough that changing a shared last chunk costs nothing, large enough that a clone
/// of 10,000 messages is some hundred pointers.
const CHUNK: u64 = 64;

/// The link of the empty stream.
const EMPTY: u128 = 0;

/// What a save has to write.
pub(crate) struct Encoded {
    pub(crate) from: u64,
    pub(crate) messages: Vec<String>,
    /// The link before the first message in view.
    pub(crate) first_link: u128,
    /// The link after the last message.
    pub(crate) link: u128,
    /// Whether the stored stream goes on; otherwise `messages` is everything there is.
    pub(crate) continues: bool,
}

/// What [`History::link_all`] had to encode.
struct Linked {
    /// Messages before this number had their links already.
    known: u64,
    /// The others, as JSON.
    fresh: Vec<String>,
    /// The link after the last message.
    link: u128,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::from_parts(Vec::new(), None, 0, EMPTY)
    }

    /// A history whose tail is still to come: `base` is the link before `first`.
    pub(crate) fn from_parts(
        pinned: Vec<Message>,
        summary: Option<Message>,
        first: u64,
        base: u128,
    ) -> Self {
        Self {
            pinned: pinned.into(),
            summary: summary.map(Arc::new),
            head: OnceLock::new(),
            chunks: VecDeque::new(),
            start: first,
            first,
            next: first,
            base,
        }
    }

    /// The number of messages that the model sees.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pinned.len() + usize::from(self.summary.is_some()) + self.tail_len()
    }

    /// Whether the model sees nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sequence number of the first message of the tail.
    #[must_use]
    pub fn first_seq(&self) -> u64 {
        self.first
    }

    /// The sequence number that the next pushed message gets.
    #[must_use]
    pub fn next_seq(&self) -> u64 {
        self.next
    }

    /// The number of messages in the tail.
    #[must_use]
    pub fn tail_len(&self) -> usize {
        (self.next - self.first) as usize
    }

    /// The pinned messages.
    #[must_use]
    pub fn pinned(&self) -> &[Message] {
        &self.pinned
    }

    /// The summary of what was dropped.
    #[must_use]
    pub fn summary(&self) -> Option<&Message> {
        self.summary.as_deref()
    }

    /// Everything that the model sees, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.pinned
            .iter()
            .chain(self.summary.as_deref())
            .chain(self.tail().map(|(_, message)| message))
    }

    /// The messages of the tail with their sequence numbers.
    pub fn tail(&self) -> impl DoubleEndedIterator<Item = (u64, &Message)> {
        // Every number below `next` and not below `start` has an entry.
        (self.first..self.next).filter_map(|seq| Some((seq, &self.entry(seq)?.message)))
    }

    /// The message with this number, if it is still in memory (perhaps out of view).
    #[must_use]
    pub fn get(&self, seq: u64) -> Option<&Message> {
        Some(&self.entry(seq)?.message)
    }

    /// Appends a message and returns its sequence number.
    pub fn push(&mut self, message: Message) -> u64 {
        self.push_entry(Entry {
            message,
            link: OnceLock::new(),
        })
    }

    /// Appends a message that was read from `json`, so that its link need not be made again.
    pub(crate) fn push_stored(&mut self, message: Message, json: &str) -> u64 {
        let link = self
            .link_before(self.next)
            .map(|link| OnceLock::from(chain(link, json)));
        self.push_entry(Entry {
            message,
            link: link.unwrap_or_default(),
        })
    }

    fn push_entry(&mut self, entry: Entry) -> u64 {
        let seq = self.next;
        let entry = Arc::new(entry);
        match self.chunks.back_mut() {
            Some(chunk) if !seq.is_multiple_of(CHUNK) => Arc::make_mut(chunk).push(entry),
            _ => self.chunks.push_back(Arc::new(vec![entry])),
        }
        self.next += 1;
        seq
    }

    /// Replaces the pinned messages.
    pub fn pin(&mut self, pinned: Vec<Message>) {
        self.pinned = pinned.into();
        self.head = OnceLock::new();
    }

    /// Replaces the summary.
    pub fn set_summary(&mut self, summary: Option<Message>) {
        self.summary = summary.map(Arc::new);
        self.head = OnceLock::new();
    }

    /// Takes the first `count` messages of the tail (or all) out of view.
    ///
    /// They stay in the stream, and in memory until
    /// [`release_hidden`](Self::release_hidden), because a message may be dropped before it
    /// was ever saved.
    pub fn drop_front(&mut self, count: usize) {
        self.first = self.next.min(self.first.saturating_add(count as u64));
    }

    /// Frees messages that are out of view. Call it after a successful save: what was never
    /// saved would be missing from the stream.
    pub fn release_hidden(&mut self) {
        while let Some(chunk) = self.chunks.front() {
            let end = self.start + chunk.len() as u64;
            // Without a link it was never encoded, so it cannot have been saved.
            let link = chunk.last().and_then(|last| last.link.get().copied());
            let Some(link) = link.filter(|_| end <= self.first) else {
                break;
            };
            self.base = link;
            self.start = end;
            self.chunks.pop_front();
        }
    }

    pub(crate) fn head(&self) -> impl Iterator<Item = &Message> {
        self.pinned.iter().chain(self.summary.as_deref())
    }

    /// The pinned messages and the summary as a JSON array.
    pub(crate) fn head_json(&self) -> Result<String, Error> {
        let head: Vec<&Message> = self.head().collect();
        let extra = head.iter().any(|message| extra(message) == Extra::Some);
        let extra = if extra { Extra::Some } else { Extra::None };
        encode::<Vec<Message>>(&head, extra, || "the pinned messages".to_owned())
    }

    /// Digest of [`head_json`](Self::head_json).
    pub(crate) fn head_digest(&self) -> Result<u128, Error> {
        if let Some(digest) = self.head.get() {
            return Ok(*digest);
        }
        let digest = xxh3_128(self.head_json()?.as_bytes());
        Ok(*self.head.get_or_init(|| digest))
    }

    /// The link before the first message in view.
    pub(crate) fn first_link(&self) -> Result<u128, Error> {
        let link = self.link_all()?.link;
        Ok(self.link_before(self.first).unwrap_or(link))
    }

    /// Makes the links that are missing: from the newest known one on, once for each message.
    fn link_all(&self) -> Result<Linked, Error> {
        let mut known = self.next;
        let mut link = loop {
            match self.link_before(known) {
                Some(link) => break link,
                None => known -= 1,
            }
        };
        let mut fresh = Vec::with_capacity((self.next - known) as usize);
        for seq in known..self.next {
            let Some(entry) = self.entry(seq) else { break };
            let json = encode_message(&entry.message)?;
            link = chain(link, &json);
            let _ = entry.link.set(link);
            fresh.push(json);
        }
        Ok(Linked { known, fresh, link })
    }

    /// What is new for a storage whose stream ends before `stored.0` with the link `stored.1`.
    pub(crate) fn encode_since(&self, stored: Option<(u64, u128)>) -> Result<Encoded, Error> {
        let Linked {
            known,
            mut fresh,
            link,
        } = self.link_all()?;
        let from = stored
            .filter(|(next, link)| self.link_before(*next) == Some(*link))
            .map(|(next, _)| next);
        let (from, continues) = from.map_or((self.start, false), |from| (from, true));
        let messages = if from >= known {
            fresh.split_off((from - known) as usize)
        } else {
            let mut messages = Vec::with_capacity((self.next - from) as usize);
            for seq in from..known {
                let Some(entry) = self.entry(seq) else { break };
                messages.push(encode_message(&entry.message)?);
            }
            messages.append(&mut fresh);
            messages
        };
        Ok(Encoded {
            from,
            messages,
            first_link: self.link_before(self.first).unwrap_or(link),
            link,
            continues,
        })
    }

    /// The link between `seq - 1` and `seq`, where it is known: always at `start`.
    pub(crate) fn link_before(&self, seq: u64) -> Option<u128> {
        if seq == self.start {
            return Some(self.base);
        }
        self.entry(seq.checked_sub(1)?)?.link.get().copied()
    }

    fn entry(&self, seq: u64) -> Option<&Entry> {
        if seq < self.start || seq >= self.next {
            return None;
        }
        let chunk = (seq / CHUNK - self.start / CHUNK) as usize;
        let offset = if chunk == 0 {
            seq - self.start
        } else {
            seq % CHUNK
        };
        self.chunks
            .get(chunk)?
            .get(offset as usize)
            .map(|entry| &**entry)
    }
}

fn encode_message(message: &Message) -> Result<String, Error> {
    encode::<Message>(message, extra(message), || "a message".to_owned())
}

fn extra(message: &Message) -> Extra {
    let plain = message.extra.is_empty()
        && message.tool_calls.iter().all(|call| call.extra.is_empty())
        && message
            .tool_results
            .iter()
            .all(|result| result.extra.is_empty());
    if plain { Extra::None } else { Extra::Some }
}

fn chain(link: u128, json: &str) -> u128 {
    let mut hash = Xxh3::new();
    hash.update(&link.to_le_bytes());
    hash.update(json.as_bytes());
    hash.digest128()
}

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

/// Equal when the model sees the same and the sequence numbers are the same.
impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        self.first == other.first
            && self.next == other.next
            && self.pinned == other.pinned
            && self.summary == other.summary
            && self.tail().eq(other.tail())
    }
}

impl Extend<Message> for History {
    fn extend<T: IntoIterator<Item = Message>>(&mut self, messages: T) {
        for message in messages {
            self.push(message);
        }
    }
}

impl FromIterator<Message> for History {
    fn from_iter<T: IntoIterator<Item = Message>>(messages: T) -> Self {
        let mut history = Self::new();
        history.extend(messages);
        history
    }
}

impl fmt::Debug for History {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("History")
            .field("pinned", &self.pinned.len())
            .field("summary", &self.summary.is_some())
            .field("first", &self.first)
            .field("next", &self.next)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(range: std::ops::Range<u64>) -> Vec<Message> {
        range.map(|n| Message::user(n.to_string())).collect()
    }

    fn stored(history: &History) -> Option<(u64, u128)> {
        let encoded = history.encode_since(None).unwrap();
        Some((history.next_seq(), encoded.link))
    }

    #[test]
    fn only_what_was_pushed_since_is_encoded() {
        let mut history: History = numbered(0..1000).into_iter().collect();
        let known = stored(&history);
        history.extend(numbered(1000..1003));
        let encoded = history.encode_since(known).unwrap();
        assert!(encoded.continues);
        assert_eq!((encoded.from, encoded.messages.len()), (1000, 3));
    }

    #[test]
    fn equal_contents_give_equal_links_however_they_came_about() {
        let all: History = numbered(0..200).into_iter().collect();
        let known = stored(&numbered(0..150).into_iter().collect());
        let encoded = all.encode_since(known).unwrap();
        assert!(encoded.continues);
        assert_eq!(encoded.from, 150);
    }

    #[test]
    fn a_diverged_history_does_not_continue() {
        let known = stored(&numbered(0..10).into_iter().collect());
        let mut other: History = numbered(0..9).into_iter().collect();
        other.extend(numbered(100..105));
        let encoded = other.encode_since(known).unwrap();
        assert!(!encoded.continues);
        assert_eq!((encoded.from, encoded.messages.len()), (0, 14));
    }

    #[test]
    fn a_message_dropped_before_its_save_still_reaches_the_stream() {
        let mut history: History = numbered(0..100).into_iter().collect();
        let known = stored(&history);
        history.extend(numbered(100..300));
        history.drop_front(250);
        let encoded = history.encode_since(known).unwrap();
        assert_eq!((encoded.from, encoded.messages.len()), (100, 200));
        assert_eq!(history.tail().count(), 50);
    }

    #[test]
    fn released_messages_are_gone_and_the_stream_goes_on() {
        let mut history: History = numbered(0..300).into_iter().collect();
        let known = stored(&history);
        history.drop_front(290);
        history.release_hidden();
        assert!(history.get(0).is_none());
        assert_eq!(history.start, 256);
        history.extend(numbered(300..301));
        let encoded = history.encode_since(known).unwrap();
        assert_eq!((encoded.from, encoded.messages.len()), (300, 1));
        let seen: Vec<_> = history.tail().map(|(seq, _)| seq).collect();
        assert_eq!(seen, (290..301).collect::<Vec<_>>());
    }

    #[test]
    fn loaded_history_continues_from_its_link() {
        let mut history: History = numbered(0..100).into_iter().collect();
        let known = stored(&history);
        let base = history.link_before(97).unwrap();
        let mut loaded = History::from_parts(vec![], None, 97, base);
        for message in numbered(97..100) {
            let json = encode_message(&message).unwrap();
            loaded.push_stored(message, &json);
        }
        history.extend(numbered(100..102));
        loaded.extend(numbered(100..102));
        let encoded = loaded.encode_since(known).unwrap();
        assert!(encoded.continues);
        assert_eq!((encoded.from, encoded.messages.len()), (100, 2));
        assert_eq!(encoded.link, history.encode_since(None).unwrap().link);
        for seq in 97..102 {
            assert_eq!(loaded.get(seq), history.get(seq));
        }
    }

    #[test]
    fn what_was_never_saved_is_not_released() {
        let mut history: History = numbered(0..100).into_iter().collect();
        history.drop_front(100);
        history.release_hidden();
        assert!(history.get(0).is_some());
    }

    #[test]
    fn a_clone_is_independent() {
        let mut history: History = numbered(0..70).into_iter().collect();
        let clone = history.clone();
        history.extend(numbered(70..75));
        history.drop_front(10);
        assert_eq!((clone.first_seq(), clone.next_seq()), (0, 70));
        assert_eq!(clone.tail().count(), 70);
    }

    #[test]
    fn everything_can_be_dropped() {
        let mut history: History = numbered(0..64).into_iter().collect();
        stored(&history);
        history.drop_front(1000);
        history.release_hidden();
        assert!(history.is_empty());
        history.extend(numbered(64..66));
        assert_eq!(history.tail().count(), 2);
    }
}
