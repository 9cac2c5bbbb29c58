//! The log: what was promised before it reached an index, and how it is found again after a crash.
//!
//! Logical redo: a record holds the operations of one batch ([`ops`]) and the seqnos that it took. [`Log`] writes
//! records, [`replay()`] reads them back, [`inspect()`] shows what a log holds.
//!
//! ```text
//!  wal-0000-000000000007      wal-0000-000000000008                      (stream 0; the format has streams, see below)
//!  ┌──────┬─────┬─────┬───┐   ┌──────┬─────┬────┬·········┬─────┬────────────┐
//!  │header│ r 1 │ r 2 │ … │   │header│ r 9 │r 10│  zeros  │r 11 │ zeros      │
//!  └──────┴─────┴─────┴───┘   └──────┴─────┴────┴·········┴─────┴────────────┘
//!                    cut to        through here synced    ▲ next 4 KiB      ▲ preallocated
//!                    its length                           block             size
//! ```
//!
//! # Invariants
//!
//! - A segment is created, preallocated, given its header and synced, with the directory, **before** its first record is
//!   written. So an append never fails for want of space, and a header that is damaged above a body that is not blank
//!   was damaged later.
//! - Bytes that were synced are never written again: a sync ends its 4 KiB block, the next record starts in the next.
//! - A record says through which seqno the whole log was durable when it was written. That is what tells a torn tail
//!   from damage in the middle.
//! - Seqnos are contiguous. Replay takes the contiguous prefix; an *epoch* (one life of a writer) begins after the
//!   prefix that it found, and voids what earlier epochs left beyond it.
//! - The first failed write or sync is final: the log refuses everything afterwards, and a sync is never tried again.
//!
//! # Streams
//!
//! Segments belong to streams, each a sequence of its own that one thread may write; replay merges any number of them
//! by seqno. Only stream 0 is written so far. Durability is claimed for *all* streams through a seqno.
//!
//! # Locks
//!
//! One mutex guards the writer's state. It is held for the creation of a segment and for the write before a sync, never for a
//! sync, nor for the writes of commits. Waiting for a sync, and for such a write, uses a condition variable each on it.
//!
//! Source: 002 §3.6.4 (logical logging in per-thread logs); design §5. The bytes are stated beside
//! their encoders, in `format.rs` and `ops.rs`.

mod format;
mod inspect;
mod log;
mod merge;
pub mod ops;
mod replay;
mod scan;
mod settle;
#[cfg(test)]
mod tests;

use std::io;

pub use format::{MAX_PAYLOAD, segment_name};
pub use inspect::{RecordSummary, SegmentSummary, inspect};
pub use log::{Log, LogOptions};
pub use ops::{Op, Ops, put_op};
pub use replay::{Claims, Mode, Record, ReplayReport, Visit, replay};

use crate::base::{Error, Seqno};

/// A segment that is kept until a checkpoint covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its stream.
    pub stream: u32,
    /// Its number, which is never used again.
    pub number: u64,
    /// None of its records is above this seqno.
    pub last: Seqno,
    /// The length of its file in bytes.
    pub bytes: u64,
}

/// An error of the device where a full disk is no ordinary error any more: something was accepted already.
fn final_error(op: &'static str, file: &str, offset: Option<u64>, source: &io::Error) -> Error {
    Error::Io { op, file: file.to_owned(), offset, kind: source.kind(), message: source.to_string() }
}
