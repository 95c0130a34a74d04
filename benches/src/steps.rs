//! The steps of a run and its progress.

use std::time::{Duration, Instant};

use crate::comparison::Bench;

/// A part of a run, with an estimate of its duration.
pub struct Step<'a> {
    name: &'static str,
    comparisons: usize,
    other: Duration,
    work: Box<dyn FnOnce(&mut Bench) + 'a>,
}

impl<'a> Step<'a> {
    /// `comparisons` is the number of comparisons; the command line sets their duration. `other` is
    /// the duration of the rest of the step in seconds, on two cores.
    pub fn new(
        name: &'static str,
        comparisons: usize,
        other: f64,
        work: impl FnOnce(&mut Bench) + 'a,
    ) -> Self {
        let (other, work) = (Duration::from_secs_f64(other), Box::new(work));
        Self {
            name,
            comparisons,
            other,
            work,
        }
    }

    /// The estimate for a side-by-side run; zero for other runs, which have no fixed duration.
    fn planned(&self, bench: &Bench) -> Duration {
        let comparisons = u32::try_from(self.comparisons).unwrap_or(u32::MAX);
        bench
            .budget()
            .map_or(Duration::ZERO, |budget| budget * comparisons + self.other)
    }
}

/// The progress of a run.
pub(crate) struct Position {
    /// Start of the whole run over all areas.
    began: Instant,
    step: String,
    /// Expected end of this step.
    end: Instant,
    /// Expected duration of all later steps.
    rest: Duration,
}

impl Position {
    /// `BENCH_BEFORE` and `BENCH_AFTER` are the seconds for the areas before and after this one.
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let before = seconds("BENCH_BEFORE");
        Self {
            began: now.checked_sub(before).unwrap_or(now),
            step: String::new(),
            end: now,
            rest: seconds("BENCH_AFTER"),
        }
    }
}

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rest = self.rest + self.end.saturating_duration_since(Instant::now());
        let so_far = self.began.elapsed().as_secs();
        match rest.as_secs() {
            0 => write!(f, "[{so_far:>4} s]{}", self.step),
            rest => write!(f, "[{so_far:>4} s, about {rest} s to go]{}", self.step),
        }
    }
}

fn seconds(variable: &str) -> Duration {
    let seconds = std::env::var(variable).map_or(0, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable} is not a number of seconds: {text}"))
    });
    Duration::from_secs(seconds)
}

impl Bench {
    /// Runs all steps, or the steps that the arguments name. With `--plan` it only prints their
    /// expected duration in seconds.
    pub fn steps(mut self, steps: Vec<Step<'_>>) {
        let asked: Vec<String> = std::env::args().skip(1).collect();
        let named = |step: &Step<'_>| asked.iter().any(|arg| arg == step.name);
        let all = !steps.iter().any(&named);
        let steps: Vec<_> = steps.into_iter().filter(|s| all || named(s)).collect();
        let planned: Vec<Duration> = steps.iter().map(|step| step.planned(&self)).collect();
        let mut rest: Duration = planned.iter().sum();
        if asked.iter().any(|arg| arg == "--plan") {
            println!("{}", rest.as_secs());
            return;
        }
        rest += self.position.rest;
        let count = steps.len();
        for (i, (step, planned)) in steps.into_iter().zip(planned).enumerate() {
            rest -= planned;
            self.position.step = format!(" {} of {count}, {}", i + 1, step.name);
            self.position.end = Instant::now() + planned;
            self.position.rest = rest;
            (step.work)(&mut self);
        }
    }
}
