//! Answers that the hooks of an agent report.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tmux_bus::{
    ClusterConfig, ClusterManager, Error, LogFilter, MessageLog, MessageType, SendToOptions,
};

use crate::fake_agent;
use crate::pane_program::MARKER;
use crate::support::{TestDir, eventually, need_tmux, tmux};

pub(crate) const AGENTS: [&str; 4] = ["claude", "codex", "gemini", "opencode"];

/// A cluster of one fake agent with a private home. It is killed when the test ends.
pub(crate) struct FakeTeam {
    cluster: ClusterManager,
    dir: TestDir,
}

impl Deref for FakeTeam {
    type Target = ClusterManager;

    fn deref(&self) -> &ClusterManager {
        &self.cluster
    }
}

impl FakeTeam {
    pub(crate) async fn start(agent: &str) -> Self {
        Self::start_with(agent, "", |_| json!({})).await
    }

    /// `args` are added to the command, the variables that `prepare` returns to the environment.
    pub(crate) async fn start_with(
        agent: &str,
        args: &str,
        prepare: impl FnOnce(&Path) -> Value,
    ) -> Self {
        // Gemini reads the file with our hooks only if root owns it. The fake one reads it.
        Self::start_defined(agent, args, "[gemini.launch]\nroot_files = []\n", prepare).await
    }

    async fn start_defined(
        agent: &str,
        args: &str,
        definitions: &str,
        prepare: impl FnOnce(&Path) -> Value,
    ) -> Self {
        need_tmux();
        let dir = TestDir::new();
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let mut env = prepare(&home);
        env["HOME"] = home.to_str().unwrap().into();
        env["CODEX_HOME"] = home.to_str().unwrap().into();
        let program = fake_agent::install(dir.path(), agent);
        let command = Value::from(format!("exec '{}' {args}", program.display()));
        fs::write(dir.path().join("p.txt"), MARKER).unwrap();
        let config = format!(
            "cluster: {{ name: team, session_name: team, work_dir: . }}\nagents:\n  - {{ name: {agent}, role: x, \
             personality_prompt_path: p.txt, marker: {MARKER}, pane_index: 0, timeout_s: 40, agent: {agent}, \
             command: {command}, env: {env} }}\n"
        );
        let path = dir.path().join("team.yaml");
        fs::write(&path, config).unwrap();
        let rules = dir.path().join("agents.toml");
        fs::write(&rules, definitions).unwrap();
        fs::set_permissions(&rules, fs::Permissions::from_mode(0o600)).unwrap();
        let config = ClusterConfig::load(path).unwrap();
        let cluster = ClusterManager::builder(config)
            .agent_definitions(rules)
            .runtime_dir(dir.path().join("a b'c\"$d"))
            .start()
            .await
            .unwrap();
        Self { cluster, dir }
    }

    pub(crate) fn file(&self, name: &str) -> std::path::PathBuf {
        self.dir.path().join(name)
    }

    /// The messages that the agent got.
    pub(crate) fn prompts(&self) -> Vec<String> {
        let text = fs::read_to_string(self.file("home/prompts")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    pub(crate) fn entries(&self) -> Vec<(MessageType, String)> {
        let log = MessageLog::load(self.logger().path(), &LogFilter::default()).unwrap();
        let entries = log.entries.into_iter();
        entries
            .map(|entry| (entry.message_type, entry.content))
            .collect()
    }
}

/// A long answer with everything that a screen changes, and with the marker in the middle.
fn long_answer() -> String {
    let mut text = "# Title\n\n| a | b |\n|---|---|\n\n```rust\nfn main() {\n\tprintln!(\"{}\", 1);\n}\n```\n\n".to_owned();
    for line in 0..300 {
        text.push_str(&format!("{line}: 日本語の長い行 and **bold** text  \n"));
    }
    text + &format!("{MARKER}\n\nand more\n\n{MARKER}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hooks_give_exact_answers_and_the_hooks_of_the_user_still_run() {
    for agent in AGENTS {
        let mine = |home: &Path| format!("cat >>'{0}/mine'; echo >>'{0}/mine'", home.display());
        let hooks = |home: &Path, event: &str| {
            json!({"hooks": {event: [{"hooks": [{"type": "command", "command": mine(home)}]}]}})
                .to_string()
        };
        let team = FakeTeam::start_with(agent, "", |home| match agent {
            "claude" => {
                fs::create_dir(home.join(".claude")).unwrap();
                fs::write(home.join(".claude/settings.json"), hooks(home, "Stop")).unwrap();
                json!({})
            }
            "codex" => {
                let list = json!([
                    "sh",
                    "-c",
                    "printf '%s\\n' \"$2\" >>\"$1\"",
                    "x",
                    home.join("mine")
                ]);
                fs::write(home.join("config.toml"), format!("notify = {list}")).unwrap();
                json!({})
            }
            "gemini" => {
                fs::write(home.join("defaults.json"), hooks(home, "AfterAgent")).unwrap();
                json!({"GEMINI_CLI_SYSTEM_DEFAULTS_PATH": home.join("defaults.json")})
            }
            _ => json!({"OPENCODE_CONFIG_CONTENT": "{\"plugin\":[\"mine\"]}"}),
        })
        .await;
        let user = team.outsider("user");
        let long = long_answer();
        fs::write(team.file("answer"), &long).unwrap();
        let say = format!("please [[SAY {}]]", team.file("answer").display());
        // The same answer twice.
        for _ in 0..2 {
            let answer = user.send_to(agent, &say).await.unwrap();
            assert_eq!(answer, long, "{agent}");
        }
        let answer = user.send_to(agent, "two\nlines").await.unwrap();
        assert_eq!(answer, format!("echo: two\nlines\n\n{MARKER}"), "{agent}");
        let reported = fs::read_to_string(team.file("home/mine")).unwrap();
        assert!(reported.lines().count() >= 3, "{agent}: {reported}");
        assert_eq!(team.prompts().len(), 3, "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_on_the_command_line_are_kept() {
    let team = FakeTeam::start_with(
        "claude",
        "--settings \"$HOME_SETTINGS\"",
        |home| json!({"HOME_SETTINGS": home.join("x")}),
    );
    // The value is not known before the shell runs.
    let refused = tokio::spawn(async { drop(team.await) }).await;
    assert!(refused.is_err());
    let mine =
        r#"{"hooks":{"Stop":[{"hooks":[{"type":"command","command":"cat >>$HOME/mine"}]}]}}"#;
    let team = FakeTeam::start_with("claude", &format!("--settings '{mine}'"), |_| json!({})).await;
    let answer = team
        .outsider("user")
        .send_to("claude", "hello")
        .await
        .unwrap();
    assert_eq!(answer, format!("echo: hello\n\n{MARKER}"));
    assert!(
        fs::read_to_string(team.file("home/mine"))
            .unwrap()
            .contains("echo: hello")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_another_prompt_is_never_returned() {
    for agent in AGENTS {
        let team = FakeTeam::start(agent).await;
        let answer = team
            .outsider("user")
            .send_to(agent, "mine [[OTHER]]")
            .await
            .unwrap();
        assert_eq!(
            answer,
            format!("echo: mine [[OTHER]]\n\n{MARKER}"),
            "{agent}"
        );
    }
}

/// One thread, which is blocked until the agent has ended: the event and the end are both there when the reader looks.
#[tokio::test]
async fn an_answer_that_was_reported_before_the_exit_is_returned() {
    for agent in AGENTS {
        let team = FakeTeam::start(agent).await;
        let go = team.file("go");
        let message = format!("bye [[LATE {}]] [[EXIT]]", go.display());
        let asking = tokio::spawn({
            let (user, message) = (team.outsider("user"), message.clone());
            async move { user.send_to(agent, &message).await }
        });
        while !team.logger().path().exists() || team.entries().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        fs::write(go, "").unwrap();
        let pane = team.get_pane(agent).unwrap().to_string();
        eventually("the agent ends", || {
            let is_dead = ["display-message", "-p", "-t", &pane, "#{pane_dead}"];
            tmux(team.socket(), &is_dead) == "1\n"
        });
        let answer = asking.await.unwrap().unwrap();
        assert_eq!(answer, format!("echo: {message}\n\n{MARKER}"), "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leading_command_character_is_defused_and_the_log_has_the_body_alone() {
    let team = FakeTeam::start("claude").await;
    let user = team.outsider("user");
    for body in ["/tmp is a path", "!ls", "# heading", "@file"] {
        user.send_to("claude", body).await.unwrap();
        let expected = format!("Message from user:\n{body}");
        assert_eq!(team.prompts().pop().unwrap(), expected);
        let entries = team.entries();
        let mut tasks = entries
            .iter()
            .rev()
            .filter(|(kind, _)| *kind == MessageType::Task);
        assert_eq!(tasks.next().unwrap().1, body);
    }
    let command = SendToOptions::default().command();
    user.send_to_with("claude", "/status", &command)
        .await
        .unwrap();
    assert_eq!(team.prompts().pop().unwrap(), "/status");
    user.post_to_with("claude", "/clear", &command)
        .await
        .unwrap();
    user.send_to("claude", "? - plain").await.unwrap();
    assert_eq!(team.prompts()[5..], ["/clear", "? - plain"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_marker_and_an_altered_message_are_reported() {
    let team = FakeTeam::start("claude").await;
    let user = team.outsider("user");
    let options = SendToOptions::default();
    let answer = user.ask("claude", "plain", &options).await.unwrap();
    assert!(answer.has_marker && answer.altered.is_none(), "{answer:?}");
    let answer = user.ask("claude", "a\tb", &options).await.unwrap();
    assert_eq!(answer.altered.as_deref(), Some("a    b"));
    fs::write(team.file("answer"), "no such word").unwrap();
    let say = format!("[[SAY {}]]", team.file("answer").display());
    let answer = user.ask("claude", &say, &options).await.unwrap();
    assert_eq!(
        (answer.text.as_str(), answer.has_marker),
        ("no such word", false)
    );
    let without = SendToOptions::default().without_marker();
    let answer = user
        .send_to_with("claude", "hello", &without)
        .await
        .unwrap();
    assert_eq!(answer, "echo: hello");
    // The log has all of it.
    assert_eq!(
        team.entries().pop().unwrap().1,
        format!("echo: hello\n\n{MARKER}")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_turn_is_an_error_before_the_timeout() {
    for agent in ["claude", "gemini", "opencode"] {
        let team = FakeTeam::start(agent).await;
        let user = team.outsider("user");
        let long = SendToOptions::default().timeout(Duration::from_secs(600));
        let error = user
            .send_to_with(agent, "[[FAIL]]", &long)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::NoAnswer { .. }),
            "{agent}: {error:?}"
        );
        assert!(!error.partial().unwrap().is_empty(), "the screen");
        let answer = user.send_to(agent, "hello").await.unwrap();
        assert_eq!(answer, format!("echo: hello\n\n{MARKER}"), "{agent}");
    }
}

/// Claude and Codex report nothing after Esc: the screen tells.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_turn_is_an_error_before_the_timeout() {
    for agent in ["claude", "codex"] {
        let team = FakeTeam::start(agent).await;
        let user = team.outsider("user");
        let long = SendToOptions::default().timeout(Duration::from_secs(600));
        let error = user
            .send_to_with(agent, "[[INTERRUPT]]", &long)
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::NoAnswer { .. }),
            "{agent}: {error:?}"
        );
        let answer = user.send_to(agent, "hello").await.unwrap();
        assert_eq!(answer, format!("echo: hello\n\n{MARKER}"), "{agent}");
    }
}

/// The payload of a long answer does not fit into an argument; Codex then reports nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_codex_cannot_report_is_read_from_its_transcript() {
    let team = FakeTeam::start("codex").await;
    let answer = team
        .outsider("user")
        .send_to("codex", "[[BIG]]")
        .await
        .unwrap();
    assert_eq!(answer, format!("echo: [[BIG]]\n\n{MARKER}"));
}

/// Only root can inject hooks into Gemini. For other users its title tells the end of a turn, its transcript the text.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_hooks_the_transcript_of_gemini_has_the_answer() {
    let defaults = |home: &Path| json!({"GEMINI_CLI_SYSTEM_DEFAULTS_PATH": home.join("mine.json")});
    let team = FakeTeam::start_defined("gemini", "", "", defaults).await;
    let user = team.outsider("user");
    fs::write(team.file("answer"), long_answer()).unwrap();
    let say = format!("please [[SAY {}]]", team.file("answer").display());
    for _ in 0..2 {
        let answer = user.send_to("gemini", &say).await.unwrap();
        assert_eq!(answer, long_answer());
    }
    let error = user.send_to("gemini", "[[INTERRUPT]]").await.unwrap_err();
    assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
}

/// A restart has a new folder of events; the old one is removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_agent_has_new_hooks() {
    let team = FakeTeam::start("claude").await;
    let user = team.outsider("user");
    let folders = || {
        let session = team.socket().parent().unwrap().join("hooks");
        let entries = fs::read_dir(session).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 1);
        names.pop().unwrap()
    };
    let before = folders();
    team.restart("claude").await.unwrap();
    assert_ne!(before, folders());
    let answer = user.send_to("claude", "hello").await.unwrap();
    assert_eq!(answer, format!("echo: hello\n\n{MARKER}"));
    team.stop().await.unwrap();
    assert!(!team.socket().parent().unwrap().exists());
}
