//! Draws the index type and the index options for the stores of a harness, from the seed of the unit.
//!
//! Every harness uses every index type in the engine's registry. The options are drawn from the options that the type
//! declares. Numeric options are near the minimum of their range, so that short histories reach every part of the
//! structure.

use std::sync::OnceLock;

use pandodb::{IndexKind, IndexOptions, Values};

use crate::report::Tally;
use crate::script::mix;

/// The only index type that the harnesses use, if one was set.
static ONLY: OnceLock<IndexKind> = OnceLock::new();

/// Makes every later unit of this process use this index type. Only the first call has an effect.
pub fn use_only(kind: IndexKind) {
    let _ = ONLY.set(kind);
}

/// The type set by [`use_only`].
pub fn only() -> Option<IndexKind> {
    ONLY.get().copied()
}

/// The type that the unit of a seed uses.
pub fn kind(seed: u64) -> IndexKind {
    let drawn = || {
        let count = IndexKind::all().len() as u64;
        IndexKind::all().nth((mix(seed ^ 0x0069_6e64_6578) % count) as usize).expect("a number below the count")
    };
    only().unwrap_or_else(drawn)
}

/// The index type and options of the unit of a seed.
pub fn options(seed: u64) -> IndexOptions {
    with_options(kind(seed), seed)
}

/// An index type with options drawn from `number`. A numeric option is the minimum of its range, or the minimum plus
/// one or two. A word option is the first word at least half of the time, and any word otherwise.
pub fn with_options(kind: IndexKind, number: u64) -> IndexOptions {
    let set = |options: IndexOptions, (i, spec): (usize, &pandodb::OptionSpec)| {
        let drawn = mix(number ^ (i as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let value = match spec.values {
            Values::Range(least, most) => (least + drawn % 3).min(most).to_string(),
            Values::Words(words) if drawn.is_multiple_of(2) => words[0].to_owned(),
            Values::Words(words) => words[(drawn / 2 % words.len() as u64) as usize].to_owned(),
        };
        options.with(spec.name, &value).expect("a declared option and one of its values")
    };
    kind.options().iter().enumerate().fold(IndexOptions::from(kind), set)
}

/// An index type with the minimum of each numeric option, so that the structure is as deep as possible.
pub fn deepest(kind: IndexKind) -> IndexOptions {
    above_least(kind, 0)
}

/// An index type with a small value for each numeric option, and the default for every other option.
pub fn small(kind: IndexKind) -> IndexOptions {
    above_least(kind, 1)
}

fn above_least(kind: IndexKind, more: u64) -> IndexOptions {
    kind.options().iter().fold(IndexOptions::from(kind), |options, spec| match spec.values {
        Values::Range(least, most) => {
            options.with(spec.name, &(least + more).min(most).to_string()).expect("a value in the range")
        }
        Values::Words(_) => options,
    })
}

/// Counts all runs of a tally as runs on an index type.
pub fn count(kind: IndexKind, tally: &mut Tally) {
    tally.count(&counter(kind), tally.runs);
}

/// The name of the count of runs on an index type.
pub fn counter(kind: IndexKind) -> String {
    format!("on {kind}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_drawn_by_half_of_an_even_share_of_the_seeds() {
        for kind in IndexKind::all() {
            let hits = (0..1000).filter(|&seed| self::kind(seed) == kind).count();
            assert!(hits * 2 * IndexKind::all().len() >= 1000, "{kind}: {hits} of 1,000 seeds");
        }
    }

    #[test]
    fn drawn_options_are_valid_and_differ() {
        for kind in IndexKind::all() {
            let drawn: std::collections::BTreeSet<String> =
                (0..50).map(|number| with_options(kind, number).to_string()).collect();
            let choices = |spec: &pandodb::OptionSpec| match spec.values {
                Values::Range(least, most) => 3.min(most - least + 1),
                Values::Words(words) => words.len() as u64,
            };
            let all: u64 = kind.options().iter().map(choices).product();
            assert!(drawn.len() as u64 >= all.min(6), "{drawn:?}");
            assert_eq!(deepest(kind).kind(), kind);
        }
    }
}
