//! [`Own`]: the writes of a transaction, in a form in which its reads find them.
//!
//! ```text
//!   put, merge, delete … ─▶ batch: encoded, in order ─▶ commit
//!                             │ at the next read
//!                             ▼
//!                           memtables, one for each keyspace, with seqnos from OWN on
//! ```
//!
//! A transaction that reads nothing after its first write never makes a memtable.

use std::sync::Arc;

use crate::base::{Entry, KeyRange, KeyspaceId, Kind, RangeTombstone, Result, Seqno};
use crate::memtable::{ChunkPool, Memtable};
use crate::store::batch::Batch;
use crate::store::state::KeyspaceState;
use crate::wal::Ops;

/// The seqno before the first write of a transaction. It is above all seqnos of commits.
pub const OWN: Seqno = Seqno(1 << 62);

/// The writes of a transaction for its reads.
#[derive(Default)]
pub struct Own {
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
            *self = Own::default();
        }
    }
}
