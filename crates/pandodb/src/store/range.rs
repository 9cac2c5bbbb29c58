//! The iterators of the public API: [`Range`] returns keys with values, and [`Keys`] returns only keys.
//!
//! Both ends share the field `rest`, which is the range of the keys that neither end has passed yet. Each end reads
//! through its own [`Side`]. A side is opened over `rest` at its first use, and reopened when it has become too old
//! ([`Side::is_old`]).
//!
//! ```text
//!   bounds  |------------------------------------------|      the range that the caller passed
//!   rest            |--------------------|                    next() returns its first key, next_back() its last
//!                   ^ seek moves this    ^ seek_back moves this, both within bounds
//! ```
//!
//! Invariants: `rest` is inside `bounds`. Each side was opened over a range that covers `rest`. Each side is positioned
//! at its own end of `rest`, or has a pending seek to that end.

use std::sync::Arc;

use super::scan::{OwnWrites, Row, Side};
use super::shared::Shared;
use super::snapshot::{Registered, Snapshot};
use super::state::KeyspaceState;
use super::value::Value;
#[cfg(doc)]
use crate::Keyspace;
use crate::base::range::successor;
use crate::base::{Error, KeyRange, Result, SeededBug, events, seeded};

/// An iterator over the keys of a range with their values, from both ends. It is made by [`Keyspace::range`],
/// [`Keyspace::prefix`], [`Keyspace::iter`] and the methods of [`KeyspaceAt`](crate::KeyspaceAt) with the same names.
///
/// **View.** The iterator sees the keyspace as of its creation, or as of the snapshot, during its whole life. The
/// keyspace can be written while the iterator exists, also by the same thread and in the same range. The iterator does
/// not see these writes. Versions that the iterator needs stay on disk until the iterator is dropped.
///
/// **Resources.** The iterator keeps the store open, and therefore locked against other processes, until it is dropped.
/// It can be sent to another thread.
///
/// **Errors.** If a block is damaged, the item is an error, and the iterator ends. To continue after the damage, call
/// [`Range::seek`] with a key above the damage, or salvage the store with [`crate::check::salvage`].
///
/// **Cost.** The first item of each end costs about one block read for each run that may hold the key. Each
/// [`Range::seek`] to a key that is not in memory costs the same. Later blocks are read ahead. The iterator steps over
/// deleted keys that no compaction has removed yet. Where there are many of them in a row, the keyspace remembers the
/// range, and later iterators pass it in one step.
pub struct Range {
    engine: Arc<Shared>,
    state: Arc<KeyspaceState>,
    /// The registered read point, kept for the life of the iterator. It is `None` if the iterator could not be opened.
    point: Option<Arc<Registered>>,
    bounds: Arc<KeyRange>,
    /// The keys that neither end has passed yet.
    rest: KeyRange,
    front: Option<Side>,
    back: Option<Side>,
    values: bool,
    finished: bool,
    /// The writes of the transaction that made the iterator.
    own: Option<OwnWrites>,
    /// What a transaction must know of the keys that the iterator passes.
    walked: Option<Walked>,
    /// The error that prevented the opening, or an error that a seek caused. The error is returned as the next item.
    broken: Option<Error>,
}

/// Receives the parts of the bounds that an iterator has passed.
pub(super) type Report = Box<dyn FnOnce(Vec<KeyRange>) + Send>;

/// The keys that an iterator of a transaction has passed.
struct Walked {
    /// Where the two ends were after the last seek; `None` without a seek.
    ends: Option<KeyRange>,
    /// The parts that were passed before the last seek.
    parts: Vec<KeyRange>,
    report: Report,
}

impl Range {
    pub(crate) fn new(
        engine: &Arc<Shared>,
        state: &Arc<KeyspaceState>,
        bounds: KeyRange,
        snapshot: Option<&Snapshot>,
    ) -> Range {
        let snapshots = &engine.snapshots;
        let open = engine.access.check().and_then(|()| state.check_alive());
        let mut broken = open.and_then(|()| state.check_sorted(&bounds)).err();
        let point = match snapshot {
            Some(snapshot) if snapshot.0.is_of(snapshots) => Some(snapshot.0.clone()),
            Some(_) => {
                broken = Some(Error::invalid("the snapshot was taken from another store"));
                None
            }
            None => Some(Arc::new(snapshots.register())),
        };
        assert!(point.is_some() || broken.is_some(), "a range without a read point has an error");
        let finished = bounds.is_empty() && broken.is_none();
        let (engine, state, rest, bounds) = (engine.clone(), state.clone(), bounds.clone(), Arc::new(bounds));
        let (own, walked) = (None, None);
        let (front, back, values) = (None, None, true);
        Range { engine, state, point, bounds, rest, front, back, values, finished, own, walked, broken }
    }

    /// Lets the iterator see the writes of a transaction, and lets it report the keys that it has passed when it is
    /// dropped. REQUIRES: the iterator is new.
    pub(super) fn of_transaction(mut self, own: Option<OwnWrites>, report: Option<Report>) -> Range {
        self.own = own;
        self.walked = report.map(|report| Walked { ends: None, parts: Vec::new(), report });
        self
    }

    /// Iterates over the same keys without their values, from both ends. Large values are not read, with one exception:
    /// if a merge is newer than the large value, the operator needs this value to decide whether the key has a value.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// ks.put("a", "1")?;
    /// ks.put("b", vec![0; 1 << 20])?;
    /// let keys: Vec<_> = ks.iter().keys().collect::<Result<_, _>>()?;
    /// assert_eq!(keys, ["a", "b"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn keys(mut self) -> Keys {
        self.values = false;
        Keys(self)
    }

    /// Moves the front end: [`Iterator::next`] continues at the first key that is not before `key`. The front end may
    /// move forwards or backwards, within the range for which the iterator was made.
    ///
    /// The back end does not move. The remaining keys are always the keys between the front end and the back end. If
    /// the front end moves backwards over keys that were returned, these keys are returned again. If it moves past the
    /// back end, no key remains. The iterator keeps its view of the keyspace. After a seek, even an iterator that had
    /// ended can return keys again.
    ///
    /// The call itself reads nothing. If the sought key is in blocks that are in memory, the next item costs a search
    /// in these blocks. Otherwise it costs as much as the first item of an iterator.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// for key in ["ant/1", "ant/2", "bee/1", "cat/1", "cat/2"] {
    ///     ks.put(key, "")?;
    /// }
    /// // List the kinds without reading the entries of each.
    /// let mut kinds = Vec::new();
    /// let mut keys = ks.iter().keys();
    /// while let Some(key) = keys.next().transpose()? {
    ///     let kind = key.split(|&byte| byte == b'/').next().unwrap().to_vec();
    ///     keys.seek([kind.as_slice(), b"0"].concat()); // '0' follows '/'
    ///     kinds.push(kind);
    /// }
    /// assert_eq!(kinds, [b"ant", b"bee", b"cat"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        if self.refuses_seek(key) {
            return;
        }
        let from = key.max(&self.bounds.from).to_vec();
        if from > self.rest.from
            && let Some(front) = &mut self.front
        {
            front.seek_later(key);
        }
        let wider = from < self.rest.from;
        debug_assert!(from >= self.bounds.from, "the front end stays within the bounds");
        self.note_walked();
        self.rest.from = from;
        self.walk_on();
        self.reopen(wider.then_some(false));
    }

    /// Moves the back end: [`DoubleEndedIterator::next_back`] continues at the last key that is not after `key`.
    /// Otherwise this works like [`Range::seek`], with the ends exchanged.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// for key in ["a", "c", "e"] {
    ///     ks.put(key, "")?;
    /// }
    /// let mut range = ks.iter();
    /// range.seek_back("d");
    /// assert_eq!(range.next_back().unwrap()?.0, "c");
    /// range.seek_back("z"); // and up again
    /// assert_eq!(range.next_back().unwrap()?.0, "e");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        let key = key.as_ref();
        if self.refuses_seek(key) {
            return;
        }
        let after = successor(key);
        let to = if self.bounds.is_above(&after) { after } else { self.bounds.to.clone() };
        let narrower = self.rest.is_above(&to) && !to.is_empty();
        if narrower && let Some(back) = &mut self.back {
            back.seek_later(key);
        }
        let wider = !narrower && to != self.rest.to;
        self.note_walked();
        self.rest.to = to;
        self.walk_on();
        self.reopen(wider.then_some(true));
    }

    /// Adapts the sides after one end was moved. If the end moved outwards, `wider` names this end (`true`: the back
    /// end). The side of this end is closed, because it may have dropped sources in which it found no further keys. The
    /// other side is closed if `rest` exceeds the range over which it was opened.
    fn reopen(&mut self, wider: Option<bool>) {
        self.finished = self.bounds.is_empty() || self.point.is_none() && self.broken.is_none();
        let Some(reverse) = wider.filter(|_| !self.engine.access.is_inherited()) else { return };
        let (own, other) = if reverse { (&mut self.back, &mut self.front) } else { (&mut self.front, &mut self.back) };
        *own = None;
        if other.as_ref().is_some_and(|side| !side.over().covers(&self.rest)) {
            *other = None;
        }
        self.check_sides();
    }

    /// Adds the keys that were passed since the last seek to those that the transaction has read.
    fn note_walked(&mut self) {
        let Some(Walked { ends, parts, .. }) = &mut self.walked else { return };
        let KeyRange { from, to } = ends.as_ref().unwrap_or(&self.bounds);
        let mut note = |from: &[u8], to: &[u8]| {
            let part = KeyRange::new(from, to);
            if !part.is_empty() {
                parts.push(part);
            }
        };
        if self.finished {
            return note(from, seeded!(GapBehindLastRow: &self.rest.from, to));
        }
        // An empty bound means that the end has not moved.
        if !self.rest.from.is_empty() {
            note(from, &self.rest.from);
        }
        if !self.rest.to.is_empty() && !SeededBug::BackEndUntracked.is_on() {
            note(&self.rest.to, to);
        }
    }

    /// Begins a new part after a seek.
    fn walk_on(&mut self) {
        if let Some(walked) = &mut self.walked {
            walked.ends.get_or_insert_default().clone_from(&self.rest);
        }
    }

    /// Asserts the invariants of the module. REQUIRES: the process is not a forked child, because a forked child does
    /// not close sides.
    fn check_sides(&self) {
        let covers = |side: &Option<Side>| side.as_ref().is_none_or(|side| side.over().covers(&self.rest));
        debug_assert!(self.bounds.covers(&self.rest), "{:?} is not within {:?}", self.rest, self.bounds);
        debug_assert!(covers(&self.front), "the front side was opened over {:?}", self.rest);
        debug_assert!(covers(&self.back), "the back side was opened over {:?}", self.rest);
    }

    /// Returns whether a seek to `key` is impossible, because the index stores keys in the order of a hash. The error
    /// becomes the next item.
    fn refuses_seek(&mut self, key: &[u8]) -> bool {
        self.broken = self.broken.take().or_else(|| self.state.check_sorted(&KeyRange::new(key, [])).err());
        self.finished &= self.broken.is_none();
        debug_assert!(!self.finished || self.broken.is_none(), "an error is returned before the end");
        self.broken.is_some()
    }

    /// Finds the next row at one end. The row is in the side of this end.
    #[inline]
    fn step(&mut self, reverse: bool) -> Result<Option<Row>> {
        if let Some(error) = self.broken.take() {
            self.finished = true;
            return Err(error);
        }
        if self.finished {
            return Ok(None);
        }
        if let Err(e) = self.engine.access.check() {
            // Keep the sides open, because dropping them takes locks, which a forked child must not do.
            self.finished = true;
            return Err(e);
        }
        let row = self.advance(reverse);
        let row = self.engine.access.confirm(row);
        if !matches!(row, Ok(Some(_))) {
            // The side may have consumed a key outside `rest`, or may have failed in the middle of a key, so do not use
            // it again.
            self.finished = true;
            (self.front, self.back) = (None, None);
        }
        row.inspect_err(|e| events::failed(&self.state.name, e))
    }

    fn advance(&mut self, reverse: bool) -> Result<Option<Row>> {
        let may_pass = SeededBug::ScanEndsPass.is_on();
        if self.rest.is_empty() && !may_pass {
            return Ok(None);
        }
        let side = if reverse { &mut self.back } else { &mut self.front };
        let (engine, state) = (&self.engine, &self.state);
        let is_new = side.as_mut().is_some_and(|side| !side.is_old(|| engine.device.now()));
        let side = match side {
            Some(side) if is_new => side,
            _ => {
                let point = self.point.as_ref().expect("a range that opened has a read point").seqno();
                let starts_over = side.is_some() && SeededBug::ScanStartsOver.is_on();
                // Most iterators open a side before they have moved.
                let is_whole = starts_over || self.rest == *self.bounds;
                let over = if is_whole { self.bounds.clone() } else { Arc::new(self.rest.clone()) };
                let own = self.own.as_ref();
                side.insert(Side::open(state, point, own, over, reverse, engine.device.now())?)
            }
        };
        let Some(row) = side.next(engine, state, self.values, &self.rest)? else { return Ok(None) };
        let (key, _) = side.borrow(row);
        // The front end must not pass the back end, and the back end must not pass the front end.
        let passed = if reverse { *key < *self.rest.from } else { !self.rest.is_above(key) };
        if passed && !may_pass {
            return Ok(None);
        }
        // Keys without a value do not move the end of `rest`. If the side is opened again, it skips these keys again.
        let bound = if reverse { &mut self.rest.to } else { &mut self.rest.from };
        bound.clear();
        bound.extend_from_slice(key);
        if !reverse {
            // Continue at the key that directly follows this key.
            bound.push(0);
        }
        self.check_sides();
        Ok(Some(row))
    }

    /// The side at one end, which has just found a row.
    #[inline]
    fn side(&mut self, reverse: bool) -> &mut Side {
        let side = if reverse { &mut self.back } else { &mut self.front };
        side.as_mut().expect("the side that found a row exists")
    }

    fn next_owned(&mut self, reverse: bool) -> Option<Result<(Value, Value)>> {
        let row = match self.step(reverse) {
            Ok(row) => row?,
            Err(e) => return Some(Err(e)),
        };
        let (key, value) = self.side(reverse).take(row);
        Some(Ok((key.without_prefix(self.state.codec.prefix()), value)))
    }

    fn next_borrowed(&mut self, reverse: bool) -> Result<Option<(&[u8], &[u8])>> {
        let Some(row) = self.step(reverse)? else { return Ok(None) };
        let prefix = self.state.codec.prefix();
        let (key, value) = self.side(reverse).borrow(row);
        Ok(Some((&key[prefix..], value)))
    }

    /// Returns the next row, like [`Iterator::next`], but without a copy or a reference count: the row borrows from the
    /// iterator until the next call. This is the fastest way to visit many small rows. `None` means that no row is
    /// left.
    ///
    /// ```
    /// let dir = tempfile::tempdir()?;
    /// # let ks = pandodb::Store::open(dir.path().join("s"))?.keyspace("k")?;
    /// ks.put("a", "1")?;
    /// ks.put("b", "23")?;
    /// let (mut rows, mut bytes) = (ks.iter(), 0);
    /// while let Some((_, value)) = rows.next_row()? {
    ///     bytes += value.len();
    /// }
    /// assert_eq!(bytes, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors that [`Iterator::next`] returns as items. No row follows an error.
    pub fn next_row(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.next_borrowed(false)
    }

    /// Returns the next row at the back end, like [`DoubleEndedIterator::next_back`], borrowed like a row of
    /// [`Range::next_row`].
    ///
    /// # Errors
    /// The errors of [`Range::next_row`].
    pub fn next_row_back(&mut self) -> Result<Option<(&[u8], &[u8])>> {
        self.next_borrowed(true)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        if self.engine.access.is_inherited() {
            // Do not free the pinned blocks and the own writes, and report nothing: all of this takes locks, which a
            // thread of the parent process may hold forever.
            std::mem::forget((self.front.take(), self.back.take(), self.own.take(), self.walked.take()));
            return;
        }
        self.note_walked();
        if let Some(Walked { parts, report, .. }) = self.walked.take() {
            report(parts);
        }
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").field("bounds", &self.bounds).field("keyspace", &self.state.name).finish()
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_owned(false)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.next_owned(true)
    }
}

impl std::iter::FusedIterator for Range {}

/// An iterator over the keys of a range, from both ends. It is made by [`Range::keys`]. Its view, resources, errors and
/// cost are the same as for a [`Range`].
#[derive(Debug)]
pub struct Keys(Range);

impl Keys {
    /// Moves the front end, like [`Range::seek`].
    pub fn seek(&mut self, key: impl AsRef<[u8]>) {
        self.0.seek(key);
    }

    /// Moves the back end, like [`Range::seek_back`].
    pub fn seek_back(&mut self, key: impl AsRef<[u8]>) {
        self.0.seek_back(key);
    }
}

fn key_of(item: Result<(Value, Value)>) -> Result<Value> {
    item.map(|(key, _)| key)
}

impl Iterator for Keys {
    type Item = Result<Value>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(key_of)
    }
}

impl DoubleEndedIterator for Keys {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.0.next_back().map(key_of)
    }
}

impl std::iter::FusedIterator for Keys {}
