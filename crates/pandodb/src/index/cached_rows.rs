//! How the indexes use the row cache ([`crate::rows`]): lookups search it before the index and offer the rows that they
//! find, and jobs update it.
//!
//! ```text
//!   lookup ─▶ recall ── the row is cached ─▶ done
//!                └─ no ─▶ index ─▶ plain value ─▶ offer
//!   job:      RowUpdates::begin ─▶ absorb each block of the memtable ─▶ … ─▶ the root with the memtable is published
//! ```
//!
//! Invariant: when a root with the messages of a memtable is published, the cache holds no row that these messages have
//! changed, and accepts no row that was read from an older root.

use std::sync::Arc;

use super::{Base, Lookup, SealedBatch};
use crate::base::{EntryBlock, Kind, Seqno, key_hash};
use crate::rows::{Change, IndexRows};

/// Searches the row cache for a row that is valid for a view that holds all messages up to `through`. Returns whether the
/// lookup has found its row, and is complete. A row of a newer root is not valid, because it may include operands that
/// this lookup has already found in a memtable. REQUIRES: the lookup is not complete.
pub fn recall(rows: &IndexRows, through: Seqno, lookup: &mut Lookup<'_>) -> bool {
    match rows.get(lookup.key, lookup.hash, lookup.at, through) {
        Some(value) => {
            lookup.take_row(value);
            true
        }
        None => false,
    }
}

/// Offers a plain value without operands that a lookup has just found in a view to the row cache, if the lookup sees all
/// messages of the view, which are the messages up to `through`.
pub fn offer(rows: &IndexRows, through: Seqno, lookup: &Lookup<'_>) {
    if let Base::Inline(block, value) = &lookup.base
        && lookup.gather.is_empty()
        && through <= lookup.at
    {
        debug_assert!(lookup.is_done() && lookup.base_seqno <= through, "a view holds messages up to `through`");
        rows.offer(lookup.key, lookup.hash, &block[value.clone()], lookup.base_seqno, through);
    }
}

/// Updates the row cache while a job applies a memtable. Without a memtable, it does nothing.
#[derive(Clone, Default)]
pub struct RowUpdates {
    /// The rows of the index; `None` if none is cached.
    rows: Option<Arc<IndexRows>>,
}

impl RowUpdates {
    /// Starts to apply a memtable. From this call on, the row cache accepts no rows from older roots. Rows that range
    /// tombstones of the memtable cover are removed.
    /// REQUIRES: one thread at a time prepares a root of the index; an index that drops all its rows because its keyspace
    /// was dropped makes no later call.
    pub fn begin(rows: &Arc<IndexRows>, batch: &SealedBatch) -> RowUpdates {
        let rows = rows.begin(batch.through).then(|| rows.clone());
        let ranges = batch.memtable.fragments();
        if let Some(rows) = rows.as_ref().filter(|_| !ranges.is_empty()) {
            rows.remove_where(|key, seqno| ranges.covering(key, Seqno::MAX) > seqno);
        }
        RowUpdates { rows }
    }

    /// Updates or removes the rows of the keys in a block of the memtable, by the newest message of each key. `continued`
    /// says that the first key of the block equals the key of the previous message. The block may be absorbed again.
    pub fn absorb(&self, continued: bool, block: &EntryBlock) {
        let Some(rows) = &self.rows else { return };
        let mut before = block.iter().next().filter(|_| continued).map(|entry| entry.key);
        for entry in block.iter() {
            // The newest message of a key comes first, so use only the first message of each key.
            if before != Some(entry.key) {
                let change = match entry.kind {
                    Kind::Put => Change::Value(entry.value, entry.seqno),
                    _ => Change::Other,
                };
                rows.absorb(entry.key, key_hash(entry.key), change);
            }
            before = Some(entry.key);
        }
    }
}
