//! Tests with power cuts and kills. They visit a tenth as many states as continuous integration does. Canaries: on
//! devices that report a skipped sync as done, the harness must detect that commits are lost.

use std::sync::Arc;
use std::time::Instant;

use pandodb::device::sim::CrashPlan;
use pandodb_proof::crash::{Case, Effort};
use pandodb_proof::drive::Sizes;
use pandodb_proof::liar::{Liar, Lie};
use pandodb_proof::script::{Mix, Script};
use pandodb_proof::{Kind, Tally, Unit, run, run_until};

/// The minimum number of states that the test must visit.
const STATES: u64 = 50_000;

#[test]
fn no_crash_loses_or_invents_data() {
    let started = Instant::now();
    let tally = run_until(Kind::Crash, 0.., STATES);
    let rate = tally.runs as f64 / started.elapsed().as_secs_f64();
    println!("{} distinct states, {rate:.0} a second: {}", tally.runs, tally.words());
    tally.none();
    assert!(tally.counted("crashes inside recovery") * 20 >= STATES, "too few crashes inside recovery");
    assert!(tally.counted("windows in full") > 0 && tally.counted("short histories") > 0, "a class is missing");
}

#[test]
fn running_a_seed_twice_visits_the_same_states() {
    for seed in [0, 4, 7] {
        let (one, two) = (run(Kind::Crash, &Unit::of(seed)), run(Kind::Crash, &Unit::of(seed)));
        assert_eq!(one, two);
        assert!(one.digest != 0 && one.runs > 100);
    }
}

fn tally_of(lie: Lie) -> Tally {
    let mix = Mix { steps: 40, blobs: 10, lazy: 10, buffered: 40, keys: 40 };
    let plan = CrashPlan { exhaustive: 5, pairs: false, subsets: 8, tears: 2, rot: true, seed: 0 };
    let effort =
        Effort { plan, per_point: 8, part: None, skip: 0, rewrite_every: 10, recovery_every: 50, recovery_images: 2 };
    let case = Case { script: Script::generate(7, mix), sizes: Sizes::TINY, reopened: Sizes::TINY, effort };
    case.run(|sim| Arc::new(Liar::new(sim, lie)))
}

#[test]
fn an_honest_device_causes_no_failure() {
    tally_of(Lie::Never).none();
}

#[test]
fn a_commit_acknowledged_before_the_log_is_synced_is_detected() {
    assert!(!tally_of(Lie::Log).failures.is_empty());
}

#[test]
fn a_superblock_written_before_its_data_is_detected() {
    assert!(!tally_of(Lie::Data).failures.is_empty());
}
