//! Indexes are the structures that hold a keyspace's data after the data has left the memtable. All indexes implement
//! one trait.
//!
//! ```text
//!   sealed memtable ──ingest──▶ debt ──step──▶ new root, published by one swap ──▶ IndexView for readers
//!                                                      │
//!              checkpoint: begin (commits are quiesced, no I/O) ─▶ write ─▶ RootRecord in the catalogue
//! ```
//!
//! 1. An index accepts sealed memtables ([`Index::ingest`], metadata only) and reports the work that they cause
//!    ([`Index::debt`]). It does this work in resumable steps ([`Index::step`]), which build new state and swap one
//!    root.
//! 2. Readers pin an [`IndexView`], which is an immutable state. The view knows the exact prefix of writes that it
//!    holds ([`IndexView::through`]) and the oldest unregistered read point that it can serve ([`IndexView::horizon`]).
//!    A lookup does no I/O; instead it requests blocks ([`Step::Need`]).
//! 3. A checkpoint fixes the contents of the next root while commits are quiesced ([`Index::begin_checkpoint`]). After
//!    commits have resumed, it writes this root ([`Checkpoint::write`]).
//! 4. The store uses an index only through its entry in the registry ([`registry`]) and this trait.
//!
//! Invariants of every index, asserted where the assertion is cheap:
//! * On any search path a message is visible in exactly one place. Puts hide a violation of this invariant, but merges
//!   make it visible.
//! * Newer messages of a key are in newer containers. Therefore a search from newest to oldest may stop at the first
//!   base.
//! * Blocks that a durable root reaches are never overwritten. Dropping the last `Arc` of a run or node frees its
//!   blocks; the replaced pages of a tree are freed with the last view that reaches them.
//!
//! **Other kinds of indexes.** Indexes with keys in hash order have [`Order::Hashed`]. Their keys arrive in the stored
//! form ([`KeyCodec`](crate::base::KeyCodec)), and the types of the API exclude ranges. An index may update pages in
//! place. It applies a sealed memtable to its pages in [`Index::step`], and copies a page before changing contents that
//! the last checkpoint describes. Readers read at `min(read point, through)`, so that a partly applied memtable is
//! invisible. Data may be bulk-loaded in key order: [`Index::loader`], which the registered indexes implement.
//!
//! **Direct writes.** Writes may bypass the memtable ([`Index::direct`]):
//!
//! ```text
//!   commit:      prepare (I/O, can fail) ─▶ log reservation ─▶ seqnos ─▶ record ─▶ Prepared::apply ─▶ visible
//!   checkpoint:  commits quiesced: begin_checkpoint(cut) ─▶ write: all messages up to the cut are in the root
//!   opening:     the log above Index::stored_through ─▶ DirectWriter::replay
//! ```
//!
//! The memtable of such a keyspace is always empty. A view shows the pages as they change, so it also shows messages
//! that are not visible yet. Its `through` is at least every visible seqno, and a reader reads it at its read point.
//! A `btree` may be written directly, and so are the test indexes `direct_stub` and `ordered_stub`.

pub mod betree;
pub mod blobs;
pub mod btree;
mod cached_rows;
pub mod cola;
mod core;
mod deferred_frees;
mod folding;
pub mod hot;
pub mod inspect;
mod lookup;
pub mod nbtree;
pub mod options;
pub mod owed;
pub mod pages;
pub mod parts;
pub mod registry;
pub mod runs;
pub mod spec;
mod stats;
pub mod stbe;
pub mod stored;
#[cfg(test)]
pub mod stub;
#[cfg(test)]
mod testing;
pub mod tree;
pub mod types;

pub use self::betree::BetreeOptions;
pub use self::btree::BtreeOptions;
pub use self::cola::ColaOptions;
pub use self::core::{Core, IdSource, SealedBatch};
pub use self::inspect::{Inspect, SalvagePiece, SalvageSource, SalvageStep, Verification, Visitor};
pub use self::lookup::{Base, Fold, Lookup, Probe, ProbeTally, Step};
pub use self::nbtree::NbtreeOptions;
pub use self::options::IndexOptions;
pub use self::spec::{Mode, OptionSpec, Settings, Values};
pub use self::stats::{Deadline, Debt, Estimate, Figure, FigureKind, IndexStats, Progress, Room};
pub use self::stbe::StbeOptions;
pub use self::types::{IndexKind, IndexType, Order};

use std::sync::Arc;

use crate::base::{
    Entry, EntryBlock, Error, Extent, HashedKey, KeyRange, Kind, RangeTombstone, Result, SeededBug, Seqno,
};
use crate::resolve::Stripes;

/// The durable root of an index. Its encoding belongs to the index and is opaque to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootRecord {
    /// All messages up to this seqno are in the root: replay applies only log records with a greater seqno to the
    /// keyspace.
    pub through: Seqno,
    /// The encoded root; empty for an index that has never been written.
    pub bytes: Vec<u8>,
}

impl RootRecord {
    /// The maximum number of bytes of an encoded root. The catalogue holds the records of all keyspaces and has a
    /// bounded size. Therefore data of variable size is in blocks that the record refers to.
    pub const MAX_BYTES: usize = 128;
}

/// A cursor over raw messages. It returns every version of every key, in the order of stored keys or in exactly the
/// reverse order, and reads many messages at a time.
pub trait RawCursor: Send {
    /// Appends about `max_bytes` of the next messages to `out`. If no message is left, the call appends nothing.
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()>;
    /// Moves the cursor to `key`, or to the next existing key in the cursor's direction.
    fn seek(&mut self, key: &[u8]) -> Result<()>;
    /// Tells the cursor that its reader does not need messages that are older than `seqno` and have keys in `range`,
    /// because a range tombstone deletes them. The cursor may leave out such messages, also after a seek.
    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno) -> Result<()> {
        let _ = (range, seqno);
        Ok(())
    }
}

/// The number of bytes that the default implementation of [`IndexView::changed_in`] reads at a time.
const CHANGED_BLOCK: usize = 32 << 10;

/// An immutable state of one index. All keys are in their stored form.
pub trait IndexView: Send + Sync {
    /// The last seqno in the view: it holds exactly the messages of the keyspace up to this seqno. Readers use a read
    /// point of at most this seqno.
    ///
    /// The view of an index that is written directly holds all messages that were applied, and shows later ones, too.
    /// It returns a seqno that is at least every visible seqno, for example [`Seqno::MAX`].
    fn through(&self) -> Seqno;

    /// The smallest read point for unregistered reads. At a smaller read point, versions that a compaction has dropped
    /// may be missing, so the read must be retried with a newer read point. In the view of an index that is written
    /// directly this number may grow, so readers ask for it before and after a read.
    fn horizon(&self) -> Seqno;

    /// Starts a point lookup.
    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v>;

    /// Offers a row to the row cache, if the index has one: the value that the operands and the base of a key in this
    /// view have made. `hash` is the hash of the key, and `seqno` that of the newest operand. The default
    /// implementation does nothing.
    ///
    /// REQUIRES: all messages of the key in this view were considered, and no others.
    fn offer_row(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno) {
        let _ = (key, hash, value, seqno);
    }

    /// Starts a scan of a range of stored keys, in descending order if `reverse`. With [`Order::Hashed`], the only use
    /// of a range is to continue a walk over all keys.
    ///
    /// In an index that is written directly, the cursor returns at least all messages that were applied before this
    /// call and that a registered read point or a later reader needs, also those that are not visible yet. Scans and
    /// transactions learn of concurrent writes from them.
    fn cursor(self: Arc<Self>, range: Arc<KeyRange>, reverse: bool) -> Result<Box<dyn RawCursor>>;

    /// Starts a walk over all messages, in the order of stored keys. Backup, dump and tests use it; they need no
    /// particular order.
    fn drain(self: Arc<Self>) -> Result<Box<dyn RawCursor>> {
        self.cursor(Arc::default(), false)
    }

    /// Appends every range tombstone that may cover a key of `range`.
    ///
    /// # Errors
    /// If some tombstones cannot be read. In that case it is unknown which messages of `range` are deleted.
    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()>;

    /// Whether the view holds a change of `key` with a seqno above `since`: a message of `key` that `changes` include,
    /// or a range tombstone that covers `key`. If `since` is a registered read point, the answer is exact, except that
    /// a change that has left no trace may be missed: a key that had no value at `since`, and has none now. The default
    /// implementation reads all messages of the key.
    ///
    /// # Errors
    /// If a block cannot be read.
    fn changed(self: Arc<Self>, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        self.changed_in(&KeyRange::point(key.key), since, changes)
    }

    /// Whether the view holds a change with a seqno above `since` of any key of `range`, as in [`IndexView::changed`].
    ///
    /// # Errors
    /// If a block cannot be read.
    fn changed_in(self: Arc<Self>, range: &KeyRange, since: Seqno, changes: Changes) -> Result<bool> {
        if self.through() <= since {
            return Ok(false);
        }
        let mut tombstones = Vec::new();
        self.tombstones(range, &mut tombstones)?;
        if tombstones.iter().any(|tombstone| tombstone.seqno > since && tombstone.range.overlaps(range)) {
            return Ok(true);
        }
        let (mut cursor, mut block) = (self.cursor_since(range, since)?, EntryBlock::new());
        loop {
            block.clear();
            cursor.fill(CHANGED_BLOCK, &mut block)?;
            if block.is_empty() {
                return Ok(false);
            }
            if block.iter().any(|entry| entry.seqno > since && changes.include(entry.kind)) {
                return Ok(true);
            }
        }
    }

    /// A cursor over a range of stored keys that returns at least all messages with a seqno above `since`. The default
    /// implementation returns all messages.
    ///
    /// # Errors
    /// The errors of [`IndexView::cursor`].
    fn cursor_since(self: Arc<Self>, range: &KeyRange, since: Seqno) -> Result<Box<dyn RawCursor>> {
        let _ = since;
        self.cursor(range.into(), false)
    }
}

/// The messages that count as changes of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// All messages.
    All,
    /// Messages that replace or delete the value, but no operands.
    Replacements,
}

impl Changes {
    /// Whether a message of this kind counts.
    pub fn include(self, kind: Kind) -> bool {
        let is_included = self == Changes::All || kind != Kind::Merge;
        is_included && !(kind == Kind::Delete && SeededBug::DeleteIsNoChange.is_on())
    }
}

/// One structure that holds a keyspace's data.
pub trait Index: Send + Sync {
    /// The entry of the index in the registry.
    fn index_type(&self) -> &'static IndexType;

    // ---- in ----

    /// Accepts a sealed memtable and adds debt. Only metadata changes. The batches must arrive in the order of their
    /// seqnos.
    fn ingest(&self, batch: SealedBatch);

    /// The interface for writes that bypass the memtable, if the index is written in this way. The answer is always the
    /// same for an index. If there is such an interface, [`Index::ingest`] is never called, and
    /// [`Debt::memory_bytes`] is always 0.
    fn direct(&self) -> Option<&dyn DirectWriter> {
        None
    }

    /// The interface for bulk loads in key order, if the index has a faster way than single writes. Without it, the
    /// store commits the rows of a load as one batch.
    fn loader(&self) -> Option<&dyn SortedLoader> {
        None
    }

    // ---- out ----

    /// Pins the current view.
    fn view(&self) -> Arc<dyn IndexView>;

    /// Calls `look` with the current view. Unlike [`Index::view`], this does not change the view's reference count, for
    /// which all readers would compete.
    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView));

    // ---- background work ----

    /// The pending work of the index. The call is cheap.
    fn debt(&self) -> Debt;

    /// Does at most about `budget` bytes of work. Several threads may call this function; each thread claims a job of
    /// its own. `keep` is called when a job starts. It returns the read points whose versions must be kept.
    fn step(&self, budget: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// Works on a full disk: does one piece of work that fits into `room` and frees its inputs. The work is packing a
    /// memtable, or compacting the keys with the most garbage. Reports an idle step if there is no such work.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress>;

    /// Tells the index that no debt has existed for some time. Optional work then counts as debt until the next
    /// memtable arrives.
    fn on_idle(&self);

    /// Requests a full compaction of `range`. The compaction is complete when no requested debt is left. For an index
    /// with [`Order::Hashed`], the range is always [`KeyRange::all`].
    fn compact(&self, range: &KeyRange) -> Result<()>;

    // ---- durability ----

    /// Fixes the state that the next root describes. `cut` is the last seqno that was drawn. Called while commits are
    /// quiesced, so all messages up to `cut` are applied, and the call must do no I/O.
    ///
    /// The state of an index that is written directly has all messages up to `cut`. Operations may be prepared and not
    /// applied at this moment. They get seqnos above `cut`.
    fn begin_checkpoint(&self, cut: Seqno) -> Box<dyn Checkpoint + '_>;

    /// Writes about `most` bytes of what the next root describes and what is not on disk yet, so that the next checkpoint
    /// has less to write. Returns the number of written bytes; 0 if nothing is left, or if the index leaves all writes to
    /// the checkpoint. What changes before the checkpoint is written again. REQUIRES: the caller holds the lock of the
    /// durable root, so no other thread writes nodes.
    ///
    /// # Errors
    /// An I/O error or a full disk.
    fn write_ahead(&self, most: u64) -> Result<u64> {
        debug_assert!(most > 0, "a step of no bytes makes no progress");
        Ok(0)
    }

    /// The root that was opened, and all later roots, hold every message of the keyspace up to this seqno. Opening the
    /// store skips these messages in the log. An index that ingests memtables holds them once they are packed. In an
    /// index that is written directly, the seqno does not change while the log is replayed.
    fn stored_through(&self) -> Seqno {
        self.view().through()
    }

    /// Removes all data, because the keyspace was dropped. The pages are freed when the last reader is gone. Views that
    /// were pinned before keep their contents. Operations may be prepared at this moment; they are never applied.
    fn clear(&self);

    /// Lists every page that the current root owns: both copies of its nodes, its runs, its large values. Each page is
    /// listed once.
    ///
    /// Opening a store calls this function when all indexes are built, before the store allocates its first page.
    /// Opening marks the listed pages as used. Therefore building an index from its root record must neither allocate
    /// nor write.
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent)) {
        self.inspect().pin().for_each_extent(visit);
    }

    // ---- looking at it ----

    /// Estimates the contents of a range.
    fn estimate(&self, range: &KeyRange) -> Result<Estimate>;

    /// The number of all messages in the index, including superseded messages, and the number of point tombstones among
    /// all these messages. The numbers are counted once per root. The call takes no lock.
    fn entries(&self) -> (u64, u64);

    /// The statistics of the index.
    fn stats(&self) -> IndexStats;

    /// The interface for verification, description and salvage.
    fn inspect(&self) -> &dyn Inspect;
}

/// The state that the next root describes ([`Index::begin_checkpoint`]).
pub trait Checkpoint {
    /// The last seqno in the state: it contains every message of the keyspace up to this seqno. After damage
    /// ([`Cut::damage`]), the root that is written may have a smaller one.
    fn through(&self) -> Seqno;

    /// Writes the parts of the state that are not on disk yet, and describes the state. The caller first syncs the data
    /// file and then records the description. The call may run concurrently with readers and writers. `keep` returns
    /// the read points whose versions must be kept.
    ///
    /// # Errors
    /// An I/O error or a full disk. In both cases the previous root remains in force.
    fn write(self: Box<Self>, keep: &dyn Fn() -> Stripes) -> Result<Cut>;
}

/// A consistent cut of an index at a checkpoint.
pub struct Cut {
    /// The root record for the catalogue.
    pub root: RootRecord,
    /// A view that keeps the root's blocks allocated while the caller needs to read them.
    pub pin: Arc<dyn IndexView>,
    /// Damage because of which an index that is written directly could not write its messages. The root is then that of
    /// the last checkpoint, with the same `through`, and the log keeps the later messages.
    pub damage: Option<Error>,
}

/// The interface for writes that bypass the memtable. All steps that can fail happen in `prepare`, before the commit
/// has drawn its seqnos.
///
/// An index that uses the row cache publishes the new values only after it has invalidated the cached rows of their
/// keys ([`IndexRows::written`](crate::rows::IndexRows::written)).
pub trait DirectWriter: Send + Sync {
    /// Does everything that can fail: reads pages, reserves disk space. The operations have no seqnos yet. Their keys
    /// are in the stored form. A range delete is an operation of kind [`Kind::RangeDelete`] with the bounds of the
    /// range as its key and its value, as in memtables; an empty value means that the range has no upper bound.
    ///
    /// The store may have dropped the keyspace, and may have called [`Index::clear`]. Then the operations are never
    /// applied.
    ///
    /// # Errors
    /// If this call returns an error, the commit is refused and has no effect.
    /// [`Error::DiskFull`](crate::Error::DiskFull) if `tools.room` returns it. A commit that only deletes then waits
    /// for background work, and prepares its operations again.
    fn prepare<'a>(
        &'a self,
        operations: &mut dyn Iterator<Item = Entry<'a>>,
        tools: &DirectTools<'_>,
    ) -> Result<Box<dyn Prepared + 'a>>;

    /// Applies one message of the log while the store is being opened, by a single thread. Messages arrive in the order
    /// of their seqnos, all above [`Index::stored_through`]. If the store is open for reading only, the index keeps the
    /// messages in memory and writes nothing.
    ///
    /// # Errors
    /// An I/O error, or damage. The store then cannot be opened, except for a salvage.
    fn replay(&self, message: &Entry<'_>, tools: &DirectTools<'_>) -> Result<()>;

    /// Calls `note` with the bytes of pages that the index has not written yet, as [`DirectTools::room`] gets them.
    /// Called after a checkpoint. Commits may run at the same time; the index passes the number of a later one to
    /// [`DirectTools::room`] if it is larger.
    fn count_unwritten(&self, note: &dyn Fn(u64));

    /// The bytes of pages that a checkpoint of a single message may take, if these are many more than the bytes of the
    /// message. On a nearly full disk, a checkpoint is not taken for so few bytes.
    fn least_unwritten(&self) -> u64 {
        0
    }

    /// Frees memory if the index takes much more than it may. Called before a commit is prepared, and after a message
    /// of the log was applied if the store is open for writing. The call may wait for a job of another thread, but not
    /// for a whole checkpoint. Reports an idle step if there is nothing to do. An index whose memory is bounded in another
    /// way does nothing.
    ///
    /// # Errors
    /// An I/O error or a full disk. Damage is part of the result.
    fn make_room(&self, keep: &dyn Fn() -> Stripes) -> Result<Progress> {
        let _ = keep;
        Ok(Progress { idle: true, ..Progress::default() })
    }
}

/// What an index gets from the store for a direct write.
pub struct DirectTools<'a> {
    /// Returns the read points whose versions must be kept.
    pub keep: &'a dyn Fn() -> Stripes,
    /// Whether the disk has space for this number of bytes of pages, beyond the space that is kept back. The index
    /// passes the sum of all bytes that it has not written yet, including those of the operations in question.
    pub room: &'a dyn Fn(u64) -> Result<()>,
    /// Values of at most this many bytes are stored inside the index, next to their keys.
    pub inline_bytes: usize,
}

/// Operations that are ready to be applied. Dropping such operations without [`Prepared::apply`] has no effect.
///
/// Operations may stay prepared for a long time, because their commit waits for the log or for space on the disk. In
/// the meantime other threads, and also this thread, call all functions of the index. None of these calls may wait for
/// prepared operations. So prepared operations hold no latches.
pub trait Prepared {
    /// Applies the operations. `seqnos` has one seqno for each operation, in the order of the operations. The seqnos
    /// ascend, but are not contiguous if the commit also writes to other keyspaces. Concurrent commits apply their
    /// operations in any order. This call cannot fail. It returns when each reader of the current view finds the
    /// operations.
    fn apply(self: Box<Self>, seqnos: &mut dyn Iterator<Item = Seqno>);
}

/// The interface for bulk loads in key order. The rows may overlap any data of the index.
///
/// ```text
///   begin ─▶ push, push, … ─▶ finish ─▶ stamp(seqno) ─▶ begin_checkpoint ─▶ attach
///            no lock, no seqno          the sequencer is quiesced, all memtables of the keyspace are packed
/// ```
pub trait SortedLoader: Send + Sync {
    /// Starts a load. `expected_bytes` is a hint for allocation.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`](crate::Error::InvalidArgument) if the index cannot accept a load now.
    fn begin<'a>(&'a self, expected_bytes: u64) -> Result<Box<dyn SortedLoad<'a> + 'a>>;

    /// Merges a waiting load, then packs the oldest waiting memtable completely, and does no other work. Returns after
    /// the merge if no memtable waits. Returns `None` if neither waits, or if another thread is packing.
    ///
    /// # Errors
    /// The errors of [`Index::step`].
    fn pack_one(&self, keep: &dyn Fn() -> Stripes) -> Result<Option<Progress>>;

    /// Whether the rows of an earlier load have to be merged with the other data of the index before another load can
    /// be attached. [`SortedLoader::pack_one`] merges them.
    fn has_waiting_load(&self) -> bool;
}

/// A bulk load in progress. Dropping a load before it is attached has no effect: its pages are freed.
pub trait SortedLoad<'a> {
    /// Adds the next row, a put. Its seqno is [`Seqno::UNASSIGNED`].
    ///
    /// # Errors
    /// An I/O error or a full disk. The load must then be dropped.
    ///
    /// # Panics
    /// If the key is not above the key of the previous row.
    fn push(&mut self, entry: &Entry<'_>) -> Result<()>;

    /// Writes the rest of the rows. They are neither synced nor attached.
    ///
    /// # Errors
    /// The errors of [`SortedLoad::push`].
    fn finish(self: Box<Self>) -> Result<Box<dyn FinishedLoad + 'a>>;
}

/// A bulk load whose rows are written and that is not attached yet.
pub trait FinishedLoad {
    /// Gives all rows the seqno `at`, which is above every seqno of the index. Does no I/O.
    ///
    /// # Errors
    /// If the written rows cannot be opened.
    fn stamp(&mut self, at: Seqno) -> Result<()>;

    /// Fixes the state that the next root describes, as if the rows were attached. Readers do not see this state.
    /// REQUIRES: the load is stamped, the sequencer is quiesced, the index holds all memtables of the keyspace, and no
    /// earlier load waits to be merged.
    ///
    /// # Errors
    /// If the new state cannot be computed, because a block cannot be read. The index is unchanged.
    fn begin_checkpoint(&self) -> Result<Box<dyn Checkpoint + '_>>;

    /// Publishes the rows at once, after the row cache has dropped the rows of their keys. REQUIRES: as for
    /// [`FinishedLoad::begin_checkpoint`].
    ///
    /// # Errors
    /// The errors of [`FinishedLoad::begin_checkpoint`].
    fn attach(self: Box<Self>) -> Result<()>;
}
