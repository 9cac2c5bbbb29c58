//! [`Stripes`]: makes a read and a write of one key one step, where the store has no such thing.
//!
//! Every write of a key takes the key's lock, not only the additions: else a `put` could fall between the read and the
//! write of an addition, and be lost. An uncontended lock costs some 20 ns, where the stores' own write paths cost
//! microseconds.

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};

const STRIPES: usize = 1024;

/// One lock on a cache line of its own.
#[repr(align(64))]
#[derive(Default)]
struct Stripe(Mutex<()>);

/// Locks, by the hash of a key.
pub struct Stripes {
    stripes: Vec<Stripe>,
    hasher: RandomState,
}

impl Stripes {
    pub fn new() -> Self {
        Self { stripes: (0..STRIPES).map(|_| Stripe::default()).collect(), hasher: RandomState::new() }
    }

    /// Keeps every other writer of this key out.
    pub fn of(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let i = self.hasher.hash_one(key) as usize % STRIPES;
        self.stripes[i].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
