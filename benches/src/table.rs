//! Tables of figures that are not times of an iteration.

use crate::comparison::Bench;
use crate::report::{Cell, Column, Goal, Line, Part, TableRow, figure, judge_figure, judged};

/// A table of figures. Made by [`Bench::table`].
#[must_use = "a table is not reported until `report`"]
pub struct Table<'a> {
    bench: &'a mut Bench,
    name: String,
    columns: Vec<Column>,
    rows: Vec<TableRow>,
}

/// A cell: empty, or a figure with an optional goal.
#[derive(Default)]
pub struct Figure {
    value: Option<f64>,
    goal: Option<Goal>,
}

impl Figure {
    /// An empty cell.
    pub fn none() -> Self {
        Self::default()
    }

    /// Sets the goal of the figure.
    #[must_use]
    pub fn goal(mut self, goal: Goal) -> Self {
        self.goal = Some(goal);
        self
    }
}

impl From<f64> for Figure {
    fn from(value: f64) -> Self {
        let value = Some(value);
        Self { value, goal: None }
    }
}

impl<'a> Table<'a> {
    pub(crate) fn new(bench: &'a mut Bench, name: &str, columns: &[(&str, &str)]) -> Self {
        let columns = columns.iter().map(|&(name, unit)| Column {
            name: name.to_owned(),
            unit: unit.to_owned(),
        });
        Self {
            bench,
            name: name.to_owned(),
            columns: columns.collect(),
            rows: Vec::new(),
        }
    }

    /// Our figures, in the order of the columns.
    pub fn ours<const N: usize>(self, name: &str, figures: [Figure; N]) -> Self {
        self.row(Part::Ours, name, figures)
    }

    /// The figures of the raw floor.
    pub fn floor<const N: usize>(self, name: &str, figures: [Figure; N]) -> Self {
        self.row(Part::Floor, name, figures)
    }

    /// The figures of an alternative.
    pub fn peer<const N: usize>(self, name: &str, figures: [Figure; N]) -> Self {
        self.row(Part::Peer, name, figures)
    }

    /// Notes in the report how the work of the last contender differs from ours.
    pub fn differs(mut self, how: &str) -> Self {
        if let Some(row) = self.rows.last_mut() {
            row.differs = Some(how.to_owned());
        }
        self
    }

    /// Adds the table to the report.
    pub fn report(self) {
        self.bench.progress(&self.name);
        for row in &self.rows {
            println!("  {}", row.name);
            for (column, cell) in self.columns.iter().zip(&row.cells) {
                let Some(cell) = cell else { continue };
                println!("    {}: {}", column.name, figure(cell.value, &column.unit));
                if let Some(verdict) = &cell.verdict {
                    println!("    {}", judged(verdict));
                }
            }
        }
        if self.bench.is_smoke() {
            return;
        }
        Line::Table {
            area: self.bench.area.to_owned(),
            name: self.name,
            columns: self.columns,
            rows: self.rows,
        }
        .append();
    }

    fn row<const N: usize>(mut self, part: Part, name: &str, figures: [Figure; N]) -> Self {
        assert_eq!(
            N,
            self.columns.len(),
            "one figure for each column of {name}"
        );
        let cells = figures.into_iter().zip(&self.columns);
        let cells = cells.map(|(Figure { value, goal }, column)| {
            let value = value?;
            // The sizes of a smoke run are too small to judge a goal.
            let goal = goal.filter(|_| !self.bench.is_smoke());
            let verdict = goal.and_then(|goal| judge_figure(&goal, value, &column.unit));
            Some(Cell { value, verdict })
        });
        self.rows.push(TableRow {
            part,
            name: name.to_owned(),
            cells: cells.collect(),
            differs: None,
        });
        self
    }
}
