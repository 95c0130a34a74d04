//! Late answers: an answer belongs to one message, also after its sender has given up.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, Instant};

use tmux_bus::{
    ClusterConfig, ClusterManager, Error, LogFilter, MessageLog, MessageLogEntry, MessageType,
    Refusal, SendToOptions,
};

use crate::hooks::{AGENTS, FakeTeam};
use crate::pane_program::MARKER;
use crate::support::{LONG, TestDir, eventually, need_tmux};
use crate::worker::Worker;

/// A line-wise agent without a prompt: only its output tells that it has answered.
struct LineTeam {
    cluster: ClusterManager,
    dir: TestDir,
}

impl Deref for LineTeam {
    type Target = ClusterManager;

    fn deref(&self) -> &ClusterManager {
        &self.cluster
    }
}

/// `wait FILE` answers when the file exists, `nothing` never; `early FILE` prints the marker first and goes on until the
/// file exists; other messages are answered at once.
const PROGRAM: &str = r#"printf '> '; while read -r word file; do case $word in
    wait) until [ -e "$file" ]; do sleep 0.02; done; echo waited; echo TEST OK;;
    nothing) ;;
    early) echo TEST OK; until [ -e "$file" ]; do echo more; sleep 0.02; done; echo end; echo TEST OK;;
    *) echo "got $word"; echo TEST OK;; esac; done"#;

fn config(dir: &Path) -> ClusterConfig {
    fs::write(dir.join("p.txt"), MARKER).unwrap();
    let command = serde_json::Value::from(PROGRAM);
    let config = format!(
        "cluster: {{ name: team, session_name: team, work_dir: . }}\nagents:\n  - {{ name: a, role: x, \
         personality_prompt_path: p.txt, marker: {MARKER}, pane_index: 0, timeout_s: 40, command: {command} }}\n"
    );
    fs::write(dir.join("team.yaml"), config).unwrap();
    ClusterConfig::load(dir.join("team.yaml")).unwrap()
}

async fn attach(dir: &Path) -> ClusterManager {
    let builder = ClusterManager::builder(config(dir)).runtime_dir(dir.join("run"));
    builder.attach().await.unwrap()
}

impl LineTeam {
    async fn start() -> Self {
        need_tmux();
        let dir = TestDir::new();
        let builder = ClusterManager::builder(config(dir.path()));
        let builder = builder.runtime_dir(dir.path().join("run"));
        let cluster = builder.start().await.unwrap();
        // The first message removes the prompt that tells that the program is ready.
        let answer = cluster
            .outsider("user")
            .send_to("a", "first")
            .await
            .unwrap();
        assert_eq!(answer, "got first\nTEST OK");
        Self { cluster, dir }
    }

    fn file(&self) -> std::path::PathBuf {
        self.dir.path().join("go")
    }

    fn wait_message(&self) -> String {
        format!("wait {}", self.file().display())
    }

    async fn gives_up(&self, message: &str) {
        let error = ask(self, "a", message, Duration::from_millis(300))
            .await
            .unwrap_err();
        assert!(matches!(error, Error::ResponseTimeout { .. }), "{error:?}");
    }

    async fn is_busy(&self) -> bool {
        self.status().await.unwrap().agents[0].busy
    }
}

async fn ask(
    cluster: &ClusterManager,
    agent: &str,
    message: &str,
    timeout: Duration,
) -> Result<String, Error> {
    let options = SendToOptions::default().timeout(timeout);
    let user = cluster.outsider("user");
    user.send_to_with(agent, message, &options).await
}

fn entries(cluster: &ClusterManager, kind: &str) -> Vec<MessageLogEntry> {
    let filter = LogFilter::default().message_type(MessageType::from(kind));
    let log = MessageLog::load(cluster.logger().path(), &filter).unwrap();
    log.entries
}

#[track_caller]
fn owes(result: Result<String, Error>) {
    match result {
        Err(Error::Refused { reason, .. }) => assert_eq!(reason, Refusal::OwesAnswer),
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_is_logged_and_not_given_to_the_next_message() {
    let team = LineTeam::start().await;
    team.gives_up(&team.wait_message()).await;
    assert!(team.is_busy().await);
    owes(ask(&team, "a", "second", Duration::from_millis(300)).await);
    // Another sender waits in the queue.
    let cluster = team.cluster.clone();
    let next = tokio::spawn(async move { ask(&cluster, "a", "third", LONG).await });
    fs::write(team.file(), "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got third\nTEST OK");
    let late = entries(&team, "late");
    assert_eq!(late.len(), 1);
    assert_eq!(late[0].content, "waited\nTEST OK");
    let tasks = entries(&team, "task");
    let waited = tasks
        .iter()
        .find(|task| task.content.starts_with("wait"))
        .unwrap();
    assert_eq!(late[0].reply_to.as_ref(), Some(&waited.id));
    assert_eq!(
        (late[0].from_agent.as_str(), late[0].to_agent.as_str()),
        ("a", "user")
    );
    assert!(!team.is_busy().await);
}

/// The wait for its answer has failed, but its turn has not ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_that_still_prints_after_the_limit_owes_its_answer() {
    let team = LineTeam::start().await;
    let early = format!("early {}", team.file().display());
    let error = ask(&team, "a", &early, Duration::from_millis(300))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::AnswerIncomplete { .. }), "{error:?}");
    owes(ask(&team, "a", "second", Duration::from_millis(300)).await);
    let cluster = team.cluster.clone();
    let next = tokio::spawn(async move { ask(&cluster, "a", "third", LONG).await });
    fs::write(team.file(), "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got third\nTEST OK");
    let late = entries(&team, "late");
    assert_eq!(late.len(), 1);
    assert!(late[0].content.ends_with("end\nTEST OK"), "{late:?}");
}

/// The question is a message, too: a program that answers it late owes that answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_late_answer_to_a_startup_question_is_not_given_to_a_message() {
    need_tmux();
    let dir = TestDir::new();
    let go = dir.path().join("go");
    let mut config = config(dir.path());
    config.agents[0].timeout = Duration::from_millis(600);
    let builder = ClusterManager::builder(config)
        .runtime_dir(dir.path().join("run"))
        .startup_question(format!("wait {}", go.display()));
    let error = builder.start().await.unwrap_err();
    assert!(matches!(error, Error::NotReady { .. }), "{error:?}");
    let team = attach(dir.path()).await;
    owes(ask(&team, "a", "second", Duration::from_millis(300)).await);
    let next = tokio::spawn({
        let team = team.clone();
        async move { ask(&team, "a", "third", LONG).await }
    });
    fs::write(go, "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got third\nTEST OK");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_of_a_hook_is_logged_and_not_given_to_the_next_message() {
    for agent in AGENTS {
        let team = FakeTeam::start(agent).await;
        let go = team.file("go");
        let late = format!("[[LATE {}]]", go.display());
        let error = ask(&team, agent, &late, Duration::from_secs(1))
            .await
            .unwrap_err();
        assert!(error.is_timeout(), "{agent}: {error:?}");
        let (cluster, name) = (ClusterManager::clone(&team), agent.to_owned());
        // The same text: only the turn tells the two apart.
        let message = late.clone();
        let next = tokio::spawn(async move { ask(&cluster, &name, &message, LONG).await });
        fs::write(&go, "").unwrap();
        let expected = format!("echo: {late}\n\n{MARKER}");
        assert_eq!(next.await.unwrap().unwrap(), expected, "{agent}");
        let logged = entries(&team, "late");
        assert_eq!(logged.len(), 1, "{agent}");
        assert_eq!(logged[0].content, expected);
        assert_eq!(
            logged[0].reply_to.as_ref(),
            Some(&entries(&team, "task")[0].id)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_processes_wait_for_a_late_answer() {
    let team = LineTeam::start().await;
    team.gives_up(&team.wait_message()).await;
    let other = attach(team.dir.path()).await;
    owes(ask(&other, "a", "second", Duration::from_millis(300)).await);
    let next = tokio::spawn(async move { ask(&other, "a", "third", LONG).await });
    fs::write(team.file(), "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got third\nTEST OK");
    eventually("it is logged", || entries(&team, "late").len() == 1);
}

/// Asks in a process of its own that is killed while it waits.
pub fn ask_and_wait(folder: &str, message: &str) {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let cluster = attach(Path::new(folder)).await;
        let _ = ask(&cluster, "a", message, LONG).await;
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_pane_stays_busy_after_the_crash_of_a_sender() {
    let team = LineTeam::start().await;
    let folder = team.dir.path().to_str().unwrap();
    let mut sender = Worker::start(&format!("ask {folder} nothing"));
    eventually("it is sent", || entries(&team, "task").len() == 2);
    sender.kill();
    assert!(team.is_busy().await);
    owes(ask(&team, "a", "second", Duration::from_millis(300)).await);
    team.reset("a").unwrap();
    assert_eq!(
        ask(&team, "a", "third", LONG).await.unwrap(),
        "got third\nTEST OK"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reset_and_restart_give_the_owed_answer_up() {
    let team = LineTeam::start().await;
    team.gives_up("nothing").await;
    owes(ask(&team, "a", "second", Duration::from_millis(300)).await);
    assert!(matches!(
        team.reset("unknown"),
        Err(Error::UnknownAgent { .. })
    ));
    team.reset("a").unwrap();
    assert!(!team.is_busy().await);
    assert_eq!(
        ask(&team, "a", "third", LONG).await.unwrap(),
        "got third\nTEST OK"
    );
    team.gives_up("nothing").await;
    team.restart("a").await.unwrap();
    assert_eq!(
        ask(&team, "a", "fourth", LONG).await.unwrap(),
        "got fourth\nTEST OK"
    );
    assert!(entries(&team, "late").is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_is_owed_for_ten_times_the_limit() {
    let team = LineTeam::start().await;
    let start = Instant::now();
    team.gives_up("nothing").await;
    assert_eq!(
        ask(&team, "a", "second", LONG).await.unwrap(),
        "got second\nTEST OK"
    );
    assert!(
        start.elapsed() >= Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_to_a_notice_is_not_given_to_the_next_message() {
    let team = LineTeam::start().await;
    let user = team.outsider("user");
    user.post_to("a", &team.wait_message()).await.unwrap();
    owes(ask(&team, "a", "third", Duration::from_millis(300)).await);
    let cluster = team.cluster.clone();
    let next = tokio::spawn(async move { ask(&cluster, "a", "second", LONG).await });
    fs::write(team.file(), "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got second\nTEST OK");
}

/// A program that shows its prompt again has ended its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prompt_settles_what_a_line_wise_program_owes() {
    need_tmux();
    let dir = TestDir::new();
    let mut config = config(dir.path());
    let program = "while printf '> '; read -r word; do [ \"$word\" = nothing ] || { echo \"got $word\"; echo TEST OK; }; done";
    config.agents[0].command = Some(program.to_owned());
    let builder = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
    let team = LineTeam {
        cluster: builder.start().await.unwrap(),
        dir,
    };
    let limit = Duration::from_secs(3);
    let error = ask(&team, "a", "nothing", limit).await.unwrap_err();
    assert!(error.is_timeout());
    assert!(team.is_busy().await);
    // Its time limit ends before the bound.
    let next = ask(&team, "a", "second", limit * 7).await;
    assert_eq!(next.unwrap(), "got second\nTEST OK");
}

/// The next sender sees the prompt before the pane has been quiet for long enough to end the answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_answer_before_a_prompt_is_logged_although_another_sender_waits() {
    need_tmux();
    let dir = TestDir::new();
    let mut config = config(dir.path());
    let program = "while printf '> '; read -r word file; do [ \"$word\" != wait ] || \
        until [ -e \"$file\" ]; do sleep 0.02; done; echo \"got $word\"; echo TEST OK; done";
    config.agents[0].command = Some(program.to_owned());
    let builder = ClusterManager::builder(config).runtime_dir(dir.path().join("run"));
    let team = LineTeam {
        cluster: builder.start().await.unwrap(),
        dir,
    };
    team.gives_up(&team.wait_message()).await;
    let cluster = team.cluster.clone();
    let next = tokio::spawn(async move { ask(&cluster, "a", "next", LONG).await });
    let number = team.get_pane("a").unwrap().to_string();
    let lock = format!("pane-{}", number.trim_start_matches('%'));
    let lock = fs::File::open(team.folder().join(lock)).unwrap();
    eventually("the next sender has the lock of the pane", || {
        let shared = rustix::fs::FlockOperation::NonBlockingLockShared;
        let is_free = rustix::fs::flock(&lock, shared).is_ok();
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::Unlock).unwrap();
        !is_free
    });
    fs::write(team.file(), "").unwrap();
    assert_eq!(next.await.unwrap().unwrap(), "got next\nTEST OK");
    let late = entries(&team, "late");
    assert_eq!(late.len(), 1, "{late:?}");
    assert_eq!(late[0].content, "got wait\nTEST OK");
}

/// A sender that drops its call does not get the answer, but the log does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_answer_of_a_dropped_call_is_logged() {
    let team = LineTeam::start().await;
    let (cluster, message) = (team.cluster.clone(), team.wait_message());
    let asking = tokio::spawn(async move { ask(&cluster, "a", &message, LONG).await });
    eventually("it is sent", || entries(&team, "task").len() == 2);
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    fs::write(team.file(), "").unwrap();
    eventually("it is logged", || {
        let results = entries(&team, "result");
        results
            .iter()
            .any(|entry| entry.content == "waited\nTEST OK")
    });
    assert_eq!(
        ask(&team, "a", "second", LONG).await.unwrap(),
        "got second\nTEST OK"
    );
}
