//! Writes to keyspaces whose index is written directly ([`Index::direct`]), without a memtable.
//!
//! ```text
//!   prepare each keyspace ─▶ log reservation ─▶ seqnos ─▶ record ─▶ memtables ─▶ apply ─▶ dead ranges cut ─▶ visible
//!      └ full disk: a delete waits for relief, and then uses the reserve        └ log is long: checkpoint requested
//! ```
//!
//! 1. Everything that can fail happens before the commit draws its seqnos. If the commit is refused later, or has to
//!    validate again, its prepared operations are dropped without effect.
//! 2. The messages take effect at the moment when messages of other keyspaces are inserted into memtables. So
//!    checkpoints, transactions and scans find them by the same rules: a thread that has quiesced the sequencer finds
//!    all of them applied.
//! 3. The messages stay in the log until a checkpoint has written them. So the store requests a checkpoint when the log
//!    of these commits is long.
//!
//! Locks: the gate, shared, while operations are prepared. No lock is held while they wait to be applied.
//!
//! [`Index::direct`]: crate::index::Index::direct

use std::borrow::Cow;

use crate::base::sync::Ordering::Relaxed;
use crate::base::{Entry, Error, KeyCodec, Kind, Result, Seqno};
use crate::index::{DirectTools, DirectWriter, Prepared};
use crate::sched;
use crate::store::engine::Engine;
use crate::store::relief::may_use_reserve;
use crate::store::state::KeyspaceState;

/// The operations of a commit on one keyspace that is written directly.
pub(crate) struct DirectOps<'p> {
    keyspace: &'p KeyspaceState,
    ops: Vec<DirectOp<'p>>,
}

/// One operation, in the stored form.
struct DirectOp<'p> {
    /// The number of the operation among all operations of the commit.
    number: u32,
    kind: Kind,
    key: Cow<'p, [u8]>,
    value: &'p [u8],
}

/// The direct operations of a commit, ready to be applied. Dropping them has no effect.
pub(crate) struct Ready<'d>(Vec<(&'d DirectOps<'d>, Box<dyn Prepared + 'd>)>);

impl<'p> DirectOps<'p> {
    /// No operations on a keyspace.
    pub(crate) fn new(keyspace: &'p KeyspaceState) -> DirectOps<'p> {
        assert!(keyspace.is_direct, "keyspace `{}` has memtables", keyspace.name);
        DirectOps { keyspace, ops: Vec::new() }
    }

    /// Whether the operations are on this keyspace.
    pub(crate) fn are_on(&self, keyspace: &KeyspaceState) -> bool {
        self.keyspace.id == keyspace.id
    }

    /// Adds operation `number` of the commit. `key` is in the form of the user.
    pub(crate) fn push(&mut self, number: u32, kind: Kind, key: &'p [u8], value: &'p [u8]) {
        debug_assert!(self.ops.last().is_none_or(|last| last.number < number), "operations are added in order");
        let key = match self.keyspace.codec {
            KeyCodec::Hashed if kind != Kind::RangeDelete => {
                Cow::Owned(self.keyspace.codec.stored(key, &mut Vec::new()).to_vec())
            }
            _ => Cow::Borrowed(key),
        };
        self.ops.push(DirectOp { number, kind, key, value });
    }

    fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        self.ops.iter().map(|DirectOp { kind, key, value, .. }| Entry {
            key,
            seqno: Seqno::UNASSIGNED,
            kind: *kind,
            value,
        })
    }

    /// Applies the operations of a commit whose first seqno is `first`.
    fn apply(&self, prepared: Box<dyn Prepared + '_>, first: Seqno) {
        let mut seqnos = self.ops.iter().map(|op| Seqno(first.0 + u64::from(op.number)));
        prepared.apply(&mut seqnos);
        assert!(seqnos.next().is_none(), "the index has applied all operations");
        // As for a memtable: after the insertion, and before the commit is visible.
        for op in self.ops.iter().filter(|op| !matches!(op.kind, Kind::Delete | Kind::RangeDelete)) {
            self.keyspace.dead_ranges.revive(&op.key);
        }
    }
}

impl Ready<'_> {
    /// Applies the operations of a commit whose first seqno is `first`.
    pub(crate) fn apply(self, first: Seqno) {
        self.0.into_iter().for_each(|(ops, prepared)| ops.apply(prepared, first));
    }
}

/// The interface for writes to a keyspace without memtables.
pub(super) fn writer_of(keyspace: &KeyspaceState) -> &dyn DirectWriter {
    keyspace.index.direct().expect("an index is always written in the same way")
}

/// The disk counts as nearly full if its free space is less than `ROOM` times the pages that are not written yet.
const ROOM: u64 = 2;

impl Engine {
    /// Prepares the direct operations of a commit. A commit that only deletes (`frees`) may use the emergency reserve.
    ///
    /// # Errors
    /// [`Error::DiskFull`], or the error of an index. The commit then has no effect.
    pub(crate) fn prepare<'d>(&self, direct: &'d [DirectOps<'d>], frees: bool) -> Result<Ready<'d>> {
        if direct.is_empty() {
            return Ok(Ready(Vec::new()));
        }
        self.refuse_if_short(frees)?;
        self.write_if_tight()?;
        let prepared = match self.prepare_all(direct, frees, false) {
            Err(Error::DiskFull { .. }) if may_use_reserve(frees) => {
                self.room_to_free(&|forced| self.prepare_all(direct, true, forced))
            }
            other => other,
        };
        prepared.inspect_err(|e| match e {
            // A checkpoint frees the log and the pages that the written ones have replaced.
            Error::DiskFull { .. } if self.checkpointer.direct() > 0 => self.request_checkpoint(),
            Error::Io { .. } if !e.is_damage() => self.poison(e),
            _ => {}
        })
    }

    /// Takes a checkpoint if the disk is nearly full and the pages that are not written yet might not fit into the
    /// reserve. So a checkpoint can write them even if another program fills the rest of the disk. A full disk is left
    /// to the caller. If several threads come here at once, one of them takes the checkpoint.
    fn write_if_tight(&self) -> Result<()> {
        if !self.is_tight_for_direct() {
            return Ok(());
        }
        let unwritten = self.keyspaces.unwritten();
        let result = self.checkpoint_if(&|| self.is_tight_for_direct());
        let is_full = matches!(result, Err(Error::DiskFull { .. }));
        self.checkpointer.failed_with.store(if is_full { unwritten } else { 0 }, Relaxed);
        if is_full { Ok(()) } else { result }
    }

    /// Whether the disk is so full that a checkpoint should write the pages that are not written yet. They take more than
    /// three quarters of the reserve, and an eighth of the reserve more than the least that makes a checkpoint useful:
    /// what the last checkpoint could not write, if it has found the disk full, or else what one message in each keyspace
    /// takes, because the next commits would bring that again.
    fn is_tight_for_direct(&self) -> bool {
        let (unwritten, reserve) = (self.keyspaces.unwritten(), self.reserve.bytes());
        let failed = self.checkpointer.failed_with.load(Relaxed);
        if unwritten <= reserve / 4 * 3 || self.device.available().is_none_or(|room| room / ROOM >= unwritten) {
            return false;
        }
        let least = if failed > 0 { failed } else { self.least_unwritten() };
        unwritten > least + reserve / 8
    }

    /// The bytes of pages that a checkpoint of one message in each keyspace with direct writes would take.
    fn least_unwritten(&self) -> u64 {
        let keyspaces = self.keyspaces.all();
        let written = keyspaces.iter().filter(|keyspace| keyspace.unwritten.load(Relaxed) > 0);
        written.map(|keyspace| writer_of(keyspace).least_unwritten()).sum()
    }

    /// Prepares the operations on all keyspaces, or none.
    fn prepare_all<'d>(&self, direct: &'d [DirectOps<'d>], frees: bool, forced: bool) -> Result<Ready<'d>> {
        // Check this before taking the gate, because a forked child and an operator must not wait for the gate.
        self.check_writable()?;
        let _gate = self.gate.read();
        self.check_writable()?;
        let keep = || self.snapshots.stripes();
        let prepare = |ops: &'d DirectOps<'d>| {
            let room = |bytes| self.check_room(ops.keyspace, bytes, frees, forced);
            let writer = writer_of(ops.keyspace);
            self.make_direct_room(ops.keyspace)?;
            let prepared = writer.prepare(
                &mut ops.entries(),
                &DirectTools { keep: &keep, room: &room, inline_bytes: ops.keyspace.blob_threshold },
            )?;
            Ok((ops, prepared))
        };
        direct.iter().map(prepare).collect::<Result<_>>().map(Ready)
    }

    /// Lets the index of a keyspace free memory. A full disk does not keep a commit from its work: the pages that are
    /// not written yet count as used space.
    fn make_direct_room(&self, keyspace: &KeyspaceState) -> Result<()> {
        match writer_of(keyspace).make_room(&|| self.snapshots.stripes()) {
            Ok(progress) if progress.idle => Ok(()),
            Ok(progress) => {
                self.note_progress(keyspace, progress);
                Ok(())
            }
            Err(Error::DiskFull { .. }) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Refuses a direct write after which a keyspace would have `bytes` bytes of pages that are not written yet, if
    /// the pages of all keyspaces would not fit on the disk. `forced` says that a delete may take all of the disk.
    fn check_room(&self, keyspace: &KeyspaceState, bytes: u64, frees: bool, forced: bool) -> Result<()> {
        let before = keyspace.unwritten.load(Relaxed);
        self.keyspaces.note_unwritten(keyspace, bytes);
        let all = self.keyspaces.unwritten();
        let checked = match (frees, forced) {
            (false, _) => self.check_space(0),
            (true, false) => self.check_space_to_free(all),
            (true, true) if self.device.available().is_some_and(|room| room < all) => {
                Err(Error::DiskFull { op: "pages" })
            }
            (true, true) => Ok(()),
        };
        // A refused write takes no space.
        checked.inspect_err(|_| self.keyspaces.note_unwritten(keyspace, before))
    }

    /// Called after a commit with direct operations, whose record has `bytes` bytes.
    pub(crate) fn note_direct(&self, bytes: u64) {
        // The log is needed from the checkpoint before the last one on.
        if self.checkpointer.note_direct(bytes) < self.most_log() / 2 {
            return;
        }
        self.request_checkpoint();
        if self.config.background_threads == 0 {
            // A failure is recorded, and does not concern this commit.
            self.turn_alone(sched::FOREGROUND_STEP);
        }
    }

    /// Requests a checkpoint soon, unless one is requested already.
    pub(crate) fn request_checkpoint(&self) {
        if !self.checkpointer.is_due() {
            self.checkpointer.request();
            self.background.scheduler.wake();
        }
    }

    /// Takes a checkpoint if there are direct writes that no checkpoint has written.
    pub(crate) fn write_direct(&self) -> Result<()> {
        if self.checkpointer.direct() > 0 { self.checkpoint() } else { Ok(()) }
    }

    /// Applies one message of the log while the store is opened. `key` is in the form of the user.
    pub(crate) fn replay_direct(&self, keyspace: &KeyspaceState, message: &Entry<'_>) -> Result<()> {
        let mut buf = Vec::new();
        let key = match message.kind {
            Kind::RangeDelete => message.key,
            _ => keyspace.codec.stored(message.key, &mut buf),
        };
        // The message was admitted when it was committed, and stays in the log if the disk is full now.
        let tools = DirectTools {
            keep: &|| self.snapshots.stripes(),
            room: &|_| Ok(()),
            inline_bytes: keyspace.blob_threshold,
        };
        writer_of(keyspace).replay(&Entry { key, ..*message }, &tools)?;
        if !self.config.read_only {
            self.make_direct_room(keyspace)?;
        }
        self.checkpointer.note_direct((message.key.len() + message.value.len()) as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
