//! Helpers that the unit tests of all indexes share: random batches of counters, and a model of the expected contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{
    Base, Changes, Core, DirectTools, HashedKey, IdSource, Index, IndexView, Lookup, Progress, SealedBatch, Step,
};
pub use crate::base::random::Rng as Random;
use crate::base::{Entry, EntryBlock, KeyCodec, KeyRange, Kind, RangeTombstone, Result, Seqno, StoreId};
use crate::device::MemDevice;
use crate::memtable::{ChunkPool, Memtable};
use crate::pool::Pool;
use crate::resolve::{AddI64, Operator, Stripes};
use crate::rows::RowCache;
use crate::space::DataFile;

/// An index, its expected contents, and helpers that feed it.
pub struct Bench<I> {
    pub device: Arc<MemDevice>,
    pub core: Core,
    pub tree: I,
    pub model: BTreeMap<Vec<u8>, i64>,
    pub seqno: u64,
    pub random: Random,
    pub snapshots: Vec<(Seqno, BTreeMap<Vec<u8>, i64>)>,
    /// The keys of every message, oldest first.
    pub changes: Vec<(Seqno, KeyRange, Kind)>,
}

pub fn operator() -> Operator {
    Operator::new(Arc::new(AddI64))
}

pub fn core(device: &MemDevice) -> Core {
    let data = DataFile::create(device, "data", StoreId([3; 16])).unwrap();
    Core {
        data,
        pool: Arc::new(Pool::new(256 << 10)),
        chunks: Arc::new(ChunkPool::new(1)),
        rows: RowCache::new(1 << 20),
        ids: Arc::new(IdSource::new(1)),
        repair: true,
        repairs: Arc::default(),
        share: Default::default(),
    }
}

/// Marks the pages of a reopened index, as opening a store does.
pub fn mark(core: &Core, index: &dyn Index) -> Result<()> {
    let mut result = Ok(());
    index.for_each_extent(&mut |extent| {
        if result.is_ok() {
            result = core.data.mark(extent);
        }
    });
    result?;
    core.data.end_marking();
    core.repairs.write(&core.data);
    Ok(())
}

impl<I: Index> Bench<I> {
    /// A bench with an empty index that `make` creates. `seed` determines all random choices.
    pub fn of(seed: u64, make: impl FnOnce(Core) -> I) -> Bench<I> {
        let device = MemDevice::new();
        let core = core(&device);
        let tree = make(core.clone());
        let (model, random, snapshots, changes) = (BTreeMap::new(), Random(seed), Vec::new(), Vec::new());
        Bench { device, core, tree, model, seqno: 0, random, snapshots, changes }
    }

    pub fn key(&mut self, keys: u64) -> Vec<u8> {
        format!("k{:07}", self.random.below(keys)).into_bytes()
    }

    /// Ingests random operations over `keys` keys.
    pub fn feed(&mut self, count: u64, keys: u64, deletes: u64) {
        let memtable = self.operations(count, keys, deletes);
        self.accept(memtable);
    }

    /// A memtable of random operations over `keys` keys. The model has them already.
    pub fn operations(&mut self, count: u64, keys: u64, deletes: u64) -> Memtable {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for _ in 0..count {
            self.seqno += 1;
            let seqno = Seqno(self.seqno);
            let key = self.key(keys);
            let pick = self.random.below(100);
            let amount = self.random.below(1000) as i64;
            let mut value = amount.to_le_bytes().to_vec();
            self.changes.push((seqno, KeyRange::point(&key), if pick < 50 { Kind::Put } else { Kind::Merge }));
            if pick < deletes {
                memtable.insert(Entry { key: &key, seqno, kind: Kind::Delete, value: &[] });
                self.model.remove(&key);
            } else if pick < deletes + 1 {
                let to = format!("k{:07}", self.random.below(keys)).into_bytes();
                let range = KeyRange::new(key, to);
                if !range.is_empty() {
                    self.model.retain(|key, _| !range.contains(key));
                    self.changes.push((seqno, range.clone(), Kind::RangeDelete));
                    memtable.insert_range(&RangeTombstone { range, seqno });
                }
            } else if pick < 50 {
                self.model.insert(key.clone(), amount);
                // Padding adds bytes and therefore causes flushes. `AddI64` treats a base of another length as 0, so
                // only puts of the right length contain a number.
                value.truncate(8);
                memtable.insert(Entry { key: &key, seqno, kind: Kind::Put, value: &value });
            } else {
                *self.model.entry(key.clone()).or_default() += amount;
                memtable.insert(Entry { key: &key, seqno, kind: Kind::Merge, value: &value });
            }
        }
        memtable
    }

    /// Ingests a memtable of puts over `keys` keys.
    pub fn put(&mut self, count: u64, keys: u64) {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for _ in 0..count {
            self.seqno += 1;
            let (key, amount) = (self.key(keys), self.seqno as i64);
            self.changes.push((Seqno(self.seqno), KeyRange::point(&key), Kind::Put));
            self.model.insert(key.clone(), amount);
            let value = amount.to_le_bytes();
            memtable.insert(Entry { key: &key, seqno: Seqno(self.seqno), kind: Kind::Put, value: &value });
        }
        self.accept(memtable);
    }

    /// Gives the messages of a memtable to the index: the memtable itself, or, if commits write directly, one batch of
    /// messages after the other.
    pub fn accept(&self, memtable: Memtable) {
        let Some(writer) = self.tree.direct() else {
            return self.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(self.seqno)));
        };
        let mut block = EntryBlock::new();
        memtable.fill(&KeyRange::all(), None, false, usize::MAX, usize::MAX, &mut block);
        let tombstones = memtable.fragments().clipped(&KeyRange::all());
        let deletes = tombstones.iter().map(|tombstone| Entry {
            key: &tombstone.range.from,
            seqno: tombstone.seqno,
            kind: Kind::RangeDelete,
            value: &tombstone.range.to,
        });
        let mut messages: Vec<Entry<'_>> = block.iter().chain(deletes).collect();
        messages.sort_by_key(|entry| entry.seqno);
        let first = messages.first().map_or(0, |entry| entry.seqno.0);
        let (keep, room) = (|| Stripes { horizon: Seqno(first - 1), ..self.stripes() }, |_| Ok(()));
        for batch in messages.chunks(7) {
            writer.make_room(&keep).unwrap();
            let tools = DirectTools { keep: &keep, room: &room, inline_bytes: usize::MAX };
            let prepared = writer.prepare(&mut batch.iter().copied(), &tools).unwrap();
            prepared.apply(&mut batch.iter().map(|entry| entry.seqno));
        }
    }

    pub fn stripes(&self) -> Stripes {
        Stripes { snapshots: self.snapshots.iter().map(|(seqno, _)| *seqno).collect(), horizon: Seqno(self.seqno) }
    }

    pub fn step(&self, budget: u64) -> Progress {
        let stripes = self.stripes();
        self.tree.step(budget, &move || stripes.clone()).unwrap()
    }

    pub fn pack_all(&self) {
        while self.tree.debt().memory_bytes > 0 {
            self.step(4 << 10);
        }
    }

    pub fn drain(&self) {
        while self.tree.debt().total() > 0 {
            let idle = self.step(1 << 20).idle;
            // A leaf that scans wanted compacted may have become empty in the meantime.
            assert!(!idle || self.tree.debt().total() == 0, "debt without work");
        }
        assert!(self.step(1 << 20).idle);
    }

    /// Compares scans in both directions and point lookups with the model, for the newest state and for the state at
    /// every snapshot.
    pub fn check(&mut self) {
        self.pack_all();
        let now = (Seqno(self.seqno), self.model.clone());
        for (at, model) in self.snapshots.clone().into_iter().chain([now]) {
            for reverse in [false, true] {
                let mut found = scan(&self.tree, at, reverse);
                if reverse {
                    found.reverse();
                }
                let expected: Vec<_> = model.clone().into_iter().collect();
                let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
                let shown = wrong.map(|at| (&found[at], &expected[at]));
                assert!(found == expected, "scan at {at}, reverse {reverse}: found and expected {shown:?}");
            }
            for _ in 0..50 {
                let key = self.key(30_000);
                assert_eq!(get(&self.tree, &key, at), model.get(&key).copied(), "{} at {at}", key.escape_ascii());
            }
        }
    }
}

/// Checks that an index finds the changes after each snapshot, of keys and of ranges, while it packs and compacts.
pub fn changes_are_found<I: Index>(bench: &mut Bench<I>) {
    for round in 0..30 {
        bench.feed(200, 600, 20);
        bench.pack_all();
        if round % 3 == 0 {
            bench.tree.on_idle();
            bench.drain();
        }
        if bench.random.below(3) == 0 {
            bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
        }
        if bench.snapshots.len() > 4 {
            let at = bench.random.below(4) as usize;
            bench.snapshots.remove(at);
        }
        for (since, then) in bench.snapshots.clone() {
            for _ in 0..40 {
                let (key, other) = (bench.key(600), bench.key(600));
                let hashed = HashedKey { key: &key, hash: KeyCodec::Plain.hash(&key) };
                let found = |changes| bench.tree.view().changed(hashed, since, changes).unwrap();
                check_change(bench, &KeyRange::point(&key), since, &then, found);
                let range = KeyRange::new(key.as_slice(), other.as_slice());
                if !range.is_empty() {
                    let found = |changes| bench.tree.view().changed_in(&range, since, changes).unwrap();
                    check_change(bench, &range, since, &then, found);
                }
            }
        }
    }
    assert!(bench.tree.stats().compactions > 0);
}

/// Compares what an index found with the messages since a snapshot, and with the values then and now.
fn check_change<I: Index>(
    bench: &Bench<I>,
    range: &KeyRange,
    since: Seqno,
    then: &BTreeMap<Vec<u8>, i64>,
    found: impl Fn(Changes) -> bool,
) {
    let happened = |changes: Changes| {
        let newer = bench.changes.iter().rev().take_while(|(seqno, ..)| *seqno > since);
        newer.filter(|(_, _, kind)| changes.include(*kind)).any(|(_, changed, _)| changed.overlaps(range))
    };
    let rows = |model: &BTreeMap<Vec<u8>, i64>| -> Vec<(Vec<u8>, i64)> {
        model.iter().filter(|(key, _)| range.contains(key)).map(|(key, value)| (key.clone(), *value)).collect()
    };
    let (all, replaced) = (found(Changes::All), found(Changes::Replacements));
    assert!(all || !replaced, "a replacement is a change");
    assert!(!all || happened(Changes::All), "no message since {since} in {range:?}");
    assert!(!replaced || happened(Changes::Replacements), "only operands since {since} in {range:?}");
    assert!(all || rows(then) == rows(&bench.model), "an overlooked change since {since} in {range:?}");
}

/// Feeds memtables while jobs are suspended after small steps and snapshots are taken and released. Checks the contents
/// against the model. `observe` is called with the index after each memtable. At the end there is no debt.
pub fn suspend_jobs<I: Index>(bench: &mut Bench<I>, seed: u64, rounds: u64, mut observe: impl FnMut(&I)) {
    for round in 0..rounds {
        let keys = if seed.is_multiple_of(2) { 30_000 } else { 30_000 >> (round % 4) };
        bench.feed(700, keys, if round > 40 { 30 } else { 3 });
        // Do a few small steps, so that compactions stay unfinished while the next memtables arrive and change the
        // structure.
        for _ in 0..bench.random.below(12) {
            let budget = 1 + bench.random.below(16 << 10);
            bench.step(budget);
        }
        if round % 9 == 4 {
            bench.pack_all();
            bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
        }
        if round % 9 == 8 && bench.snapshots.len() > 1 {
            let oldest = bench.random.below(bench.snapshots.len() as u64) as usize;
            bench.snapshots.remove(oldest);
        }
        if round % 12 == 11 {
            bench.check();
        }
        observe(&bench.tree);
    }
    bench.drain();
    bench.check();
}

/// A key's messages, newest first.
type Messages = Vec<(Kind, Vec<u8>)>;

/// The value that a key's messages fold to.
fn fold(key: &[u8], messages: &Messages) -> Option<i64> {
    let mut gather = crate::resolve::Gather::new();
    let mut base = None;
    for (kind, value) in messages {
        if gather.push(*kind, value) {
            base = (*kind == Kind::Put).then(|| value.clone());
            break;
        }
    }
    let value = if gather.is_empty() {
        base
    } else {
        gather.fold(key, base.as_deref(), Some(&operator()), || unreachable!()).unwrap()
    };
    value.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
}

pub fn scan(tree: &impl Index, at: Seqno, reverse: bool) -> Vec<(Vec<u8>, i64)> {
    scan_view(&tree.view(), at, reverse)
}

/// The same for a view.
pub fn scan_view(view: &Arc<dyn IndexView>, at: Seqno, reverse: bool) -> Vec<(Vec<u8>, i64)> {
    let mut tombstones = Vec::new();
    view.tombstones(&KeyRange::all(), &mut tombstones).unwrap();
    tombstones.retain(|tombstone| tombstone.seqno <= at);
    let tombstones = crate::base::Fragments::build(&tombstones);
    let mut cursor = view.clone().cursor(Arc::default(), reverse).unwrap();
    let mut keys: Vec<(Vec<u8>, Messages)> = Vec::new();
    loop {
        let mut block = EntryBlock::new();
        cursor.fill(8 << 10, &mut block).unwrap();
        if block.is_empty() {
            break;
        }
        for entry in block.iter() {
            if keys.last().is_none_or(|(key, _)| key != entry.key) {
                keys.push((entry.key.to_vec(), Vec::new()));
            }
            if entry.seqno <= at && entry.seqno > tombstones.covering(entry.key, at) {
                let messages = &mut keys.last_mut().unwrap().1;
                messages.insert(if reverse { 0 } else { messages.len() }, (entry.kind, entry.value.to_vec()));
            }
        }
    }
    keys.into_iter().filter_map(|(key, messages)| fold(&key, &messages).map(|value| (key, value))).collect()
}

pub fn get(tree: &impl Index, key: &[u8], at: Seqno) -> Option<i64> {
    let view = tree.view();
    let mut lookup = Lookup::new(KeyCodec::Plain, key, at);
    let mut probe = view.probe(&lookup);
    let mut block = None;
    while let Step::Need(request) = probe.step(block.take(), &mut lookup).unwrap() {
        block = request.load().unwrap();
    }
    let base = match &lookup.base {
        Base::Inline(block, range) => Some(block[range.clone()].to_vec()),
        Base::Owned(row) => Some(row.to_vec()),
        Base::Absent => None,
        other => panic!("unexpected base {other:?}"),
    };
    let value = if lookup.gather.is_empty() {
        base
    } else {
        lookup.gather.fold(key, base.as_deref(), Some(&operator()), || unreachable!()).unwrap()
    };
    value.map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()))
}
