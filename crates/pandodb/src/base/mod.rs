//! The types that every layer shares: identities, messages, key ranges, errors, codecs.
//!
//! No code of this module does I/O. The submodule [`sync`] chooses the lock types of all layers. A type belongs in this
//! module if two layers pass it to each other. A type that only one layer needs belongs in that layer.
//!
//! Keys are ordered bytewise, and this order never changes. Messages are ordered by **user key ascending, then seqno
//! descending**, so the newest message of a key comes first in every list of messages.

pub mod block;
pub mod cause;
pub mod codec;
pub mod cover;
pub mod error;
pub mod events;
pub mod fragments;
pub mod ghosts;
pub mod ids;
pub mod key_codec;
pub mod large;
pub mod message;
pub mod random;
pub mod range;
pub mod seeded;
pub mod slab;
pub mod spin;
pub mod sync;

pub use block::EntryBlock;
pub use cause::IoCause;
pub use cover::Cover;
pub use error::{Error, Result};
pub use fragments::{FragmentSet, FragmentSweep, Fragments};
pub use ghosts::Ghosts;
pub use ids::{BlockAddr, Extent, KeyspaceId, OwnerId, PageNo, Seqno, StoreId};
pub use key_codec::{HashedKey, KeyCodec};
pub use large::LargeVec;
pub use message::{BlobRef, Entry, Kind, RangeTombstone};
pub use range::{IntoKeyRange, KeyRange};
pub use seeded::{SeededBug, seeded};
pub use slab::{Slab, Slot};

/// The unit of allocation and of checked I/O, in bytes.
pub const PAGE: usize = 4096;
/// The number of pages in an extent (128 KiB), the unit in which runs are reference counted and freed.
pub const EXTENT_PAGES: u32 = 32;
/// The longest key that is accepted, in bytes.
pub const MAX_KEY: usize = 65_535;
/// The longest value, and the longest result of a merge operator, in bytes.
pub const MAX_VALUE: usize = 64 << 20;
/// The longest merge operand, in bytes. Operands are always stored inline.
pub const MAX_OPERAND: usize = 256 << 10;
/// The largest value that may be stored inline with its key, in bytes, whatever threshold the options specify.
pub const MAX_INLINE_VALUE: usize = 64 << 10;

/// The highest epoch that is accepted in a persisted structure. An opening for writing uses up to two epochs above the
/// highest epoch that it finds. So recovery fails above `MAX_EPOCH - 2`, and the log writes no epoch above `MAX_EPOCH`.
pub const MAX_EPOCH: u32 = u32::MAX - 2;

const _: () = assert!(PAGE.is_power_of_two() && EXTENT_PAGES.is_power_of_two(), "offsets are cut by masks");
const _: () = assert!(EXTENT_PAGES as usize * PAGE == 128 << 10, "the size of an extent is persisted");
const _: () = assert!(MAX_KEY <= u16::MAX as usize, "the length of a key fits into 16 bits");
const _: () = assert!(MAX_INLINE_VALUE <= MAX_OPERAND && MAX_OPERAND <= MAX_VALUE, "an inline message fits anywhere");
const _: () = assert!(MAX_VALUE.div_ceil(PAGE) <= u32::MAX as usize, "the pages of a large value are counted by `u32`");
const _: () = assert!(MAX_EPOCH < u32::MAX - 1, "a writable opening may add two epochs");

/// The 64-bit hash of a user key that every filter uses (xxh3, seed 0).
#[inline]
pub fn key_hash(key: &[u8]) -> u64 {
    xxhash_rust::xxh3::xxh3_64(key)
}
