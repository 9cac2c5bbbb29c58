//! Damage to stores at rest; the canary is a sound store that holds something else.

use std::time::Instant;

use pandodb_proof::corrupt::{Found, Specimen};
use pandodb_proof::{Kind, run_until};

#[test]
fn no_damage_is_believed() {
    let started = Instant::now();
    let tally = run_until(Kind::Corrupt, 0.., 12_000);
    let rate = tally.runs as f64 / started.elapsed().as_secs_f64();
    println!("{} images, {rate:.0} a second: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.counted("found") > tally.runs / 4, "most damage is found");
    for part in ["bits flipped", "files cut", "pages exchanged", "stale pages", "sectors spoilt", "sectors refused"] {
        assert!(tally.counted(part) > 0, "no {part}");
    }
}

/// An hour found a sector that stayed unreadable after a store had mended it and given its page to something else.
#[test]
fn what_was_found_stays_found() {
    pandodb_proof::run(Kind::Corrupt, &pandodb_proof::Unit::of(100_135)).none();
}

#[test]
fn a_sound_store_with_other_contents_is_noticed() {
    let specimen = Specimen::seeded(26, true);
    assert_eq!(specimen.examine(&specimen.image, specimen.rule), Ok(Found::Nothing));
    let outcome = specimen.examine(&specimen.earlier, specimen.rule);
    assert!(outcome.as_ref().is_err_and(|problem| problem.contains("wrong answer")), "{outcome:?}");
}
