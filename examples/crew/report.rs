//! The report at the end of a task.

use std::fs;

use examples::Result;
use exec_core::{ExitReport, History, HistoryState};
use serde_json::{Value, json};

use crate::TaskResult;
use crate::crew::{Crew, GRAND_BOSS, ROLES};

/// The fields of the last event, and the report as text.
pub(crate) async fn report(
    crew: &Crew,
    result: &TaskResult,
    kept: bool,
) -> Result<(Value, String)> {
    let snapshots = crew.snapshots().await?;
    let (mut agents, mut boss): (Vec<Value>, Option<ExitReport>) = (Vec::new(), None);
    let mut table = String::new();
    for role in &ROLES {
        let snapshot = snapshots.load(&crew.agent_id(role.name)?).await?;
        let ticks = snapshot.map_or(0, |snapshot| snapshot.tick_index);
        let state = crew.folder.join("state").join(role.name);
        let runs = History::new(state).load()?.entries;
        let ends: Vec<_> = runs
            .iter()
            .filter_map(|run| match &run.state {
                HistoryState::Ended(report) => Some(report),
                _ => None,
            })
            .collect();
        let seconds: f64 = ends.iter().map(|end| end.wall_time.as_secs_f64()).sum();
        if role.name == GRAND_BOSS {
            boss = ends.last().map(|end| (***end).clone());
        }
        let count = runs.len();
        agents.push(json!({
            "agent": role.name, "snapshots": ticks, "runs": count, "run_seconds": seconds,
        }));
        table += &format!(
            "  {:<29} {ticks:>9} {count:>6} {seconds:>9.1} s\n",
            role.name
        );
    }
    let work = fs::read_to_string(crew.workspace().join("work.log")).unwrap_or_default();
    let work: Vec<&str> = work.lines().collect();

    let head = ("agent", "snapshots", "runs", "at work");
    let head = format!(
        "  {:<29} {:>9} {:>6} {:>11}\n",
        head.0, head.1, head.2, head.3
    );
    let mut text = format!("\n{}\n\n{head}{table}\n", result.answer);
    text += &format!("  in {:.1} s", result.took.as_secs_f64());
    if let Some(recovery) = &result.recovery {
        let (agent, took) = (
            recovery["agent"].as_str().unwrap_or_default(),
            &recovery["took_ms"],
        );
        text += &format!(", {agent} was killed and recovered in {took} ms");
    }
    if crew.is_scripted() {
        let mut different = work.clone();
        different.sort_unstable();
        different.dedup();
        let twice = work.len() - different.len();
        text += &format!("\n  {} pieces of work, {twice} done twice", work.len());
    }
    text += &format!("\n  all files are in {}\n", crew.folder.display());
    if kept {
        let (attach, config) = (&result.attach, crew.config_file());
        text += &format!(
            "  the agents are still running; watch them with\n    {attach}\n  \
             send messages or stop them with\n    \
             cargo run -p examples --example cluster -- --config {} stop\n",
            config.display()
        );
    }
    let fields = json!({
        "ok": !result.failed, "answer": result.answer,
        "session_id": boss.as_ref().map(|exit| &exit.session_id), "exit": boss,
        "took_ms": u64::try_from(result.took.as_millis())?, "recovery": result.recovery,
        "agents": agents, "work": work, "dir": crew.folder, "kept": kept,
        "attach": result.attach,
    });
    Ok((fields, text))
}
