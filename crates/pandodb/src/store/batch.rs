//! Batches: writes that are applied all or none, across keyspaces.

use std::ops::RangeBounds;
use std::sync::Arc;

use super::commit::{Payload, PayloadOps};
use super::engine::Shared;
use super::keyspace::{Keyspace, KeyspaceState, check_key};
use super::options::Durability;
use crate::base::{BlobRef, Error, Kind, Result};
use crate::wal::put_op;

/// The most bytes of operations in one batch (large values not counted).
const MAX_BATCH: usize = 128 << 20;

/// Writes that become visible and durable together, or not at all. Made by [`super::Store::batch`].
///
/// An operation that cannot be accepted makes [`Batch::commit`] fail, with nothing applied.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// use pandodb::{AddU64, Durability, KeyspaceOptions, Store};
/// let store = Store::open(dir.path().join("s"))?;
/// let events = store.keyspace("events")?;
/// let counts = store.keyspace_with("counts", KeyspaceOptions::new().merge(AddU64))?;
/// let mut batch = store.batch();
/// batch.put(&events, b"e1", b"landed");
/// batch.merge(&counts, b"landed", 1u64.to_le_bytes());
/// batch.commit(Durability::Synced)?;
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
        }
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn attempt(&mut self, keyspace: &Keyspace, operation: impl FnOnce(&mut Batch) -> Result<()>) {
        if self.error.is_some() {
            return;
        }
        let result = if !Arc::ptr_eq(&keyspace.engine, &self.engine) {
            Err(Error::invalid(format!("keyspace `{}` belongs to another store than the batch", keyspace.name())))
        } else if self.payload.len() > MAX_BATCH {
            Err(Error::invalid(format!("a batch may hold at most {MAX_BATCH} bytes; commit it in parts")))
        } else {
            operation(self)
        };
        self.error = result.err();
    }

    fn add(&mut self, keyspace: &Keyspace, kind: Kind, key: &[u8], value: &[u8], bytes: usize) {
        if !self.keyspaces.iter().any(|known| Arc::ptr_eq(known, &keyspace.state)) {
            self.keyspaces.push(keyspace.state.clone());
        }
        put_op(&mut self.payload, keyspace.state.id, kind, key, value);
        self.count += 1;
        self.bytes += bytes as u64;
        self.only_deletes &= matches!(kind, Kind::Delete | Kind::RangeDelete);
    }

    /// Sets the value of a key. A large value is written to the disk at once and given back if the batch is dropped.
    pub fn put(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let (key, value) = (key.as_ref(), value.as_ref());
        self.attempt(keyspace, |batch| {
            keyspace.state.check_put(key, value)?;
            let bytes = key.len() + value.len();
            if value.len() <= keyspace.state.blob_threshold {
                batch.add(keyspace, Kind::Put, key, value, bytes);
                return Ok(());
            }
            let (blob, encoded) = batch.engine.write_blob(value)?;
            batch.blobs.push(blob);
            batch.add(keyspace, Kind::BlobPut, key, &encoded, bytes);
            Ok(())
        });
    }

    /// Removes a key.
    pub fn delete(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        self.attempt(keyspace, |batch| {
            check_key(key)?;
            keyspace.state.check_alive()?;
            batch.add(keyspace, Kind::Delete, key, &[], key.len());
            Ok(())
        });
    }

    /// Folds an operand into the value of a key.
    pub fn merge(&mut self, keyspace: &Keyspace, key: impl AsRef<[u8]>, operand: impl AsRef<[u8]>) {
        let (key, operand) = (key.as_ref(), operand.as_ref());
        self.attempt(keyspace, |batch| {
            keyspace.state.check_merge(key, operand)?;
            batch.add(keyspace, Kind::Merge, key, operand, key.len() + operand.len());
            Ok(())
        });
    }

    /// Removes every key of a range.
    pub fn delete_range<K: AsRef<[u8]>>(&mut self, keyspace: &Keyspace, range: impl RangeBounds<K>) {
        self.attempt(keyspace, |batch| {
            let range = keyspace.state.check_range(&range)?;
            if !range.is_empty() {
                batch.add(keyspace, Kind::RangeDelete, &range.from, &range.to, range.from.len() + range.to.len());
            }
            Ok(())
        });
    }

    /// Applies everything, or nothing. Operations on the same key apply in the order in which they were added.
    ///
    /// # Errors
    /// The first error of an operation; [`Error::DiskFull`], [`Error::Poisoned`]; [`Error::Indeterminate`] if the sync
    /// failed.
    pub fn commit(self, durability: Durability) -> Result<()> {
        self.commit_numbered(durability).map(|_| ())
    }

    /// As [`Batch::commit`]; says at which seqno the last operation was applied, the others directly before it, or `None` if
    /// there is none. For checkers of histories: where a commit stands among the snapshots cannot be seen from outside.
    ///
    /// # Errors
    /// As [`Batch::commit`].
    #[doc(hidden)]
    pub fn commit_numbered(mut self, durability: Durability) -> Result<Option<u64>> {
        if let Some(error) = self.error.take() {
            return Err(error);
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
        let last = self.engine.commit(payload, durability)?;
        self.blobs.clear();
        Ok(Some(last.0))
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
