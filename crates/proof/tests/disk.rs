//! Tests that full disks can be emptied again, on the first simulated disks of `pando sim disk`. The stores of these
//! tests have no background threads. `scripts/full-disk` tests stores with background threads on real file systems.

use pandodb_proof::{Kind, run_until};

/// Number of simulated disks.
const DISKS: u64 = 40;

#[test]
fn full_disks_can_be_emptied() {
    let tally = run_until(Kind::Disk, 0.., DISKS);
    println!("{} disks: {}", tally.runs, tally.words());
    tally.none();
    // Each disk is filled until a write is refused.
    assert!(tally.runs == DISKS && tally.counted("records") > 20_000 * DISKS, "too few records for full disks");
}

/// Seeds that failed in a longer run. On these disks, hole units have 16 KiB, and many units were only partly in use.
/// The free pages of such units occupied a fifth of each disk. Compactions did not write to these pages, so deletes
/// were refused for ever.
#[test]
fn compactions_on_a_full_disk_reuse_free_pages_that_still_occupy_space() {
    for seed in [719, 3803] {
        run_until(Kind::Disk, seed..=seed, 1).none();
    }
}
