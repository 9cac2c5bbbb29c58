//! The page buffer (000 §5.1.2): pages in memory, and five ways to find and to replace them.
//!
//! | name | table | a hit | a miss | victims |
//! | --- | --- | --- | --- | --- |
//! | [`2q`](two_queue::TwoQueue) | one | shared lock, and the mutex of the queues | restarts exclusively | FIFO before LRU |
//! | [`2q-sharded`](sharded::Sharded) | 64 shards | shared lock of a shard | mutex of the policy | the same, queue updates deferred |
//! | [`clock`](sharded::Sharded) | 64 shards | shared lock of a shard | mutex of the policy | a hand over a ring |
//! | [`clock-swizzled`](swizzled::Swizzled) | 64 shards | no lock: hint of the parent | mutex of the policy | the same |
//! | [`optimal`](optimal::Optimal) | none | no lock | – | none: everything is in memory |
//!
//! Steps of a request: find the frame in the table, count a pin while the table is locked, release the table, take the
//! latch. A miss first frees a frame: it chooses an unpinned victim, writes it to disk if it is dirty, and empties its
//! frame after this I/O, unless the victim was pinned or changed meanwhile (`frame`). Then it checks that no other thread
//! has loaded the requested page.
//!
//! Invariants:
//!
//! * No lock of the table or of a policy is held during I/O.
//! * A page that is being loaded is in the table already, under its exclusive latch. The source re-checks only that the
//!   page is not in the table after the read. Between the read and the check, another thread could load, change and
//!   evict the page, and the check would then install the old bytes.
//! * A dirty victim is removed from the table after its write has ended, so a later read finds the new bytes.
//! * If all frames are pinned, a request gets a frame above the capacity (counted); later misses evict until the
//!   capacity is kept again. The source stops with an error instead. A flush pins a node of each branch that it has
//!   reached, so a small buffer would fail.
//! * After a failed read or write all further requests fail. A request that already waits for the latch of a page whose
//!   read fails may see an incomplete page. So a tree has to be dropped after an error, and no result of other threads
//!   since then is valid.

pub mod optimal;
mod queues;
mod replacement;
pub mod sharded;
mod store;
pub mod swizzled;
pub mod two_queue;

#[cfg(all(test, not(feature = "explore")))]
mod tests;

use std::path::Path;

use crate::error::Result;
use crate::frame::{PageNo, Pinned, ReadPage, WritePage};
use crate::hints::{Child, Hints};

/// What a buffer has done since its creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pages that were read from disk.
    pub reads: u64,
    /// Pages that were written to disk.
    pub writes: u64,
    /// Pages that were evicted.
    pub evictions: u64,
    /// Evictions that started again, because the victim or the requested page was used during the write.
    pub restarts: u64,
    /// Requests that got a frame above the capacity.
    pub overflows: u64,
    /// Pages that exist.
    pub pages: u64,
}

impl Counts {
    /// What was done since `before`.
    #[must_use]
    pub fn since(&self, before: &Counts) -> Counts {
        Counts {
            reads: self.reads - before.reads,
            writes: self.writes - before.writes,
            evictions: self.evictions - before.evictions,
            restarts: self.restarts - before.restarts,
            overflows: self.overflows - before.overflows,
            pages: self.pages,
        }
    }
}

/// A parent whose latch was released, and its child. Both are pinned.
#[derive(Debug)]
pub struct Released<'a> {
    /// The parent.
    pub parent: Pinned<'a>,
    /// The version that the parent had while it was latched.
    pub version: u64,
    /// The child.
    pub child: Pinned<'a>,
}

/// A page buffer.
pub trait PageBuffer: Send + Sync + std::fmt::Debug {
    /// Pins a page, and loads it first if it is not in memory.
    ///
    /// # Errors
    /// The errors of the file.
    fn pin(&self, page: PageNo) -> Result<Pinned<'_>>;

    /// Creates a page of zero bytes. It is latched exclusively.
    ///
    /// # Errors
    /// The errors of the file.
    fn create(&self) -> Result<WritePage<'_>>;

    /// What was done so far.
    fn counts(&self) -> Counts;

    /// Pins a child of a page, which the caller has latched, and loads it first if it is not in memory. `hints` are those
    /// of the parent.
    ///
    /// # Errors
    /// The errors of the file.
    fn pin_child(&self, hints: &Hints, child: Child) -> Result<Pinned<'_>> {
        let _ = hints;
        self.pin(child.no)
    }

    /// Pins a child of `parent`, whose latch it releases before it waits for I/O.
    ///
    /// # Errors
    /// The errors of the file.
    fn pin_child_unlatched<'a>(&'a self, parent: ReadPage<'a>, child: Child) -> Result<Released<'a>> {
        let (parent, version) = parent.unlatch();
        Ok(Released { parent, version, child: self.pin(child.no)? })
    }

    /// Pins a page and latches it, shared.
    ///
    /// # Errors
    /// The errors of the file.
    #[inline]
    fn read(&self, page: PageNo) -> Result<ReadPage<'_>> {
        Ok(self.pin(page)?.read())
    }

    /// Pins a page and latches it exclusively.
    ///
    /// # Errors
    /// The errors of the file.
    #[inline]
    fn write(&self, page: PageNo) -> Result<WritePage<'_>> {
        Ok(self.pin(page)?.write())
    }
}

/// The kinds of page buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferKind {
    /// 2Q under one reader-writer lock, as in the source.
    TwoQueue,
    /// 2Q with a sharded table and deferred queue updates.
    TwoQueueSharded,
    /// CLOCK with a sharded table.
    Clock,
    /// CLOCK with a sharded table, and hints from parents to the frames of their children.
    Swizzled,
    /// Everything in memory, no file.
    Optimal,
}

impl BufferKind {
    /// All kinds.
    pub const ALL: [BufferKind; 5] = [
        BufferKind::TwoQueue,
        BufferKind::TwoQueueSharded,
        BufferKind::Clock,
        BufferKind::Swizzled,
        BufferKind::Optimal,
    ];

    /// The name in tables and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            BufferKind::TwoQueue => "2q",
            BufferKind::TwoQueueSharded => "2q-sharded",
            BufferKind::Clock => "clock",
            BufferKind::Swizzled => "clock-swizzled",
            BufferKind::Optimal => "optimal",
        }
    }
}

/// How a buffer is created.
#[derive(Clone, Copy, Debug)]
pub struct BufferConfig {
    /// The kind.
    pub kind: BufferKind,
    /// Bytes of a page.
    pub page: usize,
    /// The number of pages in memory; [`BufferKind::Optimal`] ignores it.
    pub frames: usize,
    /// Whether the file bypasses the page cache of the system (`O_DIRECT`).
    pub direct: bool,
}

/// Creates a buffer. Its file is `path`, which [`BufferKind::Optimal`] does not use.
///
/// # Errors
/// The errors of creating the file.
pub fn create(config: &BufferConfig, path: &Path) -> Result<Box<dyn PageBuffer>> {
    Ok(match config.kind {
        BufferKind::TwoQueue => Box::new(two_queue::TwoQueue::create(config, path)?),
        BufferKind::TwoQueueSharded => {
            Box::new(sharded::Sharded::create(config, path, replacement::Policy::two_queue())?)
        }
        BufferKind::Clock => Box::new(sharded::Sharded::create(config, path, replacement::Policy::clock())?),
        BufferKind::Swizzled => Box::new(swizzled::Swizzled::create(config, path)?),
        BufferKind::Optimal => Box::new(optimal::Optimal::new(config.page)),
    })
}
