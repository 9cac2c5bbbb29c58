//! [`Footprints`]: which keys the latest commits write. A transaction must know this of commits that are not applied
//! yet, because it cannot find their messages in the memtables.
//!
//! ```text
//!   ticket     …  17    18    19    20    21          a ring: ticket t in slot t mod N
//!   applied       yes   yes   no    yes   no
//!                             │           │
//!   footprint   …  k3    k9   k1,k7  –    many        "–": no transaction was open when it was drawn
//! ```
//!
//! 1. Under the sequencer, a commit leaves its footprint in the slot of its ticket: the hashes and the heads of at most
//!    [`MOST`] keys, or only the keyspaces, if it has more keys or deletes a range. It does so only while a transaction
//!    with writes is open.
//! 2. Before a transaction draws its own ticket, it looks at the footprints of all tickets since its read point, or since
//!    it last searched the memtables. A footprint that has none of its keys is *apart*. In all other cases the answer is
//!    "perhaps": the transaction then waits until this ticket is applied, and searches the memtables. So the footprints
//!    never decide that there is a conflict, and a lost or unknown footprint costs only time.
//!
//! A reader may look at a slot without the sequencer, while a commit writes into it. The slot's first word is the number
//! of its ticket plus one. The writer sets it to 0, stores the other words, and then sets it to the new number. A reader
//! that finds the number of its ticket before and after it reads the words has read words of that ticket: if it had read
//! a newer word, the store of 0 that precedes this word would be visible to its second look
//! (`crates/explore/loom`, model `footprints`).
//!
//! Invariant: the slot of a ticket is written before the next ticket is drawn.

use super::watermark::CachePadded;
use crate::base::range::head;
use crate::base::sync::{
    AtomicU64, EXPLORED, Once,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::base::{HashedKey, KeyspaceId, SeededBug, Seqno, seeded};

/// The number of keys that a footprint describes. With them a slot fills a cache line.
pub const MOST: usize = 3;
/// The number of slots. A transaction that searches the memtables for about 5 ms does not lose the footprints of a
/// writer that commits once a microsecond. Under the explorers of schedules the number is small, so that slots are used
/// again.
const SLOTS: usize = if EXPLORED { 2 } else { 4096 };

/// A key of a footprint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// The hash of the key, mixed with its keyspace ([`mixed`]).
    pub hash: u32,
    /// The first bytes of the stored key ([`head`]).
    pub head: u64,
}

/// The keys that a commit writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// A bit for each keyspace; several keyspaces may share a bit.
    keyspaces: u32,
    /// The number of keys; more than [`MOST`] if there are other keys as well.
    count: u32,
    keys: [Trace; MOST],
}

impl Footprint {
    /// A footprint that may have any key.
    pub const UNKNOWN: Footprint =
        Footprint { keyspaces: u32::MAX, count: MOST as u32 + 1, keys: [Trace { hash: 0, head: 0 }; MOST] };

    /// Adds a key.
    pub fn add(&mut self, keyspace: KeyspaceId, key: HashedKey<'_>) {
        self.keyspaces |= bit(keyspace);
        if let Some(slot) = self.keys.get_mut(self.count as usize) {
            *slot = Trace { hash: mixed(keyspace, key.hash), head: head(key.key) };
            self.count += 1;
        } else {
            self.count = MOST as u32 + 1;
        }
    }

    /// Adds a range of keys.
    pub fn add_range(&mut self, keyspace: KeyspaceId) {
        self.keyspaces |= bit(keyspace);
        self.count = seeded!(FootprintRangeExact: self.count, MOST as u32 + 1);
    }

    /// Whether the commit may write a key of a keyspace whose bit is in `keyspaces` ([`bit`]).
    pub fn may_touch_any(&self, keyspaces: u32) -> bool {
        self.keyspaces & keyspaces != 0
    }

    /// Whether the commit may write a key of this keyspace.
    pub fn may_touch(&self, keyspace: KeyspaceId) -> bool {
        self.keyspaces & bit(keyspace) != 0
    }

    /// The keys, or `None` if they are not known.
    pub fn keys(&self) -> Option<&[Trace]> {
        self.keys.get(..self.count as usize)
    }
}

/// The hash of a key, so that equal keys of different keyspaces differ.
pub fn mixed(keyspace: KeyspaceId, hash: u64) -> u32 {
    (hash ^ u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)) as u32
}

/// The bit of a keyspace in a footprint.
pub fn bit(keyspace: KeyspaceId) -> u32 {
    1 << (keyspace.0 % 32)
}

/// A slot: the number of the ticket plus one; its last seqno; the bits of the keyspaces and the count; the hashes of the
/// keys, two in a word; their heads.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot([AtomicU64; 3 + HASH_WORDS + MOST]);

/// The number of words for the hashes of a slot.
const HASH_WORDS: usize = MOST.div_ceil(2);

/// Lets commits leave their footprints, until it is dropped.
pub struct Wanted<'a>(&'a Footprints);

impl Wanted<'_> {
    /// Lets commits leave their footprints in `footprints`.
    pub fn by(footprints: &Footprints) -> Wanted<'_> {
        footprints.enter();
        Wanted(footprints)
    }
}

impl Drop for Wanted<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The footprints of the latest commits.
#[derive(Debug, Default)]
pub struct Footprints {
    /// The number of open transactions that have writes. Alone in its cache line, because every commit reads the fields
    /// beside it.
    open: CachePadded<AtomicU64>,
    /// The slots; made for the first transaction.
    slots: Once<Box<[Slot]>>,
}

impl Footprints {
    /// Called before the first write of a transaction. From then on, commits leave their footprints.
    pub fn enter(&self) {
        self.slots.get_or_init(|| (0..SLOTS).map(|_| Slot::default()).collect());
        self.open.fetch_add(1, Relaxed);
    }

    /// Called when such a transaction ends.
    pub fn leave(&self) {
        let before = self.open.fetch_sub(1, Relaxed);
        assert!(before > 0, "a transaction ends once");
    }

    /// Whether commits leave their footprints.
    #[inline]
    pub fn are_wanted(&self) -> bool {
        self.open.load(Relaxed) > 0
    }

    /// Leaves the footprint of a ticket with its last seqno. REQUIRES: the caller holds the sequencer, under which it has
    /// drawn the ticket.
    pub fn leave_behind(&self, ticket: u64, last: Seqno, footprint: &Footprint) {
        let Some(slots) = self.slots.get() else { return };
        let Slot([stamp, seqno, sizes, words @ ..]) = &slots[(ticket % SLOTS as u64) as usize];
        debug_assert!(stamp.load(Relaxed) <= ticket, "tickets ascend");
        stamp.store(0, Relaxed);
        seqno.store(last.0, Release);
        sizes.store(u64::from(footprint.keyspaces) | u64::from(footprint.count) << 32, Release);
        if let Some(keys) = footprint.keys() {
            let (hashes, heads) = words.split_at(HASH_WORDS);
            for (word, pair) in hashes.iter().zip(keys.chunks(2)) {
                let high = pair.get(1).map_or(0, |key| key.hash);
                word.store(u64::from(pair[0].hash) | u64::from(high) << 32, Release);
            }
            heads.iter().zip(keys).for_each(|(word, key)| word.store(key.head, Release));
        }
        stamp.store(ticket + 1, Release);
    }

    /// The last seqno and the footprint of a ticket; `None` if it has left none, or if it is lost.
    pub fn of(&self, ticket: u64) -> Option<(Seqno, Footprint)> {
        let Slot([stamp, seqno, sizes, words @ ..]) = &self.slots.get()?[(ticket % SLOTS as u64) as usize];
        if stamp.load(Acquire) != ticket + 1 {
            return None;
        }
        let (last, sizes) = (Seqno(seqno.load(Acquire)), sizes.load(Acquire));
        let (keyspaces, count) = (sizes as u32, (sizes >> 32) as u32);
        let mut footprint = Footprint { keyspaces, count, ..Footprint::default() };
        let known = footprint.keys().map_or(0, <[Trace]>::len);
        let (hashes, heads) = words.split_at(HASH_WORDS);
        for (i, key) in footprint.keys[..known].iter_mut().enumerate() {
            let hash = (hashes[i / 2].load(Acquire) >> (32 * (i % 2))) as u32;
            *key = Trace { hash, head: heads[i].load(Acquire) };
        }
        let is_whole = stamp.load(Relaxed) == ticket + 1 || SeededBug::FootprintTorn.is_on();
        is_whole.then_some((last, footprint))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEYSPACE: KeyspaceId = KeyspaceId(3);

    fn key(hash: u64) -> HashedKey<'static> {
        HashedKey { key: b"k", hash }
    }

    #[test]
    fn a_footprint_is_found_until_its_slot_is_used_again() {
        let footprints = Footprints::default();
        let mut one = Footprint::default();
        one.add(KEYSPACE, key(7));
        footprints.leave_behind(0, Seqno(1), &one);
        assert_eq!(footprints.of(0), None, "no transaction is open");
        footprints.enter();
        assert!(footprints.are_wanted());
        footprints.leave_behind(5, Seqno(9), &one);
        assert_eq!((footprints.of(5), footprints.of(6)), (Some((Seqno(9), one)), None));
        let mut many = one;
        (0..MOST as u64).for_each(|hash| many.add(KEYSPACE, key(hash)));
        footprints.leave_behind(5 + SLOTS as u64, Seqno(99), &many);
        let (last, found) = footprints.of(5 + SLOTS as u64).expect("left");
        assert_eq!(last, Seqno(99));
        assert_eq!((footprints.of(5), found.keys(), found.may_touch(KEYSPACE)), (None, None, true));
        let mut three = Footprint::default();
        (1..4).for_each(|hash| three.add(KEYSPACE, key(hash << 20 | 5)));
        footprints.leave_behind(7, Seqno(100), &three);
        assert_eq!(footprints.of(7), Some((Seqno(100), three)));
        footprints.leave();
        assert!(!footprints.are_wanted());
    }

    #[test]
    fn a_footprint_tells_keyspaces_and_keys() {
        let (mut footprint, other) = (Footprint::default(), KeyspaceId(4));
        footprint.add(KEYSPACE, key(7));
        assert!(footprint.may_touch(KEYSPACE) && !footprint.may_touch(other));
        assert_eq!(footprint.keys(), Some(&[Trace { hash: mixed(KEYSPACE, 7), head: head(b"k") }][..]));
        assert_ne!(mixed(KEYSPACE, 7), mixed(other, 7));
        footprint.add_range(other);
        assert!(footprint.keys().is_none() && footprint.may_touch(other));
        let mut full = Footprint::default();
        (0..MOST as u64).for_each(|hash| full.add(KEYSPACE, key(hash)));
        assert_eq!(full.keys().map(<[Trace]>::len), Some(MOST));
        full.add(KEYSPACE, key(9));
        assert!(full.keys().is_none());
        assert!(Footprint::UNKNOWN.keys().is_none() && Footprint::UNKNOWN.may_touch(other));
    }
}
