//! Snapshots: registered read points (design §3). A snapshot is a number in a list and pins nothing; compactions keep,
//! for each stripe between live snapshots, what a reader at them sees.

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
    /// Everything up to here is applied and may be read.
    visible: AtomicU64,
    /// In a forked child the list is left alone: its lock may be held by a thread that is not there.
    made_in: Process,
}

impl Snapshots {
    /// The newest read point.
    pub(crate) fn visible(&self) -> Seqno {
        Seqno(self.visible.load(Acquire))
    }

    /// Sets the newest read point, while nobody writes: when a store opens.
    pub(crate) fn set_visible(&self, seqno: Seqno) {
        self.visible.store(seqno.0, Release);
    }

    /// Moves the newest read point, unless it is further already. Any thread may, once it has seen everything up to `seqno`
    /// applied.
    pub(crate) fn advance(&self, seqno: Seqno) {
        if self.visible.load(Relaxed) < seqno.0 {
            self.visible.fetch_max(seqno.0, AcqRel);
        }
    }

    /// Registers the newest read point. The lock orders it against [`Snapshots::stripes`]: a compaction that does not
    /// know the new read point started when nothing newer than it was visible.
    pub(crate) fn register(self: &Arc<Self>) -> Registered {
        if !self.made_in.is_current() {
            return Registered { seqno: self.visible(), of: self.clone() };
        }
        let mut live = self.live.lock();
        let seqno = Seqno(self.visible().0 + u64::from(SeededBug::SnapshotOffByOne.is_on()));
        *live.entry(seqno).or_default() += 1;
        Registered { seqno, of: self.clone() }
    }

    /// Registers a read point that is registered already.
    fn again(self: &Arc<Self>, seqno: Seqno) -> Registered {
        if self.made_in.is_current() {
            *self.live.lock().entry(seqno).or_default() += 1;
        }
        Registered { seqno, of: self.clone() }
    }

    /// The read points that a compaction which starts now must keep exact.
    pub(crate) fn stripes(&self) -> Stripes {
        let live = self.live.lock();
        let snapshots = live.keys().copied().filter(|_| !SeededBug::SnapshotsIgnored.is_on()).collect();
        Stripes { snapshots, horizon: self.visible() }
    }

    /// How many read points are registered.
    pub(crate) fn len(&self) -> usize {
        self.live.lock().values().sum()
    }
}

/// A registered read point; dropping it takes it off the list.
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

    /// Whether it belongs to this store.
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
        if let Some(count) = live.get_mut(&self.seqno) {
            *count -= 1;
            if *count == 0 {
                live.remove(&self.seqno);
            }
        }
    }
}

/// A consistent view of all keyspaces of a store at one moment. Cheap to take, to clone and to hold: it copies nothing,
/// but versions that it sees are kept on disk until it is dropped.
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
    /// The read point: everything up to this sequence number is visible.
    pub fn seqno(&self) -> u64 {
        self.0.seqno().0
    }
}
