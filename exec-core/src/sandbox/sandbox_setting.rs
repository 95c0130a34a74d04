use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::Sandbox;

/// Whether there is a sandbox; in files `"off"` or a table.
///
/// ```
/// use exec_core::{Sandbox, SandboxSetting};
///
/// let off: SandboxSetting = serde_json::from_str(r#""off""#)?;
/// assert_eq!(off, SandboxSetting::Off);
/// let on: SandboxSetting = serde_json::from_str(r#"{ "hide": ["~/.ssh"] }"#)?;
/// assert_eq!(on, SandboxSetting::On(Sandbox::new().hide("~/.ssh")));
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SandboxSetting {
    /// No sandbox.
    Off,
    /// This sandbox.
    On(Sandbox),
}

impl SandboxSetting {
    /// The sandbox, if there is one.
    pub fn sandbox(&self) -> Option<&Sandbox> {
        match self {
            Self::Off => None,
            Self::On(sandbox) => Some(sandbox),
        }
    }
}

impl Serialize for SandboxSetting {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Off => serializer.serialize_str("off"),
            Self::On(sandbox) => sandbox.serialize(serializer),
        }
    }
}

/// Not derived: an untagged enum does not say which field of the table is wrong.
impl<'de> Deserialize<'de> for SandboxSetting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SettingVisitor;

        impl<'de> Visitor<'de> for SettingVisitor {
            type Value = SandboxSetting;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"off\" or a table with `write`, `read` and `hide`")
            }

            fn visit_str<E: Error>(self, word: &str) -> Result<Self::Value, E> {
                match word {
                    "off" => Ok(SandboxSetting::Off),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                Sandbox::deserialize(MapAccessDeserializer::new(map)).map(SandboxSetting::On)
            }
        }

        deserializer.deserialize_any(SettingVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReadAccess;

    #[track_caller]
    fn check(json: &str, expected: SandboxSetting) {
        let setting: SandboxSetting = serde_json::from_str(json).unwrap();
        assert_eq!(setting, expected);
        let again = serde_json::to_string(&setting).unwrap();
        assert_eq!(
            serde_json::from_str::<SandboxSetting>(&again).unwrap(),
            expected
        );
    }

    #[test]
    fn a_table_has_defaults_and_a_word_is_off() {
        check(r#""off""#, SandboxSetting::Off);
        check("{}", SandboxSetting::On(Sandbox::new()));
        check(
            r#"{ "write": [], "read": "all" }"#,
            SandboxSetting::On(Sandbox::read_only_workspace()),
        );
        let mut listed = Sandbox::new().hide("~/.ssh");
        listed.read = ReadAccess::Only(vec!["/etc".into()]);
        check(
            r#"{ "read": ["/etc"], "hide": ["~/.ssh"] }"#,
            SandboxSetting::On(listed),
        );
    }

    #[test]
    fn a_mistake_is_named() {
        for (json, part) in [
            (r#""on""#, "\"off\" or a table"),
            ("true", "\"off\" or a table"),
            (r#"{ "wirte": [] }"#, "wirte"),
            (r#"{ "read": "some" }"#, "`read` is \"all\" or a list"),
            (r#"{ "hide": "~/.ssh" }"#, "expected a sequence"),
        ] {
            let error = serde_json::from_str::<SandboxSetting>(json).unwrap_err();
            assert!(error.to_string().contains(part), "{json}: {error}");
        }
    }
}
