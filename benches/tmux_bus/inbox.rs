//! Messages that are left in an inbox.

use super::*;
use benches::scratch;
use tmux_bus::{AgentConfig, ClusterConfig, ClusterManager, InboxLimits, MessageState};

const AGENTS: usize = 10;

const DEFINITION: &str = r"
[inboxed]
idle = { settle_ms = 5 }
submit = { clear_keys = ['C-u'] }
input = { line = '^(?P<prefix>> )(?P<text>.*)$', next = '^  (?P<text>.*)$' }
";

/// Plays an agent that takes messages, and is idle at once.
pub(crate) fn agent() {
    let mut modes = tcgetattr(stdin()).unwrap();
    modes.make_raw();
    tcsetattr(stdin(), OptionalActions::Now, &modes).unwrap();
    let draw = |text: &str| {
        let text = text.replace("\x1b[200~", "").replace("\x1b[201~", "");
        let screen = format!("\x1b[?2004h\x1b[H\x1b[J> {text}");
        stdout().write_all(screen.as_bytes()).unwrap();
        stdout().flush().unwrap();
    };
    draw("");
    let (mut text, mut buffer) = (String::new(), [0; 4096]);
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        text.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        if text.ends_with('\r') {
            text.clear();
        }
        draw(&text);
    }
}

fn builder(dir: &Path, limits: InboxLimits) -> tmux_bus::ClusterBuilder {
    fs::write(dir.join("agents.toml"), DEFINITION).unwrap();
    let exe = std::env::current_exe().unwrap();
    let config = ClusterConfig::builder("inbox")
        .work_dir(dir)
        .agent_definitions("agents.toml")
        .inbox(limits);
    let config = (0..AGENTS).fold(config, |config, number| {
        let agent = AgentConfig::new(format!("agent{number}"))
            .agent("inboxed")
            .command(format!("exec '{}'", exe.display()))
            .env("BENCH_PROGRAM", "inboxed");
        config.agent(agent)
    });
    ClusterManager::builder(config.build().unwrap()).runtime_dir(dir.join("run"))
}

pub(crate) fn inbox(bench: &mut Bench) {
    leaving(bench);
    size(bench);
    delivering(bench);
}

/// One message on disk.
fn leaving(bench: &mut Bench) {
    let dir = scratch();
    let limits = InboxLimits::default().max_messages(usize::MAX);
    let inbox = builder(dir.path(), limits).inbox();
    let text = sample::message(0, 200);
    let mut raw = fs::File::create(dir.path().join("raw")).unwrap();
    let line =
        format!("{{\"left\":{{\"id\":\"6f1f4a52c2a94d2f9d0d7a3e8b1c5f60\",\"text\":{text:?}}}}}\n");
    bench
        .compare("a message of 200 bytes on disk")
        .floor("write and fdatasync", || {
            raw.write_all(line.as_bytes()).unwrap();
            raw.sync_data().unwrap();
        })
        .differs("one writer, no lock, no state")
        .ours("Inbox::leave", || {
            inbox.leave("user", "agent0", &text).unwrap();
        })
        .goal(Goal::at_most_floor(3.0))
        .run();
}

/// The file after many messages that are settled.
fn size(bench: &mut Bench) {
    let messages = if bench.is_smoke() { 100 } else { 10_000 };
    bench.progress("the inbox after many messages");
    let dir = scratch();
    let inbox = builder(dir.path(), InboxLimits::default()).inbox();
    let text = sample::message(0, 200);
    let path = dir.path().join("logs/inbox-inbox/inbox.jsonl");
    let mut largest = 0;
    let start = Instant::now();
    for number in 0..messages {
        let to = format!("agent{}", number % AGENTS);
        let id = inbox.leave("user", &to, &text).unwrap();
        inbox.take_back(&id).unwrap();
        largest = largest.max(fs::metadata(&path).unwrap().len());
    }
    let ours = start.elapsed().as_secs_f64();
    let mut raw = fs::File::create(dir.path().join("raw")).unwrap();
    let start = Instant::now();
    for _ in 0..2 * messages {
        raw.write_all(text.as_bytes()).unwrap();
        raw.sync_data().unwrap();
    }
    let floor = start.elapsed().as_secs_f64();
    let rate = |seconds: f64| Figure::from(messages as f64 / seconds);
    bench
        .table(
            &format!("{messages} messages left and taken back"),
            &[("messages", "/s"), ("largest file", "KiB")],
        )
        .ours(
            "Inbox",
            [
                rate(ours),
                Figure::from(largest as f64 / 1024.0).goal(Goal::at_most(256.0)),
            ],
        )
        .floor(
            "two writes, each with fdatasync",
            [
                rate(floor),
                Figure::from(raw.metadata().unwrap().len() as f64 / 1024.0),
            ],
        )
        .report();
}

/// Through the panes of ten agents.
fn delivering(bench: &mut Bench) {
    let messages = match (bench.is_smoke(), bench.is_full()) {
        (true, _) => 20,
        (_, true) => 10_000,
        _ => 1_000,
    };
    bench.progress("deliveries to ten agents");
    let dir = scratch();
    let runtime = Runtime::new().unwrap();
    let (seconds, kib) = runtime.block_on(async {
        let cluster = builder(dir.path(), InboxLimits::default());
        let cluster = cluster.start().await.unwrap().stop_on_drop();
        let text = sample::message(0, 60);
        for number in 0..messages {
            let to = format!("agent{}", number % AGENTS);
            let text = format!("{number} {}", text.replace('\n', " "));
            cluster.inbox().leave("user", &to, &text).unwrap();
        }
        let start = Instant::now();
        cluster.deliver_inbox_until_empty().await.unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let entries = cluster.inbox().all_entries().unwrap();
        let is_delivered = |state: &MessageState| matches!(state, MessageState::Delivered { .. });
        assert!(entries.iter().all(|entry| is_delivered(&entry.state)));
        let path = dir.path().join("logs/inbox-inbox/inbox.jsonl");
        (seconds, fs::metadata(path).unwrap().len() as f64 / 1024.0)
    });
    bench
        .table(
            &format!("{messages} messages delivered to {AGENTS} idle agents"),
            &[("messages", "/s"), ("file in the end", "KiB")],
        )
        .ours(
            "deliver_inbox",
            [
                Figure::from(messages as f64 / seconds).goal(Goal::at_least(50.0)),
                Figure::from(kib).goal(Goal::at_most(256.0)),
            ],
        )
        .report();
}
