//! One name for each file: its real path.

use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use examples::Result;

use crate::overlap::WILDCARDS;

/// The pattern below the root folder, which is a real path. The part before the first wildcard becomes
/// the real path; a folder becomes everything in it.
pub(crate) fn real_pattern(root: &Path, pattern: &str) -> Result<String> {
    let first = pattern.find(WILDCARDS).unwrap_or(pattern.len());
    let start = match first == pattern.len() {
        true => first,
        // The part with the wildcard is not a name.
        false => pattern[..first].rfind('/').map_or(0, |slash| slash + 1),
    };
    let (fixed, rest) = pattern.split_at(start);
    if rest.split('/').any(|part| part == "..") {
        return Err(format!("`{pattern}` has `..` behind a wildcard").into());
    }
    let real = real_path(&root.join(fixed))?;
    let Ok(relative) = real.strip_prefix(root) else {
        let root = root.display();
        return Err(format!("`{pattern}` is outside of the root folder {root}").into());
    };
    let names: Option<Vec<&str>> = relative.iter().map(|name| name.to_str()).collect();
    let mut parts: Vec<String> = names
        .ok_or_else(|| format!("`{pattern}` leads to a name that is not UTF-8"))?
        .into_iter()
        .map(globset::escape)
        .collect();
    // Real names have no `.` and no empty part: such a pattern would match nothing.
    let names = rest.split('/').filter(|part| !matches!(*part, "" | "."));
    parts.extend(names.map(str::to_owned));
    if pattern.ends_with('/') || rest.is_empty() && real.is_dir() {
        parts.push("**".to_owned());
    }
    Ok(parts.join("/"))
}

/// The path without `..` and symbolic links. Parts that do not exist yet are kept.
pub(crate) fn real_path(path: &Path) -> Result<PathBuf> {
    let mut real = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                real.pop();
            }
            part => real.push(part),
        }
        match real.canonicalize() {
            Ok(found) => real = found,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // A write through a link creates the file that the link names. A loop of links is another error.
                if let (Ok(target), Some(folder)) = (real.read_link(), real.parent()) {
                    real = real_path(&folder.join(target))?;
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(real)
}
