//! SmallBank: customers with a savings and a checking account each.
//!
//! The schema and five procedures are those of M. Alomari, M. Cahill, A. Fekete, U. Röhm, "The Cost of Serializability
//! on Platforms That Use Snapshot Isolation", ICDE 2008. The sixth procedure SendPayment, the amounts and the standard
//! mix are those of the implementation in H-Store and BenchBase. As in the paper, TransactSavings also deposits,
//! because otherwise Amalgamate would leave the hot customers without savings, and most withdrawals would roll back.
//!
//! | procedure | share | reads | writes |
//! | --- | ---: | --- | --- |
//! | Balance | 15 % | savings, checking | |
//! | DepositChecking | 15 % | checking | checking |
//! | TransactSavings | 15 % | savings | savings: half of them withdraw, the others deposit; rolls back below 0 |
//! | Amalgamate | 15 % | savings and checking of one customer, checking of another | all three: moves all money to the other |
//! | WriteCheck | 15 % | savings, checking | checking; a penalty if both together do not cover the check |
//! | SendPayment | 25 % | checking of two customers | both; rolls back below 0 |
//!
//! Each procedure first reads the row of each customer, which never changes. 90 % of the picked customers belong to the
//! hot set, whose customers are spread evenly over all customers. Amounts are in cents.
//!
//! The check: the sum of all balances is the loaded sum plus the deposits minus the withdrawals of the committed
//! transactions.

use std::hint::black_box;

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use super::program::{Program, Settings, Step, StepKind, Tally, Worker, expect};
use super::rows::{Key, Visit, fill, number, walk};
use crate::engine::Session;
use crate::failure::Result;
use crate::record::mix;
use crate::transactions::{Access, Transaction, Verdict};

const CUSTOMERS: u8 = b'c';
const CHECKING: u8 = b'k';
const SAVINGS: u8 = b's';
/// Bytes of a customer's row, which is the customer's name.
const NAME: usize = 64;
/// The share of the picks that are in the hot set, in percent.
const HOT_PICKS: u64 = 90;
/// The balance of a new account is between these bounds, in cents.
const INITIAL: (i64, i64) = (1_000_000, 5_000_000);
const DEPOSIT: i64 = 130;
const SAVING: i64 = 2020;
const CHECK: i64 = 500;
const PENALTY: i64 = 100;
const PAYMENT: i64 = 500;

/// The customers.
pub struct SmallBank {
    settings: Settings,
}

impl SmallBank {
    /// A bank with at least two customers, of whom at least one is hot.
    pub fn new(settings: Settings) -> SmallBank {
        let records = settings.records.max(2);
        SmallBank { settings: Settings { records, hot: settings.hot.clamp(1, records), ..settings } }
    }
}

/// The initial balance of an account.
fn initial(table: u8, customer: u64) -> i64 {
    let (least, most) = INITIAL;
    least + (mix(customer ^ u64::from(table) << 56) % (most - least + 1) as u64) as i64
}

impl Program for SmallBank {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        let mut value = Vec::new();
        for table in [CUSTOMERS, CHECKING, SAVINGS] {
            for customer in 0..self.settings.records {
                if table == CUSTOMERS {
                    fill(&mut value, NAME, &[customer as i64], customer);
                } else {
                    fill(&mut value, 8, &[initial(table, customer)], customer);
                }
                put(&Key::of(table).u64(customer), &value)?;
            }
        }
        Ok(())
    }

    fn worker(&self, thread: usize) -> Box<dyn Worker + '_> {
        let (one, other, value, delta) = Default::default();
        let (rng, procedure) = (self.settings.rng(thread), Procedure::Balance);
        Box::new(Client { settings: &self.settings, rng, procedure, one, other, value, delta })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        let (mut sum, mut rows, mut expected) = (0, 0, tally.0[0]);
        for table in [CHECKING, SAVINGS] {
            expected += (0..self.settings.records).map(|customer| initial(table, customer)).sum::<i64>();
            walk(session, table, &mut |_, value| {
                (sum, rows) = (sum + number(value, 0)?, rows + 1);
                Ok(())
            })?;
        }
        let mut complaints = Vec::new();
        expect(&mut complaints, "number of accounts", rows, 2 * self.settings.records as i64);
        expect(&mut complaints, "sum of all balances", sum, expected);
        Ok(complaints)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Procedure {
    Balance,
    DepositChecking,
    TransactSavings { withdraws: bool },
    Amalgamate,
    WriteCheck,
    SendPayment,
}

impl Procedure {
    /// The procedure for a number below 100.
    fn of(percent: u64, withdraws: bool) -> Procedure {
        match percent {
            0..15 => Procedure::Balance,
            15..30 => Procedure::DepositChecking,
            30..45 => Procedure::TransactSavings { withdraws },
            45..60 => Procedure::Amalgamate,
            60..75 => Procedure::WriteCheck,
            _ => Procedure::SendPayment,
        }
    }

    fn has_two_customers(self) -> bool {
        matches!(self, Procedure::Amalgamate | Procedure::SendPayment)
    }

    /// The number of accounts that the procedure writes.
    fn writes(self) -> u64 {
        match self {
            Procedure::Balance => 0,
            Procedure::DepositChecking | Procedure::TransactSavings { .. } | Procedure::WriteCheck => 1,
            Procedure::SendPayment => 2,
            Procedure::Amalgamate => 3,
        }
    }
}

struct Client<'a> {
    settings: &'a Settings,
    rng: Xoshiro256PlusPlus,
    procedure: Procedure,
    one: u64,
    other: u64,
    value: Vec<u8>,
    /// The sum of what the committed transactions have added to all balances.
    delta: i64,
}

/// An open transaction with a buffer for values.
struct Accounts<'a> {
    tx: &'a mut dyn Transaction,
    value: &'a mut Vec<u8>,
}

impl Accounts<'_> {
    /// Reads the row of a customer, which never changes.
    fn customer(&mut self, customer: u64) -> Result<()> {
        let exists = self.tx.get_constant(&Key::of(CUSTOMERS).u64(customer), self.value)?;
        if exists { Ok(()) } else { Err(format!("customer {customer} is missing").into()) }
    }

    fn balance(&mut self, table: u8, customer: u64) -> Result<i64> {
        let exists = self.tx.get(&Key::of(table).u64(customer), self.value)?;
        if exists { number(self.value, 0) } else { Err(format!("an account of customer {customer} is missing").into()) }
    }

    fn balance_for_update(&mut self, table: u8, customer: u64) -> Result<i64> {
        let exists = self.tx.get_for_update(&Key::of(table).u64(customer), self.value)?;
        if exists { number(self.value, 0) } else { Err(format!("an account of customer {customer} is missing").into()) }
    }

    fn set(&mut self, table: u8, customer: u64, balance: i64) -> Result<()> {
        self.tx.put(&Key::of(table).u64(customer), &balance.to_le_bytes())
    }

    /// Adds an amount to an account. Returns whether the new balance is at least `least`; otherwise writes nothing.
    fn change(&mut self, table: u8, customer: u64, amount: i64, least: i64) -> Result<bool> {
        let balance = self.balance_for_update(table, customer)? + amount;
        if balance >= least {
            self.set(table, customer, balance)?;
        }
        Ok(balance >= least)
    }

    /// Runs a procedure. Returns what it adds to the sum of all balances, or `None` if it rolls back.
    fn run(&mut self, procedure: Procedure, one: u64, other: u64) -> Result<Option<i64>> {
        self.customer(one)?;
        if procedure.has_two_customers() {
            self.customer(other)?;
        }
        Ok(match procedure {
            Procedure::Balance => {
                black_box(self.balance(SAVINGS, one)? + self.balance(CHECKING, one)?);
                Some(0)
            }
            Procedure::DepositChecking => self.change(CHECKING, one, DEPOSIT, i64::MIN)?.then_some(DEPOSIT),
            Procedure::TransactSavings { withdraws } => {
                let amount = if withdraws { -SAVING } else { SAVING };
                self.change(SAVINGS, one, amount, 0)?.then_some(amount)
            }
            Procedure::Amalgamate => {
                let all = self.balance_for_update(SAVINGS, one)? + self.balance_for_update(CHECKING, one)?;
                self.set(SAVINGS, one, 0)?;
                self.set(CHECKING, one, 0)?;
                self.change(CHECKING, other, all, i64::MIN)?.then_some(0)
            }
            Procedure::WriteCheck => {
                let (savings, checking) = (self.balance(SAVINGS, one)?, self.balance_for_update(CHECKING, one)?);
                let amount = if savings + checking < CHECK { CHECK + PENALTY } else { CHECK };
                self.set(CHECKING, one, checking - amount)?;
                Some(-amount)
            }
            Procedure::SendPayment => {
                let is_covered = self.change(CHECKING, one, -PAYMENT, 0)?;
                (is_covered && self.change(CHECKING, other, PAYMENT, i64::MIN)?).then_some(0)
            }
        })
    }
}

impl Client<'_> {
    fn pick(&mut self) -> u64 {
        let Settings { records, hot, .. } = *self.settings;
        if self.rng.next_u64() % 100 < HOT_PICKS {
            let number = self.rng.next_u64() % hot;
            (u128::from(number) * u128::from(records) / u128::from(hot)) as u64
        } else {
            self.rng.next_u64() % records
        }
    }
}

impl Worker for Client<'_> {
    fn draw(&mut self) {
        let (procedure, withdraws) = (self.rng.next_u64() % 100, self.rng.next_u64().is_multiple_of(2));
        self.procedure = Procedure::of(procedure, withdraws);
        self.one = self.pick();
        self.other = self.pick();
        if self.other == self.one {
            self.other = (self.one + 1) % self.settings.records;
        }
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let Client { procedure, one, other, ref mut value, .. } = *self;
        let reads_only = procedure == Procedure::Balance;
        let access = if reads_only { Access::Read } else { Access::Write };
        let mut delta = 0;
        let attempts = session.transact(access, &mut |tx: &mut dyn Transaction| {
            let added = Accounts { tx, value }.run(procedure, one, other)?;
            delta = added.unwrap_or(0);
            Ok(if added.is_some() { Verdict::Commit } else { Verdict::RollBack })
        })?;
        self.delta += delta;
        let written =
            if attempts.committed { procedure.writes() * (Key::of(CHECKING).u64(0).len() as u64 + 8) } else { 0 };
        let kind = if reads_only { StepKind::Read } else { StepKind::Write };
        Ok(Step { attempts, kind, written, ..Step::default() })
    }

    fn tally(&self) -> Tally {
        Tally([self.delta, 0, 0, 0, 0, 0])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_the_standard_shares() {
        let count = |procedure| (0..100).filter(|percent| Procedure::of(*percent, false) == procedure).count();
        let savings = Procedure::TransactSavings { withdraws: false };
        let others = [Procedure::Balance, Procedure::DepositChecking, Procedure::Amalgamate, Procedure::WriteCheck];
        assert!(others.into_iter().chain([savings]).all(|procedure| count(procedure) == 15));
        assert_eq!(count(Procedure::SendPayment), 25);
    }

    #[test]
    fn nine_picks_of_ten_are_hot_and_the_hot_set_is_spread() {
        let settings = Settings {
            records: 10_000,
            dist: crate::workload::Dist::Hotspot,
            seed: 1,
            threads: 1,
            value_len: 100,
            hot: 10,
            warehouses: 1,
            merges: true,
        };
        let (one, other, value, delta) = Default::default();
        let (rng, procedure) = (settings.rng(0), Procedure::Balance);
        let mut client = Client { settings: &settings, rng, procedure, one, other, value, delta };
        let picks: Vec<u64> = (0..10_000).map(|_| client.pick()).collect();
        let hot = picks.iter().filter(|pick| pick.is_multiple_of(1000)).count();
        assert!((8_850..9_150).contains(&hot), "{hot}");
        assert!(picks.iter().all(|pick| *pick < 10_000));
    }
}
