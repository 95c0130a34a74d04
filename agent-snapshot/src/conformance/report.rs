use std::fmt;

/// The result of the suite. Displays as a table.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conformance::{self, Verdict};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
/// assert_eq!(report.failures().count(), 0);
/// // The suite cannot damage the data of `MemoryStorage`.
/// let skipped = report.outcomes.iter().filter(|o| o.verdict == Verdict::NotApplicable);
/// assert!(skipped.count() > 0);
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// One for each clause, in order.
    pub outcomes: Vec<Outcome>,
}

/// The result of one clause.
///
/// ```
/// use std::sync::Arc;
/// use agent_snapshot::MemoryStorage;
/// use agent_snapshot::conformance::{self, Outcome};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// let report = conformance::run(async || Arc::new(MemoryStorage::new())).await;
/// let first: &Outcome = &report.outcomes[0];
/// assert_eq!((first.rule, first.clause.as_str()), (1, "load of nothing is none"));
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The number of the rule in the contract of
    /// [`SnapshotStorage`](crate::SnapshotStorage).
    pub rule: u8,
    /// The clause as a sentence.
    pub clause: String,
    /// Whether the storage fulfils it.
    pub verdict: Verdict,
}

/// Whether a storage fulfils a clause.
///
/// ```
/// use agent_snapshot::conformance::Verdict;
///
/// fn is_open_question(verdict: &Verdict) -> bool {
///     matches!(verdict, Verdict::NotApplicable)
/// }
/// assert!(!is_open_question(&Verdict::Failed("the history differs".to_owned())));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It does.
    Passed,
    /// It does not, for this reason.
    Failed(String),
    /// The fixture cannot create the case.
    NotApplicable,
}

impl Report {
    /// Whether no clause failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures().next().is_none()
    }

    /// The clauses that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Outcome> {
        self.outcomes
            .iter()
            .filter(|outcome| matches!(outcome.verdict, Verdict::Failed(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Outcome {
            rule,
            clause,
            verdict,
        } in &self.outcomes
        {
            let (mark, reason) = match verdict {
                Verdict::Passed => ("ok    ", ""),
                Verdict::Failed(reason) => ("FAILED", reason.as_str()),
                Verdict::NotApplicable => ("n/a   ", ""),
            };
            let colon = if reason.is_empty() { "" } else { ": " };
            writeln!(f, "{mark}  rule {rule:>2}  {clause}{colon}{reason}")?;
        }
        let failed = self.failures().count();
        write!(f, "{} clauses, {failed} failed", self.outcomes.len())
    }
}
