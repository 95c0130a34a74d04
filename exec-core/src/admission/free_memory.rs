use crate::Error;

/// The memory that new processes can use without swapping, as the kernel estimates it.
pub(super) use system::free_memory;

#[cfg(target_os = "linux")]
mod system {
    use std::io;
    use std::path::Path;

    use super::Error;

    const MEMINFO: &str = "/proc/meminfo";

    pub(in super::super) fn free_memory() -> Result<u64, Error> {
        let failed = || Error::io("read the free memory from", Path::new(MEMINFO));
        let text = std::fs::read_to_string(MEMINFO).map_err(failed())?;
        available(&text).ok_or_else(|| failed()(io::ErrorKind::InvalidData.into()))
    }

    pub(super) fn available(meminfo: &str) -> Option<u64> {
        let line = meminfo
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kilobytes.checked_mul(1024)
    }
}

/// Type-checked, never run.
#[cfg(target_os = "macos")]
mod system {
    use std::ffi::CStr;
    use std::io;
    use std::path::Path;

    use super::Error;

    /// The share of the memory that is free or can be freed at once, in per cent, as the program
    /// `memory_pressure` prints it.
    const LEVEL: &CStr = c"kern.memorystatus_level";
    const MEMORY: &CStr = c"hw.memsize";

    pub(in super::super) fn free_memory() -> Result<u64, Error> {
        let read = |name| {
            let path = Path::new("the kernel");
            read_number(name).map_err(Error::io("read the free memory from", path))
        };
        let (level, memory) = (read(LEVEL)?, read(MEMORY)?);
        Ok(memory / 100 * level.min(100))
    }

    /// A number of four or eight bytes.
    fn read_number(name: &CStr) -> io::Result<u64> {
        let mut value = [0_u8; 8];
        let mut len = value.len();
        // SAFETY: the kernel writes at most `len` bytes, and the number of them to `len`.
        let failed = unsafe {
            let (value, none) = (value.as_mut_ptr().cast(), std::ptr::null_mut());
            libc::sysctlbyname(name.as_ptr(), value, &mut len, none, 0)
        };
        // Both processors of Apple are little-endian: the rest is zero.
        match failed {
            0 => Ok(u64::from_le_bytes(value)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_estimate_of_the_kernel_is_read() {
        let available = system::available;
        let text = "MemTotal:  16 kB\nMemFree:  1 kB\nMemAvailable:    8123 kB\n";
        assert_eq!(available(text), Some(8123 * 1024));
        assert_eq!(available("MemTotal: 16 kB\n"), None);
    }

    #[test]
    fn some_memory_is_free() {
        assert!(free_memory().unwrap() > 0);
    }
}
