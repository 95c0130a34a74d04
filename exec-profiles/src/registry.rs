use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use exec_core::{CommandConfig, Profile, ProfileSource};

use crate::builtin::profile_definitions;
use crate::error::Result;
use crate::registered_profile::RegisteredProfile;
use crate::user::{Loaded, UserFile};
use crate::{
    EntryError, Error, ProfileConfig, ProfileDefinition, ProfileVariantConfig, UserProfile,
};

/// The profiles of an execution service: the built-in ones, those registered in code, and those of
/// the user's file, which come first where labels are equal.
///
/// A clone is a handle to the same registry. It can be changed while a service uses it: every
/// launch sees either all of a change or nothing of it, and launches that are under way keep what
/// they have. The built-in profiles are read at the first access.
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
    shared: Arc<Shared>,
}

struct Shared {
    initial: fn() -> Vec<ProfileDefinition>,
    state: OnceLock<RwLock<State>>,
    /// Held over a change with its file access, so that what is read from a file is never older
    /// than what stands in `state` already. Readers do not take it.
    changes: Mutex<()>,
}

/// What was registered, and what that amounts to.
#[derive(Clone, Default)]
struct State {
    definitions: BTreeMap<String, ProfileDefinition>,
    file: Option<UserFile>,
    user: BTreeMap<String, UserProfile>,
    /// Entries of the user's file that are not valid.
    bad: Vec<EntryError>,
    profiles: BTreeMap<String, Arc<RegisteredProfile>>,
}

/// What came of loading the user's file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The profiles that were loaded.
    pub labels: Vec<String>,
    /// Those that were left out.
    pub errors: Vec<EntryError>,
    /// There is no such file (yet): no profiles, and no error.
    pub missing: bool,
}

impl ProfileRegistry {
    /// A registry with the built-in profiles.
    pub fn new() -> Self {
        Self::with(profile_definitions)
    }

    /// A registry without any.
    pub fn empty() -> Self {
        Self::with(Vec::new)
    }

    fn with(initial: fn() -> Vec<ProfileDefinition>) -> Self {
        Self {
            shared: Arc::new(Shared {
                initial,
                state: OnceLock::new(),
                changes: Mutex::new(()),
            }),
        }
    }

    /// The profile with this label.
    pub fn get_profile(&self, label: &str) -> Option<ProfileConfig> {
        Some(self.find(label)?.config.clone())
    }

    /// The variant of a profile; `None` if there is no such profile or variant, or none was asked
    /// for.
    pub fn get_variant(
        &self,
        label: &str,
        variant_label: Option<&str>,
    ) -> Option<ProfileVariantConfig> {
        self.find(label)?.config.variant(variant_label?).cloned()
    }

    /// The command of a profile or of its variant, as defined: `npx …`, also where a native binary
    /// will be started.
    ///
    /// As specified, an unknown variant gets the profile's own command. An execution service does
    /// not rely on that: it refuses an unknown variant.
    pub fn get_command(&self, label: &str, variant_label: Option<&str>) -> Option<CommandConfig> {
        self.find(label)?.config.command(variant_label).cloned()
    }

    /// The labels of all profiles, in order.
    pub fn labels(&self) -> Vec<String> {
        self.read(|state| state.profiles.keys().cloned().collect())
    }

    /// The user's profile with this label, as it stands in their file.
    pub fn user_profile(&self, label: &str) -> Option<UserProfile> {
        self.read(|state| state.user.get(label).cloned())
    }

    /// Adds a profile, or replaces the one with its label.
    ///
    /// # Errors
    /// [`Error::InvalidLabel`], or [`Error::Entry`] if a profile of the user that is based on the
    /// replaced one would no longer be valid.
    pub fn register(&self, definition: ProfileDefinition) -> Result<()> {
        definition.check()?;
        let _changing = self.changing();
        let mut state = self.read(State::clone);
        state
            .definitions
            .insert(definition.label.clone(), definition);
        match state.rebuild().into_iter().next() {
            Some(error) => Err(error.into()),
            None => {
                self.swap(state);
                Ok(())
            }
        }
    }

    /// Loads the user's profiles from a TOML or JSON file (by its ending) in place of those loaded
    /// before. It blocks on the file.
    ///
    /// ```toml
    /// # A new agent.
    /// [profiles.qwen]
    /// binary = "qwen"
    /// args = ["--yolo", "--output-format=stream-json", "--session-id={session_id}"]
    /// follow_up_args = ["--yolo", "--output-format=stream-json", "--resume={session_id}"]
    /// events = "claude"
    /// env = { OPENAI_API_KEY = "${QWEN_KEY}" }
    ///
    /// # A change of a built-in one.
    /// [profiles.claude-code]
    /// launcher = { npx_version = "2.1.197" }
    /// wrapper = ["nice", "-n", "10"]
    /// ```
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Syntax`] if the file cannot be read as a whole, or if everybody
    /// can write to it; the profiles loaded before then stay. A single profile that is not valid is left out and reported; if it
    /// was to change another one, launches of that one are refused, since without the change it
    /// could be allowed more than the user meant it to be.
    pub fn load_user_file(&self, path: impl AsRef<Path>) -> Result<LoadReport> {
        let _changing = self.changing();
        self.load(UserFile::new(path.as_ref())?)
    }

    /// Loads the file of [`load_user_file`](Self::load_user_file) again.
    ///
    /// # Errors
    /// As there, and [`Error::NoUserFile`] if none was loaded.
    pub fn reload(&self) -> Result<LoadReport> {
        let _changing = self.changing();
        self.load(self.file()?)
    }

    /// Adds a profile of the user, or replaces it, here and in the file that was loaded. It blocks
    /// on the file.
    ///
    /// The file is replaced in one step, durably. Everything else in it stays: other entries, also
    /// bad ones and those another process saved meanwhile, and (TOML) comments. A file beside it,
    /// its name with `.lock` at the end, keeps writers apart and is never deleted.
    ///
    /// # Errors
    /// [`Error::NoUserFile`] if no file was loaded (one that did not exist is good enough),
    /// [`Error::Entry`] if the profile is not valid, [`Error::File`] or [`Error::Syntax`] if the
    /// file cannot be changed.
    pub fn save_user_profile(&self, label: &str, profile: &UserProfile) -> Result<LoadReport> {
        let _changing = self.changing();
        let file = self.file()?;
        let defined = self.read(|state| profile.define(label, &state.definitions).map(drop));
        defined.map_err(|reason| EntryError {
            file: None,
            entry: label.to_owned(),
            reason,
        })?;
        let loaded = file.save(label, Some(profile))?;
        Ok(self.take(file, loaded))
    }

    /// Removes a profile of the user, here and in the file that was loaded. A label that is not
    /// there is fine. It blocks on the file.
    ///
    /// # Errors
    /// As [`save_user_profile`](Self::save_user_profile).
    pub fn remove_user_profile(&self, label: &str) -> Result<LoadReport> {
        let _changing = self.changing();
        let file = self.file()?;
        let loaded = file.save(label, None)?;
        Ok(self.take(file, loaded))
    }

    fn load(&self, file: UserFile) -> Result<LoadReport> {
        let loaded = file.load()?;
        Ok(self.take(file, loaded))
    }

    fn take(&self, file: UserFile, loaded: Loaded) -> LoadReport {
        let mut state = self.read(State::clone);
        state.user = loaded.entries;
        state.bad = loaded.errors;
        for error in state.rebuild() {
            state.user.remove(&error.entry);
            state.bad.push(file.entry_error(error.entry, error.reason));
        }
        // Once more, now that it is known which profiles must not be started.
        state.rebuild();
        for error in &state.bad {
            tracing::warn!(%error, "left out a profile");
        }
        let report = LoadReport {
            labels: state.user.keys().cloned().collect(),
            errors: state.bad.clone(),
            missing: loaded.missing,
        };
        state.file = Some(file);
        self.swap(state);
        report
    }

    fn file(&self) -> Result<UserFile> {
        self.read(|state| state.file.clone())
            .ok_or(Error::NoUserFile)
    }

    fn find(&self, label: &str) -> Option<Arc<RegisteredProfile>> {
        self.read(|state| state.profiles.get(label).cloned())
    }

    fn read<T>(&self, look: impl FnOnce(&State) -> T) -> T {
        // A panic elsewhere cannot leave half a state behind: states are swapped whole.
        look(&self.state().read().unwrap_or_else(PoisonError::into_inner))
    }

    fn swap(&self, state: State) {
        *self.state().write().unwrap_or_else(PoisonError::into_inner) = state;
    }

    fn changing(&self) -> impl Drop + '_ {
        self.shared
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> &RwLock<State> {
        self.shared.state.get_or_init(|| {
            let mut state = State::default();
            for definition in (self.shared.initial)() {
                state
                    .definitions
                    .insert(definition.label.clone(), definition);
            }
            state.rebuild();
            RwLock::new(state)
        })
    }
}

impl State {
    /// Works out `profiles` anew; returns the user's entries that are not valid.
    fn rebuild(&mut self) -> Vec<EntryError> {
        let mut errors = Vec::new();
        self.profiles.clear();
        for (label, definition) in &self.definitions {
            let profile = match self.bad.iter().find(|error| error.entry == *label) {
                Some(error) => RegisteredProfile::refused(definition.clone(), error.clone()),
                None => RegisteredProfile::new(definition.clone()),
            };
            self.profiles.insert(label.clone(), Arc::new(profile));
        }
        for (label, user) in &self.user {
            match user.define(label, &self.definitions) {
                Ok((definition, part)) => {
                    let profile = RegisteredProfile::of_user(definition, part);
                    self.profiles.insert(label.clone(), Arc::new(profile));
                }
                Err(reason) => errors.push(EntryError {
                    file: None,
                    entry: label.clone(),
                    reason,
                }),
            }
        }
        errors
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
    fn definitions_are_read_at_the_first_access_and_once() {
        static READ: AtomicUsize = AtomicUsize::new(0);
        let registry = ProfileRegistry::with(|| {
            READ.fetch_add(1, Ordering::Relaxed);
            profile_definitions()
        });
        assert_eq!(READ.load(Ordering::Relaxed), 0);
        for _ in 0..3 {
            assert!(registry.clone().get_profile("codex").is_some());
        }
        assert_eq!(READ.load(Ordering::Relaxed), 1);
    }
}
