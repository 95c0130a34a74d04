//! Recognition of failures by their text: rules as data.

mod failure_rule;
mod rule_set;

pub use failure_rule::{FailureClass, FailureRule};

pub(crate) use rule_set::{RuleSet, built_in_rules};
