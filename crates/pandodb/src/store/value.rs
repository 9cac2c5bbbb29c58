//! [`Value`]: bytes handed to a caller without copying them where that is safe.
//!
//! A value points into a cached block, into a batch of a scan, or owns its bytes. It pins what it points into. A small one
//! owns a copy: that costs less than to count the pin, which all readers would count in one place. Once a
//! quarter of the pool is pinned, so do all new ones: a caller who keeps many cannot starve the cache.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::base::EntryBlock;
use crate::device::AlignedBuf;
use crate::pool::{Block, PinnedBlock, Pool};

/// Immutable bytes: a key or a value. Cloning is cheap; `Deref` gives the bytes.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let store = pandodb::Store::open(dir.path().join("s"))?;
/// let ks = store.keyspace("default")?;
/// ks.put(b"k", b"v")?;
/// let value = ks.get(b"k")?.expect("just written");
/// assert_eq!(&*value, b"v");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Owned(Arc<[u8]>),
    Block(Arc<PinnedBlock>, Range<usize>),
    Batch(Arc<EntryBlock>, Range<usize>),
    Blob(Arc<AlignedBuf>, usize),
}

/// The longest value that is copied rather than pinned, in bytes. To copy so many takes about as long as to meet another
/// reader at the pool's count of pins.
const COPIED: usize = 1024;

impl Value {
    pub(crate) fn owned(bytes: Vec<u8>) -> Value {
        Value(Repr::Owned(bytes.into()))
    }

    pub(crate) fn in_block(pool: &Pool, block: Block, range: Range<usize>) -> Value {
        if range.len() <= COPIED || pool.should_copy() {
            return Value(Repr::Owned(block[range].into()));
        }
        Value(Repr::Block(Arc::new(block.pin()), range))
    }

    pub(crate) fn in_batch(batch: &Arc<EntryBlock>, range: Range<usize>) -> Value {
        Value(Repr::Batch(batch.clone(), range))
    }

    pub(crate) fn blob(buf: AlignedBuf, len: usize) -> Value {
        Value(Repr::Blob(Arc::new(buf), len))
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        self.deref().to_vec()
    }
}

impl Deref for Value {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Repr::Owned(bytes) => bytes,
            Repr::Block(block, range) => &block[range.clone()],
            Repr::Batch(batch, range) => &batch.raw()[range.clone()],
            Repr::Blob(buf, len) => &buf[..*len],
        }
    }
}

impl AsRef<[u8]> for Value {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

impl<T: AsRef<[u8]> + ?Sized> PartialEq<T> for Value {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl Eq for Value {}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.to_vec()
    }
}
