//! The one module that chooses the synchronization primitives: locks, condition variables, atomics, swapped `Arc`s.
//!
//! By default the primitives are re-exported types of other crates: the locks of `parking_lot` (no poisoning), the
//! atomics of the standard library, and `arc_swap`. With the feature `explore` they are the types of `shuttle`, with
//! the same interfaces. With this feature every lock, every atomic and every swap is a *point*: a place in the code
//! where an explorer may switch threads. So the explorer can try the schedules one by one, find a deadlock, and replay
//! it (`crates/explore`). An engine that is built with this feature works only inside an execution of the explorer.
//!
//! | this module | by default | under `explore` |
//! | --- | --- | --- |
//! | [`Mutex`], [`MutexGuard`], [`RwLock`], [`Condvar`] | `parking_lot` | `shuttle`; a timed wait may end at any moment |
//! | [`AtomicU64`] and the like | std | `shuttle`, sequentially consistent; `loom` checks the memory orderings |
//! | [`ArcSwap`], [`Guard`] | `arc_swap` | a pointer behind a point; a counted reference |
//! | [`OnceLock`] | std | std, behind a point |
//! | [`Counter`], [`Word`], [`Once`] | std | std, without a point |
//! | [`linger`] | spins, then yields the processor, for about 2 µs | does not wait |
//! | [`relax`] | a hint to the core | a switch to another thread |
//! | [`is_unwinding`] | whether the thread unwinds after a panic | the same |
//! | [`thread_number`] | a number of the thread in the process | a number of the thread in the execution |
//!
//! `Arc` is the standard type in both cases: which thread drops the last reference depends only on the points before
//! and after the drops. The devices do not use this module. Their locks are leaves of the lock order: no thread calls
//! into the engine, and so no thread passes a point, while it holds such a lock.
//!
//! `tests/tidy/main.rs` rejects direct uses of the original types in all other code of the engine.

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

/// A cell that is never a point. The cell is set before the number by which other threads find the cell is published,
/// so threads never contend for it.
pub use std::sync::OnceLock as Once;
/// A number for statistics that is never a point. No decision depends on this number.
pub use std::sync::atomic::AtomicU64 as Counter;
/// Eight bytes that are never a point. The bytes are written before the reference by which other threads find them is
/// published.
pub use std::sync::atomic::AtomicU64 as Word;
pub use std::sync::atomic::Ordering;
/// Orders the loads and stores of this thread. A fence is never a point.
pub use std::sync::atomic::fence;

/// Whether an explorer schedules the threads. If so, structures are as small as possible, so that a short schedule
/// reaches more of the code.
#[cfg(not(feature = "explore"))]
pub const EXPLORED: bool = false;

/// Waits a moment for another thread that is about to finish. `turn` is a count of the calls in one wait. The first
/// calls spin, and later ones yield the processor.
#[cfg(not(feature = "explore"))]
#[inline]
pub fn relax(turn: u32) {
    /// After this many calls the other thread has probably been preempted.
    const PATIENCE: u32 = 64;
    if turn < PATIENCE { std::hint::spin_loop() } else { std::thread::yield_now() }
}

/// Whether this thread unwinds after a panic. Assertions in code that drops run then check nothing: a second panic
/// would abort the process and hide the first one.
pub fn is_unwinding() -> bool {
    std::thread::panicking()
}

/// Runs `work` in the calling thread and in up to `helpers` other threads, and returns when all of them have ended. If
/// the system refuses to start a thread, fewer threads run `work`. So `work` must do the whole job even if only the
/// caller runs it. A panic in a helper thread panics in the caller, too. Under an explorer only the caller runs `work`.
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

/// A small number of this thread. Callers use it to spread threads over shards, to avoid contention.
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

/// Gives this thread the number `number` from now on. Simulations that must be reproducible call it when one thread
/// acts as several writers in turn.
#[cfg(not(feature = "explore"))]
pub fn stand_for_thread(number: usize) {
    NUMBER.set(Some(number));
}

/// Waits a moment for another thread. Returns whether the caller should check again. `false` means that the wait is
/// long and the caller should sleep. `turn` counts the calls and starts at 0.
#[cfg(not(feature = "explore"))]
#[inline]
pub fn linger(turn: &mut u32) -> bool {
    /// The most calls of one wait. These calls take about 2 µs, the time that another thread needs to apply a small
    /// commit and to write it to the log.
    const MOMENTS: u32 = 72;
    *turn += 1;
    if *turn <= MOMENTS {
        relax(*turn);
    }
    *turn <= MOMENTS
}
