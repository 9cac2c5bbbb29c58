//! Full disks can be emptied again, on the first simulated disks of `pando sim disk`.

use pandodb_proof::{Kind, run_until};

/// How many disks.
const DISKS: u64 = 40;

#[test]
fn full_disks_can_be_emptied() {
    let tally = run_until(Kind::Disk, 0.., DISKS);
    println!("{} disks: {}", tally.runs, tally.words());
    tally.none();
    // Each is written until it refuses.
    assert!(tally.runs == DISKS && tally.counted("records") > 20_000 * DISKS, "too little for a full disk");
}
