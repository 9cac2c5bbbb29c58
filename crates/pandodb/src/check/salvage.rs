//! `salvage` copies all data of a damaged store that is readable and certainly right, and reports the losses.
//!
//! ```text
//!   for each piece of the key space (a leaf of the trunk), key by key:
//!
//!   memtables ──┐ newest                     first base of the key ──▶ certain, unless a container down to the base
//!   runs ───────┤   │  each: entries, and    has an unreadable range with the key: then the key is lost
//!   lost nodes ─┘   ▼  unreadable ranges
//! ```
//!
//! The rule for a key is the same as in a lookup: its messages are read from the newest to the oldest until a base is
//! found. If a range of one run cannot be read, it may contain a newer message or a delete. Therefore the values of
//! older runs in this range are *stale*, and are copied only if the caller requests stale values. Values of newer runs
//! are certain. Every key that a lookup can read is copied. Some keys that a lookup cannot read are also copied, for
//! two reasons. Leaves are found without the blocks above them ([`crate::run::Salvager`]), and a lost trunk node
//! affects only its own range.
//!
//! If the log is damaged in the middle, the salvage ends the log at the damage. In this case each keyspace is copied
//! exactly as it was at an earlier moment, and all later writes are reported as lost. (Records after the damage are not
//! certain, because batches are atomic and merges depend on earlier writes.)
//!
//! Invariant: every key of the store is in the copy with its right value, or is in the range of a reported loss.

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, Error, Fragments, KeyRange, Result, Seqno};
use crate::index::{Base, Lookup, SalvagePiece, SalvageSource, SalvageStep};
use crate::memtable::{self, Memtable};
use crate::store::engine::Engine;
use crate::store::load::Load;
use crate::store::read::{Pinned, answer};
use crate::store::state::KeyspaceState;
use crate::store::{Batch, Durability, Keyspace, KeyspaceOptions, Store, StoreBuilder, Value};

/// Bytes per commit to the copy, if its index has no loader.
const BATCH_BYTES: usize = 1 << 20;
/// Bytes per sorted load into the copy. An interrupted salvage has copied all complete loads.
const LOAD_BYTES: usize = 256 << 20;
/// Bytes copied from a memtable at a time.
const MEMTABLE_BLOCK: usize = 64 << 10;
/// A new loss is compared with this number of the most recent losses, to find one with the same reason.
const RECENT: usize = 8;

/// Data that could not be copied.
#[derive(Clone, Debug)]
pub struct Loss {
    /// The missing data has keys in this range. Other keys in the range may be complete.
    pub range: KeyRange,
    /// `None` if keys of the range may be missing completely. Otherwise the seqno up to which the copy includes all
    /// writes: only later writes to keys of the range are missing.
    pub after: Option<u64>,
    /// The reason of the loss. In case of damage it names the file and the offset.
    pub reason: Error,
}

/// The result of a salvage for one keyspace.
#[derive(Clone, Debug, Default)]
pub struct Salvaged {
    /// The name of the keyspace.
    pub keyspace: String,
    /// Number of copied keys.
    pub entries: u64,
    /// Bytes of the copied keys and values.
    pub bytes: u64,
    /// Number of copied keys whose value may be out of date; 0 unless the caller requested stale values.
    pub stale: u64,
    /// The losses, in key order.
    pub losses: Vec<Loss>,
}

/// The result of a salvage.
#[derive(Clone, Debug, Default)]
pub struct SalvageReport {
    /// The keyspaces, in the order of creation.
    pub keyspaces: Vec<Salvaged>,
    /// The damage at which the salvage ended the log, if the log was damaged. All later writes are lost. Each keyspace
    /// reports these writes as a loss. Keyspaces that were created after the cut are lost completely, and their names
    /// are unknown.
    pub log_cut: Option<Error>,
}

impl SalvageReport {
    /// Whether everything was copied.
    pub fn is_complete(&self) -> bool {
        self.log_cut.is_none() && self.keyspaces.iter().all(|keyspace| keyspace.losses.is_empty())
    }
}

/// Copies the readable data of a damaged store into the new store `out`. `from` describes how to open the damaged
/// store. The damaged store is opened for reading and not changed. With `include_stale`, a key whose newest message may
/// be lost is copied with the value that its older messages give. Such keys are counted in [`Salvaged::stale`] and
/// still reported as lost, because deleted keys may reappear.
///
/// ```
/// let dir = tempfile::tempdir()?;
/// let path = dir.path().join("saved");
/// # let damaged = dir.path().join("damaged");
/// # pandodb::Store::open(&damaged)?.keyspace("k")?.put("a", "b")?;
/// let out = pandodb::Store::open(&path)?;
/// let report = pandodb::check::salvage(pandodb::Store::builder(&damaged), &out, false)?;
/// assert!(report.is_complete() && report.keyspaces[0].entries == 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::InvalidArgument`] if `out` has keyspaces. [`Error::Corruption`] if neither superblock leads to a readable
/// catalogue, because nothing is certain in that case. Also any error of writing to `out`.
pub fn salvage(from: StoreBuilder, out: &Store, include_stale: bool) -> Result<SalvageReport> {
    if !out.keyspaces().is_empty() {
        return Err(Error::invalid(
            "the target of a salvage must be a new store; name a directory that does not exist",
        ));
    }
    let store = from.open_to_salvage()?;
    let engine = &store.engine;
    let keyspaces = engine.keyspaces.all();
    let mut report = SalvageReport { log_cut: engine.log_cut.clone(), ..SalvageReport::default() };
    for keyspace in keyspaces {
        let into = out.keyspace_with(&keyspace.name, options(&keyspace))?;
        let copy = Copy { into: &into, load: None, batch: out.batch().trusting(), held: 0 };
        let salvaged = Salvaged { keyspace: keyspace.name.clone(), ..Salvaged::default() };
        let world = Pinned::at(&keyspace, engine.snapshots.visible())?;
        // If the log was cut, runs may hold newer messages than the remaining part of the log.
        let at = world.at.max(keyspace.index.stored_through());
        let mut work = Work { engine, keyspace: &keyspace, at, include_stale, salvaged, copy };
        if let Some(reason) = &engine.log_cut {
            let after = Some(at.0);
            work.salvaged.losses.push(Loss { range: KeyRange::all(), after, reason: reason.clone() });
        }
        // The opening has kept the log of a keyspace without memtables in its active memtable.
        let memtables: Vec<Arc<Memtable>> = if keyspace.is_direct {
            vec![world.containers.active.clone()]
        } else {
            world.world().memtables().cloned().collect()
        };
        for piece in keyspace.index.inspect().salvage() {
            work.piece(&memtables, piece)?;
        }
        report.keyspaces.push(work.finish()?);
    }
    debug_assert!(
        report.log_cut.is_none() || report.keyspaces.iter().all(|keyspace| !keyspace.losses.is_empty()),
        "a cut log is a loss of each keyspace"
    );
    out.persist(Durability::Synced)?;
    Ok(report)
}

/// The options for the copy of a keyspace. If the operator of the keyspace is not registered, the copy has no operator,
/// and keys with operands are lost.
fn options(keyspace: &KeyspaceState) -> KeyspaceOptions {
    let mut options = KeyspaceOptions::new().index(keyspace.options());
    options = options.blob_threshold(keyspace.blob_threshold);
    options.operator = keyspace.operator.as_ref().map(|operator| operator.inner().clone());
    options
}

/// The copy of one keyspace, in progress.
struct Copy<'a> {
    into: &'a Keyspace,
    /// The sorted load in progress. An index without a loader gets batches instead.
    load: Option<Load<'a>>,
    batch: Batch,
    /// Bytes in the load or in the batch.
    held: usize,
}

impl Copy<'_> {
    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        if !Load::is_direct(self.into) {
            debug_assert!(self.held < BATCH_BYTES, "a full batch was committed");
            self.batch.put(self.into, key, value);
            self.held += key.len() + value.len();
            return if self.held >= BATCH_BYTES { self.flush() } else { Ok(()) };
        }
        // The pieces of an index are in key order, but damage may have changed this order.
        if self.held >= LOAD_BYTES || self.load.as_ref().is_some_and(|load| !load.is_next(key)) {
            self.flush()?;
        }
        let load = match &mut self.load {
            Some(load) => load,
            none => none.insert(Load::begin(self.into)?.trusting()),
        };
        self.held += key.len() + value.len();
        load.push(key, value)
    }

    fn flush(&mut self) -> Result<()> {
        self.held = 0;
        if let Some(load) = self.load.take() {
            load.finish()?;
        }
        self.batch.commit(Durability::None)
    }
}

/// A source of messages in key order.
enum Feed {
    Memtable(memtable::Cursor),
    Index(Box<dyn SalvageSource>),
    Nothing,
}

/// A container of messages, with the ranges of its keys that cannot be read.
struct Source {
    feed: Feed,
    tombstones: Arc<Fragments>,
    /// The range in which nothing is certain, because the range tombstones, or all messages, of the container are
    /// unknown.
    veiled: Option<KeyRange>,
    /// The most recent gap that the reading has passed.
    gap: Option<KeyRange>,
    block: EntryBlock,
    at: usize,
    ended: bool,
}

impl Source {
    fn new(feed: Feed, tombstones: Arc<Fragments>) -> Source {
        Source { feed, tombstones, veiled: None, gap: None, block: EntryBlock::new(), at: 0, ended: false }
    }

    /// Makes a source for a container whose contents in `range` are unknown.
    fn veil(range: KeyRange) -> Source {
        Source { veiled: Some(range), ..Source::new(Feed::Nothing, Arc::default()) }
    }

    /// Reads until there is a current entry or no entry is left. Gaps that are passed on the way are added to `lost`.
    fn prepare(&mut self, lost: &mut Vec<(KeyRange, Error)>) {
        while self.at >= self.block.len() && !self.ended {
            debug_assert_eq!(self.at, self.block.len(), "no entry of the block was skipped");
            self.block.clear();
            self.at = 0;
            match self.fill() {
                SalvageStep::Entries => debug_assert!(!self.block.is_empty(), "a step with entries has one"),
                SalvageStep::Lost(range, error) => {
                    self.gap = Some(range.clone());
                    lost.push((range, error));
                }
                SalvageStep::End => {
                    debug_assert!(self.block.is_empty(), "the last step has no entries");
                    self.ended = true;
                }
            }
        }
    }

    fn fill(&mut self) -> SalvageStep {
        match &mut self.feed {
            Feed::Nothing => SalvageStep::End,
            Feed::Index(source) => source.next(&mut self.block),
            Feed::Memtable(cursor) => {
                cursor.fill(MEMTABLE_BLOCK, &mut self.block);
                if self.block.is_empty() { SalvageStep::End } else { SalvageStep::Entries }
            }
        }
    }

    fn entry(&self) -> Option<Entry<'_>> {
        (self.at < self.block.len()).then(|| self.block.get(self.at))
    }

    /// Whether the container may have had messages of `key` that cannot be read. Call this function after reading the
    /// readable messages of `key`.
    fn hides(&self, key: &[u8]) -> bool {
        let in_gap = self.gap.as_ref().is_some_and(|range| range.contains(key));
        let may_hold = || !matches!(&self.feed, Feed::Index(source) if !source.may_hold(key));
        self.veiled.as_ref().is_some_and(|range| range.contains(key)) || in_gap && may_hold()
    }
}

/// The state of salvaging one keyspace.
struct Work<'a> {
    engine: &'a Engine,
    keyspace: &'a KeyspaceState,
    at: Seqno,
    include_stale: bool,
    salvaged: Salvaged,
    copy: Copy<'a>,
}

impl Work<'_> {
    /// Copies a piece of the key space.
    fn piece(&mut self, memtables: &[Arc<Memtable>], piece: SalvagePiece) -> Result<()> {
        let mut sources = self.open(memtables, piece);
        let mut lost = Vec::new();
        loop {
            sources.iter_mut().for_each(|source| source.prepare(&mut lost));
            let least = sources.iter().filter_map(|source| source.entry().map(|entry| entry.key)).min();
            let key = least.map(<[u8]>::to_vec);
            let resolved = key.as_deref().map(|key| self.resolve(key, &mut sources, &mut lost));
            lost.drain(..).for_each(|(range, reason)| self.lose(range, reason));
            let (Some(key), Some((value, certain))) = (key, resolved) else { return Ok(()) };
            match value {
                Ok(Some(value)) if certain || self.include_stale => {
                    let key = self.keyspace.codec.user(&key);
                    self.copy.put(key, &value)?;
                    self.salvaged.entries += 1;
                    self.salvaged.bytes += (key.len() + value.len()) as u64;
                    self.salvaged.stale += u64::from(!certain);
                    debug_assert!(self.salvaged.stale <= self.salvaged.entries, "stale keys are copied, too");
                }
                Ok(_) => {}
                Err(e) => self.lose(KeyRange::point(&key), e),
            }
        }
    }

    /// Opens all sources that a lookup in this piece would search, newest first.
    fn open(&mut self, memtables: &[Arc<Memtable>], piece: SalvagePiece) -> Vec<Source> {
        debug_assert!(memtables.is_sorted_by(|a, b| a.id() > b.id()), "newest first");
        let mut sources = Vec::new();
        for memtable in memtables {
            let feed = Feed::Memtable(memtable::Cursor::new(memtable.clone(), piece.range.clone(), false));
            sources.push(Source::new(feed, memtable.fragments()));
        }
        for source in piece.sources {
            let (range, tombstones) = (source.range().clone(), source.tombstones());
            let mut source = Source::new(Feed::Index(source), Arc::default());
            match tombstones {
                Ok(fragments) => source.tombstones = fragments,
                Err(e) if !range.is_empty() => {
                    source.veiled = Some(range.clone());
                    self.lose(range, e);
                }
                Err(_) => {}
            }
            sources.push(source);
        }
        if let Some(error) = piece.lost {
            self.lose(piece.range.clone(), error);
            sources.push(Source::veil(piece.range));
        }
        sources
    }

    /// Reads all messages of a key. Returns the value of the key, and whether no unreadable message could change this
    /// value.
    fn resolve(
        &self,
        key: &[u8],
        sources: &mut [Source],
        lost: &mut Vec<(KeyRange, Error)>,
    ) -> (Result<Option<Value>>, bool) {
        let mut lookup = Lookup::new(self.keyspace.codec, key, self.at);
        let (mut certain, mut failed) = (true, None);
        for source in sources {
            let open = !lookup.is_done();
            if open {
                lookup.enter(source.tombstones.covering(key, self.at));
            }
            // Check for gaps both before and after reading the messages of the key, because the reading may reach the
            // next gap, which replaces the current gap.
            let hidden = source.hides(key);
            while let Some(entry) = source.entry().filter(|entry| entry.key == key) {
                if !lookup.is_done()
                    && let Err(e) = lookup.take(&entry, || Base::Owned(entry.value.into()))
                {
                    failed = failed.or(Some(e));
                }
                source.at += 1;
                source.prepare(lost);
            }
            if open {
                certain &= !(hidden || source.hides(key));
                lookup.leave();
            }
        }
        let value = failed.map_or_else(|| answer(self.engine, self.keyspace, lookup), Err);
        (value, certain)
    }

    /// Reports a loss. If the loss continues an earlier one, the two are joined.
    fn lose(&mut self, range: KeyRange, reason: Error) {
        let text = reason.to_string();
        let lost = range.clone();
        // Keys whose operator is not registered may be anywhere in the keyspace, so report one loss for all of them.
        let anywhere = matches!(reason, Error::OperatorMissing { .. } | Error::Unsupported { .. });
        let earlier = self.salvaged.losses.iter_mut().rev().take(RECENT).find(|loss| {
            let touches = loss.range.to.is_empty() || range.from <= loss.range.to;
            loss.after.is_none()
                && (touches || anywhere)
                && loss.range.from <= range.from
                && loss.reason.to_string() == text
        });
        match earlier {
            Some(loss) if loss.range.to.is_empty() => {}
            Some(loss) if range.to.is_empty() || range.to > loss.range.to => loss.range.to = range.to,
            Some(_) => {}
            None => self.salvaged.losses.push(Loss { range, after: None, reason }),
        }
        let is_reported = |loss: &Loss| loss.after.is_none() && loss.range.covers(&lost);
        assert!(self.salvaged.losses.iter().rev().take(RECENT).any(is_reported), "a loss is missing in the report");
    }

    fn finish(mut self) -> Result<Salvaged> {
        self.copy.flush()?;
        assert!(self.salvaged.stale == 0 || self.include_stale, "stale values are copied on request only");
        self.salvaged.losses.sort_by(|a, b| a.range.from.cmp(&b.range.from));
        Ok(self.salvaged)
    }
}
