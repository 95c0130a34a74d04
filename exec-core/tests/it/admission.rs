//! How many executions run at the same time, and which launch is next.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use exec_core::{Error, Execution, ExecutionService, WaitReason};
use tokio::task::JoinHandle;

use crate::lab::{Lab, Scripted, helper, helper_lab, script, until, within};

/// An agent that runs until its test ends it.
fn agent() -> Scripted {
    script("echo $$ >> started; exec sleep 600")
}

fn capped(lab: &Lab, max_running: usize) -> ExecutionService {
    lab.builder(agent())
        .max_running(max_running)
        .open()
        .unwrap()
}

/// Launches in the background, and returns when the launch waits.
async fn waiting_launch(
    lab: &Lab,
    service: &ExecutionService,
) -> JoinHandle<Result<Execution, Error>> {
    let before = service.waiting().len();
    let launch = tokio::spawn({
        let (service, request) = (service.clone(), lab.new_chat("go"));
        async move { service.launch(request).await }
    });
    until("a waiting launch", || service.waiting().len() > before).await;
    launch
}

async fn until_reason(service: &ExecutionService, index: usize, reason: &WaitReason) {
    until("the reason", || {
        let waiting = service.waiting();
        waiting
            .get(index)
            .is_some_and(|launch| launch.reason == *reason)
    })
    .await;
}

/// Waits until so many launches are in the queue behind the first one: the place of a launch is
/// decided when it has its ticket.
async fn until_tickets(lab: &Lab, count: usize) {
    until("the tickets", || {
        let queue = lab.path("state/admission/gate-queue");
        let tickets = std::fs::read_dir(queue).map_or(0, |folder| {
            let names = folder.map(|entry| entry.unwrap().file_name());
            names.filter(|name| name.len() == 20).count()
        });
        tickets == count
    })
    .await;
}

async fn launched(launch: JoinHandle<Result<Execution, Error>>) -> Execution {
    within("the launch", launch).await.unwrap().unwrap()
}

#[tokio::test]
async fn a_launch_beyond_the_cap_waits_and_says_why() {
    let lab = Lab::new();
    let service = capped(&lab, 2);
    let first = lab.launch(&service).await;
    let second = lab.launch(&service).await;
    let third = waiting_launch(&lab, &service).await;
    let fourth = waiting_launch(&lab, &service).await;
    until_reason(&service, 0, &WaitReason::Slot { max_running: 2 }).await;
    until_reason(&service, 1, &WaitReason::Queue).await;
    assert_eq!(service.executions().len(), 2);

    first.stop().await.unwrap();
    let third = launched(third).await;
    assert_eq!(service.waiting().len(), 1);
    assert_eq!(service.executions().len(), 2);
    third.stop().await.unwrap();
    let fourth = launched(fourth).await;
    assert!(service.waiting().is_empty());
    second.stop().await.unwrap();
    fourth.stop().await.unwrap();
    lab.launch(&service).await.stop().await.unwrap();
}

#[tokio::test]
async fn services_of_one_state_folder_share_the_cap_and_the_queue() {
    let lab = Lab::new();
    let services = [capped(&lab, 1), capped(&lab, 1), capped(&lab, 1)];
    let mut running = lab.launch(&services[0]).await;
    let mut waiting = Vec::new();
    for turn in [1, 2, 0, 2, 1, 0] {
        waiting.push((turn, waiting_launch(&lab, &services[turn]).await));
        until_tickets(&lab, waiting.len() - 1).await;
    }
    for (turn, launch) in waiting {
        assert!(!launch.is_finished());
        running.stop().await.unwrap();
        running = launched(launch).await;
        let total: usize = services.iter().map(|s| s.executions().len()).sum();
        assert_eq!((services[turn].executions().len(), total), (1, 1));
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_launch_that_is_dropped_or_cancelled_frees_its_place() {
    let lab = Lab::new();
    let service = capped(&lab, 1);
    let first = lab.launch(&service).await;
    let dropped = waiting_launch(&lab, &service).await;
    until_reason(&service, 0, &WaitReason::Slot { max_running: 1 }).await;
    let cancelled = waiting_launch(&lab, &service).await;
    let last = waiting_launch(&lab, &service).await;
    service.waiting()[1].cancel();
    let error = within("the cancelled launch", cancelled).await.unwrap();
    assert!(error.unwrap_err().is_cancelled());
    dropped.abort();
    until("one waiting launch", || service.waiting().len() == 1).await;
    first.stop().await.unwrap();
    launched(last).await.stop().await.unwrap();
    assert_eq!(service.history().load().unwrap().entries.len(), 2);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn launches_that_give_up_leave_few_threads_and_files() {
    let lab = Lab::new();
    let service = capped(&lab, 1);
    let running = lab.launch(&service).await;
    let first = waiting_launch(&lab, &service).await;
    until_reason(&service, 0, &WaitReason::Slot { max_running: 1 }).await;
    // A thread that waits has a file of the queue open.
    let open_files = || {
        let queue = lab.path("state/admission/gate");
        let queue = queue.to_str().unwrap();
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let files = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
        files
            .filter(|file| file.to_string_lossy().starts_with(queue))
            .count()
    };
    for _ in 0..50 {
        let given_up = waiting_launch(&lab, &service).await;
        given_up.abort();
        until("one waiting launch", || service.waiting().len() == 1).await;
    }
    assert!(open_files() < 30, "{}", open_files());

    // The order holds among the launches that wait.
    let second = waiting_launch(&lab, &service).await;
    running.stop().await.unwrap();
    launched(first).await.stop().await.unwrap();
    launched(second).await.stop().await.unwrap();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_shutdown_ends_the_waits() {
    let lab = Lab::new();
    let service = capped(&lab, 1);
    lab.launch(&service).await;
    let waiting = waiting_launch(&lab, &service).await;
    service.shutdown(Duration::from_secs(20)).await;
    let error = within("the waiting launch", waiting).await.unwrap();
    assert!(matches!(error, Err(Error::ShuttingDown)));
    assert_eq!(lab.processes(), [0; 0]);
}

#[tokio::test]
async fn a_launch_waits_for_free_memory() {
    let lab = Lab::new();
    let builder = lab.builder(agent()).min_free_memory(u64::MAX);
    let service = builder.open().unwrap();
    let waiting = waiting_launch(&lab, &service).await;
    until("the reason", || {
        matches!(
            service.waiting()[0].reason,
            WaitReason::Memory { free, minimum: u64::MAX } if free > 0
        )
    })
    .await;
    service.waiting()[0].cancel();
    assert!(within("the launch", waiting).await.unwrap().is_err());
    let modest = lab.builder(agent()).min_free_memory(1).open().unwrap();
    lab.launch(&modest).await.stop().await.unwrap();
}

#[tokio::test]
async fn a_launch_that_has_waited_is_checked_again() {
    let lab = Lab::new();
    let service = capped(&lab, 1);
    let first = lab.launch(&service).await;
    let waiting = waiting_launch(&lab, &service).await;
    std::fs::rename(lab.workspace(), lab.path("moved")).unwrap();
    first.stop().await.unwrap();
    let refused = within("the launch", waiting).await.unwrap();
    assert!(matches!(refused, Err(Error::WorkspaceMissing { .. })));
    std::fs::rename(lab.path("moved"), lab.workspace()).unwrap();
    // The refused launch has given its slot back.
    lab.launch(&service).await.stop().await.unwrap();
}

#[test]
#[ignore = "a helper process of another test"]
fn host_with_one_execution() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        lab.launch(&capped(&lab, 1)).await;
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn the_death_of_a_host_admits_the_next_launch() {
    let lab = Lab::new();
    let mut host = helper(&lab, "admission::host_with_one_execution")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    lab.until_written("started").await;
    let service = capped(&lab, 1);
    let waiting = waiting_launch(&lab, &service).await;
    until_reason(&service, 0, &WaitReason::Slot { max_running: 1 }).await;
    assert!(!waiting.is_finished());
    host.kill().unwrap();
    host.wait().unwrap();
    launched(waiting).await.stop().await.unwrap();
}

/// How many processes and launches the referee sees: `<hosts>x<launches of each>`.
const SIZE: &str = "EXEC_CORE_ADMISSION";
const CAP: usize = 5;
/// One host is killed after so many launches.
const KILL_EVERY: usize = 25;

/// Tells the referee when it starts and when it ends.
fn refereed(lab: &Lab, host: &str) -> Scripted {
    let pipe = lab.path("referee");
    let pipe = pipe.display();
    script(&format!(
        "exec 3>{pipe}; echo \"+ $REFEREED_HOST\" >&3; echo \"- $REFEREED_HOST\" >&3"
    ))
    .variable("REFEREED_HOST", host)
}

#[test]
#[ignore = "a helper process of another test"]
fn host_of_many_launches() {
    let Some(lab) = helper_lab() else { return };
    let launches: usize = std::env::var(SIZE).unwrap().parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let profile = refereed(&lab, &std::process::id().to_string());
        let service = lab.builder(profile).max_running(CAP).open().unwrap();
        for _ in 0..launches {
            lab.launch(&service).await.wait().await.unwrap();
        }
    });
    // Dropping it would kill the agents of the other hosts.
    std::mem::forget(lab);
}

/// A fault of the cap would show as more than `CAP` agents of living hosts between their `+` and
/// their `-`: an agent writes both while its execution has a slot, and a pipe keeps the order of
/// lines.
#[test]
fn the_cap_holds_across_processes_that_are_killed() {
    let size = std::env::var(SIZE).unwrap_or_else(|_| "64x20".to_owned());
    let (hosts, launches) = size.split_once('x').expect("<hosts>x<launches>");
    let (hosts, launches): (usize, usize) = (hosts.parse().unwrap(), launches.parse().unwrap());
    let lab = Lab::new();
    let pipe = lab.path("referee");
    assert!(
        Command::new("mkfifo")
            .arg(&pipe)
            .status()
            .unwrap()
            .success()
    );
    // Open for both, so that it has a reader before and after every agent.
    let pipe = File::options().read(true).write(true).open(&pipe).unwrap();
    let start = |launches: usize| {
        let mut host = helper(&lab, "admission::host_of_many_launches");
        let host = host.env(SIZE, launches.to_string()).stdout(Stdio::null());
        host.spawn().unwrap()
    };
    let mut live: HashMap<u32, Child> = HashMap::new();
    for _ in 0..hosts {
        let host = start(launches);
        live.insert(host.id(), host);
    }
    let mut running: HashMap<u32, usize> = HashMap::new();
    let (mut started, mut most, mut killed) = (0, 0, 0);
    for line in BufReader::new(pipe).lines() {
        let line = line.unwrap();
        let (sign, host) = line.split_once(' ').unwrap();
        let host: u32 = host.parse().unwrap();
        if !live.contains_key(&host) {
            continue; // an agent that has outlived its host
        }
        let count = running.entry(host).or_default();
        if sign == "-" {
            *count -= 1;
            continue;
        }
        *count += 1;
        started += 1;
        let now: usize = running.values().sum();
        assert!(now <= CAP, "{now} agents run at the same time");
        most = most.max(now);
        if started == hosts * launches {
            break;
        }
        if started % KILL_EVERY == 0 {
            // Not counted from before the signal on: the slot is free at an unknown moment.
            let mut host = live.remove(&host).unwrap();
            running.remove(&host.id());
            host.kill().unwrap();
            host.wait().unwrap();
            killed += 1;
            let host = start(launches);
            live.insert(host.id(), host);
        }
    }
    for host in live.values_mut() {
        let _ = host.kill();
        let _ = host.wait();
    }
    eprintln!("{started} launches, at most {most} at once, {killed} hosts killed");
    assert!(most > 1, "the agents never ran at the same time");
}
