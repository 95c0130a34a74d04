//! Turns the figures of a run into `REPORT.md` and one chart an area.
//!
//! `report FIGURES.jsonl FOLDER`; `scripts/bench` calls it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use benches::{Line, Part, Row, Series, Verdict, chart, duration, figure, sentence, target};

fn main() {
    let mut args = std::env::args_os().skip(1);
    let (Some(figures), Some(folder)) = (args.next(), args.next()) else {
        eprintln!("usage: report FIGURES.jsonl FOLDER");
        std::process::exit(2);
    };
    let text = std::fs::read_to_string(&figures).expect("the figures are readable");
    let lines = merged(text.lines().map(|line| {
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in: {line}"))
    }));
    let folder = Path::new(&folder);
    let charts = folder.join("charts");
    std::fs::create_dir_all(&charts).expect("the report's folder can be made");

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
        std::fs::write(&file, chart::draw(area, &of_area)).expect("a chart can be written");
        section(&mut report, area, &of_area);
    }
    std::fs::write(folder.join("REPORT.md"), report).expect("the report can be written");
}

/// Peers that ran as programs of their own report under the same name: one comparison.
fn merged(lines: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut merged: Vec<Line> = Vec::new();
    for mut line in lines {
        let same = merged
            .iter_mut()
            .find(|known| known.area() == line.area() && known.name() == line.name());
        match (same, &mut line) {
            (Some(Line::Comparison { rows, .. }), Line::Comparison { rows: more, .. }) => {
                rows.append(more);
            }
            (Some(Line::Growth { series, .. }), Line::Growth { series: more, .. }) => {
                series.append(more);
            }
            _ => merged.push(line),
        }
    }
    merged
}

/// What the figures were measured on.
fn head() -> String {
    let mode = std::env::var("BENCH_MODE").unwrap_or_else(|_| "short".to_owned());
    let mut head = format!(
        "# Benchmarks\n\nWritten by `scripts/bench`; a {mode} run. Contenders take turns sample by \
         sample in one run, so ratios hold better than times. In each group the floor is the \
         least that the work could cost: raw calls, no library. Our contender is bold; ✓ is a \
         goal met, ✗ one missed, and what is missed is explained below its table.\n\n"
    );
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .map_or("unknown", |rest| rest.trim_start_matches([' ', '\t', ':']));
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let _ = writeln!(head, "- machine: {cores} cores, {model}");
    for (program, arg) in [
        ("uname", "-sr"),
        ("rustc", "--version"),
        ("tmux", "-V"),
        ("redis-server", "--version"),
    ] {
        let printed = Command::new(program).arg(arg).output();
        let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let version = printed.as_deref().map_or("not here", str::trim);
        let _ = writeln!(head, "- {program}: {version}");
    }
    // Put together by scripts/bench, which knows where the peers come from.
    if let Ok(peers) = std::env::var("BENCH_PEERS") {
        let _ = writeln!(head, "- peers: {peers}");
    }
    head
}

/// How many goals are met.
fn summary(lines: &[Line]) -> String {
    let verdicts: Vec<&Verdict> = lines.iter().flat_map(Line::verdicts).collect();
    let met = verdicts.iter().filter(|verdict| verdict.met).count();
    format!("- goals: {met} of {} met\n", verdicts.len())
}

fn section(report: &mut String, area: &str, lines: &[&Line]) {
    let mut notes: Vec<String> = Vec::new();
    let _ = writeln!(report, "\n## {area}\n\n![{area}](charts/{area}.svg)\n");
    let _ = writeln!(
        report,
        "| work | contender | p50 | p99 | ours / floor | peer / ours | goal |"
    );
    let _ = writeln!(report, "|---|---|---:|---:|---:|---:|---|");
    for line in lines {
        match line {
            Line::Comparison {
                name,
                rows,
                verdicts,
                ..
            } => comparison(report, name, rows, verdicts, &mut notes),
            Line::Figure {
                name,
                value,
                unit,
                verdict,
                ..
            } => {
                let (value, goal) = (figure(*value, unit), marks(verdict));
                let _ = writeln!(report, "| {name} | | {value} | | | | {goal} |");
            }
            Line::Growth { .. } => {}
        }
    }
    for line in lines {
        if let Line::Growth {
            name,
            axis,
            unit,
            series,
            verdict,
            ..
        } = line
        {
            growth(report, name, axis, unit, series);
            if verdict.is_some() {
                let _ = writeln!(report, "\nLast / first of ours: {}", marks(verdict));
            }
        }
    }
    if !notes.is_empty() {
        report.push_str("\nWhere a contender does less or more than we do:\n\n");
    }
    for (i, note) in notes.iter().enumerate() {
        let _ = writeln!(report, "{}. {note}", i + 1);
    }
    let missed: Vec<(&str, &Verdict)> = lines
        .iter()
        .flat_map(|line| line.verdicts().map(|verdict| (line.name(), verdict)))
        .filter(|(_, verdict)| !verdict.met)
        .collect();
    if !missed.is_empty() {
        report.push_str("\nShort of its goal:\n\n");
    }
    for (name, verdict) in missed {
        let limit = verdict.goal.limit().unwrap_or("no reason found yet");
        let _ = writeln!(report, "- {name}: {}: {limit}", sentence(verdict));
    }
}

fn comparison(
    report: &mut String,
    name: &str,
    rows: &[Row],
    verdicts: &[Verdict],
    notes: &mut Vec<String>,
) {
    let median = |part| {
        let row = rows.iter().find(|row| row.part == part);
        row.map(|row| row.median_ns)
    };
    let (floor, ours) = (median(Part::Floor), median(Part::Ours));
    let mut work = name;
    for row in rows {
        let ratio =
            |to: Option<f64>| to.map_or(String::new(), |to| format!("{:.2}", row.median_ns / to));
        let (to_floor, to_ours) = match row.part {
            Part::Floor => (String::new(), String::new()),
            Part::Ours => (ratio(floor), String::new()),
            Part::Peer => (String::new(), ratio(ours)),
        };
        let mut name = match row.part {
            Part::Ours => format!("**{}**", row.name),
            _ => row.name.clone(),
        };
        if let Some(differs) = &row.differs {
            let note = format!("{}: {differs}", row.name);
            let known = notes.iter().position(|known| *known == note);
            let number = known.unwrap_or_else(|| {
                notes.push(note);
                notes.len() - 1
            });
            let _ = write!(name, " ({})", number + 1);
        }
        // A goal about a peer stands in that peer's row, the others in ours.
        let goals = marks(verdicts.iter().filter(|verdict| match verdict.goal.peer() {
            Some(peer) => peer == row.name,
            None => row.part == Part::Ours,
        }));
        let (p50, p99) = (duration(row.median_ns), duration(row.p99_ns));
        let _ = writeln!(
            report,
            "| {work} | {name} | {p50} | {p99} | {to_floor} | {to_ours} | {goals} |"
        );
        work = "";
    }
}

fn growth(report: &mut String, name: &str, axis: &str, unit: &str, series: &[Series]) {
    let mut sizes: Vec<f64> = series
        .iter()
        .flat_map(|series| series.points.iter().map(|point| point.0))
        .collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let _ = write!(report, "\n| {name}, by {axis} |");
    for size in &sizes {
        let _ = write!(report, " {} |", figure(*size, ""));
    }
    report.push_str(" last / first |\n|---|");
    report.push_str(&"---:|".repeat(sizes.len() + 1));
    report.push('\n');
    for series in series {
        let name = match series.part {
            Part::Ours => format!("**{}**", series.name),
            _ => series.name.clone(),
        };
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

/// Goals in a few characters, each with whether it is met.
fn marks<'a>(verdicts: impl IntoIterator<Item = &'a Verdict>) -> String {
    let marks: Vec<String> = verdicts
        .into_iter()
        .map(|verdict| {
            let mark = if verdict.met { '✓' } else { '✗' };
            format!("{} {mark}", target(&verdict.goal))
        })
        .collect();
    marks.join(", ")
}
