//! Files of JSON lines that several processes append to.
//!
//! This file is the same in every crate that has it; `scripts/check-shared` compares the copies.
//!
//! A line is acknowledged when its newline is written. A writer that is killed in the middle of a
//! line leaves a torn tail: bytes after the last newline. The next writer repairs the tail under
//! the lock of the file, so that it cannot swallow the next line:
//!
//! | tail | repair | reason |
//! |---|---|---|
//! | none | nothing | |
//! | a whole JSON value | a newline is added | a person may have edited the file |
//! | anything else | the tail is cut off | it was never acknowledged |

#![allow(dead_code, reason = "each crate uses its own part of a shared file")]

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::de::IgnoredAny;

use super::kernel_lock::{Access, LockedFile};
use super::private_file::{self, FileError};

/// Opens a file for appending, with its lock; waits for the lock.
pub(crate) fn open_locked(path: &Path) -> Result<LockedFile, FileError> {
    let mut options = File::options();
    let file = private_file::open(path, options.create(true).read(true).append(true))?;
    LockedFile::lock(file, Access::Exclusive).map_err(FileError::io("lock", path))
}

/// Appends one line, given without its newline, and returns the new length of the file.
///
/// Only for the holder of the file's lock, and for a file that was opened for appending. If it
/// fails, the file is as it was.
pub(crate) fn append(mut file: &File, line: &[u8]) -> io::Result<u64> {
    let end = repair_tail(file)?;
    let mut bytes = Vec::with_capacity(line.len() + 1);
    bytes.extend_from_slice(line);
    bytes.push(b'\n');
    if let Err(error) = file.write_all(&bytes) {
        file.set_len(end)?;
        return Err(error);
    }
    Ok(end + bytes.len() as u64)
}

/// The lines that were acknowledged, with their numbers from 1. Empty lines are left out.
pub(crate) fn whole_lines(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let end = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = bytes[..end].split(|byte| *byte == b'\n').enumerate();
    lines
        .map(|(index, line)| (index + 1, line))
        .filter(|(_, line)| !line.trim_ascii().is_empty())
}

/// Repairs the tail and returns the length of the file.
fn repair_tail(mut file: &File) -> io::Result<u64> {
    let len = file.metadata()?.len();
    let start = start_of_tail(file, len)?;
    if start == len {
        return Ok(len);
    }
    let mut tail = vec![0; usize::try_from(len - start).map_err(io::Error::other)?];
    file.read_exact_at(&mut tail, start)?;
    if serde_json::from_slice::<IgnoredAny>(&tail).is_ok() {
        file.write_all(b"\n")?;
        return Ok(len + 1);
    }
    tracing::warn!(bytes = tail.len(), "cutting off a torn line");
    file.set_len(start)?;
    Ok(start)
}

/// The offset behind the last newline.
fn start_of_tail(file: &File, len: u64) -> io::Result<u64> {
    // The usual case, no tail, is seen by reading one byte.
    let mut step = 1;
    let mut end = len;
    let mut buffer = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(step);
        buffer.resize((end - start) as usize, 0);
        file.read_exact_at(&mut buffer, start)?;
        if let Some(newline) = buffer.iter().rposition(|byte| *byte == b'\n') {
            return Ok(start + newline as u64 + 1);
        }
        end = start;
        step = 4096;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_append(before: &[u8], expected: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        (&*open_locked(&path).unwrap()).write_all(before).unwrap();
        let len = append(&open_locked(&path).unwrap(), b"{\"new\":1}").unwrap();
        let after = std::fs::read(&path).unwrap();
        assert_eq!(after, expected, "{}", String::from_utf8_lossy(&after));
        assert_eq!(len, after.len() as u64);
    }

    #[test]
    fn a_torn_tail_is_cut_and_a_whole_one_is_kept() {
        check_append(b"", b"{\"new\":1}\n");
        check_append(b"{\"a\":1}\n", b"{\"a\":1}\n{\"new\":1}\n");
        check_append(b"{\"a\":1}\n{\"b\":", b"{\"a\":1}\n{\"new\":1}\n");
        check_append(b"{\"b\":", b"{\"new\":1}\n");
        check_append(
            b"{\"a\":1}\n{\"b\":2}",
            b"{\"a\":1}\n{\"b\":2}\n{\"new\":1}\n",
        );
        let long = [b"{\"a\":1}\n{\"b\":\"".as_slice(), &[b'x'; 10_000]].concat();
        check_append(&long, b"{\"a\":1}\n{\"new\":1}\n");
    }

    #[test]
    fn whole_lines_leave_out_the_tail() {
        let lines: Vec<_> = whole_lines(b"1\n\n 2\n3").collect();
        assert_eq!(lines, [(1, b"1".as_slice()), (3, b" 2".as_slice())]);
        assert_eq!(whole_lines(b"1").count(), 0);
        assert_eq!(whole_lines(b"").count(), 0);
    }

    #[test]
    fn writers_append_whole_lines_in_turn() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lines.jsonl");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..50 {
                        let line = format!("[{writer},{number}]");
                        append(&open_locked(path).unwrap(), line.as_bytes()).unwrap();
                    }
                });
            }
        });
        let bytes = std::fs::read(&path).unwrap();
        let mut next = [0; 4];
        for (_, line) in whole_lines(&bytes) {
            let (writer, number): (usize, u32) = serde_json::from_slice(line).unwrap();
            assert_eq!(number, next[writer]);
            next[writer] += 1;
        }
        assert_eq!(next, [50; 4]);
    }
}
