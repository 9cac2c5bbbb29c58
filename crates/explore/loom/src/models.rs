//! The models, each with at most three threads.

use std::sync::Arc;
use std::time::Duration;

use loom::sync::atomic::{
    AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use loom::thread::spawn;

use crate::base::seeded::activate;
use crate::base::{Entry, HashedKey, KeyRange, KeyspaceId, Kind, RangeTombstone, SeededBug, Seqno};
use crate::dead_ranges::{Allowance, DeadRanges, Skip};
use crate::footprints::{Footprint, Footprints};
use crate::latch::Latch;
use crate::locks::Locks;
use crate::memtable::{ChunkPool, Memtable};
use crate::sched::{Account, Scheduler, Turn};
use crate::snapshot::Snapshots;
use crate::watermark::Watermark;

/// A model. If `mistake` is set, the claim of the model does not hold in some execution.
pub type Body = fn(mistake: bool);

/// All models.
pub const ALL: [(&str, Body); 13] = [
    ("visible", visible),
    ("register", register),
    ("tombstones", tombstones),
    ("dead", dead),
    ("latch", latch),
    ("account", account),
    ("stop", stop),
    ("ring", ring),
    ("sleep", sleep),
    ("counts", counts),
    ("footprints", footprints),
    ("frames", crate::pool::frames),
    ("links", crate::pool::links),
];

/// Memtable size in bytes. The size is so small that a model can charge more debt than the account tolerates without
/// demanding work.
const MEMTABLE: u64 = 64 << 10;

/// A thread that sees a seqno as visible also sees the writes up to this seqno. This model tests the
/// `Release`/`Acquire` pair in `Snapshots`. The mistake: the write happens after its seqno becomes visible.
fn visible(mistake: bool) {
    let snapshots = Arc::new(Snapshots::default());
    let written = Arc::new(AtomicU64::new(0));
    let writer = {
        let (snapshots, written) = (snapshots.clone(), written.clone());
        spawn(move || {
            for seqno in 1..=2 {
                if mistake {
                    snapshots.set_visible(Seqno(seqno));
                }
                written.store(seqno, Relaxed);
                snapshots.set_visible(Seqno(seqno));
            }
        })
    };
    let at = snapshots.visible();
    assert!(written.load(Relaxed) >= at.0, "{at} is visible but not written");
    writer.join().expect("joined");
}

/// If a compaction does not see a registered snapshot, the horizon of the compaction is not above the snapshot. So the
/// compaction drops no entry that the snapshot sees. The mistake: the read point is loaded, but not registered.
fn register(mistake: bool) {
    let snapshots = Arc::new(Snapshots::default());
    let writer = {
        let snapshots = snapshots.clone();
        spawn(move || snapshots.set_visible(Seqno(1)))
    };
    let compaction = {
        let snapshots = snapshots.clone();
        spawn(move || snapshots.stripes())
    };
    let (at, _registered) = if mistake {
        (snapshots.visible(), None)
    } else {
        let registered = snapshots.register();
        (registered.seqno(), Some(registered))
    };
    let stripes = compaction.join().expect("joined");
    assert!(stripes.snapshots.contains(&at) || stripes.horizon <= at, "{at} is not kept above {}", stripes.horizon);
    writer.join().expect("joined");
}

/// A reader skips the lock of the memtable if the memtable has no range tombstone. The reader must not miss a visible
/// range tombstone or a visible message. The mistake: the seqnos become visible too early.
fn tombstones(mistake: bool) {
    let memtable = Arc::new(Memtable::new(0, Arc::new(ChunkPool::new(1))));
    let snapshots = Arc::new(Snapshots::default());
    let writer = {
        let (memtable, snapshots) = (memtable.clone(), snapshots.clone());
        spawn(move || {
            if mistake {
                snapshots.set_visible(Seqno(2));
            }
            memtable.insert_range(&RangeTombstone { range: KeyRange::new(b"a", b"c"), seqno: Seqno(1) });
            memtable.insert(Entry { key: b"b", seqno: Seqno(2), kind: Kind::Put, value: b"v" });
            snapshots.set_visible(Seqno(2));
        })
    };
    let at = snapshots.visible();
    let (covering, mut found) = (memtable.covering(b"b", at), 0);
    memtable.get(b"b", at, &mut |_| {
        found += 1;
        true
    });
    assert_eq!((covering, found), if at == Seqno(2) { (Seqno(1), 1) } else { (Seqno(0), 0) });
    writer.join().expect("joined");
}

/// A scan that learns that a range has no values overlooks no write: it meets the message of the write, or its watch
/// has the key. This model fails if either of the two fences in `DeadRanges` is removed. The mistake: the scan reads
/// before its watch begins.
fn dead(mistake: bool) {
    let dead = Arc::new(DeadRanges::new(Arc::new(Allowance::new(1 << 20))));
    let (snapshots, message) = (Arc::new(Snapshots::default()), Arc::new(AtomicU64::new(0)));
    let writer = {
        let (dead, snapshots, message) = (dead.clone(), snapshots.clone(), message.clone());
        spawn(move || {
            message.store(1, Release);
            dead.revive(b"k");
            snapshots.set_visible(Seqno(1));
        })
    };
    let is_skipped = |at| matches!(dead.skip(b"k", false, at), Skip::To(_));
    let watch = || dead.watch(&KeyRange::all(), false);
    let early = (!mistake).then(watch);
    let read_point = snapshots.register();
    let met = message.load(Acquire) == 1;
    let watch = early.unwrap_or_else(watch);
    if !met {
        watch.learn(KeyRange::all(), read_point.seqno(), read_point.seqno());
    }
    drop(watch);
    let at = snapshots.visible();
    assert!(at == Seqno(0) || !is_skipped(at), "a scan skips a visible value");
    writer.join().expect("joined");
    assert!(!is_skipped(Seqno(1)), "the range was not cut");
}

/// The fields under a latch are consistent for a reader that finds the version of the latch unchanged, and for the next
/// writer that locks the latch. The mistake: the reader does not check the version.
fn latch(mistake: bool) {
    struct Node {
        latch: Latch,
        first: AtomicU64,
        second: AtomicU64,
    }
    let node = Arc::new(Node { latch: Latch::new(), first: AtomicU64::new(0), second: AtomicU64::new(0) });
    let write = |claims: bool| {
        let node = node.clone();
        move || {
            let version = node.latch.read();
            let locked =
                if claims { node.latch.claim(version).map(|claimed| claimed.lock()) } else { node.latch.lock(version) };
            if locked.is_some() {
                let count = node.first.load(Relaxed) + 1;
                node.first.store(count, Release);
                node.second.store(count, Release);
            }
            u64::from(locked.is_some())
        }
    };
    let (claim, lock) = (write(true), write(false));
    let writer = spawn(move || claim() + lock());
    let version = node.latch.read();
    let (first, second) = (node.first.load(Acquire), node.second.load(Acquire));
    if mistake || node.latch.is_still(version) {
        assert_eq!(first, second, "half of a change");
    }
    let written = writer.join().expect("joined");
    assert_eq!((node.first.load(Relaxed), node.second.load(Relaxed)), (written, written));
}

/// The account may clear its debt. It never demands more work than was charged, and it demands no more work once all
/// charged work is done. The mistake: the model expects that debt is never cleared.
fn account(mistake: bool) {
    const CHARGE: u64 = 1 << 20;
    let account = Arc::new(Account::new(MEMTABLE));
    let worker = {
        let account = account.clone();
        spawn(move || {
            account.clear();
            account.earn(CHARGE);
        })
    };
    let writer = {
        let account = account.clone();
        spawn(move || assert!(account.charge(CHARGE) <= 2 * CHARGE))
    };
    assert!(account.charge(CHARGE) <= 2 * CHARGE);
    worker.join().expect("joined");
    writer.join().expect("joined");
    let left = account.due();
    assert!(left <= 2 * CHARGE, "{left} is due");
    assert!(!mistake || left > 0, "the debt was cleared");
    account.earn(left);
    assert_eq!(account.due(), 0);
}

/// A worker ends after `stop` was called, whatever the worker is doing at that moment. The mistake: `stop` is not
/// called, so the worker sleeps for ever.
fn stop(mistake: bool) {
    let scheduler = Arc::new(Scheduler::new(MEMTABLE));
    let worker = {
        let scheduler = scheduler.clone();
        spawn(move || scheduler.run(&|| Turn::Idle, &|| Duration::ZERO))
    };
    if !mistake {
        scheduler.stop();
    }
    worker.join().expect("joined");
}

/// A thread that sees a ticket as finished sees the effects of this ticket and of all earlier tickets. No finished
/// ticket is lost, in whatever order tickets finish and slots are reused. The mistake: a ticket is finished before its
/// effect.
fn ring(mistake: bool) {
    let watermark = Arc::new(Watermark::new(2));
    let applied = Arc::new([AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0)]);
    let commit = |tickets: &'static [u64]| {
        let (watermark, applied) = (watermark.clone(), applied.clone());
        spawn(move || {
            for &ticket in tickets {
                watermark.wait_for_slot(ticket);
                if mistake {
                    watermark.finish(ticket);
                }
                applied[ticket as usize].store(1, Relaxed);
                if !mistake {
                    watermark.finish(ticket);
                }
            }
        })
    };
    let threads = [commit(&[0, 2]), commit(&[1])];
    // All three values are loaded in every case, because the executions that `loom` tries depend on the accesses.
    let done = watermark.limit() - 2;
    let seen = [0, 1, 2].map(|ticket: usize| applied[ticket].load(Relaxed));
    assert!(seen.iter().take(done as usize).all(|seen| *seen == 1), "{done} are finished, applied {seen:?}");
    threads.into_iter().for_each(|thread| thread.join().expect("joined"));
    assert_eq!(watermark.limit() - 2, 3, "a finished ticket was lost");
}

/// A waiting thread is woken, whichever ticket finishes last. The mistake: one ticket is never finished.
fn sleep(mistake: bool) {
    let watermark = Arc::new(Watermark::new(2));
    let commit = |ticket: u64| {
        let watermark = watermark.clone();
        spawn(move || watermark.finish(ticket))
    };
    let second = commit(1);
    let first = (!mistake).then(|| commit(0));
    watermark.wait(2);
    second.join().expect("joined");
    first.into_iter().for_each(|first| first.join().expect("joined"));
}

/// An entry does not change while a counted reader reads it, and a writer has exclusive access. If two threads try to
/// claim an entry, only one succeeds. The mistake: a claim removes the count of a reader.
fn counts(mistake: bool) {
    activate(mistake.then_some(SeededBug::ReaderCountLost));
    struct Entry {
        locks: Locks,
        first: AtomicU64,
        second: AtomicU64,
    }
    let entry = Arc::new(Entry { locks: Locks::new(3, 1), first: AtomicU64::new(0), second: AtomicU64::new(0) });
    let write = |thread: usize| {
        let entry = entry.clone();
        move || {
            let locks = &entry.locks;
            if !locks.read(thread, 0) {
                return 0;
            }
            let claimed = locks.claim(0);
            if claimed {
                assert!(locks.write(thread, 0), "it is its only reader");
                let count = entry.first.load(Relaxed) + 1;
                entry.first.store(count, Relaxed);
                entry.second.store(count, Relaxed);
                locks.end_write(0);
                locks.end_claim(0);
            }
            locks.end_read(thread, 0);
            u64::from(claimed)
        }
    };
    let writer = spawn(write(1));
    if entry.locks.read(0, 0) {
        let (first, second) = (entry.first.load(Relaxed), entry.second.load(Relaxed));
        assert_eq!(first, second, "half of a change");
        entry.locks.end_read(0, 0);
    }
    let written = write(2)() + writer.join().expect("joined");
    assert_eq!((entry.first.load(Relaxed), entry.second.load(Relaxed)), (written, written));
}

/// A reader of a slot gets the whole footprint of the ticket that it asks for, or none, while the slot gets the
/// footprint of a later ticket. A footprint that was left before the reader began is found, unless a later one replaces
/// it. The mistake: the reader does not look at the slot's number again.
fn footprints(mistake: bool) {
    activate(mistake.then_some(SeededBug::FootprintTorn));
    let left = |first: u64| {
        let mut footprint = Footprint::default();
        (first..first + 2).for_each(|hash| footprint.add(KeyspaceId(first as u32), HashedKey { key: b"k", hash }));
        (Seqno(first), footprint)
    };
    let footprints = Arc::new(Footprints::default());
    footprints.enter();
    let leave = |footprints: &Footprints, ticket, (last, footprint): (Seqno, Footprint)| {
        footprints.publish(ticket, last, &footprint);
    };
    leave(&footprints, 0, left(1));
    leave(&footprints, 1, left(3));
    let writer = {
        let footprints = footprints.clone();
        spawn(move || leave(&footprints, 2, left(5)))
    };
    // Tickets 0 and 2 share a slot.
    let (old, new) = (footprints.get(0), footprints.get(2));
    assert!(old.is_none_or(|found| found == left(1)), "words of two footprints");
    assert!(new.is_none_or(|found| found == left(5)), "words of two footprints");
    assert_eq!(footprints.get(1), Some(left(3)), "another slot");
    writer.join().expect("joined");
    assert_eq!((footprints.get(0), footprints.get(2)), (None, Some(left(5))));
}
