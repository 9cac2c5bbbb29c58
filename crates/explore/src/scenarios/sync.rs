//! Scenarios for group commit when a sync fails. They check that the affected commits return an error, and that the
//! store acknowledges no commit that a power cut would lose.

use std::collections::BTreeSet;
use std::sync::Mutex;

use pandodb::device::sim::{Fault, FaultKind, SimImage};
use pandodb::{Durability, Error, Store};
use shuttle::rand::{Rng, thread_rng};

use super::{ROWS, Twist, body, keyspace, open_image, read_all, threads};

/// The claim of [`sync`].
pub const SYNC: &str = "when a sync of the log fails, no commit that needed it is acknowledged, and no later commit";
/// The claim of [`large`].
pub const LARGE: &str = "when a sync of the data file fails, in whichever thread, no commit of a large value that needed \
                         it is acknowledged and no checkpoint relies on it";

/// The results of the commits.
#[derive(Default)]
struct Fates {
    acknowledged: BTreeSet<Vec<u8>>,
    failed: usize,
}

/// Commits a write and records the result of the commit.
fn commit(store: &Store, fates: &Mutex<Fates>, key: &[u8], value: &[u8], twist: Twist) {
    let rows = keyspace(store, ROWS);
    let done = rows.put_with(key, value, Durability::Synced);
    let mut fates = fates.lock().expect("sound");
    match done {
        Ok(()) => drop(fates.acknowledged.insert(key.to_vec())),
        Err(Error::Indeterminate { .. }) if twist == Twist::Canary => drop(fates.acknowledged.insert(key.to_vec())),
        Err(Error::Indeterminate { .. } | Error::Poisoned { .. }) => fates.failed += 1,
        Err(e) => panic!("neither indeterminate nor poisoned: {e}"),
    }
}

/// Checks the image of a power cut. It must contain every acknowledged commit with its value.
fn check(image: &SimImage, fates: &Fates, value: &[u8]) {
    let (_sim, store) = open_image(image, 0);
    let found = read_all(keyspace(&store, ROWS).iter()).expect("read");
    for key in &fates.acknowledged {
        assert!(found.get(key).is_some_and(|found| found == value), "{key:?} was acknowledged but is lost");
    }
}

/// Three writers make two commits each, and one of the first syncs of the log fails. The canary treats an indeterminate
/// commit as acknowledged.
pub fn sync(start: &SimImage, twist: Twist) {
    let (sim, store) = open_image(start, 0);
    let fates = Mutex::new(Fates::default());
    // The first sync makes a new segment durable. If this sync failed, only one commit would be refused. So the fault
    // is set after this commit.
    keyspace(&store, ROWS).put_with("first", "x", Durability::Synced).expect("committed");
    sim.set_fault(Some(Fault::once(FaultKind::FailedSync, thread_rng().gen_range(0..3))));
    let writer = |who: u8| {
        let (store, fates) = (&store, &fates);
        body(move || (0..2).for_each(|i| commit(store, fates, &[who, i], b"value", twist)))
    };
    threads([writer(1), writer(2), writer(3)]);
    let struck = sim.faults_struck() > 0;
    let fates = fates.into_inner().expect("sound");
    assert_eq!(fates.acknowledged.len() + fates.failed, if struck { 6 } else { fates.acknowledged.len() });
    assert!(!struck || twist == Twist::Canary || fates.failed > 0, "a sync failed but no commit returned an error");
    if struck {
        let after = keyspace(&store, ROWS).put("after", "x");
        assert!(matches!(after, Err(Error::Poisoned { .. })), "{after:?}");
    }
    // A power cut loses the writes that a failed sync has dropped, so the store must not have acknowledged these
    // writes.
    let image = sim.durable_image();
    drop(store);
    check(&image, &fates, b"value");
}

/// Two writers of large values run concurrently with a checkpoint, and one sync of the data file fails. The canary
/// treats an indeterminate commit as acknowledged.
pub fn large(start: &SimImage, twist: Twist) {
    static VALUE: [u8; 17_000] = [7; 17_000];
    let (sim, store) = open_image(start, 0);
    let fates = Mutex::new(Fates::default());
    let fault = Fault::once(FaultKind::FailedSync, thread_rng().gen_range(0..4));
    sim.set_fault(Some(Fault { file: Some("data".into()), ..fault }));
    let writer = |who: u8| {
        let (store, fates) = (&store, &fates);
        body(move || (0..2).for_each(|i| commit(store, fates, &[who, i], &VALUE, twist)))
    };
    let checkpoint = body(|| {
        if let Err(e) = store.checkpoint() {
            assert!(sim.faults_struck() > 0, "{e}");
        }
    });
    threads([writer(1), writer(2), checkpoint]);
    let image = sim.durable_image();
    drop(store);
    check(&image, &fates.into_inner().expect("sound"), &VALUE);
}
