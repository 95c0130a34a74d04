//! Budgets: how much an execution, a session or a group of executions may use.
//!
//! ```text
//! <state>/budgets/group-<name>.jsonl     what the executions of a group have used
//! <state>/budgets/session-<id>.jsonl     the same of a session, while its budget is asked for
//! ```

#[expect(
    clippy::module_inception,
    reason = "a file is named after its main type"
)]
mod budget;
mod budget_meter;
mod ledger;
mod price_table;
mod spent;

pub use budget::{Budget, BudgetNotice, BudgetResource, BudgetScope};
pub use price_table::{Price, PriceTable};
pub use spent::Spent;

pub(crate) use budget_meter::{BudgetMeter, BudgetVerdict};
pub(crate) use ledger::{Ledger, group_path};
