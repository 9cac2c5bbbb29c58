//! [`Reserve`] is disk space that is reserved so that data can still be deleted when the disk is full.
//!
//! The file `reserve` occupies disk space, but has no content. Work that finds the disk full truncates the file and
//! uses the freed space. A later checkpoint extends the file again if there is disk space.
//!
//! ```text
//!   file   | checkpoints | deletes | background work |
//!          ^             ^         ^ background work may truncate the file to here
//!          |             deletes may truncate it to here
//!          checkpoints may truncate it to here
//! ```
//!
//! The shares are in the order of their importance. Only a checkpoint makes freed pages reusable, so no other work may
//! use the share of checkpoints. Deletes need space in the log. Packing and compaction use the rest of the file. They
//! free more space than they use, but the freed space is available only after the next checkpoint.
//!
//! The shares are multiples of [`ALLOCATED_UNIT`], so that truncating the file really frees the space. If the limit of
//! the reserve is below [`LEAST_IN_UNITS`], the shares are not multiples, because whole units would be too large.
//!
//! Invariants: `held` is at most the length of the file, and changes only under the lock of the file. While the reserve
//! is short ([`Reserve::is_short`]), ordinary writes fail, because they would use the space that is needed to free
//! space.

use std::sync::Arc;

use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{Error, Result, SeededBug};
use crate::device::{ALLOCATED_UNIT, Device, File, OpenHow};
use crate::space::data::SpaceStats;

/// The name of the reserve file.
pub(crate) const RESERVE_FILE: &str = "reserve";
/// The minimum reserve in bytes, unless the user has set a lower limit.
const MIN_RESERVE: u64 = 1 << 20;
/// The minimum number of bytes that is freed at a time for a checkpoint. It is also the minimum number of bytes by
/// which the file is extended at a time.
const LEAST_STEP: u64 = 32 << 10;
/// If the limit is below this number of bytes, the shares are not rounded to units of the file system.
pub(crate) const LEAST_IN_UNITS: u64 = 16 * ALLOCATED_UNIT;
/// The share of checkpoints grows with the size of the index nodes and the catalogue, up to this size in bytes.
const MAX_ROOTS: u64 = 64 << 20;

/// The share of background work is at least 1/PART_FOR_WORK of the store, because packing deletes needs this space. If
/// there is space to pack more deletes before a leaf is compacted, the compaction of the leaf frees more space.
const PART_FOR_WORK: u64 = 16;
/// The share of background work grows with the size of the store, up to this number of bytes.
const MAX_FOR_WORK: u64 = 64 << 20;

/// The work that may use space of the reserve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Writing trunk nodes and the catalogue.
    Checkpoint,
    /// Adding a log segment for an operation that frees space.
    Freeing,
    /// Packing and compaction.
    Background,
}

/// The space that each purpose needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub checkpoint: u64,
    pub freeing: u64,
    pub background: u64,
}

impl Shares {
    /// The sum of all shares.
    pub(crate) fn total(self) -> u64 {
        self.checkpoint + self.freeing + self.background
    }
}

/// The reserved disk space of an open store.
pub(crate) struct Reserve {
    file: Mutex<Option<Arc<dyn File>>>,
    held: AtomicU64,
    short: AtomicBool,
    shares: Shares,
    /// The maximum size of the reserve in bytes.
    limit: u64,
    /// Bytes of index nodes and of the catalogue. The share of checkpoints grows with this number.
    roots: AtomicU64,
    /// Bytes of allocated pages of the store. The share of background work grows with this number.
    store: AtomicU64,
}

impl Reserve {
    /// Opens the reserve of a store, and creates the file if it is missing.
    pub(crate) fn open(device: &dyn Device, limit: u64) -> Result<Reserve> {
        let fail = |op: &'static str| move |e: std::io::Error| Error::io(op, RESERVE_FILE, None, &e);
        let names = device.list().map_err(fail("list"))?;
        let create_new = !names.iter().any(|name| name == RESERVE_FILE);
        let file = device
            .open(RESERVE_FILE, OpenHow { write: true, create_new, ..OpenHow::default() })
            .map_err(fail("open"))?;
        let held = file.len().map_err(fail("stat"))?;
        Ok(Reserve { file: Mutex::new(Some(file)), held: AtomicU64::new(held), limit, ..Reserve::none() })
    }

    /// Sets the shares of the reserve.
    #[must_use]
    pub(crate) fn with_shares(self, shares: Shares) -> Reserve {
        Reserve { shares, ..self }
    }

    /// Makes a reserve without a file, for a store that is open for reading only.
    pub(crate) fn none() -> Reserve {
        Reserve {
            file: Mutex::new(None),
            held: AtomicU64::new(0),
            short: AtomicBool::new(false),
            shares: Shares::default(),
            limit: 0,
            roots: AtomicU64::new(0),
            store: AtomicU64::new(0),
        }
    }

    /// The current size of the reserve in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The unit of the shares in bytes. It is [`ALLOCATED_UNIT`], or 1 if the limit is so low that whole units would
    /// leave a purpose without a share.
    fn unit(&self) -> u64 {
        if self.limit < LEAST_IN_UNITS { 1 } else { ALLOCATED_UNIT }
    }

    /// Returns the shares, scaled down to the limit if necessary.
    fn scaled(&self) -> Shares {
        // A checkpoint needs space for a copy of all nodes and the catalogue, and a quarter more for splits.
        let roots = self.roots.load(Relaxed).min(MAX_ROOTS);
        let for_work = (self.store.load(Relaxed) / PART_FOR_WORK).min(MAX_FOR_WORK);
        let unit = self.unit();
        let shares = Shares {
            checkpoint: (self.shares.checkpoint + roots + roots / 4).next_multiple_of(unit),
            freeing: self.shares.freeing.next_multiple_of(unit),
            background: self.shares.background.max(for_work).next_multiple_of(unit),
        };
        let total = shares.total();
        if total <= self.limit {
            return shares;
        }
        let part = |share: u64| (u128::from(share) * u128::from(self.limit) / u128::from(total)) as u64;
        let checkpoint = part(shares.checkpoint).next_multiple_of(unit);
        let freeing = part(shares.freeing).next_multiple_of(unit);
        let shares = Shares { checkpoint, freeing, background: self.limit.saturating_sub(checkpoint + freeing) };
        assert!(shares.total() < self.limit + 2 * unit, "rounding adds less than a unit to each of two shares");
        shares
    }

    /// Truncates the reserve file to free space for a purpose, and returns the number of freed bytes. Background work
    /// gets all the space that it may use, a delete gets the share for log segments, and a checkpoint gets its own
    /// share. Deletes and checkpoints can call this function again to get more space.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be truncated.
    pub(crate) fn draw(&self, purpose: Purpose) -> Result<u64> {
        let shares = self.scaled();
        let (floor, most) = match purpose {
            Purpose::Checkpoint => (0, shares.checkpoint.max(LEAST_STEP)),
            Purpose::Freeing => (shares.checkpoint, shares.freeing.max(1)),
            Purpose::Background => (shares.checkpoint + shares.freeing, u64::MAX),
        };
        let file = self.file.lock();
        let held = self.bytes();
        let Some(file) = file.as_ref().filter(|_| held > floor) else { return Ok(0) };
        let rest = floor.max(held.saturating_sub(most) / self.unit() * self.unit());
        assert!(floor <= rest && rest < held, "{purpose:?} draws down to {rest} of {held} bytes, at least {floor}");
        file.set_len(rest).map_err(|e| Error::io("truncate", RESERVE_FILE, None, &e))?;
        self.held.store(rest, Relaxed);
        self.short.store(true, Relaxed);
        Ok(held - rest)
    }

    /// Returns whether space of the reserve was used and the reserve has not been refilled since then.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Sets the sizes of the nodes and of the store, from which the shares follow.
    pub(crate) fn note_store(&self, space: &SpaceStats) {
        self.roots.store(space.mirrored_bytes, Relaxed);
        self.store.store(space.allocated_bytes, Relaxed);
    }

    /// Extends the file to the sum of the shares, but not beyond the size of the store. If [`MIN_RESERVE`] is larger
    /// than the store, [`MIN_RESERVE`] is used in place of the size of the store. The shares of checkpoints and deletes
    /// are reserved first. A full disk is not an error, because the next checkpoint retries.
    pub(crate) fn refill(&self, store_bytes: u64) {
        let shares = self.scaled();
        let most = store_bytes.max(MIN_RESERVE).min(self.limit);
        let (first, all) = (shares.total() - shares.background, shares.total());
        assert!(first <= all && most <= self.limit, "{first} of {all} bytes are reserved first");
        let file = self.file.lock();
        let Some(file) = file.as_ref().filter(|_| !SeededBug::ReserveGivenAway.is_on()) else { return };
        for want in [first.min(most), all.min(most)] {
            let held = self.bytes();
            if want <= held {
                continue;
            }
            if !self.extend(&**file, want) {
                return;
            }
        }
        assert!(self.bytes() >= all.min(most), "the reserve is as large as wanted");
        self.short.store(false, Relaxed);
    }

    /// Extends the file to `want` bytes, or as far as the disk allows. After a failure, the extension is retried with
    /// half the step. Returns whether the file is `want` bytes long.
    fn extend(&self, file: &dyn File, want: u64) -> bool {
        assert!(want > self.bytes(), "REQUIRES: the file is shorter than {want} bytes");
        let mut step = want - self.bytes();
        let least = step.min(LEAST_STEP);
        while self.bytes() < want && step >= least {
            let held = self.bytes();
            let step_now = step.min(want - held);
            assert!(step_now > 0, "each step extends the file");
            if file.allocate(held, step_now).is_ok() {
                self.held.store(held + step_now, Relaxed);
            } else {
                // A failed allocation may have extended the file, so truncate the file to its old length. If the
                // truncation fails too, the next `draw` truncates the file.
                let _ = file.set_len(held);
                step /= 2;
            }
        }
        assert!(self.bytes() <= want, "the file is extended to at most {want} bytes");
        self.bytes() == want
    }
}
