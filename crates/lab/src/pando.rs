//! PandoDB as an [`Engine`]: one keyspace of one index, on a counting device.

use std::path::Path;
use std::sync::Arc;

use pandodb::device::counting::{Counts, FileClass};
use pandodb::device::{CountingDevice, Device, FileDevice};
use pandodb::{
    AddU64, Batch, Durability, FigureKind, IndexOptions, Io, Isolation, Keyspace, KeyspaceOptions, MergeOperator,
    Store, StoreBuilder, StoreStats, TransactionOptions,
};

use crate::engine::{Engine, Figures, Mode, Need, Opener, Result, Rows, Session, Setup, Write};
use crate::pando_transactions;
use crate::transactions::{Access, Attempts, Capability, Work};

/// The name of the only keyspace.
const KEYSPACE: &str = "bench";

/// An [`Opener`] for PandoDB with an index.
#[derive(Clone)]
pub struct Pando {
    index: IndexOptions,
    device: Option<Arc<dyn Device>>,
    durability: Durability,
    io: Io,
    isolation: Isolation,
    tune: Arc<dyn Fn(StoreBuilder) -> StoreBuilder + Send + Sync>,
}

impl Pando {
    /// PandoDB with its defaults, in the directory of the plan.
    pub fn new(index: impl Into<IndexOptions>) -> Pando {
        let index = index.into();
        let (durability, io, isolation) = (Durability::Buffered, Io::Auto, Isolation::default());
        Pando { index, device: None, durability, io, isolation, tune: Arc::new(|builder| builder) }
    }

    /// Uses this device instead of the directory each time the store is opened. With such a device, the caches cannot
    /// be made cold.
    pub fn on(mut self, device: Arc<dyn Device>) -> Pando {
        self.device = Some(device);
        self
    }

    /// Uses another durability than the default of the lab. The configuration in every line of results shows this
    /// durability.
    pub fn durability(mut self, durability: Durability) -> Pando {
        self.durability = durability;
        self
    }

    /// Sets the way in which the data file is read.
    pub fn io(mut self, io: Io) -> Pando {
        self.io = io;
        self
    }

    /// Sets the isolation of transactions.
    pub fn isolation(mut self, isolation: Isolation) -> Pando {
        self.isolation = isolation;
        self
    }

    /// Sets further options of the store.
    pub fn tuned(mut self, tune: impl Fn(StoreBuilder) -> StoreBuilder + Send + Sync + 'static) -> Pando {
        self.tune = Arc::new(tune);
        self
    }

    /// Opens the store as a [`PandoEngine`], for callers that need more than [`Engine`].
    ///
    /// # Errors
    /// If the store does not open, or the index does not support the mode.
    pub fn open_itself(&self, directory: &Path, setup: &Setup) -> Result<PandoEngine> {
        // Concurrent reads complete in any order, and the order of loads affects evictions from the pool.
        let io = if setup.deterministic { Io::Sync } else { self.io };
        let inner = match &self.device {
            Some(device) => device.clone(),
            None => Arc::new(FileDevice::open(directory, true)?.with_io(io)?),
        };
        let device = CountingDevice::new(inner, class_of);
        let mut builder = Store::builder(directory).memory_budget(setup.memory_budget).device(device.clone());
        builder = builder.durability(self.durability).io(io);
        if setup.mode == Mode::Paper {
            builder = builder.mode(pandodb::Mode::Paper);
        }
        if setup.deterministic {
            builder = builder.background_threads(0);
        }
        let builder = (self.tune)(builder).operator(AddAmongRows);
        let mut settings = builder.settings();
        let store = builder.open()?;
        let options = KeyspaceOptions::new().index(self.index.clone()).merge(AddAmongRows);
        let keyspace = store.keyspace_with(KEYSPACE, options)?;
        let stored = store.keyspaces().into_iter().find(|info| info.name == KEYSPACE).expect("just opened").index;
        settings.retain(|(name, _)| *name != "index");
        settings.push(("index", stored.to_string()));
        let mut configuration = vec![("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned())];
        configuration.extend(settings.into_iter().map(|(name, value)| (name.to_owned(), value)));
        let transactions = TransactionOptions::new().isolation(self.isolation).durability(self.durability);
        Ok(PandoEngine { store, keyspace, device, configuration, transactions })
    }
}

/// A variant of [`AddU64`] that accepts every value, because the keyspace also has rows of other lengths, as in the
/// stores of the other engines. This operator replaces the built-in operator of the same name, so that the command line
/// can also read stores that the lab has written.
struct AddAmongRows;

impl MergeOperator for AddAmongRows {
    fn name(&self) -> &str {
        AddU64.name()
    }
    fn validate(&self, operand: &[u8]) -> std::result::Result<(), String> {
        AddU64.validate(operand)
    }
    fn full_merge(&self, key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Option<Vec<u8>> {
        AddU64.full_merge(key, base, operands)
    }
    fn partial_merge(&self, key: &[u8], older: &[u8], newer: &[u8]) -> Option<Vec<u8>> {
        AddU64.partial_merge(key, older, newer)
    }
}

impl Opener for Pando {
    fn name(&self) -> String {
        format!("pando-{}", self.index)
    }

    fn engine(&self) -> String {
        "pando".to_owned()
    }

    fn index(&self) -> String {
        self.index.to_string()
    }

    fn open(&self, directory: &Path, setup: &Setup) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_itself(directory, setup)?))
    }
}

/// The class of a file of a store.
pub fn class_of(name: &str) -> FileClass {
    match name {
        "data" => FileClass::Data,
        name if name.starts_with("wal-") => FileClass::Log,
        _ => FileClass::Other,
    }
}

/// An open store.
pub struct PandoEngine {
    /// The store.
    pub store: Store,
    /// The only keyspace of the store.
    pub keyspace: Keyspace,
    /// The device that counts the I/O of the store.
    pub device: Arc<CountingDevice>,
    configuration: Vec<(String, String)>,
    transactions: TransactionOptions,
}

impl Engine for PandoEngine {
    fn configuration(&self) -> Vec<(String, String)> {
        self.configuration.clone()
    }

    fn lacks(&self, _need: Need) -> Option<&'static str> {
        None
    }

    fn transactions(&self) -> Option<Capability> {
        Some(pando_transactions::capability(self.transactions))
    }

    fn session(&self) -> Result<Box<dyn Session + '_>> {
        let batch = self.store.batch();
        let (store, keyspace) = (&self.store, &self.keyspace);
        let (transactions, durability) = (self.transactions, self.transactions.durability.unwrap_or_default());
        Ok(Box::new(PandoSession { store, keyspace, batch, transactions, durability }))
    }

    fn settle(&self) -> Result<()> {
        self.store.pack()?;
        Ok(self.store.settle()?)
    }

    fn debt(&self) -> Option<u64> {
        Some(self.store.debt())
    }

    fn figures(&self) -> Result<Figures> {
        Ok(figures(&self.store.stats()?, &self.device.counts()))
    }

    fn device_bytes(&self) -> Option<(u64, u64)> {
        let total = self.device.counts().total();
        Some((total.read_bytes, total.write_bytes))
    }

    fn close(self: Box<Self>) -> Result<()> {
        drop(self.keyspace);
        Ok(self.store.close()?)
    }
}

/// The figures of a store by name.
fn figures(stats: &StoreStats, counts: &Counts) -> Figures {
    let mut figures = Figures::default();
    let mut counter = |name: &str, n: u64| figures.counters.insert(name.to_owned(), n);
    for (class, name) in [(FileClass::Data, "data"), (FileClass::Log, "log"), (FileClass::Other, "other")] {
        let counts = &counts[class];
        counter(&format!("device.{name}.reads"), counts.reads);
        counter(&format!("device.{name}.read_bytes"), counts.read_bytes);
        counter(&format!("device.{name}.writes"), counts.writes);
        counter(&format!("device.{name}.write_bytes"), counts.write_bytes);
        counter(&format!("device.{name}.syncs"), counts.syncs);
    }
    counter("written.log", stats.written.log);
    counter("written.pack", stats.written.pack);
    counter("written.checkpoint", stats.written.checkpoint);
    counter("user_bytes", stats.written.user);
    counter("gets", stats.gets);
    counter("filters", stats.filters);
    counter("leaves", stats.leaves);
    counter("false_positives", stats.false_positives);
    counter("row_hits", stats.row_hits);
    counter("probed_blocks", stats.probed_blocks);
    counter("checkpoints", stats.checkpoints);
    let index = stats.keyspaces.iter().find(|keyspace| keyspace.name == KEYSPACE).map(|keyspace| &keyspace.index);
    if let Some(index) = index {
        counter("compactions", index.compactions);
        for figure in &index.named {
            match figure.kind {
                FigureKind::Counter => drop(counter(figure.name, figure.value)),
                FigureKind::Gauge => drop(figures.gauges.insert(figure.name.to_owned(), figure.value as f64)),
            }
        }
        figures.gauges.insert("search_bytes".to_owned(), index.search_bytes as f64);
        figures.gauges.insert("entries".to_owned(), index.entries as f64);
    }
    let mut gauge = |name: &str, n: u64| figures.gauges.insert(name.to_owned(), n as f64);
    gauge("debt_bytes", stats.debt_bytes);
    gauge("disk_bytes", stats.disk_bytes);
    gauge("log_bytes", stats.log_bytes);
    gauge("memory.memtables", stats.memory.memtables);
    gauge("memory.pool", stats.memory.pool);
    gauge("memory.pinned", stats.memory.pinned);
    gauge("memory.rows", stats.memory.rows);
    figures
}

struct PandoSession<'a> {
    store: &'a Store,
    keyspace: &'a Keyspace,
    /// Empty between operations. It is kept, so that its memory is reused.
    batch: Batch,
    transactions: TransactionOptions,
    durability: Durability,
}

impl Session for PandoSession<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.keyspace.put(key, value)?)
    }

    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.keyspace.get(key)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.keyspace.delete(key)?)
    }

    fn merge_add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        Ok(self.keyspace.merge(key, delta.to_le_bytes())?)
    }

    fn delete_range(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        Ok(self.keyspace.delete_range(from..to)?)
    }

    fn scan(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        let mut rows = self.keyspace.range(from..);
        while found < limit
            && let Some((key, value)) = rows.next_row()?
        {
            visit(key, value);
            found += 1;
        }
        Ok(found)
    }

    fn scan_back(&mut self, from: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        let mut rows = self.keyspace.range(..=from);
        while found < limit
            && let Some((key, value)) = rows.next_row_back()?
        {
            visit(key, value);
            found += 1;
        }
        Ok(found)
    }

    fn write_batch(&mut self, writes: &[Write]) -> Result<()> {
        for write in writes {
            match write {
                Write::Put(key, value) => self.batch.put(self.keyspace, key, value),
                Write::Delete(key) => self.batch.delete(self.keyspace, key),
            }
        }
        let durability = self.transactions.durability.expect("set when the store was opened");
        Ok(self.batch.commit(durability)?)
    }

    fn load_sorted(&mut self, rows: &mut Rows) -> Result<u64> {
        let (mut key, mut value) = (Vec::new(), Vec::new());
        // The next row is probably as long as this one.
        let take = |buffer: &mut Vec<u8>| std::mem::replace(buffer, Vec::with_capacity(buffer.len()));
        let next = || rows(&mut key, &mut value).then(|| (take(&mut key), take(&mut value)));
        Ok(self.keyspace.load_sorted(std::iter::from_fn(next))?)
    }

    fn multi_get(&mut self, keys: &[Vec<u8>], visit: &mut dyn FnMut(usize, &[u8])) -> Result<usize> {
        let values = self.keyspace.multi_get(keys)?;
        let found = values.iter().enumerate().filter_map(|(i, value)| value.as_ref().map(|value| (i, value)));
        Ok(found.map(|(i, value)| visit(i, value)).count())
    }

    fn transact(&mut self, _access: Access, work: &mut Work) -> Result<Attempts> {
        pando_transactions::transact((self.store, self.keyspace), self.transactions, work)
    }

    fn fetch_update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> Result<Attempts> {
        let mut attempts = Attempts { committed: true, ..Attempts::default() };
        self.keyspace.fetch_update_with(key, self.durability, |old| {
            attempts.count += 1;
            let mut value = old.unwrap_or_default().to_vec();
            change(&mut value);
            Some(value)
        })?;
        Ok(attempts)
    }
}
