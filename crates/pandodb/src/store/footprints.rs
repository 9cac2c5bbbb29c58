//! [`Footprints`]: which keys the latest commits write. A transaction must know this of commits that are not applied
//! yet, because it cannot find their messages in the memtables.
//!
//! ```text
//!   ticket     …  17    18    19    20    21          a ring: ticket t in slot t mod N
//!   applied       yes   yes   no    yes   no
//!                             │           │
//!   footprint   …  k3    k9   k1,k7  –    many        "–": no transaction needed it when it was drawn
//! ```
//!
//! 1. Under the sequencer, a commit publishes its footprint in the slot of its ticket, but only while a transaction is
//!    open that has both writes and something to validate. The footprint of at most [`MAX_LISTED`] keys has their
//!    hashes and their heads (the first 8 bytes of a key as a number). That of at most [`MAX_KEYS`] keys has a Bloom
//!    filter of their hashes. That of more keys, or of a range delete, has only the keyspaces.
//! 2. Before a transaction draws its own ticket, it looks at the footprints of all tickets since its read point, or
//!    since it last searched the memtables. A footprint that has none of its keys is *disjoint*. In all other cases the
//!    commit is in doubt: the transaction then waits until this ticket is applied, and searches the memtables. So the
//!    footprints never decide that there is a conflict, and a lost or unknown footprint costs only time.
//!
//! A reader may look at a slot without the sequencer, while a commit writes into it. The slot's first word is the
//! number of its ticket plus one. The writer sets it to 0, stores the other words, and then sets it to the new number.
//! A reader that finds the number of its ticket before and after it reads the words has read words of that ticket: if
//! it had read a newer word, the store of 0 that precedes this word would be visible to its second look
//! (`crates/explore/loom`, model `footprints`).
//!
//! Invariant: the slot of a ticket is written before the next ticket is drawn.

use super::watermark::CachePadded;
use crate::base::range::{Heads, head};
use crate::base::sync::{
    AtomicU64, EXPLORED, Once,
    Ordering::{Acquire, Relaxed, Release},
};
use crate::base::{HashedKey, KeyspaceId, SeededBug, Seqno, seeded};

/// The most keys of a footprint that lists its keys.
pub const MAX_LISTED: usize = 3;
/// The most keys of a footprint with a Bloom filter. With 2 bits a key, a filter of 320 bits has 11 % false positives
/// for 64 keys, and 1 % for 16.
pub const MAX_KEYS: usize = 64;
/// The number of keys of a footprint that does not describe its keys.
const UNKNOWN: u32 = MAX_KEYS as u32 + 1;
/// The words of a footprint. With them a slot fills a cache line.
const WORDS: usize = 5;
const HASH_WORDS: usize = MAX_LISTED.div_ceil(2);
const _: () = assert!(HASH_WORDS + MAX_LISTED == WORDS, "the hashes, two in a word, and the heads fill the words");
/// The number of slots. A transaction that searches the memtables for about 5 ms does not lose the footprints of a
/// writer that commits once a microsecond. Under the explorers of schedules the number is small, so that slots are used
/// again.
const SLOTS: usize = if EXPLORED { 2 } else { 4096 };

/// The keys that a commit writes: exactly, approximately, or only their keyspaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// A bit for each keyspace; several keyspaces may share a bit.
    keyspaces: u32,
    /// The number of keys; [`UNKNOWN`] if there are too many, or a range.
    count: u32,
    /// Up to [`MAX_LISTED`] keys: their hashes, two in a word, and then their heads. More keys: a Bloom filter.
    words: [u64; WORDS],
}

impl Footprint {
    /// A footprint that may have any key.
    pub const ANY: Footprint = Footprint { keyspaces: u32::MAX, count: UNKNOWN, words: [0; WORDS] };

    /// Adds a key. REQUIRES: if the commit has more than [`MAX_LISTED`] keys, all keys are added with
    /// [`Footprint::add_to_filter`].
    pub fn add(&mut self, keyspace: KeyspaceId, key: HashedKey<'_>) {
        self.keyspaces |= bit(keyspace);
        if self.count == UNKNOWN {
            return;
        }
        let at = self.count as usize;
        assert!(at < MAX_LISTED, "more keys are added to the filter");
        self.words[at / 2] |= u64::from(mixed(keyspace, key.hash)) << (32 * (at % 2));
        self.words[HASH_WORDS + at] = head(key.key);
        self.count += 1;
    }

    /// Adds one of the more than [`MAX_LISTED`] keys of a commit.
    pub fn add_to_filter(&mut self, keyspace: KeyspaceId, hash: u64) {
        self.keyspaces |= bit(keyspace);
        if self.count < UNKNOWN {
            add_to_bloom(&mut self.words, seeded!(FilterLacksKeys: 0, mixed(keyspace, hash)));
            self.count += 1;
        }
    }

    /// Adds a range of keys, or more keys than are described.
    pub fn add_range(&mut self, keyspace: KeyspaceId) {
        self.keyspaces |= bit(keyspace);
        self.count = seeded!(FootprintRangeExact: self.count, UNKNOWN);
    }

    /// Whether the footprint lists its keys.
    fn is_list(&self) -> bool {
        self.count as usize <= MAX_LISTED
    }

    /// The hashes of the keys; `None` if they are not listed.
    pub fn hashes(&self) -> Option<impl Iterator<Item = u32>> {
        let at = |i: usize| (self.words[i / 2] >> (32 * (i % 2))) as u32;
        self.is_list().then(|| (0..self.count as usize).map(at))
    }

    /// Whether the commit may write a key of a keyspace whose bit is in `keyspaces` ([`bit`]).
    pub fn may_touch_any(&self, keyspaces: u32) -> bool {
        self.keyspaces & keyspaces != 0
    }

    /// Whether the commit may write a key, given by its [`mixed`] hash.
    pub fn may_touch_key(&self, keyspace: KeyspaceId, hash: u32) -> bool {
        self.may_touch_any(bit(keyspace))
            && match self.hashes() {
                Some(mut hashes) => hashes.any(|written| written == hash),
                None if self.count == UNKNOWN => true,
                None => is_in_bloom(&self.words, hash),
            }
    }

    /// Whether the commit may write a key between two bounds.
    pub fn may_touch_range(&self, keyspace: KeyspaceId, bounds: Heads) -> bool {
        let heads = || &self.words[HASH_WORDS..HASH_WORDS + self.count as usize];
        self.may_touch_any(bit(keyspace))
            && (!self.is_list() || heads().iter().any(|head| bounds.tell(*head) != Some(false)))
    }
}

/// The two bits of a key in a Bloom filter of at most 65,536 bits: their words and masks.
fn places(words: usize, hash: u32) -> [(usize, u64); 2] {
    [hash & 0xffff, hash >> 16].map(|half| half as usize % (64 * words)).map(|bit| (bit / 64, 1 << (bit % 64)))
}

/// Adds a key to a Bloom filter, by its [`mixed`] hash.
pub fn add_to_bloom(words: &mut [u64], hash: u32) {
    places(words.len(), hash).into_iter().for_each(|(word, mask)| words[word] |= mask);
}

/// Whether a key may have been added to a Bloom filter.
pub fn is_in_bloom(words: &[u64], hash: u32) -> bool {
    places(words.len(), hash).into_iter().all(|(word, mask)| words[word] & mask != 0)
}

/// The hash of a key, so that equal keys of different keyspaces differ.
pub fn mixed(keyspace: KeyspaceId, hash: u64) -> u32 {
    (hash ^ u64::from(keyspace.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)) as u32
}

/// The bit of a keyspace in a footprint.
pub fn bit(keyspace: KeyspaceId) -> u32 {
    1 << (keyspace.0 % 32)
}

/// A slot: the number of the ticket plus one; its last seqno; the bits of the keyspaces and the count; the words.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot([AtomicU64; 3 + WORDS]);

/// Lets commits leave their footprints, until it is dropped.
pub struct FootprintGuard<'a>(&'a Footprints);

impl FootprintGuard<'_> {
    /// Lets commits leave their footprints in `footprints`.
    pub fn of(footprints: &Footprints) -> FootprintGuard<'_> {
        footprints.enter();
        FootprintGuard(footprints)
    }
}

impl Drop for FootprintGuard<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// The footprints of the latest commits.
#[derive(Debug, Default)]
pub struct Footprints {
    /// The number of open transactions that have both writes and something to validate. Alone in its cache line,
    /// because every commit reads the fields beside it.
    open: CachePadded<AtomicU64>,
    /// The slots; made for the first transaction.
    slots: Once<Box<[Slot]>>,
}

impl Footprints {
    /// Called when a transaction has both writes and something to validate. From then on, commits leave their
    /// footprints.
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

    /// Publishes the footprint of a ticket with its last seqno. REQUIRES: the caller holds the sequencer, under which
    /// it has drawn the ticket.
    pub fn publish(&self, ticket: u64, last: Seqno, footprint: &Footprint) {
        let Some(slots) = self.slots.get() else { return };
        let Slot([stamp, seqno, sizes, words @ ..]) = &slots[(ticket % SLOTS as u64) as usize];
        debug_assert!(stamp.load(Relaxed) <= ticket, "tickets ascend");
        stamp.store(0, Relaxed);
        seqno.store(last.0, Release);
        sizes.store(u64::from(footprint.keyspaces) | u64::from(footprint.count) << 32, Release);
        words.iter().zip(footprint.words).for_each(|(word, value)| word.store(value, Release));
        stamp.store(ticket + 1, Release);
    }

    /// The last seqno and the footprint of a ticket; `None` if none was published, or if it is lost.
    pub fn get(&self, ticket: u64) -> Option<(Seqno, Footprint)> {
        let Slot([stamp, seqno, sizes, words @ ..]) = &self.slots.get()?[(ticket % SLOTS as u64) as usize];
        if stamp.load(Acquire) != ticket + 1 {
            return None;
        }
        let (last, sizes) = (Seqno(seqno.load(Acquire)), sizes.load(Acquire));
        let words = words.each_ref().map(|word| word.load(Acquire));
        let is_whole = stamp.load(Relaxed) == ticket + 1 || SeededBug::FootprintTorn.is_on();
        is_whole.then_some((last, Footprint { keyspaces: sizes as u32, count: (sizes >> 32) as u32, words }))
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
        footprints.publish(0, Seqno(1), &one);
        assert_eq!(footprints.get(0), None, "no transaction is open");
        let guard = FootprintGuard::of(&footprints);
        assert!(footprints.are_wanted());
        footprints.publish(5, Seqno(9), &one);
        assert_eq!((footprints.get(5), footprints.get(6)), (Some((Seqno(9), one)), None));
        let mut many = Footprint::default();
        (0..20).for_each(|hash| many.add_to_filter(KEYSPACE, hash << 13));
        footprints.publish(5 + SLOTS as u64, Seqno(99), &many);
        assert_eq!((footprints.get(5), footprints.get(5 + SLOTS as u64)), (None, Some((Seqno(99), many))));
        drop(guard);
        assert!(!footprints.are_wanted());
    }

    #[test]
    fn a_list_tells_keyspaces_keys_and_ranges() {
        let (mut footprint, other) = (Footprint::default(), KeyspaceId(4));
        for hash in [7, 8 << 20, 9] {
            footprint.add(KEYSPACE, key(hash));
        }
        for (hash, is_in) in [(7, true), (8 << 20, true), (9, true), (10, false)] {
            assert_eq!(footprint.may_touch_key(KEYSPACE, mixed(KEYSPACE, hash)), is_in, "{hash}");
        }
        assert_eq!(footprint.hashes().map(Iterator::count), Some(3));
        assert!(!footprint.may_touch_any(bit(other)) && !footprint.may_touch_key(other, mixed(KEYSPACE, 7)));
        assert_ne!(mixed(KEYSPACE, 7), mixed(other, 7));
        assert!(footprint.may_touch_range(KEYSPACE, Heads::of(b"a", None)));
        assert!(!footprint.may_touch_range(KEYSPACE, Heads::of(b"a", Some(b"c"))));
        footprint.add_range(other);
        assert!(footprint.may_touch_key(other, 1) && footprint.may_touch_range(other, Heads::of(b"a", Some(b"c"))));
        assert!(footprint.hashes().is_none());
        assert!(Footprint::ANY.may_touch_key(other, 3) && Footprint::ANY.may_touch_any(1));
    }

    #[test]
    fn a_filter_has_all_keys_and_few_others() {
        let hash = |i: u64| crate::base::key_hash(&i.to_be_bytes());
        let mut footprint = Footprint::default();
        (0..16).for_each(|i| footprint.add_to_filter(KEYSPACE, hash(i)));
        let is_in = |i: &u64| footprint.may_touch_key(KEYSPACE, mixed(KEYSPACE, hash(*i)));
        assert!((0..16).all(|i| is_in(&i)) && footprint.hashes().is_none());
        let others = (16..10_016).filter(is_in).count();
        assert!(others < 300, "{others} of 10,000");
        assert!(footprint.may_touch_range(KEYSPACE, Heads::of(b"a", Some(b"b"))), "a filter knows no order");
        (0..100).for_each(|i| footprint.add_to_filter(KEYSPACE, hash(i)));
        assert!((0..10_000).all(|i| footprint.may_touch_key(KEYSPACE, mixed(KEYSPACE, hash(i)))), "too many keys");
    }
}
