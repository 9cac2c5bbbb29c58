//! [`choose`]: the children to which a page passes messages, because its buffer cannot hold all of them.
//!
//! A pure function of numbers. The source passes the largest blocks of messages first, until the rest fits (000 §5.2.3).
//! So each child that is visited gets at least as many bytes as the average child, and the cost of the visit is shared by
//! them.

use std::cmp::Reverse;

/// For each child, whether the messages for it are passed on. `weights` are the bytes of the messages for each child: those
/// in the buffer, and those that arrive. The rest has at most `capacity` bytes. Among equal weights, the first child is
/// chosen.
pub(super) fn choose(weights: &[u64], capacity: u64) -> Vec<bool> {
    let mut chosen = vec![false; weights.len()];
    let mut total: u64 = weights.iter().sum();
    let mut by_weight: Vec<usize> = (0..weights.len()).filter(|&i| weights[i] > 0).collect();
    by_weight.sort_by_key(|&i| (Reverse(weights[i]), i));
    for i in by_weight {
        if total <= capacity {
            break;
        }
        total -= weights[i];
        chosen[i] = true;
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_blocks_are_passed_on_until_the_rest_fits() {
        assert_eq!(choose(&[5, 0, 9, 7], 21), [false; 4]);
        assert_eq!(choose(&[5, 0, 9, 7], 20), [false, false, true, false]);
        assert_eq!(choose(&[5, 0, 9, 7], 5), [false, false, true, true]);
        assert_eq!(choose(&[5, 0, 9, 7], 0), [true, false, true, true]);
        assert_eq!(choose(&[4, 4, 4], 8), [true, false, false]);
        assert_eq!(choose(&[], 0), [false; 0]);
    }
}
