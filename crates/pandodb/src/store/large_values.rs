//! Large values on their way into the store: written to extents of their own before the commit that names them.
//!
//! ```text
//!   value ─▶ extent of the data file ─▶ commit of a record with the reference ─▶ memtable, later the index
//!                                        └ refused: the extent is freed
//! ```
//!
//! Lock: the gate, shared. The index owns the extents once it holds the reference (`index/blobs`).

use super::engine::Engine;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, Error, Result};
use crate::wal::Log;

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
        self.figures.blob_bytes.fetch_add(blob.extent().bytes(), Relaxed);
        let mut encoded = Vec::with_capacity(16);
        blob.encode(&mut encoded);
        Ok((blob, encoded))
    }

    /// Gives large values back whose commit was refused before it was logged. After a failure that poisoned the store
    /// they stay: the record that names them may be in the log.
    pub(crate) fn give_back_blobs(&self, blobs: &[BlobRef]) {
        if !self.writer.poison.is_set() && !self.access.is_inherited() {
            blobs.iter().for_each(|blob| self.core.data.discard(blob.extent()));
        }
    }
}
