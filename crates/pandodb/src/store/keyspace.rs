//! A keyspace: its state, and the handle through which it is written and read.

use std::sync::Arc;

use super::at::KeyspaceAt;
use super::commit::{OneOp, Payload, PayloadOps};
use super::engine::{Engine, Shared};
use super::options::{Durability, KeyspaceOptions};
use super::range::Range;
use super::read::{self, ReadPoint};
use super::snapshot::Snapshot;
use super::value::Value;
use super::watermark::CachePadded;
use crate::base::sync::{ArcSwap, AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{
    BlobRef, Error, IntoKeyRange, KeyCodec, KeyRange, KeyspaceId, Kind, MAX_KEY, MAX_OPERAND, MAX_VALUE, Result, Seqno,
};
use crate::index::{Estimate, Index, IndexOptions, SealedBatch};
use crate::memtable::Memtable;
use crate::resolve::Operator;
use crate::wal::Log;

/// The state of one keyspace.
pub(crate) struct KeyspaceState {
    pub id: KeyspaceId,
    pub name: String,
    pub operator: Option<Operator>,
    /// The operator's name and version in the catalogue, registered or not.
    pub operator_name: Option<(String, u32)>,
    pub blob_threshold: usize,
    /// Which index, in which mode, with which options. Changed under `durable_root`; the index itself follows at the next opening.
    pub options: Mutex<IndexOptions>,
    pub index: Arc<dyn Index>,
    /// The stored form of its keys: that of memtables and index.
    pub codec: KeyCodec,
    pub containers: ArcSwap<Containers>,
    /// What the active memtable adds to the bytes of all of them; changed by whoever adds to it.
    pub charged: CachePadded<AtomicU64>,
    pub dropped: AtomicBool,
    /// Through here everything was once seen to be in the index; it may be ahead of the index's own `through`.
    pub drained_through: AtomicU64,
}

/// The memtables of a keyspace; swapped as one.
pub(crate) struct Containers {
    pub active: Arc<Memtable>,
    /// Newest first.
    pub sealed: Vec<SealedBatch>,
}

impl KeyspaceState {
    /// Bytes in the active memtable.
    pub(crate) fn active_bytes(&self) -> usize {
        self.containers.load().active.bytes()
    }

    /// Puts a fresh memtable in front; the caller has settled the sequencer.
    pub(crate) fn push_sealed(&self, batch: SealedBatch, active: Arc<Memtable>) {
        self.containers.rcu(|old| {
            let mut sealed = Vec::with_capacity(old.sealed.len() + 1);
            sealed.push(batch.clone());
            sealed.extend(old.sealed.iter().cloned());
            Containers { active: active.clone(), sealed }
        });
    }

    /// Lets go of memtables whose messages the index holds.
    pub(crate) fn retire_sealed(&self) {
        let through = self.index.view().through();
        self.containers.rcu(|old| Containers {
            active: old.active.clone(),
            sealed: old.sealed.iter().filter(|batch| batch.through > through).cloned().collect(),
        });
    }

    /// Everything of the keyspace up to `now` is in its index, if no memtable holds anything: then it does not hold the
    /// log back.
    ///
    /// The containers are asked first: a memtable leaves them only after the index has moved past `through`.
    pub(crate) fn is_drained(&self, through: Seqno) -> bool {
        let containers = self.containers.load();
        let empty = containers.active.is_empty() && containers.sealed.iter().all(|batch| batch.through <= through);
        empty && self.index.view().through() == through
    }
}

/// A handle to a keyspace: an ordered map from keys of 1 to 65,535 bytes to values of up to 64 MiB, in bytewise order.
/// Cheap to clone, usable from any thread.
///
/// There are no transactions: between a [`Keyspace::get`] and a [`Keyspace::put`] another thread may write. To update a
/// value by what it was, merge, or guard the key with a lock of your own ([recipe]).
///
/// [recipe]: https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md#read-change-write
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("demo.pando");
/// use pandodb::{AddI64, KeyspaceOptions, Store};
/// let store = Store::open(&path)?;
/// let delays = store.keyspace_with("delays", KeyspaceOptions::new().merge(AddI64))?;
/// delays.merge(b"ORD", 17i64.to_le_bytes())?; // blind: reads nothing
/// delays.merge(b"ORD", (-2i64).to_le_bytes())?;
/// assert_eq!(delays.get(b"ORD")?.unwrap(), 15i64.to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Keyspace {
    pub(crate) engine: Arc<Shared>,
    pub(crate) state: Arc<KeyspaceState>,
}

impl std::fmt::Debug for Keyspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keyspace").field("name", &self.state.name).field("id", &self.state.id).finish()
    }
}

/// Checks the length of a key.
pub(crate) fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY {
        return Err(Error::invalid(format!("a key must have 1 to {MAX_KEY} bytes, not {}", key.len())));
    }
    Ok(())
}

impl KeyspaceState {
    pub(crate) fn check_alive(&self) -> Result<()> {
        if self.dropped.load(Relaxed) {
            return Err(Error::NoKeyspace { name: self.name.clone() });
        }
        Ok(())
    }

    /// The operator, or why there is none.
    pub(crate) fn operator(&self) -> Result<&Operator> {
        match (&self.operator, &self.operator_name) {
            (Some(operator), _) => Ok(operator),
            (None, Some((name, version))) => Err(Error::OperatorMissing {
                keyspace: self.name.clone(),
                operator: format!("{name} (version {version})"),
            }),
            (None, None) => Err(Error::Unsupported {
                detail: format!("keyspace `{}` was created without a merge operator", self.name),
            }),
        }
    }

    pub(crate) fn check_put(&self, key: &[u8], value: &[u8]) -> Result<()> {
        check_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(Error::invalid(format!("a value may have at most {MAX_VALUE} bytes, not {}", value.len())));
        }
        self.check_alive()
    }

    /// Whether the merge operator accepts a value; one that is not registered is not asked.
    pub(crate) fn check_value(&self, value: &[u8]) -> Result<()> {
        self.operator.as_ref().map_or(Ok(()), |operator| operator.validate_value(value))
    }

    /// The index, with its mode and all options that are not the default.
    pub(crate) fn options(&self) -> IndexOptions {
        self.options.lock().clone()
    }

    /// Refuses options that the keyspace was not created with.
    pub(crate) fn check_options(&self, options: &KeyspaceOptions) -> Result<()> {
        let refuse = |stored: String, wanted: String| {
            let name = &self.name;
            Err(Error::invalid(format!("keyspace `{name}` exists with {stored}, not with {wanted}; open it as it is")))
        };
        let wanted = options.operator.as_ref().map(|operator| (operator.name(), operator.version()));
        let stored = self.operator_name.as_ref().map(|(name, version)| (name.as_str(), *version));
        if wanted != stored {
            let words = |operator: Option<(&str, u32)>| match operator {
                Some((name, version)) => format!("operator {name} (version {version})"),
                None => "no operator".to_owned(),
            };
            return refuse(words(stored), words(wanted));
        }
        if let Some(index) = &options.index {
            let stored = self.options();
            if index.kind() != stored.kind() {
                return refuse(format!("index {}", stored.kind()), format!("index {}", index.kind()));
            }
            if let Some((option, stored, wanted)) = index.conflict(&stored) {
                return refuse(format!("{option}={stored}"), format!("{option}={wanted}"));
            }
        }
        match options.blob_threshold {
            Some(wanted) if wanted != self.blob_threshold => {
                refuse(format!("a blob threshold of {} bytes", self.blob_threshold), format!("one of {wanted}"))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn check_merge(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        check_key(key)?;
        if operand.len() > MAX_OPERAND {
            return Err(Error::invalid(format!("an operand may have at most {MAX_OPERAND} bytes")));
        }
        self.check_alive()?;
        self.operator()?.validate(operand)
    }

    /// Refuses ranges of keys where the index does not keep keys in their order.
    pub(crate) fn check_sorted(&self, range: &KeyRange) -> Result<()> {
        if self.codec == KeyCodec::Plain || *range == KeyRange::all() {
            return Ok(());
        }
        let (name, index) = (&self.name, self.options().kind());
        let detail = format!("keyspace `{name}` has no ranges: its index `{index}` keeps keys in the order of a hash");
        Err(Error::Unsupported { detail })
    }

    /// The half-open form of a range to delete.
    pub(crate) fn check_range(&self, range: impl IntoKeyRange) -> Result<KeyRange> {
        self.check_alive()?;
        let range = range.into_key_range();
        self.check_sorted(&range)?;
        if range.from.len() > MAX_KEY + 1 || range.to.len() > MAX_KEY + 1 {
            return Err(Error::invalid(format!("the bounds of a range must be keys of at most {MAX_KEY} bytes")));
        }
        Ok(range)
    }
}

impl Engine {
    /// Writes a large value and encodes the reference to it.
    pub(crate) fn write_blob(&self, value: &[u8]) -> Result<(BlobRef, Vec<u8>)> {
        // Before the gate: a forked child and an operator must not wait for it.
        self.check_writable()?;
        let _gate = self.gate.read();
        self.check_writable()?;
        self.keep_back()?;
        self.check_space(value.len() as u64)?;
        let write = || self.core.data.write_blob(value);
        let written = match write() {
            Err(Error::DiskFull { .. }) => {
                // What the log has made ahead is space, too; or another writer has just had it removed.
                self.log.as_ref().map(Log::discard_preallocated);
                write()
            }
            written => written,
        };
        let blob = written.inspect_err(|e| {
            if matches!(e, Error::Io { .. }) {
                self.poison(e);
            }
        })?;
        self.figures.blob_bytes.fetch_add(blob.extent().bytes(), Relaxed);
        let mut encoded = Vec::with_capacity(16);
        blob.encode(&mut encoded);
        Ok((blob, encoded))
    }

    /// Gives large values back whose commit was refused before it was logged. After a failure that poisoned the store
    /// they stay: the record that names them may be in the log.
    pub(crate) fn give_back_blobs(&self, blobs: &[BlobRef]) {
        if self.poison.get().is_none() && !self.access.is_inherited() {
            blobs.iter().for_each(|blob| self.core.data.discard(blob.extent()));
        }
    }
}

/// # Writes
///
/// Each is atomic and blind: it reads nothing, and so never returns the old value. The plain form has the durability of the
/// store ([`StoreBuilder::durability`](crate::StoreBuilder::durability)), the `_with` form one of its own. To write several keys all or none, use
/// a [`Batch`](crate::Batch).
impl Keyspace {
    fn one(&self, kind: Kind, key: &[u8], value: &[u8], bytes: u64, durability: Durability) -> Result<()> {
        let frees = matches!(kind, Kind::Delete | Kind::RangeDelete);
        let ops = PayloadOps::One(OneOp { keyspace: &self.state, kind, key, value });
        let keyspaces = std::slice::from_ref(&self.state);
        self.engine.commit(Payload { ops, bytes, frees, keyspaces }, durability).map(|_| ())
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key or value out of bounds, or a value that the keyspace's merge operator refuses
    /// ([`MergeOperator::validate_value`](crate::MergeOperator::validate_value)); [`Error::DiskFull`], [`Error::Poisoned`];
    /// [`Error::Indeterminate`] if its record, or one that was under way before it, could not be written.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.engine.config.durability)
    }

    /// Sets the value of a key, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`Error::Indeterminate`] if the sync failed, too.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.state.check_put(key, value)?;
        self.state.check_value(value)?;
        let bytes = (key.len() + value.len()) as u64;
        if value.len() <= self.state.blob_threshold {
            return self.one(Kind::Put, key, value, bytes, durability);
        }
        let (blob, encoded) = self.engine.write_blob(value)?;
        let result = self.one(Kind::BlobPut, key, &encoded, bytes, durability);
        if result.is_err() {
            self.engine.give_back_blobs(&[blob]);
        }
        result
    }

    /// Removes a key, whether or not it has a value.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.engine.config.durability)
    }

    /// Removes a key, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let key = key.as_ref();
        check_key(key)?;
        self.state.check_alive()?;
        self.one(Kind::Delete, key, &[], key.len() as u64, durability)
    }

    /// Folds an operand into the value of a key with the keyspace's operator.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`Error::Unsupported`] without an operator, [`Error::InvalidArgument`] for an operand that the
    /// operator refuses, [`Error::OperatorMissing`] if it is not registered.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, self.engine.config.durability)
    }

    /// Folds an operand into the value of a key, with a durability of its own.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// let path = dir.path().join("s");
    /// use pandodb::{AddU64, Durability, KeyspaceOptions, Store};
    /// let store = Store::open(&path)?;
    /// let paid = store.keyspace_with("paid", KeyspaceOptions::new().merge(AddU64))?;
    /// paid.merge_with("invoice 17", 250u64.to_le_bytes(), Durability::Synced)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::merge`]; [`Error::Indeterminate`] if the sync failed, too.
    pub fn merge_with(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.state.check_merge(key, operand)?;
        let bytes = (key.len() + operand.len()) as u64;
        self.one(Kind::Merge, key, operand, bytes, durability)
    }

    /// Removes every key of a range. One message, however many keys there are. The range may be empty or inverted: then
    /// nothing is removed.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// ks.put("2024-01", "a")?;
    /// ks.put("2025-01", "b")?;
    /// ks.delete_range(.."2025")?;
    /// assert!(ks.get("2024-01")?.is_none() && ks.get("2025-01")?.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete_range(&self, range: impl IntoKeyRange) -> Result<()> {
        self.delete_range_with(range, self.engine.config.durability)
    }

    /// Removes every key of a range, with a durability of its own.
    ///
    /// # Errors
    /// As [`Keyspace::put_with`].
    pub fn delete_range_with(&self, range: impl IntoKeyRange, durability: Durability) -> Result<()> {
        let range = self.state.check_range(range)?;
        if range.is_empty() {
            return self.engine.check_writable().map(|_| ());
        }
        let bytes = (range.from.len() + range.to.len()) as u64;
        self.one(Kind::RangeDelete, &range.from, &range.to, bytes, durability)
    }
}

/// # Single keys
///
/// A read sees every write that was acknowledged before it began. To read several keys as of one moment, use
/// [`Keyspace::multi_get`], a [`Snapshot`] or an iterator.
impl Keyspace {
    /// The newest value of a key. About one read of a 4 KiB block if the key is cold.
    ///
    /// # Errors
    /// [`Error::Corruption`] if a block on the way is damaged; other keys stay readable.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.engine, &self.state, key.as_ref(), ReadPoint::Newest)
    }

    /// The newest values of many keys, as of one moment, with their reads in flight together.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        read::multi_get(&self.engine, &self.state, keys, ReadPoint::Newest)
    }

    /// Whether a key has a value. Does not read a large value's bytes.
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.engine, &self.state, key.as_ref(), ReadPoint::Newest)
    }

    /// The smallest key that has a value, with its value. Costs what the first item of [`Keyspace::iter`] costs; that
    /// includes a step over each deleted key before it that no compaction has removed yet. A queue that takes its head again
    /// and again is better served by a cursor of its own ([recipe]).
    ///
    /// [recipe]: https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md#a-queue
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// assert!(ks.first_key_value()?.is_none());
    /// ks.put("a", "1")?;
    /// ks.put("b", "2")?;
    /// assert_eq!(ks.first_key_value()?.unwrap().0, "a");
    /// assert_eq!(ks.last_key_value()?.unwrap().1, "2");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next().transpose()
    }

    /// The largest key that has a value, with its value. Costs what the last item of [`Keyspace::iter`] costs: see
    /// [`Keyspace::first_key_value`].
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next_back().transpose()
    }
}

/// # Ranges
///
/// An iterator sees the keyspace as of its creation for its whole life; [`Range`] says what it holds and costs.
impl Keyspace {
    /// The keys of a range with their values, from both ends.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// for key in ["a", "b", "c"] {
    ///     ks.put(key, "x")?;
    /// }
    /// let mut keys = Vec::new();
    /// for entry in ks.range("a".."c").rev() {
    ///     let (key, _value) = entry?;
    ///     keys.push(key);
    /// }
    /// assert_eq!(keys, ["b", "a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range(&self, range: impl IntoKeyRange) -> Range {
        Range::new(self, range.into_key_range(), None)
    }

    /// The keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self, KeyRange::prefix(prefix.as_ref()), None)
    }

    /// All keys with their values, from both ends. `keyspace.iter().keys()` gives the keys alone.
    pub fn iter(&self) -> Range {
        Range::new(self, KeyRange::all(), None)
    }

    /// The keyspace as it was at a snapshot.
    pub fn at(&self, snapshot: &Snapshot) -> KeyspaceAt {
        KeyspaceAt { keyspace: self.clone(), snapshot: snapshot.clone() }
    }
}

/// # About the keyspace
impl Keyspace {
    /// The name.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The identity; never reused within a store.
    pub fn id(&self) -> u32 {
        self.state.id.0
    }

    /// The name of the merge operator, if the keyspace was created with one.
    pub fn operator(&self) -> Option<&str> {
        self.state.operator_name.as_ref().map(|(name, _)| name.as_str())
    }

    /// About how many keys there are. Counts messages in runs and memtables: overwritten keys count until they are
    /// compacted. No I/O, and no wait for background work; the first call after the index has changed counts its runs, the others do not. 0 in
    /// a forked child.
    pub fn approximate_len(&self) -> u64 {
        if self.engine.access.is_inherited() {
            return 0;
        }
        let containers = self.state.containers.load();
        let (entries, tombstones) = self.state.index.entries();
        let sealed: usize = containers.sealed.iter().map(|batch| batch.memtable.len()).sum();
        entries.saturating_sub(2 * tombstones) + (containers.active.len() + sealed) as u64
    }

    /// About what a range holds in the index (what is still in memtables is not counted).
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn estimate(&self, range: impl IntoKeyRange) -> Result<Estimate> {
        let access = &self.engine.access;
        access.check()?;
        let range = range.into_key_range();
        self.state.check_sorted(&range)?;
        access.confirm(self.state.index.estimate(&range))
    }

    /// Brings everything in a range into its final place: one run a leaf, no tombstones, nothing superseded that no
    /// snapshot needs. Waits until it is done.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Corruption`], [`Error::Poisoned`].
    pub fn compact(&self, range: impl IntoKeyRange) -> Result<()> {
        let range = range.into_key_range();
        self.state.check_sorted(&range)?;
        self.engine.compact(&self.state, &range)
    }
}
