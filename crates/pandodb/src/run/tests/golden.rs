//! Tests that pin the persisted bytes of runs. If an expected value has to be changed, the format has changed and needs
//! a new format version.

use super::leaf::LeafBuilder;
use super::*;
use crate::base::{Extent, PAGE};
use crate::filter::{FilterKind, FilterMeta};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The body of a block without its header and the zeros at its end.
fn body(block: &[u8]) -> String {
    let end = block.iter().rposition(|&byte| byte != 0).map_or(16, |last| last + 1);
    hex(&block[16..end])
}

#[test]
fn leaf() {
    let mut builder = LeafBuilder::default();
    let merge = Message { kind: Kind::Merge, ..put(b"apple", 9, b"+1".to_vec()) };
    let delete = Message { kind: Kind::Delete, ..put(b"apricot", 300, Vec::new()) };
    for message in [merge, put(b"apple", 7, b"red".to_vec()), delete] {
        builder.push(&message.entry());
    }
    let mut block = vec![0xaa; PAGE];
    builder.encode(&mut block, 3, slots::CONTINUES);
    let want = concat!(
        "03000000",         // count
        "02000200",         // prefix length, flags: continues
        "56000000",         // end
        "03000000",         // pages of the leaf before
        "0700000000000000", // smallest seqno
        "6170",             // prefix: ap
        "00656c70",         // heads: ple, ple, rico
        "00656c70",
        "6f636972",
        "3c0044004d00", // offsets
        "02",           // merge
        "0203706c652b31",
        "01", // put
        "0003706c65726564",
        "00", // delete
        "a502057269636f74",
    );
    assert_eq!(body(&block), want);
    Leaf::check(&block).unwrap();
}

/// Eighteen rows of 300 equal bytes. Another version of the LZ4 crate may compress a leaf to other bytes, but the bytes
/// in this test must decompress to the same leaf.
#[test]
fn compressed_leaf() {
    let mut leaf = LeafBuilder::default();
    (0..18u64).for_each(|i| leaf.push(&put(&[b'k', b'a' + i as u8], 5 + i, vec![b'v'; 300]).entry()));
    let mut plain = vec![0; 2 * PAGE];
    leaf.encode(&mut plain, 3, 0);
    let stored = concat!(
        "f5150000", // length
        "5c010000", // bytes of LZ4
        "f2031200000001000000f51500000300000005000100f31a6b0000006100000062000000630000006400000065000000",
        "660000006700000068000000690000006a2c00ff346c0000006d0000006e0000006f0000007000000071000000729500",
        "c501f502250455058506b507e508150a450b750ca50dd50e0510351165129513c5140100016176760200ff184f010101",
        "622d01ff17717676760102016309000f0200ff154f010301642b01ff15010200410104016509000f0200ff154f010501",
        "662b01ff15010200410106016709000f0200ff154f010701682b01ff15010200410108016909000f0200ff154f010901",
        "6a2b01ff1501020041010a016b09000f0200ff154f010b016c2b01ff1501020041010c016d09000f0200ff154f010d01",
        "6e2b01ff1501020041010e016f09000f0200ff154f010f01702b01ff15010200410110017109000f0200ff154f011101",
        "722b01ff1460767676767676",
    );
    let bytes = (0..stored.len()).step_by(2).map(|at| u8::from_str_radix(&stored[at..at + 2], 16).unwrap());
    let mut block: Vec<u8> = [0; 16].into_iter().chain(bytes).collect();
    block.resize(PAGE, 0);
    block[8..12].copy_from_slice(&1u32.to_le_bytes());
    let mut unpacked = Vec::new();
    unpack(&block, &mut unpacked).unwrap();
    assert!(unpacked[16..] == plain[16..]);
    // The header of a leaf in memory repeats the number of pages on disk.
    assert_eq!(hex(&unpacked[..16]), "00000000010000000100000000000000");
    Leaf::check(&unpacked).unwrap();
    let (mut compressor, mut again) = (Compressor::default(), vec![0xaa; PAGE]);
    assert_eq!(compressor.compress(&leaf, 3, 0), Some(1));
    compressor.fill(&mut again);
    let packed = u32::from_le_bytes(again[20..24].try_into().unwrap()) as usize;
    assert_eq!(again[16..20], block[16..20]);
    assert!(packed < 500 && again[24 + packed..].iter().all(|&byte| byte == 0));
    again[..16].copy_from_slice(&block[..16]);
    unpack(&again, &mut unpacked).unwrap();
    assert!(unpacked[16..] == plain[16..]);
}

#[test]
fn inner() {
    let frame = |end: &str, level: &str| {
        // The parts are: the count, the prefix length and the flags; the end; the level; the smallest position; the
        // prefix "user"; and the heads of "", "1" and "27".
        format!("0300000004000000{end}{level}e80300000000000075736572000000000000003100003732")
    };
    // The parts are: the offsets; then for each child its position, its pages, its first leaf (only above level 1), and
    // the rest of its separator.
    let low = frame("47000000", "01000000") + "3e0040004300" + "0001" + "010131" + "02013237";
    let high = frame("4c000000", "02000000") + "3e0041004600" + "000100" + "0101c80131" + "020190033237";
    for (level, want) in [(1, low), (2, high)] {
        let mut builder = inner::InnerBuilder::new(level);
        for (i, separator) in [&b"aa"[..], b"user1", b"user27"].into_iter().enumerate() {
            let position = 1000 + i as u64;
            builder
                .add(Child { position, pages: 1, leaf: if level == 1 { position } else { 200 * i as u64 } }, separator);
        }
        let mut block = vec![0xaa; PAGE];
        builder.encode(&mut block);
        assert_eq!(body(&block), want);
        Inner::check(&block).unwrap();
    }
}

#[test]
fn tombstone_block() {
    let ranges = [
        RangeTombstone { range: KeyRange::new(*b"a", *b"b"), seqno: Seqno(300) },
        RangeTombstone { range: KeyRange::new(*b"c", *b""), seqno: Seqno(5) },
    ];
    let blocks = tombstones::encode(&ranges);
    let mut block = vec![0xaa; PAGE];
    tombstones::fill(&mut block, blocks[0].0, &blocks[0].1);
    // The parts are: count; length; seqno, from and to of each tombstone. `body` omits the last byte, the zero of an
    // empty bound.
    assert_eq!(body(&block), concat!("02000000", "0a000000", "ac0201610162", "050163"));
    let mut decoded = Vec::new();
    tombstones::decode(&block, &mut decoded).unwrap();
    assert_eq!(decoded, ranges);
}

fn description() -> RunMeta {
    RunMeta {
        id: OwnerId(77),
        extents: vec![Extent { start: PageNo(64), pages: 32 }, Extent { start: PageNo(160), pages: 9 }],
        leaf_pages: 36,
        root: BlockAddr { page: PageNo(164), pages: 1 },
        height: 1,
        filter: FilterMeta { pages: 1, first: 37, ..FilterMeta::default() },
        tombstones: vec![BlockAddr { page: PageNo(166), pages: 1 }],
        first_key: b"a".to_vec(),
        last_key: b"zz".to_vec(),
        min_seqno: Seqno(5),
        max_seqno: Seqno(900),
        puts: 600,
        deletes: 7,
        merges: 8,
        blob_puts: 9,
        range_tombstones: 2,
        keys: 500,
        key_bytes: 12_000,
        value_bytes: 60_000,
        blob_bytes: 1 << 20,
    }
}

#[test]
fn footer() {
    let meta = description();
    let mut bytes = Vec::new();
    meta.encode(&mut bytes);
    let mut block = vec![0xaa; PAGE];
    meta::fill_footer(&mut block, &bytes);
    let want = concat!(
        "2a000000",                   // length
        "4d",                         // id
        "024020a00109",               // extents
        "24",                         // leaf pages
        "a40101",                     // root
        "01",                         // height
        "0125",                       // filter
        "01a60101",                   // tombstones
        "0161",                       // first key
        "027a7a",                     // last key
        "058407",                     // seqnos
        "d80407080902f403e05de0d403", // counters
        "808040",
    );
    assert_eq!(body(&block), want);
    assert_eq!(RunMeta::decode(&mut crate::base::codec::Reader::new(&bytes, "test")).unwrap(), meta);
}

#[test]
fn filters_of_all_kinds() {
    let kinds = [
        (FilterKind::Bloom, "0125"),
        (FilterKind::Quotient { bits: 17 }, "818080801025 11"),
        (FilterKind::Maplet { bits: 19 }, "818080802025 13"),
    ];
    for (kind, want) in kinds {
        // A maplet has only a filter.
        let mut meta = match kind {
            FilterKind::Maplet { .. } => RunMeta { extents: description().extents, keys: 500, ..RunMeta::default() },
            _ => description(),
        };
        meta.filter.kind = kind;
        (meta.filter.pages, meta.filter.first) = (1, 37);
        let mut bytes = Vec::new();
        meta.encode(&mut bytes);
        assert!(hex(&bytes).contains(&want.replace(' ', "")), "{kind:?}: {}", hex(&bytes));
        assert_eq!(RunMeta::decode(&mut crate::base::codec::Reader::new(&bytes, "test")).unwrap(), meta);
        // Descriptions that must be refused: more keys than the filter's pages can hold, and a maplet with entries.
        let hostile = RunMeta { keys: 600, filter: FilterMeta { pages: 0, ..meta.filter }, ..meta.clone() };
        let mut bytes = Vec::new();
        hostile.encode(&mut bytes);
        let decoded = RunMeta::decode(&mut crate::base::codec::Reader::new(&bytes, "test"));
        assert_eq!(decoded.is_err(), kind != FilterKind::Bloom, "{kind:?}");
    }
}

#[test]
fn slice() {
    let bench = Bench::new();
    let messages: Vec<_> = (0..900u64).map(|i| put(format!("k{i:05}").as_bytes(), i + 1, vec![b'v'; 40])).collect();
    let slice = bench.run(3, &messages).clip(&KeyRange::new(*b"k00300", *b"k00600")).unwrap().unwrap();
    let mut bytes = Vec::new();
    slice.encode(&mut bytes);
    assert_eq!(hex(&bytes), concat!("066b3030333030", "066b3030363030", "030804"));
}

/// Pins a whole run: the kind of each page and the CRC-32C of its body. The footer is not pinned, because its body
/// depends on the run's position in the file.
#[test]
fn whole_run() {
    let bench = Bench::new();
    let messages: Vec<_> = (0..300u64).map(|i| put(format!("k{i:05}").as_bytes(), i + 1, vec![b'v'; 40])).collect();
    let tombstone = RangeTombstone { range: KeyRange::new(*b"k00010", *b"k00020"), seqno: Seqno(500) };
    let meta = bench.build(3, &messages, &[tombstone]);
    let mut pages = Vec::new();
    for extent in &meta.extents {
        for page in extent.start.0..extent.end() {
            let bytes = bench.data.read(BlockAddr { page: PageNo(page), pages: 1 }).unwrap();
            pages.push((bytes[4], crc32c::crc32c(&bytes[16..])));
        }
    }
    let footer = pages.pop().unwrap();
    let leaves = [(1, 2588723992), (1, 2370664438), (1, 522233335), (1, 1690503713)];
    let rest = [(2, 532900200), (3, 1414589321), (4, 2185003042)];
    assert_eq!((footer.0, pages), (5, [&leaves[..], &rest].concat()));
}
