//! The known state of each pane, from its output and from the lists of tmux.
//!
//! # Theory
//!
//! Four events change a pane: output, a list of tmux, a start by this process, and the end of its
//! process. They arrive in any order, so a pane has these states:
//!
//! | state | fields | left by |
//! |---|---|---|
//! | unknown | `pid` 0, no `exit` | a list: running or ended |
//! | starting | `is_starting`, `launch` is the new id | `started`, or a list with the new id |
//! | running | `pid`, no `exit` | the first report of an end; a restart |
//! | ended | `exit` | a restart |
//!
//! - **Invariant.** An `exit` belongs to the program `launch`, is set once, and ends all taps. The
//!   first report is kept, because the launch wrapper reports the exact status before tmux does.
//! - **Invariant.** Everything that describes a program (`pid`, `exit`, the bracketing flags,
//!   `got_message`, the tokenizer) is reset when the program changes: by `starting`, or by a list
//!   with another launch id or process id (another process has restarted it).
//! - **Race.** A list that tmux made before a start can arrive after the first output of the new
//!   program, and would reset its bracketed-paste mode. Between `starting` and `started`, lists
//!   with another launch id are ignored. Lists arrive here in the order in which tmux made them,
//!   see `control/command_queue.rs`, so after `started` no older one follows.
//! - **Race.** tmux reports a dead pane before it knows the exit status. Such a pane is *ending*
//!   and stays in the state running, until a later list has the status or `process_gone` ends the
//!   wait.
//!
//! **Example.** A restart: `starting("new")` ends the taps and clears `pid`; an old list (`launch`
//! = `old`) is ignored; output `ESC[?2004h` sets `seen_bracketing`; `started`; a list with `new` and pid
//! 11 sets `pid` and starts the exit watch.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::SystemTime;

use tokio::time::Instant;

use super::exit_watch::ExitWatch;
use super::pane_id::PaneId;
use super::pane_info::PaneInfo;
use super::pane_lock::PaneLock;
use crate::Exit;
use crate::answer::tokenizer::{TerminalOp, Tokenizer};
use crate::control::tap::{OutputEnd, Tap};
use crate::tmux::launch;

#[derive(Debug)]
pub(crate) struct PaneTable {
    folder: PathBuf,
    panes: Mutex<HashMap<PaneId, KnownPane>>,
}

#[derive(Debug)]
struct KnownPane {
    tokenizer: Tokenizer,
    /// Bracketed-paste mode by the output since the launch was known; `None`: no change was seen.
    seen_bracketing: Option<bool>,
    /// Bracketed-paste mode by the last list, where another client may have stored it.
    listed_bracketing: bool,
    /// This process has started the program, and has seen all its output.
    is_own: bool,
    exit: Option<Exit>,
    pid: u32,
    tty: String,
    launch: String,
    /// A launch is under way: lists with another launch id are outdated.
    is_starting: bool,
    /// This process has sent a message to the launched program.
    got_message: bool,
    taps: Vec<Weak<Tap>>,
    last_output: Option<SystemTime>,
    lock: Arc<PaneLock>,
    watch: Option<ExitWatch>,
}

/// The state of a pane that a sender needs.
#[derive(Clone, Debug)]
pub(crate) struct PaneTarget {
    pub(crate) bracketing: bool,
    /// Another process has started the program, and may know the bracketed-paste mode better.
    pub(crate) may_be_bracketing: bool,
    pub(crate) exit: Option<Exit>,
    pub(crate) pid: u32,
    pub(crate) tty: String,
}

impl PaneTable {
    /// `folder` is the folder of the session.
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            panes: Mutex::default(),
        }
    }

    /// The folder of the session.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Takes output. Returns the bracketed-paste mode if the output changed it.
    pub(crate) fn output(&self, id: PaneId, bytes: &[u8], now: Instant) -> Option<bool> {
        let mut panes = self.lock_table();
        let pane = self.entry(&mut panes, id);
        pane.last_output = Some(SystemTime::now());
        pane.taps.retain(|tap| match tap.upgrade() {
            Some(tap) => {
                tap.push(bytes, now);
                true
            }
            None => false,
        });
        pane.scan(bytes)
    }

    /// Wakes the readers of a pane: it has changed without output.
    pub(crate) fn wake_taps(&self, id: PaneId) {
        if let Some(pane) = self.lock_table().get(&id) {
            let taps = pane.taps.iter().filter_map(Weak::upgrade);
            taps.for_each(|tap| tap.wake());
        }
    }

    /// Takes a list of tmux. Panes that are missing from it or dead have ended.
    pub(crate) fn update(
        &self,
        infos: &[PaneInfo],
        mut watch: impl FnMut(&PaneInfo) -> Option<ExitWatch>,
    ) {
        let mut panes = self.lock_table();
        panes.retain(|id, pane| {
            let is_listed = infos.iter().any(|info| info.id == *id);
            if !is_listed {
                pane.ended(Exit::Unknown);
            }
            is_listed
        });
        for info in infos {
            let pane = self.entry(&mut panes, info.id);
            if pane.is_starting && pane.launch != info.launch {
                continue;
            }
            pane.is_starting = false;
            let pid = pane.listed_pid(info);
            // Another program than before; another process may have started it.
            if pane.launch != info.launch || (pane.pid != 0 && pane.pid != pid) {
                pane.restarted(&info.launch);
            }
            if pane.pid != pid {
                pane.pid = pid;
                if !info.dead {
                    pane.watch = watch(info);
                }
            }
            pane.listed_bracketing = info.bracketing.unwrap_or(false);
            pane.tty.clone_from(&info.tty);
            if info.dead && !info.is_ending() {
                pane.ended(info.exit);
            }
        }
    }

    /// The process of a pane has ended, also if tmux does not report it.
    pub(crate) fn process_gone(&self, id: PaneId, pid: u32) {
        let mut panes = self.lock_table();
        let is_this = |pane: &&mut KnownPane| pane.pid == pid || pid == 0;
        if let Some(pane) = panes.get_mut(&id).filter(is_this) {
            pane.ended(Exit::Unknown);
        }
    }

    /// The panes of a list that are ending, see [`PaneInfo::is_ending`].
    pub(crate) fn ending<'a>(
        &'a self,
        infos: &'a [PaneInfo],
    ) -> impl Iterator<Item = &'a PaneInfo> {
        let is_running = |info: &PaneInfo| {
            let panes = self.lock_table();
            let pane = panes.get(&info.id);
            pane.is_some_and(|pane| pane.exit.is_none() && pane.pid == pane.listed_pid(info))
        };
        let is_ending = move |info: &&PaneInfo| info.is_ending() && is_running(info);
        infos.iter().filter(is_ending)
    }

    /// Whether the process is the living program of the pane, as far as is known.
    pub(crate) fn runs(&self, id: PaneId, pid: u32) -> bool {
        let panes = self.lock_table();
        panes
            .get(&id)
            .is_some_and(|pane| pane.pid == pid && pane.exit.is_none())
    }

    pub(crate) fn server_gone(&self) {
        for pane in self.lock_table().values_mut() {
            pane.end_taps(OutputEnd::ServerGone);
        }
    }

    pub(crate) fn contains(&self, id: PaneId) -> bool {
        self.lock_table().contains_key(&id)
    }

    pub(crate) fn target(&self, id: PaneId) -> Option<PaneTarget> {
        self.lock_table().get(&id).map(|pane| PaneTarget {
            bracketing: pane.bracketing(),
            may_be_bracketing: pane.seen_bracketing.unwrap_or(!pane.is_own),
            exit: pane.exit,
            pid: pane.pid,
            tty: pane.tty.clone(),
        })
    }

    /// The id of the launch of the pane's program, as far as is known.
    pub(crate) fn launch(&self, id: PaneId) -> Option<String> {
        let panes = self.lock_table();
        let launch = panes.get(&id).map(|pane| pane.launch.clone());
        launch.filter(|launch| !launch.is_empty())
    }

    /// The launches of the panes, for a server that cannot list them any more. Without process ids: those may belong to
    /// other processes by now.
    pub(crate) fn launched(&self) -> Vec<PaneInfo> {
        let panes = self.lock_table();
        let panes = panes.iter().filter(|(_, pane)| !pane.launch.is_empty());
        let info = |(id, pane): (&PaneId, &KnownPane)| PaneInfo {
            id: *id,
            dead: true,
            exit: Exit::Unknown,
            pid: 0,
            tty: String::new(),
            launch: pane.launch.clone(),
            agent: String::new(),
            bracketing: None,
        };
        panes.map(info).collect()
    }

    pub(crate) fn lock(&self, id: PaneId) -> Option<Arc<PaneLock>> {
        let panes = self.lock_table();
        panes.get(&id).map(|pane| Arc::clone(&pane.lock))
    }

    pub(crate) fn last_output(&self, id: PaneId) -> Option<SystemTime> {
        self.lock_table().get(&id).and_then(|pane| pane.last_output)
    }

    /// A program is about to be started in a pane. See the theory above.
    pub(crate) fn starting(&self, id: PaneId, launch: &str) {
        let mut panes = self.lock_table();
        let pane = self.entry(&mut panes, id);
        pane.restarted(launch);
        pane.is_own = true;
        pane.is_starting = true;
    }

    /// tmux has started the program, or failed to: every list from now on is newer.
    pub(crate) fn started(&self, id: PaneId) {
        if let Some(pane) = self.lock_table().get_mut(&id) {
            pane.is_starting = false;
        }
    }

    /// A message was submitted to a pane.
    pub(crate) fn message_submitted(&self, id: PaneId) {
        if let Some(pane) = self.lock_table().get_mut(&id) {
            pane.got_message = true;
        }
    }

    pub(crate) fn got_message(&self, id: PaneId) -> bool {
        self.lock_table()
            .get(&id)
            .is_some_and(|pane| pane.got_message)
    }

    /// Adds a reader of a pane's output. A tap that is there already is not added again: it would get all
    /// output twice.
    pub(crate) fn add_tap(&self, id: PaneId, tap: &Arc<Tap>) {
        if let Some(pane) = self.lock_table().get_mut(&id) {
            if let Some(exit) = pane.exit {
                tap.end(OutputEnd::Exited(exit));
            }
            // A pane that prints nothing does not remove its dropped taps: this bounds them.
            if pane.taps.len() == pane.taps.capacity() {
                pane.taps.retain(|tap| tap.strong_count() > 0);
            }
            if !pane
                .taps
                .iter()
                .any(|known| known.as_ptr() == Arc::as_ptr(tap))
            {
                pane.taps.push(Arc::downgrade(tap));
            }
        } else {
            tap.end(OutputEnd::Exited(Exit::Unknown));
        }
    }

    fn entry<'a>(
        &self,
        panes: &'a mut HashMap<PaneId, KnownPane>,
        id: PaneId,
    ) -> &'a mut KnownPane {
        panes
            .entry(id)
            .or_insert_with(|| KnownPane::new(&self.folder, id))
    }

    fn lock_table(&self) -> MutexGuard<'_, HashMap<PaneId, KnownPane>> {
        self.panes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl KnownPane {
    fn new(folder: &Path, id: PaneId) -> Self {
        Self {
            tokenizer: Tokenizer::default(),
            seen_bracketing: None,
            listed_bracketing: false,
            is_own: false,
            exit: None,
            pid: 0,
            tty: String::new(),
            launch: String::new(),
            is_starting: false,
            got_message: false,
            taps: Vec::new(),
            last_output: None,
            lock: Arc::new(PaneLock::new(folder, id)),
            watch: None,
        }
    }

    /// Finds changes of the bracketed-paste mode and the exit report of the launch wrapper. Returns
    /// the mode if it changed.
    fn scan(&mut self, mut bytes: &[u8]) -> Option<bool> {
        if self.tokenizer.is_ground() {
            bytes = &bytes[memchr::memchr(0x1b, bytes)?..];
        }
        let (mut bracketing, mut exit) = (None, None);
        self.tokenizer.feed(bytes, |op| match op {
            TerminalOp::Bracketing(on) => bracketing = Some(on),
            TerminalOp::Osc(osc) => exit = exit.or(launch::exit_report(osc, &self.launch)),
            _ => {}
        });
        if let Some(exit) = exit {
            self.ended(exit);
        }
        let on = bracketing?;
        let has_changed = on != self.bracketing();
        self.seen_bracketing = Some(on);
        has_changed.then_some(on)
    }

    /// The process id of a list. Since tmux 3.8 a dead pane has none: it is the known one.
    fn listed_pid(&self, info: &PaneInfo) -> u32 {
        match info.pid {
            0 if info.dead && info.launch == self.launch => self.pid,
            pid => pid,
        }
    }

    fn bracketing(&self) -> bool {
        self.seen_bracketing.unwrap_or(self.listed_bracketing)
    }

    fn restarted(&mut self, launch: &str) {
        if self.pid != 0 {
            self.ended(Exit::Unknown);
        }
        self.watch = None;
        self.exit = None;
        self.pid = 0;
        self.seen_bracketing = None;
        self.listed_bracketing = false;
        self.is_own = false;
        self.got_message = false;
        self.tokenizer = Tokenizer::default();
        launch.clone_into(&mut self.launch);
    }

    fn ended(&mut self, exit: Exit) {
        // The first report is the exact one: the wrapper reports before tmux.
        let exit = *self.exit.get_or_insert(exit);
        self.end_taps(OutputEnd::Exited(exit));
    }

    fn end_taps(&mut self, end: OutputEnd) {
        let taps = std::mem::take(&mut self.taps);
        taps.iter()
            .filter_map(Weak::upgrade)
            .for_each(|tap| tap.end(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_from_before_a_start_does_not_reset_the_bracketed_paste_mode() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        let list = |text: &str| panes.update(&PaneInfo::parse_list(text), |_| None);
        let before = "%1\t1\t\t9\t10\t/dev/pts/1\told\tagent\t0\t";
        let after = "%1\t0\t\t\t11\t/dev/pts/2\tnew\tagent\t0\t";
        list(before);
        panes.starting(id, "new");
        list(before);
        panes.output(id, b"\x1b[?2004h> ", Instant::now());
        panes.started(id);
        list(after);
        let target = panes.target(id).unwrap();
        assert!(target.bracketing);
        assert_eq!(target.exit, None);
    }

    #[test]
    fn the_dropped_taps_of_a_silent_pane_are_removed() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        panes.output(id, b"> ", Instant::now());
        let kept = Arc::new(Tap::new(0));
        panes.add_tap(id, &kept);
        for _ in 0..10_000 {
            panes.add_tap(id, &Arc::new(Tap::new(0)));
        }
        let taps = panes.lock_table()[&id].taps.clone();
        assert!(taps.len() < 10, "{}", taps.len());
        assert!(taps.iter().any(|tap| tap.upgrade().is_some()));
    }

    /// A submit that tmux refused, because the cursor has moved, is repeated with the same tap.
    #[test]
    fn a_tap_that_is_added_twice_gets_the_output_once() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        panes.output(id, b"> ", Instant::now());
        let tap = Arc::new(Tap::new(100));
        tap.open();
        panes.add_tap(id, &tap);
        panes.add_tap(id, &tap);
        panes.output(id, b"answer", Instant::now());
        assert_eq!(tap.take().bytes, b"answer");
    }

    /// Another client restarts the program; its first output is faster than the list.
    #[test]
    fn a_restart_by_another_client_does_not_hide_the_bracketed_paste_mode() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        let list = |text: &str| panes.update(&PaneInfo::parse_list(text), |_| None);
        list("%1\t0\t\t\t10\t/dev/pts/1\told\tagent\t0\t");
        panes.output(id, b"\x1b[?2004h", Instant::now());
        // The new program.
        panes.output(id, b"\x1b[?2004h", Instant::now());
        list("%1\t0\t\t\t11\t/dev/pts/1\tnew\tagent\t0\t");
        assert!(!panes.target(id).unwrap().bracketing, "not stored yet");
        assert!(panes.target(id).unwrap().may_be_bracketing);
        list("%1\t0\t\t\t11\t/dev/pts/1\tnew\tagent\t1\t");
        assert!(panes.target(id).unwrap().bracketing);
        panes.output(id, b"\x1b[?2004l", Instant::now());
        list("%1\t0\t\t\t11\t/dev/pts/1\tnew\tagent\t1\t");
        assert!(!panes.target(id).unwrap().bracketing, "own output is newer");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_exit_whose_status_is_not_known_yet_is_not_reported_as_unknown() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        let list = |text: &str| panes.update(&PaneInfo::parse_list(text), |_| None);
        list("%1\t1\t\t\t10\t/dev/pts/1\tlaunch\tagent\t0\t");
        assert_eq!(panes.target(id).unwrap().exit, None);
        list("%1\t1\t137\t\t10\t/dev/pts/1\tlaunch\tagent\t0\t");
        assert_eq!(panes.target(id).unwrap().exit, Some(Exit::Signal(9)));
    }

    /// tmux 3.8 lists a dead pane without its process id.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_dead_pane_without_a_process_id_is_not_a_restart() {
        let panes = PaneTable::new(Path::new("/nowhere"));
        let id = PaneId::new("%1").unwrap();
        let list = |text: &str| {
            let infos = PaneInfo::parse_list(text);
            panes.update(&infos, |_| None);
            panes.ending(&infos).count()
        };
        assert_eq!(list("%1\t0\t\t\t10\t/dev/pts/1\tlaunch\tagent\t0\t"), 0);
        assert_eq!(list("%1\t1\t\t\t\t\tlaunch\tagent\t0\t"), 1);
        assert_eq!(
            panes.target(id).unwrap().exit,
            None,
            "its status is not known yet"
        );
        assert_eq!(list("%1\t1\t137\t\t\t\tlaunch\tagent\t0\t"), 0);
        assert_eq!(panes.target(id).unwrap().exit, Some(Exit::Signal(9)));
    }
}
