//! Options of a store and of a keyspace, and the builder that opens a store.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Store;
use super::bounds::{MIN_MEMTABLE, default_budget};
use super::reserve::{LEAST_IN_UNITS, Shares};
use crate::base::{Error, MAX_INLINE_VALUE, PAGE, Result};
use crate::device::{ALLOCATED_UNIT, Device, FileDevice, Io};
use crate::filter::Filters;
use crate::index::options::{COMPRESSION, FILTERS, compression_value, filters_value};
use crate::index::{IndexOptions, Mode};
use crate::resolve::{MergeOperator, builtin};
use crate::run::Compression;

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

/// How to open a store. Made by [`Store::builder`].
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("events.pando");
/// let store = pandodb::Store::builder(&path)
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

impl StoreBuilder {
    pub(crate) fn new(path: &Path) -> StoreBuilder {
        StoreBuilder {
            path: path.to_owned(),
            device: None,
            config: Config {
                memory_budget: default_budget(),
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
            },
            operators: HashMap::new(),
        }
    }

    /// Bytes of memory for write buffers (memtables), the cache of blocks (the buffer pool), filters, iterators and compaction
    /// together. At least 1 MiB, at most the memory of the machine, or what the process may map (`ulimit -v`); the limit of a
    /// container is not looked at. The default is 256 MiB, or half of that most if it is less. How to choose it: see the [recipe].
    ///
    /// [recipe]: https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md#memory-and-threads
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        self.config.memory_budget = bytes;
        self
    }

    /// Bytes of a full memtable, from 4 KiB to the whole memory budget; the default is an eighth of the memory budget, and at most a thirty-second of the disk space that
    /// the store has and can still get when it is opened.
    pub fn memtable_bytes(mut self, bytes: usize) -> Self {
        self.config.memtable_bytes = Some(bytes);
        self
    }

    /// The durability of writes that do not name one. The default is [`Durability::Buffered`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Threads for packing and compacting, 0 to 64; the default is 1. One more takes checkpoints and mostly waits for the
    /// disk. With 0, writers do the work themselves, in small steps, and the store is deterministic.
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.config.background_threads = threads;
        self
    }

    /// Which variant of its structure a new keyspace uses, and which form the log and the row cache have; leave it at [`Mode::Product`]
    /// unless you reproduce published figures. In [`Mode::Paper`] the log carries generations of the memtable's leaves, and there is no
    /// row cache. A keyspace keeps the mode that it was created with.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// Which filters the data of new keyspaces gets, so that lookups skip parts of the structure that lack the key. The default depends on
    /// the index and the mode: for `stbe`, [`Filters::Maplet`] in [`Mode::Product`], [`Filters::Quotient`] in [`Mode::Paper`]. A keyspace
    /// keeps the filters that it was created with.
    pub fn filters(mut self, filters: Filters) -> Self {
        self.config.filters = Some(filters);
        self
    }

    /// How compactions of new keyspaces store the data at the bottom of the structure; the default is [`Compression::None`]. With
    /// [`Compression::Lz4`], leaves of up to 16 KiB are stored as LZ4 where that makes them at least a quarter shorter. That
    /// saves disk space, and bytes read and written by compactions and long scans; it takes processor time in compactions and
    /// for each leaf that is read, and a cached row takes the memory of its whole leaf.
    ///
    /// A keyspace keeps the compression that it was created with. Data that was loaded in the order of keys is not compacted, so it stays
    /// uncompressed.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).compression(pandodb::Compression::Lz4).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn compression(mut self, compression: Compression) -> Self {
        self.config.compression = Some(compression);
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

    /// Registers a merge operator of your own, each time the store is opened. The built-in ones are always registered. Takes
    /// the operator or an `Arc` of it, as [`KeyspaceOptions::merge`] does.
    pub fn operator(mut self, operator: impl MergeOperator) -> Self {
        self.operators.insert(operator.name().to_owned(), Arc::new(operator));
        self
    }

    /// The index of keyspaces that are created without naming one, and its options. The default is `stbe` with its defaults. A keyspace
    /// keeps the index and the options that it was created with.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// use pandodb::{StbeOptions, Store};
    /// let store = Store::builder(dir.path().join("s")).index(StbeOptions::new().fanout(4)).open()?;
    /// store.keyspace("events")?;
    /// assert_eq!(store.keyspaces()[0].index.to_string(), "stbe:fanout=4,mode=product");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn index(mut self, index: impl Into<IndexOptions>) -> Self {
        self.config.index = index.into();
        self
    }

    /// Bytes of the memory budget that are reserved for the cache of single rows. The default is a sixteenth of the budget,
    /// and 0 in [`Mode::Paper`]; at most a quarter. The cache may borrow up to half of the buffer pool's memory where that
    /// saves reads. 0 switches it off: that is right where all keys are read about equally often.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).row_cache_bytes(8 << 20).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn row_cache_bytes(mut self, bytes: usize) -> Self {
        self.config.row_cache_bytes = Some(bytes);
        self
    }

    /// Bytes of a log segment, a multiple of 4,096 from 8 KiB to 16 GiB; the default is a quarter of a memtable, at most 16 MiB.
    /// Under load, a stream has one to four empty segments on the disk that were made ahead, of 32 MiB together at most, unless one is
    /// larger.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.config.segment_bytes = Some(bytes);
        self
    }

    /// How many streams the log has, 1 to 16; the default is 2, and 1 without background threads. Threads are spread over the
    /// streams, so that they do not wait for each other's writes. Writes that are [`Durability::Synced`] share the first
    /// stream, and its syncs. The number may be another one at each opening. Each stream that is used takes a segment of
    /// disk.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).log_streams(2).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn log_streams(mut self, streams: usize) -> Self {
        self.config.log_streams = Some(streams);
        self
    }

    /// Whether the log may be written through memory that is mapped to its files (the default), on file systems where that is
    /// safe (ext4, XFS, tmpfs): a commit with [`Durability::Buffered`] then takes no system call. The price: where the file
    /// system fails under the mapping, the process is ended by a signal (`SIGBUS`) instead of getting an error. That is when
    /// another program cuts a file of an open store short, when the disk fills up after a `cp --reflink` of an open store's
    /// directory on XFS, and when the file system shuts itself down. No acknowledged write is lost by it. `false` makes such
    /// failures errors.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).mapped_log(false).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mapped_log(mut self, mapped: bool) -> Self {
        self.config.mapped_log = mapped;
        self
    }

    /// The most bytes of disk that are kept back so that a store on a full disk can be emptied: for checkpoints, for the log of
    /// deletes, and for packing and compaction piece by piece. By default as much as these need: a log segment for each stream; a
    /// sixteenth of the store, at most 64 MiB, but at least one and a quarter memtables, or five small ones; and one and a quarter times
    /// what the nodes of the trees take. It is never more than the store itself occupies, or 1 MiB if that is more. With less than
    /// the default, deletes on a full disk may be refused until other files make room. At most 1 TiB.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.config.reserve_bytes = Some(bytes);
        self
    }

    /// How the data file is read. The default is [`Io::Auto`]: reads of one caller that do not depend on each other go through
    /// io_uring together. Where the system lacks io_uring or refuses it, as most containers do, they are done one after the
    /// other, and everything works. A device of your own ([`StoreBuilder::device`]) reads as it likes.
    ///
    /// *Signals.* With io_uring, a thread that has reads in flight (an open iterator, a write that does background work) may
    /// see its own waiting system calls end with `EINTR` when a read completes. [`Io::Sync`] avoids that.
    ///
    /// *Processor time.* A thread that waits for a few pages polls for up to 0.3 ms before it sleeps, where that pays: a
    /// lookup that reads is a quarter faster and takes some 15 % more of the processor. A writer that waits for background
    /// work polls the clock in the same way, with any device. [`Io::Sleeping`] switches both off.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).io(pandodb::Io::Sync).open()?;
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
            ("index", config.index_options(None).to_string()),
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
        self.config.check()?;
        let device: Arc<dyn Device> = match self.device {
            Some(device) => device,
            None => {
                let create = self.config.create && !self.config.read_only;
                Arc::new(open_directory(&self.path, create, self.config.io)?)
            }
        };
        super::open::open(device, self.config, self.operators)
    }
}

/// The directory at `path`, made if `create` says so.
pub(crate) fn open_directory(path: &Path, create: bool, io: Io) -> Result<FileDevice> {
    use std::io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    let device = FileDevice::open(path, create).and_then(|device| device.with_io(io));
    let path = || path.display().to_string().escape_debug().to_string();
    device.map_err(|e| match e.kind() {
        NotFound | NotADirectory => Error::NotAStore { path: path(), detail: e.to_string() },
        InvalidInput => Error::invalid(format!("a store cannot be at `{}`: {e}; name another path", path())),
        _ => Error::io("open", &path(), None, &e),
    })
}

/// Options of a keyspace, stored in the catalogue when it is created.
///
/// ```
/// use pandodb::{AddI64, KeyspaceOptions};
/// let counters = KeyspaceOptions::new().merge(AddI64);
/// ```
#[derive(Clone, Default)]
pub struct KeyspaceOptions {
    /// `None`: the store's default for a new keyspace, and whatever an existing one has.
    pub(crate) index: Option<IndexOptions>,
    pub(crate) operator: Option<Arc<dyn MergeOperator>>,
    /// `None`: [`BLOB_THRESHOLD`] for a new keyspace, and whatever an existing one has.
    pub(crate) blob_threshold: Option<usize>,
}

/// The threshold of a keyspace that was created without naming one.
pub(crate) const BLOB_THRESHOLD: usize = 2 << 10;

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
    /// The defaults: the store's index ([`StoreBuilder::index`]), no merge operator, values over 2 KiB stored apart.
    pub fn new() -> KeyspaceOptions {
        KeyspaceOptions::default()
    }

    /// The structure that holds the data, with options of its own: a builder such as [`StbeOptions`](crate::StbeOptions), an
    /// [`IndexKind`](crate::IndexKind), or options that were read from text. What is left open takes the defaults of the store.
    ///
    /// ```
    /// use pandodb::{IndexOptions, KeyspaceOptions};
    /// let options = KeyspaceOptions::new().index("stbe:fanout=16".parse::<IndexOptions>()?);
    /// # Ok::<(), pandodb::Error>(())
    /// ```
    pub fn index(mut self, index: impl Into<IndexOptions>) -> Self {
        self.index = Some(index.into());
        self
    }

    /// The operator that merges fold with. One of your own must also be registered with [`StoreBuilder::operator`] when the
    /// store is opened again.
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

    /// Values longer than this are stored outside the tree: compactions do not copy them, and reading one takes one more read.
    /// The default is 2 KiB; at most 64 KiB, which a larger number means, too. A keyspace keeps the threshold that it was
    /// created with: opening it with another one is refused, and with none takes it as it is.
    pub fn blob_threshold(mut self, bytes: usize) -> Self {
        self.blob_threshold = Some(bytes.min(MAX_INLINE_VALUE));
        self
    }
}
