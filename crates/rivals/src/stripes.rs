//! [`Stripes`]: locks that make a read-modify-write of one key atomic, for stores that have no such operation.
//!
//! Every write of a key takes the lock of the key, even if the write is not an addition. Otherwise a `put` between the
//! read and the write of an addition would be lost. An uncontended lock takes about 20 ns, whereas the write paths of
//! the stores take microseconds.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 1024;

/// A lock that has a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<()>);

/// Locks, selected by the hash of a key.
pub struct Stripes {
    stripes: Vec<Stripe>,
    hasher: RandomState,
}

impl Stripes {
    pub fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), hasher: RandomState::new() }
    }

    /// Locks this key against other writers.
    pub fn of(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let i = self.hasher.hash_one(key) as usize % STRIPES;
        self.stripes[i].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks several keys against other writers. The locks are taken in ascending order, so that two callers cannot wait
    /// for each other.
    #[allow(dead_code, reason = "only fjall and LevelDB have batches")]
    pub fn of_all<'a>(&self, keys: impl Iterator<Item = &'a [u8]>) -> Vec<MutexGuard<'_, ()>> {
        let mut stripes: Vec<usize> = keys.map(|key| self.hasher.hash_one(key) as usize % STRIPES).collect();
        stripes.sort_unstable();
        stripes.dedup();
        let lock = |i: usize| self.stripes[i].0.lock().unwrap_or_else(PoisonError::into_inner);
        stripes.into_iter().map(lock).collect()
    }
}
