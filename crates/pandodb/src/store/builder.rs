//! [`StoreBuilder`] has the settings for opening a store.

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
use crate::pool::PoolPolicy;
use crate::resolve::MergeOperator;
use crate::run::Compression;

/// Settings for opening a store. It is made by [`Store::builder`].
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
    /// Opens the store in a directory with the default settings, and creates it if it does not exist.
    ///
    /// # Errors
    /// The errors of [`StoreBuilder::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::builder(path).open()
    }

    /// Returns the default settings for opening the store in a directory.
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder::new(path.as_ref())
    }
}

impl StoreBuilder {
    pub(crate) fn new(path: &Path) -> StoreBuilder {
        StoreBuilder { path: path.to_owned(), device: None, config: Config::default(), operators: HashMap::new() }
    }

    /// Sets the total memory in bytes for write buffers (memtables), the block cache (buffer pool), filters, iterators
    /// and compactions. The minimum is 1 MiB. The maximum is the memory of the machine or the limit on the process's
    /// address space (`ulimit -v`). The memory limit of a container is not checked. The default is 256 MiB, or half of
    /// the maximum if that is less. For advice see the [recipe].
    ///
    /// [recipe]: https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md#memory-and-threads
    pub fn memory_budget(mut self, bytes: usize) -> Self {
        self.config.memory_budget = bytes;
        self
    }

    /// Sets the size in bytes at which a memtable is full, from 4 KiB to the whole memory budget. It also determines
    /// the sizes of nodes and log segments.
    ///
    /// By default a memtable is full at three eighths of the memory budget if no other memtable waits to be written to
    /// the data file. The more memtables wait, the smaller this size becomes, down to an eighth. Nodes have the sizes
    /// that they would have with `memtable_bytes` of a quarter of the budget, log segments those for an eighth. All
    /// these memtable sizes are limited to 1/32 of the disk space that the store occupies or can still use when it is
    /// opened.
    pub fn memtable_bytes(mut self, bytes: usize) -> Self {
        self.config.memtable_bytes = Some(bytes);
        self
    }

    /// Sets the durability of writes that do not specify one. The default is [`Durability::Buffered`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.config.durability = durability;
        self
    }

    /// Sets the number of threads for packing and compaction, from 0 to 64. The default is 1. An additional thread
    /// takes checkpoints and mostly waits for the disk, and a sorted load of more than 64 KiB has a thread of its own.
    /// With 0, none of these threads exists: writers do this work themselves in small steps, and the store is
    /// deterministic.
    pub fn background_threads(mut self, threads: usize) -> Self {
        self.config.background_threads = threads;
        self
    }

    /// Sets the mode: the variant of the index that new keyspaces use, and the form of the log and the row cache. Keep
    /// the default [`Mode::Product`] unless you reproduce published figures. In [`Mode::Paper`] the log carries
    /// generations of the memtable's leaves, and there is no row cache. A keyspace keeps the mode with which it was
    /// created.
    pub fn mode(mut self, mode: Mode) -> Self {
        self.config.mode = mode;
        self
    }

    /// Sets the filters of new keyspaces. Lookups use filters to skip parts of the index that do not have the key. The
    /// default depends on the index and the mode: for `stbe`, [`Filters::Maplet`] in [`Mode::Product`] and
    /// [`Filters::Quotient`] in [`Mode::Paper`]. A keyspace keeps the filters with which it was created.
    pub fn filters(mut self, filters: Filters) -> Self {
        self.config.filters = Some(filters);
        self
    }

    /// Sets the compression of new keyspaces. The default is [`Compression::None`]. With [`Compression::Lz4`],
    /// compactions at the bottom of the index compress leaves of up to 16 KiB, if this makes the leaf at least a
    /// quarter shorter. The index `btree` compresses each leaf for which this saves 4 KiB.
    ///
    /// Compression saves disk space, and reduces the I/O of compactions and long scans. It costs processor time in
    /// compactions and for each leaf that is read. A cached row of a compressed leaf takes as much memory as the whole
    /// leaf.
    ///
    /// A keyspace keeps the compression with which it was created. Data that was loaded in key order is not compacted,
    /// and therefore stays uncompressed.
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

    /// Sets whether to create the store if it does not exist. The default is `true`.
    pub fn create(mut self, create: bool) -> Self {
        self.config.create = create;
        self
    }

    /// Opens the store for reading only: nothing is modified. Other processes may also open it for reading, but not for
    /// writing. The tail of the log is replayed into memory. If a trunk node is lost, only reads of its key range fail,
    /// not the opening.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.config.read_only = read_only;
        self
    }

    /// Registers a merge operator of the application. This is necessary at each opening. Only the built-in operators
    /// are always registered. The argument is the operator or an `Arc` of it, as [`KeyspaceOptions::merge`] does.
    pub fn operator(mut self, operator: impl MergeOperator) -> Self {
        self.operators.insert(operator.name().to_owned(), Arc::new(operator));
        self
    }

    /// Sets the index, with its options, of new keyspaces that do not specify one. The default is `stbe` with its
    /// default options. A keyspace keeps the index and the options with which it was created.
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

    /// Sets the part of the memory budget in bytes that is reserved for the row cache, which caches single rows. The
    /// default is 1/16 of the budget, or 0 in [`Mode::Paper`]; the maximum is a quarter of the budget. The row cache
    /// can borrow up to half of the buffer pool's memory if that saves reads. 0 disables the row cache, which is best
    /// if all keys are read about equally often.
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

    /// Sets the size of a log segment in bytes: a multiple of 4,096 from 8 KiB to 16 GiB. The default is a quarter of a
    /// memtable, but at most 16 MiB. Under load, each log stream preallocates one to four empty segments. Together they
    /// take at most 32 MiB, or one segment if that is larger.
    pub fn segment_bytes(mut self, bytes: u64) -> Self {
        self.config.segment_bytes = Some(bytes);
        self
    }

    /// Sets the number of log streams, from 1 to 16. The default is 2, or 1 without background threads. Threads are
    /// distributed over the streams, so that they do not wait for each other's writes. Writes with
    /// [`Durability::Synced`] share the first stream and its syncs. The number may be different at each opening. Each
    /// stream in use takes one segment of disk space.
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

    /// Sets whether the log is written through memory-mapped files where the file system makes this safe (ext4, XFS,
    /// tmpfs). The default is `true`: a commit with [`Durability::Buffered`] then needs no system call.
    ///
    /// The disadvantage: if the file system cannot provide a mapped page, the process is killed by the signal `SIGBUS`.
    /// This happens if another program truncates a file of an open store, if the disk fills up after a `cp --reflink`
    /// of an open store's directory on XFS, and if the file system shuts down. No acknowledged write is lost. With
    /// `false`, such failures are errors.
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

    /// Sets the maximum size in bytes of all open transactions together: their writes, the keys that they have read,
    /// and under snapshot isolation a copy of each written key. This memory is a part of the memory budget. The default
    /// is a quarter of the budget, and half of it is the maximum. A transaction that would exceed this limit fails with
    /// [`Error::TransactionTooLarge`]. Transactions of less than 64 KiB do not count. A transaction that reads after it
    /// has written needs about twice the memory of its writes in addition, and one that commits needs it for the log
    /// and the memtable.
    ///
    /// [`Error::TransactionTooLarge`]: crate::Error::TransactionTooLarge
    pub fn transaction_bytes(mut self, bytes: usize) -> Self {
        self.config.transaction_bytes = Some(bytes);
        self
    }

    /// Sets the maximum disk space in bytes that the store reserves, so that data can still be deleted when the disk is
    /// full. The reserve is used for checkpoints, for the log records of deletes, and for packing and compaction in
    /// small pieces.
    ///
    /// By default, the reserve is the sum of these needs: one log segment for each stream; 1/16 of the store, at most
    /// 64 MiB, but at least 1.25 memtables, or up to 5 if they are small; and 1.25 times the size of the index nodes.
    /// The reserve is at most as large as the store itself, or at most 1 MiB if the store is smaller. With a smaller
    /// limit, deletes on a full disk may fail until other files make room. The maximum is 1 TiB.
    pub fn reserve_bytes(mut self, bytes: u64) -> Self {
        self.config.reserve_bytes = Some(bytes);
        self
    }

    /// Sets how the data file is read. The default is [`Io::Auto`]: independent reads of one caller go through io_uring
    /// together. If the system lacks io_uring or denies it, as most containers do, the reads are done one after the
    /// other. A device of the application ([`StoreBuilder::device`]) does not use this setting.
    ///
    /// *Signals.* With io_uring, a thread that has reads in flight (an open iterator, a write that does background
    /// work) may see its own blocking system calls fail with `EINTR` when a read completes. [`Io::Sync`] avoids this.
    ///
    /// *Processor time.* A thread that waits for a few pages polls for up to 0.3 ms before it sleeps, if recent polls
    /// were usually successful. With polling, a lookup that reads is a quarter faster and takes about 15 % more
    /// processor time. In the same way, with any device, a writer that waits for background work polls the clock.
    /// [`Io::Sleeping`] disables both.
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

    /// Sets the replacement policy of the buffer pool. The default is [`PoolPolicy::Clock`]; the other policies are for
    /// comparisons, and [`PoolPolicy::Optimal`] exceeds the memory budget. The policy is not stored: each opening of
    /// the store may choose another one.
    ///
    /// ```
    /// use pandodb::PoolPolicy;
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// let store = pandodb::Store::builder(&path).pool_policy(PoolPolicy::TwoQueue).open()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pool_policy(mut self, policy: PoolPolicy) -> Self {
        self.config.pool_policy = policy;
        self
    }

    /// Uses another device instead of the directory, for example memory or a simulator. With such a device, the path is
    /// only used as a name.
    pub fn device(mut self, device: Arc<dyn Device>) -> Self {
        self.device = Some(device);
        self
    }

    /// Returns the settings that affect performance, by name, for benchmark reports.
    #[doc(hidden)]
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let config = &self.config;
        vec![
            ("memtable_bytes", config.largest_memtable().to_string()),
            ("least_memtable_bytes", config.least_memtable().to_string()),
            ("unit_bytes", config.unit().to_string()),
            ("pool_bytes", config.pool().to_string()),
            ("pool_policy", config.pool_policy.to_string()),
            ("row_cache_bytes", config.rows().to_string()),
            ("segment_bytes", config.segment().to_string()),
            ("log_streams", config.streams().to_string()),
            ("durability", format!("{:?}", config.durability)),
            ("background_threads", config.background_threads.to_string()),
            ("index", config.index_options(None).to_string()),
            ("io", format!("{:?}", config.io)),
        ]
    }

    /// Opens the readable part of a damaged store. [`crate::check::salvage`] uses this function and handles the missing
    /// parts.
    pub(crate) fn open_to_salvage(mut self) -> Result<Store> {
        self.config.read_only = true;
        self.config.salvage = true;
        self.open()
    }

    /// Opens the store: takes its lock, reads its superblock and replays its log. The cost is one block read for each
    /// trunk node, plus a read of the log since the last checkpoint. Otherwise the cost does not depend on the amount
    /// of data.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if a setting is out of bounds, [`Error::Locked`] if the store is open elsewhere,
    /// [`Error::NotAStore`] if there is no store (and `create` is off) or this version cannot read it,
    /// [`Error::Corruption`] if the store is damaged.
    pub fn open(self) -> Result<Store> {
        self.config.check()?;
        assert!(self.config.read_only || !self.config.salvage, "a salvage only reads");
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

/// Opens the directory at `path`, and creates it if `create` is set.
pub(crate) fn open_directory(path: &Path, create: bool, io: Io) -> Result<FileDevice> {
    use std::io::ErrorKind::{InvalidInput, NotADirectory, NotFound};
    let device = FileDevice::open(path, create).and_then(|device| device.with_io(io));
    let path = || path.display().to_string().escape_debug().to_string();
    device.map_err(|e| match e.kind() {
        NotFound | NotADirectory => Error::NotAStore { path: path(), detail: e.to_string() },
        InvalidInput => Error::invalid(format!("no store can be opened at `{}`: {e}; name another path", path())),
        _ => Error::io("open", &path(), None, &e),
    })
}
