//! The row cache: rows that are asked for again and again, each alone, above the pool.
//!
//! Where some rows are much hotter than others, a cached leaf is one hot row and thirty cold ones: by single rows the same
//! memory holds ten times as many of those that are wanted. And who finds a row here asks no filter and walks no tree.
//!
//! ```text
//!   lookup ─▶ memtables ─▶ row cache ─▶ filters, inner blocks, leaf ─▶ found ─▶ offer: kept at the second time
//!                             ▲
//!   sealed memtable ─▶ packed ┴▶ absorb: new values in, deleted rows out ─▶ new root published
//! ```
//!
//! What is cached is what the *index* says of a key, nothing that is still in a memtable: its newest value, and the seqno of that.
//! Memtables are asked first, as ever.
//!
//! * **A lookup at `at` in a root** takes a cached row if the row's seqno is above neither `at` nor the root's `through`: then the root holds
//!   it, and there is nothing newer in any. What the root does not hold yet the lookup has met in a memtable; a row with that folded in
//!   would count it twice.
//! * **A memtable is absorbed before the root that holds it is published** ([`IndexRows::absorb`]), while it is packed: rows of its keys
//!   are brought up to date or leave.
//! * **A row is offered with the `through` of the root that it was read from** ([`IndexRows::offer`]), and taken only if nothing has been
//!   absorbed since: that is looked at under the lock which whoever absorbs must take to touch the row.
//! * Only plain values that stand alone are cached: no operands, no large values. Compactions change no such value.
//!
//! **How many** (`balance.rs`): at least what was asked for; more at the pool's expense as long as that saves reads.
//!
//! **What stays** (`shard.rs`): a row comes in when its key was looked for twice within about as many lookups as four times the rows,
//! and leaves in the order of coming, unless it was asked for meanwhile.
//!
//! Locks: a shard's, for one row; nothing inside it. The balance's, above those of shards and the pool's.
//!
//! Source: design §4 (hot-record cache); the queue with a second chance is CLOCK by another name (002 §3.6.1).

mod balance;
mod segment;
mod shard;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use self::balance::{Balance, PIECES};
use self::shard::{Shard, segment_bytes};
use crate::base::sync::{AtomicU64, Mutex, Ordering};
use crate::base::{Ghosts, SeededBug, Seqno, Slab};
use crate::pool::Pool;

/// The most shards.
const SHARDS: usize = 16;
/// A shard below this is not worth a lock of its own.
const LEAST_SHARD: usize = 64 << 10;

/// Segments that are kept in memory between two uses.
const SPARE: usize = 4;

/// Of the rows that leave, one in so many is remembered, which are about so long.
const WATCHED: usize = 8;
const ROW: usize = 128;

/// The rows of all indexes of a store.
#[derive(Debug)]
pub struct RowCache {
    /// As many as a power of two.
    shards: Box<[Locked]>,
    /// It was made for no bytes: nobody looks.
    off: bool,
    ghosts: Arc<Ghosts>,
    /// Shares memory with the pool.
    balance: Option<Balance>,
    indexes: AtomicU64,
}

/// Cores that work on neighbours do not share a line.
#[derive(Debug)]
#[repr(align(64))]
struct Locked(Mutex<Shard>);

/// What one index knows of the row cache.
#[derive(Debug)]
pub struct IndexRows {
    cache: Arc<RowCache>,
    /// Which index, among those of this cache.
    index: u32,
    /// Everything in the index up to here is regarded.
    absorbed: AtomicU64,
}

/// What became of a key in a memtable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// It has this value since this seqno.
    Value(&'a [u8], Seqno),
    /// Something that is not cached.
    Other,
}

/// Figures of the row cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowStats {
    /// Bytes of memory.
    pub bytes: u64,
    /// Rows that can be found.
    pub rows: u64,
    /// Lookups that found their row.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
}

impl RowCache {
    /// A cache of about so many bytes at most; of none for 0. Takes a sixteenth to an eighth of them at once, the rest as rows come.
    pub fn new(capacity_bytes: usize) -> Arc<RowCache> {
        RowCache::with(capacity_bytes, capacity_bytes, None)
    }

    /// A cache that borrows from the pool, of so many bytes, where that saves reads. Takes an 800th of these at once to know when.
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
        // Rows borrow half of what they share with the pool, at most.
        let segment = segment_bytes(capacity_bytes / shards);
        let slab = Slab::new(segment, (capacity_bytes + shared / 2) / segment + SHARDS, SPARE);
        let shard = || Locked(Mutex::new(Shard::new(capacity_bytes / shards, slab.clone(), ghosts.clone())));
        Arc::new(RowCache {
            shards: (0..shards).map(|_| shard()).collect(),
            off: capacity_bytes == 0,
            ghosts: ghosts.clone(),
            balance,
            indexes: AtomicU64::new(0),
        })
    }

    /// For an index that holds everything up to `through`.
    pub fn of_index(self: &Arc<Self>, through: Seqno) -> IndexRows {
        let index = self.indexes.fetch_add(1, Ordering::Relaxed) as u32;
        IndexRows { cache: self.clone(), index, absorbed: AtomicU64::new(through.0) }
    }

    /// Figures.
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

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // The low bits choose within the shard.
        &self.shards[(hash >> 48) as usize & (self.shards.len() - 1)].0
    }

    /// Brings all shards to so many bytes together.
    fn resize(&self, bytes: usize) {
        self.shards.iter().for_each(|shard| shard.0.lock().resize(bytes / self.shards.len()));
    }

    /// Looks whether rows should have more memory, or less.
    #[cold]
    fn weigh(&self) {
        if let Some(balance) = &self.balance {
            balance.weigh(|| (self.stats().misses, self.ghosts.found()), |bytes| self.resize(bytes));
        }
    }

    /// Gives back what was borrowed and memtables may need now: called when one is sealed or packed, without any lock.
    pub fn give_way(&self) {
        if let Some(balance) = &self.balance {
            balance.give_way(|bytes| self.resize(bytes));
        }
    }

    /// Whether there is nothing of an index: then nothing has to be kept up to date.
    fn has_none_of(&self, index: u32) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().rows_of(index) == 0)
    }
}

impl IndexRows {
    /// The value that a root has for a key at the read point `at`, if it is cached. `through` is the root's. `hash` is the key's
    /// [`crate::base::key_hash`].
    pub fn get(&self, key: &[u8], hash: u64, at: Seqno, through: Seqno) -> Option<Vec<u8>> {
        if self.cache.off {
            return None;
        }
        let at = if SeededBug::RowOfNewerRoot.is_on() { at } else { at.min(through) };
        let (found, misses) = {
            let mut shard = self.cache.shard(hash).lock();
            (shard.get(self.index, key, hash, at), shard.misses)
        };
        if found.is_none() && misses.is_multiple_of(PIECES) {
            self.cache.weigh();
        }
        found
    }

    /// Offers the newest value that a root holds for a key, with its seqno. `through` is the root's.
    pub fn offer(&self, key: &[u8], hash: u64, value: &[u8], seqno: Seqno, through: Seqno) {
        if self.cache.off {
            return;
        }
        let mut shard = self.cache.shard(hash).lock();
        let stale = self.absorbed.load(Ordering::Acquire) != through.0;
        if !stale || SeededBug::LateRowTaken.is_on() {
            shard.offer(self.index, key, hash, value, seqno);
        }
    }

    /// Says that the next root will hold everything up to `through`; then [`IndexRows::absorb`] is called for each key that it brings.
    /// Whether there is any need to.
    pub fn begin(&self, through: Seqno) -> bool {
        // First: who offers what an older root holds is refused from here on, or has done it before its row is looked at below.
        self.absorbed.store(through.0, Ordering::Release);
        !self.cache.off && !self.cache.has_none_of(self.index)
    }

    /// A key of the memtable that the next root will hold, and what became of it.
    pub fn absorb(&self, key: &[u8], hash: u64, change: Change<'_>) {
        if SeededBug::RowOutlivesOverwrite.is_on() {
            return;
        }
        self.cache.shard(hash).lock().change(self.index, key, hash, change);
    }

    /// A write at `seqno` has gone into the index past the memtables: its row leaves, and no row that was read before is taken from now on.
    /// Called before the index publishes the write.
    pub fn written(&self, key: &[u8], hash: u64, seqno: Seqno) {
        self.absorbed.fetch_max(seqno.0, Ordering::AcqRel);
        self.absorb(key, hash, Change::Other);
    }

    /// Rows that `covers` says are gone leave: for range tombstones. O(rows).
    pub fn remove_where(&self, covers: impl Fn(&[u8], Seqno) -> bool) {
        for shard in &self.cache.shards {
            shard.0.lock().retain(|index, key, seqno| index != self.index || !covers(key, seqno));
        }
    }
}

impl Drop for IndexRows {
    fn drop(&mut self) {
        self.remove_where(|_, _| true);
    }
}
