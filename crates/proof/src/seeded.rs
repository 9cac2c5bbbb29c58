//! Which harness must catch which seeded bug: the checkers are checked.
//!
//! The bugs and their sites are the engine's ([`pandodb::base::seeded`]); each line of [`HUNTS`] names the harness that is to
//! notice one, where it begins to look, and by what it should give itself away. `tests/seeded.rs` switches them on one after
//! the other and fails for each that survives.
//!
//! A survivor is a weakness of the harness before it is anything else. Bugs that no harness *can* see, because another check
//! of the engine stands behind the broken one, are not in the list:
//!
//! | not seeded | what stands behind it |
//! | --- | --- |
//! | a block's kind is not compared | the owner in its checksum, which is never reused, has one kind of block at a page |
//! | a log record's checksum lacks segment and epoch | seqnos are contiguous: a record in the wrong place is a gap or a repetition |
//! | a child that lies partly outside a compaction's ranges inherits its output | nodes under compaction are not merged, so none does |
//! | a child that was given the inputs during their compaction gets the output twice | a flush during an inner node's compaction: 1 of 7,006 without threads |
//! | `verify` allows a page two owners | needs a store that another bug has broken |
//! | what needs two threads: visible before inserted, a horizon not asked, graves opened early | the harnesses of this table run one |
//!
//! The bugs of [`BY_SCHEDULES`] need two threads as well; the canaries of `crates/explore` are on their trail.

use pandodb::base::SeededBug;

use crate::drive::calmly;
use crate::report::{Kind, Unit};

/// How many units are tried before a bug counts as a survivor.
const TRIES: u64 = 40;
/// More steps than any history has: all of them are kept, and a failure is reported as it is, without looking for the shortest
/// history.
const ALL_STEPS: usize = 4_096;

/// Where a bug is looked for.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: SeededBug,
    /// The harness that must catch it.
    pub kind: Kind,
    /// The first seed,
    pub from: u64,
    /// and the distance to the next, for harnesses whose seeds say what is done.
    pub every: u64,
    /// By what it gives itself away.
    pub sign: &'static str,
}

/// What came of a hunt.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The seed of the unit that failed.
    pub seed: u64,
    /// Runs until then, in the harness's measure.
    pub runs: u64,
    /// The failure's words.
    pub what: String,
}

impl Hunt {
    /// Runs the harness until it fails. The caller has switched the bug on.
    pub fn go(&self) -> Option<Caught> {
        let mut runs = 0;
        for seed in (0..TRIES).map(|nth| self.from + nth * self.every) {
            let unit = Unit { seed, steps: Some((0..ALL_STEPS).collect()) };
            // A panic outside of what a harness guards is an alarm, too.
            let what = match calmly(|| crate::run(self.kind, &unit)) {
                Ok(tally) => {
                    runs += tally.runs;
                    tally.failures.into_iter().next().map(|failure| failure.what)
                }
                Err(panic) => Some(panic),
            };
            if let Some(what) = what {
                return Some(Caught { seed, runs, what });
            }
        }
        None
    }
}

const fn hunt(bug: SeededBug, kind: Kind, (from, every): (u64, u64), sign: &'static str) -> Hunt {
    Hunt { bug, kind, from, every, sign }
}

/// From the first unit on.
const ANY: (u64, u64) = (0, 1);
/// Of [`Kind::Corrupt`]: stores of the seed's own, closed,
const CLOSED: (u64, u64) = (6, 8);
/// or the log of a golden store: stores that are closed today have none.
const GOLDEN_LOG: (u64, u64) = (597, 1);
/// Of [`Kind::Faults`]: one sync fails,
const FORGOTTEN: (u64, u64) = (8, 27);
/// one of a checkpoint that forgets a keyspace,
const FORGOTTEN_IN_CHECKPOINT: (u64, u64) = (116, 27);
/// or the disk is full.
const FULL: (u64, u64) = (26, 27);
/// Of [`Kind::Model`]: deep trees.
const DEEP: (u64, u64) = (1, 16);
/// Small ones in which runs come while maplets are made.
const BUSY: (u64, u64) = (3, 16);

/// Bugs that show only while another thread looks: the explorer's scenarios `memtable` and `memtable-deep`, `beside`,
/// `beside-seal`, `kill`, `streams`, `streams-cut`, `pool-reuse`, `pool-hot`, `pool-claims`, `rows` and `rows-merge`,
/// `close-read` catch them.
pub const BY_SCHEDULES: &[SeededBug] = &[
    SeededBug::ChangedNodeTrusted,
    SeededBug::SplitWhileRead,
    SeededBug::WatermarkPassesGap,
    SeededBug::SealTooSoon,
    SeededBug::WriteNotAwaited,
    SeededBug::AppendOutOfTurn,
    SeededBug::SyncClaimsPastGap,
    SeededBug::FrameNotLookedAt,
    SeededBug::HitNotNoted,
    SeededBug::ReaderCountLost,
    SeededBug::LateRowTaken,
    SeededBug::RowOfNewerRoot,
    SeededBug::AnswerAfterClose,
];

/// Every other seeded bug.
pub const HUNTS: &[Hunt] = {
    use Kind::{Corrupt, Crash, Disk, Faults, Model, Verify};
    use SeededBug::*;
    &[
        hunt(AckBeforeSync, Crash, ANY, "a power cut after an acknowledgement loses the commit"),
        hunt(BufferedStaysInMemory, Crash, ANY, "a kill loses a commit that was acknowledged as buffered"),
        hunt(
            FailedSyncForgiven,
            Faults,
            FORGOTTEN,
            "after a failed sync and a power cut an acknowledged commit is gone",
        ),
        hunt(ValuesAfterTheLog, Crash, ANY, "a power cut loses a commit whose large value was not synced"),
        hunt(SyncedBlockShared, Crash, (2, 1), "a block torn to rubbish takes acknowledged records with it"),
        hunt(BatchInParts, Crash, ANY, "a state that never was: half a batch"),
        hunt(TornTailEatsTheMiddle, Corrupt, GOLDEN_LOG, "a flipped bit in the log shortens history without an error"),
        hunt(VoidEpochReplayed, Crash, ANY, "after a recovery was crashed a seqno comes twice"),
        hunt(TailTrusted, Faults, FORGOTTEN, "what a reopened store has shown is gone after a power cut"),
        hunt(TailCopyNotSynced, Crash, ANY, "a crash inside recovery loses the tail"),
        hunt(LogDiscardedEarly, Corrupt, (527, 8), "the older superblock does not serve: its log is gone"),
        hunt(RecordUnchecked, Crash, (1, 1), "a torn record is replayed"),
        hunt(SyncForgetsStreams, Crash, ANY, "a power cut after an acknowledgement loses what another stream held"),
        hunt(LazyLeftBehind, Crash, ANY, "a kill loses a buffered commit with a lazy one before it"),
        hunt(OwnSyncClaimedForAll, Crash, ANY, "a torn tail is taken for damage: the store does not open"),
        hunt(GapIgnored, Crash, ANY, "a state that never was: a later commit without an earlier one"),
        hunt(SegmentAheadNotSynced, Crash, ANY, "a power cut after an acknowledgement loses a whole segment"),
        hunt(GenerationNotInherited, Crash, (26, 1), "a message seems to be older than what it replaced: no opening"),
        hunt(FreedAtOnce, Crash, ANY, "a crash finds pages of its root written over"),
        hunt(
            FreedOneSuperblockEarly,
            Corrupt,
            (367, 8),
            "the older superblock does not serve: its pages are written over",
        ),
        hunt(SuperblockBeforeData, Crash, ANY, "a crash leaves a root whose nodes never arrived"),
        hunt(SuperblockSlotTwice, Crash, ANY, "a torn superblock leaves none"),
        hunt(ChecksumWithoutPlace, Corrupt, CLOSED, "two leaves of a run are exchanged and believed"),
        hunt(ChecksumWithoutOwner, Corrupt, CLOSED, "a page as it was some time ago is believed"),
        hunt(LargeValueUnchecked, Corrupt, CLOSED, "a flipped bit in a large value is read"),
        hunt(PoolForgetsOwner, Model, ANY, "a get finds the former content of a page"),
        hunt(ShortReadTaken, Model, ANY, "a block that was read in part is damage"),
        hunt(BlockForAnother, Model, ANY, "several keys at once: a lookup is given another one's leaf"),
        hunt(LengthInMemoryNoted, Model, ANY, "there is no leaf where one behind a compressed leaf says"),
        hunt(FeatureNotNamed, Model, ANY, "verify finds compressed leaves that no superblock names"),
        hunt(FilterForAnother, Model, ANY, "a filter that knows nothing of the run denies its keys"),
        hunt(SnapshotOffByOne, Model, ANY, "a snapshot shows a later write"),
        hunt(MemtableTombstoneIgnored, Model, ANY, "a get finds a key that was deleted with its range"),
        hunt(OlderMemtableFirst, Model, ANY, "a get finds the older value"),
        hunt(FilterMissesKeys, Model, ANY, "a get does not find a key"),
        hunt(RowOutlivesOverwrite, Model, ANY, "a get shows what was overwritten"),
        hunt(MapletMissesArrival, Model, BUSY, "a get does not find a key of a run that came while a maplet was made"),
        hunt(UnreadMapletDenies, Corrupt, (78, 8), "a flipped bit in a maplet hides a key"),
        hunt(OperandsBackwards, Model, ANY, "a list read backwards is in another order"),
        hunt(ScanStartsOver, Model, ANY, "a scan that was left open yields keys again"),
        hunt(ScanEndsPass, Model, ANY, "a scan from both ends yields a key from each"),
        hunt(OperandDropped, Model, ANY, "a counter lacks an operand"),
        hunt(SnapshotsIgnored, Model, ANY, "a snapshot lacks a key"),
        hunt(TombstoneDroppedAboveOlder, Model, ANY, "a deleted key is back"),
        hunt(RangeTombstoneDropped, Model, ANY, "a key that was deleted with its range is back"),
        hunt(LargeValueLeaked, Model, ANY, "the pages that messages name are not the pages that are taken"),
        hunt(LargeValueMapStale, Crash, ANY, "a node of the map of large values and its parent disagree"),
        hunt(LargeValueMapLeaked, Corrupt, CLOSED, "pages are taken that verify has not looked at"),
        hunt(LargeValuesLostInSplit, Model, ANY, "the pages that messages name are not the pages that are taken"),
        hunt(LargeValuesNotMarked, Model, ANY, "pages of large values count as free after an opening"),
        hunt(FlushSkipsBranch, Model, DEEP, "keys are gone after a flush"),
        hunt(WeightlessTombstones, Model, DEEP, "a key that was deleted with its range is back below"),
        hunt(LiveAgainAfterSplit, Model, DEEP, "a message is visible in two nodes of a path"),
        hunt(OutputLostInSplit, Model, (33, 16), "keys are gone after a split"),
        hunt(ForgottenForChild, Model, DEEP, "keys are gone after a node was trimmed"),
        hunt(ClippedToFirst, Model, DEEP, "keys are gone for the other children that waited for a branch"),
        hunt(OutlookTooFar, Model, ANY, "a scan is out of order"),
        hunt(SliceShort, Model, ANY, "a leaf that a slice needs was given away"),
        hunt(FreedWhileSpanned, Model, ANY, "pages of a run are freed twice, or written over"),
        hunt(ReplayIgnoresThrough, Crash, ANY, "a counter has operands twice after a recovery"),
        hunt(DrainedTooSoon, Crash, ANY, "what only memtables held is gone after a reopening"),
        hunt(CreationNotSynced, Crash, ANY, "a power cut after an acknowledgement loses a created keyspace"),
        hunt(CreatedAgain, Crash, (14, 1), "a dropped keyspace is back after a crash"),
        hunt(DropNotDurable, Crash, (1, 1), "a dropped keyspace is back after a crash"),
        hunt(ClosedHandleAnswers, Model, ANY, "a handle that was kept over the close of its store has an answer"),
        hunt(PoisonIgnored, Faults, FORGOTTEN_IN_CHECKPOINT, "what is acknowledged after a failed sync is gone"),
        hunt(
            LargeValueNotRescued,
            Faults,
            FORGOTTEN,
            "a large value that a reopened store has shown is gone after a power cut",
        ),
        hunt(OpenedFromIsOverwritten, Crash, ANY, "a crash inside recovery tears the only superblock"),
        hunt(ReserveNotUsed, Disk, ANY, "a delete on a full disk is refused"),
        hunt(FullDiskPoisons, Faults, FULL, "a full disk is for ever"),
        hunt(WipedForSnapshots, Model, DEEP, "a snapshot misses what was deleted after it"),
        hunt(ReserveGivenAway, Disk, (0, 2), "a full disk cannot be emptied"),
        hunt(LevelTombstoneDropped, Model, ANY, "a deleted key is back"),
        hunt(LevelInputKept, Model, ANY, "a counter has operands twice"),
        hunt(LevelPartMissed, Model, ANY, "a get does not find a key of a layer with several parts"),
        hunt(LevelWipedForSnapshots, Model, ANY, "a snapshot misses what was deleted after it"),
        hunt(LevelMovesOverlap, Model, ANY, "a lookup finds one of two parts with common keys"),
        hunt(LevelNotWritten, Crash, ANY, "what the newest layer held is gone after a crash"),
        hunt(VerifyPinsInTurn, Verify, ANY, "pages of a sound store have two owners"),
        hunt(VerifySkipsFilters, Corrupt, CLOSED, "pages are taken that verify has not looked at"),
        hunt(VerifySkipsLargeValues, Corrupt, CLOSED, "pages are taken that verify has not looked at"),
    ]
};
