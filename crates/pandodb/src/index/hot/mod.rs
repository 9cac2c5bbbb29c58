//! Ranges of keys that are in memory, with all their messages. Commits change them, and jobs write them to disk.
//!
//! ```text
//!   Ranges      [ a … f )            [ m … p ) [ p … t )
//!                 │ latch
//!   Contents      folded messages in order │ newer ones in a map │ large values
//! ```
//!
//! | file | contents |
//! | --- | --- |
//! | `contents` | the messages of a range |
//! | `directory` | the ranges, pins |
//! | `input` | the ranges that a job writes |
//!
//! The index that uses them is [`HotTree`](crate::index::tree::HotTree).

pub mod contents;
pub mod directory;
pub mod input;

pub use self::contents::{Contents, Counted, Rules};
pub use self::directory::{Directory, HotRange, Pin, Ranges};
pub use self::input::{HotInput, InputCursor, Written};
