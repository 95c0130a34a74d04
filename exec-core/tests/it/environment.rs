use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use exec_core::{CommandConfig, EnvPolicy, Execution, ExecutionContext, NewChatRequest, Wrapper};

use crate::lab::{Lab, script, stdout_of};

async fn variables(execution: &Execution) -> HashMap<String, String> {
    stdout_of(execution)
        .await
        .into_iter()
        .filter_map(|line| {
            let (name, value) = line.split_once('=')?;
            Some((name.to_owned(), value.to_owned()))
        })
        .collect()
}

#[tokio::test]
async fn every_specified_variable_is_set() {
    let lab = Lab::new();
    let env = CommandConfig::new("env", [""; 0]);
    let service = lab.service(script("env").variant("plan", Some(env)));

    let plain = lab.launch(&service).await;
    let got = variables(&plain).await;
    let context = lab.context();
    let workspace = lab.workspace().to_string_lossy().into_owned();
    let check = |name: &str, expected: &str| {
        assert_eq!(got.get(name).map(String::as_str), Some(expected), "{name}");
    };
    check("NORMALIZED_EXECUTION_KIND", "new");
    check("NORMALIZED_EXECUTION_PROFILE", "scripted");
    check("NORMALIZED_EXECUTION_PROJECT_ID", &context.project_id);
    check(
        "NORMALIZED_EXECUTION_ACTUAL_PROJECT_ID",
        &context.actual_project_id,
    );
    check("NORMALIZED_EXECUTION_WORKSPACE", &workspace);
    check(
        "NORMALIZED_EXECUTION_SESSION_ID",
        plain.session_id().as_str(),
    );
    check("NORMALIZED_EXECUTION_ID", plain.id().as_str());
    check("PWD", &workspace);
    assert!(!got.contains_key("NORMALIZED_EXECUTION_VARIANT"));

    let mut request = lab.new_chat("go");
    request.context.variant_label = Some("plan".into());
    let plan = service.launch(request).await.unwrap();
    let got = variables(&plan).await;
    assert_eq!(got["NORMALIZED_EXECUTION_VARIANT"], "plan");
    assert_ne!(got["NORMALIZED_EXECUTION_ID"], plain.id().as_str());

    let follow_up = lab.follow_up(&plain.session_id(), "more");
    let follow_up = service.launch(follow_up).await.unwrap();
    let got = variables(&follow_up).await;
    assert_eq!(got["NORMALIZED_EXECUTION_KIND"], "follow-up");
    assert_eq!(
        got["NORMALIZED_EXECUTION_SESSION_ID"],
        plain.session_id().as_str()
    );
}

#[tokio::test]
async fn a_command_adds_variables_but_cannot_override_those_of_the_service() {
    let lab = Lab::new();
    let profile = script("env")
        .variable("MY_MODEL", "m1")
        .variable("HOME", "/elsewhere")
        .variable("NORMALIZED_EXECUTION_ID", "x")
        .variable("NORMALIZED_EXECUTION_KIND", "x")
        .variable("NORMALIZED_EXECUTION_VARIANT", "x")
        .variable("PWD", "/x")
        .setup(|_, parameters| {
            parameters.env.insert("MY_MODEL".into(), "m2".into());
        });
    let service = lab.service(profile);
    let execution = lab.launch(&service).await;
    let got = variables(&execution).await;
    assert_eq!(got["MY_MODEL"], "m2");
    assert_eq!(got["HOME"], "/elsewhere");
    assert_eq!(got["NORMALIZED_EXECUTION_ID"], execution.id().as_str());
    assert_eq!(got["NORMALIZED_EXECUTION_KIND"], "new");
    assert!(!got.contains_key("NORMALIZED_EXECUTION_VARIANT"));
    assert_eq!(got["PWD"], lab.workspace().to_string_lossy());
}

#[tokio::test]
async fn the_policy_decides_what_is_inherited() {
    let lab = Lab::new();
    let profile = script("env").setup(|_, parameters| {
        parameters.env_policy = EnvPolicy::Only(vec!["PATH".into()]);
    });
    let execution = lab.launch(&lab.service(profile)).await;
    let got = variables(&execution).await;
    assert!(got.contains_key("PATH"));
    assert!(!got.contains_key("HOME"), "{:?}", got.keys());

    let profile = script("env").setup(|_, parameters| {
        parameters.env_policy = EnvPolicy::AllExcept(vec!["HOM*".into()]);
    });
    let execution = lab.launch(&lab.service(profile)).await;
    let got = variables(&execution).await;
    assert!(std::env::var_os("HOME").is_some(), "nothing to leave out");
    assert!(!got.contains_key("HOME"), "{:?}", got.keys());
    assert!(got.contains_key("PATH"));
}

#[tokio::test]
async fn the_agent_runs_in_the_workspace_and_reads_its_prompt() {
    let lab = Lab::new();
    let service = lab.service(script("pwd -P; cat; echo; echo \"$0 $1\""));
    let execution = lab.launch_with(&service, "日本語 -x").await;
    let real = lab.workspace().canonicalize().unwrap();
    let lines = stdout_of(&execution).await;
    assert_eq!(lines, [real.to_str().unwrap(), "日本語 -x", "agent "]);
}

#[tokio::test]
async fn without_a_payload_standard_input_is_empty() {
    let lab = Lab::new();
    let profile = script("cat; echo end").setup(|_, parameters| parameters.stdin_payload = None);
    let execution = lab.launch(&lab.service(profile)).await;
    assert_eq!(stdout_of(&execution).await, ["end"]);
}

#[tokio::test]
async fn a_wrapper_runs_the_agent() {
    let lab = Lab::new();
    let profile =
        script("echo \"$WRAPPED $NORMALIZED_EXECUTION_KIND\"; cat").setup(|_, parameters| {
            parameters.wrapper = Some(Wrapper {
                binary: "env".into(),
                args: vec!["WRAPPED=yes".into()],
            });
        });
    let execution = lab.launch_with(&lab.service(profile), "prompt").await;
    assert_eq!(stdout_of(&execution).await, ["yes new", "prompt"]);
}

#[tokio::test]
async fn parameters_may_name_another_binary() {
    let lab = Lab::new();
    let profile = script("echo native")
        .binary("no-such-npx")
        .setup(|_, parameters| {
            parameters.binary = Some("sh".into());
        });
    let execution = lab.launch(&lab.service(profile)).await;
    assert_eq!(stdout_of(&execution).await, ["native"]);
}

#[tokio::test]
async fn a_workspace_path_may_be_invalid_utf8() {
    let lab = Lab::new();
    let workspace = lab.workspace().join(OsStr::from_bytes(b"\xff"));
    std::fs::create_dir(&workspace).unwrap();
    let service = lab.service(script("pwd > here"));
    let context = ExecutionContext::for_workspace("scripted", &workspace).unwrap();
    let prompt = "go".to_owned();
    let request = NewChatRequest { context, prompt };
    let execution = service.launch(request).await.unwrap();
    assert!(execution.wait().await.unwrap().is_success());
    assert!(workspace.join("here").exists());
}

/// std ignores SIGPIPE in the host, and the thread of the launch blocks a signal; neither must
/// reach the agent.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn the_agent_starts_without_blocked_and_caught_signals() {
    // SAFETY: the set is initialised by `sigemptyset`; only this thread is affected.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGUSR1);
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
    }
    let lab = Lab::new();
    let agent = "cat /proc/self/status";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let lines = stdout_of(&execution).await;
    let value = |name: &str| {
        let line = lines.iter().find_map(|line| line.strip_prefix(name));
        u64::from_str_radix(line.unwrap().trim_start_matches(':').trim(), 16).unwrap()
    };
    assert_eq!((value("SigBlk"), value("SigCgt")), (0, 0));
    assert_eq!(value("SigIgn") & (1 << (libc::SIGPIPE - 1)), 0);
    // The thread of the host is as it was.
    let own = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let blocked = own.lines().find_map(|line| line.strip_prefix("SigBlk:"));
    let blocked = u64::from_str_radix(blocked.unwrap().trim(), 16).unwrap();
    assert_eq!(blocked, 1 << (libc::SIGUSR1 - 1));
}
