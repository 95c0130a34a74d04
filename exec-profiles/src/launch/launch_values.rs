use std::env::{self, VarError};
use std::path::PathBuf;

use exec_core::{CommandConfig, LaunchRequest, ReadAccess, Sandbox, Wrapper};

use super::template::{Placeholder, Template};
use crate::Error;

/// Linux limits one argument to this many bytes, including the terminating zero (`MAX_ARG_STRLEN`).
const ARGUMENT_LIMIT: usize = 128 * 1024;

/// Expands the templates of a profile with the values of one launch.
pub(crate) struct LaunchValues<'a> {
    request: &'a LaunchRequest,
}

impl<'a> LaunchValues<'a> {
    pub(crate) fn new(request: &'a LaunchRequest) -> Self {
        Self { request }
    }

    /// Expands the binary and the variables of `command`, with `args` (of the named field) as its
    /// arguments.
    pub(crate) fn expand_command(
        &self,
        command: &CommandConfig,
        field: &str,
        args: &[String],
    ) -> Result<CommandConfig, Error> {
        let variables = command.env.iter().map(|(name, value)| {
            let value = self.expand(&format!("env.{name}"), value)?;
            Ok((name.clone(), value))
        });
        Ok(CommandConfig {
            binary: self.expand("binary", &command.binary)?,
            args: self.expand_args(field, args)?,
            env: variables.collect::<Result<_, Error>>()?,
        })
    }

    pub(crate) fn expand_wrapper(&self, wrapper: &Wrapper) -> Result<Wrapper, Error> {
        let args = wrapper.args.iter().map(|arg| self.expand("wrapper", arg));
        Ok(Wrapper {
            binary: self.expand("wrapper", &wrapper.binary)?,
            args: args.collect::<Result<_, Error>>()?,
        })
    }

    pub(crate) fn expand_sandbox(&self, mut sandbox: Sandbox) -> Result<Sandbox, Error> {
        for (field, paths) in path_lists(&mut sandbox) {
            for path in paths {
                // Only UTF-8 can be written in a file; other paths are no templates.
                if let Some(text) = path.to_str() {
                    *path = self.expand(field, text)?.into();
                }
            }
        }
        Ok(sandbox)
    }

    pub(crate) fn expand(&self, field: &str, text: &str) -> Result<String, Error> {
        self.fill(field, &parse(field, text)?)
    }

    /// Refuses a prompt that the agent would read as an option, or that the kernel would reject.
    fn expand_args(&self, field: &str, args: &[String]) -> Result<Vec<String>, Error> {
        let mut expanded: Vec<String> = Vec::with_capacity(args.len());
        for (index, arg) in args.iter().enumerate() {
            let field = format!("{field}[{index}]");
            let template = parse(&field, arg)?;
            let text = self.fill(&field, &template)?;
            if template.uses(Placeholder::Prompt) {
                let is_option = template.starts_with(Placeholder::Prompt) && text.starts_with('-');
                let after_options = expanded.last().is_some_and(|last| last == "--");
                let refused = if is_option && !after_options {
                    Some("it starts with '-': write `--option={prompt}` or put `--` before it")
                } else if text.contains('\0') {
                    Some("it contains a zero byte")
                } else if text.len() >= ARGUMENT_LIMIT {
                    Some("it is longer than 128 KiB: without `{prompt}` it goes to standard input")
                } else {
                    None
                };
                if let Some(reason) = refused {
                    return Err(Error::PromptAsArgument { reason });
                }
            }
            expanded.push(text);
        }
        Ok(expanded)
    }

    fn fill(&self, field: &str, template: &Template) -> Result<String, Error> {
        template
            .expand(|placeholder| self.placeholder(placeholder), variable)
            .map_err(expand_error(field))
    }

    fn placeholder(&self, placeholder: Placeholder) -> Result<&str, String> {
        match placeholder {
            Placeholder::Prompt => Ok(&self.request.text),
            Placeholder::SessionId => Ok(self.request.session_id.native_id()),
            Placeholder::Workspace => {
                let path = self.request.context.workspace_path.to_str();
                path.ok_or_else(|| "the path of the workspace is not UTF-8".to_owned())
            }
        }
    }
}

/// The paths of a sandbox, with the names of their fields.
pub(crate) fn path_lists(
    sandbox: &mut Sandbox,
) -> impl Iterator<Item = (&'static str, &mut Vec<PathBuf>)> {
    let read = match &mut sandbox.read {
        ReadAccess::All => None,
        ReadAccess::Only(paths) => Some(("sandbox.read", paths)),
    };
    let lists = [
        ("sandbox.write", &mut sandbox.write),
        ("sandbox.hide", &mut sandbox.hide),
    ];
    lists.into_iter().chain(read)
}

fn parse(field: &str, text: &str) -> Result<Template, Error> {
    Template::parse(text).map_err(expand_error(field))
}

fn variable(name: &str) -> Result<String, String> {
    env::var(name).map_err(|error| {
        let state = match error {
            VarError::NotPresent => "not set",
            VarError::NotUnicode(_) => "not UTF-8",
        };
        format!("the environment variable {name} is {state}")
    })
}

fn expand_error(field: &str) -> impl FnOnce(String) -> Error {
    let field = field.to_owned();
    move |reason| Error::Expand { field, reason }
}
