//! Contenders that do the same work, and the three modes to run them.

use std::process::Command;
use std::time::{Duration, Instant};

use criterion::Criterion;

use crate::growth::Growth;
use crate::outside::Outside;
use crate::report::{Goal, Line, Part, Row, figure, judge, judge_figure, judged, table};
use crate::steps::Position;
use crate::table::Table;

/// Duration of one sample: long enough that the cost of reading the clock is negligible.
const SAMPLE: Duration = Duration::from_micros(500);

/// Minimum number of samples of each contender.
const FEWEST_SAMPLES: usize = 10;

/// Duration of a comparison.
const QUICK: Duration = Duration::from_millis(600);
const FULL: Duration = Duration::from_secs(8);

enum Mode {
    Criterion(Box<Criterion>),
    SideBySide { budget: Duration },
    Smoke,
}

/// The benches of one area, run as the command line asks.
pub struct Bench {
    pub(crate) area: &'static str,
    mode: Mode,
    pub(crate) position: Position,
    /// Missing peers that have been reported.
    left_out: Vec<String>,
}

impl Bench {
    /// Reads the command line: `--test`, `--side-by-side`, or the arguments of criterion.
    ///
    /// `BENCH_MODE=full` makes side-by-side comparisons longer.
    pub fn from_args(area: &'static str) -> Self {
        let asked = |flag: &str| std::env::args().any(|arg| arg == flag);
        let mode = if asked("--test") {
            Mode::Smoke
        } else if asked("--side-by-side") {
            let full = std::env::var("BENCH_MODE").is_ok_and(|mode| mode == "full");
            Mode::SideBySide {
                budget: if full { FULL } else { QUICK },
            }
        } else {
            let criterion = Criterion::default()
                .warm_up_time(Duration::from_millis(500))
                .measurement_time(Duration::from_secs(3))
                .configure_from_args();
            Mode::Criterion(Box::new(criterion))
        };
        let position = Position::new();
        Self {
            area,
            mode,
            position,
            left_out: Vec::new(),
        }
    }

    /// Whether this run only tests that the benches work. Sizes should then be small.
    pub fn is_smoke(&self) -> bool {
        matches!(self.mode, Mode::Smoke)
    }

    /// Whether this run takes more samples for better figures.
    pub fn is_full(&self) -> bool {
        self.budget() == Some(FULL)
    }

    /// Duration of a side-by-side comparison.
    pub(crate) fn budget(&self) -> Option<Duration> {
        match self.mode {
            Mode::SideBySide { budget } => Some(budget),
            Mode::Criterion(_) | Mode::Smoke => None,
        }
    }

    /// Starts a peer that is a separate program: a [`python`](crate::python) script or a program on
    /// `PATH`. A missing peer is skipped, and the report says so.
    pub fn outside(&mut self, name: &str, command: &mut Command) -> Option<Outside> {
        let why = match Outside::start(name, command) {
            Ok(peer) => return Some(peer),
            Err(why) => why,
        };
        if self.left_out.iter().any(|known| known == name) {
            return None;
        }
        self.left_out.push(name.to_owned());
        println!("  {name} is skipped: {why}; scripts/bench --peers installs it");
        Line::LeftOut {
            area: self.area.to_owned(),
            name: name.to_owned(),
            why,
        }
        .append();
        None
    }

    /// Starts the definition of a comparison.
    pub fn compare<'a>(&'a mut self, name: &str) -> Comparison<'a> {
        let name = name.to_owned();
        Comparison {
            bench: self,
            name,
            contenders: Vec::new(),
            goals: Vec::new(),
            headline: false,
            samples: None,
        }
    }

    /// Starts a series of figures over the sizes of `axis`, for example `entries`.
    pub fn growth<'a>(&'a mut self, name: &str, axis: &str, unit: &str) -> Growth<'a> {
        Growth::new(self, name, axis, unit)
    }

    /// Starts a table of figures. A column is a pair of name and unit.
    pub fn table<'a>(&'a mut self, name: &str, columns: &[(&str, &str)]) -> Table<'a> {
        Table::new(self, name, columns)
    }

    /// Prints the progress of the run.
    pub fn progress(&self, what: &str) {
        println!("{}: {what}", self.position);
    }

    /// Reports a single figure that is not the time of an iteration, for example a number of bytes.
    pub fn figure(&mut self, name: &str, value: f64, unit: &str, goal: Option<Goal>) {
        let verdict = goal.and_then(|goal| judge_figure(&goal, value, unit));
        self.progress(&format!("{name}: {}", figure(value, unit)));
        if self.is_smoke() {
            // The sizes of a smoke run are too small to judge a goal.
            return;
        }
        if let Some(verdict) = &verdict {
            println!("  {}", judged(verdict));
        }
        Line::Figure {
            area: self.area.to_owned(),
            name: name.to_owned(),
            value,
            unit: unit.to_owned(),
            verdict,
        }
        .append();
    }
}

/// Runs a number of iterations and returns their duration.
type Work<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

struct Contender<'a> {
    part: Part,
    name: String,
    work: Work<'a>,
    differs: Option<String>,
    /// Whether a sample may consist of several iterations.
    batched: bool,
}

/// Contenders that do the same work. Made by [`Bench::compare`].
#[must_use = "a comparison measures nothing until `run`"]
pub struct Comparison<'a> {
    bench: &'a mut Bench,
    name: String,
    contenders: Vec<Contender<'a>>,
    goals: Vec<Goal>,
    headline: bool,
    samples: Option<usize>,
}

impl<'a> Comparison<'a> {
    /// The floor: the same work by raw calls without a library.
    pub fn floor(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Floor, name, work)
    }

    /// Our implementation.
    pub fn ours(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Ours, name, work)
    }

    /// An alternative.
    pub fn peer(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Peer, name, work)
    }

    /// Like [`floor`](Self::floor), for work that measures its own time, without its set-up.
    pub fn floor_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Floor, name, work)
    }

    /// Like [`ours`](Self::ours), for work that measures its own time, without its set-up.
    pub fn ours_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Ours, name, work)
    }

    /// Like [`peer`](Self::peer), for work that measures its own time, without its set-up.
    pub fn peer_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Peer, name, work)
    }

    /// Adds a goal.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// Notes in the report how the work of the last contender differs from ours.
    pub fn differs(mut self, how: &str) -> Self {
        if let Some(contender) = self.contenders.last_mut() {
            contender.differs = Some(how.to_owned());
        }
        self
    }

    /// Shows this comparison in the chart of the area.
    pub fn headline(mut self) -> Self {
        self.headline = true;
        self
    }

    /// Takes exactly `count` samples of each contender, for work that changes its own input. The
    /// report shows the medians only in a [growth](Growth::rows).
    pub fn only_samples(mut self, count: usize) -> Self {
        self.samples = Some(count);
        self
    }

    /// Runs the contenders in the mode of the command line. Only a side-by-side run returns rows.
    pub fn run(self) -> Vec<Row> {
        let Self {
            bench,
            name,
            mut contenders,
            goals,
            headline,
            samples,
        } = self;
        bench.progress(&name);
        match &mut bench.mode {
            Mode::Smoke => {
                for contender in &mut contenders {
                    (contender.work)(1);
                    println!("  {}: works", contender.name);
                }
                Vec::new()
            }
            Mode::Criterion(_) if samples.is_some() => {
                println!(
                    "  only with --side-by-side: criterion cannot limit the number of samples"
                );
                Vec::new()
            }
            Mode::Criterion(criterion) => {
                let mut group = criterion.benchmark_group(format!("{}/{name}", bench.area));
                for contender in &mut contenders {
                    group.bench_function(&contender.name, |bencher| {
                        bencher.iter_custom(|iterations| (contender.work)(iterations));
                    });
                }
                group.finish();
                Vec::new()
            }
            Mode::SideBySide { budget } => {
                let rows = take_turns(&mut contenders, *budget, samples);
                let verdicts: Vec<_> = goals.iter().filter_map(|goal| judge(goal, &rows)).collect();
                print!("{}", table(&rows, &verdicts));
                if samples.is_none() {
                    Line::Comparison {
                        area: bench.area.to_owned(),
                        name,
                        rows: rows.clone(),
                        verdicts,
                        headline,
                    }
                    .append();
                }
                rows
            }
        }
    }

    fn batched(mut self, part: Part, name: &str, mut work: impl FnMut() + 'a) -> Self {
        self.contenders.push(Contender {
            part,
            name: name.to_owned(),
            batched: true,
            differs: None,
            work: Box::new(move |iterations| {
                let start = Instant::now();
                for _ in 0..iterations {
                    work();
                }
                start.elapsed()
            }),
        });
        self
    }

    fn timed(mut self, part: Part, name: &str, mut work: impl FnMut() -> Duration + 'a) -> Self {
        self.contenders.push(Contender {
            part,
            name: name.to_owned(),
            batched: false,
            differs: None,
            work: Box::new(move |iterations| (0..iterations).map(|_| work()).sum()),
        });
        self
    }
}

/// Measures the contenders in turn, one sample each, for about `budget` in total or `count` times.
fn take_turns(
    contenders: &mut [Contender<'_>],
    budget: Duration,
    count: Option<usize>,
) -> Vec<Row> {
    let batches: Vec<u64> = contenders.iter_mut().map(batch_size).collect();
    let mut samples: Vec<Vec<f64>> = contenders.iter().map(|_| Vec::new()).collect();
    let start = Instant::now();
    let mut rounds = 0;
    while match count {
        Some(count) => rounds < count,
        None => rounds < FEWEST_SAMPLES || start.elapsed() < budget,
    } {
        for ((contender, &batch), samples) in contenders.iter_mut().zip(&batches).zip(&mut samples)
        {
            let took = (contender.work)(batch);
            samples.push(took.as_nanos() as f64 / batch as f64);
        }
        rounds += 1;
    }
    contenders
        .iter()
        .zip(samples)
        .map(|(contender, mut samples)| {
            samples.sort_by(f64::total_cmp);
            Row {
                part: contender.part,
                name: contender.name.clone(),
                median_ns: percentile(&samples, 50),
                p99_ns: percentile(&samples, 99),
                samples: samples.len(),
                differs: contender.differs.clone(),
            }
        })
        .collect()
}

/// The number of iterations in a sample of about [`SAMPLE`]. Finding it also warms the contender
/// up.
fn batch_size(contender: &mut Contender<'_>) -> u64 {
    let mut batch = 1;
    loop {
        let took = (contender.work)(batch);
        if !contender.batched {
            return 1;
        }
        if took >= SAMPLE || batch >= 1 << 20 {
            return batch;
        }
        batch *= 2;
    }
}

fn percentile(sorted: &[f64], percent: usize) -> f64 {
    let rank = (sorted.len() * percent).div_ceil(100).max(1);
    sorted[rank - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_nearest_rank() {
        let sorted: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(percentile(&sorted, 50), 100.0);
        assert_eq!(percentile(&sorted, 99), 198.0);
        assert_eq!(percentile(&sorted[..1], 99), 1.0);
    }

    #[test]
    fn contenders_take_turns() {
        let turns = std::cell::RefCell::new(Vec::new());
        let mut bench = Bench {
            area: "test",
            mode: Mode::SideBySide {
                budget: Duration::ZERO,
            },
            position: Position::new(),
            left_out: Vec::new(),
        };
        let note = |name| {
            turns.borrow_mut().push(name);
            Duration::from_millis(1)
        };
        bench
            .compare("turns")
            .floor_timed("a", || note('a'))
            .ours_timed("b", || note('b'))
            .run();
        let turns = turns.into_inner();
        assert_eq!(turns[..6], ['a', 'b', 'a', 'b', 'a', 'b']);
        assert_eq!(turns.len(), 2 + 2 * FEWEST_SAMPLES);
    }
}
