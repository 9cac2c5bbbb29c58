//! [`Config`]: the settings of an open store, and the sizes that follow from them.
//!
//! A size that the user has not set follows from the memory budget, and on a small disk from that. The bounds of
//! settings are in `bounds`.

use super::options::Durability;
use super::reserve::{LEAST_IN_UNITS, Shares};
use crate::base::PAGE;
use crate::device::{ALLOCATED_UNIT, Io, most_memory};
use crate::filter::Filters;
use crate::index::options::{COMPRESSION, FILTERS, compression_value, filters_value};
use crate::index::{IndexOptions, Mode};
use crate::run::Compression;

/// The least memory budget, in bytes.
pub(super) const MIN_BUDGET: usize = 1 << 20;
/// The smallest memtable, in bytes.
pub(super) const MIN_MEMTABLE: usize = 4 << 10;
/// The budget of a store that was not given one, in bytes, on a machine with twice as much memory.
const DEFAULT_BUDGET: usize = 256 << 20;

/// The settings of an open store.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub memory_budget: usize,
    pub memtable_bytes: Option<usize>,
    pub durability: Durability,
    pub background_threads: usize,
    /// The form of the log and of the row cache, and the mode of new keyspaces.
    pub mode: Mode,
    /// The index of new keyspaces that name none; what it leaves open follows the store-wide defaults.
    pub index: IndexOptions,
    pub filters: Option<Filters>,
    pub compression: Option<Compression>,
    pub create: bool,
    pub read_only: bool,
    /// For a salvage: the log ends at the first damage. Goes with `read_only`.
    pub salvage: bool,
    pub row_cache_bytes: Option<usize>,
    pub segment_bytes: Option<u64>,
    pub log_streams: Option<usize>,
    pub mapped_log: bool,
    pub reserve_bytes: Option<u64>,
    pub io: Io,
    /// Bytes of disk that the store has or can still get, where the device knows: found out as it is opened.
    pub disk_bytes: Option<u64>,
}

/// A memtable takes at most one part of the disk in so many, unless the caller has set its size: the log, the space that is kept
/// back and the least compaction are each as large as some memtables.
const DISK_MEMTABLES: u64 = 32;
/// The share of the reserve that checkpoints have at the least and at the most, before the size of the roots is known.
const CHECKPOINT_SHARE: std::ops::RangeInclusive<u64> = 64 << 10..=4 << 20;
/// Compactions on a full disk are cut into pieces of about this size, but at least of a memtable.
const PIECE: u64 = 1 << 20;

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
            row_cache_bytes: None,
            segment_bytes: None,
            log_streams: None,
            mapped_log: true,
            reserve_bytes: None,
            io: Io::default(),
            disk_bytes: None,
        }
    }
}

impl Config {
    /// Bytes of a full memtable: unless the caller has set it, an eighth of the budget, and less on a small disk.
    pub(crate) fn memtable(&self) -> usize {
        let of_disk = self.disk_bytes.map_or(usize::MAX, |bytes| (bytes / DISK_MEMTABLES) as usize);
        self.memtable_bytes.unwrap_or(of_disk.min(self.memory_budget / 8)).max(MIN_MEMTABLE)
    }

    /// Streams of the log. Which of several a thread writes depends on what other threads there were in the process; a store
    /// without threads of its own is to do the same each time.
    pub(crate) fn streams(&self) -> usize {
        self.log_streams.unwrap_or(if self.background_threads == 0 { 1 } else { 2 })
    }

    /// The options that a new keyspace is created with, where `chosen` (or the default index) leaves them open.
    pub(crate) fn index_options(&self, chosen: Option<&IndexOptions>) -> IndexOptions {
        let filters = self.filters.map(|filters| (FILTERS.name, filters_value(filters)));
        let compression = self.compression.map(|compression| (COMPRESSION.name, compression_value(compression)));
        let common: Vec<(&str, u64)> = filters.into_iter().chain(compression).collect();
        chosen.unwrap_or(&self.index).with_defaults(&self.index, self.mode, &common)
    }

    /// Bytes of the row cache that it need not borrow: a sixteenth of the budget, since a few hot rows are worth most.
    pub(crate) fn rows(&self) -> usize {
        let default = match self.mode {
            Mode::Product => self.memory_budget / 16,
            Mode::Paper => 0,
        };
        self.row_cache_bytes.unwrap_or(default).min(self.memory_budget / 4)
    }

    /// Bytes of the pool, of which memtables borrow what they take: all but the row cache and an eighth, in which compactions and reads
    /// work. Memtables (one active, up to two sealed while the disk keeps up) take an eighth each.
    pub(crate) fn pool(&self) -> usize {
        self.memory_budget - self.memory_budget / 8 - self.rows()
    }

    /// Bytes of a log segment: a quarter of a memtable, 64 KiB to 16 MiB.
    pub(crate) fn segment(&self) -> u64 {
        self.segment_bytes
            .unwrap_or((self.memtable() as u64 / 4).clamp(64 << 10, 16 << 20).next_multiple_of(PAGE as u64))
    }

    /// What a full disk needs to be emptied again: a segment of the log for each stream, a packed memtable or a piece of a compaction
    /// with its filter, and the nodes and the catalogue of a checkpoint.
    pub(crate) fn shares(&self) -> Shares {
        let memtable = self.memtable() as u64;
        let piece = (4 * memtable).min(PIECE).max(memtable);
        Shares {
            checkpoint: (memtable / 4).clamp(*CHECKPOINT_SHARE.start(), *CHECKPOINT_SHARE.end()),
            freeing: self.segment() * self.streams() as u64,
            background: piece + piece / 4 + *CHECKPOINT_SHARE.start(),
        }
    }

    /// The most bytes that are kept back for a full disk.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve_bytes.unwrap_or(u64::MAX)
    }

    /// The least bytes of disk on which a new store can work: what it keeps back, its log, and some data. The need grows with the
    /// disk, so it is raised until disk and need agree.
    pub(crate) fn least_disk(&self) -> u64 {
        let mut config = self.clone();
        while config.disk_bytes.is_some_and(|disk| disk < config.need()) {
            config.disk_bytes = Some(config.need());
        }
        config.need()
    }

    /// What a new store needs on a disk of the size that this one has.
    fn need(&self) -> u64 {
        let log = 2 * self.segment() * self.streams() as u64;
        let shares = self.shares();
        let unit = if self.reserve() < LEAST_IN_UNITS { 1 } else { ALLOCATED_UNIT };
        let whole = |share: u64| share.next_multiple_of(unit);
        let kept = whole(shares.checkpoint) + whole(shares.freeing) + whole(shares.background);
        // Ordinary writes leave room for a checkpoint beside what is kept back.
        kept.min(self.reserve()) + shares.checkpoint + log + 2 * self.memtable() as u64
    }
}
