//! Contenders that do the same work, and the three ways to run them.

use std::process::Command;
use std::time::{Duration, Instant};

use criterion::Criterion;

use crate::growth::Growth;
use crate::outside::Outside;
use crate::report::{Goal, Line, Part, Row, figure, judge, judge_figure, judged, table};
use crate::steps::Position;
use crate::table::Table;

/// How long one sample should take: long enough that reading the clock does not count.
const SAMPLE: Duration = Duration::from_micros(500);

/// A contender takes at least this many samples, however slow it is.
const FEWEST_SAMPLES: usize = 10;

/// How long a comparison takes.
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
    /// Peers that are not there, each told of once.
    left_out: Vec<String>,
}

impl Bench {
    /// Reads the command line: `--test`, `--side-by-side`, or criterion's own arguments.
    ///
    /// `BENCH_MODE=full` has a side-by-side comparison take longer.
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

    /// Whether this run only shows that the benches work: use small sizes.
    pub fn is_smoke(&self) -> bool {
        matches!(self.mode, Mode::Smoke)
    }

    /// Whether this run may take what it needs.
    pub fn is_full(&self) -> bool {
        self.budget() == Some(FULL)
    }

    /// How long a side-by-side comparison takes.
    pub(crate) fn budget(&self) -> Option<Duration> {
        match self.mode {
            Mode::SideBySide { budget } => Some(budget),
            Mode::Criterion(_) | Mode::Smoke => None,
        }
    }

    /// Starts a peer that is a program of its own: one of [`python`](crate::python), or one on
    /// PATH. If it is not there it is left out, and the report says so.
    pub fn outside(&mut self, name: &str, command: &mut Command) -> Option<Outside> {
        let why = match Outside::start(name, command) {
            Ok(peer) => return Some(peer),
            Err(why) => why,
        };
        if self.left_out.iter().any(|known| known == name) {
            return None;
        }
        self.left_out.push(name.to_owned());
        println!("  {name} is left out: {why}; scripts/bench --peers gets it");
        Line::LeftOut {
            area: self.area.to_owned(),
            name: name.to_owned(),
            why,
        }
        .append();
        None
    }

    /// Begins a comparison of contenders that do the same work.
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

    /// Begins a series of figures over sizes of `axis`, such as `entries`.
    pub fn growth<'a>(&'a mut self, name: &str, axis: &str, unit: &str) -> Growth<'a> {
        Growth::new(self, name, axis, unit)
    }

    /// Begins a table of figures: its columns are pairs of a name and a unit.
    pub fn table<'a>(&'a mut self, name: &str, columns: &[(&str, &str)]) -> Table<'a> {
        Table::new(self, name, columns)
    }

    /// Says what is being done now, for whoever waits for a long run.
    pub fn progress(&self, what: &str) {
        println!("{}: {what}", self.position);
    }

    /// Reports one figure that is not the time of an iteration, such as bytes or a share.
    pub fn figure(&mut self, name: &str, value: f64, unit: &str, goal: Option<Goal>) {
        let verdict = goal.and_then(|goal| judge_figure(&goal, value, unit));
        self.progress(&format!("{name}: {}", figure(value, unit)));
        if self.is_smoke() {
            // A smoke run uses small sizes: what it reaches says nothing about the goal.
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

/// Does one timed piece of work: how many iterations in, how long they took out.
type Work<'a> = Box<dyn FnMut(u64) -> Duration + 'a>;

struct Contender<'a> {
    part: Part,
    name: String,
    work: Work<'a>,
    differs: Option<String>,
    /// Whether iterations may be put together into one sample.
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
    /// The least that the work could cost: raw calls, no library.
    pub fn floor(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Floor, name, work)
    }

    /// Our way.
    pub fn ours(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Ours, name, work)
    }

    /// What people would use instead.
    pub fn peer(self, name: &str, work: impl FnMut() + 'a) -> Self {
        self.batched(Part::Peer, name, work)
    }

    /// As [`floor`](Self::floor), for work that times itself: set-up does not count.
    pub fn floor_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Floor, name, work)
    }

    /// As [`ours`](Self::ours), for work that times itself: set-up does not count.
    pub fn ours_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Ours, name, work)
    }

    /// As [`peer`](Self::peer), for work that times itself: set-up does not count.
    pub fn peer_timed(self, name: &str, work: impl FnMut() -> Duration + 'a) -> Self {
        self.timed(Part::Peer, name, work)
    }

    /// What this comparison should show.
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goals.push(goal);
        self
    }

    /// What the contender added last does less or more than we do: the report says so.
    pub fn differs(mut self, how: &str) -> Self {
        if let Some(contender) = self.contenders.last_mut() {
            contender.differs = Some(how.to_owned());
        }
        self
    }

    /// Shows this comparison in the area's chart.
    pub fn headline(mut self) -> Self {
        self.headline = true;
        self
    }

    /// Takes so many samples of each, however fast they are: for work that changes what it works
    /// on. The report shows the medians in a [growth](Growth::rows) alone.
    pub fn only_samples(mut self, count: usize) -> Self {
        self.samples = Some(count);
        self
    }

    /// Runs the contenders as the command line asked, and gives what a side-by-side run found.
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
                println!("  only with --side-by-side: criterion takes as many samples as it likes");
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

/// Measures all contenders for about `budget` in all, or `count` times, one sample each in turn.
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

/// How many iterations make a sample of about [`SAMPLE`]; also warms the contender up.
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
