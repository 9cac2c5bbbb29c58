//! Tests of the row cache: it agrees with a map, returns no outdated rows, and keeps within its memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::*;
use crate::base::random::Rng;
use crate::base::slab::MemorySource;
use crate::base::{BlockAddr, OwnerId, PAGE, PageNo, key_hash};
use crate::pool::{Keep, Pool};

fn key(i: u64) -> Vec<u8> {
    format!("row{i:09}").into_bytes()
}

/// Offers a row twice; the second offer caches it.
fn keep(rows: &IndexRows, i: u64, value: &[u8], seqno: u64, through: u64) {
    for _ in 0..2 {
        rows.offer(&key(i), key_hash(&key(i)), value, Seqno(seqno), Seqno(through));
    }
}

fn get(rows: &IndexRows, i: u64, at: u64) -> Option<Vec<u8>> {
    rows.get(&key(i), key_hash(&key(i)), Seqno(at), Seqno::MAX).map(|value| value.to_vec())
}

fn change(rows: &IndexRows, i: u64, change: Change<'_>) {
    rows.absorb(&key(i), key_hash(&key(i)), change);
}

#[test]
fn a_row_is_cached_at_the_second_offer_and_visible_from_its_seqno_on() {
    let rows = RowCache::new(1 << 20).of_index(Seqno(10));
    rows.offer(&key(1), key_hash(&key(1)), b"one", Seqno(5), Seqno(10));
    assert_eq!(get(&rows, 1, 10), None);
    keep(&rows, 1, b"one", 5, 10);
    assert_eq!(get(&rows, 1, 10).unwrap(), b"one");
    assert_eq!(get(&rows, 1, 5).unwrap(), b"one");
    assert_eq!(get(&rows, 1, 4), None, "a snapshot before it");
    let stats = rows.cache.stats();
    assert_eq!((stats.rows, stats.hits, stats.misses), (1, 2, 2));
}

#[test]
fn rows_of_an_older_root_are_refused_after_a_memtable_was_absorbed() {
    let rows = RowCache::new(1 << 20).of_index(Seqno(10));
    keep(&rows, 1, b"one", 5, 10);
    assert!(rows.begin(Seqno(20)));
    keep(&rows, 2, b"two", 5, 10);
    assert_eq!(get(&rows, 2, 30), None);
    change(&rows, 1, Change::Value(b"ONE", Seqno(15)));
    assert_eq!((get(&rows, 1, 30).unwrap(), get(&rows, 1, 14)), (b"ONE".to_vec(), None));
    keep(&rows, 2, b"two", 5, 20);
    assert_eq!(get(&rows, 2, 30).unwrap(), b"two");
    change(&rows, 1, Change::Value(b"of another length", Seqno(16)));
    change(&rows, 2, Change::Other);
    change(&rows, 3, Change::Value(b"never asked for", Seqno(17)));
    assert_eq!((get(&rows, 1, 30), get(&rows, 2, 30), get(&rows, 3, 30)), (None, None, None));
}

/// Regression test: an operand was applied twice, once from a memtable and once in a row of a newer root. Random
/// histories found this error.
#[test]
fn a_row_newer_than_the_root_is_not_returned() {
    let rows = RowCache::new(1 << 20).of_index(Seqno(10));
    rows.begin(Seqno(20));
    keep(&rows, 1, b"one and an operand", 15, 20);
    let get = |through| rows.get(&key(1), key_hash(&key(1)), Seqno(30), Seqno(through));
    assert_eq!((get(10), get(14), get(15).is_some(), get(20).is_some()), (None, None, true, true));
}

#[test]
fn indexes_do_not_see_rows_of_each_other() {
    let cache = RowCache::new(1 << 20);
    let (a, b) = (cache.of_index(Seqno(1)), cache.of_index(Seqno(1)));
    (0..100).for_each(|i| keep(&a, i, b"a", 1, 1));
    keep(&b, 7, b"b", 1, 1);
    assert_eq!((get(&a, 7, 1).unwrap(), get(&b, 7, 1).unwrap(), get(&b, 8, 1)), (b"a".to_vec(), b"b".to_vec(), None));
    a.remove_where(|key, seqno| key == self::key(8) && seqno == Seqno(1));
    assert_eq!((get(&a, 8, 1), get(&a, 9, 1).is_some()), (None, true));
    drop(a);
    assert_eq!((cache.stats().rows, get(&b, 7, 1).unwrap()), (1, b"b".to_vec()));
}

#[test]
fn a_cache_of_no_bytes_keeps_nothing() {
    let rows = RowCache::new(0).of_index(Seqno(1));
    keep(&rows, 1, b"one", 1, 1);
    assert_eq!((get(&rows, 1, 9), rows.begin(Seqno(2)), rows.cache.stats()), (None, false, RowStats::default()));
    let tiny = RowCache::new(5_000).of_index(Seqno(1));
    keep(&tiny, 1, b"one", 1, 1);
    assert_eq!(get(&tiny, 1, 9), None);
}

#[test]
fn memory_is_bounded_and_requested_rows_stay() {
    let capacity = 256 << 10;
    let rows = RowCache::new(capacity).of_index(Seqno(1));
    for i in 0..40_000 {
        keep(&rows, i, &[7; 90], 1, 1);
        // Look up the same ten rows repeatedly.
        if i % 20 == 19 {
            let hot = i / 20 % 10;
            if get(&rows, hot, 1).is_none() {
                keep(&rows, hot, &[8; 90], 1, 1);
            }
        }
        // A shard's table may have just doubled.
        let bytes = rows.cache.stats().bytes;
        assert!(i % 1_000 > 0 || bytes <= capacity as u64 * 11 / 10, "{bytes}");
    }
    let stats = rows.cache.stats();
    assert!(stats.rows > 1_000, "{stats:?}");
    assert!((0..10).all(|hot| get(&rows, hot, 1).is_some()), "{stats:?}");
    assert!(get(&rows, 30_000, 1).is_none(), "rows that were not requested are evicted in insertion order");
}

#[test]
fn a_row_over_two_kib_is_not_cached() {
    let rows = RowCache::new(8 << 20).of_index(Seqno(1));
    keep(&rows, 1, &[1; 1_500], 1, 1);
    keep(&rows, 2, &[1; 2_100], 1, 1);
    assert_eq!((get(&rows, 1, 1).map(|value| value.len()), get(&rows, 2, 1)), (Some(1_500), None));
}

/// After random operations, each cached row equals the row of a map.
#[test]
fn cached_rows_equal_those_of_a_map() {
    for (seed, capacity) in [(1u64, 40 << 10), (2, 300 << 10), (3, 4 << 20)] {
        let rows = RowCache::new(capacity).of_index(Seqno(0));
        let mut model: BTreeMap<u64, (u64, Vec<u8>)> = BTreeMap::new();
        let (mut rng, mut seqno, mut found) = (Rng(seed), 0, 0);
        let mut random = |below: u64| rng.below(below);
        for _ in 0..60_000 {
            let i = random(3_000);
            match random(10) {
                0 => {
                    seqno += 1;
                    rows.begin(Seqno(seqno));
                    let value = vec![seqno as u8; random(60) as usize];
                    change(&rows, i, Change::Value(&value, Seqno(seqno)));
                    model.insert(i, (seqno, value));
                }
                1 => {
                    seqno += 1;
                    rows.begin(Seqno(seqno));
                    change(&rows, i, Change::Other);
                    model.remove(&i);
                }
                2 if random(300) == 0 => {
                    let (from, to) = (key(i), key(i + 500));
                    rows.remove_where(|key, _| (&from[..]..&to[..]).contains(&key));
                    model.retain(|at, _| !(i..i + 500).contains(at));
                }
                2..=5 => {
                    if let Some((since, value)) = model.get(&i) {
                        rows.offer(&key(i), key_hash(&key(i)), value, Seqno(*since), Seqno(seqno));
                    }
                }
                _ => {
                    if let Some(value) = get(&rows, i, seqno) {
                        found += 1;
                        assert_eq!(Some(&value), model.get(&i).map(|(_, value)| value), "row {i} at {seqno}");
                    }
                }
            }
        }
        assert!(found > 1_000, "{found} found");
    }
}

// ---- sharing memory with the pool ----

/// A reader of rows in leaves of 30 rows, through a row cache and a pool. The reader counts the blocks that it reads.
struct Reader {
    pool: Arc<Pool>,
    rows: IndexRows,
    rng: Rng,
    reads: u64,
}

const SHARED: usize = 8 << 20;

impl Reader {
    fn new() -> Reader {
        let pool = Arc::new(Pool::new(SHARED).with_one_hand());
        let rows = RowCache::sharing(SHARED / 16, &pool, SHARED).of_index(Seqno(1));
        Reader { pool, rows, rng: Rng(1), reads: 0 }
    }

    fn look_up(&mut self, i: u64) {
        if get(&self.rows, i, 1).is_some() {
            return;
        }
        let (owner, addr) = (OwnerId(1), BlockAddr { page: PageNo(i / 30), pages: 1 });
        if self.pool.peek(owner, addr.page).is_none() {
            self.reads += 1;
            drop(self.pool.insert(owner, addr, Keep::Short, &[0; PAGE]));
        }
        let key = key(i);
        self.rows.offer(&key, key_hash(&key), &[7; 100], Seqno(1), Seqno(1));
    }

    /// Looks up scattered rows at random: one row in 20, each of 140 bytes. These rows do not fit into the initial row
    /// cache.
    fn scattered(&mut self, lookups: u64) -> u64 {
        let before = self.reads;
        for _ in 0..lookups {
            let i = self.rng.below(25_000) * 20;
            self.look_up(i);
        }
        self.reads - before
    }

    /// Looks up neighbouring rows at random.
    fn together(&mut self, lookups: u64) -> u64 {
        let before = self.reads;
        for _ in 0..lookups {
            let i = self.rng.below(54_000);
            self.look_up(i);
        }
        self.reads - before
    }

    fn borrowed(&self) -> usize {
        self.pool.lent()
    }
}

#[test]
fn memory_moves_to_rows_or_blocks_whichever_save_more_reads() {
    let mut reader = Reader::new();
    let first = reader.scattered(100_000);
    assert!(reader.borrowed() > SHARED / 8, "{} borrowed", reader.borrowed());
    reader.scattered(400_000);
    let later = reader.scattered(100_000);
    assert!(later < first / 2, "{first} and then {later} reads");
    let lent = reader.borrowed();
    assert!(lent <= SHARED / 2 && reader.rows.cache.stats().bytes as usize <= (SHARED / 16 + lent) * 11 / 10);
    // For these lookups, caching blocks saves more reads than caching rows.
    let first = reader.together(200_000);
    reader.together(600_000);
    let later = reader.together(200_000);
    assert!(reader.borrowed() < lent / 2, "{} of {lent} still borrowed", reader.borrowed());
    assert!(later < first * 3 / 4, "{first} and then {later} reads");
}

#[test]
fn rows_release_memory_that_memtables_reserve() {
    let mut reader = Reader::new();
    reader.scattered(500_000);
    let lent = reader.borrowed();
    assert!(lent > SHARED / 4, "{lent}");
    // Memtables reserve half of the memory, as under heavy writes.
    reader.pool.reserve(SHARED / 2);
    reader.rows.cache.shrink();
    let left = reader.borrowed() - SHARED / 2;
    assert!(left <= SHARED / 8, "{left} of {lent}");
    let bytes = reader.rows.cache.stats().bytes as usize;
    assert!(bytes <= (SHARED / 16 + left) * 11 / 10, "{bytes}");
    let pool = reader.pool.stats();
    assert!(pool.capacity >= (SHARED / 4) as u64 && pool.bytes <= pool.capacity);
    // The memtables release this memory.
    reader.pool.release(SHARED / 2);
    let cache = reader.rows.cache.clone();
    let pool = reader.pool.clone();
    drop(reader);
    drop(cache);
    assert_eq!(pool.lent(), 0, "a dropped cache leaves nothing reserved");
}

#[test]
fn concurrent_lookups_keep_rows_within_the_reserved_memory() {
    let pool = Arc::new(Pool::new(SHARED));
    let cache = RowCache::sharing(SHARED / 16, &pool, SHARED);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (pool, rows) = (pool.clone(), cache.of_index(Seqno(1)));
            scope.spawn(move || {
                let mut reader = Reader { pool, rows, rng: Rng(thread + 1), reads: 0 };
                for _ in 0..6 {
                    reader.scattered(30_000);
                    reader.together(10_000);
                    reader.rows.cache.shrink();
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.bytes as usize <= (SHARED / 16 + pool.lent()) * 12 / 10, "{stats:?}, {} lent", pool.lent());
    drop(cache);
    assert_eq!(pool.lent(), 0);
}
