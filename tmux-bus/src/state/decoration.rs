//! Removes the decoration of a TUI from an answer that was read from the screen.

use unicode_width::UnicodeWidthStr;

use super::screen::columns;
use crate::definition::agent_definition::AgentDefinition;
use crate::definition::pattern::Pattern;
use crate::definition::screen_rules::DecorationRules;

/// The text of an answer without the lines that the TUI adds, and without the bullet and the
/// indentation of the agent's own lines.
pub(crate) fn remove(rules: &DecorationRules, text: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut in_tool = false;
    for line in text.lines() {
        if rules.tool.iter().any(|tool| tool.is_match(line)) {
            // Its output follows, up to the next paragraph of the agent.
            in_tool = rules.answer_first.is_some();
            continue;
        }
        if rules.drop.iter().any(|drop| drop.is_match(line)) {
            continue;
        }
        let own = |pattern: &Option<Pattern>| pattern.as_ref()?.text(line);
        if let Some(first) = own(&rules.answer_first) {
            in_tool = false;
            lines.push(first.trim_end());
        } else if !in_tool {
            lines.push(own(&rules.answer_next).unwrap_or(line).trim_end());
        }
    }
    let shown = |line: &&str| !line.trim().is_empty();
    let start = lines.iter().position(shown).unwrap_or(lines.len());
    let end = lines.iter().rposition(shown).map_or(start, |last| last + 1);
    lines[start..end].join("\n")
}

/// A screen without the columns of a side bar, which begins right of the input box.
pub(crate) fn without_side_bar(definition: &AgentDefinition, screen: &str) -> String {
    let frame = definition
        .input
        .as_ref()
        .and_then(|input| input.frame.as_ref());
    let Some(frame) = frame.filter(|_| definition.decoration.side_bar) else {
        return screen.to_owned();
    };
    let edge = screen.lines().rev().find_map(|line| frame.end.found(line));
    let width = edge.map_or(usize::MAX, |edge| edge.width());
    let cut = |line| format!("{}\n", columns(line, 0, width));
    screen.lines().map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::agent_definitions::AgentDefinitions;

    #[track_caller]
    fn check(agent: &str, text: &str, expected: &str) {
        let definitions = AgentDefinitions::builtin().unwrap();
        let definition = definitions.get(agent).unwrap();
        let text = without_side_bar(definition, text);
        assert_eq!(remove(&definition.decoration, &text), expected);
    }

    #[test]
    fn the_decoration_of_the_known_agents_is_removed() {
        check(
            "claude",
            "● Bash(ls)\n  ⎿  a\n     b\n\n● Two files:\n\n  - a\n  - b\n  CODING OK\n\n✻ Worked for 1s\n\n────────────────────────\n❯\u{a0}\n────────────────────────\n  ⏵⏵ bypass permissions on\n",
            "Two files:\n\n- a\n- b\nCODING OK",
        );
        check(
            "codex",
            "• Ran ls\n  └ a\n\n• Two files:\n\n  - a\n  CODING OK\n\n  Worked for <1s • 12:00\n\n› Ask Codex to do anything\n",
            "Two files:\n\n- a\nCODING OK",
        );
        check(
            "gemini",
            "✦ Two files:\n\n  - a\n  CODING OK\n ──────────────\n────────────────────────────────────\n Shift+Tab to accept edits\n >   Type your message or @path/to/file\n",
            "Two files:\n\n- a\nCODING OK\n ──────────────",
        );
        check(
            "opencode",
            "     Two files:                   Context\n     CODING OK                    12 tokens\n     ▣  Build · model · 2.4s\n  ┃\n  ┃  Ask anything…\n  ╹▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀\n",
            "Two files:\nCODING OK",
        );
    }

    #[test]
    fn text_of_a_plain_program_stays() {
        check("plain", "\n● a\n  b\n│ c\n\n", "● a\n  b\n│ c");
    }
}
