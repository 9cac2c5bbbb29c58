//! [`StoreBuilder`]: settings, and the opening of a store with them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::config::Config;
use super::handle::Store;
use super::open::open;
use super::options::Durability;
#[cfg(doc)]
use crate::KeyspaceOptions;
use crate::base::{Error, Result};
use crate::device::{Device, FileDevice, Io};
use crate::filter::Filters;
use crate::index::{IndexOptions, Mode};
use crate::resolve::MergeOperator;
use crate::run::Compression;

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

impl Store {
    /// Opens the store in a directory with the default options, creating it if it does not exist.
    ///
    /// # Errors
    /// As [`StoreBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::builder(path).open()
    }

    /// Options for opening the store in a directory.
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder::new(path.as_ref())
    }
}

impl StoreBuilder {
    pub(crate) fn new(path: &Path) -> StoreBuilder {
        StoreBuilder { path: path.to_owned(), device: None, config: Config::default(), operators: HashMap::new() }
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
        open(device, self.config, self.operators).map(Store::new)
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
