//! A point lookup: what it gathers, newest to oldest, until a base is found.
//!
//! ```text
//!   memtables ─▶ index: Probe::step ─▶ Step::Need(block) ─▶ the caller loads it ─▶ Probe::step ─▶ … ─▶ Step::Done
//!       └──────────── Lookup::take: operands and at last a base ────────────────┘
//! ```
//!
//! Invariants: messages of a key arrive newest first; what arrives after the base, or under a range tombstone, changes nothing.

use std::ops::ControlFlow;

use crate::base::{BlobRef, Entry, KeyCodec, Kind, Result, Seqno};
use crate::blocks::BlockRequest;
use crate::pool::Block;
use crate::resolve::Gather;

/// What a lookup asked for, as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTally {
    /// Filters that were asked.
    pub filters: u64,
    /// Filters that were prefetched together.
    pub prefetched: u64,
    /// Leaves that were searched.
    pub leaves: u64,
    /// Runs whose leaf was searched in vain.
    pub false_positives: u64,
}

/// Where a lookup ended.
#[derive(Debug, Default)]
pub enum Base {
    /// No container had a base: the key has no value below the operands.
    #[default]
    Absent,
    /// A value inside a cached block.
    Inline(Block, std::ops::Range<usize>),
    /// A value that was copied out.
    Owned(Vec<u8>),
    /// A large value.
    Blob(BlobRef),
}

/// A point lookup in flight: what it looks for and what it has gathered, newest to oldest.
pub struct Lookup<'a> {
    /// The key, in its stored form.
    pub key: &'a [u8],
    /// Its hash.
    pub hash: u64,
    /// The read point: newer messages are invisible.
    pub at: Seqno,
    /// Operands above the base.
    pub gather: Gather,
    /// The base,
    pub base: Base,
    /// and the seqno of the message that it is from, if one was found.
    pub base_seqno: Seqno,
    /// For figures.
    pub tally: ProbeTally,
    /// Filters may be prefetched. False in a `multi_get`, where each lookup would pin several blocks while it waits for other lookups.
    pub prefetch: bool,
    /// Messages with a smaller seqno are dead: a range tombstone covers them.
    floor: Seqno,
    done: bool,
}

impl<'a> Lookup<'a> {
    /// Looks for `key`, in its stored form, as it was at `at`.
    pub fn new(codec: KeyCodec, key: &'a [u8], at: Seqno) -> Lookup<'a> {
        Lookup {
            key,
            hash: codec.hash(key),
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

    /// Whether nothing older can change the answer.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Enters a container whose newest covering range tombstone is `covering` (0: none).
    pub fn enter(&mut self, covering: Seqno) {
        self.floor = self.floor.max(covering);
    }

    /// Leaves a container: a range tombstone found in it hides everything in older ones.
    pub fn leave(&mut self) {
        self.done |= self.floor > Seqno(0);
    }

    /// Takes the key's next older message; breaks when nothing older matters. `inline` makes the base of a put from its
    /// value.
    pub fn take(&mut self, entry: &Entry<'_>, inline: impl FnOnce() -> Base) -> Result<ControlFlow<()>> {
        debug_assert_eq!(entry.key, self.key);
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
            Kind::RangeDelete => unreachable!("range tombstones are kept apart"),
        }
        self.base_seqno = entry.seqno;
        self.done = true;
        Ok(ControlFlow::Break(()))
    }

    /// Takes a value that was found with nothing above it.
    pub fn take_row(&mut self, value: Vec<u8>) {
        self.base = Base::Owned(value);
        self.done = true;
    }
}

/// What a probe needs next.
#[derive(Debug)]
pub enum Step<'v> {
    /// Nothing: the lookup has everything that this index knows of the key.
    Done,
    /// A block; call again with it, or without it if it is optional and damaged.
    Need(BlockRequest<'v>),
}

/// A lookup on its way through one view. It does no I/O: it returns a request for the block that it needs and goes on when it has the
/// block, so that one caller can keep many lookups in flight. It borrows the view instead of counting a reference, for which all readers
/// would contend.
pub trait Probe<'v>: Send {
    /// Goes on, with the block that the last step asked for.
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>>;
}
