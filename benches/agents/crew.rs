//! The example `crew` with all four real agents, in panes and headless, and one of them killed at work.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use examples::{Result, with_causes};
use serde_json::Value;
use tempfile::TempDir;

use crate::Context;
use crate::model::{Model, script};
use crate::table::Table;

/// The column of the table.
const CREW: &str = "claude, codex, gemini, opencode";
/// The agents: name and profile. In even runs the first two live in panes, in odd runs the last two.
const AGENTS: [(&str, &str); 4] = [
    ("claude", "claude-code"),
    ("gemini", "gemini"),
    ("codex", "codex"),
    ("opencode", "opencode"),
];
/// Of one run. On a busy machine Opencode needs a minute to start, and is killed once.
const RUN_LIMIT: Duration = Duration::from_secs(420);

/// One run of the program.
struct Run {
    number: usize,
    folder: TempDir,
    env: BTreeMap<String, String>,
    _model: Model,
}

/// What a run has shown.
struct Shown {
    took: Duration,
    has_recovered: bool,
    has_asked: bool,
    done_twice: usize,
}

pub(crate) async fn run(context: &Context, table: &mut Table) -> Result<()> {
    let count = context.count(10).max(2);
    let (mut ended, mut recovered, mut asked, mut twice) = (0, 0, 0, 0);
    let mut times = Vec::new();
    for number in 0..count {
        let run = Run::prepare(context, number)?;
        match tokio::task::block_in_place(|| run.run()) {
            Ok(shown) => {
                eprintln!("  run {number}: {:.0} s", shown.took.as_secs_f64());
                ended += 1;
                recovered += usize::from(shown.has_recovered);
                asked += usize::from(shown.has_asked);
                twice += shown.done_twice;
                times.push(shown.took.as_secs_f64());
            }
            Err(error) => {
                table.note(format!(
                    "run {number}, {}: {}",
                    run.killed(),
                    with_causes(&*error)
                ));
            }
        }
    }
    let of = |found: usize| (format!("{found} of {count}"), found == count);
    let mut set = |check, (text, is_met)| table.set(CREW, check, text, is_met);
    set("runs to the end", of(ended));
    set("the killed agent continued", of(recovered));
    set("an agent asked another by the command", of(asked));
    set("pieces of work done twice", (twice.to_string(), twice == 0));
    times.sort_by(f64::total_cmp);
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    set("time of a run, median", (format!("{median:.0} s"), true));
    Ok(())
}

impl Run {
    /// One home and one model for all four agents.
    fn prepare(context: &Context, number: usize) -> Result<Self> {
        // Codex refuses a home below /tmp.
        let folder = tempfile::Builder::new();
        let folder = { folder }
            .prefix("agents-crew-")
            .tempdir_in(&context.agents_dir)?;
        let home = folder.path().join("home");
        let workspace = folder.path().join("crew/workspace");
        let mut private = fs::DirBuilder::new();
        private.recursive(true).mode(0o700).create(&workspace)?;
        let git = Command::new("git")
            .args(["init", "-q"])
            .arg(&workspace)
            .status()?;
        if !git.success() {
            return Err("git init failed".into());
        }
        let model = Model::start(folder.path())?;
        let mut env = BTreeMap::new();
        // The command that the agents are told of, and that Claude Code allows, is the first one on the path.
        let command = program("tmux-bus")?;
        let command = command.parent().unwrap_or(Path::new("/"));
        let mut path = format!("{}:", command.display());
        for (name, _) in AGENTS {
            let mut homes = Command::new("python3");
            homes
                .arg(script("homes.py"))
                .arg(name)
                .arg(&home)
                .arg(&model.url)
                .arg(&workspace);
            let output = homes.output()?;
            if !output.status.success() {
                return Err(String::from_utf8_lossy(&output.stderr).into());
            }
            for line in String::from_utf8(output.stdout)?.lines() {
                if let Some((key, value)) = line.split_once('=') {
                    env.insert(key.to_owned(), value.to_owned());
                }
            }
            let programs = context.agents_dir.join(name).join("node_modules/.bin");
            path.push_str(&format!("{}:", programs.display()));
        }
        env.insert("PATH".to_owned(), format!("{path}{}", env::var("PATH")?));
        env.insert("HOME".to_owned(), home.display().to_string());
        env.insert("LANG".to_owned(), "C.UTF-8".to_owned());
        let run = Self {
            number,
            folder,
            env,
            _model: model,
        };
        fs::write(run.file(), run.description()?)?;
        Ok(run)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("real.toml")
    }

    /// The agent that is killed: each in its turn.
    fn killed(&self) -> &'static str {
        AGENTS[(self.number / 2 + 2 * (self.number % 2)) % 4].0
    }

    fn is_in_pane(&self, index: usize) -> bool {
        (index < 2) == self.number.is_multiple_of(2)
    }

    /// Each agent has a slow task, during which one is killed. Then the first agent in a pane asks the other one, the
    /// headless ones use a tool, and the last task follows all others.
    fn description(&self) -> Result<String> {
        let mut text = "[crew]\ngoal = \"real\"\nstorage = \"sqlite\"\n[budget]\nwall_time_s = 400\ntokens = 100_000_000\n".to_owned();
        for (index, (name, label)) in AGENTS.iter().enumerate() {
            let lives = if self.is_in_pane(index) {
                "pane"
            } else {
                "headless"
            };
            text += &format!(
                "[[role]]\nname = \"{name}\"\nagent = \"{label}\"\nlives = \"{lives}\"\npersonality = \"You answer briefly.\"\n"
            );
            if *name == "codex" && lives == "pane" {
                // Its sandbox hides the socket of tmux.
                text += "command = \"codex --dangerously-bypass-approvals-and-sandbox\"\n";
            }
            text += &format!(
                "[[task]]\nid = \"slow-{name}\"\nrole = \"{name}\"\ntext = \"[[SLOW 8]]\"\n"
            );
            if lives == "headless" {
                text += &format!(
                    "[[task]]\nid = \"tool-{name}\"\nrole = \"{name}\"\nafter = [\"slow-{name}\"]\n\
                     text = \"[[TOOL echo {name} >> work.log]]\"\n"
                );
            }
        }
        let in_panes: Vec<&str> = (0..4)
            .filter(|index| self.is_in_pane(*index))
            .map(|index| AGENTS[index].0)
            .collect();
        // The first in a pane: claude, which allows this command, or codex.
        let (asks, answers) = (in_panes[0], in_panes[1]);
        let command = program("tmux-bus")?;
        text += &format!(
            "[[task]]\nid = \"ask\"\nrole = \"{asks}\"\nafter = [\"slow-{asks}\", \"slow-{answers}\"]\n\
             text = \"[[TOOL {} ask {answers} 'number {}']]\"\n",
            command.display(),
            self.number
        );
        text += &format!(
            "[[task]]\nid = \"end\"\nrole = \"{answers}\"\nafter = [\"ask\", {}]\ntext = \"[[ECHO the end]]\"\n",
            AGENTS
                .map(|(name, _)| format!("\"slow-{name}\""))
                .join(", ")
        );
        Ok(text)
    }

    fn run(&self) -> Result<Shown> {
        let began = Instant::now();
        let mut child = Command::new(program("examples/crew")?)
            .args(["--json", "--kill", self.killed(), "--dir"])
            .arg(self.folder.path().join("crew"))
            .arg("--file")
            .arg(self.file())
            .env_clear()
            .envs(&self.env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(self.folder.path().join("stderr"))?)
            .spawn()?;
        let lines = BufReader::new(child.stdout.take().ok_or("stdout is piped")?).lines();
        let mut events: Vec<Value> = Vec::new();
        for line in lines {
            let event: Value = serde_json::from_str(&line?)?;
            let (name, role, task) = (&event["event"], &event["role"], &event["task"]);
            eprintln!(
                "    {:>4.0} s {name} {role} {task} {}",
                began.elapsed().as_secs_f64(),
                event["reason"]
            );
            events.push(event);
            if began.elapsed() > RUN_LIMIT {
                let _ = rustix::process::kill_process(
                    rustix::process::Pid::from_child(&child),
                    rustix::process::Signal::TERM,
                );
            }
        }
        let status = child.wait()?;
        if !status.success() {
            let told = fs::read_to_string(self.folder.path().join("stderr"))?;
            return Err(format!("{status}: {}", told.trim()).into());
        }
        let answer = |task: &str| {
            let is_it = |event: &&Value| event["event"] == "answered" && event["task"] == task;
            let answered = events.iter().find(is_it)?;
            answered["answer"].as_str().map(str::to_owned)
        };
        for (name, _) in AGENTS {
            let answer = answer(&format!("slow-{name}")).unwrap_or_default();
            if !(answer.contains("tick0 ") && answer.contains("tick15")) {
                return Err(format!("{name} answered {answer:?}").into());
            }
        }
        if answer("end").is_none_or(|answer| !answer.contains("pong: the end")) {
            return Err(format!("the last answer is {:?}", answer("end")).into());
        }
        let has = |name: &str| {
            events
                .iter()
                .any(|event| event["event"] == name && event["role"] == self.killed())
        };
        let work = fs::read_to_string(self.folder.path().join("crew/workspace/work.log"))
            .unwrap_or_default();
        let mut different: Vec<&str> = work.lines().collect();
        let pieces = different.len();
        different.sort_unstable();
        different.dedup();
        if different.len() != 2 {
            return Err(format!("the work is {work:?}").into());
        }
        let question = format!("pong: number {}", self.number);
        Ok(Shown {
            took: began.elapsed(),
            has_recovered: has("killed") && has("recovered"),
            has_asked: answer("ask").is_some_and(|answer| answer.contains(&question)),
            done_twice: pieces - different.len(),
        })
    }
}

/// A program of the same build.
fn program(name: &str) -> Result<PathBuf> {
    let own = env::current_exe()?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    let program = folder.join(name);
    match program.is_file() {
        true => Ok(program),
        false => Err(format!("there is no {}", program.display()).into()),
    }
}
