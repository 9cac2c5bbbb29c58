//! The list of seeded bugs, each with the harness that must catch it. This list is used to test the test harnesses.
//!
//! The engine defines the bugs, and its code contains them ([`pandodb::base::SeededBug`]). Each line of [`HUNTS`] gives
//! the harness that must catch a bug, the seeds to try, and the expected symptom. `tests/seeded.rs` activates the bugs
//! one at a time, and fails if there is a bug that no failure exposes.
//!
//! A bug that is not caught usually shows a gap in the harness. The list leaves out bugs that no harness *can* detect,
//! mostly because another check of the engine has the same effect as the missing one:
//!
//! | not seeded | why no harness would detect it |
//! | --- | --- |
//! | a cached block is identified by its page alone | a run removes its blocks from the pool when it frees their pages |
//! | a block's kind is not compared | the checksum covers the owner, which is never reused, and an owner has only one kind of block at a page |
//! | a log record's checksum lacks segment and epoch | seqnos are contiguous, so a record in the wrong position causes a gap or a repetition |
//! | a child that is partly outside a compaction's ranges inherits its output | no such child exists, because nodes under compaction are not merged |
//! | a child gets the output of a compaction twice, if it received the inputs while the compaction ran | requires a flush during the compaction of an inner node, which is rare without threads (1 of 7,006) |
//! | `verify` accepts a page that has two owners | requires a store that another bug has damaged |
//! | bugs that need two threads: visible before inserted, horizon not consulted, blobs freed early | the harnesses of this table use one thread |
//!
//! The bugs of [`BY_SCHEDULES`] also need two threads. The canaries of `crates/explore` catch these bugs.

use pandodb::base::SeededBug;

use crate::drive::calmly;
use crate::report::{Kind, Unit};

/// The maximum number of units that are tried before a bug counts as not caught.
const TRIES: u64 = 120;
/// A number of steps that is larger than any history. A unit that names all these steps explicitly runs its whole
/// history and does not minimise its failures.
const ALL_STEPS: usize = 4_096;

/// The harness and the seeds that must catch a bug.
#[derive(Clone, Copy, Debug)]
pub struct Hunt {
    /// The bug.
    pub bug: SeededBug,
    /// The harness that must catch it.
    pub kind: Kind,
    /// The first seed.
    pub from: u64,
    /// The distance between two seeds, for harnesses in which the seed chooses the kind of unit.
    pub every: u64,
    /// The expected symptom.
    pub sign: &'static str,
}

/// The failure that exposed a bug.
#[derive(Clone, Debug)]
pub struct Caught {
    /// The seed of the unit that failed.
    pub seed: u64,
    /// The number of runs until the failure, in the unit of the harness.
    pub runs: u64,
    /// The description of the failure.
    pub what: String,
}

impl Hunt {
    /// Runs the harness until it fails. The caller must have activated the bug.
    pub fn go(&self) -> Option<Caught> {
        let mut runs = 0;
        for seed in (0..TRIES).map(|nth| self.from + nth * self.every) {
            let unit = Unit { seed, steps: Some((0..ALL_STEPS).collect()) };
            // A panic that the harness does not catch itself counts as a failure too.
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

/// All seeds: the first seed is 0, and the distance is 1.
const ANY: (u64, u64) = (0, 1);
/// Seeds of [`Kind::Corrupt`] that damage closed stores generated from the seed.
const CLOSED: (u64, u64) = (6, 8);
/// Seeds of [`Kind::Corrupt`] that damage killed stores generated from the seed.
const KILLED: (u64, u64) = (55, 8);
/// Seeds of [`Kind::Faults`] in which one sync fails.
const FORGOTTEN: (u64, u64) = (8, 27);
/// Seeds of [`Kind::Faults`] in which one sync fails in a checkpoint that removes a dropped keyspace.
const FORGOTTEN_IN_CHECKPOINT: (u64, u64) = (116, 27);
/// Seeds of [`Kind::Faults`] in which the disk is full.
const FULL: (u64, u64) = (26, 27);
/// Seeds of [`Kind::Crash`] with long logs and without sorted loads. A load into a tree of pages delays its memtables,
/// so fewer memtables are applied in scripts with loads.
const LOGGY: (u64, u64) = (2, 8);
/// Seeds of [`Kind::Model`] that build deep trees.
const DEEP: (u64, u64) = (1, 16);
/// Seeds of [`Kind::Model`] that build small trees, in which runs arrive while maplets are built.
const BUSY: (u64, u64) = (3, 16);

/// Bugs that only concurrent threads expose. The following scenarios of the explorer catch these bugs: `memtable` and
/// `memtable-deep`, `beside`, `beside-seal`, `kill`, `streams`, `streams-cut`, `pool-reuse`, `pool-hot`,
/// `pool-2q-pinned`, `pool-2q-victim`, `pool-2q-hot`, `pool-claims`, `rows` and `rows-merge`, `close-read`, `dead`,
/// `load`, `tx-insert`, `tx-delete`, `tx-update`, `tx-load`, `tx-merges`, `tx-fetch`, `tx-batch`,
/// `direct-cut`, `direct-fold`, `direct-cool`, `direct-delete`, `parts-cool`, `parts-early`, `parts-fold`, `parts-late`.
/// The model `footprints` of `crates/explore/loom` catches [`SeededBug::FootprintTorn`].
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
    SeededBug::PinnedBlockEvicted,
    SeededBug::VictimNotCheckedAgain,
    SeededBug::SecondAccessNotSeen,
    SeededBug::ReaderCountLost,
    SeededBug::LateRowTaken,
    SeededBug::RowOfNewerRoot,
    SeededBug::AnswerAfterClose,
    SeededBug::DeadRangeUnwatched,
    SeededBug::ChunksLeftBehind,
    SeededBug::FootprintLacksPut,
    SeededBug::FootprintRangeExact,
    SeededBug::FootprintTorn,
    SeededBug::AppliedIsNext,
    SeededBug::DirectWriteUncounted,
    SeededBug::LoadSearchedPast,
    SeededBug::FoldGroundsNewerStripes,
    SeededBug::UpdateUnvalidated,
    SeededBug::FilterLacksKeys,
    SeededBug::HotCutNotKept,
    SeededBug::HotDeleteDropped,
    SeededBug::HotHorizonIgnored,
    SeededBug::HotStaleRoot,
    SeededBug::PartHorizonHidden,
    SeededBug::PartLateMessageActive,
    SeededBug::PartStaleRoot,
    SeededBug::PartWrittenEarly,
];

/// Every other seeded bug.
pub const HUNTS: &[Hunt] = {
    use Kind::{Corrupt, Crash, Disk, Faults, Model, Verify};
    use SeededBug::*;
    &[
        hunt(AckBeforeSync, Crash, ANY, "a power cut after an acknowledgement loses the commit"),
        hunt(BufferedStaysInMemory, Crash, ANY, "a kill loses a commit that was acknowledged as buffered"),
        hunt(FailedSyncForgiven, Faults, FORGOTTEN, "a power cut after a failed sync loses an acknowledged commit"),
        hunt(ValuesAfterTheLog, Crash, ANY, "a power cut loses a commit whose large value was not synced"),
        hunt(SyncedBlockShared, Crash, (2, 1), "a torn block loses acknowledged records that were in it"),
        hunt(BatchInParts, Crash, ANY, "a state that never existed: half a batch"),
        hunt(TornTailEatsTheMiddle, Corrupt, KILLED, "a flipped bit in the log shortens history without an error"),
        hunt(VoidEpochReplayed, Crash, ANY, "after a crash inside recovery a seqno occurs twice"),
        hunt(TailTrusted, Faults, FORGOTTEN, "a power cut loses data that a reopened store has returned"),
        hunt(TailCopyNotSynced, Crash, ANY, "a crash inside recovery loses the tail"),
        hunt(
            LogDiscardedEarly,
            Corrupt,
            (631, 8),
            "the store does not open from the older superblock: its log is deleted",
        ),
        hunt(RecordUnchecked, Crash, (1, 1), "a torn record is replayed"),
        hunt(SyncForgetsStreams, Crash, ANY, "a power cut after an acknowledgement loses records of another stream"),
        hunt(LazyLeftBehind, Crash, ANY, "a kill loses a buffered commit that follows one with Durability::None"),
        hunt(OwnSyncClaimedForAll, Crash, ANY, "a torn tail is mistaken for damage: the store does not open"),
        hunt(GapIgnored, Crash, ANY, "a state that never existed: a later commit without an earlier one"),
        hunt(SegmentAheadNotSynced, Crash, ANY, "a power cut after an acknowledgement loses a whole segment"),
        hunt(
            GenerationNotInherited,
            Crash,
            (26, 1),
            "a message appears older than the one it replaced: the store does not open",
        ),
        hunt(FreedAtOnce, Crash, ANY, "after a crash, pages of the root are overwritten"),
        hunt(
            FreedOneSuperblockEarly,
            Corrupt,
            (639, 8),
            "the store does not open from the older superblock: its pages are overwritten",
        ),
        hunt(SuperblockBeforeData, Crash, ANY, "a crash leaves a root whose nodes were not written"),
        hunt(SuperblockSlotTwice, Crash, ANY, "a torn superblock leaves no valid one"),
        hunt(ChecksumWithoutPlace, Corrupt, CLOSED, "two exchanged leaves of a run are accepted"),
        hunt(ChecksumWithoutOwner, Corrupt, CLOSED, "an earlier version of a page is accepted"),
        hunt(LargeValueUnchecked, Corrupt, CLOSED, "a flipped bit in a large value is returned"),
        hunt(ScanCachesElsewhere, Model, ANY, "a reader finds another leaf at the address of the one it wants"),
        hunt(ShortReadTaken, Model, ANY, "a partly read block is reported as damage"),
        hunt(BlockForAnother, Model, ANY, "in a multi_get, a lookup gets the leaf of another one"),
        hunt(
            LengthInMemoryNoted,
            Model,
            ANY,
            "a leaf after a compressed one gives a wrong position of its predecessor",
        ),
        hunt(FeatureNotNamed, Model, ANY, "verify finds compressed leaves that no superblock names"),
        hunt(FilterForAnother, Model, ANY, "the filter of another run denies the key"),
        hunt(SnapshotOffByOne, Model, ANY, "a snapshot shows a later write"),
        hunt(MemtableTombstoneIgnored, Model, ANY, "a get finds a key deleted by a range delete"),
        hunt(CoverPastFragment, Model, ANY, "a scan misses a key behind a range delete"),
        hunt(CoveredSourceNotOlder, Model, ANY, "a scan misses a key that was written after a range delete"),
        hunt(CoveredRunNotOlder, Model, ANY, "a scan misses a key that was written after a range delete"),
        hunt(SameKeyOverlooked, Model, ANY, "a deleted key is found again after a compaction"),
        hunt(OlderMemtableFirst, Model, ANY, "a get finds the older value"),
        hunt(FilterMissesKeys, Model, ANY, "a get does not find a key"),
        hunt(RowOutlivesOverwrite, Model, ANY, "a get returns an overwritten value"),
        hunt(RowHoldsMemtables, Model, ANY, "a get applies operands of a memtable twice"),
        hunt(FoldPastReadPoint, Model, ANY, "a snapshot shows operands that are newer than it"),
        hunt(FoldSurvivesPack, Model, ANY, "a counter lacks operands that were packed"),
        hunt(DeadRangeNotCut, Model, ANY, "scans lack a key that was written among deleted keys"),
        hunt(DeadRangeTooNew, Model, ANY, "a snapshot lacks rows that were deleted later"),
        hunt(PopOverlooksPut, Model, ANY, "a pop takes a row although a smaller key was written"),
        hunt(
            MapletMissesArrival,
            Model,
            BUSY,
            "a get does not find a key of a run that arrived while a maplet was built",
        ),
        hunt(UnreadMapletDenies, Corrupt, (630, 8), "a flipped bit in a maplet hides a key"),
        hunt(OperandsBackwards, Model, ANY, "a list has another order when scanned backward"),
        hunt(ScanStartsOver, Model, ANY, "a scan that was kept open returns keys again"),
        hunt(ScanOverlooksTie, Model, ANY, "a scan returns an old value"),
        hunt(ScanEndsPass, Model, ANY, "a scan from both ends returns a key twice"),
        hunt(OperandDropped, Model, ANY, "a counter lacks an operand"),
        hunt(SnapshotsIgnored, Model, ANY, "a snapshot lacks a key"),
        hunt(TombstoneDroppedAboveOlder, Model, ANY, "a deleted key reappears"),
        hunt(RangeTombstoneDropped, Model, ANY, "a key deleted by a range delete reappears"),
        hunt(PackedValuesFreed, Model, ANY, "the pages of a value belong to something else"),
        hunt(ValueOutlivesPages, Model, ANY, "a get returns an older value that was in the same pages"),
        hunt(LargeValueLeaked, Model, ANY, "more blob pages are allocated than messages refer to"),
        hunt(LargeValueMapStale, Crash, ANY, "a node of the map of large values disagrees with its parent"),
        hunt(LargeValueMapLeaked, Corrupt, CLOSED, "pages are allocated that verify has not read"),
        hunt(LargeValuesLostInSplit, Model, ANY, "more blob pages are allocated than messages refer to"),
        hunt(BitmapLosesRange, Model, ANY, "the map of a tree's pages lacks pages of the tree"),
        hunt(LargeValuesNotMarked, Model, ANY, "pages of large values count as free after an opening"),
        hunt(FlushSkipsBranch, Model, DEEP, "keys are lost in a flush"),
        hunt(WeightlessTombstones, Model, DEEP, "a key deleted by a range delete reappears in a child"),
        hunt(LiveAgainAfterSplit, Model, DEEP, "a message is visible in two nodes on one path"),
        hunt(OutputLostInSplit, Model, (33, 16), "keys are lost in a split"),
        hunt(ForgottenForChild, Model, DEEP, "keys are lost when a node is trimmed"),
        hunt(ClippedToFirst, Model, DEEP, "keys are lost for the other children that a branch was not flushed to"),
        hunt(LowerBoundTooHigh, Model, ANY, "a scan is out of order"),
        hunt(SliceShort, Model, ANY, "a leaf that a slice needs is freed"),
        hunt(FreedWhileSpanned, Model, ANY, "pages of a run are freed twice or overwritten"),
        hunt(ReplayIgnoresThrough, Crash, ANY, "recovery applies operands of a counter twice"),
        hunt(DrainedTooSoon, Crash, ANY, "a reopening loses data that was only in memtables"),
        hunt(CreationNotSynced, Crash, ANY, "a power cut after an acknowledgement loses a created keyspace"),
        hunt(CreatedAgain, Crash, (14, 1), "a dropped keyspace reappears after a crash"),
        hunt(SortedLoadNotDurable, Crash, ANY, "a power cut after an acknowledgement loses a sorted load"),
        hunt(LoadOlderThanAll, Model, ANY, "a get finds a value that a sorted load has replaced"),
        hunt(DropNotDurable, Crash, (1, 1), "a dropped keyspace reappears after a crash"),
        hunt(ClosedHandleAnswers, Model, ANY, "a handle of a closed store returns data"),
        hunt(PoisonIgnored, Faults, FORGOTTEN_IN_CHECKPOINT, "a commit acknowledged after a failed sync is lost"),
        hunt(
            LargeValueNotRescued,
            Faults,
            FORGOTTEN,
            "a power cut loses a large value that a reopened store has returned",
        ),
        hunt(OpenedFromIsOverwritten, Crash, ANY, "a crash inside recovery tears the only superblock"),
        hunt(ReserveNotUsed, Disk, ANY, "a delete on a full disk is refused"),
        hunt(FullDiskPoisons, Faults, FULL, "the store refuses all writes for ever after the disk was full"),
        hunt(WipedForSnapshots, Model, DEEP, "a snapshot misses a key that was deleted later"),
        hunt(ReserveGivenAway, Disk, (0, 2), "a full disk cannot be emptied"),
        hunt(LevelTombstoneDropped, Model, ANY, "a deleted key reappears"),
        hunt(LevelInputKept, Model, ANY, "operands of a counter are applied twice"),
        hunt(LevelPartMissed, Model, ANY, "a get does not find a key of a layer with several parts"),
        hunt(LevelWipedForSnapshots, Model, ANY, "a snapshot misses a key that was deleted later"),
        hunt(LevelMovesOverlap, Model, ANY, "a lookup reads only one of two parts with common keys"),
        hunt(LevelNotWritten, Crash, ANY, "a crash loses the newest layer"),
        hunt(EqualKeyGoesLeft, Model, ANY, "a get does not find the key at which two nodes meet"),
        hunt(SourceKeepsFlushed, Model, ANY, "operands of a counter are applied twice"),
        hunt(SourceDropped, Model, ANY, "keys of an inner node are lost"),
        hunt(ArrivalsTakenToo, Model, ANY, "keys of a memtable that arrived during a flush are lost"),
        hunt(SplitKeyInBothHalves, Model, ANY, "the children do not partition the range of their node"),
        hunt(JoinForgetsRight, Model, ANY, "keys are lost when small nodes are joined"),
        hunt(SinkingForgets, Model, ANY, "keys are lost when the tree gets lower"),
        hunt(TreeTombstoneDropped, Model, ANY, "a deleted key reappears"),
        hunt(TreeWipedForSnapshots, Model, ANY, "a snapshot misses a key that was deleted later"),
        hunt(NewestSliceNotWritten, Crash, (11, 1), "a crash loses the newest memtable"),
        hunt(TreePagesFreedAtOnce, Model, ANY, "an old reader finds other pages"),
        hunt(TreeSnapshotsIgnored, Model, ANY, "a snapshot reads a newer value"),
        hunt(TreeTombstonesForgotten, Model, ANY, "a deleted key reappears"),
        hunt(TreeMarkIgnored, Corrupt, (46, 1), "an older page is read as the current one"),
        hunt(TreeMapKeepsReplaced, Crash, LOGGY, "freed pages stay in the map"),
        hunt(TreeDescriptionRepeated, Crash, LOGGY, "a crash brings back an older tree"),
        hunt(TreeScanSkipsLeaf, Model, ANY, "a scan misses keys"),
        hunt(TreeJoinLosesLeaf, Model, ANY, "keys are lost when small leaves are joined"),
        hunt(LoadedLeafNotStamped, Model, ANY, "a get finds a value that a sorted load has replaced"),
        hunt(LoadedTreeNotScanned, Model, ANY, "a scan finds a value that a sorted load has replaced"),
        hunt(HotValueNotOwned, Model, ANY, "a large value of a leaf in memory is lost"),
        hunt(PartWrittenKept, Model, ANY, "a counter counts operands twice"),
        hunt(PartRangeDeleteInOnePart, Model, ANY, "a key deleted by a range delete stays"),
        hunt(PartValueNotOwned, Model, ANY, "a large value of a buffer in memory is lost"),
        hunt(RestOfLoadLost, Model, ANY, "rows of a sorted load are lost"),
        hunt(BufferFoldedOnTombstone, Model, ANY, "an operand loses the value below it"),
        hunt(BufferNotSearched, Model, ANY, "a get finds a value that was replaced"),
        hunt(BufferNotScanned, Model, (90, 1), "a scan finds a value that was replaced"),
        hunt(CarriedMessagesLost, Model, ANY, "keys are lost on the way down"),
        hunt(BufferNotDivided, Model, ANY, "messages are in the buffer of the wrong page"),
        hunt(BufferLeafKept, Crash, (418, 8), "freed pages stay in the map"),
        hunt(ReadTombstoneMissed, Model, ANY, "a transaction is committed although a key it has read was deleted"),
        hunt(PackedReadTombstoneMissed, Model, ANY, "the same after the range delete was packed"),
        hunt(RangeTombstoneMissed, Model, ANY, "a transaction is committed although a range it has read was deleted"),
        hunt(PackedChangeMissed, Model, ANY, "a transaction is committed although a key it has read was changed"),
        hunt(PackedRangeMissed, Model, ANY, "a transaction is committed although a range it has read was changed"),
        hunt(ActiveMemtableNotAsked, Model, ANY, "a transaction is committed although a key it has read was changed"),
        hunt(SealedMemtablesNotAsked, Model, ANY, "a transaction is committed although a key it has read was changed"),
        hunt(DeleteIsNoChange, Model, ANY, "a transaction is committed although a key it has read was deleted"),
        hunt(ReadPointAtCommit, Model, ANY, "a transaction is committed although a key it has read was changed"),
        hunt(
            GapBehindLastRow,
            Model,
            ANY,
            "a transaction is committed although its scan would return another last row",
        ),
        hunt(BackEndUntracked, Model, ANY, "a transaction is committed although its backward scan would differ"),
        hunt(AbsenceUntracked, Model, ANY, "a transaction is committed although a key it did not find was written"),
        hunt(ReadAfterWriteUntracked, Model, ANY, "a transaction is committed although a key it has read was changed"),
        hunt(PutOverlooksMerge, Model, ANY, "under snapshot isolation a put replaces a merge that it has not seen"),
        hunt(OwnRangeUnprotected, Model, ANY, "under snapshot isolation a range delete removes a key it has not seen"),
        hunt(OwnWritesHiddenInRange, Model, ANY, "a scan in a transaction lacks the transaction's own writes"),
        hunt(OwnRangeDeleteIgnored, Model, ANY, "a get in a transaction finds a key that the transaction has deleted"),
        hunt(SavepointKeepsOwnWrites, Model, ANY, "a transaction reads what it has rolled back"),
        hunt(
            OwnFilterLacksRanges,
            Model,
            ANY,
            "a get in a transaction finds a key in a range that the transaction has deleted",
        ),
        hunt(PartFoldedOnTombstone, Model, ANY, "a pack applies merges to nothing although the key has a value"),
        hunt(ForUpdateUntracked, Model, ANY, "a commit in spite of a change of a key that was read for an update"),
        hunt(UntrackedReadsCount, Model, ANY, "a conflict without a cause"),
        hunt(DeadPartTooNew, Model, ANY, "a commit in spite of deletes in a range that was read"),
        hunt(VerifyPinsInTurn, Verify, ANY, "verify reports pages of a sound store with two owners"),
        hunt(VerifySkipsFilters, Corrupt, CLOSED, "verify has not read all allocated pages"),
        hunt(VerifySkipsLargeValues, Corrupt, CLOSED, "verify has not read all allocated pages"),
    ]
};
