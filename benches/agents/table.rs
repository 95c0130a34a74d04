//! Counts per agent and check.

use std::collections::BTreeMap;

/// The result of one check with one agent.
struct Cell {
    text: String,
    is_met: bool,
}

#[derive(Default)]
pub(crate) struct Table {
    agents: Vec<String>,
    checks: Vec<&'static str>,
    cells: BTreeMap<(String, &'static str), Cell>,
    notes: Vec<String>,
}

impl Table {
    pub(crate) fn set(&mut self, agent: &str, check: &'static str, text: String, is_met: bool) {
        if !self.agents.iter().any(|known| known == agent) {
            self.agents.push(agent.to_owned());
        }
        if !self.checks.contains(&check) {
            self.checks.push(check);
        }
        eprintln!("{agent}: {check}: {text}{}", mark(is_met));
        let cell = Cell { text, is_met };
        self.cells.insert((agent.to_owned(), check), cell);
    }

    /// A detail below the table, such as a failure.
    pub(crate) fn note(&mut self, text: String) {
        eprintln!("  {text}");
        if !self.notes.contains(&text) {
            self.notes.push(text);
        }
    }

    /// Prints the table; returns whether every goal is met.
    pub(crate) fn print(&self) -> bool {
        println!("| check | {} |", self.agents.join(" | "));
        println!("|---|{}", "---|".repeat(self.agents.len()));
        for check in &self.checks {
            let cells = self.agents.iter().map(|agent| {
                let cell = self.cells.get(&(agent.clone(), check));
                cell.map_or_else(
                    || "-".to_owned(),
                    |cell| format!("{}{}", cell.text, mark(cell.is_met)),
                )
            });
            println!("| {check} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        for note in &self.notes {
            println!("- {note}");
        }
        self.cells.values().all(|cell| cell.is_met)
    }
}

fn mark(is_met: bool) -> &'static str {
    if is_met { "" } else { " (missed)" }
}
