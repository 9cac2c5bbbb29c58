//! Half-open ranges of keys, and the types that methods accept for them: [`IntoKeyRange`].

use std::ops::{Bound, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};
use std::sync::Arc;

/// All keys with `from ≤ key < to`. An empty `from` is below every key, and an empty `to` is above every key. An empty
/// bound cannot be mistaken for a key, because a key has at least one byte.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The first key of the range.
    pub from: Vec<u8>,
    /// The first key after the range in key order; an empty `to` means that there is no upper bound.
    pub to: Vec<u8>,
}

/// Compares two upper bounds; an empty bound is above all others.
fn cmp_upper(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => std::cmp::Ordering::Equal,
        (true, false) => std::cmp::Ordering::Greater,
        (false, true) => std::cmp::Ordering::Less,
        (false, false) => a.cmp(b),
    }
}

impl KeyRange {
    /// Every key.
    pub fn all() -> KeyRange {
        KeyRange::default()
    }

    /// No key.
    pub fn none() -> KeyRange {
        KeyRange::new([0], [0])
    }

    /// The keys from `from` (inclusive) to `to` (exclusive; an empty `to` means no upper bound).
    pub fn new(from: impl Into<Vec<u8>>, to: impl Into<Vec<u8>>) -> KeyRange {
        KeyRange { from: from.into(), to: to.into() }
    }

    /// The range of one key.
    pub fn point(key: &[u8]) -> KeyRange {
        let range = KeyRange { from: key.to_vec(), to: successor(key) };
        debug_assert!(range.contains(key) && !range.contains(&range.to), "the range holds one key");
        range
    }

    /// The keys that start with `prefix`. An empty prefix matches every key.
    pub fn prefix(prefix: &[u8]) -> KeyRange {
        let mut to = prefix.to_vec();
        while let Some(last) = to.last_mut() {
            if *last < 0xff {
                *last += 1;
                break;
            }
            to.pop();
        }
        debug_assert!(to.is_empty() || prefix < to.as_slice(), "the range holds the prefix");
        KeyRange { from: prefix.to_vec(), to }
    }

    /// Converts a Rust range of byte strings to a half-open range.
    ///
    /// ```
    /// use pandodb::KeyRange;
    /// assert_eq!(KeyRange::from_bounds(b"a"..=b"b"), KeyRange::new(*b"a", *b"b\0"));
    /// assert_eq!(KeyRange::from_bounds(..), KeyRange::all());
    /// ```
    pub fn from_bounds(bounds: impl IntoKeyRange) -> KeyRange {
        bounds.into_key_range()
    }

    fn between<K: AsRef<[u8]>>(bounds: &impl RangeBounds<K>) -> KeyRange {
        let from = match bounds.start_bound() {
            Bound::Included(key) => key.as_ref().to_vec(),
            Bound::Excluded(key) => successor(key.as_ref()),
            Bound::Unbounded => Vec::new(),
        };
        match bounds.end_bound() {
            Bound::Included(key) => KeyRange { from, to: successor(key.as_ref()) },
            // No key is below the empty key, so the range is empty, not unbounded.
            Bound::Excluded(key) if key.as_ref().is_empty() => KeyRange { from: vec![0], to: vec![0] },
            Bound::Excluded(key) => KeyRange { from, to: key.as_ref().to_vec() },
            Bound::Unbounded => KeyRange { from, to: Vec::new() },
        }
    }

    /// Whether no key can be in the range.
    pub fn is_empty(&self) -> bool {
        !self.to.is_empty() && self.from >= self.to
    }

    /// Whether the range holds `key`.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        key >= self.from.as_slice() && self.is_above(key)
    }

    /// Whether `key` is below the upper bound.
    #[inline]
    pub fn is_above(&self, key: &[u8]) -> bool {
        self.to.is_empty() || key < self.to.as_slice()
    }

    /// The keys that are in both ranges (possibly none: see [`KeyRange::is_empty`]).
    pub fn intersect(&self, other: &KeyRange) -> KeyRange {
        let from = self.from.as_slice().max(other.from.as_slice());
        let to = if cmp_upper(&self.to, &other.to).is_le() { &self.to } else { &other.to };
        let both = KeyRange { from: from.to_vec(), to: to.clone() };
        debug_assert!(self.covers(&both) && other.covers(&both), "a common key is in both ranges");
        both
    }

    /// The keys of `shared` that are in this range: a reference to `shared` if these are all its keys.
    pub(crate) fn part_of(&self, shared: &Arc<KeyRange>) -> Arc<KeyRange> {
        let is_all = self.from <= shared.from && cmp_upper(&shared.to, &self.to).is_le();
        if is_all { shared.clone() } else { Arc::new(self.intersect(shared)) }
    }

    /// Whether some key can be in both ranges.
    pub fn overlaps(&self, other: &KeyRange) -> bool {
        !self.is_empty()
            && !other.is_empty()
            && (other.to.is_empty() || self.from < other.to)
            && (self.to.is_empty() || other.from < self.to)
    }

    /// Whether every key of `other` is in this range.
    pub fn covers(&self, other: &KeyRange) -> bool {
        other.is_empty() || (self.from <= other.from && cmp_upper(&other.to, &self.to).is_le())
    }
}

impl From<&KeyRange> for Arc<KeyRange> {
    fn from(range: &KeyRange) -> Arc<KeyRange> {
        Arc::new(range.clone())
    }
}

/// The arguments that a method accepts as a range of keys: `..`, `a..b`, `a..=b`, `a..`, `..b`, `..=b`, a pair of
/// [`Bound`]s, or a [`KeyRange`]. The type of a bound is any type that implements `AsRef<[u8]>`. This trait is sealed.
///
/// If methods accepted [`RangeBounds`] instead, `..` would not compile, because `..` names no key type.
///
/// ```
/// use pandodb::{IntoKeyRange, Keyspace};
/// use std::ops::Bound;
///
/// fn count(keyspace: &Keyspace, range: impl IntoKeyRange) -> Result<usize, pandodb::Error> {
///     keyspace.range(range).try_fold(0, |count, entry| entry.map(|_| count + 1))
/// }
///
/// let dir = tempfile::tempdir()?;
/// # let store = pandodb::Store::open(dir.path().join("s"))?;
/// let keyspace = store.keyspace("k")?;
/// for key in ["a", "b", "c"] {
///     keyspace.put(key, "")?;
/// }
/// assert_eq!(count(&keyspace, ..)?, 3);
/// assert_eq!(count(&keyspace, "b"..)?, 2);
/// assert_eq!(count(&keyspace, [b'a']..=[b'b'])?, 2);
/// assert_eq!(count(&keyspace, (Bound::Excluded("a"), Bound::Excluded("c")))?, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IntoKeyRange: sealed::Sealed {
    /// The half-open range of the same keys.
    fn into_key_range(self) -> KeyRange;
}

mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for RangeFull {}

impl IntoKeyRange for RangeFull {
    fn into_key_range(self) -> KeyRange {
        KeyRange::all()
    }
}

impl sealed::Sealed for KeyRange {}

impl IntoKeyRange for KeyRange {
    fn into_key_range(self) -> KeyRange {
        self
    }
}

/// Implements `IntoKeyRange` and `Sealed` for ranges whose bounds determine the type of the keys.
macro_rules! typed_ranges {
    ($($range:ty),+ $(,)?) => {$(
        impl<K: AsRef<[u8]>> sealed::Sealed for $range {}

        impl<K: AsRef<[u8]>> IntoKeyRange for $range {
            fn into_key_range(self) -> KeyRange {
                KeyRange::between(&self)
            }
        }
    )+};
}

typed_ranges!(
    std::ops::Range<K>,
    RangeInclusive<K>,
    RangeFrom<K>,
    RangeTo<K>,
    RangeToInclusive<K>,
    (Bound<K>, Bound<K>),
);

/// The first eight bytes of a key as a big-endian number, padded with zeros. If the heads of two keys differ, the keys
/// have the same order as their heads.
#[inline]
pub fn head(key: &[u8]) -> u64 {
    match key.first_chunk::<8>() {
        Some(bytes) => u64::from_be_bytes(*bytes),
        None => {
            let mut bytes = [0; 8];
            bytes[..key.len()].copy_from_slice(key);
            u64::from_be_bytes(bytes)
        }
    }
}

/// The heads of the two bounds of a range. For most keys, the heads suffice to decide whether the key is between the
/// bounds. Comparing heads avoids a cache miss for each bound.
#[derive(Clone, Copy, Debug)]
pub struct Heads {
    from: u64,
    to: u64,
}

impl Heads {
    /// Heads of an empty range, which contains no key.
    pub const NONE: Heads = Heads { from: u64::MAX, to: 0 };

    /// The heads of the bounds `from` and `to`. If `to` is `None`, there is no upper bound. Both inclusive and
    /// exclusive bounds are allowed, because [`Heads::tell`] does not decide about a key whose head equals the head of
    /// a bound.
    pub fn of(from: &[u8], to: Option<&[u8]>) -> Heads {
        Heads { from: head(from), to: to.map_or(u64::MAX, head) }
    }

    /// Whether a key with this head is between the bounds; `None` if the full bounds must be compared.
    #[inline]
    pub fn tell(self, head: u64) -> Option<bool> {
        if head < self.from || head > self.to {
            return Some(false);
        }
        (self.from < head && head < self.to).then_some(true)
    }
}

/// The parts of `range` outside `others`, which are disjoint and in order.
pub fn subtract(range: &KeyRange, others: &[KeyRange]) -> Vec<KeyRange> {
    let (mut out, mut from) = (Vec::new(), range.from.clone());
    for other in others.iter().filter(|other| other.overlaps(range)) {
        if other.from > from {
            out.push(KeyRange::new(from, other.from.as_slice()));
        }
        if other.to.is_empty() {
            return out;
        }
        from = other.to.clone();
    }
    let rest = KeyRange::new(from, range.to.as_slice());
    if !rest.is_empty() {
        out.push(rest);
    }
    out
}

/// The smallest byte string above `key`.
pub fn successor(key: &[u8]) -> Vec<u8> {
    let mut next = Vec::with_capacity(key.len() + 1);
    next.extend_from_slice(key);
    next.push(0);
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_agree_with_the_bounds() {
        let keys: Vec<&[u8]> =
            vec![b"", b"\0", b"\0\0", b"a", b"a\0", b"abcdefg", b"abcdefgh", b"abcdefghi", b"b", &[255; 8], &[255; 9]];
        for from in &keys {
            for to in keys.iter().map(Some).chain([None]) {
                let heads = Heads::of(from, to.copied());
                for key in &keys {
                    let inside = [*from <= *key, *from < *key].map(|above| above && to.is_none_or(|to| *key < *to));
                    match heads.tell(head(key)) {
                        Some(told) => assert_eq!(inside, [told; 2], "{key:?} in {from:?} to {to:?}"),
                        None => assert!(head(key) == head(from) || to.is_none_or(|to| head(key) == head(to))),
                    }
                }
            }
        }
        assert!(keys.iter().all(|key| Heads::NONE.tell(head(key)) == Some(false)));
    }

    #[test]
    fn prefix_ranges_end_after_the_last_key_with_the_prefix() {
        assert_eq!(KeyRange::prefix(b"ab"), KeyRange::new(*b"ab", *b"ac"));
        assert_eq!(KeyRange::prefix(b"a\xff\xff"), KeyRange::new(*b"a\xff\xff", *b"b"));
        assert_eq!(KeyRange::prefix(b"\xff"), KeyRange::new(*b"\xff", *b""));
        assert_eq!(KeyRange::prefix(b""), KeyRange::all());
    }

    #[test]
    fn every_form_of_a_range_means_the_same_as_for_a_btreeset() {
        use std::collections::BTreeSet;
        let keys: Vec<Vec<u8>> = vec![b"a".to_vec(), b"a\0".to_vec(), b"b".to_vec(), b"b\0".to_vec(), b"c".to_vec()];
        let set: BTreeSet<Vec<u8>> = keys.iter().cloned().collect();
        let (a, c) = (b"a\0".to_vec(), b"b\0".to_vec());
        let inside = |range: KeyRange| keys.iter().filter(|key| range.contains(key)).cloned().collect::<Vec<_>>();
        macro_rules! alike {
            ($($bounds:expr),+) => {$(
                assert_eq!(inside(KeyRange::from_bounds($bounds)), set.range($bounds).cloned().collect::<Vec<_>>());
            )+};
        }
        alike!(a.clone()..c.clone(), a.clone()..=c.clone(), a.clone().., ..c.clone(), ..=c.clone());
        for from in [Bound::Included(&a), Bound::Excluded(&a), Bound::Unbounded] {
            for to in [Bound::Included(&c), Bound::Excluded(&c), Bound::Unbounded] {
                alike!((from.cloned(), to.cloned()));
            }
        }
        assert_eq!(inside(KeyRange::from_bounds(..)), keys);
        assert_eq!(KeyRange::from_bounds(KeyRange::point(b"b")), KeyRange::point(b"b"));
    }

    #[test]
    fn an_unbounded_end_is_above_every_bound() {
        let all = KeyRange::all();
        let low = KeyRange::new(*b"a", *b"m");
        assert!(all.covers(&low) && !low.covers(&all));
        assert!(low.overlaps(&all) && all.overlaps(&low));
        assert_eq!(all.intersect(&low), low);
        assert!(!low.overlaps(&KeyRange::new(*b"m", *b"")));
        assert!(low.intersect(&KeyRange::new(*b"m", *b"")).is_empty());
        assert!(KeyRange::from_bounds(..b"").is_empty());
    }
}
