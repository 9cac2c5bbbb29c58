//! The nth call goes wrong; the canary is a device that loses writes, held to the promise of an honest one.

use pandodb::device::sim::{Fault, FaultKind};
use pandodb_proof::faults::{KINDS, attempt};
use pandodb_proof::script::{Mix, Script};
use pandodb_proof::{Kind, Unit, run};

#[test]
fn every_kind_of_fault_is_survived() {
    let mut tally = pandodb_proof::Tally::default();
    // Two scripts, every kind on each, and full disks.
    for seed in 0..2 * (2 * KINDS.len() as u64 + 1) {
        tally.add(run(Kind::Faults, &Unit::of(seed)));
    }
    // An hour found that a keyspace whose drop has failed can be opened, which promises nothing.
    // A sync of the directory for which there was no space was taken for an ordinary refusal, though it had forgotten a removal: the
    // next segment of that name was not there after a power cut.
    for seed in [100_279, 100_281, 100_287, 375, 591] {
        tally.add(run(Kind::Faults, &Unit::of(seed)));
    }
    println!("{} runs: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.runs > 5_000, "too few faults to mean anything");
}

#[test]
fn a_lost_write_is_noticed_when_nobody_expects_it() {
    let script = Script::generate(3, Mix { steps: 30, blobs: 15, lazy: 10, buffered: 50, keys: 30 });
    let caught = (0..400).any(|nth| attempt(&script, &Fault::once(FaultKind::LostWrite, nth), false).is_err());
    assert!(caught, "no lost write was noticed");
}
