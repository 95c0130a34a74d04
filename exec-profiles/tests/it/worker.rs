//! Helper processes: this test binary, started again to play a part.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{live_service, user_file};

const PART: &str = "EXEC_PROFILES_TEST_PART";
const PATH: &str = "EXEC_PROFILES_TEST_PATH";

/// Not a test: with the variable set, this process plays the part that it names.
#[test]
fn play() {
    let Ok(part) = std::env::var(PART) else {
        return;
    };
    let path = std::env::var(PATH).unwrap();
    match part.as_str() {
        "save-until-killed" => user_file::save_until_killed(Path::new(&path)),
        "live-agent" => live_service::play(Path::new(&path)),
        other => panic!("no part `{other}`"),
    }
}

/// The arguments of a process that plays a part.
pub(crate) const ARGS: [&str; 4] = ["--exact", "worker::play", "--nocapture", "--test-threads=1"];

/// The variables of a process that plays this part.
pub(crate) fn environment(part: &str, path: &Path) -> BTreeMap<String, String> {
    let path = path.to_str().unwrap().to_owned();
    BTreeMap::from([(PART.to_owned(), part.to_owned()), (PATH.to_owned(), path)])
}

/// A helper process. It is killed on drop.
pub(crate) struct Worker(Child);

impl Worker {
    pub(crate) fn start(part: &str, path: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(ARGS)
            .envs(environment(part, path))
            .stdout(Stdio::piped())
            .spawn();
        Self(child.unwrap())
    }

    /// The lines that the process prints, until its end.
    pub(crate) fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let stdout = self.0.stdout.take().expect("the lines are read once");
        BufReader::new(stdout).lines().map_while(Result::ok)
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
