//! Worker processes, seen from both sides. A worker tells what it does by lines on its standard
//! output, and ends when its standard input does: so it ends with its parent, too.

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

/// How long a worker may take to end when it is asked to, on a machine that is busy.
const END: Duration = Duration::from_secs(60);

/// A worker process, seen by the one who started it. Dropping it kills it.
pub(crate) struct Worker {
    name: String,
    ledger: Arc<Ledger>,
    child: Child,
    reader: JoinHandle<()>,
}

impl Worker {
    /// Starts this program again, as a worker.
    pub(crate) fn start(ledger: &Arc<Ledger>, arguments: &[&str]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(arguments)
            .env(processes::RUN, ledger.run())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // A Ctrl-C is meant for the parent, which ends the workers in order.
            .process_group(0)
            .spawn()?;
        let output = child.stdout.take().ok_or("a worker without output")?;
        let reader = std::thread::spawn({
            let ledger = Arc::clone(ledger);
            move || {
                for line in BufReader::new(output).lines().map_while(io::Result::ok) {
                    take(&ledger, &line);
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

    /// Kills it in the middle of whatever it does, and waits until it is gone.
    pub(crate) fn kill(mut self) -> Result<()> {
        self.expect_alive()?;
        self.child.kill()?;
        self.child.wait()?;
        self.ledger.count("kills of workers", 1);
        self.read_to_end()
    }

    /// Asks it to end, and waits until it has.
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

    /// What it has said before it ended.
    fn read_to_end(&self) -> Result<()> {
        let deadline = Instant::now() + END;
        while !self.reader.is_finished() {
            if Instant::now() > deadline {
                // Which one, the search for strays tells.
                let name = &self.name;
                return Err(format!("a child of {name} has its output and lives on").into());
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

fn take(ledger: &Ledger, line: &str) {
    match line.split_once(' ') {
        Some(("violation", text)) => ledger.violation(text.to_owned()),
        Some((times, what)) => match times.parse() {
            Ok(times) => ledger.count(what, times),
            Err(_) => ledger.violation(format!("a worker said {line:?}")),
        },
        None => ledger.violation(format!("a worker said {line:?}")),
    }
}

// From here on: inside the worker.

static ENDING: AtomicBool = AtomicBool::new(false);
static COUNTS: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

/// Lives as a worker: `work` looks at [`is_ending`] now and then.
pub(crate) fn run(work: impl FnOnce() -> Result<()>) -> Result<()> {
    std::thread::spawn(|| {
        // Nothing is ever sent: what comes is the end.
        let _ = io::stdin().read(&mut [0]);
        ENDING.store(true, Ordering::Relaxed);
    });
    std::thread::spawn(|| {
        loop {
            std::thread::sleep(Duration::from_millis(200));
            tell_counts();
        }
    });
    let done = work();
    tell_counts();
    done
}

pub(crate) fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Counts are told a few times a second; a kill takes the last ones along.
pub(crate) fn count(what: &'static str) {
    let mut counts = COUNTS.lock().unwrap_or_else(PoisonError::into_inner);
    *counts.entry(what).or_default() += 1;
}

/// A promise that was broken.
pub(crate) fn violation(text: &str) {
    tell(&format!("violation {}", text.replace('\n', "\\n")));
}

fn tell_counts() {
    let counts = std::mem::take(&mut *COUNTS.lock().unwrap_or_else(PoisonError::into_inner));
    for (what, times) in counts {
        tell(&format!("{times} {what}"));
    }
}

fn tell(line: &str) {
    // A parent that is gone has closed our input, too: we end.
    let _ = writeln!(io::stdout(), "{line}");
}

/// Picks what to do next (xorshift64*; nothing here depends on how good it is).
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
