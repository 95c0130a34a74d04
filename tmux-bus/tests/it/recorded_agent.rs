//! A program in a pane that shows recorded moments of a real agent.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tmux_bus::{ClusterBuilder, ClusterConfig, ClusterManager};

use crate::support::{TestDir, eventually, need_tmux};

/// Shows a moment for each line of the pipe: a recording, and the number of its bytes. What is typed goes to a
/// file.
const PROGRAM: &str = r#"
stty raw -echo
exec 3<&0 4<>"$0.pipe"
cat <&3 >"$0.typed" &
while read -r recording bytes <&4; do
    printf '\033[?1049l\033c'
    gzip -dc "$recording" | head -c "$bytes"
done
"#;

/// Agents with recorded screens. Each has a window of its own size if it is the only one.
pub struct RecordedAgents {
    dir: TestDir,
    agents: Vec<String>,
}

impl RecordedAgents {
    /// Agents by the names of their definitions; each begins with a moment such as `start/ready`.
    pub fn new(agents: &[(&str, &str)]) -> Self {
        need_tmux();
        assert!(
            Command::new("gzip").arg("-V").output().is_ok(),
            "these tests need gzip: `apt install gzip`"
        );
        let dir = TestDir::new();
        fs::write(dir.path().join("prompt.txt"), "OK").unwrap();
        for (agent, moment) in agents {
            fs::write(dir.path().join(agent), PROGRAM).unwrap();
            let made = Command::new("mkfifo")
                .arg(dir.path().join(format!("{agent}.pipe")))
                .status();
            assert!(made.unwrap().success());
            // Opened for reading too: the line stays in the pipe until the program reads it.
            Self::open_pipe(dir.path(), agent, moment);
        }
        let agents = agents
            .iter()
            .map(|(agent, _)| (*agent).to_owned())
            .collect();
        Self { dir, agents }
    }

    fn open_pipe(dir: &Path, agent: &str, moment: &str) {
        let pipe = dir.join(format!("{agent}.pipe"));
        let line = line(agent, moment);
        // Keeps the pipe open until the program has opened it.
        let mut file = File::options().read(true).write(true).open(pipe).unwrap();
        file.write_all(line.as_bytes()).unwrap();
        std::mem::forget(file);
    }

    /// Shows a moment.
    pub fn show(&self, agent: &str, moment: &str) {
        let pipe = self.dir.path().join(format!("{agent}.pipe"));
        let mut file = File::options().write(true).open(pipe).unwrap();
        file.write_all(line(agent, moment).as_bytes()).unwrap();
    }

    /// What was typed into an agent.
    pub fn typed(&self, agent: &str) -> String {
        let typed = fs::read(self.dir.path().join(format!("{agent}.typed")));
        String::from_utf8_lossy(&typed.unwrap_or_default()).into_owned()
    }

    /// Waits until the pane shows a text, also while the cluster starts.
    pub fn until_shown(&self, text: &str) {
        let socket = || {
            let mut folders = fs::read_dir(self.dir.path().join("run")).ok()?;
            Some(folders.next()?.ok()?.path().join("tmux"))
        };
        let shown = |socket: PathBuf| {
            let mut capture = Command::new("tmux");
            capture.arg("-uS").arg(socket).args(["capture-pane", "-p"]);
            let screen = capture.output().unwrap().stdout;
            String::from_utf8_lossy(&screen).contains(text)
        };
        eventually(text, || socket().is_some_and(shown));
    }

    pub fn config(&self) -> ClusterConfig {
        let mut text =
            "cluster: { name: team, session_name: team, work_dir: . }\nagents:\n".to_owned();
        for (i, agent) in self.agents.iter().enumerate() {
            text.push_str(&format!(
                "  - {{ name: {agent}, role: x, personality_prompt_path: prompt.txt, marker: OK {i}, \
                 pane_index: {i}, timeout_s: 40, agent: {agent}, command: sh ./{agent} }}\n"
            ));
        }
        let path = self.dir.path().join("team.yaml");
        fs::write(&path, text).unwrap();
        ClusterConfig::load(path).unwrap()
    }

    pub fn builder(&self) -> ClusterBuilder {
        ClusterManager::builder(self.config()).runtime_dir(self.dir.path().join("run"))
    }
}

fn line(agent: &str, moment: &str) -> String {
    let (scenario, moment) = moment.split_once('/').unwrap();
    let folder = recordings().join(agent).join(scenario);
    let text = fs::read_to_string(folder.join("moments.json")).unwrap();
    let recording: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(recording["size"], serde_json::json!([121, 41]));
    let moments = recording["moments"].as_array().unwrap();
    let found = moments.iter().find(|found| found["moment"] == moment);
    let bytes = &found.unwrap()["offset_after"];
    format!("{} {bytes}\n", folder.join("raw.gz").display())
}

fn recordings() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tui");
    assert!(
        folder.is_dir(),
        "this test needs the recordings in {}, which are in the repository but not in the package",
        folder.display()
    );
    folder
}
