//! A [`Side`] reads the keys of a scan from one end. A [`Range`](crate::Range) has two sides, and the scan ends where
//! the two sides meet.
//!
//! ```text
//!  active memtable ─┐
//!  sealed … ────────┼─▶ smallest (largest) key ─▶ its messages, newest first ─▶ Lookup ─▶ (key, value)
//!  index cursor ────┘        a block of entries at a time from each
//! ```
//!
//! A scan registers its read point like a snapshot. A side pins the memtables and the view with which it was opened for
//! at most [`HOLD`]. After this time, the side is reopened with the newest memtables and the newest view, and seeks to
//! its position. So a slow reader does not keep old runs on the disk.
//!
//! A side keeps the sets of range tombstones of its memtables as they are, in a [`Cover`]. So range deletes elsewhere
//! in the keyspace do not slow the opening of a side (decision 0067). Only the tombstones of the index that overlap the
//! side's range are collected into a set of their own. Seqnos are comparable across all containers. Therefore a message
//! is deleted exactly if a tombstone with a higher seqno covers its key and is visible at the read point.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use super::dead_ranges::{Skip, Watch, is_worth_learning};
use super::engine::Engine;
use super::read::{Pinned, answer};
use super::state::KeyspaceState;
use super::value::Value;
use super::value_reads::ScanValues;
use crate::base::range::successor;
use crate::base::{BlobRef, Cover, Entry, EntryBlock, Fragments, KeyRange, Kind, Result, Seqno, seeded};
use crate::index::{Base, Lookup, RawCursor};
use crate::memtable::{self, Memtable};

/// The maximum time for which a side pins its memtables and its view.
const HOLD: Duration = Duration::from_secs(2);
/// As long as QUICK_KEYS keys take less time than QUICK, the clock is read only once for this number of keys.
const QUICK_KEYS: u32 = 16;
const QUICK: Duration = Duration::from_millis(1);
/// The size in bytes of the first block that a side fetches from each source, unless scans of the keyspace usually
/// return large values. The constant below is the size of the largest block. The size of each other block is half of
/// [`Source::taken`]. So if no large values are expected, at most about a third of the fetched bytes are unused when
/// the scan ends.
const FIRST_BLOCK: usize = 2 << 10;
const BLOCK: usize = 64 << 10;
/// The approximate size in bytes of a key with the reference to its large value. References are fetched before the
/// values, so that these can be read together.
const REFERENCE: usize = 128;

/// When a scan has passed this many deleted keys of one fragment of range tombstones, it leaves out the rest of the
/// fragment, as far as it has only older messages. Fewer keys cost less than the seeks.
const MANY_COVERED: u32 = if cfg!(debug_assertions) { 2 } else { 64 };

/// The writes of a transaction to a keyspace, up to a seqno.
#[derive(Clone)]
pub(super) struct OwnWrites {
    pub(super) memtable: Arc<Memtable>,
    pub(super) visible: Seqno,
}

/// One end of a scan.
pub(super) struct Side {
    world: Pinned,
    reverse: bool,
    /// The sources, newest first.
    sources: Vec<Source>,
    tombstones: Cover,
    /// The fragment of the last key that was passed and has no value ([`Cover::found`]), and the number of such keys in
    /// it.
    covered: (u64, u32),
    /// The range for which the sources and the tombstones were opened.
    over: Arc<KeyRange>,
    /// A pending seek. Its key is always beyond the position of the sources.
    sought: Option<Vec<u8>>,
    /// Observes which keys get values while the side exists, if the side may learn dead ranges.
    watch: Option<Watch>,
    /// Whether the side began behind a dead range.
    began_behind: bool,
    /// Whether the first source has the writes of a transaction. If so, no dead ranges are skipped.
    has_own: bool,
    opened: Duration,
    /// The time when the side last read the clock. The next field is the number of keys until the side reads the clock
    /// again.
    asked: Duration,
    quick: u32,
    /// The positions of a key's messages in a backward scan, each with the newest visible seqno. Empty between keys;
    /// kept for its memory.
    places: Vec<(Arc<EntryBlock>, usize, Seqno)>,
    large: ScanValues,
    /// The row that was found last, if it is not returned from a block.
    whole: Option<(Value, Value)>,
}

/// A source of entries: a memtable or the index. Its entries are read one block at a time.
struct Source {
    from: From,
    /// No message of the source has a higher seqno.
    newest: Seqno,
    /// Messages with a higher seqno are invisible.
    visible: Seqno,
    block: Arc<EntryBlock>,
    at: usize,
    /// Bytes of all blocks that were already read, plus twice the expected bytes of the scan.
    taken: usize,
    exhausted: bool,
}

/// The keys without a value that a side has passed since the last key that has one.
struct Stretch<'a> {
    /// The bound of the stretch on the side of the keys that were passed before. It is inclusive for a forward scan.
    /// For a backward scan it is exclusive, and empty if there is none.
    start: Cow<'a, [u8]>,
    /// The number of keys, without those in skipped ranges.
    passed: u32,
    /// Whether a dead range was skipped.
    joins: bool,
    /// No dead range includes a key before this bound; `None` if no dead range follows.
    none_before: Option<Vec<u8>>,
}

/// Where the row is that a side has found last. It is valid until the next call of [`Side::next`].
#[derive(Clone, Copy)]
pub(super) enum Row {
    /// In the current block of a source, the first number, at a position, the second number.
    InBlock(usize, usize),
    /// In [`Side::whole`], because the row was put together from several messages, or is a large value.
    Whole,
}

enum From {
    Memtable(memtable::Cursor),
    Index(Box<dyn RawCursor>),
}

impl Drop for Source {
    fn drop(&mut self) {
        if let Some(block) = Arc::get_mut(&mut self.block) {
            std::mem::take(block).keep();
        }
    }
}

impl Source {
    /// `expected` is the number of bytes that the scan will probably take from this source.
    fn new(from: From, newest: Seqno, visible: Seqno, expected: usize) -> Source {
        // The first block has half of `taken`.
        let (block, taken) = (Arc::default(), 2 * expected.min(BLOCK));
        Source { from, newest, visible, block, at: 0, taken, exhausted: false }
    }

    /// If the current block has no further entry, reads the next block. After the call there is a current entry, unless
    /// the source is at its end.
    fn prepare(&mut self) -> Result<()> {
        if self.at < self.block.len() || self.exhausted {
            return Ok(());
        }
        // Reuse the old block, unless returned values point into it.
        let mut block = match Arc::get_mut(&mut self.block) {
            Some(block) if block.allocated() > 0 => std::mem::take(block),
            _ => EntryBlock::kept(),
        };
        debug_assert!(self.at == self.block.len() || self.block.is_empty(), "no entry is skipped");
        block.clear();
        let bytes = (self.taken / 2).clamp(FIRST_BLOCK, BLOCK);
        match &mut self.from {
            From::Memtable(cursor) => cursor.fill(bytes, &mut block),
            From::Index(cursor) => cursor.fill(bytes, &mut block)?,
        }
        self.taken += bytes;
        self.exhausted = block.is_empty();
        self.block = Arc::new(block);
        self.at = 0;
        Ok(())
    }

    /// Continues at the first key that is not before `key`. `key` must be beyond the current position. This key is
    /// searched in the current block, or in a new block if the current block does not reach it.
    fn seek(&mut self, key: &[u8], reverse: bool) -> Result<()> {
        let is_before = |at: usize| if reverse { self.block.get(at).key > key } else { self.block.get(at).key < key };
        let len = self.block.len();
        if self.at < len && !is_before(len - 1) {
            let (mut low, mut high) = (self.at, len - 1);
            while low < high {
                let middle = low.midpoint(high);
                if is_before(middle) { low = middle + 1 } else { high = middle }
            }
            self.at = low;
            return Ok(());
        }
        match &mut self.from {
            From::Memtable(cursor) => cursor.seek(key),
            From::Index(cursor) => cursor.seek(key)?,
        }
        // The caller may want only a single key, so start with small blocks again.
        (self.block, self.at, self.taken) = (Arc::default(), 0, 0);
        Ok(())
    }

    /// Leaves out messages with keys in `range` that are older than `seqno`. May leave some of them in.
    fn leave_out(&mut self, range: &KeyRange, seqno: Seqno, reverse: bool) -> Result<()> {
        if self.entry().is_none_or(|entry| !range.contains(entry.key)) {
            return Ok(());
        }
        if !seeded!(CoveredSourceNotOlder: true, self.newest < seqno) {
            return match &mut self.from {
                From::Index(cursor) => cursor.leave_out(range, seqno),
                From::Memtable(_) => Ok(()),
            };
        }
        let (far, taken) = (if reverse { &range.from } else { &range.to }, self.taken);
        if far.is_empty() {
            (self.block, self.at, self.exhausted) = (Arc::default(), 0, true);
            return Ok(());
        }
        self.seek(far, reverse)?;
        // The scan goes on, so its blocks need not be small again.
        self.taken = taken;
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    /// The value of the current entry as a base.
    fn base(&self) -> Base {
        Base::InBatch(self.block.clone(), self.block.places(self.at).1)
    }
}

impl Side {
    /// Opens a side that scans the keys in `over`. It starts at the first key, or at the last key if `reverse`. `own`
    /// has the writes of a transaction, which are newer than all others.
    pub(super) fn open(
        state: &Arc<KeyspaceState>,
        at: Seqno,
        own: Option<&OwnWrites>,
        over: Arc<KeyRange>,
        reverse: bool,
        now: Duration,
    ) -> Result<Side> {
        // The watch must see every write that the pinned state does not include.
        let watch = if own.is_some() { None } else { state.dead_ranges.watch_if_useful(&over, reverse) };
        let world = Pinned::at(state, at)?;
        let (alive, began_behind) = match own {
            // A dead range may have keys of the transaction.
            Some(_) => (over.clone(), false),
            None => behind_dead_range(state, at, &over, reverse),
        };
        let (mut sets, mut own_sets, mut tombstones) = (Vec::new(), Vec::new(), Vec::new());
        let mut sources = Vec::new();
        if let Some(own) = own {
            own.memtable.tombstones(&mut own_sets);
            let cursor = memtable::Cursor::new(own.memtable.clone(), alive.clone(), reverse);
            sources.push(Source::new(From::Memtable(cursor), Seqno::MAX, own.visible, 0));
        }
        if !alive.is_empty() {
            let mut newest = Seqno::MAX;
            for memtable in world.world().memtables() {
                memtable.tombstones(&mut sets);
                let cursor = memtable::Cursor::new(memtable.clone(), alive.clone(), reverse);
                sources.push(Source::new(From::Memtable(cursor), newest, at, 0));
                // The messages of older memtables precede those of this one.
                newest = Seqno(memtable.id());
            }
            world.view.tombstones(&alive, &mut tombstones)?;
            tombstones.retain(|tombstone| tombstone.seqno <= at);
            let cursor = world.view.clone().cursor(alive.clone(), reverse)?;
            let expected = usize::try_from(state.value_habits.usual()).unwrap_or(0) * REFERENCE;
            sources.push(Source::new(From::Index(cursor), world.view.through(), at, expected));
            sets.push(Arc::new(Fragments::build(&tombstones)));
        }
        let own_sets = own_sets.into_iter().zip(std::iter::repeat(own.map_or(at, |own| own.visible)));
        let tombstones = Cover::of(sets.into_iter().map(|set| (set, at)).chain(own_sets).collect());
        let (opened, asked) = (now, now);
        Ok(Side {
            world,
            reverse,
            sources,
            tombstones,
            covered: (0, 0),
            over,
            sought: None,
            watch,
            began_behind,
            has_own: own.is_some(),
            opened,
            asked,
            quick: 0,
            places: Vec::new(),
            large: ScanValues::new(state.value_habits.clone()),
            whole: None,
        })
    }

    /// The range for which the side was opened.
    pub(super) fn over(&self) -> &KeyRange {
        &self.over
    }

    /// Continues at the first key that is not before `key` in the direction of the side. `key` must be beyond the
    /// current position.
    pub(super) fn seek_later(&mut self, key: &[u8]) {
        self.sought = Some(key.to_vec());
    }

    /// Whether the side has pinned its memtables and its view for too long.
    pub(super) fn is_old(&mut self, now: impl Fn() -> Duration) -> bool {
        if let Some(quick) = self.quick.checked_sub(1) {
            self.quick = quick;
            return false;
        }
        let before = std::mem::replace(&mut self.asked, now());
        self.quick = if self.asked.saturating_sub(before) < QUICK { QUICK_KEYS } else { 0 };
        self.asked.saturating_sub(self.opened) >= HOLD
    }

    /// The next key that has a value. The key is in its stored form. Without `values`, a large value is not read, and
    /// the item has an empty value. `rest` has the keys that the caller has not passed yet.
    #[inline]
    pub(super) fn next(
        &mut self,
        engine: &Engine,
        state: &KeyspaceState,
        values: bool,
        rest: &KeyRange,
    ) -> Result<Option<Row>> {
        if self.sought.is_none()
            && let Some(row) = self.next_alone()
        {
            self.began_behind = false;
            return Ok(Some(row));
        }
        self.whole = self.next_of_all(engine, state, values, rest)?;
        Ok(self.whole.is_some().then_some(Row::Whole))
    }

    /// The next row, if it is the only message of its key and no range tombstone hides it. This is so for almost all
    /// rows of most scans. The row stays in its block, so nothing is copied or counted.
    #[inline]
    fn next_alone(&mut self) -> Option<Row> {
        let mut best: Option<(usize, &[u8])> = None;
        for (i, source) in self.sources.iter().enumerate() {
            let key = source.entry()?.key;
            best = match best {
                Some((_, other)) if seeded!(ScanOverlooksTie: false, key == other) => return None,
                Some((_, other)) if (key > other) != self.reverse => best,
                _ => Some((i, key)),
            };
        }
        let (i, key) = best?;
        let source = &self.sources[i];
        let (at, next) = (source.at, source.at + 1);
        let entry = source.block.get(at);
        // A further message of the key could also be in the next block.
        let is_alone = next < source.block.len() && source.block.get(next).key != key;
        if !is_alone || entry.kind != Kind::Put || entry.seqno > source.visible {
            return None;
        }
        if !self.tombstones.is_empty() && self.tombstones.newest(key) >= entry.seqno {
            return None;
        }
        self.sources[i].at = next;
        Some(Row::InBlock(i, at))
    }

    /// The key and the value of the row that was found last.
    #[inline]
    pub(super) fn borrow(&self, row: Row) -> (&[u8], &[u8]) {
        match row {
            Row::InBlock(source, at) => {
                let entry = self.sources[source].block.get(at);
                (entry.key, entry.value)
            }
            Row::Whole => {
                let (key, value) = self.whole.as_ref().expect("the row was found last");
                (key, value)
            }
        }
    }

    /// The key and the value of the row that was found last, for a caller that keeps them.
    #[inline]
    pub(super) fn take(&mut self, row: Row) -> (Value, Value) {
        match row {
            Row::InBlock(source, at) => {
                let block = &self.sources[source].block;
                let (key, value) = block.places(at);
                (Value::in_batch(block.clone(), key), Value::in_batch(block.clone(), value))
            }
            Row::Whole => self.whole.take().expect("the row was found last"),
        }
    }

    /// The next key that has a value, from any number of messages in any number of sources.
    fn next_of_all(
        &mut self,
        engine: &Engine,
        state: &KeyspaceState,
        values: bool,
        rest: &KeyRange,
    ) -> Result<Option<(Value, Value)>> {
        if let Some(key) = self.sought.take() {
            self.seek(&key)?;
        }
        // Only keys without a value need a stretch.
        let mut stretch: Option<Stretch<'_>> = None;
        let joins = std::mem::take(&mut self.began_behind);
        while let Some(key) = self.next_key()? {
            debug_assert!(self.over.contains(&key), "a source yields keys of its range");
            let mut lookup = Lookup::of_messages(&key, self.world.at);
            lookup.enter(self.tombstones.newest(&key));
            let newer = if self.reverse { self.take_backward(&mut lookup)? } else { self.take_forward(&mut lookup)? };
            let value = match lookup.base {
                Base::Blob(_) if !values && lookup.gather.is_empty() => Some(Value::owned(Vec::new())),
                Base::Blob(blob) if lookup.gather.is_empty() => {
                    let next = |most, out: &mut Vec<BlobRef>| next_values(&self.sources, self.reverse, most, out);
                    Some(self.large.take(engine, &blob, next)?)
                }
                _ => answer(engine, state, lookup)?,
            };
            if let Some(value) = value {
                if let Some(stretch) = stretch {
                    self.end_stretch(engine, state, &stretch, Some(&key));
                }
                return Ok(Some((key, value)));
            }
            let stretch = stretch.get_or_insert_with(|| Stretch::new(rest, self.reverse, joins));
            if newer {
                self.end_stretch(engine, state, stretch, Some(&key));
                state.dead_ranges.note(&key);
                stretch.restart(if self.reverse { key.to_vec() } else { successor(&key) });
            } else {
                self.pass(state, stretch, &key)?;
                self.leave_covered(stretch)?;
            }
        }
        if let Some(stretch) = stretch {
            self.end_stretch(engine, state, &stretch, None);
        }
        Ok(None)
    }

    /// Continues at the first key that is not before `key`, which must be beyond the position of the sources.
    fn seek(&mut self, key: &[u8]) -> Result<()> {
        self.sources.iter_mut().try_for_each(|source| source.seek(key, self.reverse))
    }

    /// Adds a key without a value to the stretch. If a known dead range follows, continues behind it.
    fn pass(&mut self, state: &KeyspaceState, stretch: &mut Stretch<'_>, key: &[u8]) -> Result<()> {
        stretch.passed = stretch.passed.saturating_add(1);
        let Some(bound) = stretch.none_before.as_ref().filter(|_| !self.has_own) else { return Ok(()) };
        if if self.reverse { !bound.is_empty() && key >= &**bound } else { key < &**bound } {
            return Ok(());
        }
        let position = if self.reverse { Cow::Owned(successor(key)) } else { Cow::Borrowed(key) };
        match state.dead_ranges.skip(&position, self.reverse, self.world.at) {
            Skip::NoneBefore(bound) => stretch.none_before = bound,
            Skip::To(bound) => {
                stretch.joins = true;
                let ends = bound.is_empty()
                    || if self.reverse { bound <= self.over.from } else { !self.over.is_above(&bound) };
                if ends {
                    // No key with a value follows.
                    self.sources.clear();
                } else {
                    self.seek(&bound)?;
                }
                stretch.none_before = Some(bound);
            }
        }
        Ok(())
    }

    /// Called after a key without a value was passed. If many keys of the same fragment of range tombstones were
    /// passed, leaves out the rest of the fragment.
    fn leave_covered(&mut self, stretch: &mut Stretch<'_>) -> Result<()> {
        let Some((within, seqno, number)) = self.tombstones.found() else { return Ok(()) };
        let (fragment, passed) = &mut self.covered;
        *passed = if *fragment == number { *passed + 1 } else { 1 };
        *fragment = number;
        if !passed.is_multiple_of(MANY_COVERED) {
            return Ok(());
        }
        // The keys that are left out count as passed, because they have no value either; their number is unknown.
        stretch.passed = stretch.passed.saturating_add(MANY_COVERED);
        self.sources.iter_mut().try_for_each(|source| source.leave_out(within, seqno, self.reverse))
    }

    /// Ends a stretch of keys without a value before `next`, or at the end of the scan. A long stretch becomes a dead
    /// range.
    fn end_stretch(&self, engine: &Engine, state: &KeyspaceState, stretch: &Stretch<'_>, next: Option<&[u8]>) {
        if !is_worth_learning(stretch.passed, stretch.joins) {
            return;
        }
        let Some(watch) = &self.watch else { return state.dead_ranges.ask_for_watches() };
        let range = match (self.reverse, next) {
            (false, Some(next)) => KeyRange::new(&*stretch.start, next),
            (false, None) => KeyRange::new(&*stretch.start, &*self.over.to),
            (true, Some(next)) => KeyRange::new(successor(next), &*stretch.start),
            (true, None) => KeyRange::new(&*self.over.from, &*stretch.start),
        };
        watch.learn(range, self.world.at, engine.snapshots.oldest());
    }

    /// The next key of all sources.
    fn next_key(&mut self) -> Result<Option<Value>> {
        for source in &mut self.sources {
            source.prepare()?;
        }
        if self.sources.iter().any(|source| source.exhausted) {
            self.sources.retain(|source| !source.exhausted);
        }
        let better = |a: &[u8], b: &[u8]| if self.reverse { a > b } else { a < b };
        let mut best: Option<(&Source, &[u8])> = None;
        for source in &self.sources {
            if let Some(entry) = source.entry()
                && best.is_none_or(|(_, key)| better(entry.key, key))
            {
                best = Some((source, entry.key));
            }
        }
        Ok(best.map(|(source, _)| Value::in_batch(source.block.clone(), source.block.places(source.at).0)))
    }

    /// Passes all messages of the lookup's key, for a forward scan. Each source yields its newest message first, and
    /// the first source is the newest one. Returns whether a message after the read point may give the key a value.
    fn take_forward(&mut self, lookup: &mut Lookup<'_>) -> Result<bool> {
        let mut newer = false;
        for source in &mut self.sources {
            lookup.at = source.visible;
            while let Some(entry) = source.entry().filter(|entry| entry.key == lookup.key) {
                newer |= revives(&entry, source.visible);
                if !lookup.is_done() {
                    let _ = lookup.take(&entry, || source.base())?;
                }
                source.at += 1;
                source.prepare()?;
            }
        }
        Ok(newer)
    }

    /// Passes all messages of the lookup's key, for a backward scan. Each source yields its oldest message first, so
    /// the messages are collected and then taken in the opposite order. The result is that of [`Side::take_forward`].
    fn take_backward(&mut self, lookup: &mut Lookup<'_>) -> Result<bool> {
        debug_assert!(self.places.is_empty(), "one key at a time");
        for source in self.sources.iter_mut().rev() {
            while source.entry().is_some_and(|entry| entry.key == lookup.key) {
                self.places.push((source.block.clone(), source.at, source.visible));
                source.at += 1;
                source.prepare()?;
            }
        }
        seeded!(OperandsBackwards: (), self.places.reverse());
        let newer = self.places.iter().any(|(block, at, visible)| revives(&block.get(*at), *visible));
        for (block, at, visible) in &self.places {
            lookup.at = *visible;
            if lookup.take(&block.get(*at), || Base::InBatch(block.clone(), block.places(*at).1))?.is_break() {
                break;
            }
        }
        // A kept block could not be reused.
        self.places.clear();
        Ok(newer)
    }
}

impl<'a> Stretch<'a> {
    /// A stretch that begins where a scan of `rest` is.
    fn new(rest: &'a KeyRange, reverse: bool, joins: bool) -> Stretch<'a> {
        let start = Cow::Borrowed(if reverse { &*rest.to } else { &*rest.from });
        Stretch { start, passed: 0, joins, none_before: Some(Vec::new()) }
    }

    /// Begins a new stretch, at a bound like `start`.
    fn restart(&mut self, start: Vec<u8>) {
        (self.start, self.passed, self.joins) = (Cow::Owned(start), 0, false);
    }
}

/// Whether a message after the read point `at` may give its key a value.
fn revives(entry: &Entry<'_>, at: Seqno) -> bool {
    entry.seqno > at && entry.kind != Kind::Delete
}

/// The part of `over` behind the dead range at its first end, which is the upper end if `reverse`; and whether there is
/// such a dead range.
fn behind_dead_range(state: &KeyspaceState, at: Seqno, over: &Arc<KeyRange>, reverse: bool) -> (Arc<KeyRange>, bool) {
    let alive = match state.dead_ranges.skip(if reverse { &over.to } else { &over.from }, reverse, at) {
        Skip::NoneBefore(_) => return (over.clone(), false),
        // An empty bound means that no key has a value.
        Skip::To(bound) if bound.is_empty() => KeyRange::none(),
        Skip::To(bound) if reverse => KeyRange::new(&*over.from, bound),
        Skip::To(bound) => KeyRange::new(bound, &*over.to),
    };
    (Arc::new(alive), true)
}

/// Appends the references to the large values of the next keys, at most `most` of them, in the order of the scan.
/// Considers only entries that were fetched from the sources already.
fn next_values(sources: &[Source], reverse: bool, most: usize, out: &mut Vec<BlobRef>) {
    let mut next: Vec<(&[u8], Option<BlobRef>)> = Vec::new();
    for source in sources {
        let first = next.len();
        for i in (source.at..source.block.len()).take(most) {
            let entry = source.block.get(i);
            let blob = (entry.kind == Kind::BlobPut).then(|| BlobRef::decode(entry.value).ok()).flatten();
            match next[first..].last_mut() {
                // The newest message of a key counts. A forward scan meets it first, a backward scan meets it last.
                Some((key, newest)) if *key == entry.key => {
                    if reverse {
                        *newest = blob;
                    }
                }
                _ => next.push((entry.key, blob)),
            }
        }
    }
    // The sort is stable, so the message of the newest source comes first.
    next.sort_by(|a, b| if reverse { b.0.cmp(a.0) } else { a.0.cmp(b.0) });
    next.dedup_by_key(|(key, _)| *key);
    out.extend(next.into_iter().filter_map(|(_, blob)| blob).take(most));
}
