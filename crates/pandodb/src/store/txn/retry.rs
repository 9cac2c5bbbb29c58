//! Runs a closure in a transaction, again after a conflict.

use std::sync::Arc;

use super::inner::ReadAsOf;
use super::options::TransactionOptions;
use super::transaction::Transaction;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, Result};
use crate::store::queues::{QueueNumber, Turn};
use crate::store::shared::Shared;

/// The most times that a closure is run.
pub(super) const MOST_ATTEMPTS: u32 = 32;
/// The number of attempts that a transaction makes before it waits for turns. Most transactions commit at their second
/// attempt, and a thread that waits loses the time until it is woken up.
const EAGER: u32 = 2;
/// The most queues in which a transaction waits.
const MOST_QUEUES: usize = 8;

/// Runs `work` in a transaction and commits it, at most [`MOST_ATTEMPTS`] times. After [`EAGER`] attempts it waits,
/// before each repetition, for the turns of the keys over which it has lost conflicts.
pub(crate) fn transact<T>(
    engine: &Arc<Shared>,
    options: TransactionOptions,
    mut work: impl FnMut(&Transaction) -> Result<T>,
) -> Result<T> {
    let (mut attempts, mut lost, mut turns): (_, Vec<QueueNumber>, Vec<Turn<'_>>) = (0, Vec::new(), Vec::new());
    loop {
        attempts += 1;
        // A thread keeps its turns until its transaction is committed. Threads wait in the same order, so they rarely
        // wait for each other.
        let waits = attempts > EAGER;
        let missing = lost.iter().filter(|queue| waits && turns.iter().all(|turn| turn.number != **queue));
        let more: Vec<Turn<'_>> = missing.filter_map(|queue| engine.queues.wait(*queue, attempts)).collect();
        turns.extend(more);
        let tx =
            Transaction::begin(engine, options, ReadAsOf::FirstRead, turns.iter().map(|turn| turn.number).collect())?;
        let value = work(&tx)?;
        let Err(error) = tx.commit() else { return Ok(value) };
        again(engine, error, attempts, |queue| {
            if let Err(at) = lost.binary_search(&queue)
                && lost.len() < MOST_QUEUES
            {
                lost.insert(at, queue);
            }
        })?;
    }
}

/// Returns the error of an attempt, unless it is a conflict after which the transaction should be run again. In this
/// case calls `lost` with the queue of the key.
pub(super) fn again(engine: &Shared, error: Error, attempts: u32, lost: impl FnOnce(QueueNumber)) -> Result<()> {
    let Error::Conflict { keyspace, from, to, .. } = error else { return Err(error) };
    if attempts >= MOST_ATTEMPTS {
        return Err(Error::Conflict { keyspace, from, to, attempts });
    }
    engine.figures.transactions.reruns.fetch_add(1, Relaxed);
    lost(QueueNumber::of(&keyspace, &from));
    Ok(())
}
