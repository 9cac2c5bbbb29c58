//! The one module that chooses the synchronization primitives of this crate.
//!
//! By default these are the locks of `parking_lot` and the atomics of the standard library. With the feature `explore`
//! they are those of `shuttle`, so that its explorer can switch threads at each of them (`tests/explore.rs`). A crate
//! that is built with this feature works only inside an execution of the explorer.

#[cfg(not(feature = "explore"))]
pub use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
#[cfg(not(feature = "explore"))]
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

#[cfg(feature = "explore")]
pub use explored::{Mutex, RwLock};
#[cfg(feature = "explore")]
pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
#[cfg(feature = "explore")]
pub use shuttle::sync::{RwLockReadGuard, RwLockWriteGuard};

/// A cell that is set before the number by which other threads find it is published, so it is never a point either.
pub use std::sync::OnceLock as Once;
/// A number for statistics. No decision depends on it, so it is never a point of the explorer.
pub use std::sync::atomic::AtomicU64 as Counter;
pub use std::sync::atomic::Ordering;

/// The locks of `shuttle` with the interface of `parking_lot`: without poisoning.
#[cfg(feature = "explore")]
mod explored {
    use std::sync::PoisonError;

    /// A mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// An unlocked mutex.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the mutex.
        pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// A reader-writer lock.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(shuttle::sync::RwLock<T>);

    impl<T> RwLock<T> {
        /// An unlocked lock.
        pub fn new(value: T) -> RwLock<T> {
            RwLock(shuttle::sync::RwLock::new(value))
        }

        /// Waits for shared access.
        pub fn read(&self) -> shuttle::sync::RwLockReadGuard<'_, T> {
            self.0.read().unwrap_or_else(PoisonError::into_inner)
        }

        /// Shared access, if no thread has or awaits exclusive access.
        pub fn try_read(&self) -> Option<shuttle::sync::RwLockReadGuard<'_, T>> {
            self.0.try_read().ok()
        }

        /// Exclusive access, if no thread has or awaits access.
        pub fn try_write(&self) -> Option<shuttle::sync::RwLockWriteGuard<'_, T>> {
            self.0.try_write().ok()
        }

        /// Access without the lock, by its only owner.
        pub fn get_mut(&mut self) -> &mut T {
            self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
        }

        /// Waits for exclusive access.
        pub fn write(&self) -> shuttle::sync::RwLockWriteGuard<'_, T> {
            self.0.write().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
