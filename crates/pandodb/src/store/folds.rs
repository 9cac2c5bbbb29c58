//! [`Folds`] remembers the values of keys that have many merge operands in memtables, so that a read need not fold all
//! of these operands again.
//!
//! ```text
//!   messages of a key, newest first:   merge 95 | merge 93 | merge 70 | merge 64 | … | merge 41 │ view, through 40
//!   fold of the key:                                        └──── value as of seqno 70 ────────────────────────┘
//!   a read at 95 takes 95 and 93, and then the fold as its base
//! ```
//!
//! 1. A read that found at least [`MIN_OPERANDS`] operands, or a fold and newer operands, leaves its result here, as
//!    the value as of its read point ([`Folds::keep`]). A commit that notices a long chain of operands does such a read
//!    itself, so that the first read of a counter is fast, too.
//! 2. A lookup whose newest message is an operand asks for a fold ([`Folds::find`]). It then visits only messages that
//!    are newer than the fold. Other lookups never come here.
//!
//! A fold with seqno s serves a read at `at` in a view that includes the messages through t if **t ≤ s ≤ at**:
//!
//! * s ≤ `at`: a snapshot must not see operands that are newer than it.
//! * t ≤ s: a compaction combines operands into one message with the seqno of the *newest* of them. So a message of the
//!   view with a seqno above s may include operands that the fold includes, too. If t ≤ s, every message above s is an
//!   original message in a memtable, and the view is not needed. A fold is useless after a pack of its memtable, but
//!   then the pack has combined the operands.
//!
//! The value as of s never changes: s was visible when the fold was computed, so all messages through s were inserted.
//! An operator of a keyspace is fixed while the store is open, and the id of a dropped keyspace is never used again.
//! The folds are in memory only.
//!
//! The table is an array of small buckets. It is bounded by bytes; full buckets, and buckets in turn while the table is
//! over its limit, evict the entry that was used least recently. For each key the table keeps two folds: while one
//! thread stores a newer fold, another thread may read at a slightly older read point.
//!
//! Invariants: a fold is not newer than `visible`; the folds of a key only move to newer seqnos; a bucket has at most
//! [`WAYS`] entries, and at most one for each key. Lock: one bucket at a time, and no other lock is taken under it.

use std::sync::Arc;

use crate::base::sync::{AtomicUsize, EXPLORED, Mutex, Ordering::Relaxed};
use crate::base::{KeyspaceId, SeededBug, Seqno};
use crate::index::Fold;

/// A read that found no fold and fewer operands leaves no fold: repeating it costs little more than storing a fold.
pub(crate) const MIN_OPERANDS: usize = if EXPLORED { 2 } else { 8 };
/// The most operands that a small commit visits in order to fold a key. The limit matters only if the last fold of the
/// key was evicted.
pub(crate) const MAX_OPERANDS: usize = 1 << 10;
/// The most bytes of key and value together. Longer values are not kept: lists that grow by appending would be copied
/// again and again.
pub(crate) const MAX_BYTES: usize = 1 << 10;
/// The most entries of a bucket.
const WAYS: usize = 4;
/// The number of buckets is such that full buckets with entries of this size reach the limit.
const TYPICAL_BYTES: usize = 128;

/// A key in a keyspace, with the hash of the key.
#[derive(Clone, Copy)]
pub(crate) struct FoldKey<'a> {
    pub keyspace: KeyspaceId,
    /// The key in its stored form.
    pub key: &'a [u8],
    pub hash: u64,
}

/// The folds of one key.
#[derive(Debug)]
struct Entry {
    keyspace: KeyspaceId,
    key: Box<[u8]>,
    newest: Option<Fold>,
    older: Option<Fold>,
    /// The seqno as of which a commit could not fold the key cheaply. Commits try again only after a pack.
    given_up: Option<Seqno>,
}

impl Entry {
    fn new(key: FoldKey<'_>) -> Entry {
        Entry { keyspace: key.keyspace, key: key.key.into(), newest: None, older: None, given_up: None }
    }

    fn is_of(&self, key: FoldKey<'_>) -> bool {
        self.keyspace == key.keyspace && *self.key == *key.key
    }

    /// Memory taken, in bytes.
    fn bytes(&self) -> usize {
        let folds = [&self.newest, &self.older].into_iter().flatten();
        let values = folds.filter_map(|fold| Some(fold.value.as_ref()?.len() + 2 * size_of::<usize>()));
        size_of::<Entry>() + self.key.len() + values.sum::<usize>()
    }
}

/// Entries, the most recently used entry first.
type Bucket = Vec<Entry>;

/// The table of folds of a store.
#[derive(Debug)]
pub(crate) struct Folds {
    buckets: Box<[Mutex<Bucket>]>,
    /// The most bytes of all entries.
    limit: usize,
    bytes: AtomicUsize,
    /// The next bucket that evicts an entry if the table is over its limit.
    hand: AtomicUsize,
}

impl Folds {
    /// Makes an empty table of at most about `bytes` bytes. With 0 bytes the table stays empty.
    pub(crate) fn new(bytes: usize) -> Folds {
        let buckets = (bytes / (WAYS * TYPICAL_BYTES)).max(1);
        let buckets: Box<[Mutex<Bucket>]> = (0..1 << buckets.ilog2()).map(|_| Mutex::default()).collect();
        let limit = bytes.saturating_sub(size_of_val(&*buckets));
        assert!(buckets.len().is_power_of_two() && limit <= bytes);
        Folds { buckets, limit, bytes: AtomicUsize::new(0), hand: AtomicUsize::new(0) }
    }

    /// Whether the table never holds anything.
    #[inline]
    pub(crate) fn is_off(&self) -> bool {
        self.limit == 0
    }

    /// Memory of all entries in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// The newest fold that serves a read at `at` in a view that includes all messages through `through`.
    pub(crate) fn find(&self, key: FoldKey<'_>, at: Seqno, through: Seqno) -> Option<Fold> {
        if self.bytes() == 0 {
            return None;
        }
        let mut bucket = self.bucket(key).lock();
        let entry = touch(&mut bucket, key)?;
        let serves = |fold: &&Fold| {
            (fold.seqno <= at || SeededBug::FoldPastReadPoint.is_on())
                && (through <= fold.seqno || SeededBug::FoldSurvivesPack.is_on())
        };
        let found = [&entry.newest, &entry.older].into_iter().flatten().find(serves);
        debug_assert!(entry.newest.is_some() || entry.older.is_none(), "the newest fold is in its field");
        found.cloned()
    }

    /// Keeps the value of a key as of `seqno`. REQUIRES: every message through `seqno` is applied, that is, `seqno` is
    /// at most `visible`. A value that is too long is not kept; commits then leave the key alone.
    pub(crate) fn keep(&self, key: FoldKey<'_>, seqno: Seqno, value: Option<&[u8]>, visible: Seqno) {
        assert!(seqno <= visible, "a fold as of {seqno} would lack messages that are not applied yet");
        if key.key.len() + value.map_or(0, <[u8]>::len) > MAX_BYTES {
            return self.give_up(key, seqno);
        }
        self.change(key, |entry| {
            if entry.newest.as_ref().is_some_and(|newest| newest.seqno >= seqno) {
                return;
            }
            entry.older = entry.newest.replace(Fold { seqno, value: value.map(Arc::from) });
            entry.given_up.take_if(|given_up| *given_up <= seqno);
            debug_assert!(
                entry.older.as_ref().is_none_or(|older| older.seqno < seqno),
                "the folds of a key only move to newer seqnos"
            );
        });
    }

    /// Notes that a commit could not fold the key as of `seqno`.
    pub(crate) fn give_up(&self, key: FoldKey<'_>, seqno: Seqno) {
        if key.key.len() <= MAX_BYTES {
            self.change(key, |entry| entry.given_up = entry.given_up.max(Some(seqno)));
        }
    }

    /// Whether a commit should try to fold a key whose view includes all messages through `through`.
    pub(crate) fn wants(&self, key: FoldKey<'_>, through: Seqno) -> bool {
        if self.is_off() || key.key.len() > MAX_BYTES {
            return false;
        }
        let mut bucket = self.bucket(key).lock();
        touch(&mut bucket, key).is_none_or(|entry| entry.given_up.is_none_or(|given_up| given_up < through))
    }

    /// Changes the entry of a key, which is created if it does not exist.
    fn change(&self, key: FoldKey<'_>, change: impl FnOnce(&mut Entry)) {
        if self.is_off() {
            return;
        }
        {
            let mut bucket = self.bucket(key).lock();
            if touch(&mut bucket, key).is_none() {
                if bucket.len() == WAYS {
                    self.evict(&mut bucket);
                }
                let entry = Entry::new(key);
                self.bytes.fetch_add(entry.bytes(), Relaxed);
                bucket.insert(0, entry);
            }
            let entry = &mut bucket[0];
            assert!(entry.is_of(key), "the entry that was used last is the first one");
            let before = entry.bytes();
            change(entry);
            // Add first, so that the sum never falls below 0 in between.
            self.bytes.fetch_add(entry.bytes(), Relaxed);
            self.bytes.fetch_sub(before, Relaxed);
            debug_assert!(bucket.len() <= WAYS, "{} entries in a bucket", bucket.len());
        }
        self.shrink();
    }

    /// Evicts entries, from one bucket after the other, until the table is within its limit.
    fn shrink(&self) {
        let most = WAYS * self.buckets.len();
        for turn in 0..2 * most {
            if self.bytes() <= self.limit {
                return;
            }
            let at = self.hand.fetch_add(1, Relaxed) % self.buckets.len();
            let mut bucket = self.buckets[at].lock();
            // First evict only from buckets with several entries, because a single entry may be the newest one.
            if bucket.len() > 1 || turn >= most {
                self.evict(&mut bucket);
            }
        }
    }

    /// Evicts the entry of a bucket that was used least recently.
    fn evict(&self, bucket: &mut Bucket) {
        if let Some(evicted) = bucket.pop() {
            let before = self.bytes.fetch_sub(evicted.bytes(), Relaxed);
            debug_assert!(before >= evicted.bytes(), "an entry is counted while it exists");
        }
    }

    fn bucket(&self, key: FoldKey<'_>) -> &Mutex<Bucket> {
        // Keyspaces often have the same keys. The multiplier is odd, so different keyspaces have different numbers.
        let mixed = key.hash ^ u64::from(key.keyspace.0).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        &self.buckets[mixed as usize & (self.buckets.len() - 1)]
    }
}

/// Finds the entry of a key, and moves it to the front of its bucket.
fn touch<'b>(bucket: &'b mut Bucket, key: FoldKey<'_>) -> Option<&'b mut Entry> {
    let at = bucket.iter().position(|entry| entry.is_of(key))?;
    bucket[..=at].rotate_right(1);
    bucket.first_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::key_hash;

    fn key(keyspace: u32, key: &[u8]) -> FoldKey<'_> {
        FoldKey { keyspace: KeyspaceId(keyspace), key, hash: key_hash(key) }
    }

    fn found(folds: &Folds, at: u64, through: u64) -> Option<u64> {
        folds.find(key(1, b"k"), Seqno(at), Seqno(through)).map(|fold| fold.seqno.0)
    }

    #[test]
    fn a_fold_serves_reads_at_or_after_it_in_views_at_or_before_it() {
        let folds = Folds::new(1 << 16);
        folds.keep(key(1, b"k"), Seqno(10), Some(b"ten"), Seqno(12));
        assert_eq!([found(&folds, 9, 0), found(&folds, 10, 0), found(&folds, 99, 10)], [None, Some(10), Some(10)]);
        assert_eq!(found(&folds, 99, 11), None, "the view may hold a message that includes operands of the fold");
        assert!(folds.find(key(2, b"k"), Seqno(99), Seqno(0)).is_none(), "another keyspace");
        assert!(folds.find(key(1, b"l"), Seqno(99), Seqno(0)).is_none(), "another key");
    }

    #[test]
    fn two_folds_of_a_key_are_kept_and_only_move_to_newer_seqnos() {
        let folds = Folds::new(1 << 16);
        for seqno in [10, 30, 20, 30] {
            folds.keep(key(1, b"k"), Seqno(seqno), Some(&[seqno as u8]), Seqno(40));
        }
        assert_eq!([found(&folds, 40, 0), found(&folds, 29, 0), found(&folds, 29, 11)], [Some(30), Some(10), None]);
        folds.keep(key(1, b"k"), Seqno(35), None, Seqno(40));
        assert_eq!([found(&folds, 40, 0), found(&folds, 34, 0), found(&folds, 29, 0)], [Some(35), Some(30), None]);
        assert!(folds.find(key(1, b"k"), Seqno(40), Seqno(0)).is_some_and(|fold| fold.value.is_none()));
    }

    #[test]
    #[should_panic(expected = "not applied yet")]
    fn a_fold_above_visible_is_refused() {
        Folds::new(1 << 16).keep(key(1, b"k"), Seqno(11), None, Seqno(10));
    }

    #[test]
    fn commits_leave_a_key_alone_whose_value_is_too_long_until_its_memtable_is_packed() {
        let folds = Folds::new(1 << 16);
        let k = key(1, b"k");
        assert!(folds.wants(k, Seqno(0)));
        folds.keep(k, Seqno(10), Some(&[7; MAX_BYTES]), Seqno(10));
        assert_eq!(found(&folds, 99, 0), None);
        assert!(!folds.wants(k, Seqno(0)) && !folds.wants(k, Seqno(10)) && folds.wants(k, Seqno(11)));
        folds.keep(k, Seqno(12), Some(b"short"), Seqno(12));
        assert!(folds.wants(k, Seqno(0)), "a read could fold it");
        let long = [1; MAX_BYTES + 1];
        assert!(!folds.wants(key(1, &long), Seqno(0)));
    }

    #[test]
    fn the_table_stays_within_its_limit_and_keeps_what_is_used() {
        for limit in [0, 100, 4 << 10, 64 << 10] {
            let folds = Folds::new(limit);
            for i in 0..5000_u64 {
                let bytes = i.to_be_bytes();
                folds.keep(key(1, &bytes), Seqno(i + 1), Some(&[0; 40]), Seqno(i + 1));
                folds.keep(key(1, b"k"), Seqno(i + 1), Some(b"hot"), Seqno(i + 1));
                assert!(folds.bytes() <= folds.limit, "{} of {}", folds.bytes(), folds.limit);
            }
            let entries =
                folds.buckets.iter().flat_map(|bucket| bucket.lock().iter().map(Entry::bytes).collect::<Vec<_>>());
            assert_eq!(entries.sum::<usize>(), folds.bytes());
            assert!(folds.buckets.iter().all(|bucket| bucket.lock().len() <= WAYS));
            assert_eq!(found(&folds, 5000, 0), (limit >= 4 << 10).then_some(5000), "{limit}");
        }
    }
}
