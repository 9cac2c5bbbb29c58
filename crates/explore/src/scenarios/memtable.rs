//! Scenarios for a memtable without a store: several writers split the same nodes while a reader reads these nodes. In
//! a build for the explorer, a node has four slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};

use pandodb::base::{Entry, EntryBlock, KeyRange, Kind, Seqno};
use pandodb::device::sim::SimImage;
use pandodb::memtable::{ChunkPool, Memtable};

use super::{Twist, body, threads};

/// The claim of [`split`].
pub const SPLIT: &str =
    "a scan of a memtable, concurrent with several writers, returns all earlier inserts, unmixed and in order";
/// The claim of [`deep`].
pub const DEEP: &str = "a lookup finds every earlier insert while leaves, inner nodes and the root are split";

/// Inserts a message whose value repeats the seqno of the message. The value is long enough to show a torn read.
fn put(memtable: &Memtable, key: u8, seqno: u8) {
    let value = [seqno; 20];
    memtable.insert(Entry { key: &[b'k', key], seqno: Seqno(u64::from(seqno)), kind: Kind::Put, value: &value });
}

fn memtable() -> Memtable {
    Memtable::new(0, Arc::new(ChunkPool::new(1)))
}

/// The messages of a writer, as key and seqno, and the number of messages inserted up to now.
struct Writer {
    messages: Vec<(u8, u8)>,
    done: AtomicU8,
}

impl Writer {
    fn new(messages: impl IntoIterator<Item = (u8, u8)>) -> Writer {
        Writer { messages: messages.into_iter().collect(), done: AtomicU8::new(0) }
    }

    fn run(&self, memtable: &Memtable) {
        for &(key, seqno) in &self.messages {
            put(memtable, key, seqno);
            self.done.fetch_add(1, SeqCst);
        }
    }

    /// The messages inserted up to now.
    fn finished(&self) -> &[(u8, u8)] {
        &self.messages[..usize::from(self.done.load(SeqCst))]
    }
}

/// Scans all messages and checks the result. It must contain every message whose insertion finished before the scan,
/// and only messages of the writers.
fn compare(memtable: &Memtable, reverse: bool, writers: &[&Writer]) {
    let needed: Vec<(u8, u8)> = writers.iter().flat_map(|writer| writer.finished().to_vec()).collect();
    let mut block = EntryBlock::new();
    memtable.fill(&KeyRange::all(), None, reverse, usize::MAX, usize::MAX, &mut block);
    let found: Vec<(u8, u8)> = block.iter().map(|entry| (entry.key[1], entry.seqno.0 as u8)).collect();
    assert!(block.iter().all(|entry| entry.value == [entry.seqno.0 as u8; 20]), "a value of another message");
    let place = |&(key, seqno): &(u8, u8)| (key, !seqno);
    let ascends = |pair: &[(u8, u8)]| (place(&pair[0]) < place(&pair[1])) != reverse;
    assert!(found.windows(2).all(ascends), "out of order: {found:?}");
    let missing = needed.iter().find(|message| !found.contains(message));
    assert!(missing.is_none(), "{missing:?} was inserted before, but is not in {found:?}");
    let written = |message| writers.iter().any(|writer| writer.messages.contains(message));
    assert!(found.iter().all(written), "a message in {found:?} was never written");
}

/// Two writers insert different keys of the same range, and also some equal keys. A reader scans in both directions.
/// The canary: readers do not check whether a node has changed during the read.
pub fn split(_: &SimImage, _: Twist) {
    let memtable = memtable();
    let before = Writer::new((0..4).map(|key| (10 * key, 1 + key)));
    before.run(&memtable);
    let writers =
        [Writer::new([(5, 10), (15, 11), (20, 12), (6, 13)]), Writer::new([(7, 20), (25, 21), (20, 22), (0, 23)])];
    let all = [&before, &writers[0], &writers[1]];
    threads([
        body(|| writers[0].run(&memtable)),
        body(|| writers[1].run(&memtable)),
        body(|| [false, true].into_iter().for_each(|reverse| compare(&memtable, reverse, &all))),
    ]);
    compare(&memtable, false, &all);
    assert_eq!(memtable.len(), 12);
}

/// Two writers append to a tree that is about to grow. A reader looks up the newest finished messages of the writers.
/// The canary: a node is split without excluding its readers.
pub fn deep(_: &SimImage, _: Twist) {
    let memtable = memtable();
    // The tree has three levels, and the nodes at its right edge are full or nearly full.
    let before = Writer::new((0..15).map(|key| (key, 1 + key)));
    before.run(&memtable);
    let writers =
        [Writer::new((0..5).map(|i| (20 + 2 * i, 30 + i))), Writer::new((0..5).map(|i| (29 - 2 * i, 40 + i)))];
    let all = [&before, &writers[0], &writers[1]];
    let look = || {
        for writer in &all {
            let newest = writer.finished().len().saturating_sub(2);
            for &(key, seqno) in &writer.finished()[newest..] {
                let mut found = Vec::new();
                memtable.get(&[b'k', key], Seqno::MAX, &mut |entry| {
                    assert!(entry.value == [seqno; 20], "a value of another message");
                    found.push(entry.seqno);
                    true
                });
                assert_eq!(found, [Seqno(u64::from(seqno))], "key {key}");
            }
        }
    };
    threads([
        body(|| writers[0].run(&memtable)),
        body(|| writers[1].run(&memtable)),
        body(|| (0..3).for_each(|_| look())),
    ]);
    [false, true].into_iter().for_each(|reverse| compare(&memtable, reverse, &all));
    assert_eq!(memtable.len(), 25);
}
