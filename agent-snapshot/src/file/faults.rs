//! Every fault at every step of a short script, and every folder that a crash may leave.

use std::sync::Arc;

use super::agent_files::{AgentFiles, RewritePolicy};
use super::checksummed_lines;
use super::folder::Folder;
use super::simulated_folder::{Fault, SimulatedFolder};
use crate::backend::Intent;
use crate::conversation::Message;
use crate::{AgentId, AgentSnapshot, Error};

type Sim = AgentFiles<SimulatedFolder>;

/// One call of the script, with the state after it.
struct ScriptStep {
    call: Call,
    after: Option<AgentSnapshot>,
    stream: usize,
}

enum Call {
    Save(Box<AgentSnapshot>),
    Compact,
    Delete,
}

/// First save, appends, a trim with a summary, a log that is long enough to be compacted, a message
/// that comes back into view, another history, a delete, and a new start.
fn script() -> Vec<ScriptStep> {
    let mut steps = Vec::new();
    let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
    snapshot.epoch = 3;
    steps.push(save(&mut snapshot, "one"));
    steps.push(save(&mut snapshot, "two"));
    let whole = snapshot.memory.short_term_history.clone();
    snapshot.memory.short_term_history.drop_front(1);
    let summary = Message::system("one was said");
    snapshot
        .memory
        .short_term_history
        .set_summary(Some(summary));
    steps.push(save(&mut snapshot, "three"));
    steps.push(save(&mut snapshot, &"long ".repeat(600)));
    steps.push(save(&mut snapshot, "after the log was compacted"));
    steps.push(ScriptStep {
        call: Call::Compact,
        after: Some(snapshot.clone()),
        stream: 5,
    });
    steps.push(save(&mut snapshot, "after compact"));
    let tail = snapshot.memory.short_term_history.tail().skip(1);
    let tail: Vec<Message> = tail.map(|(_, message)| message.clone()).collect();
    snapshot.memory.short_term_history = whole;
    snapshot.memory.short_term_history.extend(tail);
    steps.push(save(&mut snapshot, "with the first message"));
    snapshot.memory.short_term_history = crate::History::new();
    steps.push(save(&mut snapshot, "another history"));
    steps.push(ScriptStep {
        call: Call::Delete,
        after: None,
        stream: 0,
    });
    snapshot.tick_index = 0;
    snapshot.memory.short_term_history = crate::History::new();
    steps.push(save(&mut snapshot, "new start"));
    steps.push(save(&mut snapshot, "continues"));
    steps
}

/// The agent of a copy: its first save has messages out of view.
fn script_of_a_copy() -> Vec<ScriptStep> {
    let mut steps = Vec::new();
    let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
    snapshot.epoch = 3;
    for _ in 0..3 {
        snapshot.memory.short_term_history = crate::History::new();
        for text in ["one", "two", "three"] {
            snapshot.memory.short_term_history.push(Message::user(text));
        }
        snapshot.memory.short_term_history.drop_front(2);
        steps.push(save(&mut snapshot, "four"));
        steps.push(save(&mut snapshot, "five"));
        steps.push(ScriptStep {
            call: Call::Delete,
            after: None,
            stream: 0,
        });
    }
    steps
}

/// Each script, with a log and with a rewrite at every save.
fn scripts_and_modes() -> impl Iterator<Item = (Vec<ScriptStep>, bool)> {
    [script, script_of_a_copy]
        .into_iter()
        .flat_map(|script| [false, true].map(|every_save| (script(), every_save)))
}

fn save(snapshot: &mut AgentSnapshot, text: &str) -> ScriptStep {
    snapshot.tick_index += 1;
    let seq = snapshot.memory.short_term_history.push(Message::user(text));
    ScriptStep {
        call: Call::Save(Box::new(snapshot.clone())),
        after: Some(snapshot.clone()),
        stream: seq as usize + 1,
    }
}

fn open(folder: &SimulatedFolder, every_save: bool) -> Sim {
    let min_ticks = if every_save { 0 } else { 2 };
    let agent = AgentId::new("a").unwrap();
    let folder = Arc::new(folder.clone());
    AgentFiles::new(folder, agent, RewritePolicy { min_ticks })
}

fn save_to(files: &mut Sim, snapshot: &AgentSnapshot) -> Result<(), Error> {
    // The script replaces a history, and its snapshots are prepared before they are saved.
    files.save(snapshot, &Intent::Overwrite).map(drop)
}

fn call(files: &mut Sim, call: &Call) -> Result<(), Error> {
    match call {
        Call::Save(snapshot) => save_to(files, snapshot),
        Call::Compact => files.compact(),
        Call::Delete => files.delete(),
    }
}

/// Checks that exactly this snapshot is stored, with a stream of this length.
fn matches(files: &mut Sim, snapshot: Option<&AgentSnapshot>, stream: usize) -> Result<(), String> {
    let loaded = files.load().map_err(|error| error.to_string())?;
    let loaded = loaded.map(|(snapshot, _)| snapshot);
    if loaded.as_ref() != snapshot {
        return Err(format!("{loaded:?} is stored instead of {snapshot:?}"));
    }
    let read = files
        .stream(&(0..u64::MAX))
        .map_err(|error| error.to_string())?;
    let numbers: Vec<usize> = read.iter().map(|(seq, _)| *seq as usize).collect();
    if numbers != (0..stream).collect::<Vec<_>>() {
        return Err(format!("the stream is {numbers:?} instead of 0..{stream}"));
    }
    Ok(())
}

/// Runs the rest of the script and checks each state.
fn finish(files: &mut Sim, script: &[ScriptStep], from: usize, what: &str) {
    for (n, step) in script.iter().enumerate().skip(from) {
        call(files, &step.call).unwrap_or_else(|error| panic!("{what}: step {n}: {error:?}"));
        matches(files, step.after.as_ref(), step.stream)
            .unwrap_or_else(|reason| panic!("{what}: after step {n}: {reason}"));
        if step.after.is_none() {
            let mut fenced = AgentSnapshot::new(AgentId::new("a").unwrap());
            fenced.epoch = 2;
            let refused = save_to(files, &fenced);
            assert!(
                refused.is_err_and(|error| error.is_fenced()),
                "{what}: not fenced"
            );
        }
    }
}

/// The state before step `n`.
fn before(script: &[ScriptStep], n: usize) -> (Option<&AgentSnapshot>, usize) {
    match n.checked_sub(1) {
        Some(n) => (script[n].after.as_ref(), script[n].stream),
        None => (None, 0),
    }
}

/// Runs the script up to the first error, and returns the step that failed.
fn run(files: &mut Sim, script: &[ScriptStep]) -> Option<usize> {
    script
        .iter()
        .position(|step| call(files, &step.call).is_err())
}

fn total_steps(script: &[ScriptStep], every_save: bool) -> u64 {
    let folder = SimulatedFolder::default();
    let mut files = open(&folder, every_save);
    assert_eq!(run(&mut files, script), None);
    finish_checks_itself(script, every_save);
    folder.steps()
}

fn finish_checks_itself(script: &[ScriptStep], every_save: bool) {
    finish(
        &mut open(&SimulatedFolder::default(), every_save),
        script,
        0,
        "no fault",
    );
}

#[test]
fn a_crash_at_any_step_leaves_the_old_or_the_new_state() {
    for (script, every_save) in scripts_and_modes() {
        let mut images = 0;
        for at in 0..total_steps(&script, every_save) {
            let folder = SimulatedFolder::with(Fault::Crash(at));
            let mut files = open(&folder, every_save);
            // A call may succeed although the crash happened after its commit point.
            let n = run(&mut files, &script).unwrap_or(script.len() - 1);
            assert!(folder.crashed());
            for (image, folder) in folder.after_crash() {
                images += 1;
                let what = format!("crash at {at} in step {n}, {image}");
                let mut files = open(&folder, every_save);
                let (old, stream) = before(&script, n);
                let is_old = matches(&mut files, old, stream);
                let is_new = matches(&mut files, script[n].after.as_ref(), script[n].stream);
                if let (Err(old), Err(new)) = (&is_old, &is_new) {
                    panic!("{what}: not old: {old}; not new: {new}");
                }
                finish(&mut files, &script, n, &what);
            }
        }
        assert!(images > 200, "{images}");
    }
}

#[test]
fn what_was_acknowledged_survives_a_crash_between_calls() {
    for (script, every_save) in scripts_and_modes() {
        for (n, step) in script.iter().enumerate() {
            let folder = SimulatedFolder::default();
            let mut files = open(&folder, every_save);
            assert_eq!(run(&mut files, &script[..=n]), None);
            folder.crash();
            for (image, folder) in folder.after_crash() {
                let what = format!("crash after step {n}, {image}");
                let mut files = open(&folder, every_save);
                matches(&mut files, step.after.as_ref(), step.stream)
                    .unwrap_or_else(|reason| panic!("{what}: {reason}"));
                finish(&mut files, &script, n + 1, &what);
            }
        }
    }
}

/// After an error the same call is repeated. Then a crash shows whether everything acknowledged was
/// really written.
fn fails_once(fault: impl Fn(u64) -> Fault) {
    for (script, every_save) in scripts_and_modes() {
        for at in 0..total_steps(&script, every_save) {
            let folder = SimulatedFolder::with(fault(at));
            let mut files = open(&folder, every_save);
            for (n, step) in script.iter().enumerate() {
                let what = format!("{:?} in step {n}", fault(at));
                if let Err(error) = call(&mut files, &step.call) {
                    assert!(matches!(error, Error::Io { .. }), "{what}: {error}");
                    let (old, stream) = before(&script, n);
                    let is_old = matches(&mut files, old, stream);
                    let is_new = matches(&mut files, step.after.as_ref(), step.stream);
                    assert!(
                        is_old.is_ok() || is_new.is_ok(),
                        "{what}: {is_old:?}, {is_new:?}"
                    );
                    folder.heal();
                    call(&mut files, &step.call)
                        .unwrap_or_else(|error| panic!("{what}: again: {error:?}"));
                }
                folder.crash();
                for (image, folder) in folder.after_crash() {
                    let mut files = open(&folder, every_save);
                    matches(&mut files, step.after.as_ref(), step.stream)
                        .unwrap_or_else(|reason| panic!("{what}, then crash {image}: {reason}"));
                }
                folder.uncrash();
            }
        }
    }
}

#[test]
fn a_failed_step_is_an_error_and_the_call_can_be_repeated() {
    fails_once(Fault::Fail);
}

#[test]
fn a_short_write_is_an_error_and_the_call_can_be_repeated() {
    fails_once(Fault::Short);
}

#[test]
fn a_full_disk_loses_nothing_that_was_acknowledged() {
    fails_once(Fault::Full);
}

#[test]
fn a_crash_while_recovering_from_a_crash_is_no_different() {
    let script = script();
    for at in (0..total_steps(&script, false)).step_by(3) {
        let folder = SimulatedFolder::with(Fault::Crash(at));
        let mut files = open(&folder, false);
        let n = run(&mut files, &script).unwrap_or(script.len() - 1);
        for (first, folder) in folder.after_crash().into_iter().step_by(5) {
            for again in 0..12 {
                let folder = folder.copy_with(Fault::Crash(again));
                let mut files = open(&folder, false);
                let _ = files.load();
                if call(&mut files, &script[n].call).is_ok() && !folder.crashed() {
                    break;
                }
                for (second, folder) in folder.after_crash().into_iter().step_by(3) {
                    let what = format!("crash at {at} ({first}), again at {again} ({second})");
                    let mut files = open(&folder, false);
                    let (old, stream) = before(&script, n);
                    let is_old = matches(&mut files, old, stream);
                    let is_new = matches(&mut files, script[n].after.as_ref(), script[n].stream);
                    assert!(
                        is_old.is_ok() || is_new.is_ok(),
                        "{what}: {is_old:?} {is_new:?}"
                    );
                    finish(&mut files, &script, n, &what);
                }
            }
        }
    }
}

/// Tests the simulation: without a sync, data and names may be lost.
#[test]
fn the_simulated_folder_forgets_what_was_not_synced() {
    let folder = SimulatedFolder::default();
    let mut file = folder.create("x").unwrap();
    folder.write(&mut file, b"data").unwrap();
    folder.crash();
    let images = folder.after_crash();
    let seen: Vec<_> = images
        .iter()
        .map(|(_, folder)| folder.read("x").unwrap())
        .collect();
    for expected in [
        None,
        Some(&b""[..]),
        Some(b"data"),
        Some(b"da"),
        Some(b"\0\0ta"),
    ] {
        assert!(
            seen.iter().any(|bytes| bytes.as_deref() == expected),
            "{expected:?}"
        );
    }
}

/// The checksums of the log match, so only assembling the snapshot finds the damage.
#[test]
fn a_log_that_cannot_be_loaded_is_not_built_upon() {
    let folder = SimulatedFolder::default();
    let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
    let mut next = |text: &str| match save(&mut snapshot, text).call {
        Call::Save(snapshot) => snapshot,
        _ => unreachable!(),
    };
    let mut files = open(&folder, false);
    save_to(&mut files, &next("one")).unwrap();
    save_to(&mut files, &next("two")).unwrap();

    let bytes = folder.read("a.1.log").unwrap().unwrap();
    let lines = checksummed_lines::read(&bytes);
    let last = lines.payloads.last().unwrap();
    let mut line = String::new();
    let other = last.replace("\"tick_index\":2", "\"tick_index\":9");
    assert_ne!(*last, other);
    checksummed_lines::push(&mut line, lines.crc, &other.replace("[{", "[],\"was\":[{"));
    let mut log = folder.open_to_append("a.1.log").unwrap();
    folder.write(&mut log, line.as_bytes()).unwrap();

    let mut files = open(&folder, false);
    let refused = save_to(&mut files, &next("three")).unwrap_err();
    assert!(refused.is_damaged(), "{refused}");
    assert!(files.load().unwrap_err().is_damaged());
}

/// One process keeps a log open; another one, which writes no log, fails or is killed at any step
/// of its save.
#[test]
fn a_rewrite_without_a_log_is_noticed_by_a_process_with_an_open_log() {
    let script = script();
    let saves: Vec<&AgentSnapshot> = script[..4]
        .iter()
        .map(|step| step.after.as_ref().unwrap())
        .collect();
    for fault in [Fault::Fail, Fault::Crash] {
        for at in 0.. {
            let folder = SimulatedFolder::with(fault(at));
            let mut with_log = open(&folder, false);
            let prepared = saves[..2]
                .iter()
                .all(|save| save_to(&mut with_log, save).is_ok());
            if !prepared {
                continue;
            }
            let steps = folder.steps();
            let other = save_to(&mut open(&folder, true), saves[2]);
            let is_over = folder.steps() <= at;
            folder.heal();
            folder.uncrash();
            let what = format!("{:?} after {steps} steps ({other:?})", fault(at));
            save_to(&mut with_log, saves[3]).unwrap();
            matches(&mut open(&folder, false), Some(saves[3]), 4)
                .unwrap_or_else(|reason| panic!("{what}: {reason}"));
            if is_over {
                break;
            }
        }
    }
}

#[test]
fn a_repeated_delete_removes_the_files_that_the_first_one_left() {
    for epoch in [0, 3] {
        let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
        snapshot.epoch = epoch;
        let first = save(&mut snapshot, "one").after.unwrap();
        snapshot.memory.short_term_history.drop_front(1);
        let second = save(&mut snapshot, "two").after.unwrap();
        for fault in [Fault::Fail, Fault::Crash] {
            for at in 0.. {
                let folder = SimulatedFolder::with(fault(at));
                let mut files = open(&folder, false);
                let saved = save_to(&mut files, &first)
                    .and_then(|()| save_to(&mut files, &second))
                    .and_then(|()| files.compact());
                if saved.is_err() {
                    continue;
                }
                let _ = files.delete();
                let is_over = folder.steps() <= at;
                folder.heal();
                folder.uncrash();
                open(&folder, false).delete().unwrap();
                let left = folder.list().unwrap();
                let expected: &[&str] = if epoch == 0 { &[] } else { &["a.deleted"] };
                assert_eq!(left, expected, "{:?}, epoch {epoch}", fault(at));
                if is_over {
                    break;
                }
            }
        }
    }
}

/// Its removal is the commit point: a tombstone does not kill a file without a generation.
#[test]
fn a_deleted_file_of_another_program_stays_deleted_after_a_crash() {
    for epoch in [0, 3] {
        let mut snapshot = AgentSnapshot::new(AgentId::new("a").unwrap());
        snapshot.epoch = epoch;
        let json = snapshot.to_json().unwrap();
        let folder = SimulatedFolder::default();
        let mut file = folder.create("a.json").unwrap();
        folder.write(&mut file, json.as_bytes()).unwrap();
        folder.sync(&file).unwrap();
        folder.sync_names().unwrap();

        open(&folder, false).delete().unwrap();
        folder.crash();
        for (image, folder) in folder.after_crash() {
            let loaded = open(&folder, false).load().unwrap();
            assert!(loaded.is_none(), "epoch {epoch}, {image}");
        }
    }
}

#[test]
fn a_damaged_tombstone_is_kept_aside_by_a_delete() {
    let folder = SimulatedFolder::default();
    let mut files = open(&folder, false);
    let script = script();
    let deleted = script.iter().position(|step| step.after.is_none());
    let next = deleted.unwrap() + 1;
    assert_eq!(run(&mut files, &script[..next]), None);
    let mut tombstone = folder.create("a.deleted").unwrap();
    folder.write(&mut tombstone, b"?").unwrap();

    let mut files = open(&folder, false);
    assert!(files.load().unwrap_err().is_damaged());
    files.delete().unwrap();
    assert_eq!(folder.read("a.damaged.1.deleted").unwrap().unwrap(), b"?");
    finish(&mut files, &script, next, "after a damaged tombstone");
}
