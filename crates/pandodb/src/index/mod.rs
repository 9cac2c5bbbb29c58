//! Indexes: the structures that hold a keyspace's data once it has left the memtable, behind one trait.
//!
//! An index takes sealed memtables ([`Index::ingest`], metadata only), owes work for them ([`Index::debt`]) and does the
//! work in resumable steps ([`Index::step`]) that build beside and swap one root. Readers take an [`IndexView`]: an
//! immutable world that knows the exact prefix of writes it holds ([`IndexView::through`]) and the oldest unregistered
//! read point it can serve ([`IndexView::horizon`]).
//!
//! Invariants of every index, asserted where it is cheap:
//! * on any search path a message is visible in exactly one place (a violation hides behind puts, shows with merges);
//! * a newer container holds, for each key, only higher seqnos, so "newest to oldest until a base" is right;
//! * what a durable root reaches is never overwritten; dropping the last `Arc` to a run or node frees it.
//!
//! Each folder beside this file is one index, listed in [`types`]; which of them a keyspace uses is stored in the catalogue.

pub mod blobs;
pub mod cola;
mod graves;
pub mod options;
pub mod owed;
pub mod runs;
pub mod stbe;
#[cfg(test)]
mod testing;
pub mod types;

pub use self::cola::ColaOptions;
pub use self::options::{IndexOptions, OptionSpec, Settings, Values};
pub use self::stbe::StbeOptions;
pub use self::types::{IndexKind, IndexType, Mode, Order};

use std::ops::ControlFlow;
use std::sync::Arc;

use crate::base::sync::{AtomicU64, Ordering::Relaxed};
use crate::base::{
    BlobRef, BlockAddr, Entry, EntryBlock, Error, Extent, KeyRange, KeyspaceId, Kind, OwnerId, RangeTombstone, Result,
    Seqno,
};
use crate::memtable::Memtable;
use crate::pool::{Block, Pool};
use crate::resolve::{Gather, Stripes};
use crate::rows::RowCache;
use crate::run::RunSlice;
use crate::space::{BlockKind, DataFile};

/// A memtable that takes no more writes, handed over for good.
#[derive(Clone)]
pub struct SealedBatch {
    /// The messages.
    pub memtable: Arc<Memtable>,
    /// Every message of the keyspace up to here is in this batch or an older one.
    pub through: Seqno,
    /// What packing it counts as, in bytes of debt. Fixed, unlike the memory that the memtable takes.
    pub bytes: u64,
}

impl SealedBatch {
    /// A batch of a memtable that holds the last messages up to `through`.
    pub fn new(memtable: Arc<Memtable>, through: Seqno) -> SealedBatch {
        SealedBatch { bytes: memtable.bytes() as u64, memtable, through }
    }
}

/// What an index stands on.
#[derive(Clone)]
pub struct Core {
    /// The data file.
    pub data: Arc<DataFile>,
    /// The buffer pool.
    pub pool: Arc<Pool>,
    /// The row cache.
    pub rows: Arc<RowCache>,
    /// Hands out identities of runs and trunk nodes.
    pub ids: Arc<IdSource>,
    /// The store is open for writing: a damaged copy of a metadata block is written anew when it is met.
    pub mend: bool,
    /// Where the index that is built on this adds what it owes.
    pub share: owed::Share,
}

impl Core {
    /// The same for the index of keyspace `id`.
    pub fn of(&self, id: KeyspaceId) -> Core {
        let share = owed::Share { owed: self.share.owed.clone(), id };
        Core { share, ..self.clone() }
    }
}

/// The source of identities that are never reused within a store.
#[derive(Debug)]
pub struct IdSource(AtomicU64);

impl IdSource {
    /// The next identity is `next`.
    pub fn new(next: u64) -> IdSource {
        IdSource(AtomicU64::new(next.max(1)))
    }

    /// An identity that nobody had before.
    pub fn next(&self) -> OwnerId {
        OwnerId(self.0.fetch_add(1, Relaxed))
    }

    /// The identity that will be given out next: what a superblock records.
    pub fn peek(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Work that is not done yet: what accepted writes have caused, and what callers have asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Debt {
    /// Bytes of memtables that wait to be packed into runs.
    pub pack_bytes: u64,
    /// Bytes of runs that wait to be compacted, at least once.
    pub compact_bytes: u64,
    /// The same, where a caller asked for it ([`Index::compact`]): no write has caused this work, so none pays for it.
    pub requested_bytes: u64,
}

impl Debt {
    /// All of it, in bytes.
    pub fn total(self) -> u64 {
        self.pack_bytes + self.compact_bytes + self.requested_bytes
    }
}

/// How much disk is left, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// What outputs may take.
    pub bytes: u64,
    /// What packing is to leave of it, so that a piece of a compaction still fits: packing alone would fill the disk with deletes.
    pub spare: u64,
    /// Background work or a delete was refused for want of disk: anything that frees some is worth its price.
    pub urgent: bool,
}

/// What one step did.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    /// Bytes read from inputs: the measure in which debt is paid. A step that prepares the end of a run reads none.
    pub bytes: u64,
    /// A memtable was packed and attached, which counted as so many bytes: the view's `through` has moved.
    pub packed: Option<u64>,
    /// There was nothing to do (or others are doing it).
    pub idle: bool,
    /// An input could not be read. It stays as it is and nothing is owed for it any more; other work goes on.
    pub damage: Option<Error>,
}

/// The durable root of an index: its own encoding, opaque to the catalogue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RootRecord {
    /// Replay applies a log record to the keyspace only above this.
    pub through: Seqno,
    /// The index's encoding; empty for an index that has never been written.
    pub bytes: Vec<u8>,
}

impl RootRecord {
    /// The longest encoding, in bytes. The catalogue holds the records of all keyspaces and is bounded: what grows with the data stands in
    /// blocks that the record names.
    pub const MAX_BYTES: usize = 128;
}

/// An estimate of what a range holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Messages, superseded ones included.
    pub entries: u64,
    /// Bytes in runs.
    pub bytes: u64,
}

/// Figures of the tree of one keyspace. Those *since opening* are counters: they start at 0 with each opening of the store and
/// never fall. All others are gauges, as of the call.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    /// Levels of the tree; 1 while the root is a leaf.
    pub levels: u32,
    /// Nodes of the trunk.
    pub nodes: u64,
    /// Distinct runs.
    pub runs: u64,
    /// Maplets that stand before runs.
    pub maplets: u64,
    /// The most runs that a lookup may meet on one path.
    pub max_runs_on_path: u64,
    /// Messages in runs, superseded ones included; deletes and merges count.
    pub entries: u64,
    /// Of these, tombstones of single keys.
    pub tombstones: u64,
    /// Bytes of keys and values that live in runs (large values included).
    pub logical_bytes: u64,
    /// Bytes that the runs occupy (large values included).
    pub disk_bytes: u64,
    /// Bytes of the runs' filters and inner blocks, and of maplets: what lookups want to find in the pool.
    pub search_bytes: u64,
    /// Bytes written by packing memtables since opening.
    pub packed_bytes: u64,
    /// Bytes written by compactions since opening.
    pub compacted_bytes: u64,
    /// Of these, by the height of the node that they were done in: leaves first; the last one stands for all above.
    pub compacted_by_height: [u64; HEIGHTS],
    /// Bytes of filters in what was packed and compacted since opening.
    pub filter_bytes: u64,
    /// Bytes of maplets written since opening.
    pub routed_bytes: u64,
    /// Bytes of compaction outputs that nothing needed any more when they were done.
    pub wasted_bytes: u64,
    /// Compactions finished since opening.
    pub compactions: u64,
    /// References handed from a node to a child since opening.
    pub flushes: u64,
    /// Nodes split since opening.
    pub splits: u64,
    /// Nodes merged since opening.
    pub merges: u64,
    /// Runs that a compaction could not read: they stay as they are until the store is opened again.
    pub damaged_runs: u64,
    /// Work owed.
    pub debt: Debt,
}

/// Heights of nodes that figures tell apart.
pub const HEIGHTS: usize = 8;

/// What a lookup asked for, as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProbeTally {
    /// Filters that were asked.
    pub filters: u64,
    /// Blocks for which nobody had to be asked: they had been looked for before.
    pub foreseen: u64,
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
    /// The key.
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
    /// No other lookup of this thread is under way: those wait for each other's blocks, and what each holds meanwhile is to be little.
    pub alone: bool,
    /// Messages with a smaller seqno are dead: a range tombstone covers them.
    floor: Seqno,
    done: bool,
}

impl<'a> Lookup<'a> {
    /// Looks for `key` as it was at `at`.
    pub fn new(key: &'a [u8], at: Seqno) -> Lookup<'a> {
        Lookup {
            key,
            hash: crate::base::key_hash(key),
            at,
            gather: Gather::new(),
            base: Base::Absent,
            base_seqno: Seqno(0),
            tally: ProbeTally::default(),
            alone: true,
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
    /// Nothing more: the lookup has what this index knows.
    Done,
    /// A block of a run; call again with it.
    Need(&'v crate::run::Run, BlockAddr, BlockKind),
}

/// A lookup on its way through one view. It never does I/O: it names the block that it needs and goes on when it has
/// it, so that one caller can keep many lookups in flight. It borrows the view: what readers count, they fight for.
pub trait Probe<'v>: Send {
    /// Goes on, with the block that the last step asked for.
    fn step(&mut self, block: Option<Block>, lookup: &mut Lookup<'_>) -> Result<Step<'v>>;
}

/// A cursor over raw messages: every version of every key, in order (or in exact reverse), a block at a time.
pub trait RawCursor: Send {
    /// Appends the next messages to `out`, about `max_bytes` of them; nothing at the end.
    fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) -> Result<()>;
    /// Goes on at the first key that is not before `key` (in the cursor's direction).
    fn seek(&mut self, key: &[u8]) -> Result<()>;
}

/// An immutable world of one index.
pub trait IndexView: Send + Sync {
    /// Holds exactly the messages of the keyspace up to here.
    fn through(&self) -> Seqno;
    /// Unregistered reads below this may miss versions that a compaction has dropped: take a newer read point.
    fn horizon(&self) -> Seqno;
    /// Starts a point lookup.
    fn probe<'v>(&'v self, lookup: &Lookup<'_>) -> Box<dyn Probe<'v> + 'v>;
    /// Starts a scan of `range`, downwards if `reverse`.
    fn cursor(self: Arc<Self>, range: &KeyRange, reverse: bool) -> Result<Box<dyn RawCursor>>;
    /// Appends every range tombstone that may cover a key of `range`.
    ///
    /// # Errors
    /// If some cannot be read: then no message of `range` is known to be alive.
    fn tombstones(&self, range: &KeyRange, out: &mut Vec<RangeTombstone>) -> Result<()>;
}

/// One structure that holds a keyspace's data.
pub trait Index: Send + Sync {
    /// Its entry in the registry.
    fn index_type(&self) -> &'static IndexType;
    /// Takes a sealed memtable: metadata only, makes debt. Batches come in the order of their seqnos.
    fn ingest(&self, batch: SealedBatch);
    /// The current world, for holding it.
    fn view(&self) -> Arc<dyn IndexView>;
    /// Shows the current world for a moment, without counting who looks.
    fn with_view(&self, look: &mut dyn FnMut(&dyn IndexView));
    /// Work owed, in bytes. Cheap.
    fn debt(&self) -> Debt;
    /// Does up to about `budget` bytes of work. Several threads may call; each claims a job of its own. `keep` tells,
    /// when a job starts, which read points must stay exact.
    fn step(&self, budget: u64, keep: &dyn Fn() -> Stripes) -> Result<Progress>;
    /// The disk is full: does one piece of work that fits into `room`, and whose inputs are given back: packs a memtable, or
    /// compacts the keys of which the most can go. Idle if there is nothing of the kind.
    fn relieve(&self, room: Room, keep: &dyn Fn() -> Stripes) -> Result<Progress>;
    /// Nothing has been owed for a while: what is worth doing only in idle time is owed from now on, until the next memtable comes.
    fn rest(&self);
    /// Writes what of the current root is not on disk yet and describes it. The caller syncs, then records it.
    fn cut(&self) -> Result<Cut>;
    /// Asks for everything in `range` to be brought into its final place; done when the debt is paid.
    fn compact(&self, range: &KeyRange) -> Result<()>;
    /// What a range holds.
    fn estimate(&self, range: &KeyRange) -> Result<Estimate>;
    /// Messages in runs, superseded ones included, and the tombstones of single keys among them. Counted once for each root; takes no lock.
    fn entries(&self) -> (u64, u64);
    /// Figures.
    fn stats(&self) -> IndexStats;
    /// Forgets everything: the keyspace was dropped. Pages are freed when the last reader is gone.
    fn clear(&self);
    /// Pins the current root, for a check of everything that it reaches. While no checkpoint runs, so that it is known which nodes
    /// are on disk.
    fn pin(&self) -> Verification<'_>;
    /// The whole key line in pieces, in order, for a salvage. Only in a store that is open for reading: nothing pins them.
    fn parts(&self) -> Vec<SalvagePart>;
    /// Describes the structure, for the inspector.
    fn describe(&self, out: &mut String);
    /// The description of one of its runs.
    fn run(&self, id: OwnerId) -> Option<crate::run::RunMeta>;
}

/// A consistent cut of an index at a checkpoint.
pub struct Cut {
    /// What the catalogue stores.
    pub root: RootRecord,
    /// Keeps the root's nodes and runs alive while the caller wants to read them.
    pub pin: Arc<dyn IndexView>,
}

/// A piece of the key line with everything that the index holds for it.
pub struct SalvagePart {
    /// The keys.
    pub range: KeyRange,
    /// The runs that a lookup there asks, the newest first.
    pub slices: Vec<Arc<RunSlice>>,
    /// There was more, older than these, and it cannot be read.
    pub lost: Option<Error>,
}

/// Reads and checks everything that a pinned root reaches. Until it is done or dropped no page of that is used for anything else.
pub type Verification<'a> = Box<dyn FnOnce(&mut dyn Visitor) -> Result<()> + 'a>;

/// What a [`Verification`] reports to.
pub trait Visitor {
    /// Pages that the index owns.
    fn extent(&mut self, extent: Extent);
    /// A block that was read and checked.
    fn block(&mut self, kind: BlockKind, bytes: u64);
    /// A message that was read.
    fn entry(&mut self, entry: &Entry<'_>);
    /// Something that is wrong; verification goes on.
    fn problem(&mut self, problem: crate::base::Error);
}
