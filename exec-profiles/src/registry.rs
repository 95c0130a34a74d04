use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use exec_core::{
    CommandConfig, EnvPolicy, LaunchRequest, ProcessParameters, Profile, ProfileSource,
};

use crate::builtin::profile_definitions;
use crate::user::{Loaded, UserFile, UserPart};
use crate::{
    EntryError, Error, ProfileConfig, ProfileDefinition, ProfileVariantConfig, Result, UserProfile,
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
    /// [`Error::File`] or [`Error::Syntax`] if the file cannot be read as a whole; the profiles
    /// loaded before then stay. A single profile that is not valid is left out and reported.
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
    /// bad ones and those another process saved meanwhile, and (TOML) comments.
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
        let mut errors = loaded.errors;
        state.user = loaded.entries;
        for error in state.rebuild() {
            state.user.remove(&error.entry);
            errors.push(file.entry_error(error.entry, error.reason));
        }
        for error in &errors {
            tracing::warn!(%error, "left out a profile");
        }
        let report = LoadReport {
            labels: state.user.keys().cloned().collect(),
            errors,
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
            let profile = RegisteredProfile::new(definition.clone(), None);
            self.profiles.insert(label.clone(), Arc::new(profile));
        }
        for (label, user) in &self.user {
            match user.define(label, &self.definitions) {
                Ok((definition, part)) => {
                    let profile = RegisteredProfile::new(definition, Some(part));
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

/// A profile as a service gets it.
struct RegisteredProfile {
    config: ProfileConfig,
    definition: ProfileDefinition,
    user: Option<UserPart>,
}

impl RegisteredProfile {
    fn new(definition: ProfileDefinition, user: Option<UserPart>) -> Self {
        Self {
            config: definition.normalise(),
            definition,
            user,
        }
    }

    fn build(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let definition = &self.definition;
        let expanded = match &self.user {
            Some(user) => user.expand_command(command, request)?,
            None => command.clone(),
        };
        let launched = definition
            .launcher
            .apply(&expanded, definition.native_binary.as_deref())?;
        let agent = self.user.as_ref().and_then(UserPart::agent);
        let mut parameters = match (agent, &definition.build_process_parameters) {
            (Some(agent), _) => agent.parameters(&launched, request)?,
            (None, Some(build)) => build(&launched, request)?,
            (None, None) => {
                let mut parameters = ProcessParameters::new(launched.args);
                parameters.stdin_payload = Some(request.text.clone());
                parameters
            }
        };
        // The service starts `command` with these changes.
        if launched.binary != command.binary {
            parameters.binary.get_or_insert(launched.binary);
        }
        for (name, value) in launched.env {
            if command.env.get(&name) != Some(&value) {
                parameters.env.entry(name).or_insert(value);
            }
        }
        if let Some(policy) = &definition.env_policy {
            parameters.env_policy = both(&parameters.env_policy, policy);
        }
        if let Some(ladder) = &definition.stop_ladder {
            parameters.stop_ladder = Some(ladder.clone());
        }
        if let Some(wrapper) = &definition.wrapper {
            parameters.wrapper = Some(match &self.user {
                Some(user) => user.expand_wrapper(wrapper, request)?,
                None => wrapper.clone(),
            });
        }
        Ok(parameters)
    }
}

impl Profile for RegisteredProfile {
    fn variant_labels(&self) -> Vec<String> {
        let variants = self.config.variants.iter();
        variants.map(|variant| variant.label.clone()).collect()
    }

    fn command(&self, variant: Option<&str>) -> Option<CommandConfig> {
        self.config.command(variant).cloned()
    }

    fn accepts_empty_prompt(&self) -> bool {
        self.definition.accepts_empty_prompt
    }

    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        self.build(command, request)
    }
}

/// What an agent must not get is kept from it, whoever said so; a list of what it gets is taken at
/// its word.
fn both(agents: &EnvPolicy, asked: &EnvPolicy) -> EnvPolicy {
    match (agents, asked) {
        (EnvPolicy::AllExcept(agents), EnvPolicy::AllExcept(asked)) => {
            EnvPolicy::AllExcept(agents.iter().chain(asked).cloned().collect())
        }
        (agents, EnvPolicy::All) => agents.clone(),
        (_, asked) => asked.clone(),
    }
}
