//! [`ScanHabits`] and [`ScanUse`]: how many leaf pages the scans of an index used lately, and how many one scan has
//! used. Scans choose the size of their first reads accordingly. Each keyspace has another [`ScanHabits`], whose unit is not
//! the page but the large value: it counts the large values that scans returned.
//!
//! ```text
//!   ScanUse  of one scan: pages of leaves behind the first of each run ──end of the scan──▶ ScanHabits of the index
//!   first chunk of the next scan in a run = 1 + (average + up to 1) × the run's share of the piece, 1 to 64 pages
//! ```
//!
//! A scan also counts the first leaf of each run, because a compaction of n runs would save all but one of them.
//!
//! The average is exponential. One scan counts as at most four times the average plus 8 pages, so that one long scan
//! among short ones does not make the next scans read much in vain, and about ten long scans in a row reach the maximum.
//!
//! Invariant: the average is at most [`ScanHabits::MOST`] pages. It is only a hint: threads may overwrite each other's
//! updates.

use crate::base::PAGE;
use crate::base::sync::{Counter, Ordering::Relaxed};

/// The average is stored in units of 1/`UNIT` pages.
const UNIT: u64 = 64;
/// A scan changes the average by 1/`WEIGHT` of its difference from the average.
const WEIGHT: u64 = 8;

/// The average use of the scans of an index.
#[derive(Debug)]
pub struct ScanHabits {
    /// Pages behind the first leaf of each run, in units of 1/`UNIT`.
    average: Counter,
}

/// The pages of leaves that one scan, over all its runs, has used so far.
#[derive(Debug, Default)]
pub struct ScanUse {
    behind: Counter,
    read: Counter,
    /// The cost of the first leaves of all runs since the last call of [`ScanUse::take_spare`], and of the most costly
    /// of them, in units of 1/`READ` pages; and the number of these leaves.
    firsts: Counter,
    most: Counter,
    entered: Counter,
}

/// First leaves of runs that a scan would not have read if all runs were one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spare {
    /// The number of the leaves.
    pub leaves: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A leaf that was read from the device counts this number of times as much as a cached leaf, which costs a scan about
/// this much less time.
const READ: u64 = 16;
/// The weight of a cached leaf. The small stores of tests have all their leaves in the pool, so builds with assertions
/// count cached leaves fully.
const CACHED: u64 = if cfg!(debug_assertions) { READ } else { 1 };

impl Default for ScanHabits {
    fn default() -> ScanHabits {
        ScanHabits { average: Counter::new(ScanHabits::INITIAL * UNIT) }
    }
}

impl ScanHabits {
    /// The most pages of the average, and of a first chunk.
    pub const MOST: u64 = 64;
    /// The average before the first scan.
    const INITIAL: u64 = 2;

    /// Records the end of a scan. `used` is the number of leaf pages that the scan used behind the first leaf of each run.
    /// If this average counts large values, `used` is the number of large values that the scan returned.
    pub fn note(&self, used: u64) {
        let average = self.average.load(Relaxed);
        let counted = (used.min(ScanHabits::MOST) * UNIT).min(4 * average + 8 * UNIT);
        let next = if counted > average {
            average + (counted - average).div_ceil(WEIGHT)
        } else {
            average - (average - counted) / WEIGHT
        };
        assert!(next <= ScanHabits::MOST * UNIT, "an average is not above the maximum of its terms");
        self.average.store(next, Relaxed);
    }

    /// The average, rounded up, in pages or values.
    pub fn usual(&self) -> u64 {
        self.average.load(Relaxed).div_ceil(UNIT)
    }

    /// The pages of the first chunk in a run that has `weight` of the `total` bytes of the scanned piece. `used` is the
    /// use of this scan so far, which replaces the average if it is larger.
    pub fn first_pages(&self, used: &ScanUse, weight: u64, total: u64) -> u32 {
        let average = self.average.load(Relaxed);
        // Many scans use somewhat more than the average. One page in vain costs much less time than a second read.
        let usual = average + average.min(UNIT);
        let expected = usual.max(used.behind() * UNIT).min(ScanHabits::MOST * UNIT);
        let share = u128::from(expected) * u128::from(weight.min(total)) / u128::from(total.max(1));
        let share = u64::try_from(share).expect("a share of at most 64 pages");
        let pages = (share + UNIT / 2) / UNIT;
        u32::try_from(pages.min(ScanHabits::MOST - 1) + 1).expect("at most 64 pages")
    }
}

impl ScanUse {
    /// Notes that a cursor of the scan entered a leaf of `pages` pages. `first` is set for the first leaf of a run,
    /// `read` if the leaf was not in the pool.
    pub(super) fn enter(&self, pages: u64, first: bool, read: bool) {
        if first {
            let cost = pages * if read { READ } else { CACHED };
            self.firsts.fetch_add(cost, Relaxed);
            self.most.fetch_max(cost, Relaxed);
            self.entered.fetch_add(1, Relaxed);
        } else {
            self.behind.fetch_add(pages, Relaxed);
        }
        if read {
            self.read.fetch_add(1, Relaxed);
        }
    }

    /// Pages of leaves behind the first leaf of each run.
    pub fn behind(&self) -> u64 {
        self.behind.load(Relaxed)
    }

    /// The first leaves of all runs since the last call, except the most costly one. Leaves from the pool count with a
    /// sixteenth of their bytes.
    pub fn take_spare(&self) -> Spare {
        let (firsts, most) = (self.firsts.swap(0, Relaxed), self.most.swap(0, Relaxed));
        assert!(most <= firsts, "one leaf costs at most as much as all leaves");
        Spare { leaves: self.entered.swap(0, Relaxed).saturating_sub(1), bytes: (firsts - most) * PAGE as u64 / READ }
    }

    /// The number of leaves that were not in the pool.
    pub fn leaves_read(&self) -> u64 {
        self.read.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_chunk_follows_what_scans_use() {
        let (habits, none) = (ScanHabits::default(), ScanUse::default());
        assert_eq!(habits.first_pages(&none, 1, 1), 4);
        (0..100).for_each(|_| habits.note(0));
        assert_eq!(habits.first_pages(&none, 1, 1), 1);
        (0..12).for_each(|_| habits.note(10_000));
        let long = habits.first_pages(&none, 1, 1);
        assert!((40..=64).contains(&long), "{long}");
        let share = habits.first_pages(&none, 1, 10);
        assert!((4..=8).contains(&share), "a tenth of the bytes: {share} pages");
        assert_eq!(habits.first_pages(&none, 0, 10), 1);
        assert_eq!(habits.first_pages(&none, 0, 0), 1, "no runs");
    }

    #[test]
    fn one_long_scan_in_ten_leaves_the_first_chunk_short() {
        let (habits, none) = (ScanHabits::default(), ScanUse::default());
        let mut most = 0;
        for i in 0..500 {
            habits.note(if i % 10 == 0 { 1_000 } else { 1 });
            most = most.max(habits.first_pages(&none, 1, 1));
        }
        assert!(most <= 8, "{most} pages, although nine scans in ten use 2");
    }

    #[test]
    fn a_scan_that_has_used_more_than_the_average_expects_as_much_again() {
        let (habits, used) = (ScanHabits::default(), ScanUse::default());
        (0..30).for_each(|i| used.enter(1, i == 0, i % 2 == 0));
        assert_eq!((used.behind(), used.leaves_read()), (29, 15));
        assert_eq!(habits.first_pages(&used, 1, 1), 30);
        (0..100).for_each(|_| used.enter(1, false, true));
        assert_eq!(habits.first_pages(&used, 1, 1), 64, "at most 64");
    }

    #[test]
    fn a_compaction_would_save_all_first_leaves_but_one() {
        let used = ScanUse::default();
        assert_eq!(used.take_spare(), Spare { leaves: 0, bytes: 0 });
        [2, 1, 1].iter().for_each(|&pages| used.enter(pages, true, true));
        used.enter(7, false, true);
        assert_eq!(used.take_spare(), Spare { leaves: 2, bytes: 2 * PAGE as u64 });
        used.enter(3, true, true);
        assert_eq!(used.take_spare(), Spare { leaves: 0, bytes: 0 }, "a single run");
        (0..2).for_each(|_| used.enter(1, true, false));
        assert_eq!(used.take_spare(), Spare { leaves: 1, bytes: PAGE as u64 * CACHED / READ });
    }
}
