//! [`Transactional`]: the workloads whose threads run transactions ([`crate::txn`]).
//!
//! They can be named, alone or as the group `transactions`, but are not part of [`super::ALL`], because each of them
//! loads rows of its own, and because many engines refuse them.

use super::pick::Dist;
use super::{DataSet, Kind, Leaves, Start, Workload};
use crate::engine::Need;

/// A transactional workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transactional {
    /// Transfers between two accounts.
    Bank {
        /// Whether a transfer uses two gets and a batch instead of a transaction.
        plain: bool,
    },
    /// The six procedures of SmallBank.
    SmallBank,
    /// New-Order of TPC-C.
    NewOrder,
    /// Payment of TPC-C.
    Payment {
        /// Whether year-to-date sums are merges, if the engine has a merge operator.
        merges: bool,
    },
    /// Increments of one key by merges.
    Counters {
        /// Whether an increment uses no transaction.
        plain: bool,
    },
    /// Increments of one key by reads and writes.
    UpdateOne {
        /// Whether an increment holds a mutex instead of using a transaction.
        mutex: bool,
    },
    /// Consumers that take the first row of a queue, and producers.
    Pop,
}

impl Transactional {
    /// The operations that an engine must support.
    pub fn needs(self) -> &'static [Need] {
        match self {
            Transactional::Bank { plain: true } => &[Need::Batch],
            Transactional::Counters { plain: true } => &[Need::Merge],
            Transactional::UpdateOne { mutex: true } => &[],
            _ => &[Need::Transactions],
        }
    }

    /// Whether the workload runs transactions. Otherwise it is the same work without transactions, for comparison.
    pub fn has_transactions(self) -> bool {
        self.needs().contains(&Need::Transactions)
    }

    /// Whether the workload has rows of TPC-C.
    pub fn has_warehouses(self) -> bool {
        matches!(self, Transactional::NewOrder | Transactional::Payment { .. })
    }
}

const fn of(name: &'static str, about: &'static str, dist: Dist, kind: Transactional) -> Workload {
    let (start, leaves, kind) = (Start::Fresh, Leaves::Other, Kind::Transactions(kind));
    Workload { name, about, start, leaves, kind, dist, set: DataSet::Main }
}

/// All transactional workloads.
pub const TRANSACTIONS: &[Workload] = &[
    of("bank", "transfer between two accounts", Dist::Zipf, Transactional::Bank { plain: false }),
    of("bank-plain", "the same, without a transaction", Dist::Zipf, Transactional::Bank { plain: true }),
    of("smallbank", "six procedures, 90 % of the customers hot", Dist::Hotspot, Transactional::SmallBank),
    of("neworder", "TPC-C New-Order: 5 to 15 order lines", Dist::Uniform, Transactional::NewOrder),
    of("payment", "TPC-C Payment, sums as merges", Dist::Uniform, Transactional::Payment { merges: true }),
    of("payment-getput", "TPC-C Payment, sums by get and put", Dist::Uniform, Transactional::Payment { merges: false }),
    of("counters", "increment one key by merges", Dist::Uniform, Transactional::Counters { plain: false }),
    of("counters-plain", "the same, without a transaction", Dist::Uniform, Transactional::Counters { plain: true }),
    of("update-one", "read and write one key", Dist::Uniform, Transactional::UpdateOne { mutex: false }),
    of("update-one-mutex", "the same under a mutex", Dist::Uniform, Transactional::UpdateOne { mutex: true }),
    of("pop", "take the first row of a queue while others push", Dist::Uniform, Transactional::Pop),
];
