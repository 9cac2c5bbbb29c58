//! The write-ahead log. It stores every batch before the batch reaches an index, so that the batch can be recovered
//! after a crash.
//!
//! The log is a logical redo log: a record holds the operations of one batch ([`ops`]) and the seqnos of the batch.
//! [`Log`] writes records, [`replay()`] reads them after a crash, and [`inspect()`] shows the contents of a log.
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
//! - A segment is created, preallocated, given its header and synced together with the directory, **before** its first
//!   record is written. So an append never fails for lack of space. And if a segment with a damaged header has a body
//!   that is not blank, its header was damaged after it had been durable.
//! - The next segments of a stream may be created in advance, by the same steps. Such a segment holds no records until
//!   it is used, and replay removes all segments without records. Segments that were created in advance are used in the
//!   order of their numbers. If the first of them is not suitable and another segment must be created for immediate
//!   use, all of them are removed before. So the numbers of a stream's segments ascend with its seqnos.
//! - Synced bytes are never overwritten: a sync ends its 4 KiB block, and the next record starts in the next block.
//! - A record states the seqno through which the whole log was durable when it was written. This seqno distinguishes a
//!   torn tail from damage in the middle.
//! - Seqnos are contiguous. Replay uses the contiguous prefix. An *epoch* (one opening for writing) begins after the
//!   prefix that replay found, and makes the records of earlier epochs beyond this prefix void.
//! - The first failed write or sync is final: the log refuses all later operations, and a sync is never retried.
//!
//! # Streams
//!
//! Segments belong to streams. A thread writes to one stream. The seqnos of a stream ascend, with gaps where other
//! streams have records. Replay merges all streams by seqno and uses the contiguous prefix. So a crash leaves a prefix
//! of the commit order, whichever stream lost records. A durability claim names one seqno and holds for *all* streams.
//! Each opening chooses the number of streams that it writes. Segments of other streams are replayed and discarded like
//! all others.
//!
//! # Locks
//!
//! A stream has two main locks. The *turn* (append lock) is taken before the lock of the sequencer, and released when
//! the record is in the buffer. A thread that holds a turn may wait for the sequencer, for space in a segment, and in
//! paper mode for a memtable's latches, but never for another turn.
//!
//! The *state* lock guards the buffers and the current segment. A thread that holds the state lock may take the lock
//! `making`, which a thread that creates a segment in advance takes alone. After that it may take the lock `ahead` (of
//! the list of segments that were created in advance) and the lock of the list of older segments. The state lock is
//! held while a segment is created for immediate use, and during the write before a sync. It is not held during a sync
//! or during the write of a commit. A thread that leads a sync takes the state locks one after the other, and does not
//! hold the group's lock during this time.
//!
//! Source: 002 §3.6.4 (logical logging in per-thread logs). The persisted bytes are documented next to their encoders,
//! in `format.rs` and `ops.rs`.

#![cfg_attr(not(test), warn(clippy::cast_possible_truncation))]

mod common;
mod format;
mod inspect;
mod log;
mod merge;
pub mod ops;
mod replay;
mod reread;
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
pub use reread::RereadDevice;
pub use stream::{AppendReservation, KEEP_BYTES};
pub use tags::{Tag, Tags, tagged_bytes};

use crate::base::Seqno;

/// The most streams that are written. File names have enough digits for more streams, and replay reads those streams,
/// too.
pub const MAX_STREAMS: usize = 16;
const _: () = assert!(MAX_STREAMS <= 10_000, "a file name has four digits for the stream");

/// The permitted sizes of a segment in bytes. A segment consists of whole pages.
pub const SEGMENT_BYTES: RangeInclusive<u64> = 2 * format::BLOCK..=format::MAX_SEGMENT;

/// A segment that is kept until a checkpoint covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentInfo {
    /// The stream of the segment.
    pub stream: u32,
    /// The number of the segment, which is never used again.
    pub number: u64,
    /// No record of the segment is above this seqno.
    pub last: Seqno,
    /// The length of the segment file in bytes.
    pub bytes: u64,
}
