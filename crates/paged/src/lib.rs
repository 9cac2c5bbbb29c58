//! The trees of source 000 as published: a page buffer, a B+-tree, and a concurrent Bε-tree, for measurements.
//!
//! ```text
//!   create       options ─▶ a tree
//!   tree         Tree: upsert, get, range, verify
//!                btree::BTree            betree::BeTree
//!                     └── leaf, inner, layout, column ──┘      fields in the bytes of a page
//!   buffer       PageBuffer: pin, create     2q │ 2q-sharded │ clock │ clock-swizzled │ optimal
//!   segment      Segments: allocate, delete, read, write       one file
//! ```
//!
//! **Nothing here is durable**, as in the source: dirty pages are written when they are evicted, in any order, and
//! messages of a running flush are in no page. A tree ends with its process. The trees of the product, which survive
//! crashes, are in `pandodb::index`; decision 0086 says why these are apart. Keys are numbers, and values have a fixed
//! size.
//!
//! **Locks.** A thread takes latches in this order, and waits for a latch only while it holds earlier ones:
//!
//! 1. pages of the tree, from the root down, level by level;
//! 2. within a level, from the greatest key to the least: flushes visit their children in this order.
//!
//! While it holds the latch of a page it takes the lock of the *front* of this page (`front`), and waits for nothing under
//! it.
//!
//! While it holds latches it takes, one after the other, the locks of the page buffer (`buffer`) and of the segment
//! manager (`segment`), and waits for no latch under them. A page that must be written before it is evicted is latched
//! by a try only. So a thread waits for a latch of a page only below or left of all its pages, and there is no cycle.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod batch;
pub mod betree;
mod block;
pub mod btree;
pub mod buffer;
mod column;
mod create;
mod error;
mod frame;
mod front;
mod hints;
mod inner;
pub mod layout;
mod leaf;
pub mod message;
pub mod mistake;
mod segment;
mod sync;
mod tree;
mod verify;

pub use buffer::{BufferConfig, BufferKind, Counts, PageBuffer};
pub use column::Column;
pub use create::create;
pub use error::{Error, Result};
pub use frame::{PageNo, Pinned, ReadPage, WritePage};
pub use hints::{Child, Hints};
pub use layout::Sizes;
pub use message::Op;
pub use segment::Segments;
pub use tree::{BeOptions, Buffers, Coupling, FanOut, FlushCounts, FlushPolicy, RootKind, Shape, Tree, TreeKind};
