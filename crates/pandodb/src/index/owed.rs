//! The debt of all indexes of a store. It is kept as sums, which a write reads, and as a sorted list, in which a worker
//! finds the index with the most debt. So neither of them has to visit all keyspaces.
//!
//! ```text
//!   index of keyspace 3:  Owing { pack 9, compact 0 } ─┐        pack    Σ    one atomic each, read by every write
//!   index of keyspace 7:  Owing { pack 0, compact 5 } ─┼─▶ Owed compact Σ
//!   index of keyspace 8:  Owing { pack 0, compact 0 }  │        order: 3, 7  the indexes with debt, most first
//! ```
//!
//! 1. Each index changes its own debt under its own lock ([`Owing::change`]). It adds the difference to the sums before
//!    it releases this lock. Therefore a sum differs from the true debt at most by the changes in progress.
//! 2. [`Owed::next`] walks the sorted list. The index with the most bytes to pack comes first. Indexes with equally
//!    many bytes to pack are sorted by the bytes to compact, the most first. Indexes that have only optional work come
//!    last. Otherwise equal indexes are sorted by keyspace id.
//! 3. A cleared index has no debt any more, regardless of what its unfinished jobs still report ([`Owing::end`]).
//!
//! Invariant: while no change is in progress, the sums equal the sums over all `Owing`s that have not ended. The sorted
//! list then holds exactly those of these `Owing`s that have debt.
//!
//! Locks: the lock of an `Owing` is taken first, and the lock of the sorted list second. No third lock is taken while
//! one of these locks is held.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::Debt;
use crate::base::KeyspaceId;
use crate::base::sync::{AtomicU64, Mutex, Ordering::Relaxed};

/// The most bytes of each kind of debt of an index. Estimates come from sums that a damaged or hostile file may
/// contain, and the debt is added without checks.
const MOST: u64 = 1 << 56;

/// A position in the sorted list of the indexes that have debt.
pub type Rank = (Reverse<(u64, u64, u64)>, KeyspaceId);

fn rank(debt: Debt, id: KeyspaceId) -> Rank {
    (Reverse((debt.memory_bytes, debt.work_bytes + debt.requested_bytes, debt.optional_bytes)), id)
}

/// The debt of all indexes of a store.
#[derive(Debug, Default)]
pub struct Owed {
    pack: AtomicU64,
    compact: AtomicU64,
    requested: AtomicU64,
    optional: AtomicU64,
    /// The highest of the rates of all deadlines, see [`Deadline::rate`](super::Deadline::rate); 0 if no index has a
    /// deadline.
    rate: AtomicU64,
    order: Mutex<Order>,
}

#[derive(Debug, Default)]
struct Order {
    ranks: BTreeSet<Rank>,
    /// The rates of the deadlines, by index.
    rates: BTreeSet<(u64, KeyspaceId)>,
}

impl Owed {
    /// The sum of the debt of all indexes. The call costs four loads and takes no lock.
    #[inline]
    pub fn sum(&self) -> Debt {
        Debt {
            memory_bytes: self.pack.load(Relaxed),
            work_bytes: self.compact.load(Relaxed),
            requested_bytes: self.requested.load(Relaxed),
            optional_bytes: self.optional.load(Relaxed),
            deadline: None,
        }
    }

    /// The bytes of work that must be done for each byte written, in order to meet every deadline, in units of
    /// 1/[`Deadline::UNIT`](super::Deadline::UNIT). The call costs one load.
    #[inline]
    pub fn rate(&self) -> u64 {
        self.rate.load(Relaxed)
    }

    /// The index that follows `after` in the sorted list, or the first index if `after` is `None`. Returns `None` at
    /// the end of the list. The call costs O(log n) for n indexes with debt.
    pub fn next(&self, after: Option<Rank>) -> Option<Rank> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.order.lock().ranks.range((from, Bound::Unbounded)).next().copied()
    }
}

/// The account to which an index adds its debt: the store's sums, and the keyspace of the index. A [`super::Core`]
/// passes this account to its index.
#[derive(Clone, Debug, Default)]
pub struct Share {
    /// The sums of the store.
    pub owed: Arc<Owed>,
    /// The keyspace of the index.
    pub id: KeyspaceId,
}

/// The debt of one index.
#[derive(Debug)]
pub struct Owing {
    share: Share,
    own: Mutex<Own>,
}

#[derive(Debug, Default)]
struct Own {
    debt: Debt,
    ended: bool,
}

impl Owing {
    /// Makes the account of an index that has no debt.
    pub fn new(share: Share) -> Owing {
        Owing { share, own: Mutex::default() }
    }

    /// The debt of this index.
    pub fn debt(&self) -> Debt {
        self.own.lock().debt
    }

    /// Changes the debt of this index and the sums. Numbers above [`MOST`] are reduced to it. Has no effect after
    /// [`Owing::end`].
    pub fn change(&self, change: impl FnOnce(&mut Debt)) {
        let mut own = self.own.lock();
        let before = own.debt;
        if !own.ended {
            change(&mut own.debt);
            let Debt { memory_bytes, work_bytes, requested_bytes, optional_bytes, .. } = &mut own.debt;
            for bytes in [memory_bytes, work_bytes, requested_bytes, optional_bytes] {
                *bytes = MOST.min(*bytes);
            }
            self.account(before, own.debt);
        }
    }

    /// Sets the debt to 0 permanently, because the index was cleared.
    pub fn end(&self) {
        let mut own = self.own.lock();
        let before = std::mem::take(&mut own.debt);
        own.ended = true;
        self.account(before, Debt::default());
    }

    /// Updates the sums and the sorted list after a change of this index's debt. REQUIRES: the caller holds `own`.
    fn account(&self, before: Debt, after: Debt) {
        if before == after {
            return;
        }
        let Share { owed, id } = &self.share;
        // Use wrapping arithmetic, because the difference may be negative. A sum still never falls below zero: this
        // index subtracts only amounts that it has added before under the same lock.
        owed.pack.fetch_add(after.memory_bytes.wrapping_sub(before.memory_bytes), Relaxed);
        owed.compact.fetch_add(after.work_bytes.wrapping_sub(before.work_bytes), Relaxed);
        owed.requested.fetch_add(after.requested_bytes.wrapping_sub(before.requested_bytes), Relaxed);
        owed.optional.fetch_add(after.optional_bytes.wrapping_sub(before.optional_bytes), Relaxed);
        let mut order = owed.order.lock();
        order.ranks.remove(&rank(before, *id));
        if after.total() > 0 {
            order.ranks.insert(rank(after, *id));
        }
        if before.deadline != after.deadline {
            if let Some(deadline) = before.deadline {
                order.rates.remove(&(deadline.rate(), *id));
            }
            if let Some(deadline) = after.deadline {
                order.rates.insert((deadline.rate(), *id));
            }
            owed.rate.store(order.rates.last().map_or(0, |(rate, _)| *rate), Relaxed);
        }
    }
}

impl Drop for Owing {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Deadline;
    use super::*;

    fn debt(memory_bytes: u64, work_bytes: u64) -> Debt {
        Debt { memory_bytes, work_bytes, ..Debt::default() }
    }

    #[test]
    fn sums_and_order_follow_every_change() {
        let owed = Arc::new(Owed::default());
        let owing = |id| Owing::new(Share { owed: owed.clone(), id: KeyspaceId(id) });
        let (first, second, third) = (owing(1), owing(2), owing(3));
        first.change(|own| own.work_bytes = 50);
        second.change(|own| own.memory_bytes = 7);
        third.change(|own| *own = debt(7, 1));
        assert_eq!(owed.sum(), debt(14, 51));
        let ids = || {
            let walk = std::iter::successors(owed.next(None), |rank| owed.next(Some(*rank)));
            walk.map(|(_, id)| id.0).collect::<Vec<_>>()
        };
        assert_eq!(ids(), [3, 2, 1], "memtables first, then what compactions owe");
        second.change(|own| *own = Debt { optional_bytes: 1_000, ..Debt::default() });
        assert_eq!(ids(), [3, 1, 2], "optional work comes last");
        second.change(|own| *own = debt(7, 0));
        let within = |within_bytes| Some(Deadline { work_bytes: 40, within_bytes });
        first.change(|own| own.deadline = within(10));
        third.change(|own| own.deadline = within(20));
        assert_eq!(owed.rate(), 4 * Deadline::UNIT, "the steepest of both");
        first.change(|own| own.deadline = None);
        assert_eq!(owed.rate(), 2 * Deadline::UNIT);
        third.change(|own| *own = Debt::default());
        assert_eq!(owed.rate(), 0);
        assert_eq!((owed.sum(), ids()), (debt(7, 50), vec![2, 1]));
        second.end();
        second.change(|own| own.memory_bytes = 100);
        assert_eq!((owed.sum(), ids()), (debt(0, 50), vec![1]), "an index that has ended owes nothing");
        drop(first);
        assert_eq!((owed.sum(), ids()), (Debt::default(), vec![]));
    }
}
