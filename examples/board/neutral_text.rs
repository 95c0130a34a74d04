//! Text of agents is hostile: it may hold escape sequences of terminals, characters that reorder
//! what a reader sees (CVE-2021-42574), and invisible ones that carry hidden words.

use std::borrow::Cow;

/// The printable text: escape sequences are removed, line ends become `\n`, and every other control,
/// bidirectional or invisible character becomes visible.
///
/// ```
/// use examples::board::neutral_text;
///
/// assert_eq!(neutral_text("\u{1b}[31mred\u{1b}[0m"), "red");
/// assert_eq!(neutral_text("a\u{202e}b"), "a‹U+202E›b");
/// assert_eq!(neutral_text("bell\u{7}"), "bell␇");
/// ```
pub fn neutral_text(text: &str) -> Cow<'_, str> {
    if !text.chars().any(is_special) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let after = &rest[first.len_utf8()..];
        rest = match first {
            '\u{1b}' => match sequence_end(after) {
                Some(end) => &after[end..],
                None => {
                    out.push('␛');
                    after
                }
            },
            // The one-character forms of `ESC [` and `ESC ]`.
            '\u{9b}' => &after[control_sequence_end(after)..],
            '\u{90}' | '\u{98}' | '\u{9d}' | '\u{9e}' | '\u{9f}' => {
                &after[string_end(after).unwrap_or(0)..]
            }
            '\r' => {
                out.push('\n');
                after.strip_prefix('\n').unwrap_or(after)
            }
            '\u{2028}' | '\u{2029}' => {
                out.push('\n');
                after
            }
            _ => {
                push_visible(&mut out, first);
                after
            }
        };
    }
    Cow::Owned(out)
}

/// The text with all of its characters, the special ones in a visible form: for a command that a person
/// is asked to allow. A shell does not remove escape sequences, and executes what is inside of them.
///
/// ```
/// use examples::board::visible_text;
///
/// assert_eq!(visible_text("ls \u{1b}]0;rm -r ~;\u{7}"), "ls ␛]0;rm -r ~;␇");
/// ```
pub fn visible_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    text.chars().for_each(|c| push_visible(&mut out, c));
    out
}

fn push_visible(out: &mut String, c: char) {
    match c {
        _ if !is_special(c) => out.push(c),
        '\u{0}'..='\u{1f}' => out.extend(char::from_u32(0x2400 + u32::from(c))),
        '\u{7f}' => out.push('␡'),
        _ => out.push_str(&format!("‹U+{:04X}›", u32::from(c))),
    }
}

/// [`neutral_text`] in one line, for names and labels.
pub fn neutral_line(text: &str) -> String {
    neutral_text(text).replace(['\n', '\t'], " ")
}

fn is_special(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        _ if c.is_control() => true,
        // Bidirectional marks, embeddings, overrides and isolates.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' => true,
        '\u{2066}'..='\u{206f}' => true,
        // Line separators, and characters without a width. The joiners U+200C and U+200D stay:
        // scripts and emoji need them.
        '\u{2028}' | '\u{2029}' | '\u{200b}' | '\u{2060}'..='\u{2064}' => true,
        '\u{ad}' | '\u{180e}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' => true,
        // Fillers that look like a space, and tags, which carry invisible ASCII.
        '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => false,
    }
}

/// The length of the escape sequence whose `ESC` precedes `after`; `None` if it is not one.
fn sequence_end(after: &str) -> Option<usize> {
    let first = after.chars().next()?;
    match first {
        '[' => Some(1 + control_sequence_end(&after[1..])),
        // A string that does not end is shown: otherwise one byte hides the rest of a message.
        ']' | 'P' | 'X' | '^' | '_' => string_end(&after[1..]).map(|end| 1 + end),
        ' '..='/' => {
            let end = after.find(|c| !(' '..='/').contains(&c))?;
            let last = after[end..].chars().next()?;
            ('0'..='~').contains(&last).then(|| end + 1)
        }
        '0'..='~' => Some(1),
        _ => None,
    }
}

/// Parameters, intermediates and the final character; what does not belong to it is not removed.
fn control_sequence_end(after: &str) -> usize {
    let end = after.find(|c| !(' '..='?').contains(&c));
    match end.and_then(|end| after[end..].chars().next().map(|last| (end, last))) {
        Some((end, '@'..='~')) => end + 1,
        // Not a sequence: only the introducer is removed.
        _ => 0,
    }
}

/// The end of a string that `BEL`, `ESC \` or `ST` ends on the same line.
fn string_end(after: &str) -> Option<usize> {
    let line = &after[..after.find('\n').unwrap_or(after.len())];
    let bell = line.find('\u{7}').map(|at| at + 1);
    let escape = line.find("\u{1b}\\").map(|at| at + 2);
    let st = line.find('\u{9c}').map(|at| at + 2);
    [bell, escape, st].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(neutral_text(text), expected);
        assert_eq!(neutral_text(expected), expected, "not idempotent");
    }

    #[test]
    fn plain_text_is_not_copied() {
        let text = "Grüße, 世界 👩‍💻\n\tcode";
        assert!(matches!(neutral_text(text), Cow::Borrowed(_)));
    }

    #[test]
    fn escape_sequences_are_removed() {
        check("\u{1b}[1;31mred\u{1b}[0m", "red");
        check("\u{1b}[2J\u{1b}[Hhome", "home");
        check("\u{1b}]0;title\u{7}text", "text");
        check(
            "\u{1b}]8;;http://evil\u{1b}\\link\u{1b}]8;;\u{1b}\\",
            "link",
        );
        check("\u{1b}(Bx\u{1b}=y\u{1b}c", "xy");
        check("\u{9b}31mred", "red");
        check("\u{9d}0;title\u{9c}text", "text");
        check("\u{1b}P1$r\u{1b}\\text", "text");
    }

    #[test]
    fn an_open_sequence_hides_nothing() {
        check("a\u{1b}]0;the rest is here", "a␛]0;the rest is here");
        check("a\u{1b}]0;x\nsecond\u{7}", "a␛]0;x\nsecond␇");
        check("a\u{1b}", "a␛");
        check("a\u{1b}[31", "a31");
        check("a\u{1b}[3\u{1}1mx", "a3␁1mx");
    }

    #[test]
    fn controls_and_invisible_characters_become_visible() {
        check("a\u{0}b\u{8}c\u{7f}d", "a␀b␈c␡d");
        check("a\u{85}b", "a‹U+0085›b");
        check("x\u{202e}gnp.exe", "x‹U+202E›gnp.exe");
        check("x\u{2067}y\u{2069}", "x‹U+2067›y‹U+2069›");
        check("ig\u{200b}nore", "ig‹U+200B›nore");
        check("\u{e0041}", "‹U+E0041›");
        check("a\r\nb\rc\u{2028}d", "a\nb\nc\nd");
    }

    #[test]
    fn no_text_keeps_a_special_character() {
        // Every pair of the characters that matter, in every context of up to four.
        let letters = [
            "\u{1b}", "[", "]", "m", "\u{7}", "\u{9b}", "\u{9c}", "\n", "\u{202e}", "ü", "1", "\\",
        ];
        for a in letters {
            for b in letters {
                for c in letters {
                    for d in letters {
                        let text = format!("{a}{b}{c}{d}");
                        let out = neutral_text(&text);
                        assert!(!out.chars().any(is_special), "{text:?} -> {out:?}");
                    }
                }
            }
        }
    }
}
