//! Files that are refused, and failures of files, folders and disks.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use timed_store::{Error, SessionId};

use crate::support::{Place, START, Store, s, write_private};
use crate::worker::Worker;
#[cfg(target_os = "linux")]
use crate::worker::unshare;

const NOBODY: u32 = 65534;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs one of the checks below in a process of its own, as a user without root's rights: no
/// permission stops root, and the check would prove nothing.
fn as_a_user(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    if is_root() {
        std::os::unix::fs::chown(folder.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    }
    let status = Worker::start(&format!("unprivileged {name}"), folder.path()).wait();
    assert!(status.success(), "{name} as a user: see above");
}

/// The part of the process that gives up root.
pub(crate) fn unprivileged(folder: &Path, name: &str) {
    if is_root() {
        // SAFETY: plain system calls; no other thread depends on the user id.
        unsafe {
            assert_eq!(libc::setgroups(0, std::ptr::null()), 0);
            assert_eq!(libc::setgid(NOBODY), 0);
            assert_eq!(libc::setuid(NOBODY), 0);
        }
    }
    assert!(!is_root());
    check(folder, name);
}

fn check(folder: &Path, name: &str) {
    match name {
        "unreadable-file" => unreadable_file(folder),
        "unwritable-folder" => unwritable_folder(folder),
        "unsearchable-folder" => unsearchable_folder(folder),
        "foreign-file" => foreign_file(folder),
        "full-disk" => full_disk(folder),
        other => panic!("no check `{other}`"),
    }
}

fn open(folder: &Path) -> Store {
    Store::builder(folder.join("state.json"))
        .session(SessionId::new("a").unwrap())
        .open()
        .unwrap()
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Checks that all operations fail in the same way.
#[track_caller]
fn all_fail(store: &Store, is_right: impl Fn(&Error) -> bool) {
    for result in [
        store.restore().map(|_| ()),
        store.get_other_entries().map(|_| ()),
        store.store(&s("new")),
        store.remove().map(|_| ()),
        store.refresh().map(|_| ()),
        store.claim(s("new")).map(|_| ()),
        store.transaction(|_| ()),
    ] {
        let error = result.unwrap_err();
        assert!(is_right(&error), "{error:?}");
        assert!(error.to_string().contains("state.json"), "{error}");
    }
}

fn is_denied(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
}

fn is_refused_for(why: &str) -> impl Fn(&Error) -> bool {
    move |error| matches!(error, Error::NotPrivate { reason, .. } if reason.contains(why))
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_and_not_empty() {
    as_a_user("unreadable-file");
}

fn unreadable_file(folder: &Path) {
    let (store, path) = (open(folder), folder.join("state.json"));
    store.store(&s("x")).unwrap();
    set_mode(&path, 0o000);
    all_fail(&store, is_denied);
    set_mode(&path, 0o600);
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn an_unwritable_folder_is_an_error_and_changes_nothing() {
    as_a_user("unwritable-folder");
}

fn unwritable_folder(folder: &Path) {
    let (store, path) = (open(folder), folder.join("state.json"));
    set_mode(folder, 0o500);
    let error = store.store(&s("x")).unwrap_err();
    assert!(is_denied(&error), "{error:?}");
    assert_eq!(store.restore().unwrap(), None);
    set_mode(folder, 0o700);
    store.store(&s("x")).unwrap();
    let before = fs::read(&path).unwrap();
    set_mode(folder, 0o500);
    assert_eq!(
        store.restore().unwrap(),
        Some(s("x")),
        "reading needs no new file"
    );
    let error = store.store(&s("y")).unwrap_err();
    assert!(is_denied(&error), "{error:?}");
    assert_eq!(fs::read(&path).unwrap(), before);
    set_mode(folder, 0o700);
    store.store(&s("y")).unwrap();
}

#[test]
fn a_folder_that_cannot_be_searched_is_an_error_and_not_a_missing_file() {
    as_a_user("unsearchable-folder");
}

fn unsearchable_folder(folder: &Path) {
    let store = open(folder);
    store.store(&s("x")).unwrap();
    set_mode(folder, 0o600);
    all_fail(&store, is_denied);
    set_mode(folder, 0o700);
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_full_disk_is_an_error_and_changes_nothing() {
    as_a_user("full-disk");
}

/// A limit on the size of files makes larger writes fail like a full disk does, without a file
/// system of its own.
fn full_disk(folder: &Path) {
    let (store, path) = (open(folder), folder.join("state.json"));
    store.store(&s("x")).unwrap();
    let before = fs::read(&path).unwrap();
    // SAFETY: plain system calls. Ignored, the signal becomes the error EFBIG.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let old = rustix::process::getrlimit(rustix::process::Resource::Fsize);
    let limit = rustix::process::Rlimit {
        current: Some(4096),
        ..old
    };
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let error = store.store(&"y".repeat(10_000)).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Io {
                action: "write",
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(fs::read(&path).unwrap(), before);
    assert!(!folder.join("state.json.flock-next").exists());

    // A corrupt file that cannot be replaced stays, and repeated attempts leave no copies of it.
    write_private(&path, b"corrupt");
    for _ in 0..2 {
        store.store(&"y".repeat(10_000)).unwrap_err();
    }
    assert_eq!(fs::read(&path).unwrap(), b"corrupt");
    let names = fs::read_dir(folder).unwrap();
    let mut names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(names.find(|name| name.contains(".corrupt-")), None);

    // A corrupt file that cannot be copied is not replaced.
    let corrupt = "z".repeat(4000) + &"z".repeat(4000);
    rustix::process::setrlimit(rustix::process::Resource::Fsize, old).unwrap();
    write_private(&path, corrupt.as_bytes());
    rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
    let error = store.store(&s("y")).unwrap_err();
    assert!(error.to_string().contains(".corrupt-"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), corrupt);
    assert_eq!(store.restore().unwrap(), None, "a reader gets its answer");

    rustix::process::setrlimit(rustix::process::Resource::Fsize, old).unwrap();
    store.store(&s("y")).unwrap();
    assert_eq!(store.restore().unwrap(), Some(s("y")));
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_of_another_user_is_refused() {
    if !is_root() {
        return in_a_namespace("foreign-file-in-namespace");
    }
    as_a_user("foreign-file");
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    for name in ["state.json", "state.json.flock"] {
        let path = place.folder.path().join(name);
        std::os::unix::fs::chown(&path, Some(NOBODY), None).unwrap();
        all_fail(&store, is_refused_for("another user"));
        std::os::unix::fs::chown(&path, Some(0), None).unwrap();
    }
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

/// Runs a check as root of a user namespace, which may mount. A user cannot create a file of
/// another user, but can mount one in its place.
#[cfg(target_os = "linux")]
fn in_a_namespace(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let options = unshare(&["--mount"]);
    let status = Worker::start_under("unshare", &options, name, folder.path()).wait();
    assert!(status.success(), "{name}: see above");
}

#[cfg(target_os = "linux")]
pub(crate) fn foreign_file_in_namespace(folder: &Path) {
    let store = open(folder);
    store.store(&s("x")).unwrap();
    for name in ["state.json", "state.json.flock"] {
        let mount = |program: &str, args: &[&str]| {
            let path = folder.join(name);
            let done = std::process::Command::new(program)
                .args(args)
                .arg(path)
                .status();
            assert!(done.unwrap().success(), "{program} {args:?}");
        };
        mount("mount", &["--bind", "/etc/passwd"]);
        all_fail(&store, is_refused_for("another user"));
        mount("umount", &[]);
    }
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

/// A link to a file of root that the user cannot open: the link is the reason, not the permission.
fn foreign_file(folder: &Path) {
    let store = open(folder);
    store.store(&s("x")).unwrap();
    fs::remove_file(folder.join("state.json")).unwrap();
    symlink("/etc/shadow", folder.join("state.json")).unwrap();
    all_fail(&store, is_refused_for("symbolic link"));
}

#[test]
fn symbolic_links_are_refused_and_not_followed() {
    let place = Place::new();
    let store = place.store("a");
    let target = place.folder.path().join("target");
    for name in ["state.json", "state.json.flock"] {
        let link = place.folder.path().join(name);
        let _ = fs::remove_file(&link);
        for exists in [false, true] {
            if exists {
                write_private(&target, b"precious");
            }
            symlink(&target, &link).unwrap();
            all_fail(&store, is_refused_for("symbolic link"));
            fs::remove_file(&link).unwrap();
        }
        assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
        fs::remove_file(&target).unwrap();
    }
    // A link in place of the next version is removed, never written through.
    write_private(&target, b"precious");
    symlink(&target, place.folder.path().join("state.json.flock-next")).unwrap();
    store.store(&s("x")).unwrap();
    assert_eq!(fs::read_to_string(&target).unwrap(), "precious");
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

/// Some systems allow other users to give our files a second name in a shared folder. A write
/// through that name would change the file. The lock file is written by claims only.
#[test]
fn hard_links_are_refused_and_stay_unchanged() {
    let place = Place::new();
    let store = place.store("a");
    let precious = place.folder.path().join("precious");
    let check = |link: &Path, operations: &dyn Fn()| {
        write_private(&precious, b"precious");
        set_mode(&precious, 0o644);
        let _ = fs::remove_file(link);
        fs::hard_link(&precious, link).unwrap();
        operations();
        assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
        assert_eq!(mode(&precious), 0o644);
        fs::remove_file(link).unwrap();
    };
    check(&place.path(), &|| {
        all_fail(&store, is_refused_for("hard link"));
    });
    check(&place.lock_file(), &|| {
        let error = store.claim(s("x")).unwrap_err();
        assert!(is_refused_for("hard link")(&error), "{error:?}");
    });
    store.store(&s("x")).unwrap();
}

#[test]
fn created_files_are_private_and_modes_stay_unchanged() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let modes = || (mode(&place.path()), mode(&place.lock_file()));
    assert_eq!(modes(), (0o600, 0o600));
    for readable in [0o644, 0o640] {
        set_mode(&place.path(), readable);
        set_mode(&place.lock_file(), readable);
        assert_eq!(store.restore().unwrap(), Some(s("x")));
        assert_eq!(modes(), (readable, readable));
    }
    store.store(&s("y")).unwrap();
    assert_eq!(modes(), (0o600, 0o640), "a write makes a new data file");
    set_mode(&place.lock_file(), 0o600);
    place.write("nonsense");
    store.store(&s("x")).unwrap();
    for name in place.files() {
        assert_eq!(mode(&place.folder.path().join(&name)), 0o600, "{name}");
    }
}

#[test]
fn files_that_group_or_others_can_write_to_are_refused() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    for path in [place.path(), place.lock_file()] {
        for mode in [0o660, 0o606] {
            set_mode(&path, mode);
            all_fail(&store, is_refused_for("group or others can write"));
        }
        set_mode(&path, 0o600);
    }
    assert_eq!(store.restore().unwrap(), Some(s("x")));
}

#[test]
fn a_read_only_file_is_read_and_not_changed() {
    let place = Place::new();
    let store = place.store("a");
    store.store(&s("x")).unwrap();
    let before = place.text();
    set_mode(&place.path(), 0o400);
    assert_eq!(store.restore().unwrap(), Some(s("x")));
    for result in [
        store.store(&s("y")),
        store.remove().map(|_| ()),
        store.claim(s("y")).map(|_| ()),
    ] {
        let error = result.unwrap_err();
        assert!(matches!(error, Error::ReadOnly { .. }), "{error:?}");
    }
    place
        .clock
        .advance(std::time::Duration::from_secs(5 * 3600));
    assert_eq!(store.restore().unwrap(), None, "expired, but not removed");
    assert_eq!(place.text(), before);
    assert_eq!(mode(&place.path()), 0o400);
}

#[test]
fn folders_and_pipes_are_refused() {
    let place = Place::new();
    let store = place.store("a");
    fs::create_dir(place.path()).unwrap();
    all_fail(&store, is_refused_for("not a regular file"));
    fs::remove_dir(place.path()).unwrap();
    let pipe = std::process::Command::new("mkfifo")
        .arg(place.path())
        .status();
    assert!(pipe.unwrap().success(), "mkfifo is part of every Unix");
    all_fail(&store, is_refused_for("not a regular file"));
}

#[test]
fn a_relative_path_is_made_absolute_when_the_store_is_opened() {
    let store = Store::open("relative.json").unwrap();
    assert_eq!(
        store.path(),
        std::env::current_dir().unwrap().join("relative.json")
    );
}

#[test]
fn the_specified_place_is_in_the_folder_for_temporary_files() {
    let store = Store::builder_in_temp("coeiroink-operators")
        .open()
        .unwrap();
    let name = store.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(store.path().parent(), Some(std::env::temp_dir().as_path()));
    assert!(
        name.starts_with("coeiroink-operators-") && name.ends_with(".json"),
        "{name}"
    );
    assert!(Store::builder_in_temp("../evil").open().is_err());
}

/// The original tool knows no lock file.
#[test]
fn an_existing_file_without_a_lock_file_is_read() {
    let place = Place::new();
    place.write(&format!(
        r#"{{"storage":{{"a":{{"data":"x","updated_at":"{START}"}}}}}}"#
    ));
    assert_eq!(place.store("a").restore().unwrap(), Some(s("x")));
    assert_eq!(fs::metadata(place.path()).unwrap().nlink(), 1);
}
