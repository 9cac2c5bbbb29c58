//! [`Directory`]: the ranges of keys that are in memory, in order.
//!
//! Locks: the lock of the directory is taken before that of the contents of a range. A thread that holds the contents
//! of a range takes no further lock of this module. Nothing is read or written while one of these locks is held.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::contents::Contents;
use crate::base::KeyRange;
use crate::base::sync::{AtomicBool, AtomicUsize, Ordering, RwLock};

/// A range of keys that is in memory.
pub struct HotRange {
    /// The keys.
    pub keys: KeyRange,
    /// Its messages.
    pub contents: RwLock<Contents>,
    /// The number of prepared commits that will change the range. Such a range stays in memory.
    pins: AtomicUsize,
    /// The range of which this one was a part, if commits may have pinned it.
    parent: Option<Arc<HotRange>>,
    /// Whether the range was used since the last search for cold ranges.
    is_used: AtomicBool,
}

impl HotRange {
    pub fn new(keys: KeyRange, contents: Contents, parent: Option<Arc<HotRange>>) -> Arc<HotRange> {
        let (contents, pins, is_used) = (RwLock::new(contents), AtomicUsize::new(0), AtomicBool::new(true));
        Arc::new(HotRange { keys, contents, pins, parent, is_used })
    }

    /// Whether a commit is going to change the range. REQUIRES: the caller holds the directory. If the caller holds it
    /// for writing, a range that is not pinned does not change until the directory is released.
    pub fn is_pinned(&self) -> bool {
        self.pins.load(Ordering::Acquire) > 0 || self.parent.as_ref().is_some_and(|parent| parent.is_pinned())
    }

    /// Whether the range may be divided now: its parts remember at most one range that may be pinned. REQUIRES: the
    /// caller holds the directory for writing.
    pub fn may_be_divided(&self) -> bool {
        self.parent.is_none() || !self.is_pinned()
    }

    /// Notes a use of the range.
    pub fn touch(&self) {
        // Most ranges are marked already, and a store would take the cache line from other cores.
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the range was used since the last call.
    pub fn take_used(&self) -> bool {
        self.is_used.swap(false, Ordering::Relaxed)
    }
}

/// A range that stays in memory until the pin is dropped.
pub struct Pin(Arc<HotRange>);

impl Pin {
    /// Pins a range. REQUIRES: the caller holds the directory.
    fn new(range: &Arc<HotRange>) -> Pin {
        range.pins.fetch_add(1, Ordering::Relaxed);
        range.touch();
        Pin(range.clone())
    }
}

impl std::ops::Deref for Pin {
    type Target = Arc<HotRange>;
    fn deref(&self) -> &Arc<HotRange> {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.pins.fetch_sub(1, Ordering::Release);
    }
}

/// The ranges in memory by their first keys. They are disjoint.
#[derive(Clone, Default)]
pub struct Ranges(BTreeMap<Vec<u8>, Arc<HotRange>>);

impl Ranges {
    /// The range with `key`.
    pub fn find(&self, key: &[u8]) -> Option<&Arc<HotRange>> {
        let (_, range) = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back()?;
        range.keys.contains(key).then_some(range)
    }

    /// The first range that begins behind `key`.
    pub fn after(&self, key: &[u8]) -> Option<&Arc<HotRange>> {
        self.0.range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded)).next().map(|(_, range)| range)
    }

    /// The last range that begins before `key`; `None` is above all keys.
    pub fn before(&self, key: Option<&[u8]>) -> Option<&Arc<HotRange>> {
        let bound = key.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.range::<[u8], _>((Bound::Unbounded, bound)).next_back().map(|(_, range)| range)
    }

    /// The part of `keys` around `key` in which no range is in memory. REQUIRES: the key is in no range.
    pub fn gap(&self, keys: &KeyRange, key: &[u8]) -> KeyRange {
        debug_assert!(self.find(key).is_none(), "the key is in no range");
        let before = self.0.range::<[u8], _>((Bound::Unbounded, Bound::Included(key))).next_back();
        let from = before.map_or(&[][..], |(_, range)| &range.keys.to);
        let to = self.after(key).map_or(&[][..], |range| &range.keys.from);
        keys.intersect(&KeyRange::new(from, to))
    }

    pub fn insert(&mut self, range: Arc<HotRange>) {
        let before = self.0.insert(range.keys.from.clone(), range);
        debug_assert!(before.is_none(), "ranges are disjoint");
    }

    pub fn remove(&mut self, range: &HotRange) -> Option<Arc<HotRange>> {
        self.0.remove(&range.keys.from)
    }

    /// The ranges that do not end before `key`, in order.
    pub fn from(&self, key: &[u8]) -> impl Iterator<Item = &Arc<HotRange>> {
        let first = self.find(key).map_or(key, |range| &range.keys.from);
        self.0.range::<[u8], _>((Bound::Included(first), Bound::Unbounded)).map(|(_, range)| range)
    }

    /// The ranges with keys of `keys`, in order.
    pub fn overlapping(&self, keys: &KeyRange) -> impl Iterator<Item = &Arc<HotRange>> {
        self.from(&keys.from).take_while(|range| range.keys.overlaps(keys))
    }

    /// Whether the range is among these.
    pub fn has(&self, range: &Arc<HotRange>) -> bool {
        self.0.get(&range.keys.from).is_some_and(|own| Arc::ptr_eq(own, range))
    }

    /// All ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<HotRange>> {
        self.0.values()
    }

    /// Removes all ranges.
    pub fn take(&mut self) -> Vec<Arc<HotRange>> {
        std::mem::take(&mut self.0).into_values().collect()
    }

    /// The number of ranges.
    pub fn count(&self) -> usize {
        self.0.len()
    }
}

/// The ranges in memory.
#[derive(Default)]
pub struct Directory(RwLock<Ranges>);

impl Directory {
    /// The lock, to read or change several ranges.
    pub fn lock(&self) -> &RwLock<Ranges> {
        &self.0
    }

    /// Pins the range with `key`.
    pub fn pin(&self, key: &[u8]) -> Option<Pin> {
        self.0.read().find(key).map(Pin::new)
    }

    /// Adds a range and pins it, if `is_current` still holds. REQUIRES: `make` returns a range of keys that is in no
    /// other range.
    pub fn add(
        &self,
        is_current: impl FnOnce() -> bool,
        make: impl FnOnce(&Ranges) -> Option<Arc<HotRange>>,
    ) -> Option<Pin> {
        let mut ranges = self.0.write();
        if !is_current() {
            return None;
        }
        let range = make(&ranges)?;
        ranges.insert(range.clone());
        Some(Pin::new(&range))
    }
}
