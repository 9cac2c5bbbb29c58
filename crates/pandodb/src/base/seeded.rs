//! Seeded bugs: deliberate mistakes in the engine, which test the test harnesses. At most one bug is switched on at a
//! time.
//!
//! 1. Each bug is in one place of the code, in the expression that it breaks. A bug changes a value and never the
//!    control flow, so that the code remains easy to read. There are two forms:
//!    * [`seeded!`](crate::seeded)`(X: wrong, right)` replaces an expression by a wrong one;
//!    * `SeededBug::X.is_on()` is an operand of a condition (`a && !SeededBug::X.is_on()`) or a number
//!      (`usize::from(SeededBug::X.is_on())`), but is never the first operand of a condition.
//! 2. `pandodb-proof` switches on one bug after the other and runs the harness that must detect it.
//! 3. An undetected bug shows a gap in that harness.
//!
//! The switch exists only with the cargo feature `seeded-bugs` **and** debug assertions. Otherwise `is_on` is the
//! constant `false`, and no code of a bug is compiled. The tests of `pandodb-proof` enable the feature. The explorer of
//! schedules (`crates/explore`) enables the feature for the bugs that need two threads.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A deliberate mistake, and its consequence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum SeededBug {
            $($(#[doc = $doc])+ $name,)+
        }

        impl SeededBug {
            /// Every bug.
            pub const ALL: &[SeededBug] = &[$(SeededBug::$name),+];
        }
    };
}

bugs! {
    // ---- the log ----
    /// A commit is acknowledged as synced before the log is synced, so a power cut loses the commit.
    AckBeforeSync,
    /// A buffered commit is acknowledged while its record is only in the process's memory, so a SIGKILL loses the
    /// commit.
    BufferedStaysInMemory,
    /// A failed sync of the log counts as successful, so data that the kernel dropped is acknowledged (the "fsyncgate"
    /// of 2018).
    FailedSyncForgiven,
    /// The log is synced without the large values to which its records refer.
    ValuesAfterTheLog,
    /// A record is written into a block that was already synced. If that write is torn, the synced records of the block
    /// are lost.
    SyncedBlockShared,
    /// Each part of a batch gets a record of its own, so a crash may leave only a part of the batch.
    BatchInParts,
    /// Damage in the middle of the log is mistaken for a torn tail, so acknowledged commits behind the damage are lost
    /// silently.
    TornTailEatsTheMiddle,
    /// Replay applies records that the recovery of a later epoch had discarded.
    VoidEpochReplayed,
    /// Replay accepts a tail that may be only in the page cache, and does not write the tail again.
    TailTrusted,
    /// The copy of the replayed tail is renamed into place before its bytes are synced.
    TailCopyNotSynced,
    /// A checkpoint removes log segments that the older superblock still needs.
    LogDiscardedEarly,
    /// Record checksums are not verified, so a torn record is replayed.
    RecordUnchecked,
    /// A sync makes only the calling thread's stream durable, but claims that all streams are durable.
    SyncForgetsStreams,
    /// A buffered commit writes only its own stream. Earlier lazy records in another stream stay in memory, and a
    /// SIGKILL loses these records and the commit.
    LazyLeftBehind,
    /// A stream whose records are all synced claims in its next record that the whole log is synced.
    OwnSyncClaimedForAll,
    /// Replay continues after a gap: the records of a lost stream are missing, but later records of other streams are
    /// applied.
    GapIgnored,
    /// The directory entry of a preallocated segment is not synced, so a power cut loses the segment with its synced
    /// records.
    SegmentAheadNotSynced,
    /// When a leaf is split, its right half starts with generation 0, so later insertions in that half seem to be
    /// earlier ones.
    GenerationNotInherited,

    // ---- the data file ----
    /// A freed page is reusable at once, while the roots of both superblocks still refer to it.
    FreedAtOnce,
    /// A freed page is reusable when the root of one superblock no longer refers to it, although the root of the other
    /// superblock still does.
    FreedOneSuperblockEarly,
    /// The superblock is written before the blocks that it refers to are synced.
    SuperblockBeforeData,
    /// Every superblock goes into the same slot, so a torn write leaves no valid superblock.
    SuperblockSlotTwice,
    /// A block's checksum does not cover its address, so a misdirected write passes verification.
    ChecksumWithoutPlace,
    /// A block's checksum does not cover its owner, so the block of an earlier owner at the same address passes
    /// verification.
    ChecksumWithoutOwner,
    /// The bytes of a large value are not compared with the checksum in its message.
    LargeValueUnchecked,
    /// A scan caches a leaf under the address of another leaf of the same chunk. Later readers of that address see a
    /// leaf that is not there.
    ScanCachesElsewhere,
    /// A reader that finds a frame of the pool does not check again which block the frame holds. The frame may hold
    /// another block when the reader uses it.
    FrameNotLookedAt,
    /// The pool does not record hits, so frequently read blocks are evicted like all others.
    HitNotNoted,
    /// The search for a victim of the pool overlooks the references of readers, so it evicts a block that is in use.
    PinnedBlockEvicted,
    /// A victim of the pool that was chosen before a read is evicted after the read, although it was requested
    /// meanwhile.
    VictimNotCheckedAgain,
    /// The 2Q policy without its lock overlooks that a block was hit, so it evicts the block as if it were requested
    /// once.
    SecondAccessNotSeen,
    /// A short read counts as complete, so the rest of the buffer keeps its old content.
    ShortReadTaken,
    /// A block that was read concurrently is passed to a lookup that waits for a different block.
    BlockForAnother,
    /// The leaf behind a compressed leaf records the length of the compressed leaf in memory instead of its length on
    /// disk. A descending scan then looks for the compressed leaf at the wrong address.
    LengthInMemoryNoted,
    /// A superblock that reaches compressed leaves lacks the feature flag, so an older build would open the store and
    /// report damage.
    FeatureNotNamed,
    /// A lookup that prefetched several filters probes the wrong one.
    FilterForAnother,
    /// This bug is in a cache of the lab crate that the pool was compared with: a claim overlooks a reader's count. So
    /// a page changes while a reader reads it.
    ReaderCountLost,

    // ---- memtables and reading ----
    /// A snapshot sees the first write after it.
    SnapshotOffByOne,
    /// A point read ignores the range tombstones of a memtable.
    MemtableTombstoneIgnored,
    /// A scan applies the range tombstone over one key to the keys behind the tombstone's end.
    CoverPastFragment,
    /// A scan leaves out the messages under a range tombstone in a memtable that has newer messages, too.
    CoveredSourceNotOlder,
    /// A scan leaves out the messages under a range tombstone in a run that has newer messages, too.
    CoveredRunNotOlder,
    /// A read asks a sealed memtable before the active one.
    OlderMemtableFirst,
    /// A reader of a memtable node does not check whether the node changed during the read.
    ChangedNodeTrusted,
    /// A memtable node is split without making concurrent readers retry.
    SplitWhileRead,
    /// The row cache keeps rows whose keys a packed memtable has overwritten or deleted.
    RowOutlivesOverwrite,
    /// A lookup uses a cached row that is newer than its root, so operands from a memtable are applied twice.
    RowOfNewerRoot,
    /// The row cache accepts a row that was read before a memtable was packed and offered to the cache after the
    /// packing.
    LateRowTaken,
    /// The row cache gets a value that includes operands of memtables, so later lookups apply these operands twice.
    RowHoldsMemtables,
    /// A read uses the fold of a counter that is newer than its read point, so a snapshot sees later operands.
    FoldPastReadPoint,
    /// A read uses the fold of a counter that is older than the view of the index, so operands are applied twice or not
    /// at all.
    FoldSurvivesPack,
    /// A scan takes a row from one memtable or run although another one has a message of the same key, so it returns an
    /// old value, or the same key twice.
    ScanOverlooksTie,
    /// A write does not cut its key out of a dead range, so scans skip a key that has a value.
    DeadRangeNotCut,
    /// A scan skips a range that died after its read point, so a snapshot lacks rows.
    DeadRangeTooNew,
    /// A scan learns a dead range although one of its keys was written in the meantime, so later scans skip that key.
    DeadRangeUnwatched,
    /// The list of the next keys to pop is used although a key before them was written.
    PopOverlooksPut,
    /// A filter lacks a few keys of its run: a point read misses keys that a scan finds.
    FilterMissesKeys,
    /// A run that arrives during the construction of a maplet counts as included in it.
    MapletMissesArrival,
    /// A lookup that cannot read a page of a maplet answers "none" instead of "all".
    UnreadMapletDenies,
    /// A descending scan applies operands in the order in which it meets them.
    OperandsBackwards,
    /// A scan that was open for a long time restarts from its first key.
    ScanStartsOver,
    /// A scan that changes direction does not stop where its two ends meet.
    ScanEndsPass,

    // ---- concurrent commits ----
    /// The watermark passes a commit that is not applied yet, so a reader sees a later commit without this commit, or
    /// half of a batch.
    WatermarkPassesGap,
    /// A seal does not wait for the commits below its cut, so their messages are lost in an already packed memtable, or
    /// are inserted into the wrong memtable.
    SealTooSoon,
    /// A log writer that finds another thread writing assumes that its own record is written.
    WriteNotAwaited,
    /// A thread draws its seqno without holding its stream's append lock, so records enter the stream out of order.
    AppendOutOfTurn,
    /// A sync claims the newest seqno of any stream, although a lower seqno may have entered a stream after the sync
    /// had examined that stream.
    SyncClaimsPastGap,
    /// The helper of a sorted load attaches the load although it has not taken all chunks yet, so the last rows are
    /// lost.
    ChunksLeftBehind,

    // ---- messages that a compaction keeps ----
    /// A compaction overlooks that another input has the same key, so it folds the messages of the key separately and
    /// drops a delete that hides an older put.
    SameKeyOverlooked,
    /// When an odd number of operands is combined, the last one is lost.
    OperandDropped,
    /// A compaction ignores snapshots, so it drops versions that a snapshot still sees.
    SnapshotsIgnored,
    /// A compaction of the middle runs of a leaf drops tombstones as if the leaf had no older runs, so deleted keys
    /// reappear.
    TombstoneDroppedAboveOlder,
    /// A range tombstone that every reader sees is dropped, although older runs hold entries that it covers.
    RangeTombstoneDropped,
    /// A large value that a range tombstone covers is not reported as dropped, so its pages are leaked.
    LargeValueLeaked,

    // ---- large values ----
    /// The values that were written while a memtable was packed are freed although the new run refers to them.
    PackedValuesFreed,
    /// A freed large value stays in the pool, where a later value of the same page is looked up.
    ValueOutlivesPages,
    /// A checkpoint writes leaves of the map of large values as they were before their last range was added.
    LargeValueMapStale,
    /// Nodes of the map of large values keep their pages when they are replaced.
    LargeValueMapLeaked,
    /// When a leaf of the map of large values is split, the right half of the leaf is lost.
    LargeValuesLostInSplit,
    /// When a leaf of the map of a tree's pages becomes a bitmap, its first range is lost.
    BitmapLosesRange,
    /// An opening marks only the pages of the first range of large values.
    LargeValuesNotMarked,

    // ---- the tree ----
    /// A flush passes all branches except the oldest to the child.
    FlushSkipsBranch,
    /// A branch that holds only range tombstones has weight 0 and is never flushed.
    WeightlessTombstones,
    /// A node split makes a branch live again for children that already have it, so merges are applied twice.
    LiveAgainAfterSplit,
    /// A leaf is split during its compaction, and only one half gets the output.
    OutputLostInSplit,
    /// A child's position moves past branches that were not flushed to the child, as if they held no messages for it.
    ForgottenForChild,
    /// A branch that several children still need is clipped to the range of the first of them.
    ClippedToFirst,
    /// A merge takes the last key of an unopened run for the run's lower bound, so scans return keys out of order.
    LowerBoundTooHigh,
    /// A clipped run releases the leaf that contains its upper bound.
    SliceShort,
    /// The pages of a shared run are freed together with the first of its slices.
    FreedWhileSpanned,

    // ---- the store ----
    /// Replay ignores which writes the runs of a keyspace already hold, so merges are applied twice at a checkpoint's
    /// cut.
    ReplayIgnoresThrough,
    /// A checkpoint records that the runs hold every message while a memtable still holds some.
    DrainedTooSoon,
    /// A keyspace's creation is acknowledged before its record is synced.
    CreationNotSynced,
    /// Replay repeats creations that the catalogue already includes. Keyspaces that were dropped after their creation
    /// reappear, empty or with old content.
    CreatedAgain,
    /// A keyspace's drop is acknowledged before a checkpoint without the keyspace is durable.
    DropNotDurable,
    /// A handle keeps reading after its store was closed, although a later opener may have overwritten the pages.
    ClosedHandleAnswers,
    /// A read that ends after the store was closed returns its result, although another opener may have overwritten the
    /// pages that it read.
    AnswerAfterClose,
    /// After a failure of the data file the store keeps accepting writes.
    PoisonIgnored,
    /// Replay does not rewrite a large value that a failed sync may have lost.
    LargeValueNotRescued,
    /// The first superblock after an opening overwrites the superblock from which the store was opened.
    OpenedFromIsOverwritten,
    /// A delete on a full disk does not get the space that is reserved for deletes.
    ReserveNotUsed,
    /// No space is reserved, so ordinary writes may fill the disk completely.
    ReserveGivenAway,
    /// Entries that a range delete covers are dropped from the trunk while a snapshot still reads them.
    WipedForSnapshots,
    /// A write that fails on a full disk poisons the store.
    FullDiskPoisons,
    /// A sorted load is attached and acknowledged before a checkpoint with it is durable.
    SortedLoadNotDurable,
    /// The rows of a sorted load are read with the seqno of the first write of the store, so older snapshots see them,
    /// and older values hide them.
    LoadOlderThanAll,

    // ---- transactions ----
    /// A commit of one operation leaves a footprint without its key, so a transaction overlooks a put that is in
    /// flight.
    FootprintLacksPut,
    /// The footprint of a range delete counts as a complete list of keys, so a transaction overlooks a range delete
    /// that is in flight.
    FootprintRangeExact,
    /// A reader of a footprint does not look again at the number of its ticket, so it may get words of two commits.
    FootprintTorn,
    /// A transaction takes all tickets that are drawn for applied, so it overlooks the ones that are in flight.
    AppliedIsNext,
    /// A transaction does not notice a sorted load that was attached after its search.
    DirectWriteUncounted,
    /// After a sorted load a transaction searches only above the seqno up to which it has searched before, although the
    /// load may have become visible during that search.
    LoadSearchedPast,
    /// A range delete in a memtable is not a change of a key that a transaction has read.
    ReadTombstoneMissed,
    /// A range delete in a run is not a change of a key that a transaction has read.
    PackedReadTombstoneMissed,
    /// A range delete in a memtable is not a change of a range that a transaction has read.
    RangeTombstoneMissed,
    /// Changes of a key are not looked for in the index.
    PackedChangeMissed,
    /// Changes of a range are not looked for in the index.
    PackedRangeMissed,
    /// Changes are not looked for in the active memtable.
    ActiveMemtableNotAsked,
    /// Changes are not looked for in sealed memtables.
    SealedMemtablesNotAsked,
    /// A delete is not a change.
    DeleteIsNoChange,
    /// A transaction looks for changes after its end instead of after its read point.
    ReadPointAtCommit,
    /// The gap between the last row of a range and the end of the range does not count as read.
    GapBehindLastRow,
    /// The rows that a transaction has read from the back end of a range do not count as read.
    BackEndUntracked,
    /// A key without a value does not count as read.
    AbsenceUntracked,
    /// A key does not count as read if the transaction has written to the keyspace before.
    ReadAfterWriteUntracked,
    /// Under snapshot isolation, a put does not conflict with a merge of the same key.
    PutOverlooksMerge,
    /// Under snapshot isolation, a range delete does not conflict with writes in its range.
    OwnRangeUnprotected,
    /// A compaction turns operands that are newer than a read point into a put, so a merge has a conflict with a merge.
    FoldGroundsNewerStripes,
    /// A range of a transaction does not show the transaction's own writes.
    OwnWritesHiddenInRange,
    /// A get of a transaction ignores the transaction's own range deletes.
    OwnRangeDeleteIgnored,
    /// The filter of a transaction's own writes lacks range deletes, so gets find keys that the transaction has
    /// deleted.
    OwnFilterLacksRanges,
    /// If a compaction folds the newest messages of a key first, it applies their operands to nothing if an older range
    /// tombstone covers the key.
    PartFoldedOnTombstone,
    /// After a rollback to a savepoint, reads of the transaction still see the discarded writes.
    SavepointKeepsOwnWrites,
    /// Under snapshot isolation, a key that was read for an update does not count as read.
    ForUpdateUntracked,
    /// Untracked reads count as read, so they cause conflicts.
    UntrackedReadsCount,
    /// A range that became dead after the read point is not searched, although the transaction has read rows in it.
    DeadPartTooNew,
    /// An update of a single key does not check whether the key was changed since it was read.
    UpdateUnvalidated,
    /// The filter in the footprint of a larger commit lacks its keys.
    FilterLacksKeys,

    // ---- the lookahead array ----
    /// A compaction drops tombstones although an older level still holds entries that the tombstones delete.
    LevelTombstoneDropped,
    /// A compaction does not remove the messages that it read from the newest of its inputs, so these messages exist
    /// twice.
    LevelInputKept,
    /// A lookup probes the wrong part of a level: the part before the one whose range includes the key.
    LevelPartMissed,
    /// Entries that a range tombstone covers are dropped when the tombstone arrives, although a snapshot still sees
    /// them.
    LevelWipedForSnapshots,
    /// Layers with common keys are concatenated into one layer instead of being merged, so a lookup finds the messages
    /// of only one of them.
    LevelMovesOverlap,
    /// A checkpoint writes the table without its newest layer.
    LevelNotWritten,

    // ---- nested B-trees ----
    /// A key that equals an s-key is searched in the child on the left, so it is not found.
    EqualKeyGoesLeft,
    /// A flush does not raise the low-water key of the source, so the flushed messages are in two nodes, and operands
    /// are applied twice.
    SourceKeepsFlushed,
    /// A flush raises the low-water key of an inner node to its end, so messages that were not flushed yet are lost.
    SourceDropped,
    /// A flush of the root also removes memtables that arrived after it had begun.
    ArrivalsTakenToo,
    /// A split of an inner node leaves the child at the raised s-key in the left half, too.
    SplitKeyInBothHalves,
    /// When two small nodes are joined, the data of the right one is lost.
    JoinForgetsRight,
    /// When the root takes the children of its only child, the child's data is lost.
    SinkingForgets,
    /// A flush into an inner node drops tombstones, so deleted keys in lower nodes reappear.
    TreeTombstoneDropped,
    /// Data that a range tombstone covers is dropped although a snapshot still needs it.
    TreeWipedForSnapshots,
    /// A checkpoint does not write the newest slice of the root.
    NewestSliceNotWritten,
    /// The pages that a job has replaced are freed at once, while readers of older roots still need them.
    TreePagesFreedAtOnce,
    /// A job drops the versions that only snapshots need.
    TreeSnapshotsIgnored,
    /// Range tombstones are dropped although their range was not swept.
    TreeTombstonesForgotten,
    /// A page of a tree is accepted although another job has written it.
    TreeMarkIgnored,
    /// The pages that a job has replaced stay in the tree's map of pages.
    TreeMapKeepsReplaced,
    /// A checkpoint repeats the description of the tree that an earlier checkpoint wrote.
    TreeDescriptionRepeated,
    /// A scan leaves out the first leaf of each inner page that it enters in the middle of the scan.
    TreeScanSkipsLeaf,
    /// A job that writes ranges in memory does not give their large values to the tree.
    HotValueNotOwned,
    /// Folds in memory drop a delete above the horizon, and an older put that is applied later appears.
    HotDeleteDropped,
    /// Folds in memory drop versions that a reader with an older view of the index still needs.
    HotHorizonIgnored,
    /// Folds in memory do not keep what a read at the cut of a checkpoint needs, so the checkpoint lacks messages.
    HotCutNotKept,
    /// A lookup loads the root before it searches the ranges in memory. If the range leaves memory in between, the root
    /// lacks its messages.
    HotStaleRoot,
    /// A message whose commit was slow gets into the newer memtable of a part, so a newer message of its key is older
    /// than it in the order of memtables.
    PartLateMessageActive,
    /// A memtable that a job has written stays in its part, so its operands count twice.
    PartWrittenKept,
    /// A job writes a memtable to whose bound not all commits are applied, so later insertions into it are lost.
    PartWrittenEarly,
    /// A lookup uses an older root than the one that belongs to its part, so messages are missing.
    PartStaleRoot,
    /// Only the first of several parts gets its piece of a range delete.
    PartRangeDeleteInOnePart,
    /// Readers without a snapshot do not learn that versions were dropped during their read.
    PartHorizonHidden,
    /// A job gives no large values to the tree, so the next opening frees their pages.
    PartValueNotOwned,
    /// When small leaves are joined, the messages of the second one are lost.
    TreeJoinLosesLeaf,
    /// The rows of a sorted load into a tree keep the seqno 0, so older snapshots see them, and older values hide them.
    LoadedLeafNotStamped,
    /// A scan leaves out the tree of a sorted load that was not merged yet.
    LoadedTreeNotScanned,
    /// After a piece of a merge, the rows of the load that were not merged yet are lost.
    RestOfLoadLost,
    /// Messages of a buffer are folded as if the range tombstones covered everything below the buffer.
    BufferFoldedOnTombstone,
    /// A lookup searches a child, but not the buffer of its parent.
    BufferNotSearched,
    /// A scan leaves out the buffers of the highest level.
    BufferNotScanned,
    /// The messages that are taken out of a buffer for a child are lost.
    CarriedMessagesLost,
    /// When a page becomes several pages, the first gets all the messages of the buffer.
    BufferNotDivided,
    /// A leaf of a buffer that is replaced is never freed.
    BufferLeafKept,

    // ---- verification ----
    /// `verify` pins each index only when it reaches that index. Pages that the index freed after the start of `verify`
    /// may already have another owner.
    VerifyPinsInTurn,
    /// `verify` does not check filters.
    VerifySkipsFilters,
    /// `verify` does not check large values.
    VerifySkipsLargeValues,
}

/// `seeded!(Bug: wrong, right)` is `right`, or `wrong` while the bug is active. Only the chosen expression is
/// evaluated. Neither expression may contain `return`, `break` or `continue`. A `?` has to follow the macro call.
///
/// The macro is exported for the models of `crates/explore/loom`, which include sources of the engine.
///
/// ```
/// use pandodb::base::seeded;
///
/// fn sync() -> Result<(), &'static str> {
///     Err("disk failure")
/// }
///
/// // While the bug `TailCopyNotSynced` is active, `sync` is not called.
/// let synced = seeded!(TailCopyNotSynced: Ok(()), sync());
/// assert_eq!(synced, Err("disk failure"));
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! seeded {
    ($bug:ident: $wrong:expr, $right:expr $(,)?) => {
        if $crate::base::SeededBug::$bug.is_on() { $wrong } else { $right }
    };
}

pub use seeded;

impl SeededBug {
    /// Whether this bug is switched on.
    #[cfg(all(feature = "seeded-bugs", debug_assertions))]
    #[inline]
    pub fn is_on(self) -> bool {
        switch::ACTIVE.load(std::sync::atomic::Ordering::Relaxed) == self as u8
    }

    /// Always `false` in a build without the switch.
    #[cfg(not(all(feature = "seeded-bugs", debug_assertions)))]
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }

    /// The bug whose variant has the name `name`.
    pub fn named(name: &str) -> Option<SeededBug> {
        SeededBug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
    }
}

/// This line compiles only if `is_on` is a constant, as it must be in a release build.
#[cfg(not(debug_assertions))]
const _: () = assert!(!SeededBug::AckBeforeSync.is_on());

/// Switches on the given bug for the whole process and switches off all other bugs; `None` switches off all bugs.
#[cfg(all(feature = "seeded-bugs", debug_assertions))]
pub fn activate(bug: Option<SeededBug>) {
    switch::ACTIVE.store(bug.map_or(switch::NONE, |bug| bug as u8), std::sync::atomic::Ordering::Relaxed);
}

#[cfg(all(feature = "seeded-bugs", debug_assertions))]
mod switch {
    use std::sync::atomic::AtomicU8;

    /// The value of `ACTIVE` while no bug is switched on. No bug has this number.
    pub const NONE: u8 = u8::MAX;
    /// The number of the bug that is switched on, or `NONE`.
    pub static ACTIVE: AtomicU8 = AtomicU8::new(NONE);

    const _: () = assert!(super::SeededBug::ALL.len() < NONE as usize);
}
