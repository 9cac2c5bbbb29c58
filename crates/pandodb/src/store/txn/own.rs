//! [`Own`]: the writes of a transaction, in a form in which its reads find them.
//!
//! ```text
//!   put, merge, delete … ─▶ batch: encoded, in order ─▶ commit
//!                             │ at the next read
//!                             ▼
//!                           filter: may the transaction have written this key? ── no ─▶ only the snapshot is read
//!                             │ yes, or a range is read
//!                             ▼
//!                           memtables, one for each keyspace, with seqnos from OWN on
//! ```
//!
//! A transaction that reads no key again after it has written the key never makes a memtable, or only by a false
//! positive of the filter.

use std::sync::Arc;

use crate::base::{Entry, KeyRange, KeyspaceId, Kind, RangeTombstone, Result, Seqno, seeded};
use crate::memtable::{ChunkPool, Memtable};
use crate::store::batch::Batch;
use crate::store::footprints::{add_to_bloom, is_in_bloom, mixed};
use crate::store::state::KeyspaceState;
use crate::wal::Ops;

/// The seqno before the first write of a transaction. It is above all seqnos of commits.
pub const OWN: Seqno = Seqno(1 << 62);

/// A filter of more than this number of keys is not asked. For 64 keys it has 1.4 % false positives.
const MOST_FILTERED: usize = 128;
/// The words of the filter.
const FILTER_WORDS: usize = 16;

/// A Bloom filter of the keys that were written.
#[derive(Debug, Default)]
struct Filter {
    words: [u64; FILTER_WORDS],
    /// The bytes of the batch that were added.
    taken: usize,
    /// The number of keys; more than [`MOST_FILTERED`] also after a range delete.
    count: usize,
}

impl Filter {
    /// Adds the operations of a batch that were not added yet.
    fn catch_up(&mut self, batch: &Batch) -> Result<()> {
        if self.count <= MOST_FILTERED && self.taken < batch.payload().len() {
            let mut buf = Vec::new();
            for op in Ops::new(&batch.payload()[self.taken..]) {
                let op = op?;
                if op.kind == Kind::RangeDelete {
                    self.count = seeded!(OwnFilterLacksRanges: self.count, MOST_FILTERED + 1);
                    continue;
                }
                let codec = batch.keyspace(op.keyspace).codec;
                let hash = codec.hash(codec.stored(op.key, &mut buf));
                add_to_bloom(&mut self.words, mixed(op.keyspace, hash));
                self.count += 1;
            }
            self.taken = batch.payload().len();
        }
        Ok(())
    }

    fn may_have(&self, keyspace: KeyspaceId, hash: u64) -> bool {
        self.count > MOST_FILTERED || is_in_bloom(&self.words, mixed(keyspace, hash))
    }
}

/// The writes of a transaction for its reads.
#[derive(Default)]
pub struct Own {
    filter: Filter,
    tables: Vec<(KeyspaceId, Arc<Memtable>)>,
    /// The bytes of the batch that are in the memtables.
    taken: usize,
    /// The number of operations in these bytes.
    count: u64,
}

impl Own {
    /// The seqno of the last write that a memtable has.
    pub fn visible(&self) -> Seqno {
        Seqno(OWN.0 + self.count)
    }

    /// Whether a batch may write a stored key.
    ///
    /// # Errors
    /// If the batch is malformed.
    pub fn may_have(&mut self, keyspace: &KeyspaceState, key: &[u8], batch: &Batch) -> Result<bool> {
        if batch.is_empty() {
            return Ok(false);
        }
        self.filter.catch_up(batch)?;
        Ok(self.filter.may_have(keyspace.id, keyspace.codec.hash(key)))
    }

    /// The writes of a batch to a keyspace; `None` if there are none.
    ///
    /// # Errors
    /// If the batch is malformed.
    pub fn of(
        &mut self,
        keyspace: &KeyspaceState,
        batch: &Batch,
        chunks: &Arc<ChunkPool>,
    ) -> Result<Option<&Arc<Memtable>>> {
        if batch.keyspaces().iter().all(|known| known.id != keyspace.id) {
            return Ok(None);
        }
        let mut buf = Vec::new();
        for op in Ops::new(&batch.payload()[self.taken..]) {
            let op = op?;
            self.count += 1;
            let seqno = Seqno(OWN.0 + self.count);
            let at = self.tables.iter().position(|(id, _)| *id == op.keyspace).unwrap_or_else(|| {
                self.tables.push((op.keyspace, Arc::new(Memtable::new(OWN.0, chunks.clone()))));
                self.tables.len() - 1
            });
            let memtable = &self.tables[at].1;
            if op.kind == Kind::RangeDelete {
                memtable.insert_range(&RangeTombstone { range: KeyRange::new(op.key, op.value), seqno });
                continue;
            }
            let key = batch.keyspace(op.keyspace).codec.stored(op.key, &mut buf);
            memtable.insert(Entry { key, seqno, kind: op.kind, value: op.value });
        }
        self.taken = batch.payload().len();
        Ok(self.tables.iter().find(|(id, _)| *id == keyspace.id).map(|(_, memtable)| memtable))
    }

    /// Forgets writes after the first `bytes` of the batch.
    pub fn rewind(&mut self, bytes: usize) {
        if self.taken > bytes {
            // A memtable cannot remove messages. The next read makes new ones.
            (self.tables, self.taken, self.count) = (Vec::new(), 0, 0);
        }
        if self.filter.taken > bytes {
            self.filter = Filter::default();
        }
    }
}
