//! Messages in memory to which commits write directly, without the messages that the index on disk already has: parts of
//! the topmost buffers of a Bε-tree.
//!
//! | file | contents |
//! | --- | --- |
//! | `part` | the messages for a range of keys, in memtables |
//! | `merged` | one stream of messages from several memtables and an index |
//! | `input` | the messages that a job writes |
//!
//! The index that uses them is [`PartedTree`](crate::index::tree::PartedTree).

pub mod input;
pub mod merged;
pub mod part;

pub use self::input::{InputCursor, InputPart, PartInput, Reach};
pub use self::merged::Merged;
pub use self::part::{Active, Part, Sealed, Stack, weight};
