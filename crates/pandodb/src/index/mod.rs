//! Indexes: the structures that hold a keyspace's data after it has left the memtable, behind one trait.
//!
//! ```text
//!   sealed memtable ──ingest──▶ debt ──step──▶ new root, published by one swap ──▶ IndexView for readers
//!                                                      │
//!              checkpoint: begin (commits are quiesced, no I/O) ─▶ write ─▶ RootRecord in the catalogue
//! ```
//!
//! 1. An index accepts sealed memtables ([`Index::ingest`], metadata only), reports the work that they cause
//!    ([`Index::debt`]) and does it in resumable steps ([`Index::step`]), which build new state and swap one root.
//! 2. Readers pin an [`IndexView`]: an immutable state that knows the exact prefix of writes that it holds
//!    ([`IndexView::through`]) and the oldest unregistered read point that it can serve ([`IndexView::horizon`]). A
//!    lookup does no I/O: it requests blocks ([`Step::Need`]).
//! 3. A checkpoint fixes the contents of the next root while commits are quiesced ([`Index::begin_checkpoint`]) and
//!    writes it afterwards ([`Checkpoint::write`]).
//! 4. The store uses an index through its entry in the registry ([`registry`]) and this trait only.
//!
//! Invariants of every index, asserted where that is cheap:
//! * on any search path a message is visible in exactly one place (a violation is hidden by puts, but visible with
//!   merges);
//! * of the messages of a key, a newer container holds those with higher seqnos, so a search from newest to oldest may
//!   stop at the first base;
//! * blocks that a durable root reaches are never overwritten; dropping the last `Arc` of a run or node frees it.
//!
//! **Other kinds of indexes.** Keys in hash order: [`Order::Hashed`]. Keys arrive in their stored form
//! ([`KeyCodec`](crate::base::KeyCodec)), and the types of the API exclude ranges. Pages that are updated in place: the
//! index applies a sealed memtable to its pages in [`Index::step`], and copies a page before it changes what the last
//! checkpoint describes; readers read at `min(read point, through)`, so that a partly applied memtable is invisible.
//! Writes that bypass the memtable: [`Index::direct`]. Bulk loads in key order: [`Index::loader`]. The test `stub`
//! implements all of these.

pub mod blobs;
pub mod cola;
mod core;
mod deferred_frees;
pub mod inspect;
mod lookup;
pub mod options;
pub mod owed;
pub mod registry;
pub mod runs;
pub mod spec;
mod stats;
pub mod stbe;
pub mod stored;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod testing;
pub mod types;

pub use self::cola::ColaOptions;
pub use self::core::{Core, IdSource, SealedBatch};
pub use self::inspect::{Inspect, SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
pub use self::lookup::{Base, Lookup, Probe, ProbeTally, Step};
pub use self::options::IndexOptions;
pub use self::spec::{Mode, OptionSpec, Settings, Values};
pub use self::stats::{Deadline, Debt, Estimate, Figure, FigureKind, IndexStats, Progress, Room};
pub use self::stbe::StbeOptions;
pub use self::types::{IndexKind, IndexType, Order};

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, Extent, KeyRange, RangeTombstone, Result, Seqno};
use crate::resolve::Stripes;

/// The durable root of an index: its own encoding, opaque to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootRecord {
    /// Replay applies to the keyspace only log records with a greater seqno.
    pub through: Seqno,
    /// The index's encoding; empty for an index that has never been written.
    pub bytes: Vec<u8>,
}

impl RootRecord {
    /// The longest encoding, in bytes. The catalogue holds the records of all keyspaces and is bounded, so data of
    /// variable size is in blocks that the record refers to.
    pub const MAX_BYTES: usize = 128;
}

/// A cursor over raw messages: every version of every key, in the order of stored keys (or in exact reverse), a block
/// at a time.
pub trait RawCursor: Send {
    /// Appends the next messages to `out`, about `max_bytes` of them; nothing at the end.
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()>;
    /// Repositions the cursor to the first key at or after `key`, in the cursor's direction.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
}

/// Bytes that the default of [`IndexView::changed_in`] reads at a time.
const CHANGED_BLOCK: usize = 32 << 10;

/// An immutable state of one index. Keys are in their stored form.
pub trait IndexView: Send + Sync {
    /// The view holds exactly the messages of the keyspace up to this seqno. Readers read at it or below.
    fn through(&self) -> Seqno;

    /// Unregistered reads with a smaller read point may miss versions that a compaction has dropped: retry with a newer
    /// one.
    fn horizon(&self) -> Seqno;

    /// Starts a point lookup.
    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v>;

    /// Starts a scan of a range of stored keys, downwards if `reverse`. With [`Order::Hashed`], a range serves only to
    /// continue a walk over everything.
    fn cursor(self: Arc<Self>, range: &KeyRange, reverse: bool) -> Result<Box<dyn RawCursor>>;

    /// Starts a walk over all messages, in the order of stored keys: for backup, dump and tests, which need no order of
    /// their own.
    fn drain(self: Arc<Self>) -> Result<Box<dyn RawCursor>> {
        self.cursor(&KeyRange::all(), false)
    }

    /// Appends every range tombstone that may cover a key of `range`.
    ///
    /// # Errors
    /// If some cannot be read: then it is unknown which messages of `range` are deleted.
    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()>;

    /// Whether the view holds a message of `key`, or a range tombstone that covers it, with a seqno above `since`. May
    /// return true wrongly where versions were dropped. The default reads all messages of the key.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn changed(self: Arc<Self>, key: &[u8], since: Seqno) -> Result<bool> {
        self.changed_in(&KeyRange::point(key), since)
    }

    /// As [`IndexView::changed`], for any key of `range`. The default reads all messages of the range.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn changed_in(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<bool> {
        if self.through() <= since {
            return Ok(false);
        }
        let mut tombstones = Vec::new();
        self.tombstones(range, &mut tombstones)?;
        if tombstones.iter().any(|tombstone| tombstone.seqno > since && tombstone.range.overlaps(range)) {
            return Ok(true);
        }
        let (mut cursor, mut block) = (self.cursor(range, false)?, EntryBlock::new());
        loop {
            block.clear();
            cursor.fill(CHANGED_BLOCK, &mut block)?;
            if block.is_empty() {
                return Ok(false);
            }
            if block.iter().any(|entry| entry.seqno > since) {
                return Ok(true);
            }
        }
    }
}

/// One structure that holds a keyspace's data.
pub trait Index: Send + Sync {
    /// Its entry in the registry.
    fn index_type(&self) -> &'static IndexType;

    // ---- in ----

    /// Accepts a sealed memtable: metadata only, adds debt. Batches must come in the order of their seqnos.
    fn ingest(&self, batch: SealedBatch);

    /// Writes that bypass the memtable, if the index supports them.
    fn direct(&self) -> Option<&dyn DirectWriter> {
        None
    }

    /// Bulk loads in key order, if the index has a faster way than memtables.
    fn loader(&self) -> Option<&dyn SortedLoader> {
        None
    }

    // ---- out ----

    /// Pins the current view.
    fn view(&self) -> Arc<dyn IndexView>;

    /// Calls `look` with the current view. Avoids the reference count that all readers share.
    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView));

    // ---- background work ----

    /// Pending work. Cheap.
    fn debt(&self) -> Debt;

    /// Does about `budget` bytes of work at most. Several threads may call it; each claims its own job. `keep` is
    /// called when a job starts; it returns the read points whose versions must be kept.
    fn step(&self, budget: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// Work on a full disk: does one piece of work that fits into `room` and frees its inputs: packs a memtable, or
    /// compacts the keys with the most garbage. Idle if there is no such work.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// Called once there has been no debt for some time: optional work becomes debt until the next memtable arrives.
    fn on_idle(&self);

    /// Requests a full compaction of `range`, which is done when no requested debt is left. An index of
    /// [`Order::Hashed`] gets [`KeyRange::all`] only.
    fn compact(&self, range: &KeyRange) -> Result<()>;

    // ---- durability ----

    /// Fixes the state that the next root describes. Called while commits are quiesced: no I/O.
    fn begin_checkpoint(&self) -> Box<dyn Checkpoint + '_>;

    /// Removes all data: the keyspace was dropped. Pages are freed when the last reader is gone.
    fn clear(&self);

    /// Lists every page that the current root owns, each once: both copies of its nodes, its runs, its large values.
    ///
    /// Opening calls it when all indexes are built, and marks the pages, before the first page of the store is
    /// allocated. So building an index from its root record must neither allocate nor write.
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        self.inspect().pin().for_each_extent(visit);
    }

    // ---- looking at it ----

    /// Estimates the contents of a range.
    fn estimate(&self, range: &KeyRange) -> Result<Estimate>;

    /// Number of messages in the index, including superseded ones, and of point tombstones among them. Counted once per
    /// root; takes no lock.
    fn entries(&self) -> (u64, u64);

    /// Statistics.
    fn stats(&self) -> IndexStats;

    /// Verification, description, salvage.
    fn inspect(&self) -> &dyn Inspect;
}

/// The state that the next root describes ([`Index::begin_checkpoint`]).
pub trait Checkpoint {
    /// The state contains every message of the keyspace up to this seqno.
    fn through(&self) -> Seqno;

    /// Writes the parts that are not on disk yet, and describes the state. The caller syncs, then records it.
    /// Concurrent with readers and writers.
    ///
    /// # Errors
    /// An I/O error or a full disk: then the previous root remains in force.
    fn write(self: Box<Self>) -> Result<Cut>;
}

/// A consistent cut of an index at a checkpoint.
pub struct Cut {
    /// The record for the catalogue.
    pub root: RootRecord,
    /// Keeps the root's blocks allocated while the caller needs to read them.
    pub pin: Arc<dyn IndexView>,
}

/// Writes that bypass the memtable. Everything that can fail happens in `prepare`, before the commit has drawn its
/// seqnos.
///
/// The index invalidates cached rows of the keys ([`IndexRows::written`](crate::rows::IndexRows::written)) before it
/// publishes the new values.
pub trait DirectWriter: Send + Sync {
    /// Reads, latches and reserves what the operations need. The operations have no seqnos yet.
    ///
    /// # Errors
    /// Any error refuses the commit, which then has no effect.
    fn prepare<'a>(&'a self, operations: &mut dyn Iterator<Item = Entry<'a>>) -> Result<Box<dyn Prepared + 'a>>;
}

/// Prepared operations. Dropping them without [`Prepared::apply`] has no effect.
pub trait Prepared {
    /// Applies the operations; the first gets seqno `first`, the others the following ones. Cannot fail.
    fn apply(self: Box<Self>, first: Seqno);
}

/// Bulk loads in key order, into an index that holds nothing in their range.
pub trait SortedLoader: Send + Sync {
    /// Starts a load whose messages all have the seqno `at`. `expected_bytes` is a hint for allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the index cannot accept a load now.
    fn begin<'a>(&'a self, at: Seqno, expected_bytes: u64) -> Result<Box<dyn SortedLoad + 'a>>;
}

/// A bulk load. Dropping it without [`SortedLoad::finish`] has no effect.
pub trait SortedLoad {
    /// Adds the next message. Keys must ascend.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    fn push(&mut self, entry: &Entry<'_>) -> Result<()>;

    /// Publishes all messages at once.
    ///
    /// # Errors
    /// As [`SortedLoad::push`].
    fn finish(self: Box<Self>) -> Result<()>;
}
