//! [`Snapshots`] has the registered read points of a store, and [`Snapshot`] is the user's handle to one of them
//! (design §3).
//!
//! A read point is a seqno in a list. It does not pin any data structure. Instead, a compaction keeps the versions that
//! are visible at each live read point ([`Stripes`]).
//!
//! Invariants: no registered read point is above `visible`. `visible` never decreases while the store is open. Each
//! entry of the list has at least one registration that still exists.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::sync::{
    AtomicU64, Mutex,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use crate::base::{SeededBug, Seqno};
use crate::device::Process;
use crate::resolve::Stripes;

/// The registered read points of a store.
#[derive(Debug, Default)]
pub(crate) struct Snapshots {
    live: Mutex<BTreeMap<Seqno, usize>>,
    /// Every message up to this seqno is applied and may be read.
    visible: AtomicU64,
    /// A forked child must not use the list, because a thread that exists only in the parent may hold the lock of the
    /// list.
    made_in: Process,
}

impl Snapshots {
    /// The newest read point.
    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Acquire))
    }

    /// Sets the newest read point. REQUIRES: no other thread reads or writes, as during an opening.
    pub(crate) fn set_visible(&self, seqno: Seqno) {
        self.visible.store(seqno.0, Release);
    }

    /// Advances the newest read point to `seqno`, unless it is already higher. REQUIRES: every message up to `seqno` is
    /// applied.
    pub(crate) fn advance(&self, seqno: Seqno) {
        if self.visible.load(Relaxed) < seqno.0 {
            self.visible.fetch_max(seqno.0, AcqRel);
        }
    }

    /// Registers the newest read point. The lock orders this call relative to [`Snapshots::stripes`]. If a compaction
    /// does not know the new read point, no message newer than this read point was visible when the compaction started.
    pub(crate) fn register(self: &Arc<Self>) -> Registered {
        if !self.made_in.is_current() {
            return Registered { seqno: self.visible(), of: self.clone() };
        }
        let mut live = self.live.lock();
        let seqno = Seqno(self.visible().0 + u64::from(SeededBug::SnapshotOffByOne.is_on()));
        *live.entry(seqno).or_default() += 1;
        Registered { seqno, of: self.clone() }
    }

    /// Registers an already registered read point once more.
    fn again(self: &Arc<Self>, seqno: Seqno) -> Registered {
        if self.made_in.is_current() {
            let mut live = self.live.lock();
            let count = live.get_mut(&seqno).expect("a read point that is cloned is registered");
            *count += 1;
        }
        Registered { seqno, of: self.clone() }
    }

    /// Returns the read points whose visible versions a compaction that starts now must keep.
    pub(crate) fn stripes(&self) -> Stripes {
        let live = self.live.lock();
        let snapshots = live.keys().copied().filter(|_| !SeededBug::SnapshotsIgnored.is_on()).collect();
        debug_assert!(live.values().all(|count| *count > 0), "only registered read points are in the list");
        Stripes { snapshots, horizon: self.visible() }
    }

    /// Returns the oldest registered read point, or the newest read point if none is registered.
    pub(crate) fn oldest(&self) -> Seqno {
        let live = self.live.lock();
        live.first_key_value().map_or_else(|| self.visible(), |(oldest, _)| *oldest)
    }

    /// Returns the number of registrations that exist at the moment.
    pub(crate) fn len(&self) -> usize {
        self.live.lock().values().sum()
    }
}

/// The registration of a read point. Dropping it removes the registration.
#[derive(Debug)]
pub(crate) struct Registered {
    seqno: Seqno,
    of: Arc<Snapshots>,
}

impl Registered {
    /// The read point.
    pub(crate) fn seqno(&self) -> Seqno {
        self.seqno
    }

    /// Returns whether the read point belongs to this store.
    pub(crate) fn is_of(&self, snapshots: &Arc<Snapshots>) -> bool {
        Arc::ptr_eq(&self.of, snapshots)
    }
}

impl Clone for Registered {
    fn clone(&self) -> Registered {
        self.of.again(self.seqno)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        if !self.of.made_in.is_current() {
            return;
        }
        let mut live = self.of.live.lock();
        let count = live.get_mut(&self.seqno);
        debug_assert!(count.is_some(), "the read point {} is registered until its last drop", self.seqno);
        if let Some(count) = count {
            debug_assert!(*count > 0, "the count of an entry is at least 1");
            *count -= 1;
            if *count == 0 {
                live.remove(&self.seqno);
            }
        }
    }
}

/// A consistent view of all keyspaces of a store at one moment. Creating, cloning and holding a snapshot is cheap,
/// because no data is copied. The versions that the snapshot sees stay on disk until the snapshot is dropped.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// let store = pandodb::Store::open(&path)?;
/// let ks = store.keyspace("default")?;
/// ks.put(b"k", b"old")?;
/// let then = store.snapshot();
/// ks.put(b"k", b"new")?;
/// assert_eq!(ks.at(&then).get(b"k")?.unwrap(), b"old");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Snapshot(pub(crate) Arc<Registered>);

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("seqno", &self.seqno()).finish()
    }
}

impl Snapshot {
    /// The sequence number of the snapshot: all writes up to this number are visible.
    pub fn seqno(&self) -> u64 {
        self.0.seqno().0
    }
}
