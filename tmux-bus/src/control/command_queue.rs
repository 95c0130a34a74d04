//! The commands that are on their way to tmux and back.
//!
//! # Theory
//!
//! tmux answers each command of a line with a block, in the order in which the lines were written.
//! The queue therefore keeps two lists: `unwritten`, and `unanswered` in the order of writing. A
//! block always belongs to the first unanswered line.
//!
//! **Bound and policy.** No list grows without limit, and the reader of the control stream never
//! waits.
//!
//! - Callers take one of [`MAX_COMMANDS`] slots and keep it until the answer is there. Further
//!   callers wait for a slot (back-pressure) as a part of their time limit.
//! - The reader has *maintenance commands*, caused by output. It cannot wait for a slot, because the
//!   reader itself frees the slots. Maintenance commands are flags instead of queue entries: a second
//!   request for the list of panes is merged into the first, and of several changes of a pane's
//!   bracketed-paste mode only the last is kept. At most one maintenance command is unanswered.
//! - The parser bounds the output of a command. Longer output is an error for the caller; the other
//!   blocks of the line still follow.
//!
//! **Lists of panes.** The reader takes every list of panes into the table, in the order in which
//! tmux made them, and before the caller of the list continues. Race: a caller that updated the
//! table itself could be suspended between its answer and the update, and would then replace a newer
//! list by an old one. The program of a pane that was just restarted would have ended again.
//!
//! **Example.** A program toggles bracketed paste 1,000 times while tmux is busy. The first toggle
//! is written; the other 999 leave one flag for the pane, which is written after the answer to the
//! first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::quoting::quote;
use super::stream_parser::{BlockEnd, MAX_BLOCK};
use super::tap::Tap;
use crate::Error;
use crate::pane::PaneId;
use crate::pane::pane_info::PaneInfo;

/// More than the panes that one server can serve: a pane has one or two commands under way.
const MAX_COMMANDS: usize = 512;

/// The output of each command of a line.
pub(crate) type Blocks = Vec<Vec<u8>>;

/// One line of commands.
#[derive(Debug)]
pub(crate) struct Request {
    /// The name in errors: never the text of a message.
    pub(crate) label: &'static str,
    line: String,
    /// Number of commands in the line. tmux stops at the first that fails.
    blocks: usize,
    tap: Option<Arc<Tap>>,
    is_pane_list: bool,
}

impl Request {
    pub(crate) fn new(label: &'static str, line: String) -> Self {
        Self {
            label,
            line,
            blocks: 1,
            tap: None,
            is_pane_list: false,
        }
    }

    /// Lists the panes of a session; the reader takes the list into the table.
    pub(crate) fn list_panes(session: &str) -> Self {
        let line = format!("list-panes -s -t ={session} -F {}", quote(PaneInfo::FORMAT));
        Self {
            is_pane_list: true,
            ..Self::new("list-panes", line)
        }
    }

    pub(crate) fn blocks(mut self, blocks: usize) -> Self {
        self.blocks = blocks;
        self
    }

    /// Opens the tap at the first block of this line.
    pub(crate) fn tap(mut self, tap: &Arc<Tap>) -> Self {
        self.tap = Some(Arc::clone(tap));
        self
    }
}

/// A caller's slot in the queue. Dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Slot {
    _permit: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(crate) struct CommandQueue {
    session: String,
    slots: Arc<Semaphore>,
    lists: Mutex<CommandLists>,
    writer: Notify,
}

#[derive(Debug, Default)]
struct CommandLists {
    unwritten: VecDeque<(Request, ReplyTo)>,
    unanswered: VecDeque<Unanswered>,
    maintenance: Maintenance,
    has_unanswered_maintenance: bool,
    is_closed: bool,
}

#[derive(Debug, Default)]
struct Maintenance {
    list_panes: bool,
    reap_children: bool,
    bracketing: BTreeMap<PaneId, bool>,
}

#[derive(Debug)]
enum ReplyTo {
    Caller {
        sender: oneshot::Sender<Result<Blocks, Error>>,
        _slot: Slot,
    },
    /// A maintenance command.
    Nothing,
}

#[derive(Debug)]
struct Unanswered {
    label: &'static str,
    /// Number of blocks that are still to come.
    missing: usize,
    bodies: Blocks,
    is_too_long: bool,
    is_pane_list: bool,
    tap: Option<Arc<Tap>>,
    reply_to: ReplyTo,
}

impl CommandQueue {
    pub(crate) fn new(session: &str) -> Self {
        Self {
            session: session.to_owned(),
            slots: Arc::new(Semaphore::new(MAX_COMMANDS)),
            lists: Mutex::default(),
            writer: Notify::new(),
        }
    }

    /// Waits for a free slot; `None` after [`close`](Self::close).
    pub(crate) async fn slot(&self) -> Option<Slot> {
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        slot.ok().map(|_permit| Slot { _permit })
    }

    /// The receiver fails when the queue is closed before the answer.
    pub(crate) fn push(
        &self,
        request: Request,
        slot: Slot,
    ) -> oneshot::Receiver<Result<Blocks, Error>> {
        let (sender, receiver) = oneshot::channel();
        let mut lists = self.lock();
        if !lists.is_closed {
            let reply_to = ReplyTo::Caller {
                sender,
                _slot: slot,
            };
            lists.unwritten.push_back((request, reply_to));
            drop(lists);
            self.writer.notify_one();
        }
        receiver
    }

    /// Maintenance: list the panes.
    pub(crate) fn request_pane_list(&self) {
        self.add_maintenance(|maintenance| maintenance.list_panes = true);
    }

    /// Maintenance: make tmux reap its children.
    ///
    /// Before 3.5, tmux misses a child that ends while its terminal is taken off the list of
    /// logins. The end of another child makes it check all of them.
    pub(crate) fn reap_children(&self) {
        self.add_maintenance(|maintenance| maintenance.reap_children = true);
    }

    /// Maintenance: store the bracketed-paste mode of a pane in tmux, for processes that attach later.
    pub(crate) fn store_bracketing(&self, pane: PaneId, on: bool) {
        self.add_maintenance(|maintenance| {
            maintenance.bracketing.insert(pane, on);
        });
    }

    fn add_maintenance(&self, add: impl FnOnce(&mut Maintenance)) {
        let mut lists = self.lock();
        if !lists.is_closed {
            add(&mut lists.maintenance);
            drop(lists);
            self.writer.notify_one();
        }
    }

    /// Waits for the next line to write. The stream has been read up to `parsed`.
    pub(crate) async fn next_line(&self, parsed: impl Fn() -> u64) -> String {
        loop {
            if let Some(line) = self.try_next_line(&parsed) {
                return line;
            }
            self.writer.notified().await;
        }
    }

    fn try_next_line(&self, parsed: impl Fn() -> u64) -> Option<String> {
        let mut lists = self.lock();
        let (request, reply_to) = lists.next_request(&self.session)?;
        if let Some(tap) = &request.tap {
            tap.arm(parsed());
        }
        lists.unanswered.push_back(Unanswered {
            label: request.label,
            missing: request.blocks,
            bodies: Vec::new(),
            is_too_long: false,
            is_pane_list: request.is_pane_list,
            tap: request.tap,
            reply_to,
        });
        let mut line = request.line;
        line.push('\n');
        Some(line)
    }

    /// A block of the first unanswered line has begun, at offset `at`.
    pub(crate) fn block_began(&self, at: u64) {
        let mut lists = self.lock();
        let first = lists.unanswered.front_mut();
        if let Some(tap) = first.and_then(|unanswered| unanswered.tap.take()) {
            tap.open_at(at);
        }
    }

    /// A block of the first unanswered line has ended. `take_list` gets a list of panes, before the
    /// caller of the list gets its answer.
    pub(crate) fn block_ended(
        &self,
        end: BlockEnd,
        body: Vec<u8>,
        take_list: impl FnOnce(&[PaneInfo]),
    ) {
        let mut lists = self.lock();
        let Some(first) = lists.unanswered.front_mut() else {
            return;
        };
        first.missing = first.missing.saturating_sub(1);
        first.bodies.push(body);
        first.is_too_long |= end == BlockEnd::TooLong;
        // tmux stops at the first command that fails.
        let has_failed = end == BlockEnd::Failed;
        if !has_failed && first.missing > 0 {
            return;
        }
        let Some(answered) = lists.unanswered.pop_front() else {
            return;
        };
        if !matches!(answered.reply_to, ReplyTo::Caller { .. }) {
            lists.has_unanswered_maintenance = false;
            self.writer.notify_one();
        }
        drop(lists);
        if let Some(infos) = answered.pane_list(has_failed) {
            take_list(&infos);
        }
        answered.reply(has_failed);
    }

    /// The stream has ended: no command will be answered.
    pub(crate) fn close(&self) {
        self.slots.close();
        // Dropped after the unlock: a woken caller may call the queue at once.
        let dropped = {
            let mut lists = self.lock();
            lists.is_closed = true;
            lists.maintenance = Maintenance::default();
            (
                std::mem::take(&mut lists.unwritten),
                std::mem::take(&mut lists.unanswered),
            )
        };
        drop(dropped);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_closed
    }

    fn lock(&self) -> MutexGuard<'_, CommandLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CommandLists {
    /// Maintenance first: it is little, and the senders depend on its results.
    fn next_request(&mut self, session: &str) -> Option<(Request, ReplyTo)> {
        if !self.has_unanswered_maintenance
            && let Some(next) = self.maintenance.take_next(session)
        {
            self.has_unanswered_maintenance = true;
            return Some(next);
        }
        loop {
            let (request, reply_to) = self.unwritten.pop_front()?;
            // A caller that has given up must not have its command run later.
            match &reply_to {
                ReplyTo::Caller { sender, .. } if sender.is_closed() => {}
                _ => return Some((request, reply_to)),
            }
        }
    }
}

impl Maintenance {
    fn take_next(&mut self, session: &str) -> Option<(Request, ReplyTo)> {
        if std::mem::take(&mut self.reap_children) {
            let request = Request::new("run-shell", "run-shell -b true".to_owned());
            return Some((request, ReplyTo::Nothing));
        }
        if std::mem::take(&mut self.list_panes) {
            return Some((Request::list_panes(session), ReplyTo::Nothing));
        }
        let (pane, on) = self.bracketing.pop_first()?;
        let line = format!(
            "set-option -p -t {pane} @tmux_bus_bracketing {}",
            u8::from(on)
        );
        Some((Request::new("set-option", line), ReplyTo::Nothing))
    }
}

impl Unanswered {
    fn pane_list(&self, has_failed: bool) -> Option<Vec<PaneInfo>> {
        let is_list = self.is_pane_list && !has_failed && !self.is_too_long;
        let body = self.bodies.last().filter(|_| is_list)?;
        Some(PaneInfo::parse_list(&String::from_utf8_lossy(body)))
    }

    fn reply(mut self, has_failed: bool) {
        let ReplyTo::Caller { sender, .. } = self.reply_to else {
            return;
        };
        let reply = if has_failed {
            let message = self.bodies.pop().unwrap_or_default();
            let message = String::from_utf8_lossy(&message);
            Err(Error::failed(self.label, message.trim()))
        } else if self.is_too_long {
            Err(Error::TmuxOutputTooLong {
                command: self.label.to_owned(),
                limit: MAX_BLOCK,
            })
        } else {
            Ok(self.bodies)
        };
        // A caller that has given up does not need it.
        let _ = sender.send(reply);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line(queue: &CommandQueue) -> Option<String> {
        queue.try_next_line(|| 0)
    }

    async fn push(queue: &CommandQueue, text: &str) -> oneshot::Receiver<Result<Blocks, Error>> {
        let slot = queue.slot().await.unwrap();
        queue.push(Request::new("test", text.to_owned()), slot)
    }

    const LIST: &[u8] = b"%7\t0\t\t\t5\t/dev/pts/1\t\t\t0\t";

    /// Ends a block, and returns the number of panes that go into the table.
    fn end(queue: &CommandQueue, end: BlockEnd, body: &[u8]) -> usize {
        let mut listed = 0;
        queue.block_ended(end, body.to_vec(), |infos| listed = infos.len());
        listed
    }

    #[tokio::test]
    async fn blocks_are_given_to_the_lines_in_the_order_of_writing() {
        let queue = CommandQueue::new("s");
        let first = push(&queue, "one").await;
        let slot = queue.slot().await.unwrap();
        let second = queue.push(Request::new("test", "two ; three".into()).blocks(2), slot);
        let failing = push(&queue, "four").await;
        assert_eq!(line(&queue).unwrap(), "one\n");
        assert_eq!(line(&queue).unwrap(), "two ; three\n");
        assert_eq!(line(&queue).unwrap(), "four\n");
        assert_eq!(line(&queue), None);
        for body in ["1", "2", "3"] {
            end(&queue, BlockEnd::Ok, body.as_bytes());
        }
        end(&queue, BlockEnd::Failed, b" no such thing\n");
        assert_eq!(first.await.unwrap().unwrap(), [b"1"]);
        assert_eq!(second.await.unwrap().unwrap(), [b"2", b"3"]);
        let error = failing.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "tmux failed on `test`: no such thing");
    }

    #[tokio::test]
    async fn output_that_is_too_long_fails_its_own_command_only() {
        let queue = CommandQueue::new("s");
        let slot = queue.slot().await.unwrap();
        let long = queue.push(Request::new("test", "one ; two".into()).blocks(2), slot);
        let next = push(&queue, "three").await;
        while line(&queue).is_some() {}
        end(&queue, BlockEnd::TooLong, b"");
        end(&queue, BlockEnd::Ok, b"2");
        end(&queue, BlockEnd::Ok, b"3");
        let error = long.await.unwrap().unwrap_err();
        let is_too_long = matches!(error, Error::TmuxOutputTooLong { .. });
        assert!(is_too_long, "{error:?}");
        assert_eq!(next.await.unwrap().unwrap(), [b"3"]);
    }

    #[tokio::test(start_paused = true)]
    async fn callers_beyond_the_bound_wait_until_a_command_is_answered() {
        let queue = CommandQueue::new("s");
        let mut waiting = Vec::new();
        for _ in 0..MAX_COMMANDS {
            waiting.push(push(&queue, "x").await);
        }
        while line(&queue).is_some() {}
        let limit = Duration::from_secs(5);
        assert!(tokio::time::timeout(limit, queue.slot()).await.is_err());
        end(&queue, BlockEnd::Ok, b"");
        queue.slot().await.unwrap();
    }

    #[tokio::test]
    async fn maintenance_commands_are_merged_and_need_no_slot() {
        let queue = CommandQueue::new("s");
        let mut callers = Vec::new();
        for _ in 0..MAX_COMMANDS {
            callers.push(push(&queue, "x").await);
        }
        let pane: PaneId = "%7".parse().unwrap();
        for number in 0..1_000 {
            queue.request_pane_list();
            queue.store_bracketing(pane, number % 2 == 0);
        }
        let mut maintenance = Vec::new();
        while let Some(line) = line(&queue) {
            if line == "x\n" {
                // The next one is written after the answer to the first.
                break;
            }
            maintenance.push(line);
        }
        assert!(maintenance[0].starts_with("list-panes"), "{maintenance:?}");
        assert_eq!(maintenance.len(), 1);
        assert_eq!(end(&queue, BlockEnd::Ok, LIST), 1);
        assert_eq!(
            line(&queue).unwrap(),
            "set-option -p -t %7 @tmux_bus_bracketing 0\n"
        );
        assert_eq!(queue.lock().unanswered.len(), 2, "a caller and maintenance");
    }

    /// Otherwise a caller that is suspended could replace a newer list by its own.
    #[tokio::test]
    async fn the_reader_takes_the_list_of_a_caller_before_the_caller_continues() {
        let queue = CommandQueue::new("s");
        let slot = queue.slot().await.unwrap();
        let mut listing = queue.push(Request::list_panes("s"), slot);
        let slot = queue.slot().await.unwrap();
        let given_up = queue.push(Request::list_panes("s"), slot);
        while line(&queue).is_some() {}
        drop(given_up);
        let mut listed = 0;
        queue.block_ended(BlockEnd::Ok, LIST.to_vec(), |infos| {
            assert!(listing.try_recv().is_err(), "the caller has its answer");
            listed = infos.len();
        });
        assert_eq!(listed, 1);
        assert_eq!(listing.await.unwrap().unwrap(), [LIST]);
        assert_eq!(end(&queue, BlockEnd::Ok, LIST), 1, "without a caller");
        let slot = queue.slot().await.unwrap();
        let _failing = queue.push(Request::list_panes("s"), slot);
        while line(&queue).is_some() {}
        assert_eq!(end(&queue, BlockEnd::Failed, LIST), 0);
    }

    #[tokio::test]
    async fn a_command_whose_caller_has_given_up_is_not_written() {
        let queue = CommandQueue::new("s");
        drop(push(&queue, "given up").await);
        let _kept = push(&queue, "kept").await;
        assert_eq!(line(&queue).unwrap(), "kept\n");
        assert_eq!(queue.slots.available_permits(), MAX_COMMANDS - 1);
    }

    #[tokio::test]
    async fn the_end_of_the_stream_ends_all_waits() {
        let queue = Arc::new(CommandQueue::new("s"));
        let (written, unwritten) = (push(&queue, "1").await, push(&queue, "2").await);
        line(&queue);
        queue.close();
        assert!(written.await.is_err() && unwritten.await.is_err());
        assert!(queue.slot().await.is_none() && queue.is_closed());
        queue.request_pane_list();
        assert_eq!(line(&queue), None);
    }
}
