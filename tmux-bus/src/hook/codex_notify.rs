//! The notify program of a Codex user.
//!
//! Codex has one notify program. The one of a launch replaces that of the user, so it must run that afterwards. Where
//! Codex finds it, the first counts: `-c notify=[...]` on the command line, the file of the profile (`-p NAME`:
//! `NAME.config.toml`), `config.toml` in the folder of Codex, `/etc/codex/config.toml`.

use std::fs;
use std::io;
use std::path::Path;

use super::shell_words::{self, ShellWord};
use crate::Error;

const SYSTEM_CONFIG: &str = "/etc/codex/config.toml";

/// The program of the user with its arguments; empty if there is none.
pub(super) fn of_user(words: &[ShellWord], codex_home: &Path) -> Result<Vec<String>, Error> {
    let settings = shell_words::values_of(words, &["-c", "--config"]);
    let given = settings
        .iter()
        .rev()
        .find(|word| word.text.starts_with("notify"));
    if let Some(word) = given
        && let Some((_, value)) = word.text.split_once('=')
    {
        let table = format!("notify={value}");
        return match program(&table) {
            Ok(Some(program)) if !word.is_expanded => Ok(program),
            _ => Err(Error::Invalid {
                what: "command",
                value: "notify".to_owned(),
                reason: "the value of `-c notify=` must be a list of texts without variables",
            }),
        };
    }
    let profiles = shell_words::values_of(words, &["-p", "--profile"]);
    let profile = profiles
        .last()
        .map(|word| format!("{}.config.toml", word.text));
    let own = profile.into_iter().chain(["config.toml".to_owned()]);
    let paths = own.map(|name| codex_home.join(name));
    for path in paths.chain([SYSTEM_CONFIG.into()]) {
        if let Some(program) = of_file(&path)? {
            return Ok(program);
        }
    }
    Ok(Vec::new())
}

fn of_file(path: &Path) -> Result<Option<Vec<String>>, Error> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(Error::io("read", path))?,
    };
    program(&text).map_err(|reason| Error::Config {
        path: path.to_owned(),
        position: "notify".to_owned(),
        reason,
    })
}

/// The value of `notify` in a TOML document.
fn program(text: &str) -> Result<Option<Vec<String>>, String> {
    #[derive(serde::Deserialize)]
    struct Config {
        #[serde(default)]
        notify: Option<Vec<String>>,
    }
    let config: Config = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    Ok(config.notify)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(command: &str, home: &Path, expected: &[&str]) {
        let words = shell_words::split(command);
        assert_eq!(of_user(&words, home).unwrap(), expected, "{command}");
    }

    #[test]
    fn the_program_is_found_where_codex_looks() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path();
        check("codex", home, &[]);
        fs::write(
            home.join("config.toml"),
            "model = \"x\"\nnotify = [\"say\", \"two words\"]\n[tui]\nx = 1\n",
        )
        .unwrap();
        check("codex", home, &["say", "two words"]);
        fs::write(home.join("work.config.toml"), "notify = [\"work\"]").unwrap();
        check("codex -p work", home, &["work"]);
        check("codex --profile=work", home, &["work"]);
        check("codex --profile other", home, &["say", "two words"]);
        check(
            r#"codex -p work -c 'notify=["given", "it'\''s"]'"#,
            home,
            &["given", "it's"],
        );
        check("codex -c notify=[]", home, &[]);
        check("codex -c model=x", home, &["say", "two words"]);
    }

    #[test]
    fn a_program_that_would_be_lost_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let of = |command: &str| of_user(&shell_words::split(command), dir.path());
        assert!(matches!(
            of("codex -c \"notify=[\\\"$X\\\"]\""),
            Err(Error::Invalid { .. })
        ));
        assert!(matches!(
            of("codex -c notify=say"),
            Err(Error::Invalid { .. })
        ));
        fs::write(dir.path().join("config.toml"), "notify = 7").unwrap();
        assert!(matches!(of("codex"), Err(Error::Config { .. })));
    }
}
