//! `loom`'s primitives behind the faces that the engine knows: the explorer's wrappers, around the other crate.

#[path = "../../../pandodb/src/base/sync/explored.rs"]
mod explored;

pub use explored::*;
pub use loom::sync::atomic::fence;
pub use std::sync::OnceLock as Once;
pub use std::sync::atomic::{AtomicU64 as Counter, AtomicU64 as Word, Ordering};
