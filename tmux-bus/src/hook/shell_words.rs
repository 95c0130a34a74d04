//! The words of a command line for `sh`, as far as they are known without running it.

/// A word of a command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShellWord {
    pub(super) text: String,
    /// The shell would put something else in its place: a variable, the output of a command.
    pub(super) is_expanded: bool,
    /// It begins with a `~` that the shell would replace by a home folder.
    pub(super) has_tilde: bool,
}

/// Splits a command line into words. Operators such as `;` end a word and are left out.
pub(super) fn split(command: &str) -> Vec<ShellWord> {
    let mut words = Vec::new();
    let mut word: Option<ShellWord> = None;
    let mut quote = None;
    let mut chars = command.chars();
    while let Some(c) = chars.next() {
        if quote.is_none() && " \t\n;|&()<>".contains(c) {
            words.extend(word.take());
            continue;
        }
        let word = word.get_or_insert_default();
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None) => word.text.extend(chars.next().filter(|c| *c != '\n')),
            ('\\', Some('"')) => match chars.next() {
                Some(c @ ('"' | '\\' | '$' | '`')) => word.text.push(c),
                Some(c) => word.text.extend(['\\', c]),
                None => {}
            },
            _ => {
                word.has_tilde |= c == '~' && quote.is_none() && word.text.is_empty();
                word.is_expanded |= "$`".contains(c) && quote != Some('\'');
                word.text.push(c);
            }
        }
    }
    words.extend(word);
    words
}

/// The values of an option: `-c value`, `--config value`, `--config=value`. The last one counts for most programs.
pub(super) fn values_of<'a>(words: &'a [ShellWord], options: &[&str]) -> Vec<ShellWord> {
    let is_option = |word: &ShellWord| options.contains(&word.text.as_str());
    let after = |word: &'a ShellWord| {
        options.iter().find_map(|option| {
            let value = word.text.strip_prefix(option)?.strip_prefix('=')?;
            Some(ShellWord {
                text: value.to_owned(),
                is_expanded: word.is_expanded,
                has_tilde: false,
            })
        })
    };
    words
        .iter()
        .enumerate()
        .filter_map(|(index, word)| match is_option(word) {
            true => words.get(index + 1).cloned(),
            false => after(word),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, expected: &[&str]) {
        let words = split(command);
        let texts: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        assert_eq!(texts, expected, "{command}");
    }

    #[test]
    fn a_command_line_is_split_as_the_shell_does() {
        check("claude --model opus", &["claude", "--model", "opus"]);
        check(
            r#"a 'b c' "d \"e\" \n" f\ g '' "#,
            &["a", "b c", r#"d "e" \n"#, "f g", ""],
        );
        check(
            "unset X; exec claude -p|cat&",
            &["unset", "X", "exec", "claude", "-p", "cat"],
        );
        check(r"it'\''s '\'", &[r"it\s '"]);
        check("", &[]);
    }

    #[test]
    fn words_that_the_shell_expands_are_marked() {
        let expanded = |command: &str| split(command)[0].is_expanded;
        assert!(expanded("$HOME/x") && expanded("\"$(cat x)\"") && expanded("`x`"));
        assert!(!expanded("'$HOME'") && !expanded(r"\$HOME") && !expanded(r#""\$HOME""#));
    }

    #[test]
    fn only_an_unquoted_tilde_at_the_beginning_is_a_home_folder() {
        let has_tilde = |command: &str| split(command)[0].has_tilde;
        assert!(has_tilde("~/x") && has_tilde("~me/x"));
        assert!(!has_tilde("'~/x'") && !has_tilde(r"\~/x") && !has_tilde("a~/x"));
        let words = split("claude --settings ~/x --settings=~/x");
        let values = values_of(&words, &["--settings"]);
        assert!(values[0].has_tilde && !values[1].has_tilde);
    }

    #[test]
    fn options_are_found_with_their_values() {
        let words = split("codex -c a=1 --config=b=2 --config c=3 -c");
        let values = values_of(&words, &["-c", "--config"]);
        let texts: Vec<_> = values.iter().map(|value| value.text.as_str()).collect();
        assert_eq!(texts, ["a=1", "b=2", "c=3"]);
    }
}
