//! Checkpoints are consistent cuts from which the next opening starts.
//!
//! ```text
//!  quarantine closes ─▶ sequencer quiesced: each index fixes its state, without I/O
//!  ─▶ each index writes the nodes that are not on disk yet ─▶ catalogue, twice ─▶ sync data, sync log
//!  ─▶ superblock into the older slot, sync ─▶ pages freed before the last checkpoint, and old log, are released
//! ```
//!
//! Locks: the lock of the checkpointer's root is held for the whole checkpoint, and the lock of the sequencer for the
//! second step.
//!
//! The `through` of a root record is the seqno up to which the keyspace's index holds every message. Replay only
//! applies the log above this seqno, so merges are never applied twice. Until the new superblock is durable, no page
//! that the last two superblocks reach is overwritten. A checkpoint that finds the disk full before that moment is
//! abandoned without effect.

use std::sync::Arc;

use super::catalog::Catalog;
use super::checkpointer::DurableRoot;
use super::direct::writer_of;
use super::engine::Engine;
use super::initial::now_in_seconds;
use super::reserve::Purpose;
use super::state::KeyspaceState;
use super::writer::Quiesced;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, KeyRange, PAGE, Result, SeededBug, Seqno, events, seeded};
use crate::index::{Checkpoint, Cut, FinishedLoad, RootRecord, SortedLoader};
use crate::space::data::DATA_FILE;
use crate::wal::Log;

/// The number of identities that may be assigned between two superblocks. A superblock records the next identity plus
/// this number. So after a crash, none of these identities is assigned again.
pub(crate) const IDS_AHEAD: u64 = 1 << 20;
/// If the memtable of a keyspace retains more log than this number of full memtables, the memtable is sealed.
const LOG_MEMTABLES: u64 = 2;

impl Engine {
    /// Takes a checkpoint. If a memtable retains too much log, it is sealed first.
    pub(crate) fn checkpoint(&self) -> Result<()> {
        self.checkpoint_if(&|| true)
    }

    /// As [`Engine::checkpoint`], if `is_needed` still holds when no other thread takes a checkpoint.
    pub(crate) fn checkpoint_if(&self, is_needed: &dyn Fn() -> bool) -> Result<()> {
        self.check_writable()?;
        self.seal_oldest_memtable();
        let mut root = self.checkpointer.root.lock();
        if is_needed() { self.freeing_checkpoint(&mut root) } else { Ok(()) }
    }

    /// Takes a checkpoint that may use the emergency reserve, because the checkpoint frees space.
    pub(super) fn freeing_checkpoint(&self, root: &mut DurableRoot) -> Result<()> {
        loop {
            match self.checkpoint_with(root) {
                Err(Error::DiskFull { .. }) if self.reserve.draw(Purpose::Checkpoint)? > 0 => {}
                result => return result,
            }
        }
    }

    /// Takes a checkpoint. REQUIRES: `root` is the locked durable root.
    pub(super) fn checkpoint_with(&self, root: &mut DurableRoot) -> Result<()> {
        self.checkpoint_or_attach(root, &mut None)
    }

    /// Takes a checkpoint that contains a sorted load, and publishes the load when the checkpoint is durable. Then
    /// takes a second checkpoint, so that both superblocks reach the load.
    pub(super) fn checkpoint_attaching(&self, root: &mut DurableRoot, attachment: Attachment<'_>) -> Result<()> {
        let mut attachment = Some(attachment);
        loop {
            match self.checkpoint_or_attach(root, &mut attachment) {
                Err(Error::DiskFull { .. }) if attachment.is_some() && self.reserve.draw(Purpose::Checkpoint)? > 0 => {}
                Err(e) if attachment.is_some() || matches!(e, Error::Indeterminate { .. }) => return Err(e),
                Ok(()) | Err(_) => break,
            }
        }
        assert!(attachment.is_none(), "a checkpoint that is complete has published the load");
        // The load is durable and visible, regardless of what has failed since then and of whether this checkpoint
        // succeeds. If the store was poisoned, the next write reports it.
        if let Err(e) = self.freeing_checkpoint(root) {
            self.background.set_trouble(e);
        }
        Ok(())
    }

    /// Publishes a sorted load that is durable, and lets commits continue.
    pub(super) fn publish_load(&self, attachment: Attachment<'_>) -> Result<()> {
        let Attachment { sequencer, keyspace, load, at, range } = attachment;
        debug_assert_eq!(sequencer.last(), at, "no commit has drawn a seqno since the load got its own");
        // The next opening finds the load. If it cannot be published now, readers must not continue without it.
        load.attach().inspect_err(|e| self.poison(e)).map_err(|e| Error::Indeterminate { first: e.to_string() })?;
        keyspace.changed_in_index(range, at);
        self.snapshots.advance(at);
        drop(sequencer);
        Ok(())
    }

    /// Takes a checkpoint. If there is an attachment, the checkpoint contains its load, and the load is published when
    /// the checkpoint is durable; the attachment is `None` from then on.
    fn checkpoint_or_attach(&self, root: &mut DurableRoot, attachment: &mut Option<Attachment<'_>>) -> Result<()> {
        let log = self.check_writable()?;
        let _checkpoint = events::checkpoint();
        let (began, before) = (self.device.now(), self.figures.checkpoint_bytes.load(Relaxed));
        self.core.data.begin_checkpoint();
        let old = root.superblock.catalog;
        let direct = self.checkpointer.take_direct();
        if let Err(e) = self.write_root(log, root, attachment.as_ref()) {
            self.checkpointer.note_direct(direct);
            self.core.data.abandon_checkpoint();
            if !matches!(e, Error::DiskFull { .. } | Error::TooLarge { .. }) {
                self.poison(&e);
            }
            return Err(e);
        }
        attachment.take().map_or(Ok(()), |attachment| self.publish_load(attachment))?;
        old.free(&self.core.data);
        self.core.data.finish_checkpoint().inspect_err(|e| self.poison(e))?;
        let through = root.catalog.through();
        assert!(root.older_through <= through && through <= root.catalog.cut, "the log is needed from ever later on");
        // The checkpoint is complete even if old segments of the log cannot be removed. The next checkpoint tries to
        // remove them again.
        let needed_above = seeded!(LogDiscardedEarly: through, through.min(root.older_through));
        if let Err(e) = log.discard_through(needed_above) {
            self.background.set_trouble(e);
        }
        root.older_through = through;
        root.dropped.clear();
        (root.logged, root.logged_bytes) = (0, 0);
        self.refill();
        self.figures.checkpoints.fetch_add(1, Relaxed);
        let root_bytes = self.figures.checkpoint_bytes.load(Relaxed) - before;
        let took = self.device.now().saturating_sub(began);
        events::checkpoint_taken(root.superblock.generation, root_bytes, took);
        Ok(())
    }

    /// Writes the nodes, the catalogue and the superblock. On an error nothing durable has changed.
    ///
    /// The call does not check whether the store was closed during the write. A close waits for the lock of the root.
    /// If this call failed because of the close, the close would report that it could not make all data durable.
    fn write_root(&self, log: &Log, root: &mut DurableRoot, attachment: Option<&Attachment<'_>>) -> Result<()> {
        let before = self.core.data.stats().root_bytes;
        let keyspaces = self.keyspaces.all();
        let (user_bytes, written_bytes) = self.lifetime_bytes();
        let mut catalog = Catalog {
            next_id: root.next_id,
            user_bytes,
            written_bytes,
            cut: Seqno(0),
            keyspaces: Vec::with_capacity(keyspaces.len()),
        };
        // Writers are stopped once, for all keyspaces together. While they are stopped there is no I/O, because each
        // index only fixes its state. A sorted load keeps them stopped until the root is written.
        let (begun, last) = match attachment {
            Some(attachment) => fix_states(&keyspaces, &attachment.sequencer, Some(attachment))?,
            None => fix_states(&keyspaces, &self.writer.quiesce(), None)?,
        };
        let mut pins = Vec::with_capacity(begun.len());
        for (keyspace, (checkpoint, through)) in keyspaces.iter().zip(begun) {
            let cut = self.write_index(keyspace, checkpoint)?;
            assert!(cut.root.through <= through && through <= last, "a root holds what was committed before the cut");
            // The index of a keyspace without memtables knows exactly what its root holds.
            let through = if keyspace.is_direct { cut.root.through } else { through };
            catalog.keyspaces.push(keyspace.record(RootRecord { through, ..cut.root }));
            pins.push(cut.pin);
        }
        // No keyspace was created or dropped since the sequencer was quiesced, because both operations need the lock of
        // the root.
        catalog.cut = last;
        if catalog.through() < last {
            self.keep_moved()?;
        }
        let ids = || catalog.keyspaces.iter().map(|keyspace| keyspace.identity.id.0);
        assert!(ids().is_sorted_by(|a, b| a < b) && ids().all(|id| id < catalog.next_id), "ids are given out in order");
        // A commit that panicked may have applied only a part of its operations. In that case the cut must not become
        // durable.
        if let Some(first) = self.writer.poison.first() {
            return Err(Error::Poisoned { first: first.clone() });
        }
        let generation = root.superblock.generation + 1;
        let (copies, catalog_len) = catalog.write(&self.core.data, generation)?;
        let mut superblock = root.superblock.clone();
        superblock.generation = generation;
        // Read the features after the indexes were written, so that the features of all written blocks are included.
        superblock.incompatible |= seeded!(FeatureNotNamed: 0, self.core.data.features());
        superblock.incompatible |=
            keyspaces.iter().fold(0, |bits, keyspace| bits | keyspace.index.index_type().feature);
        superblock.catalog = copies;
        superblock.catalog_len = catalog_len;
        superblock.catalog_generation = generation;
        superblock.checkpointed_at = now_in_seconds(&*self.device);
        superblock.next_run_id = self.core.ids.peek() + IDS_AHEAD;
        superblock.clean = false;
        let synced = seeded!(SuperblockBeforeData: Ok(()), self.core.data.sync());
        synced.and_then(|()| log.sync(last)).map_err(final_error)?;
        superblock.durable = log.durable();
        assert!(superblock.durable >= last, "the log was synced through the cut");
        self.core.data.write_superblock(&superblock).map_err(|e| {
            // It is unknown whether the superblock was written to the disk, so both catalogues keep their pages.
            let e = final_error(e);
            self.poison(&e);
            if attachment.is_some() { Error::Indeterminate { first: e.to_string() } } else { e }
        })?;
        root.replace(superblock, catalog);
        let bytes = self.core.data.stats().root_bytes - before + PAGE as u64;
        self.figures.checkpoint_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Writes the state that the index of a keyspace has fixed for the next root, and reports damage that it has met.
    fn write_index(&self, keyspace: &KeyspaceState, checkpoint: Box<dyn Checkpoint + '_>) -> Result<Cut> {
        let cut = checkpoint.write(&|| self.snapshots.stripes())?;
        assert!(cut.root.bytes.len() <= RootRecord::MAX_BYTES, "a root record is bounded");
        if keyspace.is_direct {
            writer_of(keyspace).count_unwritten(&|bytes| self.keyspaces.note_unwritten(keyspace, bytes));
        }
        if let Some(damage) = &cut.damage {
            events::failed(&keyspace.name, damage);
            self.background.note_damage(keyspace.id, damage.clone());
        }
        Ok(cut)
    }

    /// The bytes of log that may be retained. If more log is retained, a memtable is sealed, or a checkpoint writes what
    /// was written directly.
    pub(super) fn most_log(&self) -> u64 {
        // Each stream needs two segments: the current segment, and the previous segment, which perhaps no checkpoint
        // covers yet.
        let segments = 2 * self.config.streams() as u64 * self.config.segment();
        LOG_MEMTABLES * self.config.largest_memtable() as u64 + segments
    }

    /// If too much log is retained, seals the memtable that retains the most log.
    fn seal_oldest_memtable(&self) {
        let Some(log) = &self.writer.log else { return };
        // Sealing another memtable would not help now, because the memtables that wait to be packed retain the log in
        // any case.
        if (self.pressure.pressed.load(Relaxed) || self.is_tight()) && self.debt().memory_bytes > 0 {
            return;
        }
        if log.retained_bytes() <= self.most_log() {
            return;
        }
        let sequencer = self.writer.quiesce();
        let keyspaces = self.keyspaces.read();
        let oldest = keyspaces.values().filter(|keyspace| !keyspace.is_direct).min_by_key(|keyspace| {
            let through = keyspace.index.view().through();
            let recorded = through.max(Seqno(keyspace.drained_through.load(Relaxed)));
            if keyspace.is_drained(through) { Seqno::MAX } else { recorded }
        });
        // While a sorted load waits to be merged, memtables of its keyspace are not packed, so sealing another one
        // would not help either.
        let waits = |keyspace: &KeyspaceState| keyspace.index.loader().is_some_and(SortedLoader::has_waiting_load);
        if let Some(keyspace) = oldest.filter(|keyspace| keyspace.active_bytes() > 0 && !waits(keyspace)) {
            self.seal(&sequencer, keyspace);
        }
    }

    /// Records the exact end of the log, for a clean close.
    pub(crate) fn write_clean_end(&self) -> Result<()> {
        let Some(log) = &self.writer.log else { return Ok(()) };
        let mut root = self.checkpointer.root.lock();
        let last = self.writer.quiesce().last();
        // A commit that failed in the meantime has left a gap in the log, so no superblock may claim that the log is
        // complete.
        if let Some(first) = self.writer.poison.first() {
            return Err(Error::Poisoned { first: first.clone() });
        }
        self.core.data.sync()?;
        log.sync(last)?;
        log.trim()?;
        root.superblock.generation += 1;
        root.superblock.clean = true;
        root.superblock.durable = last;
        root.superblock.next_run_id = self.core.ids.peek();
        self.core.data.write_superblock(&root.superblock)
    }
}

/// The states that the indexes fix for the next root, and the last seqno of the cut.
type States<'k> = (Vec<(Box<dyn Checkpoint + 'k>, Seqno)>, Seqno);

/// Makes each index fix the state that the next root describes. The keyspace of an attachment gets the state with the
/// attached load.
fn fix_states<'k>(
    keyspaces: &'k [Arc<KeyspaceState>],
    sequencer: &Quiesced<'_>,
    attachment: Option<&'k Attachment<'_>>,
) -> Result<States<'k>> {
    let mut begun = Vec::with_capacity(keyspaces.len());
    for keyspace in keyspaces {
        let checkpoint = match attachment.filter(|attachment| attachment.keyspace.id == keyspace.id) {
            Some(attachment) => attachment.load.begin_checkpoint()?,
            None => keyspace.index.begin_checkpoint(sequencer.last()),
        };
        let through = extend_through(sequencer, keyspace, checkpoint.through());
        begun.push((checkpoint, through));
    }
    Ok((begun, sequencer.last()))
}

/// A sorted load that the next checkpoint makes durable. It holds the sequencer, so that no commit completes before the
/// load is durable and visible.
pub(super) struct Attachment<'a> {
    pub(super) sequencer: Quiesced<'a>,
    pub(super) keyspace: &'a KeyspaceState,
    pub(super) load: Box<dyn FinishedLoad + 'a>,
    /// The seqno of the load, the last one that was assigned.
    pub(super) at: Seqno,
    /// The keys from the first to the last key of the load.
    pub(super) range: &'a KeyRange,
}

impl Attachment<'_> {
    /// Gives the rows of the load their seqno.
    pub(super) fn stamped(mut self) -> Result<Self> {
        assert_eq!(self.sequencer.last(), self.at, "the load has the newest seqno");
        self.load.stamp(self.at)?;
        Ok(self)
    }
}

/// The `through` to record for a keyspace. If its memtables are empty, its runs hold every message of the keyspace. In
/// this case the last assigned seqno is recorded, so that the keyspace does not retain the log. The recorded seqno
/// never decreases, because an earlier checkpoint has already released the log below it. This holds even if the
/// memtable has new messages and the index has not changed.
///
/// An index that is written directly holds everything that was committed before the cut, except after damage.
fn extend_through(sequencer: &Quiesced<'_>, keyspace: &KeyspaceState, through: Seqno) -> Seqno {
    if keyspace.is_direct {
        // It is less if damage keeps the messages of the log from being applied.
        assert!(through <= sequencer.last(), "keyspace `{}` has no message above the cut", keyspace.name);
        return through;
    }
    if keyspace.is_drained(through) || SeededBug::DrainedTooSoon.is_on() {
        keyspace.drained_through.fetch_max(sequencer.last().0, Relaxed);
    }
    through.max(Seqno(keyspace.drained_through.load(Relaxed)))
}

/// Converts the error of a full disk to an error that poisons the store. This is for failures that cannot be undone.
fn final_error(error: Error) -> Error {
    match error {
        Error::DiskFull { op } => {
            let full = std::io::Error::new(std::io::ErrorKind::StorageFull, "the disk filled up during a checkpoint");
            Error::final_io(op, DATA_FILE, None, &full)
        }
        other => other,
    }
}
