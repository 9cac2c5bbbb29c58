//! `betree`: a Bε-tree. It is a B+-tree whose inner pages have buffers, for data that is written much and larger than
//! memory (sources: 000 §3 and §5.2; 004 §2.4).
//!
//! ```text
//!   memtable                                         the buffer of the root
//!      │ all messages
//!      ▼
//!   inner page   pivots │ buffer: messages for the keys below      ┐ a message waits in the buffer until a block of
//!      │ the largest blocks of messages, when the buffer is full   │ messages for the same child goes down with it
//!      ▼                                                           │
//!   inner page   pivots │ buffer                                   ┘
//!      ▼
//!   leaf node    small leaves (a table of pages), so a lookup reads one of them, and a flush writes those it changes
//! ```
//!
//! 1. The tree is that of [`super::tree`], with its jobs, views and files. `shape` says which pages have buffers, how
//!    large these are, and how many children a page has.
//! 2. A job distributes a memtable. In each page it merges the arriving messages with the buffer. If the result is too
//!    large, the largest blocks, that is, the messages for the children with the most bytes, are passed on until the rest
//!    fits. Only these children are rewritten.
//! 3. A lookup searches the buffer of each page on its way to the leaf, and stops at the first base. A scan merges the
//!    buffers of all levels with the leaves.
//! 4. ε divides a node between pivots and buffer: a node with room for B messages has about B^ε children, and its buffer
//!    has room for the other B − B^ε messages. With ε = 1 (the option `epsilon` is 100) the job keeps nothing in buffers, and
//!    the tree is a B+-tree. A small ε makes writes cheaper, and the tree higher.
//!
//! Invariant: on the way from the root to a leaf, the messages of a key become older.
//!
//! Costs, for a tree of N rows with nodes of B rows: a row that is inserted causes log_B N / (ε B^(1−ε)) page writes on
//! average, a lookup reads log_B N / ε pages (000 §4.2).

mod options;
mod shape;

pub use self::options::{BetreeOptions, TYPE};
