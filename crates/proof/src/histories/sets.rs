//! The set workload: clients add elements in batches and scan the whole set. It detects phantoms with only what the
//! clients observe.
//!
//! No element is ever removed, so the scans must form a chain:
//!
//! 1. a scan contains every batch that was acknowledged before the scan began, and no batch that was refused or that
//!    was submitted after the scan ended;
//! 2. a scan contains all of a batch or none of it;
//! 3. of any two scans, one contains all elements of the other; if one scan began after the other had ended, it
//!    contains all elements of the other;
//! 4. a scan that contains a batch also contains every batch acknowledged before that batch was submitted.

use std::collections::HashMap;

/// A time: the number of the event.
pub type Time = u64;

/// The result of adding a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The batch was acknowledged at this time.
    Added(Time),
    /// The batch was refused, so no scan may see it.
    Refused,
    /// The result is unknown. The batch may appear now or after a crash, and must be present from that time on.
    Unknown,
}

/// A batch of elements.
#[derive(Clone, Debug)]
pub struct Add {
    /// The time when the batch was submitted.
    pub asked: Time,
    /// The result.
    pub fate: Fate,
    /// The elements; no other batch adds them.
    pub elements: Vec<u64>,
}

/// A completed scan of the whole set.
#[derive(Clone, Debug)]
pub struct Scan {
    /// The time when the scan began.
    pub asked: Time,
    /// The time when the scan ended.
    pub done: Time,
    /// The elements that the scan saw, in any order.
    pub elements: Vec<u64>,
}

/// A violation in the history of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A scan saw an element that was never added, or saw an element twice.
    Strange(u64),
    /// A scan saw an element of a refused batch.
    Aborted(u64),
    /// A scan saw an element that was submitted after the end of the scan.
    Future(u64),
    /// A scan saw only a part of the batch of this element.
    Half(u64),
    /// A scan did not see this element, although it should have: the element was acknowledged before the scan began, or
    /// before another batch was submitted that the scan did see.
    Lost(u64),
    /// Two scans contradict each other: each saw an element that the other did not see, and this is one of these
    /// elements. Or an earlier scan saw this element, and a later scan did not.
    Unordered(u64),
}

/// Returns the sorted batches that a scan saw. Checks all rules that concern one scan alone.
fn batches(scan: &Scan, adds: &[Add], owner: &HashMap<u64, usize>) -> Result<Vec<usize>, Wrong> {
    let mut seen: HashMap<usize, Vec<u64>> = HashMap::new();
    for element in &scan.elements {
        let batch = *owner.get(element).ok_or(Wrong::Strange(*element))?;
        let of_batch = seen.entry(batch).or_default();
        if of_batch.contains(element) {
            return Err(Wrong::Strange(*element));
        }
        of_batch.push(*element);
        if adds[batch].fate == Fate::Refused {
            return Err(Wrong::Aborted(*element));
        }
        if adds[batch].asked > scan.done {
            return Err(Wrong::Future(*element));
        }
    }
    if let Some((_, elements)) = seen.iter().find(|(batch, elements)| adds[**batch].elements.len() != elements.len()) {
        return Err(Wrong::Half(elements[0]));
    }
    let mut batches: Vec<usize> = seen.into_keys().collect();
    batches.sort_unstable();
    Ok(batches)
}

/// The first batch of `one` that is not in `other`; both are sorted.
fn first_not_in(one: &[usize], other: &[usize]) -> Option<usize> {
    one.iter().copied().find(|batch| other.binary_search(batch).is_err())
}

/// Checks the history of a set. Takes time proportional to the number of scans times the number of elements.
///
/// # Errors
/// The first violation found.
pub fn check(adds: &[Add], scans: &[Scan]) -> Result<(), Wrong> {
    let owner: HashMap<u64, usize> =
        adds.iter().enumerate().flat_map(|(i, add)| add.elements.iter().map(move |element| (*element, i))).collect();
    let mut chain: Vec<(&Scan, Vec<usize>)> = Vec::new();
    for scan in scans {
        let seen = batches(scan, adds, &owner)?;
        // The beginning of the scan, or the latest time at which one of the batches that it saw was submitted,
        // whichever is later. Every batch acknowledged before this time must be in the scan.
        let since = seen.iter().map(|batch| adds[*batch].asked).max().unwrap_or(0).max(scan.asked);
        let acknowledged = |add: &Add| matches!(add.fate, Fate::Added(at) if at < since);
        let lost = adds.iter().enumerate().find(|(i, add)| acknowledged(add) && seen.binary_search(i).is_err());
        if let Some((_, add)) = lost {
            return Err(Wrong::Lost(add.elements[0]));
        }
        chain.push((scan, seen));
    }
    chain.sort_by_key(|(scan, seen)| (seen.len(), scan.asked));
    // Inclusion is transitive, so it is enough to compare each scan with the next one. The order in time is not
    // transitive, so the loop keeps the latest beginning of all scans before the current one.
    let mut latest = 0;
    for (i, (scan, seen)) in chain.iter().enumerate() {
        let smaller = i.checked_sub(1).map(|i| &chain[i].1);
        if let Some(missing) = smaller.and_then(|smaller| first_not_in(smaller, seen)) {
            return Err(Wrong::Unordered(adds[missing].elements[0]));
        }
        let grew = smaller.is_none_or(|smaller| smaller.len() < seen.len());
        if grew && scan.done < latest {
            let more = first_not_in(seen, smaller.map_or(&[], Vec::as_slice)).expect("it grew");
            return Err(Wrong::Unordered(adds[more].elements[0]));
        }
        latest = latest.max(scan.asked);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(asked: Time, at: Time, elements: &[u64]) -> Add {
        Add { asked, fate: Fate::Added(at), elements: elements.to_vec() }
    }

    fn scan(asked: Time, done: Time, elements: &[u64]) -> Scan {
        Scan { asked, done, elements: elements.to_vec() }
    }

    #[test]
    fn a_chain_of_scans_passes() {
        let adds = [
            added(1, 5, &[10, 11]),
            added(2, 9, &[20]),
            Add { asked: 3, fate: Fate::Unknown, elements: vec![30] },
            Add { asked: 4, fate: Fate::Refused, elements: vec![40] },
        ];
        let scans =
            [scan(0, 1, &[]), scan(2, 6, &[11, 10]), scan(3, 8, &[10, 11, 20]), scan(10, 12, &[30, 20, 11, 10])];
        assert_eq!(check(&adds, &scans), Ok(()));
    }

    #[test]
    fn each_violation_is_classified() {
        let adds = [
            added(1, 2, &[10, 11]),
            added(3, 9, &[20]),
            added(3, 9, &[30]),
            Add { asked: 1, fate: Fate::Refused, elements: vec![40] },
        ];
        let wrong = |scans: &[Scan]| check(&adds, scans).expect_err("it is wrong");
        assert_eq!(wrong(&[scan(3, 4, &[10, 11, 99])]), Wrong::Strange(99));
        assert_eq!(wrong(&[scan(3, 4, &[10, 11, 11])]), Wrong::Strange(11));
        assert_eq!(wrong(&[scan(3, 4, &[10, 11, 40])]), Wrong::Aborted(40));
        assert_eq!(wrong(&[scan(1, 2, &[10, 11, 20])]), Wrong::Future(20));
        assert_eq!(wrong(&[scan(1, 2, &[10])]), Wrong::Half(10));
        assert_eq!(wrong(&[scan(3, 4, &[])]), Wrong::Lost(10));
        assert_eq!(wrong(&[scan(1, 5, &[20])]), Wrong::Lost(10), "20 was submitted after 10 had been acknowledged");
        assert_eq!(wrong(&[scan(3, 6, &[10, 11, 20]), scan(3, 6, &[10, 11, 30])]), Wrong::Unordered(20));
        assert_eq!(wrong(&[scan(3, 4, &[10, 11, 20]), scan(5, 6, &[10, 11])]), Wrong::Unordered(20));
    }
}
