//! Splits a command line into words, if it is one simple command that means what it says.

/// The words of a simple command; `None` for a command line that a shell would take apart, expand
/// or redirect, and for one whose meaning is not certain.
///
/// Only quotes are understood. An operator, an expansion, a glob, a comment, an assignment in front
/// of the command, a backslash or a control character makes the line not simple: a rule that was
/// written for one command must not allow a second one.
pub(super) fn simple_command(line: &str) -> Option<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match c {
            ' ' | '\t' => words.extend(word.take()),
            '\'' | '"' => {
                let quoted = word.get_or_insert_default();
                loop {
                    match characters.next()? {
                        end if end == c => break,
                        '$' | '`' | '\\' | '!' if c == '"' => return None,
                        inner if inner.is_control() => return None,
                        inner => quoted.push(inner),
                    }
                }
            }
            '~' | '#' | '=' if word.is_none() => return None,
            '=' if words.is_empty() => return None,
            _ if is_plain(c) => word.get_or_insert_default().push(c),
            _ => return None,
        }
    }
    words.extend(word);
    words
        .first()
        .is_some_and(|first| !first.is_empty())
        .then_some(words)
}

/// Whether a shell reads this character literally, anywhere in a word.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "-_./,:+@%=~#^".contains(c)
}

/// Whether any command that may be in a line matches. For rules that forbid: with every operator as
/// a separator, and a command that may begin at any word (`env X=1 sudo rm`), it finds more
/// commands than there are, not fewer.
pub(super) fn any_possible_command(line: &str, matches: impl Fn(&[String]) -> bool) -> bool {
    let separators = [
        ';', '&', '|', '(', ')', '{', '}', '`', '\n', '\r', '<', '>', '$',
    ];
    let is_quoting = |c: char| matches!(c, '\'' | '"' | '\\');
    let line = without_continuations(line);
    line.split(separators).any(|part| {
        let words = part
            .split_whitespace()
            .map(|word| word.replace(is_quoting, ""));
        let mut words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
        (0..words.len()).any(|start| {
            if matches(&words[start..]) {
                return true;
            }
            // `/bin/rm` is `rm`.
            match words[start].rsplit_once('/') {
                Some((_, name)) => {
                    words[start] = name.to_owned();
                    matches(&words[start..])
                }
                None => false,
            }
        })
    })
}

/// The most words of a line that are compared with paths. Each costs several system calls.
const MAX_PATHS: usize = 4096;

/// Whether any word that may be a path matches, for rules that forbid. A line with too many words
/// matches. `$HOME` is given as `~`; other variables are not known.
pub(super) fn any_possible_path(line: &str, matches: impl Fn(&str) -> bool) -> bool {
    let line = without_continuations(line)
        .replace(['\'', '"', '\\'], "")
        .replace("${HOME}", "~")
        .replace("$HOME", "~");
    let separators = |c: char| c.is_whitespace() || ";&|(){}`<>=:,".contains(c);
    let words = line.split(separators).filter(|word| !word.is_empty());
    let mut count = 0;
    words.into_iter().any(|word| {
        count += 1;
        count > MAX_PATHS || matches(word)
    })
}

/// A shell joins a line that ends with a backslash with the next one.
fn without_continuations(line: &str) -> String {
    line.replace("\\\n", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_are_understood_and_nothing_else_is() {
        let words = |line| simple_command(line).map(|words| words.join("|"));
        assert_eq!(
            words("git commit -m 'a b'").as_deref(),
            Some("git|commit|-m|a b")
        );
        assert_eq!(
            words("git commit --message=\"a b\"").as_deref(),
            Some("git|commit|--message=a b")
        );
        assert_eq!(words("x ''").as_deref(), Some("x|"));
        for line in [
            "",
            " ",
            "''",
            "'open",
            "a && b",
            "a; b",
            "a | b",
            "a & b",
            "a\nb",
            "a\rb",
            "$(b)",
            "a $(b)",
            "a `b`",
            "a $HOME",
            "a \"$HOME\"",
            "a > b",
            "a < b",
            "a {b,c}",
            "a *",
            "a ?",
            "a [b]",
            "~/a",
            "a ~/b",
            "A=1 b",
            "a # b",
            "a \\; b",
            "a !b",
            "(a)",
            "a \"`b`\"",
            "a\u{0}b",
            "a \"b\nc\"",
        ] {
            assert_eq!(words(line), None, "{line:?}");
        }
    }
}
