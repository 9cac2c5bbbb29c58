//! The options of a transaction.

#[cfg(doc)]
use crate::Transaction;
use crate::store::options::Durability;

/// What a transaction may see of concurrent writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isolation {
    /// Committed transactions have the same effect as if they had run one after the other, in the order of their
    /// commits. The commit of a transaction that writes fails if another commit has changed anything that the
    /// transaction has read. Writes that do not depend on reads never conflict.
    #[default]
    Serializable,
    /// The transaction reads a snapshot. A commit fails only if another commit has changed a key that the transaction
    /// writes, a key of a range that it deletes, a key that it has read with [`Transaction::get_for_update`], or a key
    /// of a range that it [tracks](Transaction::track). Two merges of the same key do not conflict. Two transactions
    /// may each read what the other one writes (*write skew*), so a rule over several keys may be broken.
    Snapshot,
}

/// Options of a transaction.
///
/// ```
/// use pandodb::{Durability, Isolation, TransactionOptions};
/// let options = TransactionOptions::new().isolation(Isolation::Snapshot).durability(Durability::Synced);
/// # let _ = options;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransactionOptions {
    /// The isolation.
    pub isolation: Isolation,
    /// The durability of the commit; `None`: the default of the store.
    pub durability: Option<Durability>,
    /// Whether the transaction refuses writes. It then costs what a [`Snapshot`](crate::Snapshot) costs, and does not
    /// keep a list of the keys that it reads.
    pub read_only: bool,
}

impl TransactionOptions {
    /// The default options: serializable, with the default durability of the store.
    pub fn new() -> TransactionOptions {
        TransactionOptions::default()
    }

    /// Sets the isolation.
    #[must_use]
    pub fn isolation(mut self, isolation: Isolation) -> TransactionOptions {
        self.isolation = isolation;
        self
    }

    /// Makes the transaction refuse writes.
    #[must_use]
    pub fn read_only(mut self) -> TransactionOptions {
        self.read_only = true;
        self
    }

    /// Sets the durability of the commit.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> TransactionOptions {
        self.durability = Some(durability);
        self
    }
}
