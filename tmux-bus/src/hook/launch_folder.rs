//! The private folder of one launch of an agent.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::Error;
use crate::shared::private_file;
use crate::tmux::launch::shell_quote;

const HOOK: &str = include_str!("hook.sh");

/// `<folder of the session>/hooks/<id of the launch>`: the hook program, the files of the definition, and the
/// folder `events`, into which the hooks write.
#[derive(Clone, Debug)]
pub(crate) struct LaunchFolder {
    path: PathBuf,
}

impl LaunchFolder {
    /// Nothing is created.
    pub(crate) fn new(session: &Path, launch: &str) -> Self {
        Self {
            path: session.join("hooks").join(launch),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn events(&self) -> PathBuf {
        self.path.join("events")
    }

    /// Creates the folder with the hook program.
    pub(super) fn create(&self) -> Result<(), Error> {
        private_file::create_folder(&self.events())?;
        self.write("hook.sh", HOOK)
    }

    pub(super) fn write(&self, name: &str, content: &str) -> Result<(), Error> {
        let path = self.path.join(name);
        let mut options = File::options();
        let mut file = private_file::open(&path, options.write(true).create(true).truncate(true))?;
        file.write_all(content.as_bytes())
            .map_err(Error::io("write", &path))
    }

    /// The command line for `sh` that stores an event.
    pub(super) fn hook_command(&self, event: &str) -> String {
        let hook = shell_quote(&self.path.join("hook.sh").to_string_lossy());
        let events = shell_quote(&self.events().to_string_lossy());
        format!("sh {hook} {events} {event}")
    }

    /// Whether the hooks of the launch are known not to run.
    pub(crate) fn is_silent(&self) -> bool {
        self.path.join("silent").exists()
    }

    /// Notes that no event came in time, so that the next message does not wait for one.
    pub(crate) fn mark_silent(&self) {
        // A note that is missing costs time only.
        let _ = self.write("silent", "");
    }

    /// Removes the folder of a program that has ended. A hook that still runs stores nothing.
    pub(crate) fn remove(&self) {
        if let Err(error) = fs::remove_dir_all(&self.path)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the folder of a launch");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    use super::*;

    const STRANGE: &str = "a b/it's \"q\" $x `y`/;";

    fn folder(dir: &tempfile::TempDir) -> LaunchFolder {
        let folder = LaunchFolder::new(&dir.path().join(STRANGE), "launch");
        folder.create().unwrap();
        folder
    }

    fn stored(folder: &LaunchFolder) -> Vec<(String, Vec<u8>)> {
        let mut files: Vec<_> = fs::read_dir(folder.events())
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                assert_eq!(entry.metadata().unwrap().mode() & 0o777, 0o600);
                let name = entry.file_name().into_string().unwrap();
                (name, fs::read(entry.path()).unwrap())
            })
            .collect();
        files.sort();
        files
    }

    /// Runs a command line in a shell with a payload as its standard input.
    fn run(shell: &str, line: &str, payload: &[u8]) {
        let mut child = Command::new(shell)
            .args(["-c", line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(payload).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert!(
            output.stdout.is_empty() && output.stderr.is_empty(),
            "{output:?}"
        );
    }

    /// The shells of this machine that can be `sh`.
    fn shells() -> Vec<&'static str> {
        let exists = |shell: &&str| Command::new(shell).args(["-c", "exit"]).status().is_ok();
        let shells: Vec<_> = ["sh", "dash", "bash", "busybox"]
            .into_iter()
            .filter(exists)
            .collect();
        assert!(shells.contains(&"sh"));
        shells
            .into_iter()
            .filter(|shell| *shell != "busybox")
            .collect()
    }

    #[test]
    fn a_payload_is_stored_whole_and_nothing_is_printed() {
        for shell in shells() {
            let dir = tempfile::tempdir().unwrap();
            let folder = folder(&dir);
            let line = folder
                .hook_command("Stop")
                .replacen("sh ", &format!("{shell} "), 1);
            run(shell, &line, "{\"text\":\"日本語 $x\\n\"}".as_bytes());
            run(shell, &line, b"");
            let files = stored(&folder);
            assert_eq!(files.len(), 2);
            assert!(
                files
                    .iter()
                    .all(|(name, _)| name.starts_with("Stop.") && name.ends_with(".0.json"))
            );
            let payload = "{\"text\":\"日本語 $x\\n\"}".as_bytes().to_vec();
            let mut contents: Vec<_> = files.into_iter().map(|(_, bytes)| bytes).collect();
            contents.sort();
            assert_eq!(contents, [Vec::new(), payload]);
        }
    }

    #[test]
    fn a_payload_past_the_limit_is_cut_and_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(&dir);
        // The write fails if the hook closes its input early.
        run("sh", &folder.hook_command("Stop"), &vec![b'x'; 9 << 20]);
        assert_eq!(stored(&folder)[0].1.len(), 8 << 20);
    }

    #[test]
    fn a_hook_of_a_session_that_has_ended_does_no_harm() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(&dir);
        let hook = dir.path().join("hook.sh");
        fs::copy(folder.path().join("hook.sh"), &hook).unwrap();
        let line = folder.hook_command("Stop");
        let old = shell_quote(&folder.path().join("hook.sh").to_string_lossy());
        let line = line.replace(&old, &shell_quote(&hook.to_string_lossy()));
        folder.remove();
        run("sh", &line, b"{}");
        assert!(!folder.path().exists());
        folder.remove();
    }

    #[test]
    fn the_notify_program_of_the_user_runs_with_its_arguments() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(&dir);
        let log = dir.path().join("log");
        let program = dir.path().join("my program");
        let script = format!("#!/bin/sh\nprintf '%s|' \"$@\" >>'{}'\n", log.display());
        fs::write(&program, script).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&program, mode).unwrap();
        let line = folder.hook_command("notify");
        let program = shell_quote(&program.to_string_lossy());
        let payload = r#"'{"type":"x","text":"it'\''s"}'"#;
        run(
            "sh",
            &format!("umask 022; {line} {program} 'first arg' {payload}"),
            b"",
        );
        let expected = r#"{"type":"x","text":"it's"}"#;
        assert_eq!(stored(&folder)[0].1, expected.as_bytes());
        assert_eq!(
            fs::read_to_string(&log).unwrap(),
            format!("first arg|{expected}|")
        );
        assert_eq!(
            log.metadata().unwrap().mode() & 0o777,
            0o644,
            "its mask is unchanged"
        );
        // Without a program of the user.
        run("sh", &format!("{line} {payload}"), b"");
        assert_eq!(stored(&folder).len(), 2);
    }

    #[test]
    fn hooks_that_run_at_once_store_one_file_each() {
        let dir = tempfile::tempdir().unwrap();
        let folder = folder(&dir);
        let line = folder.hook_command("Stop");
        let all = format!("for i in 1 2 3 4 5 6 7 8; do echo '{{}}' | {line} & done; wait");
        run("sh", &all, b"");
        assert_eq!(stored(&folder).len(), 8);
    }
}
