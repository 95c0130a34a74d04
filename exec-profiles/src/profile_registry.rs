use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, RwLock};

use exec_core::{CommandConfig, Profile, ProfileSource};

use crate::builtin::profile_definitions;
use crate::launch::{ProfileOrigin, RegisteredProfile};
use crate::user::{FileContents, UserFile};
use crate::{
    EntryError, Error, LoadReport, ProfileConfig, ProfileDefinition, ProfileVariantConfig,
    UserProfile,
};

/// The profiles of an execution service: built in, registered in code, and from the user file.
///
/// A profile of the user file takes precedence over a profile with the same label.
///
/// A clone is a handle to the same registry. The registry can change while a service uses it: a
/// launch sees a change either completely or not at all, and a launch in progress keeps the profile
/// that it started with. The built-in profiles are created on first access.
///
/// ```
/// use exec_profiles::ProfileRegistry;
///
/// let registry = ProfileRegistry::new();
/// let plan = registry.get_command("claude-code", Some("plan")).unwrap();
/// assert_eq!(plan.binary, "npx");
/// assert!(plan.args.contains(&"--permission-mode=plan".to_owned()));
/// assert!(registry.get_profile("no-such-agent").is_none());
/// ```
#[derive(Clone)]
pub struct ProfileRegistry {
    shared: Arc<SharedRegistry>,
}

struct SharedRegistry {
    state: LazyLock<RwLock<RegistryState>>,
    /// Held during a change, file access included. Without it, a slow load could overwrite the
    /// result of a save that began later. Readers do not take it.
    change: Mutex<()>,
}

#[derive(Clone, Default)]
struct RegistryState {
    /// Profiles registered in code, the built-in ones included.
    definitions: BTreeMap<String, ProfileDefinition>,
    user_file: Option<UserFile>,
    /// The entries of the user file that could be read. Some are invalid with these definitions.
    user_entries: BTreeMap<String, UserProfile>,
    /// The entries of the user file that could not be read.
    read_errors: Vec<EntryError>,
    /// All invalid entries of the user file. Derived from the fields above by
    /// [`rebuild`](Self::rebuild), like `profiles`.
    user_errors: Vec<EntryError>,
    profiles: BTreeMap<String, Arc<RegisteredProfile>>,
}

impl ProfileRegistry {
    /// A registry with the built-in profiles.
    #[must_use]
    pub fn new() -> Self {
        Self::with_state(|| RegistryState::new(profile_definitions()))
    }

    /// A registry without profiles.
    #[must_use]
    pub fn empty() -> Self {
        Self::with_state(|| RegistryState::new(Vec::new()))
    }

    fn with_state(state: fn() -> RwLock<RegistryState>) -> Self {
        Self {
            shared: Arc::new(SharedRegistry {
                state: LazyLock::new(state),
                change: Mutex::new(()),
            }),
        }
    }

    /// The profile with this label.
    #[must_use]
    pub fn get_profile(&self, label: &str) -> Option<ProfileConfig> {
        Some(self.find(label)?.config.clone())
    }

    /// The variant of a profile, or `None` if the profile or the variant does not exist, or if no
    /// variant is given.
    #[must_use]
    pub fn get_variant(
        &self,
        label: &str,
        variant_label: Option<&str>,
    ) -> Option<ProfileVariantConfig> {
        self.find(label)?.config.variant(variant_label?).cloned()
    }

    /// The command of a profile or of its variant, as it is defined: `npx …`, even if the launch
    /// will start a native binary.
    ///
    /// As specified, an unknown variant gets the profile's own command. An execution service refuses
    /// an unknown variant before it asks for a command.
    #[must_use]
    pub fn get_command(&self, label: &str, variant_label: Option<&str>) -> Option<CommandConfig> {
        self.find(label)?.config.command(variant_label).cloned()
    }

    /// The labels of all profiles, in order.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        self.read(|state| state.profiles.keys().cloned().collect())
    }

    /// The valid entry of the user file with this label.
    #[must_use]
    pub fn user_profile(&self, label: &str) -> Option<UserProfile> {
        self.read(|state| match state.mistake(label) {
            Some(_) => None,
            None => state.user_entries.get(label).cloned(),
        })
    }

    /// Adds a profile, or replaces the profile with the same label.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`], or [`Error::Entry`] if an entry of the user file that changes the
    /// replaced profile would become invalid.
    pub fn register(&self, definition: ProfileDefinition) -> Result<(), Error> {
        definition.check()?;
        let _change = self.begin_change();
        let mut state = self.read(RegistryState::clone);
        state
            .definitions
            .insert(definition.label.clone(), definition);
        let before = state.user_errors.clone();
        state.rebuild();
        let was_valid = |error: &&EntryError| before.iter().all(|it| it.entry != error.entry);
        match state.user_errors.iter().find(was_valid) {
            Some(error) => Err(error.clone().into()),
            None => {
                self.replace(state);
                Ok(())
            }
        }
    }

    /// Loads the profiles of a TOML or JSON file, by the extension of its name. They replace the
    /// profiles of the file that was loaded before. The call blocks on file access.
    ///
    /// The file must be private: owned by this user, not a symbolic link, not writable by group or
    /// others. For a file behind a link, pass the result of [`std::fs::canonicalize`].
    ///
    /// ```
    /// use std::io::Write;
    /// use exec_profiles::ProfileRegistry;
    ///
    /// let mut file = tempfile::Builder::new().suffix(".toml").tempfile()?;
    /// file.write_all(br#"
    ///     [profiles.qwen]                      # a new agent
    ///     binary = "qwen"
    ///     args = ["--yolo", "--session-id={session_id}"]
    ///     follow_up_args = ["--yolo", "--resume={session_id}"]
    ///
    ///     [profiles.claude-code]               # a change of a built-in profile
    ///     append_args = ["--model=opus"]
    /// "#)?;
    /// let registry = ProfileRegistry::new();
    /// registry.load_user_file(file.path())?;
    /// assert_eq!(registry.get_command("qwen", None).unwrap().binary, "qwen");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// An invalid entry does not affect the others: the report contains it. Launches of its label are
    /// refused with the mistake, also if it was meant to change a profile: without the change, the
    /// agent could have permissions that the user meant to take away.
    ///
    /// # Errors
    ///
    /// [`Error::Io`], [`Error::NotPrivate`] or [`Error::Config`] if the file as a whole cannot be
    /// read. The profiles that were loaded before stay.
    pub fn load_user_file(&self, path: impl AsRef<Path>) -> Result<LoadReport, Error> {
        let _change = self.begin_change();
        let file = UserFile::new(path.as_ref())?;
        let contents = file.load()?;
        Ok(self.apply(file, contents))
    }

    /// Loads the user file again.
    ///
    /// # Errors
    ///
    /// As [`load_user_file`](Self::load_user_file), and [`Error::NoUserFile`] if no file was
    /// loaded before.
    pub fn reload(&self) -> Result<LoadReport, Error> {
        let _change = self.begin_change();
        let file = self.user_file()?;
        let contents = file.load()?;
        Ok(self.apply(file, contents))
    }

    /// Adds or replaces an entry, in the registry and in the user file. The call blocks on file
    /// access.
    ///
    /// The file is replaced atomically and durably. Everything else in it is kept: comments (TOML),
    /// invalid entries, and entries that another process has saved since the last load. Writers
    /// exclude each other by a lock on a side file, `<file>.lock`, which is never deleted.
    ///
    /// # Errors
    ///
    /// [`Error::NoUserFile`] if no file was loaded (loading a file that does not exist is
    /// sufficient), [`Error::Entry`] if the entry is invalid, [`Error::Io`], [`Error::NotPrivate`] or
    /// [`Error::Config`] if the file cannot be changed. The folder of the file must be private, too.
    pub fn save_user_profile(
        &self,
        label: &str,
        profile: &UserProfile,
    ) -> Result<LoadReport, Error> {
        let _change = self.begin_change();
        let file = self.user_file()?;
        let defined = self.read(|state| profile.define(label, &state.definitions).map(drop));
        defined.map_err(|reason| EntryError {
            file: None,
            entry: label.to_owned(),
            reason,
        })?;
        let contents = file.save(label, Some(profile))?;
        Ok(self.apply(file, contents))
    }

    /// Removes an entry, from the registry and, with the comment above it, from the user file. A
    /// comment before a blank line at the start of the file stays. Idempotent: an unknown label is not
    /// an error. The call blocks on file access.
    ///
    /// # Errors
    ///
    /// As [`save_user_profile`](Self::save_user_profile), except [`Error::Entry`].
    pub fn remove_user_profile(&self, label: &str) -> Result<LoadReport, Error> {
        let _change = self.begin_change();
        let file = self.user_file()?;
        let contents = file.save(label, None)?;
        Ok(self.apply(file, contents))
    }

    fn apply(&self, file: UserFile, contents: FileContents) -> LoadReport {
        let mut state = self.read(RegistryState::clone);
        state.user_file = Some(file);
        state.user_entries = contents.entries;
        state.read_errors = contents.errors;
        state.rebuild();
        for error in &state.user_errors {
            tracing::warn!(%error, "skipped an invalid profile");
        }
        let report = LoadReport {
            labels: {
                let labels = state.user_entries.keys();
                let valid = labels.filter(|label| state.mistake(label).is_none());
                valid.cloned().collect()
            },
            errors: state.user_errors.clone(),
            missing: contents.missing,
        };
        self.replace(state);
        report
    }

    fn user_file(&self) -> Result<UserFile, Error> {
        self.read(|state| state.user_file.clone())
            .ok_or(Error::NoUserFile)
    }

    fn find(&self, label: &str) -> Option<Arc<RegisteredProfile>> {
        self.read(|state| state.profiles.get(label).cloned())
    }

    fn read<T>(&self, look: impl FnOnce(&RegistryState) -> T) -> T {
        // Poisoning is harmless: a state is replaced as a whole, so it is never half changed.
        let state = self.shared.state.read();
        look(&state.unwrap_or_else(PoisonError::into_inner))
    }

    fn replace(&self, state: RegistryState) {
        let current = self.shared.state.write();
        *current.unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn begin_change(&self) -> impl Drop + '_ {
        let change = self.shared.change.lock();
        change.unwrap_or_else(PoisonError::into_inner)
    }
}

impl RegistryState {
    fn new(definitions: Vec<ProfileDefinition>) -> RwLock<Self> {
        let labelled = definitions.into_iter().map(|d| (d.label.clone(), d));
        let mut state = Self {
            definitions: labelled.collect(),
            ..Self::default()
        };
        state.rebuild();
        RwLock::new(state)
    }

    /// The mistake of the entry of the user file with this label.
    fn mistake(&self, label: &str) -> Option<&EntryError> {
        self.user_errors.iter().find(|error| error.entry == label)
    }

    /// Computes `profiles` and `user_errors`. An entry that is invalid is tried again with the next
    /// definitions: its base may be registered later.
    fn rebuild(&mut self) {
        let mut errors = self.read_errors.clone();
        self.profiles.clear();
        for (label, entry) in &self.user_entries {
            match entry.define(label, &self.definitions) {
                Ok(profile) => {
                    self.profiles.insert(label.clone(), Arc::new(profile));
                }
                Err(reason) => errors.push(EntryError {
                    file: self.user_file.as_ref().map(|file| file.path().to_owned()),
                    entry: label.clone(),
                    reason,
                }),
            }
        }
        for (label, definition) in &self.definitions {
            self.profiles.entry(label.clone()).or_insert_with(|| {
                let mut invalid = errors.iter();
                let origin = match invalid.find(|error| error.entry == *label) {
                    Some(error) => ProfileOrigin::InvalidChange(error.clone()),
                    None => ProfileOrigin::Code,
                };
                Arc::new(RegisteredProfile::new(definition.clone(), origin))
            });
        }
        self.user_errors = errors;
    }
}

impl Default for ProfileRegistry {
    fn default() -> Self {
        Self::new()
    }
}

impl ProfileSource for ProfileRegistry {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        Some(self.find(label)?)
    }

    fn check_profile(&self, label: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        match self.read(|state| state.mistake(label).cloned()) {
            Some(mistake) => Err(mistake.into()),
            None => Ok(()),
        }
    }

    fn labels(&self) -> Vec<String> {
        Self::labels(self)
    }
}

impl fmt::Debug for ProfileRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProfileRegistry")
            .field("labels", &self.labels())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn definitions_are_created_once_on_first_access() {
        static CREATED: AtomicUsize = AtomicUsize::new(0);
        let registry = ProfileRegistry::with_state(|| {
            CREATED.fetch_add(1, Ordering::Relaxed);
            RegistryState::new(profile_definitions())
        });
        assert_eq!(CREATED.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            assert!(registry.clone().get_profile("codex").is_some());
        }
        assert_eq!(CREATED.load(Ordering::Relaxed), 1);
    }
}
