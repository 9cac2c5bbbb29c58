//! [`ReadSet`]: what a transaction has read, and the search for changes of it.
//!
//! ```text
//!   get, contains ─▶ key, also if it has no value          changed after the read point? ─▶ memtables ─▶ index
//!   range         ─▶ the part of the range that was walked
//! ```
//!
//! A change is found where it is: in a memtable or in the index. So there is no history to keep, and the answer is
//! exact: the transaction's read point is registered, so compactions keep every message after it that a reader could
//! tell from its absence.
//!
//! Under snapshot isolation the same structure holds the keys that the transaction writes.

use std::sync::Arc;

use crate::base::range::Heads;
use crate::base::{EntryBlock, HashedKey, KeyRange, Result, SeededBug, Seqno, seeded};
use crate::index::Changes;
use crate::memtable::{self, Memtable};
use crate::store::dead_ranges::Skip;
use crate::store::footprints::{Footprint, bit, mixed};
use crate::store::state::KeyspaceState;

/// If there are at most this number of keys, they are compared one by one with a footprint.
const FEW: usize = 8;
/// If there are more than this number of keys, they are not compared with a Bloom filter under the sequencer.
const MANY: usize = 64;
/// The number of keys for which memory is allocated at first.
const FIRST_KEYS: usize = 16;
/// The most bytes that a key is expected to have, for this.
const FIRST_LEN: usize = 64;
/// The number of bytes that the search of a memtable reads at a time.
const BLOCK: usize = 32 << 10;
/// The number of keys that are searched between two calls of the function that [`ReadSet::find_change`] gets.
const KEYS: usize = 256;

/// A key that was read.
#[derive(Clone, Copy, Debug)]
struct ReadKey {
    /// The index of the keyspace.
    keyspace: u32,
    changes: Changes,
    hash: u64,
    /// The place of the stored key in `bytes`.
    start: usize,
    len: usize,
}

/// A range that was read.
#[derive(Clone, Debug)]
struct ReadRange {
    keyspace: u32,
    heads: Heads,
    range: KeyRange,
}

impl ReadRange {
    fn new(keyspace: u32, range: KeyRange) -> ReadRange {
        let heads = if range.is_empty() {
            Heads::NONE
        } else {
            Heads::of(&range.from, Some(&*range.to).filter(|to| !to.is_empty()))
        };
        ReadRange { keyspace, heads, range }
    }
}

/// A change that conflicts with what a transaction has read.
#[derive(Clone)]
pub struct Conflict {
    /// The keyspace.
    pub keyspace: Arc<KeyspaceState>,
    /// The keys, in their stored form.
    pub range: KeyRange,
}

/// Keys and ranges in which no change may have happened since the read point.
#[derive(Default)]
pub struct ReadSet {
    keyspaces: Vec<Arc<KeyspaceState>>,
    keys: Vec<ReadKey>,
    bytes: Vec<u8>,
    ranges: Vec<ReadRange>,
    /// The bits of the keyspaces of all keys, and those of all ranges ([`bit`]).
    key_bits: u32,
    range_bits: u32,
    /// The bytes of the bounds of all ranges.
    bounds: usize,
    /// The mixed hashes of the first `sorted.len()` keys, in ascending order.
    sorted: Vec<u32>,
}

impl ReadSet {
    /// The most bytes that a key of `len` bytes takes.
    pub fn bytes_of_key(len: usize) -> usize {
        /// The bytes that a codec may add to a key.
        const CODEC: usize = 8;
        CODEC + len + size_of::<ReadKey>()
    }

    /// The bytes that a range takes whose bounds have `len` bytes in all.
    pub fn bytes_of_range(len: usize) -> usize {
        len + size_of::<ReadRange>()
    }

    /// Whether nothing was read.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ranges.is_empty()
    }

    /// The index of a keyspace.
    fn number(&mut self, keyspace: &Arc<KeyspaceState>) -> u32 {
        let at = self.keyspaces.iter().position(|known| Arc::ptr_eq(known, keyspace)).unwrap_or_else(|| {
            self.keyspaces.push(keyspace.clone());
            self.keyspaces.len() - 1
        });
        u32::try_from(at).expect("a store has fewer keyspaces")
    }

    /// Adds a key in its stored form. `changes` are the messages that conflict with it.
    pub fn add_key(&mut self, keyspace: &Arc<KeyspaceState>, key: HashedKey<'_>, changes: Changes) {
        let HashedKey { key, hash } = key;
        if self.keys.last().is_some_and(|last| {
            last.changes == changes && self.key(last).key == key && Arc::ptr_eq(self.keyspace(last.keyspace), keyspace)
        }) {
            return;
        }
        self.key_bits |= bit(keyspace.id);
        let (start, len) = (self.bytes.len(), key.len());
        let keyspace = self.number(keyspace);
        if self.keys.capacity() == 0 {
            self.keys.reserve(FIRST_KEYS);
            self.bytes.reserve(FIRST_KEYS * (key.len().min(FIRST_LEN) + 8));
        }
        self.bytes.extend_from_slice(key);
        self.keys.push(ReadKey { keyspace, changes, hash, start, len });
    }

    /// Adds a range of stored keys. Returns its number, with which [`ReadSet::replace`] changes it.
    pub fn add_range(&mut self, keyspace: &Arc<KeyspaceState>, range: KeyRange) -> usize {
        self.range_bits |= bit(keyspace.id);
        let keyspace = self.number(keyspace);
        self.bounds += range.from.len() + range.to.len();
        self.ranges.push(ReadRange::new(keyspace, range));
        self.ranges.len() - 1
    }

    /// Replaces a range by the parts of it that were really read.
    pub fn replace(&mut self, number: usize, parts: Vec<KeyRange>) {
        let ReadRange { keyspace, range, .. } = &self.ranges[number];
        debug_assert!(parts.iter().all(|part| range.covers(part)), "parts of the range");
        let keyspace = *keyspace;
        self.bounds += parts.iter().map(|part| part.from.len() + part.to.len()).sum::<usize>();
        let mut parts = parts.into_iter().map(|range| ReadRange::new(keyspace, range));
        // Most iterators leave one part.
        self.ranges[number] = parts.next().unwrap_or_else(|| ReadRange::new(keyspace, KeyRange::none()));
        self.ranges.extend(parts);
    }

    /// The bytes of the keys and ranges, and of their descriptions.
    pub fn bytes(&self) -> usize {
        self.bytes.len() + self.bounds + size_of_val(&*self.keys) + size_of_val(&*self.ranges)
    }

    fn key(&self, at: &ReadKey) -> HashedKey<'_> {
        HashedKey { key: &self.bytes[at.start..at.start + at.len], hash: at.hash }
    }

    /// The names of the keyspaces and the users' forms of the first `most` keys.
    pub fn first_keys(&self, most: usize) -> impl Iterator<Item = (&str, &[u8])> {
        self.keys.iter().take(most).map(|at| {
            let keyspace = self.keyspace(at.keyspace);
            (&*keyspace.name, keyspace.codec.user(self.key(at).key))
        })
    }

    fn keyspace(&self, number: u32) -> &Arc<KeyspaceState> {
        &self.keyspaces[number as usize]
    }

    /// Searches memtables and indexes for a change with a seqno above `since`, but only of keys that a commit with one
    /// of the footprints `among` may have changed. Everything was read at the registered read point `point`. Finds
    /// every change of a commit that was applied when the call began. Calls `pause` often.
    ///
    /// # Errors
    /// If a block cannot be read, or a keyspace was dropped.
    pub fn find_change(
        &self,
        point: Seqno,
        since: Seqno,
        among: &[Footprint],
        pause: &mut dyn FnMut(),
    ) -> Result<Option<Conflict>> {
        debug_assert!(since >= point, "a later search looks for later changes");
        let mut containers = Containers { since, of: self.keyspaces.iter().map(|_| None).collect() };
        let mut searched = 0;
        for at in self.keys.iter().filter(|at| among.iter().any(|footprint| self.may_touch_key(footprint, at))) {
            let (keyspace, key) = (self.keyspace(at.keyspace), self.key(at));
            if containers.of(at.keyspace, keyspace)?.key_changed(key, since, at.changes)? {
                return Ok(Some(Conflict { keyspace: keyspace.clone(), range: KeyRange::point(key.key) }));
            }
            searched += 1;
            if searched % KEYS == 0 {
                pause();
            }
        }
        for read in
            self.ranges.iter().filter(|read| among.iter().any(|footprint| self.may_touch_range(footprint, read)))
        {
            let keyspace = self.keyspace(read.keyspace);
            let alive = alive_part(keyspace, &read.range, seeded!(DeadPartTooNew: Seqno::MAX, point));
            keyspace.check_alive()?;
            if !alive.is_empty() && containers.of(read.keyspace, keyspace)?.range_changed(&alive, since, pause)? {
                return Ok(Some(Conflict { keyspace: keyspace.clone(), range: read.range.clone() }));
            }
        }
        Ok(None)
    }

    /// Whether a commit with this footprint may have changed a key.
    fn may_touch_key(&self, footprint: &Footprint, at: &ReadKey) -> bool {
        let keyspace = self.keyspace(at.keyspace).id;
        footprint.may_touch_key(keyspace, mixed(keyspace, at.hash))
    }

    /// Whether a commit with this footprint may have changed a key of a range.
    fn may_touch_range(&self, footprint: &Footprint, read: &ReadRange) -> bool {
        !read.range.is_empty() && footprint.may_touch_range(self.keyspace(read.keyspace).id, read.heads)
    }

    /// Prepares the set for [`ReadSet::is_disjoint_from`].
    pub fn sort(&mut self) {
        if self.keys.len() > FEW && self.sorted.len() != self.keys.len() {
            let hashes = self.keys.iter().map(|at| mixed(self.keyspaces[at.keyspace as usize].id, at.hash));
            self.sorted = hashes.collect();
            self.sorted.sort_unstable();
        }
    }

    /// Whether a commit with this footprint has certainly changed nothing in the set.
    pub fn is_disjoint_from(&self, footprint: &Footprint) -> bool {
        if footprint.may_touch_any(self.range_bits)
            && self.ranges.iter().any(|read| self.may_touch_range(footprint, read))
        {
            return false;
        }
        if !footprint.may_touch_any(self.key_bits) {
            return true;
        }
        match footprint.hashes() {
            Some(mut hashes) if self.keys.len() > FEW => {
                debug_assert_eq!(self.sorted.len(), self.keys.len(), "sorted before");
                !hashes.any(|hash| self.sorted.binary_search(&hash).is_ok())
            }
            // The caller may hold the sequencer, so do not visit many keys.
            None if self.keys.len() > MANY => false,
            _ => !self.keys.iter().any(|at| self.may_touch_key(footprint, at)),
        }
    }
}

/// A range without the known dead ranges at its ends. No key in these had a value at the read point, and a commit that
/// gave one a value would have cut it out before it was applied. Without this, a consumer of a queue would visit the
/// tombstones of all earlier jobs at each commit.
fn alive_part(keyspace: &KeyspaceState, range: &KeyRange, point: Seqno) -> KeyRange {
    let mut alive = range.clone();
    if let Skip::To(bound) = keyspace.dead_ranges.skip(&alive.from, false, point) {
        // An empty bound means that no later key has a value.
        alive = if bound.is_empty() { KeyRange::none() } else { KeyRange::new(bound, alive.to) };
    }
    if !alive.is_empty()
        && let Skip::To(bound) = keyspace.dead_ranges.skip(&alive.to, true, point)
    {
        alive = if bound.is_empty() { KeyRange::none() } else { KeyRange::new(alive.from, bound) };
    }
    alive
}

/// The containers of the keyspaces that are searched. They are loaded when they are first needed.
struct Containers {
    since: Seqno,
    of: Vec<Option<Places>>,
}

impl Containers {
    fn of(&mut self, number: u32, keyspace: &KeyspaceState) -> Result<&Places> {
        let places = &mut self.of[number as usize];
        if places.is_none() {
            *places = Some(Places::of(keyspace, self.since)?);
        }
        Ok(places.as_ref().expect("just loaded"))
    }
}

/// The memtables of a keyspace that may hold messages above `since`, and the view of its index if it may hold some.
struct Places {
    memtables: Vec<Arc<Memtable>>,
    view: Option<Arc<dyn crate::index::IndexView>>,
}

impl Places {
    /// Loads the memtables first and then the view, as a reader does, so that a memtable that is packed meanwhile is in
    /// one of them.
    fn of(keyspace: &KeyspaceState, since: Seqno) -> Result<Places> {
        let containers = keyspace.containers.load();
        let view = keyspace.index.view();
        keyspace.check_alive()?;
        let through = view.through();
        let oldest = seeded!(SealedMemtablesNotAsked: Seqno::MAX, through.max(since));
        let sealed = containers.sealed.iter().filter(|batch| batch.through > oldest);
        let is_current = |id: u64| id >= through.0 && !SeededBug::ActiveMemtableNotAsked.is_on();
        let active = Some(&containers.active).filter(|active| is_current(active.id()));
        let memtables = active.into_iter().chain(sealed.map(|batch| &batch.memtable)).cloned().collect();
        // The view of an index that is written directly also holds messages above its `through`.
        Ok(Places { memtables, view: Some(view).filter(|_| keyspace.is_direct || through > since) })
    }
}

impl Places {
    fn key_changed(&self, key: HashedKey<'_>, since: Seqno, changes: Changes) -> Result<bool> {
        for memtable in &self.memtables {
            if memtable.covering(key.key, Seqno::MAX) > since && !SeededBug::ReadTombstoneMissed.is_on() {
                return Ok(true);
            }
            let mut found = false;
            memtable.get(key.key, Seqno::MAX, &mut |entry| {
                found = entry.seqno > since && changes.include(entry.kind);
                entry.seqno > since && !found
            });
            if found {
                return Ok(true);
            }
        }
        let view = self.view.clone().filter(|_| !SeededBug::PackedChangeMissed.is_on());
        view.map_or(Ok(false), |view| view.changed(key, since, changes))
    }

    fn range_changed(&self, range: &KeyRange, since: Seqno, pause: &mut dyn FnMut()) -> Result<bool> {
        let (mut sets, mut block) = (Vec::new(), EntryBlock::new());
        for memtable in &self.memtables {
            sets.clear();
            memtable.tombstones(&mut sets);
            let covers = sets.iter().any(|set| set.clipped(range).iter().any(|tombstone| tombstone.seqno > since));
            if covers && !SeededBug::RangeTombstoneMissed.is_on() {
                return Ok(true);
            }
            let mut cursor = memtable::Cursor::new(memtable.clone(), range.clone(), false);
            loop {
                block.clear();
                cursor.fill(BLOCK, &mut block);
                pause();
                if block.is_empty() {
                    break;
                }
                if block.iter().any(|entry| entry.seqno > since) {
                    return Ok(true);
                }
            }
        }
        let view = self.view.clone().filter(|_| !SeededBug::PackedRangeMissed.is_on());
        view.map_or(Ok(false), |view| view.changed_in(range, since, Changes::All))
    }
}
