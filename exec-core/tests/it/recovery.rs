//! A host is killed, and the next host finds every session once.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

#[cfg(target_os = "linux")]
use exec_core::StopLadder;
use exec_core::{
    ExecutionService, HistoryState, LeaderEvidence, RecoveredSession, RecoveredState,
    SessionIdEvidence, StopOutcome,
};

use crate::lab::{
    Lab, Scripted, alive, files_in, helper, helper_lab, helper_passed, limit_file_size,
    refuse_signals, run_helper, script, until, within,
};

/// Agents of both kinds, by their prompt: `given` takes the id of the launch, `own` makes one and
/// prints it. `short` ones end at once, `long` ones stay, and have a tool in its own session. Each
/// writes `<execution id> <session id of the launch> <own id or ->` before it goes on.
const AGENT: &str = r#"
read -r kind length
own=-
if [ "$kind" = own ]; then own=own-$$; fi
echo "$NORMALIZED_EXECUTION_ID $NORMALIZED_EXECUTION_SESSION_ID $own" >> agents
if [ "$kind" = own ]; then echo "session: $own"; fi
if [ "$length" = long ]; then setsid sleep 600 & exec sleep 600; fi
"#;

fn agent() -> Scripted {
    script(AGENT).setup(|request, parameters| {
        if request.text.starts_with("own") {
            parameters.session_id_resolver = Some(Box::new(crate::lab::read_session_line));
        }
    })
}

/// What the agent itself has written about its launch.
struct Witness {
    launch_session: String,
    own_id: Option<String>,
}

fn witnesses(lab: &Lab) -> HashMap<String, Witness> {
    let text = lab.written("agents");
    let mut witnesses = HashMap::new();
    for line in text
        .split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
    {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [execution, session, own] = words[..] else {
            panic!("{line:?}");
        };
        let witness = Witness {
            launch_session: session.to_owned(),
            own_id: (own != "-").then(|| own.to_owned()),
        };
        assert!(witnesses.insert(execution.to_owned(), witness).is_none());
    }
    witnesses
}

#[test]
#[ignore = "a helper process of other tests"]
fn host() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        for prompt in ["given long", "own short", "own long", "given short"]
            .into_iter()
            .cycle()
            .take(12)
        {
            lab.launch_with(&service, &format!("{prompt}\n")).await;
        }
        std::future::pending::<()>().await;
    });
}

#[test]
#[ignore = "a helper process of another test"]
fn recovering_host() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        let mut recovery = service.recover().await.unwrap();
        while recovery.next().await.unwrap().is_some() {}
        std::future::pending::<()>().await;
    });
}

/// A host with one agent: of a new session, or of the session of the host before it.
#[test]
#[ignore = "a helper process of another test"]
fn host_of_one_session() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        match witnesses(&lab).into_values().next() {
            Some(before) => {
                let session_id = before.launch_session.parse().unwrap();
                let request = lab.follow_up(&session_id, "given long\n");
                service.launch(request).await.unwrap();
            }
            None => drop(lab.launch_with(&service, "given long\n").await),
        }
        std::future::pending::<()>().await;
    });
}

/// The kernel refuses its signals, as for processes of another user.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "a helper process of another test"]
fn recovery_without_the_permission_to_signal() {
    let Some(lab) = helper_lab() else { return };
    refuse_signals();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let builder = lab.builder(agent()).stop_ladder(StopLadder::kill_at_once());
        let service = builder.open().unwrap();
        let sessions = recover_all(&service).await;
        let [session] = &sessions[..] else {
            panic!("{sessions:?}");
        };
        let RecoveredState::Adopted(adopted) = &session.state else {
            panic!("{session:?}");
        };
        assert!(!session.evidence.survivors.is_empty());
        let [older, newest] = &session.evidence.executions[..] else {
            panic!("{session:?}");
        };
        assert_eq!(newest, adopted.id());
        let again = recover_all(&service).await;
        let left: Vec<_> = again.iter().map(|it| &it.evidence.executions[..]).collect();
        assert_eq!(left, [[older.clone()]]);
        // Its processes were not ended.
        let entries = service.history().load().unwrap().entries;
        let entry = entries.iter().find(|entry| entry.execution_id == *older);
        assert_eq!(entry.unwrap().state, HistoryState::Open);
        helper_passed(&lab);
    });
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn an_adopted_agent_is_not_recovered_again_if_an_older_one_cannot_be_ended() {
    let lab = Lab::new();
    let reader = lab.service(agent());
    for count in [1, 2] {
        let host = start(&lab, "recovery::host_of_one_session");
        until("the launch", || witnesses(&lab).len() == count).await;
        // The supervisor records the process before it writes the history.
        until("the record", || {
            let entries = reader.history().load().unwrap().entries;
            entries.len() == count
        })
        .await;
        kill(host);
    }
    run_helper(&lab, "recovery::recovery_without_the_permission_to_signal");
}

#[test]
#[ignore = "a helper process of another test"]
fn host_of_two_sessions() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        for _ in 0..2 {
            lab.launch_with(&service, "given long\n").await;
        }
        std::future::pending::<()>().await;
    });
}

/// The journal of the dead host cannot be written, as on a full disk; the new one can.
#[test]
#[ignore = "a helper process of another test"]
fn recovery_that_cannot_end_a_record() {
    let Some(lab) = helper_lab() else { return };
    limit_file_size(100_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab.service(agent());
        let mut recovery = service.recover().await.unwrap();
        let first = recovery.next().await.unwrap().unwrap();
        let RecoveredState::Adopted(first) = first.state else {
            panic!("{first:?}");
        };
        drop(recovery);
        // Another service of the host does not end it.
        let other = lab.service(agent());
        assert!(recover_all(&other).await.is_empty());
        assert!(other.reap_orphans().await.unwrap().executions.is_empty());
        assert!(alive(first.process_id()));
        let rest = recover_all(&service).await;
        let [second] = &rest[..] else {
            panic!("{rest:?}");
        };
        let RecoveredState::Adopted(second) = &second.state else {
            panic!("{second:?}");
        };
        assert_ne!(first.id(), second.id());
        assert!(recover_all(&service).await.is_empty());
        // All its sessions have an owner, and so the old journal is gone.
        assert_eq!(files_in(&lab.path("state/owners")).len(), 2);
        assert!(recover_all(&other).await.is_empty());
        for execution in [&first, second] {
            assert!(alive(execution.process_id()));
            execution.stop().await.unwrap();
        }
        helper_passed(&lab);
    });
}

#[tokio::test]
async fn an_adopted_agent_is_not_ended_if_its_old_record_cannot_be() {
    let lab = Lab::new();
    let host = start(&lab, "recovery::host_of_two_sessions");
    let reader = lab.service(agent());
    until("the records", || {
        reader.history().load().unwrap().entries.len() == 2
    })
    .await;
    drop(reader);
    kill(host);
    for journal in files_in(&lab.path("state/owners")) {
        let mut journal = std::fs::File::options().append(true).open(journal).unwrap();
        journal.write_all(&[b'\n'; 200_000]).unwrap();
    }
    run_helper(&lab, "recovery::recovery_that_cannot_end_a_record");
}

/// A long execution can outlive its lines in the history, which is rotated.
#[tokio::test]
async fn a_session_keeps_its_own_id_if_the_history_has_lost_it() {
    let lab = Lab::new();
    let host = start(&lab, "recovery::host");
    let reader = lab.service(agent());
    until("the records", || {
        let entries = reader.history().load().unwrap().entries;
        let own = entries.iter().filter(|e| e.former_session_id.is_some());
        (entries.len(), own.count()) == (12, 6)
    })
    .await;
    kill(host);
    std::fs::remove_file(lab.path("state/history.jsonl")).unwrap();
    let witnesses = witnesses(&lab);
    let sessions = recover_all(&lab.service(agent())).await;
    assert!(sessions.len() >= 6, "{sessions:?}");
    for session in sessions {
        let id = session.evidence.executions[0].to_string();
        let (known, source) = match witnesses[&id].own_id.as_deref() {
            Some(own) => (own, SessionIdEvidence::Reported),
            None => (session.session_id.native_id(), SessionIdEvidence::Assigned),
        };
        assert_eq!(session.session_id.native_id(), known);
        assert_eq!(session.evidence.id_source, source);
    }
}

fn start(lab: &Lab, test: &str) -> Child {
    let mut host = helper(lab, test);
    host.stdout(Stdio::null()).spawn().unwrap()
}

fn kill(mut host: Child) {
    host.kill().unwrap();
    host.wait().unwrap();
}

async fn recover_all(service: &ExecutionService) -> Vec<RecoveredSession> {
    let mut recovery = service.recover().await.unwrap();
    let mut sessions = Vec::new();
    while let Some(session) = within("a session", recovery.next()).await.unwrap() {
        sessions.push(session);
    }
    sessions
}

#[tokio::test]
async fn a_living_agent_is_adopted_and_ends_like_others() {
    let lab = Lab::new();
    let host = start(&lab, "recovery::host");
    until("the launches", || witnesses(&lab).len() == 12).await;
    // All ids are on record.
    let reader = lab.service(agent());
    until("the records", || {
        let entries = reader.history().load().unwrap().entries;
        let open = entries.iter().filter(|e| e.state == HistoryState::Open);
        let own = entries.iter().filter(|e| e.former_session_id.is_some());
        (open.count(), own.count()) == (6, 6)
    })
    .await;
    kill(host);
    let service = lab.service(agent());
    let sessions = recover_all(&service).await;
    assert_eq!(sessions.len(), 6);
    for session in &sessions {
        let RecoveredState::Adopted(execution) = &session.state else {
            panic!("{session:?}");
        };
        let pid = execution.process_id();
        assert!(alive(pid));
        assert_eq!(
            session.evidence.leader,
            LeaderEvidence::Alive { process_id: pid }
        );
        assert_eq!(session.evidence.executions, [execution.id().clone()]);
        assert!(service.active_executions().is_active(&session.session_id));
        let usage = execution.health().await.unwrap().usage;
        assert_eq!(usage.processes, 2, "the tool belongs to it");
        let request = session.follow_up("more").unwrap();
        assert_eq!(request.session_id, session.session_id);
        let busy = service.launch(request).await.unwrap_err();
        assert!(busy.is_session_busy());
    }
    assert!(recover_all(&service).await.is_empty(), "they have an owner");
    // The other service is alive: it must not take them, either.
    assert!(recover_all(&reader).await.is_empty());
    for session in &sessions {
        let stopped = service.stop_execution(&session.session_id).await.unwrap();
        assert!(matches!(stopped, StopOutcome::Stopped(report) if report.processes == 2));
        let request = session.follow_up("own short\n").unwrap();
        let again = within("the follow-up", service.launch(request))
            .await
            .unwrap();
        within("its end", again.wait()).await.unwrap();
    }
    assert_eq!(lab.processes(), [0; 0]);
    let entries = service.history().load().unwrap().entries;
    assert!(
        entries
            .iter()
            .all(|e| matches!(e.state, HistoryState::Ended(_)))
    );
}

#[tokio::test]
async fn an_agent_that_has_ended_is_resumable_only_by_an_id_that_it_knows() {
    let lab = Lab::new();
    let host = start(&lab, "recovery::host");
    until("the launches", || witnesses(&lab).len() == 12).await;
    kill(host);
    let witnesses = witnesses(&lab);
    for pid in lab.processes() {
        let pid = i32::try_from(pid).unwrap();
        // SAFETY: a process of this lab.
        unsafe { libc::kill(pid, libc::SIGKILL) };
    }
    lab.until_processes(0).await;
    let service = lab.service(agent());
    for session in recover_all(&service).await {
        let id = session.evidence.executions[0].to_string();
        let evidence = &session.evidence;
        assert_eq!(evidence.ended_processes, 0);
        let own_id = witnesses[&id].own_id.as_deref();
        match evidence.id_source {
            SessionIdEvidence::Assigned => {
                assert_eq!(own_id, None);
                assert!(matches!(session.state, RecoveredState::Resumable));
                assert!(session.follow_up("more").is_some());
            }
            SessionIdEvidence::Reported => {
                assert_eq!(own_id, Some(session.session_id.native_id()));
                assert!(matches!(session.state, RecoveredState::Resumable));
            }
            source => {
                assert_eq!(source, SessionIdEvidence::Unknown);
                assert!(own_id.is_some());
                assert!(matches!(session.state, RecoveredState::Reaped));
                assert!(session.follow_up("more").is_none());
            }
        }
    }
}

#[tokio::test]
async fn a_recovery_that_is_dropped_leaves_the_rest() {
    let lab = Lab::new();
    let host = start(&lab, "recovery::host");
    until("the launches", || witnesses(&lab).len() == 12).await;
    kill(host);
    let service = lab.service(agent());
    let mut recovery = service.recover().await.unwrap();
    let all = recovery.remaining();
    assert!(all >= 6);
    let first = recovery.next().await.unwrap().unwrap();
    drop(recovery);
    let rest = recover_all(&service).await;
    assert_eq!(rest.len(), all - 1);
    assert!(
        rest.iter()
            .all(|session| session.session_id != first.session_id)
    );
    service.shutdown(Duration::from_secs(30)).await;
    drop((first, rest, service));
    until("no journal", || {
        files_in(&lab.path("state/owners")).is_empty()
    })
    .await;
}

/// How many kills the test of random moments makes.
const ROUNDS: &str = "EXEC_CORE_KILLS";

/// xorshift: the moments differ from run to run by the id of the process.
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[tokio::test]
async fn after_a_kill_at_any_moment_every_session_is_there_once_with_its_id() {
    let rounds: usize = std::env::var(ROUNDS).map_or(20, |rounds| rounds.parse().unwrap());
    let mut seed = u64::from(std::process::id()) << 20 | 1;
    let mut counts = [0; 3];
    for round in 0..rounds {
        let lab = Lab::new();
        let host = start(&lab, "recovery::host");
        until("the first launch", || !lab.written("agents").is_empty()).await;
        // From the first launch to well after the last one.
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 40_000));
        kill(host);
        if round % 3 == 2 {
            let left = files_in(&lab.path("state/owners"));
            let host = start(&lab, "recovery::recovering_host");
            // It may recover everything, and remove what the first host has left, between two looks.
            until("the journal of the recovering host", || {
                let journals = files_in(&lab.path("state/owners"));
                journals.iter().any(|journal| !left.contains(journal))
            })
            .await;
            std::thread::sleep(Duration::from_micros(random(&mut seed) % 10_000));
            kill(host);
        }
        let count = check_recovery(&lab).await;
        counts = std::array::from_fn(|state| counts[state] + count[state]);
    }
    let [adopted, resumable, reaped] = counts;
    eprintln!("{rounds} kills: {adopted} adopted, {resumable} resumable, {reaped} reaped");
}

/// Recovers, and compares with what the agents have written. Returns how many sessions were adopted,
/// resumable and reaped.
async fn check_recovery(lab: &Lab) -> [usize; 3] {
    let service = lab.service(agent());
    let before: HashSet<String> = ended_executions(&service);
    let sessions = recover_all(&service).await;
    // An agent that was about to start has written its line by now, or is gone.
    let witnesses = witnesses(lab);
    let mut seen = HashMap::new();
    let mut ids = HashSet::new();
    let mut counts = [0; 3];
    for session in &sessions {
        assert!(
            ids.insert(session.session_id.clone()),
            "{} twice",
            session.session_id
        );
        for id in &session.evidence.executions {
            let twice = seen.insert(id.to_string(), session);
            assert!(twice.is_none(), "{id} twice");
        }
        let state = match &session.state {
            RecoveredState::Adopted(execution) => {
                // The report of an agent that ends now comes a moment later.
                until("an agent or its report", || {
                    alive(execution.process_id()) || execution.exit_report().is_some()
                })
                .await;
                0
            }
            RecoveredState::Resumable => 1,
            _ => 2,
        };
        counts[state] += 1;
    }
    for (id, witness) in &witnesses {
        match seen.get(id) {
            None => assert!(before.contains(id), "{id} is lost"),
            Some(session) => {
                let native_id = session.session_id.native_id();
                let is_own = witness.own_id.as_deref() == Some(native_id);
                let is_given = session.session_id.as_str() == witness.launch_session;
                assert!(is_own || is_given, "{id}: {native_id} is another session");
                // An id of the launch must not be resumed if the agent has its own.
                if !is_own && witness.own_id.is_some() {
                    assert!(session.follow_up("more").is_none(), "{id}: {session:?}");
                }
                if let RecoveredState::Resumable = session.state {
                    assert!(is_own || witness.own_id.is_none());
                }
            }
        }
    }
    assert!(recover_all(&service).await.is_empty());
    service.shutdown(Duration::from_secs(30)).await;
    assert_eq!(lab.processes(), [0; 0]);
    counts
}

fn ended_executions(service: &ExecutionService) -> HashSet<String> {
    let entries = service.history().load().unwrap().entries;
    let ended = entries
        .iter()
        .filter(|entry| entry.state != HistoryState::Open);
    ended.map(|entry| entry.execution_id.to_string()).collect()
}
