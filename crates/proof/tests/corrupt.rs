//! Tests that damage to stores at rest is never returned as data. Canary: the harness must report a failure if an
//! undamaged store has other contents than expected.

use std::time::Instant;

use pandodb_proof::corrupt::{Found, Specimen};
use pandodb_proof::{Kind, run_until};

#[test]
fn damaged_data_is_never_returned() {
    let started = Instant::now();
    let tally = run_until(Kind::Corrupt, 0.., 12_000);
    let rate = tally.runs as f64 / started.elapsed().as_secs_f64();
    println!("{} images, {rate:.0} a second: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.counted("found") > tally.runs / 4, "too little damage was found");
    for part in ["bits flipped", "files cut", "pages exchanged", "stale pages", "sectors spoilt", "sectors refused"] {
        assert!(tally.counted(part) > 0, "no {part}");
    }
}

/// A seed that failed in a longer run: a sector stayed unreadable after the store had repaired its block and reused its
/// page.
#[test]
fn past_failures_stay_fixed() {
    pandodb_proof::run(Kind::Corrupt, &pandodb_proof::Unit::of(100_135)).none();
}

#[test]
fn a_sound_store_with_other_contents_is_detected() {
    let specimen = Specimen::seeded(26, true);
    assert_eq!(specimen.examine(&specimen.image, specimen.rule), Ok(Found::Nothing));
    let outcome = specimen.examine(&specimen.earlier, specimen.rule);
    assert!(outcome.as_ref().is_err_and(|problem| problem.contains("wrong answer")), "{outcome:?}");
}
