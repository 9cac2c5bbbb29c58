//! The set workload: elements are added, in batches, and scans read the whole set. What clients can see of phantoms.
//!
//! Nothing is ever removed, so the scans must form a chain:
//!
//! 1. a scan holds what was acknowledged before it began, and nothing that was refused, or asked for after it ended;
//! 2. of a batch it holds all or nothing;
//! 3. of two scans one holds the other, and not the later one less;
//! 4. with a batch it holds what was acknowledged before that batch was asked for.

use std::collections::HashMap;

/// When something happened: events are counted.
pub type Time = u64;

/// What became of adding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was acknowledged at this time.
    Added(Time),
    /// It was refused: nobody may see it.
    Refused,
    /// Nobody knows; it may show, now or after a crash, and then stays.
    Unknown,
}

/// A batch of elements.
#[derive(Clone, Debug)]
pub struct Add {
    /// When it was asked for.
    pub asked: Time,
    /// What became of it.
    pub fate: Fate,
    /// Elements that nobody else adds.
    pub elements: Vec<u64>,
}

/// A scan of the whole set that came to its end.
#[derive(Clone, Debug)]
pub struct Scan {
    /// When it was asked for.
    pub asked: Time,
    /// When it had all.
    pub done: Time,
    /// What it saw, in any order.
    pub elements: Vec<u64>,
}

/// What was wrong with a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A scan saw what nobody added, or twice what was added once.
    Strange(u64),
    /// A scan saw what was refused.
    Aborted(u64),
    /// A scan saw what was asked for after its end.
    Future(u64),
    /// A scan saw a part of the batch of this element.
    Half(u64),
    /// A scan did not see this element, which was acknowledged before it began, or before something that it saw.
    Lost(u64),
    /// One scan saw this element, and not another one that the second scan saw; or the second is later and has less.
    Unordered(u64),
}

/// The set that a scan saw, as the batches in it: how many elements of each.
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

/// The first batch of the sorted `one` that the sorted `other` has not.
fn first_not_in(one: &[usize], other: &[usize]) -> Option<usize> {
    one.iter().copied().find(|batch| other.binary_search(batch).is_err())
}

/// Checks a set's history. Costs scans times elements.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(adds: &[Add], scans: &[Scan]) -> Result<(), Wrong> {
    let owner: HashMap<u64, usize> =
        adds.iter().enumerate().flat_map(|(i, add)| add.elements.iter().map(move |element| (*element, i))).collect();
    let mut chain: Vec<(&Scan, Vec<usize>)> = Vec::new();
    for scan in scans {
        let seen = batches(scan, adds, &owner)?;
        // What it saw last was asked for at this time: all that was acknowledged before, and before the scan, must be there.
        let since = seen.iter().map(|batch| adds[*batch].asked).max().unwrap_or(0).max(scan.asked);
        let acknowledged = |add: &Add| matches!(add.fate, Fate::Added(at) if at < since);
        let lost = adds.iter().enumerate().find(|(i, add)| acknowledged(add) && seen.binary_search(i).is_err());
        if let Some((_, add)) = lost {
            return Err(Wrong::Lost(add.elements[0]));
        }
        chain.push((scan, seen));
    }
    chain.sort_by_key(|(scan, seen)| (seen.len(), scan.asked));
    // Inclusion follows along a chain; the order in time does not, so the latest beginning so far is carried along.
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
    fn what_a_chain_of_scans_shows_passes() {
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
    fn each_wrong_is_named() {
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
        assert_eq!(wrong(&[scan(1, 5, &[20])]), Wrong::Lost(10), "20 was asked for after 10 had been acknowledged");
        assert_eq!(wrong(&[scan(3, 6, &[10, 11, 20]), scan(3, 6, &[10, 11, 30])]), Wrong::Unordered(20));
        assert_eq!(wrong(&[scan(3, 4, &[10, 11, 20]), scan(5, 6, &[10, 11])]), Wrong::Unordered(20));
    }
}
