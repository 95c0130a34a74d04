use agent_snapshot::conversation::{Message, ToolCallRequest};
use agent_snapshot::{AgentId, AgentSnapshot, FileStorage, SnapshotStorage};
use serde_json::{Value, json};

use crate::sandbox::Sandbox;

/// A folder with two agents.
fn filled() -> Sandbox {
    let sandbox = Sandbox::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let files = FileStorage::open(sandbox.home().join("files"))
            .await
            .unwrap();
        for name in ["worker_007", "作業"] {
            let mut snapshot = AgentSnapshot::new(AgentId::new(name).unwrap());
            snapshot.labels.insert("project".into(), "atlas".into());
            snapshot.tick_index = 1;
            let history = &mut snapshot.memory.short_term_history;
            history.push(Message::user("What is in the file?"));
            let call = ToolCallRequest::new("1", "read", json!({"path": "a.txt"}));
            history.push(Message::assistant("I look.").with_tool_calls(vec![call]));
            files.save(&snapshot).await.unwrap();
        }
        files.close().await.unwrap();
    });
    sandbox
}

fn run(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let mut command = sandbox.example("inspect");
    sandbox.json(command.arg("--json").args(arguments))
}

#[test]
fn agents_are_listed_and_shown() {
    let sandbox = filled();
    let list = run(&sandbox, &["list", "file:files"]);
    let agents = list["agents"].as_array().unwrap();
    assert_eq!(agents.len(), 2);
    assert_eq!(agents[0]["agent"], "worker_007");
    assert_eq!(agents[0]["messages"], 2);
    assert_eq!(agents[0]["labels"], json!({"project": "atlas"}));
    let rest = run(&sandbox, &["list", "file:files", "--after", "worker_007"]);
    assert_eq!(rest["agents"][0]["agent"], "作業");
    let shown = run(&sandbox, &["show", "file:files", "作業"]);
    assert_eq!(shown["tick_index"], 1);
}

#[test]
fn a_storage_is_copied_verified_and_forked() {
    let sandbox = filled();
    let copied = run(&sandbox, &["copy", "file:files", "sqlite:agents.db"]);
    assert_eq!(copied, json!({"agents": 2, "messages": 4, "damaged": []}));
    let same = run(&sandbox, &["verify", "file:files", "sqlite:agents.db"]);
    assert_eq!(same, json!({"different": []}));
    let fork = ["fork", "sqlite:agents.db", "worker_007", "1", "worker_008"];
    assert_eq!(
        run(&sandbox, &fork),
        json!({"agent": "worker_008", "messages": 1})
    );
    let mut command = sandbox.example("inspect");
    command.args(["verify", "file:files", "sqlite:agents.db"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        String::from_utf8(output.stdout)
            .unwrap()
            .contains("worker_008")
    );
}

#[test]
fn a_conversation_is_exported_as_markdown_and_as_a_request() {
    let sandbox = filled();
    let export = |format: &str| {
        let arguments = ["export", "file:files", "worker_007", "--format", format];
        let exported = run(&sandbox, &arguments);
        exported["export"].as_str().unwrap().to_owned()
    };
    let markdown = export("markdown");
    assert!(markdown.contains("## Assistant\n\nI look.\n"), "{markdown}");
    assert!(markdown.contains("call `read`"), "{markdown}");
    let request: Value = serde_json::from_str(&export("anthropic")).unwrap();
    assert_eq!(request["messages"][0]["role"], "user");
    let request: Value = serde_json::from_str(&export("openai")).unwrap();
    assert!(request["messages"].as_array().unwrap().len() >= 2);
}

#[test]
fn a_storage_that_is_not_there_is_not_created() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.example("inspect");
    sandbox.refuses(
        command.args(["list", "sqlite:none.db"]),
        1,
        &["no storage at"],
    );
    sandbox.holds(&[]);
}
