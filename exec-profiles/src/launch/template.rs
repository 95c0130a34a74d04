//! Texts with placeholders, parsed once and expanded in one pass.

use std::ops::Range;

/// The placeholders with their names, in the order in which errors list them.
const PLACEHOLDERS: [(&str, Placeholder); 3] = [
    ("prompt", Placeholder::Prompt),
    ("session_id", Placeholder::SessionId),
    ("workspace", Placeholder::Workspace),
];

/// A value that is known only at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placeholder {
    Prompt,
    SessionId,
    Workspace,
}

/// A text with `{prompt}`, `{session_id}`, `{workspace}` and `${VAR}`.
///
/// Invariant: inserted values are never parsed. A template is parsed into segments first and expanded
/// in one pass, so a prompt that contains `${HOME}` cannot read the environment.
#[derive(Clone, Debug)]
pub(crate) struct Template(Vec<Segment>);

#[derive(Clone, Debug)]
enum Segment {
    Literal(String),
    Placeholder(Placeholder),
    Variable(String),
}

impl Template {
    /// Parses `text`; the error is the mistake in it.
    ///
    /// | text | meaning |
    /// |---|---|
    /// | `{workspace}` | the placeholder of that name; an unknown name is an error |
    /// | `${HOME}` | the environment variable |
    /// | `{{workspace}}`, `$${` | the literal `{workspace}`, `${` |
    /// | `{"a": 1}`, `{}`, `$HOME` | literal: braces count only around a lower-case word |
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '$']) {
            literal.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("$${") {
                literal.push_str("${");
                rest = &rest[3..];
            } else if let Some(inner) = rest.strip_prefix("${") {
                let end = inner.find('}').ok_or("`${` without `}`")?;
                let name = &inner[..end];
                if !is_variable_name(name) {
                    return Err(format!("`${{{name}}}` is not the name of a variable"));
                }
                flush(&mut literal, &mut segments);
                segments.push(Segment::Variable(name.to_owned()));
                rest = &inner[end + 1..];
            } else if let Some(word) = word_between(rest, "{{", "}}") {
                literal.push_str(&rest[1..word.end + 1]);
                rest = &rest[word.end + 2..];
            } else if let Some(word) = word_between(rest, "{", "}") {
                let name = &rest[word.clone()];
                let placeholder = PLACEHOLDERS
                    .iter()
                    .find(|(known, _)| *known == name)
                    .map(|(_, placeholder)| *placeholder)
                    .ok_or_else(|| {
                        let known = PLACEHOLDERS.map(|(known, _)| format!("{{{known}}}"));
                        format!(
                            "unknown placeholder `{{{name}}}`; known are {} (write `{{{{{name}}}}}` for the literal text)",
                            known.join(", ")
                        )
                    })?;
                flush(&mut literal, &mut segments);
                segments.push(Segment::Placeholder(placeholder));
                rest = &rest[word.end + 1..];
            } else {
                literal.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
        literal.push_str(rest);
        flush(&mut literal, &mut segments);
        Ok(Self(segments))
    }

    pub(crate) fn uses(&self, placeholder: Placeholder) -> bool {
        self.0
            .iter()
            .any(|segment| matches!(segment, Segment::Placeholder(p) if *p == placeholder))
    }

    pub(crate) fn starts_with(&self, placeholder: Placeholder) -> bool {
        matches!(self.0.first(), Some(Segment::Placeholder(p)) if *p == placeholder)
    }

    /// The inverse of [`expand`](Self::expand): a template whose expansion is `text`.
    pub(crate) fn escape(text: &str) -> String {
        let mut escaped = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '$']) {
            escaped.push_str(&rest[..at]);
            rest = &rest[at..];
            if rest.starts_with("${") {
                escaped.push_str("$${");
                rest = &rest[2..];
            } else if let Some(word) = word_between(rest, "{", "}") {
                escaped.push_str("{{");
                escaped.push_str(&rest[word.clone()]);
                escaped.push_str("}}");
                rest = &rest[word.end + 1..];
            } else {
                escaped.push_str(&rest[..1]);
                rest = &rest[1..];
            }
        }
        escaped.push_str(rest);
        escaped
    }

    /// The text with all values inserted, or the error of the first value that is missing.
    pub(crate) fn expand<'a>(
        &self,
        placeholder: impl Fn(Placeholder) -> Result<&'a str, String>,
        variable: impl Fn(&str) -> Result<String, String>,
    ) -> Result<String, String> {
        let mut text = String::new();
        for segment in &self.0 {
            match segment {
                Segment::Literal(literal) => text.push_str(literal),
                Segment::Placeholder(name) => text.push_str(placeholder(*name)?),
                Segment::Variable(name) => text.push_str(&variable(name)?),
            }
        }
        Ok(text)
    }
}

fn flush(literal: &mut String, segments: &mut Vec<Segment>) {
    if !literal.is_empty() {
        segments.push(Segment::Literal(std::mem::take(literal)));
    }
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c == '_' || c.is_ascii_alphanumeric())
}

/// The range of the lower-case word, if `text` starts with `open word close`.
fn word_between(text: &str, open: &str, close: &str) -> Option<Range<usize>> {
    let inner = text.strip_prefix(open)?;
    let length = inner.find(|c: char| c != '_' && !c.is_ascii_lowercase())?;
    (length > 0 && inner[length..].starts_with(close)).then(|| open.len()..open.len() + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placeholder(placeholder: Placeholder) -> Result<&'static str, String> {
        Ok(match placeholder {
            Placeholder::Prompt => "say ${HOME} {workspace}",
            Placeholder::SessionId => "id-1",
            Placeholder::Workspace => "/w",
        })
    }

    fn variable(name: &str) -> Result<String, String> {
        match name {
            "KEY" => Ok("k{prompt}".to_owned()),
            _ => Err(format!("no {name}")),
        }
    }

    #[track_caller]
    fn check(template: &str, expected: Result<&str, &str>) {
        let got = Template::parse(template).and_then(|t| t.expand(placeholder, variable));
        assert_eq!(got.as_deref().map_err(String::as_str), expected);
    }

    #[test]
    fn templates_expand_in_one_pass() {
        check("", Ok(""));
        check("--resume={session_id}", Ok("--resume=id-1"));
        check("{session_id}{workspace}", Ok("id-1/w"));
        check("Bearer ${KEY}!", Ok("Bearer k{prompt}!"));
        check("{prompt}", Ok("say ${HOME} {workspace}"));
        check("日本{workspace}語", Ok("日本/w語"));
    }

    #[test]
    fn text_without_placeholders_is_unchanged() {
        check(r#"{"a":{"b":1}}"#, Ok(r#"{"a":{"b":1}}"#));
        check("{a,b} {} $HOME $1 {", Ok("{a,b} {} $HOME $1 {"));
        check("{{prompt}} $${KEY}", Ok("{prompt} ${KEY}"));
        check("{{nothing}}", Ok("{nothing}"));
    }

    #[test]
    fn escaped_text_expands_to_itself() {
        for text in [
            "",
            "plain",
            "{prompt} ${KEY} {\"a\":1} $x {",
            "日本 {語} ${",
        ] {
            check(&Template::escape(text), Ok(text));
        }
    }

    #[test]
    fn errors_name_the_mistake() {
        check("${KEY", Err("`${` without `}`"));
        check("${}", Err("`${}` is not the name of a variable"));
        check("${NOPE}", Err("no NOPE"));
        check(
            "{sesion_id}",
            Err(
                "unknown placeholder `{sesion_id}`; known are {prompt}, {session_id}, {workspace} \
                 (write `{{sesion_id}}` for the literal text)",
            ),
        );
    }
}
