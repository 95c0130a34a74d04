//! What is known of each pane, from its output and from tmux's list.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::SystemTime,
};

use tokio::{task::JoinHandle, time::Instant};

use crate::{
    error::Exit,
    launch,
    pane::PaneId,
    queue::Queue,
    tap::{End, Tap},
    vt::{Step, Tokenizer},
};

/// A pane as tmux lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PaneInfo {
    pub(crate) id: PaneId,
    pub(crate) dead: bool,
    pub(crate) exit: Exit,
    pub(crate) pid: u32,
    pub(crate) tty: String,
    pub(crate) launch: String,
    pub(crate) agent: String,
    bracketing: Option<bool>,
}

impl PaneInfo {
    /// Whether the pane's process has ended, but tmux has not asked the system how: the end of the
    /// terminal and of the process reach it separately.
    ///
    /// Only where somebody watches the process and asks again.
    fn is_ending(&self) -> bool {
        cfg!(target_os = "linux") && self.dead && self.pid != 0 && self.exit == Exit::Unknown
    }

    pub(crate) const FORMAT: &str = "#{pane_id}\t#{pane_dead}\t#{pane_dead_status}\t#{pane_dead_signal}\t#{pane_pid}\t#{pane_tty}\t#{@tmux_bus_launch}\t#{@tmux_bus_agent}\t#{@tmux_bus_bracketing}\t#{bracket_paste_flag}";

    pub(crate) fn parse(list: &str) -> Vec<Self> {
        list.lines().filter_map(Self::parse_line).collect()
    }

    fn parse_line(line: &str) -> Option<Self> {
        let mut fields = line.split('\t');
        let mut next = || fields.next();
        let id = PaneId::parse(next()?.as_bytes())?;
        let dead = next()? == "1";
        let (status, signal) = (next()?.parse().ok(), next()?.parse().ok());
        let pid = next()?.parse().unwrap_or(0);
        let (tty, launch, agent) = (next()?.to_owned(), next()?.to_owned(), next()?.to_owned());
        let exit = match (status, signal) {
            (_, Some(signal)) if signal != 0 => Exit::Signal(signal),
            (Some(status), _) if !launch.is_empty() => launch::exit(status),
            (Some(status), _) => Exit::Status(status),
            _ => Exit::Unknown,
        };
        let ours = flag(next()?);
        // Newer versions of tmux know it themselves.
        let bracketing = next().and_then(flag).or(ours);
        Some(Self {
            id,
            dead,
            exit,
            pid,
            tty,
            launch,
            agent,
            bracketing,
        })
    }
}

fn flag(text: &str) -> Option<bool> {
    match text {
        "1" => Some(true),
        "0" => Some(false),
        _ => None,
    }
}

#[derive(Debug)]
pub(crate) struct Panes {
    folder: PathBuf,
    panes: Mutex<HashMap<PaneId, Pane>>,
}

#[derive(Debug)]
struct Pane {
    tokenizer: Tokenizer,
    bracketing: bool,
    exit: Option<Exit>,
    pid: u32,
    tty: String,
    launch: String,
    /// A launch is under way: what tmux says of an earlier one is out of date.
    starting: bool,
    /// This process has sent a message to the program that was launched.
    asked: bool,
    taps: Vec<Weak<Tap>>,
    last_output: Option<SystemTime>,
    queue: Arc<Queue>,
    watch: Option<JoinHandle<()>>,
}

impl Drop for Pane {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

/// What a sender needs to know of a pane.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) bracketing: bool,
    pub(crate) exit: Option<Exit>,
    pub(crate) pid: u32,
    pub(crate) tty: String,
}

impl Panes {
    pub(crate) fn new(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            panes: Mutex::default(),
        }
    }

    /// Takes output in. Tells when the program begins or ceases to ask for bracketed paste.
    pub(crate) fn output(&self, id: PaneId, bytes: &[u8], now: Instant) -> Option<bool> {
        let mut panes = self.lock();
        let pane = panes
            .entry(id)
            .or_insert_with(|| Pane::new(&self.folder, id));
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

    /// Takes tmux's list in: panes that are missing or dead have ended.
    pub(crate) fn update(
        &self,
        infos: &[PaneInfo],
        mut watch: impl FnMut(&PaneInfo) -> Option<JoinHandle<()>>,
    ) {
        let mut panes = self.lock();
        panes.retain(|id, pane| {
            let listed = infos.iter().any(|info| info.id == *id);
            if !listed {
                pane.ended(Exit::Unknown);
            }
            listed
        });
        for info in infos {
            let pane = panes
                .entry(info.id)
                .or_insert_with(|| Pane::new(&self.folder, info.id));
            if pane.starting && pane.launch != info.launch {
                continue;
            }
            pane.starting = false;
            // Another program than before, perhaps started by another process.
            if pane.launch != info.launch || (pane.pid != 0 && pane.pid != info.pid) {
                pane.restarted(&info.launch);
            }
            if pane.pid != info.pid {
                pane.pid = info.pid;
                pane.bracketing |= info.bracketing.unwrap_or(false);
                if !info.dead {
                    pane.watch = watch(info);
                }
            }
            pane.tty.clone_from(&info.tty);
            if info.dead && !info.is_ending() {
                pane.ended(info.exit);
            }
        }
    }

    /// The process of a pane has ended, whatever tmux says of the pane.
    pub(crate) fn process_gone(&self, id: PaneId, pid: u32) {
        if let Some(pane) = self.lock().get_mut(&id).filter(|pane| pane.pid == pid) {
            pane.ended(Exit::Unknown);
        }
    }

    /// The panes of a list that have ended, but nobody knows how yet.
    pub(crate) fn ending<'a>(
        &'a self,
        infos: &'a [PaneInfo],
    ) -> impl Iterator<Item = &'a PaneInfo> {
        let unknown = |info: &&PaneInfo| info.is_ending() && self.runs(info.id, info.pid);
        infos.iter().filter(unknown)
    }

    /// Whether a process is the one of a pane, as far as is known.
    pub(crate) fn runs(&self, id: PaneId, pid: u32) -> bool {
        let panes = self.lock();
        panes
            .get(&id)
            .is_some_and(|pane| pane.pid == pid && pane.exit.is_none())
    }

    pub(crate) fn server_gone(&self) {
        for pane in self.lock().values_mut() {
            pane.each_tap(|tap| tap.end(End::ServerGone));
        }
    }

    pub(crate) fn knows(&self, id: PaneId) -> bool {
        self.lock().contains_key(&id)
    }

    pub(crate) fn target(&self, id: PaneId) -> Option<Target> {
        self.lock().get(&id).map(|pane| Target {
            bracketing: pane.bracketing,
            exit: pane.exit,
            pid: pane.pid,
            tty: pane.tty.clone(),
        })
    }

    pub(crate) fn queue(&self, id: PaneId) -> Option<Arc<Queue>> {
        self.lock().get(&id).map(|pane| Arc::clone(&pane.queue))
    }

    pub(crate) fn last_output(&self, id: PaneId) -> Option<SystemTime> {
        self.lock().get(&id).and_then(|pane| pane.last_output)
    }

    /// A program is about to be started in a pane. Until [`started`](Self::started), lists that
    /// were asked for before are not believed.
    pub(crate) fn starting(&self, id: PaneId, launch: &str) {
        let mut panes = self.lock();
        let pane = panes
            .entry(id)
            .or_insert_with(|| Pane::new(&self.folder, id));
        pane.restarted(launch);
        pane.starting = true;
    }

    /// tmux has started it, or failed to: every list from now on is newer.
    pub(crate) fn started(&self, id: PaneId) {
        if let Some(pane) = self.lock().get_mut(&id) {
            pane.starting = false;
        }
    }

    /// A message was submitted to a pane.
    pub(crate) fn asked(&self, id: PaneId) {
        if let Some(pane) = self.lock().get_mut(&id) {
            pane.asked = true;
        }
    }

    pub(crate) fn was_asked(&self, id: PaneId) -> bool {
        self.lock().get(&id).is_some_and(|pane| pane.asked)
    }

    /// Adds a reader of a pane's output.
    pub(crate) fn tap(&self, id: PaneId, tap: &Arc<Tap>) {
        if let Some(pane) = self.lock().get_mut(&id) {
            if let Some(exit) = pane.exit {
                tap.end(End::Exited(exit));
            }
            pane.taps.push(Arc::downgrade(tap));
        } else {
            tap.end(End::Exited(Exit::Unknown));
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<PaneId, Pane>> {
        self.panes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pane {
    fn new(folder: &Path, id: PaneId) -> Self {
        Self {
            tokenizer: Tokenizer::default(),
            bracketing: false,
            exit: None,
            pid: 0,
            tty: String::new(),
            launch: String::new(),
            starting: false,
            asked: false,
            taps: Vec::new(),
            last_output: None,
            queue: Arc::new(Queue::new(folder, id)),
            watch: None,
        }
    }

    /// Looks for the few sequences that matter while nobody reads.
    fn scan(&mut self, mut bytes: &[u8]) -> Option<bool> {
        if self.tokenizer.is_ground() {
            bytes = &bytes[memchr::memchr(0x1b, bytes)?..];
        }
        let (mut asked, mut exit) = (None, None);
        self.tokenizer.feed(bytes, |step| match step {
            Step::Bracketing(on) => asked = Some(on),
            Step::Osc(osc) => exit = exit.or(launch::exit_report(osc, &self.launch)),
            _ => {}
        });
        if let Some(exit) = exit {
            self.ended(exit);
        }
        let asked = asked.filter(|on| *on != self.bracketing)?;
        self.bracketing = asked;
        Some(asked)
    }

    fn restarted(&mut self, launch: &str) {
        if self.pid != 0 {
            self.ended(Exit::Unknown);
        }
        if let Some(watch) = self.watch.take() {
            watch.abort();
        }
        self.exit = None;
        self.pid = 0;
        self.bracketing = false;
        self.asked = false;
        self.tokenizer = Tokenizer::default();
        launch.clone_into(&mut self.launch);
    }

    fn ended(&mut self, exit: Exit) {
        // The first report is the exact one: the wrapper's comes before tmux's.
        let exit = *self.exit.get_or_insert(exit);
        self.each_tap(|tap| tap.end(End::Exited(exit)));
    }

    fn each_tap(&mut self, mut f: impl FnMut(&Tap)) {
        for tap in std::mem::take(&mut self.taps)
            .iter()
            .filter_map(Weak::upgrade)
        {
            f(&tap);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_from_before_a_start_does_not_undo_what_the_program_asked_for() {
        let panes = Panes::new(Path::new("/nowhere"));
        let id = PaneId::parse(b"%1").unwrap();
        let list = |text: &str| panes.update(&PaneInfo::parse(text), |_| None);
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

    #[cfg(target_os = "linux")]
    #[test]
    fn an_end_that_tmux_cannot_explain_yet_is_not_taken_for_an_unknown_one() {
        let panes = Panes::new(Path::new("/nowhere"));
        let id = PaneId::parse(b"%1").unwrap();
        let list = |text: &str| panes.update(&PaneInfo::parse(text), |_| None);
        list("%1\t1\t\t\t10\t/dev/pts/1\tlaunch\tagent\t0\t");
        assert_eq!(panes.target(id).unwrap().exit, None);
        list("%1\t1\t137\t\t10\t/dev/pts/1\tlaunch\tagent\t0\t");
        assert_eq!(panes.target(id).unwrap().exit, Some(Exit::Signal(9)));
    }
}
