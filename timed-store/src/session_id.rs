use std::cmp::Ordering;
use std::ffi::OsString;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[cfg(feature = "redis")]
use crate::owner_process::boot_id;
use crate::owner_process::pid_namespace;
use crate::{Error, OwnerProcess};

/// The id of a terminal session: the session that an entry belongs to. Any other name of the
/// caller's choice serves as well.
///
/// All processes of one session share its entry. Two ids are equal if their texts are equal.
///
/// ```
/// use timed_store::SessionId;
///
/// let session = SessionId::new("terminal-1")?;
/// assert_eq!(session.as_str(), "terminal-1");
/// assert!(SessionId::new("").is_err());
///
/// // The terminal's session; each pane of tmux is a session.
/// let detected = SessionId::detect().with_tmux_pane();
/// # assert!(!detected.as_str().is_empty());
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SessionId {
    id: String,
    /// Set if the session is a process, and so ends with it.
    process: Option<OwnerProcess>,
    /// Detected, and so meaningful on this host only.
    #[cfg_attr(
        not(feature = "redis"),
        expect(dead_code, reason = "for stores on a server")
    )]
    is_detected: bool,
}

impl SessionId {
    /// The session of this process: `ITERM_SESSION_ID`, else `TERM_SESSION_ID`, else the id of the
    /// parent process. An empty variable counts as unset. The characters `:` and `-` of a variable
    /// become `_`, as in the original tool.
    ///
    /// If the parent id is 0 or 1, no parent stands for a terminal: the process itself is the session.
    /// Programs that another manager starts or adopts (`systemd --user`, a supervisor) have that
    /// manager as their parent, and share its session: give each an id of its own.
    ///
    /// Outside the initial pid namespace, for example in a container, the id ends with `@` and the
    /// namespace, because process ids are unique inside a namespace only.
    ///
    /// All panes of a tmux server inherit the variables of the terminal that started it; see
    /// [`with_tmux_pane`](Self::with_tmux_pane).
    #[must_use]
    pub fn detect() -> Self {
        Self::detect_from(&["ITERM_SESSION_ID", "TERM_SESSION_ID"])
    }

    /// Like [`detect`](Self::detect), with other environment variables; the first one that is set
    /// wins. Examples: `WEZTERM_PANE`, `KITTY_WINDOW_ID`.
    #[must_use]
    pub fn detect_from(variables: &[&str]) -> Self {
        Self::detect_in(
            variables,
            |name| std::env::var_os(name),
            std::os::unix::process::parent_id(),
        )
    }

    /// An id of the caller's choice.
    ///
    /// The character `#` is for the keys of slots (`session#slot`). The session `a#one` and the slot
    /// `one` of the session `a` are distinct holders, but [`Entries`](crate::Entries), `watch` and
    /// `get_other_entries` show only one of the two.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if it is empty.
    pub fn new(id: impl Into<String>) -> Result<Self, Error> {
        let id = id.into();
        if id.is_empty() {
            return Err(Error::Invalid {
                what: "session id",
                value: id,
                reason: "it is empty",
            });
        }
        Ok(Self::from_key(id))
    }

    /// The session of one process, named by its process id (outside the initial pid namespace with
    /// `@` and the namespace). Its entry is free as soon as the process has ended.
    #[must_use]
    pub fn of_process(process: OwnerProcess) -> Self {
        Self::of_process_in(pid_namespace(), process)
    }

    /// Adds tmux's `TMUX_PANE` to the id, so that each pane of one terminal is a session of its own.
    /// The id stays unchanged outside tmux, and for the session of a process, which already
    /// differs from pane to pane.
    #[must_use]
    pub fn with_tmux_pane(self) -> Self {
        self.with_pane(std::env::var_os("TMUX_PANE"))
    }

    /// The id as it is written in the file.
    pub fn as_str(&self) -> &str {
        &self.id
    }

    pub(crate) fn process(&self) -> Option<&OwnerProcess> {
        self.process.as_ref()
    }

    /// The id for a store that several hosts share: a detected id gets the name and the boot of this
    /// host.
    #[cfg(feature = "redis")]
    pub(crate) fn on_this_host(mut self) -> Self {
        if self.is_detected {
            let host = rustix::system::uname();
            let host = host.nodename().to_string_lossy();
            let boot = boot_id().and_then(|boot| boot.split('-').next());
            self.id = format!("{}@{host}-{}", self.id, boot.unwrap_or_default());
            self.is_detected = false;
        }
        self
    }

    /// A key of the file, where any text is a session.
    pub(crate) fn from_key(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            process: None,
            is_detected: false,
        }
    }

    fn of_process_in(namespace: Option<String>, process: OwnerProcess) -> Self {
        let pid = process.pid();
        Self {
            id: namespace.map_or_else(|| pid.to_string(), |name| format!("{pid}@{name}")),
            process: Some(process),
            is_detected: true,
        }
    }

    fn detect_in(
        variables: &[&str],
        lookup: impl Fn(&str) -> Option<OsString>,
        parent: u32,
    ) -> Self {
        let mut values = variables
            .iter()
            .filter_map(|name| lookup(name))
            .filter(|value| !value.is_empty());
        match values.next() {
            Some(value) => Self {
                is_detected: true,
                ..Self::from_key(value.to_string_lossy().replace([':', '-'], "_"))
            },
            // Parent 1 adopts detached processes, unless a subreaper (`systemd --user`) does, and
            // parent 0 is outside our pid namespace: all those processes would be one session.
            None if parent <= 1 => Self::of_process(OwnerProcess::current()),
            None => Self::of_process(OwnerProcess::observe(parent)),
        }
    }

    fn with_pane(mut self, pane: Option<OsString>) -> Self {
        if let Some(pane) = pane.filter(|pane| !pane.is_empty() && self.process.is_none()) {
            self.id = format!("{}:{}", self.id, pane.to_string_lossy());
        }
        self
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)
    }
}

impl FromStr for SessionId {
    type Err = Error;

    fn from_str(id: &str) -> Result<Self, Error> {
        Self::new(id)
    }
}

impl PartialEq for SessionId {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for SessionId {}

impl PartialOrd for SessionId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SessionId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.id.cmp(&other.id)
    }
}

impl Hash for SessionId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

impl Serialize for SessionId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.id)
    }
}

impl<'de> Deserialize<'de> for SessionId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let id = String::deserialize(deserializer)?;
        Self::new(id).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPECIFIED: &[&str] = &["ITERM_SESSION_ID", "TERM_SESSION_ID"];

    fn detect(environment: &[(&str, &str)]) -> SessionId {
        let lookup = |name: &str| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        };
        SessionId::detect_in(SPECIFIED, lookup, std::process::id())
    }

    /// The key of a process here; `tests/it/namespaces.rs` runs in other namespaces.
    fn key_of(pid: u32) -> String {
        pid_namespace().map_or_else(|| pid.to_string(), |name| format!("{pid}@{name}"))
    }

    #[track_caller]
    fn check(environment: &[(&str, &str)], expected: &str) {
        assert_eq!(detect(environment).as_str(), expected);
    }

    #[test]
    fn sources_have_the_specified_order() {
        let parent = key_of(std::process::id());
        check(&[("ITERM_SESSION_ID", "i"), ("TERM_SESSION_ID", "t")], "i");
        check(&[("TERM_SESSION_ID", "t")], "t");
        check(&[("ITERM_SESSION_ID", ""), ("TERM_SESSION_ID", "t")], "t");
        check(
            &[("ITERM_SESSION_ID", ""), ("TERM_SESSION_ID", "")],
            &parent,
        );
        check(&[], &parent);
    }

    #[test]
    fn detected_ids_are_mapped_as_the_original_tool_does() {
        check(
            &[("ITERM_SESSION_ID", "w0t0p0:8B5C-1D2E.x")],
            "w0t0p0_8B5C_1D2E.x",
        );
        check(&[("TERM_SESSION_ID", "é-1")], "é_1");
        assert_eq!(SessionId::new("w0:8B-1").unwrap().as_str(), "w0:8B-1");
    }

    #[test]
    fn a_detached_process_is_a_session_of_its_own() {
        for parent in [0, 1] {
            let session = SessionId::detect_in(SPECIFIED, |_| None, parent);
            assert_eq!(session.as_str(), key_of(std::process::id()));
            assert_eq!(session.process(), Some(&OwnerProcess::current()));
        }
    }

    #[test]
    fn the_same_process_id_in_another_namespace_is_another_session() {
        let process = || OwnerProcess::observe(4242);
        let of = |name: &str| SessionId::of_process_in(Some(name.to_owned()), process());
        let initial = SessionId::of_process_in(None, process());
        assert_eq!(initial.as_str(), "4242");
        assert_ne!(of("1-a"), initial);
        assert_ne!(of("1-a"), of("2-a"));
    }

    #[test]
    fn only_the_parent_fallback_is_tied_to_a_process() {
        assert!(detect(&[]).process().is_some());
        assert!(detect(&[("TERM_SESSION_ID", "4242")]).process().is_none());
        assert!(SessionId::new("4242").unwrap().process().is_none());
    }

    #[test]
    fn a_pane_is_added_to_a_terminal_session_only() {
        let terminal = SessionId::new("w0t0p0").unwrap();
        assert_eq!(
            terminal.clone().with_pane(Some("%3".into())).as_str(),
            "w0t0p0:%3"
        );
        assert_eq!(terminal.clone().with_pane(Some("".into())), terminal);
        assert_eq!(terminal.clone().with_pane(None), terminal);
        let process = detect(&[]);
        assert_eq!(process.clone().with_pane(Some("%3".into())), process);
    }

    #[test]
    fn an_empty_id_is_refused() {
        assert!(SessionId::new("").is_err());
        assert!("".parse::<SessionId>().is_err());
        assert!(serde_json::from_str::<SessionId>("\"\"").is_err());
    }
}
