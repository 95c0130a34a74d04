//! Writes `REPORT.md` and one chart for each area from the figures of a run.
//!
//! Usage: `report FIGURES.jsonl FOLDER`; `scripts/bench` calls it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use benches::{
    Column, Line, Part, Row, Series, TableRow, Verdict, chart, duration, figure, sentence, target,
};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let (Some(figures), Some(folder)) = (args.next(), args.next()) else {
        eprintln!("usage: report FIGURES.jsonl FOLDER");
        std::process::exit(2);
    };
    let text = std::fs::read_to_string(&figures).expect("cannot read the figures");
    let lines: Vec<Line> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in: {line}")))
        .collect();
    let folder = Path::new(&folder);
    let charts = folder.join("charts");
    std::fs::create_dir_all(&charts).expect("cannot create the folder of the report");

    let mut areas: Vec<&str> = Vec::new();
    for line in &lines {
        if !areas.contains(&line.area()) {
            areas.push(line.area());
        }
    }
    let mut report = head();
    report.push_str(&summary(&lines));
    for area in areas {
        let of_area: Vec<&Line> = lines.iter().filter(|line| line.area() == area).collect();
        let file = charts.join(format!("{area}.svg"));
        std::fs::write(&file, chart::draw(area, &of_area)).expect("cannot write a chart");
        section(&mut report, area, &of_area);
    }
    std::fs::write(folder.join("REPORT.md"), report).expect("cannot write the report");
}

/// How to read the report, and the machine and versions of the run.
fn head() -> String {
    let mode = std::env::var("BENCH_MODE").unwrap_or_else(|_| "short".to_owned());
    let mut head = format!(
        "# Benchmarks\n\nWritten by `scripts/bench` ({mode} run). The contenders of a group take \
         turns, sample by sample, in one run: ratios are more reliable than times. The floor is the \
         same work by raw calls without a library. Our rows are bold; a peer is compared with our \
         first row. A number in parentheses refers to a note on how the work of a contender differs \
         from ours. p50 is the median; the tables over sizes show medians. A p99 marked ° is the \
         maximum of fewer than 100 samples. ✓ marks a goal that is met, ✗ a goal that is missed; \
         the end of each section gives the reasons.\n\nThe texts are transcripts of agents, source \
         files and prose: [`data`](data/README.md).\n\n"
    );
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let _ = writeln!(head, "- machine: {cores} cores, {model}");
    for (what, program, args) in [
        ("system", "uname", &["-sr"][..]),
        ("file system", "df", &["--output=fstype", "."]),
        ("rustc", "rustc", &["--version"]),
        ("tmux", "tmux", &["-V"]),
        ("redis-server", "redis-server", &["--version"]),
    ] {
        let printed = Command::new(program).args(args).output();
        let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        // The last line, because df prints a heading first.
        let version = printed.as_deref().map_or("missing", |text| {
            text.lines().next_back().unwrap_or("missing").trim()
        });
        // Without the build information that redis-server adds.
        let version = version.split(" sha=").next().unwrap_or(version);
        let _ = writeln!(head, "- {what}: {version}");
    }
    // Set by scripts/bench, which installs the peers.
    if let Ok(peers) = std::env::var("BENCH_PEERS") {
        let _ = writeln!(head, "- peers: {peers}");
    }
    head
}

/// The number of goals that are met.
fn summary(lines: &[Line]) -> String {
    let verdicts: Vec<_> = lines.iter().flat_map(Line::verdicts).collect();
    let met = verdicts.iter().filter(|(_, verdict)| verdict.met).count();
    format!("- goals: {met} of {} met\n", verdicts.len())
}

fn section(report: &mut String, area: &str, lines: &[&Line]) {
    let mut notes = Notes::default();
    let _ = writeln!(report, "\n## {area}\n\n![{area}](charts/{area}.svg)");
    let is_headline = |line: &&&Line| matches!(line, Line::Comparison { headline: true, .. });
    let is_other = |line: &&&Line| {
        matches!(
            line,
            Line::Comparison {
                headline: false,
                ..
            }
        )
    };
    comparisons(report, lines.iter().filter(is_headline), &mut notes);
    let others = lines.iter().filter(is_other).count();
    if others > 0 {
        let _ = writeln!(
            report,
            "\n<details><summary>{others} more comparisons</summary>"
        );
        comparisons(report, lines.iter().filter(is_other), &mut notes);
        report.push_str("\n</details>\n");
    }
    figures(report, lines);
    for line in lines {
        if let Line::Table {
            name,
            columns,
            rows,
            ..
        } = line
        {
            table(report, name, columns, rows, &mut notes);
        }
    }
    for line in lines {
        if let Line::Growth {
            name,
            axis,
            unit,
            series,
            ..
        } = line
        {
            let title = format!("{name}, by {axis}");
            growth(report, &title, unit, series, &mut notes);
        }
    }
    notes.list(report);
    left_out(report, lines);
    missed(report, lines);
}

/// Numbered notes on how contenders differ from ours. Equal notes share a number.
#[derive(Default)]
struct Notes(Vec<(String, Vec<String>)>);

impl Notes {
    /// The name of a contender for a table, with the number of its note; ours is bold.
    fn name(&mut self, part: Part, name: &str, differs: Option<&String>) -> String {
        let mut shown = match part {
            Part::Ours => format!("**{name}**"),
            Part::Floor | Part::Peer => name.to_owned(),
        };
        if let Some(differs) = differs {
            let known = self.0.iter().position(|(note, _)| note == differs);
            let at = known.unwrap_or_else(|| {
                self.0.push((differs.clone(), Vec::new()));
                self.0.len() - 1
            });
            let names = &mut self.0[at].1;
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
            let _ = write!(shown, " ({})", at + 1);
        }
        shown
    }

    fn list(&self, report: &mut String) {
        if !self.0.is_empty() {
            report.push_str("\nHow the work of a contender differs from our first row:\n\n");
        }
        for (i, (note, names)) in self.0.iter().enumerate() {
            let _ = writeln!(report, "{}. {}: {note}", i + 1, names.join("; "));
        }
    }
}

fn comparisons<'a>(
    report: &mut String,
    lines: impl Iterator<Item = &'a &'a Line>,
    notes: &mut Notes,
) {
    let mut lines = lines.peekable();
    if lines.peek().is_none() {
        return;
    }
    report.push_str("\n| work | contender | p50 | p99 | ours / floor | peer / ours | goal |\n");
    report.push_str("|---|---|---:|---:|---:|---:|---|\n");
    for line in lines {
        if let Line::Comparison {
            name,
            rows,
            verdicts,
            ..
        } = line
        {
            comparison(report, name, rows, verdicts, notes);
        }
    }
}

fn comparison(
    report: &mut String,
    name: &str,
    rows: &[Row],
    verdicts: &[Verdict],
    notes: &mut Notes,
) {
    let first = |part| rows.iter().find(|row| row.part == part);
    let (floor, ours) = (first(Part::Floor), first(Part::Ours));
    let mut work = name;
    for row in rows {
        let ratio = |to: Option<&Row>| {
            to.map_or(String::new(), |to| figure(row.median_ns / to.median_ns, ""))
        };
        let (to_floor, to_ours) = match row.part {
            Part::Floor => (String::new(), String::new()),
            Part::Ours => (ratio(floor), String::new()),
            Part::Peer => (String::new(), ratio(ours)),
        };
        let name = notes.name(row.part, &row.name, row.differs.as_ref());
        // A goal for a peer is shown in the row of that peer, other goals in our first row.
        let is_first = ours.is_some_and(|ours| std::ptr::eq(ours, row));
        let goals = marks(verdicts.iter().filter(|verdict| match verdict.goal.peer() {
            Some(peer) => peer == row.name,
            None => is_first,
        }));
        let few = if row.samples < 100 { " °" } else { "" };
        let (p50, p99) = (duration(row.median_ns), duration(row.p99_ns));
        let _ = writeln!(
            report,
            "| {work} | {name} | {p50} | {p99}{few} | {to_floor} | {to_ours} | {goals} |"
        );
        work = "";
    }
}

/// The single figures of an area in one table.
fn figures(report: &mut String, lines: &[&Line]) {
    let mut head = "\n| ours | | goal |\n|---|---:|---|\n";
    for line in lines {
        if let Line::Figure {
            name,
            value,
            unit,
            verdict,
            ..
        } = line
        {
            let (value, goal) = (figure(*value, unit), marks(verdict));
            let _ = writeln!(report, "{head}| {name} | {value} | {goal} |");
            head = "";
        }
    }
}

fn table(
    report: &mut String,
    name: &str,
    columns: &[Column],
    rows: &[TableRow],
    notes: &mut Notes,
) {
    let _ = write!(report, "\n| {name} |");
    for column in columns {
        let _ = write!(report, " {} |", column.name);
    }
    let _ = writeln!(report, "\n|---|{}", "---:|".repeat(columns.len()));
    for row in rows {
        let name = notes.name(row.part, &row.name, row.differs.as_ref());
        let _ = write!(report, "| {name} |");
        for (column, cell) in columns.iter().zip(&row.cells) {
            let shown = cell.as_ref().map_or(String::new(), |cell| {
                let value = figure(cell.value, &column.unit);
                match &cell.verdict {
                    Some(verdict) => format!("{value} ({})", marks([verdict])),
                    None => value,
                }
            });
            let _ = write!(report, " {shown} |");
        }
        report.push('\n');
    }
}

fn growth(report: &mut String, title: &str, unit: &str, series: &[Series], notes: &mut Notes) {
    let mut sizes: Vec<f64> = series
        .iter()
        .flat_map(|series| series.points.iter().map(|point| point.0))
        .collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let _ = write!(report, "\n| {title} |");
    for size in &sizes {
        let _ = write!(report, " {} |", figure(*size, ""));
    }
    report.push_str(" last / first |\n|---|");
    report.push_str(&"---:|".repeat(sizes.len() + 1));
    report.push('\n');
    for series in series {
        let name = notes.name(series.part, &series.name, series.differs.as_ref());
        let _ = write!(report, "| {name} |");
        for size in &sizes {
            let point = series.points.iter().find(|point| point.0 == *size);
            let value = point.map_or(String::new(), |point| figure(point.1, unit));
            let _ = write!(report, " {value} |");
        }
        let grown = series
            .growth()
            .map_or(String::new(), |grown| figure(grown, ""));
        let _ = writeln!(report, " {grown} |");
    }
}

/// The peers that were skipped.
fn left_out(report: &mut String, lines: &[&Line]) {
    for line in lines {
        if let Line::LeftOut { name, why, .. } = line {
            let _ = writeln!(
                report,
                "\n{name} is skipped: {why}. `scripts/bench --peers` installs it."
            );
        }
    }
}

/// The missed goals, grouped by reason.
fn missed(report: &mut String, lines: &[&Line]) {
    let missed: Vec<(String, &Verdict)> = lines
        .iter()
        .flat_map(|line| line.verdicts())
        .filter(|(_, verdict)| !verdict.met)
        .collect();
    let mut limits: Vec<Option<&str>> = Vec::new();
    for (_, verdict) in &missed {
        if !limits.contains(&verdict.goal.limit()) {
            limits.push(verdict.goal.limit());
        }
    }
    if !missed.is_empty() {
        report.push_str("\nMissed goals and reasons:\n\n");
    }
    for limit in limits {
        let held = missed.iter().filter(|(_, v)| v.goal.limit() == limit);
        let names: Vec<String> = held
            .map(|(name, verdict)| format!("{name}: {}", sentence(verdict)))
            .collect();
        let reason = limit.unwrap_or("not known yet");
        let _ = writeln!(report, "- {}. Reason: {reason}.", names.join("; "));
    }
}

/// Goals in a few characters, each with a mark.
fn marks<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> String {
    let marks: Vec<String> = verdicts
        .into_iter()
        .map(|verdict| {
            let mark = if verdict.met { '✓' } else { '✗' };
            format!("{} {mark}", target(verdict))
        })
        .collect();
    marks.join(", ")
}
