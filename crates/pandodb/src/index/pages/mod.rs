//! The pages of a tree whose pages are replaced one by one. The indexes `btree` and `betree` use them.
//!
//! ```text
//!   root record ─▶ description (two copies): root, pages that the tree owns, range tombstones
//!                      │
//!                      ▼
//!                  inner page (two copies)      for each child: separator, address, mark, sums
//!                   ╱       ╲
//!               leaf        leaf                messages in order, in the format of leaves of runs
//! ```
//!
//! A job reads old pages and writes new ones to fresh space ([`Rebuild`], [`LeafSink`], [`TreeWriter`]). It never
//! changes a page. When it is done, one swap of the root publishes the new tree, and the replaced pages are freed when
//! the last reader of an older root is gone. So readers take no latches, and a crash at any moment leaves the old tree.
//!
//! Parents hold the addresses of their children. There is no separate table from page numbers to addresses: a job that
//! replaces a leaf writes the leaf's parent anew, once for all its leaves ([decision
//! 0081](../../../../../docs/decisions/0081-addresses-in-parents.md)).
//!
//! | file | contents |
//! | --- | --- |
//! | `reference` | what a parent knows about a page |
//! | `inner` | the bytes of inner pages |
//! | `source` | reads and checks pages through the pool |
//! | `ahead` | reads several leaves concurrently |
//! | `walk`, `inspect` | visits all pages of a tree; describes pages |
//! | `writer` | writes pages to fresh space |
//! | `leaves` | divides messages into leaves |
//! | `rebuild` | writes the inner pages above changed leaves |
//! | `bulk` | builds a new tree from rows in key order |
//! | `unit` | the leaves that a job rewrites as a whole |
//! | `waiting` | the messages of a buffer while its page is written anew |
//! | `root` | the description of a tree on disk |
//!
//! Invariants: every page is reached from one parent; pages that a durable root reaches are never overwritten; a page
//! passes its check only if its checksum, owner, kind, level and mark are those that its parent expects.

pub mod ahead;
pub mod bulk;
pub mod inner;
pub mod inspect;
pub mod leaves;
pub mod rebuild;
pub mod reference;
pub mod root;
pub mod source;
pub mod unit;
pub mod waiting;
pub mod walk;
pub mod writer;

pub use self::ahead::LeafAhead;
pub use self::bulk::Bulk;
pub use self::inner::{Child, Inner};
pub use self::leaves::{LeafLimits, LeafSink};
pub use self::rebuild::{InnerLimits, Levels, Neighbour, Rebuild};
pub use self::reference::{PageRef, Root, Totals};
pub use self::root::Description;
pub use self::source::PageSource;
pub use self::unit::Unit;
pub use self::waiting::Waiting;
pub use self::writer::{TreeWriter, Written};
