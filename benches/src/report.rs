//! What a run found: rows of figures, and goals that are met or not.

use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;

use serde::{Deserialize, Serialize};

/// What a figure should reach.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "goal")]
pub enum Goal {
    /// Our median divided by the floor's is at most `ratio`.
    AtMostFloor { ratio: f64 },
    /// The peer's median divided by ours is at least `ratio`.
    PeerAtLeast { peer: String, ratio: f64 },
    /// Our median in milliseconds is at most `ms`.
    MedianAtMost { ms: f64 },
    /// Our 99th percentile in milliseconds is at most `ms`.
    P99AtMost { ms: f64 },
    /// A single figure is at least `value`.
    AtLeast { value: f64 },
    /// A single figure is at most `value`.
    AtMost { value: f64 },
}

impl Goal {
    /// Our median divided by the floor's is at most `ratio`.
    pub fn at_most_floor(ratio: f64) -> Self {
        Self::AtMostFloor { ratio }
    }

    /// The median of the peer called `peer`, divided by ours, is at least `ratio`.
    pub fn peer_at_least(peer: &str, ratio: f64) -> Self {
        let peer = peer.to_owned();
        Self::PeerAtLeast { peer, ratio }
    }

    /// Our median is at most `ms` milliseconds.
    pub fn median_at_most_ms(ms: f64) -> Self {
        Self::MedianAtMost { ms }
    }

    /// Our 99th percentile is at most `ms` milliseconds.
    pub fn p99_at_most_ms(ms: f64) -> Self {
        Self::P99AtMost { ms }
    }

    /// A single figure is at least `value`.
    pub fn at_least(value: f64) -> Self {
        Self::AtLeast { value }
    }

    /// A single figure is at most `value`.
    pub fn at_most(value: f64) -> Self {
        Self::AtMost { value }
    }
}

/// A contender's part in a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The least that the work could cost.
    Floor,
    /// Our way.
    Ours,
    /// What people would use instead.
    Peer,
}

/// A contender's measured times, in nanoseconds an iteration.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Row {
    /// Its part in the comparison.
    pub part: Part,
    /// Its name.
    pub name: String,
    /// Half of the samples took at most this.
    pub median_ns: f64,
    /// 99 of 100 samples took at most this.
    pub p99_ns: f64,
    /// How many samples there are.
    pub samples: usize,
}

/// A goal and what was reached.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Verdict {
    /// What was asked for.
    #[serde(flatten)]
    pub goal: Goal,
    /// What was measured, in the goal's unit.
    pub reached: f64,
    /// Whether that is enough.
    pub met: bool,
}

/// One line of the report file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Line {
    /// Contenders that did the same work.
    Comparison {
        /// The crate or part of one.
        area: String,
        /// What was done.
        name: String,
        /// Who did it, and how fast.
        rows: Vec<Row>,
        /// The goals of this comparison.
        #[serde(default)]
        verdicts: Vec<Verdict>,
    },
    /// A single figure that is not the time of an iteration.
    Figure {
        /// The crate or part of one.
        area: String,
        /// What was measured.
        name: String,
        /// The figure.
        value: f64,
        /// Its unit.
        unit: String,
        /// Its goal, if it has one.
        verdict: Option<Verdict>,
    },
}

impl Line {
    /// The area that this line belongs to.
    pub fn area(&self) -> &str {
        match self {
            Self::Comparison { area, .. } | Self::Figure { area, .. } => area,
        }
    }

    /// Appends this line to the file named by `BENCH_REPORT`, if there is one.
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

/// Judges `goal` by the rows of a comparison. `None` if the rows do not hold what it speaks of.
pub(crate) fn judge(goal: &Goal, rows: &[Row]) -> Option<Verdict> {
    let ours = rows.iter().find(|row| row.part == Part::Ours)?;
    let (reached, met) = match goal {
        Goal::AtMostFloor { ratio } => {
            let floor = rows.iter().find(|row| row.part == Part::Floor)?;
            let reached = ours.median_ns / floor.median_ns;
            (reached, reached <= *ratio)
        }
        Goal::PeerAtLeast { peer, ratio } => {
            let peer = rows.iter().find(|row| &row.name == peer)?;
            let reached = peer.median_ns / ours.median_ns;
            (reached, reached >= *ratio)
        }
        Goal::MedianAtMost { ms } => (ours.median_ns / 1e6, ours.median_ns / 1e6 <= *ms),
        Goal::P99AtMost { ms } => (ours.p99_ns / 1e6, ours.p99_ns / 1e6 <= *ms),
        Goal::AtLeast { .. } | Goal::AtMost { .. } => return None,
    };
    let goal = goal.clone();
    Some(Verdict { goal, reached, met })
}

/// Judges `goal` by a single figure. `None` if the goal speaks of a comparison.
pub(crate) fn judge_figure(goal: &Goal, reached: f64) -> Option<Verdict> {
    let met = match goal {
        Goal::AtLeast { value } => reached >= *value,
        Goal::AtMost { value } => reached <= *value,
        _ => return None,
    };
    let goal = goal.clone();
    Some(Verdict { goal, reached, met })
}

/// The rows as a table for people, with each one's ratio to ours.
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
        let _ = writeln!(text, "  {}", sentence(verdict));
    }
    text
}

/// A verdict as a sentence.
pub fn sentence(verdict: &Verdict) -> String {
    let met = if verdict.met { "met" } else { "MISSED" };
    let reached = verdict.reached;
    match &verdict.goal {
        Goal::AtMostFloor { ratio } => {
            format!("goal {met}: ours / floor {reached:.2}, at most {ratio:.2}")
        }
        Goal::PeerAtLeast { peer, ratio } => {
            format!("goal {met}: {peer} / ours {reached:.2}, at least {ratio:.2}")
        }
        Goal::MedianAtMost { ms } => {
            format!("goal {met}: p50 {reached:.3} ms, at most {ms} ms")
        }
        Goal::P99AtMost { ms } => format!("goal {met}: p99 {reached:.3} ms, at most {ms} ms"),
        Goal::AtLeast { value } => format!("goal {met}: {reached:.3}, at least {value}"),
        Goal::AtMost { value } => format!("goal {met}: {reached:.3}, at most {value}"),
    }
}

/// A time for people.
pub fn duration(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
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
    fn a_goal_about_an_absent_contender_is_not_judged() {
        let rows = [row(Part::Ours, "ours", 1.0)];
        assert!(judge(&Goal::at_most_floor(1.0), &rows).is_none());
        assert!(judge(&Goal::peer_at_least("peer", 1.0), &rows).is_none());
    }
}
