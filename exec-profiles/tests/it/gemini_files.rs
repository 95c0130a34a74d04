//! Gemini's session files, in the folders of its different versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use exec_core::{SessionIdLookup, SessionResolutionContext};
use exec_profiles::{ProfileRegistry, builtin};

use crate::request::{UUID, context, launch, new_chat, resume};

const OTHER: &str = "11111111-2222-4333-8444-555555555555";

struct Fixture {
    home: tempfile::TempDir,
    workspace: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            workspace: tempfile::tempdir().unwrap(),
        }
    }

    fn workspace(&self) -> PathBuf {
        fs::canonicalize(self.workspace.path()).unwrap()
    }

    /// The current layout: an index names the folder.
    fn slug_folder(&self) -> PathBuf {
        let index =
            serde_json::json!({ "projects": { self.workspace().to_str().unwrap(): "my-project" } });
        fs::create_dir_all(self.home.path().join(".gemini")).unwrap();
        fs::write(
            self.home.path().join(".gemini/projects.json"),
            index.to_string(),
        )
        .unwrap();
        self.folder("my-project")
    }

    /// The older layout: the SHA-256 of the path, here computed by coreutils.
    fn sha_folder(&self) -> PathBuf {
        let output = std::process::Command::new("sh")
            .args(["-c", "printf %s \"$1\" | sha256sum | cut -d' ' -f1", "sh"])
            .arg(self.workspace())
            .output()
            .expect("sha256sum (coreutils) runs");
        let name = String::from_utf8(output.stdout).unwrap();
        assert_eq!(name.trim().len(), 64, "install coreutils for sha256sum");
        self.folder(name.trim())
    }

    /// The specified layout: the project id.
    fn project_id_folder(&self) -> PathBuf {
        self.folder(&context("gemini", None, &self.workspace()).actual_project_id)
    }

    fn folder(&self, name: &str) -> PathBuf {
        let folder = self
            .home
            .path()
            .join(".gemini/tmp")
            .join(name)
            .join("chats");
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    /// Builds the lookup; all existing files are from before the launch.
    fn start(&self) -> (Box<dyn SessionIdLookup>, SessionResolutionContext) {
        self.start_with("HOME")
    }

    fn start_with(&self, variable: &str) -> (Box<dyn SessionIdLookup>, SessionResolutionContext) {
        let registry = ProfileRegistry::new();
        let mut definition = builtin::gemini_without_session_id_option();
        let home = self.home.path().to_str().unwrap().to_owned();
        let env = &mut definition.command.env;
        // An empty value counts as not set and hides a value of the host.
        env.insert("GEMINI_CLI_HOME".into(), String::new());
        env.insert(variable.into(), home.clone());
        registry.register(definition).unwrap();
        let request = new_chat(context("gemini", None, &self.workspace()), "x");
        let launched = launch(&registry, &request).unwrap();
        assert!(!launched.argv.iter().any(|arg| arg.contains("session-id")));
        assert!(launched.parameters.session_id_resolver.is_some());
        let mut resolution = SessionResolutionContext::new(
            request.session_id,
            self.workspace(),
            SystemTime::now(),
            1,
        );
        resolution.env.insert(variable.into(), home.into());
        (launched.parameters.session_id_lookup.unwrap(), resolution)
    }
}

fn write_lines(folder: &Path, name: &str, id: &str) {
    let first = serde_json::json!({"sessionId": id, "kind": "main"});
    fs::write(folder.join(name), format!("{first}\n{{\"$set\":{{}}}}\n")).unwrap();
}

fn write_document(folder: &Path, name: &str, id: &str) {
    let document = serde_json::json!({"projectHash": "x", "sessionId": id, "messages": []});
    let text = serde_json::to_string_pretty(&document).unwrap();
    fs::write(folder.join(name), text).unwrap();
}

#[test]
fn all_three_layouts_are_found() {
    type Folder = fn(&Fixture) -> PathBuf;
    type Write = fn(&Path, &str, &str);
    let layouts: [(Folder, &str, Write); 3] = [
        (
            Fixture::slug_folder,
            "session-2026-11-16T02-06-0581226d.jsonl",
            write_lines,
        ),
        (
            Fixture::sha_folder,
            "session-2025-12-01T10-00-0581226d.json",
            write_document,
        ),
        (Fixture::project_id_folder, "session-1.json", write_document),
    ];
    for (folder, name, write) in layouts {
        let fixture = Fixture::new();
        let (mut lookup, resolution) = fixture.start();
        assert_eq!(lookup.last_look(&resolution), None);
        // The agent may create the folder and the index after its start.
        write(&folder(&fixture), name, UUID);
        assert_eq!(
            lookup.last_look(&resolution).as_deref(),
            Some(UUID),
            "{name}"
        );
    }
}

#[test]
fn gemini_cli_home_takes_precedence_over_home() {
    let fixture = Fixture::new();
    let (mut lookup, resolution) = fixture.start_with("GEMINI_CLI_HOME");
    write_lines(&fixture.slug_folder(), "session-a.jsonl", UUID);
    assert_eq!(lookup.last_look(&resolution).as_deref(), Some(UUID));
}

#[test]
fn a_file_from_before_the_launch_is_ignored_even_if_it_is_written_again() {
    let fixture = Fixture::new();
    let folder = fixture.slug_folder();
    write_lines(&folder, "session-a.jsonl", OTHER);
    let (mut lookup, resolution) = fixture.start();
    write_lines(&folder, "session-a.jsonl", OTHER);
    assert_eq!(lookup.last_look(&resolution), None);
    write_lines(&folder, "session-b.jsonl", UUID);
    write_lines(&folder, "session-a.jsonl", OTHER);
    assert_eq!(lookup.last_look(&resolution).as_deref(), Some(UUID));
}

#[test]
fn files_of_other_projects_and_other_names_are_ignored() {
    let fixture = Fixture::new();
    let folder = fixture.slug_folder();
    let (mut lookup, resolution) = fixture.start();
    write_lines(&fixture.folder("another-project"), "session-a.jsonl", OTHER);
    write_lines(&folder, "checkpoint-a.json", OTHER);
    fs::write(folder.join("session-half.jsonl"), "{\"sessionId\":\"058").unwrap();
    fs::write(folder.join("session-empty.json"), "").unwrap();
    assert_eq!(lookup.last_look(&resolution), None);
}

#[test]
fn no_id_is_guessed_for_an_agent_with_another_home() {
    let fixture = Fixture::new();
    let elsewhere = Fixture::new();
    let (mut lookup, mut resolution) = fixture.start();
    write_lines(&fixture.slug_folder(), "session-a.jsonl", OTHER);
    let home = elsewhere.home.path().as_os_str().to_owned();
    resolution.env.insert("HOME".into(), home);
    assert_eq!(lookup.last_look(&resolution), None);
}

#[tokio::test(start_paused = true)]
async fn the_folder_is_scanned_until_the_file_appears() {
    let fixture = Fixture::new();
    let folder = fixture.slug_folder();
    let (mut lookup, resolution) = fixture.start();
    let found = tokio::spawn(async move { lookup.resolve_session_id(&resolution).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!found.is_finished());
    write_lines(&folder, "session-a.jsonl", UUID);
    let found = tokio::time::timeout(Duration::from_secs(30), found).await;
    let found = found.expect("the file is found").unwrap();
    assert_eq!(found.as_deref(), Some(UUID));
}

#[test]
fn a_follow_up_scans_no_folder() {
    let registry = ProfileRegistry::new();
    registry
        .register(builtin::gemini_without_session_id_option())
        .unwrap();
    let request = resume("gemini", None, UUID, "x");
    let parameters = launch(&registry, &request).unwrap().parameters;
    assert!(parameters.session_id_lookup.is_none());
    assert!(parameters.args.contains(&format!("--resume={UUID}")));
}
