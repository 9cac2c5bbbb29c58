//! Creates, alters and drops keyspaces. A creation is logged as a record, so its cost does not depend on the number of
//! existing keyspaces.
//!
//! ```text
//!   create ─▶ record "created: id, name, options" ─▶ log synced ─▶ published ─▶ returned
//!                                                                     │
//!   later:    checkpoint ─▶ catalogue with a `cut`: every creation and drop through that seqno is in it
//!
//!   recovery: catalogue ─▶ log in the order of seqnos: a creation above the cut makes the keyspace; one at or below it is in
//!             the catalogue, or its keyspace was dropped
//! ```
//!
//! 1. The record takes a seqno like any write. A write to the keyspace has a higher seqno, because the keyspace is
//!    published only when the record is durable. Recovery takes a contiguous prefix of seqnos, so it knows every
//!    keyspace that a record refers to.
//! 2. Creations, drops and checkpoints hold the lock of the durable root, so they never run concurrently. Therefore a
//!    catalogue holds exactly the creations up to its cut, and the `through` of each of its keyspaces is at most the
//!    cut.
//! 3. The log is kept above the smallest `through` in the catalogues of both superblocks. This seqno is at most the
//!    smaller of the two cuts. Therefore, if one of the catalogues lacks a creation, this creation is still in the log.
//! 4. The name of a dropped keyspace can be used again when *neither* catalogue contains it any more. Otherwise
//!    recovery from the older catalogue would find that the name is already used.
//! 5. The size of a catalogue has a limit, which an opening checks. A creation that could exceed the limit is refused
//!    with [`Error::TooLarge`] before anything is written. This check assumes that every keyspace has a root record of
//!    the maximum length. Therefore no later checkpoint fails because of a creation.
//!
//! A checkpoint is taken when about a fifth of the keyspaces are only in the log. So the total cost of n creations is
//! O(n).
//!
//! Locks: the durable root is held for the whole operation. While the change is published, the sequencer is quiesced
//! and the lock of the table of keyspaces is held.

use std::collections::HashMap;
use std::sync::Arc;

use super::catalog::{Identity, KeyspaceRecord, MAX_NAME, check_id, check_size, most_bytes};
use super::checkpointer::DurableRoot;
use super::dead_ranges::{Allowance, DeadRanges};
use super::direct::writer_of;
use super::engine::Engine;
use super::options::{BLOB_THRESHOLD, KeyspaceOptions};
use super::state::{Containers, KeyspaceState};
use super::watermark::CachePadded;
use crate::base::sync::{ArcSwap, AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{Error, KeyspaceId, MAX_INLINE_VALUE, Result, SeededBug, Seqno, events, seeded};
use crate::index::{Core, IndexOptions, RootRecord};
use crate::memtable::{ChunkPool, Memtable};
use crate::resolve::{MergeOperator, Operator, builtin};
use crate::space::Prefetch;
use crate::wal::{Record, Visit};

/// A checkpoint is taken when the number of creations that are only in the log exceeds this number plus a quarter of
/// the number of keyspaces.
const MOST_LOGGED: u64 = 64;

impl Engine {
    /// Creates a keyspace and makes it durable, or returns the existing keyspace with that name.
    pub(crate) fn create_keyspace(&self, name: &str, options: &KeyspaceOptions) -> Result<Arc<KeyspaceState>> {
        self.check_writable()?;
        if name.is_empty() || name.len() > MAX_NAME {
            return Err(Error::invalid(format!("a keyspace's name has 1 to {MAX_NAME} bytes")));
        }
        if options.operator.as_ref().is_some_and(|operator| operator.name().is_empty()) {
            // The catalogue stores an empty name for a keyspace without an operator.
            return Err(Error::invalid("the merge operator has an empty name; give it one that stays the same"));
        }
        let mut root = self.checkpointer.root.lock();
        if let Some(state) = self.keyspaces.named(name) {
            return Ok(state);
        }
        // Take checkpoints until neither catalogue contains a dropped keyspace with this name.
        while root.dropped.iter().any(|dropped| dropped == name) {
            self.checkpoint_with(&mut root)?;
        }
        if self.reserve.bytes() == 0 {
            // Fill the reserve. Checkpoints do this as well, but a new store has not taken a checkpoint yet.
            self.refill();
        }
        let index = self.config.index_options(options.index.as_ref());
        index.check()?;
        check_id(root.next_id)?;
        let identity = Identity {
            id: KeyspaceId(root.next_id),
            name: name.to_owned(),
            index,
            operator: options.operator.as_ref().map(|operator| (operator.name().to_owned(), operator.version())),
            blob_threshold: options.blob_threshold.unwrap_or(BLOB_THRESHOLD) as u64,
        };
        let mut payload = Vec::new();
        identity.encode(&mut payload);
        let most_bytes = most_bytes(payload.len());
        check_size(root.most_catalog_bytes() + most_bytes)?;
        assert_eq!(Identity::decode(&payload).as_ref(), Ok(&identity), "recovery reads the record as it was meant");
        let through = self.log_creation(&payload)?;
        assert!(through > root.catalog.cut, "a creation is above the cut of the last checkpoint");
        root.next_id += 1;
        root.logged += 1;
        root.logged_bytes += most_bytes;
        // A registered operator with that name has precedence over the operator of the options, because a reopening
        // will find the registered operator.
        let given = || options.operator.clone().map(Operator::new);
        let operator = registered(&self.operators, &identity).or_else(given);
        let record = KeyspaceRecord { identity, root: RootRecord { through, bytes: Vec::new() } };
        let mut prefetch = Prefetch::new(self.core.data.clone());
        let state = Arc::new(self.build(operator, &record, &mut prefetch)?);
        let keyspaces = {
            let _sequencer = self.writer.quiesce();
            self.keyspaces.charge(&state, state.active_bytes() as u64);
            let mut table = self.keyspaces.write();
            table.insert(state.clone());
            table.len() as u64
        };
        events::created(name);
        if root.logged > MOST_LOGGED + keyspaces / 4 {
            self.checkpointer.request();
            self.background.scheduler.wake();
            if self.config.background_threads == 0 {
                // The creation is durable, regardless of whether this checkpoint succeeds.
                let _ = self.checkpoint_with(&mut root);
            }
        }
        Ok(state)
    }

    /// The keyspace with that name.
    pub(crate) fn find_keyspace(&self, name: &str) -> Option<Arc<KeyspaceState>> {
        self.keyspaces.named(name)
    }

    /// Drops a keyspace. Its space can be used again after two further checkpoints. This call takes these checkpoints.
    pub(crate) fn drop_keyspace(&self, name: &str) -> Result<()> {
        self.check_writable()?;
        let mut root = self.checkpointer.root.lock();
        let Some(state) = self.find_keyspace(name) else {
            return Err(Error::NoKeyspace { name: name.to_owned() });
        };
        {
            // The sequencer is quiesced. So there is no commit that has already checked that the keyspace exists but is
            // not applied yet.
            let mut sequencer = self.writer.quiesce();
            sequencer.note_drop();
            // The index frees the large values that the memtable refers to.
            self.seal(&sequencer, &state);
            state.dropped.store(true, Relaxed);
            self.keyspaces.write().remove(state.id);
            self.keyspaces.charge(&state, 0);
            self.keyspaces.note_unwritten(&state, 0);
        }
        seeded!(DropNotDurable: Ok(()), self.make_drop_durable(&mut root, state))
    }

    /// Takes the checkpoint without the keyspace, and two more, after which the keyspace's pages can be used again. If
    /// the first of these checkpoints fails, the keyspace is not dropped.
    fn make_drop_durable(&self, root: &mut DurableRoot, state: Arc<KeyspaceState>) -> Result<()> {
        let dropped = self.freeing_checkpoint(root);
        if let Err(e) = dropped {
            let mut sequencer = self.writer.quiesce();
            sequencer.note_drop();
            state.dropped.store(false, Relaxed);
            self.keyspaces.charge(&state, state.active_bytes() as u64);
            if state.is_direct {
                writer_of(&state).count_unwritten(&|bytes| self.keyspaces.note_unwritten(&state, bytes));
            }
            self.keyspaces.write().insert(state);
            return Err(e);
        }
        root.dropped.push(state.name.clone());
        state.index.clear();
        events::dropped(&state.name);
        // Take two more checkpoints. When both are complete, the pages of the keyspace can be used again.
        self.freeing_checkpoint(root)?;
        self.freeing_checkpoint(root)
    }

    /// Changes options of a keyspace's index durably. The changed options take effect at the next opening of the store.
    pub(crate) fn alter_keyspace(&self, name: &str, changes: &IndexOptions) -> Result<()> {
        self.check_writable()?;
        changes.check()?;
        let mut root = self.checkpointer.root.lock();
        let state = self.find_keyspace(name).ok_or_else(|| Error::NoKeyspace { name: name.to_owned() })?;
        let before = state.options();
        if changes.kind() != before.kind() {
            let detail = format!("keyspace `{name}` is stored in index `{}`, not `{}`", before.kind(), changes.kind());
            return Err(Error::invalid(format!("{detail}; copy it into a new keyspace to change that")));
        }
        if let Some((option, has, wanted)) = changes.fixed_conflict(&before) {
            let detail = format!("option `{option}` of keyspace `{name}` is {has} and cannot be changed to {wanted}");
            return Err(Error::invalid(format!("{detail}; copy the keyspace into a new one to change that")));
        }
        let after = changes.with_defaults(&before, before.mode().unwrap_or_default(), &[]);
        let mut encoded = Vec::new();
        after.encode(&mut encoded);
        check_size(root.most_catalog_bytes() + encoded.len() as u64)?;
        *state.options.lock() = after;
        self.checkpoint_with(&mut root).inspect_err(|_| *state.options.lock() = before)
    }

    /// Makes the keyspace whose creation is recorded in the log. `cut` is the cut of the catalogue, and `next_id` is
    /// the id of the next keyspace.
    pub(super) fn recover_creation(&self, record: &Record<'_>, cut: Seqno, next_id: &mut u32) -> Result<Visit> {
        let identity = Identity::decode(record.payload)?;
        let again = SeededBug::CreatedAgain.is_on() && self.keyspaces.get(identity.id).is_none();
        if record.first <= cut && !again {
            return Ok(Visit::Continue);
        }
        let is_next = identity.id.0 == *next_id && self.keyspaces.named(&identity.name).is_none();
        if record.count != 1 || !(is_next || again) {
            let detail = format!(
                "seqno {} creates keyspace {} `{}`, which cannot be the next one, {next_id}",
                record.first, identity.id, identity.name
            );
            return Err(Error::corruption("log record", 0, detail));
        }
        *next_id = (*next_id).max(identity.id.0 + 1);
        assert!(identity.id.0 < *next_id, "an id is given out once");
        self.checkpointer.root.lock().logged_bytes += most_bytes(record.payload.len());
        let operator = registered(&self.operators, &identity);
        let record = KeyspaceRecord { identity, root: RootRecord { through: record.first, bytes: Vec::new() } };
        let mut prefetch = Prefetch::new(self.core.data.clone());
        let state = Arc::new(self.build(operator, &record, &mut prefetch)?);
        self.keyspaces.charge(&state, state.active_bytes() as u64);
        self.keyspaces.write().insert(state);
        Ok(Visit::Continue)
    }

    /// Builds the state of a keyspace from its record, see [`build`].
    fn build(
        &self,
        operator: Option<Operator>,
        record: &KeyspaceRecord,
        prefetch: &mut Prefetch,
    ) -> Result<KeyspaceState> {
        let memtable_bytes = self.config.unit() as u64;
        build(&self.core, memtable_bytes, &self.chunks, &self.dead_ranges, operator, record, prefetch)
    }
}

/// The registered operator of a keyspace, if the keyspace has one.
pub(super) fn registered(operators: &HashMap<String, Arc<dyn MergeOperator>>, identity: &Identity) -> Option<Operator> {
    identity.operator.as_ref().and_then(|(name, version)| find_operator(operators, name, *version))
}

/// The registered operator with that name. An operator of the user has precedence over a built-in operator.
fn find_operator(operators: &HashMap<String, Arc<dyn MergeOperator>>, name: &str, version: u32) -> Option<Operator> {
    let operator = operators.get(name).cloned().or_else(|| builtin(name))?;
    (operator.version() == version).then(|| Operator::new(operator))
}

/// Builds a keyspace from its record, with an empty memtable.
pub(super) fn build(
    core: &Core,
    memtable_bytes: u64,
    chunks: &Arc<ChunkPool>,
    allowance: &Arc<Allowance>,
    operator: Option<Operator>,
    record: &KeyspaceRecord,
    prefetch: &mut Prefetch,
) -> Result<KeyspaceState> {
    let Identity { id, name, index: options, operator: operator_name, blob_threshold } = &record.identity;
    let settings = options.settings(memtable_bytes, operator.clone());
    let index = options.kind().index_type().build(&core.of(*id), &settings, &record.root, prefetch)?;
    let active = Arc::new(Memtable::new(record.root.through.0, chunks.clone()));
    Ok(KeyspaceState {
        is_direct: index.direct().is_some(),
        unwritten: AtomicU64::new(0),
        id: *id,
        name: name.clone(),
        operator,
        operator_name: operator_name.clone(),
        options: Mutex::new(options.clone()),
        blob_threshold: (*blob_threshold as usize).min(MAX_INLINE_VALUE),
        index,
        codec: options.kind().index_type().order.codec(),
        containers: ArcSwap::from_pointee(Containers { active, sealed: Vec::new() }),
        charged: CachePadded::default(),
        dead_ranges: Arc::new(DeadRanges::new(allowance.clone())),
        value_habits: Arc::default(),
        pops: Mutex::default(),
        dropped: AtomicBool::new(false),
        drained_through: AtomicU64::new(0),
    })
}

#[cfg(test)]
mod tests {
    use super::super::catalog::tests::LIMIT;
    use super::super::{KeyspaceOptions, Store};
    use crate::base::Error;
    use crate::device::MemDevice;
    use crate::resolve::MergeOperator;

    /// Regression: a keyspace was created with this operator, but a reopening found it without an operator.
    #[test]
    fn an_operator_without_a_name_is_refused() {
        struct Nameless;
        impl MergeOperator for Nameless {
            fn name(&self) -> &str {
                ""
            }

            fn validate(&self, _: &[u8]) -> Result<(), String> {
                Ok(())
            }

            fn full_merge(&self, _: &[u8], _: Option<&[u8]>, _: &[&[u8]]) -> Option<Vec<u8>> {
                None
            }
        }
        let store = Store::builder("nameless").device(MemDevice::new()).background_threads(0).open().expect("opens");
        let refused = store.keyspace_with("k", KeyspaceOptions::new().merge(Nameless)).expect_err("no name to store");
        assert!(matches!(&refused, Error::InvalidArgument { .. }), "{refused}");
        assert!(store.keyspaces().is_empty(), "nothing was created");
    }

    #[test]
    fn a_keyspace_whose_record_would_not_fit_the_catalogue_is_refused_and_leaves_nothing() {
        let device = MemDevice::new();
        let open = || {
            let builder = Store::builder("full").device(device.clone());
            builder.background_threads(0).memory_budget(1 << 20).open().expect("opens")
        };
        LIMIT.set(8 << 10);
        let store = open();
        let create =
            |store: &Store, i: usize| store.keyspace(&format!("{i:0>100}")).map(|keyspace| keyspace.put("k", "v"));
        let mut made = 0;
        let refused = loop {
            match create(&store, made) {
                Ok(put) => put.expect("written"),
                Err(e) => break e,
            }
            made += 1;
            // Take checkpoints in between: creations must count with the same size, regardless of whether they are in
            // the log or in the catalogue.
            if made % 7 == 0 {
                store.checkpoint().expect("it fits");
            }
        };
        assert!(
            matches!(refused, Error::TooLarge { what: "catalogue", bytes, limit: 8192 } if bytes > 8192),
            "{refused}"
        );
        assert!((20..60).contains(&made), "{made} keyspaces");
        let names = |store: &Store| store.keyspaces().into_iter().map(|info| info.name).collect::<Vec<_>>();
        let before = names(&store);
        assert_eq!(before.len(), made);
        assert!(create(&store, made).is_err() && create(&store, 0).is_ok(), "an existing one is found");
        store.settle().expect("checkpoints go on");
        store.close().expect("closes");
        let store = open();
        assert_eq!(names(&store), before);
        assert!(create(&store, made).is_err(), "also when it counts what the log holds");
        store.drop_keyspace(&before[0]).expect("dropped");
        create(&store, made).expect("there is room again").expect("written");
        assert!(create(&store, made + 1).is_err());
        store.close().expect("closes");
        LIMIT.set(u64::MAX);
        let store = open();
        assert_eq!(names(&store).len(), made);
        assert!(store.verify().expect("looks").is_clean());
    }
}
