//! The one place that chooses the primitives by which threads meet: locks, condition variables, atomics, swapped `Arc`s.
//!
//! By default these are other crates' types under one roof, at no cost: `parking_lot`'s locks (no poisoning), std's
//! atomics, `arc_swap`. With the feature `explore` they are `shuttle`'s, behind the same faces: then every lock, every
//! atomic and every swap is a point at which an explorer may let another thread go on, so that it can try the schedules
//! one by one, find a deadlock, and replay what it found (`crates/explore`). Such an engine works only inside an explored
//! execution.
//!
//! | here | by default | under `explore` |
//! | --- | --- | --- |
//! | [`Mutex`], [`MutexGuard`], [`RwLock`], [`Condvar`] | `parking_lot` | `shuttle`, a timed wait may end at any moment |
//! | [`AtomicU64`] and the like | std | `shuttle`, sequentially consistent: orderings are `loom`'s subject |
//! | [`ArcSwap`] | `arc_swap` | a pointer behind a point |
//! | [`OnceLock`] | std | std behind a point |
//! | [`Counter`] | std | std: no point |
//! | [`linger`] | a few hundred cycles, then the processor is offered to others | not at all |
//!
//! `Arc` is std's in both: who lets go last follows from the points around it. The devices below do not come here: their
//! locks are leaves, held over no call into the engine and hence over no point.
//!
//! `tests/tidy.rs` keeps the originals out of the rest of the engine.

#[cfg(feature = "explore")]
mod explored;

#[cfg(not(feature = "explore"))]
pub use arc_swap::ArcSwap;
#[cfg(not(feature = "explore"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "explore"))]
pub use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, AtomicUsize},
};

#[cfg(not(feature = "explore"))]
mod linger;
#[cfg(feature = "explore")]
pub use explored::{ArcSwap, AtomicBool, AtomicU64, AtomicUsize, Condvar, Mutex, MutexGuard, OnceLock, RwLock, linger};
#[cfg(not(feature = "explore"))]
pub use linger::linger;

/// A number for statistics, on which nothing decides: never a point at which threads are switched.
pub use std::sync::atomic::AtomicU64 as Counter;
pub use std::sync::atomic::Ordering;
