/// Which failures a completed write survives.
///
/// ```
/// use timed_store::{Durability, blocking::TimedStorage};
///
/// # let folder = tempfile::tempdir().unwrap();
/// let store = TimedStorage::<String>::builder(folder.path().join("operators.json"))
///     .durability(Durability::Power)
///     .open()?;
/// store.store(&"tsukuyomi".to_owned())?;
/// # Ok::<(), timed_store::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Durability {
    /// The death of every process, at any moment. After a power cut the last writes may be lost,
    /// or the file may be empty, which is then reported as corrupt.
    #[default]
    Process,
    /// A power cut as well: file and folder are synced (fsync) before the operation returns. It
    /// takes about ten times as long.
    Power,
}
