//! Tests that random histories agree with the model. Canary: the harness must detect mistakes made on purpose.

use std::time::Instant;

use pandodb_proof::model::{ACTIONS, Config, Sabotage, play, words};
use pandodb_proof::{Kind, run_until};

/// The number of actions of the whole test.
const ALL: u64 = 140 * ACTIONS as u64;

#[test]
fn random_histories_agree_with_the_model() {
    let started = Instant::now();
    let tally = run_until(Kind::Model, 0.., ALL);
    let rate = tally.runs as f64 / started.elapsed().as_secs_f64();
    println!("{} actions, {rate:.0} a second: {}", tally.runs, tally.words());
    tally.none();
    let (deep, histories) = (tally.counted("deep trees"), tally.counted("random histories"));
    assert!(deep * 10 >= histories, "only {deep} of {histories} histories reached three levels");
}

#[test]
fn seeds_draw_both_index_types_and_stores_that_mix_them() {
    let kinds = |seed: u64| Config::from_seed(seed).index.kind();
    assert!((0..40).any(|seed| kinds(seed) != kinds(0)));
    assert!((0..40).any(|seed| Config::from_seed(seed).mixed));
}

#[test]
fn small_memtables_make_deep_trees() {
    for seed in [1, 2] {
        let config = Config::deep(seed);
        let summary = play(config, &words(seed, 500), None).expect("agrees");
        assert!(summary.levels >= 4 && summary.moves >= 5, "seed {seed} ended with {summary:?}");
    }
}

#[test]
fn every_deliberate_mistake_is_detected() {
    use Sabotage::*;
    for seed in 0..24 {
        // These histories pass without the sabotage, so a failure below is caused by the sabotage.
        assert!(
            play(Config::from_seed(seed), &words(seed, ACTIONS), None).is_ok(),
            "seed {seed} fails without a mistake"
        );
    }
    for sabotage in [LostPut, LostDelete, LostMerge, DoubleMerge, LostRangeDelete, LostLoad, TornBatch, LateSnapshot] {
        // The sabotage is not applied to the first operation, because a lost delete has no effect in a store that is
        // still empty. A history has few loads.
        let caught = (0..24).find(|&seed| {
            play(Config::from_seed(seed), &words(seed, ACTIONS), Some((sabotage, 1 << (seed % 6)))).is_err()
        });
        println!("{sabotage:?}: caught with seed {caught:?}");
        assert!(caught.is_some(), "{sabotage:?} was not detected");
    }
}
