use std::sync::Arc;

use crate::{CommandConfig, LaunchRequest, ProcessParameters};

/// Where an execution service looks up profiles.
///
/// A profile is looked up once for each launch, so a source whose profiles change serves the
/// change from the next launch on. The service holds the profile it got for no longer than the
/// launch takes.
pub trait ProfileSource: Send + Sync {
    /// The profile with this label, or `None` if there is none.
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>>;
}

impl<T: ProfileSource + ?Sized> ProfileSource for Arc<T> {
    fn find_profile(&self, label: &str) -> Option<Arc<dyn Profile>> {
        (**self).find_profile(label)
    }
}

/// One kind of agent: which command starts it and how a request becomes arguments.
///
/// The service asks in this order, and stops at the first refusal:
///
/// 1. [`variant_labels`](Self::variant_labels), if the request names a variant: an unknown one is
///    refused. A mistyped variant must not fall back to a more permissive command.
/// 2. [`command`](Self::command): `None` is refused.
/// 3. [`accepts_empty_prompt`](Self::accepts_empty_prompt), if the text is blank.
/// 4. [`build_process_parameters`](Self::build_process_parameters), right before the spawn. Any
///    look at the file system that must come before the agent runs (which session files are
///    already there) belongs here.
pub trait Profile: Send + Sync {
    /// The variants of this profile, for the check and for the error's list.
    fn variant_labels(&self) -> Vec<String>;

    /// The command of the profile or of one of its variants; `None` if it has no usable one.
    fn command(&self, variant: Option<&str>) -> Option<CommandConfig>;

    /// Whether the agent can start without a prompt. Most exit with an error.
    fn accepts_empty_prompt(&self) -> bool {
        false
    }

    /// What this launch passes to the process.
    ///
    /// The default is the specification's: the command's arguments, and the prompt or message on
    /// standard input.
    ///
    /// # Errors
    /// Any error refuses the launch and reaches the caller as the source of
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
}
