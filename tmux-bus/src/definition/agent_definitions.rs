//! The agents that are known by name: the built-in ones, and those of a user's file.
//!
//! `docs/agent-definitions.md` describes the file.
//!
//! A table with a mistake is reported with its position and left out, so that a built-in agent keeps
//! its own definition and the other tables count. A file that cannot be parsed is left out as a whole.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue, Deserializer};

use super::agent_definition::AgentDefinition;
use super::toml_merge::{merge, without_spans};
use crate::Error;
use crate::shared::private_file;

/// The agent of a command that no definition names.
pub(crate) const PLAIN: &str = "plain";

/// The agent of a configuration without a command, as specified.
pub(crate) const DEFAULT: &str = "claude";

/// Bound of a user's file. The built-in definitions have 20 KB in all.
const MAX_FILE: u64 = 1 << 20;

const BUILTIN: [(&str, &str); 5] = [
    ("claude", include_str!("builtin/claude.toml")),
    ("codex", include_str!("builtin/codex.toml")),
    ("gemini", include_str!("builtin/gemini.toml")),
    ("opencode", include_str!("builtin/opencode.toml")),
    (PLAIN, include_str!("builtin/plain.toml")),
];

#[derive(Clone, Debug)]
pub(crate) struct AgentDefinitions {
    by_name: BTreeMap<String, Arc<AgentDefinition>>,
    /// The mistakes of the user's file: the reason why a name is not known.
    mistakes: Vec<String>,
}

impl AgentDefinitions {
    /// The built-in definitions. Their patterns are compiled once in a process.
    pub(crate) fn builtin() -> Result<Self, Error> {
        static COMPILED: OnceLock<AgentDefinitions> = OnceLock::new();
        match COMPILED.get() {
            Some(definitions) => Ok(definitions.clone()),
            None => {
                let definitions = Self::compile()?;
                Ok(COMPILED.get_or_init(|| definitions).clone())
            }
        }
    }

    fn compile() -> Result<Self, Error> {
        let mut by_name = BTreeMap::new();
        for (name, text) in BUILTIN {
            let definition = builtin_table(name)
                .and_then(|table| read(name, table))
                .map_err(|mistake| mistake.in_file(Path::new(name), text))?;
            by_name.insert(name.to_owned(), Arc::new(definition));
        }
        Ok(Self {
            by_name,
            mistakes: Vec::new(),
        })
    }

    /// The built-in definitions with those of a user's file. The list has the mistakes of the file.
    ///
    /// Errors: the file cannot be read, is not private, or is too long.
    pub(crate) fn load(path: &Path) -> Result<(Self, Vec<Error>), Error> {
        let mut definitions = Self::builtin()?;
        let text = read_file(path)?;
        let mistakes = definitions.extend(&text);
        let mistakes: Vec<_> = mistakes
            .into_iter()
            .map(|mistake| mistake.in_file(path, &text))
            .collect();
        definitions.mistakes = mistakes.iter().map(Error::to_string).collect();
        Ok((definitions, mistakes))
    }

    /// Adds the definitions of a user's file and returns its mistakes.
    fn extend(&mut self, text: &str) -> Vec<Mistake> {
        let tables = match DeTable::parse(text) {
            Ok(tables) => tables.into_inner(),
            Err(error) => return vec![error.into()],
        };
        let mut mistakes = Vec::new();
        for (name, value) in tables {
            let span = name.span();
            match user_definition(name.get_ref(), value) {
                Ok(definition) => {
                    self.by_name
                        .insert(definition.name.clone(), Arc::new(definition));
                }
                // A key that is missing has no position of its own.
                Err(mistake) if mistake.start == 0 => mistakes.push(Mistake {
                    start: span.start,
                    ..mistake
                }),
                Err(mistake) => mistakes.push(mistake),
            }
        }
        mistakes
    }

    /// For a message: `name` is not among the definitions.
    pub(crate) fn unknown(&self, name: &str) -> String {
        let known: Vec<_> = self.names().collect();
        let mut text = format!(
            "agent program `{name}` is not known; known are {}",
            known.join(", ")
        );
        for mistake in &self.mistakes {
            text.push_str(&format!("; {mistake}"));
        }
        text
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&Arc<AgentDefinition>> {
        self.by_name.get(name)
    }

    /// The name of the agent that a command runs; `plain` for any other program.
    pub(crate) fn name_for(&self, command: Option<&str>) -> &str {
        let Some(command) = command else {
            return DEFAULT;
        };
        let program = program_of(command);
        self.by_name
            .values()
            .find(|definition| definition.commands.iter().any(|known| known == program))
            .map_or(PLAIN, |definition| &definition.name)
    }
}

/// A mistake in a text, at an offset.
#[derive(Debug)]
struct Mistake {
    start: usize,
    reason: String,
}

impl Mistake {
    fn in_file(self, path: &Path, text: &str) -> Error {
        let before = text.get(..self.start).unwrap_or(text);
        let line = before.matches('\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        Error::Config {
            path: path.to_owned(),
            position: format!("line {line}, column {column}"),
            reason: self.reason,
        }
    }
}

impl From<toml::de::Error> for Mistake {
    fn from(error: toml::de::Error) -> Self {
        Self {
            start: error.span().map_or(0, |span| span.start),
            reason: error.message().to_owned(),
        }
    }
}

fn read_file(path: &Path) -> Result<String, Error> {
    let file = private_file::open(path, File::options().read(true))?;
    let mut text = String::new();
    file.take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(Error::io("read", path))?;
    if text.len() as u64 > MAX_FILE {
        return Err(Error::Config {
            path: path.to_owned(),
            position: "file".to_owned(),
            reason: format!("it is longer than {MAX_FILE} bytes"),
        });
    }
    Ok(text)
}

fn builtin_table(name: &str) -> Result<DeTable<'static>, Mistake> {
    let text = BUILTIN
        .iter()
        .find(|(known, _)| *known == name)
        .map_or("", |(_, text)| text);
    Ok(DeTable::parse(text)?.into_inner())
}

fn user_definition(name: &str, value: Spanned<DeValue<'_>>) -> Result<AgentDefinition, Mistake> {
    let start = value.span().start;
    let wrong = |reason: String| Mistake { start, reason };
    let DeValue::Table(table) = value.into_inner() else {
        return Err(wrong(format!(
            "`{name}` is not an agent: agents are tables, such as `[{name}.submit]`"
        )));
    };
    let is_plain_name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(is_plain_name) {
        return Err(wrong(format!(
            "name {name:?} must have only letters, digits, `_` and `-`"
        )));
    }
    if name == PLAIN {
        return Err(wrong(
            "`plain` is the agent without rules: define an agent of another name".to_owned(),
        ));
    }
    let mut merged = without_spans(builtin_table(name)?);
    merge(&mut merged, table);
    read(name, merged)
}

fn read(name: &str, table: DeTable<'_>) -> Result<AgentDefinition, Mistake> {
    let deserializer = Deserializer::from(Spanned::new(0..0, table));
    let mut definition = AgentDefinition::deserialize(deserializer)?;
    name.clone_into(&mut definition.name);
    check(&definition).map_err(|reason| Mistake { start: 0, reason })?;
    Ok(definition)
}

/// Mistakes that the types do not exclude.
fn check(definition: &AgentDefinition) -> Result<(), String> {
    let approval = definition.approval.iter().map(|rule| &rule.id);
    let dialog = definition.dialog.iter().map(|rule| &rule.id);
    let working = definition.working.iter().map(|rule| &rule.id);
    let starting = definition.starting.iter().map(|rule| &rule.id);
    let title = definition.title.iter().map(|rule| &rule.id);
    unique("approval", approval)?;
    unique("dialog", dialog)?;
    unique("working", working)?;
    unique("starting", starting)?;
    unique("title", title)?;
    for file in &definition.launch.file {
        let mut parts = Path::new(&file.path).components();
        let is_name = matches!(parts.next(), Some(std::path::Component::Normal(_)));
        if !is_name || parts.next().is_some() {
            return Err(format!(
                "launch.file path `{}` must be a plain name",
                file.path
            ));
        }
        if file.content.is_some() == file.source.is_some() {
            return Err(format!(
                "launch.file `{}` needs either `content` or `source`",
                file.path
            ));
        }
    }
    match &definition.input {
        Some(input) if input.frame.is_some() == input.next.is_some() => {
            Err("input needs either `next` or `box`".to_owned())
        }
        _ => Ok(()),
    }
}

fn unique<'a>(what: &str, ids: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let mut seen = Vec::new();
    for id in ids {
        if seen.contains(&id) {
            return Err(format!("{what} `{id}` is not unique"));
        }
        seen.push(id);
    }
    Ok(())
}

/// The name of the program that a command line ends with: `cd app && exec ./bin/claude -c` runs `claude`.
///
/// A heuristic for simple commands. A quoted name or a pipe is not taken apart; the configuration then
/// names the agent.
fn program_of(command: &str) -> &str {
    let last = command
        .trim()
        .rsplit([';', '&', '|', '\n'])
        .find(|part| !part.trim().is_empty())
        .unwrap_or_default();
    let is_assignment = |word: &str| {
        let name = word.split_once('=').map(|(name, _)| name);
        name.is_some_and(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_'))
    };
    let program = last
        .split_whitespace()
        .find(|word| !is_assignment(word) && !matches!(*word, "exec" | "env" | "command"))
        .unwrap_or_default();
    program.rsplit('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn extended(text: &str) -> (AgentDefinitions, Vec<String>) {
        let mut definitions = AgentDefinitions::builtin().unwrap();
        let mistakes = definitions.extend(text);
        let path = Path::new("agents.toml");
        let errors = mistakes
            .into_iter()
            .map(|mistake| mistake.in_file(path, text).to_string())
            .collect();
        (definitions, errors)
    }

    #[track_caller]
    fn check_mistake(text: &str, expected: &str) {
        let (definitions, errors) = extended(text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].contains(expected), "{} != {expected}", errors[0]);
        let builtin = AgentDefinitions::builtin().unwrap();
        assert!(definitions.names().eq(builtin.names()));
        let claude = definitions.get("claude").unwrap();
        assert_eq!(claude.submit.delay.as_millis(), 50);
    }

    #[test]
    fn the_built_in_definitions_are_valid() {
        let definitions = AgentDefinitions::builtin().unwrap();
        for (name, _) in BUILTIN.iter().filter(|(name, _)| *name != PLAIN) {
            let definition = definitions.get(name).unwrap();
            assert!(!definition.is_plain() && definition.hook.is_some());
            assert!(definition.commands.contains(&(*name).to_owned()));
            assert!(!definition.approval.is_empty() && !definition.dialog.is_empty());
        }
        assert!(definitions.get(PLAIN).unwrap().is_plain());
    }

    #[test]
    fn the_agent_follows_from_the_command() {
        let definitions = AgentDefinitions::builtin().unwrap();
        let check = |command, expected| {
            assert_eq!(definitions.name_for(command), expected, "{command:?}");
        };
        check(None, "claude");
        check(Some("claude --model opus"), "claude");
        check(Some("unset CLAUDECODE; exec /opt/bin/claude"), "claude");
        check(Some("cd app && KEY=value env A=b codex"), "codex");
        check(Some("  gemini\n"), "gemini");
        check(Some("opencode;"), "opencode");
        check(Some("claude-wrapper"), "plain");
        check(Some("echo claude"), "plain");
        check(Some("claude; exec sh"), "plain");
        check(Some("while read -r x; do echo $x; done"), "plain");
        check(Some(""), "plain");
    }

    #[test]
    fn a_file_overrides_single_values_and_adds_agents() {
        let (definitions, errors) = extended(
            "[claude.submit]\ndelay_ms = 80\n\
             [[claude.dialog]]\nid = 'survey'\nall = ['^ How is']\nsay = 'Answer.'\n\
             [[claude.dialog]]\nid = 'login'\nall = ['^ Log in']\nsay = 'Log in.'\n\
             [aider]\ncommands = ['aider']\n\
             input = { line = '^(?P<prefix>> )(?P<text>.*)$', next = '^(?P<text>.*)$' }\n",
        );
        assert_eq!(errors, [""; 0]);
        let claude = definitions.get("claude").unwrap();
        assert_eq!(claude.submit.delay.as_millis(), 80);
        assert_eq!(claude.submit.special_first, ['!', '/', '#', '@']);
        assert_eq!(claude.dialog[0].id, "survey");
        let builtin = AgentDefinitions::builtin().unwrap();
        let count = builtin.get("claude").unwrap().dialog.len();
        assert_eq!(claude.dialog.len(), count + 1);
        let login = claude.dialog.iter().find(|rule| rule.id == "login");
        assert_eq!(login.unwrap().say, "Log in.");
        assert_eq!(definitions.name_for(Some("aider")), "aider");
    }

    #[test]
    fn mistakes_are_reported_with_their_place_and_leave_the_built_in_agents() {
        check_mistake(
            "[claude]\nsubmit = {}\ncolor = 1\n",
            "line 3, column 1: unknown field `color`",
        );
        check_mistake(
            "[claude.submit]\ndelay_ms = 1\nspecial = []\n",
            "line 3, column 1: unknown field `special`",
        );
        check_mistake("[claude]\n[claude]\n", "line 2, column 2: duplicate key");
        check_mistake(
            "[claude.submit]\ndelay_ms = 1\ndelay_ms = 2\n",
            "line 3, column 1: duplicate key",
        );
        check_mistake(
            "[claude]\ninput.line = '(?P<prefix>x)(?P<text>'\n",
            "line 2, column 14: bad pattern: unclosed group",
        );
        check_mistake(
            "[claude]\ninput.line = '^(?P<text>.*)$'\n",
            "line 2, column 14: this pattern needs a group `(?P<prefix>...)`",
        );
        check_mistake(
            "[x]\n[[x.dialog]]\nid = 'a'\nall = ['(?:(?:a{1000}){1000}){1000}']\nsay = ''\n",
            "line 4, column 7: bad pattern: ",
        );
        check_mistake(
            "[[claude.dialog]]\nid = 'a'\nall = []\nsay = ''\n[[claude.dialog]]\nid = 'a'\nall = []\nsay = ''\n",
            "dialog `a` is not unique",
        );
        check_mistake("[[x.dialog]]\nid = 'a'\nall = []\n", "missing field `say`");
        check_mistake(
            "claude = 3\n",
            "line 1, column 10: `claude` is not an agent",
        );
        check_mistake(
            "[plain]\ncommands = ['x']\n",
            "`plain` is the agent without rules",
        );
        check_mistake("[claude\n", "line 1");
        check_mistake(
            "[x]\n[[x.launch.file]]\npath = '../x'\ncontent = ''\n",
            "must be a plain name",
        );
    }

    #[test]
    fn a_good_table_counts_beside_a_bad_one() {
        let (definitions, errors) = extended("[codex.submit]\ndelay_ms = 7\n[claude]\nx = 1\n");
        assert_eq!(errors.len(), 1);
        let delay = |name| definitions.get(name).unwrap().submit.delay.as_millis();
        assert_eq!((delay("codex"), delay("claude")), (7, 50));
    }

    #[test]
    fn a_file_that_is_not_private_or_too_long_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agents.toml");
        let refusal = || AgentDefinitions::load(&path).unwrap_err();
        assert!(refusal().is_not_found());
        fs::write(&path, "[codex.submit]\ndelay_ms = 7\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o622)).unwrap();
        assert!(matches!(refusal(), Error::NotPrivate { .. }));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(AgentDefinitions::load(&path).unwrap().1.is_empty());
        fs::write(&path, "#".repeat(MAX_FILE as usize + 1)).unwrap();
        assert!(refusal().to_string().contains("longer than"));
        fs::remove_file(&path).unwrap();
        symlink("/etc/passwd", &path).unwrap();
        assert!(matches!(refusal(), Error::NotPrivate { .. }));
    }

    proptest::proptest! {
        #[test]
        fn any_text_does_not_panic(text: String, bytes in "[a-z\\[\\]=.\"' \n{}#\\\\]{0,80}") {
            extended(&text);
            extended(&bytes);
        }
    }

    #[test]
    fn the_mistake_of_a_refused_definition_is_in_the_message_about_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agents.toml");
        fs::write(&path, "[mine]\ncommands = [\"mine\"]\nunknown_key = 1\n").unwrap();
        let (definitions, mistakes) = AgentDefinitions::load(&path).unwrap();
        assert_eq!(mistakes.len(), 1);
        let text = definitions.unknown("mine");
        assert!(text.contains("unknown_key"), "{text}");
        assert!(text.contains("agents.toml"), "{text}");
    }

    #[test]
    fn the_documented_file_has_no_mistake() {
        let page = include_str!("../../docs/agent-definitions.md");
        let blocks = page.split("```toml\n").skip(1);
        let text: String = blocks.map(|it| it.split("```").next().unwrap()).collect();
        let (definitions, errors) = extended(&text);
        assert!(definitions.get("parrot").unwrap().hook.is_some());
        assert_eq!(errors, Vec::<String>::new());
        assert!(!definitions.get("aider").unwrap().is_plain());
        let gemini = definitions.get("gemini").unwrap();
        assert_eq!(gemini.submit.delay.as_millis(), 800);
    }
}
