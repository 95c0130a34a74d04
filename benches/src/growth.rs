//! Figures as a function of a size.

use crate::comparison::Bench;
use crate::report::{Line, Part, Row, Series, figure};

/// Figures of several contenders over the sizes of one axis. Made by [`Bench::growth`].
#[must_use = "a growth is not reported until `report`"]
pub struct Growth<'a> {
    bench: &'a mut Bench,
    name: String,
    axis: String,
    unit: String,
    series: Vec<Series>,
}

impl<'a> Growth<'a> {
    pub(crate) fn new(bench: &'a mut Bench, name: &str, axis: &str, unit: &str) -> Self {
        Self {
            bench,
            name: name.to_owned(),
            axis: axis.to_owned(),
            unit: unit.to_owned(),
            series: Vec::new(),
        }
    }

    /// The medians of the contenders of one comparison that was run at several sizes.
    pub fn rows(mut self, runs: &[(usize, Vec<Row>)]) -> Self {
        let Some((_, contenders)) = runs.first() else {
            return self;
        };
        for contender in contenders {
            let points = runs.iter().filter_map(|(size, rows)| {
                let row = rows.iter().find(|row| row.name == contender.name)?;
                Some((*size, row.median_ns))
            });
            self = self.series(contender.part, &contender.name, points);
            if let Some(series) = self.series.last_mut() {
                series.differs.clone_from(&contender.differs);
            }
        }
        self
    }

    /// Our figures: pairs of a size and a figure, smallest size first.
    pub fn ours(self, name: &str, points: impl IntoIterator<Item = (usize, f64)>) -> Self {
        self.series(Part::Ours, name, points)
    }

    /// The figures of an alternative.
    pub fn peer(self, name: &str, points: impl IntoIterator<Item = (usize, f64)>) -> Self {
        self.series(Part::Peer, name, points)
    }

    /// The figures of the raw floor.
    pub fn floor(self, name: &str, points: impl IntoIterator<Item = (usize, f64)>) -> Self {
        self.series(Part::Floor, name, points)
    }

    /// Adds the series to the report. A contender without a figure is skipped.
    pub fn report(self) {
        self.bench
            .progress(&format!("{} over {}", self.name, self.axis));
        for series in &self.series {
            let points: Vec<String> = series
                .points
                .iter()
                .map(|&(size, value)| format!("{size}: {}", figure(value, &self.unit)))
                .collect();
            println!("  {:<44} {}", series.name, points.join(", "));
        }
        if self.bench.is_smoke() || self.series.is_empty() {
            return;
        }
        Line::Growth {
            area: self.bench.area.to_owned(),
            name: self.name,
            axis: self.axis,
            unit: self.unit,
            series: self.series,
        }
        .append();
    }

    fn series(
        mut self,
        part: Part,
        name: &str,
        points: impl IntoIterator<Item = (usize, f64)>,
    ) -> Self {
        let points: Vec<(f64, f64)> = points
            .into_iter()
            .map(|(size, value)| (size as f64, value))
            .collect();
        if !points.is_empty() {
            let name = name.to_owned();
            self.series.push(Series {
                part,
                name,
                points,
                differs: None,
            });
        }
        self
    }
}
