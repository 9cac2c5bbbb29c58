//! Batches: writes that are applied all or none, across keyspaces.

use std::sync::Arc;

use super::commit::{Payload, PayloadOps};
use super::keyspace::Keyspace;
use super::options::Durability;
use super::shared::Shared;
use super::state::{KeyspaceState, check_key};
use crate::base::{BlobRef, Error, IntoKeyRange, Kind, Result};
use crate::wal::put_op;

/// The most bytes of operations in one [`Batch`]: keys, operands, and values up to the keyspace's
/// [`blob_threshold`](crate::KeyspaceOptions::blob_threshold), with some 10 bytes for each operation. Larger values are
/// written to the disk as they are added and do not count.
pub const MAX_BATCH: usize = 128 << 20;

/// A batch that was committed keeps its buffer up to this many bytes.
const KEEP_BYTES: usize = 1 << 20;

/// Writes that become visible and durable together, or not at all. Made by [`Store::batch`](crate::Store::batch).
///
/// If an operation is refused, every [`Batch::commit`] fails with its error and applies nothing, until [`Batch::clear`]. A batch
/// holds at most [`MAX_BATCH`] bytes ([`Batch::bytes`]); an operation beyond that is refused. A batch keeps its store open
/// until it is dropped.
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
    /// Values are taken as they are, whatever the keyspace's operator says of them.
    trusting: bool,
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

    /// A batch for copies of what a store holds already, perhaps from a version whose operators accepted other values.
    pub(crate) fn trusting(mut self) -> Batch {
        self.trusting = true;
        self
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The bytes of the operations so far, as [`MAX_BATCH`] counts them.
    pub fn bytes(&self) -> usize {
        self.payload.len()
    }

    /// Removes all operations, and the error of an operation that was refused.
    pub fn clear(&mut self) {
        self.engine.give_back_blobs(&self.blobs);
        self.blobs.clear();
        self.keyspaces.clear();
        self.payload.clear();
        self.payload.shrink_to(KEEP_BYTES);
        (self.count, self.bytes, self.only_deletes, self.error) = (0, 0, true, None);
    }

    fn attempt(&mut self, keyspace: &Keyspace, operation: impl FnOnce(&mut Batch) -> Result<()>) {
        if self.error.is_some() {
            return;
        }
        let result = if !Arc::ptr_eq(&keyspace.engine, &self.engine) {
            Err(Error::invalid(format!("keyspace `{}` belongs to another store than the batch", keyspace.name())))
        } else {
            operation(self)
        };
        self.error = result.err();
    }

    fn add(&mut self, keyspace: &Keyspace, kind: Kind, key: &[u8], value: &[u8], bytes: usize) -> Result<()> {
        let before = self.payload.len();
        put_op(&mut self.payload, keyspace.state.id, kind, key, value);
        if self.payload.len() > MAX_BATCH {
            self.payload.truncate(before);
            return Err(Error::invalid(format!("a batch may hold at most {MAX_BATCH} bytes; commit it in parts")));
        }
        if !self.keyspaces.iter().any(|known| Arc::ptr_eq(known, &keyspace.state)) {
            self.keyspaces.push(keyspace.state.clone());
        }
        self.count += 1;
        self.bytes += bytes as u64;
        self.only_deletes &= matches!(kind, Kind::Delete | Kind::RangeDelete);
        Ok(())
    }

    /// Sets the value of a key. A large value is written to the disk at once and given back if the batch is dropped.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.attempt(keyspace, |batch| {
            keyspace.state.check_put(key, value)?;
            if !batch.trusting {
                keyspace.state.check_value(value)?;
            }
            let bytes = key.len() + value.len();
            if value.len() <= keyspace.state.blob_threshold {
                return batch.add(keyspace, Kind::Put, key, value, bytes);
            }
            let (blob, encoded) = batch.engine.write_blob(value)?;
            batch.blobs.push(blob);
            batch.add(keyspace, Kind::BlobPut, key, &encoded, bytes)
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

    /// Folds an operand into the value of a key.
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

    /// Applies everything, or nothing. Operations on the same key apply in the order in which they were added. The batch is
    /// empty afterwards and can be used again.
    ///
    /// If the commit fails with nothing applied, as on a full disk, the batch keeps its operations and can be committed again.
    /// After a failure that makes the store refuse writes it is empty, since its operations may have been applied.
    ///
    /// # Errors
    /// The first error of an operation; [`Error::DiskFull`], [`Error::Poisoned`]; [`Error::Indeterminate`] if the sync
    /// failed.
    pub fn commit(&mut self, durability: Durability) -> Result<()> {
        self.commit_numbered(durability).map(|_| ())
    }

    /// As [`Batch::commit`]; says at which seqno the last operation was applied, the others directly before it, or `None` if
    /// there is none. For checkers of histories: where a commit stands among the snapshots cannot be seen from outside.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    #[doc(hidden)]
    pub fn commit_numbered(&mut self, durability: Durability) -> Result<Option<u64>> {
        if let Some(error) = &self.error {
            return Err(error.clone());
        }
        if self.count == 0 {
            return self.engine.check_writable().map(|_| None);
        }
        let payload = Payload {
            ops: PayloadOps::Many(&self.payload, self.count),
            bytes: self.bytes,
            frees: self.only_deletes,
            keyspaces: &self.keyspaces,
        };
        let committed = self.engine.commit(payload, durability);
        if committed.is_ok() {
            // The commit owns them now.
            self.blobs.clear();
        }
        if committed.is_ok() || self.engine.writer.poison.is_set() {
            self.clear();
        }
        committed.map(|last| Some(last.0))
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
