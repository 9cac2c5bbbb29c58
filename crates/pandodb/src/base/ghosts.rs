//! [`Ghosts`]: an approximate record, by hash, of entries that a cache evicted recently. The record shows how many more
//! hits the cache would have with more memory.
//!
//! ```text
//!   left(hash, bytes) ──▶ mark = (tag of the hash, epoch)      an epoch is one eighth of the span, in evicted bytes
//!   came(hash) ─────────▶ same tag, epoch within the span?     then a cache larger by the span would have had a hit
//! ```
//!
//! The mark of an entry may be overwritten by the mark of another entry, so the count is slightly too low. The error is
//! acceptable, because the count is used only to divide memory between caches. Each call costs one store or load of a
//! mark and takes no lock.
//!
//! Source: ghost entries as in ARC (Megiddo, Modha: "ARC: a self-tuning, low overhead replacement cache", FAST 2003).

use super::sync::{Counter, Ordering::Relaxed, Word};

/// The number of epochs in a span.
const EPOCHS: u64 = 8;

const _: () = assert!(EPOCHS <= u16::MAX as u64 / 2, "a mark has 16 bits for its epoch, which wraps around");

/// The entries that a cache evicted within the last `span` bytes of evictions.
#[derive(Debug)]
pub struct Ghosts {
    /// The tag and the epoch of each mark; 0 means that there is no mark. The length is a power of two.
    marks: Box<[Word]>,
    /// Of every `sample` hashes only one is tracked. `sample` is a power of two, at most 8.
    sample: u64,
    /// The number of evicted bytes in an epoch.
    epoch: u64,
    /// Entries are remembered for this many spans.
    spans: u64,
    /// The number of bytes that were evicted.
    left: Counter,
    /// The number of tracked entries that were looked up again within the span, times `sample`.
    found: Counter,
}

impl Ghosts {
    /// Tracks the last `span` evicted bytes, in entries of about `entry` bytes. Of every `sample` entries (a power of
    /// two) only one is tracked, which saves memory if there are many entries.
    pub fn new(span: usize, entry: usize, sample: usize) -> Ghosts {
        debug_assert!(sample.is_power_of_two() && sample <= 8 && entry > 0);
        let marks = (span / entry / sample * 2).next_power_of_two().max(64);
        Ghosts {
            marks: (0..marks).map(|_| Word::new(0)).collect(),
            sample: sample as u64,
            epoch: (span as u64 / EPOCHS).max(1),
            spans: 1,
            left: Counter::new(0),
            found: Counter::new(0),
        }
    }

    /// Remembers entries for `spans` times the span (at most 64). [`Ghosts::found`] still counts only the entries that
    /// come back within one span. Takes `spans` times the memory.
    #[must_use]
    pub fn remembering(mut self, spans: u64) -> Ghosts {
        assert!((1..=64).contains(&spans), "the epochs of {spans} spans fit into a mark");
        let marks = (self.marks.len() * spans as usize).next_power_of_two();
        self.marks = (0..marks).map(|_| Word::new(0)).collect();
        self.spans = spans;
        self
    }

    /// The index of the mark, and the mark with its epoch bits zero; `None` if the hash is not tracked.
    fn place(&self, hash: u64) -> Option<(usize, u64)> {
        // Callers pass different kinds of hashes, some with fewer significant bits than others.
        let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash >> 32) as usize & (self.marks.len() - 1);
        debug_assert!(place < self.marks.len(), "the number of marks is a power of two");
        (hash >> 61 & (self.sample - 1) == 0).then_some((place, (hash | 1) << 16))
    }

    fn now(&self, left: u64) -> u64 {
        left / self.epoch
    }

    /// Notes that the cache evicts an entry of `bytes` bytes to free memory.
    pub fn left(&self, hash: u64, bytes: usize) {
        let before = self.left.fetch_add(bytes as u64, Relaxed);
        if let Some((at, tag)) = self.place(hash) {
            self.marks[at].store(tag | (self.now(before) & 0xffff), Relaxed);
        }
    }

    /// Notes that a lookup of an entry missed the cache. Returns whether the entry is remembered, and forgets it.
    pub fn came(&self, hash: u64) -> bool {
        self.came_within(hash, self.spans)
    }

    /// Like [`Ghosts::came`], but only for entries that were evicted within the last span. Older ones stay remembered.
    pub fn came_recently(&self, hash: u64) -> bool {
        self.came_within(hash, 1)
    }

    fn came_within(&self, hash: u64, spans: u64) -> bool {
        debug_assert!(spans <= self.spans, "no entry is remembered for {spans} spans");
        let Some((at, tag)) = self.place(hash) else { return false };
        let mark = self.marks[at].load(Relaxed);
        let age = u64::from((self.now(self.left.load(Relaxed)) as u16).wrapping_sub(mark as u16));
        let known = mark & !0xffff == tag && age < EPOCHS * spans;
        if known {
            self.marks[at].store(0, Relaxed);
            self.found.fetch_add(if age < EPOCHS { self.sample } else { 0 }, Relaxed);
        }
        known
    }

    /// The approximate number of misses that would have been hits if the cache had been larger by the span.
    pub fn found(&self) -> u64 {
        self.found.load(Relaxed)
    }

    /// The memory that the record occupies, in bytes.
    pub fn bytes(&self) -> usize {
        self.marks.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_counts_recently_evicted_entries_and_no_older_ones() {
        for sample in [1, 8] {
            let ghosts = Ghosts::new(1_000_000, 100, sample);
            let hash = |i: u64| super::super::key_hash(&i.to_le_bytes());
            (0..40_000).for_each(|i| ghosts.left(hash(i), 100));
            (0..20_000).for_each(|i| _ = ghosts.came(hash(i)));
            assert!(ghosts.found() < 100, "{}", ghosts.found());
            // The last 10,000 entries are within the span.
            (30_000..40_000).for_each(|i| _ = ghosts.came(hash(i)));
            let found = ghosts.found();
            assert!((6_500..=10_500).contains(&found), "{found} of one in {sample}");
            (30_000..40_000).for_each(|i| _ = ghosts.came(hash(i)));
            assert_eq!(ghosts.found(), found, "once");
        }
    }

    #[test]
    fn it_remembers_for_several_spans_but_counts_only_the_last() {
        let ghosts = Ghosts::new(100_000, 100, 1).remembering(8);
        let hash = |i: u64| super::super::key_hash(&i.to_le_bytes());
        (0..20_000).for_each(|i| ghosts.left(hash(i), 100));
        // 1,000 entries are in a span and 8,000 in eight spans.
        assert!((0..10_000).all(|i| !ghosts.came(hash(i))), "older than eight spans");
        assert!((14_000..18_000).all(|i| !ghosts.came_recently(hash(i))), "older than a span");
        let known = (14_000..18_000).filter(|i| ghosts.came(hash(*i))).count();
        assert!(known > 2_000 && ghosts.found() == 0, "{known} known, {} counted", ghosts.found());
        let recent = (19_200..20_000).filter(|i| ghosts.came_recently(hash(*i))).count() as u64;
        assert!(recent > 500 && ghosts.found() == recent, "{recent} of the last 800");
    }
}
