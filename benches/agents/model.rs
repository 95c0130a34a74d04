//! The scripted model: `scripts/agents/fake_model.py`.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use examples::Result;
use serde::Deserialize;

/// The marker that the model puts below its replies.
pub(crate) const MARKER: &str = "CODING OK";

/// Ends with its value.
pub(crate) struct Model {
    process: Child,
    pub(crate) url: String,
    log: PathBuf,
}

#[derive(Deserialize)]
struct Request {
    #[serde(default)]
    tools: usize,
    #[serde(default)]
    messages: usize,
    #[serde(default)]
    user: String,
}

impl Model {
    pub(crate) fn start(folder: &Path) -> Result<Self> {
        let log = folder.join("requests.jsonl");
        let mut process = Command::new("python3")
            .arg(script("fake_model.py"))
            .args(["--trailer", MARKER, "--log"])
            .arg(&log)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut url = String::new();
        let stdout = process.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut url)?;
        let url = url.trim().to_owned();
        Ok(Self { process, url, log })
    }

    /// The user's messages of all turns so far. Requests without tools are not turns.
    pub(crate) fn messages(&self) -> Result<Vec<String>> {
        let requests = self.requests()?.into_iter();
        Ok(requests.map(|request| request.user).collect())
    }

    /// How many messages the conversation had when this one was asked.
    pub(crate) fn length_at(&self, message: &str) -> Result<usize> {
        let requests = self.requests()?.into_iter();
        let mut asked = requests.filter(|request| request.user.contains(message));
        Ok(asked.next_back().map_or(0, |request| request.messages))
    }

    fn requests(&self) -> Result<Vec<Request>> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let mut requests = Vec::new();
        for line in text.lines() {
            let request: Request = serde_json::from_str(line)?;
            if request.tools > 0 && !request.user.is_empty() {
                requests.push(request);
            }
        }
        Ok(requests)
    }

    /// The text of a canned reply.
    pub(crate) fn reply(name: &str) -> Result<String> {
        Ok(fs::read_to_string(script("replies").join(name))?)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../scripts/agents")
        .join(name)
}
