//! Tests with damaged and malicious bytes: a reader returns either an error or the right answer. It never panics and
//! never returns a wrong answer.

use super::leaf::LeafBuilder;
use super::*;
use crate::base::codec::Reader;
use crate::base::{Extent, PAGE};
use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};
use crate::device::{AlignedBuf, File};
use crate::space::BlockKind;

fn flip(file: &dyn File, byte: u64, bit: u8) {
    let page = byte / PAGE as u64 * PAGE as u64;
    let mut buf = AlignedBuf::zeroed(1);
    crate::device::read_exact_at(file, page, &mut buf).unwrap();
    buf[(byte - page) as usize] ^= 1 << bit;
    crate::device::write_all_at(file, page, &buf).unwrap();
}

fn small_run() -> (Bench, Vec<Message>, RunMeta) {
    let bench = Bench::new();
    let messages = random_messages(1, 240, 2, 90);
    let tombstone = RangeTombstone { range: KeyRange::new(*b"b", *b"c"), seqno: Seqno(3) };
    let meta = bench.build(1, &messages, &[tombstone]);
    assert!(meta.height == 1 && meta.leaf_pages >= 3 && meta.filter.pages == 1);
    (bench, messages, meta)
}

#[test]
fn a_flipped_bit_is_reported_and_never_changes_an_answer() {
    let (bench, messages, meta) = small_run();
    let all = expected(&messages, &KeyRange::all(), false);
    let (mut reports, mut bytes) = (0, 0);
    for &Extent { start, pages } in &meta.extents {
        for byte in start.offset()..start.offset() + u64::from(pages) * PAGE as u64 {
            bytes += 1;
            flip(bench.data.file(), byte, (byte % 8) as u8);
            let pool = Arc::new(Pool::new(1 << 20));
            let damaged = (|| {
                let slice = RunSlice::whole(Run::reopen(bench.data.clone(), pool, meta.clone()));
                slice.tombstones(&KeyRange::all())?;
                for at in [0, messages.len() / 2, messages.len() - 1] {
                    let key = &messages[at].key;
                    assert!(probe(&slice, key)?.iter().all(|message| message.key == *key && all.contains(message)));
                }
                let mut cursor = RunCursor::new(slice, KeyRange::all(), false, ReadAhead::Streaming(1 << 16))?;
                for message in &all {
                    assert!(cursor.entry() == Some(message.entry()));
                    cursor.advance()?;
                }
                Ok(())
            })();
            let footer = read_footer(&bench.data, meta.id, footer_of(&meta));
            for error in [damaged.err(), footer.err()].into_iter().flatten() {
                let error: crate::Error = error;
                assert!(error.is_corruption(), "{error}");
                reports += 1;
            }
            flip(bench.data.file(), byte, (byte % 8) as u8);
        }
    }
    assert_eq!(reports, bytes, "every page is read, so every flip is reported");
}

fn footer_of(meta: &RunMeta) -> BlockAddr {
    BlockAddr { page: PageNo(meta.extents.last().unwrap().end() - 1), pages: 1 }
}

/// Flips each bit of a body, one at a time, without using the checksum, so that only the checks of the structure can
/// detect the change. Returns how many changed bodies `read` accepted, and how many it refused.
fn flip_all(bytes: &[u8], end: usize, mut read: impl FnMut(&[u8]) -> bool) -> (u32, u32) {
    let mut damaged = bytes.to_vec();
    let (mut accepted, mut refused) = (0, 0);
    for bit in 16 * 8..end * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        *if read(&damaged) { &mut accepted } else { &mut refused } += 1;
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
    (accepted, refused)
}

#[test]
fn a_damaged_leaf_that_passes_its_check_can_be_read() {
    let messages = random_messages(3, 24, 2, 40);
    let mut builder = LeafBuilder::default();
    messages.iter().for_each(|message| builder.push(&message.entry()));
    let mut block = AlignedBuf::zeroed(builder.pages() as usize);
    builder.encode(&mut block, 0, 0);
    let end = u32::from_le_bytes(block[24..28].try_into().unwrap()) as usize;
    let mut key = Vec::new();
    let (accepted, refused) = flip_all(&block, end, |bytes| {
        let Ok(leaf) = Leaf::check(bytes) else { return false };
        let mut last: Option<Message> = None;
        for i in 0..leaf.len() {
            leaf.key(i, &mut key);
            let slot = leaf.slot(i);
            let message = owned(Entry { key: &key, seqno: slot.seqno, kind: slot.kind, value: leaf.value(&slot) });
            assert!(last.is_none_or(|last| last.entry().order(&message.entry()).is_lt()), "out of order");
            assert!(leaf.find(&key).contains(&i));
            last = Some(message);
        }
        leaf.search(b"user");
        let _ = (leaf.order(0, b"user"), leaf.order(leaf.len() - 1, b"user"));
        true
    });
    // Changed values, seqnos and prefixes are accepted; most other changes must be refused.
    assert!(refused > accepted / 4, "{accepted} accepted, {refused} refused");
}

#[test]
fn a_damaged_inner_block_that_passes_its_check_can_be_read() {
    for level in [1, 2] {
        let mut builder = inner::InnerBuilder::new(level);
        for i in 0..40u64 {
            let child = Child { position: 100 + i * 3, pages: 1 + (i % 3) as u32, leaf: 100 + i * 3 };
            builder.add(child, format!("key{:04}", i * 37).as_bytes());
        }
        let mut block = AlignedBuf::zeroed(builder.pages() as usize);
        builder.encode(&mut block);
        let end = u32::from_le_bytes(block[24..28].try_into().unwrap()) as usize;
        let mut key = Vec::new();
        let (_, refused) = flip_all(&block, end, |bytes| {
            let Ok(inner) = Inner::check(bytes) else { return false };
            for i in 0..inner.len() {
                inner.separator(i, &mut key);
                inner.child(i);
                assert!(inner.search(&key) < inner.len() && inner.search_leaf(i as u64 * 3) < inner.len());
            }
            true
        });
        assert!(refused > 0);
    }
}

#[test]
fn damaged_descriptions_and_tombstones_cause_no_panic() {
    let (bench, _, meta) = small_run();
    let mut bytes = Vec::new();
    meta.encode(&mut bytes);
    for bit in 0..bytes.len() * 8 {
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        if let Ok(meta) = RunMeta::decode(&mut Reader::new(&damaged, "test")) {
            // A description that contradicts the blocks must not cause a panic either.
            let slice = RunSlice::whole(Run::reopen(bench.data.clone(), bench.pool.clone(), meta));
            let _ = probe(&slice, b"user000000000100");
            let _ = RunCursor::new(slice, KeyRange::all(), true, ReadAhead::Scan);
        }
    }
    for len in 0..bytes.len() {
        assert!(RunMeta::decode(&mut Reader::new(&bytes[..len], "test")).is_err());
    }
    let ranges = [RangeTombstone { range: KeyRange::new(*b"b", *b""), seqno: Seqno(3) }];
    let (count, items) = tombstones::encode(&ranges).remove(0);
    let mut block = vec![0; PAGE];
    tombstones::fill(&mut block, count, &items);
    let end = 24 + items.len();
    flip_all(&block, end, |bytes| tombstones::decode(bytes, &mut Vec::new()).is_ok());
}

#[test]
fn a_block_of_another_run_is_reported_as_damage() {
    let (bench, messages, meta) = small_run();
    // Build the same messages as a run with another id. The blocks differ only in their headers.
    let other = bench.build(2, &messages, &[]);
    let (from, to) = (other.extents[0].start, meta.extents[0].start);
    let mut page = AlignedBuf::zeroed(1);
    crate::device::read_exact_at(bench.data.file(), from.offset(), &mut page).unwrap();
    crate::device::write_all_at(bench.data.file(), to.offset(), &page).unwrap();
    let slice = bench.open(meta);
    let error = probe(&slice, &messages[0].key).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains("leaf block in `data`"), "{error}");
}

/// The number of bytes that a verification reports, and its findings.
fn verify(run: &Run) -> (u64, Vec<String>) {
    let (mut bytes, mut findings) = (0, Vec::new());
    run.verify(&mut |_, checked| match checked {
        Ok(good) => bytes += good,
        Err(error) => {
            assert!(error.is_corruption(), "{error}");
            findings.push(error.to_string());
        }
    });
    (bytes, findings)
}

#[test]
fn verification_reads_every_owned_page() {
    let bench = Bench::new();
    let tombstone = RangeTombstone { range: KeyRange::new(*b"b", *b"c"), seqno: Seqno(3) };
    for (id, messages) in [random_messages(2, 9_000, 2, 150), awkward_messages()].into_iter().enumerate() {
        let slice = bench.open(bench.build(id as u64 + 1, &messages, std::slice::from_ref(&tombstone)));
        let run = slice.run().clone();
        assert_eq!(verify(&run), (run.meta().disk_bytes(), Vec::new()));
        let middle = messages[messages.len() / 2].key.clone();
        let part = slice.clip(&KeyRange::new(middle, *b"")).unwrap().unwrap();
        drop(slice);
        let owned = run.owned().iter().map(|extent| extent.bytes()).sum::<u64>();
        assert!(owned < run.meta().disk_bytes());
        assert_eq!(verify(&run), (owned, Vec::new()));
        drop(part);
    }
    let slice = bench.open(bench.build(9, &[], &[tombstone]));
    assert_eq!(verify(slice.run()), (slice.run().meta().disk_bytes(), Vec::new()));
}

#[test]
fn verification_continues_after_a_finding() {
    let (bench, _, meta) = small_run();
    let page = |at: u64| (meta.extents[0].start.0 + at) * PAGE as u64;
    flip(bench.data.file(), page(1) + 900, 3);
    flip(bench.data.file(), page(meta.filter.first) + 900, 3);
    let slice = bench.open(meta.clone());
    let (bytes, findings) = verify(slice.run());
    // The bytes of a damaged block are not counted, and a damaged leaf may have several pages.
    assert!(bytes <= meta.disk_bytes() - 2 * PAGE as u64 && bytes >= meta.disk_bytes() / 2);
    assert_eq!(findings.len(), 2);
    // A description with wrong counts is reported, although every block is valid.
    flip(bench.data.file(), page(1) + 900, 3);
    flip(bench.data.file(), page(meta.filter.first) + 900, 3);
    let wrong = RunMeta { puts: meta.puts + 1, ..meta };
    let (_, findings) = verify(&Run::reopen(bench.data.clone(), bench.pool.clone(), wrong));
    assert_eq!(findings.len(), 2, "the count, and the footer");
}

#[test]
fn a_failed_io_fails_the_call_and_leaks_no_pages() {
    let messages = random_messages(4, 6_000, 2, 300);
    for nth in 0.. {
        let device = SimDevice::new(nth);
        let data = DataFile::create(&*device, "data", StoreId([7; 16])).unwrap();
        let bench = Bench { data, pool: Arc::new(Pool::new(1 << 20)) };
        let before = bench.data.stats().allocated_bytes;
        device.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Any), nth)));
        let built = (|| {
            let mut builder = RunBuilder::new(bench.data.clone(), OwnerId(1), 1 << 20);
            messages.iter().try_for_each(|message| builder.push(message.entry()))?;
            let meta = builder.finish()?.expect("entries were pushed");
            let slice = bench.open(meta);
            let mut cursor = RunCursor::new(slice, KeyRange::all(), nth % 2 == 1, ReadAhead::Scan)?;
            let mut count = 0;
            while cursor.entry().is_some() {
                count += 1;
                cursor.advance()?;
            }
            assert_eq!(count, messages.len());
            Ok::<(), crate::Error>(())
        })();
        let struck = device.faults_struck();
        device.set_fault(None);
        bench.checkpoints();
        assert_eq!(bench.data.stats().allocated_bytes, before, "call {nth}");
        if struck == 0 {
            assert!(built.is_ok() && nth > 5, "{nth} calls");
            break;
        }
        assert!(matches!(built, Err(crate::Error::Io { .. })), "call {nth}: {built:?}");
    }
}

/// A copy of the block at `from`, sealed as if it belonged at `to`.
fn transplant(bench: &Bench, owner: OwnerId, from: BlockAddr, to: BlockAddr) -> AlignedBuf {
    let mut block = bench.data.read(from).unwrap();
    bench.data.seal_block(&mut block, to, owner, BlockKind::RunLeaf);
    block
}

#[test]
fn leaves_out_of_order_are_reported_as_damage() {
    let bench = Bench::new();
    let meta = bench.build(1, &random_messages(4, 900, 1, 40), &[]);
    let mut leaves: Vec<BlockAddr> = Vec::new();
    let mut page = meta.extents[0].start;
    while page.0 < meta.extents[0].start.0 + meta.leaf_pages {
        let header = bench.data.read(BlockAddr { page, pages: 1 }).unwrap();
        let pages = u32::from_le_bytes(header[8..12].try_into().unwrap());
        leaves.push(BlockAddr { page, pages });
        page.0 += u64::from(pages);
    }
    // Choose two leaves of the same length that have neighbours on both sides, so that only the order of keys shows
    // that the leaves were exchanged.
    let (a, b) = leaves[1..leaves.len() - 1]
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .find(|(a, b)| a.pages == b.pages)
        .unwrap();
    let (first, second) = (transplant(&bench, meta.id, a, b), transplant(&bench, meta.id, b, a));
    bench.data.write(b.page, first).unwrap();
    bench.data.write(a.page, second).unwrap();
    for reverse in [false, true] {
        let slice = RunSlice::whole(Run::reopen(bench.data.clone(), bench.pool.clone(), meta.clone()));
        let mut cursor = RunCursor::new(slice, KeyRange::all(), reverse, ReadAhead::Streaming(1 << 16)).unwrap();
        let ended = loop {
            match cursor.advance() {
                Ok(()) if cursor.entry().is_some() => {}
                other => break other,
            }
        };
        assert!(ended.unwrap_err().is_corruption(), "a compaction would write messages out of order");
    }
}

#[test]
fn wrong_bounds_in_a_description_are_found() {
    let (bench, messages, meta) = small_run();
    let middle = messages[messages.len() / 2].key.clone();
    let narrow = [RunMeta { first_key: middle.clone(), ..meta.clone() }, RunMeta { last_key: middle, ..meta.clone() }];
    for meta in narrow {
        let run = Run::reopen(bench.data.clone(), bench.pool.clone(), meta);
        let mut problems = 0;
        run.verify(&mut |kind, checked| problems += usize::from(kind == BlockKind::RunLeaf && checked.is_err()));
        // The comparison with the footer finds a wrong last key.
        run.verify(&mut |kind, checked| problems += usize::from(kind == BlockKind::RunFooter && checked.is_err()));
        assert!(problems > 0);
        let slice = RunSlice::whole(run);
        let both =
            [false, true].map(|reverse| RunCursor::new(slice.clone(), KeyRange::all(), reverse, ReadAhead::Scan));
        assert!(both.into_iter().any(|cursor| cursor.is_err()), "merges rely on the bounds");
    }
}

#[test]
fn a_slice_with_more_live_pages_than_its_span_is_refused() {
    let (bench, _, meta) = small_run();
    let restore = |numbers: [u8; 3]| {
        let run = Run::reopen(bench.data.clone(), bench.pool.clone(), meta.clone());
        let bytes = [&[0, 0][..], &numbers].concat();
        RunSlice::restore(run, &mut Reader::new(&bytes, "test")).map(|slice| slice.bytes())
    };
    assert_eq!(restore([0, 2, 2]).unwrap(), 2 * PAGE as u64);
    assert!(restore([0, 2, 3]).unwrap_err().is_corruption());
    assert!(restore([2, 0, 0]).unwrap_err().is_corruption());
}
