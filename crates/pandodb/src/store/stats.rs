//! Statistics of an open store: its contents, the bytes that it has written, and the latency of its operations.

use super::engine::Engine;
use super::tallies::{Latency, TransactionFigures};
use crate::base::Result;
use crate::base::sync::Ordering::Relaxed;
use crate::index::IndexStats;

/// Bytes written, by their cause. All fields are counters since this opening of the store.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesByCause {
    /// Keys, values and operands that users wrote. Write amplification is computed relative to this number.
    pub user: u64,
    /// Log records, with their headers and padding.
    pub log: u64,
    /// Runs that were written by packing memtables. The number falls when a keyspace is dropped, because the keyspace's
    /// part is subtracted.
    pub pack: u64,
    /// Runs that compactions wrote. The number falls when a keyspace is dropped, because the keyspace's part is
    /// subtracted.
    pub compact: u64,
    /// Trunk nodes, catalogues and superblocks.
    pub checkpoint: u64,
    /// All writes to the data file: `pack`, `compact`, `checkpoint` and large values. The store writes `log` + `data`
    /// in total.
    pub data: u64,
}

/// Memory by its use, in bytes. All fields are gauges.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// The setting [`StoreBuilder::memory_budget`](crate::StoreBuilder::memory_budget). It does not change.
    pub budget: u64,
    /// Active and sealed memtables, including their nodes.
    pub memtables: u64,
    /// Keyspaces: their indexes, including the descriptions of their runs.
    pub keyspaces: u64,
    /// Blocks in the buffer pool, including filters and inner blocks.
    pub pool: u64,
    /// The part of `pool` that is pinned by values which callers hold.
    pub pinned: u64,
    /// The row cache.
    pub rows: u64,
}

/// Statistics of one keyspace. The fields of `index` document their own kind. All other fields are gauges.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceStats {
    /// The name of the keyspace.
    pub name: String,
    /// The approximate number of keys: see [`Keyspace::approximate_len`](crate::Keyspace::approximate_len).
    pub records: u64,
    /// The statistics of the index.
    pub index: IndexStats,
    /// Bytes in the keyspace's memtables.
    pub memtable_bytes: u64,
}

/// Statistics of transactions, part of [`StoreStats`](crate::StoreStats). A conflict that
/// [`Store::transact`](crate::Store::transact) answers by running its closure again counts, too.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionStats {
    /// Gauge: transactions that were begun and have not ended.
    pub open: u64,
    /// Gauge: bytes that transactions hold for their writes and for what they have read, in steps of 64 KiB for each.
    /// An iterator that is open after the end of its transaction keeps the writes.
    pub bytes: u64,
    /// Counter: commits, with and without writes.
    pub commits: u64,
    /// Counter: commits that failed because another commit had changed a single key.
    pub key_conflicts: u64,
    /// Counter: commits that failed because another commit had changed a key of a range.
    pub range_conflicts: u64,
    /// Counter: times that [`Store::transact`](crate::Store::transact), an update such as
    /// [`Keyspace::fetch_update`](crate::Keyspace::fetch_update), or a pop began again after a conflict.
    pub reruns: u64,
    /// Counter: additional searches of validations, because other commits in flight might have changed what the
    /// transaction had read.
    pub searched_again: u64,
}

/// Statistics of a store, returned by one call of [`Store::stats`](crate::Store::stats). The fields are read one after
/// the other while the store is in use, so sums may not match exactly.
///
/// Each field is of one of three kinds:
///
/// * **gauge**: the state at the time of the call, which rises and falls.
/// * **counter**: the total since this opening of the store, which starts at 0 and never falls.
/// * **lifetime counter**: the total since the store was created. Checkpoints save it, so a crash may set it back to
///   the value of the last checkpoint.
///
/// Sizes are in bytes. A call walks the index nodes in memory and does one `stat` of the data file. It takes from some
/// microseconds to some milliseconds, and never blocks writers for a long time. Therefore the statistics can be read
/// once per second. `examples/prometheus.rs` exports the statistics to Prometheus.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// let store = pandodb::Store::open(&path)?;
/// store.keyspace("events")?.put("k", "v")?;
/// let stats = store.stats()?;
/// assert_eq!((stats.written.user, stats.write_latency.count), (2, 1));
/// assert!(stats.trouble.is_none() && stats.memory.memtables <= stats.memory.budget);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StoreStats {
    /// Statistics of each keyspace, in the order of creation.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Gauge: bytes of keys and values. Superseded versions count until compactions remove them.
    pub logical_bytes: u64,
    /// Gauge: bytes that the data file occupies on the device. The file may be longer, because it has holes.
    pub disk_bytes: u64,
    /// Gauge: bytes of log segments. This includes the segments that the next opening may need, and preallocated
    /// segments.
    pub log_bytes: u64,
    /// Gauge: bytes of disk reserved for work on a full disk.
    pub reserve_bytes: u64,
    /// Gauge: bytes of the allocated pages of the data file, including `quarantined_bytes`.
    pub allocated_bytes: u64,
    /// Gauge: bytes of freed pages that can be reused after two more checkpoints.
    pub quarantined_bytes: u64,
    /// Counters: bytes written, by cause.
    pub written: BytesByCause,
    /// Counter: bytes read from the data file.
    pub read_bytes: u64,
    /// Counter: reads of the data file.
    pub reads: u64,
    /// Counter: keys that `get`, `contains` and `multi_get` looked up.
    pub gets: u64,
    /// Counter: blocks that these lookups requested from the pool, including cached blocks.
    pub probed_blocks: u64,
    /// Counter: filters that these lookups probed.
    pub filters: u64,
    /// Counter: leaves that these lookups searched.
    pub leaves: u64,
    /// Counter: lookups that found their row in the row cache.
    pub row_hits: u64,
    /// Counter: runs that lookups searched without success, because of a false positive of the filter.
    pub false_positives: u64,
    /// Gauge: outstanding background work, in bytes. The more such work exists, the more the store throttles writers.
    pub debt_bytes: u64,
    /// Lifetime counter: bytes of keys and values that users wrote.
    pub lifetime_user_bytes: u64,
    /// Lifetime counter: bytes that the store wrote to the log and the data file.
    pub lifetime_written_bytes: u64,
    /// Counter: checkpoints.
    pub checkpoints: u64,
    /// Number of operations that this opening replayed from the log. It does not change after the opening. It is 0 if a
    /// [`Store::close`](crate::Store::close) or [`Store::checkpoint`](crate::Store::checkpoint) was the last use of the
    /// store.
    pub replayed_operations: u64,
    /// Duration of this opening in microseconds. It does not change after the opening.
    pub opening_us: u64,
    /// Gauge: live snapshots and open iterators. Versions that these snapshots and iterators see stay on disk.
    pub snapshots: u64,
    /// Gauges: memory by use.
    pub memory: MemoryStats,
    /// Gauge: operations that were committed since the oldest live snapshot, open iterator or transaction was made.
    /// Compactions keep the versions that it sees, so the disk usage may grow as long as this number grows.
    pub oldest_read_point_lag: u64,
    /// Transactions, and updates of single keys such as [`Keyspace::fetch_update`](crate::Keyspace::fetch_update).
    pub transactions: TransactionStats,
    /// The time for which a commit holds the lock of the sequencer, under which it gets its place in the order of
    /// commits. One of 64 commits is measured.
    pub sequencer_hold: Latency,
    /// Latency of commits. Each commit is a put, a merge, a delete or a whole batch. The latency includes the sync, if
    /// the commit requested one, and the time for which the store throttled the commit.
    pub write_latency: Latency,
    /// Latency of `get`.
    pub read_latency: Latency,
    /// A problem, if there is one. If the store refuses writes, this is the failure that caused the refusal. Otherwise
    /// it is the last failure of background work, until background work succeeds again. Otherwise it is the first
    /// damage that a compaction has found and that no call has returned yet.
    pub trouble: Option<String>,
}

impl TransactionStats {
    fn of(figures: &TransactionFigures) -> TransactionStats {
        TransactionStats {
            open: figures.open(),
            bytes: figures.bytes.load(Relaxed),
            commits: figures.by_thread.sum(|tally| &tally.commits),
            key_conflicts: figures.key_conflicts.load(Relaxed),
            range_conflicts: figures.range_conflicts.load(Relaxed),
            reruns: figures.reruns.load(Relaxed),
            searched_again: figures.searched_again.load(Relaxed),
        }
    }
}

impl StoreStats {
    /// Returns the bytes written to the device for each byte that users wrote, over the life of the store. Returns 0
    /// before the first write.
    pub fn write_amplification(&self) -> f64 {
        ratio(self.lifetime_written_bytes, self.lifetime_user_bytes)
    }

    /// Returns the number of requested blocks for each lookup. Returns 0 before the first lookup.
    pub fn read_amplification(&self) -> f64 {
        ratio(self.probed_blocks, self.gets)
    }

    /// Returns the bytes on the device, without log and reserve, for each logical byte. Returns 0 for an empty store.
    pub fn space_amplification(&self) -> f64 {
        ratio(self.disk_bytes, self.logical_bytes)
    }
}

fn ratio(of: u64, to: u64) -> f64 {
    let ratio = if to == 0 { 0.0 } else { of as f64 / to as f64 };
    assert!(ratio.is_finite(), "{of} of {to}");
    ratio
}

impl Engine {
    /// Returns two totals since the store was created: the bytes that users wrote, and the bytes that the store wrote
    /// to the log and the data file.
    pub(crate) fn lifetime_bytes(&self) -> (u64, u64) {
        let (user, written) = self.figures.earlier;
        let log = self.writer.log.as_ref().map_or(0, |log| log.written_bytes());
        (user + self.figures.writes.user_bytes(), written + log + self.core.data.stats().written_bytes)
    }

    /// Gathers the statistics. The call walks the trunks in memory; its only I/O is a `stat` of the data file.
    pub(crate) fn stats(&self) -> Result<StoreStats> {
        let mut stats = StoreStats::default();
        for keyspace in self.keyspaces.all() {
            #[cfg(test)]
            self.keyspaces.note_if_held();
            let index = keyspace.index.stats();
            let containers = keyspace.containers.load();
            let tables = || containers.sealed.iter().map(|b| &b.memtable).chain([&containers.active]);
            let memtable_bytes = tables().map(|table| table.taken_bytes() as u64).sum();
            stats.logical_bytes += index.logical_bytes + tables().map(|table| table.logical_bytes()).sum::<u64>();
            stats.written.pack += index.packed_bytes;
            stats.written.compact += index.compacted_bytes;
            stats.debt_bytes += index.debt.total();
            stats.memory.memtables += memtable_bytes;
            let records = index.entries.saturating_sub(2 * index.tombstones)
                + tables().map(|table| table.len() as u64).sum::<u64>();
            stats.keyspaces.push(KeyspaceStats { name: keyspace.name.clone(), records, index, memtable_bytes });
        }
        let space = self.core.data.stats();
        let pool = self.core.pool.stats();
        stats.disk_bytes = self.core.data.occupied()?;
        stats.allocated_bytes = space.allocated_bytes;
        stats.quarantined_bytes = space.quarantined_bytes;
        let found = self.figures.log_found.load(Relaxed);
        stats.log_bytes = self.writer.log.as_ref().map_or(found, |log| log.retained_bytes());
        (stats.lifetime_user_bytes, stats.lifetime_written_bytes) = self.lifetime_bytes();
        stats.reserve_bytes = self.reserve.bytes();
        stats.written.user = self.figures.writes.user_bytes();
        stats.written.log = self.writer.log.as_ref().map_or(0, |log| log.written_bytes());
        stats.written.checkpoint = self.figures.checkpoint_bytes.load(Relaxed);
        stats.written.data = space.written_bytes;
        stats.read_bytes = space.read_bytes;
        stats.reads = space.reads;
        stats.gets = self.figures.reads.sum(|tally| &tally.gets);
        stats.probed_blocks = self.figures.reads.sum(|tally| &tally.probed_blocks);
        stats.filters = self.figures.reads.sum(|tally| &tally.filters);
        stats.leaves = self.figures.reads.sum(|tally| &tally.leaves);
        stats.false_positives = self.figures.reads.sum(|tally| &tally.false_positives);
        stats.checkpoints = self.figures.checkpoints.load(Relaxed);
        stats.replayed_operations = self.figures.replayed.load(Relaxed);
        stats.opening_us = self.figures.opening_us.load(Relaxed);
        stats.snapshots = self.snapshots.len() as u64;
        stats.memory.budget = self.config.memory_budget as u64;
        stats.memory.pool = pool.bytes;
        stats.memory.keyspaces = self.core.pool.held() as u64;
        let rows = self.core.rows.stats();
        stats.memory.rows = rows.bytes;
        stats.row_hits = rows.hits;
        stats.memory.pinned = pool.pinned_bytes;
        stats.transactions = TransactionStats::of(&self.figures.transactions);
        stats.oldest_read_point_lag = self.snapshots.visible().0.saturating_sub(self.snapshots.oldest().0);
        stats.sequencer_hold = self.figures.sequencer.summary();
        stats.write_latency = self.figures.writes.latency(|tally| &tally.latency);
        stats.read_latency = self.figures.reads.latency(|tally| &tally.latency);
        stats.trouble =
            self.writer.poison.first().cloned().or_else(|| self.background.trouble().map(|e| e.to_string()));
        let damage = || self.background.damage().map(|e| e.to_string());
        stats.trouble = stats.trouble.or_else(damage);
        Ok(stats)
    }
}
