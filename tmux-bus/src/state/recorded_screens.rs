//! The built-in definitions, against recorded screens of the real agents (`tests/data/tui`).

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::agent_state::AgentState;
use super::input_line::InputLine;
use super::screen::{Cursor, Screen};
use super::screen_reading::{self, ScreenReading};
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::agent_definitions::AgentDefinitions;

#[derive(Deserialize)]
struct Recording {
    agent: String,
    scenario: String,
    size: (usize, usize),
    moments: Vec<Moment>,
}

#[derive(Deserialize)]
struct Moment {
    moment: String,
    state: Option<String>,
    title: String,
    cursor: String,
}

struct RecordedScreen {
    name: String,
    agent: String,
    expected: Option<String>,
    screen: Screen,
}

fn recordings() -> Vec<RecordedScreen> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tui");
    assert!(
        folder.is_dir(),
        "this test needs the recordings in {}, which are in the repository but not in the package",
        folder.display()
    );
    let list = |folder: &Path| -> Vec<PathBuf> {
        let entries = fs::read_dir(folder).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let mut screens = Vec::new();
    for scenario in list(&folder)
        .iter()
        .filter(|path| path.is_dir())
        .flat_map(|agent| list(agent))
    {
        let Ok(text) = fs::read_to_string(scenario.join("moments.json")) else {
            continue;
        };
        let recording: Recording = serde_json::from_str(&text).unwrap();
        for moment in &recording.moments {
            let file = scenario.join(format!("{}.txt", moment.moment));
            let text = String::from_utf8_lossy(&fs::read(file).unwrap()).into_owned();
            let mut numbers = moment.cursor.split(',').map(|n| n.parse().unwrap());
            let mut next = || numbers.next().unwrap();
            let (column, row) = (next(), next());
            screens.push(RecordedScreen {
                name: format!(
                    "{}/{}/{}",
                    recording.agent, recording.scenario, moment.moment
                ),
                agent: recording.agent.clone(),
                expected: moment.state.clone(),
                screen: Screen::new(
                    &text,
                    recording.size.0,
                    Cursor { row, column },
                    &moment.title,
                ),
            });
        }
    }
    screens
}

fn shown(reading: &ScreenReading) -> &'static str {
    match (&reading.state, &reading.input) {
        (AgentState::Idle, InputLine::Empty) => "Idle",
        (AgentState::Idle, _) => "Draft",
        (AgentState::Working, _) => "Working",
        (AgentState::WaitingForApproval, _) => "WaitingForApproval",
        (AgentState::Dialog { .. }, _) => "Dialog",
        (AgentState::Starting, _) => "Starting",
        _ => "Unknown",
    }
}

#[test]
fn every_recorded_screen_has_its_state() {
    let definitions = AgentDefinitions::builtin().unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for recorded in recordings() {
        let definition = definitions.get(&recorded.agent).unwrap();
        let reading = screen_reading::read(definition, &recorded.screen);
        let Some(expected) = recorded.expected else {
            continue;
        };
        checked += 1;
        let found = shown(&reading);
        // A hint can hide that the agent works; then nothing is typed.
        let is_right = found == expected || (expected == "Working" && found == "Unknown");
        if !is_right {
            wrong.push(format!(
                "{}: {found} by {}, not {expected}; input {:?}",
                recorded.name, reading.evidence, reading.input
            ));
        }
    }
    assert!(checked >= 390, "only {checked} screens");
    assert!(
        wrong.is_empty(),
        "{} of {checked}:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn every_recorded_dialog_is_named() {
    let definitions = AgentDefinitions::builtin().unwrap();
    let mut seen = Vec::new();
    for recorded in recordings() {
        let definition = definitions.get(&recorded.agent).unwrap();
        let reading = screen_reading::read(definition, &recorded.screen);
        if recorded.expected.as_deref() == Some("Dialog") {
            let AgentState::Dialog { id } = reading.state else {
                panic!("{}: {}", recorded.name, reading.state);
            };
            assert!(reading.say.is_some_and(|say| !say.is_empty()));
            seen.push(format!("{}:{id}", recorded.agent));
        }
    }
    seen.sort();
    seen.dedup();
    let expected = [
        "claude:api-key",
        "claude:bypass",
        "claude:login",
        "claude:offline",
        "claude:security-notes",
        "claude:theme",
        "claude:trust",
        "codex:hooks",
        "codex:login",
        "codex:trust",
        "codex:update",
        "gemini:api-key",
        "gemini:auth",
        "gemini:loop",
        "gemini:trust",
    ];
    assert_eq!(seen, expected);
}

/// A message is typed only if the agent is idle and its input line is empty. No screen of an agent
/// that works, asks or holds a draft may look like that: not one row less or more, and not with a
/// title that came late.
#[test]
fn no_other_screen_admits_a_message() {
    let definitions = AgentDefinitions::builtin().unwrap();
    let admits = |definition: &AgentDefinition, screen: &Screen| {
        let reading = screen_reading::read(definition, screen);
        reading.state == AgentState::Idle && reading.input == InputLine::Empty
    };
    for recorded in recordings() {
        let definition = definitions.get(&recorded.agent).unwrap();
        let expected = recorded.expected.as_deref();
        if !matches!(expected, Some("WaitingForApproval" | "Dialog" | "Draft")) {
            continue;
        }
        let mut screen = recorded.screen;
        for title in [
            "",
            "✳ Claude Code",
            "◇  Ready (project)",
            "project",
            "OpenCode",
        ] {
            title.clone_into(&mut screen.title);
            assert!(!admits(definition, &screen), "{}", recorded.name);
        }
    }
}
