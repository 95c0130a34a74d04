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

/// What separates two commands, or a command from its redirections and expansions.
const SEPARATORS: [char; 13] = [
    ';', '&', '|', '(', ')', '{', '}', '`', '\n', '\r', '<', '>', '$',
];

/// The words of a rule that forbids, for each part that a shell would take for a command of its own:
/// a line is compared part by part, so `curl * | sh` as a whole would match none.
pub(super) fn command_patterns(pattern: &str) -> Vec<Vec<String>> {
    let parts = pattern.split(SEPARATORS).map(plain_words);
    parts.filter(|words| !words.is_empty()).collect()
}

/// Whether any command that may be in a line matches. For rules that forbid: with every operator as
/// a separator, and a command that may begin at any word (`env X=1 sudo rm`), it finds more
/// commands than are written in the line. It does not find a name that is put together by a
/// variable, a glob or a substitution (`$x`, `/bin/r?`).
///
/// Each reading of the line finds commands that the others do not. None of them decides what is quoted:
/// a quoted text can be a command of another shell.
pub(super) fn any_possible_command(line: &str, matches: impl Fn(&[String]) -> bool) -> bool {
    let line = without_continuations(line);
    let readings = [
        // `{rm,-rf,x}` is `rm -rf x`.
        line.contains('{').then(|| line.replace(',', " ")),
        // `su -c 'git push' user`: a quoted text ends a command.
        Some(line.replace(['\'', '"'], ";")),
        // `git push 2>'a b'`: the number is no word of the command.
        Some(without_redirections(&line, Target::Kept)),
        // `git 2>&1 push`: a redirection can be anywhere in the command.
        Some(without_redirections(&line, Target::Removed)),
        // `git 2>'a b' push`: its target can have spaces.
        Some(without_redirections(&line, Target::QuotedRemoved)),
        Some(line),
    ];
    let mut parts = readings
        .iter()
        .flatten()
        .flat_map(|it| it.split(SEPARATORS));
    parts.any(|part| {
        let words = plain_words(part);
        // `git push # later`, if the `#` is not quoted.
        let comment = words.iter().position(|word| word.starts_with('#'));
        comment.is_some_and(|at| any_start(words[..at].to_vec(), &matches))
            || any_start(words, &matches)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Kept,
    /// Up to the next space or operator.
    Removed,
    /// The same, with spaces that are quoted.
    QuotedRemoved,
}

/// The line with `>` for each redirection, or with a space if the target is removed, too.
fn without_redirections(line: &str, target: Target) -> String {
    let mut kept = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['<', '>']) {
        let (command, redirection) = rest.split_at(at);
        // `&>x` redirects both streams, `2>x` one of them; the `2` of `a2>x` belongs to the word.
        let command = command.strip_suffix('&').unwrap_or(command);
        let before = without_descriptor(command);
        let is_number = before.is_empty() || before.ends_with(char::is_whitespace);
        kept.push_str(if is_number { before } else { command });
        rest = redirection.trim_start_matches(['<', '>', '&', '|']);
        if target == Target::Kept {
            kept.push('>');
            continue;
        }
        kept.push(' ');
        rest = rest.trim_start_matches([' ', '\t']);
        rest = &rest[end_of_target(rest, target)..];
    }
    kept + rest
}

/// The command without the descriptor of the redirection behind it: `2`, or `{name}`.
fn without_descriptor(command: &str) -> &str {
    let named = command.strip_suffix('}').and_then(|it| it.rsplit_once('{'));
    match named {
        Some((before, name)) if !name.contains(char::is_whitespace) => before,
        _ => command.trim_end_matches(|c: char| c.is_ascii_digit()),
    }
}

/// Where the target ends that this text begins with.
fn end_of_target(text: &str, target: Target) -> usize {
    let mut quote = None;
    let mut is_escaped = false;
    let is_end = |c: char| {
        if target == Target::QuotedRemoved {
            match (quote, c) {
                _ if is_escaped => {
                    is_escaped = false;
                    return false;
                }
                (None | Some('"'), '\\') => is_escaped = true,
                (Some(open), c) if c == open => quote = None,
                (Some(_), _) => return false,
                (None, '\'' | '"') => quote = Some(c),
                (None, _) => {}
            }
        }
        c.is_whitespace() || ";&|()<>`".contains(c)
    };
    text.find(is_end).unwrap_or(text.len())
}

/// Whether the words from any of them on match.
fn any_start(mut words: Vec<String>, matches: impl Fn(&[String]) -> bool) -> bool {
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
}

/// The words without quotes and backslashes.
fn plain_words(part: &str) -> Vec<String> {
    let words = part
        .split_whitespace()
        .map(|word| word.replace(['\'', '"', '\\'], ""));
    words.filter(|word| !word.is_empty()).collect()
}

/// The most parts of paths of a line that are compared. Each costs a system call.
const MAX_PARTS: usize = 4096;

/// The texts of a line that may be paths, for rules that forbid; `None` for a line with too many.
/// `$HOME` is given as `~`; other variables are not known.
///
/// A line is split twice: at everything that can separate two paths (`--file=x`, `a:b`), and as a
/// shell splits it, because a path may have spaces and braces in it. An option can have its path
/// behind its letters (`-C/x`, `-d@x`).
pub(super) fn possible_paths(line: &str) -> Option<Vec<String>> {
    let line = without_continuations(line)
        .replace("${HOME}", "~")
        .replace("$HOME", "~");
    let bare = line.replace(['\'', '"', '\\'], "");
    let separators = |c: char| c.is_whitespace() || ";&|(){}`<>=:,".contains(c);
    let mut count = 0;
    let mut paths = Vec::new();
    let mut add = |word: &str| {
        for path in paths_in(word) {
            count += 1 + path.matches('/').count();
            if count > MAX_PARTS {
                return None;
            }
            paths.push(path.to_owned());
        }
        Some(())
    };
    bare.split(separators).try_for_each(&mut add)?;
    shell_words(&line).iter().try_for_each(|word| add(word))?;
    paths.sort_unstable();
    paths.dedup();
    Some(paths)
}

/// The word, and what of it can be a path.
fn paths_in(word: &str) -> impl Iterator<Item = &str> {
    let from = |c: char| word.find(c).map(|at| &word[at..]);
    let is_option = word.starts_with('-');
    let is_short = is_option && !word.starts_with("--");
    let letters: usize = word.chars().take(2).map(char::len_utf8).sum();
    let value = is_short.then(|| &word[letters..]);
    let value = value.map(|value| value.trim_start_matches('@'));
    let inside = [from('/'), from('~'), from('.')];
    let inside = inside.into_iter().flatten().filter(move |_| is_option);
    [Some(word), word.strip_prefix('@'), value]
        .into_iter()
        .flatten()
        .chain(inside)
        .filter(|path| !path.is_empty())
}

/// The words as a shell splits them, without their quotes. Expansions stay as they are.
fn shell_words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '\'' | '"') => quote = Some(c),
            (None | Some('"'), '\\') => word.extend(characters.next()),
            (None, c) if c.is_whitespace() || ";&|()`<>".contains(c) => {
                words.push(std::mem::take(&mut word));
            }
            (_, c) => word.push(c),
        }
    }
    words.push(word);
    words
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
