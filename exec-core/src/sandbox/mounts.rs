//! From the paths of a sandbox to what each real path of the machine is inside of it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use super::{ReadAccess, SHELL, Sandbox};
use crate::Error;

/// Readable in every sandbox: the system's programs and libraries.
const SYSTEM: [&str; 7] = [
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32",
];
const SCRATCH: [&str; 2] = ["/tmp", "/var/tmp"];
/// Not for the agent to change, and with the exception of `/sys` replaced in the sandbox.
const KERNEL: [&str; 3] = ["/proc", "/dev", "/sys"];

/// The facts of a launch that the paths of a sandbox refer to.
pub(crate) struct AgentView<'a> {
    pub(crate) workspace: &'a Path,
    pub(crate) env: &'a BTreeMap<OsString, OsString>,
}

/// What a path is in the sandbox, with everything below it that has no rule of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    Write,
    Read,
    HiddenFolder,
    HiddenFile,
    /// An empty folder of the sandbox's own.
    Scratch,
}

/// Real paths with their access.
#[derive(Debug)]
pub(crate) struct Mounts {
    /// Whether a path without a rule is readable; otherwise it is not there.
    pub(super) read_all: bool,
    pub(super) rules: BTreeMap<PathBuf, Access>,
    /// Links to create (path, target): the way to a readable path that is not at its real place.
    pub(super) links: Vec<(PathBuf, PathBuf)>,
    /// The working directory of the agent.
    pub(super) folder: PathBuf,
}

/// A path of the sandbox that exists.
struct FoundPath {
    field: &'static str,
    /// As it was given, made absolute.
    given: PathBuf,
    real: PathBuf,
}

/// A path of `hide` that does not exist.
struct MissingPath {
    given: PathBuf,
    /// The deepest folder of the path that exists.
    folder: PathBuf,
    /// The path below `folder`.
    below: PathBuf,
    /// Whether the path was given with a `/` at its end.
    is_folder: bool,
}

impl Mounts {
    /// Creates the agent's own folders that do not exist, and hidden paths that it could create.
    pub(crate) fn resolve(sandbox: &Sandbox, view: &AgentView<'_>) -> Result<Self, Error> {
        let mut write = Vec::new();
        for path in &sandbox.write {
            write.push(view.find("write", path)?);
        }
        for folder in &sandbox.agent_folders {
            let path = folder.path(|name| view.variable(name));
            let given = view.expand("agent_folders", &path)?;
            create_private(&given)?;
            write.push(view.find("agent_folders", &path)?);
        }
        let mut read = Vec::new();
        if let ReadAccess::Only(paths) = &sandbox.read {
            for path in paths {
                read.push(view.find("read", path)?);
            }
        }
        let mut hide = Vec::new();
        let mut missing = Vec::new();
        for path in &sandbox.hide {
            match view.find_if_there("hide", path)? {
                Some(found) => hide.push(found),
                None => missing.push(MissingPath::new(path, view.expand("hide", path)?)?),
            }
        }
        for path in &write {
            view.check_writable(path)?;
        }
        for path in read.iter().chain(&hide) {
            if KERNEL[..2].iter().any(|own| path.real.starts_with(own)) {
                return Err(path.refused("the sandbox has a `/proc` and a `/dev` of its own"));
            }
        }
        for path in write.iter().chain(&read) {
            path.check_links(&write)?;
        }

        let mut mounts = Self {
            read_all: sandbox.read == ReadAccess::All,
            rules: BTreeMap::new(),
            links: Vec::new(),
            folder: view.workspace.to_owned(),
        };
        if !mounts.read_all {
            mounts.add_system();
        }
        mounts.add(&read, Access::Read);
        mounts.add(&write, Access::Write);
        for path in missing {
            // Elsewhere the agent cannot create it, or only in a folder of the sandbox's own.
            let access = mounts.access_of(&path.folder);
            if path.folder.is_dir() && matches!(access, Some((_, Access::Write))) {
                hide.push(path.create()?);
            }
        }
        for path in &hide {
            let access = match path.real.is_dir() {
                true => Access::HiddenFolder,
                false => Access::HiddenFile,
            };
            if let Some(Access::Write | Access::Read) =
                mounts.rules.insert(path.real.clone(), access)
            {
                let others = write.iter().chain(&read);
                let other = others.filter(|other| other.real == path.real);
                let fields: Vec<_> = other.map(|other| other.field).collect();
                if let Some(field) = fields.first() {
                    return Err(path.refused(&format!("it is in `{field}`, too")));
                }
            }
        }
        for scratch in SCRATCH {
            if let Ok(real) = Path::new(scratch).canonicalize()
                && real.is_dir()
            {
                mounts.rules.entry(real).or_insert(Access::Scratch);
            }
        }
        mounts.add_workspace(view)?;
        mounts.check_visible(Path::new(SHELL))?;
        Ok(mounts)
    }

    /// What is enforced, in the form of the request.
    pub(crate) fn enforced(&self) -> Sandbox {
        let with = |wanted: fn(&Access) -> bool| {
            let rules = self.rules.iter().filter(move |(_, access)| wanted(access));
            rules.map(|(path, _)| path.clone()).collect()
        };
        let hidden = |access: &Access| matches!(access, Access::HiddenFolder | Access::HiddenFile);
        Sandbox {
            write: with(|access| *access == Access::Write),
            read: match self.read_all {
                true => ReadAccess::All,
                false => ReadAccess::Only(with(|access| *access == Access::Read)),
            },
            hide: with(hidden),
            agent_folders: Vec::new(),
        }
    }

    /// Refuses a program that the agent's processes could not start.
    pub(crate) fn check_visible(&self, program: &Path) -> Result<(), Error> {
        let refused = |why: String| {
            let program = program.display();
            Err(Error::Sandbox {
                reason: format!("the program {program} is not visible in it: {why}"),
            })
        };
        let real = match program.canonicalize() {
            Ok(real) => real,
            Err(error) => return refused(error.to_string()),
        };
        match self.access_of(&real) {
            Some((_, Access::Write | Access::Read)) => Ok(()),
            None if self.read_all => Ok(()),
            None => refused(format!("add {} to `read`", real.display())),
            Some((path, Access::Scratch)) => refused(format!("{} is private", path.display())),
            Some((path, _)) => refused(format!("{} is hidden", path.display())),
        }
    }

    /// Whether the agent can change files below this path.
    pub(crate) fn is_writable(&self, path: &Path) -> bool {
        let real = path.canonicalize();
        let access = real
            .ok()
            .and_then(|real| self.access_of(&real).map(|(_, access)| access));
        matches!(access, Some(Access::Write))
    }

    /// The rule that decides over a real path.
    fn access_of(&self, real: &Path) -> Option<(&Path, Access)> {
        real.ancestors()
            .find_map(|path| self.rules.get_key_value(path))
            .map(|(path, access)| (path.as_path(), *access))
    }

    fn add(&mut self, paths: &[FoundPath], access: Access) {
        for path in paths {
            self.rules.insert(path.real.clone(), access);
            self.add_link(&path.given, &path.real);
        }
    }

    fn add_system(&mut self) {
        for path in SYSTEM.map(Path::new) {
            if let Ok(real) = path.canonicalize() {
                self.add_link(path, &real);
                self.rules.insert(real, Access::Read);
            }
        }
    }

    /// Without a list, the links of the machine are there.
    fn add_link(&mut self, given: &Path, real: &Path) {
        if !self.read_all && given != real {
            self.links.push((given.to_owned(), real.to_owned()));
        }
    }

    /// The agent can always read its workspace, unless the workspace itself is to be hidden.
    fn add_workspace(&mut self, view: &AgentView<'_>) -> Result<(), Error> {
        let workspace = view.workspace;
        let real = workspace
            .canonicalize()
            .map_err(Error::io("use the workspace", workspace))?;
        match self.access_of(&real) {
            Some((path, Access::HiddenFolder | Access::HiddenFile)) if path == real => {
                return Err(Error::Sandbox {
                    reason: format!("the workspace {} is in `hide`", real.display()),
                });
            }
            Some((_, Access::Write | Access::Read)) => {}
            None if self.read_all => {}
            _ => {
                self.rules.insert(real.clone(), Access::Read);
            }
        }
        // The way to it may lead through a link that is not there.
        if !self.read_all || self.access_of(workspace) != self.access_of(&real) {
            self.folder = real;
        }
        Ok(())
    }
}

impl<'a> AgentView<'a> {
    fn variable(&self, name: &str) -> Option<&'a OsStr> {
        self.env.get(OsStr::new(name)).map(OsString::as_os_str)
    }

    fn home(&self) -> Option<&'a Path> {
        let home = self.variable("HOME").map(Path::new);
        home.filter(|home| home.is_absolute())
    }

    /// Makes a path absolute. `~` and `{workspace}` count as the first component only.
    fn expand(&self, field: &'static str, path: &Path) -> Result<PathBuf, Error> {
        let mut components = path.components();
        let base = match components.next() {
            Some(Component::RootDir) => return Ok(path.to_owned()),
            Some(Component::Normal(first)) if first == "{workspace}" => self.workspace,
            Some(Component::Normal(first)) if first == "~" => self
                .home()
                .ok_or_else(|| refused(field, path, "the agent's environment has no HOME"))?,
            _ => {
                let reason = "it is a relative path; begin it with `/`, `~/` or `{workspace}/`";
                return Err(refused(field, path, reason));
            }
        };
        match components.as_path() {
            below if below.as_os_str().is_empty() => Ok(base.to_owned()),
            below => Ok(base.join(below)),
        }
    }

    fn find_if_there(&self, field: &'static str, path: &Path) -> Result<Option<FoundPath>, Error> {
        let given = self.expand(field, path)?;
        match given.canonicalize() {
            Ok(real) => Ok(Some(FoundPath { field, given, real })),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(refused(field, &given, &error.to_string())),
        }
    }

    fn find(&self, field: &'static str, path: &Path) -> Result<FoundPath, Error> {
        match self.find_if_there(field, path)? {
            Some(found) => Ok(found),
            None => Err(refused(field, path, "it does not exist; create it first")),
        }
    }

    fn check_writable(&self, path: &FoundPath) -> Result<(), Error> {
        let home = self.home().and_then(|home| home.canonicalize().ok());
        if path.real == Path::new("/") {
            return Err(path.refused("the whole file system would be writable"));
        }
        if home.is_some_and(|home| home.starts_with(&path.real)) {
            return Err(path.refused("the whole home folder would be writable; use a folder in it"));
        }
        if KERNEL.iter().any(|own| path.real.starts_with(own)) {
            return Err(path.refused("it belongs to the kernel"));
        }
        Ok(())
    }
}

impl MissingPath {
    fn new(path: &Path, given: PathBuf) -> Result<Self, Error> {
        let is_folder = path.as_os_str().as_encoded_bytes().ends_with(b"/");
        let exists = |path: &Path| path.symlink_metadata().is_ok();
        let folder = given.ancestors().skip(1).find(|path| exists(path));
        let folder = folder.unwrap_or(Path::new("/"));
        let below = given.strip_prefix(folder).unwrap_or(&given).to_owned();
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        // The file behind a link, or behind `..` of a folder that is created later, is another one.
        if exists(&given) || !below.components().all(is_plain) {
            return Err(refused("hide", &given, "it leads to a missing file"));
        }
        let folder = folder.canonicalize();
        let folder = folder.map_err(|error| refused("hide", &given, &error.to_string()))?;
        Ok(Self {
            given,
            folder,
            below,
            is_folder,
        })
    }

    /// Something must be there to be covered: an empty file, or a folder if the path ends in `/`. It
    /// stays when the agent ends, because another sandbox may cover it, too.
    fn create(self) -> Result<FoundPath, Error> {
        let real = self.folder.join(&self.below);
        let created = match real.parent() {
            Some(parent) if !self.is_folder => {
                create_private(parent)?;
                let mut options = OpenOptions::new();
                // Fails if the agent of another sandbox has just created a link here.
                let options = options.write(true).create_new(true).mode(0o600);
                options.open(&real).map(drop)
            }
            _ => return create_private(&real).map(|()| self.found(real)),
        };
        match created {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Error::io("create", &real)(error))
            }
            // Another launch has created it.
            _ if real.symlink_metadata().is_ok_and(|it| !it.is_symlink()) => Ok(self.found(real)),
            _ => Err(refused("hide", &real, "it is a link")),
        }
    }

    fn found(self, real: PathBuf) -> FoundPath {
        FoundPath {
            field: "hide",
            given: self.given,
            real,
        }
    }
}

impl FoundPath {
    /// An agent can create links in a folder that it may change. A later launch must not follow
    /// them: `{workspace}/out` would become a way to make any folder writable.
    fn check_links(&self, write: &[Self]) -> Result<(), Error> {
        for folder in self.given.ancestors().skip(1) {
            let Ok(real) = folder.canonicalize() else {
                continue;
            };
            let around = write.iter().find(|around| {
                real.starts_with(&around.real) && !self.real.starts_with(&around.real)
            });
            if let Some(around) = around {
                let around = around.real.display();
                let reason = format!("a link in the writable folder {around} leads out of it");
                return Err(self.refused(&reason));
            }
        }
        Ok(())
    }

    fn refused(&self, reason: &str) -> Error {
        refused(self.field, &self.given, reason)
    }
}

fn refused(field: &str, path: &Path, reason: &str) -> Error {
    Error::Sandbox {
        reason: format!("`{field}` has {path:?}: {reason}"),
    }
}

fn is_missing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn create_private(folder: &Path) -> Result<(), Error> {
    if folder.exists() {
        return Ok(());
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(Error::io("create", folder))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::AgentFolder;

    /// A machine with `home/me/work` (the workspace), `home/me/.ssh/id` and `data`.
    struct Machine {
        root: PathBuf,
        env: BTreeMap<OsString, OsString>,
        workspace: PathBuf,
        _dir: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            // In a folder that is private in every sandbox.
            let dir = tempfile::tempdir_in("/tmp").unwrap();
            let root = dir.path().canonicalize().unwrap();
            for folder in ["home/me/work/sub", "home/me/.ssh", "data"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            fs::write(root.join("home/me/.ssh/id"), "secret").unwrap();
            fs::write(root.join("home/me/work/.env"), "secret").unwrap();
            let home = root.join("home/me");
            Self {
                workspace: home.join("work"),
                env: BTreeMap::from([("HOME".into(), home.into_os_string())]),
                root,
                _dir: dir,
            }
        }

        fn resolve(&self, sandbox: &Sandbox) -> Result<Mounts, Error> {
            let view = AgentView {
                workspace: &self.workspace,
                env: &self.env,
            };
            Mounts::resolve(sandbox, &view)
        }

        fn path(&self, below: &str) -> PathBuf {
            self.root.join(below)
        }

        #[track_caller]
        fn check(&self, sandbox: &Sandbox, expected: &[(&str, Access)]) {
            let mounts = self.resolve(sandbox).unwrap();
            let rules: Vec<_> = mounts
                .rules
                .iter()
                .filter_map(|(path, access)| {
                    let below = path.strip_prefix(&self.root).ok()?;
                    Some((below.to_str()?, *access))
                })
                .collect();
            assert_eq!(rules, expected);
        }

        #[track_caller]
        fn refuses(&self, sandbox: &Sandbox, part: &str) {
            let error = self.resolve(sandbox).unwrap_err();
            assert!(matches!(error, Error::Sandbox { .. }), "{error:?}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn the_deeper_path_decides() {
        let machine = Machine::new();
        let work = ("home/me/work", Access::Write);
        machine.check(&Sandbox::new(), &[work]);
        machine.check(
            &Sandbox::new().hide("{workspace}/.env").hide("~/.ssh"),
            &[
                ("home/me/.ssh", Access::HiddenFolder),
                work,
                ("home/me/work/.env", Access::HiddenFile),
            ],
        );
        machine.check(
            &Sandbox::new().hide("~"),
            &[("home/me", Access::HiddenFolder), work],
        );
        // A workspace that no list names is readable.
        machine.check(
            &Sandbox::read_only_workspace().hide("~"),
            &[
                ("home/me", Access::HiddenFolder),
                ("home/me/work", Access::Read),
            ],
        );
        machine.check(
            &Sandbox::read_only_workspace().read_only(["~/.ssh"]),
            &[
                ("home/me/.ssh", Access::Read),
                ("home/me/work", Access::Read),
            ],
        );
        machine.check(
            &Sandbox::new().read_only(["{workspace}", "{workspace}/sub"]),
            &[work, ("home/me/work/sub", Access::Read)],
        );
    }

    #[test]
    fn hostile_paths_are_refused() {
        let machine = Machine::new();
        let new = Sandbox::new;
        machine.refuses(&new().write("src"), "relative path");
        machine.refuses(&new().write(""), "relative path");
        machine.refuses(&new().write("./src"), "relative path");
        machine.refuses(&new().write("../x"), "relative path");
        machine.refuses(&new().write("{workspaces}/x"), "relative path");
        machine.refuses(&new().hide(".ssh"), "relative path");
        machine.refuses(&new().write("~/missing"), "does not exist");
        machine.refuses(&new().read_only(["/missing"]), "does not exist");
        machine.refuses(&new().write("/"), "whole file system");
        machine.refuses(&new().write("~"), "whole home folder");
        machine.refuses(&new().write("~/.."), "whole home folder");
        machine.refuses(&new().write("~/work/../../.."), "whole home folder");
        machine.refuses(&new().write("/proc/sys"), "belongs to the kernel");
        machine.refuses(&new().write("/dev"), "belongs to the kernel");
        machine.refuses(&new().read_only(["/proc"]), "of its own");
        machine.refuses(&new().hide("/dev"), "of its own");
        machine.refuses(&new().hide("{workspace}"), "it is in `write`, too");
        let listed = Sandbox::read_only_workspace().read_only(["~/.ssh"]);
        machine.refuses(&listed.hide("~/.ssh"), "it is in `read`, too");
        machine.refuses(
            &Sandbox::read_only_workspace().hide("{workspace}"),
            "is in `hide`",
        );
        machine.refuses(&new().hide("/usr"), "is not visible in it");
    }

    #[test]
    fn a_workspace_that_is_the_root_or_the_home_folder_is_refused() {
        let mut machine = Machine::new();
        machine.workspace = "/".into();
        machine.refuses(&Sandbox::new(), "whole file system");
        machine.workspace = machine.path("home/me");
        machine.refuses(&Sandbox::new(), "whole home folder");
        machine.workspace = machine.path("home");
        machine.refuses(&Sandbox::new(), "whole home folder");
        machine.check(
            &Sandbox::read_only_workspace().hide("~/.ssh"),
            &[
                ("home", Access::Read),
                ("home/me/.ssh", Access::HiddenFolder),
            ],
        );
    }

    #[test]
    fn a_path_that_does_not_exist_is_hidden_where_the_agent_could_create_it() {
        use std::os::unix::fs::PermissionsExt;

        let machine = Machine::new();
        let work = ("home/me/work", Access::Write);
        let sandbox = Sandbox::new().hide("~/.aws").hide("~/.ssh/id/below");
        machine.check(&sandbox, &[work]);
        assert!(!machine.path("home/me/.aws").exists());

        let sandbox = Sandbox::new()
            .hide("{workspace}/a/b/key")
            .hide("{workspace}/keys/");
        let expected = [
            work,
            ("home/me/work/a/b/key", Access::HiddenFile),
            ("home/me/work/keys", Access::HiddenFolder),
        ];
        machine.check(&sandbox, &expected);
        let mode = |below: &str| {
            let metadata = fs::metadata(machine.path(below)).unwrap();
            metadata.permissions().mode() & 0o777
        };
        assert_eq!(mode("home/me/work/a/b/key"), 0o600);
        assert_eq!(mode("home/me/work/keys"), 0o700);
        // Again, now that they exist.
        machine.check(&sandbox, &expected);

        symlink(machine.path("data/none"), machine.workspace.join("link")).unwrap();
        let new = Sandbox::new;
        machine.refuses(&new().hide("{workspace}/link"), "leads to a missing file");
        machine.refuses(&new().hide("{workspace}/link/x"), "No such file");
        machine.refuses(
            &new().hide("{workspace}/none/../x"),
            "leads to a missing file",
        );
        assert!(!machine.path("data/none").exists());
    }

    #[test]
    fn links_are_followed_but_not_out_of_a_writable_folder() {
        let mut machine = Machine::new();
        let link = machine.path("link");
        symlink(&machine.workspace, &link).unwrap();
        let real = std::mem::replace(&mut machine.workspace, link);
        machine.check(&Sandbox::new(), &[("home/me/work", Access::Write)]);
        let mounts = machine
            .resolve(&Sandbox::new().read_only(["/etc"]))
            .unwrap();
        assert_eq!(mounts.folder, real);

        symlink(machine.path("data"), real.join("out")).unwrap();
        machine.refuses(&Sandbox::new().write("{workspace}/out"), "leads out of it");
        machine.refuses(&Sandbox::new().write(real.join("out")), "leads out of it");
        machine.refuses(
            &Sandbox::new().read_only(["{workspace}/out"]),
            "leads out of it",
        );
        symlink(real.join("sub"), real.join("in")).unwrap();
        machine.check(
            &Sandbox::new().write("{workspace}/in"),
            &[
                ("home/me/work", Access::Write),
                ("home/me/work/sub", Access::Write),
            ],
        );
        // An agent cannot change links outside of its writable folders, so they are followed.
        symlink(machine.path("data"), machine.path("home/me/data")).unwrap();
        machine.check(
            &Sandbox::new().write("~/data"),
            &[("data", Access::Write), ("home/me/work", Access::Write)],
        );
    }

    #[test]
    fn the_folders_of_the_agent_are_created_private() {
        use std::os::unix::fs::PermissionsExt;

        let mut machine = Machine::new();
        let folders = || {
            Sandbox::new()
                .agent_folder(AgentFolder::new("~/.agent").or_variable("AGENT_HOME"))
                .agent_folder(AgentFolder::new("~/.share/a").or_below("SHARE", "a"))
        };
        machine.check(
            &folders(),
            &[
                ("home/me/.agent", Access::Write),
                ("home/me/.share/a", Access::Write),
                ("home/me/work", Access::Write),
            ],
        );
        let mode = fs::metadata(machine.path("home/me/.agent")).unwrap();
        assert_eq!(mode.permissions().mode() & 0o777, 0o700);
        for (name, below) in [("AGENT_HOME", "data"), ("SHARE", "data/share")] {
            let value = machine.path(below).into_os_string();
            machine.env.insert(name.into(), value);
        }
        machine.check(
            &folders(),
            &[
                ("data", Access::Write),
                ("data/share/a", Access::Write),
                ("home/me/work", Access::Write),
            ],
        );
        let home = machine.path("home/me").into_os_string();
        machine.env.insert("AGENT_HOME".into(), home);
        machine.refuses(&folders(), "whole home folder");
        machine.env.remove(OsStr::new("HOME"));
        machine.env.remove(OsStr::new("AGENT_HOME"));
        machine.refuses(&folders(), "no HOME");
    }

    #[test]
    fn a_program_must_be_visible() {
        let machine = Machine::new();
        let program = machine.path("home/me/work/agent");
        let other = machine.path("data/agent");
        for path in [&program, &other] {
            fs::write(path, "").unwrap();
        }
        let mounts = machine.resolve(&Sandbox::new()).unwrap();
        mounts.check_visible(&program).unwrap();
        mounts.check_visible(Path::new("/bin/sh")).unwrap();
        let error = mounts.check_visible(&other).unwrap_err();
        assert!(error.to_string().contains("/tmp is private"), "{error}");
        let hidden = Sandbox::new().hide(machine.path("data"));
        let error = machine.resolve(&hidden).unwrap().check_visible(&other);
        assert!(error.unwrap_err().to_string().contains("is hidden"));
    }
}
