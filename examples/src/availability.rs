//! Whether the program of a profile can really run on this machine.

use std::fmt;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use exec_profiles::{ProfileRegistry, profile_definitions};

use crate::on_path;

/// How long a program may take to tell its version, and npm to look a package up.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);

/// The result of a look at one profile.
#[derive(Debug, PartialEq, Eq)]
pub enum Availability {
    /// The program is there, and says that it works.
    CanRun(String),
    /// The reason why not.
    CannotRun(String),
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CanRun(how) => write!(f, "can run: {how}"),
            Self::CannotRun(why) => write!(f, "cannot run: {why}"),
        }
    }
}

/// Runs the agent's program with `--version`; for `npx`, compares the version of Node with the one
/// that the package asks for.
pub fn of_profile(registry: &ProfileRegistry, label: &str) -> Availability {
    let definitions = profile_definitions();
    let native = definitions
        .iter()
        .find(|definition| definition.label == label);
    let native = native.and_then(|definition| definition.native_binary.as_deref());
    if let Some(native) = native.filter(|name| on_path(name)) {
        return of_program(native);
    }
    let Some(command) = registry.get_command(label, None) else {
        return Availability::CannotRun("the profile has no command".to_owned());
    };
    if !on_path(&command.binary) {
        return Availability::CannotRun(format!("{} is not on PATH", command.binary));
    }
    let package = command.args.iter().find(|arg| !arg.starts_with('-'));
    match package.filter(|_| command.binary == "npx") {
        Some(package) => of_package(package),
        None => Availability::CanRun(command.binary),
    }
}

fn of_program(name: &str) -> Availability {
    match output(Command::new(name).arg("--version")) {
        Ok(version) if version.is_empty() => {
            Availability::CanRun(format!("{name}, which does not tell its version"))
        }
        Ok(version) => Availability::CanRun(format!("{name} {version}")),
        Err(why) => Availability::CannotRun(format!("{name} --version {why}")),
    }
}

fn of_package(package: &str) -> Availability {
    let node = match output(Command::new("node").arg("--version")) {
        Ok(version) => version,
        Err(why) => {
            return Availability::CannotRun(format!("npx needs Node: node --version {why}"));
        }
    };
    let mut view = Command::new("npm");
    view.args(["view", package, "version", "engines.node", "--json"]);
    let Ok(answer) = output(&mut view) else {
        return Availability::CanRun(format!(
            "npx {package} with Node {node}, if npm can download it: it did not answer"
        ));
    };
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_default();
    let version = answer["version"].as_str().unwrap_or("of unknown version");
    match answer["engines.node"].as_str() {
        Some(range) if !accepts(range, &node) => Availability::CannotRun(format!(
            "npx {package} {version} needs Node {range}, and this is {node}"
        )),
        Some(range) => Availability::CanRun(format!(
            "npx {package} {version} (Node {node}, needs {range})"
        )),
        None => Availability::CanRun(format!("npx {package} {version} (Node {node})")),
    }
}

/// The first line that a program prints, or what went wrong.
fn output(command: &mut Command) -> Result<String, String> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = child.map_err(|error| format!("failed: {error}"))?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if begin.elapsed() < ANSWER_LIMIT => {
                std::thread::sleep(Duration::from_millis(10));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("did not answer".to_owned());
            }
        }
    };
    let mut text = String::new();
    if let Some(mut stdout) = child.stdout.take() {
        // Short answers fit into the pipe, so that the program does not wait for us.
        let _ = stdout.read_to_string(&mut text);
    }
    match status.success() {
        true if text.trim_start().starts_with('{') => Ok(text),
        true => Ok(text.lines().next().unwrap_or_default().trim().to_owned()),
        false => Err(format!("failed with {status}")),
    }
}

/// Whether a range of npm accepts a version: alternatives by `||`, comparisons by white space.
fn accepts(range: &str, version: &str) -> bool {
    let Some(version) = numbers(version) else {
        return true;
    };
    let accepts_one = |comparison: &str| {
        let digits = comparison.find(|c: char| c.is_ascii_digit());
        let (operator, bound) = comparison.split_at(digits.unwrap_or(comparison.len()));
        let Some(bound) = numbers(bound) else {
            // `*` and forms that we do not know: npm decides.
            return true;
        };
        match operator {
            ">=" => version >= bound,
            ">" => version > bound,
            "<" => version < bound,
            "<=" => version <= bound,
            "~" => version >= bound && version[..2] == bound[..2],
            _ => version >= bound && version[0] == bound[0],
        }
    };
    range.split("||").any(|alternative| {
        // `>= 18` is one comparison.
        let alternative = alternative
            .replace("= ", "=")
            .replace("> ", ">")
            .replace("< ", "<");
        alternative.split_whitespace().all(accepts_one)
    })
}

fn numbers(version: &str) -> Option<[u64; 3]> {
    let version = version.trim_start_matches('v');
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().ok());
    let first = parts.next()??;
    let mut next = || parts.next().flatten().unwrap_or(0);
    Some([first, next(), next()])
}

#[cfg(test)]
mod tests {
    use super::accepts;

    #[test]
    fn ranges_of_npm_are_understood() {
        for (range, version, expected) in [
            (">=18.0.0", "v20.20.2", true),
            (">=22", "v20.20.2", false),
            (">= 22.1", "v22.1.0", true),
            ("^18.17.0 || >=20.5.0", "v18.20.0", true),
            ("^18.17.0 || >=20.5.0", "v19.0.0", false),
            (">=20 <22", "v22.0.0", false),
            ("20.x", "v20.3.0", true),
            ("~20.19", "v20.20.2", false),
            ("*", "v12.0.0", true),
            (">=20", "unknown", true),
        ] {
            assert_eq!(accepts(range, version), expected, "{range} {version}");
        }
    }
}
