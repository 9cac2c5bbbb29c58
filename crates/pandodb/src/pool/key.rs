//! [`FrameKey`]: identifies a cached block by its owner and its first page.
//!
//! Owners' identities are never reused within a store. So when a page was freed and then written by another owner, the
//! new block has another key than the old one, and a lookup of the new key cannot return the old block (002 §3.6.1).
//! Invariant: [`FrameKey::hash`] is never 0, because 0 marks a frame that is in no chain.

use crate::base::{OwnerId, PageNo};

/// The owner that wrote a block, and the block's first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameKey {
    owner: OwnerId,
    page: PageNo,
}

impl FrameKey {
    /// The key of no block. No owner has this number.
    pub(super) const NONE: FrameKey = FrameKey { owner: OwnerId(u64::MAX), page: PageNo(u64::MAX) };

    /// The key of a block.
    #[inline]
    pub(super) fn new(owner: OwnerId, page: PageNo) -> FrameKey {
        FrameKey { owner, page }
    }

    /// A 64-bit hash of the key. The highest bit is always set, so that the hash is not 0; the other bits are all well
    /// mixed. Users do not choose owners or pages, so a hash that resists chosen keys is not needed.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        let mixed = (self.owner.0.rotate_left(32) ^ self.page.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)) | 1 << 63
    }
}
