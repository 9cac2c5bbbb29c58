//! [`Value`] is a byte string that is returned to a caller, without a copy where possible.
//!
//! A value owns its bytes, or points into a cached block, into the buffer of a large value or into a block of a scan.
//! If it points into a block or buffer, it keeps this block or buffer in memory. A value of at most 1 KiB from a cached
//! block is copied, because a copy is cheaper than a pin: all readers contend for the pool's counter of pins. When a
//! quarter of the pool is pinned, all new values from cached blocks are copied. Therefore callers that hold many values
//! cannot pin the whole cache.
//!
//! Invariant: the range of a value is inside the bytes that the value points into.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::base::EntryBlock;
use crate::device::AlignedBuf;
use crate::pool::{Block, Pool};

/// Immutable bytes: a key or a value. Cloning is cheap; `Deref` returns the bytes. A `Value` compares, orders and
/// hashes like its bytes, so a map with `Value` keys can be searched with a slice.
///
/// A `Value` of more than 1 KiB may pin the block of 4 KiB to 64 KiB in the cache that contains it. A `Value` from an
/// iterator keeps the iterator's block of up to 64 KiB in memory; a large value from an iterator keeps up to 256 KiB. To hold many values for a long time, copy them
/// ([`Value::to_vec`]).
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("s");
/// let store = pandodb::Store::open(&path)?;
/// let ks = store.keyspace("default")?;
/// ks.put(b"k", b"v")?;
/// let value = ks.get(b"k")?.expect("just written");
/// assert_eq!(&*value, b"v");
///
/// let mut seen = std::collections::HashMap::new();
/// seen.insert(value, 1);
/// assert_eq!(seen.get(b"v".as_slice()), Some(&1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Value(Repr);

#[derive(Clone)]
enum Repr {
    Owned(Arc<[u8]>),
    /// A part of a pinned block of the pool, or of a large value. A trait object hides the atomic counters inside:
    /// otherwise clippy would warn about maps with `Value` keys in users' programs (`clippy::mutable_key_type`).
    Held(Arc<dyn Deref<Target = [u8]> + Send + Sync>, Range<usize>),
    Batch(Arc<EntryBlock>, Range<usize>),
}

/// Values of at most this number of bytes are copied instead of pinned. Copying 1 KiB takes about as long as one
/// contended update of the pool's counter of pins.
const COPIED: usize = 1024;

impl Value {
    /// Makes a value that owns `bytes`.
    pub(crate) fn owned(bytes: Vec<u8>) -> Value {
        Value(Repr::Owned(bytes.into()))
    }

    /// Makes a value of bytes that are already shared.
    pub(crate) fn shared(bytes: Arc<[u8]>) -> Value {
        Value(Repr::Owned(bytes))
    }

    /// Makes a value from a part of a cached block. REQUIRES: `range` is inside the block.
    pub(crate) fn in_block(pool: &Pool, block: Block, range: Range<usize>) -> Value {
        debug_assert!(range.start <= range.end && range.end <= block.len(), "{range:?} of {} bytes", block.len());
        if range.len() <= COPIED || pool.should_copy() {
            return Value(Repr::Owned(block[range].into()));
        }
        Value(Repr::Held(Arc::new(block.pin()), range))
    }

    /// Makes a value from a part of a block of a scan. REQUIRES: `range` is inside the block.
    pub(crate) fn in_batch(batch: Arc<EntryBlock>, range: Range<usize>) -> Value {
        let len = batch.raw().len();
        debug_assert!(range.start <= range.end && range.end <= len, "{range:?} of {len} bytes");
        Value(Repr::Batch(batch, range))
    }

    /// Returns the same bytes without the first `count` bytes. REQUIRES: the value has at least `count` bytes.
    pub(crate) fn without_prefix(self, count: usize) -> Value {
        debug_assert!(count <= self.len(), "a prefix of {count} in {} bytes", self.len());
        match self.0 {
            whole if count == 0 => Value(whole),
            Repr::Owned(bytes) => Value(Repr::Owned(bytes[count..].into())),
            Repr::Held(bytes, range) => Value(Repr::Held(bytes, range.start + count..range.end)),
            Repr::Batch(batch, range) => Value(Repr::Batch(batch, range.start + count..range.end)),
        }
    }

    /// Makes a value from the first `len` bytes of `buf`, which are a large value without its padding.
    pub(crate) fn blob(buf: AlignedBuf, len: usize) -> Value {
        assert!(len <= buf.len(), "a large value of {len} in {} bytes", buf.len());
        Value(Repr::Held(Arc::new(buf), 0..len))
    }

    /// Makes a value from a part of a buffer that other values share. REQUIRES: `range` is inside the buffer.
    pub(crate) fn in_buffer(buf: Arc<AlignedBuf>, range: Range<usize>) -> Value {
        debug_assert!(range.start <= range.end && range.end <= buf.len(), "{range:?} of {} bytes", buf.len());
        Value(Repr::Held(buf, range))
    }

    /// Returns a copy of the bytes.
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
            Repr::Held(held, range) => &held[range.clone()],
            Repr::Batch(batch, range) => &batch.raw()[range.clone()],
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

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    /// Bytewise order, which is the order of keys.
    fn cmp(&self, other: &Value) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl Borrow<[u8]> for Value {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl From<Value> for Vec<u8> {
    fn from(value: Value) -> Vec<u8> {
        value.to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{BTreeSet, HashSet};

    #[test]
    fn a_value_orders_and_hashes_as_its_bytes_whatever_holds_them() {
        let mut block = EntryBlock::new();
        for key in [b"b".as_slice(), b"ab"] {
            let (seqno, kind) = (crate::base::Seqno(1), crate::base::Kind::Put);
            block.push(crate::base::Entry { key, seqno, kind, value: b"" });
        }
        let block = Arc::new(block);
        let values = vec![
            Value::in_batch(block.clone(), block.places(0).0),
            Value::in_batch(block.clone(), block.places(1).0),
            Value::owned(b"a".to_vec()),
            Value::blob(AlignedBuf::from_bytes(b"c"), 1),
        ];
        let bytes: Vec<Vec<u8>> = values.iter().map(Value::to_vec).collect();
        let hashed: HashSet<Value> = values.iter().cloned().collect();
        let ordered: BTreeSet<Value> = values.into_iter().collect();
        for each in &bytes {
            assert!(hashed.contains(each.as_slice()) && ordered.contains(each.as_slice()), "{each:?}");
        }
        assert!(!hashed.contains(b"d".as_slice()));
        let sorted: BTreeSet<Vec<u8>> = bytes.into_iter().collect();
        assert!(ordered.iter().map(Value::to_vec).eq(sorted));
    }
}
