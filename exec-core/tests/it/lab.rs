//! A private workspace, state folder and scripted agent for one test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exec_core::{
    AgentEvent, AgentEventKind, CommandConfig, Event, EventKind, EventParser, Execution,
    ExecutionContext, ExecutionService, ExecutionServiceBuilder, FollowUpRequest, LaunchRequest,
    NewChatRequest, Output, OutputStream, ProcessParameters, Profile, ProfileSource, SessionId,
};

/// Far above what anything here takes: a loaded machine must not fail a test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Every process of a test has this variable, so that the test can end all of them.
const LAB: &str = "EXEC_CORE_LAB";

type Setup = dyn Fn(&LaunchRequest, &mut ProcessParameters) + Send + Sync;

/// A profile whose agent is a shell script.
#[derive(Clone)]
pub(crate) struct Scripted {
    command: CommandConfig,
    variants: Vec<(String, Option<CommandConfig>)>,
    accepts_empty_prompt: bool,
    setup: Arc<Setup>,
    live: Option<Arc<Setup>>,
}

/// A profile whose agent runs this script.
pub(crate) fn script(text: &str) -> Scripted {
    Scripted {
        command: CommandConfig::new("sh", ["-c", text, "agent"]),
        variants: Vec::new(),
        accepts_empty_prompt: false,
        setup: Arc::new(|_, _| {}),
        live: None,
    }
}

impl Scripted {
    pub(crate) fn binary(mut self, binary: &str) -> Self {
        self.command.binary = binary.to_owned();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.command.env.insert(name.to_owned(), value.to_owned());
        self
    }

    pub(crate) fn variant(mut self, label: &str, command: Option<CommandConfig>) -> Self {
        self.variants.push((label.to_owned(), command));
        self
    }

    pub(crate) fn accepting_empty_prompts(mut self) -> Self {
        self.accepts_empty_prompt = true;
        self
    }

    pub(crate) fn setup(
        mut self,
        setup: impl Fn(&LaunchRequest, &mut ProcessParameters) + Send + Sync + 'static,
    ) -> Self {
        self.setup = Arc::new(setup);
        self
    }

    /// The agent has live sessions.
    pub(crate) fn live(
        mut self,
        setup: impl Fn(&LaunchRequest, &mut ProcessParameters) + Send + Sync + 'static,
    ) -> Self {
        self.live = Some(Arc::new(setup));
        self
    }

    /// The id is on a line `session: <id>`.
    pub(crate) fn id_from_stdout(self) -> Self {
        self.setup(|_, parameters| {
            parameters.session_id_resolver = Some(Box::new(read_session_line));
        })
    }
}

pub(crate) fn read_session_line(line: &str) -> Option<String> {
    line.strip_prefix("session: ").map(str::to_owned)
}

impl Profile for Scripted {
    fn variant_labels(&self) -> Vec<String> {
        self.variants
            .iter()
            .map(|(label, _)| label.clone())
            .collect()
    }

    fn command(&self, variant: Option<&str>) -> Option<CommandConfig> {
        match variant {
            Some(variant) => self
                .variants
                .iter()
                .find(|(label, _)| label == variant)?
                .1
                .clone(),
            None => Some(self.command.clone()),
        }
    }

    fn accepts_empty_prompt(&self) -> bool {
        self.accepts_empty_prompt
    }

    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.stdin_payload = Some(request.text.clone());
        (self.setup)(request, &mut parameters);
        Ok(parameters)
    }

    fn build_live_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<Option<ProcessParameters>, Box<dyn std::error::Error + Send + Sync>> {
        let Some(setup) = &self.live else {
            return Ok(None);
        };
        let mut parameters = ProcessParameters::new(command.args.clone());
        setup(request, &mut parameters);
        Ok(Some(parameters))
    }
}

/// A source with one profile, `scripted`.
struct OneProfile(Arc<Scripted>);

impl ProfileSource for OneProfile {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "scripted").then(|| Arc::clone(&self.0) as Arc<dyn Profile>)
    }
}

/// Dropping it ends every process of the test and removes its folders.
pub(crate) struct Lab {
    folder: PathBuf,
    id: String,
    /// `None` in a helper process: the folder belongs to its parent.
    _dir: Option<tempfile::TempDir>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self::in_dir(tempfile::tempdir().unwrap())
    }

    /// Not in `/tmp`, which is private in a sandbox.
    pub(crate) fn outside_of_tmp() -> Self {
        Self::in_dir(tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap())
    }

    fn in_dir(dir: tempfile::TempDir) -> Self {
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        let mut lab = Self::at(dir.path());
        lab._dir = Some(dir);
        lab
    }

    /// The lab of the parent, in a helper process.
    pub(crate) fn at(folder: &Path) -> Self {
        Self {
            folder: folder.to_owned(),
            id: folder.file_name().unwrap().to_string_lossy().into_owned(),
            _dir: None,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.path("workspace")
    }

    pub(crate) fn builder(&self, profile: Scripted) -> ExecutionServiceBuilder {
        let profile = profile.variable(LAB, &self.id);
        ExecutionService::builder(OneProfile(Arc::new(profile)))
            .state_dir(self.path("state"))
            .host_name("test host")
    }

    pub(crate) fn service(&self, profile: Scripted) -> ExecutionService {
        self.builder(profile).open().unwrap()
    }

    pub(crate) fn context(&self) -> ExecutionContext {
        ExecutionContext::for_workspace("scripted", self.workspace()).unwrap()
    }

    pub(crate) fn new_chat(&self, prompt: &str) -> NewChatRequest {
        NewChatRequest {
            context: self.context(),
            prompt: prompt.to_owned(),
        }
    }

    pub(crate) fn follow_up(&self, session_id: &SessionId, message: &str) -> FollowUpRequest {
        FollowUpRequest {
            context: self.context(),
            session_id: session_id.clone(),
            message: message.to_owned(),
        }
    }

    pub(crate) async fn launch(&self, service: &ExecutionService) -> Execution {
        self.launch_with(service, "go").await
    }

    pub(crate) async fn launch_with(&self, service: &ExecutionService, prompt: &str) -> Execution {
        service.launch(self.new_chat(prompt)).await.unwrap()
    }

    /// The living processes of this test, found by their environment.
    pub(crate) fn processes(&self) -> Vec<u32> {
        let tag = format!("{LAB}={}", self.id);
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            let Ok(environ) = std::fs::read(entry.path().join("environ")) else {
                continue;
            };
            if environ
                .split(|b| *b == 0)
                .any(|entry| entry == tag.as_bytes())
            {
                found.push(pid);
            }
        }
        found
    }

    /// A program that sleeps and has the folder of this test in its command line, so that
    /// [`commands`](Self::commands) finds it after it has cleared its environment.
    pub(crate) fn sleeper(&self) -> String {
        let path = self.path("sleeper");
        if !path.exists() {
            std::os::unix::fs::symlink("/bin/sleep", &path).unwrap();
        }
        path.to_str().unwrap().to_owned()
    }

    /// The living processes that have the folder of this test in their command line.
    pub(crate) fn commands(&self) -> Vec<u32> {
        let folder = self.folder.to_str().unwrap().as_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            // A zombie has no command line.
            if let Some(pid) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
                && let Ok(line) = std::fs::read(entry.path().join("cmdline"))
                && line.windows(folder.len()).any(|part| part == folder)
            {
                found.push(pid);
            }
        }
        found
    }

    /// Polls until the test has this many processes.
    pub(crate) async fn until_processes(&self, count: usize) {
        until(&format!("{count} processes"), || {
            self.processes().len() == count
        })
        .await;
    }

    /// The content of a file that the script has written in its workspace.
    pub(crate) fn written(&self, name: &str) -> String {
        std::fs::read_to_string(self.workspace().join(name)).unwrap_or_default()
    }

    pub(crate) async fn until_written(&self, name: &str) -> String {
        until(&format!("file {name}"), || {
            self.written(name).ends_with('\n')
        })
        .await;
        self.written(name).trim().to_owned()
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for _ in 0..50 {
            let mut pids = self.processes();
            if self._dir.is_some() {
                pids.extend(self.commands());
            }
            if pids.is_empty() {
                return;
            }
            for pid in pids {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).output();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Polls a condition with a deadline.
pub(crate) async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !reached() {
        assert!(begin.elapsed() < DEADLINE, "timed out: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails instead of hanging.
pub(crate) async fn within<T>(what: &str, future: impl IntoFuture<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future.into_future()).await {
        Ok(value) => value,
        Err(_) => panic!("timed out: {what}"),
    }
}

pub(crate) fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ") {
        Some((_, rest)) => !rest.starts_with(['Z', 'X']),
        None => false,
    }
}

/// All events of an execution until its end.
pub(crate) async fn all_events(execution: &Execution) -> Vec<Arc<Event>> {
    let mut stream = execution.events();
    let mut events = Vec::new();
    within("the last event", async {
        while let Some(event) = stream.next().await {
            events.push(event);
        }
    })
    .await;
    events
}

/// The lines of one stream.
pub(crate) fn lines(events: &[Arc<Event>], wanted: OutputStream) -> Vec<String> {
    events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Output(Output { stream, line, .. }) if *stream == wanted => {
                Some(line.text().into_owned())
            }
            _ => None,
        })
        .collect()
}

pub(crate) async fn stdout_of(execution: &Execution) -> Vec<String> {
    lines(&all_events(execution).await, OutputStream::Stdout)
}

/// Waits for a line of standard output.
pub(crate) async fn until_line(execution: &Execution, wanted: &str) {
    let mut stream = execution.events();
    within(wanted, async {
        while let Some(event) = stream.next().await {
            if let EventKind::Output(output) = &event.kind
                && output.line.text() == wanted
            {
                return;
            }
        }
        panic!("ended without the line {wanted:?}");
    })
    .await;
}

/// Reads `say <text>` as text, `done` as the final event, `session: <id>` as the session.
pub(crate) struct LineParser;

impl EventParser for LineParser {
    fn parse_line(&mut self, line: &str) -> Vec<AgentEvent> {
        if let Some(text) = line.strip_prefix("say ") {
            let text = text.to_owned();
            return vec![AgentEventKind::Text { text, delta: false }.into()];
        }
        if line == "done" {
            let finished = AgentEventKind::Finished {
                outcome: exec_core::Outcome::Success,
                text: None,
                failure: None,
            };
            return vec![finished.into()];
        }
        Vec::new()
    }
}

pub(crate) fn files_in(folder: &Path) -> Vec<PathBuf> {
    match std::fs::read_dir(folder) {
        Ok(entries) => entries.map(|entry| entry.unwrap().path()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Names the folder of the lab to a helper process.
const HELPER: &str = "EXEC_CORE_TEST_HELPER";

/// The command that runs an ignored test of this binary as a helper process in this lab.
///
/// Helper processes are ignored tests, so that they need no binary of their own: the test binary
/// runs itself with the name of the test. The helper calls [`helper_lab`] first, and
/// [`helper_passed`] last if [`run_helper`] has started it.
pub(crate) fn helper(lab: &Lab, test: &str) -> Command {
    let mut helper = Command::new(std::env::current_exe().unwrap());
    helper
        .args(["--ignored", "--exact", test, "--nocapture"])
        .env(HELPER, lab.path(""));
    helper
}

/// Runs a helper process to its end and expects it to pass.
pub(crate) fn run_helper(lab: &Lab, test: &str) {
    let helper = helper(lab, test).output().unwrap();
    let printed = String::from_utf8_lossy(&helper.stderr);
    assert!(helper.status.success(), "{printed}");
    assert!(lab.path("passed").exists(), "{test} did not run: {printed}");
}

/// The lab of a helper process; `None` in a run of all ignored tests.
pub(crate) fn helper_lab() -> Option<Lab> {
    Some(Lab::at(Path::new(&std::env::var_os(HELPER)?)))
}

pub(crate) fn helper_passed(lab: &Lab) {
    std::fs::write(lab.path("passed"), "").unwrap();
}

/// Makes the kernel refuse a system call of this thread and of threads that it starts, with the
/// error of a missing permission.
pub(crate) fn refuse(call: libc::c_long) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The number of the call is the first field of the data.
        step(LOAD, 0, 0, 0),
        step(JUMP_IF_EQUAL, 0, 1, u32::try_from(call).unwrap()),
        step(
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap(),
        ),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog {
        len: u16::try_from(steps.len()).unwrap(),
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: the program and its steps live until the calls return; the kernel copies them.
    let refused = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                std::ptr::from_ref(&filter),
            ) == 0
    };
    assert!(refused, "{}", std::io::Error::last_os_error());
}

/// Makes writes beyond this size fail, as on a full disk.
pub(crate) fn limit_file_size(bytes: u64) {
    // SAFETY: no handler is installed. By default the signal would end the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = rustix::process::Rlimit {
        current: Some(bytes),
        maximum: None,
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
}
