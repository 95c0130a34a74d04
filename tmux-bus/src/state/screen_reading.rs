//! What a screen tells about the state of an agent.

use super::agent_state::{AgentState, Evidence, EvidenceSource};
use super::explanation::TriedRule;
use super::input_line::{self, FoundInput, InputLine};
use super::screen::Screen;
use crate::answer::extract;
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::pattern::Pattern;
use crate::definition::screen_rules::{RulePlace, ScreenRule, TitleState};

#[derive(Clone, Debug)]
pub(crate) struct ScreenReading {
    pub(crate) state: AgentState,
    pub(crate) evidence: Evidence,
    /// The rules up to the one that matched.
    pub(crate) tried: Vec<TriedRule>,
    pub(crate) input: InputLine,
    /// The state is unknown because a hint hides whether the agent works.
    pub(crate) held: bool,
    /// What a dialog asks.
    pub(crate) say: Option<String>,
}

/// Reads a screen.
///
/// # Theory
///
/// The first rule that matches decides, in this order:
///
/// 1. approval and dialogs, because a message typed into one does harm. Agents keep an older title or
///    a spinner while they show one.
/// 2. the title: it is set by the agent for this purpose, and text that the agent prints cannot look
///    like it.
/// 3. working rules.
/// 4. starting rules: some agents show their input line before they know whether they need a dialog.
/// 5. the input line at the cursor: idle, unless a hint hides whether the agent works.
///
/// **Example.** Codex streams an answer: the input line is on the screen, the status line above it
/// is hidden, and the title begins with a spinner: working, by the title.
pub(crate) fn read(definition: &AgentDefinition, screen: &Screen) -> ScreenReading {
    let mut reader = RuleReader {
        screen,
        input: definition
            .input
            .as_ref()
            .and_then(|rules| input_line::find(rules, screen)),
        tried: Vec::new(),
    };
    let (state, evidence, say) = reader.state(definition);
    let input = reader.input.map_or(InputLine::Missing, |input| input.line);
    ScreenReading {
        held: state == AgentState::Unknown && evidence.rule == HELD,
        state,
        evidence,
        tried: reader.tried,
        input,
        say,
    }
}

const HELD: &str = "idle:hold";

struct RuleReader<'a> {
    screen: &'a Screen,
    input: Option<FoundInput>,
    tried: Vec<TriedRule>,
}

type Found = (AgentState, Evidence, Option<String>);

impl RuleReader<'_> {
    fn state(&mut self, definition: &AgentDefinition) -> Found {
        use EvidenceSource::{Screen, Title};
        for rule in &definition.approval {
            let name = format!("approval:{}", rule.id);
            if self.tried(&name, self.matches_rule(rule)) {
                let evidence = Evidence::new(Screen, name);
                return (AgentState::WaitingForApproval, evidence, None);
            }
        }
        for rule in &definition.dialog {
            let name = format!("dialog:{}", rule.id);
            let lines = self.window(rule.window, rule.place);
            let is_shown = lines.is_some_and(|lines| matches(&lines, &rule.all, &rule.none));
            if self.tried(&name, is_shown) {
                let state = AgentState::Dialog {
                    id: rule.id.clone(),
                };
                return (state, Evidence::new(Screen, name), Some(rule.say.clone()));
            }
        }
        let mut idle_title = None;
        for rule in &definition.title {
            let name = format!("title:{}", rule.id);
            if !self.tried(&name, rule.pattern.is_match(&self.screen.title)) {
                continue;
            }
            let state = match rule.state {
                TitleState::Working => AgentState::Working,
                TitleState::Approval => AgentState::WaitingForApproval,
                TitleState::Idle => {
                    idle_title = Some(name);
                    break;
                }
            };
            return (state, Evidence::new(Title, name), None);
        }
        for rule in &definition.working {
            let name = format!("working:{}", rule.id);
            if self.tried(&name, self.matches_rule(rule)) {
                return (AgentState::Working, Evidence::new(Screen, name), None);
            }
        }
        for rule in &definition.starting {
            let name = format!("starting:{}", rule.id);
            if self.tried(&name, self.matches_rule(rule)) {
                return (AgentState::Starting, Evidence::new(Screen, name), None);
            }
        }
        self.idle(definition, idle_title)
    }

    fn idle(&mut self, definition: &AgentDefinition, idle_title: Option<String>) -> Found {
        let screen = |state, rule: &str| {
            let evidence = Evidence::new(EvidenceSource::Screen, rule);
            (state, evidence, None)
        };
        if definition.is_plain() {
            let text = self.screen.lines.join("\n");
            let waits = extract::waits_for_input(&text, self.screen.cursor.row);
            if self.tried("prompt", waits) {
                return screen(AgentState::Idle, "prompt");
            }
        }
        let input = self.input.clone();
        if self.tried("input", input.is_some())
            && let Some(input) = input
        {
            let held = input.line == InputLine::Empty && self.is_held(definition, &input);
            if held && self.tried(HELD, !self.is_done(definition, &input)) {
                return screen(AgentState::Unknown, HELD);
            }
            return match (idle_title, input.line) {
                (Some(title), InputLine::Empty) => (
                    AgentState::Idle,
                    Evidence::new(EvidenceSource::Title, title),
                    None,
                ),
                (_, InputLine::Empty) => screen(AgentState::Idle, "input"),
                (_, InputLine::OtherMode) => screen(AgentState::Idle, "input:other-mode"),
                _ => screen(AgentState::Idle, "input:draft"),
            };
        }
        if self.tried("blank", self.screen.is_blank()) {
            return screen(AgentState::Starting, "blank");
        }
        screen(AgentState::Unknown, "none")
    }

    fn tried(&mut self, rule: &str, matched: bool) -> bool {
        self.tried.push(TriedRule {
            rule: rule.to_owned(),
            matched,
        });
        matched
    }

    fn matches_rule(&self, rule: &ScreenRule) -> bool {
        let Some(lines) = self.window(rule.window, rule.place) else {
            return false;
        };
        let is_known = |line: &&String| rule.only.iter().any(|known| known.is_match(line));
        matches(&lines, &rule.all, &rule.none)
            && (rule.only.is_empty() || (!lines.is_empty() && lines.iter().all(is_known)))
    }

    /// The last lines with text, as far as they are in the place; `None` if the screen has no such place.
    fn window(&self, window: usize, place: RulePlace) -> Option<Vec<&String>> {
        let rows = match (place, &self.input) {
            (RulePlace::Anywhere, _) | (RulePlace::WithoutInput, None) => 0..usize::MAX,
            (RulePlace::AboveInput, Some(input)) => 0..input.first,
            (RulePlace::BelowInput, Some(input)) => input.last + 1..usize::MAX,
            _ => return None,
        };
        let rows_with_text = self.screen.lines.iter().enumerate().rev();
        let lines = rows_with_text
            .filter(|(_, line)| !line.trim().is_empty())
            .take(window)
            .filter(|(row, _)| rows.contains(row))
            .map(|(_, line)| line);
        Some(lines.collect())
    }

    fn is_held(&self, definition: &AgentDefinition, input: &FoundInput) -> bool {
        let below = self.screen.lines.iter().skip(input.last + 1);
        any_match(&definition.idle.hold, below)
    }

    fn is_done(&self, definition: &AgentDefinition, input: &FoundInput) -> bool {
        let above = self.screen.lines.iter().take(input.first).rev();
        let above = above.filter(|line| !line.trim().is_empty()).take(2);
        any_match(&definition.idle.done, above)
    }
}

fn matches(lines: &[&String], all: &[Pattern], none: &[Pattern]) -> bool {
    let on_screen = |pattern: &Pattern| lines.iter().any(|line| pattern.is_match(line));
    all.iter().all(on_screen) && !none.iter().any(on_screen)
}

fn any_match<'a>(patterns: &[Pattern], lines: impl Iterator<Item = &'a String>) -> bool {
    let mut lines = lines;
    lines.any(|line| patterns.iter().any(|pattern| pattern.is_match(line)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::agent_definitions::AgentDefinitions;
    use crate::state::screen::Cursor;

    fn read_text(agent: &str, text: &str, row: usize, column: usize) -> ScreenReading {
        let definitions = AgentDefinitions::builtin().unwrap();
        let screen = Screen::new(text, 80, Cursor { row, column }, "");
        read(definitions.get(agent).unwrap(), &screen)
    }

    /// The list of keys that an agent prints looks like a menu; the cursor in the input line tells.
    #[test]
    fn an_answer_that_looks_like_a_menu_is_not_a_dialog() {
        let answer =
            "     Close the dialog        esc\n\n  ┃\n  ┃\n  ┃\n  ┃  Build\n  ╹▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀\n";
        let reading = read_text("opencode", answer, 3, 5);
        assert_eq!(
            (reading.state, reading.input),
            (AgentState::Idle, InputLine::Empty)
        );
        let reading = read_text("opencode", answer, 0, 30);
        assert!(matches!(reading.state, AgentState::Dialog { .. }));
    }

    /// Claude 2.1.325 behind a server that does not check actions. Enter would answer.
    #[test]
    fn the_question_about_auto_mode_is_a_dialog() {
        let wide = "● Bash(make)\n  ⎿  Waiting…\n\n────────────────────────────────────────\n  \
            Auto mode can't check actions in this session\n\n  You can stay in auto mode and approve each \
            action that needs the check yourself.\n\n  Enter to stay in auto mode · shift+Tab to leave for accept \
            edits mode and stop · Esc to cancel\n\n\n";
        // In a pane of 58 x 19 only the end is left.
        let narrow = "  rmission-modes#server-side-classifier-review\n\n  Enter to stay in auto mode · shift+Tab to \
            leave for\n  accept edits mode and stop (needs a taller window) ·\n  Esc to cancel\n\n";
        for (screen, row) in [(wide, 9), (narrow, 5)] {
            let reading = read_text("claude", screen, row, 0);
            let id = "auto-mode".to_owned();
            assert_eq!(reading.state, AgentState::Dialog { id }, "{screen}");
            assert!(reading.say.unwrap().contains("Attach and choose"));
        }
        // The same words in an answer.
        let rule = "─".repeat(40);
        let answer =
            format!("● It asks:\n  Enter to stay in auto mode · or not\n{rule}\n❯\u{a0}\n{rule}\n");
        assert_eq!(read_text("claude", &answer, 3, 2).state, AgentState::Idle);
    }

    /// A person has moved the cursor to the beginning of a draft whose first line is empty.
    #[test]
    fn a_draft_below_the_cursor_is_a_draft() {
        let rule = "─".repeat(40);
        let draft = format!("{rule}\n❯\u{a0}\n\n  careful\n{rule}\n  ? for shortcuts\n");
        let reading = read_text("claude", &draft, 1, 2);
        let text = InputLine::Text("\n\ncareful".to_owned());
        assert_eq!((reading.state, reading.input), (AgentState::Idle, text));
        let empty = format!("{rule}\n❯\u{a0}\n{rule}\n  ? for shortcuts\n");
        let reading = read_text("claude", &empty, 1, 2);
        assert_eq!(reading.input, InputLine::Empty);
        // An input line, but not where the cursor is: text of the agent.
        let reading = read_text("claude", &empty, 3, 0);
        assert_eq!(reading.input, InputLine::Missing);
    }
}
