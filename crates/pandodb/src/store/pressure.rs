//! [`Pressure`] is the state of background work on a full disk. The module `relief` does the work itself.
//!
//! Lock: `relieving`, which is taken before all other locks except the gate.

use crate::base::sync::{AtomicBool, AtomicU64, Mutex};

/// The state of a full disk.
#[derive(Default)]
pub(crate) struct Pressure {
    /// Whether background work found the disk full. Cleared when the reserve is full again, or when no work on the full
    /// disk is left.
    pub pressed: AtomicBool,
    /// This lock is held by the thread that works on a full disk.
    pub relieving: Mutex<()>,
    /// Whether packing or compacting has succeeded since the disk was full.
    pub relieved: AtomicBool,
    /// Whether the free pages that earlier openings had written were already returned to the file system.
    pub punched: AtomicBool,
    /// Whether a delete waits for space in the log.
    pub starved: AtomicBool,
    /// Whether compactions are pending and none of them fits.
    pub stalled: AtomicBool,
    /// The number of times that the work on a full disk packed or compacted something, or returned space to the file
    /// system.
    pub steps: AtomicU64,
}
