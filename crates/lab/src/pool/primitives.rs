//! The synchronisation primitives of [`super::claims`]. The schedule explorers replace this file with their own
//! primitives.

pub use pandodb::base::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, relax};
pub use std::sync::atomic::fence;
