//! Turns the figures of a run into `REPORT.md` and one chart an area.
//!
//! `report FIGURES.jsonl FOLDER`; `scripts/bench` calls it.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use benches::{Line, Part, Row, Verdict, chart, duration, sentence};

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

    let mut report = head();
    let mut areas: Vec<&str> = Vec::new();
    for line in &lines {
        if !areas.contains(&line.area()) {
            areas.push(line.area());
        }
    }
    for area in areas {
        let of_area: Vec<&Line> = lines.iter().filter(|line| line.area() == area).collect();
        section(&mut report, area, &of_area);
        let groups: Vec<(&str, &[Row])> = of_area
            .iter()
            .filter_map(|line| match line {
                Line::Comparison { name, rows, .. } => Some((name.as_str(), rows.as_slice())),
                Line::Figure { .. } => None,
            })
            .collect();
        if !groups.is_empty() {
            let file = charts.join(format!("{area}.svg"));
            std::fs::write(&file, chart::bars(area, &groups)).expect("a chart can be written");
        }
    }
    std::fs::write(folder.join("REPORT.md"), report).expect("the report can be written");
}

/// Peers that ran as programs of their own report rows under the same name: one comparison.
fn merged(lines: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut merged: Vec<Line> = Vec::new();
    for line in lines {
        if let Line::Comparison {
            area, name, rows, ..
        } = &line
        {
            let known = merged.iter_mut().find_map(|other| match other {
                Line::Comparison {
                    area: other_area,
                    name: other_name,
                    rows,
                    ..
                } if other_area == area && other_name == name => Some(rows),
                _ => None,
            });
            if let Some(known) = known {
                known.extend(rows.iter().cloned());
                continue;
            }
        }
        merged.push(line);
    }
    merged
}

fn section(report: &mut String, area: &str, lines: &[&Line]) {
    let _ = writeln!(report, "\n## {area}\n\n![{area}](charts/{area}.svg)\n");
    let _ = writeln!(
        report,
        "| work | contender | p50 | p99 | ours / floor | peer / ours |"
    );
    let _ = writeln!(report, "|---|---|---:|---:|---:|---:|");
    let mut verdicts: Vec<(&str, &Verdict)> = Vec::new();
    for line in lines {
        match line {
            Line::Comparison {
                name,
                rows,
                verdicts: of_line,
                ..
            } => {
                table(report, name, rows);
                verdicts.extend(of_line.iter().map(|verdict| (name.as_str(), verdict)));
            }
            Line::Figure {
                name,
                value,
                unit,
                verdict,
                ..
            } => {
                let _ = writeln!(report, "| {name} | | {value:.3} {unit} | | | |");
                verdicts.extend(verdict.iter().map(|verdict| (name.as_str(), verdict)));
            }
        }
    }
    if !verdicts.is_empty() {
        report.push('\n');
    }
    for (name, verdict) in verdicts {
        let _ = writeln!(report, "- {name}: {}", sentence(verdict));
    }
}

fn table(report: &mut String, name: &str, rows: &[Row]) {
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
        let name = match row.part {
            Part::Ours => format!("**{}**", row.name),
            _ => row.name.clone(),
        };
        let (p50, p99) = (duration(row.median_ns), duration(row.p99_ns));
        let _ = writeln!(
            report,
            "| {work} | {name} | {p50} | {p99} | {to_floor} | {to_ours} |"
        );
        work = "";
    }
}

/// What the figures were measured on.
fn head() -> String {
    let mode = std::env::var("BENCH_MODE").unwrap_or_else(|_| "unnamed".to_owned());
    let mut head = format!(
        "# Benchmarks\n\nWritten by `scripts/bench`; a {mode} run. Contenders take turns sample by \
         sample in one run, so ratios hold better than times. In each group the floor is the \
         least that the work could cost: raw calls, no library.\n\n"
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
    head
}
