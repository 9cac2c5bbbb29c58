//! [`Balance`]: divides memory between the row cache and the pool. The row cache has a fixed minimum of memory and
//! reserves all further memory from the pool.
//!
//! ```text
//!   each 4,096 row misses, and each 16,384 misses of the pool:
//!      evicted rows requested again × share of the misses that read ─▶ reads that more rows would save
//!      evicted blocks requested again ───────────────────────────────▶ reads that more blocks would save
//!      the target moves by one step to the side that saves more
//!   each 256 row misses, and each 256 leaves that scans read:
//!      a piece of a step moves, so that no single lookup evicts a whole step
//! ```
//!
//! If the frequently requested rows are scattered, a cached block holds about one hot row and thirty cold rows, so
//! cached rows save more reads than cached blocks. If neighbouring rows are requested, cached blocks save more reads.
//! Memtables have priority over both: whenever a memtable is sealed or packed, the row cache releases memory that
//! memtables need ([`Balance::shrink`]).
//!
//! Invariant: the *loan*, the number of bytes that are reserved for rows in the pool, equals the number of bytes that
//! the shards may use above the minimum. Both numbers change under one lock. When the loan grows, the bytes are
//! reserved before the shards grow; when it shrinks, the shards shrink first.
//!
//! Source: [decision 0030](../../../../docs/decisions/0030-rows-borrow-from-the-pool.md).

use std::sync::Arc;

use crate::base::slab::MemorySource;
use crate::base::sync::{Mutex, MutexGuard};
use crate::pool::Pool;

/// The number of row misses between two decisions.
const EACH: u64 = 4_096;
/// A decision is also made after `EACH` × `POOL_MISSES` misses of the pool, if so many come first.
const POOL_MISSES: u64 = 4;
/// The number of row misses, or of leaves that scans read, after which the next piece of memory is moved.
pub(super) const PIECES: u64 = 256;
/// A decision moves the target by 1/`STEPS` of the memory that pool and rows share.
const STEPS: usize = 32;
/// A piece is 1/`PARTS` of the shared memory, and at most `PIECE` bytes. A single lookup may have to evict a whole
/// piece of blocks.
const PARTS: usize = 512;
const PIECE: usize = 512 << 10;
/// The row cache reserves at most 1/`MOST` of the shared memory.
const MOST: usize = 2;
/// A decision moves the target only if this saves more reads than `LEAST_GAIN`. A smaller difference may be due to
/// chance.
const LEAST_GAIN: u64 = 16;

const _: () = assert!(EACH.is_multiple_of(PIECES), "a decision is made together with a move");
const _: () = assert!(PARTS >= STEPS, "a piece is at most a step");
const _: () = assert!(MOST > 1 && Pool::LEAST_SHARE > 1, "blocks keep a share of the memory");

/// Divides memory between rows and blocks.
#[derive(Debug)]
pub(super) struct Balance {
    pool: Arc<Pool>,
    /// The fixed minimum of the rows, in bytes.
    least: usize,
    /// The memory that rows and blocks share, in bytes.
    whole: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loan: usize,
    /// The loan that the balance approaches, piece by piece.
    target: usize,
    seen: Seen,
}

/// The counts at the last decision.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Lookups that did not find a cached row.
    pub row_misses: u64,
    /// The number of these lookups that a larger row cache would have answered.
    pub row_ghosts: u64,
    /// Blocks that were read.
    pub pool_misses: u64,
    /// The number of these blocks that a larger pool would have held.
    pub pool_ghosts: u64,
}

impl Balance {
    pub(super) fn new(pool: Arc<Pool>, least: usize, whole: usize) -> Balance {
        assert!(least > 0, "a cache without capacity has nothing to balance");
        Balance { pool, least, whole, state: Mutex::default() }
    }

    /// Decides whether the row cache or the pool would save more reads with one more step of memory, changes the target
    /// accordingly, and moves one piece of memory towards the target. `counts` returns the number of row misses, and
    /// the number of these misses that a larger cache would have avoided. `resize` sets the bytes of the rows. Returns
    /// immediately if another thread executes this function.
    pub(super) fn weigh(&self, counts: impl FnOnce() -> (u64, u64), resize: impl Fn(usize)) {
        let Some(mut state) = self.state.try_lock() else { return };
        // Read the counts under the lock. Counts that were read before the lock was taken may be older than the counts
        // of another thread's last decision.
        let (row_misses, row_ghosts) = counts();
        let pool = self.pool.stats();
        let now = Seen { row_misses, row_ghosts, pool_misses: pool.misses, pool_ghosts: self.pool.ghosts_found() };
        let before = state.seen;
        // In a store that is only scanned, rows are never missed, but the pool may still need the memory of the rows.
        let misses = now.row_misses.saturating_sub(before.row_misses);
        if misses >= EACH || now.pool_misses.saturating_sub(before.pool_misses) >= EACH * POOL_MISSES {
            state.seen = now;
            let step = self.whole / STEPS;
            state.target = match gains(&before, &now) {
                (rows, blocks) if rows > blocks + blocks / 8 + LEAST_GAIN => state.loan + step,
                (rows, blocks) if blocks > rows + rows / 8 + LEAST_GAIN => state.loan.saturating_sub(step),
                _ => state.loan,
            };
        }
        let piece = (self.whole / PARTS).min(PIECE);
        let target = state.target.clamp(state.loan.saturating_sub(piece), state.loan + piece);
        let most = self.most(state.loan);
        self.change(&mut state, target.min(most), resize);
    }

    /// Releases memory that memtables may need.
    pub(super) fn shrink(&self, resize: impl Fn(usize)) {
        let mut state = self.state.lock();
        let most = self.most(state.loan);
        if state.loan > most {
            state.target = most;
            self.change(&mut state, most, resize);
        }
    }

    /// The most bytes that the row cache may reserve, given that `loan` bytes are reserved for it now.
    /// REQUIRES: the caller holds the lock of `state`, so that the loan does not change.
    fn most(&self, loan: usize) -> usize {
        // The bytes that are reserved for others belong mainly to memtables. Memtables may grow before the next call,
        // so add an eighth of the shared memory for them.
        let lent = self.pool.lent();
        debug_assert!(lent >= loan, "the loan of {loan} bytes is reserved from the pool");
        let others = lent.saturating_sub(loan) + self.whole / 8;
        let room = self.whole - self.whole / Pool::LEAST_SHARE;
        room.saturating_sub(others).min(self.whole / MOST)
    }

    /// Changes the loan and the bytes of the rows.
    /// REQUIRES: the caller holds the lock of `state`.
    fn change(&self, state: &mut MutexGuard<'_, State>, loan: usize, resize: impl Fn(usize)) {
        assert!(loan <= self.whole / MOST, "rows reserve at most 1/{MOST} of the shared memory");
        let before = std::mem::replace(&mut state.loan, loan);
        if loan > before {
            debug_assert!(loan - before <= self.whole / PARTS, "the loan grows by a piece at a time");
            self.pool.reserve(loan - before);
            resize(self.least + loan);
        } else if loan < before {
            resize(self.least + loan);
            self.pool.release(before - loan);
        }
    }
}

impl Drop for Balance {
    fn drop(&mut self) {
        self.pool.release(self.state.get_mut().loan);
    }
}

/// The numbers of reads that two more steps of memory would have saved if they had been given to rows, and if they had
/// been given to blocks.
fn gains(before: &Seen, now: &Seen) -> (u64, u64) {
    let row_misses = now.row_misses.saturating_sub(before.row_misses).max(1);
    // A row that is missing in the row cache costs a read only if its leaf is not in the pool either.
    let read = now.pool_misses.saturating_sub(before.pool_misses).min(row_misses);
    let rows = u128::from(now.row_ghosts.saturating_sub(before.row_ghosts)) * u128::from(read) / u128::from(row_misses);
    let rows = u64::try_from(rows).expect("a share of a number of 64 bits");
    (rows, now.pool_ghosts.saturating_sub(before.pool_ghosts))
}
