//! [`Ghosts`]: what left a cache lately, by hash, about: so that the cache learns what it would find if it had some more memory.
//!
//! ```text
//!   left(hash, bytes) ──▶ mark = (tag of the hash, epoch)      an epoch is an eighth of the span, in bytes that left
//!   came(hash) ─────────▶ same tag, epoch not older than the span?  then a cache larger by the span would still have had it
//! ```
//!
//! A mark may be overwritten by another's: the figure is a little too low. Nothing depends on it but how memory is shared out. Costs a store or
//! a load; takes no lock.
//!
//! Source: ghost entries as in ARC (Megiddo, Modha: "ARC: a self-tuning, low overhead replacement cache", FAST 2003).

use super::sync::{Counter, Ordering::Relaxed, Word};

/// Epochs of a span.
const EPOCHS: u64 = 8;

/// What left a cache within its last so many bytes.
#[derive(Debug)]
pub struct Ghosts {
    /// Tag and epoch; 0 is none. As many as a power of two.
    marks: Box<[Word]>,
    /// Of the hashes, one in so many is watched; a power of two, at most 8.
    sample: u64,
    /// Bytes of an epoch.
    epoch: u64,
    /// Bytes that have left.
    left: Counter,
    /// Those that came back in time.
    found: Counter,
}

impl Ghosts {
    /// Of the last `span` bytes that leave, in entries of about `entry` bytes; `sample`, a power of two, of which one is watched, saves memory where they
    /// are many.
    pub fn new(span: usize, entry: usize, sample: usize) -> Ghosts {
        debug_assert!(sample.is_power_of_two() && sample <= 8 && entry > 0);
        let marks = (span / entry / sample * 2).next_power_of_two().max(64);
        Ghosts {
            marks: (0..marks).map(|_| Word::new(0)).collect(),
            sample: sample as u64,
            epoch: (span as u64 / EPOCHS).max(1),
            left: Counter::new(0),
            found: Counter::new(0),
        }
    }

    /// The mark's place and what it is without its epoch; none if the hash is not watched.
    fn place(&self, hash: u64) -> Option<(usize, u64)> {
        // Hashes of several kinds come here, some with fewer bits than others.
        let hash = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let place = (hash >> 32) as usize & (self.marks.len() - 1);
        (hash >> 61 & (self.sample - 1) == 0).then_some((place, (hash | 1) << 16))
    }

    fn now(&self, left: u64) -> u64 {
        left / self.epoch
    }

    /// An entry of so many bytes leaves the cache to make room.
    pub fn left(&self, hash: u64, bytes: usize) {
        let before = self.left.fetch_add(bytes as u64, Relaxed);
        if let Some((at, tag)) = self.place(hash) {
            self.marks[at].store(tag | (self.now(before) & 0xffff), Relaxed);
        }
    }

    /// An entry was looked for and is not there.
    pub fn came(&self, hash: u64) {
        let Some((at, tag)) = self.place(hash) else { return };
        let mark = self.marks[at].load(Relaxed);
        let age = (self.now(self.left.load(Relaxed)) as u16).wrapping_sub(mark as u16);
        if mark & !0xffff == tag && u64::from(age) < EPOCHS {
            self.marks[at].store(0, Relaxed);
            self.found.fetch_add(self.sample, Relaxed);
        }
    }

    /// About how many came back within the span.
    pub fn found(&self) -> u64 {
        self.found.load(Relaxed)
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.marks.len() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_finds_what_left_lately_and_nothing_older() {
        for sample in [1, 8] {
            let ghosts = Ghosts::new(1_000_000, 100, sample);
            let hash = |i: u64| super::super::key_hash(&i.to_le_bytes());
            (0..40_000).for_each(|i| ghosts.left(hash(i), 100));
            (0..20_000).for_each(|i| ghosts.came(hash(i)));
            assert!(ghosts.found() < 100, "{}", ghosts.found());
            // The last 10,000 are the span.
            (30_000..40_000).for_each(|i| ghosts.came(hash(i)));
            let found = ghosts.found();
            assert!((6_500..=10_500).contains(&found), "{found} of one in {sample}");
            (30_000..40_000).for_each(|i| ghosts.came(hash(i)));
            assert_eq!(ghosts.found(), found, "once");
        }
    }
}
