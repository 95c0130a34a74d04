//! Messages that are left: delivered when the agent is idle, once and in order.

use std::fs;
use std::process::Command;
use std::time::Duration;

use tmux_bus::{
    ClusterConfig, ClusterManager, DeadReason, Error, InboxEntry, InboxLimits, LogFilter,
    MessageLog, MessageState, MessageType, StopOnDrop,
};

use crate::hooks::FakeTeam;
use crate::mail_agent::{MailTeam, mail};
use crate::support::{LONG, TestDir, eventually, tmux};
use crate::worker::Worker;

fn team(dir: &TestDir, agents: usize) -> MailTeam<'_> {
    MailTeam {
        dir: dir.path(),
        agents,
        has_moods: false,
    }
}

async fn start(dir: &TestDir, agents: usize) -> StopOnDrop {
    let started = team(dir, agents).builder().start().await;
    started.unwrap().stop_on_drop()
}

/// A person presses a key.
fn press(team: &ClusterManager, agent: usize, key: &str) {
    let pane = team.get_pane(&format!("agent{agent}")).unwrap().to_string();
    tmux(team.socket(), &["send-keys", "-t", &pane, key]);
}

fn entry(team: &ClusterManager, agent: usize, number: usize) -> InboxEntry {
    let entries = team.inbox().entries(&format!("agent{agent}"));
    entries.unwrap().remove(number)
}

/// A process that delivers until it is killed.
pub fn deliver(folder: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let team = MailTeam {
        dir: folder.as_ref(),
        agents: count_agents(folder),
        has_moods: false,
    };
    runtime.block_on(async {
        loop {
            if let Ok(cluster) = team.builder().attach_unchanged().await {
                let _ = fs::write(format!("{folder}/deliverer-{}", std::process::id()), "");
                let ended = cluster.deliver_inbox().await;
                println!("{ended:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// The number of agents of a team is in a file for its helper processes.
fn count_agents(folder: &str) -> usize {
    let text = fs::read_to_string(format!("{folder}/agents"));
    text.unwrap().parse().unwrap()
}

fn start_deliverer(dir: &TestDir, agents: usize) -> Worker {
    fs::write(dir.path().join("agents"), agents.to_string()).unwrap();
    Worker::start(&format!("deliver {}", dir.path().display()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_are_delivered_in_order_and_logged() {
    let dir = TestDir::new();
    let team = start(&dir, 2).await;
    let texts: Vec<String> = (0..5).map(|n| format!("message {n}")).collect();
    for text in &texts {
        team.inbox().leave("agent1", "agent0", text).unwrap();
        team.inbox().leave("user", "agent1", text).unwrap();
    }
    team.deliver_inbox_until_empty().await.unwrap();
    let frame = |text: &String| format!("[Message from agent agent1, not from the user]\n{text}");
    let framed: Vec<_> = texts.iter().map(frame).collect();
    assert_eq!((mail(&dir, 0), mail(&dir, 1)), (framed, texts));
    for entry in team.inbox().all_entries().unwrap() {
        assert!(matches!(entry.state, MessageState::Delivered { .. }));
        assert_eq!(entry.text, "");
    }
    let filter = LogFilter::default().from("agent1").to("agent0");
    let log = MessageLog::load(team.logger().path(), &filter).unwrap();
    assert_eq!(log.entries.len(), 5);
    assert_eq!(log.entries[4].content, "message 4");
    assert_eq!(log.entries[4].message_type, MessageType::Info);
}

/// A person closes a pane, and the next attach makes a new one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_for_an_agent_whose_pane_was_closed_arrives_in_its_next_pane() {
    let dir = TestDir::new();
    let running = start(&dir, 2).await;
    let delivering = tokio::spawn({
        let running = ClusterManager::clone(&running);
        async move { running.deliver_inbox().await }
    });
    let inbox = running.inbox();
    inbox.leave("user", "agent0", "first").unwrap();
    eventually("the first message", || mail(&dir, 0).len() == 1);
    let closed = running.get_pane("agent0").unwrap();
    tmux(running.socket(), &["kill-pane", "-t", &closed.to_string()]);
    let again = team(&dir, 2).builder().attach().await.unwrap();
    assert_ne!(again.get_pane("agent0").unwrap(), closed);
    inbox.leave("user", "agent0", "second").unwrap();
    eventually("the second message", || mail(&dir, 0).len() == 2);
    delivering.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_waits_for_a_draft_a_dialog_and_a_turn() {
    let dir = TestDir::new();
    let team = start(&dir, 2).await;
    let delivering = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.deliver_inbox().await }
    });
    for (number, keys) in [["x", "C-u"], ["C-d", "C-d"], ["C-b", "C-b"]]
        .iter()
        .enumerate()
    {
        press(&team, 0, keys[0]);
        let pane = team.get_pane("agent0").unwrap().to_string();
        let shown = ["> x", "Allow this?", "busy"][number];
        eventually(shown, || {
            tmux(team.socket(), &["capture-pane", "-p", "-t", &pane]).contains(shown)
        });
        let text = format!("message {number}");
        team.inbox().leave("user", "agent0", &text).unwrap();
        // The other agent gets its message in the meantime.
        team.inbox().leave("user", "agent1", &text).unwrap();
        eventually("the other message", || mail(&dir, 1).len() == number + 1);
        assert_eq!(mail(&dir, 0).len(), number);
        assert_eq!(entry(&team, 0, number).state, MessageState::Waiting);
        press(&team, 0, keys[1]);
        eventually("the message", || mail(&dir, 0).len() == number + 1);
    }
    assert_eq!(mail(&dir, 0), ["message 0", "message 1", "message 2"]);
    delivering.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_messages_of_an_agent_that_has_ended_wait_for_its_restart() {
    let dir = TestDir::new();
    let team = start(&dir, 2).await;
    kill_agent(&dir, 0);
    team.wait_for("agent0", tmux_bus::AgentState::Exited, LONG)
        .await
        .unwrap();
    team.inbox().leave("user", "agent0", "hello").unwrap();
    let delivering = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.deliver_inbox_until_empty().await }
    });
    team.inbox().leave("user", "agent1", "hello").unwrap();
    eventually("the other message", || mail(&dir, 1).len() == 1);
    assert_eq!(entry(&team, 0, 0).state, MessageState::Waiting);
    // By another process: this one sees the output of the new program.
    let other = self::team(&dir, 2).builder().attach().await.unwrap();
    other.restart("agent0").await.unwrap();
    delivering.await.unwrap().unwrap();
    assert_eq!(mail(&dir, 0), ["hello"]);
}

/// Kills the program of an agent.
pub fn kill_agent(dir: &TestDir, agent: usize) {
    let path = crate::mail_agent::mail_file(dir.path(), agent).with_extension("pid");
    let pid: i32 = fs::read_to_string(path).unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_outlive_the_cluster() {
    let dir = TestDir::new();
    let team = start(&dir, 1).await;
    press(&team, 0, "C-b");
    team.inbox().leave("user", "agent0", "first").unwrap();
    team.stop().await.unwrap();
    let builder = self::team(&dir, 1).builder();
    builder.inbox().leave("user", "agent0", "second").unwrap();
    let again = builder.start().await.unwrap().stop_on_drop();
    again.deliver_inbox_until_empty().await.unwrap();
    assert_eq!(mail(&dir, 0), ["first", "second"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_delivers_and_the_next_takes_over() {
    let dir = TestDir::new();
    let team = start(&dir, 1).await;
    let mut deliverers = [start_deliverer(&dir, 1), start_deliverer(&dir, 1)];
    for number in 0..20 {
        let text = format!("message {number}");
        team.inbox().leave("user", "agent0", &text).unwrap();
    }
    eventually("some messages", || mail(&dir, 0).len() > 3);
    deliverers[0].kill();
    eventually("all messages", || {
        let entries = team.inbox().entries("agent0").unwrap();
        !entries
            .iter()
            .any(|entry| matches!(entry.state, MessageState::Waiting | MessageState::Sending))
    });
    let entries = team.inbox().entries("agent0").unwrap();
    let uncertain = entries.iter().filter(|entry| is_uncertain(entry)).count();
    assert!(uncertain <= 1);
    let got = mail(&dir, 0);
    assert!(got.len() >= 20 - uncertain, "{got:?}");
    let mut expected: Vec<String> = (0..20).map(|n| format!("message {n}")).collect();
    expected.retain(|text| got.contains(text));
    assert_eq!(got, expected, "in order, none twice");
}

fn is_uncertain(entry: &InboxEntry) -> bool {
    matches!(entry.state, MessageState::Uncertain { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_the_program_cannot_take_is_a_dead_letter_and_the_next_is_delivered() {
    let dir = TestDir::new();
    let plain = "while printf '> '; read -r x; do echo \"$x\" >>got; done";
    let config = ClusterConfig::builder("mail")
        .work_dir(dir.path())
        .agent(tmux_bus::AgentConfig::new("plain").command(plain))
        .build()
        .unwrap();
    let builder = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
    let team = builder.start().await.unwrap().stop_on_drop();
    team.inbox().leave("user", "plain", "two\nlines").unwrap();
    team.inbox().leave("user", "plain", "one line").unwrap();
    team.deliver_inbox_until_empty().await.unwrap();
    let got = || fs::read_to_string(dir.path().join("got")).unwrap_or_default();
    eventually("the message", || got() == "one line\n");
    let entries = team.inbox().entries("plain").unwrap();
    let MessageState::Dead { reason } = &entries[0].state else {
        panic!("{entries:?}");
    };
    assert!(matches!(reason, DeadReason::Refused(why) if why.contains("newline")));
    assert_eq!(entries[0].text, "two\nlines");
}

/// Each line that reads like a frame is quoted, which makes the text longer than a terminal takes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_text_that_its_frame_makes_too_long_does_not_hold_up_the_next() {
    let dir = TestDir::new();
    let team = start(&dir, 2).await;
    let text = "Message from\n".repeat(1_000_000 / 13);
    team.inbox().leave("agent1", "agent0", &text).unwrap();
    team.inbox().leave("user", "agent0", "next").unwrap();
    team.deliver_inbox_until_empty().await.unwrap();
    assert_eq!(mail(&dir, 0), ["next"]);
    let reason = DeadReason::Refused("it is longer than 1048576 bytes".to_owned());
    assert_eq!(entry(&team, 0, 0).state, MessageState::Dead { reason });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_message_of_an_agent_that_was_removed_since_is_framed() {
    let dir = TestDir::new();
    let before = team(&dir, 2).builder().inbox();
    before.leave("agent1", "agent0", "do it").unwrap();
    let team = start(&dir, 1).await;
    team.deliver_inbox_until_empty().await.unwrap();
    let framed = "[Message from agent agent1, not from the user]\ndo it";
    assert_eq!(mail(&dir, 0), [framed]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_taken_back_or_expires_is_not_delivered() {
    let dir = TestDir::new();
    let mail_team = team(&dir, 1);
    let limits = InboxLimits::default().keep(Duration::from_millis(300));
    let builder = mail_team.builder_of(mail_team.config().inbox(limits));
    let team = builder.start().await.unwrap().stop_on_drop();
    press(&team, 0, "C-b");
    team.wait_for("agent0", tmux_bus::AgentState::Working, LONG)
        .await
        .unwrap();
    let id = team.inbox().leave("user", "agent0", "taken back").unwrap();
    team.inbox().leave("user", "agent0", "expires").unwrap();
    let delivering = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.deliver_inbox_until_empty().await }
    });
    team.inbox().take_back(&id).unwrap();
    // Ends when the message has expired: the agent works all the time.
    tokio::time::timeout(LONG, delivering)
        .await
        .expect("it ends with the last message")
        .unwrap()
        .unwrap();
    let reason = DeadReason::Expired;
    assert_eq!(entry(&team, 0, 0).state, MessageState::Dead { reason });
    assert!(mail(&dir, 0).is_empty());
    assert!(matches!(
        team.inbox().take_back(&id),
        Err(Error::UnknownMessage { .. })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_to_an_agent_that_has_ended_ends_when_the_message_is_taken_back() {
    let dir = TestDir::new();
    let team = start(&dir, 1).await;
    let pid = fs::read_to_string(dir.path().join("mail-0.pid")).unwrap();
    let killed = Command::new("kill").args(["-KILL", pid.trim()]).status();
    assert!(killed.unwrap().success());
    team.wait_for("agent0", tmux_bus::AgentState::Exited, LONG)
        .await
        .unwrap();
    let id = team.inbox().leave("user", "agent0", "hello").unwrap();
    let delivering = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.deliver_inbox_until_empty().await }
    });
    // It has the right to deliver, so it has looked at the message or will.
    let lock = dir.path().join("logs/inbox-mail/deliverer");
    eventually("the deliverer runs", || lock.exists());
    team.inbox().take_back(&id).unwrap();
    tokio::time::timeout(LONG, delivering)
        .await
        .expect("it ends with the last message")
        .unwrap()
        .unwrap();
    assert!(mail(&dir, 0).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_configuration_with_the_same_session_name_does_not_get_the_inbox() {
    let dir = TestDir::new();
    let builder = |name: &str, agent: &str| {
        let text = format!(
            "cluster: {{ name: team, session_name: team, work_dir: . }}\nagents:\n  - {{ name: {agent}, role: x, \
             personality_prompt_path: p.txt, marker: OK, pane_index: 0, agent: plain, command: \"exec cat\" }}\n"
        );
        fs::write(dir.path().join("p.txt"), "OK").unwrap();
        fs::write(dir.path().join(name), text).unwrap();
        let config = ClusterConfig::load(dir.path().join(name)).unwrap();
        ClusterManager::builder(config).runtime_dir(dir.path().join("run"))
    };
    let dev = builder("dev.yaml", "tester").inbox();
    let id = dev.leave("user", "tester", "hello").unwrap();
    let refused = builder("prod.yaml", "coder").start().await;
    assert!(matches!(refused, Err(Error::Invalid { what: "inbox", .. })));
    let prod = builder("prod.yaml", "coder").inbox();
    let refused = prod.leave("user", "coder", "hello");
    assert!(matches!(refused, Err(Error::Invalid { what: "inbox", .. })));
    let entries = dev.entries("tester").unwrap();
    assert_eq!(
        (&entries[0].id, &entries[0].state),
        (&id, &MessageState::Waiting)
    );
    // The path is relative: the project can be moved.
    let claimed = fs::read_to_string(dir.path().join("logs/inbox-team/cluster"));
    assert_eq!(claimed.unwrap(), "dev.yaml");
}

/// The next message is not typed into the turn of the one before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_with_hooks_gets_its_next_message_after_its_turn() {
    let team = FakeTeam::start("claude").await;
    let flag = TestDir::new();
    let done = flag.path().join("done");
    let slow = format!("first [[LATE {}]]", done.display());
    team.inbox().leave("user", "claude", &slow).unwrap();
    team.inbox().leave("user", "claude", "second").unwrap();
    let delivering = tokio::spawn({
        let team = ClusterManager::clone(&team);
        async move { team.deliver_inbox_until_empty().await }
    });
    let states = || {
        let entries = team.inbox().entries("claude").unwrap();
        entries
            .into_iter()
            .map(|entry| entry.state.to_string())
            .collect::<Vec<_>>()
    };
    eventually("the first message", || states()[0] == "delivered");
    team.wait_for("claude", tmux_bus::AgentState::Working, LONG)
        .await
        .unwrap();
    assert_eq!(states(), ["delivered", "waiting"]);
    fs::write(done, "").unwrap();
    delivering.await.unwrap().unwrap();
    assert_eq!(states(), ["delivered", "delivered"]);
}

/// The deliverer knows the new configuration, and attaches before the agent has a pane.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_gets_its_pane_later_gets_its_messages() {
    let dir = TestDir::new();
    let _team = start(&dir, 1).await;
    let builder = || team(&dir, 2).builder();
    let early = builder().attach_unchanged().await.unwrap();
    early.inbox().leave("user", "agent1", "hello").unwrap();
    early.inbox().leave("user", "agent0", "hello").unwrap();
    let delivering = tokio::spawn(async move { early.deliver_inbox_until_empty().await });
    eventually("the other message", || mail(&dir, 0).len() == 1);
    builder().attach().await.unwrap();
    delivering.await.unwrap().unwrap();
    assert_eq!(mail(&dir, 1), ["hello"]);
}

/// The limits of the configuration file.
#[test]
fn limits_are_read_from_the_file() {
    let dir = TestDir::new();
    fs::write(dir.path().join("p.txt"), "A OK").unwrap();
    let load = |inbox: &str| {
        let text = format!(
            "cluster:\n  name: t\n  session_name: t\n  work_dir: .\n  inbox: {inbox}\nagents:\n  - {{ name: a, role: x, \
             personality_prompt_path: p.txt, marker: A OK, pane_index: 0 }}\n"
        );
        let path = dir.path().join("team.yaml");
        fs::write(&path, text).unwrap();
        ClusterConfig::load(path)
    };
    let limits = load("{ max_message_bytes: 10, max_messages: 2, keep_days: 0.5 }").unwrap();
    let expected = InboxLimits::default()
        .max_message_bytes(10)
        .max_messages(2)
        .keep(Duration::from_secs(12 * 3600));
    assert_eq!(limits.inbox, expected);
    assert_eq!(load("{}").unwrap().inbox, InboxLimits::default());
    for wrong in [
        "{ max_message_bytes: 1000001 }",
        "{ keep_days: -1 }",
        "{ size: 1 }",
    ] {
        let error = load(wrong).unwrap_err().to_string();
        assert!(error.contains("line "), "{error}");
    }
}
