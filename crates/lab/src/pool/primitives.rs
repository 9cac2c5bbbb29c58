//! By what the threads of [`super::claims`] meet; the explorers put their own in this place.

pub use pandodb::base::sync::{AtomicU8, AtomicU32, AtomicU64, Mutex, Ordering, relax};
pub use std::sync::atomic::fence;
