//! Figures of an open store: what it holds, what it has written, how long operations took.

use super::engine::Engine;
use super::tallies::Latency;
use crate::base::Result;
use crate::base::sync::Ordering::Relaxed;
use crate::index::IndexStats;

/// Bytes written by cause. All are counters since this opening of the store.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BytesByCause {
    /// Keys, values and operands that users wrote: what amplification is measured against.
    pub user: u64,
    /// Log records, with their heads and padding.
    pub log: u64,
    /// Memtables packed into runs. Falls when a keyspace is dropped, since its part goes with it.
    pub pack: u64,
    /// Compactions. Falls when a keyspace is dropped, since its part goes with it.
    pub compact: u64,
    /// Trunk nodes, catalogues, superblocks.
    pub checkpoint: u64,
    /// All writes to the data file: `pack`, `compact`, `checkpoint` and large values. With `log` it is all that was written.
    pub data: u64,
}

/// Memory by part, in bytes, against the budget. All are gauges, as of the call.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// What [`StoreBuilder::memory_budget`](crate::StoreBuilder::memory_budget) asked for. Does not change.
    pub budget: u64,
    /// Active and sealed memtables, with their nodes.
    pub memtables: u64,
    /// Keyspaces: their indexes, and the descriptions of the runs that these hold.
    pub keyspaces: u64,
    /// Blocks in the buffer pool (filters and inner blocks included).
    pub pool: u64,
    /// Of these, blocks that callers' values pin.
    pub pinned: u64,
    /// The row cache.
    pub rows: u64,
}

/// Figures of one keyspace. All are gauges, as of the call; of `index` each field says what it is.
#[non_exhaustive]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceStats {
    /// The name.
    pub name: String,
    /// About how many keys: see [`Keyspace::approximate_len`](crate::Keyspace::approximate_len).
    pub records: u64,
    /// The index's figures.
    pub index: IndexStats,
    /// Bytes in its memtables.
    pub memtable_bytes: u64,
}

/// Figures of a store, all taken by one call of [`Store::stats`](crate::Store::stats). They are read one after the other
/// while the store is in use, so a sum may be off by what happened in between.
///
/// Each field is one of three kinds:
///
/// * **gauge**: how things are at the call; rises and falls.
/// * **counter**: what happened since this opening of the store; starts at 0 and never falls.
/// * **lifetime counter**: what happened since the store was created; kept in checkpoints, so a crash may take it back to
///   the last one.
///
/// Sizes are in bytes. A call costs a walk over the trees' nodes in memory and one `stat` of the data file: some
/// microseconds to some milliseconds, and no lock that writers wait for long. Once a second is fine.
/// `examples/prometheus.rs` serves them to Prometheus.
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
    /// Of each keyspace, in the order of their creation.
    pub keyspaces: Vec<KeyspaceStats>,
    /// Gauge: bytes of keys and values, superseded ones included until compactions remove them.
    pub logical_bytes: u64,
    /// Gauge: bytes that the data file occupies on the device. Its length may be more: it has holes.
    pub disk_bytes: u64,
    /// Gauge: bytes of log that are kept: for the next opening, and segments that are made ahead.
    pub log_bytes: u64,
    /// Gauge: bytes kept back for a full disk.
    pub reserve_bytes: u64,
    /// Gauge: bytes of the data file's pages that are taken, `quarantined_bytes` included.
    pub allocated_bytes: u64,
    /// Gauge: bytes that were freed and wait for two more checkpoints to be used again.
    pub quarantined_bytes: u64,
    /// Counters: bytes written by cause.
    pub written: BytesByCause,
    /// Counter: bytes read from the data file.
    pub read_bytes: u64,
    /// Counter: reads of the data file.
    pub reads: u64,
    /// Counter: keys looked up, by `get`, `contains` and `multi_get`.
    pub gets: u64,
    /// Counter: blocks that these lookups asked the pool for, cached or not.
    pub probed_blocks: u64,
    /// Counter: filters that these lookups asked.
    pub filters: u64,
    /// Counter: leaves that they searched.
    pub leaves: u64,
    /// Counter: lookups that found their row in the row cache.
    pub row_hits: u64,
    /// Counter: runs that lookups searched in vain, since the filter said that the key might be there.
    pub false_positives: u64,
    /// Gauge: background work owed, in bytes. Writers wait longer the more there is.
    pub debt_bytes: u64,
    /// Lifetime counter: bytes of keys and values that users wrote.
    pub lifetime_user_bytes: u64,
    /// Lifetime counter: bytes that the store wrote for them, log and data.
    pub lifetime_written_bytes: u64,
    /// Counter: checkpoints.
    pub checkpoints: u64,
    /// Operations that this opening found in the log alone and applied again; fixed from then on. 0 after
    /// [`Store::close`](crate::Store::close) or [`Store::checkpoint`](crate::Store::checkpoint).
    pub replayed_operations: u64,
    /// How long this opening took, in microseconds; fixed from then on.
    pub opening_us: u64,
    /// Gauge: live snapshots and open iterators. Versions that they see stay on disk.
    pub snapshots: u64,
    /// Gauges: memory.
    pub memory: MemoryStats,
    /// Latency of commits: a put, a merge, a delete or a whole batch, with its sync if it asked for one, and with its wait for
    /// background work.
    pub write_latency: Latency,
    /// Latency of `get`.
    pub read_latency: Latency,
    /// The failure that keeps the store from writing, or the last trouble of background work (cleared by the next success), or
    /// the first damage that compactions met and no call has returned yet. `None` if all is well.
    pub trouble: Option<String>,
}

impl StoreStats {
    /// Bytes written to the device for each byte that users wrote, over the life of the store; 0 before the first write.
    pub fn write_amplification(&self) -> f64 {
        ratio(self.lifetime_written_bytes, self.lifetime_user_bytes)
    }

    /// Blocks asked for by each lookup; 0 before the first.
    pub fn read_amplification(&self) -> f64 {
        ratio(self.probed_blocks, self.gets)
    }

    /// Bytes on the device (without log and reserve) for each logical byte.
    pub fn space_amplification(&self) -> f64 {
        ratio(self.disk_bytes, self.logical_bytes)
    }
}

fn ratio(of: u64, to: u64) -> f64 {
    if to == 0 { 0.0 } else { of as f64 / to as f64 }
}

impl Engine {
    /// Bytes that users wrote in all lives, and bytes that the store wrote for them.
    pub(crate) fn lifetime_bytes(&self) -> (u64, u64) {
        let (user, written) = self.figures.earlier;
        let log = self.writer.log.as_ref().map_or(0, |log| log.written_bytes());
        (user + self.figures.writes.user_bytes(), written + log + self.core.data.stats().written_bytes)
    }

    /// Gathers the figures. Walks the trunks in memory; no I/O but a `stat` of the data file.
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
        stats.write_latency = self.figures.writes.latency(|tally| &tally.latency);
        stats.read_latency = self.figures.reads.latency(|tally| &tally.latency);
        stats.trouble =
            self.writer.poison.first().cloned().or_else(|| self.background.trouble().map(|e| e.to_string()));
        let damage = || self.background.damage().map(|e| e.to_string());
        stats.trouble = stats.trouble.or_else(damage);
        Ok(stats)
    }
}
