use std::sync::Arc;

use exec_core::{AgentEvent, AgentEventKind, EventKind, MemoryPolicy, OutputStream};

use crate::lab::{
    Lab, LineParser, all_events, helper_lab, helper_passed, limit_file_size, lines, run_helper,
    script, stdout_of, until, until_line, within,
};

#[tokio::test]
async fn a_character_split_over_two_reads_arrives_whole() {
    let lab = Lab::new();
    let service = lab.service(script(
        r"printf '\346\227'; sleep 0.05; printf '\245\346'; sleep 0.05; printf '\234\254\n'",
    ));
    let execution = lab.launch(&service).await;
    assert_eq!(stdout_of(&execution).await, ["日本"]);
}

#[tokio::test]
async fn invalid_utf8_is_kept_in_the_events_and_in_the_log() {
    let lab = Lab::new();
    let profile = script(r"printf 'a\377b\n'; printf '\200'; printf 'err\376\n' >&2")
        .setup(|_, parameters| parameters.event_parser = Some(Box::new(LineParser)));
    let service = lab
        .builder(profile)
        .log_dir(lab.path("logs"))
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    let events = all_events(&execution).await;
    let raw: Vec<Vec<u8>> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Output(output) if output.stream == OutputStream::Stdout => {
                Some(output.line.as_bytes().to_vec())
            }
            _ => None,
        })
        .collect();
    assert_eq!(raw, [b"a\xffb".to_vec(), b"\x80".to_vec()]);
    let log = |stream| std::fs::read(execution.log_path(stream).unwrap()).unwrap();
    assert_eq!(log(OutputStream::Stdout), b"a\xffb\n\x80");
    assert_eq!(log(OutputStream::Stderr), b"err\xfe\n");
}

#[tokio::test]
async fn a_line_above_the_cap_is_delivered_truncated_and_counted() {
    let lab = Lab::new();
    let profile = script("echo 'say 0123456789abcdef'; echo 'say hi'; echo 0123456789abcdef >&2")
        .setup(|_, parameters| parameters.event_parser = Some(Box::new(LineParser)));
    let service = lab.builder(profile).max_line_bytes(10).open().unwrap();
    let execution = lab.launch(&service).await;
    let events = all_events(&execution).await;
    let outputs: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Output(output) if output.stream == OutputStream::Stdout => Some(output),
            _ => None,
        })
        .collect();
    assert_eq!(outputs[0].line.text(), "say 012345");
    assert_eq!(
        (
            outputs[0].line.is_truncated(),
            outputs[0].line.missing_bytes()
        ),
        (true, 10)
    );
    assert!(outputs[0].events.is_empty(), "half a line was parsed");
    assert_eq!(outputs[1].events.len(), 1);
    let report = execution.exit_report().unwrap();
    assert_eq!((report.truncated_lines, report.code), (2, Some(0)));
}

#[tokio::test]
async fn parsed_events_come_with_the_raw_line() {
    let lab = Lab::new();
    let profile = script("echo 'say hi'; echo '???'; echo 'say no' >&2")
        .setup(|_, parameters| parameters.event_parser = Some(Box::new(LineParser)));
    let execution = lab.launch(&lab.service(profile)).await;
    let events = all_events(&execution).await;
    let parsed: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.kind {
            EventKind::Output(output) => {
                Some((output.line.text().into_owned(), output.events.clone()))
            }
            _ => None,
        })
        .collect();
    let hi = AgentEvent::from(AgentEventKind::Text {
        text: "hi".into(),
        delta: false,
    });
    assert!(parsed.contains(&("say hi".into(), vec![hi])));
    assert!(parsed.contains(&("???".into(), vec![])));
    assert!(
        parsed.contains(&("say no".into(), vec![])),
        "standard error was parsed"
    );
}

#[tokio::test]
async fn the_first_event_is_the_start_and_the_last_the_exit() {
    let lab = Lab::new();
    let execution = lab
        .launch(&lab.service(script("echo a; echo b >&2; printf c")))
        .await;
    let events = all_events(&execution).await;
    for (expected, event) in events.iter().enumerate() {
        assert_eq!(event.sequence, expected as u64);
    }
    assert!(matches!(events[0].kind, EventKind::Started { .. }));
    assert!(matches!(events[1].kind, EventKind::SessionResolved { .. }));
    assert!(matches!(events.last().unwrap().kind, EventKind::Exited(_)));
    assert_eq!(lines(&events, OutputStream::Stdout), ["a", "c"]);
    assert_eq!(lines(&events, OutputStream::Stderr), ["b"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_subscribers_get_every_event_from_the_first() {
    let lab = Lab::new();
    let service = lab.service(script("for i in $(seq 3000); do echo \"line $i\"; done"));
    let execution = lab.launch(&service).await;
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let execution = execution.clone();
        readers.spawn(async move { stdout_of(&execution).await });
        tokio::task::yield_now().await;
    }
    let expected: Vec<_> = (1..=3000).map(|i| format!("line {i}")).collect();
    for seen in within("the readers", readers.join_all()).await {
        assert_eq!(seen, expected);
    }
    within("the end", execution.wait()).await.unwrap();
    assert_eq!(stdout_of(&execution).await, expected, "after the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_megabytes_of_input_and_output_do_not_deadlock() {
    const SIZE: usize = 10_000_000;
    let lab = Lab::new();
    // Writes all of its output before it reads any input.
    let service = lab.service(script(
        "head -c 10000000 /dev/zero | tr '\\0' x; echo; wc -c",
    ));
    let execution = lab.launch_with(&service, &"日".repeat(SIZE / 3 + 1)).await;
    let lines = stdout_of(&execution).await;
    assert_eq!(lines[0].len(), 8 << 20, "the cap");
    assert_eq!(lines[1].trim(), ((SIZE / 3 + 1) * 3).to_string());
    assert_eq!(execution.exit_report().unwrap().code, Some(0));
}

#[tokio::test]
async fn a_child_may_close_its_input_early() {
    let lab = Lab::new();
    let service = lab.service(script("exec 0<&-; echo closed; exit 5"));
    let execution = lab.launch_with(&service, &"x".repeat(1 << 20)).await;
    assert_eq!(stdout_of(&execution).await, ["closed"]);
    assert_eq!(execution.exit_report().unwrap().code, Some(5));
}

#[tokio::test]
async fn the_log_file_has_every_byte() {
    let lab = Lab::new();
    let agent = r#"i=0; while [ $i -lt 2000 ]; do printf '{"n":%d,"text":"日本語のテキスト"}\r\n' $i; i=$((i+1)); done; head -c 300000 /dev/urandom | tee random"#;
    let service = lab
        .builder(script(agent))
        .log_dir(lab.path("logs"))
        .max_line_bytes(100)
        .memory_policy(MemoryPolicy::DropOldest { max_bytes: 1000 })
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    within("the end", execution.wait()).await.unwrap();
    let mut expected: Vec<u8> = (0..2000)
        .flat_map(|n| format!("{{\"n\":{n},\"text\":\"日本語のテキスト\"}}\r\n").into_bytes())
        .collect();
    expected.extend(std::fs::read(lab.workspace().join("random")).unwrap());
    let logged = std::fs::read(execution.log_path(OutputStream::Stdout).unwrap()).unwrap();
    assert!(
        logged == expected,
        "{} bytes, expected {}",
        logged.len(),
        expected.len()
    );
}

#[tokio::test]
async fn the_oldest_events_are_dropped_and_the_gap_counts_them() {
    let lab = Lab::new();
    let service = lab
        .builder(script("seq 5000"))
        .memory_policy(MemoryPolicy::DropOldest { max_bytes: 10_000 })
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    within("the end", execution.wait()).await.unwrap();
    let events = all_events(&execution).await;
    let EventKind::Gap { missed } = events[0].kind else {
        panic!("no gap: {:?}", events[0]);
    };
    assert_eq!(events[1].sequence, missed);
    let seen = lines(&events, OutputStream::Stdout);
    assert!(seen.len() < 200, "{} lines are kept", seen.len());
    assert_eq!(seen.last().unwrap(), "5000");
    // The lines, the start, the resolved id and the exit.
    assert_eq!(missed as usize + events.len() - 1, 5003);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_log_blocks_the_child_until_a_subscriber_reads() {
    let lab = Lab::new();
    let agent = "i=0; while [ $i -lt 40 ]; do head -c 50000 /dev/zero | tr '\\0' x; echo; i=$((i+1)); echo $i > count; done";
    let service = lab
        .builder(script(agent))
        .memory_policy(MemoryPolicy::BlockChild { max_bytes: 200_000 })
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    // 200 kB in the log, 256 in the pipe, 256 in one read: the child cannot write all 2 MB.
    let mut quiet = (String::new(), 0);
    until("the child to block", || {
        let now = lab.written("count");
        quiet = if now == quiet.0 && !now.is_empty() {
            (now, quiet.1 + 1)
        } else {
            (now, 0)
        };
        quiet.1 > 40
    })
    .await;
    assert!(
        quiet.0.trim().parse::<u32>().unwrap() < 40,
        "the child was not blocked"
    );
    assert!(execution.exit_report().is_none());
    let seen = stdout_of(&execution).await;
    assert_eq!(seen.len(), 40);
    assert!(seen.iter().all(|line| line.len() == 50_000));
}

#[tokio::test]
async fn output_in_the_pipe_of_a_blocked_child_is_not_lost() {
    let lab = Lab::new();
    let service = lab
        .builder(script("for i in $(seq 200); do echo $i; done"))
        .memory_policy(MemoryPolicy::BlockChild { max_bytes: 1000 })
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    within("the end", execution.wait()).await.unwrap();
    let expected: Vec<_> = (1..=200).map(|i| i.to_string()).collect();
    assert_eq!(stdout_of(&execution).await, expected);
}

#[tokio::test]
async fn a_blocked_child_can_be_stopped() {
    let lab = Lab::new();
    let service = lab
        .builder(script("yes"))
        .memory_policy(MemoryPolicy::BlockChild { max_bytes: 1000 })
        .open()
        .unwrap();
    let execution = lab.launch(&service).await;
    until_line(&execution, "y").await;
    within("the stop", execution.stop()).await.unwrap();
    let events = all_events(&execution).await;
    assert!(matches!(events.last().unwrap().kind, EventKind::Exited(_)));
}

/// The child fills the pipe faster than the host reads it, and nothing blocks the child.
#[tokio::test]
async fn a_child_that_prints_without_pause_can_be_stopped() {
    let lab = Lab::new();
    let execution = lab.launch(&lab.service(script("yes"))).await;
    until_line(&execution, "y").await;
    within("the stop", execution.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_prints_without_pause_does_not_delay_the_end() {
    let lab = Lab::new();
    let service = lab.service(script("yes & exit 0"));
    let execution = lab.launch(&service).await;
    let report = within("the end", execution.wait()).await.unwrap();
    assert_eq!((report.code, report.leftover_processes), (Some(0), 1));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_survivor_that_keeps_the_output_open_does_not_delay_the_end() {
    let lab = Lab::new();
    // The known limit: another session, no tag, and the parent ends before the first scan.
    let agent = "(env -i setsid sleep 61 & echo $! > pid); sleep 0.1; echo bye";
    let execution = lab.launch(&lab.service(script(agent))).await;
    let lines = stdout_of(&execution).await;
    assert_eq!(lines, ["bye"]);
    let pid = lab.until_written("pid").await;
    let _ = std::process::Command::new("kill")
        .args(["-9", &pid])
        .status();
}

#[tokio::test]
async fn output_right_before_the_exit_is_delivered() {
    let lab = Lab::new();
    let service = lab.service(script(
        "head -c 60000 /dev/zero | tr '\\0' y; echo; echo last",
    ));
    for _ in 0..10 {
        let execution = lab.launch(&service).await;
        let lines = stdout_of(&execution).await;
        assert_eq!(
            (lines.len(), lines[0].len(), lines[1].as_str()),
            (2, 60000, "last")
        );
    }
}

#[test]
fn a_full_disk_ends_the_log_file_but_not_the_execution() {
    run_helper(&Lab::new(), "output::host_with_a_full_disk");
}

/// Files of this process cannot grow beyond 200 kB.
#[test]
#[ignore = "a helper process of the test above"]
fn host_with_a_full_disk() {
    let Some(lab) = helper_lab() else { return };
    limit_file_size(200_000);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // More than the file may have, and few enough for the event log to keep all of them.
        let agent = "seq 50000; echo fine >&2";
        let service = lab
            .builder(script(agent))
            .log_dir(lab.path("logs"))
            .open()
            .unwrap();
        let execution = lab.launch(&service).await;
        let events = all_events(&execution).await;
        assert_eq!(lines(&events, OutputStream::Stdout).len(), 50_000);
        let failures: Vec<_> = events
            .iter()
            .filter_map(|event| match &event.kind {
                EventKind::LogFailed { message } => Some(message),
                _ => None,
            })
            .collect();
        let log = |stream| execution.log_path(stream).unwrap();
        let stdout = log(OutputStream::Stdout);
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(
            failures[0].contains(stdout.to_str().unwrap()),
            "{failures:?}"
        );
        assert_eq!(std::fs::metadata(stdout).unwrap().len(), 200_000);
        assert_eq!(std::fs::read(log(OutputStream::Stderr)).unwrap(), b"fine\n");
        assert!(execution.exit_report().unwrap().is_success());
        helper_passed(&lab);
    });
}

#[test]
fn handles_are_send_and_sync() {
    fn check<T: Send + Sync + 'static>() {}
    check::<exec_core::Execution>();
    check::<exec_core::ExecutionService>();
    check::<exec_core::EventStream>();
    check::<Arc<exec_core::Event>>();
}
