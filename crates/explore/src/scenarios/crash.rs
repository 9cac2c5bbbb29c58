//! Scenarios with commits of several threads to one or two log streams, followed by a power cut.

use std::sync::Arc;

use pandodb::base::random::Rng;
use pandodb::device::sim::{CrashChoice, SimDevice, SimHistory, SimImage};
use pandodb::{Durability, Keyspace, Mode, Result, Store};

use super::{ORDER, ROWS, Twist, body, keyspace, open_image, open_streams, threads};

/// The claim of [`crash`].
pub const CRASH: &str = "after a power cut at any point the store holds a prefix of the commit order, as whole batches: \
                         every batch acknowledged as synced, and none that had not begun";

/// The claim of [`streams`] and [`claims`].
pub const STREAMS: &str =
    "as `crash`, with three writers and two log streams, which begin a new segment at almost every sync";

/// The claim of [`paper`].
pub const PAPER: &str =
    "as `crash`, in paper mode: the generations of leaves agree with the commit order, also after leaves were split";

/// The batches that three threads commit to two streams, with their durability.
const SHARED: [&[(u8, Durability)]; 3] = {
    use Durability::{Buffered, None, Synced};
    [&[(b'a', Synced), (b'b', None)], &[(b'A', None), (b'B', Synced)], &[(b'1', Buffered), (b'2', Synced)]]
};
/// The batches that two threads commit. Each byte is one batch.
const BATCHES: [&[u8]; 2] = [b"abc", b"ABC"];
/// One batch of each of three threads. Because there are so few batches, some schedules reach the critical case: a
/// synced batch draws its seqno before a buffered batch of the other stream does, but is appended to the log after that
/// batch, while a third batch is being synced.
const FEW: [&[(u8, Durability)]; 3] =
    [&[(b'a', Durability::Synced)], &[(b'A', Durability::Synced)], &[(b'1', Durability::Buffered)]];
/// The keys that every batch of [`paper`] writes.
const OFTEN: [&str; 3] = ["x", "y", "z"];
/// Number of points of one history at which the power is cut.
const CUTS: u64 = 2;
/// Number of images tried at each point.
const IMAGES: u64 = 2;

/// A mark in the history: batch `id` begins, or is acknowledged as synced.
fn mark(id: u8, acknowledged: bool) -> u64 {
    u64::from(id) * 2 + u64::from(acknowledged)
}

/// Commits a batch. The batch appends its id to the value that records the order of the batches. It also puts its own
/// row, and the first `often` rows of [`OFTEN`].
fn commit(
    store: &Store,
    rows: &Keyspace,
    order: &Keyspace,
    (id, durability): (u8, Durability),
    often: usize,
) -> Result<()> {
    let mut batch = store.batch();
    batch.merge(order, "all", [id]);
    batch.put(rows, [id], [id; 32]);
    // Later batches write the same keys, in leaves that may have been split in the meantime.
    OFTEN.iter().take(often).for_each(|key| batch.put(rows, key, [id]));
    batch.commit(durability)
}

/// Two writers alternate between `Synced` and `Buffered`, concurrently with a checkpoint. Afterwards, the power is cut
/// at points of this history that the final image determines. The canary counts every committed batch as synced.
pub fn crash(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 0);
    let (rows, order) = (keyspace(&store, ROWS), keyspace(&store, ORDER));
    sim.record();
    let writer = |ids: &'static [u8]| {
        let (sim, store, rows, order) = (&sim, &store, &rows, &order);
        body(move || {
            for (i, &id) in ids.iter().enumerate() {
                let durability = if i % 2 == 0 { Durability::Synced } else { Durability::Buffered };
                sim.mark(mark(id, false));
                commit(store, rows, order, (id, durability), 0).expect("committed");
                if durability == Durability::Synced || twist == Twist::Canary {
                    sim.mark(mark(id, true));
                }
            }
        })
    };
    threads([writer(BATCHES[0]), writer(BATCHES[1]), body(|| store.checkpoint().expect("a checkpoint"))]);
    let committed = order.get("all").expect("read").expect("there").to_vec();
    assert_eq!(committed.len(), BATCHES.concat().len());
    let history = sim.history();
    store.close().expect("closed");
    drop((rows, order));
    cut_the_power(&history, &committed, sim.image().hash());
}

/// Three writers run, two of which share a log stream. Afterwards, the power is cut at points of this history. The
/// canary: a thread draws its seqno without holding the append lock of its stream.
pub fn streams(start: &SimImage, twist: Twist) {
    commit_to_streams(start, Mode::Product, SHARED, twist);
}

/// Like [`streams`], but with one batch of each writer. The canary: a sync claims that seqnos after a gap are durable,
/// although the gap was filled too late for this sync.
pub fn claims(start: &SimImage, twist: Twist) {
    commit_to_streams(start, Mode::Product, FEW, twist);
}

/// Like [`streams`], but in paper mode, where log records contain the generations of memtable leaves. The canary: the
/// right half of a split leaf does not inherit the generation.
pub fn paper(start: &SimImage, twist: Twist) {
    commit_to_streams(start, Mode::Paper, SHARED, twist);
}

fn commit_to_streams(start: &SimImage, mode: Mode, batches: [&'static [(u8, Durability)]; 3], twist: Twist) {
    let (sim, store) = open_streams(start, mode);
    let often = if mode == Mode::Paper { OFTEN.len() } else { 0 };
    let (rows, order) = (keyspace(&store, ROWS), keyspace(&store, ORDER));
    sim.record();
    let writer = |batches: &'static [(u8, Durability)]| {
        let (sim, store, rows, order) = (&sim, &store, &rows, &order);
        body(move || {
            for &(id, durability) in batches {
                sim.mark(mark(id, false));
                let done = commit(store, rows, order, (id, durability), often);
                if done.is_err() && twist == Twist::Canary {
                    // An assertion in another thread has detected the mistake. A second panic here would hide the panic
                    // of that thread.
                    return;
                }
                done.expect("committed");
                if durability == Durability::Synced {
                    sim.mark(mark(id, true));
                }
            }
        })
    };
    threads(batches.map(writer));
    let committed = order.get("all").expect("read").expect("there").to_vec();
    assert_eq!(committed.len(), batches.concat().len());
    let history = sim.history();
    store.close().expect("closed");
    drop((rows, order));
    cut_the_power(&history, &committed, sim.image().hash());
}

/// Cuts the power at points chosen by `seed`, and checks the images.
fn cut_the_power(history: &SimHistory, committed: &[u8], seed: u64) {
    let mut rng = Rng(seed);
    for _ in 0..CUTS {
        let at = rng.below(history.ops().len() as u64 + 1) as usize;
        let cursor = history.at(at);
        let pending = cursor.pending().len() as u64;
        let marks: Vec<u64> = history.ops()[..at].iter().filter_map(mark_of).collect();
        for image in 0..IMAGES {
            // The first image has lost all pending writes, and each other image has lost some of them.
            let kept = (0..pending as usize).filter(|_| image > 0 && rng.below(2) == 0);
            let choice = CrashChoice::only(kept.collect::<Vec<_>>());
            check(&cursor.image(&choice), committed, &marks, &format!("cut at {at}, {choice:?}"));
        }
    }
}

fn mark_of(op: &pandodb::device::sim::SimOp) -> Option<u64> {
    match op {
        pandodb::device::sim::SimOp::Mark(mark) => Some(*mark),
        _ => None,
    }
}

/// Opens an image and checks that its store has an allowed state.
fn check(image: &SimImage, committed: &[u8], marks: &[u64], place: &str) {
    let (_sim, store): (Arc<SimDevice>, Store) = open_image(image, 0);
    let found = keyspace(&store, ORDER).get("all").expect("read").map(|v| v.to_vec()).unwrap_or_default();
    assert!(committed.starts_with(&found), "{place}: {found:?} is not a prefix of {committed:?}");
    for (i, id) in committed.iter().enumerate() {
        let there = i < found.len();
        assert!(there || !marks.contains(&mark(*id, true)), "{place}: {id} was acknowledged but is lost: {found:?}");
        assert!(!there || marks.contains(&mark(*id, false)), "{place}: {id} exists but had not begun");
        let row = keyspace(&store, ROWS).get([*id]).expect("read");
        assert_eq!(row.is_some(), there, "{place}: half of batch {id}");
    }
    store.close().expect("closed");
}
