//! The memory of a host whose agent prints hostile JSON, beside the bound of its events.

use std::path::Path;
use std::process::{Command, Stdio};

use benches::{Bench, Goal};
use exec_core::{
    CommandConfig, ExecutionContext, ExecutionService, NewChatRequest, ProcessParameters,
};
use exec_profiles::{EventFormat, ProfileDefinition, ProfileRegistry};

const FILE: &str = "EXEC_BENCH_HOSTILE_FILE";

/// 1.5 times the default bound of 16 MiB, and 8 MB.
const ALLOWED_MIB: f64 = 24.0 + 8_000_000.0 / (1 << 20) as f64;

/// Whether this process is the host of the hostile agent.
pub fn is_host() -> bool {
    std::env::var_os(FILE).is_some()
}

/// Relays the file and prints by how much the resident memory has grown at its peak, in KiB.
pub fn play() {
    let file = std::env::var(FILE).expect("a file");
    let state = tempfile::tempdir().expect("a temporary folder");
    let profile = ProfileDefinition::new("hostile", CommandConfig::new("/bin/cat", [""; 0]));
    let profile = profile.with_builder(|_, request| {
        let mut parameters = ProcessParameters::new([request.text.clone()]);
        parameters.event_parser = Some(EventFormat::Claude.parser());
        Ok(parameters)
    });
    let registry = ProfileRegistry::empty();
    registry.register(profile).expect("a profile");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let builder = ExecutionService::builder(registry).state_dir(state.path());
        let service = builder.open().expect("a service");
        let run = async |file: &str| {
            let context = ExecutionContext::for_workspace("hostile", state.path());
            let request = NewChatRequest {
                context: context.expect("a context"),
                prompt: file.to_owned(),
            };
            let execution = service.launch(request).await.expect("a launch");
            execution.wait().await.expect("an end");
        };
        run("/dev/null").await;
        let before = status_kib("VmRSS:");
        run(&file).await;
        println!("{}", status_kib("VmHWM:") - before);
    });
}

fn status_kib(name: &str) -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("the status");
    let line = status.lines().find(|line| line.starts_with(name));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|text| text.parse().ok()).expect("a number")
}

pub fn figures(bench: &mut Bench) {
    let megabyte = if bench.is_smoke() { 1 << 12 } else { 1 << 20 };
    let dir = tempfile::tempdir().expect("a temporary folder");
    let tool = |input: &str| {
        format!(
            r#"{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"t","name":"x","input":{input}}}]}}}}"#
        )
    };
    let list = |piece: &str, bytes: usize| {
        let pieces = vec![piece; bytes / (piece.len() + 1)];
        format!("[{}]", pieces.join(","))
    };
    let mut worst: f64 = 0.0;
    for (name, lines) in [
        (
            "12 tool calls with 1 MB of objects each",
            vec![tool(&list(r#"{"a":0}"#, megabyte)); 12],
        ),
        (
            "7 MB that no event uses",
            vec![format!(
                r#"{{"type":"system","subtype":"init","session_id":"s","tools":{}}}"#,
                list(r#"{"a":0}"#, 7 * megabyte)
            )],
        ),
        (
            "7 MB of brackets",
            vec![tool(&("[".repeat(3 * megabyte) + &"]".repeat(3 * megabyte))); 3],
        ),
        ("numbers of 7 MB", vec![tool(&"9".repeat(7 * megabyte)); 5]),
        (
            "7 MB of text blocks, 270,000 in a line",
            vec![
                format!(
                    r#"{{"type":"assistant","message":{{"content":{}}}}}"#,
                    list(r#"{"type":"text","text":""}"#, 7 * megabyte)
                );
                3
            ],
        ),
        (
            "7 MB of zeros, 3,600,000 in a line",
            vec![tool(&list("0", 7 * megabyte)); 3],
        ),
    ] {
        bench.progress(name);
        let grown = measure(&dir.path().join("output"), &lines);
        bench.figure(
            &format!("resident memory under hostile JSON: {name}"),
            grown,
            "MiB",
            Some(Goal::at_most(ALLOWED_MIB)),
        );
        worst = worst.max(grown);
    }
    bench.figure(
        "resident memory under hostile JSON, the worst of them, as multiple of the bound",
        worst / 16.0,
        "",
        None,
    );
}

/// By how much a host grows at its peak, in MiB.
fn measure(file: &Path, lines: &[String]) -> f64 {
    std::fs::write(file, lines.join("\n") + "\n").expect("a file");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .env(FILE, file)
        .stderr(Stdio::inherit())
        .output()
        .expect("a host");
    assert!(output.status.success(), "the host failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let kib: f64 = text.trim().parse().expect("a number");
    kib / 1024.0
}
