//! Target: a damaged run with all its blocks (leaves, inner blocks, filter, tombstones, footer). All readers of these
//! blocks are tested.
//!
//! Input: the choice of a run, a flag that says whether the metadata of the run is read from its footer, then patches
//! (see [`crate::patches`]).
//!
//! Properties with wrong checksums: every answer is right or an error. Properties with corrected checksums: no call
//! panics or loops. If `verify` reports no damage, scans are in order and equal in both directions, and a lookup finds
//! every key. Every error reports corruption and names the file.

use std::sync::{Arc, LazyLock};

use pandodb::KeyRange;
use pandodb::base::{BlockAddr, Entry, Kind, OwnerId, PageNo, RangeTombstone, Result, Seqno, StoreId, key_hash};
use pandodb::blocks::BlockSource;
use pandodb::device::Device;
use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::pool::Pool;
use pandodb::run::{
    Compression, ProbeStep, ReadAhead, Run, RunBuilder, RunCursor, RunMeta, RunProbe, RunSlice, read_footer,
};
use pandodb::space::data::DATA_FILE;
use pandodb::space::{BlockKind, DataFile};

use pandodb::base::random::Rng;

use crate::bytes::Bytes;
use crate::patches::{self, Sound};
use crate::repair::PAGE;
use crate::{Target, assert_named, mutate};

/// The target.
pub const TARGET: Target = Target { name: "run", max_len: 256, memory: 64 << 20, run, mutate: mutate::plain, seeds };

const STORE: StoreId = StoreId([0x5A; 16]);
const ID: OwnerId = OwnerId(3);

type Owned = (Vec<u8>, Seqno, Kind, Vec<u8>);

struct Base {
    sound: Sound,
    meta: RunMeta,
    footer: BlockAddr,
    entries: Vec<Owned>,
    tombstones: Vec<RangeTombstone>,
}

static BASES: LazyLock<[Base; 4]> = LazyLock::new(|| [small(), deep(), grouped(), compressed()]);

fn base(entries: Vec<Owned>, tombstones: Vec<RangeTombstone>) -> Base {
    base_as(Compression::None, entries, tombstones)
}

fn base_as(compression: Compression, mut entries: Vec<Owned>, tombstones: Vec<RangeTombstone>) -> Base {
    entries.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
    let device = SimDevice::new(1);
    let data = DataFile::create(&*device, DATA_FILE, STORE).expect("made");
    let mut builder = RunBuilder::new(data.clone(), ID, 0).with_compression(compression);
    for (key, seqno, kind, value) in &entries {
        builder.push(Entry { key, seqno: *seqno, kind: *kind, value }).expect("written");
    }
    tombstones.iter().for_each(|tombstone| builder.push_tombstone(tombstone.clone()));
    let meta = builder.finish().expect("written").expect("not empty");
    let footer = footer_addr(&device.image(), &meta);
    Base { sound: Sound::new(device.image(), STORE.0, ID.0 + 1), meta, footer, entries, tombstones }
}

/// A run of one leaf and one block of tombstones.
fn small() -> Base {
    let put = |i: u64| (format!("key{i:03}").into_bytes(), Seqno(i + 1), Kind::Put, vec![i as u8; 5]);
    let ranges = (0..3).map(|i| RangeTombstone {
        range: KeyRange::new(format!("key{:03}", i * 5), format!("key{:03}", i * 9 + 1)),
        seqno: Seqno(50 + i),
    });
    base((0..20).map(put).collect(), ranges.collect())
}

/// A run of three levels. It has long keys, so that an inner block has only four children. Leaves have one page or
/// several pages.
fn deep() -> Base {
    let mut rng = Rng(11);
    let mut entries: Vec<Owned> = Vec::new();
    for i in 0..90u64 {
        let mut key = format!("{:03}", i * 3).into_bytes();
        key.extend((0..850).map(|_| b'a' + rng.index(26) as u8));
        for version in 0..1 + i % 3 {
            let (kind, len) = match (i + version) % 11 {
                0 => (Kind::Delete, 0),
                1 | 2 => (Kind::Merge, 8),
                3 => (Kind::Put, 9000),
                _ => (Kind::Put, rng.index(60)),
            };
            entries.push((key.clone(), Seqno(1000 - i * 4 - version), kind, vec![i as u8; len]));
        }
    }
    base(entries, vec![RangeTombstone { range: KeyRange::new("05", "06"), seqno: Seqno(2000) }])
}

/// A run in which the messages of one key fill more than a leaf.
fn grouped() -> Base {
    let merge = |i: u64| (b"counter".to_vec(), Seqno(100 + i), Kind::Merge, vec![i as u8; 200 << 10]);
    let mut entries: Vec<Owned> = (0..23).map(merge).collect();
    for key in ["a", "counted", "counter\0", "z"] {
        entries.push((key.into(), Seqno(7), Kind::Put, b"beside".to_vec()));
    }
    base(entries, Vec::new())
}

/// A run with compressed leaves of one page and of several pages, and with uncompressed leaves.
fn compressed() -> Base {
    let mut rng = Rng(12);
    let mut put = |i: u64| {
        let noise = if i < 900 { 20 } else { 90 };
        let value = (0..100).map(|at| if at < noise { rng.next_u64() as u8 } else { 0 }).collect();
        (format!("key{i:05}").into_bytes(), Seqno(i + 1), Kind::Put, value)
    };
    let mut entries: Vec<Owned> = (0..1_100).map(&mut put).collect();
    (0..40).for_each(|i| entries.push((b"key00500".to_vec(), Seqno(5_000 + i), Kind::Merge, vec![i as u8; 900])));
    base_as(Compression::Lz4, entries, Vec::new())
}

fn run(data: &[u8]) {
    let mut input = Bytes(data);
    let choice = input.u8();
    let base = match choice % 16 {
        0 => &BASES[2],
        1..=6 => &BASES[0],
        14 | 15 => &BASES[3],
        _ => &BASES[1],
    };
    let patched = base.sound.patch(&mut input);
    if patched.image.files().is_empty() {
        return;
    }
    let device = SimDevice::from_image(&patched.image, 1);
    let opened = open(&*device, base, choice >= 128);
    let found = opened.and_then(|slice| Found::read(&slice, &base.entries).map(|found| (slice, found)));
    match found {
        Err(error) => assert_named(&error),
        Ok((slice, found)) => {
            if !patched.repaired {
                assert_eq!(found.forward, base.entries, "a scan gave a wrong answer");
                assert_eq!(found.gets, expected_gets(&base.entries), "a lookup gave a wrong answer");
                compare_tombstones(&slice, base);
            }
            judge(&slice, &found);
        }
    }
    assert!(device.op_count() < 200_000, "{} operations", device.op_count());
}

fn compare_tombstones(slice: &RunSlice, base: &Base) {
    for (key, ..) in &base.entries {
        let covering = base.tombstones.iter().filter(|tombstone| tombstone.range.contains(key));
        let newest = covering.map(|tombstone| tombstone.seqno).max().unwrap_or_default();
        match slice.covering(key, Seqno::MAX) {
            Ok(found) => assert_eq!(found, newest),
            Err(error) => assert_named(&error),
        }
    }
}

fn open(device: &dyn Device, base: &Base, from_footer: bool) -> Result<Arc<RunSlice>> {
    let data = DataFile::open(DataFile::open_raw(device, true)?, STORE)?;
    let meta = if from_footer { read_footer(&data, ID, base.footer)? } else { base.meta.clone() };
    let leaf_pages = meta.leaf_pages;
    let run = Run::reopen(data.clone(), Arc::new(Pool::new(8 << 20)), meta);
    let mut slice = vec![0, 0, 0];
    pandodb::base::codec::put_varint(&mut slice, leaf_pages);
    pandodb::base::codec::put_varint(&mut slice, leaf_pages);
    let mut reader = pandodb::base::codec::Reader::new(&slice, "fuzz");
    let slice = RunSlice::restore(run, &mut reader)?;
    slice.run().take_ownership();
    slice.run().owned().into_iter().try_for_each(|extent| data.mark(extent))?;
    data.end_marking();
    Ok(slice)
}

/// The address of the footer, which is the last block of the last extent.
fn footer_addr(image: &SimImage, meta: &RunMeta) -> BlockAddr {
    let end = meta.extents.last().expect("a run has extents").end();
    let addr_of = |pages: u32| BlockAddr { page: PageNo(end - u64::from(pages)), pages };
    let is_footer = |addr: &BlockAddr| {
        let header = image.read(DATA_FILE, addr.page.offset()..addr.page.offset() + 12);
        header[4] == BlockKind::RunFooter as u8 && header[8..] == addr.pages.to_le_bytes()
    };
    (1..9).map(addr_of).find(is_footer).expect("a run ends with its footer")
}

/// The answers of a run.
struct Found {
    forward: Vec<Owned>,
    backward: Vec<Owned>,
    streamed: usize,
    gets: Vec<Vec<(Seqno, Kind, Vec<u8>)>>,
}

impl Found {
    fn read(slice: &Arc<RunSlice>, asked: &[Owned]) -> Result<Found> {
        let forward = scan(slice, false, ReadAhead::Scan)?;
        let backward = scan(slice, true, ReadAhead::Scan)?;
        let streamed = scan(slice, false, ReadAhead::Streaming(64 << 10))?.len();
        let mut gets = Vec::new();
        for key in keys(asked) {
            gets.push(get(slice, key)?);
        }
        let middle = &asked[asked.len() / 2].0;
        let range = KeyRange::new(middle.clone(), Vec::new());
        slice.estimate(&range)?;
        slice.split_keys(4)?;
        if let Some(part) = slice.clip(&range)? {
            part.split_keys(4)?;
            scan(&part, false, ReadAhead::Scan)?;
        }
        Ok(Found { forward, backward, streamed, gets })
    }
}

fn scan(slice: &Arc<RunSlice>, reverse: bool, ahead: ReadAhead) -> Result<Vec<Owned>> {
    // An entry takes at least five bytes of a block.
    let most = slice.run().meta().pages().min(1 << 20) * PAGE as u64 / 5;
    let mut cursor = RunCursor::new(slice.clone(), &KeyRange::all(), reverse, ahead)?;
    let mut out = Vec::new();
    while let Some(entry) = cursor.entry() {
        out.push((entry.key.to_vec(), entry.seqno, entry.kind, entry.value.to_vec()));
        assert!(out.len() as u64 <= most, "a scan does not end");
        cursor.advance()?;
    }
    Ok(out)
}

fn get(slice: &RunSlice, key: &[u8]) -> Result<Vec<(Seqno, Kind, Vec<u8>)>> {
    let mut probe = RunProbe::new(key_hash(key));
    let (mut block, mut out) = (None, Vec::new());
    for _ in 0..10_000 {
        match probe.step(slice, key, block.take())? {
            ProbeStep::Done => return Ok(out),
            ProbeStep::Need(addr, kind) => block = Some(slice.run().load(addr, kind)?),
            ProbeStep::Found(hit) => {
                out.extend(hit.entries(key).map(|(entry, _)| (entry.seqno, entry.kind, entry.value.to_vec())));
            }
        }
    }
    panic!("a lookup does not end");
}

fn keys(entries: &[Owned]) -> impl Iterator<Item = &[u8]> {
    entries.chunk_by(|a, b| a.0 == b.0).map(|versions| versions[0].0.as_slice())
}

fn expected_gets(entries: &[Owned]) -> Vec<Vec<(Seqno, Kind, Vec<u8>)>> {
    let of = |versions: &[Owned]| versions.iter().map(|(_, s, k, v)| (*s, *k, v.clone())).collect();
    entries.chunk_by(|a, b| a.0 == b.0).map(of).collect()
}

/// If `verify` reports no damage, checks that the answers are consistent.
fn judge(slice: &RunSlice, found: &Found) {
    let mut clean = true;
    slice.run().verify(&mut |_, checked| {
        if let Err(error) = checked {
            assert_named(&error);
            clean = false;
        }
    });
    if !clean {
        return;
    }
    assert!(found.forward.windows(2).all(|pair| (&pair[0].0, pair[1].1) < (&pair[1].0, pair[0].1)), "out of order");
    assert!(found.forward.iter().eq(found.backward.iter().rev()), "the backward scan differs");
    assert_eq!(found.streamed, found.forward.len());
    let expected = expected_gets(&found.forward);
    for (key, expected) in keys(&found.forward).zip(expected) {
        let got = get(slice, key).expect("the run is sound");
        let name = key[..key.len().min(12)].escape_ascii();
        assert_eq!(got, expected, "a lookup of {name} differs from the scan");
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let mut out: Vec<Vec<u8>> = [0u8, 1, 8, 129, 136].into_iter().map(|base| vec![base]).collect();
    for (i, patch) in patches::seeds(36).into_iter().enumerate() {
        out.push([&[[1, 8, 129, 136][i % 4]], &patch[..]].concat());
    }
    out.extend([vec![14], vec![143]]);
    for (i, patch) in patches::seeds(12).into_iter().enumerate() {
        out.push([&[[14, 143][i % 2]], &patch[..]].concat());
    }
    out
}
