//! The reserve: disk space that is kept back, so that a store on a full disk can be emptied.
//!
//! A file `reserve` occupies space and holds nothing. Work that meets a full disk cuts the file shorter and goes on in the
//! space that this frees. A checkpoint that finds room makes it longer again.
//!
//! ```text
//!   file   | checkpoints | deletes | background work |
//!            ◀── may cut down to here ──┘ deletes      checkpoints may cut all of it
//!                          ◀── may cut down to here ───┘ background work
//! ```
//!
//! The order of the shares is the order of need. A checkpoint is what gives freed space back, so nothing else may take its
//! share. Deletes need room in the log. Packing and compaction take what is above both, and give more back than they took
//! once a checkpoint has been taken.
//!
//! The shares are multiples of [`ALLOCATED_UNIT`], so that truncating the file really frees what was cut off; not where the caller
//! lets the store keep back less than 2 MiB.
//!
//! Invariant: while the file is shorter than it should be ([`Reserve::is_short`]), ordinary writes are refused, or they
//! would take the space that the freeing work needs.

use std::sync::Arc;

use crate::base::sync::{AtomicBool, AtomicU64, Mutex, Ordering::Relaxed};
use crate::base::{Error, Result, SeededBug};
use crate::device::{ALLOCATED_UNIT, Device, File, OpenHow};
use crate::space::data::SpaceStats;

/// The name of the file.
pub(crate) const RESERVE_FILE: &str = "reserve";
/// The least that is kept back, unless the caller has set a lower limit.
const MIN_RESERVE: u64 = 1 << 20;
/// The least that is freed for a checkpoint, or kept back at a time.
const LEAST_STEP: u64 = 32 << 10;
/// Where less may be kept back, the shares are not rounded to units of the file system.
pub(crate) const LEAST_IN_UNITS: u64 = 16 * ALLOCATED_UNIT;
/// The share of checkpoints does not grow beyond this with the size of the roots.
const MAX_ROOTS: u64 = 64 << 20;

/// The share of background work is this part of what the store takes, at least. It is where deletes are packed: the more of them reach a
/// leaf before it is compacted, the more that frees.
const PART_FOR_WORK: u64 = 16;
/// But not more than this for its size.
const MAX_FOR_WORK: u64 = 64 << 20;

/// What space of the reserve is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Trunk nodes, the catalogue.
    Checkpoint,
    /// A segment of the log for an operation that frees.
    Freeing,
    /// Packing and compaction.
    Background,
}

/// How much each purpose needs, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shares {
    pub checkpoint: u64,
    pub freeing: u64,
    pub background: u64,
}

impl Shares {
    /// All of them.
    pub(crate) fn total(self) -> u64 {
        self.checkpoint + self.freeing + self.background
    }
}

/// The kept-back space of an open store.
pub(crate) struct Reserve {
    file: Mutex<Option<Arc<dyn File>>>,
    held: AtomicU64,
    short: AtomicBool,
    shares: Shares,
    /// The most that is kept back.
    limit: u64,
    /// Bytes that nodes and catalogue take: the share of checkpoints grows with them.
    roots: AtomicU64,
    /// Bytes that the store takes: the share of background work grows with them.
    store: AtomicU64,
}

impl Reserve {
    /// Opens the reserve of a store, creating the file if it is missing.
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

    /// Sets what the purposes need.
    #[must_use]
    pub(crate) fn with_shares(self, shares: Shares) -> Reserve {
        Reserve { shares, ..self }
    }

    /// No reserve: a store that is only read.
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

    /// Bytes kept back now.
    pub(crate) fn bytes(&self) -> u64 {
        self.held.load(Relaxed)
    }

    /// The unit of the shares in bytes: [`ALLOCATED_UNIT`], or 1 if the limit is so low that whole units would leave a purpose without a
    /// share.
    fn unit(&self) -> u64 {
        if self.limit < LEAST_IN_UNITS { 1 } else { ALLOCATED_UNIT }
    }

    /// The shares, scaled to what may be kept back at most.
    fn scaled(&self) -> Shares {
        // All nodes and the catalogue anew, and what splits add.
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
        Shares { checkpoint, freeing, background: self.limit.saturating_sub(checkpoint + freeing) }
    }

    /// Frees space for a purpose: background work gets all that it may use, a delete what segments of the log need, a checkpoint its share;
    /// the latter two come back for more. How many bytes there were.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be cut.
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
        file.set_len(rest).map_err(|e| Error::io("truncate", RESERVE_FILE, None, &e))?;
        self.held.store(rest, Relaxed);
        self.short.store(true, Relaxed);
        Ok(held - rest)
    }

    /// Whether some of it was used and is not kept back again.
    pub(crate) fn is_short(&self) -> bool {
        self.short.load(Relaxed)
    }

    /// Tells how much nodes and catalogue take, and the whole store: the shares follow from both.
    pub(crate) fn note_store(&self, space: &SpaceStats) {
        self.roots.store(space.mirrored_bytes, Relaxed);
        self.store.store(space.allocated_bytes, Relaxed);
    }

    /// Keeps back what the shares say, but not more than the store occupies itself. Where that does not fit, first
    /// what checkpoints and deletes need. A full disk is no failure: the next checkpoint tries again.
    pub(crate) fn refill(&self, store_bytes: u64) {
        let shares = self.scaled();
        let most = store_bytes.max(MIN_RESERVE).min(self.limit);
        let (first, all) = (shares.total() - shares.background, shares.total());
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
        self.short.store(false, Relaxed);
    }

    /// Makes the file `want` bytes long, or as long as the disk allows in a few steps, each half as long as the one that failed. Whether it
    /// is as long as wanted.
    fn extend(&self, file: &dyn File, want: u64) -> bool {
        let mut step = want - self.bytes();
        let least = step.min(LEAST_STEP);
        while self.bytes() < want && step >= least {
            let held = self.bytes();
            let step_now = step.min(want - held);
            if file.allocate(held, step_now).is_ok() {
                self.held.store(held + step_now, Relaxed);
            } else {
                // What a failed allocation kept all the same is given back; a file that cannot be cut is cut by `draw`.
                let _ = file.set_len(held);
                step /= 2;
            }
        }
        self.bytes() >= want
    }
}
