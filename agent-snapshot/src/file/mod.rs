//! Snapshots as files: plain JSON, and a checksummed append log beside it.
//!
//! # Theory
//!
//! The files of agent `a`, each written by one process at a time under the kernel lock of
//! `a.lock`:
//!
//! | file | contents | written |
//! |---|---|---|
//! | `a.json` | the snapshot at some tick, with the *generation* of the file | replaced by rename |
//! | `a.7.log` | one line for each save since generation 7 was written | appended, synced |
//! | `a.1.history` | *archive*: messages that were out of view at a rewrite; named after the generation that started it | appended, synced |
//! | `a.deleted` | *tombstone* of a delete: generation and epoch | replaced by rename |
//!
//! The snapshot is `a.json` plus the lines of the log of the same generation. The stream is the
//! archive, plus the messages in `a.json`, plus the messages in the log.
//!
//! Each operation has one commit point. Before it a crash leaves the old state, after it the new
//! one:
//!
//! - **Append** (the usual save): the sync of the new line. A crash before that leaves a torn tail,
//!   which readers ignore. The next append cuts it off and syncs the cut first: otherwise a second
//!   crash could leave a mix of the old tail and the new line.
//! - **Rewrite** from generation 7 to 8 (first save, long log, another history, `compact`): append
//!   to the archive, or start another one for another history, for `cap_stream`, and for messages that
//!   come back from the archive into view; create `a.8.log`; sync both and the folder; write
//!   `a.json.tmp`, sync it, rename it to `a.json`, sync the folder. The commit point is the rename.
//!   Every file that the new `a.json` names is durable before it. Afterwards `a.7.log` is removed. A
//!   first save that has messages for the archive writes a tombstone of generation 0 before: without
//!   a JSON file, only a tombstone tells an interrupted save from a lost file.
//! - **Delete**: the rename of the tombstone. A file of the tombstone's generation or lower is dead
//!   from then on, whether or not it is still there. Afterwards the dead files are removed; a
//!   repeated delete removes what an interrupted one has left. The
//!   tombstone stays if the agent had an epoch, because a fenced-off holder must stay fenced off.
//!
//! **Example.** Generation 7 is stored, and the machine crashes in a rewrite to 8.
//!
//! | crash | on disk | read as |
//! |---|---|---|
//! | before the rename | `a.json` (7), `a.7.log`, `a.8.log` | generation 7; `a.8.log` is left over and removed later; the archive is longer than `a.json` says, and the rest is cut off by the next rewrite |
//! | after the rename | `a.json` (8), `a.8.log`, `a.7.log` | generation 8; `a.7.log` is never read again |
//!
//! After a failed write or sync it is unknown what the disk holds: on Linux a sync that fails
//! forgets the data, and the next sync succeeds without it. So after any failure nothing is
//! appended any more (`is_uncertain`); the next call reads the files and writes a new generation.
//! **Limit:** only the handle that saw the failure knows it. Another process that appends before
//! that call appends behind a line that the disk may not have.
//!
//! **Races.** A process keeps the log open between calls. Under the lock it first checks
//! that the log has the length that it left and still has its name, that `a.json` is the same file
//! (inode, length and time of change), and that no tombstone exists. Otherwise another process was
//! here, and the files are read again. The log alone does not show a rewrite: a generation of
//! [`rewrite_every_save`](FileStorageBuilder::rewrite_every_save) has no log, and its process may be
//! killed before it removes the old one.
//!
//! Each line begins with a CRC-32 that is seeded with that of the line before it, so the last line
//! proves the whole log, and a line that is missing in the middle is found.

mod agent_files;
mod checksummed_lines;
mod file_set;
mod file_storage;
mod folder;
mod log_record;
mod snapshot_document;
mod snapshot_parts;
mod tombstone;

#[cfg(test)]
mod faults;
#[cfg(test)]
mod simulated_folder;

pub use file_storage::{FileStorage, FileStorageBuilder};
