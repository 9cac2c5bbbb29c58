//! Random histories of everything the interface offers, against plain sorted maps.
//!
//! A history has five keyspaces: plain values, counters, lists that grow, values that live apart, and maxima. Counters
//! are in every one: a message that is seen twice or not at all hides behind puts and shows in a sum. Steps of the test:
//! from a seed comes the shape of the store (`config`) and a list of words; each word is one action on the store and its
//! model (`history`); reads (`reads`) and new lives of the store (`lives`) are compared with the model (`model`).
//!
//! `PANDO_SEED=n` runs one history, `PANDO_SEEDS=n` more of them (a soak), `PANDO_ACTIONS=n` longer ones. The canary
//! (`world::Sabotage`) makes one mistake a history on purpose; each must be caught.

mod config;
mod history;
mod lives;
mod model;
mod reads;
mod regress;
mod rng;
mod world;

use proptest::prelude::*;

use self::config::Config;
use self::history::{Summary, run, words};
use self::world::{Sabotage, Wrong};

/// Histories of the ordinary run, and the actions of each.
const HISTORIES: u64 = 120;
const ACTIONS: usize = 300;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name} must be a number")))
}

/// Runs the history of a seed and fails the test with the way to replay it.
fn history(config: Config, actions: usize) -> Summary {
    let seed = config.seed;
    match run(config.clone(), &words(seed, actions), None) {
        Ok(summary) => summary,
        Err(Wrong(why)) => {
            panic!(
                "{why}\n{config:?}\nreplay: PANDO_SEED={seed} PANDO_ACTIONS={actions} cargo test -p pandodb --test model"
            )
        }
    }
}

#[test]
fn random_histories_agree_with_the_model() {
    let actions = number("PANDO_ACTIONS").map_or(ACTIONS, |n| n as usize);
    if let Some(seed) = number("PANDO_SEED") {
        let summary = history(Config::from_seed(seed), actions);
        println!("seed {seed}: {summary:?}");
        return;
    }
    let histories = number("PANDO_SEEDS").unwrap_or(HISTORIES);
    let mut deep = 0;
    for seed in 0..histories {
        let summary = history(Config::from_seed(seed), actions);
        deep += u64::from(summary.levels >= 3);
    }
    println!("{histories} histories of {actions} actions; {deep} reached three levels");
    assert!(deep * 10 >= histories, "only {deep} of {histories} histories reached three levels");
}

#[test]
fn small_memtables_make_deep_trees() {
    for seed in [1, 2] {
        let mut config = Config::from_seed(seed);
        config.memtable_bytes = 4 << 10;
        config.fanout = 2;
        config.keys = 4000;
        config.value_bytes = 150;
        let summary = history(config, 500);
        assert!(summary.levels >= 4, "seed {seed} ended with {summary:?}");
        assert!(summary.moves > 30, "seed {seed} ended with {summary:?}");
    }
}

#[test]
fn the_harness_catches_every_mistake_made_on_purpose() {
    use Sabotage::*;
    for sabotage in [LostPut, LostDelete, LostMerge, DoubleMerge, LostRangeDelete, TornBatch, LateSnapshot] {
        let (mut struck, mut caught) = (0, 0);
        for seed in 0..10 {
            // Without the mistake nothing is wrong, so what is caught is the mistake.
            assert!(run(Config::from_seed(seed), &words(seed, 60), None).is_ok(), "seed {seed} fails by itself");
            match run(Config::from_seed(seed), &words(seed, 60), Some((sabotage, 2))) {
                Ok(summary) => struck += u64::from(summary.sabotaged),
                Err(_) => {
                    struck += 1;
                    caught += 1;
                }
            }
        }
        println!("{sabotage:?}: struck {struck}, caught {caught}");
        assert!(caught > 0, "{sabotage:?} struck {struck} times and was never caught");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Short histories that shrink: a failure ends as few words.
    #[test]
    fn short_histories_agree_with_the_model(seed in 0u64..1 << 32, words in prop::collection::vec(any::<u64>(), 1..60)) {
        if let Err(Wrong(why)) = run(Config::from_seed(seed), &words, None) {
            prop_assert!(false, "{why}\nseed {seed}, words {words:?}");
        }
    }
}
