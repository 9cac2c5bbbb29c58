//! Tests that runs with compressed leaves hold the same messages in fewer pages, and tests of incompressible data and
//! of damage.

use super::*;
use crate::base::{EntryBlock, PAGE};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::space::BlockKind;
use crate::space::data::stored_pages;

impl Bench {
    fn build_as(&self, id: u64, messages: &[Message], compression: Compression) -> RunMeta {
        let builder = RunBuilder::new(self.data.clone(), OwnerId(id), 0);
        let mut builder = builder.with_compression(compression);
        messages.iter().for_each(|message| builder.push(message.entry()).unwrap());
        builder.finish().unwrap().expect("something was pushed")
    }
}

/// Replaces the second half of each message's value by zeros.
fn halved(mut messages: Vec<Message>) -> Vec<Message> {
    for message in messages.iter_mut().filter(|message| message.kind != Kind::BlobPut) {
        let half = message.value.len() / 2;
        message.value[half..].fill(0);
    }
    messages
}

/// Rows of 100 bytes, of which the last `zeros(i)` bytes of row `i` are zeros.
fn rows(count: u64, zeros: impl Fn(u64) -> usize) -> Vec<Message> {
    let mut random = Random(count);
    let row = |i: u64| {
        let mut value = random.bytes(100);
        value[100 - zeros(i)..].fill(0);
        put(format!("user{i:012}").as_bytes(), i + 1, value)
    };
    (0..count).map(row).collect()
}

/// Rows that compress well. Among them are groups of messages of one key (some groups are shorter and some are longer
/// than the longest compressed leaf, and one group is in two leaves) and values whose lengths are near the limits.
fn crowded() -> Vec<Message> {
    let mut messages = rows(600, |_| 60);
    let (mut seqno, mut random) = (1 << 20, Random(9));
    let mut add = |key: &str, len: usize| {
        seqno += 1;
        let half = random.bytes(len / 2);
        messages.push(put(key.as_bytes(), seqno, [half, vec![0; len - len / 2]].concat()));
    };
    (0..1_000).for_each(|_| add("a", 40));
    (0..3_000).for_each(|_| add("b", 40));
    (0..22).for_each(|_| add("c", 240 << 10));
    ["c\0", "c\0\0", "d"].into_iter().for_each(|key| add(key, 10));
    let near = [PAGE, 4 * PAGE, 16 * PAGE].into_iter().flat_map(|len| (0..6).map(move |less| len - 40 * less));
    for (i, len) in near.chain([1 << 20, 70_000]).enumerate() {
        add(&format!("e{i:02}"), len);
        add(&format!("e{i:02}x"), len / 3);
    }
    let long = [&[b'k'; 65_534][..], b"1"].concat();
    messages.push(put(&long, 1, vec![0; 9_000]));
    sorted(messages)
}

/// The leaves of a run as they are stored: the address of each leaf, and whether it is compressed.
fn stored(bench: &Bench, meta: &RunMeta) -> Vec<(BlockAddr, bool)> {
    let run = Run::reopen(bench.data.clone(), bench.pool.clone(), meta.clone());
    let (mut at, mut out) = (0, Vec::new());
    while at < meta.leaf_pages {
        let page = run.address(at, 1).unwrap();
        let header = bench.data.read(page).unwrap();
        let pages = stored_pages(&header);
        out.push((BlockAddr { pages, ..page }, header[4] == BlockKind::RunCompressedLeaf as u8));
        at += u64::from(pages);
    }
    out
}

/// Checks that each way to read a run returns the messages that were pushed.
fn reads_as(bench: &Bench, meta: RunMeta, messages: &[Message]) {
    let slice = bench.open(meta);
    slice.run().verify(&mut |kind, checked| assert!(checked.is_ok(), "{kind:?}: {checked:?}"));
    let ways =
        [ReadAhead::Scan, ReadAhead::Expecting(4), ReadAhead::Streaming(64 << 10), ReadAhead::Staggered(5_000, 20_000)];
    for reverse in [false, true] {
        for way in ways {
            let all = expected(messages, &KeyRange::all(), reverse);
            assert!(scan(&slice, &KeyRange::all(), reverse, way) == all, "reverse {reverse}, {way:?}");
        }
    }
    let mut random = Random(7);
    for turn in 0..60 {
        let (range, reverse) = (random_range(&mut random, messages), turn % 2 == 1);
        let got = scan(&slice, &range, reverse, ways[turn % 4]);
        assert!(got == expected(messages, &range, reverse), "reverse {reverse}, turn {turn}");
    }
    let step = (messages.len() / 400).max(1);
    for message in messages.iter().step_by(step) {
        let of_key: Vec<Message> = messages.iter().filter(|other| other.key == message.key).cloned().collect();
        assert!(probe(&slice, &message.key).unwrap() == of_key, "{:?}", message.key);
        assert!(probe(&slice, &[&message.key[..], b"\0no"].concat()).unwrap().is_empty());
    }
    let (mut salvager, mut block) = (Salvager::new(slice, &KeyRange::all()), EntryBlock::new());
    while let Piece::Entries = salvager.next(&mut block) {}
    assert!(block.iter().map(owned).eq(messages.iter().cloned()), "salvage");
}

#[test]
fn compressed_runs_return_the_same_messages_from_fewer_pages() {
    let cases = [
        rows(3_000, |_| 50),
        halved(random_messages(2, 3_000, 4, 120)),
        halved(random_messages(3, 400, 3, 3_000)),
        halved(random_messages(10, 60, 2, 40_000)),
        crowded(),
    ];
    for (id, messages) in (1..).zip(cases) {
        let bench = Bench::new();
        let plain = bench.build_as(100 + id, &messages, Compression::None);
        let packed = bench.build_as(id, &messages, Compression::Lz4);
        let (all, compressed) = (stored(&bench, &packed), stored(&bench, &packed).iter().filter(|leaf| leaf.1).count());
        let (most, least) = if id == 5 { (100, 10) } else { (85, 50) };
        let (pages, before) = (packed.leaf_pages, plain.leaf_pages);
        assert!(pages * 100 < before * most, "case {id}: {pages} pages of {before}");
        assert!(compressed * 100 >= all.len() * least, "case {id}: {compressed} of {}", all.len());
        reads_as(&bench, packed, &messages);
    }
}

#[test]
fn compressed_leaves_fill_whole_pages() {
    let bench = Bench::new();
    let messages = rows(40_000, |_| 50);
    let plain = bench.build_as(1, &messages, Compression::None);
    let packed = bench.build_as(2, &messages, Compression::Lz4);
    let leaves = stored(&bench, &packed);
    // The first leaf is gathered up to the full size, and the last leaf holds the remaining rows. All other leaves
    // compress to two nearly full pages.
    let of_two = leaves.iter().filter(|(addr, compressed)| *compressed && addr.pages == 2).count();
    assert!(of_two * 100 >= leaves.len() * 98, "{of_two} of {}", leaves.len());
    assert!(packed.leaf_pages * 100 <= plain.leaf_pages * 65, "{} of {}", packed.leaf_pages, plain.leaf_pages);
}

#[test]
fn incompressible_messages_are_stored_in_ordinary_leaves() {
    let messages = [rows(4_000, |_| 0), random_messages(8, 700, 2, 2_000), rows(20, |_| 100)];
    for messages in messages {
        let (one, other) = (Bench::new(), Bench::new());
        let plain = one.build_as(1, &messages, Compression::None);
        let tried = other.build_as(1, &messages, Compression::Lz4);
        assert_eq!(plain, tried);
        assert!(stored(&other, &tried).iter().all(|(_, compressed)| !compressed));
        for extent in &plain.extents {
            let addr = BlockAddr { page: extent.start, pages: extent.pages };
            assert!(one.data.read(addr).unwrap()[..] == other.data.read(addr).unwrap()[..], "the blocks differ");
        }
        assert_eq!(other.data.features(), 0, "an older build can read the file");
        reads_as(&other, tried, &messages);
    }
}

#[test]
fn a_run_may_have_compressed_and_ordinary_leaves() {
    let bench = Bench::new();
    // Long sequences of rows that compress well, badly and not at all.
    let messages = rows(20_000, |i| [50, 0, 100, 20][(i / 1_500) as usize % 4]);
    let meta = bench.build_as(1, &messages, Compression::Lz4);
    let leaves = stored(&bench, &meta);
    let compressed = leaves.iter().filter(|leaf| leaf.1).count();
    assert!(compressed > 30 && leaves.len() - compressed > 200, "{compressed} of {}", leaves.len());
    assert!(leaves.iter().all(|(addr, compressed)| *compressed || addr.pages == 1), "ordinary leaves have one page");
    assert_ne!(bench.data.features(), 0);
    reads_as(&bench, meta, &messages);
}

#[test]
fn the_pool_holds_and_charges_uncompressed_leaves() {
    let bench = Bench::new();
    let messages = rows(2_000, |_| 100);
    let meta = bench.build_as(1, &messages, Compression::Lz4);
    let slice = bench.open(meta);
    let child = slice.run().leaf_of(&messages[0].key).unwrap();
    let addr = slice.run().address(child.position, child.pages).unwrap();
    let before = (bench.pool.stats().bytes, bench.data.stats().read_bytes);
    let block = slice.run().load(addr, BlockKind::RunLeaf).unwrap();
    assert!(block.pages() == 4 && addr.pages == 1 && stored_pages(&block) == 1, "{block:?} {addr:?}");
    let after = (bench.pool.stats().bytes, bench.data.stats().read_bytes);
    assert!(after.0 - before.0 >= 4 * PAGE as u64, "charged with its size in memory");
    assert_eq!(after.1 - before.1, PAGE as u64, "read with its size on disk");
    // A cursor takes the leaf from the pool, in both directions.
    let reads = bench.data.stats().reads;
    let range = KeyRange::new(messages[3].key.clone(), messages[9].key.clone());
    for reverse in [false, true] {
        assert!(scan(&slice, &range, reverse, ReadAhead::Scan) == expected(&messages, &range, reverse));
    }
    assert_eq!(bench.data.stats().reads, reads);
    // A reference whose length differs from the leaf's length counts as damage.
    let wrong = BlockAddr { pages: 4, ..addr };
    assert!(slice.run().load(wrong, BlockKind::RunLeaf).unwrap_err().is_corruption());
}

/// A small compressed leaf as it is stored.
fn small_leaf() -> Vec<u8> {
    let mut leaf = LeafBuilder::default();
    rows(80, |_| 70).iter().for_each(|message| leaf.push(&message.entry()));
    let mut compressor = Compressor::default();
    let pages = compressor.compress(&leaf, 3, slots::CONTINUED).expect("the leaf compresses well");
    let mut block = vec![0xaa; pages as usize * PAGE];
    compressor.fill(&mut block);
    block[..16].fill(0);
    block[8..12].copy_from_slice(&pages.to_le_bytes());
    block
}

#[test]
fn changed_bytes_of_a_compressed_leaf_cause_no_panic_and_no_large_allocation() {
    let sound = small_leaf();
    let mut leaf = Vec::new();
    unpack(&sound, &mut leaf).unwrap();
    let whole = Leaf::check(&leaf).unwrap();
    assert_eq!((whole.len(), whole.pages_before(), whole.is_continued()), (80, 3, true));
    let used = 24 + u32::from_le_bytes(sound[20..24].try_into().unwrap()) as usize;
    assert!(used > 2_000 && sound[used..].iter().all(|&byte| byte == 0));
    let mut refused = 0;
    for at in 16..used {
        for change in [1, 0x10, 0x80, 0xff] {
            let mut block = sound.clone();
            block[at] ^= change;
            let read = unpack(&block, &mut leaf).and_then(|()| Leaf::check(&leaf).map(drop));
            refused += usize::from(read.is_err());
            assert!(leaf.len() <= 16 * PAGE);
        }
    }
    assert!(refused > used, "{refused}");
    let number = |at: usize, value: u32| {
        let mut block = sound.clone();
        block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        unpack(&block, &mut Vec::new())
    };
    for (at, value) in [(16, 0), (16, 15), (16, PAGE as u32), (16, 16 * PAGE as u32 + 1), (16, u32::MAX)] {
        assert!(number(at, value).is_err(), "length {value}");
    }
    for value in [0, 1, PAGE as u32 - 23, u32::MAX] {
        assert!(number(20, value).is_err(), "packed {value}");
    }
}

#[test]
fn damage_to_a_compressed_leaf_is_reported_and_loses_that_leaf_only() {
    let bench = Bench::new();
    let messages = rows(900, |_| 60);
    let meta = bench.build_as(1, &messages, Compression::Lz4);
    let (addr, compressed) = stored(&bench, &meta)[2];
    assert!(compressed);
    let sound = bench.data.read(addr).unwrap();
    let spoil = |at: usize, sealed: bool| {
        let mut block = AlignedBuf::from_bytes(&sound);
        block[at] ^= 0x55;
        if sealed {
            bench.data.seal_block(&mut block, addr, meta.id, BlockKind::RunCompressedLeaf);
        }
        bench.data.write(addr.page, block).unwrap();
        let pool = Arc::new(Pool::new(4 << 20));
        RunSlice::whole(Run::reopen(bench.data.clone(), pool, meta.clone()))
    };
    for (at, sealed) in [(2, false), (5_000, false), (17, true), (22, true), (30, true)] {
        let slice = spoil(at, sealed);
        let mut failed = 0;
        for message in &messages {
            match probe(&slice, &message.key) {
                Ok(found) => assert_eq!(found, std::slice::from_ref(message)),
                Err(error) => {
                    let text = error.to_string();
                    assert!(error.is_corruption() && text.contains("leaf block") && text.contains("`data`"), "{text}");
                    failed += 1;
                }
            }
        }
        assert!((40..400).contains(&failed), "byte {at}: {failed} keys");
        for reverse in [false, true] {
            let ends = (|| {
                let mut cursor = RunCursor::new(slice.clone(), KeyRange::all(), reverse, ReadAhead::Scan)?;
                while cursor.entry().is_some() {
                    cursor.advance()?;
                }
                Ok::<(), crate::Error>(())
            })();
            assert!(ends.unwrap_err().is_corruption());
        }
        let (mut salvager, mut block, mut lost) = (Salvager::new(slice, &KeyRange::all()), EntryBlock::new(), 0);
        loop {
            match salvager.next(&mut block) {
                Piece::Entries => {}
                Piece::Lost(range, _) => lost += messages.iter().filter(|m| range.contains(&m.key)).count(),
                Piece::End => break,
            }
        }
        assert_eq!((block.len() + lost, lost), (messages.len(), failed), "byte {at}");
    }
}

#[test]
fn a_compressed_leaf_marked_as_uncompressed_is_reported_as_damage() {
    let bench = Bench::new();
    let messages = rows(900, |_| 60);
    let meta = bench.build_as(1, &messages, Compression::Lz4);
    let (addr, _) = stored(&bench, &meta)[0];
    // Change the header of a compressed leaf so that it claims to be an uncompressed leaf.
    let mut block = bench.data.read(addr).unwrap();
    bench.data.seal_block(&mut block, addr, meta.id, BlockKind::RunLeaf);
    bench.data.write(addr.page, block).unwrap();
    let slice = bench.open(meta);
    assert!(probe(&slice, &messages[0].key).unwrap_err().is_corruption());
}
