//! [`Charge`]: the memory that the writes and the read set of a transaction take from the budget of the store.
//!
//! ```text
//!   writes + read set  ── in steps of 64 KiB ──▶ sum of all open transactions ≤ limit, reserved from the pool
//! ```
//!
//! Transactions below one step are not charged, so they cost nothing here.

use crate::base::slab::MemorySource;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, Result};
use crate::store::engine::Engine;

/// The number of bytes by which a charge grows.
const STEP: usize = 64 << 10;

/// The bytes to charge for `bytes` bytes.
fn rounded(bytes: usize) -> usize {
    if bytes < STEP { 0 } else { bytes.next_multiple_of(STEP) }
}

/// The bytes that are charged for a transaction.
#[derive(Debug, Default)]
pub(super) struct Charge(usize);

impl Charge {
    /// Charges `bytes` in all, if that is more than before.
    ///
    /// # Errors
    /// [`Error::TransactionTooLarge`] if all transactions together would have more bytes than the limit.
    pub(super) fn raise_to(&mut self, engine: &Engine, bytes: usize) -> Result<()> {
        let wanted = rounded(bytes);
        if wanted <= self.0 {
            return Ok(());
        }
        let (more, limit) = (wanted - self.0, engine.config.transaction_bytes());
        let figures = &engine.figures.transactions;
        let (more_bytes, limit) = (more as u64, limit as u64);
        let fits = |before: u64| (before + more_bytes <= limit).then_some(before + more_bytes);
        if let Err(before) = figures.bytes.fetch_update(Relaxed, Relaxed, fits) {
            return Err(Error::TransactionTooLarge { bytes: before + more_bytes, limit });
        }
        engine.core.pool.reserve(more);
        self.0 = wanted;
        Ok(())
    }

    /// Charges `bytes` in all, if that is less than before.
    pub(super) fn lower_to(&mut self, engine: &Engine, bytes: usize) {
        let less = self.0.saturating_sub(rounded(bytes));
        if less > 0 {
            engine.core.pool.release(less);
            engine.figures.transactions.bytes.fetch_sub(less as u64, Relaxed);
            self.0 -= less;
        }
    }
}
