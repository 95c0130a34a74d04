//! Numbers in a file that survive a kill of the writing process: the acknowledged state.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// `N` numbers, initially zero.
pub(crate) struct Record<const N: usize>(pub(crate) File);

impl<const N: usize> Record<N> {
    pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let options = options.create(true).truncate(false).read(true).write(true);
        options.open(path).map(Self)
    }

    pub(crate) fn read(&self) -> io::Result<[u64; N]> {
        let mut bytes = vec![0; N * 8];
        // A short read leaves zeros for the numbers that were never written.
        let _ = self.0.read_at(&mut bytes, 0)?;
        let mut numbers = [0; N];
        for (number, bytes) in numbers.iter_mut().zip(bytes.chunks(8)) {
            *number = bytes.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
        }
        Ok(numbers)
    }

    pub(crate) fn write(&self, numbers: [u64; N]) -> io::Result<()> {
        let bytes = numbers.map(u64::to_be_bytes).concat();
        self.0.write_all_at(&bytes, 0)
    }
}
