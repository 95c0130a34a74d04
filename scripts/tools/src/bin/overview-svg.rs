//! Draws the chart of the README: one comparison of each crate. It reads `benches/REPORT.md` and
//! prints the picture, so that the chart has the figures of the report. `scripts/pictures` uses it.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line program prints"
)]

use std::fmt::Write as _;
use std::io;
use std::process::ExitCode;

/// A row of the chart.
struct Choice {
    title: &'static str,
    /// The cell of the report that names the work.
    work: &'static str,
    column: &'static str,
    /// The name in the report, and the one in the chart.
    ours: (&'static str, &'static str),
    peer: (&'static str, &'static str),
}

const CHOICES: [Choice; 4] = [
    Choice {
        title: "Read a lease",
        work: "restore, 10 entries",
        column: "p50",
        ours: ("restore, fresh handle", "timed-store"),
        peer: ("SQLite, fresh handle", "SQLite"),
    },
    Choice {
        title: "Start an agent from a host of 1 GB",
        work: "spawn from a host of 1 GB",
        column: "p50",
        ours: ("launch", "exec-core"),
        peer: ("command-group", "command-group"),
    },
    Choice {
        title: "Notice that an answer is complete",
        work: "marker printed until seen",
        column: "p50",
        ours: ("get_response", "tmux-bus"),
        peer: ("libtmux, polling each 500 ms", "libtmux, polling"),
    },
    Choice {
        title: "Save one more message after 10,000",
        work: "save of one more message, by messages",
        column: "10,000",
        ours: ("SqliteStorage", "agent-snapshot"),
        peer: ("LangGraph SqliteSaver", "LangGraph"),
    },
];

fn main() -> ExitCode {
    let drawn = io::read_to_string(io::stdin())
        .map_err(|error| format!("cannot read standard input: {error}"))
        .and_then(|report| draw(&report));
    match drawn {
        Ok(svg) => {
            print!("{svg}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("overview-svg: {error}");
            ExitCode::FAILURE
        }
    }
}

fn draw(report: &str) -> Result<String, String> {
    const WIDTH: f64 = 860.0;
    const LABEL: f64 = 150.0;
    // The scale: powers of ten of nanoseconds.
    const LOW: f64 = 3.0;
    const HIGH: f64 = 9.0;
    let mut body = String::new();
    let mut y = 62.0;
    for choice in &CHOICES {
        let _ = write!(
            body,
            r##"<text class="t" x="20" y="{y}" font-weight="600">{}</text>"##,
            choice.title
        );
        y += 10.0;
        for ((name, label), class) in [(choice.ours, "ours"), (choice.peer, "peer")] {
            let value = find(report, choice.work, choice.column, name).ok_or_else(|| {
                let Choice { work, column, .. } = choice;
                format!("the report has no `{name}` of `{work}` in the column `{column}`")
            })?;
            let nanoseconds = parse(&value).ok_or_else(|| format!("not a time: `{value}`"))?;
            let part = (nanoseconds.log10() - LOW) / (HIGH - LOW);
            let length = (part * (WIDTH - LABEL - 110.0)).max(2.0);
            let _ = write!(
                body,
                concat!(
                    r##"<text class="q" x="{lx}" y="{ty}" text-anchor="end">{label}</text>"##,
                    r##"<rect class="{class}" x="{x}" y="{y}" width="{length:.1}" height="14" rx="3"/>"##,
                    r##"<text class="t" x="{vx:.1}" y="{ty}">{value}</text>"##,
                ),
                lx = LABEL - 10.0,
                ty = y + 11.0,
                label = label,
                class = class,
                x = LABEL,
                y = y,
                length = length,
                vx = LABEL + length + 7.0,
                value = value,
            );
            y += 18.0;
        }
        y += 22.0;
    }
    let height = y - 8.0;
    Ok(format!(
        concat!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" "##,
            r##"font-family="system-ui, sans-serif" font-size="13"><style>"##,
            ".bg{{fill:#fff;stroke:#d0d7de}}.t{{fill:#1f2328}}.q{{fill:#57606a}}",
            ".ours{{fill:#3f5fd8}}.peer{{fill:#c3c9d1}}",
            "@media(prefers-color-scheme:dark){{.bg{{fill:#0d1117;stroke:#30363d}}.t{{fill:#e6edf3}}",
            ".q{{fill:#9198a1}}.ours{{fill:#6f8cff}}.peer{{fill:#484f58}}}}</style>",
            r##"<rect class="bg" x="0.5" y="0.5" width="{cw}" height="{ch}" rx="8"/>"##,
            r##"<text class="q" x="20" y="30">Median time, logarithmic scale: shorter is better. All figures: benches/REPORT.md</text>"##,
            "{body}</svg>\n",
        ),
        w = WIDTH,
        h = height,
        cw = WIDTH - 1.0,
        ch = height - 1.0,
        body = body,
    ))
}

/// The cell of a contender. Tables of comparisons have the work in the first cell of its first row;
/// tables over sizes have it in the head.
fn find(report: &str, work: &str, column: &str, contender: &str) -> Option<String> {
    let (mut head, mut current) = (Vec::new(), "");
    for line in report.lines() {
        let Some(row) = line.strip_prefix("| ") else {
            if !line.starts_with("|--") {
                (head, current) = (Vec::new(), "");
            }
            continue;
        };
        let cells: Vec<&str> = row
            .trim_end_matches('|')
            .split('|')
            .map(str::trim)
            .collect();
        if head.is_empty() {
            current = cells[0];
            head = cells;
            continue;
        }
        let is_comparison = head[0] == "work";
        if is_comparison && !cells[0].is_empty() {
            current = cells[0];
        }
        let name = cells.get(usize::from(is_comparison))?;
        if current == work && without_marks(name) == contender {
            let at = head.iter().position(|cell| *cell == column)?;
            return cells.get(at).map(|cell| (*cell).to_owned());
        }
    }
    None
}

/// A name without the stars of ours and the number of a note.
fn without_marks(name: &str) -> &str {
    let name = match name.rsplit_once(" (") {
        Some((name, note)) if note.trim_end_matches(')').parse::<u32>().is_ok() => name,
        _ => name,
    };
    name.trim_matches('*')
}

/// A time of the report in nanoseconds.
fn parse(time: &str) -> Option<f64> {
    let (number, unit) = time.split_once(' ')?;
    let factor = match unit {
        "ns" => 1.0,
        "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return None,
    };
    Some(number.replace(',', "").parse::<f64>().ok()? * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = "\
| work | contender | p50 | p99 |
|---|---|---:|---:|
| restore | raw (1) | 12.3 µs | 18.5 µs |
|  | **ours** | 13.5 µs | 15.9 µs |
| other | **ours** (2) | 1.00 ms | 2.00 ms |

| save, by messages | 10 | 10,000 |
|---|---:|---:|
| **Sqlite** (15) | 281 µs | 437 µs |
";

    #[track_caller]
    fn check(work: &str, column: &str, contender: &str, expected: Option<&str>) {
        let found = find(REPORT, work, column, contender);
        assert_eq!(found.as_deref(), expected);
    }

    #[test]
    fn cells_are_found_by_work_contender_and_column() {
        check("restore", "p50", "raw", Some("12.3 µs"));
        check("restore", "p50", "ours", Some("13.5 µs"));
        check("other", "p99", "ours", Some("2.00 ms"));
        check("save, by messages", "10,000", "Sqlite", Some("437 µs"));
        check("save, by messages", "p50", "Sqlite", None);
        check("nothing", "p50", "ours", None);
    }

    #[test]
    fn the_report_of_the_benches_has_every_row() {
        let report = include_str!("../../../../benches/REPORT.md");
        assert!(draw(report).is_ok_and(|svg| svg.contains("timed-store")));
    }

    #[test]
    fn times_have_units() {
        assert_eq!(parse("1,200 µs"), Some(1_200_000.0));
        assert_eq!(parse("2.00 s"), Some(2e9));
        assert_eq!(parse("fast"), None);
    }
}
