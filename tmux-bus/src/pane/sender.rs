//! Sends a message: byte for byte, submitted once.
//!
//! # Theory
//!
//! A message becomes a submit in these steps. The pane's lock is held from before the first step
//! until the answer is read.
//!
//! 1. Read the state of the pane and the modes of its terminal; refuse text that could not arrive
//!    unchanged.
//! 2. Paste the text. One line of tmux commands loads the buffer, reads the state, captures the
//!    screen and pastes, if the pane is alive, accepts input and runs the expected process. tmux
//!    runs nothing between the commands of one line, so no state can change between test and paste.
//! 3. Wait until the program has taken the paste in, see [`wait_for_echo`].
//! 4. Paste a return by the same guarded line. Its `%begin` is the submit offset of the tap, its
//!    capture the screen before the answer.
//!
//! An agent whose screen is known is typed to with more care, see `typist.rs`. It must be idle before step 1:
//! a program that starts has not set the modes of its terminal yet.
//!
//! If the terminal is in canonical mode and the program did not enable bracketed paste, steps 2 to
//! 4 are one paste of text and return: the terminal driver itself separates the line.
//!
//! - **Invariant.** No message is submitted twice. Only a paste that tmux refused is repeated. tmux
//!   compares the process id of the pane, because a restarted program has a new process id but can
//!   get the same terminal name.
//! - **Race.** The program ends or is restarted. Before step 2: refused, or sent to the new
//!   program. Between 2 and 4: [`Refusal::Dead`], because the text has ended with the old program.
//! - **Race.** A person switches the input of the pane off. Before step 2: refused. Between 2 and
//!   4: [`Error::NotSubmitted`], because the text is in the input line of a live program.
//! - **Race.** The connection is lost during the last paste. The outcome is then unknown:
//!   [`Error::SubmitUnknown`].
//! - tmux 3.3 crashes on a paste into a dead pane: the reason for the test inside tmux.
//! - **Cancellation.** The caller runs [`Sender::send`] in a task of its own. Half a message in an
//!   input line would become the beginning of the next one.
//!
//! **Example.** A program that enabled bracketed paste gets `hi`: `set-buffer -b B -- "hi" ;
//! display-message ... ; capture-pane ... ; if-shell -F <unfit> { delete-buffer ... } { copy-mode
//! -q ... ; paste-buffer -d -r -p -b B -t %1 }`, the echo `> hi`, 15 ms of quiet, and the same line
//! with `"\015"` and without `-p`.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::echo_wait::wait_for_echo;
use super::pane_id::PaneId;
use super::pane_lock::PaneLockGuard;
use super::pane_table::PaneTarget;
use super::paste_buffer::PasteBuffer;
use super::tty_modes::{self, TtyModes};
use super::typist::{OwnText, Typist};
use crate::answer::extract;
use crate::answer::marker::{self, FoldedChar};
use crate::control::command_queue::Request;
use crate::control::control_client::ControlClient;
use crate::control::quoting::quote;
use crate::control::tap::Tap;
use crate::state::screen::Cursor;
use crate::timing::{BRACKETING_LIMIT, BRACKETING_PAUSE};
use crate::{Error, PartialAnswer, Refusal};

/// The longest message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// How a message is sent.
///
/// ```
/// use tmux_bus::SendOptions;
///
/// let options = SendOptions::default().allow_unbracketed();
/// # let _ = options;
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct SendOptions {
    unbracketed: bool,
}

impl SendOptions {
    /// Sends newlines and control characters also to a program that did not enable bracketed
    /// paste: each newline submits the text before it, and control characters take effect.
    #[must_use]
    pub fn allow_unbracketed(mut self) -> Self {
        self.unbracketed = true;
        self
    }
}

/// The state of a pane at the moment of a submit, and its output since.
#[derive(Debug)]
pub(crate) struct Submitted {
    pub(crate) tap: Arc<Tap>,
    pub(crate) at: Instant,
    pub(crate) screen: String,
    /// The folded message.
    pub(crate) folded: Vec<FoldedChar>,
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Number of lines that have scrolled off the screen.
    pub(crate) scrolled_lines: usize,
    /// The terminal driver echoes the message after the submit.
    pub(crate) echoed: bool,
    /// The program showed a prompt when the message was pasted.
    pub(crate) has_prompt: bool,
    /// Held until the answer is read, or given up.
    lock: Mutex<Option<PaneLockGuard>>,
}

impl Submitted {
    pub(super) fn release(&self) {
        self.lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
    }

    /// To a pane of 80 columns and 3 rows whose terminal does not echo.
    #[cfg(test)]
    pub(crate) fn to_small_pane() -> Self {
        Self {
            tap: Arc::new(Tap::new(0)),
            at: Instant::now(),
            screen: String::new(),
            folded: Vec::new(),
            width: 80,
            height: 3,
            scrolled_lines: 0,
            echoed: false,
            has_prompt: false,
            lock: Mutex::new(None),
        }
    }
}

/// Sends one message.
pub(crate) struct Sender {
    pub(crate) control: ControlClient,
    /// The folder of the session.
    pub(crate) folder: PathBuf,
    pub(crate) pane: PaneId,
    pub(crate) options: SendOptions,
    pub(crate) max_answer: usize,
    /// `None` for a program whose screen is not known.
    pub(crate) typist: Option<Typist>,
}

impl Sender {
    /// Refuses text that no pane can take.
    pub(crate) fn check(pane: PaneId, message: &str) -> Result<(), Error> {
        match refusal_of_text(message) {
            Some(reason) => Err(Error::refused(pane, reason)),
            None => Ok(()),
        }
    }

    pub(crate) async fn send(
        &self,
        message: &str,
        lock: PaneLockGuard,
    ) -> Result<Submitted, Error> {
        /// How often a send is repeated because the program was restarted before the paste, or the cursor of
        /// an agent has moved.
        const ATTEMPTS: usize = 3;
        for _ in 0..ATTEMPTS {
            let agent = match &self.typist {
                Some(typist) => Some((typist, self.admit(typist, OwnText::Remove).await?)),
                None => None,
            };
            let (target, modes) = self.target_for(message).await?;
            // Race: the agent was restarted after the look at its screen.
            if let Some((_, seen)) = &agent
                && seen.pid != target.pid
            {
                self.control.list_panes_and_exits().await?;
                continue;
            }
            self.check_for(message, &target, modes)?;
            // A new one for each attempt: the restart of a program ends the taps of its pane.
            let tap = Arc::new(Tap::new(self.max_answer));
            let in_one_paste = agent.is_none() && modes.canonical && !target.bracketing;
            let sent = if let Some((typist, seen)) = &agent {
                let keys = (target.pid, modes.submit_byte());
                self.type_and_submit(typist, seen, message, keys, &tap)
                    .await?
            } else if in_one_paste {
                self.paste_line(message, &target, modes, &tap).await?
            } else {
                self.paste_and_submit(message, &target, modes, &tap).await?
            };
            let Some(report) = sent else {
                self.control.list_panes_and_exits().await?;
                continue;
            };
            self.control.panes().message_submitted(self.pane);
            return Ok(Submitted {
                tap,
                at: Instant::now(),
                screen: report.screen,
                folded: marker::fold(message),
                width: report.width,
                height: report.height,
                scrolled_lines: report.scrolled_lines,
                echoed: in_one_paste && modes.echo,
                has_prompt: report.has_prompt,
                lock: Mutex::new(Some(lock)),
            });
        }
        // Three restarts, or an agent whose cursor moves all the time.
        let target = self.control.panes().target(self.pane);
        let is_alive = target.is_some_and(|target| target.exit.is_none());
        Err(self.refused(match self.typist.is_some() && is_alive {
            true => Refusal::Busy,
            false => Refusal::Dead,
        }))
    }

    /// Text and return in one paste; `None` if the pane runs another program.
    async fn paste_line(
        &self,
        message: &str,
        target: &PaneTarget,
        modes: TtyModes,
        tap: &Arc<Tap>,
    ) -> Result<Option<PasteReport>, Error> {
        let text = [message.as_bytes(), &[modes.submit_byte()]].concat();
        self.paste(target.pid, &text, Bracket::Never, None, tap)
            .await
            .map_err(|error| self.submit_unknown(error))
    }

    /// Text, echo, return; `None` if the pane runs another program and got nothing.
    async fn paste_and_submit(
        &self,
        message: &str,
        target: &PaneTarget,
        modes: TtyModes,
        tap: &Arc<Tap>,
    ) -> Result<Option<PasteReport>, Error> {
        let echo = Arc::new(Tap::new(self.max_answer));
        let pasted = self
            .paste(
                target.pid,
                message.as_bytes(),
                Bracket::IfEnabled,
                None,
                &echo,
            )
            .await
            .map_err(|error| self.not_submitted(error))?;
        let Some(pasted) = pasted else {
            return Ok(None);
        };
        wait_for_echo(&echo, &target.tty, message).await;
        let submitted = self
            .submit(target.pid, modes.submit_byte(), None, tap)
            .await?;
        let mut report = submitted.ok_or_else(|| self.refused(Refusal::Dead))?;
        report.has_prompt = pasted.has_prompt;
        Ok(Some(report))
    }

    /// `None` if the pane runs another program, or the cursor is not `at` its place.
    pub(super) async fn submit(
        &self,
        pid: u32,
        submit_byte: u8,
        at: Option<Cursor>,
        tap: &Arc<Tap>,
    ) -> Result<Option<PasteReport>, Error> {
        match self
            .paste(pid, &[submit_byte], Bracket::Never, at, tap)
            .await
        {
            Ok(report) => Ok(report),
            Err(error) => Err(match self.submit_unknown(error) {
                error @ Error::SubmitUnknown { .. } => error,
                error => self.left_in_input(error),
            }),
        }
    }

    /// For an error between the paste and the submit.
    pub(super) fn left_in_input(&self, error: Error) -> Error {
        match error {
            // The text has ended with the program that had it.
            error @ Error::Refused {
                reason: Refusal::Dead | Refusal::NoSuchPane,
                ..
            } => error,
            // The text is in the input line of a live program: another send would add to it.
            error => Error::NotSubmitted {
                pane: self.pane,
                source: Box::new(error),
            },
        }
    }

    /// The target, from a fresh list if the message needs brackets and the table says that the
    /// program did not enable them.
    ///
    /// Race: another client restarts the program. Its first output, which enables brackets, can
    /// arrive here before the list that shows the restart, and is then taken for the old program's.
    /// The client that restarted it stores the mode in tmux, a moment later. So the list is repeated
    /// for a while if another client has started the program.
    async fn target_for(&self, message: &str) -> Result<(PaneTarget, TtyModes), Error> {
        let (target, modes) = self.target().await?;
        if target.bracketing || self.options.unbracketed || !needs_brackets(message, modes) {
            return Ok((target, modes));
        }
        let until = Instant::now() + BRACKETING_LIMIT;
        loop {
            self.control.list_panes_and_exits().await?;
            let (target, modes) = self.target().await?;
            if target.bracketing || !target.may_be_bracketing || Instant::now() >= until {
                return Ok((target, modes));
            }
            tokio::time::sleep(BRACKETING_PAUSE).await;
        }
    }

    pub(super) async fn target(&self) -> Result<(PaneTarget, TtyModes), Error> {
        if self.control.is_gone() {
            return Err(self.control.gone(PartialAnswer::default()));
        }
        let known = self.control.panes().target(self.pane);
        let target = match known.filter(|known| known.exit.is_none() && known.pid != 0) {
            Some(target) => target,
            None => {
                self.control.list_panes_and_exits().await?;
                let target = self.control.panes().target(self.pane);
                target.ok_or_else(|| self.refused(Refusal::NoSuchPane))?
            }
        };
        if target.exit.is_some() {
            return Err(self.refused(Refusal::Dead));
        }
        let modes = TtyModes::read(&target.tty).ok_or_else(|| self.refused(Refusal::Dead))?;
        Ok((target, modes))
    }

    /// Refuses text that this pane cannot take.
    fn check_for(&self, message: &str, target: &PaneTarget, modes: TtyModes) -> Result<(), Error> {
        if !target.bracketing && !self.options.unbracketed && needs_brackets(message, modes) {
            return Err(self.refused(Refusal::Unbracketed));
        }
        if !self.options.unbracketed
            && let Some(byte) = message.bytes().find(|&byte| modes.is_special(byte))
        {
            return Err(self.refused(Refusal::SpecialCharacter { byte }));
        }
        if modes.canonical {
            let length = message.split(['\n', '\r']).map(str::len).max().unwrap_or(0);
            if length > tty_modes::MAX_LINE {
                return Err(self.refused(Refusal::LineTooLong {
                    length,
                    limit: tty_modes::MAX_LINE,
                }));
            }
        }
        Ok(())
    }

    /// Pastes if the pane is fit for it, see the theory; `None` if it runs another program, or the
    /// cursor is not `at` its place. The tap gets the output since the paste.
    pub(super) async fn paste(
        &self,
        pid: u32,
        text: &[u8],
        bracket: Bracket,
        at: Option<Cursor>,
        tap: &Arc<Tap>,
    ) -> Result<Option<PasteReport>, Error> {
        let pane = self.pane;
        let buffer = PasteBuffer::create(&self.folder, text)?;
        self.control.panes().add_tap(pane, tap);
        let (load, name) = (&buffer.load, &buffer.name);
        // In copy mode tmux does not see that the program enabled brackets. Without brackets the
        // mode does not matter, and a person may keep reading. Both branches of `if-shell` have the
        // same number of commands, because that is the number of blocks to wait for.
        let (leave_copy_mode, fill_up, bracket, blocks) = match bracket {
            Bracket::IfEnabled => (
                format!("copy-mode -q -t {pane} ; "),
                " ; display-message -p \"\"",
                "-p",
                6,
            ),
            Bracket::Never => (String::new(), "", "", 5),
        };
        let mut unfit = format!(
            "#{{||:#{{||:#{{pane_dead}},#{{pane_input_off}}}},#{{!=:#{{pane_pid}},{pid}}}}}"
        );
        if let Some(Cursor { row, column }) = at {
            unfit = format!("#{{||:{unfit},#{{!=:#{{cursor_y}}.#{{cursor_x}},{row}.{column}}}}}");
        }
        let unfit = quote(unfit);
        let line = format!(
            "{load} ; display-message -p -t {pane} {report} ; capture-pane -p -J -t {pane} ; \
             if-shell -F -t {pane} {unfit} {{ delete-buffer -b {name}{fill_up} }} \
             {{ {leave_copy_mode}paste-buffer {flags} {bracket} -b {name} -t {pane} }}",
            flags = self.control.paste_flags(),
            report = quote(PasteReport::FORMAT),
        );
        let request = Request::new("paste-buffer", line).blocks(blocks).tap(tap);
        let no_attach = self.control.hold_attaches().await?;
        let ran = self.control.run(request).await;
        drop(no_attach);
        if matches!(ran, Err(Error::TmuxFailed { .. })) {
            // tmux stopped behind the command that loads the buffer.
            let delete = format!("delete-buffer -b {name}");
            let _ = self.control.run_one("delete-buffer", delete).await;
        }
        let bodies = ran.map_err(|error| match error {
            Error::TmuxFailed { message, .. } if message.starts_with("can't find pane") => {
                self.refused(Refusal::NoSuchPane)
            }
            other => other,
        })?;
        let [_, fields, screen, ..] = bodies.as_slice() else {
            return Err(Error::failed("paste-buffer", "incomplete answer"));
        };
        let report = PasteReport::parse(fields, screen)
            .ok_or_else(|| Error::failed("display-message", "incomplete answer"))?;
        if report.dead {
            Err(self.refused(Refusal::Dead))
        } else if report.input_off {
            Err(self.refused(Refusal::InputOff))
        } else {
            let is_fit = report.pid == pid && at.is_none_or(|at| at == report.cursor);
            Ok(is_fit.then_some(report))
        }
    }

    pub(super) fn refused(&self, reason: Refusal) -> Error {
        Error::refused(self.pane, reason)
    }

    /// For an error of a paste that submits: a lost connection leaves the outcome unknown.
    fn submit_unknown(&self, error: Error) -> Error {
        match error {
            error @ (Error::ServerGone { .. } | Error::TmuxTimeout { .. }) => {
                Error::SubmitUnknown {
                    pane: self.pane,
                    source: Box::new(error),
                }
            }
            error => error,
        }
    }

    /// For an error of the paste before the submit. If the paste was refused or never asked for, no
    /// text is in the pane.
    pub(super) fn not_submitted(&self, error: Error) -> Error {
        match error {
            error @ (Error::Refused { .. } | Error::Io { .. } | Error::NotPrivate { .. }) => error,
            error => Error::NotSubmitted {
                pane: self.pane,
                source: Box::new(error),
            },
        }
    }
}

/// Why no pane can take a text.
pub(crate) fn refusal_of_text(message: &str) -> Option<Refusal> {
    if message.is_empty() {
        Some(Refusal::Empty)
    } else if message.len() > MAX_MESSAGE {
        Some(Refusal::TooLong)
    } else if message.contains('\0') {
        Some(Refusal::Nul)
    } else if message.contains("\x1b[201~") || message.contains("\u{9b}201~") {
        Some(Refusal::PasteEnd)
    } else {
        None
    }
}

/// Whether a character of the message takes effect outside of a bracketed paste.
fn needs_brackets(message: &str, modes: TtyModes) -> bool {
    // The terminal driver passes a tab on; a program that reads bytes may complete words by it.
    message.contains(|c: char| c.is_control() && !(c == '\t' && modes.canonical))
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Bracket {
    /// Bracketed if the program enabled it.
    IfEnabled,
    Never,
}

/// The state of a pane in the same step of tmux in which the paste was done or refused.
pub(super) struct PasteReport {
    width: usize,
    height: usize,
    scrolled_lines: usize,
    dead: bool,
    input_off: bool,
    cursor: Cursor,
    pid: u32,
    screen: String,
    /// The row of the cursor is a prompt.
    has_prompt: bool,
}

impl PasteReport {
    const FORMAT: &str = "#{pane_width} #{pane_height} #{history_size} #{pane_dead} #{pane_input_off} #{cursor_y} #{cursor_x} #{pane_pid}";

    fn parse(fields: &[u8], screen: &[u8]) -> Option<Self> {
        let fields = String::from_utf8_lossy(fields);
        let mut fields = fields.split(' ');
        let mut next = || fields.next();
        let screen = String::from_utf8_lossy(screen).into_owned();
        let (width, height) = (next()?.parse().ok()?, next()?.parse().ok()?);
        let scrolled_lines = next()?.parse().ok()?;
        let (dead, input_off) = (next()? == "1", next()? == "1");
        let (row, column) = (next()?.parse().ok()?, next()?.parse().ok()?);
        Some(Self {
            width,
            height,
            scrolled_lines,
            dead,
            input_off,
            cursor: Cursor { row, column },
            has_prompt: screen.lines().nth(row).is_some_and(extract::is_prompt),
            // tmux 3.8 has no process id for a dead pane.
            pid: next()?.parse().unwrap_or(0),
            screen,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;
    use crate::cluster::agent_monitor::AgentMonitor;
    use crate::definition::agent_definitions::AgentDefinitions;
    use crate::pane::paste_buffer::MAX_INLINE;
    use crate::timing::SUBMIT_QUIET;
    use crate::tmux::Launch;
    use crate::tmux::Server;

    /// Ends the server, also when the test fails.
    struct KillServer(PathBuf);

    impl Drop for KillServer {
        fn drop(&mut self) {
            let mut tmux = std::process::Command::new("tmux");
            let _ = tmux.arg("-S").arg(&self.0).arg("kill-server").output();
        }
    }

    fn sender(server: &Server, dir: &Path, pane: PaneId) -> Sender {
        Sender {
            control: server.control().clone(),
            folder: dir.to_owned(),
            pane,
            options: SendOptions::default(),
            max_answer: 1024,
            typist: None,
        }
    }

    async fn start(dir: &Path) -> (Server, KillServer) {
        let server = Server::builder("test").runtime_dir(dir.join("run"));
        let server = server
            .start()
            .await
            .expect("these tests need tmux 3.2 or newer: `apt install tmux`");
        let kill = KillServer(server.socket().to_owned());
        (server, kill)
    }

    /// A program that is restarted between paste and submit can have the terminal of the old one,
    /// but not its text: the submit would be an empty message.
    #[tokio::test]
    async fn only_the_program_that_got_the_paste_gets_the_submit() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _kill) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exec cat")).await.unwrap();
        let sender = sender(&server, dir.path(), pane);
        let (before, modes) = sender.target().await.unwrap();
        // The number of the terminal is usually given again.
        let mut after = before.clone();
        for _ in 0..10 {
            server.launch(pane, &Launch::new("exec cat")).await.unwrap();
            after = sender.target().await.unwrap().0;
            if after.tty == before.tty {
                break;
            }
        }
        let tap = Arc::new(Tap::new(1024));
        let byte = modes.submit_byte();
        let submitted = sender.submit(before.pid, byte, None, &tap).await;
        assert!(submitted.unwrap().is_none());
        let submitted = sender.submit(after.pid, byte, None, &tap).await;
        assert!(submitted.unwrap().is_some());
    }

    /// The text stays in the input line of a live program: a second send would add to it.
    #[tokio::test]
    async fn input_switched_off_between_paste_and_submit_is_not_submitted() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _kill) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exec cat")).await.unwrap();
        let sender = sender(&server, dir.path(), pane);
        let (target, modes) = sender.target().await.unwrap();
        let tap = || Arc::new(Tap::new(1024));
        let paste = || async {
            let (text, tap) = (b"text", tap());
            sender
                .paste(target.pid, text, Bracket::IfEnabled, None, &tap)
                .await
        };
        let input_off = |error: &Error| {
            let reason = Refusal::InputOff;
            matches!(error, Error::Refused { reason: found, .. } if *found == reason)
        };

        assert!(paste().await.unwrap().is_some());
        let switch_off = format!("select-pane -d -t {pane}");
        let control = server.control();
        control.run_one("select-pane", switch_off).await.unwrap();
        let byte = modes.submit_byte();
        let error = sender.submit(target.pid, byte, None, &tap()).await.err();
        match error {
            Some(Error::NotSubmitted { source, .. }) => assert!(input_off(&source), "{source:?}"),
            other => panic!("{other:?}"),
        }

        // Before the paste nothing is in the pane: the message may be sent again.
        let error = paste().await.err().unwrap();
        assert!(input_off(&error) && error.is_not_sent(), "{error:?}");
    }

    /// The public path refuses a pane that is known to be dead before it asks tmux. A pane that dies
    /// at that moment is left to the test inside tmux; tmux 3.3 would crash.
    #[tokio::test]
    async fn a_paste_into_a_dead_pane_is_stopped_inside_tmux() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _kill) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exit 0")).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(40);
        let pid = loop {
            let infos = server.control().list_panes_and_exits().await.unwrap();
            if infos[0].dead {
                break infos[0].pid;
            }
            assert!(Instant::now() < deadline);
            tokio::time::sleep(SUBMIT_QUIET).await;
        };
        let sender = sender(&server, dir.path(), pane);
        for text in ["small".to_owned(), "large".repeat(MAX_INLINE)] {
            let tap = Arc::new(Tap::new(1024));
            let refused = sender
                .paste(pid, text.as_bytes(), Bracket::IfEnabled, None, &tap)
                .await;
            let dead = matches!(
                refused,
                Err(Error::Refused {
                    reason: Refusal::Dead,
                    ..
                })
            );
            assert!(dead, "{:?}", refused.err());
        }
        check_no_buffers(&server).await;
    }

    async fn check_no_buffers(server: &Server) {
        let listed = server
            .control()
            .run_one("list-buffers", "list-buffers".into());
        let buffers = listed.await.unwrap();
        assert_eq!(buffers, "", "the buffers of refused messages are deleted");
    }

    #[tokio::test]
    async fn a_paste_into_a_pane_that_is_gone_leaves_no_buffer() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _kill) = start(dir.path()).await;
        let sender = sender(&server, dir.path(), PaneId::new("%99").unwrap());
        let tap = Arc::new(Tap::new(1024));
        let refused = sender
            .paste(1, b"secret", Bracket::IfEnabled, None, &tap)
            .await;
        let is_gone = matches!(
            refused,
            Err(Error::Refused {
                reason: Refusal::NoSuchPane,
                ..
            })
        );
        assert!(is_gone, "{:?}", refused.err());
        check_no_buffers(&server).await;
    }

    /// Its terminal has other modes until then. Text that these modes refuse would be refused for good, and a
    /// message in an inbox would become a dead letter.
    #[tokio::test]
    async fn a_known_agent_that_starts_is_waited_for_before_the_text_is_judged() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _kill) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exec cat")).await.unwrap();
        let definitions = AgentDefinitions::builtin().unwrap();
        let claude = Arc::clone(definitions.get("claude").unwrap());
        let mut sender = sender(&server, dir.path(), pane);
        sender.typist = Some(Typist {
            monitor: AgentMonitor::new(server.control().clone(), pane, claude),
            limit: Instant::now() + Duration::from_millis(200),
            waits_for_person: false,
            is_command: false,
        });
        let lock = server.control().panes().lock(pane).unwrap();
        let sent = sender.send("two\nlines", lock.lock().await.unwrap()).await;
        let is_busy = matches!(
            sent,
            Err(Error::Refused {
                reason: Refusal::Busy,
                ..
            })
        );
        assert!(is_busy, "{:?}", sent.err());
    }
}
