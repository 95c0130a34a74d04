//! Sending a message: byte for byte, submitted once.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::{
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

/// Above this a message goes to tmux through a file: a command line is parsed byte by byte.
const INLINE: usize = 4096;

/// How long the pane must be quiet after the echo, before the submit.
const QUIET: Duration = Duration::from_millis(15);
/// How long a program that shows nothing at all is waited for.
const NO_ECHO: Duration = Duration::from_millis(100);
/// How long a pane that is never quiet (a spinner) is waited for once the echo was seen.
const RESTLESS: Duration = Duration::from_millis(300);
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
        // A pane that another process restarted has a new terminal; tmux compares it in the same
        // step in which it pastes, so that a second try cannot be a second send.
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
            let pasted = self
                .paste(&target.tty, &text, Bracket::IfAsked, &first)
                .await;
            let state = match pasted {
                Ok(Pasted::Done(state)) => state,
                Ok(Pasted::OtherTerminal) => {
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
                settle(&first, &target.tty, message).await;
                self.submit(&target.tty, terminal, &tap).await?
            };
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

    async fn submit(&self, tty: &str, terminal: Terminal, tap: &Arc<Tap>) -> Result<State> {
        self.control.panes().tap(self.pane, tap);
        match self
            .paste(tty, &[terminal.submit()], Bracket::Never, tap)
            .await
        {
            Ok(Pasted::Done(state)) => Ok(state),
            Ok(Pasted::OtherTerminal) => Err(self.not_submitted(self.refused(Refusal::Dead))),
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
        let target = match known.filter(|t| t.exit.is_none() && !t.tty.is_empty()) {
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
        tty: &str,
        text: &[u8],
        bracket: Bracket,
        tap: &Arc<Tap>,
    ) -> Result<Pasted> {
        let pane = self.pane;
        let buffer = Buffer::new(&self.folder, text)?;
        let (load, name) = (&buffer.load, &buffer.name);
        let bracket = if bracket == Bracket::IfAsked {
            "-p"
        } else {
            ""
        };
        let tty = quote(format!(
            "#{{||:#{{||:#{{pane_dead}},#{{pane_input_off}}}},#{{!=:#{{pane_tty}},{tty}}}}}"
        ));
        let line = format!(
            "{load} ; display-message -p -t {pane} \"#{{pane_width}} #{{pane_height}} #{{history_size}}\" ; \
             capture-pane -p -J -t {pane} ; \
             if-shell -F -t {pane} {tty} \
             {{ delete-buffer -b {name} ; display-message -p -t {pane} \"#{{pane_dead}} #{{pane_input_off}}\" }} \
             {{ copy-mode -q -t {pane} ; paste-buffer -d -r {bracket} -b {name} -t {pane} }}"
        );
        let request = Request::new("paste-buffer", line).blocks(6).tap(tap);
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
        let [_, state, screen, .., refusal] = bodies.as_slice() else {
            return Err(Error::failed("paste-buffer", "an incomplete answer"));
        };
        match refusal.as_slice() {
            b"" => Ok(Pasted::Done(State::read(state, screen))),
            b"0 0" => Ok(Pasted::OtherTerminal),
            b"0 1" => Err(self.refused(Refusal::InputOff)),
            _ => Err(self.refused(Refusal::Dead)),
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
    OtherTerminal,
}

struct State {
    width: usize,
    height: usize,
    history: usize,
    screen: String,
}

impl State {
    fn read(numbers: &[u8], screen: &[u8]) -> Self {
        let numbers = String::from_utf8_lossy(numbers);
        let mut numbers = numbers.split(' ').map(|n| n.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self {
            width: next(),
            height: next(),
            history: next(),
            screen: String::from_utf8_lossy(screen).into_owned(),
        }
    }
}

/// A paste buffer of this message alone, and the file through which a large one gets there.
struct Buffer {
    name: String,
    load: String,
    file: Option<PathBuf>,
}

impl Buffer {
    fn new(folder: &Path, text: &[u8]) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!(
            "tmux-bus-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        if text.len() <= INLINE {
            return Ok(Self {
                load: format!("set-buffer -b {name} -- {}", quote(text)),
                name,
                file: None,
            });
        }
        let path = folder.join(&name);
        // From here on the file goes with this value.
        let buffer = Self {
            load: format!(
                "load-buffer -b {name} {}",
                quote(path.as_os_str().as_encoded_bytes())
            ),
            name,
            file: Some(path.clone()),
        };
        File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)
            .and_then(|mut file| file.write_all(text))
            .map_err(|source| Error::file("write", path, source))?;
        Ok(buffer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(path) = &self.file {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Waits until the program has taken the paste in: it has shown it and is quiet.
async fn settle(tap: &Tap, tty: &str, message: &str) {
    let start = Instant::now();
    let limit = start + SETTLE_LIMIT;
    let mut echo = Echo::of(message);
    let mut tokenizer = Tokenizer::default();
    let (mut shown, mut echoed_at) = (false, None);
    loop {
        let taken = tap.take();
        shown |= !taken.bytes.is_empty();
        let mut echoed = false;
        tokenizer.feed(&taken.bytes, |step| {
            if let Step::Print(c) = step
                && marker::kind(c).is_none()
            {
                echoed |= echo.print(c);
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
    use super::*;
    use crate::server::{Launch, Server};

    /// Ends the server however the test ends.
    struct End(PathBuf);

    impl Drop for End {
        fn drop(&mut self) {
            let mut tmux = std::process::Command::new("tmux");
            let _ = tmux.arg("-S").arg(&self.0).arg("kill-server").output();
        }
    }

    /// The public way refuses a pane that is known to be dead before it asks tmux. One that dies at
    /// that very moment is left to tmux, and tmux 3.3 would crash.
    #[tokio::test]
    async fn a_paste_into_a_dead_pane_is_stopped_within_tmux() {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::builder("test").runtime_dir(dir.path().join("run"));
        let server = server
            .start()
            .await
            .expect("these tests need tmux 3.2 or newer: `apt install tmux`");
        let _end = End(server.socket().to_owned());
        let pane = server.open_pane(&Launch::new("exit 0")).await.unwrap();
        let deadline = Instant::now() + Duration::from_secs(40);
        let tty = loop {
            let infos = server.panes().await.unwrap();
            if infos[0].dead {
                break infos[0].tty.clone();
            }
            assert!(Instant::now() < deadline);
            tokio::time::sleep(QUIET).await;
        };
        let sender = Sender {
            control: server.control().clone(),
            folder: dir.path().to_owned(),
            pane,
            options: SendOptions::default(),
            max_answer: 1024,
        };
        for text in ["small".to_owned(), "large".repeat(INLINE)] {
            let tap = Arc::new(Tap::new(1024));
            let refused = sender
                .paste(&tty, text.as_bytes(), Bracket::IfAsked, &tap)
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
