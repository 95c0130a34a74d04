use std::fmt;

/// What the suite found, clause by clause. Displays as a table.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// One entry for each clause, in order.
    pub outcomes: Vec<Outcome>,
}

/// What became of one clause.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Outcome {
    /// The rule of the contract that the clause belongs to.
    pub rule: u8,
    /// The clause as a sentence.
    pub clause: String,
    /// Whether it holds.
    pub verdict: Verdict,
}

/// Whether a clause holds.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// It does.
    Passed,
    /// It does not, and why.
    Failed(String),
    /// The fixture cannot bring the case about.
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
