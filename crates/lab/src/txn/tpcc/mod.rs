//! The transactions New-Order and Payment of TPC-C (Standard Specification, revision 5.11, clauses 2.4 and 2.5).
//!
//! Rows have the lengths of clause 1.2.1. The loaded store has warehouses, districts, customers, their index by last
//! name, items and stock, in the proportions of the specification: 10 districts for each warehouse, 3 customers of a
//! district for each 100 items. With 10 warehouses and a million records (stock rows) it has the specified size. The
//! store starts without orders and history, because neither transaction reads them.
//!
//! Differences from the specification: one thread serves all warehouses and waits for no terminal; names and texts are
//! numbers and filler.

mod neworder;
mod payment;
mod schema;

pub use neworder::NewOrder;
pub use payment::Payment;
