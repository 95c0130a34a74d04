//! Adds the hooks of a definition to one launch of an agent.
//!
//! Placeholders in arguments, variables and files:
//!
//! | placeholder | value |
//! |---|---|
//! | `{private}` | the folder of the launch |
//! | `{events}` | the folder for events |
//! | `{hook EVENT}` | the command line that stores an event, escaped for a JSON string |
//! | `{notify}` | a TOML list: the hook program, then the notify program of the user |
//! | `{bus}` | the command `tmux-bus`, escaped for a JSON string |
//! | `{plugin_url}` | the `file:` URL of `tmux-bus.js` in the folder of the launch |
//!
//! Nothing of the user is lost. Where the command line has an option of `args` already, or the environment a variable
//! of `env`, and the value is JSON or the path of a JSON file, both values are merged. Other variables that the
//! configuration of the agent sets are left as they are.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::codex_notify;
use super::json_merge::{merge, parse_lenient};
use super::launch_folder::LaunchFolder;
use super::shell_words::{self, ShellWord};
use crate::Error;
use crate::definition::agent_definition::{HookSource, LaunchFile, LaunchRules};
use crate::tmux::launch::{COMMAND_VARIABLE, Launch, shell_quote};

const OPENCODE: &str = include_str!("opencode.js");
const PLUGIN: &str = "tmux-bus.js";

impl LaunchRules {
    /// Creates the folder of the launch and returns the launch with all additions. `env` are the variables that the
    /// configuration sets for the agent.
    pub(crate) fn inject(
        &self,
        folder: &LaunchFolder,
        launch: Launch,
        env: &BTreeMap<String, String>,
    ) -> Result<Launch, Error> {
        let work_dir = launch.absolute_work_dir()?;
        folder.create()?;
        let injection = Injection {
            rules: self,
            folder,
            env,
            work_dir: work_dir.unwrap_or_default(),
            words: shell_words::split(launch.command()),
            bus: launch
                .variable(COMMAND_VARIABLE)
                .unwrap_or("tmux-bus")
                .to_owned(),
        };
        injection.write_files()?;
        let mut launch = launch;
        let args = self.args.iter().map(|arg| injection.expand(arg));
        let args: Result<Vec<_>, _> = args.collect();
        for arg in args? {
            launch = launch.arg(&shell_quote(&arg));
        }
        for (name, value) in &self.env {
            if let Some(value) = injection.variable(name, value)? {
                launch = launch.env(name, value);
            }
        }
        Ok(launch)
    }
}

struct Injection<'a> {
    rules: &'a LaunchRules,
    folder: &'a LaunchFolder,
    env: &'a BTreeMap<String, String>,
    /// Relative paths of the user begin here.
    work_dir: PathBuf,
    words: Vec<ShellWord>,
    /// The command `tmux-bus`.
    bus: String,
}

impl Injection<'_> {
    fn write_files(&self) -> Result<(), Error> {
        for file in &self.rules.file {
            let content = match (&file.content, file.source) {
                (Some(content), _) => self.expand(content)?,
                (None, Some(HookSource::Opencode)) => OPENCODE.to_owned(),
                (None, _) => String::new(),
            };
            let theirs = self.settings_beside(file)?;
            let content = match theirs.is_empty() {
                true => content,
                false => {
                    let path = self.folder.path().join(&file.path);
                    let ours = parse(&content, &path)?;
                    theirs
                        .into_iter()
                        .rev()
                        .fold(ours, |ours, theirs| merge(theirs, ours))
                        .to_string()
                }
            };
            self.folder.write(&file.path, &content)?;
        }
        Ok(())
    }

    /// The settings of the user that a file would replace.
    fn settings_beside(&self, file: &LaunchFile) -> Result<Vec<Value>, Error> {
        let reference = format!("{{private}}/{}", file.path);
        let mut settings = Vec::new();
        for pair in self.rules.args.windows(2) {
            if pair[1] != reference {
                continue;
            }
            // Programs take the last value of an option, and ours will be the last.
            if let Some(word) = shell_words::values_of(&self.words, &[&pair[0]]).pop() {
                settings.push(self.option_value(&pair[0], &word)?);
            }
        }
        for (name, value) in &self.rules.env {
            if *value != reference {
                continue;
            }
            match known(self.env, name) {
                Some(path) => settings.extend(self.read(&self.work_dir.join(path))?),
                None => {
                    let defaults = self.rules.default_files.get(name);
                    for path in defaults.into_iter().flatten() {
                        settings.extend(self.read(path)?);
                    }
                }
            }
        }
        Ok(settings)
    }

    /// JSON, or the path of a JSON file. An error names the option: its value can have a secret.
    fn option_value(&self, option: &str, word: &ShellWord) -> Result<Value, Error> {
        let refused = |reason| Error::Invalid {
            what: "command",
            value: option.to_owned(),
            reason,
        };
        if word.is_expanded {
            return Err(refused(
                "this value is merged with that of tmux-bus and must not have variables",
            ));
        }
        if word.text.trim_start().starts_with('{') {
            return parse(&word.text, Path::new("command"));
        }
        let path = match (word.has_tilde, word.text.strip_prefix("~/")) {
            (false, _) => self.work_dir.join(&word.text),
            (true, Some(rest)) => match known(self.env, "HOME") {
                Some(home) => Path::new(&home).join(rest),
                None => return Err(refused("its `~` needs the variable `HOME`")),
            },
            (true, None) => return Err(refused("of `~`, only `~/` is known")),
        };
        // Without its file the agent itself would fail, or ours would silently replace what the user meant.
        let missing = || Error::io("read", &path)(io::ErrorKind::NotFound.into());
        self.read(&path)?.ok_or_else(missing)
    }

    /// `None` if there is no such file.
    fn read(&self, path: &Path) -> Result<Option<Value>, Error> {
        match fs::read_to_string(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            text => parse(&text.map_err(Error::io("read", path))?, path).map(Some),
        }
    }

    /// The value of a variable of the definition; `None` if that of the configuration is left.
    fn variable(&self, name: &str, value: &str) -> Result<Option<String>, Error> {
        let ours = self.expand(value)?;
        let is_file = value.starts_with("{private}/");
        if self.rules.root_files.iter().any(|known| known == name)
            && !is_owned_by_root(Path::new(&ours))
        {
            self.folder.mark_silent();
            return Ok(None);
        }
        if let Some(known) = known(self.env, name).filter(|_| !is_file)
            && ours.starts_with('{')
        {
            let path = Path::new(name);
            let merged = merge(parse(&known, path)?, parse(&ours, path)?);
            return Ok(Some(merged.to_string()));
        }
        let is_left = self.env.contains_key(name) && !is_file;
        Ok((!is_left).then_some(ours))
    }

    fn expand(&self, text: &str) -> Result<String, Error> {
        let lossy = |path: &Path| path.to_string_lossy().into_owned();
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find('{') {
            out.push_str(&rest[..start]);
            rest = &rest[start..];
            let name = rest.find('}').map(|end| &rest[1..end]);
            let value = match name {
                Some("private") => lossy(self.folder.path()),
                Some("events") => lossy(&self.folder.events()),
                Some("notify") => self.notify()?,
                Some("bus") => json_text(&self.bus),
                Some("plugin_url") => file_url(&self.folder.path().join(PLUGIN)),
                Some(name) if name.starts_with("hook ") => {
                    json_text(&self.folder.hook_command(&name["hook ".len()..]))
                }
                _ => {
                    out.push('{');
                    rest = &rest[1..];
                    continue;
                }
            };
            out.push_str(&value);
            rest = &rest[name.map_or(0, str::len) + 2..];
        }
        out.push_str(rest);
        Ok(out)
    }

    fn notify(&self) -> Result<String, Error> {
        let hook = self.folder.path().join("hook.sh");
        let ours = [
            Path::new("sh"),
            &hook,
            &self.folder.events(),
            Path::new("notify"),
        ];
        let ours = ours.map(|path| path.to_string_lossy().into_owned());
        let theirs = codex_notify::of_user(&self.words, &codex_home(self.env))?;
        let list: Vec<_> = ours
            .into_iter()
            .chain(theirs)
            .map(|text| toml_string(&text))
            .collect();
        Ok(format!("[{}]", list.join(",")))
    }
}

/// The folder of Gemini.
pub(super) fn gemini_home(env: &BTreeMap<String, String>) -> PathBuf {
    let home = known(env, "GEMINI_CLI_HOME").or_else(|| known(env, "HOME"));
    Path::new(&home.unwrap_or_default()).join(".gemini")
}

/// A text for the inside of a JSON string.
fn json_text(text: &str) -> String {
    let json = Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// The folder of Codex.
pub(super) fn codex_home(env: &BTreeMap<String, String>) -> PathBuf {
    match known(env, "CODEX_HOME") {
        Some(home) => home.into(),
        None => Path::new(&known(env, "HOME").unwrap_or_default()).join(".codex"),
    }
}

/// The value of a variable that an agent has without us: that of its configuration, or else of this process.
fn known(env: &BTreeMap<String, String>, name: &str) -> Option<String> {
    let given = env.get(name).cloned();
    given
        .or_else(|| std::env::var(name).ok())
        .filter(|value| !value.is_empty())
}

fn parse(text: &str, path: &Path) -> Result<Value, Error> {
    parse_lenient(text).map_err(|error| Error::Config {
        path: path.to_owned(),
        position: format!("line {}", error.line()),
        reason: error.to_string(),
    })
}

/// Whether root owns a file and its folders, and no other user can write to them.
fn is_owned_by_root(path: &Path) -> bool {
    let is_safe = |path: &Path| {
        path.metadata()
            .is_ok_and(|metadata| metadata.uid() == 0 && metadata.mode() & 0o022 == 0)
    };
    path.canonicalize()
        .is_ok_and(|path| path.ancestors().all(is_safe))
}

/// A basic string of TOML. JSON escapes are the same, but for DEL, which TOML does not allow.
fn toml_string(text: &str) -> String {
    Value::String(text.to_owned())
        .to_string()
        .replace('\x7f', "\\u007f")
}

fn file_url(path: &Path) -> String {
    let mut url = "file://".to_owned();
    for byte in path.as_os_str().as_encoded_bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' => {
                url.push(char::from(*byte));
            }
            byte => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    struct Fixture {
        dir: tempfile::TempDir,
        rules: LaunchRules,
        env: BTreeMap<String, String>,
    }

    impl Fixture {
        fn new(rules: &str) -> Self {
            Self {
                dir: tempfile::tempdir().unwrap(),
                rules: toml::from_str(rules).unwrap(),
                env: BTreeMap::new(),
            }
        }

        fn folder(&self) -> LaunchFolder {
            LaunchFolder::new(&self.dir.path().join("it's \"q\""), "launch")
        }

        fn inject(&self, command: &str) -> Result<Launch, Error> {
            self.rules
                .inject(&self.folder(), Launch::new(command), &self.env)
        }

        fn settings(&self) -> Value {
            let path = self.folder().path().join("settings.json");
            serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
        }

        fn file(&self, name: &str, content: &str) -> String {
            let path = self.dir.path().join(name);
            fs::write(&path, content).unwrap();
            path.to_str().unwrap().to_owned()
        }
    }

    fn value(launch: &Launch, name: &str) -> Option<String> {
        let mut values = launch.variables().iter().rev();
        values
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    }

    const CLAUDE: &str = r#"
        args = ["--settings", "{private}/settings.json"]
        env = { NO_FLICKER = "0" }
        file = [{ path = "settings.json", content = '{"hooks":{"Stop":[{"command":"{hook Stop}"}]}}' }]
    "#;

    #[test]
    fn arguments_and_files_survive_strange_paths() {
        let fixture = Fixture::new(CLAUDE);
        let launch = fixture.inject("claude --model opus").unwrap();
        let folder = fixture.folder();
        let words = shell_words::split(launch.command());
        let texts: Vec<_> = words.iter().map(|word| word.text.as_str()).collect();
        let settings = folder.path().join("settings.json");
        assert_eq!(
            texts,
            [
                "claude",
                "--model",
                "opus",
                "--settings",
                settings.to_str().unwrap()
            ]
        );
        let expected = json!({"hooks": {"Stop": [{"command": folder.hook_command("Stop")}]}});
        assert_eq!(fixture.settings(), expected);
        assert_eq!(value(&launch, "NO_FLICKER").as_deref(), Some("0"));
    }

    #[test]
    fn an_option_of_the_command_line_is_merged() {
        let fixture = Fixture::new(CLAUDE);
        let mine = fixture.file(
            "mine.json",
            r#"{"hooks":{"Stop":["mine"]},"theme":"dark",} // x"#,
        );
        for command in [
            format!("claude --settings {mine}"),
            format!("claude --settings={mine} --model opus"),
            r#"claude --settings '{"hooks":{"Stop":["mine"]},"theme":"dark"}'"#.to_owned(),
        ] {
            fixture.inject(&command).unwrap();
            let settings = fixture.settings();
            assert_eq!(settings["theme"], "dark", "{command}");
            assert_eq!(settings["hooks"]["Stop"][0], "mine");
            assert_eq!(settings["hooks"]["Stop"].as_array().unwrap().len(), 2);
        }
        let refused = fixture.inject("claude --settings \"secret $HOME/x.json\"");
        match refused {
            Err(Error::Invalid { value, .. }) => assert_eq!(value, "--settings"),
            other => panic!("{other:?}"),
        }
        let broken = fixture.file("broken.json", "{\n\"a\": }");
        match fixture.inject(&format!("claude --settings {broken}")) {
            Err(Error::Config { position, .. }) => assert_eq!(position, "line 2"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_settings_file_is_found_in_the_home_and_the_work_folder_of_the_agent() {
        let mut fixture = Fixture::new(CLAUDE);
        fixture.file("mine.json", r#"{"theme":"dark"}"#);
        let dir = fixture.dir.path().to_owned();
        let home = dir.to_str().unwrap().to_owned();
        fixture.env.insert("HOME".to_owned(), home);
        let inject = |argument: &str| {
            let launch = Launch::new(format!("claude --settings {argument}")).work_dir(&dir);
            fixture
                .rules
                .inject(&fixture.folder(), launch, &fixture.env)
        };
        for argument in ["~/mine.json", "mine.json", "./mine.json"] {
            inject(argument).unwrap();
            assert_eq!(fixture.settings()["theme"], "dark", "{argument}");
        }
        for argument in ["~/missing.json", "missing.json", "'~/mine.json'"] {
            let error = inject(argument).unwrap_err();
            assert!(error.is_not_found(), "{argument}: {error:?}");
        }
        let refused = inject("~other/mine.json");
        assert!(matches!(refused, Err(Error::Invalid { .. })));
    }

    #[test]
    fn a_settings_file_that_a_variable_names_is_merged() {
        let mut fixture = Fixture::new(
            r#"
            env = { SETTINGS = "{private}/settings.json" }
            file = [{ path = "settings.json", content = '{"hooks":{"A":["bus"]}}' }]
            "#,
        );
        fixture.inject("gemini").unwrap();
        assert_eq!(fixture.settings(), json!({"hooks": {"A": ["bus"]}}));
        let system = fixture.file("system.json", r#"{"hooks":{"A":["system"]}}"#);
        let defaults = [format!("{system}.missing"), system].map(PathBuf::from);
        fixture
            .rules
            .default_files
            .insert("SETTINGS".to_owned(), defaults.into());
        fixture.inject("gemini").unwrap();
        assert_eq!(
            fixture.settings(),
            json!({"hooks": {"A": ["system", "bus"]}})
        );
        let mine = fixture.file("mine.json", r#"{"hooks":{"A":["mine"]}}"#);
        fixture.env.insert("SETTINGS".to_owned(), mine);
        let launch = fixture.inject("gemini").unwrap();
        assert_eq!(fixture.settings(), json!({"hooks": {"A": ["mine", "bus"]}}));
        let path = fixture.folder().path().join("settings.json");
        assert_eq!(value(&launch, "SETTINGS").as_deref(), path.to_str());
    }

    /// The folders of a test belong to root only if root runs it, and `/tmp` is open for all.
    #[test]
    fn a_file_for_root_only_is_not_injected_elsewhere() {
        let fixture = Fixture::new(
            r#"
            env = { SETTINGS = "{private}/settings.json" }
            root_files = ["SETTINGS"]
            file = [{ path = "settings.json", content = '{}' }]
            "#,
        );
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(fixture.dir.path(), open).unwrap();
        let launch = fixture.inject("gemini").unwrap();
        assert_eq!(value(&launch, "SETTINGS"), None);
        assert!(fixture.folder().is_silent());
        assert!(is_owned_by_root(Path::new("/")) && !is_owned_by_root(Path::new("/missing")));
    }

    #[test]
    fn json_in_a_variable_is_merged_and_other_values_of_the_user_are_left() {
        let mut fixture = Fixture::new(
            r#"
            env = { CONTENT = '{"plugin":["{plugin_url}"],"experimental":{"x":true}}', EVENTS = "{events}", PLAIN = "ours" }
            file = [{ path = "tmux-bus.js", source = "opencode.js" }]
            "#,
        );
        fixture
            .env
            .insert("CONTENT".to_owned(), r#"{"plugin":["mine"]}"#.to_owned());
        fixture.env.insert("PLAIN".to_owned(), "mine".to_owned());
        let launch = fixture.inject("opencode").unwrap();
        let content: Value = serde_json::from_str(&value(&launch, "CONTENT").unwrap()).unwrap();
        let plugin = fixture.folder().path().join(PLUGIN);
        let expected = json!({"plugin": ["mine", file_url(&plugin)], "experimental": {"x": true}});
        assert_eq!(content, expected);
        assert_eq!(
            value(&launch, "EVENTS").as_deref(),
            fixture.folder().events().to_str()
        );
        assert_eq!(value(&launch, "PLAIN"), None);
        assert_eq!(fs::read_to_string(&plugin).unwrap(), OPENCODE);
        assert!(file_url(&plugin).contains("/it%27s%20%22q%22/"));
    }

    #[test]
    fn the_notify_program_of_the_user_is_chained() {
        let mut fixture = Fixture::new(r#"args = ["-c", "notify={notify}"]"#);
        let home = fixture.dir.path().to_str().unwrap().to_owned();
        fixture.env.insert("CODEX_HOME".to_owned(), home);
        fixture.file("config.toml", "notify = [\"my program\", \"first arg\"]");
        let launch = fixture.inject("codex").unwrap();
        let words = shell_words::split(launch.command());
        let list = words[2].text.strip_prefix("notify=").unwrap();
        let list: Vec<String> = serde_json::from_str(list).unwrap();
        let folder = fixture.folder();
        let hook = folder.path().join("hook.sh");
        let events = folder.events();
        let expected = [
            "sh",
            hook.to_str().unwrap(),
            events.to_str().unwrap(),
            "notify",
            "my program",
            "first arg",
        ];
        assert_eq!(list, expected);
    }
}
