//! The command line of bubblewrap. Does no I/O.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::mounts::{Access, Mounts};
use super::{INIT, INIT_NAME, SHELL};

const KERNEL_SETTINGS: [&str; 4] = ["/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus"];

/// The choices of a sandboxed launch that are not in its policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Enclosure {
    /// Whether the sandbox is killed as soon as the thread that started it has ended.
    pub(crate) dies_with_parent: bool,
    /// Whether the host is root.
    pub(crate) is_root: bool,
}

/// The arguments of `bwrap` in front of the agent's program.
pub(crate) fn enclose(mounts: &Mounts, enclosure: Enclosure) -> Vec<OsString> {
    let mut args = Args(Vec::new());
    args.words(&[
        "--unshare-user",
        "--unshare-pid",
        "--unshare-ipc",
        "--as-pid-1",
        // A terminal that is shared with the host could be typed into (TIOCSTI).
        "--new-session",
    ]);
    if enclosure.dies_with_parent {
        args.words(&["--die-with-parent"]);
    }
    if enclosure.is_root {
        // Root keeps its capabilities by default, and with them the right to undo the mounts. For
        // other users bubblewrap drops all; its setuid version refuses the option.
        args.words(&["--cap-drop", "ALL"]);
    }
    args.mounts(mounts, enclosure);
    args.paths("--chdir", [&mounts.folder]);
    args.words(&["--", SHELL, "-c", INIT, INIT_NAME]);
    args.0
}

struct Args(Vec<OsString>);

impl Args {
    fn words(&mut self, words: &[&str]) {
        self.0.extend(words.iter().map(OsString::from));
    }

    fn paths<'a, P: AsRef<OsStr> + 'a + ?Sized, const N: usize>(
        &mut self,
        option: &str,
        paths: [&'a P; N],
    ) {
        self.words(&[option]);
        self.0.extend(paths.map(|path| path.as_ref().to_owned()));
    }

    fn mounts(&mut self, mounts: &Mounts, enclosure: Enclosure) {
        if mounts.read_all {
            self.words(&["--ro-bind", "/", "/"]);
        }
        self.words(&["--dev", "/dev", "--proc", "/proc"]);
        if enclosure.is_root {
            // The settings of the kernel belong to user 0, inside and outside, and need no
            // capability. bubblewrap covers them only if it may write to their folder, which it may
            // not in a user namespace. Not for other users: they cannot write to them, and the kernel
            // refuses another /proc below a covered one, and with it a sandbox of the agent's own.
            for settings in KERNEL_SETTINGS {
                self.words(&["--ro-bind-try", settings, settings]);
            }
            self.words(&["--remount-ro", "/proc"]);
        }
        // From the root downwards: a mount covers all that was mounted below it before.
        let mut rules: Vec<_> = mounts.rules.iter().collect();
        rules.sort_by_key(|(path, _)| path.components().count());
        for (path, access) in &rules {
            match access {
                Access::Write => self.paths("--bind", [path, path]),
                Access::Read => self.paths("--ro-bind", [path, path]),
                Access::HiddenFolder | Access::Scratch => self.paths("--tmpfs", [path]),
                // A device file on a mount without devices: it cannot be opened.
                Access::HiddenFile => self.paths("--ro-bind", [Path::new("/dev/null"), path]),
            }
        }
        for (link, target) in &mounts.links {
            // Inside a mount, the link of the machine is there.
            if !rules.iter().any(|(path, _)| link.starts_with(path)) {
                self.paths("--symlink", [target, link]);
            }
        }
        // Last: the folders for deeper mounts are created in them.
        for (path, access) in &rules {
            if *access == &Access::HiddenFolder {
                self.paths("--remount-ro", [path]);
            }
        }
        if !mounts.read_all {
            self.words(&["--remount-ro", "/"]);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn args(read_all: bool, rules: &[(&str, Access)], links: &[(&str, &str)]) -> String {
        let mounts = Mounts {
            read_all,
            rules: BTreeMap::from_iter(rules.iter().map(|(path, access)| (path.into(), *access))),
            links: links.iter().map(|(a, b)| (a.into(), b.into())).collect(),
            folder: "/w".into(),
        };
        let enclosure = Enclosure {
            dies_with_parent: false,
            is_root: false,
        };
        let args = enclose(&mounts, enclosure);
        let args: Vec<_> = args.iter().map(|arg| arg.to_str().unwrap()).collect();
        let from = args.iter().position(|arg| *arg == "--proc").unwrap();
        let to = args.iter().position(|arg| *arg == "--chdir").unwrap();
        args[from + 2..to].join(" ")
    }

    #[test]
    fn mounts_are_made_from_the_root_downwards() {
        assert_eq!(
            args(
                true,
                &[
                    ("/a/b/c", Access::Write),
                    ("/a/b", Access::HiddenFolder),
                    ("/a/b/c/d", Access::HiddenFile),
                    ("/tmp", Access::Scratch),
                    ("/z", Access::Write),
                ],
                &[],
            ),
            "--tmpfs /tmp --bind /z /z --tmpfs /a/b --bind /a/b/c /a/b/c \
             --ro-bind /dev/null /a/b/c/d --remount-ro /a/b"
        );
    }

    #[test]
    fn a_list_has_links_outside_of_its_mounts_and_a_root_that_is_read_only() {
        assert_eq!(
            args(
                false,
                &[("/usr", Access::Read), ("/w", Access::Write)],
                &[("/bin", "/usr/bin"), ("/usr/share/x", "/w/x")],
            ),
            "--ro-bind /usr /usr --bind /w /w --symlink /usr/bin /bin --remount-ro /"
        );
    }

    #[test]
    fn options_depend_on_the_host() {
        let mounts = Mounts {
            read_all: true,
            rules: BTreeMap::new(),
            links: Vec::new(),
            folder: "/w".into(),
        };
        let has = |dies_with_parent, is_root, word: &str| {
            let enclosure = Enclosure {
                dies_with_parent,
                is_root,
            };
            enclose(&mounts, enclosure).iter().any(|arg| arg == word)
        };
        assert!(has(true, false, "--die-with-parent") && !has(false, true, "--die-with-parent"));
        assert!(has(false, true, "--cap-drop") && !has(true, false, "--cap-drop"));
        assert!(has(false, true, "/proc/sys") && !has(true, false, "/proc/sys"));
    }
}
