use std::io;
use std::path::Path;

use crate::Error;

const MEMINFO: &str = "/proc/meminfo";

/// The memory that new processes can use without swapping, as the kernel estimates it.
pub(super) fn free_memory() -> Result<u64, Error> {
    let failed = || Error::io("read the free memory from", Path::new(MEMINFO));
    let text = std::fs::read_to_string(MEMINFO).map_err(failed())?;
    available(&text).ok_or_else(|| failed()(io::ErrorKind::InvalidData.into()))
}

fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kilobytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_of_the_kernel_is_read() {
        let text = "MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:    8123 kB\n";
        assert_eq!(available(text), Some(8123 * 1024));
        assert_eq!(available("MemTotal: 16 kB\n"), None);
        assert!(free_memory().unwrap() > 0);
    }
}
