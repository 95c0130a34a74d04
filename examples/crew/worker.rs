//! A worker of a crew on several machines: takes tasks from the shared list and runs an agent for
//! each, without a terminal, until all tasks are done.
//!
//! ```sh
//! crew worker --redis redis://server/0 crew.toml      # on each machine
//! ```
//!
//! Unlike a member of a crew, which holds one role for all of its tasks, a worker takes the next task
//! of any role with a new agent. So any number of workers can share the tasks of one role. Each task is one prompt
//! in an empty folder, with the answers of the tasks before it: there are no panes and no page, so a role that
//! asks for permissions is refused, and the directives `scripted` of the file have no effect. The budget
//! holds for the agents of this worker. Workers and `crew --redis` with the same file share one list.
//!
//! Machines may come and go at any time. A task of a machine that dies or is cut off goes to another
//! one when its lease has expired; see the theory of [`task_list`](examples::task_list).

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use agent_snapshot::open_storage;
use examples::task_list::{Overtaken, Place, TakenTask, Task, TaskList};
use examples::{Result, scripted_agent, until_signal, with_causes};
use exec_core::{ExecutionContext, ExecutionService, LaunchRequest, NewChatRequest, RunResult};
use exec_profiles::ProfileRegistry;
use serde_json::{Value, json};

use crate::crew;
use crate::crew_file::{CrewFile, Lives, Permissions, storage_address};
use crate::effects::{Announced, Effect, Effects};

/// Prefix of an answer that reports a failure.
const FAILED: &str = "FAILED: ";

/// How often an agent is started for a task before the failure is its answer.
const ATTEMPTS: u32 = 3;

/// Pause after a failed call of a server that may be cut off.
const PAUSE: Duration = Duration::from_millis(500);

/// Takes tasks from a list that several machines share, until all are done.
#[derive(clap::Args)]
pub(crate) struct WorkerArguments {
    /// The Redis server of the claims [default: a file in the folder, for one machine]
    #[arg(long, value_name = "URL")]
    redis: Option<String>,
    /// The storage of the answers, such as postgres://user@host/db [default: as the file says; the
    /// Redis server in place of files]
    #[arg(long, value_name = "ADDRESS", value_parser = crate::storage)]
    storage: Option<String>,
    /// The name of this worker [default: the name of the machine and the process id]
    #[arg(long)]
    name: Option<String>,
    /// The folder for the work of the agents
    #[arg(long, value_name = "DIR", default_value = "crew-worker")]
    dir: PathBuf,
    /// The agents of the roles in turn: scripted, claude-code, codex, gemini, opencode
    #[arg(long, value_name = "LABELS", value_delimiter = ',')]
    agents: Vec<String>,
    /// Take tasks of this role only
    #[arg(long)]
    role: Option<String>,
    /// The number of agents at the same time
    #[arg(long, value_name = "N", default_value_t = 1)]
    parallel: usize,
    /// Seconds after which a task of a silent worker goes to another one
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    lease: f64,
    /// Print each event as one line of JSON
    #[arg(long)]
    json: bool,
    /// Go on with a task whose lease is lost, for tests: the storage must refuse the answer
    #[arg(long, hide = true)]
    ignore_loss: bool,
    /// The file that describes the crew, the same on all machines
    file: PathBuf,
}

/// Exit code 0: all tasks are done. 1: at least one has failed.
pub(crate) async fn run(arguments: WorkerArguments) -> Result<ExitCode> {
    let worker = Arc::new(Worker::open(arguments).await?);
    let service = worker.service.clone();
    let limit = worker.file.wall_time();
    let work = tokio::time::timeout(limit, Arc::clone(&worker).work_in_parallel());
    let done = until_signal(async { Ok(work.await) }).await;
    service.shutdown(Duration::from_secs(2)).await;
    let Ok(done) = done? else {
        let limit = limit.as_secs();
        return Err(format!("the budget of {limit} s for the whole crew is used up").into());
    };
    done?;
    let done = worker.list.done().await?;
    let failed = done.iter().filter(|done| done.answer.starts_with(FAILED));
    let failed = failed.count();
    let text = format!("all {} tasks are done, {failed} failed", done.len());
    let fields = json!({"event": "finished", "tasks": done.len(), "failed": failed});
    worker.tell(fields, &text);
    Ok(ExitCode::from(u8::from(failed > 0)))
}

struct Worker {
    name: String,
    file: CrewFile,
    list: TaskList,
    effects: Option<Effects>,
    service: ExecutionService,
    arguments: WorkerArguments,
}

impl Worker {
    async fn open(arguments: WorkerArguments) -> Result<Self> {
        let mut file = CrewFile::load(&arguments.file)?;
        for role in &mut file.roles {
            role.lives = Lives::Headless;
        }
        file.mix(&arguments.agents)?;
        let mut asking = file
            .roles
            .iter()
            .filter(|role| role.permissions == Permissions::Ask);
        if let Some(role) = asking.next() {
            let reason = "`permissions = \"ask\"` needs a page, which a worker does not have";
            return Err(format!("role `{}`: {reason}", role.name).into());
        }
        if let Some(role) = arguments
            .role
            .as_ref()
            .filter(|role| file.role(role).is_none())
        {
            return Err(format!("--role: there is no role `{role}`").into());
        }
        let dir = std::path::absolute(&arguments.dir)?;
        let storage = arguments.storage.as_deref().unwrap_or(&file.storage);
        let storage = storage_address(storage, arguments.redis.as_deref(), &dir);
        let place = match &arguments.redis {
            Some(url) => Place::Redis(url.clone()),
            None => Place::Folder(dir.clone()),
        };
        let lease = Duration::try_from_secs_f64(arguments.lease)
            .map_err(|error| format!("--lease {}: {error}", arguments.lease))?;
        // Before the storage, which may be a database in it.
        let mut private = std::fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&dir)?;
        let list = TaskList::builder(place, open_storage(&storage).await?, file.tasks());
        let list = list.name(file.list_name()).lease(lease).open().await?;
        let effects = arguments.redis.as_deref();
        let effects = effects.map(|url| Effects::new(url, list.name()));
        let name = arguments.name.clone().unwrap_or_else(crew::worker);
        let registry = ProfileRegistry::new();
        registry.register(scripted_agent::profile(&dir.join("scripted-agent"))?)?;
        let service = ExecutionService::builder(registry)
            .state_dir(dir.join("state").join(&name))
            .host_name(&name)
            .open()?;
        // Agents of a predecessor that was killed: their leases are lost.
        service.reap_orphans().await?;
        Ok(Self {
            name,
            file,
            list,
            effects: effects.transpose()?,
            service,
            arguments: WorkerArguments { dir, ..arguments },
        })
    }

    async fn work_in_parallel(self: Arc<Self>) -> Result<()> {
        let count = self.list.tasks().len();
        let text = format!(
            "{} works on {count} tasks of {}",
            self.name,
            self.list.name()
        );
        let fields = json!({"event": "started", "tasks": count, "list": self.list.name()});
        self.tell(fields, &text);
        let mut lanes = tokio::task::JoinSet::new();
        for _ in 0..self.arguments.parallel.max(1) {
            let worker = Arc::clone(&self);
            lanes.spawn(async move { worker.work().await });
        }
        while let Some(ended) = lanes.join_next().await {
            ended?;
        }
        Ok(())
    }

    /// Works until all tasks are done. A failed call is repeated: a machine that is cut off goes on when
    /// it is back.
    async fn work(&self) {
        loop {
            let step = async {
                let role = self.arguments.role.as_deref();
                if let Some(taken) = self.list.take(&self.name, role).await? {
                    let task = taken.task().id.clone();
                    if let Err(error) = self.work_on(taken).await {
                        self.trouble(Some(&task), with_causes(&*error)).await;
                    }
                } else if self.list.is_complete().await? {
                    return Result::Ok(true);
                } else {
                    self.list.changed().await;
                }
                Ok(false)
            };
            match step.await {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => self.trouble(None, with_causes(&*error)).await,
            }
        }
    }

    /// Tells of a call that failed, and pauses. With a task: the worker has given it up.
    async fn trouble(&self, task: Option<&str>, error: String) {
        let fields = json!({"event": "trouble", "task": task, "error": error});
        self.tell(fields, &error);
        tokio::time::sleep(PAUSE).await;
    }

    async fn work_on(&self, taken: TakenTask) -> Result<()> {
        let (task, token) = (taken.task().id.clone(), taken.token());
        self.tell_of("taken", &task, token);
        let mut answer = None;
        if let Some(effects) = &self.effects {
            match effects.announce(&task, token).await? {
                Announced::Free => {}
                // The earlier worker died or lost its lease before it could record the answer.
                Announced::Made(text) => answer = Some(text),
                Announced::Overtaken => return self.overtaken(&task, token),
            }
        }
        let answer = match answer {
            Some(answer) => answer,
            None => {
                let answer = tokio::select! {
                    answer = self.ask_agent(taken.task(), token) => answer?,
                    () = taken.lost(), if !self.arguments.ignore_loss => {
                        self.tell_of("lost", &task, token);
                        return Ok(());
                    }
                };
                if self.make_effect(&taken, &answer).await? == Effect::Overtaken {
                    return self.overtaken(&task, token);
                }
                answer
            }
        };
        match taken.finish(&answer).await {
            Ok(()) => self.tell_of("done", &task, token),
            Err(error) if error.is::<Overtaken>() => return self.overtaken(&task, token),
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Repeats a call without an answer. A worker that is cut off gets here: it learns when it is back that
    /// it was overtaken.
    async fn make_effect(&self, taken: &TakenTask, answer: &str) -> Result<Effect> {
        let Some(effects) = &self.effects else {
            return Ok(Effect::Made);
        };
        let (task, token) = (&taken.task().id, taken.token());
        loop {
            match effects.make(task, token, &self.name, answer).await {
                Ok(effect) => return Ok(effect),
                Err(error) => self.trouble(None, with_causes(&*error)).await,
            }
        }
    }

    /// Runs an agent in a folder of its own: a late worker does not disturb its successor.
    async fn ask_agent(&self, task: &Task, token: u64) -> Result<String> {
        let workspace = self.arguments.dir.join(format!("work/{}-{token}", task.id));
        std::fs::create_dir_all(&workspace)?;
        let role = self.file.role(&task.role);
        let agent = role.map_or(scripted_agent::LABEL, |role| role.agent.as_str());
        let mut prompt = task.text.clone();
        let done = self.list.done().await?;
        for before in done.iter().filter(|done| task.after.contains(&done.id)) {
            prompt += &format!("\n\nThe answer to {}:\n{}", before.id, before.answer);
        }
        if let Some(role) = role {
            prompt += &format!("\n\n{}", role.personality.trim());
        }
        let mut reason = String::new();
        for _ in 0..ATTEMPTS {
            match self.run_agent(agent, &workspace, &prompt).await {
                Ok(result) if result.is_success() => return Ok(result.text),
                Ok(result) => reason = failure_of(&result),
                // An agent that cannot be started: another worker cannot start it, either.
                Err(error) => reason = with_causes(&error),
            }
        }
        let fields = json!({"event": "failed", "task": task.id, "error": reason});
        self.tell(fields, &format!("{} failed: {reason}", task.id));
        Ok(format!("{FAILED}{reason}"))
    }

    async fn run_agent(
        &self,
        agent: &str,
        workspace: &Path,
        prompt: &str,
    ) -> std::result::Result<RunResult, exec_core::Error> {
        let mut request = LaunchRequest::try_from(NewChatRequest {
            context: ExecutionContext::for_workspace(agent, workspace)?,
            prompt: prompt.to_owned(),
        })?;
        if let Some(budget) = self.file.budget(self.list.name()) {
            request = request.budget(budget);
        }
        let limit = self.file.wall_time();
        self.service.run(request).time_limit(limit).await
    }

    fn overtaken(&self, task: &str, token: u64) -> Result<()> {
        self.tell_of("overtaken", task, token);
        Ok(())
    }

    fn tell_of(&self, event: &str, task: &str, token: u64) {
        let fields = json!({"event": event, "task": task, "token": token});
        self.tell(fields, &format!("{task} {event} (token {token})"));
    }

    fn tell(&self, mut fields: Value, text: &str) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = since_1970.unwrap_or_default().as_secs_f64();
        if self.arguments.json {
            fields["worker"] = json!(self.name);
            fields["at"] = json!(at);
            println!("{fields}");
        } else {
            println!("{}: {text}", self.name);
        }
    }
}

/// Why an agent has no answer.
fn failure_of(result: &RunResult) -> String {
    match (&result.exit.budget, &result.failure) {
        (Some(notice), _) => notice.to_string(),
        (None, Some(failure)) => failure.message.clone(),
        (None, None) if !result.is_whole => "its answer has holes, or is too long".to_owned(),
        (None, None) => "the agent was stopped".to_owned(),
    }
}
