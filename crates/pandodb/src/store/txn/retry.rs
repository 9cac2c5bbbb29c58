//! Runs a closure in a transaction, again after a conflict.

use std::sync::Arc;

use super::inner::ReadAsOf;
use super::options::TransactionOptions;
use super::transaction::Transaction;
use crate::base::Result;
#[cfg(doc)]
use crate::store::engine::Engine;
use crate::store::queues::{QueueNumber, Turn};
use crate::store::shared::Shared;

/// The number of attempts that a transaction makes before it waits for turns. Most transactions commit at their second
/// attempt, and a thread that waits loses the time until it is woken up.
const EAGER: u32 = 2;
/// The most queues in which a transaction waits.
const MOST_QUEUES: usize = 8;

/// Runs `work` in a transaction and commits it, again after a conflict, as [`Engine::after_conflict`] decides. After [`EAGER`] attempts it waits,
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
        let queue = engine.after_conflict(error, attempts)?;
        if let Err(at) = lost.binary_search(&queue)
            && lost.len() < MOST_QUEUES
        {
            lost.insert(at, queue);
        }
    }
}
