//! PandoDB's transactions behind the lab's interface. The retry loop is the one of [`Store::transact_with`], which ends
//! after 32 attempts; then the adapter calls it again.

use pandodb::{Error, Keyspace, Store, TransactionOptions};

use crate::failure::{Failure, Result};
use crate::transactions::{Attempts, Capability, Isolation, Scheme, Transaction, Verdict, Work, back_off};

/// The properties of transactions with these options.
pub(crate) fn capability(options: TransactionOptions) -> Capability {
    let isolation = match options.isolation {
        pandodb::Isolation::Serializable => Isolation::Serializable,
        pandodb::Isolation::Snapshot => Isolation::Snapshot,
    };
    Capability { isolation, scheme: Scheme::Optimistic, merges: true }
}

/// Runs `work` in a transaction.
///
/// # Errors
/// The error of `work`, or the store's error.
pub(crate) fn transact(
    (store, keyspace): (&Store, &Keyspace),
    options: TransactionOptions,
    work: &mut Work,
) -> Result<Attempts> {
    let mut attempts = Attempts::default();
    loop {
        let (mut rolled_back, mut failure) = (false, None);
        let done = store.transact_with(options, |tx| {
            attempts.count += 1;
            match work(&mut Handle { tx, keyspace }) {
                Ok(Verdict::Commit) => Ok(()),
                Ok(Verdict::RollBack) => {
                    rolled_back = true;
                    Err(discard())
                }
                Err(error) => Err(engine_error(error).unwrap_or_else(|error| {
                    failure = Some(error);
                    discard()
                })),
            }
        });
        match (done, failure) {
            (Ok(()), _) => return Ok(Attempts { committed: true, ..attempts }),
            (Err(_), _) if rolled_back => return Ok(attempts),
            (Err(_), Some(failure)) => return Err(failure),
            (Err(Error::Conflict { .. }), None) => {
                attempts.gave_up += 1;
                back_off(attempts.gave_up);
            }
            (Err(error), None) => return Err(error.into()),
        }
    }
}

/// The error that makes the store discard a transaction. It never leaves this file.
fn discard() -> Error {
    Error::InvalidArgument { detail: "the procedure of the lab has rolled its transaction back".to_owned() }
}

/// The store's error inside a failure. Otherwise returns the failure.
fn engine_error(failure: Failure) -> std::result::Result<Error, Failure> {
    failure.downcast::<Error>().map(|error| *error)
}

struct Handle<'a> {
    tx: &'a pandodb::Transaction,
    keyspace: &'a Keyspace,
}

impl Transaction for Handle<'_> {
    fn get(&mut self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        value.clear();
        let found = self.tx.get(self.keyspace, key)?;
        if let Some(found) = &found {
            value.extend_from_slice(found);
        }
        Ok(found.is_some())
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        Ok(self.tx.put(self.keyspace, key, value)?)
    }

    fn delete(&mut self, key: &[u8]) -> Result<()> {
        Ok(self.tx.delete(self.keyspace, key)?)
    }

    fn add(&mut self, key: &[u8], delta: u64) -> Result<()> {
        Ok(self.tx.merge(self.keyspace, key, delta.to_le_bytes())?)
    }

    fn scan(&mut self, from: &[u8], to: &[u8], limit: usize, visit: &mut dyn FnMut(&[u8], &[u8])) -> Result<usize> {
        let mut found = 0;
        let mut rows = self.tx.range(self.keyspace, from..to)?;
        while found < limit
            && let Some((key, value)) = rows.next_row()?
        {
            visit(key, value);
            found += 1;
        }
        Ok(found)
    }
}
