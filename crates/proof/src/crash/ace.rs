//! Exhaustive crash tests of all short histories over a small alphabet of steps. Each step of the alphabet is a
//! *letter*. Each history is tried with every crash of a plan, at every sync after the first letter.
//!
//! Long random histories find bugs only by chance. This class tries every short history, because at most three
//! operations are enough to reproduce most crash bugs of file systems (J. Mohan et al., *Finding Crash-Consistency Bugs
//! with Bounded Black-Box Crash Testing*, OSDI 2018; the idea comes from their generator ACE).
//!
//! Histories are numbered by length: first all histories of one letter, next all histories of two letters, up to
//! [`LONGEST`] letters. Each unit takes the next [`SLICE`] histories. So the first [`units_up_to`] units contain every
//! history up to a given length.

use pandodb::Durability;
use pandodb::device::sim::CrashPlan;

use super::{Case, Effort};
use crate::drive::Sizes;
use crate::report::{Tally, Unit};
use crate::script::{BLOB_THRESHOLD, Op, ROWS, SUMS, Script, Step, TEMP, key};

/// The number of histories in one unit.
pub const SLICE: u64 = 48;
/// The number of letters of the longest history.
pub const LONGEST: u32 = 4;
/// The number of letters of the alphabet.
pub const LETTERS: u64 = 12;

/// The number of histories that have at most `letters` letters.
pub fn histories_up_to(letters: u32) -> u64 {
    (1..=letters).map(|length| LETTERS.pow(length)).sum()
}

/// The number of units that try all histories of at most `letters` letters.
pub fn units_up_to(letters: u32) -> u64 {
    histories_up_to(letters).div_ceil(SLICE)
}

/// The letters of history `number`, each below [`LETTERS`].
fn letters(number: u64) -> Vec<u64> {
    let mut rest = number % histories_up_to(LONGEST);
    let mut length = 1;
    while rest >= LETTERS.pow(length) {
        rest -= LETTERS.pow(length);
        length += 1;
    }
    (0..length).map(|place| rest / LETTERS.pow(place) % LETTERS).collect()
}

/// The step of a letter at position `place` in the history. `temp`: whether the keyspace [`TEMP`] exists.
fn step(letter: u64, place: usize, temp: &mut bool) -> Step {
    let place = place as u64;
    let small = |name| Op::Put(name, key(place % 2), vec![b'a' + place as u8; 20]);
    match letter {
        0 => Step::Commit(vec![small(ROWS)], Durability::None),
        1 => Step::Commit(vec![small(ROWS)], Durability::Synced),
        2 => {
            let large = vec![b'A' + place as u8; BLOB_THRESHOLD + 4_000];
            Step::Commit(vec![Op::Put(ROWS, key(0), large)], Durability::Buffered)
        }
        3 => Step::Commit(vec![Op::Add(key(0), 1 << (8 * place))], Durability::Buffered),
        4 => Step::Commit(vec![Op::Delete(ROWS, key(0))], Durability::Buffered),
        5 => Step::Commit(vec![Op::DeleteRange(ROWS, key(0), key(2))], Durability::Synced),
        6 => {
            let other = if *temp { TEMP } else { ROWS };
            Step::Commit(vec![small(other), Op::Add(key(0), 3), Op::Delete(SUMS, key(1))], Durability::Synced)
        }
        7 => Step::Checkpoint,
        8 => Step::Settle,
        9 => {
            *temp = !*temp;
            if *temp { Step::Create(TEMP) } else { Step::Drop(TEMP) }
        }
        10 => Step::Persist(Durability::Synced),
        _ => Step::Reopen,
    }
}

/// The steps that precede the first letter.
const BEFORE: usize = 3;

/// The script of history `number`.
fn script(number: u64) -> Script {
    let mut steps = vec![Step::Create(ROWS), Step::Create(SUMS)];
    // Existing data that the letters delete, overwrite and add to, so that every letter has an effect.
    let base = vec![Op::Put(ROWS, key(0), vec![b'0'; 30]), Op::Put(ROWS, key(1), vec![b'1'; 30]), Op::Add(key(0), 100)];
    steps.push(Step::Commit(base, Durability::Synced));
    debug_assert_eq!(steps.len(), BEFORE);
    let mut temp = false;
    steps.extend(letters(number).into_iter().enumerate().map(|(place, letter)| step(letter, place, &mut temp)));
    Script { seed: number, steps }
}

/// Runs the unit with the given number, which is a slice of the histories.
pub(super) fn run(unit: &Unit, number: u64) -> Tally {
    let mut tally = Tally::default();
    for history in number * SLICE..(number + 1) * SLICE {
        let plan = CrashPlan { exhaustive: 6, pairs: false, subsets: 16, tears: 2, rot: true, seed: 0 };
        let case = Case {
            script: script(history),
            sizes: Sizes::TINY.drawn(number),
            reopened: Sizes::TINY.drawn(number),
            effort: Effort {
                plan,
                per_point: 1,
                part: Some((0, 1)),
                skip: BEFORE,
                rewrite_every: 50,
                recovery_every: 50,
                recovery_images: 2,
            },
        };
        let mut part = case.run(|sim| sim);
        part.count("short histories", 1);
        part.failures.iter_mut().for_each(|failure| {
            failure.seed = unit.seed;
            failure.history = case.script.words();
        });
        tally.add(part);
        if tally.is_enough() {
            break;
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_history_has_one_number() {
        let all: HashSet<Vec<u64>> = (0..histories_up_to(3)).map(letters).collect();
        assert_eq!(all.len() as u64, 12 + 144 + 1728);
        assert!(all.iter().all(|word| (1..=3).contains(&word.len()) && word.iter().all(|letter| *letter < LETTERS)));
        assert_eq!(letters(histories_up_to(3)).len(), 4);
        assert_eq!(letters(histories_up_to(4)), letters(0), "the numbering wraps around");
    }

    #[test]
    fn different_letters_are_different_steps() {
        let steps: HashSet<String> = (0..LETTERS).map(|letter| format!("{:?}", step(letter, 0, &mut false))).collect();
        assert_eq!(steps.len() as u64, LETTERS);
    }
}
