//! The row cache: single rows that are requested repeatedly, cached above the pool.
//!
//! If some rows are requested much more often than others, a cached leaf holds about one hot row and thirty cold rows.
//! If rows are cached individually, the same memory holds ten times as many hot rows. A lookup that finds its row in
//! this cache probes no filter and searches no tree.
//!
//! ```text
//!   lookup ─▶ memtables ─▶ row cache ─▶ filters, inner blocks, leaf ─▶ found ─▶ offer: cached at the second offer
//!                             ▲
//!   sealed memtable ─▶ packed ┴▶ absorb: new values in, deleted rows out ─▶ new root published     index/cached_rows
//! ```
//!
//! A cached row is the newest value that the *index* holds for a key, with the seqno of the newest message that the value
//! includes. If the index has operands for the key, the value includes them. The row does not reflect messages that are
//! only in a memtable; a lookup searches the memtables before the row cache.
//!
//! Invariants:
//!
//! * **A lookup at `at` in a root** uses a cached row if the row's seqno is at most `at` and at most the root's
//!   `through`. Under this condition the row is the newest one of its key in this root. Messages that this root does
//!   not hold are in memtables, where the lookup has already found them. If such a message were also folded into the
//!   cached row, the lookup would apply the message twice.
//! * **A memtable is absorbed before the root that holds its messages is published** ([`IndexRows::absorb`]): while the
//!   memtable is packed, or applied to a tree, the cached rows of its keys are updated or removed.
//! * **A row is offered with the `through` of the root that it was read from** ([`IndexRows::offer`]). The offer is
//!   refused if the absorption of another memtable has begun since this root was published. This check is made under
//!   the lock of the row's shard, which `absorb` also takes to change the row. A tree that publishes a memtable in pieces
//!   keeps its `through` until the last piece, so the cache accepts no row before that.
//! * Large values are not cached. Compactions do not change the newest value that the index holds for a key, so they need
//!   not update the cache.
//!
//! **Size** (`balance.rs`): the cache always has the number of bytes that the user requested. It reserves further bytes
//! from the pool as long as they save more reads there than in the pool.
//!
//! **Replacement** (`shard.rs`): a row is cached if its key was looked up twice within N lookups, where N is about four
//! times the number of cached rows. Rows are evicted in insertion order, except rows that were requested after their
//! insertion.
//!
//! Locks: the lock of a shard is held for the work on one row, and no other lock is taken under it. The balance's lock
//! is taken before the locks of shards and of the pool.
//!
//! Source: the queue with a second chance is equivalent to CLOCK (002 §3.6.1).

mod balance;
mod segment;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::balance::{Balance, PIECES};
pub use self::shard::Change;
use self::shard::{Shard, segment_bytes};
use crate::base::sync::{AtomicU64, Mutex, Ordering};
use crate::base::{Ghosts, SeededBug, Seqno, Slab, seeded};
use crate::pool::Pool;

/// The most shards of a cache.
const SHARDS: usize = 16;
const _: () = assert!(SHARDS.is_power_of_two(), "bits of the hash choose the shard");
/// The least size of a shard in bytes. So a small cache has fewer shards.
const LEAST_SHARD: usize = 64 << 10;

/// The number of free segments that the slab keeps in memory for the next use.
const SPARE: usize = 4;

/// One in `WATCHED` evicted rows is remembered. A row is estimated to have `ROW` bytes.
const WATCHED: usize = 8;
const ROW: usize = 128;

/// The rows of all indexes of a store.
#[derive(Debug)]
pub struct RowCache {
    /// The shards; their number is a power of two.
    shards: Box<[Locked]>,
    /// Whether the capacity is 0. If so, lookups and offers return immediately.
    off: bool,
    ghosts: Arc<Ghosts>,
    /// The number of leaves that scans have read.
    scanned: AtomicU64,
    /// Divides memory between the cache and the pool; `None` if they do not share memory.
    balance: Option<Balance>,
    indexes: AtomicU64,
}

/// A shard in cache lines of its own, so that cores that use neighbouring shards do not share a cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Locked(Mutex<Shard>);

/// The row cache as one index uses it.
#[derive(Debug)]
pub struct IndexRows {
    cache: Arc<RowCache>,
    /// The number of the index among the indexes that use this cache.
    index: u32,
    /// All messages of the index up to this seqno have been absorbed.
    absorbed: AtomicU64,
}

/// Statistics of the row cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowStats {
    /// Bytes of memory.
    pub bytes: u64,
    /// Rows in the cache.
    pub rows: u64,
    /// Lookups that found their row.
    pub hits: u64,
    /// Lookups that did not find their row.
    pub misses: u64,
}

impl RowCache {
    /// Creates a cache of at most about `capacity_bytes`; a cache of 0 bytes caches nothing. Allocates a sixteenth to
    /// an eighth of the bytes immediately, and the rest when rows are cached.
    pub fn new(capacity_bytes: usize) -> Arc<RowCache> {
        RowCache::with(capacity_bytes, capacity_bytes, None)
    }

    /// Creates a cache of at least `capacity_bytes`. The cache reserves further bytes from the pool of `pool_bytes` as
    /// long as they save reads. Allocates 1/800 of `pool_bytes` immediately to remember evicted rows.
    pub fn sharing(capacity_bytes: usize, pool: &Arc<Pool>, pool_bytes: usize) -> Arc<RowCache> {
        if capacity_bytes == 0 {
            return RowCache::new(0);
        }
        RowCache::with(capacity_bytes, pool_bytes, Some(Balance::new(pool.clone(), capacity_bytes, pool_bytes)))
    }

    fn with(capacity_bytes: usize, shared: usize, balance: Option<Balance>) -> Arc<RowCache> {
        let sample = if balance.is_some() { WATCHED } else { 1 };
        let span = if balance.is_some() { shared / Pool::GHOSTS } else { 0 };
        let ghosts = Arc::new(Ghosts::new(span, ROW, sample));
        let shards = (capacity_bytes / LEAST_SHARD).clamp(1, SHARDS);
        let shards = 1 << shards.ilog2();
        assert!(shards == 1 || capacity_bytes / shards >= LEAST_SHARD, "no shard is smaller than the least");
        // Rows reserve at most half of the memory that they share with the pool.
        let segment = segment_bytes(capacity_bytes / shards);
        let slab = Slab::new(segment, (capacity_bytes + shared / 2) / segment + SHARDS, SPARE);
        let shard = || Locked(Mutex::new(Shard::new(capacity_bytes / shards, slab.clone(), ghosts.clone())));
        Arc::new(RowCache {
            shards: (0..shards).map(|_| shard()).collect(),
            off: capacity_bytes == 0,
            ghosts: ghosts.clone(),
            scanned: AtomicU64::new(0),
            balance,
            indexes: AtomicU64::new(0),
        })
    }

    /// Registers an index whose root holds all messages up to `through`.
    pub fn of_index(self: &Arc<Self>, through: Seqno) -> IndexRows {
        let index = self.indexes.fetch_add(1, Ordering::Relaxed);
        let index = u32::try_from(index).expect("a store opens fewer than 2^32 indexes");
        IndexRows { cache: self.clone(), index, absorbed: AtomicU64::new(through.0) }
    }

    /// Returns the statistics.
    pub fn stats(&self) -> RowStats {
        let ghosts = self.balance.as_ref().map_or(0, |_| self.ghosts.bytes() as u64);
        let mut stats = RowStats { bytes: ghosts, ..RowStats::default() };
        for shard in &self.shards {
            let shard = shard.0.lock();
            stats.bytes += shard.bytes() as u64;
            stats.rows += shard.rows() as u64;
            stats.hits += shard.hits;
            stats.misses += shard.misses;
        }
        stats
    }

    /// The number of leaves that scans have read.
    #[cfg(test)]
    pub fn scanned_leaves(&self) -> u64 {
        self.scanned.load(Ordering::Relaxed)
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        debug_assert!(self.shards.len().is_power_of_two(), "a mask selects one of the shards");
        // The low bits choose the position within the shard.
        &self.shards[(hash >> 48) as usize & (self.shards.len() - 1)].0
    }

    /// Divides `bytes` evenly among all shards.
    /// REQUIRES: the caller holds the lock of the balance.
    fn resize(&self, bytes: usize) {
        assert!(!self.off, "a cache without capacity reserves no memory");
        self.shards.iter().for_each(|shard| shard.0.lock().resize(bytes / self.shards.len()));
    }

    /// Decides whether rows should get more memory or less.
    #[cold]
    fn weigh(&self) {
        if let Some(balance) = &self.balance {
            balance.weigh(|| (self.stats().misses, self.ghosts.found()), |bytes| self.resize(bytes));
        }
    }

    /// Releases reserved memory that memtables may need. Called when a memtable is sealed or packed.
    /// REQUIRES: the caller holds no lock.
    pub fn shrink(&self) {
        if let Some(balance) = &self.balance {
            balance.shrink(|bytes| self.resize(bytes));
        }
    }

    /// Whether no row of the index is cached. If so, memtables of this index need not be absorbed.
    fn has_none_of(&self, index: u32) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().rows_of(index) == 0)
    }
}

impl IndexRows {
    /// Returns the value that a root with the given `through` has for a key at the read point `at`, if the value is
    /// cached. `hash` is the key's hash, as computed by the keyspace's [`crate::base::KeyCodec`].
    pub fn get(&self, key: &[u8], hash: u64, at: Seqno, through: Seqno) -> Option<Arc<[u8]>> {
        if self.cache.off {
            return None;
        }
        let at = seeded!(RowOfNewerRoot: at, at.min(through));
        let (found, misses) = {
            let mut shard = self.cache.shard(hash).lock();
            (shard.get(self.index, key, hash, at), shard.misses)
        };
        if found.is_none() && misses.is_multiple_of(PIECES) {
            self.cache.weigh();
        }
        found
    }

    /// Notes that a scan of the index has read `leaves` leaves that were not in the pool. Such leaves show that the pool
    /// is too small, so they may make the row cache return memory to the pool.
    pub fn scanned(&self, leaves: u64) {
        if self.cache.off || leaves == 0 {
            return;
        }
        let before = self.cache.scanned.fetch_add(leaves, Ordering::Relaxed);
        if before / PIECES != (before + leaves) / PIECES {
            self.cache.weigh();
        }
    }

    /// Offers the newest value that a root holds for a key, with the value's seqno. `through` is the newest seqno that
    /// this root holds.
    pub fn offer(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno, through: Seqno) {
        if self.cache.off {
            return;
        }
        debug_assert!(seqno <= through, "a root through {through} does not hold {seqno}");
        let mut shard = self.cache.shard(hash).lock();
        let stale = self.absorbed.load(Ordering::Acquire) != through.0;
        if !stale || SeededBug::LateRowTaken.is_on() {
            shard.offer(self.index, key, hash, value, seqno);
        }
    }

    /// Announces that the next root will hold all messages up to `through`. Returns whether [`IndexRows::absorb`] must
    /// be called for each key that this root adds.
    /// REQUIRES: one thread at a time prepares a root of the index.
    pub fn begin(&self, through: Seqno) -> bool {
        // This store precedes all calls of `absorb` for this root. So if a reader offers a row of an older root, either
        // the offer is refused, or the row was inserted before `absorb` inspects the shard.
        self.absorbed.store(through.0, Ordering::Release);
        !self.cache.off && !self.cache.has_none_of(self.index)
    }

    /// Updates or removes the cached row of a key that is in a memtable of the next root.
    /// REQUIRES: [`IndexRows::begin`] was called for this root.
    pub fn absorb(&self, key: &[u8], hash: u64, change: Change<'_>) {
        seeded!(RowOutlivesOverwrite: (), self.cache.shard(hash).lock().change(self.index, key, hash, change));
    }

    /// Removes the row of a key, and makes the cache refuse rows that were read before the write at `seqno`. Called
    /// before an index publishes a write that bypassed the memtables.
    pub fn written(&self, key: &[u8], hash: u64, seqno: Seqno) {
        self.absorbed.fetch_max(seqno.0, Ordering::AcqRel);
        self.absorb(key, hash, Change::Other);
    }

    /// Removes the rows that `covers` selects. Called for range tombstones. O(rows).
    pub fn remove_where(&self, covers: impl Fn(&[u8], Seqno) -> bool) {
        for shard in &self.cache.shards {
            shard.0.lock().retain(|index, key, seqno| index != self.index || !covers(key, seqno));
        }
    }
}

impl Drop for IndexRows {
    fn drop(&mut self) {
        self.remove_where(|_, _| true);
        debug_assert!(self.cache.has_none_of(self.index), "no row outlives its index");
    }
}
