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
//!   that a shell takes apart, expands or redirects is asked, and so is a command in a folder
//!   outside of the workspace. A `Deny` or `Ask` rule matches if any part of the line may be its
//!   command.
//! - A path is resolved before it is compared: relative to the workspace, `..` and symbolic links
//!   followed, also if the last parts do not exist yet. An `Allow` rule needs all paths of the
//!   request inside, and at least one; a `Deny` or `Ask` rule needs one. A path that cannot be
//!   resolved (a link to a missing file, a loop), or that a tool may expand (`~/x`, `$X/x`,
//!   `file:/x`), is inside for `Deny` and `Ask`, and outside for `Allow`.
//! - A request for a folder that contains the path of a `Deny` rule is asked: the tool may search
//!   the folder.
//! - An `Allow` rule with a path says nothing about commands: a request with a command does not
//!   match it. A request whose paths are not known does not match it either. A `Deny` or `Ask` rule
//!   with a path matches a command if a word of it is a path inside ([`possible_paths`]). A word
//!   that is a folder around the path, or that cannot be resolved, is asked.
//!
//! Not seen: a path or command that a variable (other than `HOME`), a substitution or a program
//! makes up, a folder that an earlier `cd` of the line leads to, a hard link, and a link that is
//! changed between the decision and the use.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::shell_words::{any_possible_command, command_patterns, possible_paths, simple_command};

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
/// - An `Allow` rule with a command matches one simple command in the workspace: a line with `>`,
///   `|`, `;`, `$` or a glob is asked. A `Deny` or `Ask` rule matches if any part of the line may be
///   its command.
/// - A `Deny` or `Ask` rule with a path also matches a command with a word that is a path inside; a
///   word that is a folder around it is asked. A path that a program, a variable or a `cd` makes up
///   is not seen: for that, use a sandbox.
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
        if !is_meant || !self.matches_command(facts, workspace) {
            return None;
        }
        match &self.path {
            None => Some(self.action),
            Some(path) => self.action_for_path(path, facts, workspace),
        }
    }

    fn matches_command(&self, facts: &PermissionFacts<'_>, workspace: &Path) -> bool {
        let Some(pattern) = &self.command else {
            return true;
        };
        let Some(command) = facts.command else {
            return false;
        };
        match self.action {
            PermissionAction::Allow => {
                let pattern: Vec<&str> = pattern.split_whitespace().collect();
                simple_command(command).is_some_and(|words| matches_words(&pattern, &words))
                    && are_inside(facts.paths, workspace)
            }
            PermissionAction::Ask | PermissionAction::Deny => {
                // A pattern without words matches every command: a mistake in a rule that forbids
                // must not switch the rule off.
                let patterns = command_patterns(pattern);
                patterns.is_empty()
                    || patterns.iter().any(|pattern| {
                        let pattern: Vec<&str> = pattern.iter().map(String::as_str).collect();
                        any_possible_command(command, |words| matches_words(&pattern, words))
                    })
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
        let home = home.as_deref();
        let rule = from_home(path, home).and_then(|path| resolve_foreign(&path, workspace));
        let Ok(rule) = rule else {
            let names_any = !facts.paths.is_empty() || facts.command.is_some();
            let forbids = self.action != PermissionAction::Allow;
            return (forbids && names_any).then_some(self.action);
        };
        let places = facts.paths.iter();
        let places: Vec<Place> = places.map(|it| place_of(it, &rule, workspace)).collect();
        if self.action == PermissionAction::Allow {
            let all_inside = places.iter().all(|place| *place == Place::Inside);
            let matches = facts.command.is_none() && !places.is_empty() && all_inside;
            return matches.then_some(self.action);
        }
        let matches = |place: &Place| matches!(place, Place::Inside | Place::Unknown);
        if places.iter().any(matches) {
            return Some(self.action);
        }
        let Some(command) = facts.command else {
            return places
                .contains(&Place::Around)
                .then_some(PermissionAction::Ask);
        };
        // Too many to look at.
        let Some(words) = possible_paths(command) else {
            return Some(self.action);
        };
        // A path beside a command is the folder in which it runs. That this is the workspace says
        // nothing.
        let around = facts.paths.iter().zip(&places);
        let mut around = around.filter(|(_, place)| **place == Place::Around);
        let own = resolve(Path::new("."), workspace).ok();
        let is_workspace = |path: &Path| own.is_some() && resolve(path, workspace).ok() == own;
        let mut is_asked = around.any(|(path, _)| !is_workspace(path));
        let folders = facts.paths.iter().map(|path| workspace.join(path));
        is_asked |= facts.paths.len() > MAX_FOLDERS;
        for folder in std::iter::once(workspace.to_owned()).chain(folders.take(MAX_FOLDERS)) {
            for word in &words {
                match place_of_word(word, &rule, home, &folder) {
                    Place::Inside => return Some(self.action),
                    // A word need not be a path at all.
                    Place::Around | Place::Unknown => is_asked = true,
                    Place::Outside => {}
                }
            }
        }
        is_asked.then_some(PermissionAction::Ask)
    }
}

/// In how many folders the words of a command are looked up.
const MAX_FOLDERS: usize = 4;

/// Whether all paths are inside a folder.
fn are_inside(paths: &[PathBuf], folder: &Path) -> bool {
    paths.is_empty()
        || resolve(Path::new("."), folder).is_ok_and(|real| {
            let is_inside = |path: &PathBuf| place_of(path, &real, folder) == Place::Inside;
            paths.iter().all(is_inside)
        })
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

/// As [`place_of`], for a word of a command line.
fn place_of_word(word: &str, rule: &Path, home: Option<&OsStr>, workspace: &Path) -> Place {
    if word.starts_with('~') && word != "~" && !word.starts_with("~/") {
        // The home folder of another name.
        return Place::Unknown;
    }
    let Ok(path) = from_home(Path::new(word), home) else {
        return Place::Unknown;
    };
    if word.contains(['*', '?', '[', '{']) {
        return place_of_pattern(&workspace.join(path), rule);
    }
    match resolve_foreign(&path, workspace) {
        Ok(word) if word.starts_with(rule) => Place::Inside,
        Ok(word) if rule.starts_with(&word) => Place::Around,
        Ok(_) => Place::Outside,
        // No file can have this name.
        Err(error)
            if matches!(
                Errno::from_io_error(&error),
                Some(Errno::NOTDIR | Errno::NAMETOOLONG)
            ) || error.kind() == io::ErrorKind::InvalidInput =>
        {
            Place::Outside
        }
        Err(_) => Place::Unknown,
    }
}

/// The place of a path that a shell may expand: `~/.s*/id`. It is not certain that it does, nor to
/// what, so a pattern that may lead inside is `Around`: it is asked. A link that a part with a glob
/// names is not followed.
fn place_of_pattern(pattern: &Path, rule: &Path) -> Place {
    let text = |part: Component<'_>| part.as_os_str().to_string_lossy().into_owned();
    let mut parts = pattern.components();
    let mut folder = PathBuf::new();
    let parts = loop {
        let rest = parts.clone();
        match parts.next() {
            Some(part) if !text(part).contains(['*', '?', '[', '{']) => folder.push(part),
            _ => break rest,
        }
    };
    if parts.clone().any(|part| part == Component::ParentDir) {
        return Place::Unknown;
    }
    let Ok(folder) = resolve_foreign(&folder, Path::new("/")) else {
        return Place::Unknown;
    };
    if folder.starts_with(rule) {
        return Place::Inside;
    }
    let Ok(below) = rule.strip_prefix(&folder) else {
        return Place::Outside;
    };
    let mut below = below.components();
    for part in parts {
        let part = text(part);
        match below.next() {
            // `**` stands for any number of parts.
            Some(_) if part.contains("**") => break,
            None => break,
            Some(name) if !glob(&any_expansion(&part), &text(name)) => return Place::Outside,
            Some(_) => {}
        }
    }
    Place::Around
}

/// A pattern for [`glob`] that matches at least what a shell makes of this part of a path.
fn any_expansion(part: &str) -> String {
    let mut out = String::with_capacity(part.len());
    let mut end = None;
    for c in part.chars() {
        match (end, c) {
            (Some(last), c) if c == last => end = None,
            (Some(_), _) => {}
            (None, '?' | '*') => out.push('*'),
            (None, '[' | '{') => {
                out.push('*');
                end = Some(if c == '[' { ']' } else { '}' });
            }
            (None, c) => out.push(c),
        }
    }
    out
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

/// As [`resolve`]; a path below a folder of another user, which we may not look into, is taken
/// literally: it has no links that the agent could follow.
fn resolve_foreign(path: &Path, workspace: &Path) -> io::Result<PathBuf> {
    let is_literal = || !path.components().any(|part| part == Component::ParentDir);
    resolve(path, workspace).or_else(|error| match error.kind() {
        io::ErrorKind::PermissionDenied if is_literal() => Ok(workspace.join(path)),
        _ => Err(error),
    })
}

/// How many links of a path are followed, as by Linux.
const MAX_LINKS: usize = 40;
/// The longest absolute path that is looked at: twice what Linux opens, because a tool may shorten a
/// path before it opens it.
const MAX_PATH_BYTES: usize = 8192;
/// Links that lead each process to a folder of its own: not to that of the agent.
const OWN_LINKS: [&str; 2] = ["/proc/self", "/proc/thread-self"];

/// The absolute path without `.`, `..` and symbolic links, also if its last parts do not exist.
///
/// A part behind one that does not exist is taken literally, except for `..`, which is an error: the
/// missing part could become a link before the path is used. A link to a missing target is an error,
/// too: it exists, and its target is not known. The links are followed here, and not by the system, so
/// that one to a folder of the own process is noticed: `/dev/fd`, or one that the agent has made.
fn resolve(path: &Path, workspace: &Path) -> io::Result<PathBuf> {
    let absolute = workspace.join(path);
    if absolute.as_os_str().len() > MAX_PATH_BYTES {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let reversed = |path: &Path| -> Vec<OsString> {
        let parts = path.components().rev();
        parts.map(|part| part.as_os_str().to_owned()).collect()
    };
    // What is left, the next part last. The parts of a link are above those of the path.
    let mut left = reversed(&absolute);
    let mut left_of_path = left.len();
    let mut resolved = PathBuf::new();
    let mut links = 0;
    while let Some(part) = left.pop() {
        let is_of_link = left.len() >= left_of_path;
        left_of_path = left_of_path.min(left.len());
        if part == "." {
            continue;
        }
        if part == ".." {
            resolved.pop();
            continue;
        }
        // Also for the root, which replaces the path.
        resolved.push(&part);
        match resolved.symlink_metadata() {
            Ok(found) if found.is_symlink() => {
                links += 1;
                if links > MAX_LINKS || OWN_LINKS.iter().any(|own| resolved == Path::new(own)) {
                    return Err(io::ErrorKind::InvalidData.into());
                }
                left.extend(reversed(&resolved.read_link()?));
                resolved.pop();
            }
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_of_link => {
                if left.iter().any(|part| part == "..") {
                    return Err(error);
                }
                resolved.pop();
                let mut resolved = resolved.canonicalize()?;
                resolved.push(part);
                resolved.extend(left.into_iter().rev());
                return Ok(resolved);
            }
            Err(error) => return Err(error),
        }
    }
    // The links are followed already. On macOS, the names also get the case that they have on the disk.
    resolved.canonicalize()
}

#[cfg(test)]
#[path = "permission_policy_tests.rs"]
mod tests;
