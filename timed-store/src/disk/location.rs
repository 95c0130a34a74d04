//! The paths of a store.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use crate::Error;

/// The data file and the files beside it.
#[derive(Debug)]
pub(crate) struct Location {
    pub(crate) data: PathBuf,
    /// The locked file, which also holds the token record. Never deleted: a lock on a file that
    /// can be replaced excludes nothing. Not `.lock`, which the original tool creates and deletes.
    pub(crate) lock: PathBuf,
}

impl Location {
    pub(crate) fn new(data: &Path) -> Result<Self, Error> {
        let invalid = |reason| Error::Invalid {
            what: "path",
            value: data.display().to_string(),
            reason,
        };
        if data.file_name().is_none() {
            return Err(invalid("it names no file"));
        }
        // A later change of the working directory must not move the store.
        let data = std::path::absolute(data).map_err(|_| invalid("it cannot be made absolute"))?;
        Ok(Self {
            lock: with_suffix(&data, ".flock"),
            data,
        })
    }

    /// `{temp}/{name}-{hostname}.json`
    pub(crate) fn in_temp(name: &str) -> Result<PathBuf, Error> {
        if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
            return Err(Error::Invalid {
                what: "store name",
                value: name.to_owned(),
                reason: "it must be part of a file name: not empty, no slash, no leading dot",
            });
        }
        let host = rustix::system::uname();
        let host = safe_host_name(&host.nodename().to_string_lossy());
        Ok(std::env::temp_dir().join(format!("{name}-{host}.json")))
    }

    pub(crate) fn slots(&self) -> PathBuf {
        slots(&self.data)
    }

    /// The folder of the waiters for values.
    pub(crate) fn waiters(&self) -> PathBuf {
        with_suffix(&self.data, ".flock-waiters")
    }

    /// The folder that holds the files.
    pub(crate) fn folder(&self) -> &Path {
        self.data.parent().unwrap_or(Path::new("/"))
    }

    /// Whether there is a data file. A dangling symbolic link counts, so that it is refused and
    /// not ignored.
    pub(crate) fn has_data(&self) -> Result<bool, Error> {
        match self.data.symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::io("look for", &self.data)(error)),
        }
    }
}

/// The data file of the named slots, in the same format.
pub(crate) fn slots(data: &Path) -> PathBuf {
    with_suffix(data, ".slots")
}

pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// Maps the host name as the original tool does, so that both use the same file.
fn safe_host_name(name: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    if name.is_empty() {
        "localhost".to_owned()
    } else {
        // JavaScript replaces each UTF-16 unit.
        let units = name
            .chars()
            .flat_map(|c| std::iter::repeat_n(safe(c), c.len_utf16()));
        units.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_become_file_names() {
        for (name, expected) in [
            ("host", "host"),
            ("My-Mac.local", "My_Mac_local"),
            ("../../etc", "______etc"),
            ("山田の Mac", "____Mac"),
            ("\u{1F600}", "__"),
            ("", "localhost"),
        ] {
            assert_eq!(safe_host_name(name), expected);
        }
    }

    #[test]
    fn a_name_cannot_leave_the_folder() {
        for name in ["", "a/b", "../a", ".hidden", "a\0b"] {
            assert!(Location::in_temp(name).is_err(), "{name:?}");
        }
        let path = Location::in_temp("coeiroink-operators").unwrap();
        assert_eq!(path.parent(), Some(std::env::temp_dir().as_path()));
    }

    #[test]
    fn side_files_keep_clear_of_the_original_tool() {
        let location = Location::new(Path::new("/tmp/x.json")).unwrap();
        assert_eq!(location.lock, Path::new("/tmp/x.json.flock"));
        assert_eq!(location.slots(), Path::new("/tmp/x.json.slots"));
        assert!(Location::new(Path::new("/")).is_err());
    }
}
