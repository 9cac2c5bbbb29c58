//! Work on a full disk: which writes are refused, and how the store frees space.
//!
//! ```text
//!  ordinary write ── new segment of the log, large value ──▶ would the memtables still fit when packed? ──no──▶ DiskFull
//!  delete ────────── new segment of the log ──full──▶ waits for the turns below ──no progress──▶ its share of the reserve ──▶ DiskFull
//!
//!  background work ──full──▶ *pressed*: turns by one thread, until the reserve is whole again
//!     1. checkpoints, while freed pages wait for them; they may use the whole reserve, and refill it
//!     2. a memtable is packed, or a piece of an index that fits is compacted ([`Index::relieve`]), in the background share
//!        of the reserve, and if that is not enough in the share of deletes
//!     3. if there is nothing to do, and a delete waits for room in the log: memtables are sealed, and a checkpoint
//!        writes the pages of keyspaces without memtables
//! ```
//!
//! Invariants: ordinary writes take no space while the reserve is short, so the space that relief frees stays available
//! for relief. Every turn that reports work has packed, compacted, sealed or released something. Therefore the number
//! of turns is finite.
//!
//! Locks: `relieving` is taken first, and the locks of a checkpoint or of an index's step after it.
//!
//! [`Index::relieve`]: crate::index::Index::relieve

use super::engine::Engine;
use super::reserve::Purpose;
use crate::base::sync::Ordering::Relaxed;
use crate::base::{Error, PAGE, Result, SeededBug};
use crate::index::Room;
use crate::sched::{BACKGROUND_STEP, Turn};
use crate::wal::Log;

/// A delete waits for background work this number of times before it is refused. The constant below is the length of
/// each wait.
const ROUNDS: u32 = 400;
const PAUSE: std::time::Duration = std::time::Duration::from_millis(5);
/// If background work makes no progress for this number of rounds, a delete uses its share of the reserve.
const IDLE: u32 = 4;
/// If there is no progress at all for this number of rounds, `checkpoint`, `settle` and `compact` give up on a full
/// disk.
const WAITS: u32 = 20;

/// If more sealed memtables than this number exist on a full disk, a delete waits until one of them is packed.
const MOST_WAITING: u64 = 2;
/// The disk space that the largest compaction needs, in units. It rewrites a leaf of the default index.
const LARGEST_WORK: u64 = 16;

/// The disk space of the smallest run, which has one leaf, one inner block and one filter block.
const LEAST_RUN: u64 = 3 * PAGE as u64;

const _: () = assert!(IDLE < WAITS && WAITS < ROUNDS, "the reserve is used before a wait is given up");

/// Whether a commit may use the reserve. `frees` says that it only deletes.
pub(super) fn may_use_reserve(frees: bool) -> bool {
    frees && !SeededBug::ReserveNotUsed.is_on()
}

impl Engine {
    /// Refuses an ordinary write of `bytes` bytes if the memtables, and the pages that are not written yet, would
    /// afterwards not fit into the free disk space.
    pub(super) fn check_space(&self, bytes: u64) -> Result<()> {
        let Some(available) = self.device.available() else { return Ok(()) };
        let unpacked = self.keyspaces.active() + self.debt().memory_bytes;
        let runs = self.keyspaces.occupied() * LEAST_RUN;
        let pages = self.keyspaces.unwritten();
        let needed = bytes + pages + unpacked + unpacked / 8 + runs + self.config.shares().checkpoint;
        if available < needed { Err(Error::DiskFull { op: "reserve" }) } else { Ok(()) }
    }

    /// Refuses a delete that needs `bytes` bytes of log in two cases. First, as long as compactions need the rest of
    /// the disk: they free more space than they use. Second, as long as too many memtables wait to be packed. Otherwise
    /// deletes would fill the freed space with log records, and the memory with memtables.
    pub(super) fn check_space_to_free(&self, bytes: u64) -> Result<()> {
        let least = bytes + self.config.shares().background / 2;
        let is_short = || self.device.available().is_some_and(|room| room < least);
        let waits = self.pressure.pressed.load(Relaxed) && (self.is_behind() || is_short());
        if waits { Err(Error::DiskFull { op: "log" }) } else { Ok(()) }
    }

    /// Whether more than [`MOST_WAITING`] memtables wait to be packed.
    fn is_behind(&self) -> bool {
        self.debt().memory_bytes > MOST_WAITING * self.config.largest_memtable() as u64
    }

    /// Whether the remaining disk space is so small that background work has to be done in pieces.
    pub(super) fn is_tight(&self) -> bool {
        let largest = LARGEST_WORK * self.config.unit() as u64;
        self.device.available().is_some_and(|available| available < largest + self.config.shares().background)
    }

    /// Refuses an ordinary write, before it takes space, while the reserve is short. A commit that only deletes
    /// (`frees`) may take space.
    pub(super) fn refuse_if_short(&self, frees: bool) -> Result<()> {
        if frees || !self.reserve.is_short() {
            return Ok(());
        }
        // A close also takes the sequencer. So this code does not use the reserve of a store that is already closed.
        let _sequencer = self.writer.lock();
        self.check_writable()?;
        self.keep_back()
    }

    /// Refuses an ordinary write while the reserve is short, unless the reserve can be refilled.
    pub(crate) fn keep_back(&self) -> Result<()> {
        if self.reserve.is_short() {
            self.refill();
            if self.reserve.is_short() {
                return Err(Error::DiskFull { op: "reserve" });
            }
        }
        Ok(())
    }

    /// Fills the reserve if there is disk space.
    pub(super) fn refill(&self) {
        let log = self.retained_log_bytes();
        let space = self.core.data.stats();
        self.reserve.note_store(&space);
        self.reserve.refill(space.allocated_bytes + log);
    }

    /// Frees space that the reserve occupies. Returns the number of freed bytes.
    pub(super) fn draw_reserve(&self, purpose: Purpose) -> Result<u64> {
        // A close also takes the sequencer. After a close the reserve may belong to another process.
        let _sequencer = self.writer.lock();
        self.check_writable()?;
        self.reserve.draw(purpose)
    }

    /// Finds space in the log, or for pages, for a delete that found the disk full. The delete first waits for space
    /// that background work frees. Once this work makes no progress, the delete uses the reserve. `reserve` requests
    /// the space. Its argument says whether to request the space even if compactions need it.
    pub(super) fn room_to_free<T>(&self, reserve: &dyn Fn(bool) -> Result<T>) -> Result<T> {
        let room = |forced| match reserve(forced) {
            Err(Error::DiskFull { .. }) => None,
            room => Some(room),
        };
        self.background.clear_trouble();
        let (mut seen, mut idle) = (self.pressure.steps.load(Relaxed), 0);
        for _ in 0..ROUNDS {
            self.pressure.starved.store(true, Relaxed);
            self.pressure.pressed.store(true, Relaxed);
            let stuck = if self.config.background_threads == 0 {
                self.turn_alone(BACKGROUND_STEP) == Turn::Stuck
            } else {
                self.background.scheduler.wake();
                self.background.scheduler.wait(PAUSE);
                self.background.has_trouble()
            };
            if let Some(room) = room(false) {
                return room;
            }
            // As long as compactions free space, do not use the reserve's share for deletes, because further deletes
            // would add data that has to be compacted.
            let steps = self.pressure.steps.load(Relaxed);
            idle = if steps == seen { idle + 1 } else { 0 };
            seen = steps;
            // Do not count rounds without progress while memtables wait, because packing one memtable takes longer than
            // a few rounds.
            if stuck || idle >= IDLE && !self.is_behind() {
                if self.draw_reserve(Purpose::Freeing)? > 0
                    && let Some(room) = room(true)
                {
                    return room;
                }
                if stuck {
                    break;
                }
            }
        }
        reserve(true)
    }

    /// Whether compactions are pending but none of them fits on the disk. Writers do not wait for such compactions.
    pub(super) fn is_stalled(&self) -> bool {
        self.pressure.stalled.load(Relaxed)
    }

    /// The reason why background work makes no progress, if it makes none.
    pub(super) fn obstacle(&self) -> Option<Error> {
        let stalled = || self.is_stalled().then_some(Error::DiskFull { op: "compaction" });
        self.background.trouble().or_else(stalled)
    }

    /// Whether a thread that waits for background work on a full disk should continue to wait. It should continue if
    /// the work has made progress in the last rounds of the wait. The thread keeps the variables `seen` (the steps at
    /// its last call) and `rounds` (the number of its calls since the last progress).
    pub(super) fn may_wait_on(&self, seen: &mut u64, rounds: &mut u32) -> bool {
        let steps = self.pressure.steps.load(Relaxed);
        *rounds = if steps == *seen { *rounds + 1 } else { 0 };
        *seen = steps;
        if *rounds > WAITS {
            return false;
        }
        self.background.clear_trouble();
        self.pressure.stalled.store(false, Relaxed);
        self.pressure.pressed.store(true, Relaxed);
        self.background.scheduler.wake();
        true
    }

    /// Does one turn of background work on a full disk.
    pub(super) fn relieve(&self) -> Turn {
        let turn = self.relieve_turn();
        if matches!(turn, Turn::Worked(_)) {
            self.pressure.stalled.store(false, Relaxed);
            self.pressure.steps.fetch_add(1, Relaxed);
        }
        turn
    }

    fn relieve_turn(&self) -> Turn {
        let Some(_one) = self.pressure.relieving.try_lock() else { return Turn::Stuck };
        let turn = self.relieve_alone();
        self.core.data.fill_gaps(false);
        turn
    }

    /// Does one turn in the only thread that works on a full disk.
    fn relieve_alone(&self) -> Turn {
        self.writer.log.as_ref().map(Log::discard_preallocated);
        if !self.pressure.punched.swap(true, Relaxed) {
            self.core.data.punch_free();
        }
        let released = match self.release_freed() {
            Ok(released) => released,
            Err(e) => return self.note_trouble(e),
        };
        // Refill the reserve before all other work, because it provides the space for checkpoints and deletes.
        if self.reserve.is_short() {
            self.refill();
        }
        if !self.reserve.is_short() && self.pressure.relieved.swap(false, Relaxed) {
            self.end_pressure();
        }
        match self.relieve_one() {
            Ok(Some(bytes)) => Turn::Worked(bytes.max(1)),
            Ok(None) if self.seal_for_starved() || released => Turn::Worked(1),
            Ok(None) => {
                self.end_pressure();
                // A compaction that does not fit stays pending until other data is deleted. Threads that wait for such
                // a compaction get an error.
                self.pressure.stalled.store(self.debt().total() > 0, Relaxed);
                Turn::Idle
            }
            Err(Error::DiskFull { .. }) if released || self.seal_for_starved() => Turn::Worked(1),
            Err(e) => self.note_trouble(e),
        }
    }

    /// Records that the disk is not full any more, or that nothing more can be done about it.
    fn end_pressure(&self) {
        self.pressure.pressed.store(false, Relaxed);
        self.background.clear_trouble();
        // While the disk was full, the checkpoint thread took no checkpoints.
        if self.checkpointer.is_due() {
            self.background.scheduler.wake();
        }
    }

    /// Takes the checkpoints that are needed to release freed pages and old log. Returns whether anything was released.
    fn release_freed(&self) -> Result<bool> {
        let taken = || self.core.data.stats().allocated_bytes + self.retained_log_bytes();
        let before = taken();
        let due = self.checkpointer.accept();
        for round in 0..2 {
            if self.core.data.has_quarantine() || due {
                let _one = self.checkpointer.wait_for_turn();
                self.checkpointer.begin();
                let result = self.checkpoint();
                if result.is_err() && round == 0 && due {
                    self.checkpointer.request();
                }
                // If the checkpoint would free nothing, relief goes on without it.
                match result {
                    Err(Error::DiskFull { .. }) if !self.core.data.has_quarantine() => return Ok(false),
                    result => result?,
                }
            }
        }
        Ok(taken() < before)
    }

    /// Does one piece of work. If necessary, the work uses the reserve's share for background work. Returns the bytes
    /// that the work processed; `None` if there is nothing to do.
    fn relieve_one(&self) -> Result<Option<u64>> {
        let background = self.config.shares().background;
        assert!(background >= LEAST_RUN, "the share of background work holds a run");
        // Only urgent work uses gaps between used pages, because a run in such gaps consists of many short extents.
        let available = |urgent: bool| {
            let gaps = if urgent { self.core.data.gap_bytes() } else { 0 };
            self.device.available().unwrap_or(background) + gaps
        };
        let room = |drawn: u64, urgent: bool| {
            self.core.data.fill_gaps(urgent);
            Room { bytes: available(urgent).max(drawn), spare: background / 2, urgent }
        };
        let urgent = self.pressure.pressed.load(Relaxed);
        // Space drawn from the reserve can be used even if the file system does not report it as available (such as the
        // blocks that ext4 reserves for root).
        let mut drawn = 0;
        if urgent && available(true) < background / 2 {
            drawn += self.draw_reserve(Purpose::Background)?;
        }
        let mut result = self.relieve_in(room(drawn, urgent));
        // If necessary, also use the reserve's share for deletes, because work on a full disk frees more space than it
        // takes.
        for purpose in [Purpose::Background, Purpose::Freeing] {
            if !matches!(result, Err(Error::DiskFull { .. })) {
                break;
            }
            let more = self.draw_reserve(purpose)?;
            if more > 0 {
                drawn += more;
                self.pressure.pressed.store(true, Relaxed);
                result = self.relieve_in(room(drawn, true));
            }
        }
        result
    }

    /// Does one piece of work within `room`. The keyspaces are tried one after the other. The keyspace whose sealed
    /// memtables take the most memory comes first.
    fn relieve_in(&self, room: Room) -> Result<Option<u64>> {
        let mut keyspaces = self.keyspaces.all();
        keyspaces.sort_by_key(|keyspace| std::cmp::Reverse(keyspace.index.debt().memory_bytes));
        let mut full = None;
        for keyspace in &keyspaces {
            match keyspace.index.relieve(room, &|| self.snapshots.stripes()) {
                Ok(progress) if progress.idle => {}
                Ok(progress) => {
                    self.pressure.relieved.store(true, Relaxed);
                    return Ok(Some(self.note_progress(keyspace, progress)));
                }
                Err(e) if matches!(e, Error::DiskFull { .. }) || e.is_damage() => full = Some(e),
                Err(e) => return Err(e),
            }
        }
        full.map_or(Ok(None), Err)
    }

    /// If a delete waits for space in the log, seals all memtables, because these memtables retain the log. Direct
    /// writes retain the log until the next checkpoint, so one is requested for them. Returns whether a delete was
    /// waiting.
    fn seal_for_starved(&self) -> bool {
        let least = self.config.least_memtable() as u64 / 8;
        let seals = self.keyspaces.active() >= least && self.debt().memory_bytes == 0;
        let writes = self.checkpointer.direct() >= least.max(1);
        if !seals && !writes || !self.pressure.starved.swap(false, Relaxed) {
            return false;
        }
        if writes {
            self.checkpointer.request();
        }
        seals && self.seal_filled() || writes
    }
}
