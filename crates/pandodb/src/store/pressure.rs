//! [`Pressure`]: the state of work on a full disk. The work itself is in `relief`.
//!
//! Lock: `relieving`, taken above all others but the gate.

use crate::base::sync::{AtomicBool, AtomicU64, Mutex};

/// The state of a full disk.
#[derive(Default)]
pub(crate) struct Pressure {
    /// Background work has met a full disk, and the space that it used since is not kept back again.
    pub pressed: AtomicBool,
    /// Held by the thread that works on a full disk.
    pub relieving: Mutex<()>,
    /// Since the disk was full, packing or compacting succeeded.
    pub relieved: AtomicBool,
    /// Free pages that earlier lives had written were given back to the file system.
    pub punched: AtomicBool,
    /// A delete waits for room in the log.
    pub starved: AtomicBool,
    /// Compactions are owed, and none of them fits.
    pub stalled: AtomicBool,
    /// How often something was packed, compacted or given back on a full disk.
    pub steps: AtomicU64,
}
