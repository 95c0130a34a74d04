//! The command `tmux-bus` beside the library in a program that is attached.

use super::*;
use tmux_bus::{ClusterConfig, ClusterManager};

/// A question to an agent that answers at once: by the command, which starts, finds the cluster and its sender, and
/// starts the process that asks; and by a program that is already attached.
pub(crate) fn command(bench: &mut Bench) {
    bench.progress("the command");
    let command = build();
    let dir = tempfile::tempdir().unwrap();
    let path = hook::config(&dir);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let run = dir.path().join("run");
    let cluster = runtime.block_on(async {
        let config = ClusterConfig::load(&path).unwrap();
        let builder = ClusterManager::builder(config).runtime_dir(&run);
        builder.command(&command).start().await.unwrap()
    });
    let user = cluster.outsider("user");
    let mut number = 0;
    let by_library = || {
        number += 1;
        let text = format!("question {number}");
        let answer = runtime.block_on(user.send_to("a", &text)).unwrap();
        assert!(answer.contains(MARKER));
    };
    let mut asked = 0;
    let by_command = || {
        asked += 1;
        let output = Command::new(&command)
            .arg("--config")
            .arg(&path)
            .arg("--runtime-dir")
            .arg(&run)
            .args(["ask", "a", &format!("ask {asked}")])
            .output()
            .unwrap();
        let answer = String::from_utf8_lossy(&output.stdout);
        assert!(answer.contains(MARKER), "{output:?}");
    };
    bench
        .compare("a question to an agent that answers at once")
        .floor("Agent::send_to, attached", by_library)
        .ours("tmux-bus ask, a new process", by_command)
        .differs("includes three starts of the command and two connections to tmux")
        .run();
    runtime.block_on(cluster.stop()).unwrap();
}

/// Builds the command in the profile of this bench.
fn build() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let profile = program.parent().unwrap().parent().unwrap();
    let command = profile.join("tmux-bus");
    let mut cargo = Command::new(std::env::var("CARGO").unwrap_or("cargo".to_owned()));
    // With the features of the gate, where cargo has built everything: an example makes it use those of
    // the development dependencies, too.
    cargo
        .args(["build", "--quiet", "--workspace", "--all-features"])
        .args(["--bin", "tmux-bus", "--example", "tmux-bus", "--target-dir"])
        .arg(profile.parent().unwrap())
        .current_dir(env!("CARGO_MANIFEST_DIR"));
    // The build of ring depends on these variables, which cargo sets for a bench: with them it would be
    // built again, and all crates that use it.
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(&*name);
        }
    }
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let built = cargo.status().unwrap();
    assert!(
        built.success() && command.is_file(),
        "the command tmux-bus is not built"
    );
    command
}
