use std::{fs::OpenOptions, io, path::Path};

/// Makes a folder (mode 0700) if it is missing, and refuses one in which other users could
/// plant or exchange files.
pub(crate) fn folder(path: &Path) -> io::Result<()> {
    let path = if path.as_os_str().is_empty() {
        Path::new(".")
    } else {
        path
    };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)?;
    check(path)
}

/// Options for a file that only its owner can read, and that is not somebody's link.
pub(crate) fn file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
        options.mode(0o600).custom_flags(no_follow.cast_signed());
    }
    options
}

#[cfg(unix)]
fn check(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    let found = folder.metadata()?;
    let refused = |reason: String| Err(io::Error::new(io::ErrorKind::PermissionDenied, reason));
    if found.mode() & 0o002 != 0 {
        return refused(
            "every user can write to this folder: use one of your own, or chmod o-w it".to_owned(),
        );
    }
    let own = rustix::process::geteuid().as_raw();
    if ![own, 0].contains(&found.uid()) && own != 0 {
        return refused(format!(
            "this folder belongs to another user (uid {})",
            found.uid()
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check(_: &Path) -> io::Result<()> {
    Ok(())
}
