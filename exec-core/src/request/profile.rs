//! The contract between the service and the profiles.

use std::sync::Arc;

use crate::{CommandConfig, LaunchRequest, ProcessParameters};

/// Where an execution service looks up profiles.
///
/// The service looks up the profile at each launch, and keeps it until the launch is done. A
/// source whose profiles change therefore serves the change from the next launch on.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Arc;
/// use exec_core::{Profile, ProfileSource};
///
/// struct Profiles(HashMap<String, Arc<dyn Profile>>);
///
/// impl ProfileSource for Profiles {
///     fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
///         self.0.get(label).cloned()
///     }
/// }
/// ```
pub trait ProfileSource: Send + Sync {
    /// The profile with this label, or `None` if there is none.
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>>;

    /// Refuses a profile that exists but must not be used, such as one with a mistake in its
    /// configuration. The service asks before it looks the profile up, so that the mistake is
    /// reported and not a missing profile or variant. The default refuses none.
    ///
    /// # Errors
    ///
    /// Any error refuses the launch and becomes the source of
    /// [`Error::Parameters`](crate::Error::Parameters).
    fn check_profile(&self, label: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        let _ = label;
        Ok(())
    }

    /// The labels of all profiles, for the hint of
    /// [`Error::ProfileNotFound`](crate::Error::ProfileNotFound). The default names none.
    fn labels(&self) -> Vec<String> {
        Vec::new()
    }
}

impl<T: ProfileSource + ?Sized> ProfileSource for Arc<T> {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (**self).find_profile(label)
    }

    fn check_profile(&self, label: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        (**self).check_profile(label)
    }

    fn labels(&self) -> Vec<String> {
        (**self).labels()
    }
}

/// One kind of agent: the command that starts it, and how a request becomes arguments.
///
/// The service calls in this order, and refuses the launch at the first failure:
///
/// 1. [`variant_labels`](Self::variant_labels), if the request names a variant. An unknown variant
///    is refused: a typing error must not fall back to a more permissive command.
/// 2. [`command`](Self::command); `None` is refused.
/// 3. [`accepts_empty_prompt`](Self::accepts_empty_prompt), if the prompt or message is blank.
/// 4. [`build_process_parameters`](Self::build_process_parameters), right before the spawn. This
///    is the place for looks at the file system that must come before the agent runs, such as the
///    list of existing session files. It can be called more than once for a launch; the last result
///    is used.
///
/// ```
/// use exec_core::{CommandConfig, LaunchRequest, ProcessParameters, Profile};
///
/// /// Takes the prompt as an argument.
/// struct Echo;
///
/// impl Profile for Echo {
///     fn variant_labels(&self) -> Vec<String> {
///         Vec::new()
///     }
///
///     fn command(&self, _variant: Option<&str>) -> Option<CommandConfig> {
///         Some(CommandConfig::new("echo", ["--"]))
///     }
///
///     fn build_process_parameters(
///         &self,
///         command: &CommandConfig,
///         request: &LaunchRequest,
///     ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
///         let mut parameters = ProcessParameters::new(command.args.clone());
///         parameters.args.push(request.text.clone());
///         Ok(parameters)
///     }
/// }
/// ```
pub trait Profile: Send + Sync {
    /// The variants of this profile.
    fn variant_labels(&self) -> Vec<String>;

    /// The command of the profile or of one of its variants; `None` if there is no usable one.
    fn command(&self, variant: Option<&str>) -> Option<CommandConfig>;

    /// Whether the agent can start without a prompt. Most agents exit with an error.
    fn accepts_empty_prompt(&self) -> bool {
        false
    }

    /// The parameters of the process for this launch.
    ///
    /// The default is that of the specification: the arguments of the command, and the prompt or
    /// message on standard input.
    ///
    /// # Errors
    ///
    /// Any error refuses the launch and becomes the source of
    /// [`Error::Parameters`](crate::Error::Parameters).
    fn build_process_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<ProcessParameters, Box<dyn std::error::Error + Send + Sync>> {
        let mut parameters = ProcessParameters::new(command.args.clone());
        parameters.stdin_payload = Some(request.text.clone());
        Ok(parameters)
    }

    /// The parameters of the process of a live session, with a
    /// [`protocol_driver`](ProcessParameters::protocol_driver). The text of the request is empty.
    ///
    /// The default is `None`: the agent has no live protocol.
    ///
    /// # Errors
    ///
    /// As [`build_process_parameters`](Self::build_process_parameters).
    fn build_live_parameters(
        &self,
        command: &CommandConfig,
        request: &LaunchRequest,
    ) -> Result<Option<ProcessParameters>, Box<dyn std::error::Error + Send + Sync>> {
        let _ = (command, request);
        Ok(None)
    }
}
