//! What is promised on a system with the limits of macOS, and what is not.

use exec_core::{Error, Execution, Sandbox};

use crate::lab::{Lab, alive, script, until, within};

async fn stop(execution: &Execution) {
    within("the stop", execution.stop()).await.unwrap();
}

#[tokio::test]
async fn a_launch_with_a_sandbox_is_refused_with_the_reason() {
    let lab = Lab::new();
    let profile = script("echo x > started");
    let profile = profile.setup(|_, parameters| parameters.sandbox = Some(Sandbox::new()));
    let service = lab.service(profile);
    let error = service.launch(lab.new_chat("go")).await.unwrap_err();
    assert!(matches!(error, Error::Sandbox { .. }), "{error}");
    assert!(error.to_string().contains("for Linux only"), "{error}");
    assert!(service.executions().is_empty());
    assert_eq!(lab.written("started"), "");
}

/// Not promised: a daemon that has left its group, its session and its parent before the first look at
/// it. On Linux, its mark shows that it is ours.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_daemon_can_escape_before_the_first_look() {
    for _ in 0..20 {
        let lab = Lab::new();
        let sleeper = lab.sleeper();
        let agent = format!("(env -i setsid {sleeper} 60 &); exec {sleeper} 61");
        let execution = lab.launch(&lab.service(script(&agent))).await;
        until("the daemon", || lab.commands().len() == 2).await;
        stop(&execution).await;
        let left = lab.commands();
        assert!(!left.contains(&execution.process_id()) && left.len() <= 1);
        // A look may have come first.
        if left.len() == 1 {
            return;
        }
    }
    panic!("a promise: describe it in the documentation");
}

/// An agent with a shell in a session of its own, which starts a tool and ends when it is told to.
#[cfg(target_os = "linux")]
fn agent_of_a_tool(lab: &Lab) -> String {
    let sleeper = lab.sleeper();
    format!(
        "mkfifo gate
        setsid sh -c '{sleeper} 60 & read go < gate; : {sleeper}' &
        exec {sleeper} 61"
    )
}

/// Promised: a look finds all processes that have a parent in the tree, and they stay found.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_tool_that_loses_its_parent_after_a_look_is_stopped() {
    let lab = Lab::new();
    let execution = lab
        .launch(&lab.service(script(&agent_of_a_tool(&lab))))
        .await;
    until("the tool", || lab.commands().len() == 3).await;
    let looked = execution.usage().await.unwrap();
    assert_eq!(looked.processes, 3);
    std::fs::write(lab.workspace().join("gate"), "go\n").unwrap();
    until("the end of its parent", || lab.commands().len() == 2).await;
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
}

/// Promised: so are the processes of a session that was found.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_tool_that_starts_in_a_known_session_is_stopped() {
    let lab = Lab::new();
    let sleeper = lab.sleeper();
    let agent = format!(
        "mkfifo gate
        setsid sh -c 'echo $$ > shell; read go < gate; {sleeper} 60 & (exec env -i {sleeper} 62 &); : {sleeper}' &
        exec {sleeper} 61"
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    until("the shell", || lab.commands().len() == 2).await;
    let shell: u32 = lab.until_written("shell").await.parse().unwrap();
    assert_eq!(execution.usage().await.unwrap().processes, 2);
    std::fs::write(lab.workspace().join("gate"), "go\n").unwrap();
    until("the end of the shell", || !alive(shell)).await;
    until("the tools", || lab.commands().len() == 3).await;
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
}

/// Promised: a daemon whose program shows its environment is found by its tag.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_daemon_whose_program_is_not_of_the_system_is_found_by_its_tag() {
    let lab = Lab::new();
    let tool = lab.path("tool");
    std::fs::copy("/bin/sleep", &tool).unwrap();
    let agent = format!(
        "(setsid {} 60 &); exec {} 61",
        tool.display(),
        lab.sleeper()
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    until("the daemon", || lab.commands().len() == 2).await;
    stop(&execution).await;
    assert_eq!(lab.commands(), [0; 0]);
}

/// Not promised: a tool in its own session that outlives an agent which ends before the first look.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_tool_can_outlive_an_agent_that_ends_before_the_first_look() {
    for _ in 0..20 {
        let lab = Lab::new();
        let sleeper = lab.sleeper();
        // The agent ends when the tool has left its group.
        let agent = format!(
            "setsid sh -c 'echo > left; exec {sleeper} 60' & until [ -e left ]; do :; done; exit 4"
        );
        let execution = lab.launch(&lab.service(script(&agent))).await;
        let report = within("the end", execution.wait()).await.unwrap();
        assert_eq!(report.code, Some(4));
        if lab.commands().len() > report.leftover_processes {
            return;
        }
    }
    panic!("a promise: describe it in the documentation");
}

/// Not promised: a tool in its own session that is started during the stop by a process which ends at
/// once. The agent itself is ended in any case.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_tool_can_escape_that_starts_during_the_stop() {
    let lab = Lab::new();
    let sleeper = lab.sleeper();
    let agent = format!(
        "trap 'setsid {sleeper} 60 & exit 0' TERM; echo x > ready; while :; do sleep 0.05; done"
    );
    let execution = lab.launch(&lab.service(script(&agent))).await;
    lab.until_written("ready").await;
    stop(&execution).await;
    assert!(!alive(execution.process_id()));
    assert!(lab.commands().len() <= 1);
}
