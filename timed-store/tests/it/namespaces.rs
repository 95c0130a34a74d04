//! Processes in other pid, mount and time namespaces, as in containers.

use std::fs;
use std::path::Path;
use std::process::Command;

use timed_store::{Claim, Error, OwnerProcess, SessionId};

use crate::support::{LONG, Place, Store, s, wait_until};
use crate::worker::{Worker, unshare};

/// The part of a process that claims with the session that it detects, and stays.
pub(crate) fn claim_detected(folder: &Path, name: &str) {
    // SAFETY: this process has one thread that uses the environment.
    unsafe {
        std::env::remove_var("ITERM_SESSION_ID");
        std::env::remove_var("TERM_SESSION_ID");
    }
    let store = Store::builder(folder.join("state.json"))
        .lock(timed_store::LockPolicy::Wait(LONG))
        .open()
        .unwrap();
    let answer = match store.claim(s("x")).unwrap() {
        Claim::Granted(_) => format!("granted {}", store.session()),
        Claim::Busy { holder, .. } => format!("busy {holder}"),
    };
    fs::write(folder.join(format!("draft-{name}")), answer).unwrap();
    fs::rename(
        folder.join(format!("draft-{name}")),
        folder.join(format!("answer-{name}")),
    )
    .unwrap();
    std::thread::sleep(LONG * 10);
}

fn answer(place: &Place, name: &str) -> String {
    let path = place.folder.path().join(format!("answer-{name}"));
    wait_until("the process has claimed", || path.exists());
    fs::read_to_string(path).unwrap()
}

fn granted(answers: &[String]) -> usize {
    answers
        .iter()
        .filter(|answer| answer.starts_with("granted"))
        .count()
}

/// Process 1 of a container has parent 0.
#[test]
fn two_containers_are_two_sessions() {
    let place = Place::new();
    let options = unshare(&["--pid", "--fork", "--kill-child", "--mount-proc"]);
    let start = |name: &str| {
        let part = format!("claim-detected {name}");
        Worker::start_under("unshare", &options, &part, place.folder.path())
    };
    let _workers = [start("one"), start("two")];
    let answers = ["one", "two"].map(|name| answer(&place, name));
    assert_eq!(granted(&answers), 1, "{answers:?}");
    assert!(
        answers.iter().all(|answer| answer.contains(" 1@")),
        "{answers:?}"
    );
}

/// Both processes have parent 1, like daemons.
#[test]
fn two_detached_processes_are_two_sessions() {
    let place = Place::new();
    let program = std::env::current_exe().unwrap();
    let start = |name: &str| {
        format!(
            "TIMED_STORE_PART='claim-detected {name}' '{}' --exact worker::play &",
            program.display()
        )
    };
    let script = format!("{} {} wait", start("one"), start("two"));
    let mut shell = Command::new("unshare")
        .args(unshare(&[
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]))
        .args(["sh", "-c", &script])
        .env("TIMED_STORE_FOLDER", place.folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let answers = ["one", "two"].map(|name| answer(&place, name));
    shell.kill().unwrap();
    shell.wait().unwrap();
    assert_eq!(granted(&answers), 1, "{answers:?}");
}

/// A process of this test has the same parent as this test's part in the initial namespace: the
/// specified key.
#[test]
fn a_parent_above_one_in_the_initial_namespace_is_the_specified_key() {
    let is_initial = fs::read_link("/proc/self/ns/pid").unwrap();
    let is_initial = is_initial == Path::new("pid:[4026531836]");
    let place = Place::new();
    let _worker = Worker::start("claim-detected one", place.folder.path());
    let answer = answer(&place, "one");
    let key = std::process::id().to_string();
    if is_initial {
        assert_eq!(answer, format!("granted {key}"));
    } else {
        assert!(answer.starts_with(&format!("granted {key}@")), "{answer}");
    }
}

/// The part of a process in another time namespace, where this test looks as if it had started at
/// another time.
pub(crate) fn claim_in_another_time(folder: &Path) {
    let store = Store::builder(folder.join("state.json"))
        .session(SessionId::new("b").unwrap())
        .open()
        .unwrap();
    assert!(
        store.claim(s("x")).unwrap().granted().is_none(),
        "the owner is alive"
    );
}

#[test]
fn a_live_owner_in_another_time_namespace_keeps_its_value() {
    let place = Place::new();
    let store = Store::builder(place.path())
        .session(SessionId::new("a").unwrap())
        .owner(OwnerProcess::current())
        .open()
        .unwrap();
    assert!(store.claim(s("x")).unwrap().granted().is_some());
    let options = unshare(&["--time", "--boottime", "100000", "--fork", "--kill-child"]);
    let mut worker = Worker::start_under("unshare", &options, "claim-in-time", place.folder.path());
    assert!(worker.wait().success(), "see above");
}

/// The part of a process that sees the folder as read-only.
pub(crate) fn read_only(folder: &Path) {
    let store = Store::builder(folder.join("state.json"))
        .session(SessionId::new("a").unwrap())
        .open()
        .unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    assert_eq!(store.entries().unwrap().iter().count(), 1);
    assert!(
        store
            .validate(store.entries().unwrap().mine().unwrap().token().unwrap())
            .unwrap()
    );
    for result in [store.store(&s("y")), store.claim(s("y")).map(|_| ())] {
        match result.unwrap_err() {
            Error::Io { source, .. } => {
                assert_eq!(source.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_store_on_a_read_only_file_system_can_be_read() {
    let place = Place::new();
    let store = Store::builder(place.path())
        .session(SessionId::new("a").unwrap())
        .open()
        .unwrap();
    assert!(store.claim(s("x")).unwrap().granted().is_some());
    let check = || {
        let folder = place.folder.path().to_str().unwrap();
        let mount = format!(
            "mount --bind '{folder}' '{folder}' && mount -o remount,bind,ro '{folder}' && exec \"$0\" \"$@\""
        );
        let mut options = unshare(&["--mount"]);
        options.extend(["sh", "-c", &mount]);
        let mut worker = Worker::start_under("unshare", &options, "read-only", place.folder.path());
        assert!(worker.wait().success(), "see above");
    };
    check();
    // The file of a tool that knows no lock file.
    fs::remove_file(place.lock_file()).unwrap();
    check();
}

/// A container that has the folder under another path uses the same lock.
#[test]
fn a_bind_mount_is_the_same_store() {
    let place = Place::new();
    let other = tempfile::tempdir().unwrap();
    let (here, there) = (place.folder.path().display(), other.path().display());
    let mount = format!("mount --bind '{here}' '{there}' && exec \"$0\" \"$@\"");
    let mut options = unshare(&["--mount"]);
    options.extend(["sh", "-c", &mount]);
    let mut worker = Worker::start_under("unshare", &options, "hold", other.path());
    let locked = place.folder.path().join("locked");
    wait_until("the other process has the lock", || locked.exists());
    assert!(place.store("a").store(&s("x")).unwrap_err().is_locked());
    worker.kill();
    place.store("a").store(&s("x")).unwrap();
}
