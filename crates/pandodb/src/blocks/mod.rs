//! Requests, loads, checks and caches blocks for all kinds of owners.
//!
//! ```text
//!   probe or cursor ──▶ BlockRequest { source, addr, kind, optional }
//!                             │ one at a time: BlockRequest::load    several concurrently: BlockLoads
//!                             ▼
//!   BlockSource (a run, a page tree, a hash table):  in the pool? ── no ─▶ read, check, cache
//! ```
//!
//! 1. A structure that owns blocks is a [`BlockSource`]. A source finds its blocks in the pool, decides which
//!    neighbours to read along with a block, and checks a block before caching it.
//! 2. A lookup does no I/O. The lookup returns a [`BlockRequest`], and the caller loads the block, immediately or
//!    concurrently with the blocks of other lookups ([`BlockLoads`]).
//! 3. A request can be *optional*. If an optional block cannot be read, the lookup still finds the right result, but
//!    with more reads. Filters are optional.
//!
//! Invariant: the pool holds only checked blocks. A source checks a block before it returns or caches it.

mod loads;

pub use self::loads::{BlockLoads, Loaded, Need};

use std::sync::Arc;

use crate::base::{BlockAddr, OwnerId, Result};
use crate::device::AlignedBuf;
use crate::pool::{Block, Pool};
use crate::space::{BlockKind, DataFile};

/// An object that owns blocks of the data file and can check them.
pub trait BlockSource: Send + Sync {
    /// The owner. The owner is part of the checksums of the blocks, and of their keys in the pool.
    fn owner(&self) -> OwnerId;

    /// The file that contains the blocks.
    fn data(&self) -> &Arc<DataFile>;

    /// The pool that caches the blocks.
    fn pool(&self) -> &Pool;

    /// The block at `addr`, if the pool has it.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption) if the cached block is not of kind `kind`.
    fn cached(&self, addr: BlockAddr, kind: BlockKind) -> Result<Option<Block>>;

    /// The pages to read for a block that the pool lacks: the block alone, or with neighbours that are worth caching.
    fn read_with(&self, addr: BlockAddr, _kind: BlockKind) -> BlockAddr {
        addr
    }

    /// Extracts the block at `addr` from `buf`, which holds the pages at `read`. Checks, unpacks and caches the block.
    /// If the pages could not be read, or a neighbour fails a check, the requested block is read alone, so that a
    /// returned error always concerns this block.
    ///
    /// # Errors
    /// An I/O error, or [`Error::Corruption`](crate::Error::Corruption) if the block is not a valid block of kind
    /// `kind` and of this owner.
    fn admit(&self, read: BlockAddr, buf: Result<AlignedBuf>, addr: BlockAddr, kind: BlockKind) -> Result<Block>;

    /// The block at `addr`, from the pool or from disk, checked.
    ///
    /// # Errors
    /// The errors of [`BlockSource::admit`].
    #[inline]
    fn load(&self, addr: BlockAddr, kind: BlockKind) -> Result<Block> {
        match self.cached(addr, kind)? {
            Some(block) => Ok(block),
            None => {
                let read = self.read_with(addr, kind);
                self.admit(read, self.data().read(read), addr, kind)
            }
        }
    }
}

/// A block that a lookup needs next.
#[derive(Clone, Copy)]
pub struct BlockRequest<'v> {
    /// The owner of the block.
    pub source: &'v dyn BlockSource,
    /// The address of the block.
    pub addr: BlockAddr,
    /// The kind of the block.
    pub kind: BlockKind,
    /// Whether the lookup can continue without the block if the block is damaged.
    pub optional: bool,
}

impl BlockRequest<'_> {
    /// Loads the block. Returns `None` if the block is optional and damaged.
    ///
    /// # Errors
    /// The errors of [`BlockSource::load`].
    #[inline]
    pub fn load(&self) -> Result<Option<Block>> {
        self.accept(self.source.load(self.addr, self.kind))
    }

    /// Converts the result of loading the block: `None` if the block is optional and damaged.
    ///
    /// # Errors
    /// The error of loading, unless the block is optional and damaged.
    #[inline]
    pub fn accept(&self, loaded: Result<Block>) -> Result<Option<Block>> {
        match loaded {
            Err(e) if self.optional && e.is_damage() => Ok(None),
            loaded => loaded.map(Some),
        }
    }
}

impl std::fmt::Debug for BlockRequest<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BlockRequest({:?} of {} at {:?})", self.kind, self.source.owner(), self.addr)
    }
}
