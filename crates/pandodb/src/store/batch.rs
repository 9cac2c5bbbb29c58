//! [`Batch`] holds several writes, possibly to several keyspaces, that are applied atomically.
//!
//! ```text
//!   put, merge, delete … ─▶ check ─▶ payload (encoded operations)     commit: one log record, then the memtables
//!                             └ a large value ─▶ extent of its own    drop, clear: frees these extents
//! ```
//!
//! Invariants: `payload` holds `count` operations, and has at most [`MAX_BATCH`] bytes. Every extent in `blobs` belongs
//! to an operation of `payload`.

use std::sync::Arc;

use super::commit::{Payload, PayloadOps};
use super::keyspace::Keyspace;
use super::options::Durability;
use super::shared::Shared;
use super::state::{KeyspaceState, check_key};
use super::validation::Validation;
use crate::base::{BlobRef, Error, IntoKeyRange, KeyspaceId, Kind, Result};
use crate::wal::{Ops, op_bytes, put_op};

/// The maximum number of bytes of operations in one [`Batch`]. The sum includes keys, operands and small values, and
/// about 10 bytes for each operation. Values above eight times the keyspace's
/// [`blob_threshold`](crate::KeyspaceOptions::blob_threshold) do not count, because they are written to disk when they
/// are added.
pub const MAX_BATCH: usize = 128 << 20;

/// The bytes that the buffer has at first, so that a small batch allocates it once.
const FIRST_BYTES: usize = 1 << 10;

/// If the buffer has more than this number of bytes, [`Batch::clear`] frees its memory.
const KEEP_BYTES: usize = 1 << 20;

/// Writes that become visible and durable together, or not at all. It is made by [`Store::batch`](crate::Store::batch).
///
/// If an operation is rejected, every later [`Batch::commit`] fails with the error of this operation and applies
/// nothing, until [`Batch::clear`] is called. A batch holds at most [`MAX_BATCH`] bytes ([`Batch::bytes`]). An
/// operation that would exceed this limit is rejected. A batch keeps its store open until it is dropped.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// use pandodb::{AddU64, Durability, KeyspaceOptions, Store};
/// let store = Store::open(&path)?;
/// let events = store.keyspace("events")?;
/// let counts = store.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64))?;
/// let mut batch = store.batch();
/// for day in ["monday", "tuesday"] {
///     batch.put(&events, day, b"landed");
///     batch.merge(&counts, b"landed", 1u64.to_le_bytes());
///     batch.commit(Durability::Synced)?; // and is empty again
/// }
/// assert_eq!(counts.get("landed")?.unwrap(), 2u64.to_le_bytes());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Batch {
    engine: Arc<Shared>,
    keyspaces: Vec<Arc<KeyspaceState>>,
    payload: Vec<u8>,
    count: u32,
    bytes: u64,
    only_deletes: bool,
    blobs: Vec<BlobRef>,
    error: Option<Error>,
    /// Whether the values are not validated by the keyspace's merge operator.
    trusting: bool,
}

/// A place between the operations of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct BatchMark {
    payload: usize,
    count: u32,
    bytes: u64,
    only_deletes: bool,
    blobs: usize,
    keyspaces: usize,
}

impl Batch {
    pub(crate) fn new(engine: Arc<Shared>) -> Batch {
        Batch {
            engine,
            keyspaces: Vec::new(),
            payload: Vec::new(),
            count: 0,
            bytes: 0,
            only_deletes: true,
            blobs: Vec::new(),
            error: None,
            trusting: false,
        }
    }

    /// Turns off the validation of values. Copies of existing data need this, because an older version of an operator
    /// may have accepted values that the current version rejects.
    pub(crate) fn trusting(mut self) -> Batch {
        self.trusting = true;
        self
    }

    /// Returns the number of operations.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Returns whether the batch has no operations.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the size of the operations in bytes, as [`MAX_BATCH`] counts it.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// The keyspaces of the operations.
    pub(super) fn keyspaces(&self) -> &[Arc<KeyspaceState>] {
        &self.keyspaces
    }

    /// The keyspace of an operation.
    pub(super) fn keyspace(&self, id: KeyspaceId) -> &Arc<KeyspaceState> {
        let keyspace = self.keyspaces.iter().find(|keyspace| keyspace.id == id);
        keyspace.expect("a batch knows the keyspaces that it names")
    }

    /// The encoded operations.
    pub(super) fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// The error of the operation that was added last, if it was rejected. The batch forgets it.
    pub(super) fn take_error(&mut self) -> Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }

    /// The place after the last operation. REQUIRES: no operation was rejected.
    pub(super) fn mark(&self) -> BatchMark {
        debug_assert!(self.error.is_none(), "a rejected operation has no place");
        let Batch { count, bytes, only_deletes, .. } = *self;
        let (payload, blobs, keyspaces) = (self.payload.len(), self.blobs.len(), self.keyspaces.len());
        BatchMark { payload, count, bytes, only_deletes, blobs, keyspaces }
    }

    /// Removes the operations after a mark. Returns their large values, which the caller must free.
    pub(super) fn rewind(&mut self, mark: BatchMark) -> Vec<BlobRef> {
        assert!(mark.payload <= self.payload.len() && mark.count <= self.count, "a mark is not after the end");
        let blobs = self.blobs.split_off(mark.blobs);
        self.payload.truncate(mark.payload);
        (self.count, self.bytes, self.only_deletes) = (mark.count, mark.bytes, mark.only_deletes);
        self.keyspaces.truncate(mark.keyspaces);
        self.check_sums();
        blobs
    }

    /// Removes all operations, and the error of a rejected operation.
    pub fn clear(&mut self) {
        self.engine.give_back_blobs(&self.blobs);
        self.blobs.clear();
        self.keyspaces.clear();
        self.payload.clear();
        self.payload.shrink_to(KEEP_BYTES);
        (self.count, self.bytes, self.only_deletes, self.error) = (0, 0, true, None);
    }

    /// Runs `operation` and keeps its error, unless an earlier operation was rejected.
    fn attempt(&mut self, keyspace: &Keyspace, operation: impl FnOnce(&mut Batch) -> Result<()>) {
        if self.error.is_some() {
            return;
        }
        let result = if !Arc::ptr_eq(&keyspace.engine, &self.engine) {
            Err(Error::invalid(format!(
                "keyspace `{}` and the batch belong to different stores; use a batch of the keyspace's store",
                keyspace.name()
            )))
        } else {
            operation(self)
        };
        self.error = result.err();
    }

    /// Appends a checked operation. Its key and value together have `bytes` bytes.
    fn add(&mut self, keyspace: &Keyspace, kind: Kind, key: &[u8], value: &[u8], bytes: usize) -> Result<()> {
        let before = self.payload.len();
        if self.payload.capacity() == 0 {
            self.payload.reserve(FIRST_BYTES);
        }
        put_op(&mut self.payload, keyspace.state.id, kind, key, value);
        if self.payload.len() > MAX_BATCH {
            self.payload.truncate(before);
            return Err(Error::invalid(format!(
                "the batch would hold more than {MAX_BATCH} bytes; commit it in several parts"
            )));
        }
        let added = self.payload.len() - before;
        debug_assert_eq!(added, op_bytes(keyspace.state.id, kind, key, value), "an operation takes its encoded size");
        debug_assert!(kind == Kind::BlobPut || bytes < added, "an operation takes more than its key and value");
        if !self.keyspaces.iter().any(|known| Arc::ptr_eq(known, &keyspace.state)) {
            self.keyspaces.push(keyspace.state.clone());
        }
        self.count += 1;
        self.bytes += bytes as u64;
        self.only_deletes &= matches!(kind, Kind::Delete | Kind::RangeDelete);
        self.check_sums();
        Ok(())
    }

    /// Asserts that the parts of the batch agree. REQUIRES: no operation was rejected.
    fn check_sums(&self) {
        let count = self.count as usize;
        assert_eq!(count == 0, self.payload.is_empty(), "{count} operations in {} bytes", self.payload.len());
        assert!(self.payload.len() <= MAX_BATCH, "a batch of {} bytes", self.payload.len());
        assert!(self.blobs.len() <= count, "{} large values in {count} operations", self.blobs.len());
        assert!(self.keyspaces.len() <= count, "{} keyspaces in {count} operations", self.keyspaces.len());
        assert!(self.blobs.is_empty() || !self.only_deletes, "a large value belongs to a put");
    }

    /// Sets the value of a key. A large value is written to disk during this call. If the batch is dropped without a
    /// commit, the space of this value is freed.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.attempt(keyspace, |batch| {
            keyspace.state.check_put(key, value)?;
            if !batch.trusting {
                keyspace.state.check_value(value)?;
            }
            let bytes = key.len() + value.len();
            if !keyspace.state.writes_at_once(value.len()) {
                return batch.add(keyspace, Kind::Put, key, value, bytes);
            }
            let (blob, encoded) = batch.engine.write_blob(value)?;
            assert_eq!(blob.len, value.len() as u64, "a reference has the length of its value");
            batch.blobs.push(blob);
            let added = batch.add(keyspace, Kind::BlobPut, key, &encoded, bytes);
            if added.is_err() {
                batch.blobs.pop();
                batch.engine.give_back_blobs(&[blob]);
            }
            added
        });
    }

    /// Removes a key.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.attempt(keyspace, |batch| {
            check_key(key)?;
            keyspace.state.check_alive()?;
            batch.add(keyspace, Kind::Delete, key, &[], key.len())
        });
    }

    /// Adds an operand to a key, as [`Keyspace::merge`] does.
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.attempt(keyspace, |batch| {
            keyspace.state.check_merge(key, operand)?;
            batch.add(keyspace, Kind::Merge, key, operand, key.len() + operand.len())
        });
    }

    /// Removes every key of a range.
    pub fn delete_range(&mut self, keyspace: &Keyspace, range: impl IntoKeyRange) {
        self.attempt(keyspace, |batch| {
            let range = keyspace.state.check_range(range)?;
            if range.is_empty() {
                return Ok(());
            }
            batch.add(keyspace, Kind::RangeDelete, &range.from, &range.to, range.from.len() + range.to.len())
        });
    }

    /// Applies all operations, or none. Operations on the same key apply in the order in which they were added. After a
    /// successful commit the batch is empty and can be used again.
    ///
    /// If a commit fails without effect, as on a full disk, the batch keeps its operations, and the commit can be
    /// retried. If the failure makes the store refuse writes, the batch is empty, because its operations may have been
    /// applied.
    ///
    /// # Errors
    /// The error of the first rejected operation; [`Error::DiskFull`], [`Error::Poisoned`]; [`Error::Indeterminate`] if
    /// the sync failed.
    pub fn commit(&mut self, durability: Durability) -> Result<()> {
        self.commit_numbered(durability).map(|_| ())
    }

    /// Like [`Batch::commit`], but returns the seqno of the last operation. The seqnos of the other operations directly
    /// precede it. Returns `None` for an empty batch. This function is for test harnesses, which compare commits with
    /// the seqnos of snapshots.
    ///
    /// # Errors
    /// The errors of [`Batch::commit`].
    #[doc(hidden)]
    pub fn commit_numbered(&mut self, durability: Durability) -> Result<Option<u64>> {
        self.commit_validated(durability, None)
    }

    /// Like [`Batch::commit_numbered`], for the writes of a transaction.
    ///
    /// # Errors
    /// The errors of [`Batch::commit`]; [`Error::Conflict`].
    pub(super) fn commit_validated(
        &mut self,
        durability: Durability,
        validation: Option<&Validation<'_>>,
    ) -> Result<Option<u64>> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        self.check_sums();
        if self.count == 0 {
            return self.engine.check_writable().map(|_| None);
        }
        debug_assert_eq!(Ops::new(&self.payload).count(), self.count as usize, "the payload holds all operations");
        let count = u64::from(self.count);
        let payload = Payload {
            ops: PayloadOps::Many(&self.payload, self.count),
            bytes: self.bytes,
            frees: self.only_deletes,
            keyspaces: &self.keyspaces,
            validation,
        };
        let committed = self.engine.commit(payload, durability);
        if committed.is_ok() {
            // The commit owns the extents of large values now.
            self.blobs.clear();
        }
        if committed.is_ok() || self.engine.writer.poison.is_set() {
            self.clear();
        }
        let last = committed?.0;
        assert!(self.is_empty() && self.blobs.is_empty(), "a committed batch is empty");
        assert!(last >= count, "each of {count} operations has a seqno of its own, up to {last}");
        Ok(Some(last))
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.engine.give_back_blobs(&self.blobs);
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch").field("len", &self.count).field("bytes", &self.bytes).finish()
    }
}
