//! Fewer steps that still fail: delta debugging over the steps of a history.
//!
//! 1. Try to leave out ever smaller pieces: halves, quarters, …, single steps.
//! 2. Whatever still fails without a piece goes on without it, until no single step can be left out or the tries are used up.
//!
//! Source: A. Zeller and R. Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*, 2002 (without its complements:
//! a history that fails rarely fails in one of its pieces alone).

/// The smallest subset of `0..len` found for which `fails` holds, ascending. `fails(0..len)` is taken to hold. Costs at most
/// `tries` calls.
pub fn minimise(len: usize, tries: usize, mut fails: impl FnMut(&[usize]) -> bool) -> Vec<usize> {
    let mut kept: Vec<usize> = (0..len).collect();
    let mut left = tries;
    let mut piece = len.div_ceil(2);
    while piece > 0 && left > 0 {
        let before = kept.len();
        let mut at = 0;
        while at < kept.len() && left > 0 {
            let end = (at + piece).min(kept.len());
            let without = [&kept[..at], &kept[end..]].concat();
            left -= 1;
            if !without.is_empty() && fails(&without) {
                kept = without;
            } else {
                at = end;
            }
        }
        // At single steps, once more as long as one goes: leaving one out can make another needless.
        piece = if piece == 1 && kept.len() < before { 1 } else { piece / 2 };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_steps_that_matter_are_left() {
        let needs = |kept: &[usize]| [3, 17, 40].iter().all(|step| kept.contains(step));
        assert_eq!(minimise(64, 1_000, needs), [3, 17, 40]);
    }

    #[test]
    fn it_stops_when_the_tries_are_used_up() {
        let mut calls = 0;
        let kept = minimise(1_000, 10, |kept| {
            calls += 1;
            kept.contains(&999)
        });
        assert!(calls <= 10 && kept.contains(&999));
    }

    #[test]
    fn one_step_stays() {
        assert_eq!(minimise(1, 10, |_| true), [0]);
    }
}
