//! [`HotInput`]: the ranges in memory that a job writes.

use std::sync::Arc;

use super::directory::HotRange;
use crate::base::{EntryBlock, KeyRange, RangeTombstone, Seqno};
use crate::index::pages::Unit;

/// The ranges in memory that a job writes.
pub struct HotInput {
    /// The ranges, in order.
    pub ranges: Vec<Arc<HotRange>>,
    /// Messages up to this seqno are written.
    pub through: Seqno,
    /// The bytes of the messages, approximately.
    pub bytes: u64,
    /// Values of more than this number of bytes are moved out of the tree.
    pub inline_bytes: usize,
    /// The range tombstones that are in memory, up to `through`.
    pub tombstones: Vec<RangeTombstone>,
}

impl HotInput {
    /// Whether the job writes the range.
    pub fn has(&self, range: &Arc<HotRange>) -> bool {
        self.ranges.get(self.first_at(&range.keys.from)).is_some_and(|own| Arc::ptr_eq(own, range))
    }

    /// The number of the first range that does not end before `key`.
    fn first_at(&self, key: &[u8]) -> usize {
        self.ranges.partition_point(|range| !range.keys.is_above(key))
    }
}

/// The ranges of a job, and how many of them are written.
pub struct Written {
    pub input: Arc<HotInput>,
    /// The number of ranges that are written completely.
    count: usize,
    /// All keys below this key are done.
    done: Vec<u8>,
}

impl Written {
    pub fn new(input: Arc<HotInput>) -> Written {
        Written { input, count: 0, done: Vec::new() }
    }

    /// The next key in a range.
    pub fn next(&self) -> Option<&[u8]> {
        self.input.ranges.get(self.count).map(|range| range.keys.from.as_slice().max(&self.done))
    }

    /// Whether a range has keys of a unit.
    pub fn overlaps(&self, unit: &Unit) -> bool {
        let keys = keys_of(unit);
        self.input.ranges.get(self.input.first_at(&keys.from)).is_some_and(|range| range.keys.overlaps(&keys))
    }

    /// Whether one range has all keys of a unit.
    pub fn covers(&self, unit: &Unit) -> bool {
        let keys = keys_of(unit);
        self.input.ranges.get(self.input.first_at(&keys.from)).is_some_and(|range| range.keys.covers(&keys))
    }

    /// Whether a range has `key`.
    pub fn has(&self, key: &[u8]) -> bool {
        self.input.ranges.get(self.input.first_at(key)).is_some_and(|range| range.keys.contains(key))
    }

    /// Records that all keys below `to` are done; `None` is above all keys.
    pub fn pass(&mut self, to: Option<&[u8]>) {
        let Some(to) = to else {
            self.count = self.input.ranges.len();
            return;
        };
        self.done = to.to_vec();
        self.count = self.input.first_at(to);
    }
}

fn keys_of(unit: &Unit) -> KeyRange {
    KeyRange::new(unit.from.as_slice(), unit.to.as_deref().unwrap_or_default())
}

/// The messages of the ranges, one range after the other.
pub struct InputCursor {
    input: Arc<HotInput>,
    keys: KeyRange,
    next: usize,
}

impl InputCursor {
    pub fn new(input: Arc<HotInput>, keys: KeyRange) -> InputCursor {
        let next = input.first_at(&keys.from);
        InputCursor { input, keys, next }
    }

    /// Appends the messages of the next ranges, until `out` has more than `max_bytes`.
    pub fn fill(&mut self, max_bytes: usize, out: &mut EntryBlock) {
        let stop = out.bytes() + max_bytes;
        while out.bytes() < stop
            && let Some(range) = self.input.ranges.get(self.next).filter(|range| range.keys.overlaps(&self.keys))
        {
            self.next += 1;
            let keys = range.keys.intersect(&self.keys);
            let to = Some(keys.to.as_slice()).filter(|to| !to.is_empty());
            let contents = range.contents.read();
            let written = contents.entries(&keys.from, to).filter(|entry| entry.seqno <= self.input.through);
            written.for_each(|entry| out.push(entry));
        }
    }

    /// Continues at `key`.
    pub fn seek(&mut self, key: &[u8]) {
        self.keys.from = key.to_vec();
        self.next = self.input.first_at(key);
    }
}
