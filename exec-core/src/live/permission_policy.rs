//! Which requests of an agent are allowed, denied or asked.
//!
//! # Theory
//!
//! A policy is a list of rules. A rule names a tool, a command, a path, or several of them, and an
//! action. All parts of a rule must match. Of the rules that match, the strictest decides: `Deny`
//! before `Ask` before `Allow`; the order of the rules does not matter. Without a match the request
//! is asked.
//!
//! A rule must never allow more than its author meant, and may forbid more:
//!
//! - An `Allow` rule with a command matches only one simple command ([`simple_command`]): a line
//!   that a shell takes apart, expands or redirects is asked. A `Deny` or `Ask` rule matches if any
//!   part of the line may be its command.
//! - A path is resolved before it is compared: relative to the workspace, `..` and symbolic links
//!   followed, also if the last parts do not exist yet. An `Allow` rule needs all paths of the
//!   request inside, and at least one; a `Deny` or `Ask` rule needs one. A path that cannot be
//!   resolved (a link to a missing file, a loop), or that a tool may expand (`~/x`, `$X/x`,
//!   `file:/x`), is inside for `Deny` and `Ask`, and outside for `Allow`.
//! - A request for a folder that contains the path of a `Deny` rule is asked: the tool may search
//!   the folder.
//! - An `Allow` rule with a path says nothing about commands: a request with a command does not
//!   match it. A request whose paths are not known does not match it either. A `Deny` or `Ask` rule
//!   with a path matches a command if a word of it is a path inside.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::shell_words::{any_possible_command, any_possible_path, simple_command};

/// What a rule says about a request.
///
/// `Deny` for a command is a guard against mistakes, not a wall: a shell can hide a command in a
/// variable or a file. Only what no rule allows is asked, so a policy without `Allow` for whole
/// tools is the safer one.
///
/// ```
/// use exec_core::PermissionAction;
///
/// assert!(PermissionAction::Deny > PermissionAction::Ask);
/// assert!(PermissionAction::Ask > PermissionAction::Allow);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PermissionAction {
    /// The request is allowed without a question.
    Allow,
    /// The caller is asked.
    Ask,
    /// The request is denied without a question.
    Deny,
}

/// One rule of a [`PermissionPolicy`]. A part that is absent matches everything.
///
/// ```
/// use exec_core::{PermissionAction, PermissionRule};
///
/// let rule: PermissionRule = serde_json::from_str(
///     r#"{ "action": "allow", "tool": "Bash", "command": "cargo test *" }"#,
/// )?;
/// assert_eq!(rule.action, PermissionAction::Allow);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct PermissionRule {
    /// What the rule says.
    pub action: PermissionAction,
    /// The name of the tool; `*` stands for any characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The words of the command; `*` in a word stands for any characters, `*` as the last word for
    /// any words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A folder with everything in it, or a file. Relative to the workspace; `~/` is the home
    /// folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

impl PermissionRule {
    /// A rule without parts, which matches every request.
    #[must_use]
    pub fn new(action: PermissionAction) -> Self {
        Self {
            action,
            tool: None,
            command: None,
            path: None,
        }
    }

    /// The same rule for tools of this name only.
    #[must_use]
    pub fn tool(mut self, name: impl Into<String>) -> Self {
        self.tool = Some(name.into());
        self
    }

    /// The same rule for this command only.
    #[must_use]
    pub fn command(mut self, command: impl Into<String>) -> Self {
        self.command = Some(command.into());
        self
    }

    /// The same rule for this path only.
    #[must_use]
    pub fn path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
}

/// The facts of a request that rules look at.
#[derive(Clone, Debug, Default)]
pub(crate) struct PermissionFacts<'a> {
    pub(crate) tool: &'a str,
    pub(crate) command: Option<&'a str>,
    pub(crate) paths: &'a [PathBuf],
}

/// Which requests of an agent are allowed, denied or asked, and how long a question stays open.
///
/// Of all rules that match a request the strictest decides; without a match it is asked.
///
/// - An `Allow` rule with a command matches one simple command: a line with `>`, `|`, `;`, `$` or a
///   glob is asked. A `Deny` or `Ask` rule matches if any part of the line may be its command.
/// - A `Deny` or `Ask` rule with a path also matches a command with a word that is a path inside. A
///   path that a program makes up by itself is not seen: for that, use a sandbox.
/// - An `Allow` rule with a path needs all paths of the request inside, and matches no command.
///
/// ```
/// use std::time::Duration;
/// use exec_core::{PermissionAction, PermissionPolicy, PermissionRule};
///
/// let policy = PermissionPolicy::default()
///     .rule(PermissionRule::new(PermissionAction::Allow).command("cargo test *"))
///     .rule(PermissionRule::new(PermissionAction::Deny).path("~/.ssh"))
///     .deadline(Duration::from_secs(300));
///
/// // As data, with the keys of a profile in the user file of `exec-profiles`.
/// let same: PermissionPolicy = serde_json::from_str(
///     r#"{
///         "permissions": [
///             { "action": "allow", "command": "cargo test *" },
///             { "action": "deny", "path": "~/.ssh" }
///         ],
///         "permission_deadline_ms": 300000
///     }"#,
/// )?;
/// assert_eq!(same, policy);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[must_use]
pub struct PermissionPolicy {
    #[serde(rename = "permissions", skip_serializing_if = "Vec::is_empty")]
    rules: Vec<PermissionRule>,
    #[serde(rename = "permission_deadline_ms", with = "milliseconds")]
    deadline: Duration,
}

/// A duration as a whole number of milliseconds.
mod milliseconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(span: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(span.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

impl Default for PermissionPolicy {
    /// Asks for everything, for ten minutes.
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            deadline: Duration::from_secs(600),
        }
    }
}

impl PermissionPolicy {
    /// Allows everything without a question.
    pub fn allow_all() -> Self {
        Self::default().rule(PermissionRule::new(PermissionAction::Allow))
    }

    /// Adds a rule.
    pub fn rule(mut self, rule: PermissionRule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Sets how long a question stays open before it is denied; the default is ten minutes.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    pub(crate) fn question_limit(&self) -> Duration {
        self.deadline
    }

    /// The strictest action of the rules that match.
    pub(crate) fn decide(&self, facts: &PermissionFacts<'_>, workspace: &Path) -> PermissionAction {
        let rules = self.rules.iter();
        let strictest = rules.filter_map(|rule| rule.action_for(facts, workspace));
        strictest.max().unwrap_or(PermissionAction::Ask)
    }
}

impl PermissionRule {
    /// What the rule says about the request; `None` if it does not match.
    fn action_for(
        &self,
        facts: &PermissionFacts<'_>,
        workspace: &Path,
    ) -> Option<PermissionAction> {
        let tool = self.tool.as_deref();
        let is_meant = tool.is_none_or(|pattern| glob(pattern, facts.tool));
        if !is_meant || !self.matches_command(facts) {
            return None;
        }
        match &self.path {
            None => Some(self.action),
            Some(path) => self.action_for_path(path, facts, workspace),
        }
    }

    fn matches_command(&self, facts: &PermissionFacts<'_>) -> bool {
        let Some(pattern) = &self.command else {
            return true;
        };
        let Some(command) = facts.command else {
            return false;
        };
        let pattern: Vec<&str> = pattern.split_whitespace().collect();
        match self.action {
            PermissionAction::Allow => {
                simple_command(command).is_some_and(|words| matches_words(&pattern, &words))
            }
            PermissionAction::Ask | PermissionAction::Deny => {
                any_possible_command(command, |words| matches_words(&pattern, words))
            }
        }
    }

    fn action_for_path(
        &self,
        path: &Path,
        facts: &PermissionFacts<'_>,
        workspace: &Path,
    ) -> Option<PermissionAction> {
        let home = std::env::var_os("HOME");
        let rule = from_home(path, home.as_deref()).and_then(|path| {
            let resolved = resolve(&path, workspace);
            // A folder of another user has no links that the agent could follow.
            resolved.or_else(|error| match error.kind() {
                io::ErrorKind::PermissionDenied => Ok(workspace.join(path)),
                _ => Err(error),
            })
        });
        let place = |asked: &PathBuf| match &rule {
            Ok(rule) => place_of(asked, rule, workspace),
            Err(_) => Place::Unknown,
        };
        let places: Vec<Place> = facts.paths.iter().map(place).collect();
        if self.action == PermissionAction::Allow {
            let all_inside = places.iter().all(|place| *place == Place::Inside);
            let matches = facts.command.is_none() && !places.is_empty() && all_inside;
            return matches.then_some(self.action);
        }
        let is_word_inside = |word: &str| match &rule {
            Ok(rule) => from_home(Path::new(word), home.as_deref())
                .and_then(|word| resolve(&word, workspace))
                .is_ok_and(|word| word.starts_with(rule)),
            Err(_) => true,
        };
        let matches = |place: &Place| matches!(place, Place::Inside | Place::Unknown);
        let command = facts.command;
        if places.iter().any(matches)
            || command.is_some_and(|line| any_possible_path(line, is_word_inside))
        {
            return Some(self.action);
        }
        let is_around = places.contains(&Place::Around);
        is_around.then_some(PermissionAction::Ask)
    }
}

/// Where a path is, as seen from the path of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Inside,
    Outside,
    /// A folder that contains the path of the rule.
    Around,
    /// It cannot be resolved, or it can be read in two ways.
    Unknown,
}

fn place_of(asked: &Path, rule: &Path, workspace: &Path) -> Place {
    let text = asked.to_string_lossy();
    // A tool may expand a home folder or a variable, or read an address; or it may take the name
    // as it is.
    if text.starts_with('~') || text.contains('$') || text.contains(":/") {
        return Place::Unknown;
    }
    match resolve(asked, workspace) {
        Ok(asked) if asked.starts_with(rule) => Place::Inside,
        Ok(asked) if rule.starts_with(&asked) => Place::Around,
        Ok(_) => Place::Outside,
        Err(_) => Place::Unknown,
    }
}

/// Whether the words match the pattern. `*` as the last word stands for any number of words.
fn matches_words(pattern: &[&str], words: &[String]) -> bool {
    match pattern.split_last() {
        None => false,
        Some((&"*", head)) => words.len() >= head.len() && all_match(head, words),
        Some(_) => pattern.len() == words.len() && all_match(pattern, words),
    }
}

fn all_match(pattern: &[&str], words: &[String]) -> bool {
    pattern
        .iter()
        .zip(words)
        .all(|(pattern, word)| glob(pattern, word))
}

/// `*` stands for any characters. Linear in the product of the lengths, without backtracking over
/// earlier stars.
fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else {
        return false;
    };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

/// The path with the home folder in it; an error if there is none.
fn from_home(path: &Path, home: Option<&OsStr>) -> io::Result<PathBuf> {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => Ok(Path::new(home).join(rest)),
        (Ok(_), None) => Err(io::ErrorKind::NotFound.into()),
        (Err(_), _) => Ok(path.to_owned()),
    }
}

/// The absolute path without `.`, `..` and symbolic links, also if its last parts do not exist.
///
/// A part behind one that does not exist is taken literally, except for `..`, which is an error:
/// the missing part could become a link before the path is used.
fn resolve(path: &Path, workspace: &Path) -> io::Result<PathBuf> {
    let absolute = workspace.join(path);
    let mut existing = absolute.as_path();
    let mut missing: Vec<OsString> = Vec::new();
    loop {
        match existing.canonicalize() {
            Ok(mut resolved) => {
                resolved.extend(missing.iter().rev());
                return Ok(resolved);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // A link to a missing target exists and has a target that is not known.
                if existing.symlink_metadata().is_ok() {
                    return Err(error);
                }
                let last = existing.components().next_back();
                let (Some(Component::Normal(name)), Some(parent)) = (last, existing.parent())
                else {
                    return Err(error);
                };
                missing.push(name.to_owned());
                existing = parent;
            }
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
#[path = "permission_policy_tests.rs"]
mod tests;
