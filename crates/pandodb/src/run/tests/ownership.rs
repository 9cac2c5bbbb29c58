//! Tests of ownership: which pages runs and slices own, and when the pages are freed.

use super::*;
use crate::filter::{FilterBuilder, Filters};

fn allocated(bench: &Bench) -> u64 {
    bench.checkpoints();
    bench.data.stats().allocated_bytes
}

#[test]
fn dropping_slices_and_runs_frees_all_their_pages() {
    let bench = Bench::new();
    let before = allocated(&bench);
    let messages = random_messages(1, 6_000, 2, 200);
    let slice = bench.run(1, &messages);
    let whole = allocated(&bench) - before;
    assert_eq!(whole, slice.run().meta().disk_bytes());
    let parts: Vec<_> = [(0, 2_000), (2_000, 4_000), (4_000, 6_000)]
        .map(|(from, to)| {
            let bound = |at: usize| messages.get(at).map_or(Vec::new(), |message| message.key.clone());
            slice.clip(&KeyRange::new(if from == 0 { Vec::new() } else { bound(from) }, bound(to))).unwrap().unwrap()
        })
        .into();
    drop(slice);
    assert_eq!(allocated(&bench) - before, whole, "the parts cover the run");
    let [low, middle, high] = <[Arc<RunSlice>; 3]>::try_from(parts).unwrap();
    drop(middle);
    let left = allocated(&bench) - before;
    assert!(left < whole * 3 / 4 && left > whole / 2, "a third is freed early: {left} of {whole}");
    for (slice, range) in [(&low, 0..2_000), (&high, 4_000..messages.len())] {
        let want = expected(&messages[range], slice.range(), false);
        assert!(scan(slice, &KeyRange::all(), false, ReadAhead::Scan) == want);
        let want: Vec<_> = want.into_iter().rev().collect();
        assert!(scan(slice, &KeyRange::all(), true, ReadAhead::Streaming(1 << 20)) == want);
    }
    let run = low.run().clone();
    drop((low, high));
    assert!(allocated(&bench) - before < 120 << 10, "inner blocks, filter and footer stay with the run");
    drop(run);
    assert_eq!(allocated(&bench), before);
}

#[test]
fn randomly_clipped_slices_keep_their_pages() {
    let bench = Bench::new();
    let before = allocated(&bench);
    let mut random = Random(99);
    for (id, messages) in [random_messages(61, 3_000, 4, 150), awkward_messages()].into_iter().enumerate() {
        let mut slices = vec![bench.run(id as u64 + 1, &messages)];
        for _ in 0..300 {
            let at = random.below(slices.len() as u64) as usize;
            match random.below(3) {
                0 if slices.len() > 1 => drop(slices.swap_remove(at)),
                _ => {
                    let range = random_range(&mut random, &messages);
                    let clipped = slices[at].clip(&range).unwrap();
                    let both = slices[at].range().intersect(&range);
                    assert!(clipped.is_some() || both.is_empty() || expected(&messages, &both, false).is_empty());
                    slices.extend(clipped);
                }
            }
            let slice = &slices[random.below(slices.len() as u64) as usize];
            // Full scans of the messages with unusual sizes are slow, because their values are large. So scan these
            // messages less often than the others.
            if id == 0 || random.below(12) == 0 {
                let reverse = random.below(2) == 0;
                let mode = if random.below(2) == 0 { ReadAhead::Scan } else { ReadAhead::Streaming(64 << 10) };
                assert!(scan(slice, &KeyRange::all(), reverse, mode) == expected(&messages, slice.range(), reverse));
            }
        }
        drop(slices);
        assert_eq!(allocated(&bench), before);
    }
}

#[test]
fn reopening_restores_slices_and_marks_only_their_pages() {
    let device = MemDevice::new();
    let data = DataFile::create(&*device, "data", StoreId([7; 16])).unwrap();
    let bench = Bench { data, pool: Arc::new(Pool::new(1 << 20)) };
    let messages = random_messages(71, 5_000, 2, 150);
    let slice = bench.run(9, &messages);
    let key = |at: usize| messages[at].key.clone();
    let parts = [KeyRange::new(key(300), key(900)), KeyRange::new(key(4_000), *b"")]
        .map(|range| slice.clip(&range).unwrap().unwrap());
    drop(slice);
    let owned = parts[0].run().owned();
    let (mut meta, mut slices) = (Vec::new(), Vec::new());
    parts[0].run().meta().encode(&mut meta);
    parts.iter().for_each(|part| part.encode(&mut slices));

    let file = DataFile::open_raw(&*device, true).unwrap();
    let again = Bench { data: DataFile::open(file, StoreId([7; 16])).unwrap(), pool: Arc::new(Pool::new(1 << 20)) };
    let empty = again.data.stats().allocated_bytes;
    let meta = RunMeta::decode(&mut crate::base::codec::Reader::new(&meta, "test")).unwrap();
    let run = Run::reopen(again.data.clone(), again.pool.clone(), meta);
    let mut reader = crate::base::codec::Reader::new(&slices, "test");
    let restored: Vec<_> = (0..2).map(|_| RunSlice::restore(run.clone(), &mut reader).unwrap()).collect();
    assert!(reader.is_empty());
    run.take_ownership();
    assert_eq!(run.owned(), owned);
    run.owned().into_iter().for_each(|extent| again.data.mark(extent).unwrap());
    again.data.end_marking();
    assert_eq!(again.data.stats().allocated_bytes - empty, owned.iter().map(|extent| extent.bytes()).sum::<u64>());
    for (slice, part) in restored.iter().zip(&parts) {
        assert_eq!((slice.range(), slice.bytes(), slice.entries()), (part.range(), part.bytes(), part.entries()));
        assert!(scan(slice, &KeyRange::all(), false, ReadAhead::Scan) == expected(&messages, part.range(), false));
    }
    drop((restored, run));
    assert_eq!(allocated(&again), empty);
}

#[test]
fn a_reopened_run_that_did_not_settle_frees_nothing() {
    let bench = Bench::new();
    let meta = bench.build(1, &random_messages(1, 100, 1, 10), &[]);
    let before = allocated(&bench);
    let run = Run::reopen(bench.data.clone(), bench.pool.clone(), meta);
    drop(RunSlice::whole(run));
    assert_eq!(allocated(&bench), before);
}

#[test]
fn a_dropped_unfinished_builder_frees_its_pages() {
    let bench = Bench::new();
    let before = allocated(&bench);
    let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(1), 1 << 20);
    for message in random_messages(1, 5_000, 1, 300) {
        builder.push(message.entry()).unwrap();
    }
    assert!(allocated(&bench) > before, "the builder has written leaves");
    drop(builder);
    assert_eq!(allocated(&bench), before);
    let nothing = RunBuilder::new(bench.data.clone(), OwnerId(2), 1 << 20);
    assert!(nothing.finish().unwrap().is_none());
    assert_eq!(allocated(&bench), before);
}

#[test]
fn two_builders_interleave_their_extents_in_one_file() {
    let bench = Bench::new();
    let before = allocated(&bench);
    let models = [random_messages(3, 4_000, 2, 400), random_messages(4, 4_000, 2, 400)];
    // Without a size hint, the builders allocate in the smallest step, so the extents of the two builders interleave.
    let mut builders = [1, 2].map(|id| RunBuilder::new(bench.data.clone(), OwnerId(id), 0));
    for (a, b) in models[0].iter().zip(&models[1]) {
        builders[0].push(a.entry()).unwrap();
        builders[1].push(b.entry()).unwrap();
    }
    let count = models[0].len().min(models[1].len());
    for (builder, model) in builders.into_iter().zip(&models) {
        let slice = bench.open(builder.finish().unwrap().unwrap());
        assert!(slice.run().meta().extents.len() > 3, "extents interleave");
        for reverse in [false, true] {
            for mode in [ReadAhead::Scan, ReadAhead::Streaming(1 << 20)] {
                assert!(
                    scan(&slice, &KeyRange::all(), reverse, mode)
                        == expected(&model[..count], &KeyRange::all(), reverse)
                );
            }
        }
    }
    assert_eq!(allocated(&bench), before);
}

#[test]
fn a_run_with_range_tombstones_only_is_opened_read_and_clipped() {
    let bench = Bench::new();
    let before = allocated(&bench);
    let long = vec![b'x'; 65_000];
    let tombstones: Vec<_> = (0..12u8)
        .map(|i| {
            let range = KeyRange::new([&[i], &long[..]].concat(), [&[i + 1], &long[..]].concat());
            RangeTombstone { range, seqno: Seqno(100 + u64::from(i)) }
        })
        .collect();
    let slice = bench.open(bench.build(1, &[], &tombstones));
    let meta = slice.run().meta();
    assert!(meta.tombstones.len() > 1 && meta.leaf_pages == 0, "the tombstones need more than one block");
    assert_eq!((meta.min_seqno, meta.max_seqno), (Seqno(100), Seqno(111)));
    assert!(scan(&slice, &KeyRange::all(), false, ReadAhead::Scan).is_empty());
    assert!(probe(&slice, b"\x05y").unwrap().is_empty());
    assert_eq!(slice.covering(b"\x05y", Seqno::MAX).unwrap(), Seqno(105));
    let part = slice.clip(&KeyRange::new(*b"\x05", *b"\x06")).unwrap().unwrap();
    assert_eq!((part.bytes(), part.entries()), (0, 0));
    assert_eq!(
        (part.covering(b"\x05y", Seqno::MAX).unwrap(), part.covering(b"\x06y", Seqno::MAX).unwrap()),
        (Seqno(105), Seqno(0))
    );
    assert!(slice.clip(&KeyRange::new(*b"\x20", *b"")).unwrap().is_none());
    drop((slice, part));
    assert_eq!(allocated(&bench), before);
}

/// A builder that is dropped between two steps leaves nothing on the disk and nothing in the pool.
#[test]
fn a_builder_dropped_while_its_filter_is_made_leaves_nothing() {
    let bench = Bench::new();
    bench.checkpoints();
    let (allocated, cached) = (bench.data.stats().allocated_bytes, bench.pool.stats().bytes);
    let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(1), 1 << 20).cached_in(bench.pool.clone());
    builder = builder.with_filter(FilterBuilder::new(Filters::Maplet, 4));
    random_messages(11, 60_000, 1, 8).iter().for_each(|message| builder.push(message.entry()).unwrap());
    while bench.pool.stats().bytes < cached + 40_000 {
        assert!(!builder.prepare(8 << 10).unwrap(), "the filter needs more steps");
    }
    drop(builder);
    bench.checkpoints();
    assert_eq!((bench.data.stats().allocated_bytes, bench.pool.stats().bytes), (allocated, cached));
}
