//! The results of a run: rows of figures, and goals that are met or missed.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// A target for a figure, and the known reason if it is missed.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Goal {
    #[serde(flatten)]
    aim: Aim,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    limit: Option<String>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "goal")]
enum Aim {
    AtMostFloor { ratio: f64 },
    PeerAtLeast { peer: String, ratio: f64 },
    MedianAtMost { ms: f64 },
    P99AtMost { ms: f64 },
    AtLeast { value: f64 },
    AtMost { value: f64 },
}

impl From<Aim> for Goal {
    fn from(aim: Aim) -> Self {
        Self { aim, limit: None }
    }
}

impl Goal {
    /// Our median divided by the floor's is at most `ratio`.
    pub fn at_most_floor(ratio: f64) -> Self {
        Aim::AtMostFloor { ratio }.into()
    }

    /// The median of the peer called `peer`, divided by ours, is at least `ratio`.
    pub fn peer_at_least(peer: &str, ratio: f64) -> Self {
        let peer = peer.to_owned();
        Aim::PeerAtLeast { peer, ratio }.into()
    }

    /// Our median is at most `ms` milliseconds.
    pub fn median_at_most_ms(ms: f64) -> Self {
        Aim::MedianAtMost { ms }.into()
    }

    /// Our 99th percentile is at most `ms` milliseconds.
    pub fn p99_at_most_ms(ms: f64) -> Self {
        Aim::P99AtMost { ms }.into()
    }

    /// A single figure is at least `value`.
    pub fn at_least(value: f64) -> Self {
        Aim::AtLeast { value }.into()
    }

    /// A single figure is at most `value`.
    pub fn at_most(value: f64) -> Self {
        Aim::AtMost { value }.into()
    }

    /// Sets the reason that the report gives if the goal is missed.
    #[must_use]
    pub fn limited_by(mut self, reason: &str) -> Self {
        self.limit = Some(reason.to_owned());
        self
    }

    /// The reason for a miss.
    pub fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// The name of the peer that this goal is about.
    pub fn peer(&self) -> Option<&str> {
        match &self.aim {
            Aim::PeerAtLeast { peer, .. } => Some(peer),
            _ => None,
        }
    }
}

/// A contender's part in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The same work by raw calls without a library.
    Floor,
    /// Our implementation.
    Ours,
    /// An alternative.
    Peer,
}

/// A contender's measured times, in nanoseconds an iteration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// Its part in the comparison.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// The median of the samples.
    pub median_ns: f64,
    /// The 99th percentile of the samples.
    pub p99_ns: f64,
    /// Number of samples.
    pub samples: usize,
    /// How its work differs from ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// The figure of one contender as a function of a size.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Series {
    /// Its part in the comparison.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// Sizes and figures, from the smallest size to the largest.
    pub points: Vec<(f64, f64)>,
    /// How its work differs from ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

impl Series {
    /// The figure at the largest size divided by that at the smallest.
    pub fn growth(&self) -> Option<f64> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        Some(last.1 / first.1)
    }
}

/// A goal and the figure that was reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Verdict {
    /// The goal.
    #[serde(flatten)]
    pub goal: Goal,
    /// The measured figure, in the unit of the goal.
    pub reached: f64,
    /// Whether the goal is met.
    pub met: bool,
    /// The unit of a single figure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unit: String,
}

/// A column of a table of figures.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Column {
    /// The measured quantity.
    pub name: String,
    /// Its unit.
    pub unit: String,
}

/// A row of a table of figures.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct TableRow {
    /// Its part in the comparison.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// The figure of each column, if there is one.
    pub cells: Vec<Option<Cell>>,
    /// How its work differs from ours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub differs: Option<String>,
}

/// A figure in a table.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Cell {
    /// The figure.
    pub value: f64,
    /// Its goal, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<Verdict>,
}

/// One line of the report file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Line {
    /// Contenders that did the same work.
    Comparison {
        /// The crate or part of one.
        area: String,
        /// The work.
        name: String,
        /// The contenders and their times.
        rows: Vec<Row>,
        /// The goals of this comparison.
        #[serde(default)]
        verdicts: Vec<Verdict>,
        /// Whether the chart of the area shows it.
        #[serde(default)]
        headline: bool,
    },
    /// Figures as a function of a size.
    Growth {
        /// The crate or part of one.
        area: String,
        /// The measured quantity.
        name: String,
        /// The size that grows.
        axis: String,
        /// The unit of the figures; `ns` for times.
        unit: String,
        /// The contenders.
        series: Vec<Series>,
    },
    /// A single figure that is not the time of an iteration.
    Figure {
        /// The crate or part of one.
        area: String,
        /// The measured quantity.
        name: String,
        /// The figure.
        value: f64,
        /// Its unit.
        unit: String,
        /// Its goal, if it has one.
        verdict: Option<Verdict>,
    },
    /// Figures of several contenders.
    Table {
        /// The crate or part of one.
        area: String,
        /// The work.
        name: String,
        /// The measured quantity.
        columns: Vec<Column>,
        /// The contenders.
        rows: Vec<TableRow>,
    },
    /// A peer that was skipped.
    LeftOut {
        /// The crate or part of one.
        area: String,
        /// The contender.
        name: String,
        /// The reason.
        why: String,
    },
}

impl Line {
    /// The area that this line belongs to.
    pub fn area(&self) -> &str {
        match self {
            Self::Comparison { area, .. }
            | Self::Growth { area, .. }
            | Self::Figure { area, .. }
            | Self::Table { area, .. }
            | Self::LeftOut { area, .. } => area,
        }
    }

    /// The verdicts of this line, each with the name of its figure.
    pub fn verdicts(&self) -> Vec<(String, &Verdict)> {
        match self {
            Self::Comparison { name, verdicts, .. } => {
                verdicts.iter().map(|v| (name.clone(), v)).collect()
            }
            Self::Figure { name, verdict, .. } => {
                verdict.iter().map(|v| (name.clone(), v)).collect()
            }
            Self::Table {
                name,
                columns,
                rows,
                ..
            } => {
                let cells = rows.iter().flat_map(|row| {
                    let cells = columns.iter().zip(&row.cells);
                    cells.map(move |(column, cell)| (row, column, cell))
                });
                cells
                    .filter_map(|(row, column, cell)| {
                        let verdict = cell.as_ref()?.verdict.as_ref()?;
                        Some((format!("{name}, {}, {}", row.name, column.name), verdict))
                    })
                    .collect()
            }
            Self::Growth { .. } | Self::LeftOut { .. } => Vec::new(),
        }
    }

    /// Appends this line to the file that `BENCH_REPORT` names, if it is set.
    pub(crate) fn append(&self) {
        let Some(path) = std::env::var_os("BENCH_REPORT") else {
            return;
        };
        let mut line = serde_json::to_string(self).expect("a report line is plain data");
        line.push('\n');
        let written = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()));
        if let Err(error) = written {
            panic!("cannot append to {}: {error}", path.display());
        }
    }
}

/// Judges a goal of a comparison. `None` if a row that the goal refers to is missing.
pub(crate) fn judge(goal: &Goal, rows: &[Row]) -> Option<Verdict> {
    let ours = rows.iter().find(|row| row.part == Part::Ours)?;
    let (reached, met) = match &goal.aim {
        Aim::AtMostFloor { ratio } => {
            let floor = rows.iter().find(|row| row.part == Part::Floor)?;
            let reached = ours.median_ns / floor.median_ns;
            (reached, reached <= *ratio)
        }
        Aim::PeerAtLeast { peer, ratio } => {
            let peer = rows.iter().find(|row| &row.name == peer)?;
            let reached = peer.median_ns / ours.median_ns;
            (reached, reached >= *ratio)
        }
        Aim::MedianAtMost { ms } => (ours.median_ns / 1e6, ours.median_ns / 1e6 <= *ms),
        Aim::P99AtMost { ms } => (ours.p99_ns / 1e6, ours.p99_ns / 1e6 <= *ms),
        Aim::AtLeast { .. } | Aim::AtMost { .. } => return None,
    };
    Some(Verdict {
        goal: goal.clone(),
        reached,
        met,
        unit: String::new(),
    })
}

/// Judges a goal of a single figure. `None` if it is a goal of a comparison.
pub(crate) fn judge_figure(goal: &Goal, reached: f64, unit: &str) -> Option<Verdict> {
    let met = match &goal.aim {
        Aim::AtLeast { value } => reached >= *value,
        Aim::AtMost { value } => reached <= *value,
        _ => return None,
    };
    Some(Verdict {
        goal: goal.clone(),
        reached,
        met,
        unit: unit.to_owned(),
    })
}

/// The rows as text, with the ratio of each to ours.
pub(crate) fn table(rows: &[Row], verdicts: &[Verdict]) -> String {
    let ours = rows.iter().find(|row| row.part == Part::Ours);
    let mut text = String::new();
    for row in rows {
        let ratio = ours.map_or(1.0, |ours| row.median_ns / ours.median_ns);
        let _ = writeln!(
            text,
            "  {:<44} {:>12} p50 {:>12} p99 {:>9.2} x ours",
            row.name,
            duration(row.median_ns),
            duration(row.p99_ns),
            ratio,
        );
    }
    for verdict in verdicts {
        let _ = writeln!(text, "  {}", judged(verdict));
    }
    text
}

/// The goal in a few characters, for a table.
pub fn target(verdict: &Verdict) -> String {
    match &verdict.goal.aim {
        Aim::AtMostFloor { ratio } => format!("≤ {ratio} of the floor"),
        Aim::PeerAtLeast { ratio, .. } => format!("≥ {ratio} times ours"),
        Aim::MedianAtMost { ms } => format!("p50 ≤ {ms} ms"),
        Aim::P99AtMost { ms } => format!("p99 ≤ {ms} ms"),
        Aim::AtLeast { value } => format!("≥ {}", figure(*value, &verdict.unit)),
        Aim::AtMost { value } => format!("≤ {}", figure(*value, &verdict.unit)),
    }
}

/// A figure as text. The unit `ns` is shown as a duration.
pub fn figure(value: f64, unit: &str) -> String {
    match unit {
        "ns" => duration(value),
        _ => format!("{} {unit}", digits(value)).trim_end().to_owned(),
    }
}

/// A number with three significant digits or more.
fn digits(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => grouped(value),
        size if size >= 100.0 => grouped(value.round()),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A number with commas between groups of three digits.
pub fn thousands(number: usize) -> String {
    grouped(number as f64)
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 {
        format!("-{text}")
    } else {
        text
    }
}

/// The figure and the goal as a sentence.
pub fn sentence(verdict: &Verdict) -> String {
    let (reached, unit) = (verdict.reached, &verdict.unit);
    match &verdict.goal.aim {
        Aim::AtMostFloor { ratio } => {
            format!("ours / floor {}, goal at most {ratio}", digits(reached))
        }
        Aim::PeerAtLeast { peer, ratio } => {
            format!("{peer} / ours {}, goal at least {ratio}", digits(reached))
        }
        Aim::MedianAtMost { ms } => format!("p50 {reached:.3} ms, goal at most {ms} ms"),
        Aim::P99AtMost { ms } => format!("p99 {reached:.3} ms, goal at most {ms} ms"),
        Aim::AtLeast { value } => {
            let (reached, value) = (figure(reached, unit), figure(*value, unit));
            format!("{reached}, goal at least {value}")
        }
        Aim::AtMost { value } => {
            let (reached, value) = (figure(reached, unit), figure(*value, unit));
            format!("{reached}, goal at most {value}")
        }
    }
}

/// The verdict as it is printed during a run.
pub(crate) fn judged(verdict: &Verdict) -> String {
    let met = if verdict.met { "met" } else { "MISSED" };
    format!("{met}: {}", sentence(verdict))
}

/// A duration as text.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} µs", digits(ns / 1e3)),
        ns if ns < 1e9 => format!("{} ms", digits(ns / 1e6)),
        ns => format!("{} s", digits(ns / 1e9)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(part: Part, name: &str, median_ns: f64) -> Row {
        let (name, p99_ns, samples) = (name.to_owned(), median_ns * 2.0, 1);
        Row {
            part,
            name,
            median_ns,
            p99_ns,
            samples,
            differs: None,
        }
    }

    #[track_caller]
    fn check(goal: &Goal, reached: f64, met: bool) {
        let rows = [
            row(Part::Floor, "raw", 100.0),
            row(Part::Ours, "ours", 150.0),
            row(Part::Peer, "peer", 600.0),
        ];
        let verdict = judge(goal, &rows).unwrap();
        assert_eq!((verdict.reached, verdict.met), (reached, met));
    }

    #[test]
    fn goals_are_judged_by_medians() {
        check(&Goal::at_most_floor(1.5), 1.5, true);
        check(&Goal::at_most_floor(1.4), 1.5, false);
        check(&Goal::peer_at_least("peer", 4.0), 4.0, true);
        check(&Goal::peer_at_least("peer", 4.1), 4.0, false);
        check(&Goal::p99_at_most_ms(0.0003), 0.0003, true);
        check(&Goal::median_at_most_ms(0.0001), 0.00015, false);
    }

    #[test]
    fn figures_have_three_significant_digits() {
        assert_eq!(figure(1_234_567.8, "1/s"), "1,234,568 1/s");
        assert_eq!(figure(12.34, "MiB"), "12.3 MiB");
        assert_eq!(figure(0.956, ""), "0.96");
        assert_eq!(figure(0.0, "%"), "0 %");
        assert_eq!(figure(12_340.0, "ns"), "12.3 µs");
    }

    #[test]
    fn a_goal_without_its_contender_is_not_judged() {
        let rows = [row(Part::Ours, "ours", 1.0)];
        assert!(judge(&Goal::at_most_floor(1.0), &rows).is_none());
        assert!(judge(&Goal::peer_at_least("peer", 1.0), &rows).is_none());
    }
}
