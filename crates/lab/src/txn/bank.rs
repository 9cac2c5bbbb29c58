//! Transfers between two accounts. A transaction reads both rows and writes both rows.
//!
//! `bank-plain` has the same reads and writes, but commits the writes as a batch without a transaction. With several
//! threads it loses updates, so its sum is checked only with one thread.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::program::{Program, Settings, Step, Tally, Worker, expect};
use super::rows::{Key, Visit, fill, number, set_number, walk};
use crate::engine::{Session, Write};
use crate::failure::Result;
use crate::transactions::{Access, Transaction, Verdict};
use crate::workload::Picker;

const ACCOUNTS: u8 = b'a';
/// The balance of a new account.
const INITIAL: i64 = 1000;
const LARGEST_AMOUNT: u64 = 100;

/// The accounts.
pub struct Bank {
    settings: Settings,
    plain: bool,
}

impl Bank {
    /// A bank with at least two accounts. With `plain`, transfers use no transaction.
    pub fn new(settings: Settings, plain: bool) -> Bank {
        Bank { settings: Settings { records: settings.records.max(2), ..settings }, plain }
    }
}

impl Program for Bank {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        let mut value = Vec::new();
        for account in 0..self.settings.records {
            fill(&mut value, self.settings.value_len, &[INITIAL], account);
            put(&account_key(account), &value)?;
        }
        Ok(())
    }

    fn worker(&self, thread: usize) -> Box<dyn Worker + '_> {
        let picker = Picker::new(self.settings.dist, self.settings.records);
        let (from, to, amount, one, two, committed) = Default::default();
        Box::new(Teller { bank: self, rng: self.settings.rng(thread), picker, from, to, amount, one, two, committed })
    }

    fn check(&self, session: &mut dyn Session, _: &Tally) -> Result<Vec<String>> {
        let (mut rows, mut sum, mut negative, mut complaints) = (0, 0, 0, Vec::new());
        walk(session, ACCOUNTS, &mut |_, value| {
            let balance = number(value, 0)?;
            (rows, sum, negative) = (rows + 1, sum + balance, negative + i64::from(balance < 0));
            Ok(())
        })?;
        expect(&mut complaints, "number of accounts", rows, self.settings.records as i64);
        if !self.plain || self.settings.threads == 1 {
            expect(&mut complaints, "sum of all balances", sum, self.settings.records as i64 * INITIAL);
            expect(&mut complaints, "number of negative balances", negative, 0);
        }
        Ok(complaints)
    }
}

fn account_key(account: u64) -> Key {
    Key::of(ACCOUNTS).u64(account)
}

struct Teller<'a> {
    bank: &'a Bank,
    rng: Xoshiro256PlusPlus,
    picker: Picker,
    from: u64,
    to: u64,
    amount: i64,
    /// The rows of the two accounts.
    one: Vec<u8>,
    two: Vec<u8>,
    committed: i64,
}

/// Moves the amount, or the balance if it is smaller.
fn transfer(one: &mut [u8], two: &mut [u8], amount: i64) -> Result<()> {
    let (paid, received) = (number(one, 0)?, number(two, 0)?);
    let amount = amount.min(paid);
    set_number(one, 0, paid - amount);
    set_number(two, 0, received + amount);
    Ok(())
}

const MISSING: &str = "an account is missing";

impl Worker for Teller<'_> {
    fn draw(&mut self) {
        let accounts = self.bank.settings.records;
        self.from = self.picker.pick(accounts, &mut self.rng);
        self.to = self.picker.pick(accounts, &mut self.rng);
        if self.to == self.from {
            self.to = (self.from + 1) % accounts;
        }
        self.amount = (1 + self.rng.next_u64() % LARGEST_AMOUNT) as i64;
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let Teller { from, to, amount, ref mut one, ref mut two, .. } = *self;
        let (from, to) = (account_key(from), account_key(to));
        let mut step = Step::once();
        if self.bank.plain {
            if !session.get(&from, one)? || !session.get(&to, two)? {
                return Err(MISSING.into());
            }
            transfer(one, two, amount)?;
            session.write_batch(&[Write::Put(&from, one), Write::Put(&to, two)])?;
        } else {
            step.attempts = session.transact(Access::Write, &mut |tx: &mut dyn Transaction| {
                if !tx.get_for_update(&from, one)? || !tx.get_for_update(&to, two)? {
                    return Err(MISSING.into());
                }
                transfer(one, two, amount)?;
                tx.put(&from, one)?;
                tx.put(&to, two)?;
                Ok(Verdict::Commit)
            })?;
        }
        step.written = (from.len() + one.len() + to.len() + two.len()) as u64;
        self.committed += 1;
        Ok(step)
    }

    fn tally(&self) -> Tally {
        Tally([self.committed, 0, 0, 0, 0, 0])
    }
}
