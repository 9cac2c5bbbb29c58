//! Tests that deletes reach the leaves, and that the entries that they hide are dropped, for several patterns of
//! deletes.

use super::super::relieve::MOST_SWEPT;
use super::*;

fn key(n: u64) -> Vec<u8> {
    format!("k{n:07}").into_bytes()
}

impl Bench {
    /// Ingests a memtable that puts some keys and deletes other keys. Then does all background work.
    fn change(&mut self, puts: impl Iterator<Item = u64>, deletes: impl Iterator<Item = u64>) {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for n in puts {
            self.seqno += 1;
            let value = (n as i64).to_le_bytes();
            memtable.insert(Entry { key: &key(n), seqno: Seqno(self.seqno), kind: Kind::Put, value: &value });
            self.model.insert(key(n), n as i64);
        }
        for n in deletes {
            self.seqno += 1;
            memtable.insert(Entry { key: &key(n), seqno: Seqno(self.seqno), kind: Kind::Delete, value: &[] });
            self.model.remove(&key(n));
        }
        self.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(self.seqno)));
        self.drain();
    }

    /// A tree of three levels with the keys `0..40_000`.
    fn loaded(seed: u64) -> Bench {
        let mut bench = Bench::new(seed);
        for round in 0..80 {
            bench.change((0..500).map(|i| (i * 80 + round) % 40_000), std::iter::empty());
        }
        assert!(bench.tree.stats().figure("levels") >= 3);
        bench
    }

    /// Deletes the keys of `0..40_000` that `goes` selects, 800 at a time, in random order.
    fn thin(&mut self, goes: impl Fn(u64) -> bool) {
        let all: Vec<u64> = (0..40_000).map(|i| i * 12_347 % 40_000).filter(|&n| goes(n)).collect();
        all.chunks(800).for_each(|part| self.change(std::iter::empty(), part.iter().copied()));
    }

    /// Number of messages that a scan of a range returns.
    fn met(&self, range: &KeyRange) -> usize {
        let mut cursor = self.tree.view().cursor(range.into(), false).unwrap();
        let mut met = 0;
        loop {
            let mut block = EntryBlock::new();
            cursor.fill(8 << 10, &mut block).unwrap();
            if block.is_empty() {
                return met;
            }
            met += block.len();
        }
    }
}

#[test]
fn scattered_deletes_free_their_entries() {
    let mut bench = Bench::loaded(1);
    let before = bench.tree.stats();
    bench.thin(|n| !n.is_multiple_of(10));
    let (after, met) = (bench.tree.stats(), bench.met(&KeyRange::all()));
    assert!(met <= 3 * bench.model.len(), "a scan meets {met} messages for {} keys", bench.model.len());
    assert!(after.disk_bytes * 2 < before.disk_bytes, "from {} to {} bytes", before.disk_bytes, after.disk_bytes);
    bench.check();
}

#[test]
fn a_deleted_stretch_costs_a_scan_little() {
    let mut bench = Bench::loaded(2);
    bench.thin(|n| (8_000..24_000).contains(&n) && !n.is_multiple_of(100));
    let met = bench.met(&KeyRange::new(key(8_000), key(24_000)));
    assert!(met <= 3 * 160 + 24_000 / 20, "a scan meets {met} messages for 160 keys");
    bench.check();
}

#[test]
fn a_queue_leaves_few_messages() {
    let mut bench = Bench::new(3);
    for round in 0..200u64 {
        // Within one memtable, no key is both put and deleted.
        let gone = round.saturating_sub(10) * 300..round.saturating_sub(9) * 300;
        bench.change(round * 300..(round + 1) * 300, gone.filter(|_| round >= 10));
    }
    let met = bench.met(&KeyRange::all());
    assert!(met <= 3 * bench.model.len(), "a scan meets {met} messages for {} keys", bench.model.len());
    bench.check();
}

#[test]
fn a_snapshot_keeps_deleted_entries_and_compaction_ends() {
    let mut bench = Bench::loaded(4);
    bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
    let before = bench.tree.stats();
    bench.thin(|n| !n.is_multiple_of(10));
    let after = bench.tree.stats();
    let (compacted, packed) =
        (after.compacted_bytes - before.compacted_bytes, after.packed_bytes - before.packed_bytes);
    assert!(compacted < 12 * packed, "{compacted} bytes compacted for {packed}");
    bench.check();
    bench.snapshots.clear();
    bench.thin(|n| !n.is_multiple_of(10));
    let met = bench.met(&KeyRange::all());
    assert!(met <= 3 * bench.model.len(), "a scan meets {met} messages for {} keys", bench.model.len());
    bench.check();
}

#[test]
fn deletes_of_missing_keys_cost_no_more_than_updates() {
    let compacted = |change: &dyn Fn(&mut Bench, Vec<u64>)| {
        let mut bench = Bench::loaded(5);
        let before = bench.tree.stats().compacted_bytes;
        let keys: Vec<u64> = (0..40_000).map(|i| i * 12_347 % 40_000).collect();
        keys.chunks(500).for_each(|part| change(&mut bench, part.to_vec()));
        bench.check();
        bench.tree.stats().compacted_bytes - before
    };
    let updates = compacted(&|bench, keys| bench.change(keys.into_iter(), std::iter::empty()));
    // Delete keys that never existed.
    let deletes =
        compacted(&|bench, keys| bench.change(std::iter::empty(), keys.into_iter().map(|n| n * 100 + 40_000)));
    assert!(deletes <= updates, "{deletes} bytes for deletes, {updates} for updates");
}

#[test]
fn a_tally_records_the_positions_of_deletes() {
    use crate::index::runs::deletes::Tally;
    for count in [0, 1, 15, 16, 17, 5_000, 100_000u64] {
        let mut tally = Tally::default();
        (0..count).for_each(|n| tally.push(&key(if n < count / 2 { n } else { n + 1_000_000 })));
        let deletes = tally.finish();
        assert_eq!(deletes.count(), count);
        let place = |at: &[u8]| usize::from(at >= key(500_000).as_slice());
        let parts = [0, 1].map(|i| deletes.share(i..i + 1, place).count());
        assert!(parts[0].abs_diff(count / 2) <= count / 16 + 16, "{parts:?} of {count}");
        assert!(parts[1].abs_diff(count - count / 2) <= count / 16 + 16, "{parts:?} of {count}");
    }
}

/// A range delete that covers whole subtrees drops these subtrees when its memtable is packed, without a compaction.
#[test]
fn data_under_a_range_delete_is_dropped_without_a_compaction() {
    for with_snapshot in [false, true] {
        let mut bench = Bench::loaded(5);
        if with_snapshot {
            bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
        }
        let all = KeyRange::all();
        let taken = |bench: &Bench| bench.core.data.stats().allocated_bytes - bench.core.data.stats().quarantined_bytes;
        let (met, before, compactions) = (bench.met(&all), taken(&bench), bench.tree.stats().compactions);
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        bench.seqno += 1;
        memtable.insert_range(&RangeTombstone { range: all.clone(), seqno: Seqno(bench.seqno) });
        bench.model.clear();
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        // Simulate another job that begins while the memtable is being packed: it knows only the readers that exist at
        // that time.
        let stripes = bench.stripes();
        let job = bench.tree.claim_pack(&mut bench.tree.inner.lock(), &|| stripes.clone()).unwrap();
        let later = Seqno(bench.seqno + 10);
        bench.tree.inner.lock().keep.horizon = later;
        assert!(bench.tree.step_pack(job, u64::MAX).unwrap().absorbed.is_some());
        assert_eq!(bench.tree.view().horizon(), later, "a reader with an older read point retries");
        assert_eq!(bench.tree.stats().compactions, compactions);
        if with_snapshot {
            assert_eq!(bench.met(&all), met, "the snapshot reads it");
        } else {
            assert_eq!(bench.met(&all), 0);
            assert!(taken(&bench) < before / 2, "of {before} bytes {} are still taken", taken(&bench));
        }
        bench.seqno = later.0;
        bench.check();
        bench.drain();
        bench.check();
    }
}

/// On a full disk, compactions that may free space precede a waiting memtable, but only up to a limit.
#[test]
fn a_memtable_that_waits_on_a_full_disk_is_packed_eventually() {
    let mut bench = Bench::loaded(1);
    bench.snapshots.push((Seqno(bench.seqno), bench.model.clone()));
    for part in 0..50 {
        let memtable = Memtable::new(0, Arc::new(ChunkPool::new(1)));
        for n in 0..800 {
            bench.seqno += 1;
            let key = key((part + n * 50) * 12_347 % 40_000);
            memtable.insert(Entry { key: &key, seqno: Seqno(bench.seqno), kind: Kind::Delete, value: &[] });
        }
        bench.model.clear();
        bench.tree.ingest(SealedBatch::new(Arc::new(memtable), Seqno(bench.seqno)));
        if part < 49 {
            bench.pack_all();
        }
    }
    let stripes = bench.stripes();
    // One more memtable would leave less space than a piece needs.
    let room = Room { bytes: 60 << 10, spare: 52 << 10, urgent: true };
    let turn = |bench: &Bench| bench.tree.relieve(room, &|| stripes.clone()).unwrap();
    for _ in 0..10 {
        let progress = turn(&bench);
        assert!(progress.absorbed.is_none() && progress.bytes > 0, "a compaction comes first");
    }
    let limit = bench.tree.inner.lock().most_swept;
    assert!(limit >= MOST_SWEPT * bench.tree.stats().disk_bytes / 2, "{limit}");
    bench.tree.inner.lock().swept = limit + 1;
    assert!(turn(&bench).absorbed.is_some(), "then the memtable");
    assert_eq!(bench.tree.inner.lock().swept, 0, "and compactions may again");
    bench.check();
}
