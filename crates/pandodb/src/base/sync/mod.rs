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
//! | [`ArcSwap`], [`Guard`] | `arc_swap` | a pointer behind a point, a counted reference |
//! | [`OnceLock`] | std | std behind a point |
//! | [`Counter`], [`Word`], [`Once`] | std | std: no point |
//! | [`linger`] | a few hundred cycles, then the processor is offered to others | not at all |
//! | [`relax`], [`thread_number`] | a hint to the core, a number of its own | a switch, the number in the execution |
//!
//! `Arc` is std's in both: who lets go last follows from the points around it. The devices below do not come here: their
//! locks are leaves, held over no call into the engine and hence over no point.
//!
//! `tests/tidy.rs` keeps the originals out of the rest of the engine.

#[cfg(feature = "explore")]
mod explored;

#[cfg(not(feature = "explore"))]
pub use arc_swap::{ArcSwap, Guard};
#[cfg(not(feature = "explore"))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};
#[cfg(not(feature = "explore"))]
pub use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize},
};

#[cfg(feature = "explore")]
pub use explored::{
    ArcSwap, AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Condvar, EXPLORED, Guard, Mutex, MutexGuard,
    OnceLock, RwLock, linger, relax, thread_number,
};

/// A cell that is set before the number by which others find it is published, so that they never meet: never a point.
pub use std::sync::OnceLock as Once;
/// A number for statistics, on which nothing decides: never a point at which threads are switched.
pub use std::sync::atomic::AtomicU64 as Counter;
/// Eight bytes that are written before the reference by which others find them is published: never a point.
pub use std::sync::atomic::AtomicU64 as Word;
pub use std::sync::atomic::Ordering;
/// Orders this thread's own loads and stores: never a point.
pub use std::sync::atomic::fence;

/// Whether an explorer chooses who goes on: then structures are as small as they can be, so that schedules reach far.
#[cfg(not(feature = "explore"))]
pub const EXPLORED: bool = false;

/// Waits a moment for another thread, which is about to be done; `turn` counts the moments.
#[cfg(not(feature = "explore"))]
#[inline]
pub fn relax(turn: u32) {
    /// Then the other one has probably lost its core.
    const PATIENCE: u32 = 64;
    if turn < PATIENCE { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Runs `work` in the calling thread and in up to `helpers` other threads, and returns when all of them have ended. If the system
/// refuses to start a thread, fewer threads run `work`, so `work` must do all of the job even if only the caller runs it. A panic
/// in a helper thread panics in the caller, too. Under an explorer only the caller runs `work`.
pub fn with_helpers(helpers: usize, work: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        for _ in 0..if EXPLORED { 0 } else { helpers } {
            let _ = std::thread::Builder::new().name("pando-helper".into()).spawn_scoped(scope, &work);
        }
        work();
    });
}

#[cfg(not(feature = "explore"))]
thread_local! {
    static NUMBER: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

/// A small number of this thread's own, for spreading threads over parts that they would else fight for.
#[cfg(not(feature = "explore"))]
#[inline]
pub fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    NUMBER.get().unwrap_or_else(|| {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        NUMBER.set(Some(number));
        number
    })
}

/// Makes this thread stand for the thread of that number from now on: for simulations, in which one thread is many writers by
/// turns, and the same ones when it is done again.
#[cfg(not(feature = "explore"))]
pub fn stand_for_thread(number: usize) {
    NUMBER.set(Some(number));
}

/// Waits a moment for another thread; whether it is worth to look once more. If not, what is waited for takes long, and the
/// caller sleeps. `turn` counts the moments and starts at 0.
#[cfg(not(feature = "explore"))]
#[inline]
pub fn linger(turn: &mut u32) -> bool {
    /// About two microseconds, as long as another thread needs to apply a small commit and to write it.
    const MOMENTS: u32 = 72;
    *turn += 1;
    if *turn <= MOMENTS {
        relax(*turn);
    }
    *turn <= MOMENTS
}
