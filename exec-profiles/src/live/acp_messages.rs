//! The messages of the Agent Client Protocol, as far as the driver reads them.
//!
//! All fields are slices of the line ([`Json`]): a field that is missing, null or of another type reads
//! as absent, and does not make the message unreadable.

use std::path::PathBuf;

use exec_core::{ToolInput, Usage};
use serde::Deserialize;

use super::ANY_PATH;
use crate::events::Json;

/// The longest list that is read from a message: options, locations, contents.
const MAX_ITEMS: usize = 256;

/// The arguments in which agents name a file or a folder, also the one for a command.
const PATH_KEYS: [&str; 10] = [
    "cwd",
    "workdir",
    "directory",
    "file_path",
    "filePath",
    "filepath",
    "path",
    "absolute_path",
    "dir_path",
    "notebook_path",
];

/// An option of a permission request.
#[derive(Debug)]
pub(super) struct PermissionOption {
    pub(super) id: String,
    pub(super) kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Initialized<'a> {
    #[serde(borrow)]
    agent_capabilities: Json<'a>,
    #[serde(rename = "_meta")]
    meta: Json<'a>,
}

impl Initialized<'_> {
    pub(super) fn can_steer(&self) -> bool {
        self.meta.at("steering.supported").is_true()
    }

    pub(super) fn can_resume(&self) -> bool {
        let resume = self.agent_capabilities.at("sessionCapabilities.resume");
        resume.is_object() || resume.is_true()
    }

    pub(super) fn can_load(&self) -> bool {
        self.agent_capabilities.at("loadSession").is_true()
    }
}

/// The result of `session/new`, `session/resume` and `session/load`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct OpenedSession<'a> {
    #[serde(borrow)]
    session_id: Json<'a>,
    modes: Json<'a>,
    models: Json<'a>,
    config_options: Json<'a>,
}

impl OpenedSession<'_> {
    pub(super) fn id(&self) -> Option<String> {
        self.session_id.text().filter(|id| !id.is_empty())
    }

    pub(super) fn has_modes(&self) -> bool {
        self.modes.is_object()
    }

    pub(super) fn has_models(&self) -> bool {
        self.models.is_object()
    }

    /// The id of the configuration option of this category.
    pub(super) fn option(&self, category: &str) -> Option<String> {
        let mut found = None;
        self.config_options.each(|option| {
            if found.is_none() && option.at("category").word() == category {
                found = option.at("id").text();
            }
        });
        found
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct PromptEnded<'a> {
    #[serde(borrow)]
    pub(super) stop_reason: Json<'a>,
    usage: Json<'a>,
    #[serde(rename = "_meta")]
    meta: Json<'a>,
}

impl PromptEnded<'_> {
    /// Gemini counts in `_meta`.
    pub(super) fn usage(&self) -> Option<Usage> {
        if self.usage.is_object() {
            return Some(usage(self.usage));
        }
        let counted = self.meta.at("quota.token_count");
        let mut usage = Usage::default();
        usage.input_tokens = counted.at("input_tokens").number();
        usage.output_tokens = counted.at("output_tokens").number();
        (usage != Usage::default()).then_some(usage)
    }
}

pub(super) fn usage(counted: Json<'_>) -> Usage {
    let counted: TokenCounts<'_> = counted.object();
    let mut usage = Usage::default();
    usage.input_tokens = counted.input_tokens.number();
    usage.output_tokens = counted.output_tokens.number();
    usage.cache_read_tokens = counted.cached_read_tokens.number();
    usage.cache_write_tokens = counted.cached_write_tokens.number();
    usage.reasoning_tokens = counted.thought_tokens.number();
    usage
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TokenCounts<'a> {
    #[serde(borrow)]
    input_tokens: Json<'a>,
    output_tokens: Json<'a>,
    cached_read_tokens: Json<'a>,
    cached_write_tokens: Json<'a>,
    thought_tokens: Json<'a>,
}

/// The parameters of `session/request_permission`.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Question<'a> {
    #[serde(borrow)]
    pub(super) session_id: Json<'a>,
    pub(super) tool_call: Json<'a>,
    options: Json<'a>,
}

impl Question<'_> {
    pub(super) fn options(&self) -> Vec<PermissionOption> {
        let mut options = Vec::new();
        self.options.each(|option| {
            if let Some(id) = option.at("optionId").text()
                && options.len() < MAX_ITEMS
            {
                let kind = option.at("kind").word().to_owned();
                options.push(PermissionOption { id, kind });
            }
        });
        options
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Updated<'a> {
    #[serde(rename = "sessionId", borrow)]
    pub(super) session_id: Json<'a>,
    pub(super) update: Json<'a>,
}

/// An update of a session. The tool call of a permission request has the same fields.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Update<'a> {
    #[serde(borrow)]
    pub(super) session_update: Json<'a>,
    pub(super) content: Json<'a>,
    pub(super) message_id: Json<'a>,
    pub(super) tool_call_id: Json<'a>,
    pub(super) title: Json<'a>,
    name: Json<'a>,
    pub(super) kind: Json<'a>,
    pub(super) status: Json<'a>,
    raw_input: Json<'a>,
    locations: Json<'a>,
    pub(super) cost: Json<'a>,
    #[serde(rename = "_meta")]
    pub(super) meta: Json<'a>,
}

impl Update<'_> {
    pub(super) fn tool_name(&self) -> String {
        let title = || self.title.text().unwrap_or_default();
        self.name_or_kind().unwrap_or_else(title)
    }

    /// The name that rules see. A title is a text that the model may have written, so it must not
    /// match a rule for the name of a tool: parentheses keep it from that.
    pub(super) fn tool_name_for_rules(&self) -> String {
        let title = || match self.title.text().unwrap_or_default() {
            title if title.is_empty() => title,
            title => format!("({title})"),
        };
        self.name_or_kind().unwrap_or_else(title)
    }

    fn name_or_kind(&self) -> Option<String> {
        let names = [
            self.meta.at("toolName"),
            self.meta.at("claudeCode.toolName"),
            self.name,
            self.kind,
        ];
        let mut names = names.into_iter().filter_map(Json::text);
        names.find(|name| !name.is_empty())
    }

    /// The arguments, if the agent has given any.
    pub(super) fn input(&self) -> Option<ToolInput> {
        let input = self.raw_input.tool_input();
        (!matches!(input.as_str(), "null" | "{}")).then_some(input)
    }

    /// The tool call that has started the sub-agent.
    pub(super) fn parent(&self) -> Option<String> {
        let parent = self.meta.at("claudeCode.parentToolUseId").text();
        parent.filter(|parent| !parent.is_empty())
    }

    pub(super) fn text(&self) -> Option<String> {
        let text = self.content.at("text").text();
        text.filter(|text| !text.is_empty())
    }

    /// The texts of a tool's result.
    pub(super) fn output(&self) -> String {
        let mut output = String::new();
        self.content.each(|item| {
            if let Some(text) = item.at("content.text").text() {
                if !output.is_empty() {
                    output.push('\n');
                }
                output.push_str(&text);
            }
        });
        output
    }

    /// The command line and the paths that the call names. If it names more than are read, the path
    /// is [`ANY_PATH`]: the rules must not see only some.
    pub(super) fn facts(&self) -> (Option<String>, Vec<PathBuf>) {
        let fields = self.raw_input;
        let mut paths = Vec::new();
        let mut count = 0_usize;
        let mut add = |path: Option<String>| {
            count += usize::from(path.is_some());
            if paths.len() < MAX_ITEMS {
                paths.extend(path.map(PathBuf::from));
            }
        };
        for key in PATH_KEYS {
            add(fields.at(key).text());
        }
        self.locations
            .each(|location| add(location.at("path").text()));
        // A diff names its file.
        self.content.each(|item| add(item.at("path").text()));
        if count > MAX_ITEMS {
            paths = vec![PathBuf::from(ANY_PATH)];
        }
        (command_line(fields.at("command"), fields.at("args")), paths)
    }
}

/// A line, or words, which are joined so that no word can become two. The words of `args` follow.
fn command_line(command: Json<'_>, args: Json<'_>) -> Option<String> {
    let mut words: Vec<String> = command.text().into_iter().collect();
    let mut add = |word: Json<'_>| {
        let word = word.flatten();
        words.push(
            match word.contains([' ', '\t', '\'', '"', '\n']) || word.is_empty() {
                true => format!("'{}'", word.replace('\'', "'\\''")),
                false => word,
            },
        );
    };
    command.each(&mut add);
    args.each(&mut add);
    (!words.is_empty()).then(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(json: &str) -> Update<'_> {
        serde_json::from_str(json).expect("an object")
    }

    #[test]
    fn fields_of_another_type_are_absent() {
        let update = update(
            r#"{"title":5,"locations":null,"content":{"text":[]},"_meta":null,"rawInput":"x","toolCallId":{}}"#,
        );
        assert_eq!(update.tool_name(), "");
        assert_eq!(update.text(), None);
        assert_eq!(update.parent(), None);
        assert_eq!(update.facts(), (None, Vec::new()));
    }

    #[test]
    fn a_title_is_no_name_of_a_tool_for_rules() {
        let named = |json| update(json).tool_name_for_rules();
        assert_eq!(named(r#"{"title":"read x","kind":"edit"}"#), "edit");
        assert_eq!(named(r#"{"title":"read x","name":"write"}"#), "write");
        assert_eq!(named(r#"{"title":"read x"}"#), "(read x)");
        assert_eq!(named("{}"), "");
        assert_eq!(update(r#"{"title":"read x"}"#).tool_name(), "read x");
    }

    #[test]
    fn the_words_of_a_command_stay_words() {
        let line = |json: &str| {
            let json = format!(r#"{{"rawInput":{{"command":{json}}}}}"#);
            serde_json::from_str::<Update<'_>>(&json)
                .expect("an object")
                .facts()
                .0
        };
        assert_eq!(line(r#""cargo test""#).as_deref(), Some("cargo test"));
        assert_eq!(
            line(r#"["bash","-c","a b"]"#).as_deref(),
            Some("bash -c 'a b'")
        );
        assert_eq!(line(r#"["x",""]"#).as_deref(), Some("x ''"));
        assert_eq!(line("[]"), None);
        assert_eq!(line("5"), None);
        assert_eq!(
            line(r#""git","args":["push","a b"]"#).as_deref(),
            Some("git push 'a b'")
        );
    }

    #[test]
    fn a_call_with_too_many_paths_may_mean_any_path() {
        let asked = update(
            r#"{"rawInput":{"file_path":"a"},"locations":[{"path":"b"}],"content":[{"type":"diff","path":"c"}]}"#,
        );
        assert_eq!(asked.facts().1, ["a", "b", "c"].map(PathBuf::from));
        let many = vec![r#"{"path":"a"}"#; MAX_ITEMS + 1].join(",");
        let json = format!(r#"{{"locations":[{many}]}}"#);
        assert_eq!(update(&json).facts().1, [PathBuf::from(ANY_PATH)]);
    }
}
