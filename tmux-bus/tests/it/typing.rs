//! A message is typed into an agent only when it does no harm: never into a question that the agent asks,
//! never behind the draft of a person.

use std::cell::RefCell;
use std::fs;
use std::io::{Read, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tmux_bus::{Agent, ClusterConfig, ClusterManager, Error, Refusal, SendToOptions, StopOnDrop};

use crate::pane_program::{MARKER, make_raw};
use crate::support::{LONG, TestDir, eventually, need_tmux, tmux};
use crate::worker;

/// What is known about [`play`].
const DEFINITION: &str = r#"
[typed]
[typed.submit]
delay_ms = 20
quiet_ms = 100
special_first = ["!"]
clear_keys = ["C-u"]
[typed.input]
line = '^(?P<prefix>> )(?P<text>.*)$'
next = '^  (?P<text>.*)$'
end = '^-- '
other_modes = ['^! ']
[[typed.approval]]
id = "permission"
all = ['^\? Allow the tool']
[[typed.dialog]]
id = "menu"
all = ['^\? Choose a theme']
say = "It asks for a theme."
[[typed.working]]
id = "status"
all = ['^\* working']
[typed.idle]
settle_ms = 50
[typed.decoration]
drop = ['^> ', '^-- ']
"#;

/// An agent TUI. It writes each event to the file `TYPED_EVENTS`: `message TEXT`, `approved`, `shell TEXT`.
///
/// Messages: `approve` and `theme` open a question, which Enter answers with yes and `n` with no; `work` works
/// until the file `TYPED_GO` exists; `refuse` at the beginning is left in the input line; `stall` at the beginning is
/// submitted when the key after Enter arrives, as by a program that was stopped for seconds; `crash` at the beginning
/// kills the tmux server before it is shown; any other message is answered.
pub fn play() {
    let file = |name: &str| PathBuf::from(std::env::var(name).unwrap());
    let (events, go) = (file("TYPED_EVENTS"), file("TYPED_GO"));
    let event = |text: &str| {
        let mut file = fs::File::options()
            .create(true)
            .append(true)
            .open(&events)
            .unwrap();
        writeln!(file, "{text}").unwrap();
    };
    make_raw();
    let talk = RefCell::new(Vec::<String>::new());
    let (mut line, mut question) = (String::new(), "");
    let mut is_stalled = false;
    let draw = |line: &str, status: &str| {
        let mut frame = "\x1b[2J\x1b[H".to_owned();
        talk.borrow()
            .iter()
            .for_each(|row| frame.push_str(&format!("{row}\r\n")));
        if status.is_empty() {
            let (sign, text) = match line.strip_prefix('!') {
                Some(text) => ('!', text),
                None => ('>', line),
            };
            let rows: Vec<_> = text.split('\n').collect();
            frame.push_str(&format!(
                "{sign} {}\x1b7\r\n-- ready",
                rows.join("\x1b7\r\n  ")
            ));
            frame.push_str("\x1b8");
        } else {
            frame.push_str(status);
        }
        stdout().write_all(frame.as_bytes()).unwrap();
        stdout().flush().unwrap();
    };
    stdout().write_all(b"\x1b[?2004h").unwrap();
    draw("", "");
    let mut input = Vec::new();
    let (start, end) = (b"\x1b[200~", b"\x1b[201~");
    let mut buffer = [0; 4096];
    loop {
        let count = stdin().read(&mut buffer).unwrap();
        if count == 0 {
            return;
        }
        input.extend_from_slice(&buffer[..count]);
        while let Some(&first) = input.first() {
            if start.starts_with(&input[..input.len().min(6)]) {
                let Some(at) = input.windows(6).position(|part| part == end) else {
                    break;
                };
                if question.is_empty() {
                    line.push_str(&String::from_utf8_lossy(&input[6..at]));
                }
                if line.starts_with("crash") {
                    kill_tmux();
                }
                input.drain(..at + 6);
                draw(&line, question);
                continue;
            }
            if first == b'\r' && line.starts_with("stall") && !is_stalled {
                is_stalled = true;
                if input.len() == 1 {
                    break;
                }
            }
            input.remove(0);
            match first {
                b'\r' if !question.is_empty() => {
                    event("approved");
                    question = "";
                }
                b'n' if !question.is_empty() => question = "",
                b'\r' if line.is_empty() || line.starts_with("refuse") => {}
                b'\r' => {
                    is_stalled = false;
                    let message = std::mem::take(&mut line);
                    if let Some(command) = message.strip_prefix('!') {
                        event(&format!("shell {command}"));
                        draw("", "");
                        continue;
                    }
                    event(&format!("message {}", message.replace('\n', "|")));
                    talk.borrow_mut()
                        .push(format!("> {}", message.replace('\n', "\r\n  ")));
                    match message.as_str() {
                        "approve" => question = "? Allow the tool: touch file",
                        "theme" => question = "? Choose a theme",
                        _ => {
                            draw("", "* working");
                            while message == "work" && !go.exists() {
                                std::thread::sleep(Duration::from_millis(5));
                            }
                            talk.borrow_mut().push(format!("echo {}", message.len()));
                            talk.borrow_mut().push(MARKER.to_owned());
                        }
                    }
                }
                _ if !question.is_empty() => {}
                // The last line, as the agents do.
                0x15 => line.truncate(line.rfind('\n').map_or(0, |at| at + 1)),
                0x7f => drop(line.pop()),
                byte => line.push(char::from(byte)),
            }
            draw(&line, question);
        }
    }
}

/// Kills the server of this pane.
fn kill_tmux() {
    let tmux = std::env::var("TMUX").unwrap();
    let pid = tmux.split(',').nth(1).unwrap().parse().unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

struct Team {
    cluster: StopOnDrop,
    pane: String,
    dir: TestDir,
}

impl Team {
    async fn start() -> Self {
        Self::start_as("typed").await
    }

    async fn start_as(agent: &str) -> Self {
        need_tmux();
        let dir = TestDir::new();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let (variable, part, command) = worker::in_a_pane("typed");
        fs::write(path("prompt.txt"), MARKER).unwrap();
        fs::write(path("agents.toml"), DEFINITION).unwrap();
        let text = format!(
            "cluster: {{ name: team, session_name: team, work_dir: ., agent_definitions: agents.toml }}\nagents:\n  \
             - {{ name: it, role: x, personality_prompt_path: prompt.txt, marker: {MARKER}, pane_index: 0, \
             timeout_s: 40, agent: {agent}, command: {command:?}, env: {{ {variable}: {part}, TYPED_EVENTS: {:?}, \
             TYPED_GO: {:?} }} }}\n",
            path("events"),
            path("go"),
        );
        fs::write(path("team.yaml"), text).unwrap();
        let config = ClusterConfig::load(path("team.yaml")).unwrap();
        let cluster = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
        let cluster = cluster.start().await.unwrap().stop_on_drop();
        let pane = cluster.get_pane("it").unwrap().to_string();
        Self { cluster, pane, dir }
    }

    /// Its messages are typed as they are, without the frame of an agent.
    fn boss(&self) -> Agent {
        self.cluster.outsider("boss")
    }

    async fn ask(&self, message: &str, options: &SendToOptions) -> Result<String, Error> {
        let answer = self.boss().ask("it", message, options).await;
        answer.map(|answer| answer.text)
    }

    async fn refused(&self, message: &str, reason: Refusal) -> String {
        let options = SendToOptions::default().timeout(Duration::from_millis(1500));
        let error = self.ask(message, &options).await.expect_err(message);
        let found = match &error {
            Error::Refused { reason, .. } => *reason,
            other => panic!("{message}: {other:?}"),
        };
        assert_eq!(found, reason, "{message}");
        assert!(error.is_not_sent());
        error.partial().unwrap().to_owned()
    }

    fn keys(&self, keys: &[&str]) {
        let args = [&["send-keys", "-t", &self.pane], keys].concat();
        tmux(self.cluster.socket(), &args);
    }

    fn shows(&self, text: &str) {
        eventually(text, || {
            let args = ["capture-pane", "-p", "-t", &self.pane];
            tmux(self.cluster.socket(), &args).contains(text)
        });
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn events(&self) -> String {
        fs::read_to_string(self.path("events")).unwrap_or_default()
    }
}

fn patient() -> SendToOptions {
    SendToOptions::default().timeout(LONG)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_typed_once_and_its_answer_has_no_decoration() {
    let team = Team::start().await;
    for message in [
        "hello",
        "two\nlines",
        "日本語のメッセージ",
        "- an item",
        "hello",
    ] {
        let answer = team.ask(message, &patient()).await.unwrap();
        assert_eq!(answer, format!("echo {}\n{MARKER}", message.len()));
    }
    let expected = "message hello\nmessage two|lines\nmessage 日本語のメッセージ\nmessage - an item\nmessage hello\n";
    assert_eq!(team.events(), expected);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_never_answers_a_question() {
    let team = Team::start().await;
    for (question, reason, shown) in [
        ("approve", Refusal::Approval, "? Allow the tool: touch file"),
        ("theme", Refusal::Dialog, "? Choose a theme"),
    ] {
        team.boss().post_to("it", question).await.unwrap();
        team.shows(shown);
        team.cluster.reset("it").unwrap();
        for _ in 0..3 {
            let screen = team.refused("hello", reason).await;
            assert!(screen.contains(shown), "{screen}");
        }
        team.keys(&["n"]);
        assert!(team.ask("go on", &patient()).await.is_ok());
    }
    assert!(!team.events().contains("approved"), "{}", team.events());
    assert!(!team.events().contains("hello"), "{}", team.events());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_can_wait_until_a_person_has_answered() {
    let team = Team::start().await;
    team.boss().post_to("it", "approve").await.unwrap();
    team.shows("? Allow the tool");
    team.cluster.reset("it").unwrap();
    let waiting = patient().wait_for_person();
    let asking = team.ask("hello", &waiting);
    let person = async {
        // Longer than a dialog is tolerated otherwise.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(!team.events().contains("hello"));
        team.keys(&["n"]);
    };
    let (answer, ()) = tokio::join!(asking, person);
    assert_eq!(answer.unwrap(), format!("echo 5\n{MARKER}"));
    assert!(!team.events().contains("approved"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_draft_is_neither_submitted_nor_removed() {
    let team = Team::start().await;
    for draft in ["my own draft", "hello"] {
        team.keys(&["-l", draft]);
        team.shows(draft);
        let screen = team.refused("hello", Refusal::Draft).await;
        assert!(screen.contains(&format!("> {draft}")), "{screen}");
        team.shows(&format!("> {draft}"));
        team.keys(&["C-u"]);
    }
    assert_eq!(team.events(), "");
    // A draft that the person sends or deletes in time only delays the message.
    team.keys(&["-l", "a short draft"]);
    team.shows("a short draft");
    let (options, asking_done) = (patient(), Arc::new(tokio::sync::Notify::new()));
    let asking = async {
        let answer = team.ask("hello", &options).await;
        asking_done.notify_one();
        answer
    };
    let person = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        team.keys(&["C-u"]);
        asking_done.notified().await;
    };
    let (answer, ()) = tokio::join!(asking, person);
    assert_eq!(answer.unwrap(), format!("echo 5\n{MARKER}"));
    assert_eq!(team.events(), "message hello\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_waits_while_the_agent_works() {
    let team = Team::start().await;
    team.boss().post_to("it", "work").await.unwrap();
    team.shows("* working");
    team.cluster.reset("it").unwrap();
    team.refused("too early", Refusal::Busy).await;
    fs::write(team.path("go"), "").unwrap();
    assert!(team.ask("hello", &patient()).await.is_ok());
    assert_eq!(team.events(), "message work\nmessage hello\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_the_agent_does_not_take_is_removed_again() {
    let team = Team::start().await;
    let screen = {
        let error = team
            .ask("refuse this\nplease", &patient())
            .await
            .unwrap_err();
        // Enter was sent: that the agent will not read it is not certain.
        let Error::SubmitUnknown { source, .. } = &error else {
            panic!("{error:?}");
        };
        let not_taken = Refusal::NotTaken;
        assert!(
            matches!(&**source, Error::Refused { reason, .. } if *reason == not_taken),
            "{error:?}"
        );
        source.partial().unwrap().to_owned()
    };
    assert!(screen.contains("> refuse this\n  please"), "{screen}");
    assert!(team.ask("hello", &patient()).await.is_ok());
    assert_eq!(team.events(), "message hello\n");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_taken_late_is_never_reported_as_not_sent() {
    let team = Team::start().await;
    let error = team.ask("stall", &patient()).await.unwrap_err();
    eventually("it is taken", || team.events() == "message stall\n");
    assert!(!error.is_not_sent(), "{error:?}");
    assert!(matches!(error, Error::SubmitUnknown { .. }), "{error:?}");
    assert!(team.ask("hello", &patient()).await.is_ok());
    assert_eq!(team.events(), "message stall\nmessage hello\n");
}

/// The text may be in the input line, whatever has failed since the paste.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_that_fails_before_enter_leaves_the_message_not_submitted() {
    let team = Team::start().await;
    let error = team.ask("crash", &patient()).await.unwrap_err();
    let Error::NotSubmitted { source, .. } = &error else {
        panic!("{error:?}");
    };
    assert!(matches!(**source, Error::ServerGone { .. }), "{error:?}");
    assert!(!error.is_not_sent());
    assert_eq!(team.events(), "");
}

/// A sender that was killed between the paste and Enter leaves its text, and a record of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_a_killed_sender_left_is_removed() {
    let team = Team::start().await;
    team.keys(&["-l", "left behind"]);
    team.shows("left behind");
    let folder = team.cluster.socket().parent().unwrap();
    let record = typed_record(folder, &team.pane);
    let option = ["show-options", "-pv", "-t", &team.pane, "@tmux_bus_launch"];
    let launch = tmux(team.cluster.socket(), &option);
    let left_behind = format!("{}\nleft behind", launch.trim());
    fs::write(&record, &left_behind).unwrap();
    fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(team.ask("hello", &patient()).await.is_ok());
    assert_eq!(team.events(), "message hello\n");
    assert!(!record.exists());
    // Text of a person behind it makes it a draft.
    team.keys(&["-l", "left behind, and more"]);
    team.shows("and more");
    fs::write(&record, &left_behind).unwrap();
    team.refused("hello", Refusal::Draft).await;
}

/// The rest would be a draft, which no sender removes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn text_that_a_killed_sender_left_is_removed_although_a_caller_gives_up() {
    let team = Team::start().await;
    let left: Vec<_> = (0..8).map(|line| format!("line {line}")).collect();
    let pasted = format!("\x1b[200~{}\x1b[201~", left.join("\n"));
    team.keys(&["-l", &pasted]);
    team.shows("line 7");
    let record = typed_record(team.cluster.socket().parent().unwrap(), &team.pane);
    let option = ["show-options", "-pv", "-t", &team.pane, "@tmux_bus_launch"];
    let launch = tmux(team.cluster.socket(), &option);
    fs::write(&record, format!("{}\n{}", launch.trim(), left.join("\n"))).unwrap();
    fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let asking = tokio::spawn({
        let boss = team.boss();
        async move { boss.ask("it", "given up", &patient()).await }
    });
    eventually("a line is removed", || {
        let args = ["capture-pane", "-p", "-t", &team.pane];
        !tmux(team.cluster.socket(), &args).contains("line 7")
    });
    asking.abort();
    assert!(team.ask("hello", &patient()).await.is_ok());
    assert!(team.events().ends_with("message hello\n"));
}

/// The text has ended with the earlier program: the same text in the next one is a person's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_record_of_an_earlier_launch_does_not_make_a_draft_ours() {
    let team = Team::start().await;
    let folder = team.cluster.socket().parent().unwrap();
    let record = typed_record(folder, &team.pane);
    fs::write(&record, "earlier\nleft behind").unwrap();
    fs::set_permissions(&record, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    team.keys(&["-l", "left behind"]);
    team.shows("left behind");
    team.refused("hello", Refusal::Draft).await;
    team.shows("left behind");
}

fn typed_record(folder: &Path, pane: &str) -> PathBuf {
    folder.join(format!("typed-{}", pane.trim_start_matches('%')))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_character_with_a_meaning_is_defused_unless_it_is_wanted() {
    let team = Team::start().await;
    assert!(team.ask("!rm -rf x", &patient()).await.is_ok());
    let events = team.events();
    assert!(
        events.ends_with(":|!rm -rf x\n") && !events.contains("shell"),
        "{events}"
    );
    let command = patient().command();
    team.boss()
        .post_to_with("it", "!ls", &command)
        .await
        .unwrap();
    eventually("the command arrives", || {
        team.events().ends_with("shell ls\n")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_waits_while_a_person_reads_the_scroll_back() {
    for agent in ["typed", "plain"] {
        let team = Team::start_as(agent).await;
        let copy_mode = ["copy-mode", "-t", &team.pane];
        tmux(team.cluster.socket(), &copy_mode);
        let options = SendToOptions::default().timeout(Duration::from_millis(500));
        let error = team.ask("too early", &options).await.unwrap_err();
        let copy_mode = Refusal::CopyMode;
        assert!(
            matches!(&error, Error::Refused { reason, .. } if *reason == copy_mode),
            "{error:?}"
        );
        let options = patient();
        let asking = team.ask("hello", &options);
        let person = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            assert_eq!(team.events(), "");
            team.keys(&["-X", "cancel"]);
        };
        let (answer, ()) = tokio::join!(asking, person);
        assert!(answer.unwrap().starts_with("echo 5"), "{agent}");
        assert_eq!(team.events(), "message hello\n", "{agent}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_of_an_agent_says_so_unless_it_is_a_command() {
    let team = Team::start().await;
    let agent = team.cluster.agent("it").unwrap();
    agent.ask("it", "!hello", &patient()).await.unwrap();
    let command = patient().command();
    agent.post_to_with("it", "!hello", &command).await.unwrap();
    let expected = "message [Message from agent it, not from the user]|!hello\nshell hello\n";
    eventually("both messages", || team.events() == expected);
}
