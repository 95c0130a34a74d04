use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use tempfile::NamedTempFile;
use toml_edit::{DocumentMut, Item, Table};

use super::profile::UserProfile;
use crate::error::Result;
use crate::{EntryError, Error};

/// The user's file of profiles, TOML or JSON by its ending.
#[derive(Clone, Debug)]
pub(crate) struct UserFile {
    path: PathBuf,
    format: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Toml,
    Json,
}

/// What a file holds.
#[derive(Default)]
pub(crate) struct Loaded {
    pub(crate) entries: BTreeMap<String, UserProfile>,
    pub(crate) errors: Vec<EntryError>,
    pub(crate) missing: bool,
}

impl UserFile {
    pub(crate) fn new(path: &Path) -> Result<Self> {
        let format = match path.extension().and_then(|ending| ending.to_str()) {
            Some("toml") => Format::Toml,
            Some("json") => Format::Json,
            _ => {
                return Err(Error::Syntax {
                    path: path.to_owned(),
                    reason: "its name ends neither in .toml nor in .json".to_owned(),
                });
            }
        };
        Ok(Self {
            path: path.to_owned(),
            format,
        })
    }

    pub(crate) fn load(&self) -> Result<Loaded> {
        match self.read()? {
            Some(text) => self.parse(&text),
            None => Ok(Loaded {
                missing: true,
                ..Loaded::default()
            }),
        }
    }

    /// Puts one entry into the file (`None` takes it out) and returns what the file then holds.
    ///
    /// The file is read again under a lock that all writers take, so that what another process
    /// saved meanwhile is kept; entries that are not valid are kept too. It is replaced in one
    /// step: a reader sees the old or the new file, also after a crash.
    pub(crate) fn save(&self, label: &str, profile: Option<&UserProfile>) -> Result<Loaded> {
        let mut lock = fd_lock::RwLock::new(self.lock_file()?);
        let _locked = lock.write().map_err(|source| Error::File {
            action: "lock",
            path: self.lock_path(),
            source,
        })?;
        let old = self.read()?;
        if old.is_none() && profile.is_none() {
            return self.load();
        }
        let new = match self.format {
            Format::Toml => self.edit_toml(old.as_deref(), label, profile)?,
            Format::Json => self.edit_json(old.as_deref(), label, profile)?,
        };
        let loaded = self.parse(&new)?;
        self.replace(&new).map_err(|source| Error::File {
            action: "write",
            path: self.path.clone(),
            source,
        })?;
        Ok(loaded)
    }

    /// The text, or `None` if there is no file.
    fn read(&self) -> Result<Option<String>> {
        let read = || {
            let file = File::open(&self.path)?;
            // It says which programs are started, with the user's keys in their environment.
            if file.metadata()?.mode() & 0o002 != 0 {
                let reason = "everybody can write to it: take that right away (chmod o-w)";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
            }
            io::read_to_string(file)
        };
        match read() {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(Error::File {
                action: "read",
                path: self.path.clone(),
                source,
            }),
        }
    }

    fn parse(&self, text: &str) -> Result<Loaded> {
        let document: Document = match self.format {
            Format::Toml => toml_edit::de::from_str(text).map_err(|error| self.syntax(&error))?,
            Format::Json if text.trim().is_empty() => Document::default(),
            Format::Json => serde_json::from_str(text).map_err(|error| self.syntax(&error))?,
        };
        let mut loaded = Loaded::default();
        for (label, value) in document.profiles.0 {
            let entry = match value {
                Some(value) => parse_entry(value),
                None => Err("it is there twice".to_owned()),
            };
            match entry {
                Ok(profile) => {
                    loaded.entries.insert(label, profile);
                }
                Err(reason) => loaded.errors.push(self.entry_error(label, reason)),
            }
        }
        Ok(loaded)
    }

    pub(crate) fn entry_error(&self, label: String, reason: String) -> EntryError {
        EntryError {
            file: Some(self.path.clone()),
            entry: label,
            reason,
        }
    }

    fn syntax(&self, error: &dyn fmt::Display) -> Error {
        Error::Syntax {
            path: self.path.clone(),
            reason: error.to_string().trim_end().to_owned(),
        }
    }

    /// Comments and order of everything else stay as they are.
    fn edit_toml(
        &self,
        old: Option<&str>,
        label: &str,
        profile: Option<&UserProfile>,
    ) -> Result<String> {
        let mut document: DocumentMut = old
            .unwrap_or_default()
            .parse()
            .map_err(|error: toml_edit::TomlError| self.syntax(&error))?;
        let trailing = document.trailing().as_str().unwrap_or_default().to_owned();
        let mut added = false;
        let profiles = document.entry("profiles").or_insert_with(|| {
            let mut table = Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
        let inline = profiles.is_inline_table();
        let profiles = profiles
            .as_table_like_mut()
            .ok_or_else(|| self.syntax(&"`profiles` is not a table"))?;
        match profile {
            Some(profile) => {
                let entry = toml_edit::ser::to_document(profile).map_err(|e| self.syntax(&e))?;
                let mut table = entry.into_table();
                added = !inline && !profiles.contains_key(label);
                if added {
                    // What ends the file stays above what is added to its end.
                    table.decor_mut().set_prefix(&trailing);
                }
                profiles.insert(label, Item::Table(table));
            }
            None => {
                profiles.remove(label);
            }
        }
        if added {
            document.set_trailing("");
        }
        Ok(document.to_string())
    }

    fn edit_json(
        &self,
        old: Option<&str>,
        label: &str,
        profile: Option<&UserProfile>,
    ) -> Result<String> {
        let old = old.filter(|text| !text.trim().is_empty()).unwrap_or("{}");
        let mut document: Value = serde_json::from_str(old).map_err(|error| self.syntax(&error))?;
        let profiles = document
            .as_object_mut()
            .map(|document| {
                document
                    .entry("profiles")
                    .or_insert_with(|| Value::Object(Default::default()))
            })
            .and_then(Value::as_object_mut)
            .ok_or_else(|| self.syntax(&"`profiles` is not an object"))?;
        match profile {
            Some(profile) => {
                let entry = serde_json::to_value(profile).map_err(|error| self.syntax(&error))?;
                profiles.insert(label.to_owned(), entry);
            }
            None => {
                profiles.remove(label);
            }
        }
        let mut text =
            serde_json::to_string_pretty(&document).map_err(|error| self.syntax(&error))?;
        text.push('\n');
        Ok(text)
    }

    /// Never deleted: a lock on a file that others replace is no lock.
    fn lock_path(&self) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".lock");
        path.into()
    }

    fn lock_file(&self) -> Result<File> {
        let path = self.lock_path();
        let open = || {
            if let Some(folder) = path.parent() {
                fs::create_dir_all(folder)?;
            }
            OpenOptions::new()
                .create(true)
                .truncate(false)
                .write(true)
                // Whoever can open it can hold it.
                .mode(0o600)
                .open(&path)
        };
        open().map_err(|source| Error::File {
            action: "lock",
            path: path.clone(),
            source,
        })
    }

    fn replace(&self, text: &str) -> io::Result<()> {
        // A link (to a folder of dotfiles, say) stays a link: its target is replaced.
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let folder = match target.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let mut temporary = NamedTempFile::new_in(folder)?;
        temporary.write_all(text.as_bytes())?;
        if let Ok(old) = fs::metadata(&target) {
            temporary.as_file().set_permissions(old.permissions())?;
        }
        temporary.as_file().sync_all()?;
        temporary.persist(&target).map_err(|error| error.error)?;
        File::open(folder)?.sync_all()
    }
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    profiles: Entries,
}

/// The entries in the order of the file, unread: one that is not valid must not spoil the others.
/// One that is there twice has no value.
#[derive(Default)]
struct Entries(Vec<(String, Option<Value>)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct EntriesVisitor;

        impl<'de> Visitor<'de> for EntriesVisitor {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a table of profiles")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries: Vec<(String, Option<Value>)> = Vec::new();
                while let Some((label, value)) = map.next_entry::<String, Value>()? {
                    match entries.iter_mut().find(|(known, _)| *known == label) {
                        Some((_, value)) => *value = None,
                        None => entries.push((label, Some(value))),
                    }
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(EntriesVisitor)
    }
}

fn parse_entry(value: Value) -> Result<UserProfile, String> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        // The message would quote a value that may be a secret.
        if path.split('.').any(|field| field == "env") {
            return format!("{path}: variables are texts");
        }
        match path.as_str() {
            "." => error.inner().to_string(),
            _ => format!("{path}: {}", error.inner()),
        }
    })
}
