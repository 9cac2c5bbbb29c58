//! [`Transaction`] and [`Untracked`]: the handles of a transaction.

use std::sync::Arc;

use super::inner::{Inner, ReadAsOf, Savepoint, Tracking, bounds};
use super::options::TransactionOptions;
use crate::base::{IntoKeyRange, KeyRange, Result};
use crate::store::keyspace::Keyspace;
use crate::store::queues::QueueNumber;
use crate::store::range::Range;
use crate::store::shared::Shared;
use crate::store::validation::ReadSet;
use crate::store::value::Value;
#[cfg(doc)]
use crate::{Batch, Error, Isolation, Store};

/// A transaction: reads and writes that take effect together, as if no other write happened in between. It is made by
/// [`Store::begin`], or by [`Store::transact`], which also repeats it after a conflict.
///
/// A transaction reads the store as of its beginning, together with its own writes. In [`Store::transact`], it reads
/// the store as of its first read, unless its isolation is [`Isolation::Snapshot`]. Other callers see none of its
/// writes before [`Transaction::commit`], and then all of them. Dropping the transaction discards its writes.
///
/// No key is ever locked. Instead, a commit checks whether another commit has changed what the transaction has read,
/// and fails with [`Error::Conflict`] if so. What counts as read:
///
/// * a key that was looked up, also if it had no value, unless the own writes alone determine its value;
/// * the part of a range that an iterator has passed, with the gaps between its keys, so a new key in the range is a
///   change, too. As long as the iterator exists, the whole range counts.
///
/// The commit of a transaction without writes never conflicts. While it is open, a transaction keeps on the disk the
/// versions that it sees, like a [`Snapshot`](crate::Snapshot). Several threads may use a transaction at the same time.
///
/// # Cost
/// A read costs what it costs at a snapshot. A commit compares what was read with short descriptions of the commits
/// since the read point. Only if these leave a doubt, it searches again, and only where newer messages can be: usually
/// in the active memtable, and never in runs that are older than the transaction.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let store = pandodb::Store::open(dir.path().join("s"))?;
/// let accounts = store.keyspace("accounts")?;
/// accounts.put("ann", "10")?;
/// let tx = store.begin(Default::default())?;
/// assert_eq!(tx.get(&accounts, "ann")?.unwrap(), "10");
/// tx.put(&accounts, "ann", "9")?;
/// assert_eq!(tx.get(&accounts, "ann")?.unwrap(), "9");
/// accounts.put("ann", "20")?; // a write outside of the transaction
/// assert!(matches!(tx.commit(), Err(pandodb::Error::Conflict { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Transaction {
    inner: Arc<Inner>,
}

impl Transaction {
    /// Begins a transaction of a thread that has the turn in the queues `turns`.
    pub(crate) fn begin(
        engine: &Arc<Shared>,
        options: TransactionOptions,
        as_of: ReadAsOf,
        turns: Vec<QueueNumber>,
    ) -> Result<Transaction> {
        Ok(Transaction { inner: Arc::new(Inner::begin(engine, options, as_of, turns)?) })
    }

    /// Commits the transaction: applies all its writes, or none.
    ///
    /// # Errors
    /// [`Error::Conflict`] if another commit has changed what this transaction depends on; nothing was written then.
    /// [`Error::NoKeyspace`] if a keyspace that was read or written was dropped. The errors of [`Batch::commit`]; after
    /// [`Error::Indeterminate`] the writes may survive, so do not run the transaction again without reading first.
    pub fn commit(self) -> Result<()> {
        self.inner.commit().map(|_| ())
    }

    /// Like [`Transaction::commit`], but returns the seqno of the last write; `None` if there is none. The seqnos of
    /// the other writes directly precede it. This function is for test harnesses.
    ///
    /// # Errors
    /// The errors of [`Transaction::commit`].
    #[doc(hidden)]
    pub fn commit_numbered(self) -> Result<Option<u64>> {
        self.inner.commit()
    }

    /// Discards the writes of the transaction, as dropping it does.
    pub fn rollback(self) {}

    /// The seqno of the last write that the transaction sees, apart from its own; `None` if it has not read yet. This
    /// function is for test harnesses.
    #[doc(hidden)]
    pub fn read_point(&self) -> Option<u64> {
        self.inner.snapshot().map(|snapshot| snapshot.seqno())
    }
}

/// # Reads
impl Transaction {
    /// Returns the value of a key: the one that this transaction has written last, or the one at its read point.
    ///
    /// # Errors
    /// The errors of [`Keyspace::get`]; [`Error::TransactionTooLarge`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.inner.get(keyspace, key.as_ref(), Tracking::ByIsolation)
    }

    /// Returns the value of a key, like [`Transaction::get`]. If another commit has changed the key, the commit of this
    /// transaction fails, whatever the isolation is, and also if it has written the key before the read. This holds
    /// only for transactions that write something. No lock is taken.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn get_for_update(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.inner.get(keyspace, key.as_ref(), Tracking::Always)
    }

    /// Returns the values of several keys. The reads of all keys are in flight together, unless the transaction has
    /// written to the keyspace.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.inner.multi_get(keyspace, keys, Tracking::ByIsolation)
    }

    /// Returns whether a key has a value. Does not read the bytes of a large value.
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.inner.contains(keyspace, key.as_ref(), Tracking::ByIsolation)
    }

    /// Returns the smallest key that has a value, with its value.
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn first_key_value(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.iter(keyspace)?.next().transpose()
    }

    /// Returns the largest key that has a value, with its value.
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn last_key_value(&self, keyspace: &Keyspace) -> Result<Option<(Value, Value)>> {
        self.iter(keyspace)?.next_back().transpose()
    }

    /// Iterates over the keys of a range with their values, from both ends. The iterator sees what this transaction has
    /// written before the call.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the keyspace belongs to another store; [`Error::Closed`];
    /// [`Error::TransactionTooLarge`]. Other errors are items of the iterator.
    pub fn range(&self, keyspace: &Keyspace, range: impl IntoKeyRange) -> Result<Range> {
        self.inner.range(keyspace, range.into_key_range(), Tracking::ByIsolation)
    }

    /// Iterates over the keys that start with `prefix`, like [`Transaction::range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range(keyspace, KeyRange::prefix(prefix.as_ref()))
    }

    /// Iterates over all keys, like [`Transaction::range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn iter(&self, keyspace: &Keyspace) -> Result<Range> {
        self.range(keyspace, ..)
    }

    /// Makes a range count as read, whatever the isolation is, without reading it: if another commit has changed any
    /// key of the range, the commit of this transaction fails, provided that it writes something.
    ///
    /// # Errors
    /// The errors of [`Transaction::range`]; [`Error::Unsupported`] if the index does not keep its keys in order.
    pub fn track(&self, keyspace: &Keyspace, range: impl IntoKeyRange) -> Result<()> {
        self.inner.track(keyspace, range.into_key_range())
    }

    /// Returns a handle whose reads the commit does not check. They see the same values. A program uses it for reads on
    /// which its writes do not depend, for example a statistic, so that they cause no conflicts.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let store = pandodb::Store::open(dir.path().join("s"))?;
    /// # let ks = store.keyspace("k")?;
    /// let tx = store.begin(Default::default())?;
    /// let about = tx.untracked().iter(&ks)?.count();
    /// tx.put(&ks, "count", about.to_string())?;
    /// ks.put("another", "key")?;
    /// tx.commit()?; // no conflict
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn untracked(&self) -> Untracked {
        Untracked { inner: self.inner.clone() }
    }
}

/// # Writes
impl Transaction {
    /// Sets the value of a key. A large value is written to disk during this call, and freed if the transaction does
    /// not commit.
    ///
    /// # Errors
    /// The errors of [`Keyspace::put`]; [`Error::TransactionTooLarge`].
    pub fn put(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        let (key, value) = (key.as_ref(), value.as_ref());
        let bytes = if keyspace.state.writes_at_once(value.len()) { 0 } else { value.len() };
        let copy = ReadSet::bytes_of_key(key.len());
        self.inner.write(keyspace, key.len() + bytes, copy, |writes| writes.put(keyspace, key, value))
    }

    /// Removes a key.
    ///
    /// # Errors
    /// The errors of [`Keyspace::delete`]; [`Error::TransactionTooLarge`].
    pub fn delete(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<()> {
        let key = key.as_ref();
        self.inner.write(keyspace, key.len(), ReadSet::bytes_of_key(key.len()), |writes| writes.delete(keyspace, key))
    }

    /// Adds an operand to a key. This reads nothing, so transactions that merge into the same key do not conflict.
    ///
    /// # Errors
    /// The errors of [`Keyspace::merge`]; [`Error::TransactionTooLarge`].
    pub fn merge(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) -> Result<()> {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        let copy = ReadSet::bytes_of_key(key.len());
        self.inner.write(keyspace, key.len() + operand.len(), copy, |writes| writes.merge(keyspace, key, operand))
    }

    /// Removes every key of a range.
    ///
    /// # Errors
    /// The errors of [`Keyspace::delete_range`]; [`Error::TransactionTooLarge`].
    pub fn delete_range(&self, keyspace: &Keyspace, range: impl IntoKeyRange) -> Result<()> {
        let range = range.into_key_range();
        let bytes = range.from.len() + range.to.len();
        self.inner.write(keyspace, bytes, ReadSet::bytes_of_range(bytes), |writes| {
            writes.delete_range(keyspace, bounds(&range))
        })
    }

    /// Marks the present state of the writes, so that [`Transaction::rollback_to`] can return to it. Savepoints may be
    /// nested.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let store = pandodb::Store::open(dir.path().join("s"))?;
    /// # let ks = store.keyspace("k")?;
    /// let tx = store.begin(Default::default())?;
    /// tx.put(&ks, "a", "1")?;
    /// let savepoint = tx.savepoint()?;
    /// tx.put(&ks, "b", "2")?;
    /// tx.rollback_to(savepoint)?;
    /// tx.commit()?;
    /// assert!(ks.contains("a")? && !ks.contains("b")?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the transaction has ended; [`Error::TransactionTooLarge`].
    pub fn savepoint(&self) -> Result<Savepoint> {
        self.inner.savepoint()
    }

    /// Discards all writes since a savepoint. Reads since then are still validated, because the program may have used
    /// their values. The savepoint remains valid, and later savepoints are released. The next read may copy all
    /// remaining writes of the transaction, so a large transaction with many rollbacks is slow.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] if the savepoint was released, or belongs to another transaction.
    pub fn rollback_to(&self, savepoint: Savepoint) -> Result<()> {
        self.inner.rollback_to(savepoint)
    }

    /// Forgets a savepoint and all later ones, and keeps the writes.
    ///
    /// # Errors
    /// The errors of [`Transaction::rollback_to`].
    pub fn release(&self, savepoint: Savepoint) -> Result<()> {
        self.inner.release(savepoint)
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.inner.engine.access.is_inherited() {
            // In a forked child, a thread that exists only in the parent may hold the locks forever.
            std::mem::forget(self.inner.clone());
        } else {
            self.inner.rollback();
        }
    }
}

impl std::fmt::Debug for Transaction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (snapshot, options) = (self.inner.snapshot_if_idle(), self.inner.options);
        f.debug_struct("Transaction").field("snapshot", &snapshot).field("options", &options).finish()
    }
}

/// Reads of a transaction that its commit does not check. It is made by [`Transaction::untracked`]. After the end of
/// the transaction every call fails.
#[derive(Clone)]
pub struct Untracked {
    inner: Arc<Inner>,
}

impl Untracked {
    /// Returns the value of a key, like [`Transaction::get`].
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn get(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<Option<Value>> {
        self.inner.get(keyspace, key.as_ref(), Tracking::Never)
    }

    /// Returns the values of several keys, like [`Transaction::multi_get`].
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn multi_get<K: AsRef<[u8]>>(&self, keyspace: &Keyspace, keys: &[K]) -> Result<Vec<Option<Value>>> {
        self.inner.multi_get(keyspace, keys, Tracking::Never)
    }

    /// Returns whether a key has a value, like [`Transaction::contains`].
    ///
    /// # Errors
    /// The errors of [`Transaction::get`].
    pub fn contains(&self, keyspace: &Keyspace, key: impl AsRef<[u8]>) -> Result<bool> {
        self.inner.contains(keyspace, key.as_ref(), Tracking::Never)
    }

    /// Iterates over the keys of a range, like [`Transaction::range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn range(&self, keyspace: &Keyspace, range: impl IntoKeyRange) -> Result<Range> {
        self.inner.range(keyspace, range.into_key_range(), Tracking::Never)
    }

    /// Iterates over the keys that start with `prefix`, like [`Transaction::range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn prefix(&self, keyspace: &Keyspace, prefix: impl AsRef<[u8]>) -> Result<Range> {
        self.range(keyspace, KeyRange::prefix(prefix.as_ref()))
    }

    /// Iterates over all keys, like [`Transaction::range`].
    ///
    /// # Errors
    /// The errors of [`Transaction::range`].
    pub fn iter(&self, keyspace: &Keyspace) -> Result<Range> {
        self.range(keyspace, ..)
    }
}

impl std::fmt::Debug for Untracked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Untracked").field("snapshot", &self.inner.snapshot_if_idle()).finish()
    }
}
