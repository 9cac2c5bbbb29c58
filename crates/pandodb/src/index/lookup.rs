//! A point lookup: it collects messages from newest to oldest until it finds a base.
//!
//! ```text
//!   memtables ─▶ index: Probe::step ─▶ Step::Need(block) ─▶ the caller loads it ─▶ Probe::step ─▶ … ─▶ Step::Done
//!       └──────────── Lookup::take: operands, and finally a base ──────────────────┘
//! ```
//!
//! Invariants: messages of a key arrive newest first; messages that arrive after the base, or under a range tombstone,
//! have no effect.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::base::{BlobRef, Entry, EntryBlock, KeyCodec, Kind, Result, Seqno};
use crate::blocks::BlockRequest;
use crate::pool::Block;
use crate::resolve::Gather;

/// Counts the blocks of a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTally {
    /// Filters asked.
    pub filters: u64,
    /// Filters found by the prefetch.
    pub prefetched: u64,
    /// Leaves searched.
    pub leaves: u64,
    /// Runs whose leaf did not hold the key.
    pub false_positives: u64,
}

/// The base that a lookup found.
#[derive(Debug, Default)]
pub enum Base {
    /// No container had a base: the key has no value below the operands.
    #[default]
    Absent,
    /// A value inside a cached block.
    Inline(Block, std::ops::Range<usize>),
    /// A copied value.
    Owned(Arc<[u8]>),
    /// A value inside a block of entries that a cursor filled.
    InBatch(Arc<EntryBlock>, std::ops::Range<usize>),
    /// A large value.
    Blob(BlobRef),
}

impl Base {
    /// The bytes of a value that is in memory; `None` without a base, or for a large value.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Base::Inline(block, range) => Some(&block[range.clone()]),
            Base::Owned(bytes) => Some(bytes),
            Base::InBatch(batch, range) => Some(&batch.raw()[range.clone()]),
            Base::Absent | Base::Blob(_) => None,
        }
    }
}

/// A point lookup in progress: its key, and the messages collected so far.
pub struct Lookup<'a> {
    /// The key, in its stored form.
    pub key: &'a [u8],
    /// Its hash.
    pub hash: u64,
    /// The read point: newer messages are not visible.
    pub at: Seqno,
    /// Operands above the base.
    pub gather: Gather,
    /// The base.
    pub base: Base,
    /// The seqno of the message with the base, if one was found.
    pub base_seqno: Seqno,
    /// Counts for the statistics.
    pub tally: ProbeTally,
    /// Filters may be prefetched. False in a `multi_get`, where each lookup would pin several blocks while it waits for
    /// other lookups.
    pub prefetch: bool,
    /// Messages with a smaller seqno are hidden by a range tombstone.
    floor: Seqno,
    done: bool,
}

impl<'a> Lookup<'a> {
    /// A lookup of `key`, in its stored form, at read point `at`.
    pub fn new(codec: KeyCodec, key: &'a [u8], at: Seqno) -> Lookup<'a> {
        Lookup { hash: codec.hash(key), ..Lookup::of_messages(key, at) }
    }

    /// A lookup that gets the messages of `key` from its caller and probes no index: it has no hash.
    pub fn of_messages(key: &'a [u8], at: Seqno) -> Lookup<'a> {
        Lookup {
            key,
            hash: 0,
            at,
            gather: Gather::new(),
            base: Base::Absent,
            base_seqno: Seqno(0),
            tally: ProbeTally::default(),
            prefetch: true,
            floor: Seqno(0),
            done: false,
        }
    }

    /// Whether no older message can change the result.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Enters a container whose newest covering range tombstone is `covering` (0: none).
    pub fn enter(&mut self, covering: Seqno) {
        self.floor = self.floor.max(covering);
    }

    /// Leaves a container: a range tombstone found in it hides all messages in older containers.
    pub fn leave(&mut self) {
        self.done |= self.floor > Seqno(0);
    }

    /// Adds the key's next older message. Breaks when no older message matters. `inline` makes the base from the value
    /// of a put.
    pub fn take(&mut self, entry: &Entry<'_>, inline: impl FnOnce() -> Base) -> Result<ControlFlow<()>> {
        debug_assert_eq!(entry.key, self.key, "a lookup is for one key");
        if entry.seqno > self.at {
            return Ok(ControlFlow::Continue(()));
        }
        if self.done || entry.seqno <= self.floor {
            self.done = true;
            return Ok(ControlFlow::Break(()));
        }
        match entry.kind {
            Kind::Merge => {
                self.gather.push_merge(entry.value);
                return Ok(ControlFlow::Continue(()));
            }
            Kind::Put => self.base = inline(),
            Kind::BlobPut => self.base = Base::Blob(BlobRef::decode(entry.value)?),
            Kind::Delete => {}
            Kind::RangeDelete => unreachable!("range tombstones are not stored among the point messages"),
        }
        self.base_seqno = entry.seqno;
        self.done = true;
        Ok(ControlFlow::Break(()))
    }

    /// Uses a row of the row cache: a value without operands above it.
    pub fn take_row(&mut self, value: Arc<[u8]>) {
        debug_assert!(!self.done, "a lookup ends once");
        self.base = Base::Owned(value);
        self.done = true;
    }
}

/// The next need of a probe.
#[derive(Debug)]
pub enum Step<'v> {
    /// Nothing: all messages of the key in this index were collected.
    Done,
    /// A block: call again with it, or without it if it is optional and damaged.
    Need(BlockRequest<'v>),
}

/// A lookup in one view. It does no I/O: it returns a request for the block that it needs, and continues when it has
/// the block, so that one caller can keep many lookups in flight. It borrows the view instead of cloning an `Arc`, to
/// avoid contention on the reference count.
pub trait Probe<'v>: Send {
    /// Continues with the block that the last step requested.
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>>;
}
