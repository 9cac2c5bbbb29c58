//! The log: what was promised before it reached an index, and how it is found again after a crash.
//!
//! Logical redo: a record holds the operations of one batch ([`ops`]) and the seqnos that it took. [`Log`] writes
//! records, [`replay()`] reads them back, [`inspect()`] shows what a log holds.
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
//! - A segment is created, preallocated, given its header and synced, with the directory, **before** its first record is
//!   written. So an append never fails for want of space, and a header that is damaged above a body that is not blank
//!   was damaged later.
//! - The next segments of a stream may be made ahead, with all of this. Then they lie there without records; replay removes them
//!   like any others that hold none. They are used in the order of their numbers, and all are removed before another one is made to be used
//!   at once: so a stream's numbers go up with its seqnos.
//! - Bytes that were synced are never written again: a sync ends its 4 KiB block, the next record starts in the next.
//! - A record says through which seqno the whole log was durable when it was written. That is what tells a torn tail
//!   from damage in the middle.
//! - Seqnos are contiguous. Replay takes the contiguous prefix; an *epoch* (one life of a writer) begins after the
//!   prefix that it found, and voids what earlier epochs left beyond it.
//! - The first failed write or sync is final: the log refuses everything afterwards, and a sync is never tried again.
//!
//! # Streams
//!
//! Segments belong to streams. A thread writes to a stream of its own, which goes up by seqno and has holes where other
//! threads wrote; replay merges all streams by seqno and takes the contiguous prefix, so what a crash leaves is a prefix of
//! the commit order whichever stream lost what. Durability is claimed for *all* streams through a seqno. How many streams
//! are written is a choice of each opening: what there is of others is replayed and discarded like anything else.
//!
//! # Locks
//!
//! A stream has two. Its *turn* is taken before the caller's sequencer and let go of when the record is in the buffer; with a turn
//! in hand one waits for the sequencer, for room in a segment, and in paper mode for a memtable's latches, never for another
//! turn. Its *state* has within only `making` (held alone while a segment is made ahead), within which is the list of what is there
//! (`ahead`), and the list of older segments: held for the creation of a segment and for the write before a sync, never for a sync, nor for the writes of commits. Who leads a sync
//! takes one state after the other and holds the group's lock over none of them.
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
mod stream;
pub mod tags;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

pub use format::{MAX_PAYLOAD, RecordKind, segment_name};
pub use inspect::{RecordSummary, SegmentSummary, inspect};
pub use log::{Log, LogOptions, MayTake, UNLIMITED};
pub use ops::{Op, Ops, put_op};
pub use replay::{Claims, Mode, Record, ReplayReport, Visit, replay};
pub use stream::Room;
pub use tags::{Tag, Tags, tagged_bytes};

use crate::base::Seqno;

/// The most streams that are written. Names have digits for more, and replay reads those, too.
pub const MAX_STREAMS: usize = 16;

/// The bytes that a segment may have; whole pages.
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
