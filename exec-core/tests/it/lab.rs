//! A private workspace, state folder and scripted agent for one test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use exec_core::{
    AgentEvent, CommandConfig, Event, EventKind, EventParser, Execution, ExecutionContext,
    ExecutionService, ExecutionServiceBuilder, FollowUpRequest, LaunchRequest, NewChatRequest,
    Output, OutputStream, ProcessParameters, Profile, ProfileSource, SessionId,
};

/// Far above what anything here takes, so that a loaded machine fails no test.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);
/// Every process of a test carries this variable, so that none outlives it.
const LAB: &str = "EXEC_CORE_LAB";

type Setup = dyn Fn(&LaunchRequest, &mut ProcessParameters) + Send + Sync;

/// A profile whose agent is a shell script.
#[derive(Clone)]
pub(crate) struct Scripted {
    command: CommandConfig,
    variants: Vec<(String, Option<CommandConfig>)>,
    accepts_empty_prompt: bool,
    setup: Arc<Setup>,
}

/// What the script starts with: how to be a process that goes on until it is told to stop. The
/// loop is there because a shell that replaces itself by its last command loses its traps.
pub(crate) fn script(text: &str) -> Scripted {
    Scripted {
        command: CommandConfig::new("sh", ["-c", text, "agent"]),
        variants: Vec::new(),
        accepts_empty_prompt: false,
        setup: Arc::new(|_, _| {}),
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
}

/// Knows one profile, `scripted`.
struct OneProfile(Arc<Scripted>);

impl ProfileSource for OneProfile {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (label == "scripted").then(|| Arc::clone(&self.0) as Arc<dyn Profile>)
    }
}

/// Ends every process it has started and removes its folders on drop.
pub(crate) struct Lab {
    folder: PathBuf,
    id: String,
    /// `None` for a lab that belongs to another process.
    _dir: Option<tempfile::TempDir>,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("workspace")).unwrap();
        let mut lab = Self::at(dir.path());
        lab._dir = Some(dir);
        lab
    }

    /// The lab of another process.
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
        self.builder(profile).build().unwrap()
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
        service
            .launch(self.new_chat(prompt).try_into().unwrap())
            .await
            .unwrap()
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

    /// Polls until there are so many.
    pub(crate) async fn until_processes(&self, count: usize) {
        until(&format!("{count} processes"), || {
            self.processes().len() == count
        })
        .await;
    }

    /// What the script wrote to a file of its workspace.
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
            let pids = self.processes();
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
        assert!(begin.elapsed() < DEADLINE, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Fails instead of hanging.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(DEADLINE, future).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
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
            return vec![AgentEvent::Text { text, delta: false }];
        }
        if line == "done" {
            return vec![AgentEvent::Finished {
                outcome: exec_core::Outcome::Success,
                text: None,
            }];
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

/// Says to a process of its own where its lab is.
const HOST: &str = "EXEC_CORE_TEST_HOST";

/// Runs an ignored test as a process of its own, in this lab, and expects it to pass.
pub(crate) fn run_host(lab: &Lab, test: &str) {
    let host = host(lab, test).output().unwrap();
    let printed = String::from_utf8_lossy(&host.stderr);
    assert!(host.status.success(), "{printed}");
    assert!(lab.path("passed").exists(), "{test} did not run: {printed}");
}

/// The process of [`run_host`].
pub(crate) fn host(lab: &Lab, test: &str) -> Command {
    let mut host = Command::new(std::env::current_exe().unwrap());
    host.args(["--ignored", "--exact", test, "--nocapture"])
        .env(HOST, lab.path(""));
    host
}

/// The lab, in a process that [`host`] has started. There is none when somebody runs all ignored
/// tests.
pub(crate) fn host_lab() -> Option<Lab> {
    Some(Lab::at(Path::new(&std::env::var_os(HOST)?)))
}

/// What a process of [`run_host`] does at its end.
pub(crate) fn host_passed(lab: &Lab) {
    std::fs::write(lab.path("passed"), "").unwrap();
}

/// Has the kernel refuse a system call to this thread and to those it starts, as it does for
/// whoever lacks the right to.
pub(crate) fn refuse(call: libc::c_long) {
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const JUMP_IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        // The number of the call is the first field of what is looked at.
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

/// As on a disk that is full: a write beyond this fails.
pub(crate) fn limit_file_size(bytes: u64) {
    // SAFETY: no handler is installed; without this the kernel would end the process instead.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let limit = rustix::process::Rlimit {
        current: Some(bytes),
        maximum: None,
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
}
