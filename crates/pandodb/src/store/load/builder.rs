//! [`Builder`] passes the rows of a sorted load to the index, and attaches the finished load.
//!
//! Locks: [`Builder::push`] takes the gate, shared. [`Builder::finish`] takes a stream's append lock and the sequencer,
//! under the durable root.

use std::sync::Arc;

use crate::base::codec::put_varint;
use crate::base::sync::relax;
use crate::base::{EntryBlock, KeyRange, Result, seeded};
use crate::index::{FinishedLoad, SortedLoad, SortedLoader};
use crate::memtable::Memtable;
use crate::store::checkpoint::Attachment;
use crate::store::engine::Engine;
use crate::store::options::Durability;
use crate::store::state::{KeyspaceState, check_key};

/// The part of a sorted load that writes the rows. Dropping a builder before [`Builder::finish`] has succeeded frees
/// everything that it wrote.
pub(super) struct Builder<'a> {
    engine: &'a Engine,
    state: &'a Arc<KeyspaceState>,
    load: Box<dyn SortedLoad<'a> + 'a>,
}

impl<'a> Builder<'a> {
    /// Starts a load. REQUIRES: the index of the keyspace has a loader.
    ///
    /// # Errors
    /// If the index cannot accept a load now.
    pub fn begin(engine: &'a Engine, state: &'a Arc<KeyspaceState>) -> Result<Builder<'a>> {
        let load = loader(state).begin(0)?;
        Ok(Builder { engine, state, load })
    }

    /// Passes the rows of a chunk to the index.
    ///
    /// # Errors
    /// As [`Keyspace::load_sorted`](crate::Keyspace::load_sorted).
    pub fn push(&mut self, chunk: &EntryBlock) -> Result<()> {
        let engine = self.engine;
        // A forked child and an operator must not wait for the gate.
        engine.check_writable()?;
        let _gate = engine.gate.read();
        engine.check_writable()?;
        engine.keep_back()?;
        engine.check_space(chunk.bytes() as u64)?;
        for entry in chunk.iter() {
            debug_assert!(check_key(entry.key).is_ok(), "rows are checked when they arrive");
            self.load.push(&entry)?;
        }
        Ok(())
    }

    /// Attaches the load. `range` are the keys from its first to its last. Returns when the rows are visible and
    /// durable.
    ///
    /// # Errors
    /// As [`Keyspace::load_sorted`](crate::Keyspace::load_sorted).
    pub fn finish(self, range: &KeyRange) -> Result<()> {
        let finished = {
            let _gate = self.engine.gate.read();
            self.engine.check_writable()?;
            self.load.finish()?
        };
        self.engine.attach_load(self.state, finished, range)
    }
}

/// The loader of a keyspace's index.
fn loader(state: &KeyspaceState) -> &dyn SortedLoader {
    state.index.loader().expect("a load of an index without a loader is a batch")
}

/// Poisons the store if a panic ends the attachment of a load: the load may be durable, and readers must not continue
/// without it.
struct Attaching<'a>(Option<&'a Engine>);

impl Drop for Attaching<'_> {
    fn drop(&mut self) {
        if let Some(engine) = self.0 {
            engine.writer.poison.set_text("the attachment of a sorted load panicked; please report it".into());
        }
    }
}

impl Engine {
    /// Attaches a load whose rows are written, and makes it durable. `range` are the keys from its first to its last.
    fn attach_load(
        &self,
        keyspace: &Arc<KeyspaceState>,
        load: Box<dyn FinishedLoad + '_>,
        range: &KeyRange,
    ) -> Result<()> {
        let mut payload = Vec::new();
        put_varint(&mut payload, u64::from(keyspace.id.0));
        let (mut root, log, reservation, mut sequencer) = loop {
            // Do as much as possible before commits have to wait.
            self.pack_keyspace(keyspace)?;
            {
                let _gate = self.gate.read();
                self.check_writable()?;
                self.core.data.sync().inspect_err(|e| self.poison(e))?;
            }
            let root = self.checkpointer.root.lock();
            let log = self.check_writable()?;
            let reservation = self.reserve_log(log, payload.len(), false, Durability::Synced)?;
            let sequencer = self.writer.quiesce();
            self.check_writable()?;
            keyspace.check_alive()?;
            // Another load may have been attached meanwhile. It is merged without these locks.
            if !loader(keyspace).has_waiting_load() {
                break (root, log, reservation, sequencer);
            }
        };
        assert!(sequencer.is_whole(), "a store with a commit that failed in the middle is poisoned");
        self.seal(&sequencer, keyspace);
        self.pack_sealed(keyspace)?;
        let at = sequencer.assign();
        let due = reservation.append_loaded(at, &payload).inspect_err(|e| self.poison(e))?;
        if let Some(stream) = due {
            log.write(stream, at).inspect_err(|e| self.poison(e))?;
        }
        let fresh = Arc::new(Memtable::new(at.0, self.chunks.clone()));
        self.keyspaces.charge(keyspace, fresh.bytes() as u64);
        keyspace.begin_after(at, fresh);
        let attachment = Attachment { sequencer, keyspace, load, at, range };
        let mut attaching = Attaching(Some(self));
        let attached = seeded!(
            SortedLoadNotDurable: attachment.stamped().and_then(|attachment| self.publish_load(attachment)),
            attachment.stamped().and_then(|attachment| self.checkpoint_attaching(&mut root, attachment))
        );
        attaching.0 = None;
        // If the load failed, its seqno has no message, so it may be visible.
        self.snapshots.advance(at);
        attached
    }

    /// Packs the sealed memtables of a keyspace on this thread, but does nothing else, because commits wait meanwhile.
    /// REQUIRES: the sequencer is quiesced, so no memtable is sealed meanwhile; no earlier load waits to be merged.
    fn pack_sealed(&self, keyspace: &KeyspaceState) -> Result<()> {
        let loader = loader(keyspace);
        let mut turn = 0;
        debug_assert!(!loader.has_waiting_load(), "a merge takes too long while commits wait");
        while keyspace.index.debt().memory_bytes > 0 {
            match loader.pack_one(&|| self.snapshots.stripes())? {
                Some(progress) => {
                    self.note_progress(keyspace, progress);
                }
                // Another thread is packing the memtable. It needs none of the locks that are held here to finish.
                None => {
                    relax(turn);
                    turn += 1;
                }
            }
        }
        drop(keyspace.retire_sealed());
        assert!(keyspace.containers.load().sealed.is_empty(), "the index holds what was packed");
        Ok(())
    }
}
