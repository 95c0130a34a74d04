use std::collections::HashSet;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use exec_core::{
    Error, EventKind, ExecutionKind, RecoveredState, SessionIdEvidence, SessionIdLookup,
    SessionResolutionContext, StopOutcome,
};

use crate::lab::{
    DEADLINE, Lab, Scripted, all_events, helper, helper_lab, read_session_line, script, until,
    within,
};

/// The id is the name of a new file in the workspace's `sessions` folder.
struct NewFile {
    folder: PathBuf,
    before: HashSet<PathBuf>,
}

impl NewFile {
    fn find(&self) -> Option<String> {
        let path = crate::lab::files_in(&self.folder)
            .into_iter()
            .find(|path| !self.before.contains(path))?;
        Some(path.file_name()?.to_str()?.to_owned())
    }
}

#[async_trait]
impl SessionIdLookup for NewFile {
    async fn resolve_session_id(&mut self, _: &SessionResolutionContext) -> Option<String> {
        loop {
            if let Some(id) = self.find() {
                return Some(id);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn last_look(&mut self, _: &SessionResolutionContext) -> Option<String> {
        self.find()
    }
}

fn id_from_file(profile: Scripted) -> Scripted {
    profile.setup(|request, parameters| {
        let folder = request.context.workspace_path.join("sessions");
        let before = crate::lab::files_in(&folder).into_iter().collect();
        parameters.session_id_lookup = Some(Box::new(NewFile { folder, before }));
    })
}

#[tokio::test]
async fn a_minted_id_is_final_at_once() {
    let lab = Lab::new();
    let service = lab.service(script("exec sleep 60"));
    let result = within("the start", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.kind, ExecutionKind::New);
    assert_eq!(result.project_id, lab.context().project_id);
    assert_eq!(result.session_id.executor_type(), "SCRIPTED");
    assert_eq!(
        result.session_id.actual_project_id(),
        lab.context().actual_project_id
    );
    let execution = service.execution(&result.session_id).unwrap();
    assert_eq!(result.process_id, Some(execution.process_id()));
    assert_eq!(result.started_at, execution.started_at());
    assert_eq!(
        service.active_executions().active_sessions(),
        std::slice::from_ref(&result.session_id)
    );
    let stopped = within("the stop", service.stop_execution(&result.session_id))
        .await
        .unwrap();
    assert!(matches!(stopped, StopOutcome::Stopped(_)));
    assert!(!service.active_executions().is_active(&result.session_id));
}

#[tokio::test]
async fn an_id_from_stdout_replaces_the_minted_one_everywhere() {
    let lab = Lab::new();
    let service = lab.service(
        script("read go; echo noise; echo 'session: ses:1'; echo 'session: 2'; exec sleep 60")
            .id_from_stdout(),
    );
    let execution = lab.launch_with(&service, "go\n").await;
    let minted = execution.session_id();
    let resolved = within("the id", execution.resolved()).await.unwrap();
    assert_eq!(resolved.native_id(), "ses:1");
    assert_eq!(execution.session_id(), resolved);
    for id in [&minted, &resolved] {
        assert_eq!(service.execution(id).unwrap().id(), execution.id());
        assert!(service.active_executions().is_active(id));
    }
    assert_eq!(
        service.active_executions().active_sessions(),
        std::slice::from_ref(&resolved)
    );
    let stopped = within("the stop", service.stop_execution(&minted)).await;
    assert!(matches!(stopped.unwrap(), StopOutcome::Stopped(_)));
    let events = all_events(&execution).await;
    let ids: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::SessionResolved { session_id } => Some(session_id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [resolved]);
}

#[tokio::test]
async fn an_id_is_found_in_the_file_system() {
    let lab = Lab::new();
    let service = lab.service(id_from_file(script(
        "mkdir -p sessions; : > sessions/T-7; exec sleep 60",
    )));
    let result = within("the id", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.session_id.native_id(), "T-7");
}

#[tokio::test]
async fn the_file_of_an_agent_that_has_ended_is_found() {
    let lab = Lab::new();
    let service = lab.service(id_from_file(script("mkdir -p sessions; : > sessions/T-8")));
    let result = within("the id", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.session_id.native_id(), "T-8");
}

#[tokio::test]
async fn the_first_source_wins() {
    let lab = Lab::new();
    let profile = script("echo 'session: out'; exec sleep 60").setup(|request, parameters| {
        let folder = request.context.workspace_path.join("never");
        let before = HashSet::new();
        parameters.session_id_lookup = Some(Box::new(NewFile { folder, before }));
        parameters.session_id_resolver = Some(Box::new(read_session_line));
    });
    let service = lab.service(profile);
    let result = within("the id", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.session_id.native_id(), "out");
}

#[tokio::test]
async fn the_minted_id_is_final_after_the_timeout() {
    let lab = Lab::new();
    let service = lab
        .builder(script("exec sleep 60").id_from_stdout())
        .session_id_resolution_timeout(Duration::from_millis(200))
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    let minted = execution.session_id();
    assert_eq!(
        within("the id", execution.resolved()).await.unwrap(),
        minted
    );
    assert!(execution.exit_report().is_none());
    assert!(execution.started_at().elapsed().unwrap() >= Duration::from_millis(200));
}

#[tokio::test]
async fn an_id_after_the_timeout_replaces_the_minted_one_everywhere() {
    let lab = Lab::new();
    let agent = "read line; until [ -e go ]; do sleep 0.01; done; echo 'session: ses_late'; \
                 echo 'session: ses_other'; until [ -e stop ]; do sleep 0.01; done";
    let service = lab
        .builder(script(agent).id_from_stdout())
        .session_id_resolution_timeout(Duration::from_millis(50))
        .open()
        .unwrap();
    let execution = lab.launch_with(&service, "go\n").await;
    let minted = within("the timeout", execution.resolved()).await.unwrap();
    assert_eq!(minted.native_id().len(), 36, "minted");
    std::fs::write(lab.workspace().join("go"), "").unwrap();
    crate::lab::until_line(&execution, "session: ses_other").await;

    let late = execution.session_id();
    assert_eq!(late.native_id(), "ses_late");
    assert_eq!(
        service.active_executions().active_sessions(),
        std::slice::from_ref(&late)
    );
    assert_eq!(service.execution(&minted).unwrap().id(), execution.id());
    let busy = service
        .send_follow_up(lab.follow_up(&minted, "more\n"))
        .await;
    assert!(busy.unwrap_err().is_session_busy());
    std::fs::write(lab.workspace().join("stop"), "").unwrap();

    let ids: Vec<_> = all_events(&execution)
        .await
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::SessionResolved { session_id } => Some(session_id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids, [minted.clone(), late.clone()]);
    assert_eq!(execution.wait().await.unwrap().session_id, late);
    let entry = service.history().load().unwrap().entries.remove(0);
    assert_eq!(entry.session_id, late);

    let follow_up = service
        .launch(lab.follow_up(&minted, "more\n"))
        .await
        .unwrap();
    assert_eq!(follow_up.session_id(), late, "the agent knows no other id");
    within("the stop", follow_up.stop()).await.unwrap();
}

/// The id that the agent was given, told after the timeout.
fn late_confirmation() -> Scripted {
    let agent = "until [ -e go ]; do sleep 0.01; done; \
                 echo \"session: ${NORMALIZED_EXECUTION_SESSION_ID##*:}\"; exec sleep 60";
    script(agent).id_from_stdout()
}

#[test]
#[ignore = "a helper process of the test below"]
fn host_of_a_late_confirmation() {
    let Some(lab) = helper_lab() else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let service = lab
            .builder(late_confirmation())
            .session_id_resolution_timeout(Duration::from_millis(1))
            .open()
            .unwrap();
        let execution = lab.launch(&service).await;
        let minted = within("the timeout", execution.resolved()).await.unwrap();
        std::fs::write(lab.workspace().join("go"), "").unwrap();
        let line = format!("session: {}", minted.native_id());
        crate::lab::until_line(&execution, &line).await;
        assert_eq!(execution.session_id(), minted);
        std::fs::write(lab.workspace().join("told"), "yes\n").unwrap();
        std::future::pending::<()>().await;
    });
}

#[tokio::test]
async fn an_id_that_the_agent_confirms_after_the_timeout_is_known_after_a_crash() {
    let lab = Lab::new();
    let mut host = helper(&lab, "session_ids::host_of_a_late_confirmation")
        .spawn()
        .unwrap();
    lab.until_written("told").await;
    host.kill().unwrap();
    host.wait().unwrap();
    let service = lab.service(late_confirmation());
    let mut recovery = service.recover().await.unwrap();
    let session = within("the recovery", recovery.next()).await.unwrap();
    let session = session.unwrap();
    assert_eq!(session.evidence.id_source, SessionIdEvidence::Reported);
    assert!(session.follow_up("more").is_some());
    let RecoveredState::Adopted(agent) = &session.state else {
        panic!("{session:?}");
    };
    within("the stop", agent.stop()).await.unwrap();
}

/// Reads `session: <id>` as the start of a session.
struct SessionLines;

impl exec_core::EventParser for SessionLines {
    fn parse_line(&mut self, line: &str) -> Vec<exec_core::AgentEvent> {
        let session_id = read_session_line(line);
        let started = session_id.map(|session_id| {
            let kind = exec_core::AgentEventKind::SessionStarted {
                session_id,
                model: None,
            };
            kind.into()
        });
        started.into_iter().collect()
    }
}

#[tokio::test]
async fn an_id_in_an_event_replaces_an_id_that_the_agent_was_given() {
    let lab = Lab::new();
    let service = lab.service(script("echo \"session: $1\"; echo 'session: ses_2'").setup(
        |request, parameters| {
            parameters.args.push(match request.text.as_str() {
                "obey" => request.session_id.native_id().to_owned(),
                other => other.to_owned(),
            });
            parameters.event_parser = Some(Box::new(SessionLines));
        },
    ));
    for (prompt, resolutions) in [("obey", 1), ("ses_1", 2)] {
        let execution = lab.launch_with(&service, prompt).await;
        let minted = execution.session_id();
        let events = all_events(&execution).await;
        let count = events
            .iter()
            .filter(|event| matches!(event.kind, EventKind::SessionResolved { .. }))
            .count();
        assert_eq!(count, resolutions, "{prompt}");
        let expected = match prompt {
            "obey" => minted.native_id(),
            other => other,
        };
        assert_eq!(execution.session_id().native_id(), expected);
    }
}

#[tokio::test]
async fn the_end_of_the_child_ends_the_wait_for_its_id() {
    let lab = Lab::new();
    let service = lab
        .builder(script("echo oops >&2; exit 3").id_from_stdout())
        .session_id_resolution_timeout(20 * DEADLINE)
        .open()
        .unwrap();
    let result = within("the answer", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.process_id, None);
    until("the end", || service.executions().is_empty()).await;
    let entry = service.history().load().unwrap().entries.remove(0);
    assert_eq!(entry.session_id, result.session_id);
    let exec_core::HistoryState::Ended(report) = entry.state else {
        panic!("{:?}", entry.state);
    };
    assert_eq!(
        (report.code, report.stderr_tail),
        (Some(3), vec!["oops".to_owned()])
    );
}

#[tokio::test]
async fn an_id_right_before_an_unfinished_line_is_read() {
    let lab = Lab::new();
    let service = lab.service(script("printf 'session: ses_9\n'; printf 'rest'").id_from_stdout());
    let result = within("the id", service.start_new_chat(lab.new_chat("go")))
        .await
        .unwrap();
    assert_eq!(result.session_id.native_id(), "ses_9");
}

#[tokio::test]
async fn an_id_that_looks_like_an_option_is_refused() {
    let lab = Lab::new();
    let service = lab.service(script("echo 'session: --rm'").id_from_stdout());
    let execution = lab.launch(&service).await;
    let minted = execution.session_id();
    assert_eq!(
        within("the id", execution.resolved()).await.unwrap(),
        minted
    );
}

#[tokio::test]
async fn the_id_of_another_live_session_is_refused() {
    let lab = Lab::new();
    let service = lab.service(script("echo 'session: same'; exec sleep 60").id_from_stdout());
    let first = lab.launch(&service).await;
    assert_eq!(
        within("the id", first.resolved())
            .await
            .unwrap()
            .native_id(),
        "same"
    );
    let second = lab.launch(&service).await;
    crate::lab::until_line(&second, "session: same").await;
    assert_ne!(second.session_id().native_id(), "same");
    assert_eq!(
        service.execution(&first.session_id()).unwrap().id(),
        first.id()
    );
    assert_eq!(service.executions().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn parallel_launches_in_one_workspace_get_their_own_ids() {
    let lab = Lab::new();
    // Each agent writes a file with the name in its prompt; a longer name takes longer.
    let agent =
        "read name; mkdir -p sessions; sleep 0.0${#name}; : > \"sessions/$name\"; exec sleep 60";
    let service = lab.service(id_from_file(script(agent)));
    let mut starts = tokio::task::JoinSet::new();
    for name in ["a", "bb", "ccc", "dddd", "eeeee"] {
        let (service, request) = (service.clone(), lab.new_chat(&format!("{name}\n")));
        starts.spawn(async move {
            let result = service.start_new_chat(request).await.unwrap();
            (name, result.session_id)
        });
    }
    for (name, session_id) in within("all ids", starts.join_all()).await {
        assert_eq!(session_id.native_id(), name);
    }
}

#[tokio::test]
async fn a_launch_behind_an_unresolved_one_does_not_take_its_file() {
    let lab = Lab::new();
    let agent = "read name; mkdir -p sessions; case $name in late) until [ -e go ]; do sleep 0.01; done;; esac; : > \"sessions/$name\"; exec sleep 60";
    let service = lab
        .builder(id_from_file(script(agent)))
        .session_id_resolution_timeout(Duration::from_millis(200))
        .open()
        .unwrap();
    let late = lab.launch_with(&service, "late\n").await;
    let begin = Instant::now();
    let second = lab.launch_with(&service, "second\n").await;
    assert!(
        begin.elapsed() >= Duration::from_millis(200),
        "the launch did not wait for its slot"
    );
    std::fs::write(lab.workspace().join("go"), "").unwrap();
    until("the file", || {
        lab.workspace().join("sessions/late").exists()
    })
    .await;
    // Its own file may be found before the late one appears.
    let resolved = within("the id", second.resolved()).await.unwrap();
    let is_minted = |id: &str| id.len() == 36;
    let id = resolved.native_id();
    assert!(id == "second" || is_minted(id), "{id}");
    assert!(is_minted(late.session_id().native_id()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn during_the_resolution_a_session_has_exactly_one_id() {
    let lab = Lab::new();
    let service = lab.service(script("echo \"session: ses_$$\"; exec sleep 60").id_from_stdout());
    for _ in 0..20 {
        let execution = lab.launch(&service).await;
        let watcher = {
            let (service, execution) = (service.clone(), execution.clone());
            tokio::task::spawn_blocking(move || {
                let begin = Instant::now();
                loop {
                    assert!(begin.elapsed() < DEADLINE);
                    let before = execution.session_id();
                    let active = service.active_executions().active_sessions();
                    let after = execution.session_id();
                    assert_eq!(active.len(), 1, "{active:?}");
                    assert!(active[0] == before || active[0] == after);
                    if after.native_id().starts_with("ses_") {
                        return;
                    }
                }
            })
        };
        within("the id", execution.resolved()).await.unwrap();
        within("the watcher", watcher).await.unwrap();
        within("the stop", execution.stop()).await.unwrap();
        assert!(service.active_executions().active_sessions().is_empty());
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_session_has_one_live_execution() {
    let lab = Lab::new();
    let service = lab.service(script("exec sleep 60"));
    let first = service.start_new_chat(lab.new_chat("go")).await.unwrap();
    let request = || lab.follow_up(&first.session_id, "more");
    let busy = service.send_follow_up(request()).await.unwrap_err();
    assert!(busy.is_session_busy(), "{busy}");
    assert!(
        busy.to_string().contains(first.session_id.as_str()),
        "{busy}"
    );
    lab.until_processes(1).await;
    within("the stop", service.stop_execution(&first.session_id))
        .await
        .unwrap();
    let second = service.send_follow_up(request()).await.unwrap();
    assert_eq!(
        (second.kind, &second.session_id),
        (ExecutionKind::FollowUp, &first.session_id)
    );
    assert!(matches!(
        service.send_follow_up(request()).await,
        Err(Error::SessionBusy { .. })
    ));
}

#[tokio::test]
async fn a_follow_up_to_another_session_is_a_mismatch() {
    let lab = Lab::new();
    let service = lab.service(script("cat; echo; echo 'session: other'").id_from_stdout());
    let session = lab.launch(&service).await.resolved().await.unwrap();
    assert_eq!(session.native_id(), "other");
    let mismatches = async |session: &exec_core::SessionId| {
        until("the end", || service.executions().is_empty()).await;
        let request = lab.follow_up(session, "more");
        let execution = service.launch(request).await.unwrap();
        let events = all_events(&execution).await;
        assert_eq!(
            &execution.session_id(),
            session,
            "the session asked for stays"
        );
        events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::SessionMismatch { asked, reported } => {
                    Some((asked.clone(), reported.clone()))
                }
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(mismatches(&session).await, []);
    let mine = session.with_native_id("mine").unwrap();
    assert_eq!(
        mismatches(&mine).await,
        [("mine".to_owned(), "other".to_owned())]
    );
}
