//! The tables: keys, positions of numbers in rows, sizes, random choices, and the loaded rows.

use rand::Rng;
use rand_xoshiro::Xoshiro256PlusPlus;

use crate::failure::Result;
use crate::record::mix;
use crate::txn::program::Settings;
use crate::txn::rows::{Key, Visit, fill};

/// Districts of a warehouse.
pub const DISTRICTS: u32 = 10;
/// The most items, which is the number of the specification.
const MOST_ITEMS: u64 = 100_000;
const LEAST_ITEMS: u64 = 100;
/// The number of different last names.
const LAST_NAMES: u32 = 1000;

/// Tables: the first byte of a key.
pub mod table {
    pub const CUSTOMERS: u8 = b'c';
    pub const DISTRICTS: u8 = b'd';
    pub const HISTORY: u8 = b'h';
    pub const ITEMS: u8 = b'i';
    pub const LINES: u8 = b'l';
    pub const NAMES: u8 = b'n';
    pub const ORDERS: u8 = b'o';
    pub const NEW_ORDERS: u8 = b'p';
    pub const STOCK: u8 = b's';
    pub const WAREHOUSES: u8 = b'w';
    /// The year-to-date sum of a warehouse, if it is apart from the warehouse's row.
    pub const WAREHOUSE_SUMS: u8 = b'y';
    /// The year-to-date sum of a district, if it is apart from the district's row.
    pub const DISTRICT_SUMS: u8 = b'z';
}

/// Bytes of a row.
pub mod bytes {
    pub const WAREHOUSE: usize = 89;
    pub const DISTRICT: usize = 95;
    pub const CUSTOMER: usize = 655;
    pub const HISTORY: usize = 46;
    pub const ORDER: usize = 24;
    pub const NEW_ORDER: usize = 8;
    pub const LINE: usize = 54;
    pub const STOCK: usize = 306;
    pub const ITEM: usize = 82;
}

/// Positions of the numbers of a row.
pub mod at {
    pub const WAREHOUSE_YTD: usize = 0;
    pub const WAREHOUSE_TAX: usize = 1;
    pub const DISTRICT_NEXT: usize = 0;
    pub const DISTRICT_YTD: usize = 1;
    pub const DISTRICT_TAX: usize = 2;
    pub const CUSTOMER_BALANCE: usize = 0;
    pub const CUSTOMER_YTD: usize = 1;
    pub const CUSTOMER_PAYMENTS: usize = 2;
    pub const CUSTOMER_BAD_CREDIT: usize = 3;
    pub const CUSTOMER_DISCOUNT: usize = 4;
    pub const HISTORY_AMOUNT: usize = 0;
    pub const ORDER_CUSTOMER: usize = 0;
    pub const LINE_QUANTITY: usize = 0;
    pub const STOCK_QUANTITY: usize = 0;
    pub const STOCK_YTD: usize = 1;
    pub const STOCK_ORDERS: usize = 2;
    pub const STOCK_REMOTE: usize = 3;
    pub const ITEM_PRICE: usize = 0;
}

/// The numbers of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The number of warehouses.
    pub warehouses: u32,
    /// The number of items, and of stock rows of a warehouse.
    pub items: u32,
    /// The number of customers of a district.
    pub customers: u32,
}

impl Sizes {
    /// The sizes of a store with this number of stock rows, or a little more or less.
    pub fn of(settings: &Settings) -> Sizes {
        let warehouses = settings.warehouses.clamp(1, 1 << 20);
        let items = (settings.records / warehouses).clamp(LEAST_ITEMS, MOST_ITEMS);
        Sizes { warehouses: warehouses as u32, items: items as u32, customers: (items * 3 / 100) as u32 }
    }

    fn names(&self) -> u32 {
        self.customers.min(LAST_NAMES)
    }
}

/// The key of a row with these numbers.
pub fn key(table: u8, numbers: &[u32]) -> Key {
    numbers.iter().fold(Key::of(table), |key, number| key.u32(*number))
}

/// The number behind the table of a key, counted from 0.
pub fn key_number(key: &[u8], position: usize) -> u32 {
    let start = 1 + 4 * position;
    key.get(start..start + 4).map_or(u32::MAX, |bytes| u32::from_be_bytes(bytes.try_into().expect("4 bytes")))
}

/// A random number of `0..n`.
pub fn below(n: u32, rng: &mut Xoshiro256PlusPlus) -> u32 {
    (((rng.next_u64() >> 32) * u64::from(n)) >> 32) as u32
}

/// The function NURand of clause 2.1.6 for the numbers `0..n`. The constant C is 0.
fn uneven(a: u32, n: u32, rng: &mut Xoshiro256PlusPlus) -> u32 {
    (below(a + 1, rng) | below(n, rng)) % n
}

impl Sizes {
    /// A customer of a district.
    pub fn customer(&self, rng: &mut Xoshiro256PlusPlus) -> u32 {
        uneven(1023, self.customers, rng)
    }

    /// An item.
    pub fn item(&self, rng: &mut Xoshiro256PlusPlus) -> u32 {
        uneven(8191, self.items, rng)
    }

    /// A last name.
    pub fn last_name(&self, rng: &mut Xoshiro256PlusPlus) -> u32 {
        uneven(255, self.names(), rng)
    }

    /// The last name of a customer: the first customers have all names in turn (clause 4.3.3.1), so that each name
    /// exists.
    fn last_name_of(&self, customer: u32, district: u64) -> u32 {
        let names = self.names();
        if customer < names { customer } else { (mix(u64::from(customer) ^ mix(district)) % u64::from(names)) as u32 }
    }

    /// Another warehouse, or the same if there is only one.
    pub fn other_warehouse(&self, warehouse: u32, rng: &mut Xoshiro256PlusPlus) -> u32 {
        (warehouse + 1 + below(self.warehouses.max(2) - 1, rng)) % self.warehouses
    }

    /// Passes all rows to `put`, table by table in key order. With `sums_apart`, the year-to-date sums of warehouses
    /// and districts have keys of their own.
    pub fn rows(&self, sums_apart: bool, put: &mut Visit) -> Result<()> {
        let mut value = Vec::new();
        let mut row = |key: Key, len: usize, numbers: &[i64]| {
            fill(&mut value, len, numbers, xxhash_rust::xxh3::xxh3_64(&key));
            put(&key, &value)
        };
        let (warehouses, districts) = (0..self.warehouses, 0..DISTRICTS);
        let all_districts = || warehouses.clone().flat_map(|w| districts.clone().map(move |d| (w, d)));
        for (w, d) in all_districts() {
            for c in 0..self.customers {
                let bad_credit = mix(u64::from(c) ^ u64::from(d) << 32 ^ u64::from(w) << 40).is_multiple_of(10);
                let discount = i64::from(c % 51);
                let numbers = [0, 0, 0, i64::from(bad_credit), discount];
                row(key(table::CUSTOMERS, &[w, d, c]), bytes::CUSTOMER, &numbers)?;
            }
        }
        for (w, d) in all_districts() {
            row(key(table::DISTRICTS, &[w, d]), bytes::DISTRICT, &[0, 0, i64::from(d % 20)])?;
        }
        for i in 0..self.items {
            row(key(table::ITEMS, &[i]), bytes::ITEM, &[i64::from(100 + i % 9901)])?;
        }
        for (w, d) in all_districts() {
            let district = u64::from(w) << 32 | u64::from(d);
            let mut names: Vec<(u32, u32)> = (0..self.customers).map(|c| (self.last_name_of(c, district), c)).collect();
            names.sort_unstable();
            for (name, c) in names {
                row(key(table::NAMES, &[w, d, name, first_name(c), c]), 8, &[i64::from(c)])?;
            }
        }
        for w in warehouses.clone() {
            for i in 0..self.items {
                row(key(table::STOCK, &[w, i]), bytes::STOCK, &[i64::from(10 + i % 91), 0, 0, 0])?;
            }
        }
        for w in warehouses.clone() {
            row(key(table::WAREHOUSES, &[w]), bytes::WAREHOUSE, &[0, i64::from(w % 20)])?;
        }
        if sums_apart {
            for w in warehouses.clone() {
                row(key(table::WAREHOUSE_SUMS, &[w]), 8, &[0])?;
            }
            for (w, d) in all_districts() {
                row(key(table::DISTRICT_SUMS, &[w, d]), 8, &[0])?;
            }
        }
        Ok(())
    }
}

/// The first name of a customer.
fn first_name(customer: u32) -> u32 {
    mix(u64::from(customer)) as u32
}
