//! # Theory: links
//!
//! A storage must find the new messages of a history without reading the stored ones. For that,
//! each message has a *link*, a digest of the stream up to and including it:
//!
//! ```text
//! link before message 0 = 0
//! link after message n  = xxh3(link before n, JSON of message n)
//! ```
//!
//! Equal links at the same number mean equal streams up to that number. A storage keeps one pair,
//! `next` and the link before `next`. The next save continues the stored stream if the history has
//! the same link there; then only the messages from `next` on are written. Otherwise the histories
//! differ: the save replaces a stream that the same snapshot object loaded or saved, and is refused
//! as `Rewound` for any other (rule 15 of the contract).
//!
//! **Example.** The storage has messages 0..3, so it keeps (3, L3). The history now has 0..5. Its link
//! before 3 is L3: the save appends messages 3 and 4 and keeps (5, L5). A history with another
//! message 1 has another link before 3, although its messages 0 and 2 are the same.
//!
//! A link is computed once, when it is first needed, from the text that is written. Equal
//! messages give equal links: pushed one by one, loaded, or made from scratch.
//!
//! **Invariants.** `in_memory_from <= first <= next`; the entries of `in_memory_from..next` are in
//! memory; the link before `in_memory_from` is known (`base`), so a history that released its hidden
//! messages can continue.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use super::checked_json::{UnknownFields, encode};
use crate::Error;
use crate::conversation::{Message, Part};

/// The messages of one agent: an append-only stream, and the view of it that the model sees.
///
/// Each pushed message gets the next *sequence number* and stays in the stream. The view,
/// [`iter`](Self::iter), is
///
/// 1. the *pinned* messages (the system prompt), which have no sequence number,
/// 2. at most one *summary* of dropped messages, also without a number,
/// 3. the *tail*: the messages from [`first_seq`](Self::first_seq) to
///    [`next_seq`](Self::next_seq).
///
/// Trimming moves `first_seq` forward; it takes nothing out of the stream. A storage writes the
/// messages that were pushed since the last save, and
/// [`SnapshotStorage::stream`](crate::SnapshotStorage::stream) reads the whole stream.
///
/// A clone shares its messages with the original and is cheap.
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
    /// Digest of the pinned messages and the summary, computed when it is first needed.
    head: OnceLock<u128>,
    /// Chunk `c` holds the sequence numbers from `c * CHUNK` on; the first chunk may start later
    /// (at `in_memory_from`), the last one may be short.
    ///
    /// Each tick clones the history. With one shared pointer for each message instead of each
    /// chunk, a tick of an agent with 1,000 messages took 1.5 times as long, and with 10,000
    /// messages 5 times.
    chunks: VecDeque<Arc<Vec<Arc<LinkedMessage>>>>,
    in_memory_from: u64,
    first: u64,
    next: u64,
    /// The link before `in_memory_from`.
    base: u128,
}

struct LinkedMessage {
    message: Message,
    /// The link after this message. Clones share it, so the first to compute it saves the others
    /// the work; all compute the same value.
    link: OnceLock<u128>,
}

/// Copying a shared last chunk for a push must stay cheap, and so must a clone: 10,000 messages
/// are 157 chunks.
const CHUNK: u64 = 64;

/// The link of the empty stream.
const EMPTY: u128 = 0;

/// The messages that a save writes.
pub(crate) struct NewMessages {
    /// The number of the first of `messages`.
    pub(crate) from: u64,
    /// Each message as JSON.
    pub(crate) messages: Vec<String>,
    /// The link before the first message in view.
    pub(crate) first_link: u128,
    /// The link after the last message.
    pub(crate) link: u128,
    /// Whether the stored stream continues. Otherwise `messages` are all that are in memory.
    pub(crate) continues: bool,
}

/// The result of [`History::link_all`].
struct Linked {
    /// The messages before this number had their links already.
    known: u64,
    /// The messages from `known` on, as JSON.
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

    /// A history with an empty tail: `base` is the link before `first`.
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
            in_memory_from: first,
            first,
            next: first,
            base,
        }
    }

    /// The number of messages in view.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pinned.len() + usize::from(self.summary.is_some()) + self.tail_len()
    }

    /// Whether the view is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sequence number of the first message in the tail.
    #[must_use]
    pub fn first_seq(&self) -> u64 {
        self.first
    }

    /// The sequence number of the next message to be pushed.
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

    /// The summary of dropped messages.
    #[must_use]
    pub fn summary(&self) -> Option<&Message> {
        self.summary.as_deref()
    }

    /// The messages in view, in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Message> {
        self.pinned
            .iter()
            .chain(self.summary.as_deref())
            .chain(self.tail().map(|(_, message)| message))
    }

    /// The messages in the tail with their sequence numbers.
    pub fn tail(&self) -> impl DoubleEndedIterator<Item = (u64, &Message)> {
        (self.first..self.next).filter_map(|seq| Some((seq, self.get(seq)?)))
    }

    /// The message with this number, if it is in memory. It may be out of view.
    #[must_use]
    pub fn get(&self, seq: u64) -> Option<&Message> {
        Some(&self.linked(seq)?.message)
    }

    /// Appends a message and returns its sequence number.
    pub fn push(&mut self, message: Message) -> u64 {
        self.push_linked(LinkedMessage {
            message,
            link: OnceLock::new(),
        })
    }

    /// Appends a message that was read from `json`, with its link. The link must come from the
    /// stored text: another version of this crate may write the same message differently.
    pub(crate) fn push_stored(&mut self, message: Message, json: &str) -> u64 {
        let link = self
            .link_before(self.next)
            .map(|link| OnceLock::from(next_link(link, json)));
        self.push_linked(LinkedMessage {
            message,
            link: link.unwrap_or_default(),
        })
    }

    fn push_linked(&mut self, linked: LinkedMessage) -> u64 {
        let seq = self.next;
        let linked = Arc::new(linked);
        match self.chunks.back_mut() {
            Some(chunk) if !seq.is_multiple_of(CHUNK) => Arc::make_mut(chunk).push(linked),
            _ => self.chunks.push_back(Arc::new(vec![linked])),
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

    /// Takes the first `count` messages of the tail out of view, or all if there are fewer.
    ///
    /// They stay in the stream. They also stay in memory until
    /// [`release_hidden`](Self::release_hidden), because a message may be dropped before its
    /// first save.
    pub fn drop_front(&mut self, count: usize) {
        self.first = self.next.min(self.first.saturating_add(count as u64));
    }

    /// Frees the memory of messages that are out of view. Call it after a successful save: a
    /// message that was never saved would be missing from the stream.
    pub fn release_hidden(&mut self) {
        while let Some(chunk) = self.chunks.front() {
            let end = self.in_memory_from + chunk.len() as u64;
            // A message without a link was never encoded, so it was never saved.
            let link = chunk.last().and_then(|last| last.link.get().copied());
            let Some(link) = link.filter(|_| end <= self.first) else {
                break;
            };
            self.base = link;
            self.in_memory_from = end;
            self.chunks.pop_front();
        }
    }

    /// The pinned messages and the summary.
    pub(crate) fn head(&self) -> impl Iterator<Item = &Message> {
        self.pinned.iter().chain(self.summary.as_deref())
    }

    /// The pinned messages and the summary as a JSON array.
    pub(crate) fn head_json(&self) -> Result<String, Error> {
        let head: Vec<&Message> = self.head().collect();
        head.iter().try_for_each(|message| check_parts(message))?;
        let unknown_fields =
            UnknownFields::present_if(head.iter().any(|message| has_unknown_fields(message)));
        encode::<Vec<Message>>(&head, unknown_fields, || "the pinned messages".to_owned())
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

    /// Computes the missing links. They are always the newest ones.
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
            let Some(linked) = self.linked(seq) else {
                break;
            };
            let json = encode_message(&linked.message)?;
            link = next_link(link, &json);
            let _ = linked.link.set(link);
            fresh.push(json);
        }
        Ok(Linked { known, fresh, link })
    }

    /// The new messages for a storage whose stream ends before number `stored.0` with the link
    /// `stored.1`.
    pub(crate) fn encode_since(&self, stored: Option<(u64, u128)>) -> Result<NewMessages, Error> {
        let Linked {
            known,
            mut fresh,
            link,
        } = self.link_all()?;
        let continued = stored
            .filter(|(next, link)| self.link_before(*next) == Some(*link))
            .map(|(next, _)| next);
        let from = continued.unwrap_or(self.in_memory_from);
        let mut messages = Vec::with_capacity((self.next - from) as usize);
        for seq in from..self.next {
            let index = seq.checked_sub(known).map(|index| index as usize);
            let json = match index.and_then(|index| fresh.get_mut(index)) {
                Some(json) => std::mem::take(json),
                None => match self.linked(seq) {
                    Some(linked) => self.encode_again(seq, &linked.message)?,
                    None => break,
                },
            };
            messages.push(json);
        }
        Ok(NewMessages {
            from,
            messages,
            first_link: self.link_before(self.first).unwrap_or(link),
            link,
            continues: continued.is_some(),
        })
    }

    /// The JSON of a message that has its link.
    ///
    /// A loaded message has the link of its stored text. A build that orders the keys of objects
    /// differently, or another version, may have written that text. The message could be saved, but
    /// not loaded, because its new text does not fit the link.
    fn encode_again(&self, seq: u64, message: &Message) -> Result<String, Error> {
        let json = encode_message(message)?;
        let link = self.link_before(seq).map(|link| next_link(link, &json));
        if link == self.link_before(seq + 1) {
            return Ok(json);
        }
        Err(Error::Encode {
            what: format!("message {seq}"),
            source: "the text that was loaded is not the text that this program writes; put the \
                     messages into a new history"
                .into(),
        })
    }

    /// The link before message `seq`, if it is computed. It always is at `in_memory_from`.
    pub(crate) fn link_before(&self, seq: u64) -> Option<u128> {
        if seq == self.in_memory_from {
            return Some(self.base);
        }
        self.linked(seq.checked_sub(1)?)?.link.get().copied()
    }

    fn linked(&self, seq: u64) -> Option<&LinkedMessage> {
        if seq < self.in_memory_from || seq >= self.next {
            return None;
        }
        let chunk = (seq / CHUNK - self.in_memory_from / CHUNK) as usize;
        let offset = if chunk == 0 {
            seq - self.in_memory_from
        } else {
            seq % CHUNK
        };
        self.chunks
            .get(chunk)?
            .get(offset as usize)
            .map(|linked| &**linked)
    }
}

fn encode_message(message: &Message) -> Result<String, Error> {
    check_parts(message)?;
    let unknown_fields = UnknownFields::present_if(has_unknown_fields(message));
    encode::<Message>(message, unknown_fields, || "a message".to_owned())
}

/// A part with an ambiguous field would be read as a part of another kind, so reading the JSON back
/// does not find it.
fn check_parts(message: &Message) -> Result<(), Error> {
    let in_results = message.tool_results.iter().flat_map(|result| &result.parts);
    let mut parts = message.parts.iter().chain(in_results);
    let Some(field) = parts.find_map(Part::ambiguous_field) else {
        return Ok(());
    };
    Err(Error::Encode {
        what: "a message".to_owned(),
        source: format!("a part has an unknown field called {field}").into(),
    })
}

fn has_unknown_fields(message: &Message) -> bool {
    let in_calls = message.tool_calls.iter().map(|call| &call.extra);
    let in_results = message.tool_results.iter().map(|result| &result.extra);
    let mut all = std::iter::once(&message.extra)
        .chain(in_calls)
        .chain(in_results);
    all.any(|extra| !extra.is_empty())
}

fn next_link(link: u128, json: &str) -> u128 {
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

/// Equal if the views and the sequence numbers are equal.
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
        assert_eq!(history.in_memory_from, 256);
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

    /// As from a program with the feature `preserve_order` of serde_json.
    #[test]
    fn a_message_of_another_encoding_is_continued_and_not_written_anew() {
        let json = r#"{"role":"user","content":"one","z":1,"a":2}"#;
        let mut history = History::new();
        history.push_stored(serde_json::from_str(json).unwrap(), json);
        history.extend(numbered(1..2));
        let link = history.link_before(1).unwrap();
        let encoded = history.encode_since(Some((1, link))).unwrap();
        assert_eq!((encoded.from, encoded.messages.len()), (1, 1));
        // The storage has lost the message.
        let error = history.encode_since(None).err().expect("it is refused");
        assert!(matches!(error, Error::Encode { .. }), "{error}");
        let fresh: History = history.iter().cloned().collect();
        assert_eq!(fresh.encode_since(None).unwrap().messages.len(), 2);
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
