//! [`FrameKey`]: how a cached block is known.

use crate::base::{OwnerId, PageNo, SeededBug};

/// Who wrote the block, and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameKey {
    owner: OwnerId,
    page: PageNo,
}

impl FrameKey {
    /// The key of no block: nobody has this number.
    pub(super) const NONE: FrameKey = FrameKey { owner: OwnerId(u64::MAX), page: PageNo(u64::MAX) };

    /// The key of a block.
    #[inline]
    pub(super) fn new(owner: OwnerId, page: PageNo) -> FrameKey {
        FrameKey { owner: if SeededBug::PoolForgetsOwner.is_on() { OwnerId(0) } else { owner }, page }
    }

    /// All 64 bits are usable, and one is set. Neither number is chosen by a user, so nothing stronger is needed.
    #[inline]
    pub(super) fn hash(self) -> u64 {
        let mixed = (self.owner.0.rotate_left(32) ^ self.page.0).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ (mixed >> 32)) | 1 << 63
    }
}
