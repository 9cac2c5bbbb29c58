//! Random histories of the whole interface, compared with plain sorted maps.
//!
//! A history has five keyspaces: plain values, counters, lists that grow, large values stored as blobs, and maxima.
//! Every history writes counters, because a message that is lost or applied twice always changes a sum. A wrong plain
//! value, in contrast, disappears with the next put. The seed determines the configuration of the store ([`Config`])
//! and a list of words. Each word is one action on the store and its model (`history`): writes and batches, reads of
//! every kind at any snapshot (`reads`), transactions (`transactions`), closing (old handles must return an error), kills, power cuts and backups
//! (`lives`). The result of each read is compared with the model (`tables`) immediately. From time to time, all
//! contents are compared too.
//!
//! A unit is one history. Its steps are its words, and any subset of them is also a history.

mod config;
mod history;
mod lives;
mod reads;
mod tables;
mod transactions;
mod world;

pub use self::config::Config;
pub use self::history::{Summary, play, words};
pub use self::world::{Sabotage, Wrong};
use crate::indexes;
use crate::minimise::minimise;
use crate::report::{Tally, Unit};

/// The number of actions of an ordinary history.
pub const ACTIONS: usize = 300;
/// The number of actions of a history that builds a deep tree.
const DEEP_ACTIONS: usize = 500;
/// The distance between two seeds whose histories build a deep tree.
const DEEP_EVERY: u64 = 16;
/// The maximum number of replays while a failing history is minimised.
const TRIES: usize = 200;

/// The history of a seed: its configuration and its words.
fn history(seed: u64) -> (Config, Vec<u64>) {
    if seed % DEEP_EVERY == 1 {
        (Config::deep(seed), words(seed, DEEP_ACTIONS))
    } else {
        (Config::from_seed(seed), words(seed, ACTIONS))
    }
}

/// Runs a unit.
pub fn run(unit: &Unit) -> Tally {
    let (config, all) = history(unit.seed);
    let some = |steps: &[usize]| steps.iter().filter_map(|step| all.get(*step).copied()).collect::<Vec<u64>>();
    let chosen = unit.steps.as_ref().map_or_else(|| all.clone(), |steps| some(steps));
    let mut tally = Tally { runs: chosen.len() as u64, ..Tally::default() };
    indexes::count(config.index.kind(), &mut tally);
    tally.count("random histories", 1);
    match play(config.clone(), &chosen, None) {
        Ok(summary) => {
            tally.digest = summary.digest;
            tally.count("moves in trees", summary.moves);
            tally.count("deep trees", u64::from(summary.levels >= 3));
        }
        Err(Wrong(what)) => {
            let fails = |kept: &[usize]| play(config.clone(), &some(kept), None).is_err();
            let steps = unit.steps.clone().unwrap_or_else(|| minimise(all.len(), TRIES, fails));
            tally.fail(unit.seed, format!("{what}; {config:?}"));
            let failure = tally.failures.last_mut().expect("just noted");
            let lines = steps.iter().filter_map(|step| Some(format!("{step}: word {:#018x}", all.get(*step)?)));
            failure.history = lines.collect();
            failure.steps = Some(steps);
        }
    }
    tally
}
