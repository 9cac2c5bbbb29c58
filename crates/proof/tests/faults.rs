//! Tests in which the nth device call fails. Canary: if the harness treats a device that loses writes as an honest
//! device, it must report a failure.

use pandodb::device::sim::{Fault, FaultKind};
use pandodb_proof::faults::{KINDS, attempt};
use pandodb_proof::script::{Mix, Script};
use pandodb_proof::{Kind, Unit, run};

#[test]
fn no_fault_violates_a_guarantee() {
    let mut tally = pandodb_proof::Tally::default();
    // Two scripts, every kind of fault on each script, and full disks.
    for seed in 0..2 * (2 * KINDS.len() as u64 + 1) {
        tally.add(run(Kind::Faults, &Unit::of(seed)));
    }
    // Seeds that failed in longer runs. In one run, opening a keyspace whose drop had failed was treated as a durable
    // creation. In another run, a directory sync failed because the disk was full, and the store handled the failure as
    // an ordinary refusal. But the failed sync had not made the removal of a segment durable, so a later segment of the
    // same name was missing after a power cut.
    for seed in [100_279, 100_281, 100_287, 375, 591, 123, 125] {
        tally.add(run(Kind::Faults, &Unit::of(seed)));
    }
    println!("{} runs: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.runs > 5_000, "too few faults");
}

#[test]
fn a_lost_write_is_detected_under_the_rules_for_an_honest_device() {
    let script = Script::generate(3, Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 });
    let caught = (0..400).any(|nth| attempt(&script, &Fault::once(FaultKind::LostWrite, nth), false).is_err());
    assert!(caught, "no lost write was detected");
}
