//! Agents in a sandbox, with real bubblewrap.
//!
//! Where bubblewrap is missing or user namespaces are forbidden, each test fails with the error of
//! the launch, which names the package or the setting. `scripts/setup` installs bubblewrap.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use exec_core::{
    AgentFolder, EnvPolicy, Error, Execution, ExitReport, ReadAccess, Sandbox, StopAction,
    StopLadder, StopLevel, StopOutcome, StoppedBy,
};

use crate::lab::{
    Lab, Scripted, alive, helper, helper_lab, helper_passed, run_helper, script, stdout_of, until,
    until_line, within,
};

/// A profile whose agent runs this script in a sandbox.
fn sandboxed(text: &str, sandbox: Sandbox) -> Scripted {
    script(text).setup(move |_, parameters| parameters.sandbox = Some(sandbox.clone()))
}

async fn run(lab: &Lab, profile: Scripted) -> Vec<String> {
    stdout_of(&lab.launch(&lab.service(profile)).await).await
}

async fn report_of(lab: &Lab, profile: Scripted) -> ExitReport {
    let execution = lab.launch(&lab.service(profile)).await;
    let report = within("the end", execution.wait()).await.unwrap();
    ExitReport::clone(&report)
}

/// Runs each command, and prints `refused` or `done`.
fn attempts(commands: &[&str]) -> String {
    let each = commands.iter().map(|command| {
        format!("if ({command}) 2>/dev/null; then echo done; else echo refused; fi\n")
    });
    each.collect()
}

#[tokio::test]
async fn writes_outside_of_the_workspace_are_refused() {
    let lab = Lab::outside_of_tmp();
    let outside = lab.path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("kept"), "kept").unwrap();
    symlink(&outside, lab.workspace().join("given")).unwrap();
    let out = outside.to_str().unwrap();
    let refused = [
        &format!("echo x > {out}/new") as &str,
        &format!("echo x >> {out}/kept"),
        &format!("rm {out}/kept"),
        &format!("mv {out}/kept {out}/moved"),
        &format!("touch {out}/kept"),
        &format!("chmod 777 {out}/kept"),
        "echo x > ../outside/new",
        "echo x > ../workspace/../outside/new",
        "echo x > given/new",
        &format!("ln -s {out} made && echo x > made/new"),
        &format!("ln {out}/kept hard && echo x >> hard"),
        &format!("unshare -Urm sh -c 'mount -o remount,rw,bind / && echo x > {out}/new'"),
        &format!("unshare -Urm sh -c 'umount -l {out}; echo x > {out}/new'"),
        "mknod disk b 8 0",
    ];
    let allowed = [
        "echo x > new",
        "mkdir -p sub && echo x > sub/new && rm -r sub",
        "echo x > /tmp/new",
        &format!("cat {out}/kept >/dev/null"),
        "echo x > /dev/null",
        "test $(ls -d /proc/[0-9]* | wc -l) -lt 9",
    ];
    let agent = attempts(&refused) + &attempts(&allowed);
    let printed = run(&lab, sandboxed(&agent, Sandbox::new())).await;
    for (attempt, printed) in refused.iter().zip(&printed) {
        assert_eq!(printed, "refused", "{attempt}");
    }
    for (attempt, printed) in allowed.iter().zip(&printed[refused.len()..]) {
        assert_eq!(printed, "done", "{attempt}");
    }
    assert_eq!(printed.len(), refused.len() + allowed.len());
    let names = fs::read_dir(&outside).unwrap().count();
    let kept = fs::read_to_string(outside.join("kept")).unwrap();
    assert_eq!((names, &*kept), (1, "kept"));
    assert_eq!(lab.written("new"), "x\n");

    // Without a sandbox the same agent does all of it.
    let printed = run(&lab, script(&attempts(&refused[..1]))).await;
    assert_eq!(printed, ["done"]);
}

/// Looks at the flags of the mounts, and opens nothing: a test must not try to write to the files of
/// the machine.
#[tokio::test]
async fn every_other_mount_is_read_only() {
    let lab = Lab::outside_of_tmp();
    let workspace = lab.workspace().canonicalize().unwrap();
    let is_root = rustix::process::geteuid().is_root();
    for sandbox in [Sandbox::new(), Sandbox::new().read_only(["/etc"])] {
        let mounts = run(&lab, sandboxed("cat /proc/self/mountinfo", sandbox)).await;
        let mut last = std::collections::BTreeMap::new();
        for mount in &mounts {
            let fields: Vec<_> = mount.split(' ').collect();
            // A later mount covers an earlier one at the same place.
            last.insert(fields[4], fields[5].split(',').any(|flag| flag == "ro"));
        }
        for (point, is_read_only) in &last {
            let own = Path::new(point) == workspace
                || ["/tmp", "/var/tmp"].contains(point)
                || Path::new(point).starts_with("/dev")
                || (*point == "/proc" && !is_root);
            assert!(own || *is_read_only, "{point}");
        }
        assert_eq!(last["/proc"], is_root);
        assert_eq!(last.get("/proc/sys"), is_root.then_some(&true));
        assert!(!last[workspace.to_str().unwrap()]);
    }
}

/// Agents have sandboxes of their own. As root, the read-only `/proc` forbids them.
#[tokio::test]
async fn an_agent_of_a_user_can_use_a_sandbox_of_its_own() {
    let lab = Lab::new();
    let agent = "bwrap --unshare-user --unshare-pid --ro-bind / / --proc /proc true 2>/dev/null";
    let report = report_of(&lab, sandboxed(agent, Sandbox::new())).await;
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(report.code, Some(i32::from(is_root)));
}

#[tokio::test]
async fn hidden_folders_are_empty_and_the_deeper_path_decides() {
    let lab = Lab::outside_of_tmp();
    let home = lab.path("home");
    for folder in ["home/.ssh", "home/.agent", "home/hidden/open"] {
        fs::create_dir_all(lab.path(folder)).unwrap();
    }
    for file in [
        "home/.ssh/id",
        "home/hidden/open/file",
        "home/seen",
        "workspace/.env",
    ] {
        fs::write(lab.path(file), "secret").unwrap();
    }
    symlink(lab.path("home/.ssh"), lab.path("home/keys")).unwrap();
    let sandbox = Sandbox::new()
        .hide("~/.ssh")
        .hide("~/.does-not-exist")
        .hide("{workspace}/.env")
        .hide("~/hidden")
        .write("~/hidden/open")
        .agent_folder(AgentFolder::new("~/.agent"));
    let agent = "echo $(cat ~/seen) $(ls -A ~/.ssh | wc -l) $(ls -A ~/hidden)
        cat ~/.ssh/id ~/keys/id .env 2>/dev/null
        (echo x > ~/.ssh/new) 2>/dev/null || echo read-only
        (echo x > ~/.env; rm -f .env; mv .env moved) 2>/dev/null || echo kept
        echo $(cat ~/hidden/open/file); echo x > ~/hidden/open/new
        echo x > ~/.agent/new; echo end";
    let profile = sandboxed(agent, sandbox).variable("HOME", home.to_str().unwrap());
    let service = lab.service(profile);
    let execution = lab.launch(&service).await;
    let printed = stdout_of(&execution).await;
    assert_eq!(
        printed,
        ["secret 0 open", "read-only", "kept", "secret", "end"]
    );
    for written in ["home/hidden/open/new", "home/.agent/new"] {
        assert_eq!(fs::read_to_string(lab.path(written)).unwrap(), "x\n");
    }
    assert_eq!(lab.written(".env"), "secret");

    // The execution and the history say what is enforced.
    let real = |path: &str| lab.path(path).canonicalize().unwrap();
    let enforced = execution.sandbox().unwrap();
    let write = ["home/.agent", "home/hidden/open", "workspace"].map(real);
    let hide = ["home/.ssh", "home/hidden", "workspace/.env"].map(real);
    assert_eq!(
        (&enforced.write[..], &enforced.hide[..]),
        (&write[..], &hide[..])
    );
    assert_eq!(enforced.read, ReadAccess::All);
    let entry = service.history().load().unwrap().entries.remove(0);
    assert_eq!(entry.sandbox.as_ref(), Some(enforced));
    let without = lab.launch(&lab.service(script("exit 0"))).await;
    assert_eq!(without.sandbox(), None);
}

#[tokio::test]
async fn a_hidden_path_that_does_not_exist_cannot_be_created() {
    let lab = Lab::outside_of_tmp();
    let home = lab.path("home");
    fs::create_dir_all(&home).unwrap();
    let sandbox = Sandbox::new()
        .hide("~/.aws")
        .hide("{workspace}/.env")
        .hide("{workspace}/keys/")
        .hide("{workspace}/a/b/key");
    let agent = attempts(&[
        "mkdir ~/.aws",
        "echo x > .env",
        "rm -f .env",
        "cat .env",
        "echo x > keys/id",
        "rmdir keys",
        "mv keys other",
        "echo x > a/b/key",
        "echo x > a/b/other",
    ]);
    let profile = sandboxed(&agent, sandbox).variable("HOME", home.to_str().unwrap());
    let mut expected = ["refused"; 9];
    expected[8] = "done";
    let service = lab.service(profile);
    // The second time, all of them exist.
    for _ in 0..2 {
        assert_eq!(stdout_of(&lab.launch(&service).await).await, expected);
        assert!(!home.join(".aws").exists());
        for file in [".env", "a/b/key"] {
            assert_eq!(lab.written(file), "", "{file}");
        }
        let keys = fs::read_dir(lab.workspace().join("keys")).unwrap();
        assert_eq!(keys.count(), 0);
    }
}

#[tokio::test]
async fn a_list_hides_everything_else() {
    let lab = Lab::outside_of_tmp();
    for file in ["seen", "unseen"] {
        fs::write(lab.path(file), file).unwrap();
    }
    let (seen, unseen) = (lab.path("seen"), lab.path("unseen"));
    let agent = format!(
        "cat {}; echo; cat {} 2>/dev/null || echo absent
        ls /etc >/dev/null 2>&1 || echo absent
        (echo x > /new) 2>/dev/null || echo refused
        echo x > new; pwd; command -v sh",
        seen.display(),
        unseen.display()
    );
    let printed = run(&lab, sandboxed(&agent, Sandbox::new().read_only([&seen]))).await;
    let workspace = lab.workspace().canonicalize().unwrap();
    let workspace = workspace.to_str().unwrap();
    assert_eq!(
        printed[..5],
        ["seen", "absent", "absent", "refused", workspace]
    );
    assert_eq!(lab.written("new"), "x\n");
}

#[tokio::test]
async fn names_with_any_byte_and_links_to_the_workspace_work() {
    let lab = Lab::outside_of_tmp();
    let odd = lab
        .path("")
        .join(OsStr::from_bytes(b"a b\n'\"$HOME\\ --x\xff"));
    fs::create_dir(&odd).unwrap();
    symlink(&odd, lab.path("link")).unwrap();
    for workspace in [odd.clone(), lab.path("link")] {
        let service = lab.service(sandboxed("cat > new; ls -A; pwd >&2", Sandbox::new()));
        let mut request = lab.new_chat("hello");
        request.context.workspace_path = workspace;
        let execution = service.launch(request).await.unwrap();
        assert_eq!(stdout_of(&execution).await, ["new"]);
        assert_eq!(
            execution.sandbox().unwrap().write,
            [odd.canonicalize().unwrap()]
        );
        assert_eq!(fs::read_to_string(odd.join("new")).unwrap(), "hello");
        fs::remove_file(odd.join("new")).unwrap();
    }
}

#[tokio::test]
async fn a_path_that_breaks_a_rule_refuses_the_launch() {
    let lab = Lab::new();
    for sandbox in [
        Sandbox::new().write("relative"),
        Sandbox::new().write("/"),
        Sandbox::new().hide("{workspace}"),
        Sandbox::new().hide("/usr"),
    ] {
        let service = lab.service(sandboxed("echo x > started", sandbox));
        let error = service.launch(lab.new_chat("go")).await.unwrap_err();
        assert!(matches!(error, Error::Sandbox { .. }), "{error}");
        assert!(service.executions().is_empty());
        assert!(service.history().load().unwrap().entries.is_empty());
    }
    assert_eq!(
        (lab.written("started"), lab.processes()),
        (String::new(), vec![])
    );
}

#[tokio::test]
async fn the_exit_status_is_the_one_of_the_agent() {
    let lab = Lab::new();
    // A program that exits with 143 is not one that `TERM` has ended. Linux before 6.15 cannot tell.
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let version: Vec<u32> = release
        .split(['.', '-'])
        .flat_map(str::parse)
        .take(2)
        .collect();
    let mut exits = vec![
        ("exit 0", (Some(0), None)),
        ("exit 3", (Some(3), None)),
        ("kill -TERM $$", (None, Some(15))),
        ("kill -SEGV $$", (None, Some(11))),
        ("kill -KILL $$", (None, Some(9))),
    ];
    if version >= vec![6, 15] {
        exits.push(("exit 143", (Some(143), None)));
        exits.push(("exit 255", (Some(255), None)));
    }
    for (agent, expected) in exits {
        let report = report_of(&lab, sandboxed(agent, Sandbox::new())).await;
        assert_eq!((report.code, report.signal), expected, "{agent}");
        assert_eq!(report.stderr_tail, [""; 0], "{agent}");
    }
}

#[tokio::test]
async fn time_and_memory_are_those_of_the_agent() {
    let lab = Lab::new();
    // CPU time in the agent, and 300 MB, more than this host ever uses, in an orphan that only
    // process 1 waits for.
    let agent = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done
        (sh -c 'head -c 300000000 /dev/zero | tail -c 299000000 > /dev/null; echo x > done' &)
        until [ -e done ]; do sleep 0.01; done";
    let report = report_of(&lab, sandboxed(agent, Sandbox::new())).await;
    assert!(report.is_success(), "{report:?}");
    assert!(report.cpu_time > Duration::from_millis(20), "{report:?}");
    assert!(report.peak_memory_bytes > 280_000_000, "{report:?}");
}

#[tokio::test]
async fn orphans_are_reaped_while_the_agent_runs() {
    let lab = Lab::new();
    let agent = "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'exit 0' &); done
        until ! grep -qs ') Z 1 ' /proc/[0-9]*/stat; do :; done; echo clean";
    let execution = lab
        .launch(&lab.service(sandboxed(agent, Sandbox::new())))
        .await;
    until_line(&execution, "clean").await;
    within("the end", execution.wait()).await.unwrap();
}

#[tokio::test]
async fn standard_input_and_the_environment_are_the_same_as_outside() {
    let lab = Lab::new();
    let agent = "env | grep -v -e ^NORMALIZED_EXECUTION_ -e ^OLDPWD= -e ^SHLVL= -e ^_= -e ^TMPDIR= | sort; \
                 wc -c; ls /proc/$$/fd > list; cat list";
    let profile = |sandbox: Option<Sandbox>| {
        script(agent)
            .variable("GIVEN", "a b\nc")
            .setup(move |_, parameters| {
                parameters.env_policy = EnvPolicy::Only(vec!["PATH".into(), "HOME".into()]);
                parameters.sandbox.clone_from(&sandbox);
                parameters.stdin_payload = Some("x".repeat(300_000));
            })
    };
    let outside = run(&lab, profile(None)).await;
    let inside = run(&lab, profile(Some(Sandbox::new()))).await;
    assert!(inside.contains(&"300000".to_owned()), "{inside:?}");
    assert_eq!(inside, outside);

    let unwritable = script("echo $TMPDIR; mktemp >/dev/null && echo ok").setup(|_, parameters| {
        parameters.env.insert("TMPDIR".into(), "/etc".into());
        parameters.sandbox = Some(Sandbox::new());
    });
    assert_eq!(run(&lab, unwritable).await, ["/tmp", "ok"]);
}

#[tokio::test]
async fn an_agent_that_runs_until_the_end_of_its_input_can_be_stopped_by_it() {
    let lab = Lab::new();
    let profile = script("while read -r line; do echo \"got $line\"; done; echo bye").setup(
        |_, parameters| {
            parameters.sandbox = Some(Sandbox::new());
            parameters.stdin_payload = Some("one\ntwo\n".into());
            parameters.keep_stdin_open = true;
            parameters.stop_ladder = Some(
                StopLadder::kill_at_once().then(StopAction::CloseStdin, Duration::from_secs(50)),
            );
        },
    );
    let execution = lab.launch(&lab.service(profile)).await;
    until_line(&execution, "got two").await;
    let stopped = stop(&execution).await;
    assert_eq!(stopped.level, StopLevel::StdinClosed);
    assert_eq!(stdout_of(&execution).await.last().unwrap(), "bye");
    assert_eq!(execution.wait().await.unwrap().code, Some(0));
}

async fn stop(execution: &Execution) -> exec_core::StopReport {
    match within("the stop", execution.stop()).await.unwrap() {
        StopOutcome::Stopped(report) => report,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stop_reaches_the_agent_and_leaves_it_its_grace() {
    let lab = Lab::new();
    // With and without `--die-with-parent`: a signal to bubblewrap would then kill the agent.
    for with_host in [false, true] {
        for (action, name) in [
            (StopAction::Interrupt, "INT"),
            (StopAction::Terminate, "TERM"),
        ] {
            let agent = format!(
                "trap 'sleep 0.2; echo saved; exit 7' {name}; echo ready; while :; do sleep 0.05; done"
            );
            let ladder = StopLadder::kill_at_once().then(action, Duration::from_secs(50));
            let builder = lab.builder(sandboxed(&agent, Sandbox::new()));
            let builder = match with_host {
                true => builder.end_with_host(),
                false => builder,
            };
            let execution = lab
                .launch(&builder.stop_ladder(ladder).open().unwrap())
                .await;
            until_line(&execution, "ready").await;
            stop(&execution).await;
            assert_eq!(stdout_of(&execution).await, ["ready", "saved"], "{name}");
            let report = execution.wait().await.unwrap();
            assert_eq!((report.code, report.signal), (Some(7), None), "{name}");
            assert_eq!(report.stopped_by, Some(StoppedBy::Caller));
        }
    }
    // An agent without a handler dies of the signal, and one that ignores it is killed.
    let execution = lab
        .launch(&lab.service(sandboxed("echo ready; exec sleep 60", Sandbox::new())))
        .await;
    until_line(&execution, "ready").await;
    assert_eq!(stop(&execution).await.level, StopLevel::Terminated);
    assert_eq!(execution.wait().await.unwrap().signal, Some(15));
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_millis(50));
    let agent = sandboxed(
        "trap '' TERM; echo ready; sleep 60; sleep 60",
        Sandbox::new(),
    );
    let execution = lab
        .launch(&lab.builder(agent).stop_ladder(ladder).open().unwrap())
        .await;
    until_line(&execution, "ready").await;
    assert_eq!(stop(&execution).await.level, StopLevel::Killed);
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_stop_at_any_moment_of_the_start_leaves_nothing() {
    let lab = Lab::new();
    let service = lab.service(sandboxed("exec sleep 60", Sandbox::new()));
    for step in 0..12 {
        let execution = lab.launch(&service).await;
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(2 * step) {
            tokio::task::yield_now().await;
        }
        let level = stop(&execution).await.level;
        assert!(level <= StopLevel::Terminated, "{step}: {level:?}");
        assert_eq!(lab.processes(), [0; 0], "{step}");
    }
}

/// An agent with four tools: plain, in a session of its own, without environment, and without
/// parent.
fn four_tools(lab: &Lab) -> Scripted {
    let sleeper = lab.workspace().join("sleeper");
    if !sleeper.exists() {
        symlink("/bin/sleep", &sleeper).unwrap();
    }
    let sleeper = sleeper.display();
    sandboxed(
        &format!(
            "trap '' TERM
            {sleeper} 61 &
            setsid {sleeper} 62 &
            env -i /usr/bin/setsid {sleeper} 63 &
            (env -i /usr/bin/setsid {sleeper} 64 &)
            echo ready; {sleeper} 65; {sleeper} 66"
        ),
        Sandbox::new(),
    )
}

/// The tools that run, by the argument of each.
fn tools(lab: &Lab) -> Vec<String> {
    let lines = lab.commands().into_iter().filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        let is_tool = words.first()?.ends_with(b"/sleeper");
        is_tool.then(|| String::from_utf8_lossy(words[1]).into_owned())
    });
    let mut tools: Vec<_> = lines.collect();
    tools.sort();
    tools
}

async fn until_all_tools(lab: &Lab) {
    until("the tools", || tools(lab) == ["61", "62", "63", "64", "65"]).await;
}

#[tokio::test]
async fn no_tool_is_left_after_a_stop() {
    let lab = Lab::new();
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_millis(10));
    let service = lab
        .builder(four_tools(&lab))
        .stop_ladder(ladder)
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    until_all_tools(&lab).await;
    // The stop finds the processes of the namespace: the tools, the agent, the shell, bubblewrap.
    assert_eq!(execution.usage().await.unwrap().processes, 8);
    assert!(stop(&execution).await.processes >= 8);
    assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));
}

#[tokio::test]
async fn no_tool_is_left_after_the_end_of_the_agent() {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(four_tools(&lab))).await;
    until_all_tools(&lab).await;
    let agent = lab.commands().into_iter().find(|pid| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.starts_with("/usr/bin/sh\0-c") || line.starts_with("/bin/sh\0-c\0trap")
    });
    kill(agent.unwrap());
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!((report.signal, report.stopped_by), (Some(9), None));
    assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));
}

#[tokio::test]
async fn no_tool_is_left_after_the_child_was_killed() {
    for with_host in [false, true] {
        let lab = Lab::new();
        let builder = lab.builder(four_tools(&lab));
        let builder = match with_host {
            true => builder.end_with_host(),
            false => builder,
        };
        let execution = lab.launch(&builder.open().unwrap()).await;
        until_all_tools(&lab).await;
        kill(execution.process_id());
        let report = within("the end", execution.wait()).await.unwrap();
        assert_eq!((report.signal, report.stopped_by), (Some(9), None));
        assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));
    }
}

fn kill(pid: u32) {
    // SAFETY: no memory is involved; the process belongs to this test.
    let sent = unsafe { libc::kill(i32::try_from(pid).unwrap(), libc::SIGKILL) };
    assert_eq!(sent, 0);
}

#[test]
#[ignore = "a helper process of other tests"]
fn host() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = lab.builder(four_tools(&lab));
        let builder = match lab.path("orphans").exists() {
            true => builder,
            false => builder.end_with_host(),
        };
        until_line(&lab.launch(&builder.open().unwrap()).await, "ready").await;
        fs::write(lab.workspace().join("ready"), "yes\n").unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn no_tool_of_a_killed_host_is_left_after_the_next_start() {
    let lab = Lab::new();
    fs::write(lab.path("orphans"), "").unwrap();
    let mut host = helper(&lab, "sandbox::host").spawn().unwrap();
    lab.until_written("ready").await;
    until_all_tools(&lab).await;
    host.kill().unwrap();
    host.wait().unwrap();
    assert_eq!(
        tools(&lab).len(),
        5,
        "nothing ends them until the next start"
    );
    let ladder = StopLadder::kill_at_once().then(StopAction::Terminate, Duration::from_millis(10));
    let next = lab
        .builder(script("exit 0"))
        .stop_ladder(ladder)
        .open()
        .unwrap();
    let report = within("the reaping", next.reap_orphans()).await.unwrap();
    assert!(report.executions[0].processes >= 8, "{report:?}");
    assert_eq!((tools(&lab), lab.commands()), (vec![], vec![]));
}

#[tokio::test]
async fn no_tool_is_left_after_the_host_was_killed() {
    let lab = Lab::new();
    let mut host = helper(&lab, "sandbox::host").spawn().unwrap();
    lab.until_written("ready").await;
    until_all_tools(&lab).await;
    // The watcher of the host would end the tools as well: it must not run.
    let watcher = crate::host_watcher::watcher_of(host.id()).unwrap();
    let watcher = i32::try_from(watcher).unwrap();
    // SAFETY: no memory is involved; the watcher is a child of our child.
    assert_eq!(unsafe { libc::kill(watcher, libc::SIGSTOP) }, 0);
    host.kill().unwrap();
    host.wait().unwrap();
    until("the end of all processes", || lab.commands().is_empty()).await;
    assert_eq!(tools(&lab), [""; 0]);
    // SAFETY: as above; the watcher is stopped, so its id is not reused.
    unsafe { libc::kill(watcher, libc::SIGKILL) };
}

/// The parent-death signal follows the thread that has started the process, and the threads of a
/// runtime end. `EXEC_CORE_IDLE_SECS=30` also waits for the threads for blocking calls to end.
#[test]
fn an_agent_outlives_the_thread_that_launched_it() {
    let idle = std::env::var("EXEC_CORE_IDLE_SECS").map_or(0, |text| text.parse().unwrap());
    let lab = Lab::new();
    let agent = "echo ready; until [ -e go ]; do sleep 0.02; done; echo alive";
    let builder = lab
        .builder(sandboxed(agent, Sandbox::new()))
        .end_with_host();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let service = {
        let _guard = runtime.enter();
        builder.open().unwrap()
    };
    let (execution, thread) = std::thread::scope(|scope| {
        let launching = scope.spawn(|| {
            let execution = runtime.block_on(lab.launch(&service));
            // SAFETY: no memory is involved.
            (execution, unsafe { libc::gettid() })
        });
        launching.join().unwrap()
    });
    runtime.block_on(async {
        until_line(&execution, "ready").await;
        let task = format!("/proc/self/task/{thread}");
        until("the end of the thread", || !Path::new(&task).exists()).await;
        tokio::time::sleep(Duration::from_secs(idle)).await;
        assert!(alive(execution.process_id()));
        fs::write(lab.workspace().join("go"), "").unwrap();
        until_line(&execution, "alive").await;
        within("the end", execution.wait()).await.unwrap();
    });
}

/// Runs a helper in which `bwrap` is this script, or is missing.
fn run_with_bwrap(lab: &Lab, bwrap: Option<&str>, test: &str) {
    let folder = lab.path("bin");
    fs::create_dir(&folder).unwrap();
    for tool in ["sh", "sleep", "env"] {
        symlink(Path::new("/bin").join(tool), folder.join(tool)).unwrap();
    }
    if let Some(text) = bwrap {
        let program = folder.join("bwrap");
        fs::write(&program, text).unwrap();
        fs::set_permissions(&program, PermissionsExt::from_mode(0o700)).unwrap();
    }
    let helper = helper(lab, test).env("PATH", &folder).output().unwrap();
    let printed = String::from_utf8_lossy(&helper.stderr);
    assert!(helper.status.success(), "{printed}");
    assert!(lab.path("passed").exists(), "{test} did not run: {printed}");
}

/// The error of a sandboxed launch; nothing must have been started.
async fn refusal(lab: &Lab) -> String {
    let service = lab.service(sandboxed("echo x > started", Sandbox::new()));
    let error = service.launch(lab.new_chat("go")).await.unwrap_err();
    assert!(matches!(error, Error::Sandbox { .. }), "{error}");
    assert!(service.executions().is_empty());
    assert_eq!(
        (lab.written("started"), lab.processes()),
        (String::new(), vec![])
    );
    // Without a sandbox, the agent can be started.
    let off = lab.service(script("echo off"));
    assert_eq!(stdout_of(&lab.launch(&off).await).await, ["off"]);
    error.to_string()
}

fn in_helper(test: impl AsyncFnOnce(&Lab)) {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(test(&lab));
    helper_passed(&lab);
}

#[test]
#[ignore = "a helper process of another test"]
fn launch_without_bubblewrap() {
    in_helper(async |lab| {
        let error = refusal(lab).await;
        assert!(error.contains("install bubblewrap"), "{error}");
    });
}

#[test]
fn without_bubblewrap_the_launch_is_refused() {
    let lab = Lab::new();
    run_with_bwrap(&lab, None, "sandbox::launch_without_bubblewrap");
}

#[test]
#[ignore = "a helper process of another test"]
fn launch_without_user_namespaces() {
    in_helper(async |lab| {
        let error = refusal(lab).await;
        assert!(
            error.contains("sysctl -w user.max_user_namespaces=15000"),
            "{error}"
        );
    });
}

/// The limit of user namespaces belongs to a user namespace: it can be set to 0 in one.
#[test]
fn without_user_namespaces_the_launch_is_refused_with_the_setting() {
    let lab = Lab::new();
    let helper = helper(&lab, "sandbox::launch_without_user_namespaces");
    let mut unshare = Command::new("unshare");
    unshare
        .args(["--user", "--map-root-user", "sh", "-c"])
        // The map of the machine's own namespace has every id: its limit must not be changed.
        .arg(
            "read -r inside outside count < /proc/self/uid_map && [ \"$count\" = 1 ] &&
            echo 0 > /proc/sys/user/max_user_namespaces && exec \"$@\"",
        )
        .arg("sh")
        .arg(helper.get_program())
        .args(helper.get_args());
    for (name, value) in helper.get_envs() {
        unshare.env(name, value.unwrap());
    }
    let output = unshare.output().unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{printed}");
    assert!(lab.path("passed").exists(), "{printed}");
}

#[test]
#[ignore = "a helper process of another test"]
fn launch_with_a_bubblewrap_that_fails_later() {
    in_helper(async |lab| {
        let report = report_of(lab, sandboxed("echo x > started", Sandbox::new())).await;
        assert_eq!((report.code, report.is_success()), (Some(1), false));
        assert_eq!(report.stderr_tail, ["bwrap: broken"]);
        assert!(report.failure.unwrap().message.contains("bwrap: broken"));
        assert_eq!(lab.written("started"), "");
    });
}

#[test]
fn a_bubblewrap_that_fails_later_does_not_start_the_agent() {
    let lab = Lab::new();
    let bwrap = "#!/bin/sh
        case \"$*\" in *'-c exit 0') exit 0;; esac
        echo 'bwrap: broken' >&2; exit 1";
    run_with_bwrap(
        &lab,
        Some(bwrap),
        "sandbox::launch_with_a_bubblewrap_that_fails_later",
    );
}

#[test]
#[ignore = "a helper process of another test"]
fn launches_from_a_host_with_closed_descriptors() {
    in_helper(async |lab| {
        // The lowest free numbers are those that the child needs.
        for fd in 0..2 {
            // SAFETY: nothing in this process uses standard input and output from here on.
            unsafe { libc::close(fd) };
        }
        let service = lab.service(sandboxed("cat; echo x >&2", Sandbox::new()));
        let execution = lab.launch_with(&service, "hello").await;
        assert_eq!(stdout_of(&execution).await, ["hello"]);
    });
}

#[test]
fn a_host_without_standard_streams_can_use_a_sandbox() {
    run_helper(
        &Lab::new(),
        "sandbox::launches_from_a_host_with_closed_descriptors",
    );
}
