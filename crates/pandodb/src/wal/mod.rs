//! The write-ahead log: it stores every batch before the batch reaches an index, and recovers it after a crash.
//!
//! Logical redo: a record holds the operations of one batch ([`ops`]) and the seqnos of the batch. [`Log`] writes
//! records, [`replay()`] reads them back, [`inspect()`] shows the contents of a log.
//!
//! ```text
//!  wal-0000-000000000007      wal-0000-000000000009
//!  ┌──────┬─────┬─────┬───┐   ┌──────┬─────┬────┬·········┬─────┬────────────┐
//!  │header│ r 1 │ r 2 │ … │   │header│ r 9 │r 10│  zeros  │r 13 │ zeros      │   stream 0
//!  └──────┴─────┴─────┴───┘   └──────┴─────┴────┴·········┴─────┴────────────┘
//!                    cut to        through here synced    ▲ next 4 KiB      ▲ preallocated
//!                    its length                           block             size
//!  wal-0001-000000000008
//!  ┌──────┬─────┬·········┬─────┬─────┬───────────────────┐
//!  │header│ r 8 │  zeros  │r 11 │r 12 │ zeros             │                      stream 1
//!  └──────┴─────┴·········┴─────┴─────┴───────────────────┘
//! ```
//!
//! # Invariants
//!
//! - A segment is created, preallocated, given its header and synced, with the directory, **before** its first record
//!   is written. So an append never fails for lack of space, and a damaged header above a body that is not blank was
//!   damaged later.
//! - The next segments of a stream may be made ahead, in all these respects. Until they are used they hold no records;
//!   replay removes all segments without records. They are used in the order of their numbers. All of them are removed
//!   before another segment is created for immediate use. So the numbers of a stream's segments ascend with its seqnos.
//! - Synced bytes are never overwritten: a sync ends its 4 KiB block, the next record starts in the next block.
//! - A record states the seqno through which the whole log was durable when it was written. This distinguishes a torn
//!   tail from damage in the middle.
//! - Seqnos are contiguous. Replay uses the contiguous prefix. An *epoch* (one opening for writing) begins after the
//!   prefix that it found, and voids the records of earlier epochs beyond it.
//! - The first failed write or sync is final: the log refuses all later operations, and a sync is never retried.
//!
//! # Streams
//!
//! Segments belong to streams. A thread writes to one stream. The seqnos of a stream ascend, with gaps where other
//! threads wrote. Replay merges all streams by seqno and uses the contiguous prefix, so a crash leaves a prefix of the
//! commit order, whichever stream lost records. Durability is claimed for *all* streams through a seqno. Each opening
//! chooses the number of streams that it writes; segments of other streams are replayed and discarded like all others.
//!
//! # Locks
//!
//! A stream has two main locks. Its *turn* (append lock) is taken before the caller's sequencer and released when the
//! record is in the buffer. A thread that holds a turn may wait for the sequencer, for room in a segment, and in paper
//! mode for a memtable's latches, but never for another turn.
//!
//! Its *state* guards the buffers and the current segment. While it is held, a thread may take `making` (also taken
//! alone while a segment is made ahead), then `ahead` (the list of segments made ahead), and the list of older
//! segments. The state lock is held during the creation of a segment for immediate use and during the write before a
//! sync, but never during a sync or during the writes of commits. A thread that leads a sync takes one state lock after
//! the other, and holds the group's lock during none of them.
//!
//! Source: 002 §3.6.4 (logical logging in per-thread logs). The bytes are documented with
//! their encoders, in `format.rs` and `ops.rs`.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod common;
mod format;
mod inspect;
mod log;
mod merge;
pub mod ops;
mod replay;
mod scan;
mod settle;
mod stream;
pub mod tags;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub use common::MayTake;
pub use format::{MAX_PAYLOAD, RecordKind, segment_name};
pub use inspect::{RecordSummary, SegmentSummary, inspect};
pub use log::{Log, LogOptions};
pub use ops::{Op, Ops, op_bytes, put_op};
pub use replay::{Claims, Mode, Record, ReplayReport, Visit, replay};
pub use stream::AppendReservation;
pub use tags::{Tag, Tags, tagged_bytes};

use crate::base::Seqno;

/// The most streams that are written. File names have digits for more, and replay reads those, too.
pub const MAX_STREAMS: usize = 16;
const _: () = assert!(MAX_STREAMS <= 10_000, "a file name has four digits for the stream");

/// The permitted size of a segment in bytes; whole pages.
pub const SEGMENT_BYTES: RangeInclusive<u64> = 2 * format::BLOCK..=format::MAX_SEGMENT;

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
