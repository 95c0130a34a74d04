//! An agent whose hook reports its answer.

use super::*;
use tmux_bus::{ClusterConfig, ClusterManager};

/// Plays Codex: its input line, its title, and a hook that stores the time at which it is stored as the answer. The hook
/// program itself is left out: its time is that of a shell.
pub(crate) fn agent() {
    let notify = std::env::args()
        .find_map(|word| Some(word.strip_prefix("notify=")?.to_owned()))
        .unwrap();
    let notify: Vec<String> = serde_json::from_str(&notify).unwrap();
    let events = PathBuf::from(&notify[2]);
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    let draw = |text: &str| {
        let screen = format!(
            "\x1b[?2004h\x1b]2;project\x07\x1b[2J\x1b[H› {text}\r\n\r\n  model default · /\x1b[1;{}H",
            3 + text.len()
        );
        stdout().write_all(screen.as_bytes()).unwrap();
        stdout().flush().unwrap();
    };
    draw("");
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    for number in 0.. {
        loop {
            let count = stdin().read(&mut buffer).unwrap();
            if count == 0 {
                return;
            }
            text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
            if text.ends_with('\r') {
                break;
            }
            draw(&text.replace("\x1b[200~", "").replace("\x1b[201~", ""));
        }
        let prompt = text.replace("\x1b[200~", "").replace("\x1b[201~", "");
        draw("");
        let (part, file) = (
            events.join(".part"),
            events.join(format!("notify.{number}.0.json")),
        );
        let payload = format!(
            r#"{{"type":"agent-turn-complete","thread-id":"t","turn-id":"{number}","input-messages":["{}"],"last-assistant-message":"at {} {MARKER}"}}"#,
            prompt.trim_end(),
            clock()
        );
        text.clear();
        fs::write(&part, payload).unwrap();
        fs::rename(part, file).unwrap();
    }
}

/// Writes the configuration of a cluster with such an agent, `a`.
pub(crate) fn config(dir: &TempDir) -> PathBuf {
    let exe = std::env::current_exe().unwrap();
    fs::write(dir.path().join("p.txt"), MARKER).unwrap();
    let config = format!(
        "cluster: {{ name: bench, session_name: bench, work_dir: . }}\nagents:\n  - {{ name: a, role: x, personality_prompt_path: p.txt, \
         marker: {MARKER}, pane_index: 0, agent: codex, command: \"exec '{}'\", env: {{ BENCH_PROGRAM: hooked, CODEX_HOME: /nowhere }} }}\n",
        exe.display()
    );
    let path = dir.path().join("team.yaml");
    fs::write(&path, config).unwrap();
    path
}

/// The time from a stored event to the answer.
pub(crate) fn hook(bench: &mut Bench) {
    let rounds = if bench.is_smoke() { 1 } else { 40 };
    bench.progress("answers of a hook");
    let dir = tempfile::tempdir().unwrap();
    let path = config(&dir);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut taken: Vec<Duration> = runtime.block_on(async {
        let config = ClusterConfig::load(path).unwrap();
        let builder = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
        let cluster = builder.start().await.unwrap();
        let user = cluster.outsider("user");
        let mut taken = Vec::new();
        for number in 0..rounds {
            let answer = user
                .send_to("a", &format!("message {number}"))
                .await
                .unwrap();
            taken.push(since(printed_at(&answer)));
        }
        cluster.stop().await.unwrap();
        taken
    });
    taken.sort_unstable();
    let within = |at: usize| Figure::from(taken[at].as_secs_f64() * 1e3);
    bench
        .table(
            &format!("a hook's event stored until the answer is returned, {rounds} times"),
            &[("half of them within", "ms"), ("all of them within", "ms")],
        )
        .ours(
            "Agent::send_to",
            [
                within(rounds / 2).goal(Goal::at_most(20.0)),
                within(rounds - 1),
            ],
        )
        .report();
}
