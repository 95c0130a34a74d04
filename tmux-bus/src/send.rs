//! Sending a message: byte for byte, submitted once.

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio::time::Instant;

use crate::{
    buffer::Buffer,
    control::{Control, Request},
    detector::Echo,
    error::{Error, PartialAnswer, Refusal, Result},
    marker::{self, Folded},
    octal::quote,
    pane::PaneId,
    panes::Target,
    queue::Turn,
    tap::Tap,
    terminal::{self, Terminal},
    vt::{Step, Tokenizer},
};

/// The longest message, in bytes.
pub(crate) const MAX_MESSAGE: usize = 1 << 20;

/// How long the pane must be quiet after the echo, before the submit.
const QUIET: Duration = Duration::from_millis(15);
/// How long a program that shows nothing at all is waited for.
const NO_ECHO: Duration = Duration::from_millis(100);
/// How long a pane that is never quiet (a spinner) is waited for once the echo was seen.
const RESTLESS: Duration = Duration::from_millis(300);
/// An echo that has come so far, in characters that count, is one that goes on.
const UNDER_WAY: usize = 4;
/// How long in all.
const SETTLE_LIMIT: Duration = Duration::from_secs(3);

/// How a message is sent.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct SendOptions {
    unbracketed: bool,
}

impl SendOptions {
    /// Sends newlines and control characters also to a program that does not ask for bracketed
    /// paste: each newline then submits what stands before it, and control characters act.
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
    /// The message, folded for comparisons.
    pub(crate) folded: Vec<Folded>,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) history: usize,
    /// The terminal itself echoes the message, after the submit.
    pub(crate) echoed: bool,
    /// Held until the answer is read.
    _turn: Turn,
}

/// Sends one message in its turn.
pub(crate) struct Sender {
    pub(crate) control: Control,
    pub(crate) folder: PathBuf,
    pub(crate) pane: PaneId,
    pub(crate) options: SendOptions,
    pub(crate) max_answer: usize,
}

impl Sender {
    /// Refuses what could not be sent to any pane.
    pub(crate) fn check(&self, message: &str) -> Result<()> {
        let reason = if message.is_empty() {
            Refusal::Empty
        } else if message.len() > MAX_MESSAGE {
            Refusal::TooLong
        } else if message.contains('\0') {
            Refusal::Nul
        } else if message.contains("\x1b[201~") || message.contains("\u{9b}201~") {
            Refusal::PasteEnd
        } else {
            return Ok(());
        };
        Err(self.refused(reason))
    }

    pub(crate) async fn send(&self, message: &str, turn: Turn) -> Result<Submitted> {
        let tap = Arc::new(Tap::new(self.max_answer));
        // A pane that was restarted has another process; tmux compares it in the same step in which
        // it pastes, so that a second try cannot be a second send. Its terminal would not tell: the
        // number of one that was closed is the next one's.
        for _ in 0..3 {
            let (target, terminal) = self.target().await?;
            self.check_for(message, &target, terminal)?;
            // In canonical mode the system itself takes the line apart from the submit. A program
            // that reads single bytes may take a return that comes with the paste for a part of it.
            let whole = terminal.canonical && !target.bracketing;
            let text = if whole {
                [message.as_bytes(), &[terminal.submit()]].concat()
            } else {
                message.as_bytes().to_vec()
            };
            let first = if whole {
                Arc::clone(&tap)
            } else {
                Arc::new(Tap::new(self.max_answer))
            };
            self.control.panes().tap(self.pane, &first);
            let bracket = if whole {
                Bracket::Never
            } else {
                Bracket::IfAsked
            };
            let pasted = self.paste(target.pid, &text, bracket, &first).await;
            let state = match pasted {
                Ok(Pasted::Done(state)) => state,
                Ok(Pasted::OtherProgram) => {
                    self.control.list_panes().await?;
                    continue;
                }
                Err(error) => {
                    return Err(if whole {
                        self.unknown(error)
                    } else {
                        self.not_submitted(error)
                    });
                }
            };
            // While the program takes the paste in.
            let folded = marker::fold(message);
            let state = if whole {
                state
            } else {
                settle(&first, &target.tty, &folded, message).await;
                self.submit(target.pid, terminal, &tap).await?
            };
            self.control.panes().asked(self.pane);
            return Ok(Submitted {
                tap,
                at: Instant::now(),
                screen: state.screen,
                folded,
                width: state.width,
                height: state.height,
                history: state.history,
                echoed: whole && terminal.echo,
                _turn: turn,
            });
        }
        Err(self.refused(Refusal::Dead))
    }

    async fn submit(&self, pid: u32, terminal: Terminal, tap: &Arc<Tap>) -> Result<State> {
        self.control.panes().tap(self.pane, tap);
        match self
            .paste(pid, &[terminal.submit()], Bracket::Never, tap)
            .await
        {
            Ok(Pasted::Done(state)) => Ok(state),
            Ok(Pasted::OtherProgram) => Err(self.not_submitted(self.refused(Refusal::Dead))),
            Err(error @ (Error::ServerGone { .. } | Error::TmuxTimeout { .. })) => {
                Err(self.unknown(error))
            }
            Err(error) => Err(self.not_submitted(error)),
        }
    }

    async fn target(&self) -> Result<(Target, Terminal)> {
        if self.control.is_gone() {
            return Err(self.control.gone(PartialAnswer::default()));
        }
        let known = self.control.panes().target(self.pane);
        let target = match known.filter(|t| t.exit.is_none() && t.pid != 0) {
            Some(target) => target,
            None => {
                self.control.list_panes().await?;
                self.control
                    .panes()
                    .target(self.pane)
                    .ok_or_else(|| self.refused(Refusal::NoSuchPane))?
            }
        };
        if target.exit.is_some() {
            return Err(self.refused(Refusal::Dead));
        }
        let terminal = Terminal::of(&target.tty).ok_or_else(|| self.refused(Refusal::Dead))?;
        Ok((target, terminal))
    }

    fn check_for(&self, message: &str, target: &Target, terminal: Terminal) -> Result<()> {
        // A tab is an ordinary character to the system, but not to a program that completes words.
        let acts = |c: char| c.is_control() && !(c == '\t' && terminal.canonical);
        if !target.bracketing && !self.options.unbracketed && message.contains(acts) {
            return Err(self.refused(Refusal::Unbracketed));
        }
        if !self.options.unbracketed
            && let Some(byte) = message.bytes().find(|&byte| terminal.acts_on(byte))
        {
            return Err(self.refused(Refusal::Acts { byte }));
        }
        if terminal.canonical {
            let length = message.split(['\n', '\r']).map(str::len).max().unwrap_or(0);
            if length > terminal::MAX_LINE {
                return Err(self.refused(Refusal::LineTooLong {
                    length,
                    limit: terminal::MAX_LINE,
                }));
            }
        }
        Ok(())
    }

    /// Pastes if the pane can take it: tmux 3.3 crashes on a paste into a dead pane, so that the
    /// test and the paste stand in one line, between which the server does nothing else.
    async fn paste(
        &self,
        pid: u32,
        text: &[u8],
        bracket: Bracket,
        tap: &Arc<Tap>,
    ) -> Result<Pasted> {
        let pane = self.pane;
        let buffer = Buffer::new(&self.folder, text)?;
        let (load, name) = (&buffer.load, &buffer.name);
        // In copy mode tmux does not see that the program asks for brackets. Otherwise the mode does
        // not matter, and a person may go on reading: each command costs tmux some 20 microseconds.
        // Both branches have as many commands, for that is how many blocks the answer has.
        let (leave, drop, bracket, blocks) = match bracket {
            Bracket::IfAsked => (
                format!("copy-mode -q -t {pane} ; "),
                " ; display-message -p \"\"",
                "-p",
                6,
            ),
            Bracket::Never => (String::new(), "", "", 5),
        };
        let unfit = quote(format!(
            "#{{||:#{{||:#{{pane_dead}},#{{pane_input_off}}}},#{{!=:#{{pane_pid}},{pid}}}}}"
        ));
        let line = format!(
            "{load} ; display-message -p -t {pane} {state} ; capture-pane -p -J -t {pane} ; \
             if-shell -F -t {pane} {unfit} {{ delete-buffer -b {name}{drop} }} \
             {{ {leave}paste-buffer -d -r {bracket} -b {name} -t {pane} }}",
            state = quote(State::FORMAT),
        );
        let request = Request::new("paste-buffer", line).blocks(blocks).tap(tap);
        let bodies = self
            .control
            .run(request)
            .await
            .map_err(|error| match error {
                Error::TmuxFailed { message, .. } if message.starts_with("can't find pane") => {
                    self.refused(Refusal::NoSuchPane)
                }
                other => other,
            })?;
        let [_, state, screen, ..] = bodies.as_slice() else {
            return Err(Error::failed("paste-buffer", "an incomplete answer"));
        };
        let state = State::read(state, screen)
            .ok_or_else(|| Error::failed("display-message", "an incomplete answer"))?;
        if state.dead {
            Err(self.refused(Refusal::Dead))
        } else if state.input_off {
            Err(self.refused(Refusal::InputOff))
        } else if state.pid != pid {
            Ok(Pasted::OtherProgram)
        } else {
            Ok(Pasted::Done(state))
        }
    }

    fn refused(&self, reason: Refusal) -> Error {
        Error::Refused {
            pane: self.pane,
            reason,
        }
    }

    /// An error of the one step that pastes and submits.
    fn unknown(&self, error: Error) -> Error {
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

    /// An error after which the message certainly was not submitted.
    fn not_submitted(&self, error: Error) -> Error {
        match error {
            error @ (Error::Refused { .. } | Error::File { .. }) => error,
            error => Error::NotSubmitted {
                pane: self.pane,
                source: Box::new(error),
            },
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Bracket {
    IfAsked,
    Never,
}

enum Pasted {
    Done(State),
    OtherProgram,
}

/// What a pane was like in the step of tmux in which the paste was done or refused.
struct State {
    width: usize,
    height: usize,
    history: usize,
    dead: bool,
    input_off: bool,
    pid: u32,
    screen: String,
}

impl State {
    const FORMAT: &str =
        "#{pane_width} #{pane_height} #{history_size} #{pane_dead} #{pane_input_off} #{pane_pid}";

    fn read(state: &[u8], screen: &[u8]) -> Option<Self> {
        let state = String::from_utf8_lossy(state);
        let mut fields = state.split(' ');
        let mut next = || fields.next();
        Some(Self {
            width: next()?.parse().ok()?,
            height: next()?.parse().ok()?,
            history: next()?.parse().ok()?,
            dead: next()? == "1",
            input_off: next()? == "1",
            pid: next()?.parse().ok()?,
            screen: String::from_utf8_lossy(screen).into_owned(),
        })
    }
}

/// Waits until the program has taken the paste in: it has shown it and is quiet.
async fn settle(tap: &Tap, tty: &str, folded: &[Folded], message: &str) {
    let start = Instant::now();
    let limit = start + SETTLE_LIMIT;
    let mut echo = Echo::of(message);
    let mut tokenizer = Tokenizer::default();
    let (mut shown, mut echoed_at) = (false, None);
    // How much of the message stands at the end of what was shown.
    let mut begun = 0;
    loop {
        let taken = tap.take();
        shown |= !taken.bytes.is_empty();
        let mut echoed = false;
        tokenizer.feed(&taken.bytes, |step| {
            if let Step::Print(c) = step
                && marker::kind(c).is_none()
            {
                echoed |= echo.print(c);
                let is_next = |at: usize| folded.get(at).is_some_and(|next| next.c == c);
                begun = match is_next(begun) {
                    true => begun + 1,
                    false => usize::from(is_next(0)),
                };
            }
        });
        let now = Instant::now();
        if echoed && echoed_at.is_none() {
            echoed_at = Some(now);
        }
        if taken.end.is_some() || now >= limit {
            return;
        }
        let ready = match (shown, echoed_at) {
            (_, Some(at)) => (taken.last + QUIET).min(at + RESTLESS),
            // The rest of the echo is on its way: after the submit it would look like an answer.
            (true, None) if begun >= UNDER_WAY => taken.last + RESTLESS,
            // Something else than the text, such as `[pasted 20 lines]`.
            (true, None) => taken.last + QUIET,
            (false, None) => start + NO_ECHO,
        };
        let next = if now < ready {
            ready
        } else if terminal::has_unread_input(tty) {
            now + QUIET
        } else {
            return;
        };
        tap.changed(next.min(limit)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{buffer::INLINE, launch::Launch, server::Server};

    /// Ends the server however the test ends.
    struct End(PathBuf);

    impl Drop for End {
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
        }
    }

    async fn start(dir: &Path) -> (Server, End) {
        let server = Server::builder("test").runtime_dir(dir.join("run"));
        let server = server
            .start()
            .await
            .expect("these tests need tmux 3.2 or newer: `apt install tmux`");
        let end = End(server.socket().to_owned());
        (server, end)
    }

    /// Feeds `shown` to a settling pane, one piece every 100 ms, and gives what it waited for.
    async fn settled_with(message: &str, shown: &[&str]) -> usize {
        let tap = Arc::new(Tap::new(1024));
        tap.open();
        let feeding = async {
            for piece in shown {
                tap.push(piece.as_bytes(), Instant::now());
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            std::future::pending::<()>().await;
        };
        let start = Instant::now();
        let folded = marker::fold(message);
        tokio::select! {
            () = settle(&tap, "/nowhere", &folded, message) => {}
            () = feeding => {}
        }
        let pieces = start.elapsed().as_millis() / 100 + 1;
        usize::try_from(pieces).unwrap().min(shown.len())
    }

    #[tokio::test(start_paused = true)]
    async fn an_echo_that_comes_in_pieces_is_waited_for() {
        let message = "take this task apart, please";
        let pieces = ["take this", " task apart,", " please"];
        assert_eq!(settled_with(message, &pieces).await, 3);
        let other = ["[pasted 1 line]", "something later"];
        assert_eq!(settled_with(message, &other).await, 1);
    }

    /// A program that is started anew between the paste and the submit has the same terminal as
    /// the old one, but not the text: a submit would be an empty message.
    #[tokio::test]
    async fn the_program_that_got_the_paste_gets_the_submit_or_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _end) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exec cat")).await.unwrap();
        let sender = sender(&server, dir.path(), pane);
        let (before, terminal) = sender.target().await.unwrap();
        // The number comes back, unless somebody else is faster.
        let mut after = before.clone();
        for _ in 0..10 {
            server.launch(pane, &Launch::new("exec cat")).await.unwrap();
            after = sender.target().await.unwrap().0;
            if after.tty == before.tty {
                break;
            }
        }
        let tap = Arc::new(Tap::new(1024));
        let submitted = sender.submit(before.pid, terminal, &tap).await;
        assert!(submitted.is_err_and(|error| error.is_not_sent()));
        assert!(sender.submit(after.pid, terminal, &tap).await.is_ok());
    }

    /// The public way refuses a pane that is known to be dead before it asks tmux. One that dies at
    /// that very moment is left to tmux, and tmux 3.3 would crash.
    #[tokio::test]
    async fn a_paste_into_a_dead_pane_is_stopped_within_tmux() {
        let dir = tempfile::tempdir().unwrap();
        let (server, _end) = start(dir.path()).await;
        let pane = server.open_pane(&Launch::new("exit 0")).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(40);
        let pid = loop {
            let infos = server.panes().await.unwrap();
            if infos[0].dead {
                break infos[0].pid;
            }
            assert!(Instant::now() < deadline);
            tokio::time::sleep(QUIET).await;
        };
        let sender = sender(&server, dir.path(), pane);
        for text in ["small".to_owned(), "large".repeat(INLINE)] {
            let tap = Arc::new(Tap::new(1024));
            let refused = sender
                .paste(pid, text.as_bytes(), Bracket::IfAsked, &tap)
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
        let buffers = server
            .control()
            .one("list-buffers", "list-buffers".into())
            .await
            .unwrap();
        assert_eq!(buffers, "", "the buffers of refused messages are gone");
    }
}
