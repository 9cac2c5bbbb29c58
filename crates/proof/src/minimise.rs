//! Minimises a failing history: delta debugging over its steps.
//!
//! 1. Try to leave out pieces of decreasing size: halves, quarters, …, single steps.
//! 2. If the history still fails without a piece, drop that piece. Stop when no single step can be left out, or when
//!    the tries are used up.
//!
//! Source: A. Zeller and R. Hildebrandt, *Simplifying and Isolating Failure-Inducing Input*, 2002. This implementation
//! tests complements only, because a history of only one piece rarely fails.

/// Returns the smallest subset of `0..len` that was found and for which `fails` returns true, in ascending order.
/// Assumes that `fails` returns true for the whole of `0..len`. Calls `fails` at most `tries` times.
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
        // Repeat the pass over single steps as long as it removes a step, because the removal of one step may make
        // another step unnecessary.
        piece = if piece == 1 && kept.len() < before { 1 } else { piece / 2 };
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_steps_that_cause_the_failure_remain() {
        let needs = |kept: &[usize]| [3, 17, 40].iter().all(|step| kept.contains(step));
        assert_eq!(minimise(64, 1_000, needs), [3, 17, 40]);
    }

    #[test]
    fn minimising_stops_when_the_tries_are_used_up() {
        let mut calls = 0;
        let kept = minimise(1_000, 10, |kept| {
            calls += 1;
            kept.contains(&999)
        });
        assert!(calls <= 10 && kept.contains(&999));
    }

    #[test]
    fn the_last_step_is_never_removed() {
        assert_eq!(minimise(1, 10, |_| true), [0]);
    }
}
