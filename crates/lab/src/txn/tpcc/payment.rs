//! Payment (clause 2.5): a customer pays an amount.
//!
//! Reads the warehouse, the district and the customer. In 60 % of the payments the customer is looked up by last name,
//! through a range of the index, otherwise by number. Adds the amount to the year-to-date sums of the warehouse and the
//! district, changes the customer's balance, sum and number of payments, and writes a history row. 15 % of the payments
//! come from a customer of another warehouse.
//!
//! Two layouts of the year-to-date sums:
//!
//! * *apart*: each sum has a key of its own, and a payment adds to it with
//!   [`Transaction::add`], which is a merge. The rows of the warehouse and the district are only read. `payment` uses
//!   this layout if the engine has a merge operator.
//! * *inside*: the sums are in the rows of the warehouse and the district, which a payment reads and writes.
//!   `payment-getput` always uses this layout, and `payment` for engines without a merge operator.
//!
//! The customer's balance is in the customer's row in both layouts, because the transaction returns the new balance.
//!
//! The check: the sums of all warehouses, of all districts, of all customers and of the history equal the sum of the
//! committed payments. The sum of a warehouse equals the sum of its districts.

use std::collections::BTreeMap;
use std::hint::black_box;

use rand_xoshiro::Xoshiro256PlusPlus;

use super::schema::{DISTRICTS, Sizes, at, below, bytes, key, key_number, table};
use crate::engine::Session;
use crate::failure::Result;
use crate::transactions::{Access, Transaction, Verdict};
use crate::txn::program::{Program, Settings, Step, Tally, Worker, expect};
use crate::txn::rows::{Key, Visit, add_number, fill, number, set_number, walk};

/// Positions in the tally.
const PAYMENTS: usize = 0;
const AMOUNT: usize = 1;
/// The most customers of a district with the same last name.
const MOST_NAMESAKES: usize = 1000;

/// The workload.
pub struct Payment {
    sizes: Sizes,
    settings: Settings,
    sums_apart: bool,
}

impl Payment {
    /// The workload for these settings. With `merges`, the year-to-date sums are merges if the engine has them.
    pub fn new(settings: &Settings, merges: bool) -> Payment {
        Payment { sizes: Sizes::of(settings), settings: *settings, sums_apart: merges && settings.merges }
    }

    /// The sums of warehouses and of districts, by warehouse.
    fn sums(&self, session: &mut dyn Session) -> Result<[BTreeMap<u32, i64>; 2]> {
        let apart = [(table::WAREHOUSE_SUMS, 0), (table::DISTRICT_SUMS, 0)];
        let inside = [(table::WAREHOUSES, at::WAREHOUSE_YTD), (table::DISTRICTS, at::DISTRICT_YTD)];
        let mut sums = [BTreeMap::new(), BTreeMap::new()];
        for (sum, (table, at)) in sums.iter_mut().zip(if self.sums_apart { apart } else { inside }) {
            walk(session, table, &mut |key, value| {
                *sum.entry(key_number(key, 0)).or_insert(0) += number(value, at)?;
                Ok(())
            })?;
        }
        Ok(sums)
    }
}

impl Program for Payment {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        self.sizes.rows(self.sums_apart, put)
    }

    fn worker(&self, thread: usize) -> Box<dyn Worker + '_> {
        let (rng, tally, row) = (self.settings.rng(thread), Tally::default(), Vec::new());
        let inputs = Inputs { thread: thread as u32, ..Inputs::default() };
        Box::new(Terminal { sizes: self.sizes, sums_apart: self.sums_apart, rng, inputs, row, tally })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        let [warehouses, districts] = self.sums(session)?;
        for (warehouse, sum) in &warehouses {
            let what = format!("sum of the districts of warehouse {warehouse}");
            expect(&mut complaints, &what, districts.get(warehouse).copied().unwrap_or(0), *sum);
        }
        let (mut balance, mut paid, mut payments, mut history, mut rows) = (0, 0, 0, 0, 0);
        walk(session, table::CUSTOMERS, &mut |_, value| {
            balance += number(value, at::CUSTOMER_BALANCE)?;
            paid += number(value, at::CUSTOMER_YTD)?;
            payments += number(value, at::CUSTOMER_PAYMENTS)?;
            Ok(())
        })?;
        walk(session, table::HISTORY, &mut |_, value| {
            (rows, history) = (rows + 1, history + number(value, at::HISTORY_AMOUNT)?);
            Ok(())
        })?;
        let (count, amount) = (tally.0[PAYMENTS], tally.0[AMOUNT]);
        expect(&mut complaints, "sum of all warehouses", warehouses.values().sum(), amount);
        expect(&mut complaints, "sum of all balances", balance, -amount);
        expect(&mut complaints, "sum of all customers", paid, amount);
        expect(&mut complaints, "payments of all customers", payments, count);
        expect(&mut complaints, "number of history rows", rows, count);
        expect(&mut complaints, "sum of the history", history, amount);
        Ok(complaints)
    }
}

/// The choice of a customer.
#[derive(Clone, Copy, Debug)]
enum By {
    Number(u32),
    LastName(u32),
}

/// The inputs of a transaction.
#[derive(Clone, Copy, Debug)]
struct Inputs {
    warehouse: u32,
    district: u32,
    customer_warehouse: u32,
    customer_district: u32,
    by: By,
    amount: i64,
    /// The thread and the number of its payment, which identify the history row.
    thread: u32,
    number: u64,
}

impl Default for Inputs {
    fn default() -> Inputs {
        let (warehouse, district, customer_warehouse, customer_district, amount, thread, number) = Default::default();
        let by = By::Number(0);
        Inputs { warehouse, district, customer_warehouse, customer_district, by, amount, thread, number }
    }
}

struct Terminal {
    sizes: Sizes,
    sums_apart: bool,
    rng: Xoshiro256PlusPlus,
    inputs: Inputs,
    row: Vec<u8>,
    tally: Tally,
}

impl Inputs {
    /// The number of the customer. Of several customers with the same last name it is the middle one by first name.
    fn customer(&self, tx: &mut dyn Transaction) -> Result<u32> {
        let name = match self.by {
            By::Number(customer) => return Ok(customer),
            By::LastName(name) => name,
        };
        let (w, d) = (self.customer_warehouse, self.customer_district);
        let (from, to) = (key(table::NAMES, &[w, d, name]), key(table::NAMES, &[w, d, name + 1]));
        let mut found = Vec::new();
        tx.scan_constant(&from, &to, MOST_NAMESAKES, &mut |key, _| found.push(key_number(key, 4)))?;
        let middle = found.len().div_ceil(2).checked_sub(1);
        Ok(*middle.and_then(|middle| found.get(middle)).ok_or("no customer has a last name that was loaded")?)
    }

    /// Adds the amount to a sum: to the key `sum`, or to the number `at` of the row.
    fn add(
        &self,
        tx: &mut dyn Transaction,
        (owner, at): (Key, usize),
        sum: Option<Key>,
        row: &mut Vec<u8>,
    ) -> Result<()> {
        let found = if sum.is_some() { tx.get(&owner, row)? } else { tx.get_for_update(&owner, row)? };
        if !found {
            return Err("a warehouse or a district is missing".into());
        }
        match sum {
            Some(sum) => tx.add(&sum, self.amount as u64),
            None => {
                add_number(row, at, self.amount)?;
                tx.put(&owner, row)
            }
        }
    }

    /// The whole transaction.
    fn pay(&self, tx: &mut dyn Transaction, sums_apart: bool, row: &mut Vec<u8>) -> Result<Verdict> {
        let (w, d) = (self.warehouse, self.district);
        let sum = |table, numbers: &[u32]| sums_apart.then(|| key(table, numbers));
        let warehouse = (key(table::WAREHOUSES, &[w]), at::WAREHOUSE_YTD);
        self.add(tx, warehouse, sum(table::WAREHOUSE_SUMS, &[w]), row)?;
        let district = (key(table::DISTRICTS, &[w, d]), at::DISTRICT_YTD);
        self.add(tx, district, sum(table::DISTRICT_SUMS, &[w, d]), row)?;
        let c = self.customer(tx)?;
        let customer = key(table::CUSTOMERS, &[self.customer_warehouse, self.customer_district, c]);
        if !tx.get_for_update(&customer, row)? {
            return Err(format!("customer {c} is missing").into());
        }
        for (at, n) in
            [(at::CUSTOMER_BALANCE, -self.amount), (at::CUSTOMER_YTD, self.amount), (at::CUSTOMER_PAYMENTS, 1)]
        {
            add_number(row, at, n)?;
        }
        if number(row, at::CUSTOMER_BAD_CREDIT)? != 0 {
            // The payment is inserted into the customer's text, whose end is cut off.
            let text = (at::CUSTOMER_DISCOUNT + 1) * 8;
            row.copy_within(text..bytes::CUSTOMER - 24, text + 24);
            for (i, n) in [i64::from(c), self.amount, i64::from(w)].into_iter().enumerate() {
                set_number(row, at::CUSTOMER_DISCOUNT + 1 + i, n);
            }
        }
        black_box(number(row, at::CUSTOMER_BALANCE)?);
        tx.put(&customer, row)?;
        fill(row, bytes::HISTORY, &[self.amount, i64::from(c)], self.number);
        tx.put(&history_key(self.thread, self.number), row)?;
        Ok(Verdict::Commit)
    }
}

/// The key of a history row. History has no primary key, so the rows are in the order of their threads.
fn history_key(thread: u32, number: u64) -> Key {
    Key::of(table::HISTORY).u32(thread).u64(number)
}

impl Worker for Terminal {
    fn draw(&mut self) {
        let Terminal { sizes, rng, inputs, .. } = self;
        inputs.warehouse = below(sizes.warehouses, rng);
        inputs.district = below(DISTRICTS, rng);
        let is_remote = below(100, rng) < 15;
        inputs.customer_warehouse =
            if is_remote { sizes.other_warehouse(inputs.warehouse, rng) } else { inputs.warehouse };
        inputs.customer_district = if is_remote { below(DISTRICTS, rng) } else { inputs.district };
        let by_name = below(100, rng) < 60;
        inputs.by = if by_name { By::LastName(sizes.last_name(rng)) } else { By::Number(sizes.customer(rng)) };
        inputs.amount = i64::from(100 + below(499_901, rng));
        inputs.number += 1;
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let Terminal { inputs, row, tally, sums_apart, .. } = self;
        let attempts = session.transact(Access::Write, &mut |tx| inputs.pay(tx, *sums_apart, row))?;
        tally.0[PAYMENTS] += 1;
        tally.0[AMOUNT] += inputs.amount;
        let born = 13 + bytes::HISTORY;
        let sums = if *sums_apart { 5 + 8 + 9 + 8 } else { 5 + bytes::WAREHOUSE + 9 + bytes::DISTRICT };
        let written = born + sums + 13 + bytes::CUSTOMER;
        Ok(Step { attempts, written: written as u64, born: born as i64, ..Step::default() })
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}
