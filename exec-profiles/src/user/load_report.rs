use crate::EntryError;

/// The result of loading or changing the user file.
///
/// ```
/// use std::io::Write;
/// use exec_profiles::ProfileRegistry;
///
/// let mut file = tempfile::Builder::new().suffix(".toml").tempfile()?;
/// writeln!(file, "[profiles.mine]\nbase = 'codex'\n[profiles.typo]\nbnary = 'agent'")?;
///
/// let report = ProfileRegistry::new().load_user_file(file.path())?;
/// assert_eq!(report.labels, ["mine"]);
/// assert_eq!(report.errors[0].entry, "typo");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The labels of the valid profiles, in order.
    pub labels: Vec<String>,
    /// The invalid profiles, which were not loaded.
    pub errors: Vec<EntryError>,
    /// Whether the file does not exist. This is not an error: the file has no profiles yet.
    pub missing: bool,
}
