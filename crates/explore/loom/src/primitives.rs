//! `loom`'s primitives behind the faces that the engine knows: the explorer's wrappers, around the other crate.

#[path = "../../../pandodb/src/base/sync/explored.rs"]
mod explored;

pub use explored::*;
pub use loom::sync::atomic::fence;
pub use std::sync::atomic::{AtomicU64 as Counter, AtomicU64 as Word, Ordering};

/// A cell whose filling `loom` knows of: a thread that learns where it is without an order may find it empty.
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

    /// What is in it, as far as this thread can know.
    pub fn get(&self) -> Option<&T> {
        self.filled.load(Ordering::Acquire).then(|| self.cell.get().expect("filled"))
    }

    /// Fills it, unless it is full.
    pub fn set(&self, value: T) -> Result<(), T> {
        let set = self.cell.set(value);
        self.filled.store(true, Ordering::Release);
        set
    }

    /// What is in it, or is put there now.
    pub fn get_or_init(&self, fill: impl FnOnce() -> T) -> &T {
        if !self.filled.load(Ordering::Acquire) {
            let value = fill();
            // Of several threads one fills it: no point lies between here and the note.
            let _ = self.cell.set(value);
            self.filled.store(true, Ordering::Release);
        }
        self.cell.get().expect("filled")
    }

    /// Empties it.
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
