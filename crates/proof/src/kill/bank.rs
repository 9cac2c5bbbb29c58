//! A bank beside the writers of batches: threads move money between accounts with [`Store::transact`], until the
//! process is killed. However the process ends, the sum of all accounts stays the same, no account is overdrawn, and
//! the ledger has the transfers that the accounts show.
//!
//! ```text
//!   teller ─▶ transact: get two accounts ─▶ enough money? ─▶ put both, merge the counts of both into the ledger
//! ```

use std::sync::atomic::{AtomicBool, Ordering};

use pandodb::{AddU64, Durability, Error, Keyspace, KeyspaceOptions, Result, Store, Transaction, TransactionOptions};

use crate::script::Rng;

/// The number of threads that move money.
pub const TELLERS: u64 = 8;
/// The number of accounts. There are few, so that transfers conflict often.
const ACCOUNTS: u64 = 40;
/// The money of each account at the beginning.
const MONEY: u64 = 1_000;

/// The keyspaces of the bank.
pub struct Bank {
    /// The balance of each account, and the number of its transfers.
    accounts: Keyspace,
    /// The number of transfers of each account.
    ledger: Keyspace,
}

/// Whether the stores of a seed have a bank.
pub fn is_open(seed: u64) -> bool {
    seed % 2 == 1
}

fn account(number: u64) -> [u8; 8] {
    number.to_be_bytes()
}

/// The balance and the number of transfers in a value of the keyspace `accounts`.
fn parse(value: &[u8]) -> (u64, u64) {
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    (number(&value[..8]), number(&value[8..]))
}

impl Bank {
    pub fn open(store: &Store) -> Result<Bank> {
        let ledger = store.keyspace_with("ledger", KeyspaceOptions::new().merge(AddU64))?;
        Ok(Bank { accounts: store.keyspace("accounts")?, ledger })
    }

    /// Fills the accounts if there are none.
    pub fn found(&self, store: &Store) -> Result<()> {
        store.transact(|tx| {
            if tx.first_key_value(&self.accounts)?.is_some() {
                return Ok(());
            }
            (0..ACCOUNTS).try_for_each(|number| self.set(tx, number, (MONEY, 0)))
        })
    }

    fn read(&self, tx: &Transaction, number: u64) -> Result<(u64, u64)> {
        Ok(parse(&tx.get(&self.accounts, account(number))?.expect("the account was founded")))
    }

    fn set(&self, tx: &Transaction, number: u64, (balance, transfers): (u64, u64)) -> Result<()> {
        tx.put(&self.accounts, account(number), [balance.to_le_bytes(), transfers.to_le_bytes()].concat())
    }

    /// Moves money between accounts until `stop` is set.
    pub fn serve(&self, store: &Store, mut rng: Rng, stop: &AtomicBool) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let (from, to, amount) = (rng.below(ACCOUNTS), rng.below(ACCOUNTS), 1 + rng.below(MONEY));
            let durability = if rng.chance(20) { Durability::None } else { Durability::Buffered };
            let moved = store.transact_with(TransactionOptions::new().durability(durability), |tx| {
                let (balance, transfers) = self.read(tx, from)?;
                let Some(left) = balance.checked_sub(amount) else { return Ok(()) };
                self.set(tx, from, (left, transfers + 1))?;
                let (balance, transfers) = self.read(tx, to)?;
                self.set(tx, to, (balance + amount, transfers + 1))?;
                tx.merge(&self.ledger, account(from), 1u64.to_le_bytes())?;
                tx.merge(&self.ledger, account(to), 1u64.to_le_bytes())
            });
            match moved {
                Ok(()) | Err(Error::Conflict { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Compares the accounts with the founded sum and with the ledger. Returns the number of transfers.
    pub fn audit(&self) -> Result<Result<u64, String>> {
        let (mut money, mut transfers, mut accounts) = (0, 0, 0);
        for entry in self.accounts.iter() {
            let (key, value) = entry?;
            let (balance, count) = parse(&value);
            let noted = self.ledger.get(&key)?.map_or(0, |count| parse(&[&count[..], &[0; 8]].concat()).0);
            if noted != count {
                return Ok(Err(format!("account {key:?} has {count} transfers, the ledger {noted}")));
            }
            (money, transfers, accounts) = (money + balance, transfers + count, accounts + 1);
        }
        // A kill may precede the founding.
        let expected = if accounts == 0 { 0 } else { ACCOUNTS * MONEY };
        if money != expected || (accounts != 0 && accounts != ACCOUNTS) {
            return Ok(Err(format!("{accounts} accounts have {money}, expected {expected}")));
        }
        Ok(Ok(transfers / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_notices_money_and_transfers_that_are_wrong() {
        let store = Store::builder("bank").device(pandodb::device::MemDevice::new()).open().expect("opens");
        let bank = Bank::open(&store).expect("made");
        assert_eq!(bank.audit().expect("read"), Ok(0));
        bank.found(&store).expect("founded");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (bank, store, stop) = (&bank, &store, &stop);
            let tellers: Vec<_> = (0..4).map(|seed| scope.spawn(move || bank.serve(store, Rng(seed), stop))).collect();
            std::thread::sleep(std::time::Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            tellers.into_iter().for_each(|teller| teller.join().expect("no panic").expect("served"));
        });
        let transfers = bank.audit().expect("read").expect("right");
        assert!(transfers > 0, "nothing was moved");
        store.transact(|tx| bank.set(tx, 0, bank.read(tx, 0).map(|(balance, n)| (balance + 1, n))?)).expect("put");
        assert!(bank.audit().expect("read").is_err(), "money from nowhere");
        store.transact(|tx| bank.set(tx, 0, bank.read(tx, 0).map(|(balance, n)| (balance - 1, n + 1))?)).expect("put");
        assert!(bank.audit().expect("read").is_err(), "a transfer that the ledger does not have");
    }
}
