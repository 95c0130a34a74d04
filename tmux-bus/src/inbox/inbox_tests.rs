//! Crashes of the inbox file: whatever is left of it, each message is waiting, delivered, dead or
//! uncertain, and none is typed twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;

use super::inbox::Inbox;
use super::inbox_entry::{DeadReason, InboxEntry, MessageState};
use super::inbox_limits::InboxLimits;
use super::inbox_record::InboxRecord;
use super::message_id::MessageId;
use crate::{Error, PaneId, Refusal};

const AGENTS: [&str; 3] = ["a", "b", "c"];

fn inbox(folder: &Path) -> Inbox {
    limited(folder, InboxLimits::default())
}

fn limited(folder: &Path, limits: InboxLimits) -> Inbox {
    let agents = AGENTS.map(str::to_owned).to_vec();
    Inbox::new(folder.join("inbox"), "team.yaml".into(), limits, agents)
}

fn file(folder: &Path) -> std::path::PathBuf {
    folder.join("inbox/inbox.jsonl")
}

fn submit_unknown() -> Error {
    Error::SubmitUnknown {
        pane: PaneId::new("%1").unwrap(),
        source: Box::new(Error::ShuttingDown),
    }
}

fn refused(reason: Refusal) -> Error {
    Error::refused(PaneId::new("%1").unwrap(), reason)
}

fn end(inbox: &Inbox, id: &MessageId, sent: Result<(), &Error>) {
    inbox.end(Inbox::outcome(id, sent)).unwrap();
}

fn states(inbox: &Inbox) -> BTreeMap<MessageId, MessageState> {
    let entries = inbox.all_entries().unwrap().into_iter();
    entries.map(|entry| (entry.id, entry.state)).collect()
}

/// Delivers all that waits, in order, and returns what was typed.
fn deliver_all(inbox: &Inbox) -> Vec<MessageId> {
    inbox.take_over().unwrap();
    let mut typed = Vec::new();
    loop {
        let plan = inbox.plan().unwrap();
        if plan.heads.is_empty() {
            return typed;
        }
        for (id, _) in plan.heads {
            assert!(inbox.begin(&id).unwrap());
            typed.push(id.clone());
            end(inbox, &id, Ok(()));
        }
    }
}

#[test]
fn messages_are_delivered_in_the_order_in_which_they_were_left() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let left: Vec<_> = (0..10)
        .map(|n| inbox.leave("user", AGENTS[n % 2], &n.to_string()).unwrap())
        .collect();
    let typed = deliver_all(&inbox);
    for agent in 0..2 {
        let of = |ids: &[MessageId]| -> Vec<MessageId> {
            let of_agent = left.iter().skip(agent).step_by(2);
            let of_agent: BTreeSet<_> = of_agent.collect();
            ids.iter()
                .filter(|id| of_agent.contains(id))
                .cloned()
                .collect()
        };
        assert_eq!(of(&typed), of(&left));
    }
}

#[test]
fn expired_messages_behind_one_that_was_sent_again_do_not_count() {
    let dir = tempfile::tempdir().unwrap();
    let limits = InboxLimits::default().max_messages(2);
    let short = limited(dir.path(), limits.keep(Duration::ZERO));
    let first = short.leave("user", "a", "1").unwrap();
    short.leave("user", "a", "2").unwrap();
    // It has its old place, and expires later than the second one.
    let inbox = limited(dir.path(), limits);
    inbox.resend(&first).unwrap();
    inbox.leave("user", "a", "3").unwrap();
    let error = inbox.leave("user", "a", "4").unwrap_err();
    assert!(matches!(error, Error::InboxFull { .. }), "{error:?}");
}

#[test]
fn limits_are_refused_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let limits = InboxLimits::default().max_messages(2).max_message_bytes(5);
    let inbox = limited(dir.path(), limits);
    let refusal = |to: &str, text: &str| inbox.leave("user", to, text).unwrap_err().to_string();
    assert_eq!(
        refusal("a", "longer"),
        "the message for `a` was refused: it has 6 bytes, and the limit is 5"
    );
    assert_eq!(
        refusal("a", ""),
        "the message for `a` was not left: it is empty"
    );
    assert!(refusal("x", "hi").contains("known agents: a, b, c"));
    let first = inbox.leave("user", "a", "1").unwrap();
    inbox.leave("user", "a", "2").unwrap();
    assert_eq!(
        refusal("a", "3"),
        "the message for `a` was not left: 2 messages already wait"
    );
    inbox.leave("user", "b", "1").unwrap();
    // An uncertain message still counts, a delivered one does not.
    assert!(inbox.begin(&first).unwrap());
    end(&inbox, &first, Err(&submit_unknown()));
    assert!(refusal("a", "3").contains("already wait"));
    inbox.forget(&first).unwrap();
    inbox.leave("user", "a", "3").unwrap();
}

#[test]
fn outcomes_become_states() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let check = |sent: Result<(), &Error>, expected: &str| {
        let id = inbox.leave("user", "a", "text").unwrap();
        assert!(inbox.begin(&id).unwrap());
        assert!(!inbox.begin(&id).unwrap(), "it is begun once");
        end(&inbox, &id, sent);
        assert_eq!(states(&inbox)[&id].to_string(), expected);
    };
    check(Ok(()), "delivered");
    check(Err(&refused(Refusal::Draft)), "waiting");
    check(Err(&refused(Refusal::Dead)), "waiting");
    let newline = "dead: the agent cannot take it: it has a NUL byte";
    check(Err(&refused(Refusal::Nul)), newline);
    let not_taken = "uncertain: the message for pane %1 was not sent: the agent did not take it";
    check(Err(&refused(Refusal::NotTaken)), not_taken);
    assert!(
        submit_unknown()
            .to_string()
            .starts_with("the message may or may not")
    );
    check(
        Err(&submit_unknown()),
        &format!("uncertain: {}", submit_unknown()),
    );
    check(
        Err(&Error::ShuttingDown),
        "uncertain: the runtime is shutting down",
    );
}

#[test]
fn a_person_settles_uncertain_messages_and_dead_letters() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let ids = ["1", "2", "3"].map(|text| inbox.leave("user", "a", text).unwrap());
    for id in &ids[..2] {
        assert!(inbox.begin(id).unwrap());
        end(&inbox, id, Err(&submit_unknown()));
    }
    let error = inbox.take_back(&ids[0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("message {} is uncertain, not waiting", ids[0])
    );
    let error = inbox.resend(&ids[2]).unwrap_err();
    assert!(matches!(error, Error::MessageState { .. }), "{error:?}");
    inbox.resend(&ids[1]).unwrap();
    inbox.forget(&ids[0]).unwrap();
    let error = inbox.forget(&ids[0]).unwrap_err();
    assert!(matches!(error, Error::UnknownMessage { .. }), "{error:?}");
    // It is sent before those that were left later.
    assert_eq!(deliver_all(&inbox), ids[1..]);
    let waiting = inbox.leave("user", "a", "4").unwrap();
    inbox.take_back(&waiting).unwrap();
    assert!(!states(&inbox).contains_key(&waiting));
    assert!(!inbox.begin(&waiting).unwrap());
}

#[test]
fn expired_messages_and_those_of_removed_agents_are_dead_letters() {
    let dir = tempfile::tempdir().unwrap();
    let expired = limited(dir.path(), InboxLimits::default().keep(Duration::ZERO));
    let id = expired.leave("user", "a", "late").unwrap();
    let inbox = inbox(dir.path());
    let is_expired = |state: &MessageState| {
        let reason = DeadReason::Expired;
        *state == MessageState::Dead { reason }
    };
    assert!(is_expired(&states(&inbox)[&id]), "before it is recorded");
    assert!(!inbox.begin(&id).unwrap());
    assert!(inbox.plan().unwrap().heads.is_empty());
    assert!(is_expired(&states(&inbox)[&id]));
    let other = inbox.leave("user", "b", "text").unwrap();
    inbox.bury_removed(&BTreeSet::from(["a"])).unwrap();
    let removed = MessageState::Dead {
        reason: DeadReason::AgentRemoved,
    };
    assert_eq!(states(&inbox)[&other], removed);
    inbox.resend(&id).unwrap();
    assert_eq!(deliver_all(&inbox), [id]);
}

#[test]
fn a_deliverer_that_died_leaves_an_uncertain_message() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let id = inbox.leave("user", "a", "text").unwrap();
    assert!(inbox.begin(&id).unwrap());
    let lock = crate::shared::fifo_lock::FifoLock::new(&dir.path().join("inbox/deliverer"));
    let held = lock
        .try_lock(crate::shared::kernel_lock::Access::Exclusive)
        .unwrap();
    assert_eq!(states(&inbox)[&id], MessageState::Sending);
    assert!(inbox.forget(&id).is_err(), "the deliverer is at work");
    drop(held);
    let uncertain = |state: &MessageState| matches!(state, MessageState::Uncertain { .. });
    assert!(uncertain(&states(&inbox)[&id]), "before a deliverer looks");
    assert!(deliver_all(&inbox).is_empty());
    assert!(uncertain(&states(&inbox)[&id]));
    inbox.resend(&id).unwrap();
    assert_eq!(deliver_all(&inbox), [id]);
}

#[test]
fn the_file_stays_small_and_keeps_what_is_not_settled() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let text = "x".repeat(300);
    let waiting = inbox.leave("user", "b", &text).unwrap();
    let uncertain = inbox.leave("user", "c", &text).unwrap();
    assert!(inbox.begin(&uncertain).unwrap());
    end(&inbox, &uncertain, Err(&submit_unknown()));
    let mut largest = 0;
    // Another process keeps reading.
    let reader = self::inbox(dir.path());
    for number in 0..1_000 {
        let id = inbox.leave("user", "a", &text).unwrap();
        assert!(inbox.begin(&id).unwrap());
        end(&inbox, &id, Ok(()));
        largest = largest.max(fs::metadata(file(dir.path())).unwrap().len());
        if number % 100 == 0 {
            assert_eq!(states(&reader), states(&inbox));
        }
    }
    assert!(largest < 100 << 10, "{largest}");
    let fresh = self::inbox(dir.path());
    assert_eq!(states(&fresh), states(&inbox));
    assert_eq!(states(&fresh)[&waiting], MessageState::Waiting);
    let entry = &fresh.entries("b").unwrap()[0];
    assert_eq!((&entry.text, entry.from.as_str()), (&text, "user"));
    assert!(matches!(
        states(&fresh)[&uncertain],
        MessageState::Uncertain { .. }
    ));
    assert_eq!(
        fresh.entries("a").unwrap().len(),
        20,
        "the newest delivered"
    );
}

#[test]
fn a_crash_during_compaction_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let id = inbox.leave("user", "a", &"x".repeat(200_000)).unwrap();
    let before = states(&inbox);
    fs::write(dir.path().join("inbox/inbox.part"), "{\"left\":{\"id\"").unwrap();
    assert_eq!(states(&self::inbox(dir.path())), before);
    // The next compaction succeeds.
    inbox.take_back(&id).unwrap();
    assert!(fs::metadata(file(dir.path())).unwrap().len() < 1_000);
    assert!(!dir.path().join("inbox/inbox.part").exists());
}

/// Its caller would leave the message again, and the agent would get it twice.
#[test]
fn a_message_is_left_although_the_file_cannot_be_compacted() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let big = inbox.leave("user", "a", &"x".repeat(200_000)).unwrap();
    fs::create_dir(dir.path().join("inbox/inbox.part")).unwrap();
    inbox.take_back(&big).unwrap();
    let id = inbox.leave("user", "a", "text").unwrap();
    assert_eq!(deliver_all(&inbox), [id]);
    fs::remove_dir(dir.path().join("inbox/inbox.part")).unwrap();
    inbox.leave("user", "a", "text").unwrap();
    assert!(fs::metadata(file(dir.path())).unwrap().len() < 1_000);
}

#[test]
fn a_message_stays_that_of_an_agent_that_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let of_agent = inbox.leave("b", "a", "text").unwrap();
    let of_user = inbox.leave("user", "a", "text").unwrap();
    // Compacted once.
    let big = inbox.leave("user", "a", &"x".repeat(200_000)).unwrap();
    inbox.take_back(&big).unwrap();
    let agents = vec!["a".to_owned(), "user".to_owned()];
    let later = Inbox::new(
        dir.path().join("inbox"),
        "team.yaml".into(),
        InboxLimits::default(),
        agents,
    );
    let is_agent = |id| later.waiting(id).unwrap().unwrap().0.is_agent;
    assert_eq!((is_agent(&of_agent), is_agent(&of_user)), (true, false));
}

#[test]
fn a_damaged_line_hides_no_message_and_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let id = inbox(dir.path()).leave("user", "a", "first").unwrap();
    let mut text = fs::read_to_string(file(dir.path())).unwrap();
    text.push_str("damaged\n");
    fs::write(file(dir.path()), text).unwrap();
    let inbox = inbox(dir.path());
    let big = inbox.leave("user", "a", &"x".repeat(200_000)).unwrap();
    inbox.take_back(&big).unwrap();
    assert_eq!(states(&inbox).into_keys().collect::<Vec<_>>(), [id]);
    let text = fs::read_to_string(file(dir.path())).unwrap();
    assert!(text.starts_with("damaged\n") && text.len() < 1_000);
}

/// The format is a contract between versions: files that other versions wrote are read.
#[test]
fn the_records_of_the_file_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let golden = include_str!("../../tests/data/inbox.jsonl");
    fs::create_dir(dir.path().join("inbox")).unwrap();
    fs::write(file(dir.path()), golden).unwrap();
    for (name, mode) in [("inbox", 0o700), ("inbox/inbox.jsonl", 0o600)] {
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(dir.path().join(name), mode).unwrap();
    }
    let entries = inbox(dir.path()).all_entries().unwrap();
    let listed: Vec<String> = entries
        .iter()
        .map(|entry| {
            let InboxEntry {
                from,
                to,
                text,
                state,
                ..
            } = entry;
            format!("{from} {to} {text:?} {state}")
        })
        .collect();
    assert_eq!(
        listed,
        [
            r#"user a "waits" waiting"#,
            r#"user a "" delivered"#,
            r#"b a "refused once" waiting"#,
            r#"user b "lost" uncertain: the tmux server of session `team` is gone"#,
            r#"user b "late" dead: it was not delivered in time"#,
            r#"user c "two\nlines" dead: the agent cannot take it: it has a newline"#,
            r#"user c "again" waiting"#,
        ]
    );
    let records: Vec<InboxRecord> = golden
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let written: Vec<String> = records
        .iter()
        .map(|record| serde_json::to_string(record).unwrap())
        .collect();
    assert_eq!(written, golden.lines().collect::<Vec<_>>());
}

/// Readers have not seen a record without its newline. If the next writer completed it, a message
/// that is being typed would be taken back.
#[test]
fn a_torn_record_never_takes_effect() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    let id = inbox.leave("user", "a", "text").unwrap();
    let mut text = fs::read_to_string(file(dir.path())).unwrap();
    text.push_str(&format!("{{\"removed\":{{\"id\":\"{id}\"}}}}"));
    fs::write(file(dir.path()), text).unwrap();
    assert!(inbox.begin(&id).unwrap());
    end(&inbox, &id, Ok(()));
    let after = self::inbox(dir.path());
    assert!(matches!(
        states(&after)[&id],
        MessageState::Delivered { .. }
    ));
}

#[test]
fn files_that_others_can_write_to_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let inbox = inbox(dir.path());
    inbox.leave("user", "a", "text").unwrap();
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().mode() & 0o777;
    assert_eq!((mode("inbox"), mode("inbox/inbox.jsonl")), (0o700, 0o600));
    fs::set_permissions(file(dir.path()), fs::Permissions::from_mode(0o666)).unwrap();
    let error = inbox.leave("user", "a", "text").unwrap_err();
    assert!(matches!(error, Error::NotPrivate { .. }), "{error:?}");
}

/// One step of the processes that use an inbox.
#[derive(Clone, Debug)]
enum Step {
    Leave {
        agent: usize,
        kilobytes: usize,
    },
    Begin {
        agent: usize,
    },
    /// The outcome of the attempt that is open; typed unless it was refused.
    End {
        agent: usize,
        outcome: Outcome,
    },
    TakeBack,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Delivered,
    Refused,
    Unknown,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let outcome = prop_oneof![
        3 => Just(Outcome::Delivered),
        1 => Just(Outcome::Refused),
        1 => Just(Outcome::Unknown),
    ];
    let step = prop_oneof![
        3 => (0..3_usize, 0..12_usize).prop_map(|(agent, kilobytes)| Step::Leave { agent, kilobytes }),
        3 => (0..3_usize).prop_map(|agent| Step::Begin { agent }),
        3 => (0..3_usize, outcome).prop_map(|(agent, outcome)| Step::End { agent, outcome }),
        1 => Just(Step::TakeBack),
    ];
    prop::collection::vec(step, 1..60)
}

/// What the outside world knows.
#[derive(Clone, Default)]
struct World {
    left: Vec<MessageId>,
    /// Texts that were typed, and may have been submitted.
    typed: Vec<MessageId>,
    taken_back: BTreeSet<MessageId>,
    open: [Option<MessageId>; 3],
}

impl World {
    /// Takes a step; `true` if the file has it on disk.
    fn step(&mut self, inbox: &Inbox, step: &Step) -> bool {
        match *step {
            Step::Leave { agent, kilobytes } => {
                let text = "x".repeat(1 + kilobytes * 1024);
                self.left
                    .push(inbox.leave("s", AGENTS[agent], &text).unwrap());
                true
            }
            Step::Begin { agent } => {
                let plan = inbox.plan().unwrap();
                let mut heads = plan.heads.into_iter();
                if self.open[agent].is_none()
                    && let Some((id, _)) = heads.find(|(_, to)| to == AGENTS[agent])
                    && inbox.begin(&id).unwrap()
                {
                    self.open[agent] = Some(id);
                }
                true
            }
            Step::End { agent, outcome } => {
                let Some(id) = self.open[agent].take() else {
                    return false;
                };
                match outcome {
                    Outcome::Refused => end(inbox, &id, Err(&refused(Refusal::Draft))),
                    Outcome::Delivered => end(inbox, &id, Ok(())),
                    Outcome::Unknown => end(inbox, &id, Err(&submit_unknown())),
                }
                if !matches!(outcome, Outcome::Refused) {
                    self.typed.push(id);
                }
                false
            }
            Step::TakeBack => {
                if let Some(id) = self.left.last()
                    && inbox.take_back(id).is_ok()
                {
                    self.taken_back.insert(id.clone());
                }
                true
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The machine stops during the last step: what was not synced, and the record of that step,
    /// are cut off at any byte.
    #[test]
    fn after_a_crash_at_any_byte_nothing_is_lost_and_nothing_is_typed_twice(
        steps in steps(),
        cut in 0.0..1.0_f64,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let inbox = inbox(dir.path());
        let path = file(dir.path());
        let identity = || fs::metadata(&path).map_or((0, 0), |found| (found.len(), found.ino()));
        let mut world = World::default();
        let mut synced = 0;
        let (last, before) = steps.split_last().unwrap();
        for step in before {
            let (_, file) = identity();
            let is_synced = world.step(&inbox, step);
            let (len, new_file) = identity();
            // A new file was synced as a whole.
            if is_synced || new_file != file {
                synced = len;
            }
        }
        let known = world.clone();
        let (_, file) = identity();
        world.step(&inbox, last);
        let (len, new_file) = identity();
        if new_file != file {
            // The last step replaced the file.
            synced = len;
        }
        let cut = synced + ((len - synced) as f64 * cut).round() as u64;
        if path.exists() {
            File::options().write(true).open(&path).unwrap().set_len(cut).unwrap();
        }
        // Attempts of the last moment may have typed.
        let maybe_typed: BTreeSet<_> = known.open.iter().flatten().collect();

        let after = self::inbox(dir.path());
        let found = states(&after);
        for id in &known.left {
            match found.get(id) {
                Some(MessageState::Waiting) => prop_assert!(!known.typed.contains(id)),
                Some(MessageState::Uncertain { .. } | MessageState::Delivered { .. }) => {}
                Some(state) => prop_assert!(false, "{state}"),
                None => {
                    // Taken back, also by the last step, or delivered long ago.
                    let is_gone = world.taken_back.contains(id);
                    prop_assert!(is_gone || known.typed.contains(id), "vanished");
                }
            }
        }
        let again = deliver_all(&after);
        let once: BTreeSet<_> = again.iter().collect();
        prop_assert_eq!(once.len(), again.len());
        for id in again {
            prop_assert!(!known.typed.contains(&id), "typed twice");
            prop_assert!(!maybe_typed.contains(&id) || !world.typed.contains(&id), "typed twice");
        }
        for state in states(&after).values() {
            prop_assert!(
                !matches!(state, MessageState::Waiting | MessageState::Sending),
                "{state}"
            );
        }
    }
}
