//! Scenarios with commits that are applied concurrently. They test the watermark, concurrent seals, and log writes that
//! one thread makes for other threads.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use pandodb::device::sim::{SimDevice, SimImage};
use pandodb::{Durability, Mode, Store};
use shuttle::rand::{Rng, thread_rng};

use super::{ROWS, SUMS, Twist, body, counter, keyspace, open, open_image, open_streams, read_all, threads, verify};

/// The claim of [`beside`].
pub const BESIDE: &str = "with concurrent commits, a reader sees whole batches, and all batches that were acknowledged \
                          before it began";

/// The claim of [`seal`].
pub const SEAL: &str = "a seal during concurrent commits loses none of them and applies none twice";
/// The claim of [`kill`].
pub const KILL: &str = "a commit acknowledged as buffered survives a kill, whichever thread wrote its log record";
/// The claim of [`lazy`].
pub const LAZY: &str = "as `kill`, with two log streams and earlier commits with Durability::None";

/// The writers. There are more writers than commits that may be in progress at the same time.
const WRITERS: [&str; 3] = ["w0", "w1", "w2"];
/// The number of batches of each writer.
const EACH: i64 = 2;

/// Commits one batch, which moves 1 from counter `a` to counter `b`, counts the batch, and writes a row for the batch.
fn transfer(store: &Store, who: usize, nth: i64) {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let mut batch = store.batch();
    batch.merge(&sums, "a", 1i64.to_le_bytes());
    batch.merge(&sums, WRITERS[who], 1i64.to_le_bytes());
    batch.put(&rows, [who as u8, nth as u8], "row");
    batch.merge(&sums, "b", (-1i64).to_le_bytes());
    batch.commit(Durability::Buffered).expect("committed");
}

/// Checks one snapshot, which must contain only whole batches, and all acknowledged batches.
fn look(store: &Store, acknowledged: [i64; 3]) {
    let (rows, sums) = (keyspace(store, ROWS), keyspace(store, SUMS));
    let snapshot = store.snapshot();
    let at = sums.at(&snapshot);
    let (a, b) = (counter(&at, "a"), counter(&at, "b"));
    let seen = WRITERS.map(|who| counter(&at, who));
    assert_eq!(a + b, 0, "half a batch at {}", snapshot.seqno());
    assert_eq!(a, seen.iter().sum::<i64>(), "a lost or doubled merge at {}", snapshot.seqno());
    let found = read_all(rows.at(&snapshot).iter()).expect("read");
    assert_eq!(found.len() as i64, a, "rows and counters at {}", snapshot.seqno());
    let complete = (0..WRITERS.len()).all(|who| seen[who] >= acknowledged[who]);
    assert!(complete, "acknowledged {acknowledged:?}, seen {seen:?} at {}", snapshot.seqno());
}

/// Runs three writers and `other` concurrently. At most two of the writers may commit at the same time. When all
/// threads have ended, the function checks the store once more.
fn write_beside(store: &Store, other: impl FnOnce(&dyn Fn()) + Send) {
    let acknowledged = [(); 3].map(|()| AtomicU64::new(0));
    let look_now = || look(store, [0, 1, 2].map(|who: usize| acknowledged[who].load(SeqCst) as i64));
    let writer = |who: usize| {
        let acknowledged = &acknowledged;
        body(move || {
            for nth in 0..EACH {
                transfer(store, who, nth);
                acknowledged[who].fetch_add(1, SeqCst);
            }
        })
    };
    threads([writer(0), writer(1), writer(2), body(|| other(&look_now))]);
    look(store, [EACH; 3]);
}

/// A reader runs concurrently with three writers. The canary: the watermark moves past a commit that is not applied
/// yet.
pub fn beside(start: &SimImage, _: Twist) {
    let (_sim, store) = open_image(start, 0);
    write_beside(&store, |look| (0..3).for_each(|_| look()));
    store.close().expect("closed");
}

/// A thread seals and packs all memtables concurrently with three writers. The canary: a seal does not wait for commits
/// in progress.
pub fn seal(start: &SimImage, _: Twist) {
    let (sim, store) = open_image(start, 0);
    write_beside(&store, |look| {
        store.pack().expect("packed");
        look();
    });
    store.settle().expect("settled");
    look(&store, [EACH; 3]);
    verify(&store);
    store.close().expect("closed");
    look(&open(&sim, 0).expect("it opens again"), [EACH; 3]);
}

/// Three writers of two rows each use one log stream. The canary: if another writer is already writing the log, a
/// writer does not wait until its own record is written.
pub fn kill(start: &SimImage, _: Twist) {
    let (sim, store) = open_image(start, 0);
    kill_at_acknowledgement(&sim, &store, |_| Durability::Buffered);
    store.close().expect("closed");
}

/// Like [`kill`], but with two log streams and one writer that commits with `Durability::None`. The canary: a buffered
/// commit does not write earlier records that are in the buffer of the other stream.
pub fn lazy(start: &SimImage, _: Twist) {
    let (sim, store) = open_streams(start, Mode::Product);
    kill_at_acknowledgement(&sim, &store, |who| if who == 1 { Durability::None } else { Durability::Buffered });
    store.close().expect("closed");
}

/// At each acknowledgement of a buffered row, takes the image that a kill would leave. Checks one of these images.
fn kill_at_acknowledgement(sim: &Arc<SimDevice>, store: &Store, durability: fn(u8) -> Durability) {
    let (acknowledged, pictures) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let writer = |who: u8| {
        let (rows, acknowledged, pictures) = (keyspace(store, ROWS), &acknowledged, &pictures);
        body(move || {
            for nth in 0..2 {
                rows.put_with([who, nth], "row", durability(who)).expect("committed");
                if durability(who) == Durability::None {
                    continue;
                }
                let mut acknowledged = acknowledged.lock().expect("sound");
                acknowledged.push([who, nth]);
                pictures.lock().expect("sound").push((acknowledged.clone(), sim.image()));
            }
        })
    };
    threads([writer(0), writer(1), writer(2)]);
    let mut pictures = pictures.into_inner().expect("sound");
    let (acknowledged, image) = pictures.swap_remove(thread_rng().gen_range(0..pictures.len()));
    let (_sim, store) = open_image(&image, 0);
    for key in acknowledged {
        assert!(keyspace(&store, ROWS).contains(key).expect("read"), "{key:?} was acknowledged but is lost");
    }
}
