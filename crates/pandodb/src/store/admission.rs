//! Admission decides how long a write waits for background work before the write begins.
//!
//! ```text
//!   debt of all keyspaces (memory, work) ─▶ Load ─▶ price of the write's bytes ─▶ with threads: a wait
//!                                                                             └▶ without: the writer works it off
//! ```

use std::time::Duration;

use super::engine::Engine;
use crate::base::{Result, events};
use crate::sched::{FOREGROUND_STEP, Load, Turn};

/// If more sealed memtables than this number wait, writers are throttled hard.
pub(super) const MAX_SEALED: u64 = 3;

impl Engine {
    /// Throttles a writer that arrived at `now`, according to the work that its bytes cause.
    pub(super) fn admit(&self, bytes: u64, frees: bool, now: Duration) -> Result<()> {
        let debt = self.debt();
        if debt.total() == 0 {
            return Ok(());
        }
        let (memtable, full) = (self.config.least_memtable() as u64, self.seal_at());
        debug_assert!(memtable > 0, "a memtable has a size");
        // If background work makes no progress, refuse writes before they fill the memory. Deletes may use a little
        // more memory than other writes.
        let limit = full * (MAX_SEALED + if frees { 3 } else { 1 });
        if debt.memory_bytes > limit
            && let Some(trouble) = self.background.trouble()
        {
            return Err(trouble);
        }
        let room = full.saturating_sub(self.keyspaces.active());
        let crowd = (debt.memory_bytes / full).saturating_sub(MAX_SEALED - 1);
        // When the disk is full, an ordinary write is refused later. Throttling it first would only delay the error.
        if !frees && self.reserve.is_short() {
            return Ok(());
        }
        let (work, rate) = if self.is_stalled() { (0, 0) } else { (debt.work_bytes, self.core.share.owed.rate()) };
        let unit = self.config.unit() as u64;
        let load = Load { memory: debt.memory_bytes, work, rate, room, memtable, unit, crowd };
        let price = load.price(bytes);
        if self.config.background_threads > 0 {
            let waited = self.background.scheduler.pay(price, load.patience(bytes), now, &|| self.device.now());
            events::waited(waited, debt.memory_bytes, debt.work_bytes);
        } else {
            self.work_off(price)?;
        }
        Ok(())
    }

    /// For a store without background threads: the writer itself does steps of background work until it has processed
    /// as many bytes as the price of its write.
    ///
    /// A step that only reads or closes pages processes few bytes. So the number of steps is limited too: to twice the
    /// number of steps that all due bytes need at full size. The remaining bytes stay due.
    ///
    /// A checkpoint is one long piece of work if the index does not write ahead. So a write that takes one leaves the last
    /// two steps to later writes, and a write whose step requests one leaves the checkpoint to the next write if at most
    /// two steps are due.
    fn work_off(&self, price: u64) -> Result<()> {
        let (account, step) = (self.background.scheduler.account(), self.background.scheduler.step(FOREGROUND_STEP));
        let most = 2 * account.charge(price).div_ceil(step);
        let mut sees_checkpoint = false;
        for done in 0..most {
            let due = account.due();
            sees_checkpoint |= self.checkpointer.is_due();
            if due == 0 || sees_checkpoint && done > 0 && due <= 2 * step {
                break;
            }
            match self.turn_alone(FOREGROUND_STEP) {
                Turn::Worked(bytes) => account.earn(bytes.max(1)),
                Turn::Idle | Turn::Stuck => account.clear(),
            }
        }
        Ok(())
    }
}
