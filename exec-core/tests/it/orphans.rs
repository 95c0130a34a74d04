//! A host is killed, and the next host ends what it left.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use exec_core::{ExecutionKind, History, HistoryState};

use crate::lab::{
    Lab, Scripted, alive, files_in, helper, helper_lab, helper_passed, limit_file_size,
    refuse_signals, run_helper, script, until, within,
};

/// A tool in its own session, and one in the group without the tag.
fn agent() -> Scripted {
    script(
        "setsid sh -c 'sleep 60; :' &
        env -i sleep 61 &
        echo $! > untagged
        echo $$ > agent
        wait",
    )
}

#[test]
#[ignore = "a helper process of other tests"]
fn host() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        lab.launch(&service).await;
        std::future::pending::<()>().await;
    });
}

#[test]
#[ignore = "a helper process of another test"]
fn host_that_never_polls_its_supervisor() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        lab.launch(&service).await;
        // Blocks the only thread: the supervisor never runs.
        loop {
            std::thread::park();
        }
    });
}

/// A process that is killed at the latest when the test ends.
struct Host(Child);

impl Host {
    async fn start(lab: &Lab) -> Self {
        let host = Self::start_as(lab, "orphans::host").await;
        let history = History::new(lab.path("state"));
        until("the history", || {
            history
                .load()
                .is_ok_and(|contents| !contents.entries.is_empty())
        })
        .await;
        host
    }

    async fn start_as(lab: &Lab, test: &str) -> Self {
        let child = helper(lab, test).stdout(Stdio::null()).spawn().unwrap();
        let host = Self(child);
        lab.until_written("agent").await;
        let untagged: u32 = lab.until_written("untagged").await.parse().unwrap();
        until("the whole tree", || {
            let tagged = lab.processes();
            tagged.len() == 3 && !tagged.contains(&untagged)
        })
        .await;
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

#[tokio::test]
async fn the_processes_of_a_killed_host_are_ended() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    let untagged: u32 = lab.until_written("untagged").await.parse().unwrap();
    host.kill();
    assert_eq!(lab.processes().len(), 3, "the agent has outlived its host");

    let service = lab.service(agent());
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
    assert!(!alive(untagged), "the group of the agent was not ended");
    assert_eq!(report.executions.len(), 1);
    assert_eq!(report.executions[0].processes, 4);
    assert_eq!(report.executions[0].profile_label, "scripted");
    assert!(report.executions[0].survivors.is_empty());
    let entries = service.history().load().unwrap().entries;
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].state, HistoryState::Reaped);

    let again = within("the reaping", service.reap_orphans()).await.unwrap();
    assert!(again.executions.is_empty());
    assert_eq!(
        files_in(&lab.path("state/owners")).len(),
        1,
        "only the journal of the service itself"
    );
}

#[tokio::test]
async fn an_execution_whose_host_died_right_after_the_launch_is_in_the_history() {
    let lab = Lab::new();
    let before = SystemTime::now();
    let mut host = Host::start_as(&lab, "orphans::host_that_never_polls_its_supervisor").await;
    host.kill();
    let service = lab.service(agent());
    assert!(service.history().load().unwrap().entries.is_empty());

    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert_eq!(lab.processes(), [0; 0]);
    let entries = service.history().load().unwrap().entries;
    assert_eq!(entries.len(), 1);
    let (entry, reaped) = (&entries[0], &report.executions[0]);
    assert_eq!(entry.execution_id, reaped.execution_id);
    assert_eq!(entry.session_id, reaped.session_id);
    assert_eq!(entry.profile_label, "scripted");
    assert_eq!(
        (entry.kind, &entry.state),
        (ExecutionKind::New, &HistoryState::Reaped)
    );
    assert_eq!(entry.workspace_path, lab.workspace());
    // The file has milliseconds.
    let started = entry.started_at + Duration::from_millis(1);
    assert!(before <= started && started <= SystemTime::now() + Duration::from_millis(1));
}

#[tokio::test]
async fn executions_of_a_live_host_are_left_alone() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    let service = lab.service(agent());
    let own = lab.launch(&service).await;
    lab.until_processes(6).await;
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert!(report.executions.is_empty(), "{report:?}");
    lab.until_processes(6).await;

    // After the death of the other host, its execution is ended and ours stays.
    host.kill();
    within("the reaping", service.reap_orphans()).await.unwrap();
    lab.until_processes(3).await;
    assert!(alive(own.process_id()));
    within("the stop", own.stop()).await.unwrap();
}

#[tokio::test]
async fn executions_of_another_host_program_are_left_alone() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    host.kill();
    let service = lab
        .builder(agent())
        .host_name("another program")
        .open()
        .unwrap();
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert!(report.executions.is_empty(), "{report:?}");
    lab.until_processes(3).await;
}

/// The kernel refuses its signals, as for processes of another user.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "a helper process of another test"]
fn reaping_without_the_permission_to_signal() {
    let Some(lab) = helper_lab() else { return };
    refuse_signals();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        for _ in 0..2 {
            let report = within("the reaping", service.reap_orphans()).await.unwrap();
            assert_eq!(report.executions.len(), 1);
            assert_eq!(report.executions[0].survivors.len(), 4);
            let entries = service.history().load().unwrap().entries;
            assert_eq!(entries[0].state, HistoryState::Open);
        }
    });
    // Dropping it would kill the processes.
    helper_passed(&lab);
    std::mem::forget(lab);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_execution_that_cannot_be_ended_stays_on_record() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    host.kill();
    run_helper(&lab, "orphans::reaping_without_the_permission_to_signal");
    let service = lab.service(agent());
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert_eq!(report.executions[0].processes, 4);
    assert_eq!(lab.processes(), [0; 0]);
    let entries = service.history().load().unwrap().entries;
    assert_eq!(entries[0].state, HistoryState::Reaped);
}

/// The start of a process in clock ticks since the boot.
fn start_time(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    rest.split(' ').nth(19).unwrap().to_owned()
}

#[tokio::test]
async fn a_process_with_a_reused_id_is_left_alone() {
    let lab = Lab::new();
    let mut host = Host::start(&lab).await;
    host.kill();
    // All processes of the old run have ended, and the id of one belongs to a stranger. It starts in
    // another clock tick than the agent: an id cannot be reused within one.
    let agent_pid = lab.until_written("agent").await;
    let agent_start = start_time(&agent_pid);
    let stranger = loop {
        let mut sleep = Command::new("sleep");
        let stranger = Host(sleep.arg("600").process_group(0).spawn().unwrap());
        if start_time(&stranger.0.id().to_string()) != agent_start {
            break stranger;
        }
    };
    let untagged = lab.until_written("untagged").await;
    let _ = Command::new("kill").args(["-9", &untagged]).status();
    until("an empty lab", || {
        for pid in lab.processes() {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
        lab.processes().is_empty()
    })
    .await;
    let record = files_in(&lab.path("state/owners")).remove(0);
    let text = std::fs::read_to_string(&record).unwrap();
    let reused = text.replace(
        &format!("\"pid\":{agent_pid}"),
        &format!("\"pid\":{}", stranger.0.id()),
    );
    assert_ne!(text, reused);
    std::fs::File::create(&record)
        .unwrap()
        .write_all(reused.as_bytes())
        .unwrap();

    let service = lab.service(agent());
    let report = within("the reaping", service.reap_orphans()).await.unwrap();
    assert_eq!(
        (report.executions.len(), report.executions[0].processes),
        (1, 0)
    );
    assert!(alive(stranger.0.id()));
}

#[test]
fn a_service_that_cannot_be_opened_leaves_no_record() {
    run_helper(&Lab::new(), "orphans::host_with_a_full_disk");
}

#[test]
#[ignore = "a helper process of the test above"]
fn host_with_a_full_disk() {
    let Some(lab) = helper_lab() else { return };
    limit_file_size(0);
    let error = lab.builder(agent()).open().unwrap_err();
    assert!(matches!(error, exec_core::Error::Io { .. }), "{error}");
    assert!(files_in(&lab.path("state/owners")).is_empty());
    rustix::process::setrlimit(
        rustix::process::Resource::Fsize,
        rustix::process::Rlimit {
            current: None,
            maximum: None,
        },
    )
    .unwrap();
    helper_passed(&lab);
}
