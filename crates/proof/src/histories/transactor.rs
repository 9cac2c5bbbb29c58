//! The part of a client that runs real transactions: reads, writes and range deletes in any order, and then a commit or
//! a rollback. The client does not repeat a transaction that had a conflict.

use pandodb::{Durability, Error, Isolation, Result, Transaction, TransactionOptions};

use super::client::{Canary, Client, SELDOM, View};
use super::log::{Action, Outcome, TEMP, Write, encode, key, operand, version};

/// The most operations of a transaction.
const LONGEST: u64 = 8;

impl Client<'_> {
    /// Runs one transaction and records it.
    pub(super) fn transact(&mut self, txn: u64) -> Result<()> {
        let isolation = if self.rng.chance(70) { Isolation::Serializable } else { Isolation::Snapshot };
        // The lies: the store runs the transaction under another isolation than the one that is recorded.
        let (real, noted) = match self.canary {
            Some(Canary::SkewedTransaction) => (Isolation::Snapshot, Isolation::Serializable),
            Some(Canary::LastCommitterWins) => (Isolation::Serializable, Isolation::Snapshot),
            _ => (isolation, isolation),
        };
        let durability = self.durability();
        let from = (self.log.reads.len(), self.log.writes.len());
        let floor = self.world.clock.now();
        let options = TransactionOptions::new().isolation(real).durability(durability);
        let store = &self.world.store;
        // Closures run in transactions that choose their read point at the first read.
        let tx = if self.rng.chance(50) { store.begin(options)? } else { store.begin_at_first_read(options)? };
        if let Some(begin) = tx.read_point() {
            self.world.clock.show(begin);
        }
        let writes = self.rng.chance(90);
        for _ in 0..1 + self.rng.below(LONGEST) {
            if !writes || self.rng.chance(50) {
                let (space, keyspace) = self.space();
                self.read(space, &View::In(&tx, keyspace))?;
            } else {
                let write = self.write(version(txn, self.log.own as usize));
                self.write_in(&tx, write)?;
                self.log.writes.push(write);
                self.log.own += 1;
            }
        }
        // Without reads it is as if the transaction had begun now.
        let begin = tx.read_point().unwrap_or_else(|| self.world.visible());
        self.world.clock.show(begin);
        let before = self.world.clock.now();
        let outcome = self.end(tx, durability)?;
        let noted = if matches!(outcome, Outcome::At(_)) { noted } else { real };
        self.log.transaction(txn, (floor, before), (begin, noted), outcome, from);
        Ok(())
    }

    /// Commits a transaction, or rolls it back.
    fn end(&mut self, tx: Transaction, durability: Durability) -> Result<Outcome> {
        let roll = self.rng.below(100);
        if roll < 5 {
            if roll < 2 {
                drop(tx)
            } else {
                tx.rollback()
            }
            return Ok(Outcome::Refused);
        }
        if self.canary == Some(Canary::FalseConflict) && self.rng.below(SELDOM) == 0 {
            tx.rollback();
            return Ok(Outcome::Conflict(self.world.visible()));
        }
        match tx.commit_numbered() {
            Ok(Some(last)) => {
                self.world.clock.acknowledge(last, durability);
                Ok(Outcome::At(last))
            }
            // The transaction has written nothing, so it is recorded only as a look.
            Ok(None) => Ok(Outcome::Refused),
            Err(Error::Conflict { .. }) => Ok(Outcome::Conflict(self.world.visible())),
            Err(other) => Err(other),
        }
    }

    fn write_in(&mut self, tx: &Transaction, write: Write) -> Result<()> {
        let keyspace = match &self.temp {
            Some((temp, _)) if write.space == TEMP => temp,
            _ => &self.world.spaces[write.space as usize],
        };
        match write.action {
            Action::Put => {
                encode(write.space, write.version, &mut self.value);
                tx.put(keyspace, key(write.key), &self.value)
            }
            Action::Merge => tx.merge(keyspace, key(write.key), operand(write.space, write.version)),
            Action::Delete => tx.delete(keyspace, key(write.key)),
            Action::DeleteRange(to) => tx.delete_range(keyspace, key(write.key)..key(to)),
            Action::Recreate => unreachable!("not an operation of a transaction"),
        }
    }
}
