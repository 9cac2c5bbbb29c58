//! [`Keyspace`] is the handle for reading and writing a keyspace.

use std::sync::Arc;

use super::at::KeyspaceAt;
use super::commit::{OneOp, Payload, PayloadOps};
use super::options::Durability;
use super::pops;
use super::range::Range;
use super::read::{self, ReadPoint};
use super::shared::Shared;
use super::snapshot::Snapshot;
use super::state::{KeyspaceState, check_key};
use super::validation::Validation;
use super::value::Value;
#[cfg(doc)]
use crate::base::Error;
use crate::base::{IntoKeyRange, KeyRange, Kind, Result};
use crate::index::Estimate;

/// A handle to a keyspace: an ordered map from keys of 1 to 65,535 bytes to values of up to 64 MiB. Keys are ordered
/// bytewise. Cloning a handle is cheap, and any thread may use it.
///
/// Another thread may write between a [`Keyspace::get`] and a [`Keyspace::put`]. To compute a value from the previous
/// one, use [`Keyspace::merge`] or [`Keyspace::fetch_update`]; to read and write several keys together, use
/// [`Store::transact`](crate::Store::transact).
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

/// # Writes
///
/// Each write is atomic. It reads nothing, and therefore does not return the old value. The plain form has the default
/// durability of the store ([`StoreBuilder::durability`](crate::StoreBuilder::durability)). The `_with` form takes the
/// durability as an argument. To write several keys atomically, use a [`Batch`](crate::Batch).
impl Keyspace {
    /// Commits one operation. REQUIRES: the arguments were checked, and a value that must be written at once is already
    /// on disk.
    fn one(
        &self,
        kind: Kind,
        key: &[u8],
        value: &[u8],
        bytes: u64,
        durability: Durability,
        validation: Option<&Validation<'_>>,
    ) -> Result<()> {
        debug_assert!(kind == Kind::RangeDelete || check_key(key).is_ok(), "a key of {} bytes", key.len());
        debug_assert!(kind != Kind::Put || !self.state.writes_at_once(value.len()), "a large value is a reference");
        debug_assert!(bytes >= key.len() as u64, "the bytes of an operation include its key");
        let frees = matches!(kind, Kind::Delete | Kind::RangeDelete);
        let ops = PayloadOps::One(OneOp { keyspace: &self.state, kind, key, value });
        let keyspaces = std::slice::from_ref(&self.state);
        self.engine.commit(Payload { ops, bytes, frees, keyspaces, validation }, durability).map(|_| ())
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a key or value out of bounds, or a value that the keyspace's merge operator
    /// rejects ([`MergeOperator::validate_value`](crate::MergeOperator::validate_value)); [`Error::DiskFull`],
    /// [`Error::Poisoned`]; [`Error::Indeterminate`] if the log record of this write, or of an earlier write in
    /// progress, could not be written.
    pub fn put(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.put_with(key, value, self.engine.config.durability)
    }

    /// Sets the value of a key, with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]; also [`Error::Indeterminate`] if the sync failed.
    pub fn put_with(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.put_validated(key.as_ref(), value.as_ref(), durability, None)
    }

    /// Sets the value of a key, if the validation allows it.
    #[inline]
    pub(super) fn put_validated(
        &self,
        key: &[u8],
        value: &[u8],
        durability: Durability,
        validation: Option<&Validation<'_>>,
    ) -> Result<()> {
        self.state.check_put(key, value)?;
        self.state.check_value(value)?;
        let bytes = (key.len() + value.len()) as u64;
        if !self.state.writes_at_once(value.len()) {
            return self.one(Kind::Put, key, value, bytes, durability, validation);
        }
        let (blob, encoded) = self.engine.write_blob(value)?;
        assert_eq!(blob.len, value.len() as u64, "a reference has the length of its value");
        let result = self.one(Kind::BlobPut, key, &encoded, bytes, durability, validation);
        if result.is_err() {
            self.engine.give_back_blobs(&[blob]);
        }
        result
    }

    /// Removes a key. It is not an error if the key has no value.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`].
    pub fn delete(&self, key: impl AsRef<[u8]>) -> Result<()> {
        self.delete_with(key, self.engine.config.durability)
    }

    /// Removes a key, with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with`].
    pub fn delete_with(&self, key: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        self.delete_validated(key.as_ref(), durability, None)
    }

    /// Removes a key, if the validation allows it.
    pub(super) fn delete_validated(
        &self,
        key: &[u8],
        durability: Durability,
        validation: Option<&Validation<'_>>,
    ) -> Result<()> {
        check_key(key)?;
        self.state.check_alive()?;
        self.one(Kind::Delete, key, &[], key.len() as u64, durability, validation)
    }

    /// Adds an operand to a key. Reads and compactions fold the operand into the value with the keyspace's merge
    /// operator.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]; [`Error::Unsupported`] if the keyspace has no merge operator,
    /// [`Error::InvalidArgument`] if the operator rejects the operand, [`Error::OperatorMissing`] if the operator is
    /// not registered.
    pub fn merge(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        self.merge_with(key, operand, self.engine.config.durability)
    }

    /// Adds an operand to a key, with the given durability.
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
    /// The errors of [`Keyspace::merge`]; also [`Error::Indeterminate`] if the sync failed.
    pub fn merge_with(&self, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>, durability: Durability) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.state.check_merge(key, operand)?;
        let bytes = (key.len() + operand.len()) as u64;
        self.one(Kind::Merge, key, operand, bytes, durability, None)
    }

    /// Removes every key of a range. The cost of the write does not depend on the number of keys, because the write is
    /// a single message. An empty or inverted range removes nothing.
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
    /// The errors of [`Keyspace::put`].
    pub fn delete_range(&self, range: impl IntoKeyRange) -> Result<()> {
        self.delete_range_with(range, self.engine.config.durability)
    }

    /// Removes every key of a range, with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put_with`].
    pub fn delete_range_with(&self, range: impl IntoKeyRange, durability: Durability) -> Result<()> {
        let range = self.state.check_range(range)?;
        if range.is_empty() {
            return self.engine.check_writable().map(|_| ());
        }
        debug_assert!(range.to.is_empty() || range.from < range.to, "an inverted range deletes nothing");
        let bytes = (range.from.len() + range.to.len()) as u64;
        self.one(Kind::RangeDelete, &range.from, &range.to, bytes, durability, None)
    }
}

/// # Single keys
///
/// A read sees every write that was acknowledged before the read began. To read several keys as of the same moment, use
/// [`Keyspace::multi_get`], a [`Snapshot`] or an iterator.
impl Keyspace {
    /// Returns the newest value of a key. Costs about one read of a 4 KiB block if the key is not cached.
    ///
    /// # Errors
    /// [`Error::Corruption`] if a block on the path to the key is damaged. Other keys stay readable.
    pub fn get(&self, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        read::get(&self.engine, &self.state, key.as_ref(), ReadPoint::Newest)
    }

    /// Returns the newest values of several keys, all as of the same moment. The reads of all keys are in flight
    /// together.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keys: &[K]) -> Result<Vec<Option<Value>>> {
        let values = read::multi_get(&self.engine, &self.state, keys, ReadPoint::Newest)?;
        assert_eq!(values.len(), keys.len(), "each key has an answer");
        Ok(values)
    }

    /// Returns whether a key has a value. Does not read the bytes of a large value.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn contains(&self, key: impl AsRef<[u8]>) -> Result<bool> {
        read::contains(&self.engine, &self.state, key.as_ref(), ReadPoint::Newest)
    }

    /// Returns the smallest key that has a value, with its value. Costs as much as the first item of
    /// [`Keyspace::iter`]. To take the rows one after the other, use [`Keyspace::pop_first`], which costs less.
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
    /// The errors of [`Keyspace::get`].
    pub fn first_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next().transpose()
    }

    /// Returns the largest key that has a value, with its value. Costs as much as the last item of [`Keyspace::iter`];
    /// see also [`Keyspace::first_key_value`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn last_key_value(&self) -> Result<Option<(Value, Value)>> {
        self.iter().next_back().transpose()
    }
}

/// # Queues
impl Keyspace {
    /// Removes the row with the smallest key, and returns it. Returns `None` if the keyspace is empty. The delete has
    /// the default durability of the store.
    ///
    /// Pops are atomic against each other and against other writes: no row is returned twice, and the returned value is the
    /// one that was deleted. At some moment during the call, the returned key was the smallest key of the keyspace.
    ///
    /// A pop costs a delete and a `get`. The keyspace remembers the next keys, so a pop does not pass the rows that were
    /// deleted before. A popped row is lost if its consumer crashes, see the [recipe].
    ///
    /// [recipe]: https://github.com/pandodb/pandodb/blob/main/docs/RECIPES.md#a-queue
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let jobs = pandodb::Store::open(dir.path().join("s"))?.keyspace("jobs")?;
    /// jobs.put("1", "wash")?;
    /// jobs.put("2", "dry")?;
    /// assert_eq!(jobs.pop_first()?.unwrap().1, "wash");
    /// assert_eq!(jobs.pop_first()?.unwrap().1, "dry");
    /// assert!(jobs.pop_first()?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`] and [`Keyspace::delete_with`]; [`Error::Conflict`] if other threads have changed
    /// the row 32 times during the call. After an error the row still exists, unless the
    /// store must be reopened ([`Error::must_reopen`]); then it may exist or not. [`Error::Unsupported`] if the index
    /// does not keep its keys in order.
    pub fn pop_first(&self) -> Result<Option<(Value, Value)>> {
        self.pop_first_with(self.engine.config.durability)
    }

    /// Removes and returns the row with the smallest key, like [`Keyspace::pop_first`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::pop_first`].
    pub fn pop_first_with(&self, durability: Durability) -> Result<Option<(Value, Value)>> {
        pops::pop(&self.engine, &self.state, false, durability)
    }

    /// Removes and returns the row with the largest key; otherwise like [`Keyspace::pop_first`].
    ///
    /// # Errors
    /// The errors of [`Keyspace::pop_first`].
    pub fn pop_last(&self) -> Result<Option<(Value, Value)>> {
        self.pop_last_with(self.engine.config.durability)
    }

    /// Removes and returns the row with the largest key, like [`Keyspace::pop_last`], with the given durability.
    ///
    /// # Errors
    /// The errors of [`Keyspace::pop_first`].
    pub fn pop_last_with(&self, durability: Durability) -> Result<Option<(Value, Value)>> {
        pops::pop(&self.engine, &self.state, true, durability)
    }
}

/// # Ranges
///
/// An iterator sees the keyspace as it was when the iterator was created. See [`Range`] for its cost and the resources
/// that it holds.
impl Keyspace {
    /// Iterates over the keys of a range with their values, from both ends.
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
        Range::new(&self.engine, &self.state, range.into_key_range(), None)
    }

    /// Iterates over the keys that start with `prefix`, with their values, from both ends.
    pub fn prefix(&self, prefix: impl AsRef<[u8]>) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::prefix(prefix.as_ref()), None)
    }

    /// Iterates over all keys with their values, from both ends. `keyspace.iter().keys()` returns only the keys.
    pub fn iter(&self) -> Range {
        Range::new(&self.engine, &self.state, KeyRange::all(), None)
    }

    /// Returns a read-only handle to the keyspace as of a snapshot.
    pub fn at(&self, snapshot: &Snapshot) -> KeyspaceAt {
        KeyspaceAt { engine: self.engine.clone(), state: self.state.clone(), snapshot: snapshot.clone() }
    }
}

/// # Properties and maintenance
impl Keyspace {
    /// The name of the keyspace.
    pub fn name(&self) -> &str {
        &self.state.name
    }

    /// The id of the keyspace, which is never reused within a store.
    pub fn id(&self) -> u32 {
        self.state.id.0
    }

    /// The name of the merge operator, if the keyspace was created with one.
    pub fn operator(&self) -> Option<&str> {
        self.state.operator_name.as_ref().map(|(name, _)| name.as_str())
    }

    /// Returns the approximate number of keys. The count includes every message in runs and memtables, so an
    /// overwritten key counts several times until it is compacted. The call does no I/O and does not wait for
    /// background work. The first call after a change of the index walks its runs; later calls use the stored result.
    /// Returns 0 in a forked child.
    pub fn approximate_len(&self) -> u64 {
        if self.engine.access.is_inherited() {
            return 0;
        }
        let containers = self.state.containers.load();
        debug_assert!(
            containers.sealed.is_sorted_by(|newer, older| newer.through >= older.through),
            "sealed memtables are in order, newest first"
        );
        let (entries, tombstones) = self.state.index.entries();
        let sealed: usize = containers.sealed.iter().map(|batch| batch.memtable.len()).sum();
        entries.saturating_sub(2 * tombstones) + (containers.active.len() + sealed) as u64
    }

    /// Estimates the data that the index holds in a range. Data in memtables does not count.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`].
    pub fn estimate(&self, range: impl IntoKeyRange) -> Result<Estimate> {
        let access = &self.engine.access;
        access.check()?;
        let range = range.into_key_range();
        self.state.check_sorted(&range)?;
        access.confirm(self.state.index.estimate(&range))
    }

    /// Compacts a range completely, and waits until the compaction is done. When the call returns, each leaf of the
    /// tree has one run. The range then has no tombstones and no superseded versions, except those that snapshots need.
    ///
    /// # Errors
    /// [`Error::DiskFull`], [`Error::Corruption`], [`Error::Poisoned`].
    pub fn compact(&self, range: impl IntoKeyRange) -> Result<()> {
        let range = range.into_key_range();
        self.state.check_sorted(&range)?;
        self.engine.compact(&self.state, &range)
    }
}
