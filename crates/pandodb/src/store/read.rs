//! Point lookups search the memtables, then the index, from the newest message to the oldest, until they find a base.
//!
//! ```text
//!   read point ─▶ containers (memtables) ─▶ view of the index ─▶ is the keyspace alive? ─▶ lookup ─▶ was the store closed?
//! ```
//!
//! This order is necessary. A message may leave the memtables before a reader loads them. In that case it is in the
//! view, because the view is loaded later. A view whose horizon has passed the read point may lack versions that the
//! read needs. In that case the read is repeated with a newer read point. A read at a snapshot is never repeated.
//!
//! The view of an index that is written directly changes while it is read, and its horizon may pass the read point during
//! the read. Then the read is repeated at a registered read point.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::engine::Engine;
use super::folds::{FoldKey, Folds, MAX_BYTES, MAX_OPERANDS, MIN_OPERANDS};
use super::snapshot::{Registered, Snapshot};
use super::state::{Containers, KeyspaceState, check_key};
use super::value::Value;
use super::value_reads::{read_value, read_values};
use crate::base::sync::Ordering::Relaxed;
use crate::base::{BlobRef, Error, KeyCodec, KeyspaceId, Result, SeededBug, Seqno, events, seeded};
use crate::blocks::{BlockLoads, BlockRequest, Loaded, Need};
use crate::index::{Base, IndexView, Lookup, Probe, ProbeTally, Step};
use crate::memtable::Memtable;
use crate::resolve::Gather;

/// Maximum number of lookups of one `multi_get` that are in flight together.
const IN_FLIGHT: usize = 32;

/// The moment whose state a read returns.
#[derive(Clone, Copy)]
pub(crate) enum ReadPoint<'a> {
    /// The newest state.
    Newest,
    /// The state of a snapshot.
    At(&'a Snapshot),
}

/// A consistent state to read from during one call. Guards of this thread protect the state, so that readers do not
/// contend on reference counts.
pub(crate) struct World<'w> {
    pub at: Seqno,
    pub containers: &'w Containers,
    pub view: &'w dyn IndexView,
}

/// A consistent state that is held for a longer time: it pins the memtables and the view.
pub(crate) struct Pinned {
    pub at: Seqno,
    pub containers: Arc<Containers>,
    pub view: Arc<dyn IndexView>,
}

impl Pinned {
    /// Pins the state at the seqno `at`. REQUIRES: the seqno is registered as a read point, or no message was dropped
    /// since that seqno. The check whether the keyspace was dropped comes last, because the index of a dropped keyspace
    /// is empty and would give a wrong answer.
    pub(crate) fn at(keyspace: &KeyspaceState, at: Seqno) -> Result<Pinned> {
        let containers = keyspace.containers.load_full();
        let view = keyspace.index.view();
        keyspace.check_alive()?;
        Ok(Pinned { at, containers, view })
    }

    pub(crate) fn world(&self) -> World<'_> {
        World { at: self.at, containers: &self.containers, view: &*self.view }
    }
}

/// Does `work` with the state of a keyspace at a read point. If the store is closed during the work, returns
/// [`Error::Closed`].
pub(crate) fn within<T>(
    engine: &Engine,
    keyspace: &KeyspaceState,
    point: ReadPoint<'_>,
    mut work: impl FnMut(&World<'_>) -> Result<T>,
) -> Result<T> {
    engine.access.check()?;
    let fixed = match point {
        ReadPoint::At(snapshot) if !snapshot.0.is_of(&engine.snapshots) => {
            return Err(Error::invalid("the snapshot was taken from another store"));
        }
        ReadPoint::At(snapshot) => Some(snapshot.0.seqno()),
        ReadPoint::Newest => None,
    };
    let (mut result, mut registered) = (None, None);
    loop {
        let fixed = fixed.or(registered.as_ref().map(Registered::seqno));
        let at = fixed.unwrap_or_else(|| engine.snapshots.visible());
        let containers = keyspace.containers.load();
        keyspace.index.with_view(&mut |view| {
            // Check last whether the keyspace was dropped, as in `Pinned::at`.
            if let Err(e) = keyspace.check_alive() {
                result = Some(Err(e));
            } else if fixed.is_some() || view.horizon() <= at {
                debug_assert!(at <= engine.snapshots.visible(), "nothing is read before it is visible");
                let found = work(&World { at, containers: &containers, view });
                // An index that is written directly may drop versions during the read.
                let is_whole = fixed.is_some() || !keyspace.is_direct || view.horizon() <= at;
                result = is_whole.then_some(found);
            }
        });
        if let Some(result) = result {
            return engine.access.confirm(result).inspect_err(|e| events::failed(&keyspace.name, e));
        }
        if keyspace.is_direct {
            // Nothing is dropped during the next attempt.
            registered = Some(engine.snapshots.register());
        }
    }
}

impl<'w> World<'w> {
    /// The memtables that hold messages which the view lacks, newest first. Even the active memtable may already be in
    /// the view, if it was sealed and packed after the memtables were loaded and before the view was loaded. The id of
    /// a memtable is the seqno before its first message.
    pub(crate) fn memtables(&self) -> impl DoubleEndedIterator<Item = &'w Arc<Memtable>> {
        let through = self.view.through();
        let active = Some(&self.containers.active).filter(|active| active.id() >= through.0);
        let (first, last) = seeded!(OlderMemtableFirst: (None, active), (active, None));
        let sealed = self.containers.sealed.iter().filter(move |batch| batch.through > through);
        first.into_iter().chain(sealed.map(|batch| &batch.memtable)).chain(last)
    }

    /// Continues a lookup in the view, when the memtables were searched.
    ///
    /// The lookup reads the view at most at the view's `through`, because an index that changes pages in place may
    /// already hold a part of a memtable that this lookup has searched.
    fn probe(&self, lookup: &mut Lookup<'_>) -> Box<dyn Probe<'w> + 'w> {
        lookup.at = self.at.min(self.view.through());
        self.view.probe(lookup)
    }

    /// Searches the memtables, but stops after `most` operands. Uses a fold of the key, if there is one for this state.
    fn look_up_in_memory(&self, folds: &Folds, id: KeyspaceId, lookup: &mut Lookup<'_>, most: usize) -> Result<()> {
        for memtable in self.memtables() {
            if lookup.is_done() {
                break;
            }
            let covering = memtable.covering(lookup.key, lookup.at);
            lookup.enter(seeded!(MemtableTombstoneIgnored: Seqno(0), covering));
            let mut failed = Ok(());
            memtable.get(lookup.key, lookup.at, &mut |entry| {
                if lookup.wants_fold(&entry)
                    && let Some(fold) = folds.find(fold_key(id, lookup), self.at, self.view.through())
                {
                    lookup.use_fold(fold);
                }
                match lookup.take(&entry, || Base::Owned(entry.value.into())) {
                    Ok(flow) => flow.is_continue() && lookup.gather.len() < most,
                    Err(e) => {
                        failed = Err(e);
                        false
                    }
                }
            });
            failed?;
            if lookup.gather.len() >= most {
                return Ok(());
            }
            lookup.leave();
        }
        lookup.end_memtables();
        Ok(())
    }
}

/// The value that a finished lookup found. This is the base, to which the operands newer than the base were applied.
/// This is the only place that turns messages into a value, for lookups, scans and salvage.
pub(crate) fn answer(engine: &Engine, keyspace: &KeyspaceState, lookup: Lookup<'_>) -> Result<Option<Value>> {
    let Lookup { key, gather, base, .. } = lookup;
    if gather.is_empty() {
        return Ok(match base {
            Base::Absent => None,
            Base::Inline(block, range) => Some(Value::in_block(&engine.core.pool, block, range)),
            Base::Owned(bytes) => Some(Value::shared(bytes)),
            Base::InBatch(batch, range) => Some(Value::in_batch(batch, range)),
            Base::Blob(blob) => Some(read_value(engine, &blob)?),
        });
    }
    Ok(fold(engine, keyspace, key, &gather, &base)?.map(Value::owned))
}

/// The value of a stored key after the operands were applied to its base.
fn fold(
    engine: &Engine,
    keyspace: &KeyspaceState,
    key: &[u8],
    operands: &Gather,
    base: &Base,
) -> Result<Option<Vec<u8>>> {
    let operator = Some(keyspace.operator()?);
    let (key, missing) = (keyspace.codec.user(key), || unreachable!("the operator exists"));
    match base {
        Base::Blob(blob) => operands.fold(key, Some(&read_value(engine, blob)?), operator, missing),
        base => operands.fold(key, base.bytes(), operator, missing),
    }
}

/// The key of a lookup in the table of folds.
fn fold_key<'a>(keyspace: KeyspaceId, lookup: &Lookup<'a>) -> FoldKey<'a> {
    FoldKey { keyspace, key: lookup.key, hash: lookup.hash }
}

/// The value that a finished lookup of a stored key found. If the lookup folded operands, the result is left for later
/// lookups: the part that the index holds in the row cache, and the whole among the folds if there were many operands.
fn answer_and_keep(
    engine: &Engine,
    keyspace: &KeyspaceState,
    world: &World<'_>,
    mut lookup: Lookup<'_>,
) -> Result<Option<Value>> {
    let is_long = lookup.gather.len() >= MIN_OPERANDS;
    let is_newer = lookup.has_used_fold() && !lookup.gather.is_empty();
    // A fold that is older than the view would serve no read.
    let is_kept =
        (is_long || is_newer) && !keyspace.is_direct && world.view.through() <= world.at && !engine.folds.is_off();
    let key = fold_key(keyspace.id, &lookup);
    fold_index_part(engine, keyspace, world, &mut lookup)?;
    let value = answer(engine, keyspace, lookup)?;
    if is_kept {
        engine.folds.keep(key, world.at, value.as_deref(), engine.snapshots.visible());
    }
    Ok(value)
}

/// If a lookup found operands in the index, folds these operands alone, and offers the result to the row cache. When the
/// row is cached, at the second offer, lookups find in the cache all that the index holds for the key. Does nothing if the
/// result is probably too long for the cache, or if the lookup did not see all messages of the view. The view of an index
/// that is written directly gets further messages at any time.
fn fold_index_part(
    engine: &Engine,
    keyspace: &KeyspaceState,
    world: &World<'_>,
    lookup: &mut Lookup<'_>,
) -> Result<()> {
    let base_bytes = lookup.base.bytes().map_or(0, <[u8]>::len);
    let is_small = lookup.key.len() + base_bytes + lookup.gather.bytes() <= MAX_BYTES;
    let sees_all = !keyspace.is_direct && world.view.through() <= world.at;
    let is_all = is_small && sees_all && !matches!(lookup.base, Base::Blob(_));
    let Some((operands, newest)) = (if is_all { lookup.split_index_operands() } else { None }) else { return Ok(()) };
    let value = fold(engine, keyspace, lookup.key, &operands, &lookup.base)?;
    if let Some(value) = &value {
        world.view.offer_row(lookup.key, lookup.hash, value, newest);
    }
    lookup.rebase(value.map(Arc::from), newest);
    Ok(())
}

/// Folds the operands of a key for later reads, after a commit of `operations` operations has noticed that there are many
/// of them. This reads no block that is not in memory, and visits at most [`MAX_OPERANDS`] operands, or a few for each
/// operation of a larger commit. So it may do nothing. Errors are left to the readers of the key.
pub(crate) fn fold_ahead(engine: &Engine, keyspace: &KeyspaceState, key: &[u8], operations: u32) {
    let most = MAX_OPERANDS.max(2 * operations as usize);
    let mut buf = Vec::new();
    let key = keyspace.codec.stored(key, &mut buf);
    let _ = within(engine, keyspace, ReadPoint::Newest, |world| {
        let mut lookup = Lookup::new(keyspace.codec, key, world.at);
        lookup.prefetch = false;
        let key = fold_key(keyspace.id, &lookup);
        if engine.folds.wants(key, world.view.through()) {
            let is_complete = look_up_in_cache(engine, keyspace.id, world, &mut lookup, most).unwrap_or(false);
            let is_cheap = is_complete && !matches!(lookup.base, Base::Blob(_));
            if !is_cheap || answer_and_keep(engine, keyspace, world, lookup).is_err() {
                engine.folds.give_up(key, world.at);
            }
        }
        Ok(())
    });
}

/// Runs a lookup until it has found `most` operands or needs a block that is not in memory. Returns whether the lookup is
/// complete.
fn look_up_in_cache(
    engine: &Engine,
    id: KeyspaceId,
    world: &World<'_>,
    lookup: &mut Lookup<'_>,
    most: usize,
) -> Result<bool> {
    world.look_up_in_memory(&engine.folds, id, lookup, most)?;
    if lookup.is_done() || lookup.gather.len() >= most {
        return Ok(lookup.is_done());
    }
    let mut probe = world.probe(lookup);
    let mut block = None;
    while let Step::Need(request) = probe.step(block.take(), lookup)? {
        block = request.source.cached(request.addr, request.kind)?;
        if block.is_none() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Adds the counts of a lookup to the store's figures.
fn count(engine: &Engine, lookup: &Lookup<'_>, blocks: u64) {
    let ProbeTally { filters, prefetched, leaves, false_positives } = lookup.tally;
    let tally = engine.figures.reads.mine();
    for (counter, by) in [
        (&tally.probed_blocks, blocks + prefetched),
        (&tally.filters, filters),
        (&tally.leaves, leaves),
        (&tally.false_positives, false_positives),
    ] {
        if by > 0 {
            counter.fetch_add(by, Relaxed);
        }
    }
}

/// Runs a lookup of a stored key until it is done, one block at a time.
fn run<'a>(engine: &Engine, keyspace: &KeyspaceState, world: &World<'_>, key: &'a [u8]) -> Result<Lookup<'a>> {
    let mut lookup = Lookup::new(keyspace.codec, key, world.at);
    go_on(engine, keyspace, world, &mut lookup)?;
    debug_assert!(lookup.base_seqno <= world.at, "a reader sees no message above its read point");
    Ok(lookup)
}

/// Runs a lookup in the memtables and the index until it is done.
fn go_on(engine: &Engine, keyspace: &KeyspaceState, world: &World<'_>, lookup: &mut Lookup<'_>) -> Result<()> {
    world.look_up_in_memory(&engine.folds, keyspace.id, lookup, usize::MAX)?;
    if !lookup.is_done() {
        let mut probe = world.probe(lookup);
        let mut block = None;
        let mut blocks = 0;
        while let Step::Need(request) = probe.step(block.take(), lookup)? {
            block = request.load()?;
            blocks += 1;
        }
        count(engine, lookup, blocks);
    }
    Ok(())
}

pub(crate) fn get(
    engine: &Engine,
    keyspace: &KeyspaceState,
    key: &[u8],
    point: ReadPoint<'_>,
) -> Result<Option<Value>> {
    check_key(key)?;
    let started = engine.device.now();
    let mut buf = Vec::new();
    let key = keyspace.codec.stored(key, &mut buf);
    let value = within(engine, keyspace, point, |world| {
        let lookup = run(engine, keyspace, world, key)?;
        answer_and_keep(engine, keyspace, world, lookup)
    });
    let tally = engine.figures.reads.mine();
    tally.gets.fetch_add(1, Relaxed);
    tally.latency.record(engine.device.now().saturating_sub(started));
    value
}

/// The value of a stored key as of a snapshot, after the writes of a transaction, which are in `own`. Returns also
/// whether the result depends on the snapshot.
pub(crate) fn get_after(
    engine: &Engine,
    keyspace: &KeyspaceState,
    key: &[u8],
    own: Option<&Memtable>,
    snapshot: &Snapshot,
) -> Result<(Option<Value>, bool)> {
    look_up_after(engine, keyspace, key, own, snapshot, |world, lookup, has_own| {
        if has_own { answer(engine, keyspace, lookup) } else { answer_and_keep(engine, keyspace, world, lookup) }
    })
}

/// Whether a stored key has a value, otherwise like [`get_after`].
pub(crate) fn contains_after(
    engine: &Engine,
    keyspace: &KeyspaceState,
    key: &[u8],
    own: Option<&Memtable>,
    snapshot: &Snapshot,
) -> Result<(bool, bool)> {
    look_up_after(engine, keyspace, key, own, snapshot, |_, lookup, _| {
        has_value(lookup, |lookup| answer(engine, keyspace, lookup))
    })
}

/// Looks a stored key up as of a snapshot, after the writes of a transaction, and lets `conclude` turn the lookup into the
/// result.
fn look_up_after<T>(
    engine: &Engine,
    keyspace: &KeyspaceState,
    key: &[u8],
    own: Option<&Memtable>,
    snapshot: &Snapshot,
    conclude: impl Fn(&World<'_>, Lookup<'_>, bool) -> Result<T>,
) -> Result<(T, bool)> {
    engine.figures.reads.mine().gets.fetch_add(1, Relaxed);
    within(engine, keyspace, ReadPoint::At(snapshot), |world| {
        let mut lookup = Lookup::new(keyspace.codec, key, Seqno::MAX);
        own.map_or(Ok(()), |own| search_memtable(own, &mut lookup))?;
        let has_own = !lookup.gather.is_empty();
        let depends = !lookup.is_done();
        if depends {
            lookup.at = world.at;
            go_on(engine, keyspace, world, &mut lookup)?;
        }
        let counts = depends && !(own.is_some() && SeededBug::ReadAfterWriteUntracked.is_on());
        conclude(world, lookup, has_own || !depends).map(|result| (result, counts))
    })
}

/// Whether a finished lookup found a value. `answer` folds its operands.
fn has_value<'a>(lookup: Lookup<'a>, answer: impl FnOnce(Lookup<'a>) -> Result<Option<Value>>) -> Result<bool> {
    match (&lookup.base, lookup.gather.is_empty()) {
        (Base::Absent, true) => Ok(false),
        (_, true) => Ok(true),
        // Compute the value, because an operator may decide that the key has no value.
        _ => Ok(answer(lookup)?.is_some()),
    }
}

/// Searches a memtable for the messages of a lookup.
fn search_memtable(memtable: &Memtable, lookup: &mut Lookup<'_>) -> Result<()> {
    lookup.enter(seeded!(OwnRangeDeleteIgnored: Seqno(0), memtable.covering(lookup.key, lookup.at)));
    let mut failed = Ok(());
    memtable.get(lookup.key, lookup.at, &mut |entry| match lookup.take(&entry, || Base::Owned(entry.value.into())) {
        Ok(flow) => flow.is_continue(),
        Err(e) => {
            failed = Err(e);
            false
        }
    });
    failed?;
    lookup.leave();
    Ok(())
}

pub(crate) fn contains(engine: &Engine, keyspace: &KeyspaceState, key: &[u8], point: ReadPoint<'_>) -> Result<bool> {
    check_key(key)?;
    engine.figures.reads.mine().gets.fetch_add(1, Relaxed);
    let mut buf = Vec::new();
    let key = keyspace.codec.stored(key, &mut buf);
    within(engine, keyspace, point, |world| {
        let lookup = run(engine, keyspace, world, key)?;
        has_value(lookup, |lookup| answer_and_keep(engine, keyspace, world, lookup))
    })
}

pub(crate) fn multi_get<K: AsRef<[u8]>>(
    engine: &Engine,
    keyspace: &KeyspaceState,
    keys: &[K],
    point: ReadPoint<'_>,
) -> Result<Vec<Option<Value>>> {
    keys.iter().try_for_each(|key| check_key(key.as_ref()))?;
    let stored = stored_keys(keyspace.codec, keys);
    let values = within(engine, keyspace, point, |world| look_up_all(engine, keyspace, &stored, world))?;
    engine.figures.reads.mine().gets.fetch_add(keys.len() as u64, Relaxed);
    Ok(values)
}

/// The keys in their stored form.
fn stored_keys<K: AsRef<[u8]>>(codec: KeyCodec, keys: &[K]) -> Vec<Cow<'_, [u8]>> {
    let stored = |key: &[u8]| codec.stored(key, &mut Vec::new()).to_vec();
    let form = |key| if codec == KeyCodec::Plain { Cow::Borrowed(key) } else { Cow::Owned(stored(key)) };
    keys.iter().map(|key| form(key.as_ref())).collect()
}

fn look_up_all(
    engine: &Engine,
    keyspace: &KeyspaceState,
    keys: &[Cow<'_, [u8]>],
    world: &World<'_>,
) -> Result<Vec<Option<Value>>> {
    let mut values: Vec<Option<Value>> = vec![None; keys.len()];
    let mut flights: Vec<Flight<'_>> = Vec::with_capacity(IN_FLIGHT.min(keys.len()));
    let mut loads = BlockLoads::default();
    let mut answered = 0;
    // The large values that are read together at the end, each with the index of its key.
    let mut large: Vec<(usize, BlobRef)> = Vec::new();
    // First start the lookups of the first keys. Each lookup runs until it needs a block that is not in memory.
    let mut land = |flight: &mut Flight<'_>| {
        count(engine, &flight.lookup, flight.blocks);
        answered += 1;
        debug_assert!(flight.lookup.base_seqno <= world.at, "a reader sees no message above its read point");
        let lookup = std::mem::replace(&mut flight.lookup, Lookup::new(KeyCodec::Plain, &[], world.at));
        match lookup.base {
            Base::Blob(blob) if lookup.gather.is_empty() => large.push((flight.key, blob)),
            _ => values[flight.key] = answer_and_keep(engine, keyspace, world, lookup)?,
        }
        Ok::<(), Error>(())
    };
    let mut rest = keys.iter().enumerate();
    while flights.len() < IN_FLIGHT {
        let Some((key, bytes)) = rest.next() else { break };
        let mut flight = Flight::start(engine, keyspace, world, key, bytes)?;
        match flight.advance(None, &mut loads, flights.len())? {
            ControlFlow::Break(()) => land(&mut flight)?,
            ControlFlow::Continue(()) => flights.push(flight),
        }
    }
    // Then process the blocks in the order of their arrival. When a lookup is done, the next key takes its slot.
    while let Some((task, block)) = loads.next() {
        let flight = &mut flights[task];
        let mut landed = flight.advance(Some(block), &mut loads, task)?.is_break();
        while landed {
            land(flight)?;
            let Some((key, bytes)) = rest.next() else { break };
            *flight = Flight::start(engine, keyspace, world, key, bytes)?;
            landed = flight.advance(None, &mut loads, task)?.is_break();
        }
    }
    assert_eq!(answered, keys.len(), "each key is answered once");
    let blobs: Vec<BlobRef> = large.iter().map(|(_, blob)| *blob).collect();
    for ((key, _), value) in large.iter().zip(read_values(engine, &blobs)) {
        values[*key] = Some(value?);
    }
    Ok(values)
}

/// One lookup of a `multi_get`.
struct Flight<'a> {
    /// The index of the key among all keys.
    key: usize,
    lookup: Lookup<'a>,
    probe: Box<dyn Probe<'a> + 'a>,
    /// The request that the lookup waits for.
    waits: Option<BlockRequest<'a>>,
    blocks: u64,
}

impl<'a> Flight<'a> {
    /// Starts a lookup and searches the memtables.
    fn start(
        engine: &Engine,
        keyspace: &KeyspaceState,
        world: &World<'a>,
        key: usize,
        bytes: &'a [u8],
    ) -> Result<Flight<'a>> {
        let mut lookup = Lookup::new(keyspace.codec, bytes, world.at);
        lookup.prefetch = false;
        world.look_up_in_memory(&engine.folds, keyspace.id, &mut lookup, usize::MAX)?;
        let probe = world.probe(&mut lookup);
        Ok(Flight { key, lookup, probe, waits: None, blocks: 0 })
    }

    /// Continues with the block that the lookup waited for, until the lookup waits for another block or is done.
    fn advance(
        &mut self,
        arrived: Option<Result<Loaded>>,
        loads: &mut BlockLoads<'a>,
        task: usize,
    ) -> Result<ControlFlow<()>> {
        let mut block = match (arrived, self.waits.take()) {
            (Some(loaded), Some(request)) => request.accept(loaded.map(Loaded::block))?,
            _ => None,
        };
        loop {
            let Step::Need(request) = self.probe.step(block, &mut self.lookup)? else {
                return Ok(ControlFlow::Break(()));
            };
            self.blocks += 1;
            block = match loads.ask(request.source, Need::Block(request.addr, request.kind), task).transpose() {
                Some(loaded) => request.accept(loaded.map(Loaded::block))?,
                None => {
                    self.waits = Some(request);
                    return Ok(ControlFlow::Continue(()));
                }
            };
        }
    }
}
