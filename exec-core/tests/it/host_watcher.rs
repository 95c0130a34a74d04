//! A host with a watcher is killed, and its executions end without another host.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use crate::lab::{Lab, helper, helper_lab, script, until, until_line, within};

/// An agent that ignores `TERM`, with a tool in its own session, a daemon without environment and
/// parent, and a shell without environment that keeps starting tools.
fn agent(lab: &Lab) -> String {
    let sleeper = lab.sleeper();
    format!(
        "trap '' TERM
        setsid {sleeper} 60 &
        (env -i /usr/bin/setsid {sleeper} 61 &)
        env -i /bin/sh -c 'while :; do /usr/bin/setsid {sleeper} 62 & /bin/sleep 0.2; done' &
        echo ready
        exec {sleeper} 63"
    )
}

#[test]
#[ignore = "a helper process of other tests"]
fn host() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.builder(script(&agent(&lab))).end_with_host().open();
        let service = service.unwrap();
        for _ in 0..2 {
            until_line(&lab.launch(&service).await, "ready").await;
        }
        std::fs::write(lab.workspace().join("ready"), "yes\n").unwrap();
        std::future::pending::<()>().await;
    });
}

#[test]
#[ignore = "a helper process of another test"]
fn host_that_ends_by_itself() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // Kept: the watcher ends with the last handle of the service.
        let service = lab.builder(script("exit 0")).end_with_host().open();
        let service = service.unwrap();
        let execution = lab.launch(&service).await;
        within("the end", execution.wait()).await.unwrap();
        let own = watcher_of(std::process::id()).unwrap();
        std::fs::write(lab.workspace().join("watcher"), format!("{own}\n")).unwrap();
    });
}

/// A process that is killed at the latest when the test ends.
struct Host(Child);

impl Host {
    async fn start(lab: &Lab) -> Self {
        Self::start_with(lab, |_| {}).await
    }

    async fn start_with(lab: &Lab, prepare: impl FnOnce(&mut Command)) -> Self {
        let mut host = helper(lab, "host_watcher::host");
        prepare(&mut host);
        let host = host.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let host = Self(host.unwrap());
        lab.until_written("ready").await;
        until("some tools", || lab.commands().len() > 8).await;
        host
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The watcher of a host.
pub(crate) fn watcher_of(host: u32) -> Option<u32> {
    let children = |pid: u32| {
        let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter();
        let tasks = tasks.flatten().flatten();
        let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")));
        let lists: Vec<String> = lists.map(Result::unwrap_or_default).collect();
        lists.join(" ")
    };
    let children = children(host);
    children
        .split_whitespace()
        .filter_map(|pid| pid.parse().ok())
        .find(|pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0)
                .any(|word| word == b"exec-core-watcher")
        })
}

#[tokio::test]
async fn the_executions_of_a_killed_host_end_at_once() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    let watcher = watcher_of(host.0.id()).unwrap();
    host.kill();
    until("the end of all processes", || lab.commands().is_empty()).await;
    until("the end of the watcher", || !crate::lab::alive(watcher)).await;
    assert_eq!(lab.processes(), [0; 0]);

    // The next host finds the records, and no processes.
    let service = lab.service(script("exit 0"));
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    let processes: Vec<_> = report.executions.iter().map(|one| one.processes).collect();
    assert_eq!(processes, [0, 0]);
}

#[tokio::test]
async fn a_watcher_that_dies_is_replaced() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    let first = watcher_of(host.0.id()).unwrap();
    // SAFETY: no memory is involved; the watcher is a child of our child.
    unsafe { libc::kill(i32::try_from(first).unwrap(), libc::SIGKILL) };
    until("another watcher", || {
        watcher_of(host.0.id()).is_some_and(|pid| pid != first)
    })
    .await;
    assert!(!lab.commands().is_empty(), "the agents were ended");
    host.kill();
    until("the end of all processes", || lab.commands().is_empty()).await;
}

#[tokio::test]
async fn the_watcher_ends_with_a_host_that_ends_by_itself() {
    let lab = Lab::new();
    let mut host = helper(&lab, "host_watcher::host_that_ends_by_itself");
    assert!(host.output().unwrap().status.success());
    let watcher: u32 = lab.until_written("watcher").await.parse().unwrap();
    until("the end of the watcher", || !crate::lab::alive(watcher)).await;
}

/// The watcher of the outer host kills all processes with the tag or the mark of its executions.
#[tokio::test]
async fn the_watcher_of_a_host_inside_an_execution_is_not_part_of_it() {
    // No other test stops this execution.
    const TAG: &str = "0a7e5000-0000-4000-8000-000000000000";
    const MARK: u64 = (1 << 62) | 0x0a7e_5000;
    let lab = Lab::new();
    let mut host = Host::start_with(&lab, |host| {
        host.env("NORMALIZED_EXECUTION_ID", TAG);
        let mark = || {
            // SAFETY: both calls get a pointer to a live local.
            let failed = unsafe {
                let mut limit = std::mem::zeroed::<libc::rlimit>();
                libc::getrlimit(libc::RLIMIT_RTTIME, &mut limit) != 0 || {
                    limit.rlim_cur = MARK;
                    libc::setrlimit(libc::RLIMIT_RTTIME, &limit) != 0
                }
            };
            match failed {
                true => Err(std::io::Error::last_os_error()),
                false => Ok(()),
            }
        };
        // SAFETY: the closure only makes system calls.
        unsafe { host.pre_exec(mark) };
    })
    .await;
    let belongs = |pid: u32| {
        let has = |file: &str, text: &str| {
            let bytes = std::fs::read(format!("/proc/{pid}/{file}")).unwrap();
            String::from_utf8_lossy(&bytes).contains(text)
        };
        (has("environ", TAG), has("limits", &MARK.to_string()))
    };
    let watcher = watcher_of(host.0.id()).unwrap();
    assert_eq!(belongs(host.0.id()), (true, true));
    assert_eq!(belongs(watcher), (false, false));
    host.kill();
    until("the end of all processes", || lab.commands().is_empty()).await;
}
