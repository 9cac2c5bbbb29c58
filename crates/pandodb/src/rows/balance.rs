//! [`Balance`]: how much of the caches' memory is the rows'. What rows have above their least they borrow from the pool.
//!
//! ```text
//!   each 4,096 misses:  rows that left lately and were wanted × how many of the misses read ─▶ reads that more rows would save
//!                       blocks that left lately and were wanted ────────────────────────────▶ reads that more blocks would save
//!                       a step of memory is to go where more is saved
//!  each 256 misses:     a piece of that moves, so that no lookup pays for all of it
//! ```
//!
//! Where some rows are much hotter than others, and lie anywhere, rows win: a block is one of them and thirty that nobody wants. Where
//! neighbours are wanted together, blocks win. Memtables go before both: what they need is given back whenever one is sealed or packed ([`Balance::give_way`]).
//!
//! Invariant: what was borrowed is what the shards may have above the least; both change under one lock, the loan first when it grows,
//! the shards first when it shrinks.

use std::sync::Arc;

use crate::base::slab::Lender;
use crate::base::sync::{Mutex, MutexGuard};
use crate::pool::Pool;

/// Misses of rows between two decisions, and between two pieces.
const EACH: u64 = 4_096;
pub(super) const PIECES: u64 = 256;
/// What a decision is about: one part in so many of what pool and rows share.
const STEPS: usize = 32;
/// What changes hands at a time: one part in so many, and not more bytes than this. A lookup throws out as many blocks.
const PARTS: usize = 512;
const PIECE: usize = 512 << 10;
/// The rows borrow at most one part in so many.
const MOST: usize = 2;
/// Reads that must be saved by a step: fewer may be chance.
const LEAST_GAIN: u64 = 16;

/// Shares out memory between rows and blocks.
#[derive(Debug)]
pub(super) struct Balance {
    pool: Arc<Pool>,
    /// What rows have in any case.
    least: usize,
    /// What they share.
    whole: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    loan: usize,
    /// What it is to become.
    target: usize,
    seen: Seen,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Rows that were looked for in vain.
    pub row_misses: u64,
    /// Of these, those that a larger cache would have had.
    pub row_ghosts: u64,
    /// Blocks that were read.
    pub pool_misses: u64,
    /// Of these, those that a larger pool would have had.
    pub pool_ghosts: u64,
}

impl Balance {
    pub(super) fn new(pool: Arc<Pool>, least: usize, whole: usize) -> Balance {
        Balance { pool, least, whole, state: Mutex::default() }
    }

    /// Looks where a step of memory saves more, and lets `resize` bring the rows nearer to what they may have then. `counts` says how many rows were
    /// missed, and how many of them a larger cache would have had. Does nothing where somebody else is at it.
    pub(super) fn weigh(&self, counts: impl FnOnce() -> (u64, u64), resize: impl Fn(usize)) {
        let Some(mut state) = self.state.try_lock() else { return };
        // Not before the lock: another's figures may be newer.
        let (row_misses, row_ghosts) = counts();
        let pool = self.pool.stats();
        let now = Seen { row_misses, row_ghosts, pool_misses: pool.misses, pool_ghosts: self.pool.ghosts_found() };
        let before = state.seen;
        if now.row_misses.saturating_sub(before.row_misses) >= EACH {
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

    /// Gives back what memtables may need.
    pub(super) fn give_way(&self, resize: impl Fn(usize)) {
        let mut state = self.state.lock();
        let most = self.most(state.loan);
        if state.loan > most {
            state.target = most;
            self.change(&mut state, most, resize);
        }
    }

    /// What rows may borrow, who have borrowed `loan`.
    fn most(&self, loan: usize) -> usize {
        // Others are the memtables; an eighth more than they have now, since they grow until the next time that somebody asks.
        let others = self.pool.lent().saturating_sub(loan) + self.whole / 8;
        let room = self.whole - self.whole / Pool::LEAST_SHARE;
        room.saturating_sub(others).min(self.whole / MOST)
    }

    fn change(&self, state: &mut MutexGuard<'_, State>, loan: usize, resize: impl Fn(usize)) {
        let before = std::mem::replace(&mut state.loan, loan);
        if loan > before {
            self.pool.lend(loan - before);
            resize(self.least + loan);
        } else if loan < before {
            resize(self.least + loan);
            self.pool.take_back(before - loan);
        }
    }
}

impl Drop for Balance {
    fn drop(&mut self) {
        self.pool.take_back(self.state.get_mut().loan);
    }
}

/// The reads that two steps of memory more would have saved, for rows and for blocks.
fn gains(before: &Seen, now: &Seen) -> (u64, u64) {
    let row_misses = now.row_misses.saturating_sub(before.row_misses).max(1);
    // A row that is missing costs a read only where its leaf is missing, too.
    let read = now.pool_misses.saturating_sub(before.pool_misses).min(row_misses);
    let rows = u128::from(now.row_ghosts.saturating_sub(before.row_ghosts)) * u128::from(read) / u128::from(row_misses);
    (rows as u64, now.pool_ghosts.saturating_sub(before.pool_ghosts))
}
