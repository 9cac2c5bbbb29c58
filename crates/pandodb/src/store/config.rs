//! [`Config`] has the settings of an open store, and the sizes that are derived from these settings.
//!
//! A size that the user did not set is derived from the memory budget. On a small disk it is also derived from the size
//! of the disk. The module `bounds` checks the settings.
//!
//! Invariants, for settings within their bounds: a memtable is no larger than the budget. The pool and the row cache
//! fit into the budget together. No size is 0, except the size of a disabled row cache.

use super::options::Durability;
use super::reserve::{LEAST_IN_UNITS, Shares};
use crate::base::PAGE;
use crate::device::{ALLOCATED_UNIT, Io, most_memory};
use crate::filter::Filters;
use crate::index::options::{COMPRESSION, FILTERS, compression_value, filters_value};
use crate::index::{IndexOptions, Mode};
use crate::pool::PoolPolicy;
use crate::run::Compression;

/// The minimum memory budget, in bytes.
pub(super) const MIN_BUDGET: usize = 1 << 20;
/// The smallest memtable, in bytes.
pub(super) const MIN_MEMTABLE: usize = 4 << 10;
/// The default budget in bytes, on a machine with at least twice as much memory.
const DEFAULT_BUDGET: usize = 256 << 20;

/// The settings of an open store.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub memory_budget: usize,
    pub memtable_bytes: Option<usize>,
    pub durability: Durability,
    pub background_threads: usize,
    /// The form of the log and the row cache, and the mode of new keyspaces.
    pub mode: Mode,
    /// The index of new keyspaces that do not specify one. Options that the index does not set get the store-wide
    /// defaults.
    pub index: IndexOptions,
    pub filters: Option<Filters>,
    pub compression: Option<Compression>,
    pub create: bool,
    pub read_only: bool,
    /// Whether the store is opened for a salvage. In this case `read_only` is also set, and the replay ends at the
    /// first damage in the log.
    pub salvage: bool,
    pub pool_policy: PoolPolicy,
    pub row_cache_bytes: Option<usize>,
    pub segment_bytes: Option<u64>,
    pub log_streams: Option<usize>,
    pub mapped_log: bool,
    pub reserve_bytes: Option<u64>,
    pub transaction_bytes: Option<usize>,
    pub io: Io,
    /// Bytes of disk that the store occupies or can still use; `None` if the device does not know. It is set during the
    /// opening.
    pub disk_bytes: Option<u64>,
}

/// A default memtable takes at most 1/DISK_MEMTABLES of the disk. The reason: the log, the reserve and the smallest
/// compaction each need as much space as several memtables.
const DISK_MEMTABLES: u64 = 32;
/// The bounds of the reserve's share for checkpoints, in bytes. They apply as long as the size of the roots is not
/// known.
const CHECKPOINT_SHARE: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
/// The target size in bytes of a piece of a compaction on a full disk. A piece is never smaller than a memtable.
const PIECE: u64 = 1 << 20;
const _: () = {
    assert!(MIN_MEMTABLE <= MIN_BUDGET / 8, "the smallest budget has room for the default memtable");
    assert!(*CHECKPOINT_SHARE.start() <= *CHECKPOINT_SHARE.end());
    assert!(DEFAULT_BUDGET >= MIN_BUDGET);
};

impl Default for Config {
    fn default() -> Config {
        Config {
            memory_budget: DEFAULT_BUDGET.min(most_memory() / 2).max(MIN_BUDGET),
            memtable_bytes: None,
            durability: Durability::default(),
            background_threads: 1,
            mode: Mode::default(),
            index: IndexOptions::default(),
            filters: None,
            compression: None,
            create: true,
            read_only: false,
            salvage: false,
            pool_policy: PoolPolicy::default(),
            row_cache_bytes: None,
            segment_bytes: None,
            log_streams: None,
            mapped_log: true,
            reserve_bytes: None,
            transaction_bytes: None,
            io: Io::default(),
            disk_bytes: None,
        }
    }
}

impl Config {
    /// The unit of sizes of the indexes, in bytes. The sizes of nodes and leaves are multiples of it, and so is the
    /// size of the writes over which compaction debt is spread. The default is a quarter of the budget, but less on a
    /// small disk.
    pub(crate) fn unit(&self) -> usize {
        self.memtable_bytes.unwrap_or(self.of_disk().min(self.memory_budget / 4)).max(MIN_MEMTABLE)
    }

    /// The size in bytes at which memtables are sealed while others wait to be packed. The default is an eighth of the
    /// budget, but less on a small disk. Log segments and the time between checkpoints follow from it.
    pub(crate) fn least_memtable(&self) -> usize {
        self.memtable_bytes.unwrap_or(self.of_disk().min(self.memory_budget / 8)).max(MIN_MEMTABLE)
    }

    /// The size in bytes at which memtables are sealed if none waits to be packed. The default is three eighths of the
    /// budget, but less on a small disk. Larger memtables cause fewer compactions, and the pool has their memory while
    /// they are not filled.
    pub(crate) fn largest_memtable(&self) -> usize {
        let largest = self.of_disk().min(self.memory_budget / 8 * 3);
        self.memtable_bytes.unwrap_or(largest).max(self.least_memtable())
    }

    /// The bytes that a memtable of a store on a small disk may have.
    fn of_disk(&self) -> usize {
        self.disk_bytes.map_or(usize::MAX, |bytes| (bytes / DISK_MEMTABLES) as usize)
    }

    /// The number of log streams. With several streams, the stream that a thread uses depends on the other threads of
    /// the process. A store without background threads must be deterministic, so its default is one stream.
    pub(crate) fn streams(&self) -> usize {
        self.log_streams.unwrap_or(if self.background_threads == 0 { 1 } else { 2 })
    }

    /// The options of the index of a new keyspace. Adds the defaults of the store to `chosen`, or to the default index
    /// if `chosen` is `None`.
    pub(crate) fn index_options(&self, chosen: Option<&IndexOptions>) -> IndexOptions {
        let filters = self.filters.map(|filters| (FILTERS.name, filters_value(filters)));
        let compression = self.compression.map(|compression| (COMPRESSION.name, compression_value(compression)));
        let common: Vec<(&str, u64)> = filters.into_iter().chain(compression).collect();
        chosen.unwrap_or(&self.index).with_defaults(&self.index, self.mode, &common)
    }

    /// Bytes that are reserved for the row cache. The default is 1/16 of the budget. Even this small part saves many
    /// reads, because it holds the rows that are read most often.
    pub(crate) fn rows(&self) -> usize {
        let default = match self.mode {
            Mode::Product => self.memory_budget / 16,
            Mode::Paper => 0,
        };
        self.row_cache_bytes.unwrap_or(default).min(self.memory_budget / 4)
    }

    /// Bytes of the table of folded counters: 1/256 of the budget. Paper mode has no such table.
    pub(crate) fn folds(&self) -> usize {
        match self.mode {
            Mode::Product => self.memory_budget / 256,
            Mode::Paper => 0,
        }
    }

    /// Bytes of the known dead ranges of all keyspaces: 1/1024 of the budget. Paper mode knows none.
    pub(crate) fn dead_ranges(&self) -> usize {
        match self.mode {
            Mode::Product => self.memory_budget / 1024,
            Mode::Paper => 0,
        }
    }

    /// Bytes of the pool: the budget without the row cache, the table of folded counters, the dead ranges, and an eighth
    /// for compactions and reads. Memtables reserve their memory from the pool. Active and sealed memtables together take
    /// up to 9/16 of the budget if background work is fast enough (`Engine::seal_at`).
    pub(crate) fn pool(&self) -> usize {
        let (work, rows) = (self.memory_budget / 8, self.rows() + self.folds() + self.dead_ranges());
        assert!(work + rows <= self.memory_budget, "the caches take at most a little more than a quarter of it");
        self.memory_budget - work - rows
    }

    /// The most bytes of all open transactions. The default is a quarter of the budget.
    pub(crate) fn transaction_bytes(&self) -> usize {
        self.transaction_bytes.unwrap_or(self.memory_budget / 4)
    }

    /// Bytes of a log segment. The default is a quarter of the smallest memtable, limited to 64 KiB to 16 MiB.
    pub(crate) fn segment(&self) -> u64 {
        self.segment_bytes
            .unwrap_or((self.least_memtable() as u64 / 4).clamp(64 << 10, 16 << 20).next_multiple_of(PAGE as u64))
    }

    /// The disk space that each kind of work needs on a full disk. The log needs a segment for each stream; background
    /// work needs space for a packed memtable or a piece of a compaction, with its filter; a checkpoint needs space for
    /// its nodes and its catalogue.
    pub(crate) fn shares(&self) -> Shares {
        let (least, largest) = (self.least_memtable() as u64, self.largest_memtable() as u64);
        let piece = (4 * least).min(PIECE).max(largest);
        assert!(piece >= largest, "a packed memtable fits into a piece");
        Shares {
            checkpoint: (least / 4).clamp(*CHECKPOINT_SHARE.start(), *CHECKPOINT_SHARE.end()),
            freeing: self.segment() * self.streams() as u64,
            background: piece + piece / 4 + *CHECKPOINT_SHARE.start(),
        }
    }

    /// The maximum size of the reserve in bytes.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve_bytes.unwrap_or(u64::MAX)
    }

    /// The minimum disk size in bytes for a new store: space for its reserve, its log and some data. The required space
    /// grows with the disk size. So the function increases the disk size until it is at least the required space.
    pub(crate) fn least_disk(&self) -> u64 {
        let mut config = self.clone();
        while let Some(disk) = config.disk_bytes.filter(|disk| *disk < config.need()) {
            config.disk_bytes = Some(config.need());
            assert!(config.disk_bytes > Some(disk), "each round raises the disk size");
        }
        let need = config.need();
        assert!(config.disk_bytes.is_none_or(|disk| disk >= need), "the disk covers the need");
        need
    }

    /// The disk space that a new store needs on a disk of `disk_bytes`.
    fn need(&self) -> u64 {
        let log = 2 * self.segment() * self.streams() as u64;
        let shares = self.shares();
        let unit = if self.reserve() < LEAST_IN_UNITS { 1 } else { ALLOCATED_UNIT };
        let whole = |share: u64| share.next_multiple_of(unit);
        let kept = whole(shares.checkpoint) + whole(shares.freeing) + whole(shares.background);
        // Ordinary writes leave space for a checkpoint free, in addition to the reserve.
        kept.min(self.reserve()) + shares.checkpoint + log + 2 * self.largest_memtable() as u64
    }
}
