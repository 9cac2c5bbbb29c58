//! Indexes: the structures that hold a keyspace's data once it has left the memtable, behind one trait.
//!
//! ```text
//!   sealed memtable ──ingest──▶ debt ──step──▶ new root, published by one swap ──▶ IndexView for readers
//!                                                      │
//!              checkpoint: begin (writers stand still, no I/O) ─▶ write ─▶ RootRecord in the catalogue
//! ```
//!
//! 1. An index takes sealed memtables ([`Index::ingest`], metadata only), owes work for them ([`Index::debt`]) and does the work in
//!    resumable steps ([`Index::step`]), which build new state and swap one root.
//! 2. Readers take an [`IndexView`]: an immutable world that knows the exact prefix of writes that it holds ([`IndexView::through`]) and the
//!    oldest unregistered read point that it can serve ([`IndexView::horizon`]). A lookup does no I/O: it asks for blocks of any owner
//!    ([`Step::Need`]).
//! 3. A checkpoint fixes what the next root describes while writers stand still ([`Index::begin_checkpoint`]) and writes it afterwards
//!    ([`Checkpoint::write`]).
//! 4. The store knows an index by its entry in the registry ([`types`]) and this trait, never by its structure.
//!
//! Invariants of every index, asserted where it is cheap:
//! * on any search path a message is visible in exactly one place (a violation hides behind puts, shows with merges);
//! * a newer container holds, for each key, only higher seqnos, so that "newest to oldest until a base" is right;
//! * what a durable root reaches is never overwritten; dropping the last `Arc` to a run or node frees it.
//!
//! **What another kind of index can do.** Keys in the order of a hash: [`Order::Hashed`]; keys arrive in their stored form
//! ([`KeyCodec`](crate::base::KeyCodec)), ranges are refused by type. Pages that change in place: it applies a sealed memtable to its pages
//! in [`Index::step`], and copies a page before it changes what the last checkpoint describes; readers read at
//! `min(read point, through)`, so that a memtable that is half applied does no harm. Writes past the memtable: [`Index::direct`]. Data that
//! arrives in key order: [`Index::loader`]. The test index `stub` implements all of these.

pub mod blobs;
pub mod cola;
mod core;
mod deferred_frees;
pub mod inspect;
mod lookup;
pub mod options;
pub mod owed;
pub mod runs;
mod stats;
pub mod stbe;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod testing;
pub mod types;

pub use self::cola::ColaOptions;
pub use self::core::{Core, IdSource, SealedBatch};
pub use self::inspect::{Inspect, SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
pub use self::lookup::{Base, Lookup, Probe, ProbeTally, Step};
pub use self::options::{IndexOptions, OptionSpec, Settings, Values};
pub use self::stats::{Deadline, Debt, Estimate, Figure, FigureKind, IndexStats, Progress, Room};
pub use self::stbe::StbeOptions;
pub use self::types::{IndexKind, IndexType, Mode, Order};

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, KeyRange, RangeTombstone, Result, Seqno};
use crate::resolve::Stripes;

/// The durable root of an index: its own encoding, opaque to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootRecord {
    /// Replay applies a log record to the keyspace only above this.
    pub through: Seqno,
    /// The index's encoding; empty for an index that has never been written.
    pub bytes: Vec<u8>,
}

impl RootRecord {
    /// The longest encoding, in bytes. The catalogue holds the records of all keyspaces and is bounded: what grows with the data is in
    /// blocks that the record refers to.
    pub const MAX_BYTES: usize = 128;
}

/// A cursor over raw messages: every version of every key, in the order of stored keys (or in exact reverse), a block at a time.
pub trait RawCursor: Send {
    /// Appends the next messages to `out`, about `max_bytes` of them; nothing at the end.
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()>;
    /// Goes on at the first key that is not before `key`, in the cursor's direction.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
}

/// Bytes that the default of [`IndexView::changed_in`] reads at a time.
const CHANGED_BLOCK: usize = 32 << 10;

/// An immutable world of one index. Keys are in their stored form.
pub trait IndexView: Send + Sync {
    /// Holds exactly the messages of the keyspace up to here. Readers read at this seqno or below.
    fn through(&self) -> Seqno;

    /// Unregistered reads below this may miss versions that a compaction has dropped: take a newer read point.
    fn horizon(&self) -> Seqno;

    /// Starts a point lookup.
    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v>;

    /// Starts a scan of a range of stored keys, downwards if `reverse`. With [`Order::Hashed`] such a range is what is left of a walk over
    /// everything.
    fn cursor(self: Arc<Self>, range: &KeyRange, reverse: bool) -> Result<Box<dyn RawCursor>>;

    /// Starts a walk over all messages, in the order of stored keys: for backup, dump and tests, which need no order of their own.
    fn drain(self: Arc<Self>) -> Result<Box<dyn RawCursor>> {
        self.cursor(&KeyRange::all(), false)
    }

    /// Appends every range tombstone that may cover a key of `range`.
    ///
    /// # Errors
    /// If some cannot be read: then no message of `range` is known to be alive.
    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()>;

    /// Whether the view holds a message of `key`, or a range tombstone that covers it, with a seqno above `since`. May err on the side of
    /// true where versions were dropped. The default reads what the view holds of the key.
    ///
    /// # Errors
    /// What cannot be read.
    fn changed(self: Arc<Self>, key: &[u8], since: Seqno) -> Result<bool> {
        self.changed_in(&KeyRange::point(key), since)
    }

    /// The same for any key of `range`. The default reads all that the view holds of the range.
    ///
    /// # Errors
    /// What cannot be read.
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

    /// Takes a sealed memtable: metadata only, makes debt. Batches come in the order of their seqnos.
    fn ingest(&self, batch: SealedBatch);

    /// The way of single writes past the memtable, if it has one.
    fn direct(&self) -> Option<&dyn DirectWriter> {
        None
    }

    /// The way of data that arrives in key order, if it has a faster one than memtables.
    fn loader(&self) -> Option<&dyn SortedLoader> {
        None
    }

    // ---- out ----

    /// The current world, for holding it.
    fn view(&self) -> Arc<dyn IndexView>;

    /// Shows the current world for a moment, without a reference count that all readers share.
    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView));

    // ---- background work ----

    /// Work owed. Cheap.
    fn debt(&self) -> Debt;

    /// Does up to about `budget` bytes of work. Several threads may call; each claims a job of its own. `keep` returns, when a job starts,
    /// which read points must stay exact.
    fn step(&self, budget: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// The disk is full: does one piece of work that fits into `room`, and whose inputs are freed: writes a memtable, or compacts the keys
    /// of which the most can go. Idle if there is nothing of the kind.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// There has been no debt for a while: work that is worth doing only in idle time becomes debt now, until the next memtable comes.
    fn on_idle(&self);

    /// Asks for everything in `range` to be brought into its final place; done when the debt is paid. An index of [`Order::Hashed`] is asked
    /// for [`KeyRange::all`] only.
    fn compact(&self, range: &KeyRange) -> Result<()>;

    // ---- durability ----

    /// Fixes the world that the next root describes. Called while writers stand still: no I/O.
    fn begin_checkpoint(&self) -> Box<dyn Checkpoint + '_>;

    /// Forgets everything: the keyspace was dropped. Pages are freed when the last reader is gone.
    fn clear(&self);

    // ---- looking at it ----

    /// What a range holds.
    fn estimate(&self, range: &KeyRange) -> Result<Estimate>;

    /// Messages in the index, superseded ones included, and the tombstones of single keys among them. Counted once for each root; takes no
    /// lock.
    fn entries(&self) -> (u64, u64);

    /// Figures.
    fn stats(&self) -> IndexStats;

    /// Verification, description, salvage.
    fn inspect(&self) -> &dyn Inspect;
}

/// A world that the next root describes ([`Index::begin_checkpoint`]).
pub trait Checkpoint {
    /// Every message of the keyspace up to here is in this world.
    fn through(&self) -> Seqno;

    /// Writes what of it is not on disk yet and describes it. The caller syncs, then records it. Readers and writers go on meanwhile.
    ///
    /// # Errors
    /// An I/O error or a full disk: then the previous root stays in force.
    fn write(self: Box<Self>) -> Result<Cut>;
}

/// A consistent cut of an index at a checkpoint.
pub struct Cut {
    /// What the catalogue stores.
    pub root: RootRecord,
    /// Keeps the root's blocks alive while the caller wants to read them.
    pub pin: Arc<dyn IndexView>,
}

/// Writes past the memtable. Everything that can fail happens in `prepare`, before the commit has drawn its seqnos.
///
/// The index makes cached rows of the keys invalid ([`IndexRows::written`](crate::rows::IndexRows::written)) before it publishes them.
pub trait DirectWriter: Send + Sync {
    /// Reads, latches and reserves what the operations need. Operations have no seqno yet.
    ///
    /// # Errors
    /// Any: then the commit is refused and has changed nothing.
    fn prepare<'a>(&'a self, operations: &mut dyn Iterator<Item = Entry<'a>>) -> Result<Box<dyn Prepared + 'a>>;
}

/// Operations that were prepared; dropped without [`Prepared::apply`], they have no effect.
pub trait Prepared {
    /// Applies the operations, the first with seqno `first`, the others with the following ones. Cannot fail.
    fn apply(self: Box<Self>, first: Seqno);
}

/// Takes data in key order, into an index that holds nothing in their range.
pub trait SortedLoader: Send + Sync {
    /// Starts a load whose messages all have the seqno `at`. `expected_bytes` is a hint for allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the index cannot take it now.
    fn begin<'a>(&'a self, at: Seqno, expected_bytes: u64) -> Result<Box<dyn SortedLoad + 'a>>;
}

/// A load in key order; dropped without [`SortedLoad::finish`], it has no effect.
pub trait SortedLoad {
    /// Adds the next message. Keys ascend.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    fn push(&mut self, entry: &Entry<'_>) -> Result<()>;

    /// Publishes everything at once.
    ///
    /// # Errors
    /// As [`SortedLoad::push`].
    fn finish(self: Box<Self>) -> Result<()>;
}
