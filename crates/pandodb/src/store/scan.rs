//! Range iteration: one end of a scan. [`Range`](super::Range) is made of two.
//!
//! ```text
//!  active memtable ─┐
//!  sealed … ────────┼─▶ smallest (largest) key ─▶ resolve its messages at the read point ─▶ (key, value)
//!  index cursor ────┘        a block of entries at a time from each
//! ```
//!
//! Each end is a [`Side`] with its own sources; they meet where the keys cross. A scan registers its read
//! point like a snapshot. It pins the memtables and the view it started with, but not for ever: after [`HOLD`] it takes
//! the newest world and seeks to where it was, so that a slow reader does not keep old runs alive.
//!
//! Range tombstones that may matter are gathered once a world into [`Fragments`]; seqnos are global, so a message is dead
//! exactly if a tombstone that covers its key, visible at the read point, is newer.

use std::sync::Arc;
use std::time::Duration;

use super::read::Pinned;
use super::state::KeyspaceState;
use super::value::Value;
use crate::base::{BlobRef, Entry, EntryBlock, Fragments, KeyRange, Kind, Result, SeededBug, Seqno};
use crate::index::RawCursor;
use crate::memtable;
use crate::resolve::Gather;

use super::engine::Engine;

/// How long a scan holds on to one world.
const HOLD: Duration = Duration::from_secs(2);
/// The clock is checked only every QUICK_KEYS keys while they take less than QUICK.
const QUICK_KEYS: u32 = 16;
const QUICK: Duration = Duration::from_millis(1);
/// Bytes of the first block that a side takes from each source, and of the largest. Between them a block has half of
/// the bytes taken so far: at most these are read in vain when the scan ends.
const FIRST_BLOCK: usize = 2 << 10;
const BLOCK: usize = 64 << 10;

/// One end of a scan.
pub(super) struct Side {
    world: Pinned,
    reverse: bool,
    /// Newest first.
    sources: Vec<Source>,
    tombstones: Fragments,
    /// The range that the sources and the tombstones were opened for.
    over: KeyRange,
    /// A pending seek; always ahead of the sources.
    sought: Option<Vec<u8>>,
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
    Memtable(memtable::Cursor),
    Index(Box<dyn RawCursor>),
}

impl Source {
    fn new(from: From) -> Source {
        Source { from, block: Arc::default(), at: 0, taken: 0, exhausted: false }
    }

    /// Makes sure that there is a current entry, unless the source is at its end.
    fn prepare(&mut self) -> Result<()> {
        if self.at < self.block.len() || self.exhausted {
            return Ok(());
        }
        // Values that were returned may still point into the old block.
        let mut block = match Arc::get_mut(&mut self.block) {
            Some(block) => std::mem::take(block),
            None => EntryBlock::new(),
        };
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

    /// Continues at the first key that is not before `key`, which is ahead of its position: in the current block if that
    /// reaches so far, else in a new one.
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
        // The caller may want one key: start with small blocks again.
        (self.block, self.at, self.taken) = (Arc::default(), 0, 0);
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
    /// Opens an end of a scan of the keys in `over`, at its first key; at its last if `reverse`.
    pub(super) fn open(
        state: &Arc<KeyspaceState>,
        at: Seqno,
        over: KeyRange,
        reverse: bool,
        now: Duration,
    ) -> Result<Side> {
        let world = Pinned::at(state, at)?;
        let mut tombstones = Vec::new();
        let mut sources = Vec::new();
        for memtable in world.world().memtables() {
            tombstones.extend(memtable.fragments().clipped(&over));
            sources.push(Source::new(From::Memtable(memtable::Cursor::new(memtable.clone(), over.clone(), reverse))));
        }
        world.view.tombstones(&over, &mut tombstones)?;
        tombstones.retain(|tombstone| tombstone.seqno <= at);
        sources.push(Source::new(From::Index(world.view.clone().cursor(&over, reverse)?)));
        let tombstones = Fragments::build(&tombstones);
        let (opened, asked) = (now, now);
        Ok(Side { world, reverse, sources, tombstones, over, sought: None, opened, asked, quick: 0 })
    }

    /// The keys that it was opened over.
    pub(super) fn over(&self) -> &KeyRange {
        &self.over
    }

    /// Continues at the first key that is not before `key` in its direction. `key` is ahead of its position.
    pub(super) fn seek_later(&mut self, key: &[u8]) {
        self.sought = Some(key.to_vec());
    }

    /// Whether it has held on to its world for too long.
    pub(super) fn is_old(&mut self, now: impl Fn() -> Duration) -> bool {
        if let Some(quick) = self.quick.checked_sub(1) {
            self.quick = quick;
            return false;
        }
        let before = std::mem::replace(&mut self.asked, now());
        self.quick = if self.asked.saturating_sub(before) < QUICK { QUICK_KEYS } else { 0 };
        self.asked.saturating_sub(self.opened) >= HOLD
    }

    /// The next key, in its stored form, that has a value.
    pub(super) fn next(
        &mut self,
        engine: &Engine,
        state: &KeyspaceState,
        values: bool,
    ) -> Result<Option<(Value, Value)>> {
        if let Some(key) = self.sought.take() {
            self.sources.iter_mut().try_for_each(|source| source.seek(&key, self.reverse))?;
        }
        loop {
            let Some((key, resolved)) = self.next_key()? else { return Ok(None) };
            if let Some(value) = value_of(engine, state, state.codec.user(&key), resolved, values)? {
                return Ok(Some((key, value)));
            }
        }
    }

    /// Takes all messages of the next key from all sources.
    fn next_key(&mut self) -> Result<Option<(Value, Resolved)>> {
        let reverse = self.reverse;
        for source in &mut self.sources {
            source.prepare()?;
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
        let (place, _) = self.sources[best].block.places(self.sources[best].at);
        let key = Value::in_batch(&self.sources[best].block, place);
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
                source.prepare()?;
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
