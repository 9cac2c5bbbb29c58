//! Tests that compare the memtable with a `BTreeMap`, check its invariants, and run readers concurrently with a writer.

mod writers;

use crate::base::random::Rng;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::arena::Ref;
use super::tree::NodeNo;
use super::*;

type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (Kind, Vec<u8>)>;
type Row = (Vec<u8>, u64, Kind, Vec<u8>);

fn memtable() -> Memtable {
    Memtable::new(1, Arc::new(ChunkPool::new(4)))
}

fn row(entry: Entry<'_>) -> Row {
    (entry.key.to_vec(), entry.seqno.0, entry.kind, entry.value.to_vec())
}

fn put(memtable: &Memtable, key: &[u8], seqno: u64, value: &[u8]) {
    memtable.insert(Entry { key, seqno: Seqno(seqno), kind: Kind::Put, value });
}

/// All messages of a range, read in blocks of `max_entries` and `max_bytes`.
fn scan(memtable: &Memtable, range: &KeyRange, reverse: bool, max_entries: usize, max_bytes: usize) -> Vec<Row> {
    let (mut rows, mut block) = (Vec::<Row>::new(), EntryBlock::new());
    loop {
        let after = rows.last().map(|row| (&row.0[..], Seqno(row.1)));
        memtable.fill(range, after, reverse, max_entries, max_bytes, &mut block);
        assert!(block.len() <= max_entries);
        if block.is_empty() {
            return rows;
        }
        rows.extend(block.iter().map(row));
        block.clear();
    }
}

impl Tree {
    /// Checks the invariants of the module documentation by reading everything.
    /// REQUIRES: no concurrent writer.
    fn check(&self) {
        let mut leaves = Vec::new();
        self.check_node(self.root(), NONE, NONE, &mut leaves);
        assert_eq!(leaves.len(), self.leaves.len());
        let records: Vec<Ref> = leaves.iter().flat_map(|&leaf| self.leaves.get(leaf).records()).collect();
        assert_eq!(records.len(), self.tally().count);
        let mut scratches = (Scratch::new(), Scratch::new());
        for pair in records.windows(2) {
            let (first, second) = (self.arena.record(pair[0]), self.arena.record(pair[1]));
            assert!(first.copied(&mut scratches.0).order(&second.copied(&mut scratches.1)).is_lt());
        }
    }

    fn check_node(&self, node: NodeNo, low: Ref, high: Ref, leaves: &mut Vec<u32>) {
        let (slots, record) = (self.node(node).slots(), |at| self.arena.record(at));
        let (meta, records) = (slots.meta(), slots.records());
        assert!(slots.latch.claim(slots.latch.read()).is_some(), "a latch was left locked or claimed");
        assert_eq!((slots.low(), slots.high(), meta.edge), (low, high, low == NONE || high == NONE));
        match (records.first(), records.last()) {
            _ if !meta.edge => assert_eq!(meta.prefix, record(low).common(record(high))),
            (Some(&first), Some(&last)) => assert!(meta.prefix <= record(first).common(record(last))),
            _ => {}
        }
        let heads: Vec<u64> = records.iter().map(|&at| record(at).head(meta.prefix)).collect();
        assert!(heads == slots.heads() && heads.is_sorted());
        if node.level == 0 {
            assert!(meta.len > 0 || self.tally().count == 0);
            assert!(low == NONE || records[0] == low, "a separator is the first record right of it");
            return leaves.push(node.number);
        }
        assert!(meta.len > 0);
        for rank in 0..=meta.len {
            let child = NodeNo { level: node.level - 1, number: self.inners.get(node.number).child(rank) };
            let low = if rank == 0 { low } else { records[rank - 1] };
            self.check_node(child, low, records.get(rank).copied().unwrap_or(high), leaves);
        }
    }
}

fn visited(memtable: &Memtable, key: &[u8], at: u64, limit: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    memtable.get(key, Seqno(at), &mut |entry| {
        rows.push(row(entry));
        rows.len() < limit
    });
    rows
}

fn rows(model: &Model, range: &KeyRange) -> Vec<Row> {
    let inside = model.iter().filter(|((key, _), _)| range.contains(key));
    inside.map(|((key, seqno), (kind, value))| (key.clone(), seqno.0, *kind, value.clone())).collect()
}

/// Keys that resemble each other in many ways: few different bytes, long and short common prefixes, zeros at the end.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let tail = || prop::collection::vec(prop_oneof![Just(0u8), Just(1), Just(0xff)], 1..6);
    prop_oneof![
        tail(),
        any::<u16>().prop_map(|n| [b"a long common prefix ", &n.to_be_bytes()[..]].concat()),
        tail().prop_map(|tail| [b"a long common prefix ", &tail[..]].concat()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn it_behaves_as_an_ordered_map(
        keys in prop::collection::vec(key(), 1..600),
        only_long in any::<bool>(),
        order in 0u8..3,
        ranges in prop::collection::vec((key(), key()), 1..6),
        probes in prop::collection::vec((key(), 0u64..700), 20),
        sizes in (1usize..100, 1usize..4000),
    ) {
        let memtable = memtable();
        let mut model = Model::new();
        let mut keys: Vec<Vec<u8>> = keys.into_iter().filter(|key| !only_long || key.len() > 12).collect();
        prop_assume!(!keys.is_empty());
        match order {
            0 => {}
            1 => keys.sort(),
            _ => keys.sort_by(|a, b| b.cmp(a)),
        }
        let mut logical = 0;
        for (seqno, key) in (1u64..).zip(&keys) {
            let kind = [Kind::Put, Kind::Merge, Kind::Delete, Kind::BlobPut][seqno as usize % 4];
            let value = vec![seqno as u8; if kind == Kind::Delete { 0 } else { seqno as usize % 30 }];
            memtable.insert(Entry { key, seqno: Seqno(seqno), kind, value: &value });
            logical += (key.len() + value.len()) as u64;
            model.insert((key.clone(), Reverse(seqno)), (kind, value));
        }
        memtable.tree().unwrap().check();
        prop_assert_eq!((memtable.len(), memtable.logical_bytes()), (model.len(), logical));
        prop_assert_eq!(memtable.is_empty(), model.is_empty());
        prop_assert!(memtable.bytes() as u64 > logical);
        for (key, at) in probes.iter().cloned().chain(keys.iter().take(30).map(|key| (key.clone(), 300))) {
            let of_key = rows(&model, &KeyRange::point(&key));
            let expect: Vec<Row> = of_key.into_iter().filter(|row| row.1 <= at).collect();
            prop_assert_eq!(visited(&memtable, &key, at, usize::MAX), expect.clone());
            prop_assert_eq!(visited(&memtable, &key, at, 2), expect[..expect.len().min(2)].to_vec());
        }
        let ranges = ranges.into_iter().map(|(from, to)| KeyRange::new(from, to));
        for range in ranges.flat_map(|r| [KeyRange::new(r.from.clone(), []), KeyRange::new([], r.to.clone()), r]) {
            let mut expect = rows(&model, &range);
            prop_assert_eq!(scan(&memtable, &range, false, sizes.0, sizes.1), expect.clone());
            expect.reverse();
            prop_assert_eq!(scan(&memtable, &range, true, sizes.0, sizes.1), expect);
        }
        // Scan from positions at which no message exists.
        for (key, seqno) in &probes {
            for (reverse, range) in [(false, KeyRange::all()), (true, KeyRange::all())] {
                let mut block = EntryBlock::new();
                memtable.fill(&range, Some((key, Seqno(*seqno))), reverse, 1, 1, &mut block);
                let place = (key.clone(), Reverse(*seqno));
                let after = (std::ops::Bound::Excluded(place.clone()), std::ops::Bound::Unbounded);
                let next = if reverse { model.range(..place).next_back() } else { model.range(after).next() };
                prop_assert_eq!(block.iter().next().map(|e| (e.key, e.seqno.0)), next.map(|(k, _)| (&k.0[..], k.1.0)));
            }
        }
    }
}

/// Enough messages for three levels, in orders that split nodes differently.
#[test]
fn large_trees_hold_their_invariants_in_every_order_of_insertion() {
    let orders: [fn(u64) -> u64; 4] =
        [|i| i, |i| u64::MAX - i, |i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15), |i| (i % 7) << 32 | i];
    for order in orders {
        let memtable = memtable();
        for i in 0..20_000u64 {
            put(&memtable, &[b"table/", &order(i).to_be_bytes()[..]].concat(), i + 1, &i.to_le_bytes());
        }
        assert!((1..=3).contains(&memtable.tree().unwrap().root().level));
        memtable.tree().unwrap().check();
        for i in (0..20_000).step_by(97) {
            let found = visited(&memtable, &[b"table/", &order(i).to_be_bytes()[..]].concat(), u64::MAX, 9);
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].3, i.to_le_bytes());
        }
    }
    // Inserting ascending keys makes full leaves.
    let memtable = memtable();
    (0..20_000u64).for_each(|i| put(&memtable, &i.to_be_bytes(), i + 1, b""));
    assert!(memtable.tree().unwrap().leaves.len() < 20_000 / 60);
}

#[test]
fn many_versions_of_one_key_span_leaves() {
    let memtable = memtable();
    put(&memtable, b"counter", 1_000_000, b"before");
    put(&memtable, b"counter\0\0", 1_000_001, b"after");
    (1..=3000).for_each(|seqno| put(&memtable, b"counter\0", seqno, &seqno.to_le_bytes()));
    memtable.tree().unwrap().check();
    let found = visited(&memtable, b"counter\0", 2000, usize::MAX);
    assert!(found.iter().map(|row| row.1).eq((1..=2000).rev()));
    assert_eq!(visited(&memtable, b"counter", Seqno::MAX.0, usize::MAX).len(), 1);
    assert_eq!(memtable.seqno_range(), Some((Seqno(1), Seqno(1_000_001))));
}

#[test]
fn range_tombstones_are_found_while_they_are_inserted() {
    let memtable = memtable();
    assert!(memtable.is_empty() && memtable.fragments().is_empty());
    // Simulate a queue: a consumer reads the entries one after the other and deletes each entry that it has read.
    for i in 1..=20_000u64 {
        let range = KeyRange::new([], i.to_be_bytes());
        memtable.insert_range(&RangeTombstone { range, seqno: Seqno(i) });
        if i % 64 == 0 {
            assert_eq!(memtable.covering(&(i - 1).to_be_bytes(), Seqno::MAX), Seqno(i));
            assert_eq!(memtable.covering(&(i / 2).to_be_bytes(), Seqno(i / 2 + 3)), Seqno(i / 2 + 3));
            assert_eq!(memtable.covering(&i.to_be_bytes(), Seqno::MAX), Seqno(0));
        }
    }
    let bytes = memtable.bytes();
    assert_eq!(memtable.fragments().len(), 20_000);
    assert!(memtable.bytes() >= bytes / 2 && memtable.bytes() < 20_000 * 200);
    memtable.insert_range(&RangeTombstone { range: KeyRange::new(*b"b", *b"a"), seqno: Seqno(99_999) });
    assert_eq!(memtable.seqno_range(), Some((Seqno(1), Seqno(20_000))));
    assert_eq!((memtable.is_empty(), memtable.len()), (false, 0));
}

#[test]
fn chunks_are_recycled_up_to_the_bound() {
    let pool = Arc::new(ChunkPool::new(3));
    let filled = |count: u64| {
        let memtable = Memtable::new(7, pool.clone());
        (1..=count).for_each(|i| put(&memtable, &i.to_be_bytes(), i, &[1; 200_000]));
        assert!(memtable.bytes() as u64 > count * 200_000 && memtable.id() == 7);
        memtable
    };
    let (small, large) = (filled(7), filled(30));
    assert_eq!(pool.free_bytes(), 0);
    drop(small);
    assert_eq!(pool.free_bytes(), 2 * CHUNK_BYTES);
    drop(large);
    assert_eq!(pool.free_bytes(), 3 * CHUNK_BYTES);
    let again = filled(10);
    assert_eq!(pool.free_bytes(), CHUNK_BYTES);
    assert_eq!(visited(&again, &5u64.to_be_bytes(), 5, 1)[0].3, [1; 200_000]);
    // Insert the largest record, and a record that does not fit into the rest of the chunk.
    let (key, value) = (vec![9; crate::base::MAX_KEY], vec![3; crate::base::MAX_OPERAND]);
    (100..110).for_each(|seqno| put(&again, &key, seqno, &value));
    assert!(visited(&again, &key, 200, 99).iter().all(|row| row.0 == key && row.3 == value));
}

#[test]
#[should_panic(expected = "given out twice")]
fn inserting_a_key_twice_with_one_seqno_panics() {
    let memtable = memtable();
    put(&memtable, b"k", 5, b"");
    put(&memtable, b"k", 5, b"again");
}

/// A writer and two readers: the writer's published messages are found, complete and in order, from both ends.
#[test]
fn readers_see_a_prefix_of_the_writes_while_they_happen() {
    const KEYS: u64 = 64;
    const WRITES: u64 = if cfg!(miri) { 40 } else { 30_000 };
    let (memtable, visible) = (memtable(), AtomicU64::new(0));
    let key = |n: u64| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % KEYS).to_be_bytes();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for seqno in 1..=WRITES {
                put(&memtable, &key(seqno), seqno, &(!seqno).to_le_bytes());
                visible.store(seqno, Ordering::Release);
            }
        });
        for reverse in [false, true] {
            let (memtable, visible) = (&memtable, &visible);
            scope.spawn(move || {
                let mut block = EntryBlock::new();
                loop {
                    let at = visible.load(Ordering::Acquire);
                    for back in 0..at.min(20) {
                        let seqno = at - back;
                        let found = visited(memtable, &key(seqno), seqno, 1);
                        assert_eq!((found[0].1, &found[0].3[..]), (seqno, &(!seqno).to_le_bytes()[..]));
                    }
                    block.clear();
                    memtable.fill(&KeyRange::all(), None, reverse, 3000, usize::MAX, &mut block);
                    let entries: Vec<Entry<'_>> = block.iter().collect();
                    let ascends = |w: &[Entry<'_>]| w[0].order(&w[1]).is_lt() != reverse;
                    assert!(entries.windows(2).all(ascends));
                    assert!(entries.len() as u64 >= at.min(3000));
                    if at == WRITES {
                        return;
                    }
                }
            });
        }
    });
    memtable.tree().unwrap().check();
}

/// The generations of one key ascend with its seqnos, even if its leaf was split; a message older than an existing one
/// gets none.
#[test]
fn generations_follow_a_key_through_splits() {
    let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
    let mut newest = std::collections::HashMap::new();
    let mut rng = Rng(1);
    for seqno in 1..=20_000u64 {
        // A few keys get thousands of versions, and many keys get a few versions.
        let key = if rng.chance(50) { rng.below(3) } else { rng.below(1000) }.to_be_bytes();
        let generation = memtable.insert(Entry { key: &key, seqno: Seqno(2 * seqno), kind: Kind::Put, value: b"v" });
        let generation = generation.generation;
        let before = newest.insert(key, generation.expect("nothing newer is there"));
        assert!(before < generation, "{before:?} before {generation:?} of {key:?}");
        if seqno % 3 == 0 {
            let late = Entry { key: &key, seqno: Seqno(2 * seqno - 1), kind: Kind::Put, value: b"late" };
            assert_eq!(memtable.insert(late), Inserted { generation: None, is_long: false });
        }
    }
}

/// Each key with many operands is reported after about 64 further operands; keys with few operands never are.
#[test]
fn long_chains_of_operands_are_noticed() {
    for (hot, puts) in [(1, false), (2, false), (20, false), (40, false), (20, true)] {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        let (mut since, mut longest, mut noticed) = (vec![0; hot], 0, 0);
        for i in 0..40_000_u64 {
            let (key, others) = (i as usize % hot, 40_001 - i);
            let kind = if puts { Kind::Put } else { Kind::Merge };
            let insert = |key: u64, seqno| {
                memtable.insert(Entry { key: &key.to_be_bytes(), seqno: Seqno(seqno), kind, value: b"v" })
            };
            let inserted = insert(key as u64 * 100_000, 2 * i + 1);
            since[key] = if inserted.is_long { 0 } else { since[key] + 1 };
            noticed += usize::from(inserted.is_long);
            longest = longest.max(since[key]);
            let other = insert(key as u64 * 100_000 + others, 2 * i + 2);
            assert!(!other.is_long, "a key with one message");
        }
        assert_eq!(noticed == 0, puts, "only operands are folded");
        assert!(puts || longest < 1200, "a chain of {longest} operands was not noticed, with {hot} hot keys");
        assert!(noticed < 40_000 / 48, "{noticed} of 40,000 insertions cause work");
    }
}

/// A memory source that counts the reserved bytes and calls `meanwhile` during a reservation.
struct Counting {
    lent: std::sync::atomic::AtomicUsize,
    most: std::sync::atomic::AtomicUsize,
    meanwhile: Box<dyn Fn() + Send + Sync>,
}

impl std::fmt::Debug for Counting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Counting")
    }
}

impl crate::base::slab::MemorySource for Counting {
    fn reserve(&self, bytes: usize) {
        let lent = self.lent.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.most.fetch_max(lent, Ordering::Relaxed);
        (self.meanwhile)();
    }

    fn release(&self, bytes: usize) {
        self.lent.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Counting {
    fn new(meanwhile: impl Fn() + Send + Sync + 'static) -> Arc<Counting> {
        Arc::new(Counting { lent: 0.into(), most: 0.into(), meanwhile: Box::new(meanwhile) })
    }
}

#[test]
fn an_empty_memtable_borrows_nothing_and_one_message_a_few_kilobytes() {
    let source = Counting::new(|| ());
    let chunks = Arc::new(ChunkPool::new(1).borrowing(source.clone(), 8 << 20));
    let memtable = Memtable::new(1, chunks.clone());
    assert_eq!((memtable.bytes(), source.lent.load(Ordering::Relaxed)), (0, 0));
    assert!(memtable.is_empty() && scan(&memtable, &KeyRange::all(), true, 9, 999).is_empty());
    put(&memtable, b"key", 1, b"value");
    let (charged, lent) = (memtable.bytes(), source.lent.load(Ordering::Relaxed));
    assert!(charged < 100 && lent <= 4 << 10, "one message is charged {charged} bytes and borrows {lent}");
    // At every size, the charged bytes equal the borrowed bytes, up to the size of a chunk.
    for seqno in 2..40_000u64 {
        put(&memtable, &seqno.to_be_bytes(), seqno, &[7; 100]);
        if seqno.is_multiple_of(1_000) {
            let (charged, lent) = (memtable.bytes(), source.lent.load(Ordering::Relaxed));
            assert!(
                lent + (256 << 10) >= charged && lent <= charged + CHUNK_BYTES + (64 << 10),
                "{charged} and {lent}"
            );
        }
    }
    drop(memtable);
    drop(chunks);
    assert_eq!(source.lent.load(Ordering::Relaxed), 0, "all memory was released");
}

/// Borrowing memory evicts blocks, which takes long. During the eviction, other threads write into the remaining space.
#[test]
fn no_thread_waits_for_a_thread_that_borrows_memory() {
    let place: Arc<std::sync::OnceLock<Arc<Memtable>>> = Arc::default();
    let (seqno, held_up) = (Arc::new(std::sync::atomic::AtomicU64::new(1_000_000)), Arc::new(AtomicUsize::new(0)));
    let source = {
        let (place, seqno, held_up) = (place.clone(), seqno.clone(), held_up.clone());
        Counting::new(move || {
            let Some(memtable) = place.get().cloned() else { return };
            let seqno = seqno.fetch_add(1, Ordering::Relaxed);
            let (done, wait) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                put(&memtable, b"k", seqno, b"");
                let _ = done.send(());
            });
            if wait.recv_timeout(std::time::Duration::from_secs(10)).is_err() {
                held_up.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let chunks = Arc::new(ChunkPool::new(1).borrowing(source.clone(), 8 << 20));
    let memtable = Arc::new(Memtable::new(1, chunks));
    put(&memtable, b"first", 1, b"");
    assert!(place.set(memtable.clone()).is_ok());
    // This record is too long for the rest of the chunk, although most of the chunk is free.
    put(&memtable, b"long", 2, &[1; 600]);
    assert_eq!(held_up.load(Ordering::Relaxed), 0, "another thread waited for a lock while memory was borrowed");
    assert!(seqno.load(Ordering::Relaxed) > 1_000_000, "nothing was borrowed meanwhile");
}
