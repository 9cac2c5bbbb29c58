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

/// Found by going on where the test above stops: a fifth of these disks was taken by free pages of pieces of 16 KiB that were otherwise in use,
/// and compactions did not write there. Deletes were refused for ever.
#[test]
fn free_pages_of_pieces_in_use_are_written_over_before_a_disk_is_full() {
    for seed in [719, 3803] {
        run_until(Kind::Disk, seed..=seed, 1).none();
    }
}
