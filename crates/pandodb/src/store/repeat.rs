//! [`Engine::after_conflict`] decides whether an operation that lost a conflict is tried again. Transactions of closures, updates
//! of single keys and pops share it.

use super::engine::Engine;
use super::queues::QueueNumber;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, Result};

/// The most times that an operation is tried.
const MOST_ATTEMPTS: u32 = 32;

impl Engine {
    /// Returns the queue of the key over which the last of `attempts` attempts has lost a conflict.
    ///
    /// # Errors
    /// The error of the attempt, if it is no conflict, or if there were too many attempts.
    pub(crate) fn after_conflict(&self, error: Error, attempts: u32) -> Result<QueueNumber> {
        let Error::Conflict { keyspace, from, to, .. } = error else { return Err(error) };
        if attempts >= MOST_ATTEMPTS {
            return Err(Error::Conflict { keyspace, from, to, attempts });
        }
        self.figures.transactions.reruns.fetch_add(1, Relaxed);
        Ok(QueueNumber::of(&keyspace, &from))
    }
}
