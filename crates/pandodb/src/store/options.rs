//! Options of a store and of a keyspace, and the builder that opens a store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Store;
use crate::base::{Error, MAX_INLINE_VALUE, PAGE, Result};
use crate::device::{Device, FileDevice, Io};
use crate::filter::Filters;
use crate::resolve::{MergeOperator, builtin};
use crate::run::Compression;
use crate::wal::MAX_STREAMS;

/// When an acknowledged write survives what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Durability {
    /// Logged lazily: a crash of the process may lose the last writes, never one before another.
    None,
    /// In the system's page cache before the acknowledgement: survives the death of the process (`kill -9`), not of the
    /// machine.
    #[default]
    Buffered,
    /// On stable storage before the acknowledgement: survives a power cut. Concurrent commits share a sync.
    Synced,
}

/// Which form of the structures a store uses. A store may be opened either way, whichever it was written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// The best that we could make of each structure.
    #[default]
    Product,
    /// As its source describes the structure, to be measured beside the other. Of `stbe` that is how leaves are kept (tiered),
    /// that every arrival is compacted once, a quotient filter for each run, and a log that carries generations of the
    /// memtable's leaves.
    Paper,
}

/// How to open a store. Made by [`Store::builder`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let store = pandodb::Store::builder(dir.path().join("events.pando"))
///     .memory_budget(64 << 20)
///     .durability(pandodb::Durability::Synced)
///     .open()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StoreBuilder {
    pub(crate) path: PathBuf,
    pub(crate) device: Option<Arc<dyn Device>>,
    pub(crate) config: Config,
    pub(crate) operators: HashMap<String, Arc<dyn MergeOperator>>,
}

/// The settings of an open store.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub memory_budget: usize,
    pub memtable_bytes: Option<usize>,
    pub durability: Durability,
    pub background_threads: usize,
    pub mode: Mode,
    pub filters: Option<Filters>,
    pub compression: Compression,
    pub create: bool,
    pub read_only: bool,
    /// For a salvage: the log ends at the first damage. Goes with `read_only`.
    pub salvage: bool,
    pub fanout: usize,
    pub maplet_width: usize,
    pub row_cache_bytes: Option<usize>,
    pub leaf_memtables: u64,
    pub segment_bytes: Option<u64>,
    pub log_streams: Option<usize>,
    pub mapped_log: bool,
    pub reserve_bytes: Option<u64>,
    pub io: Io,
}

/// The least memory budget, in bytes.
const MIN_BUDGET: usize = 1 << 20;

impl Config {
    /// Bytes of a full memtable: an eighth of the budget, if nobody said otherwise.
    pub(crate) fn memtable(&self) -> usize {
        self.memtable_bytes.unwrap_or(self.memory_budget / 8).max(4 << 10)
    }

    /// Streams of the log. Which of several a thread writes depends on what other threads there were in the process; a store
    /// without threads of its own is to do the same each time.
    pub(crate) fn streams(&self) -> usize {
        self.log_streams.unwrap_or(if self.background_threads == 0 { 1 } else { 2 })
    }

    /// Which filters new runs get.
    pub(crate) fn filters(&self) -> Filters {
        self.filters.unwrap_or(match self.mode {
            Mode::Product => Filters::Maplet,
            Mode::Paper => Filters::Quotient,
        })
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

    /// The most bytes that are kept back for deleting on a full disk.
    pub(crate) fn reserve(&self) -> u64 {
        self.reserve_bytes.unwrap_or(self.memtable() as u64 / 2 + self.segment() * self.streams() as u64)
    }
}

impl StoreBuilder {
    pub(crate) fn new(path: &Path) -> StoreBuilder {
        StoreBuilder {
            path: path.to_owned(),
            device: None,
            config: Config {
                memory_budget: 256 << 20,
                memtable_bytes: None,
                durability: Durability::default(),
                background_threads: 1,
                mode: Mode::default(),
                filters: None,
                compression: Compression::None,
                create: true,
                read_only: false,
                salvage: false,
                fanout: 8,
                maplet_width: 4,
                row_cache_bytes: None,
                leaf_memtables: 4,
                segment_bytes: None,
                log_streams: None,
                mapped_log: true,
                reserve_bytes: None,
                io: Io::default(),
            },
            operators: HashMap::new(),
        }
    }

    /// Bytes of memory for memtables, the buffer pool, filters, cursors and compaction together. At least 1 MiB; the
    /// default is 256 MiB.
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        self.config.memory_budget = bytes;
        self
    }

    /// Bytes of a full memtable; the default is an eighth of the memory budget.
    pub fn memtable_bytes(mut self, bytes: usize) -> Self {
        self.config.memtable_bytes = Some(bytes);
        self
    }

    /// The durability of writes that do not name one. The default is [`Durability::Buffered`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Threads for packing and compacting, 0 to 64; the default is 1. Beside them one takes checkpoints, which mostly waits for the disk. With 0, writers do the work in small steps themselves and
    /// the store is deterministic.
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.config.background_threads = threads;
        self
    }

    /// Which form of the structures is used; [`Mode::Product`] unless a figure of a source is to be reproduced.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// Which filters new runs get, and so how lookups pass them by; the default is the mode's: [`Filters::Maplet`] in
    /// [`Mode::Product`], [`Filters::Quotient`] in [`Mode::Paper`]. What is there already is read whatever it has.
    pub fn filters(mut self, filters: Filters) -> Self {
        self.config.filters = Some(filters);
        self
    }

    /// How the data at the bottom of the tree is stored that is compacted from now on; the default is [`Compression::None`].
    /// With [`Compression::Lz4`] leaves of up to 16 KiB are stored as LZ4, where that makes them a quarter shorter at least: less
    /// disk, and fewer bytes to write and to read in long scans, for processor time in compactions and in each read of a leaf; a
    /// cached row takes the memory of its whole leaf. What is there already is read whatever it is, and stays as it is until it is
    /// compacted; so does what was loaded in key order, which is not compacted at all. A store that holds something compressed is not opened by
    /// versions before this option.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::builder(dir.path().join("s")).compression(pandodb::Compression::Lz4).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compression(mut self, compression: Compression) -> Self {
        self.config.compression = compression;
        self
    }

    /// Whether to create the store if it does not exist (the default).
    pub fn create(mut self, create: bool) -> Self {
        self.config.create = create;
        self
    }

    /// Opens for reading: nothing is modified, other readers may open too, a writer may not. The log's tail is replayed
    /// into memory. A trunk node that is lost costs its range of keys then, not the opening.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.config.read_only = read_only;
        self
    }

    /// Registers a merge operator of the user's. The built-in ones are always registered.
    pub fn operator(mut self, operator: Arc<dyn MergeOperator>) -> Self {
        self.operators.insert(operator.name().to_owned(), operator);
        self
    }

    /// The most children of a trunk node, 2 to 64; the default is 8. A knob for experiments.
    pub fn fanout(mut self, fanout: usize) -> Self {
        self.config.fanout = fanout;
        self
    }

    /// How many runs, and then how many maplets, become one maplet, 2 to 16; the default is 4. A knob for experiments.
    pub fn maplet_width(mut self, width: usize) -> Self {
        self.config.maplet_width = width;
        self
    }

    /// Bytes that the cache of single rows has in any case, which are then not the pool's; the default is a sixteenth of the memory budget, and none
    /// in [`Mode::Paper`]. It borrows up to half of the pool's where that saves reads. At most a quarter of the budget; 0 for none, where no row is asked for much more often than others.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::builder(dir.path().join("s")).memory_budget(64 << 20).row_cache_bytes(8 << 20).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn row_cache_bytes(mut self, bytes: usize) -> Self {
        self.config.row_cache_bytes = Some(bytes);
        self
    }

    /// Bytes of a log segment; the default is a quarter of a memtable, at most 16 MiB. A stream that fills one after the other has up to four more
    /// on the disk that are made ahead, of 32 MiB together, but one in any case.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.config.segment_bytes = Some(bytes);
        self
    }

    /// How many streams the log has, 1 to 16; the default is 2, and 1 without background threads. A thread writes to a stream
    /// of its own, so that threads do not wait for each other's writes; threads are counted in the process, so two may share
    /// one before all are used. What is [`Durability::Synced`] shares the
    /// first, and its syncs; a sync is of every stream that has something new. May be another number at each opening. Each
    /// stream that is used takes a segment of disk.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::builder(dir.path().join("s")).log_streams(2).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_streams(mut self, streams: usize) -> Self {
        self.config.log_streams = Some(streams);
        self
    }

    /// Whether the log may be written through memory that is mapped to its files (the default), where the file system allows: a commit
    /// with [`Durability::Buffered`] then takes no system call. Without it some failures of the file system that would end the
    /// process by a signal are errors: `docs/decisions/0022-small-writes-mapped.md` says which.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::builder(dir.path().join("s")).mapped_log(false).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mapped_log(mut self, mapped: bool) -> Self {
        self.config.mapped_log = mapped;
        self
    }

    /// The most bytes of disk that are kept back so that deletes and compactions work when the disk is full; the default
    /// is half a memtable and a log segment for each stream.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.config.reserve_bytes = Some(bytes);
        self
    }

    /// How the data file is read: by default several reads at once go through io_uring where the system has it and allows it,
    /// and one after the other elsewhere. A device of the caller's reads as it likes ([`StoreBuilder::device`]). A thread that has reads
    /// in flight (an open range, a write that does a step of background work) may see system calls of its own that wait interrupted
    /// (`EINTR`) when they end, as by any signal; [`Io::Sync`] spares it that. Who waits for a few pages looks for their end for up to 0.3 ms
    /// before it sleeps, where that serves: a lookup that reads is a quarter faster and takes some 15 % more of the processor.
    /// A writer that has to wait for background work watches the clock in the same way, with any device. [`Io::Sleeping`] switches both off.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// let store = pandodb::Store::builder(dir.path().join("s")).io(pandodb::Io::Sync).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn io(mut self, io: Io) -> Self {
        self.config.io = io;
        self
    }

    /// Uses a device other than the directory: memory, a simulator. The path is then only a name.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// The sizes that matter for speed, by name, to be printed beside a measurement.
    #[doc(hidden)]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let config = &self.config;
        vec![
            ("memtable_bytes", config.memtable().to_string()),
            ("pool_bytes", config.pool().to_string()),
            ("row_cache_bytes", config.rows().to_string()),
            ("segment_bytes", config.segment().to_string()),
            ("log_streams", config.streams().to_string()),
            ("durability", format!("{:?}", config.durability)),
            ("background_threads", config.background_threads.to_string()),
            ("mode", format!("{:?}", config.mode)),
            ("filters", format!("{:?}", config.filters())),
            ("compression", format!("{:?}", config.compression)),
            ("maplet_width", config.maplet_width.to_string()),
            ("fanout", config.fanout.to_string()),
            ("leaf_memtables", config.leaf_memtables.to_string()),
            ("io", format!("{:?}", config.io)),
        ]
    }

    /// Opens what can be read of a damaged store. For [`crate::check::salvage`], which knows how to treat it.
    pub(crate) fn open_to_salvage(mut self) -> Result<Store> {
        self.config.read_only = true;
        self.config.salvage = true;
        self.open()
    }

    /// Opens the store: takes its lock, reads its superblock, replays its log. Costs one block read for each trunk node
    /// and the log since the last checkpoint, whatever the size of the data.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a setting out of bounds, [`Error::Locked`] if it is open elsewhere,
    /// [`Error::NotAStore`] if there is none (and `create` is off) or this version cannot read it, [`Error::Corruption`] if
    /// it is damaged.
    pub fn open(self) -> Result<Store> {
        if self.config.memory_budget < MIN_BUDGET {
            return Err(Error::invalid(format!("the memory budget must be at least {MIN_BUDGET} bytes")));
        }
        if !(2..=64).contains(&self.config.fanout) {
            return Err(Error::invalid("the fan-out must be 2 to 64"));
        }
        if !(2..=16).contains(&self.config.maplet_width) {
            return Err(Error::invalid("a maplet is made of 2 to 16"));
        }
        if self.config.background_threads > 64 {
            return Err(Error::invalid("at most 64 background threads"));
        }
        if !(1..=MAX_STREAMS).contains(&self.config.streams()) {
            return Err(Error::invalid(format!("the log has 1 to {MAX_STREAMS} streams")));
        }
        let path = self.path.display().to_string();
        let device: Arc<dyn Device> = match self.device {
            Some(device) => device,
            None => {
                let create = self.config.create && !self.config.read_only;
                let io = self.config.io;
                let device =
                    FileDevice::open(&self.path, create).and_then(|device| device.with_io(io)).map_err(|e| match e
                        .kind()
                    {
                        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => {
                            Error::NotAStore { path: path.clone(), detail: "there is no such directory".into() }
                        }
                        _ => Error::io("open", &path, None, &e),
                    })?;
                Arc::new(device)
            }
        };
        super::open::open(device, self.config, self.operators)
    }
}

/// Which structure holds a keyspace's data.
#[non_exhaustive]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IndexKind {
    /// The size-tiered Bε-tree (002 ch. 3): ingest first, good at everything.
    #[default]
    Stbe,
}

impl IndexKind {
    /// The name in the catalogue and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            IndexKind::Stbe => crate::index::stbe::KIND,
        }
    }

    /// The index of that name.
    pub fn from_name(name: &str) -> Option<IndexKind> {
        [IndexKind::Stbe].into_iter().find(|kind| kind.name() == name)
    }
}

/// Options of a keyspace, stored in the catalogue when it is created.
///
/// ```
/// use pandodb::{AddI64, KeyspaceOptions};
/// let counters = KeyspaceOptions::new().merge(AddI64);
/// ```
#[derive(Clone)]
pub struct KeyspaceOptions {
    pub(crate) index: IndexKind,
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    pub(crate) blob_threshold: usize,
}

impl Default for KeyspaceOptions {
    fn default() -> KeyspaceOptions {
        KeyspaceOptions { index: IndexKind::Stbe, operator: None, blob_threshold: 2 << 10 }
    }
}

impl std::fmt::Debug for KeyspaceOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyspaceOptions")
            .field("index", &self.index)
            .field("operator", &self.operator.as_ref().map(|operator| operator.name()))
            .field("blob_threshold", &self.blob_threshold)
            .finish()
    }
}

impl KeyspaceOptions {
    /// The defaults: `stbe`, no merge operator, values over 2 KiB stored apart.
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// The structure that holds the data.
    pub fn index(mut self, index: IndexKind) -> Self {
        self.index = index;
        self
    }

    /// The operator that merges fold with.
    pub fn merge(mut self, operator: impl MergeOperator) -> Self {
        self.operator = Some(Arc::new(operator));
        self
    }

    /// A built-in operator by its name.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if there is none of that name.
    pub fn merge_named(mut self, name: &str) -> Result<Self> {
        let operator = builtin(name).ok_or_else(|| {
            Error::invalid(format!("no operator `{name}`; there are {}", crate::resolve::BUILTIN_NAMES.join(", ")))
        })?;
        self.operator = Some(operator);
        Ok(self)
    }

    /// Values longer than this live in extents of their own, beside the tree: cheap to move, one more read to get.
    /// At most 64 KiB.
    pub fn blob_threshold(mut self, bytes: usize) -> Self {
        self.blob_threshold = bytes.min(MAX_INLINE_VALUE);
        self
    }
}
