//! The configuration: the file of the specification, and mistakes in others.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tmux_bus::{AgentRole, ClusterConfig, Error};

/// The file of the specification, byte for byte, with prompts that mention their markers.
fn specification() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/data/config");
    fs::create_dir_all(dir.path().join("config/personalities")).unwrap();
    for entry in fs::read_dir(data.join("personalities")).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(
            &path,
            dir.path()
                .join("config/personalities")
                .join(path.file_name().unwrap()),
        )
        .unwrap();
    }
    fs::copy(
        data.join("cc-cluster.yaml"),
        dir.path().join("config/cc-cluster.yaml"),
    )
    .unwrap();
    dir
}

#[test]
fn the_file_of_the_specification_loads_unchanged() {
    let dir = specification();
    let config = ClusterConfig::load(dir.path().join("config/cc-cluster.yaml")).unwrap();
    let root = dir.path().canonicalize().unwrap();
    assert_eq!(
        (config.name.as_str(), config.session_name.as_str()),
        ("orchestrator-cc", "orchestrator-cc")
    );
    assert_eq!((&config.base_dir, &config.work_dir), (&root, &root));
    assert_eq!(config.warnings, ["work_dir: `.>` is read as `.`"]);
    let found: Vec<_> = config
        .agents
        .iter()
        .map(|a| {
            (
                a.name.as_str(),
                a.role.clone(),
                a.marker.as_str(),
                a.pane_index,
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            ("grand_boss", AgentRole::GrandBoss, "GRAND BOSS OK", 0),
            (
                "middle_manager",
                AgentRole::MiddleManager,
                "MIDDLE MANAGER OK",
                1
            ),
            (
                "coding_writing_specialist",
                AgentRole::SpecialistCodingWriting,
                "CODING OK",
                2
            ),
            (
                "research_analysis_specialist",
                AgentRole::SpecialistResearchAnalysis,
                "RESEARCH OK",
                3
            ),
            (
                "testing_specialist",
                AgentRole::SpecialistTesting,
                "TESTING OK",
                4
            ),
        ]
    );
    for agent in &config.agents {
        assert_eq!(agent.timeout, Duration::from_secs(30));
        assert!(
            agent.personality_prompt_path.starts_with(&root)
                && agent.personality_prompt_path.is_file()
        );
    }
}

const GOOD: &str = r#"cluster:
  name: "team"
  session_name: "team"
  work_dir: "."
agents:
  - name: "second"
    role: "librarian"
    personality_prompt_path: "b.txt"
    marker: "B OK"
    pane_index: 7
    command: "my-agent --flag 'x y'"
    timeout_s: 2.5
    env: { KEY: "secret" }
  - name: "first"
    role: "grand_boss"
    personality_prompt_path: "a.txt"
    marker: "A OK"
    pane_index: 3
"#;

fn load(text: &str) -> Result<ClusterConfig, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.txt"), "say A OK").unwrap();
    fs::write(dir.path().join("b.txt"), "says nothing of it").unwrap();
    fs::write(dir.path().join("team.yaml"), text).unwrap();
    ClusterConfig::load(dir.path().join("team.yaml"))
}

#[test]
fn additional_keys_are_read_and_the_index_gives_the_order() {
    let config = load(GOOD).unwrap();
    let names: Vec<_> = config.agents.iter().map(|a| a.name.as_str()).collect();
    assert_eq!(names, ["first", "second"]);
    let second = &config.agents[1];
    assert_eq!(second.role, AgentRole::Other("librarian".into()));
    assert_eq!(second.command.as_deref(), Some("my-agent --flag 'x y'"));
    assert_eq!(second.timeout, Duration::from_millis(2500));
    assert_eq!(second.env["KEY"], "secret");
    assert!(
        !format!("{config:?}").contains("secret"),
        "Debug must not show the environment"
    );
    let [warning] = config.warnings.as_slice() else {
        panic!("{:?}", config.warnings)
    };
    assert!(
        warning.contains("b.txt") && warning.contains("B OK"),
        "{warning}"
    );
}

#[test]
fn mistakes_are_reported_with_file_and_place() {
    for (from, to, expected) in [
        ("marker: \"A OK\"", "", &["marker", "line"][..]),
        ("    role: \"librarian\"\n", "", &["role", "line"]),
        (
            "name: \"first\"",
            "name: \"second\"",
            &["name `second` is not unique", "line 14"],
        ),
        (
            "marker: \"A OK\"",
            "marker: \"B OK\"",
            &["marker `B OK` is not unique", "line 17"],
        ),
        (
            "pane_index: 3",
            "pane_index: 7",
            &["pane_index `7` is not unique", "line 18"],
        ),
        ("a.txt", "missing.txt", &["missing.txt", "first", "line 16"]),
        ("marker: \"A OK\"", "marker: \" \"", &["marker", "line 17"]),
        (
            "session_name: \"team\"",
            "session_name: \"my team\"",
            &["my team", "line 3"],
        ),
        (
            "work_dir: \".\"",
            "work_dir: \"nowhere\"",
            &["nowhere", "line 4"],
        ),
        ("timeout_s: 2.5", "timeout_s: -1", &["timeout_s", "line 12"]),
        ("timeout_s: 2.5", "timeout: 2.5", &["timeout", "line 12"]),
        ("pane_index: 3", "pane_index: three", &["line 18"]),
        ("agents:", "agents: [", &["line"]),
        (
            "name: \"first\"",
            "name: \"the first\"",
            &["the first", "line 14"],
        ),
    ] {
        let error = load(&GOOD.replacen(from, to, 1)).expect_err(to);
        assert!(matches!(error, Error::Config { .. }), "{error:?}");
        let text = error.to_string();
        for part in expected.iter().chain([&"team.yaml"]) {
            assert!(
                text.contains(part),
                "`{to}`: `{part}` is missing in: {text}"
            );
        }
    }
    assert!(matches!(
        ClusterConfig::load("/nowhere/team.yaml"),
        Err(Error::Io { .. })
    ));
}
