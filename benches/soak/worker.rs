//! Both ends of a worker process. A worker reports counts and violations as lines on its standard
//! output. It ends when its standard input is closed, so it also ends with its parent.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use examples::Result;

use crate::ledger::Ledger;
use crate::processes;

/// Time for a worker to end on request; generous for a busy machine. A worker first waits for the end
/// of what it has begun.
const END: Duration = Duration::from_secs(240);

/// The parent's end of a worker process. Dropping it kills the process.
pub(crate) struct Worker {
    name: String,
    ledger: Arc<Ledger>,
    child: Child,
    reader: JoinHandle<()>,
}

impl Worker {
    /// Starts this program as a worker.
    pub(crate) fn start(ledger: &Arc<Ledger>, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .env(processes::RUN, ledger.run())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C must reach only the parent, which ends the workers in order.
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().ok_or("the worker has no output")?;
        let reader = std::thread::spawn({
            let ledger = Arc::clone(ledger);
            move || {
                for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                    receive(&ledger, &line);
                }
            }
        });
        Ok(Self {
            name: arguments.join(" "),
            ledger: Arc::clone(ledger),
            child,
            reader,
        })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn expect_alive(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("{} ended by itself with {status}", self.name).into()),
        }
    }

    /// Kills the worker at an arbitrary point and waits for its end.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.expect_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        self.ledger.count("kills of workers", 1);
        self.read_to_end()
    }

    /// Asks the worker to end and waits for its end.
    pub(crate) fn finish(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + END;
        let status = loop {
            match self.child.try_wait()? {
                Some(status) => break status,
                None if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                None => return Err(format!("{} does not end", self.name).into()),
            }
        };
        match status.success() {
            true => self.read_to_end(),
            false => Err(format!("{} ended with {status}", self.name).into()),
        }
    }

    /// Reads the rest of the output of an ended worker.
    fn read_to_end(&self) -> Result<()> {
        let deadline = Instant::now() + END;
        while !self.reader.is_finished() {
            if Instant::now() > deadline {
                // The search for tagged processes at the end of the run shows which child.
                let name = &self.name;
                return Err(format!("a live child process of {name} holds its output").into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn receive(ledger: &Ledger, line: &str) {
    match line.split_once(' ') {
        Some(("violation", text)) => ledger.violation(text.to_owned()),
        Some((times, what)) => match times.parse() {
            Ok(times) => ledger.count(what, times),
            Err(_) => ledger.violation(format!("a worker printed {line:?}")),
        },
        None => ledger.violation(format!("a worker printed {line:?}")),
    }
}

// The worker's end.

static ENDING: AtomicBool = AtomicBool::new(false);
static COUNTS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Runs as a worker. `work` must check [`is_ending`] regularly.
pub(crate) fn run(work: impl FnOnce() -> Result<()>) -> Result<()> {
    std::thread::spawn(|| {
        // The parent sends nothing, so the read returns at the end of input.
        let _ = io::stdin().read(&mut [0]);
        ENDING.store(true, Ordering::Relaxed);
    });
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(200));
            report_counts();
        }
    });
    let done = work();
    report_counts();
    done
}

pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Counts an event. Counts are reported a few times a second; a kill loses the last ones.
pub(crate) fn count(what: &'static str) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(what).or_default() += 1;
}

/// Reports a violation of a guarantee.
pub(crate) fn violation(text: &str) {
    report(&format!("violation {}", text.replace('\n', "\\n")));
}

fn report_counts() {
    let counts = std::mem::take(&mut *COUNTS.lock().unwrap_or_else(PoisonError::into_inner));
    for (what, times) in counts {
        report(&format!("{times} {what}"));
    }
}

fn report(line: &str) {
    // If the parent has ended, the input is closed too and the worker ends.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Random choices (xorshift64*; no high quality is needed).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new() -> Self {
        let (seed, _) = uuid::Uuid::new_v4().as_u64_pair();
        Self(seed | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        usize::try_from(high).unwrap_or(0) % limit
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    pub(crate) fn millis(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_millis((from + self.below(to - from)) as u64)
    }
}
