//! The effect of a power cut on the pending operations: a choice decides which operations survive, and a plan lists the
//! choices that a test should try.

use std::borrow::Borrow;

use super::{Rng, SimOp};

/// The unit in which a disk writes, in bytes. A torn write ends at a multiple of this unit, counted from the start of
/// the file.
const SECTOR: u64 = 512;

const _: () = assert!((crate::base::PAGE as u64).is_multiple_of(SECTOR), "a page is written in whole sectors");

/// The fate of one pending operation. For an operation that is not a write, every fate except `Drop` means `Keep`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fate {
    /// The whole operation reached the disk.
    Keep,
    /// The operation never happened.
    Drop,
    /// The given number of bytes at the start of a write reached the disk.
    Head(u64),
    /// The given number of bytes at the end of a write reached the disk.
    Tail(u64),
    /// The file system allocated the space, but the bytes did not reach the disk. The pages of the write are zeros,
    /// whatever they held before the write.
    Zeros,
    /// As `Zeros`, but the pages hold pseudo-random bytes from this seed instead of zeros.
    Garbage(u64),
}

/// The fate of every pending operation, by its position in the list of pending operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashChoice {
    /// Operations before this position are kept, and all others are dropped, except for the operations in `except`.
    kept: usize,
    /// The exceptions, in ascending order of position.
    except: Vec<(usize, Fate)>,
}

impl CrashChoice {
    /// All pending operations are lost.
    pub fn none() -> CrashChoice {
        CrashChoice::prefix(0)
    }

    /// No pending operation is lost, as after a kill of the process.
    pub fn all() -> CrashChoice {
        CrashChoice::prefix(usize::MAX)
    }

    /// The first `kept` pending operations survive.
    pub fn prefix(kept: usize) -> CrashChoice {
        CrashChoice { kept, except: Vec::new() }
    }

    /// The pending operations at the given positions survive.
    pub fn only(positions: impl IntoIterator<Item = usize>) -> CrashChoice {
        positions.into_iter().fold(CrashChoice::none(), |choice, position| choice.with(position, Fate::Keep))
    }

    /// The same choice, except that the operation at `position` has the fate `fate`. The cost is a search among the
    /// exceptions.
    #[must_use]
    pub fn with(mut self, position: usize, fate: Fate) -> CrashChoice {
        match self.except.binary_search_by_key(&position, |(position, _)| *position) {
            Ok(at) => self.except[at].1 = fate,
            Err(at) => self.except.insert(at, (position, fate)),
        }
        debug_assert!(self.except.is_sorted_by(|a, b| a.0 < b.0), "one fate for each position");
        self
    }

    /// The fate of the operation at `position`.
    pub fn fate(&self, position: usize) -> Fate {
        match self.except.binary_search_by_key(&position, |(position, _)| *position) {
            Ok(at) => self.except[at].1,
            Err(_) if position < self.kept => Fate::Keep,
            Err(_) => Fate::Drop,
        }
    }
}

/// The choices to try at one point of a history.
///
/// If there are at most `exhaustive` pending operations, the plan tries every subset. If there are more, it tries every
/// prefix, every subset that lacks one operation, every subset of one operation, every pair (if `pairs` is set), and
/// `subsets` random subsets. Then it damages one write at a time: it tears the write (`tears`) or replaces its bytes
/// (`rot`). It tries each damage twice: once with only the earlier operations kept, and once with all other operations
/// kept.
#[derive(Clone, Debug)]
pub struct CrashPlan {
    /// The most pending operations for which all subsets are tried. At most 20.
    pub exhaustive: usize,
    /// Whether all pairs are tried if there are more than `exhaustive` pending operations. The number of pairs is
    /// quadratic.
    pub pairs: bool,
    /// The number of random subsets that are tried if there are more than `exhaustive` pending operations.
    pub subsets: usize,
    /// The most positions at which each write is torn; with 0, no write is torn. At each position two tears are tried:
    /// only the head of the write survives, or only its tail. If a write has more sector boundaries than this number,
    /// it is torn at evenly spaced boundaries.
    pub tears: usize,
    /// Whether each write is also replaced by zeros and by garbage.
    pub rot: bool,
    /// The seed of the random subsets and of the garbage.
    pub seed: u64,
}

impl Default for CrashPlan {
    fn default() -> CrashPlan {
        CrashPlan { exhaustive: 10, pairs: true, subsets: 1024, tears: 64, rot: true, seed: 0 }
    }
}

impl CrashPlan {
    /// The choices for the given pending operations, in a deterministic order. Different choices may give the same
    /// image, so drop duplicates by [`super::SimImage::hash`].
    pub fn choices<'a>(&'a self, pending: &'a [impl Borrow<SimOp>]) -> impl Iterator<Item = CrashChoice> + 'a {
        assert!(self.exhaustive <= 20, "2^{} subsets are too many", self.exhaustive);
        let k = pending.len();
        let small = k <= self.exhaustive;
        let every = if small { 0..1_u64 << k } else { 0..0 };
        let every = every.map(move |bits| CrashChoice::only((0..k).filter(|position| bits >> position & 1 == 1)));
        let sampled = (!small).then(|| self.sampled(k)).into_iter().flatten();
        every.chain(sampled).chain(self.spoilt(pending))
    }

    fn sampled(&self, k: usize) -> impl Iterator<Item = CrashChoice> + '_ {
        let prefixes = (0..=k).map(CrashChoice::prefix);
        let but_one = (0..k).map(|position| CrashChoice::all().with(position, Fate::Drop));
        let only_one = (0..k).map(|position| CrashChoice::only([position]));
        let pairs = if self.pairs { 0..k } else { 0..0 };
        let pairs = pairs.flat_map(move |a| (a + 1..k).map(move |b| CrashChoice::only([a, b])));
        let mut rng = Rng(self.seed);
        let subsets = (0..self.subsets).map(move |_| {
            // Each subset draws its own probability of survival. With a fixed probability of 1/2, nearly every subset
            // would keep about half of the operations.
            let share = 1 + rng.below(15);
            CrashChoice::only((0..k).filter(|_| rng.below(16) < share))
        });
        prefixes.chain(but_one).chain(only_one).chain(pairs).chain(subsets)
    }

    fn spoilt<'a>(&'a self, pending: &'a [impl Borrow<SimOp>]) -> impl Iterator<Item = CrashChoice> + 'a {
        let fates = pending.iter().enumerate().flat_map(|(position, op)| {
            let op: &SimOp = op.borrow();
            let mut fates = tears(op, self.tears);
            if self.rot && matches!(op, SimOp::Write { .. }) {
                fates.extend([Fate::Zeros, Fate::Garbage(self.seed.wrapping_add(position as u64))]);
            }
            fates.into_iter().map(move |fate| (position, fate))
        });
        fates.flat_map(|(position, fate)| {
            [CrashChoice::prefix(position).with(position, fate), CrashChoice::all().with(position, fate)]
        })
    }
}

/// The tears of a write: its head and its tail, at each of at most `limit` sector boundaries inside the write.
fn tears(op: &SimOp, limit: usize) -> Vec<Fate> {
    let SimOp::Write { patch, .. } = op else { return Vec::new() };
    let range = patch.range();
    let first = range.start / SECTOR + 1;
    let boundaries = range.end.div_ceil(SECTOR).saturating_sub(first);
    let places = boundaries.min(limit as u64);
    let tear = |place: u64| {
        let boundary = (first + place * boundaries / places) * SECTOR;
        debug_assert!(range.start < boundary && boundary < range.end, "a tear lies inside its write");
        [Fate::Head(boundary - range.start), Fate::Tail(range.end - boundary)]
    };
    (0..places).flat_map(tear).collect()
}
