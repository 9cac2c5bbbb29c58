//! [`SpaceCheck`]: the bytes of pages for which the store has found space on the disk. An index to which commits write
//! directly asks only if it may need more, so most commits need no check.

use crate::base::Result;
use crate::base::sync::{AtomicU64, Mutex, Ordering::SeqCst};

/// Space is checked for this number of bytes more.
const SLACK: u64 = 16 << 10;

/// The bytes for which the store has found space.
#[derive(Default)]
pub(super) struct SpaceCheck {
    checked: AtomicU64,
    /// Held while `checked` is compared with the bytes to write, and changed.
    checking: Mutex<()>,
    /// The bytes of operations that are prepared and not applied.
    prepared: AtomicU64,
}

/// Bytes that count as prepared until this is dropped.
pub(super) struct PreparedBytes<'a> {
    of: &'a SpaceCheck,
    bytes: u64,
}

impl Drop for PreparedBytes<'_> {
    fn drop(&mut self) {
        self.of.prepared.fetch_sub(self.bytes, SeqCst);
    }
}

impl SpaceCheck {
    /// The bytes of operations that are prepared and not applied.
    pub(super) fn prepared(&self) -> u64 {
        self.prepared.load(SeqCst)
    }

    /// Counts `bytes` as prepared.
    pub(super) fn prepare(&self, bytes: u64) -> PreparedBytes<'_> {
        self.prepared.fetch_add(bytes, SeqCst);
        PreparedBytes { of: self, bytes }
    }

    /// Finds space for all bytes to write, which `count` counts, with those of prepared operations.
    ///
    /// # Errors
    /// That of `room`.
    pub(super) fn find(&self, count: impl Fn() -> u64, room: &dyn Fn(u64) -> Result<()>) -> Result<()> {
        if count() <= self.checked.load(SeqCst) {
            return Ok(());
        }
        let _checking = self.checking.lock();
        let bytes = count();
        if bytes > self.checked.load(SeqCst) {
            room(bytes + SLACK)?;
            self.checked.store(bytes + SLACK, SeqCst);
        }
        Ok(())
    }

    /// Counts anew after a checkpoint, and calls `note` with the bytes.
    pub(super) fn count_anew(&self, count: impl Fn() -> u64, note: &dyn Fn(u64)) {
        let _checking = self.checking.lock();
        // A commit that still sees the old value of `checked` has counted its bytes as prepared before, so `count`
        // includes them. A commit that sees the 0 waits for the lock.
        self.checked.store(0, SeqCst);
        let bytes = count();
        note(bytes);
        self.checked.store(bytes, SeqCst);
    }
}
