//! Side-by-side measurement of contenders that do the same work.
//!
//! A bench file lists its contenders once. There are three ways to run it:
//!
//! | command | effect |
//! |---|---|
//! | `cargo bench --bench NAME` | each contender is a function of a criterion group |
//! | `cargo bench --bench NAME -- --side-by-side` | the contenders take turns, sample by sample, in one run; ratios and goals are printed, and appended as JSON lines to `$BENCH_REPORT` if it is set |
//! | `cargo bench --bench NAME -- --test` | each contender runs once, as a test |
//!
//! Taking turns keeps ratios valid on a shared machine: a slow second slows all contenders alike.
//! A peer that is a separate program takes turns too: [`Bench::outside`].
//!
//! ```no_run
//! use benches::{Bench, Goal};
//!
//! let mut bench = Bench::from_args("timed-store");
//! bench
//!     .compare("restore, 10 entries")
//!     .floor("open, lock, read, parse", || { /* raw work */ })
//!     .ours("restore", || { /* one restore */ })
//!     .peer("SQLite, fresh handle", || { /* the same by SQLite */ })
//!     .differs("opens a database, where we open two files")
//!     .goal(Goal::at_most_floor(1.2))
//!     .goal(Goal::peer_at_least("SQLite, fresh handle", 10.0).limited_by("the whole file is read"))
//!     .headline()
//!     .run();
//! bench.figure("8 processes, Jain index", 0.99, "", Some(Goal::at_least(0.95)));
//! bench
//!     .growth("restore", "entries", "ns")
//!     .ours("restore", [(10, 12_000.0), (1_000, 110_000.0)])
//!     .report();
//! ```

pub mod chart;
mod comparison;
mod growth;
mod measure;
mod outside;
mod report;
pub mod sample;
mod steps;
mod table;

pub use comparison::{Bench, Comparison};
pub use growth::Growth;
pub use measure::{median, resident_kib, scratch};
pub use outside::{Outside, python};
pub use report::{
    Cell, Column, Goal, Line, Part, Row, Series, TableRow, Verdict, duration, figure, sentence,
    target, thousands,
};
pub use steps::Step;
pub use table::{Figure, Table};
