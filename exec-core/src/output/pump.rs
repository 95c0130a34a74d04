use std::cell::RefCell;
use std::io;

use tokio::net::unix::pipe;

use super::line_framer::LineFramer;
use super::line_handler::LineHandler;
use super::raw_log::RawLog;
use crate::EventKind;

/// The size of a new pipe. Also the limit of one read, and of all reads between two yields.
const SMALL_PIPE: usize = 64 << 10;
/// The size of a pipe after it was found full once, so that an agent that writes in bursts blocks
/// less often.
const LARGE_PIPE: usize = 256 << 10;

thread_local! {
    // One buffer for each thread, not for each pipe: idle executions need none.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; SMALL_PIPE]);
}

/// Reads one pipe of the child.
pub(crate) struct Pump {
    /// `None` after the end of the output.
    pipe: Option<pipe::Receiver>,
    is_large: bool,
    framer: LineFramer,
    raw_log: Option<RawLog>,
    lines: LineHandler,
}

impl Pump {
    pub(crate) fn new(
        pipe: pipe::Receiver,
        max_line_bytes: usize,
        raw_log: Option<RawLog>,
        lines: LineHandler,
    ) -> Self {
        Self {
            pipe: Some(pipe),
            is_large: false,
            framer: LineFramer::new(max_line_bytes),
            raw_log,
            lines,
        }
    }

    /// Reads until the end of the output.
    ///
    /// Cancel safe: everything that was read is in the log or pending.
    ///
    /// An agent that prints faster than its lines are handled never leaves the pipe empty, and a
    /// readable pipe does not count for the cooperative scheduling of tokio. So the pump yields: the
    /// same task carries out stops and watches limits.
    pub(crate) async fn run(&mut self) {
        let mut taken = 0;
        loop {
            self.lines.deliver().await;
            if taken >= SMALL_PIPE {
                taken = 0;
                tokio::task::yield_now().await;
            }
            let Some(pipe) = &self.pipe else { return };
            if let Err(error) = pipe.readable().await {
                tracing::warn!(%error, "cannot wait for output");
                self.pipe = None;
                continue;
            }
            taken += self.read_some(|pipe, buffer| pipe.try_read(buffer));
        }
    }

    /// Reads the current contents of the pipe without waiting, neither for output nor for room in
    /// the log.
    ///
    /// Race: the end of the agent can be known before the runtime has noticed its last output. So the
    /// pipe itself is read: `try_read` would not even try.
    pub(crate) fn drain(&mut self) {
        let mut taken = 0;
        loop {
            // After each read: a subscriber on another thread can take these lines during the next.
            self.lines.force();
            // Bounded: a process that could not be ended may write for ever.
            if taken >= LARGE_PIPE {
                return;
            }
            match self.read_some(read_now) {
                0 => return,
                read => taken += read,
            }
        }
    }

    /// The end: drains the pipe, closes it, and delivers an unfinished last line.
    pub(crate) fn finish(&mut self) {
        self.drain();
        self.pipe = None;
        if let Some(line) = self.framer.finish() {
            self.lines.handle(line);
        }
        self.lines.finish();
        self.lines.force();
    }

    pub(crate) fn truncated_lines(&self) -> u64 {
        self.lines.truncated_lines()
    }

    /// The last lines of standard error.
    pub(crate) fn tail(&self) -> Vec<String> {
        self.lines.tail()
    }

    /// One read; returns how many bytes there were.
    fn read_some(
        &mut self,
        read: impl FnOnce(&pipe::Receiver, &mut [u8]) -> io::Result<usize>,
    ) -> usize {
        BUFFER.with_borrow_mut(|buffer| {
            let Some(pipe) = &self.pipe else { return 0 };
            match read(pipe, buffer) {
                Ok(0) => {
                    self.pipe = None;
                    0
                }
                Ok(read) => {
                    if read >= SMALL_PIPE && !self.is_large {
                        self.is_large = true;
                        // Fails above the user's limit of pipe memory; the size then stays.
                        // macOS grows pipes by itself.
                        #[cfg(target_os = "linux")]
                        let _ = rustix::pipe::fcntl_setpipe_size(pipe, LARGE_PIPE);
                    }
                    self.take(&buffer[..read]);
                    read
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(error) => {
                    tracing::warn!(%error, "cannot read output");
                    self.pipe = None;
                    0
                }
            }
        })
    }

    fn take(&mut self, bytes: &[u8]) {
        self.lines.saw_output();
        if let Some(raw_log) = &mut self.raw_log
            && let Err(error) = raw_log.write(bytes)
        {
            let message = format!("{}: {error}", raw_log.path().display());
            tracing::error!(%message, "cannot write the log file");
            self.lines.push(EventKind::LogFailed { message });
            self.raw_log = None;
        }
        let lines = &mut self.lines;
        self.framer.push(bytes, |line| lines.handle(line));
    }
}

fn read_now(pipe: &pipe::Receiver, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::retry_on_intr(|| {
        rustix::io::read(pipe, &mut *buffer)
    })?)
}
