//! [`Contents`]: all messages of a range of keys that is in memory.
//!
//! ```text
//!   folded   [ a@3  b@9 b@4  d@7 ]        in order, as in a leaf on disk
//!   newer    { b@12, c@11 }               a sorted map, into which commits insert
//! ```
//!
//! A commit inserts into the map. When the map has grown, both are merged and folded ([`Contents::fold`]). Commits are
//! applied concurrently, so a message may arrive after a newer message of its key; readers therefore merge both parts
//! by seqno.
//!
//! **Large values.** A message may refer to a large value. Such a value belongs either to the tree on disk, if the copy
//! of the range there refers to it, or to the contents. When a fold drops a message whose value belongs to the
//! contents, the value is freed with the next root. A value of the tree is freed by the job that writes the range
//! without it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::ops::Bound;

use crate::base::sync::EXPLORED;
use crate::base::{BlobRef, Entry, EntryBlock, Extent, FragmentSweep, KeyRange, Kind, PAGE, Seqno, seeded};
use crate::resolve::{FoldOutput, Operator, Stripes, fold_key};

/// The bytes of memory that a message in the map takes beside its key and value.
const OVERHEAD: usize = 96;
/// The map is folded when it has more than this number of bytes, and more than the folded messages.
const FOLD_ABOVE: usize = if EXPLORED { 128 } else { 2048 };

/// What the sums over all ranges count for one range.
#[derive(Clone, Copy, Default)]
pub struct Counted {
    /// The bytes in memory.
    pub bytes: usize,
    /// The bytes of leaves that writing the range takes at most.
    pub unwritten: usize,
}

/// The key and the seqno of a message.
type Place = (Vec<u8>, Reverse<Seqno>);

/// What a fold needs to know.
pub struct Rules<'a> {
    /// The read points whose results must not change.
    pub keep: &'a Stripes,
    /// Folds operands.
    pub operator: Option<&'a Operator>,
    /// All range tombstones of the index.
    pub tombstones: FragmentSweep,
}

/// All messages of a range of keys.
#[derive(Default)]
pub struct Contents {
    folded: EntryBlock,
    newer: BTreeMap<Place, (Kind, Vec<u8>)>,
    newer_bytes: usize,
    /// The greatest seqno of the messages that were inserted; 0 if there were none.
    pub changed: Seqno,
    /// The tree on disk has every message up to this seqno.
    pub written: Seqno,
    /// The large values to which the copy of the range on disk refers.
    pub stored_values: HashSet<Extent>,
    /// The large values of messages that were inserted, and to which the copy on disk does not refer.
    pub own_values: HashSet<Extent>,
    /// Large values to which no message refers any more. They are freed with the next root.
    pub dropped_values: Vec<Extent>,
    /// What the sums over all ranges count for the range; `None` if it is not among the ranges in memory.
    counted: Option<Counted>,
    /// Whether other ranges have these keys now. Then there are no messages here.
    pub is_divided: bool,
}

impl Contents {
    /// The contents of a range as the tree has them. `folded` are all its messages, in order.
    pub fn stored(folded: EntryBlock) -> Contents {
        let stored_values = folded.iter().filter_map(|entry| value_of(&entry)).collect();
        Contents { folded, stored_values, ..Contents::default() }
    }

    /// The approximate bytes in memory.
    pub fn bytes(&self) -> usize {
        self.folded.memory() + self.newer_bytes
    }

    /// Whether a message was inserted that the tree on disk lacks.
    pub fn is_dirty(&self) -> bool {
        self.changed > self.written
    }

    /// Whether a job has something to do for the range: to write messages, or to free large values.
    pub fn is_unwritten(&self) -> bool {
        self.is_dirty() || !self.dropped_values.is_empty()
    }

    /// Counts the range from now on, because it is in memory.
    pub fn begin_count(&mut self) {
        assert!(self.counted.is_none(), "a range is counted once");
        self.counted = Some(Counted::default());
    }

    /// Counts the range anew, in leaves of `leaf` bytes: all its leaves are full but the last two. Returns the count
    /// before and after; `None` if the range is not counted.
    pub fn recount(&mut self, leaf: usize) -> Option<(Counted, Counted)> {
        let before = self.counted?;
        let leaves = (self.bytes() / leaf + 2) * leaf.next_multiple_of(PAGE);
        let after = Counted { bytes: self.bytes(), unwritten: if self.is_unwritten() { leaves } else { 0 } };
        self.counted = Some(after);
        Some((before, after))
    }

    /// Counts the range no longer. Returns its last count; `None` if it was not counted.
    pub fn end_count(&mut self) -> Option<Counted> {
        self.counted.take()
    }

    /// Whether so many messages are in the map that a fold is worth its cost.
    pub fn wants_fold(&self) -> bool {
        self.newer_bytes > FOLD_ABOVE.max(self.folded.bytes())
    }

    /// Inserts a message.
    pub fn insert(&mut self, entry: &Entry<'_>) {
        debug_assert!(!self.is_divided, "another range has the key");
        debug_assert!(entry.kind != Kind::RangeDelete, "a range tombstone belongs to no page");
        self.changed = self.changed.max(entry.seqno);
        let place = (entry.key.to_vec(), Reverse(entry.seqno));
        let before = self.newer.insert(place, (entry.kind, entry.value.to_vec()));
        debug_assert!(before.is_none(), "a seqno belongs to one message");
        self.newer_bytes += entry.key.len() + entry.value.len() + OVERHEAD;
        self.own_values.extend(value_of(entry));
    }

    /// The messages from `from` on, in order. The iterator ends before the first key that is not below `to`, unless
    /// `to` is `None`.
    pub fn entries<'a>(&'a self, from: &[u8], to: Option<&'a [u8]>) -> impl Iterator<Item = Entry<'a>> + 'a {
        let mut at = self.folded.lower_bound(0, from);
        let start: Place = (from.to_vec(), Reverse(Seqno::MAX));
        let mut newer = self.newer.range((Bound::Included(start), Bound::Unbounded)).peekable();
        std::iter::from_fn(move || {
            let folded = (at < self.folded.len()).then(|| self.folded.get(at));
            let fresh =
                newer.peek().map(|((key, seqno), (kind, value))| Entry { key, seqno: seqno.0, kind: *kind, value });
            let next = match (folded, fresh) {
                (Some(folded), Some(fresh)) if folded.order(&fresh).is_lt() => {
                    at += 1;
                    folded
                }
                (_, Some(fresh)) => {
                    newer.next();
                    fresh
                }
                (Some(folded), None) => {
                    at += 1;
                    folded
                }
                (None, None) => return None,
            };
            to.is_none_or(|to| next.key < to).then_some(next)
        })
    }

    /// The messages of `key`, newest first.
    pub fn messages<'a>(&'a self, key: &'a [u8]) -> impl Iterator<Item = Entry<'a>> + 'a {
        self.entries(key, None).take_while(move |entry| entry.key == key)
    }

    /// Merges both parts, and drops the messages that no read point needs. Messages above the horizon stay as they are,
    /// even deletes: an older message of their key may still arrive. Nothing else is older than the messages up to the
    /// horizon.
    pub fn fold(&mut self, mut rules: Rules<'_>) {
        let mut all = EntryBlock::new();
        let mut out = FoldOutput::default();
        let mut group: Vec<Entry<'_>> = Vec::new();
        let mut close = |group: &mut Vec<Entry<'_>>| {
            if let Some(first) = group.first() {
                let tombs = rules.tombstones.seqnos(first.key);
                let above = group.partition_point(|entry| entry.seqno > rules.keep.horizon);
                let (newer, settled) = group.split_at(seeded!(HotDeleteDropped: 0, above));
                newer.iter().for_each(|entry| all.push(*entry));
                if !settled.is_empty() {
                    fold_key(settled, tombs, rules.keep, true, rules.operator, &mut out);
                    out.entries(settled).for_each(|entry| all.push(entry));
                }
                group.clear();
            }
        };
        for entry in self.entries(&[], None) {
            if group.first().is_some_and(|first| first.key != entry.key) {
                close(&mut group);
            }
            group.push(entry);
        }
        close(&mut group);
        drop(group);
        for blob in std::mem::take(&mut out.dropped_blobs) {
            if self.own_values.remove(&blob.extent()) {
                self.dropped_values.push(blob.extent());
            }
        }
        self.folded = all;
        self.newer.clear();
        self.newer_bytes = 0;
    }

    /// Moves all messages into parts of about `bytes` bytes. `keys` are the keys of the range. REQUIRES: a job has just
    /// written the range, and `kept` are the keys and large values of the copy on disk, in order.
    pub fn divide(&mut self, keys: &KeyRange, bytes: usize, kept: &[(Vec<u8>, Extent)]) -> Vec<(KeyRange, Contents)> {
        let mut parts: Vec<(KeyRange, Contents)> = Vec::new();
        let mut last: &[u8] = &[];
        for entry in self.entries(&[], None) {
            let is_full = parts.last().is_none_or(|(_, part)| part.folded.bytes() >= bytes);
            if is_full && last != entry.key || parts.is_empty() {
                let from = if parts.is_empty() { keys.from.as_slice() } else { entry.key };
                if let Some((keys, _)) = parts.last_mut() {
                    keys.to = from.to_vec();
                }
                let keys = KeyRange::new(from, keys.to.as_slice());
                parts.push((keys, Contents { written: self.written, ..Contents::default() }));
            }
            let (_, part) = parts.last_mut().expect("a part is open");
            part.folded.push(entry);
            part.own_values.extend(value_of(&entry).filter(|value| self.own_values.contains(value)));
            // A fold may have dropped the newest message of a part, which the copy on disk still has.
            part.changed = self.changed;
            last = entry.key;
        }
        for (keys, part) in &mut parts {
            let of_part = kept.iter().filter(|(key, _)| keys.contains(key));
            part.stored_values = of_part.map(|(_, value)| *value).collect();
        }
        if let Some((_, first)) = parts.first_mut() {
            first.dropped_values = std::mem::take(&mut self.dropped_values);
        }
        *self = Contents { is_divided: true, ..Contents::default() };
        parts
    }

    /// Whether messages may refer to large values.
    pub fn has_values(&self) -> bool {
        !self.own_values.is_empty() || !self.stored_values.is_empty()
    }

    /// The large values that belong to the contents.
    pub fn values(&self) -> impl Iterator<Item = Extent> + '_ {
        self.own_values.iter().chain(&self.dropped_values).copied()
    }

    /// Notes that a job has written the messages up to `through`. From now on, the copy on disk refers to the large
    /// values `kept`. `freed` are freed by this job.
    pub fn note_written(&mut self, through: Seqno, kept: impl Iterator<Item = Extent>, freed: &HashSet<Extent>) {
        self.written = through;
        self.stored_values = kept.collect();
        let stored = &self.stored_values;
        // A fold during the publication may have dropped a message that the job has written.
        self.dropped_values.retain(|value| !stored.contains(value));
        self.own_values.retain(|value| !stored.contains(value) && !freed.contains(value));
    }
}

/// The large value to which a message refers. A malformed reference refers to none.
fn value_of(entry: &Entry<'_>) -> Option<Extent> {
    (entry.kind == Kind::BlobPut).then(|| BlobRef::decode(entry.value).ok()).flatten().map(|blob| blob.extent())
}
