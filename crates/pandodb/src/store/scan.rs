//! Range iteration from both ends.
//!
//! ```text
//!  active memtable ─┐
//!  sealed … ────────┼─▶ smallest (largest) key ─▶ resolve its messages at the read point ─▶ (key, value)
//!  index cursor ────┘        a block of entries at a time from each
//! ```
//!
//! Each end is a [`Side`] of its own with its own sources; they meet where the keys cross. A scan registers its read
//! point like a snapshot. It pins the memtables and the view it started with, but not for ever: after [`HOLD`] it takes
//! the newest world and seeks to where it was, so that a slow reader does not keep old runs alive.
//!
//! Range tombstones that may matter are gathered once a world into [`Fragments`]; seqnos are global, so a message is dead
//! exactly if a tombstone that covers its key, visible at the read point, is newer.

use std::sync::Arc;
use std::time::Duration;

use super::keyspace::{Keyspace, KeyspaceState};
use super::read::Pinned;
use super::snapshot::{Registered, Snapshot};
use super::value::Value;
use crate::base::{BlobRef, Entry, EntryBlock, Error, Fragments, KeyRange, Kind, Result, SeededBug, Seqno};
use crate::index::RawCursor;
use crate::memtable::Memtable;
use crate::resolve::Gather;

use super::engine::Engine;

/// How long a scan holds on to one world.
const HOLD: Duration = Duration::from_secs(2);
/// Who comes for so many keys within so short a time is not asked the time again before as many more.
const QUICK_KEYS: u32 = 16;
const QUICK: Duration = Duration::from_millis(1);
/// Bytes of the first block that a side takes from each source, and of the largest. Between them it takes half of what it has
/// had so far: so much at most has been read in vain when the scan ends.
const FIRST_BLOCK: usize = 2 << 10;
const BLOCK: usize = 64 << 10;

/// An iterator over the keys of a range with their values, from both ends, as of one moment. Made by
/// [`Keyspace::range`], [`Keyspace::prefix`], [`Keyspace::iter`] and their like at a snapshot.
///
/// Items are errors where a block is damaged; the iterator ends after the first one. To go on behind it, open another range
/// above the keys that are damaged, or [`crate::check::salvage`] the store. A seek costs about one block read
/// for each run on the path; from then on blocks are read ahead.
pub struct Range {
    keyspace: Keyspace,
    point: Option<Arc<Registered>>,
    bounds: KeyRange,
    front: Option<Side>,
    back: Option<Side>,
    values: bool,
    finished: bool,
    /// What made the range impossible to open; given out as its only item.
    broken: Option<Error>,
}

impl Range {
    pub(crate) fn new(keyspace: &Keyspace, bounds: KeyRange, snapshot: Option<&Snapshot>) -> Range {
        let snapshots = &keyspace.engine.snapshots;
        let mut broken = keyspace.state.check_alive().err();
        let point = match snapshot {
            Some(snapshot) if snapshot.0.is_of(snapshots) => Some(snapshot.0.clone()),
            Some(_) => {
                broken = Some(Error::invalid("the snapshot was taken from another store"));
                None
            }
            None => Some(Arc::new(snapshots.register())),
        };
        let finished = bounds.is_empty() && broken.is_none();
        Range { keyspace: keyspace.clone(), point, bounds, front: None, back: None, values: true, finished, broken }
    }

    /// Leaves large values unread: their items come with empty values. For walking keys.
    pub fn keys_only(mut self) -> Range {
        self.values = false;
        self
    }

    fn step(&mut self, reverse: bool) -> Option<Result<(Value, Value)>> {
        if let Some(error) = self.broken.take() {
            self.finished = true;
            return Some(Err(error));
        }
        if self.finished {
            return None;
        }
        let item = self.advance(reverse);
        match item {
            Ok(Some(pair)) => Some(Ok(pair)),
            Ok(None) => {
                self.finished = true;
                None
            }
            Err(e) => {
                self.finished = true;
                Some(Err(e))
            }
        }
    }

    fn advance(&mut self, reverse: bool) -> Result<Option<(Value, Value)>> {
        let point = self.point.as_ref().expect("a range that opened has a read point").seqno();
        let side = if reverse { &mut self.back } else { &mut self.front };
        let engine = &self.keyspace.engine;
        let is_new = side.as_mut().is_some_and(|side| !side.is_old(|| engine.device.now()));
        let side = match side {
            Some(side) if is_new => side,
            _ => {
                let before = side.as_ref().filter(|_| !SeededBug::ScanStartsOver.is_on());
                let side_bounds = before.map_or(&self.bounds, |side| &side.rest).clone();
                side.insert(Side::open(&self.keyspace.state, point, side_bounds, reverse, engine.device.now())?)
            }
        };
        let Some((key, found)) = side.next(engine, &self.keyspace.state, self.values)? else { return Ok(None) };
        // The ends meet: each one narrows what is left for the other.
        let other = if reverse { &self.front } else { &self.back };
        let passed = other.as_ref().is_some_and(|other| !other.rest.contains(&key));
        Ok((!passed || SeededBug::ScanEndsPass.is_on()).then_some((key, found)))
    }
}

impl std::fmt::Debug for Range {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Range").field("bounds", &self.bounds).field("keyspace", &self.keyspace.name()).finish()
    }
}

impl Iterator for Range {
    type Item = Result<(Value, Value)>;

    fn next(&mut self) -> Option<Self::Item> {
        self.step(false)
    }
}

impl DoubleEndedIterator for Range {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.step(true)
    }
}

impl std::iter::FusedIterator for Range {}

/// One end of a scan.
struct Side {
    world: Pinned,
    reverse: bool,
    /// Newest first.
    sources: Vec<Source>,
    tombstones: Fragments,
    /// What this end has not returned yet.
    rest: KeyRange,
    opened: Duration,
    /// When it last asked the time, and how many keys may come before it does again.
    asked: Duration,
    quick: u32,
}

/// A memtable or the index, a block of entries at a time.
struct Source {
    from: From,
    block: Arc<EntryBlock>,
    at: usize,
    /// Bytes of all blocks so far.
    taken: usize,
    exhausted: bool,
}

enum From {
    Memtable(Arc<Memtable>, KeyRange),
    Index(Box<dyn RawCursor>),
}

impl Source {
    fn new(from: From) -> Source {
        Source { from, block: Arc::default(), at: 0, taken: 0, exhausted: false }
    }

    /// Makes sure that there is a current entry, unless the source is at its end.
    fn prepare(&mut self, reverse: bool) -> Result<()> {
        if self.at < self.block.len() || self.exhausted {
            return Ok(());
        }
        let after = match self.block.len() {
            0 => None,
            n => Some((self.block.get(n - 1).key.to_vec(), self.block.get(n - 1).seqno)),
        };
        // Values that were handed out may still point into the old block.
        let mut block = match Arc::get_mut(&mut self.block) {
            Some(block) => std::mem::take(block),
            None => EntryBlock::new(),
        };
        block.clear();
        let bytes = (self.taken / 2).clamp(FIRST_BLOCK, BLOCK);
        match &mut self.from {
            From::Memtable(memtable, range) => {
                let after = after.as_ref().map(|(key, seqno)| (key.as_slice(), *seqno));
                memtable.fill(range, after, reverse, usize::MAX, bytes, &mut block);
            }
            From::Index(cursor) => cursor.fill(bytes, &mut block)?,
        }
        self.taken += bytes;
        self.exhausted = block.is_empty();
        self.block = Arc::new(block);
        self.at = 0;
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }
}

/// A key's messages, resolved as they come.
struct Resolved {
    base: Found,
    operands: Vec<Vec<u8>>,
    oldest_first: bool,
    done: bool,
}

enum Found {
    Nothing,
    Inline(Value),
    Blob(BlobRef),
}

impl Side {
    fn open(state: &Arc<KeyspaceState>, at: Seqno, rest: KeyRange, reverse: bool, now: Duration) -> Result<Side> {
        let world = Pinned::at(state, at)?;
        let mut tombstones = Vec::new();
        let mut sources = Vec::new();
        for memtable in world.world().memtables() {
            tombstones.extend(memtable.fragments().clipped(&rest));
            sources.push(Source::new(From::Memtable(memtable.clone(), rest.clone())));
        }
        world.view.tombstones(&rest, &mut tombstones)?;
        tombstones.retain(|tombstone| tombstone.seqno <= at);
        sources.push(Source::new(From::Index(world.view.clone().cursor(&rest, reverse)?)));
        let tombstones = Fragments::build(&tombstones);
        Ok(Side { world, reverse, sources, tombstones, rest, opened: now, asked: now, quick: 0 })
    }

    /// Whether it has held on to its world for too long.
    fn is_old(&mut self, now: impl Fn() -> Duration) -> bool {
        if let Some(quick) = self.quick.checked_sub(1) {
            self.quick = quick;
            return false;
        }
        let before = std::mem::replace(&mut self.asked, now());
        self.quick = if self.asked.saturating_sub(before) < QUICK { QUICK_KEYS } else { 0 };
        self.asked.saturating_sub(self.opened) >= HOLD
    }

    /// The next key that has a value.
    fn next(&mut self, engine: &Engine, state: &KeyspaceState, values: bool) -> Result<Option<(Value, Value)>> {
        loop {
            let Some((key, resolved)) = self.next_key()? else { return Ok(None) };
            if let Some(value) = value_of(engine, state, &key, resolved, values)? {
                // Keys without a value leave no trace: whoever looks at the rest has been given a key before.
                let bound = if self.reverse { &mut self.rest.to } else { &mut self.rest.from };
                bound.clear();
                bound.extend_from_slice(&key);
                if !self.reverse {
                    // The key's successor.
                    bound.push(0);
                }
                return Ok(Some((key, value)));
            }
        }
    }

    /// Takes all messages of the next key from all sources.
    fn next_key(&mut self) -> Result<Option<(Value, Resolved)>> {
        let reverse = self.reverse;
        for source in &mut self.sources {
            source.prepare(reverse)?;
        }
        if self.sources.iter().any(|source| source.exhausted) {
            self.sources.retain(|source| !source.exhausted);
        }
        let better = |a: &[u8], b: &[u8]| if reverse { a > b } else { a < b };
        let mut best: Option<usize> = None;
        for (i, source) in self.sources.iter().enumerate() {
            if let Some(entry) = source.entry()
                && best.is_none_or(|b| better(entry.key, self.sources[b].entry().expect("has one").key))
            {
                best = Some(i);
            }
        }
        let Some(best) = best else { return Ok(None) };
        let (key_range, _) = self.sources[best].block.places(self.sources[best].at);
        let key = Value::in_batch(&self.sources[best].block, key_range);
        let floor = self.tombstones.covering(&key, self.world.at);
        let mut resolved = Resolved { base: Found::Nothing, operands: Vec::new(), oldest_first: reverse, done: false };
        // Forward, each source yields newest first, so the newest source comes first; backward it is the reverse.
        let count = self.sources.len();
        for i in (0..count).map(|i| if reverse { count - 1 - i } else { i }) {
            let source = &mut self.sources[i];
            while let Some(entry) = source.entry().filter(|entry| entry.key == &*key) {
                if entry.seqno <= self.world.at && entry.seqno > floor {
                    resolved.take(source, entry, reverse)?;
                }
                source.at += 1;
                source.prepare(reverse)?;
            }
        }
        Ok(Some((key, resolved)))
    }
}

impl Resolved {
    fn take(&mut self, source: &Source, entry: Entry<'_>, reverse: bool) -> Result<()> {
        if !reverse && self.done {
            return Ok(());
        }
        if entry.kind == Kind::Merge {
            self.operands.push(entry.value.to_vec());
            return Ok(());
        }
        if reverse {
            // Oldest first: a newer base makes everything before it void.
            self.operands.clear();
        }
        self.done = true;
        self.base = match entry.kind {
            Kind::Put => Found::Inline(Value::in_batch(&source.block, source.block.places(source.at).1)),
            Kind::BlobPut => Found::Blob(BlobRef::decode(entry.value)?),
            Kind::Delete | Kind::Merge | Kind::RangeDelete => Found::Nothing,
        };
        Ok(())
    }
}

/// The value that a key's messages come to; `None` if it has none.
fn value_of(
    engine: &Engine,
    state: &KeyspaceState,
    key: &[u8],
    resolved: Resolved,
    values: bool,
) -> Result<Option<Value>> {
    let Resolved { base, operands, oldest_first, .. } = resolved;
    let read = |blob: &BlobRef| engine.core.data.read_blob(blob).map(|buf| Value::blob(buf, blob.len as usize));
    if operands.is_empty() {
        return match base {
            Found::Nothing => Ok(None),
            Found::Inline(value) => Ok(Some(value)),
            Found::Blob(_) if !values => Ok(Some(Value::owned(Vec::new()))),
            Found::Blob(blob) => read(&blob).map(Some),
        };
    }
    let operator = state.operator()?;
    let base = match base {
        Found::Nothing => None,
        Found::Inline(value) => Some(value),
        Found::Blob(blob) => Some(read(&blob)?),
    };
    let mut gather = Gather::new();
    // The gatherer wants the newest first.
    if oldest_first && !SeededBug::OperandsBackwards.is_on() {
        operands.iter().rev().for_each(|operand| gather.push_merge(operand));
    } else {
        operands.iter().for_each(|operand| gather.push_merge(operand));
    }
    Ok(gather.fold(key, base.as_deref(), Some(operator), || unreachable!("the operator is there"))?.map(Value::owned))
}
