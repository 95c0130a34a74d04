//! The version of tmux.

use crate::Error;

/// The oldest version with all features in use: `copy-mode -q`, attach flags, `-e` on respawn.
pub(crate) const NEEDED: &str = "3.2";

/// Refuses an old version by the output of `tmux -V`.
pub(crate) fn check(output: &str) -> Result<(), Error> {
    let found = output.trim().trim_start_matches("tmux").trim();
    match number(found) {
        Some(version) if version < (3, 2) => Err(Error::TmuxTooOld {
            found: found.to_owned(),
        }),
        Some(_) => Ok(()),
        // Builds from source are `master`, OpenBSD has its own numbers; both are recent.
        None if found == "master" || found.starts_with("openbsd") => Ok(()),
        None => Err(Error::failed(
            "tmux -V",
            format!("unexpected output `{found}`"),
        )),
    }
}

fn number(text: &str) -> Option<(u32, u32)> {
    let (major, rest) = text.trim_start_matches("next-").split_once('.')?;
    let digits = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    Some((major.parse().ok()?, rest[..digits].parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_refused_with_both_versions() {
        for (text, ok) in [
            ("tmux 3.3a\n", true),
            ("tmux 3.2\n", true),
            ("tmux next-3.6", true),
            ("tmux master", true),
            ("tmux openbsd-7.4", true),
            ("tmux 10.0", true),
            ("tmux 3.1c", false),
            ("tmux 1.6", false),
            ("screen 4", false),
        ] {
            assert_eq!(check(text).is_ok(), ok, "{text}");
        }
        let error = check("tmux 1.6").unwrap_err().to_string();
        assert!(error.contains("1.6") && error.contains("3.2"), "{error}");
    }
}
