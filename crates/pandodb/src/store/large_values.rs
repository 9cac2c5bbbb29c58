//! Writes large values. Each large value is written to an extent of its own, before the record that refers to it is
//! committed.
//!
//! ```text
//!   value ─▶ extent of the data file ─▶ commit of a record with the reference ─▶ memtable, later the index
//!                                        └ refused: the extent is freed
//! ```
//!
//! Lock: the gate, which is held shared. The index owns the extents once it holds the references to the values
//! (`index/blobs`).

use super::engine::Engine;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, Error, OwnerId, Result};
use crate::wal::Log;

impl Engine {
    /// Writes a large value and encodes the reference to this value.
    pub(crate) fn write_blob(&self, value: &[u8]) -> Result<(BlobRef, Vec<u8>)> {
        // Check whether the store accepts writes before taking the gate, because a forked child and an operator must
        // not wait for the gate.
        self.check_writable()?;
        let _gate = self.gate.read();
        self.check_writable()?;
        self.keep_back()?;
        self.check_space(value.len() as u64)?;
        let write = || self.core.data.write_blob(value);
        let written = match write() {
            Err(Error::DiskFull { .. }) => {
                // Preallocated log segments also take disk space, so discard them.
                self.writer.log.as_ref().map(Log::discard_preallocated);
                write()
            }
            written => written,
        };
        let blob = written.inspect_err(|e| {
            if matches!(e, Error::Io { .. }) {
                self.poison(e);
            }
        })?;
        assert_eq!(blob.len as usize, value.len(), "the whole value was written");
        self.figures.blob_bytes.fetch_add(blob.extent().bytes(), Relaxed);
        let mut encoded = Vec::with_capacity(16);
        blob.encode(&mut encoded);
        debug_assert_eq!(BlobRef::decode(&encoded), Ok(blob), "readers find what was written");
        Ok((blob, encoded))
    }

    /// Frees large values whose commit was refused before the commit was logged. In a poisoned store the values stay
    /// allocated, because the log may hold the record that refers to them.
    pub(crate) fn give_back_blobs(&self, blobs: &[BlobRef]) {
        if !self.may_be_durable() {
            for blob in blobs {
                // A transaction that has read its own value has cached it.
                self.core.pool.forget(OwnerId::VALUES, blob.page);
                self.core.data.discard(blob.extent());
            }
        }
    }

    /// Whether the values of a failed write must stay allocated. In a poisoned store, the log or a superblock may refer
    /// to them although the write has failed. A forked child must not change the files of its parent.
    pub(crate) fn may_be_durable(&self) -> bool {
        self.writer.poison.is_set() || self.access.is_inherited()
    }
}
