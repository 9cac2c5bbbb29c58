//! Full disks can be emptied again: the first simulated disks of `pando sim disk`. Their stores have no background threads; stores that have
//! them are filled on real file systems by `scripts/full-disk`.

use pandodb_proof::{Kind, run_until};

/// Number of simulated disks.
const DISKS: u64 = 40;

#[test]
fn full_disks_can_be_emptied() {
    let tally = run_until(Kind::Disk, 0.., DISKS);
    println!("{} disks: {}", tally.runs, tally.words());
    tally.none();
    // Each disk is filled until a write is refused.
    assert!(tally.runs == DISKS && tally.counted("records") > 20_000 * DISKS, "too little for a full disk");
}
