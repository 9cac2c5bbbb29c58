//! Tests of salvage: all readable messages are found, and all others are in reported ranges.

use super::*;
use crate::base::{EntryBlock, PAGE};
use crate::blocks::BlockSource;
use crate::device::AlignedBuf;
use crate::device::sim::{Fault, FaultKind, OpClass, SimDevice};

/// All messages and all lost ranges that a salvager returns.
fn salvage(slice: &Arc<RunSlice>, range: &KeyRange) -> (Vec<Message>, Vec<KeyRange>) {
    let (mut salvager, mut block) = (Salvager::new(slice.clone(), range), EntryBlock::new());
    let (mut messages, mut lost) = (Vec::new(), Vec::new());
    loop {
        block.clear();
        match salvager.next(&mut block) {
            Piece::Entries => messages.extend(block.iter().map(owned)),
            Piece::Lost(range, error) => {
                assert!(error.is_damage() && error.to_string().contains("`data`"), "{error}");
                lost.push(range);
            }
            Piece::End => return (messages, lost),
        }
    }
}

/// The leaves of a run: position, pages and number of messages.
fn leaves(run: &Run) -> Vec<(u64, u32, usize)> {
    let (mut at, mut out) = (0, Vec::new());
    while at < run.meta().leaf_pages {
        let child = run.descend(|inner| inner.search_leaf(at)).unwrap();
        let block = run.load(run.address(at, child.pages).unwrap(), crate::space::BlockKind::RunLeaf).unwrap();
        out.push((at, child.pages, Leaf::of(&block).len()));
        at += u64::from(child.pages);
    }
    out
}

fn spoil(bench: &Bench, run: &Run, position: u64) {
    let page = run.address(position, 1).unwrap().page;
    bench.data.write(page, AlignedBuf::from_bytes(&[0x5A; PAGE])).unwrap();
}

/// Checks that the found messages are among `messages`, that each missing message is in a lost range, and that at most
/// `most` messages are missing.
fn check(messages: &[Message], range: &KeyRange, found: &(Vec<Message>, Vec<KeyRange>), most: usize) {
    let inside: Vec<&Message> = messages.iter().filter(|message| range.contains(&message.key)).collect();
    let mut left = found.0.iter().peekable();
    let mut missing = 0;
    for message in inside {
        if left.next_if(|found| *found == message).is_none() {
            missing += 1;
            assert!(found.1.iter().any(|lost| lost.contains(&message.key)), "{message:?} is in no lost range");
        }
    }
    assert_eq!(left.next(), None, "a message that does not exist");
    assert!(missing <= most, "{missing} missing, {most} expected");
    assert!(found.1.iter().all(|lost| range.covers(lost)), "a loss outside the range");
}

#[test]
fn one_damaged_page_loses_its_leaf_only() {
    let messages = random_messages(5, 900, 2, 300);
    let bench = Bench::new();
    let slice = bench.run(1, &messages);
    let run = slice.run().clone();
    let middle = messages[messages.len() / 2].key.clone();
    let part = KeyRange::new(messages[messages.len() / 5].key.clone(), middle);
    assert_eq!(salvage(&slice, &KeyRange::all()), (messages.clone(), Vec::new()));
    let mut hit = 0;
    for (position, pages, len) in leaves(&run) {
        for page in position..position + u64::from(pages) {
            let saved = run.read(run.address(page, 1).unwrap()).unwrap();
            spoil(&bench, &run, page);
            let found = salvage(&slice, &KeyRange::all());
            check(&messages, &KeyRange::all(), &found, len);
            assert_eq!(found.1.len(), 1);
            // The lost range contains only keys of the lost leaf.
            let taken = messages.iter().filter(|message| found.1[0].contains(&message.key)).count();
            assert_eq!(taken, len, "the range is as narrow as the leaf");
            check(&messages, &part, &salvage(&slice, &part), len);
            bench.data.write(run.address(page, 1).unwrap().page, saved).unwrap();
            hit += 1;
        }
    }
    assert!(hit > 20);
}

#[test]
fn salvage_needs_no_blocks_above_the_leaves() {
    let messages = random_messages(6, 900, 1, 100);
    let bench = Bench::new();
    let slice = bench.run(1, &messages);
    let run = slice.run().clone();
    (run.meta().leaf_pages..run.meta().pages()).for_each(|position| spoil(&bench, &run, position));
    assert!(probe(&slice, &messages[0].key).is_err(), "a lookup needs them");
    assert_eq!(salvage(&slice, &KeyRange::all()), (messages.clone(), Vec::new()));
    let part = KeyRange::new(messages[300].key.clone(), messages[600].key.clone());
    check(&messages, &part, &salvage(&slice, &part), 0);
    // Clipping does not need the inner blocks.
    let clipped = slice.clip(&part).unwrap().expect("it holds something");
    check(&messages, &part, &salvage(&clipped, &KeyRange::all().intersect(&part)), 0);
}

#[test]
fn a_key_in_several_leaves_is_reported_lost_with_any_of_them() {
    let value = vec![7; 64 << 10];
    let message =
        |key: &[u8], seqno| Message { key: key.to_vec(), seqno: Seqno(seqno), kind: Kind::Put, value: value.clone() };
    let mut messages = vec![message(b"a", 9_000)];
    messages.extend((0..140).map(|i| message(b"long", 8_000 - i)));
    messages.push(message(b"z", 1));
    let bench = Bench::new();
    let slice = bench.run(1, &messages);
    let run = slice.run().clone();
    let leaves = leaves(&run);
    assert!(leaves.len() >= 4, "{leaves:?}");
    let mut seen = 0;
    for (position, _, len) in leaves {
        let saved = run.read(run.address(position, 1).unwrap()).unwrap();
        spoil(&bench, &run, position);
        let found = salvage(&slice, &KeyRange::all());
        check(&messages, &KeyRange::all(), &found, len);
        seen += usize::from(found.1[0].contains(b"long"));
        bench.data.write(run.address(position, 1).unwrap().page, saved).unwrap();
    }
    assert!(seen >= 3, "the key is lost with each of its leaves");
}

#[test]
fn two_damaged_leaves_lose_their_messages_only_in_any_slice() {
    let messages = random_messages(7, 700, 2, 200);
    let bench = Bench::new();
    let slice = bench.run(1, &messages);
    let run = slice.run().clone();
    let leaves = leaves(&run);
    let mut random = Random(3);
    for _ in 0..200 {
        let pick = |random: &mut Random| leaves[random.below(leaves.len() as u64) as usize];
        let (a, b) = (pick(&mut random), pick(&mut random));
        let saved = [a.0, b.0].map(|at| (at, run.read(run.address(at, 1).unwrap()).unwrap()));
        [a.0, b.0].into_iter().for_each(|at| spoil(&bench, &run, at));
        let key = |random: &mut Random| messages[random.below(messages.len() as u64) as usize].key.clone();
        let (from, to) = (key(&mut random), key(&mut random));
        let range = KeyRange::new(from.clone().min(to.clone()), from.max(to));
        let most = a.2 + if a.0 == b.0 { 0 } else { b.2 };
        check(&messages, &range, &salvage(&slice, &range), most);
        for (at, buf) in saved.into_iter().rev() {
            bench.data.write(run.address(at, 1).unwrap().page, buf).unwrap();
        }
    }
}

#[test]
fn a_refused_sector_loses_at_most_a_quarter_of_the_messages() {
    let messages = random_messages(8, 500, 1, 200);
    let device = SimDevice::new(1);
    let data = DataFile::create(&*device, "data", StoreId([7; 16])).unwrap();
    let bench = Bench { data, pool: Arc::new(Pool::new(4 << 20)) };
    let slice = bench.run(1, &messages);
    for nth in 0..4 {
        device.set_fault(Some(Fault::once(FaultKind::IoError(OpClass::Read), nth)));
        let found = salvage(&slice, &KeyRange::all());
        device.set_fault(None);
        check(&messages, &KeyRange::all(), &found, messages.len() / 4);
    }
}

#[test]
fn unreadable_range_tombstones_fail_the_readers_that_need_them() {
    let messages = random_messages(9, 200, 1, 60);
    let tombstone = RangeTombstone { range: KeyRange::new(*b"b", *b"c"), seqno: Seqno(3) };
    let bench = Bench::new();
    let meta = bench.build(1, &messages, &[tombstone]);
    let run = Run::open(bench.data.clone(), bench.pool.clone(), meta.clone()).unwrap();
    bench.data.write(meta.tombstones[0].page, AlignedBuf::from_bytes(&[1; PAGE])).unwrap();
    assert!(!run.fragments().unwrap().is_empty(), "the tombstones were read when the run was opened");
    assert!(Run::open(bench.data.clone(), bench.pool.clone(), meta.clone()).is_err(), "a new run must be readable");
    let slice = RunSlice::whole(Run::reopen(bench.data.clone(), bench.pool.clone(), meta));
    assert!(slice.covering(b"bb", Seqno::MAX).is_err() && slice.tombstones(&KeyRange::all()).is_err());
    assert!(probe(&slice, &messages[0].key).is_ok(), "the messages can be read");
    let part = slice.clip(&KeyRange::new(*b"\x01", *b"\x01\x00")).unwrap();
    assert!(part.is_some(), "there may be a tombstone");
}
