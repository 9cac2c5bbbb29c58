//! Transactions.
//!
//! | files | content |
//! | --- | --- |
//! | `transaction`, `options` | the handles |
//! | `inner`, `own`, `memory` | the state of a transaction: what it has written and read, and its memory |
//! | `retry`, `updates` | transactions that are repeated after a conflict; updates of single keys |
//!
//! The [validation](super::validation) decides whether a transaction may commit.

mod inner;
mod memory;
mod options;
mod own;
mod retry;
mod transaction;
mod updates;

pub(crate) use self::inner::ReadAsOf;
pub use self::inner::Savepoint;
pub use self::options::{Isolation, TransactionOptions};
pub(crate) use self::retry::transact;
pub use self::transaction::{Transaction, Untracked};
pub use self::updates::Mismatch;
