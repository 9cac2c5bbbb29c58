//! New-Order (clause 2.4): an order of 5 to 15 lines.
//!
//! Reads the warehouse, the district, the customer, and for each line the item and the stock. Writes the district (the
//! number of the next order), the order, its entry among the new orders, and for each line the stock and the order
//! line. 1 % of the lines come from another warehouse. 1 % of the orders name an item that does not exist, and roll
//! back.
//!
//! The check: the numbers of orders, of new orders and of order lines, the number of the next order of each district,
//! and the sums of the stock and of the order lines equal each other and the committed transactions.

use std::collections::BTreeMap;
use std::hint::black_box;

use rand_xoshiro::Xoshiro256PlusPlus;

use super::schema::{DISTRICTS, Sizes, at, below, bytes, key, key_number, table};
use crate::engine::Session;
use crate::failure::Result;
use crate::transactions::{Access, Transaction, Verdict};
use crate::txn::program::{Program, Settings, Step, Tally, Worker, expect};
use crate::txn::rows::{Visit, add_number, fill, number, set_number, walk};

/// Positions in the tally.
const ORDERS: usize = 0;
const LINES: usize = 1;
const QUANTITY: usize = 2;

/// The workload.
pub struct NewOrder {
    sizes: Sizes,
    settings: Settings,
}

impl NewOrder {
    /// The workload for these settings.
    pub fn new(settings: &Settings) -> NewOrder {
        NewOrder { sizes: Sizes::of(settings), settings: *settings }
    }
}

impl Program for NewOrder {
    fn rows(&self, put: &mut Visit) -> Result<()> {
        self.sizes.rows(false, put)
    }

    fn worker(&self, thread: usize) -> Box<dyn Worker + '_> {
        let (order, row, stock, tally) = Default::default();
        Box::new(Terminal { sizes: self.sizes, rng: self.settings.rng(thread), order, row, stock, tally })
    }

    fn check(&self, session: &mut dyn Session, tally: &Tally) -> Result<Vec<String>> {
        let mut complaints = Vec::new();
        let (mut orders, mut new_orders, mut lines, mut quantity) = (BTreeMap::new(), 0, 0, 0);
        walk(session, table::ORDERS, &mut |key, _| {
            *orders.entry((key_number(key, 0), key_number(key, 1))).or_insert(0) += 1;
            Ok(())
        })?;
        walk(session, table::NEW_ORDERS, &mut |_, _| {
            new_orders += 1;
            Ok(())
        })?;
        walk(session, table::LINES, &mut |_, value| {
            (lines, quantity) = (lines + 1, quantity + number(value, at::LINE_QUANTITY)?);
            Ok(())
        })?;
        walk(session, table::DISTRICTS, &mut |key, value| {
            let district = (key_number(key, 0), key_number(key, 1));
            let stored = orders.get(&district).copied().unwrap_or(0);
            let what = format!("orders of district {district:?}");
            expect(&mut complaints, &what, stored, number(value, at::DISTRICT_NEXT)?);
            Ok(())
        })?;
        let (mut sold, mut sales) = (0, 0);
        walk(session, table::STOCK, &mut |_, value| {
            (sold, sales) = (sold + number(value, at::STOCK_YTD)?, sales + number(value, at::STOCK_ORDERS)?);
            Ok(())
        })?;
        expect(&mut complaints, "number of orders", orders.values().sum(), tally.0[ORDERS]);
        expect(&mut complaints, "number of new orders", new_orders, tally.0[ORDERS]);
        expect(&mut complaints, "number of order lines", lines, tally.0[LINES]);
        expect(&mut complaints, "quantity of all order lines", quantity, tally.0[QUANTITY]);
        expect(&mut complaints, "quantity sold of all stock", sold, tally.0[QUANTITY]);
        expect(&mut complaints, "sales of all stock", sales, tally.0[LINES]);
        Ok(complaints)
    }
}

#[derive(Clone, Copy, Debug)]
struct Line {
    item: u32,
    supplier: u32,
    quantity: u32,
}

/// The inputs of a transaction.
#[derive(Debug, Default)]
struct Order {
    warehouse: u32,
    district: u32,
    customer: u32,
    lines: Vec<Line>,
}

struct Terminal {
    sizes: Sizes,
    rng: Xoshiro256PlusPlus,
    order: Order,
    row: Vec<u8>,
    stock: Vec<u8>,
    tally: Tally,
}

fn find(tx: &mut dyn Transaction, key: &[u8], row: &mut Vec<u8>) -> Result<()> {
    if tx.get(key, row)? { Ok(()) } else { Err(format!("row {key:?} is missing").into()) }
}

fn find_for_update(tx: &mut dyn Transaction, key: &[u8], row: &mut Vec<u8>) -> Result<()> {
    if tx.get_for_update(key, row)? { Ok(()) } else { Err(format!("row {key:?} is missing").into()) }
}

impl Order {
    /// The whole transaction.
    fn enter(&self, tx: &mut dyn Transaction, row: &mut Vec<u8>, stock: &mut Vec<u8>) -> Result<Verdict> {
        let (w, d, c) = (self.warehouse, self.district, self.customer);
        find(tx, &key(table::WAREHOUSES, &[w]), row)?;
        let mut tax = number(row, at::WAREHOUSE_TAX)?;
        let district = key(table::DISTRICTS, &[w, d]);
        find_for_update(tx, &district, row)?;
        let next = number(row, at::DISTRICT_NEXT)?;
        tax += number(row, at::DISTRICT_TAX)?;
        set_number(row, at::DISTRICT_NEXT, next + 1);
        tx.put(&district, row)?;
        find(tx, &key(table::CUSTOMERS, &[w, d, c]), row)?;
        let discount = number(row, at::CUSTOMER_DISCOUNT)?;
        let o = next as u32;
        fill(row, bytes::ORDER, &[i64::from(c), self.lines.len() as i64], 0);
        debug_assert_eq!(number(row, at::ORDER_CUSTOMER)?, i64::from(c));
        tx.put(&key(table::ORDERS, &[w, d, o]), row)?;
        fill(row, bytes::NEW_ORDER, &[next], 0);
        tx.put(&key(table::NEW_ORDERS, &[w, d, o]), row)?;
        let mut total = 0;
        for (i, line) in self.lines.iter().enumerate() {
            if !tx.get_constant(&key(table::ITEMS, &[line.item]), row)? {
                return Ok(Verdict::RollBack);
            }
            let amount = number(row, at::ITEM_PRICE)? * i64::from(line.quantity);
            total += amount;
            let stock_key = key(table::STOCK, &[line.supplier, line.item]);
            find_for_update(tx, &stock_key, stock)?;
            self.take(stock, line)?;
            tx.put(&stock_key, stock)?;
            fill(row, bytes::LINE, &[i64::from(line.quantity), amount, i64::from(line.item)], next as u64);
            tx.put(&key(table::LINES, &[w, d, o, i as u32]), row)?;
        }
        black_box(total * (100 - discount) * (100 + tax));
        Ok(Verdict::Commit)
    }

    /// Takes the quantity of a line from the stock. A stock of less than 10 more than the quantity is filled up by 91.
    fn take(&self, stock: &mut [u8], line: &Line) -> Result<()> {
        let (left, quantity) = (number(stock, at::STOCK_QUANTITY)?, i64::from(line.quantity));
        let refill = if left >= quantity + 10 { 0 } else { 91 };
        set_number(stock, at::STOCK_QUANTITY, left - quantity + refill);
        add_number(stock, at::STOCK_YTD, quantity)?;
        add_number(stock, at::STOCK_ORDERS, 1)?;
        add_number(stock, at::STOCK_REMOTE, i64::from(line.supplier != self.warehouse))
    }
}

/// Bytes of the keys and values that an order without its lines adds to the store, and bytes of the district's row.
const ORDER_BYTES: (usize, usize) = (13 + bytes::ORDER + 13 + bytes::NEW_ORDER, 9 + bytes::DISTRICT);
/// Bytes that a line adds to the store, and bytes of its stock row.
const LINE_BYTES: (usize, usize) = (17 + bytes::LINE, 9 + bytes::STOCK);

impl Worker for Terminal {
    fn draw(&mut self) {
        let Terminal { sizes, rng, order, .. } = self;
        order.warehouse = below(sizes.warehouses, rng);
        order.district = below(DISTRICTS, rng);
        order.customer = sizes.customer(rng);
        let rolls_back = below(100, rng) == 0;
        let count = 5 + below(11, rng);
        order.lines.clear();
        while (order.lines.len() as u32) < count {
            let is_remote = below(100, rng) == 0;
            let home = order.warehouse;
            let supplier = if is_remote { sizes.other_warehouse(home, rng) } else { home };
            order.lines.push(Line { item: sizes.item(rng), supplier, quantity: 1 + below(10, rng) });
        }
        if rolls_back {
            order.lines.last_mut().expect("at least 5 lines").item = u32::MAX;
        }
    }

    fn run(&mut self, session: &mut dyn Session) -> Result<Step> {
        let Terminal { order, row, stock, tally, .. } = self;
        let attempts = session.transact(Access::Write, &mut |tx| order.enter(tx, row, stock))?;
        if !attempts.committed {
            return Ok(Step { attempts, ..Step::default() });
        }
        let lines = order.lines.len();
        tally.0[ORDERS] += 1;
        tally.0[LINES] += lines as i64;
        tally.0[QUANTITY] += order.lines.iter().map(|line| i64::from(line.quantity)).sum::<i64>();
        let born = ORDER_BYTES.0 + lines * LINE_BYTES.0;
        let written = born + ORDER_BYTES.1 + lines * LINE_BYTES.1;
        Ok(Step { attempts, written: written as u64, born: born as i64, ..Step::default() })
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}
