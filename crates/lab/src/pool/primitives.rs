//! The synchronisation primitives of [`super::claims`]; the explorers replace this file with their own.

pub use pandodb::base::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, relax};
pub use std::sync::atomic::fence;
