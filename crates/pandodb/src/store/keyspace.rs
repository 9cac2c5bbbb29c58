//! A keyspace: its state, and the handle through which it is written and read.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::commit::{OneOp, Payload, PayloadOps};
use super::engine::{Engine, Shared};
use super::options::Durability;
use super::read::{self, ReadPoint};
use super::scan::Range;
use super::snapshot::Snapshot;
use super::value::Value;
use super::watermark::Lone;
use crate::base::sync::{ArcSwap, AtomicBool, AtomicU64, Ordering::Relaxed};
use crate::base::{BlobRef, Error, KeyRange, KeyspaceId, Kind, MAX_KEY, MAX_OPERAND, MAX_VALUE, Result, Seqno};
use crate::index::{Estimate, Index, SealedBatch};
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
    pub index: Arc<dyn Index>,
    pub containers: ArcSwap<Containers>,
    /// What the active memtable adds to the bytes of all of them; changed by whoever adds to it.
    pub charged: Lone<AtomicU64>,
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
/// Cheap to clone, usable from any thread. A write never reads, so it never returns the old value.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use pandodb::{AddI64, KeyspaceOptions, Store};
/// let store = Store::open(dir.path().join("demo.pando"))?;
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

    pub(crate) fn check_merge(&self, key: &[u8], operand: &[u8]) -> Result<()> {
        check_key(key)?;
        if operand.len() > MAX_OPERAND {
            return Err(Error::invalid(format!("an operand may have at most {MAX_OPERAND} bytes")));
        }
        self.check_alive()?;
        self.operator()?.validate(operand)
    }

    /// The half-open form of a range to delete.
    pub(crate) fn check_range<K: AsRef<[u8]>>(&self, range: &impl RangeBounds<K>) -> Result<KeyRange> {
        self.check_alive()?;
        let range = KeyRange::from_bounds(range);
        if range.from.len() > MAX_KEY + 1 || range.to.len() > MAX_KEY + 1 {
            return Err(Error::invalid(format!("the bounds of a range must be keys of at most {MAX_KEY} bytes")));
        }
        Ok(range)
    }
}

impl Engine {
    /// Writes a large value and encodes the reference to it.
    pub(crate) fn write_blob(&self, value: &[u8]) -> Result<(BlobRef, Vec<u8>)> {
        let _gate = self.gate.read();
        self.check_writable()?;
        self.keep_back()?;
        let write = || self.core.data.write_blob(value);
        let written = match write() {
            Err(Error::DiskFull { .. }) => {
                // What the log has made ahead is space, too; or another writer has just had it removed.
                self.log.as_ref().map(Log::give_up_prepared);
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
        if self.poison.get().is_none() {
            blobs.iter().for_each(|blob| self.core.data.give_back(blob.extent()));
        }
    }
}

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

    fn one(&self, kind: Kind, key: &[u8], value: &[u8], bytes: u64, durability: Durability) -> Result<()> {
        let frees = matches!(kind, Kind::Delete | Kind::RangeDelete);
        let ops = PayloadOps::One(OneOp { keyspace: &self.state, kind, key, value });
        let keyspaces = std::slice::from_ref(&self.state);
        self.engine.commit(Payload { ops, bytes, frees, keyspaces }, durability).map(|_| ())
    }

    /// Sets the value of a key, with the store's durability.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key or value out of bounds, [`Error::DiskFull`], [`Error::Poisoned`];
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

    /// Removes a key, whether or not it has a value. One message; reads nothing.
    ///
    /// # Errors
    /// As [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        check_key(key)?;
        self.state.check_alive()?;
        self.one(Kind::Delete, key, &[], key.len() as u64, self.engine.config.durability)
    }

    /// Folds an operand into the value of a key with the keyspace's operator. Blind: reads nothing.
    ///
    /// # Errors
    /// As [`Keyspace::put`]; [`Error::Unsupported`] without an operator, [`Error::InvalidArgument`] for an operand that the
    /// operator refuses, [`Error::OperatorMissing`] if it is not registered.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.state.check_merge(key, operand)?;
        let bytes = (key.len() + operand.len()) as u64;
        self.one(Kind::Merge, key, operand, bytes, self.engine.config.durability)
    }

    /// Removes every key of a range. One message, however many keys there are.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
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
    pub fn delete_range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        let range = self.state.check_range(&range)?;
        if range.is_empty() {
            return self.engine.check_writable().map(|_| ());
        }
        let bytes = (range.from.len() + range.to.len()) as u64;
        self.one(Kind::RangeDelete, &range.from, &range.to, bytes, self.engine.config.durability)
    }

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

    /// The keys of a range with their values, from both ends, as of now.
    ///
    /// ```
    /// # let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// for key in ["a", "b", "c"] {
    ///     ks.put(key, "x")?;
    /// }
    /// let mut keys = Vec::new();
    /// for entry in ks.range("a".."c").rev() {
    ///     let (key, _value) = entry?;
    ///     keys.push(key.to_vec());
    /// }
    /// assert_eq!(keys, [b"b", b"a"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(self, KeyRange::from_bounds(&range), None)
    }

    /// The keys that start with `prefix`, with their values, from both ends, as of now.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(self, KeyRange::prefix(prefix.as_ref()), None)
    }

    /// All keys with their values, from both ends, as of now.
    pub fn iter(&self) -> Range {
        Range::new(self, KeyRange::all(), None)
    }

    /// The keyspace as it was at a snapshot.
    pub fn at(&self, snapshot: &Snapshot) -> KeyspaceAt {
        KeyspaceAt { keyspace: self.clone(), snapshot: snapshot.clone() }
    }

    /// About how many keys there are. Counts messages in runs and memtables: overwritten keys count until they are
    /// compacted. Cheap.
    pub fn approximate_len(&self) -> u64 {
        let containers = self.state.containers.load();
        let stats = self.state.index.stats();
        let sealed: usize = containers.sealed.iter().map(|batch| batch.memtable.len()).sum();
        stats.entries.saturating_sub(2 * stats.tombstones) + (containers.active.len() + sealed) as u64
    }

    /// About what a range holds in the index (what is still in memtables is not counted).
    ///
    /// # Errors
    /// As [`Keyspace::get`].
    pub fn estimate<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<Estimate> {
        self.state.index.estimate(&KeyRange::from_bounds(&range))
    }

    /// Brings everything in a range into its final place: one run a leaf, no tombstones, nothing superseded that no
    /// snapshot needs. Waits until it is done.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Corruption`], [`Error::Poisoned`].
    pub fn compact<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Result<()> {
        self.engine.compact(&self.state, &KeyRange::from_bounds(&range))
    }
}

/// A keyspace as it was at a snapshot: the same reads, no writes. Made by [`Keyspace::at`].
#[derive(Clone, Debug)]
pub struct KeyspaceAt {
    keyspace: Keyspace,
    snapshot: Snapshot,
}

impl KeyspaceAt {
    fn point(&self) -> ReadPoint<'_> {
        ReadPoint::At(&self.snapshot)
    }

    /// The value of a key at the snapshot.
    ///
    /// # Errors
    /// As [`Keyspace::get`]; [`Error::InvalidArgument`] if the snapshot is another store's.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.keyspace.engine, &self.keyspace.state, key.as_ref(), self.point())
    }

    /// The values of many keys at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        read::multi_get(&self.keyspace.engine, &self.keyspace.state, keys, self.point())
    }

    /// Whether a key had a value at the snapshot.
    ///
    /// # Errors
    /// As [`KeyspaceAt::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.keyspace.engine, &self.keyspace.state, key.as_ref(), self.point())
    }

    /// The keys of a range with their values, from both ends.
    pub fn range<K: AsRef<[u8]>>(&self, range: impl RangeBounds<K>) -> Range {
        Range::new(&self.keyspace, KeyRange::from_bounds(&range), Some(&self.snapshot))
    }

    /// The keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(&self.keyspace, KeyRange::prefix(prefix.as_ref()), Some(&self.snapshot))
    }

    /// All keys with their values, from both ends.
    pub fn iter(&self) -> Range {
        Range::new(&self.keyspace, KeyRange::all(), Some(&self.snapshot))
    }
}
