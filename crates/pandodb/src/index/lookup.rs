//! A point lookup collects messages from newest to oldest until it finds a base.
//!
//! ```text
//!   memtables ─▶ index: Probe::step ─▶ Step::Need(block) ─▶ the caller loads it ─▶ Probe::step ─▶ … ─▶ Step::Done
//!       └──────────── Lookup::take: operands, and finally a base ──────────────────┘
//! ```
//!
//! Invariants: messages of a key arrive newest first. Messages that arrive after the base, or that a range tombstone
//! covers, have no effect.

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::base::{BlobRef, Entry, EntryBlock, KeyCodec, Kind, Result, Seqno, seeded};
use crate::blocks::BlockRequest;
use crate::pool::Block;
use crate::resolve::Gather;

/// Counts of the blocks that a lookup used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTally {
    /// Filters probed.
    pub filters: u64,
    /// Filters that the prefetch had already loaded.
    pub prefetched: u64,
    /// Leaves searched.
    pub leaves: u64,
    /// Runs of which a leaf was searched without finding the key in it.
    pub false_positives: u64,
}

/// The base that a lookup found.
#[derive(Debug, Default)]
pub enum Base {
    /// No container had a base, so the operands are applied to a missing value.
    #[default]
    Absent,
    /// A value inside a cached block.
    Inline(Block, std::ops::Range<usize>),
    /// A value copied into memory of its own.
    Owned(Arc<[u8]>),
    /// A value inside a block of entries that a cursor has filled.
    InBatch(Arc<EntryBlock>, std::ops::Range<usize>),
    /// A large value, not read yet.
    Blob(BlobRef),
}

impl Base {
    /// The bytes of a value that is in memory; `None` if there is no base or the value is large.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Base::Inline(block, range) => Some(&block[range.clone()]),
            Base::Owned(bytes) => Some(bytes),
            Base::InBatch(batch, range) => Some(&batch.raw()[range.clone()]),
            Base::Absent | Base::Blob(_) => None,
        }
    }
}

/// The value that a key had as of a seqno, which an earlier lookup has computed.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The read point of the earlier lookup.
    pub seqno: Seqno,
    /// The value as of `seqno`; `None` if the key had no value.
    pub value: Option<Arc<[u8]>>,
}

/// A point lookup in progress: its key, and the messages that were collected up to now.
pub struct Lookup<'a> {
    /// The key in its stored form.
    pub key: &'a [u8],
    /// The hash of the key.
    pub hash: u64,
    /// The read point. Newer messages are not visible.
    pub at: Seqno,
    /// The operands newer than the base.
    pub gather: Gather,
    /// The base that was found.
    pub base: Base,
    /// The seqno of the newest message that the base includes, if a base was found. A row of the row cache leaves it 0.
    pub base_seqno: Seqno,
    /// The counts for the statistics.
    pub tally: ProbeTally,
    /// Whether filters may be prefetched. It is false in a `multi_get`, because each lookup would pin several blocks
    /// while it waits for other lookups.
    pub prefetch: bool,
    /// Messages with a smaller seqno than this are hidden by a range tombstone.
    floor: Seqno,
    /// The value that replaces all messages up to a seqno. All messages above that seqno are in memtables.
    fold: Option<Fold>,
    /// Whether the base is a fold.
    has_used_fold: bool,
    /// The number of operands that memtables had. `None` until all memtables were searched.
    in_memtables: Option<usize>,
    /// The seqno of the newest operand that the index had, if it had one.
    newest_in_index: Option<Seqno>,
    done: bool,
}

impl<'a> Lookup<'a> {
    /// A lookup of `key`, which is in its stored form, at read point `at`.
    pub fn new(codec: KeyCodec, key: &'a [u8], at: Seqno) -> Lookup<'a> {
        Lookup { hash: codec.hash(key), ..Lookup::of_messages(key, at) }
    }

    /// A lookup that gets the messages of `key` from its caller. It has no hash, because it probes no index.
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
            fold: None,
            has_used_fold: false,
            in_memtables: None,
            newest_in_index: None,
            done: false,
        }
    }

    /// Whether no older message can change the result.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Enters a container. `covering` is the seqno of the newest range tombstone in the container that covers the key
    /// (0: none).
    pub fn enter(&mut self, covering: Seqno) {
        self.floor = self.floor.max(covering);
    }

    /// Leaves a container. A range tombstone found in this container hides all messages in older containers.
    /// A tombstone that is not above the fold has no further effect, because the fold includes it.
    pub fn leave(&mut self) {
        let folded = self.fold.as_ref().map_or(Seqno(0), |fold| fold.seqno);
        self.done |= self.floor > folded;
    }

    /// Whether a fold of the key would spare this lookup work: `entry` is the newest message of the key, and it is an
    /// operand.
    pub fn wants_fold(&self, entry: &Entry<'_>) -> bool {
        entry.kind == Kind::Merge && self.gather.is_empty() && self.fold.is_none() && !self.done
    }

    /// Uses `fold` instead of the messages up to its seqno. REQUIRES: no message was taken yet; all messages above the
    /// fold's seqno are in memtables.
    pub fn use_fold(&mut self, fold: Fold) {
        assert!(self.gather.is_empty() && self.fold.is_none() && !self.done, "a fold comes before all messages");
        self.fold = Some(fold);
    }

    /// Ends the search of the memtables: if there is a fold, it is the base, unless a newer base was found.
    pub fn end_memtables(&mut self) {
        debug_assert!(self.newest_in_index.is_none(), "memtables are searched before the index");
        self.in_memtables = Some(self.gather.len());
        if !self.done
            && let Some(fold) = self.fold.take()
        {
            self.take_fold(fold);
        }
    }

    /// Takes a fold as the base, unless a range tombstone above it hides it.
    fn take_fold(&mut self, fold: Fold) {
        debug_assert!(!self.done && fold.seqno <= self.at, "a reader sees no fold above its read point");
        let value = fold.value.filter(|_| self.floor <= fold.seqno);
        self.base = value.map_or(Base::Absent, Base::Owned);
        self.base_seqno = fold.seqno;
        self.has_used_fold = true;
        self.done = true;
    }

    /// Whether the base is a fold, so that the result of this lookup is a newer fold.
    pub fn has_used_fold(&self) -> bool {
        self.has_used_fold
    }

    /// Adds the key's next older message. Returns `Break` when no older message can change the result. `inline` makes
    /// the base from the value, if the message is a put.
    pub fn take(&mut self, entry: &Entry<'_>, inline: impl FnOnce() -> Base) -> Result<ControlFlow<()>> {
        debug_assert_eq!(entry.key, self.key, "a lookup is for one key");
        if entry.seqno > self.at {
            return Ok(ControlFlow::Continue(()));
        }
        // This comes before the check of the floor, because the fold includes the tombstones that are not above it.
        if !self.done
            && let Some(fold) = self.fold.take_if(|fold| entry.seqno <= fold.seqno)
        {
            self.take_fold(fold);
            return Ok(ControlFlow::Break(()));
        }
        if self.done || entry.seqno <= self.floor {
            self.done = true;
            return Ok(ControlFlow::Break(()));
        }
        match entry.kind {
            Kind::Merge => {
                if self.in_memtables == Some(self.gather.len()) {
                    self.newest_in_index = Some(entry.seqno);
                }
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

    /// Removes the operands that the index had, and returns them with the seqno of the newest one. The operands of
    /// memtables stay. `None` if the index had no operands, or if they are not newer than the base, which is possible in a
    /// damaged store only. REQUIRES: the lookup is complete; the caller replaces the base by the result of folding these
    /// operands ([`Lookup::rebase`]).
    pub fn split_index_operands(&mut self) -> Option<(Gather, Seqno)> {
        let newest = self.newest_in_index.take().filter(|newest| *newest > self.base_seqno)?;
        let kept = self.in_memtables.expect("memtables are searched before the index");
        let kept = seeded!(RowHoldsMemtables: 0, kept);
        assert!(kept < self.gather.len(), "the index had an operand");
        Some((self.gather.split_off(kept), newest))
    }

    /// Uses the value that the operands of the index have made from the base as the new base.
    pub fn rebase(&mut self, value: Option<Arc<[u8]>>, seqno: Seqno) {
        assert!(seqno > self.base_seqno && seqno <= self.at, "a base moves to newer seqnos");
        self.base = value.map_or(Base::Absent, Base::Owned);
        self.base_seqno = seqno;
    }

    /// Uses a row of the row cache as the base. Such a row includes all messages of the index.
    pub fn take_row(&mut self, value: Arc<[u8]>) {
        debug_assert!(!self.done, "a lookup ends once");
        self.base = Base::Owned(value);
        self.done = true;
    }
}

/// The result of one step of a probe.
#[derive(Debug)]
pub enum Step<'v> {
    /// The probe needs no further block: all messages that this index has for the key were collected.
    Done,
    /// The probe needs a block: call again with this block, or without it if the block is optional and damaged.
    Need(BlockRequest<'v>),
}

/// A lookup in one view of an index. A probe does no I/O: it returns a request for the block that it needs, and
/// continues when it has the block. Therefore one caller can keep many lookups in flight. A probe borrows the view
/// instead of cloning an `Arc`, to avoid contention on the reference count.
pub trait Probe<'v>: Send {
    /// Continues with the block that the last step has requested.
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: Kind, seqno: u64) -> Entry<'static> {
        Entry { key: b"k", seqno: Seqno(seqno), kind, value: b"v" }
    }

    /// A lookup that finds an operand in a memtable, and these messages in the index.
    fn found(index: &[Entry<'_>]) -> Lookup<'static> {
        let mut lookup = Lookup::of_messages(b"k", Seqno(20));
        let take = |lookup: &mut Lookup<'_>, entry: &Entry<'_>| {
            let _ = lookup.take(entry, || Base::Owned(entry.value.into())).unwrap();
        };
        take(&mut lookup, &message(Kind::Merge, 12));
        lookup.end_memtables();
        index.iter().for_each(|entry| take(&mut lookup, entry));
        lookup
    }

    #[test]
    fn operands_of_the_index_are_split_from_those_of_memtables() {
        let mut lookup = found(&[message(Kind::Merge, 9), message(Kind::Merge, 8), message(Kind::Put, 5)]);
        let (operands, newest) = lookup.split_index_operands().unwrap();
        assert_eq!((operands.len(), newest, lookup.gather.len()), (2, Seqno(9), 1));
        lookup.rebase(None, newest);
        assert_eq!((lookup.base_seqno, lookup.split_index_operands().is_none()), (Seqno(9), true));
        assert!(found(&[message(Kind::Put, 5)]).split_index_operands().is_none());
    }

    #[test]
    fn operands_that_are_older_than_their_base_are_left_alone() {
        let mut lookup = found(&[message(Kind::Merge, 4), message(Kind::Put, 5)]);
        assert!(lookup.split_index_operands().is_none(), "a damaged store must not cause a panic");
        assert_eq!(lookup.gather.len(), 2);
    }
}
