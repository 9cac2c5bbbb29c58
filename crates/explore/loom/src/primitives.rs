//! The primitives of `loom`, with the interface of the engine's `base::sync`. The wrappers are the same as for
//! `shuttle`, but contain the types of `loom`.

#[path = "../../../pandodb/src/base/sync/explored.rs"]
mod explored;

pub use explored::*;
pub use loom::sync::atomic::fence;
pub use std::sync::atomic::{AtomicU64 as Counter, AtomicU64 as Word, Ordering};

/// A once-cell whose initialisation `loom` tracks. A thread that reads the cell without synchronisation may find it
/// empty.
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

    /// The value, if the initialisation is visible to this thread.
    pub fn get(&self) -> Option<&T> {
        self.filled.load(Ordering::Acquire).then(|| self.cell.get().expect("filled"))
    }

    /// Sets the value, unless the cell already has a value.
    pub fn set(&self, value: T) -> Result<(), T> {
        let set = self.cell.set(value);
        self.filled.store(true, Ordering::Release);
        set
    }

    /// Returns the value. If the cell has no value, initialises it first.
    pub fn get_or_init(&self, fill: impl FnOnce() -> T) -> &T {
        if !self.filled.load(Ordering::Acquire) {
            let value = fill();
            // If several threads get here, only one of them sets the value, because `loom` cannot switch threads
            // between this line and the store below.
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
