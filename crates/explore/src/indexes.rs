//! Draws the index type of the stores of a batch from the seed of the batch.
//!
//! All explored threads of a batch run on one system thread. So the choice is stored in a thread-local variable.

use std::cell::Cell;

use pandodb::{IndexKind, IndexOptions, Values};

thread_local! {
    static CURRENT: Cell<Option<IndexKind>> = const { Cell::new(None) };
}

/// The index type of the batch that has this seed.
pub fn of(seed: u64) -> IndexKind {
    let scattered = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let at = scattered % IndexKind::all().len() as u64;
    IndexKind::all().nth(at as usize).expect("a number below the count")
}

/// Runs `work`. The stores that `work` creates use this index type.
pub fn with<T>(kind: IndexKind, work: impl FnOnce() -> T) -> T {
    let before = CURRENT.replace(Some(kind));
    let made = work();
    CURRENT.set(before);
    made
}

/// The index type of the stores of this batch.
pub fn current() -> IndexKind {
    CURRENT.get().unwrap_or_default()
}

/// The index of this batch, with the minimum value of each numeric option.
pub fn options() -> IndexOptions {
    let kind = current();
    kind.options().iter().fold(IndexOptions::from(kind), |options, spec| match spec.values {
        Values::Range(least, _) => options.with(spec.name, &least.to_string()).expect("the least value"),
        Values::Words(_) => options,
    })
}
