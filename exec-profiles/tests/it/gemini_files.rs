//! The session files of Gemini, in the places where its versions put them.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use exec_core::{SessionIdLookup, SessionResolutionContext};
use exec_profiles::{ProfileRegistry, builtin};

use crate::request::{UUID, context, follow_up, launch, new_chat};

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

    /// The folder of today: a slug that an index names.
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

    /// Older: the SHA-256 of the path, worked out by another program than ours.
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

    /// Oldest: the specification's project id.
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

    /// What is there now is old.
    fn start(&self) -> (Box<dyn SessionIdLookup>, SessionResolutionContext) {
        self.start_with("HOME")
    }

    fn start_with(&self, variable: &str) -> (Box<dyn SessionIdLookup>, SessionResolutionContext) {
        let registry = ProfileRegistry::new();
        let mut definition = builtin::gemini_without_session_id_option();
        let home = self.home.path().to_str().unwrap().to_owned();
        let env = &mut definition.command.env;
        // As if it were not set, whatever the host has.
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
        // The folder, and the index that names it, may come only after the start.
        write(&folder(&fixture), name, UUID);
        assert_eq!(
            lookup.last_look(&resolution).as_deref(),
            Some(UUID),
            "{name}"
        );
    }
}

#[test]
fn geminis_own_variable_for_its_home_comes_first() {
    let fixture = Fixture::new();
    let (mut lookup, resolution) = fixture.start_with("GEMINI_CLI_HOME");
    write_lines(&fixture.slug_folder(), "session-a.jsonl", UUID);
    assert_eq!(lookup.last_look(&resolution).as_deref(), Some(UUID));
}

#[test]
fn a_file_that_was_there_before_is_not_ours_even_if_it_is_written_now() {
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
fn other_projects_and_other_files_do_not_count() {
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
fn an_agent_with_another_home_is_not_guessed_at() {
    let fixture = Fixture::new();
    let elsewhere = Fixture::new();
    let (mut lookup, mut resolution) = fixture.start();
    write_lines(&fixture.slug_folder(), "session-a.jsonl", OTHER);
    let home = elsewhere.home.path().as_os_str().to_owned();
    resolution.env.insert("HOME".into(), home);
    assert_eq!(lookup.last_look(&resolution), None);
}

#[tokio::test(start_paused = true)]
async fn the_folder_is_looked_at_until_the_file_comes() {
    let fixture = Fixture::new();
    let folder = fixture.slug_folder();
    let (mut lookup, resolution) = fixture.start();
    let found = tokio::spawn(async move { lookup.resolve_session_id(&resolution).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!found.is_finished());
    write_lines(&folder, "session-a.jsonl", UUID);
    let found = tokio::time::timeout(Duration::from_secs(30), found).await;
    let found = found.expect("it is found").unwrap();
    assert_eq!(found.as_deref(), Some(UUID));
}

#[test]
fn a_follow_up_watches_nothing() {
    let registry = ProfileRegistry::new();
    registry
        .register(builtin::gemini_without_session_id_option())
        .unwrap();
    let request = follow_up(context("gemini", None, Path::new("/w")), UUID, "x");
    let parameters = launch(&registry, &request).unwrap().parameters;
    assert!(parameters.session_id_lookup.is_none());
    assert!(parameters.args.contains(&format!("--resume={UUID}")));
}
