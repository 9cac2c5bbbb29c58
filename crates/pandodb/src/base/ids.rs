//! Newtypes for every number that could be mistaken for another, and the addresses that are built from them.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

id! {
    /// A sequence number: the position of a message in the total order of all writes of a store. The number 0 is lower
    /// than the sequence number of every write.
    Seqno(u64)
}
id! {
    /// The identity of a keyspace. An identity is never reused, not even after the keyspace is dropped.
    KeyspaceId(u32)
}
id! {
    /// The identity of an owner of blocks in the data file: a run, a node of a tree, or the catalogue of a generation.
    /// The checksum of a block covers its owner, so a block that another owner wrote fails verification. Runs and nodes
    /// draw their numbers from one counter, and a store never reuses a number.
    OwnerId(u64)
}
id! {
    /// A 4 KiB page of the data file. The byte offset of the page is `4096 ×` the number.
    PageNo(u64)
}

impl OwnerId {
    /// The owner under which large values are cached. No block on disk has this owner, and no owner draws this number.
    pub const VALUES: OwnerId = OwnerId(u64::MAX - 1);
}

impl Seqno {
    /// A number above every sequence number that is ever assigned. A read at this seqno sees all writes.
    pub const MAX: Seqno = Seqno(u64::MAX >> 1);

    /// No seqno: the first message of a store has seqno 1. The entries of a sorted load have this seqno until the load
    /// is attached.
    pub const UNASSIGNED: Seqno = Seqno(0);

    /// The highest seqno that is accepted in a persisted structure. No store reaches this seqno. The numbers between it
    /// and [`Seqno::MAX`] stay unused.
    pub const BELIEVED: Seqno = Seqno(u64::MAX >> 2);

    /// The next higher sequence number.
    #[inline]
    pub fn next(self) -> Seqno {
        debug_assert!(self <= Seqno::MAX, "no store reaches this seqno");
        Seqno(self.0 + 1)
    }
}

const _: () = assert!(Seqno::MAX.0 - Seqno::BELIEVED.0 > Seqno::BELIEVED.0, "seqnos stay free above a persisted one");
const _: () = assert!(Seqno::MAX.0 < u64::MAX, "a seqno after the last one can be represented");

impl PageNo {
    /// The byte offset of the page in the data file.
    #[inline]
    pub fn offset(self) -> u64 {
        self.0 * super::PAGE as u64
    }
}

/// A block of the data file: its first page and its number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockAddr {
    /// The first page.
    pub page: PageNo,
    /// The number of pages, at least 1.
    pub pages: u32,
}

impl BlockAddr {
    /// The length of the block in bytes.
    #[inline]
    pub fn bytes(self) -> usize {
        self.pages as usize * super::PAGE
    }

    /// Whether all pages of `other` are pages of this block.
    #[inline]
    pub fn covers(self, other: BlockAddr) -> bool {
        let end = |addr: BlockAddr| addr.page.0 + u64::from(addr.pages);
        self.page <= other.page && end(other) <= end(self)
    }
}

/// A contiguous range of pages that was allocated or freed as one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Extent {
    /// The first page.
    pub start: PageNo,
    /// The number of pages.
    pub pages: u32,
}

impl Extent {
    /// The number of the page after the last page.
    #[inline]
    pub fn end(self) -> u64 {
        self.start.0 + u64::from(self.pages)
    }

    /// The length in bytes.
    #[inline]
    pub fn bytes(self) -> u64 {
        u64::from(self.pages) * super::PAGE as u64
    }
}

/// The identity of a store. The identity is drawn at random when the store is created, and is part of every checksum.
/// So a block of another store fails verification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StoreId(pub [u8; 16]);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
