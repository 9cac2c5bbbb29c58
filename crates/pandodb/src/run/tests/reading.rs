//! Tests of reading: cursors, seeks, probes and merges against a sorted list.

use super::*;
use crate::base::PAGE;
use crate::blocks::BlockSource;
use crate::filter::{FilterBuilder, Filters};
use crate::space::{BLOCK_HEADER, BlockKind};

const MODES: [ReadAhead; 3] = [ReadAhead::Scan, ReadAhead::Streaming(1 << 20), ReadAhead::Staggered(5_000, 20_000)];

#[test]
fn scans_return_the_pushed_messages_in_both_directions() {
    let bench = Bench::new();
    let cases = [
        random_messages(1, 1, 1, 10),
        random_messages(2, 3_000, 4, 120),
        random_messages(3, 4_000, 1, 0),
        random_messages(4, 400, 2, 3_000),
        awkward_messages(),
    ];
    for (id, messages) in cases.iter().enumerate() {
        let slice = bench.run(id as u64 + 1, messages);
        for reverse in [false, true] {
            let all = expected(messages, &KeyRange::all(), reverse);
            for mode in MODES {
                assert!(scan(&slice, &KeyRange::all(), reverse, mode) == all, "case {id}, reverse {reverse}, {mode:?}");
            }
        }
        let mut random = Random(id as u64);
        for turn in 0..60 {
            let (range, reverse) = (random_range(&mut random, messages), turn % 2 == 1);
            let mode = MODES[turn % 3];
            let got = scan(&slice, &range, reverse, mode);
            assert!(got == expected(messages, &range, reverse), "case {id}, reverse {reverse}, {mode:?}, turn {turn}");
        }
    }
}

#[test]
fn the_description_counts_the_pushed_messages() {
    let bench = Bench::new();
    let messages = random_messages(9, 500, 3, 50);
    let tombstone = RangeTombstone { range: KeyRange::new(*b"b", *b"c"), seqno: Seqno(3) };
    let meta = bench.build(1, &messages, std::slice::from_ref(&tombstone));
    let count = |kind| messages.iter().filter(|message| message.kind == kind).count() as u64;
    let mut keys: Vec<_> = messages.iter().map(|message| &message.key).collect();
    keys.dedup();
    assert_eq!((meta.puts, meta.deletes), (count(Kind::Put), count(Kind::Delete)));
    assert_eq!((meta.merges, meta.blob_puts), (count(Kind::Merge), count(Kind::BlobPut)));
    assert_eq!((meta.keys, meta.range_tombstones), (keys.len() as u64, 1));
    assert_eq!(meta.blob_bytes, meta.blob_puts * 9_000);
    assert_eq!(meta.key_bytes, messages.iter().map(|message| message.key.len() as u64).sum::<u64>());
    assert_eq!((&meta.first_key, &meta.last_key), (&messages[0].key, &messages[messages.len() - 1].key));
    assert_eq!((meta.min_seqno, Some(meta.max_seqno)), (Seqno(3), messages.iter().map(|m| m.seqno).max()));
    let end = meta.extents.last().unwrap().end();
    let footer = BlockAddr { page: PageNo(end - 1), pages: 1 };
    assert_eq!(read_footer(&bench.data, OwnerId(1), footer).unwrap(), meta);
    let slice = bench.open(meta);
    assert_eq!(slice.covering(b"bb", Seqno::MAX).unwrap(), Seqno(3));
    assert_eq!(
        slice.tombstones(&KeyRange::new(*b"bx", *b"")).unwrap(),
        [RangeTombstone { range: KeyRange::new(*b"bx", *b"c"), seqno: Seqno(3) }]
    );
}

#[test]
fn probes_find_every_message_of_a_key_and_nothing_else() {
    let bench = Bench::new();
    for (id, messages) in [random_messages(31, 4_000, 3, 100), awkward_messages()].iter().enumerate() {
        let slice = bench.run(id as u64 + 1, messages);
        for group in messages.chunk_by(|a, b| a.key == b.key) {
            assert!(probe(&slice, &group[0].key).unwrap() == group, "{:?}", group[0].key);
        }
        let (mut random, mut false_positives) = (Random(8), 0);
        for _ in 0..5_000 {
            let key = random.bytes(17);
            let (found, leaves) = probe_leaves(&slice, &key).unwrap();
            assert!(found.is_empty());
            false_positives += leaves;
        }
        assert!(false_positives < 5_000 / 50, "{false_positives}");
        // A slice returns only messages of its range.
        let middle = messages[messages.len() / 2].key.clone();
        let low = slice.clip(&KeyRange::new(*b"", middle.clone())).unwrap().unwrap();
        assert!(probe(&low, &middle).unwrap().is_empty());
        assert!(!probe(&slice, &middle).unwrap().is_empty());
    }
}

#[test]
fn a_merge_is_the_sorted_union() {
    let bench = Bench::new();
    for ways in [1, 2, 3, 8, 13] {
        let messages = random_messages(40 + ways, 2_500, 6, 60);
        let mut random = Random(ways);
        let mut parts = vec![Vec::new(); ways as usize];
        for message in &messages {
            parts[random.below(ways) as usize].push(message.clone());
        }
        let slices: Vec<_> = parts.iter().enumerate().map(|(i, part)| bench.run(ways * 100 + i as u64, part)).collect();
        for (turn, reverse) in [false, true, false, true].into_iter().enumerate() {
            let range = if turn < 2 { KeyRange::all() } else { random_range(&mut random, &messages) };
            let cursor = |(i, slice): (usize, &Arc<RunSlice>)| {
                let mut cursor = RunCursor::pending(slice.clone(), &range, reverse, MODES[1]);
                if i % 3 == 0 {
                    cursor.open().unwrap();
                }
                cursor
            };
            let mut merge = MergeCursor::new(slices.iter().enumerate().map(cursor).collect(), reverse).unwrap();
            let all = expected(&messages, &range, reverse);
            let (mut lasts, mut known) = (0, 0);
            for (i, message) in all.iter().enumerate() {
                assert!(merge.entry() == Some(message.entry()), "{ways} ways, reverse {reverse}");
                if !reverse {
                    let is_last = all.get(i + 1).is_none_or(|next| next.key != message.key);
                    assert!(is_last || !merge.is_last_of_key(), "another message of the key follows");
                    (lasts, known) = (lasts + u32::from(is_last), known + u32::from(merge.is_last_of_key()));
                }
                merge.advance().unwrap();
            }
            assert!(merge.entry().is_none() && (reverse || !merge.is_last_of_key()));
            assert!(known * 4 >= lasts, "{known} of {lasts} keys were known to have no further message");
        }
    }
    let mut none = MergeCursor::new(Vec::new(), false).unwrap();
    none.advance().unwrap();
    assert!(none.entry().is_none());
}

#[test]
fn a_merge_leaves_out_only_old_messages_of_the_range() {
    let bench = Bench::new();
    let messages = random_messages(46, 4_000, 6, 60);
    let newest = messages.iter().map(|message| message.seqno.0).max().unwrap();
    // Each run has the messages of one stretch of seqnos.
    let part_of = |message: &Message| (message.seqno.0 * 4 / (newest + 1)) as usize;
    let parts: Vec<Vec<Message>> =
        (0..4).map(|part| messages.iter().filter(|message| part_of(message) == part).cloned().collect()).collect();
    let slices: Vec<_> = parts.iter().enumerate().map(|(i, part)| bench.run(950 + i as u64, part)).collect();
    for (seed, reverse) in (0..12).map(|i| (i, i % 2 == 1)) {
        let mut random = Random(seed);
        let cursor = |slice: &Arc<RunSlice>| RunCursor::pending(slice.clone(), KeyRange::all(), reverse, MODES[1]);
        let mut merge = MergeCursor::new(slices.iter().map(cursor).collect(), reverse).unwrap();
        let all = expected(&messages, &KeyRange::all(), reverse);
        let mut left_out: Vec<(KeyRange, Seqno)> = Vec::new();
        let (mut next, mut skipped) = (0, 0);
        while let Some(entry) = merge.entry() {
            let is_covered = |message: &Message| {
                let newest = slices[part_of(message)].run().meta().max_seqno;
                left_out.iter().any(|(range, seqno)| range.contains(&message.key) && newest < *seqno)
            };
            while all[next].entry() != entry {
                assert!(is_covered(&all[next]), "{:?} is missing, seed {seed}", all[next].key);
                (next, skipped) = (next + 1, skipped + 1);
            }
            next += 1;
            let key = entry.key.to_vec();
            if random.below(100) == 0 {
                let mut range = random_range(&mut random, &messages);
                match random.below(3) {
                    0 => range.from.clone_from(&key),
                    1 => range.to = crate::base::range::successor(&key),
                    _ => {}
                }
                let seqno = Seqno(random.below(newest + 2));
                if range.contains(&key) {
                    merge.leave_out(&range, seqno).unwrap();
                    left_out.push((range, seqno));
                }
            }
            // The current entry may be one of those that were left out.
            if merge.entry() == Some(all[next - 1].entry()) {
                merge.advance().unwrap();
            }
        }
        assert!(skipped > 100, "{skipped} of {} messages were left out", all.len());
    }
}

#[test]
fn disjoint_runs_are_opened_one_after_the_other() {
    let bench = Bench::new();
    let messages = random_messages(47, 3_000, 3, 60);
    // Divide the messages where the key changes, so that no two runs have a common key.
    let mut parts: Vec<&[Message]> = Vec::new();
    let mut rest = messages.as_slice();
    while rest.len() > 600 {
        let at = (600..rest.len()).find(|&i| rest[i].key != rest[i - 1].key).unwrap_or(rest.len());
        let (part, others) = rest.split_at(at);
        parts.push(part);
        rest = others;
    }
    parts.push(rest);
    let slices: Vec<_> = parts.iter().enumerate().map(|(i, part)| bench.run(900 + i as u64, part)).collect();
    assert!(slices.windows(2).all(|pair| pair[0].is_before(&pair[1]) && !pair[1].is_before(&pair[0])));
    // Add a run without keys.
    let tombstone = RangeTombstone { range: KeyRange::new(*b"a", *b"z"), seqno: Seqno(1) };
    let no_keys = bench.open(bench.build(990, &[], &[tombstone]));
    for reverse in [false, true] {
        // Chunks of one page bypass the pool, so each visited leaf is read from disk.
        let mode = ReadAhead::Streaming(crate::base::PAGE);
        let cursor = |slice: &Arc<RunSlice>| RunCursor::pending(slice.clone(), KeyRange::all(), reverse, mode);
        let before = bench.data.stats().read_bytes;
        let inputs = slices.iter().chain([&no_keys]).rev().map(cursor).collect();
        let mut merge = MergeCursor::new(inputs, reverse).unwrap();
        let all = expected(&messages, &KeyRange::all(), reverse);
        let mut passed = Vec::new();
        for message in &all {
            assert!(merge.entry() == Some(message.entry()), "reverse {reverse}");
            passed.push(bench.data.stats().read_bytes - before);
            merge.advance().unwrap();
        }
        assert!(merge.entry().is_none());
        assert!(passed[0] * 4 < passed[passed.len() - 1], "all runs were opened at once: {}", passed[0]);
    }
}

#[test]
fn split_keys_divide_a_range_into_parts_of_about_equal_size() {
    let bench = Bench::new();
    let messages = random_messages(51, 20_000, 1, 300);
    let slice = bench.run(1, &messages);
    let run = slice.run();
    assert!(run.meta().height >= 2, "the test needs two levels of inner blocks");
    for range in [KeyRange::all(), KeyRange::new(*b"user000000010", *b"user000000050")] {
        let keys = slice.clip(&range).unwrap().unwrap().split_keys(4).unwrap();
        assert_eq!(keys.len(), 3);
        assert!(keys.is_sorted_by(|a, b| a < b) && keys.iter().all(|key| range.contains(key) && *key > range.from));
        let mut bounds = vec![range.from.clone()];
        bounds.extend(keys);
        bounds.push(range.to.clone());
        let total = expected(&messages, &range, false).len();
        for pair in bounds.windows(2) {
            let part = expected(&messages, &KeyRange::new(&*pair[0], &*pair[1]), false).len();
            assert!(part * 5 > total && part * 3 < total, "{part} of {total}");
        }
    }
    let point = slice.clip(&KeyRange::point(&messages[7].key)).unwrap().unwrap();
    assert!(point.split_keys(8).unwrap().len() <= 1);
}

#[test]
fn clipping_a_slice_of_one_page_reads_nothing() {
    // The pool is too small to cache an inner block.
    let bench = Bench { pool: Arc::new(Pool::new(PAGE)), ..Bench::new() };
    let messages: Vec<_> = (0..20_000u64).map(|i| put(format!("key{i:021}").as_bytes(), i + 1, vec![7; 100])).collect();
    let slice = bench.run(1, &messages);
    let range =
        |from: u64, to: u64| KeyRange::new(format!("key{from:021}").as_bytes(), format!("key{to:021}").as_bytes());
    let page = slice.clip(&range(9_003, 9_006)).unwrap().unwrap();
    assert_eq!(page.held_pages(), 1);
    let before = bench.data.stats().reads;
    let part = page.clip(&range(9_004, 9_005)).unwrap().unwrap();
    assert!(part.split_keys(8).unwrap().is_empty());
    assert_eq!(bench.data.stats().reads, before);
    // Clipping a slice of several pages to the same part needs the inner blocks.
    assert!(slice.clip(&range(9_004, 9_005)).unwrap().is_some());
    assert!(bench.data.stats().reads > before);
}

#[test]
fn leaves_are_filled_to_85_percent() {
    let bench = Bench::new();
    for value_len in [20, 100, 700, 1_000, 2_100, 5_000] {
        let messages: Vec<_> =
            (0..2_000u64).map(|i| put(format!("key{i:021}").as_bytes(), i + 1, vec![7; value_len])).collect();
        let slice = bench.run(value_len as u64, &messages);
        let meta = slice.run().meta();
        let used = meta.value_bytes as f64 + 2_000.0 * 10.0;
        let fill = used / (meta.leaf_pages * 4096) as f64;
        assert!(fill > 0.85, "{fill} with values of {value_len} bytes");
    }
}

/// A builder that is finished in small steps writes the same run as a builder that is finished in a single step.
#[test]
fn finishing_a_run_in_steps_gives_the_same_run() {
    let messages = random_messages(11, 60_000, 1, 8);
    for filters in [Filters::Bloom, Filters::Maplet] {
        let build = |budget: u64| {
            let bench = Bench::new();
            let mut builder =
                RunBuilder::new(bench.data.clone(), OwnerId(1), 1 << 20).with_filter(FilterBuilder::new(filters, 4));
            messages.iter().for_each(|message| builder.push(message.entry()).unwrap());
            let mut steps = 1;
            while !builder.prepare(budget).unwrap() {
                steps += 1;
            }
            (builder.finish().unwrap().expect("messages"), steps, bench)
        };
        let (whole, one, first) = build(u64::MAX);
        let (parts, many, bench) = build(8 << 10);
        assert!(one == 1 && many > 5, "{one} and {many} steps");
        assert_eq!(whole, parts);
        let slice = bench.open(parts);
        assert!(messages.iter().step_by(7).all(|message| !probe(&slice, &message.key).unwrap().is_empty()));
        let filter = |slice: &RunSlice| -> Vec<Vec<u8>> {
            let meta = slice.run().meta().filter;
            let page = |i| {
                slice
                    .run()
                    .address(meta.first + u64::from(i), 1)
                    .and_then(|at| slice.run().load(at, BlockKind::RunFilter))
            };
            (0..meta.pages).map(|i| page(i).unwrap()[BLOCK_HEADER..].to_vec()).collect()
        };
        assert_eq!(filter(&slice), filter(&first.open(whole)));
    }
}
