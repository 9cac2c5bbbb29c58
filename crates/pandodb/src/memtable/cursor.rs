//! [`Cursor`]: a scan of a memtable that returns one block of messages at a time.
//!
//! Steps: each call of [`Cursor::fill`] appends the messages after the last one that was returned. The position is a
//! key and a seqno, not a node and a slot of the tree, so that the scan continues correctly although other threads
//! insert messages.
//!
//! Invariant: over all calls, messages strictly ascend by (key, newest first). A reverse cursor returns messages in the
//! exactly opposite order. A message that is inserted during the scan is not returned if the scan has passed its
//! position; otherwise it may be returned.

use std::sync::Arc;

use super::Memtable;
use crate::base::range::successor;
use crate::base::{EntryBlock, KeyRange, Seqno};

/// A scan of the messages of a range.
pub struct Cursor {
    memtable: Arc<Memtable>,
    range: Arc<KeyRange>,
    reverse: bool,
    /// The last message that was returned.
    after: Option<(Vec<u8>, Seqno)>,
    /// Whether the last call of [`Cursor::fill`] began with the key at which the previous call had ended.
    continues_key: bool,
}

impl Cursor {
    /// Creates a scan of `range`. If `reverse` is set, the scan runs from the end of the range to its beginning. Reads
    /// nothing yet.
    pub fn new(memtable: Arc<Memtable>, range: impl Into<Arc<KeyRange>>, reverse: bool) -> Cursor {
        Cursor { memtable, range: range.into(), reverse, after: None, continues_key: false }
    }

    /// Appends the next messages to `out`, about `max_bytes` bytes of them. Appends nothing if no message is left.
    pub fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) {
        let before = out.len();
        let after = self.after.as_ref().map(|(key, seqno)| (key.as_slice(), *seqno));
        self.memtable.fill(&self.range, after, self.reverse, usize::MAX, max_bytes, out);
        if out.len() == before {
            return;
        }
        debug_assert!(
            after.is_none_or(|(key, seqno)| {
                let first = out.get(before);
                let ascends = (key, std::cmp::Reverse(seqno)) < (first.key, std::cmp::Reverse(first.seqno));
                ascends != self.reverse && (key, seqno) != (first.key, first.seqno)
            }),
            "a walk does not return a message twice"
        );
        self.continues_key = after.is_some_and(|(key, _)| key == out.get(before).key);
        let last = out.get(out.len() - 1);
        debug_assert!(self.range.contains(last.key), "a walk stays in its range");
        let (key, seqno) = self.after.get_or_insert_default();
        key.clear();
        key.extend_from_slice(last.key);
        *seqno = last.seqno;
    }

    /// Whether the first message of the last [`Cursor::fill`] has the same key as the last message of the previous
    /// call.
    pub fn continues_key(&self) -> bool {
        self.continues_key
    }

    /// Moves the cursor, in its direction, to the first key that is not before `key`. In this direction, `key` must not
    /// be before the last returned key.
    pub fn seek(&mut self, key: &[u8]) {
        debug_assert!(
            self.after.as_ref().is_none_or(|(last, _)| if self.reverse { key <= &**last } else { key >= &**last }),
            "a walk does not turn back"
        );
        (self.after, self.continues_key) = (None, false);
        let range = Arc::make_mut(&mut self.range);
        if self.reverse {
            range.to = successor(key);
        } else {
            range.from = key.to_vec();
        }
    }
}
