//! Agents by name, and the user's file with definitions.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use tmux_bus::{AgentState, ClusterBuilder, ClusterConfig, ClusterManager, Error, StopOnDrop};

use crate::support::{LONG, TestDir, need_tmux};

/// A team of one agent, with additional keys of its section.
fn builder(dir: &TestDir, keys: &str) -> ClusterBuilder {
    need_tmux();
    fs::write(dir.path().join("prompt.txt"), "A OK").unwrap();
    let text = format!(
        "cluster: {{ name: team, session_name: team, work_dir: . }}\nagents:\n  - {{ name: a, role: x, \
         personality_prompt_path: prompt.txt, marker: A OK, pane_index: 0, timeout_s: 40{keys} }}\n"
    );
    let path = dir.path().join("team.yaml");
    fs::write(&path, text).unwrap();
    let config = ClusterConfig::load(path).unwrap();
    ClusterManager::builder(config).runtime_dir(dir.path().join("run"))
}

async fn definition(builder: ClusterBuilder) -> String {
    let team = builder.start().await.unwrap().stop_on_drop();
    let mut status = team.status().await.unwrap();
    status.agents.remove(0).definition
}

/// A program of the name `claude` that shows an input line as Claude Code does.
fn fake_claude(dir: &TestDir) -> String {
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\nprintf '%s\\n' \"$@\" >arguments\nprintf '\\r────────────────────────\\n❯\\302\\240'\nexec cat\n";
    fs::write(bin.join("claude"), script).unwrap();
    fs::set_permissions(bin.join("claude"), fs::Permissions::from_mode(0o755)).unwrap();
    format!("{}:{}", bin.display(), std::env::var("PATH").unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_without_a_command_is_claude_code() {
    let dir = TestDir::new();
    let path = fake_claude(&dir);
    let keys = format!(", env: {{ PATH: \"{path}\" }}");
    assert_eq!(definition(builder(&dir, &keys)).await, "claude");
    let arguments = fs::read_to_string(dir.path().join("arguments")).unwrap();
    assert!(
        arguments.contains("--append-system-prompt\nA OK\n"),
        "{arguments}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_follows_from_the_command_unless_it_is_named() {
    let dir = TestDir::new();
    let path = fake_claude(&dir);
    let env = format!(", env: {{ PATH: \"{path}\" }}");
    let check = |keys: &str| definition(builder(&dir, &format!("{keys}{env}")));
    assert_eq!(check(", command: exec claude --model opus").await, "claude");
    assert_eq!(
        check(", agent: claude, command: sh bin/claude").await,
        "claude"
    );
    assert_eq!(check(", command: \"printf '> '; exec cat\"").await, "plain");
    let claude_as_plain = ", agent: plain, command: \"printf '> '; exec cat; claude\"";
    assert_eq!(check(claude_as_plain).await, "plain");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unknown_agent_program_is_refused_with_the_known_ones() {
    let dir = TestDir::new();
    let refusal = |keys: &'static str| {
        let builder = builder(&dir, keys);
        async move { builder.start().await.unwrap_err().to_string() }
    };
    let unknown = refusal(", agent: cladue").await;
    let expected = "agent `a`: agent program `cladue` is not known; known are claude, codex, ";
    assert!(unknown.contains(expected), "{unknown}");
    let plain = refusal(", agent: plain").await;
    assert!(
        plain.ends_with("a `plain` agent needs a command"),
        "{plain}"
    );
}

const TOY: &str = "
[toy]
commands = ['toy']
command = '''printf 'Toy asks: who are you?'; read -r x; printf '\\033[2J\\033[Htoy> '; exec cat'''
input = { line = '^(?P<prefix>toy> )(?P<text>.*)$', next = '^     (?P<text>.*)$' }
[[toy.dialog]]
id = 'name'
all = ['^Toy asks: who are you']
say = 'Toy asks for your name. Attach and type it.'
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_users_file_adds_an_agent() {
    let dir = TestDir::new();
    let file = dir.path().join("agents.toml");
    fs::write(&file, TOY).unwrap();
    let start = || builder(&dir, ", agent: toy").agent_definitions(&file);
    let error = start().start().await.unwrap_err();
    let team: StopOnDrop = start().attach().await.unwrap().stop_on_drop();
    assert!(
        error.to_string().contains("Toy asks for your name"),
        "{error}"
    );
    let pane = team.get_pane("a").unwrap().to_string();
    crate::support::tmux(team.socket(), &["send-keys", "-t", &pane, "me", "Enter"]);
    team.wait_for("a", AgentState::Idle, LONG).await.unwrap();
}

/// The agent of the chapter "Hooks" in `docs/agent-definitions.md`. Its screen does not show its answers.
const PARROT: &str = r#"#!/bin/sh
hook() {
    command=$(sed "s/.*\"$1\": \"\([^\"]*\)\".*/\1/" "$PARROT_HOOKS")
    printf '%s' "$2" | sh -c "$command"
}
hook start '{"session_id":"s"}'
turn=0
while printf 'parrot> '; read -r line; do
    turn=$((turn + 1))
    hook prompt "{\"session_id\":\"s\",\"turn_id\":\"$turn\",\"prompt\":\"$line\"}"
    echo squawk
    hook stop "{\"session_id\":\"s\",\"turn_id\":\"$turn\",\"answer\":\"repeats: $line\"}"
done
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_of_a_users_file_reports_its_answers_by_the_documented_hooks() {
    let dir = TestDir::new();
    let page = include_str!("../../docs/agent-definitions.md");
    let (_, hooks) = page.split_once("# Hooks").unwrap();
    let (_, hooks) = hooks.split_once("```toml\n").unwrap();
    let file = dir.path().join("agents.toml");
    fs::write(&file, hooks.split("```").next().unwrap()).unwrap();
    let bin = dir.path().join("bin");
    fs::create_dir(&bin).unwrap();
    fs::write(bin.join("parrot"), PARROT).unwrap();
    fs::set_permissions(bin.join("parrot"), fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let keys = format!(", agent: parrot, env: {{ PATH: \"{path}\" }}");
    let builder = builder(&dir, &keys).agent_definitions(&file);
    let team = builder.start().await.unwrap().stop_on_drop();
    assert_eq!(team.config().warnings, [""; 0]);
    for text in ["hello", "again"] {
        let answer = team.outsider("user").send_to("a", text).await;
        assert_eq!(answer.unwrap(), format!("repeats: {text}"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_in_a_users_file_are_reported_and_leave_the_built_in_agents() {
    let dir = TestDir::new();
    let file = dir.path().join("agents.toml");
    fs::write(&file, format!("{TOY}[claude]\ncolour = 3\n")).unwrap();
    let keys = ", command: \"printf '> '; exec cat\"";
    // Named in the configuration, relative to it.
    let with_file = |text: &str| {
        drop(builder(&dir, keys));
        let path = dir.path().join("team.yaml");
        let yaml = fs::read_to_string(&path).unwrap();
        fs::write(&path, yaml.replace("work_dir: .", text)).unwrap();
        let config = ClusterConfig::load(path).unwrap();
        ClusterManager::builder(config).runtime_dir(dir.path().join("run"))
    };
    let builder = with_file("work_dir: ., agent_definitions: agents.toml");
    let team = builder.clone().start().await.unwrap().stop_on_drop();
    let warnings = &team.config().warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("agents.toml: line 11, column 1: unknown field `colour`"),
        "{warnings:?}"
    );
    drop(team);

    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    let error = builder.start().await.unwrap_err();
    assert!(matches!(error, Error::NotPrivate { .. }), "{error:?}");
}

/// A status line with a clock never is quiet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_prints_all_the_time_becomes_ready() {
    let dir = TestDir::new();
    let clock = "printf '> '; while :; do printf '\\\\0337\\\\033[5;1Hx\\\\0338'; sleep 0.02; done";
    let keys = format!(", command: \"{clock}\"");
    let team = builder(&dir, &keys).start().await.unwrap().stop_on_drop();
    let wait = team.wait_for("a", AgentState::Idle, LONG);
    tokio::time::timeout(Duration::from_secs(60), wait)
        .await
        .unwrap()
        .unwrap();
}

/// The process that started the agents can have chosen other commands than the file.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attached_process_knows_which_program_was_started() {
    let dir = TestDir::new();
    let command = ", command: \"while printf '> '; read -r x; do echo A OK; done\"";
    let started = builder(&dir, command).start().await.unwrap();
    let _guard = started.stop_on_drop();
    // Without a command it would be Claude Code.
    let attached = builder(&dir, "").attach_unchanged().await.unwrap();
    let status = attached.status().await.unwrap();
    assert_eq!(status.agents[0].definition, "plain");
    assert_eq!(status.agents[0].state, AgentState::Idle);
    let answer = attached.outsider("user").send_to("a", "hello").await;
    assert_eq!(answer.unwrap(), "A OK");
}
