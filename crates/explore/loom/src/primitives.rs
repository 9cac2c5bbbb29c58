//! `loom`'s primitives with the interface of the engine's `base::sync`: the wrappers written for `shuttle`, applied to
//! `loom`.

#[path = "../../../pandodb/src/base/sync/explored.rs"]
mod explored;

pub use explored::*;
pub use loom::sync::atomic::fence;
pub use std::sync::atomic::{AtomicU64 as Counter, AtomicU64 as Word, Ordering};

/// A once-cell whose initialisation `loom` tracks: a thread that reaches it without synchronisation may find it empty.
#[derive(Debug)]
pub struct Once<T> {
    cell: std::sync::OnceLock<T>,
    filled: AtomicBool,
}

impl<T> Once<T> {
    /// An empty cell.
    pub fn new() -> Once<T> {
        Once { cell: std::sync::OnceLock::new(), filled: AtomicBool::new(false) }
    }

    /// The value, if this thread can see it.
    pub fn get(&self) -> Option<&T> {
        self.filled.load(Ordering::Acquire).then(|| self.cell.get().expect("filled"))
    }

    /// Sets the value, unless there is one.
    pub fn set(&self, value: T) -> Result<(), T> {
        let set = self.cell.set(value);
        self.filled.store(true, Ordering::Release);
        set
    }

    /// The value; initialises it if there is none.
    pub fn get_or_init(&self, fill: impl FnOnce() -> T) -> &T {
        if !self.filled.load(Ordering::Acquire) {
            let value = fill();
            // One of several threads sets the value. `loom` cannot switch threads between here and the store.
            let _ = self.cell.set(value);
            self.filled.store(true, Ordering::Release);
        }
        self.cell.get().expect("filled")
    }

    /// Removes the value.
    pub fn take(&mut self) -> Option<T> {
        self.filled = AtomicBool::new(false);
        self.cell.take()
    }
}

impl<T> Default for Once<T> {
    fn default() -> Once<T> {
        Once::new()
    }
}
