//! Seeded bugs: mistakes that the engine makes on purpose, one at a time, so that the checkers are checked.
//!
//! A site in the engine is one line beside the mechanism that it breaks, `if SeededBug::X.is_on()`. `pandodb-proof` switches
//! one bug on after the other and runs the harness that must catch it; a bug that survives shows what the harness does not
//! look at.
//!
//! The switch exists only with the cargo feature `seeded-bugs` **and** debug assertions: otherwise `is_on` is the constant
//! `false`, and nothing of a bug is compiled. The feature is asked for by the tests of `pandodb-proof`, and by the explorer of
//! schedules (`crates/explore`) for the bugs that take two threads.

macro_rules! bugs {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A mistake, and who would fear it.
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
    /// A commit is acknowledged as synced before the log is synced. The first fear of anyone who loses power.
    AckBeforeSync,
    /// A buffered commit is acknowledged while its record is in the process's memory: a SIGKILL loses it.
    BufferedStaysInMemory,
    /// A sync of the log that fails counts as done: what the kernel dropped is acknowledged (the "fsyncgate" of 2018).
    FailedSyncForgiven,
    /// The log is synced without the large values that its records name.
    ValuesAfterTheLog,
    /// A record is written into a block that was synced already: if the block is torn to rubbish, synced records go with it.
    SyncedBlockShared,
    /// The parts of a batch get a record each, and a crash leaves half a batch.
    BatchInParts,
    /// Where the log is damaged in its middle, it ends, as if the tail had been torn: acknowledged commits go without a word.
    TornTailEatsTheMiddle,
    /// Replay takes records that a later epoch had cut off.
    VoidEpochReplayed,
    /// Replay believes a tail that only the page cache may hold, and does not write it again.
    TailTrusted,
    /// The copy of the replayed tail takes its name before its bytes are synced.
    TailCopyNotSynced,
    /// A checkpoint removes the log that the older superblock needs.
    LogDiscardedEarly,
    /// A record's checksum is not looked at: a torn record is replayed as it lies.
    RecordUnchecked,
    /// A sync makes the stream of its own thread durable, and claims all of them.
    SyncForgetsStreams,
    /// A buffered commit writes its own stream, and leaves what is lazy before it in another one's memory: a SIGKILL loses both.
    LazyLeftBehind,
    /// A stream whose records are all synced claims in the next one that the whole log is.
    OwnSyncClaimedForAll,
    /// Replay goes on after a gap: what a lost stream held is left out, what others wrote after it is there.
    GapIgnored,
    /// The name of a segment that was made ahead is not synced: a power cut takes it, with the synced records in it.
    SegmentAheadNotSynced,
    /// The right half of a leaf that is split begins with generation nought: what is inserted there later seems to be earlier.
    GenerationNotInherited,

    // ---- the data file ----
    /// A freed page is free at once, while both superblocks reach it.
    FreedAtOnce,
    /// A freed page is free when one superblock has left it, not both.
    FreedOneSuperblockEarly,
    /// The superblock is written before what it names is synced.
    SuperblockBeforeData,
    /// Every superblock goes into the same slot: a torn one leaves none.
    SuperblockSlotTwice,
    /// A block's checksum does not say where it stands: a misdirected write is believed.
    ChecksumWithoutPlace,
    /// A block's checksum does not say whose it is: what stood there before is believed.
    ChecksumWithoutOwner,
    /// The bytes of a large value are not compared with the checksum in its message.
    LargeValueUnchecked,
    /// A cached block is known by its page alone: a page that was freed and written again shows its former content.
    PoolForgetsOwner,
    /// Whoever finds a frame of the pool does not look whose block it holds by now: it may have been given to another.
    FrameNotLookedAt,
    /// The pool does not note that a block was asked for: what is read all the time is thrown out like anything else.
    HitNotNoted,
    /// A read that the device has done in part counts as whole: the rest of the buffer is what it was before.
    ShortReadTaken,
    /// A block that was read beside others is handed to a lookup that waits for another one.
    BlockForAnother,
    /// The leaf behind a compressed one notes how long that is in memory, not how long on disk: there is no leaf where a scan
    /// downwards looks for it.
    LengthInMemoryNoted,
    /// A superblock that reaches compressed leaves does not say so: an older build would open the store and call them damage.
    FeatureNotNamed,
    /// Of the filters that were looked for together a lookup asks another than it should.
    FilterForAnother,
    /// Of the lab's cache, which the pool was measured against: a reader's count is lost in a claim, and a page is changed under him.
    ReaderCountLost,

    // ---- memtables and reading ----
    /// A snapshot sees the write after it.
    SnapshotOffByOne,
    /// A point read does not ask a memtable for range tombstones.
    MemtableTombstoneIgnored,
    /// A sealed memtable is asked before the active one.
    OlderMemtableFirst,
    /// Whoever reads a node of a memtable does not look whether it was changed meanwhile.
    ChangedNodeTrusted,
    /// A node of a memtable is split under the eyes of its readers.
    SplitWhileRead,
    /// The row cache keeps what a packed memtable has overwritten or deleted.
    RowOutlivesOverwrite,
    /// A lookup takes a cached row that its root does not hold yet: with operands that it has met in a memtable, too.
    RowOfNewerRoot,
    /// The row cache takes a row that was read before a memtable was packed and is offered after it.
    LateRowTaken,
    /// A filter lacks a few of its run's keys: a read does not find what a scan shows.
    FilterMissesKeys,
    /// A run that arrives while a maplet is made is taken to be in it.
    MapletMissesArrival,
    /// A page of a maplet that cannot be read answers "none" instead of "all".
    UnreadMapletDenies,
    /// A scan backwards applies operands in the order in which it meets them.
    OperandsBackwards,
    /// A scan that was kept open for long begins again.
    ScanStartsOver,
    /// A scan that turns round does not stop where its ends have met.
    ScanEndsPass,

    // ---- commits beside each other ----
    /// The watermark goes past a commit that is not applied yet: a reader sees the one after it alone, or half of a batch.
    WatermarkPassesGap,
    /// A seal does not wait for the commits below its cut: they are lost in a memtable that is packed already, or land in the next.
    SealTooSoon,
    /// A writer of the log who finds another one writing takes its record for written.
    WriteNotAwaited,
    /// A thread draws its seqno without having its stream's turn: records come into the stream out of order.
    AppendOutOfTurn,
    /// A sync claims the newest seqno of any stream, though an earlier one may have come later into a stream that it had looked
    /// at already.
    SyncClaimsPastGap,

    // ---- what a compaction keeps ----
    /// Of an odd number of operands the last is lost when they are combined.
    OperandDropped,
    /// A compaction regards no snapshot: versions that one still sees are collected early.
    SnapshotsIgnored,
    /// A compaction in the middle of a leaf's runs takes itself for the bottom: deleted keys rise again.
    TombstoneDroppedAboveOlder,
    /// A range tombstone that every reader sees goes, though what it covers is below.
    RangeTombstoneDropped,
    /// A large value that a range tombstone covers is not reported as dropped: its pages are lost for ever.
    LargeValueLeaked,

    // ---- large values ----
    /// A checkpoint writes leaves of the map of large values as they were before their last range came.
    LargeValueMapStale,
    /// Nodes of the map of large values keep their pages when they are replaced.
    LargeValueMapLeaked,
    /// A leaf of the map of large values is split, and the right half is lost.
    LargeValuesLostInSplit,
    /// An opening marks the pages of the first range of large values only.
    LargeValuesNotMarked,

    // ---- the tree ----
    /// A flush hands over all branches but the oldest.
    FlushSkipsBranch,
    /// A branch that holds range tombstones only weighs nothing, and is not handed down.
    WeightlessTombstones,
    /// A split of a node makes a branch live again for children that have it already: merges count twice.
    LiveAgainAfterSplit,
    /// A leaf was split while it was compacted, and only one half gets the output.
    OutputLostInSplit,
    /// A child is moved past branches that it was not given yet, as if they held nothing for it.
    ForgottenForChild,
    /// A branch that several children wait for is clipped to the first of them.
    ClippedToFirst,
    /// A run that a merge has not opened yet is taken to begin with its last key: scans go back and forth.
    OutlookTooFar,
    /// A clipped run lets go of the leaf that its upper bound cuts.
    SliceShort,
    /// The pages of a shared run are freed with the first of its slices.
    FreedWhileSpanned,

    // ---- the store ----
    /// Replay does not regard what a keyspace's runs hold already: merges are applied twice at a checkpoint's cut.
    ReplayIgnoresThrough,
    /// A checkpoint records that the runs hold everything while a memtable holds some.
    DrainedTooSoon,
    /// A keyspace's creation is acknowledged before its record is synced.
    CreationNotSynced,
    /// Replay takes creations that the catalogue regards already: what was dropped since is back, empty or with old content.
    CreatedAgain,
    /// A keyspace's drop is acknowledged before a checkpoint forgets it.
    DropNotDurable,
    /// A handle that was kept over the close of its store goes on reading: pages that a later opener has written.
    ClosedHandleAnswers,
    /// A read that ends after the store was closed is answered with what it has read: pages that another opener has written.
    AnswerAfterClose,
    /// After a failure of the data file the store goes on writing.
    PoisonIgnored,
    /// Replay leaves a large value where a failed sync may have left nothing of it.
    LargeValueNotRescued,
    /// The next superblock after an opening goes over the one that it was opened from.
    OpenedFromIsOverwritten,
    /// A delete on a full disk does not get the space that is kept back for it.
    ReserveNotUsed,
    /// Nothing is kept back: ordinary writes get all of the disk.
    ReserveGivenAway,
    /// What a range delete covers is dropped from the trunk while a snapshot still reads it.
    WipedForSnapshots,
    /// A full disk that refuses a write makes the store refuse everything.
    FullDiskPoisons,

    // ---- the lookahead array ----
    /// A compaction drops tombstones although an older level still holds what they hide.
    LevelTombstoneDropped,
    /// A compaction leaves what it read in the newest of its inputs, so that its messages are there twice.
    LevelInputKept,
    /// A lookup takes the part before the one that holds its key.
    LevelPartMissed,
    /// What a range tombstone covers is dropped when it arrives, although a snapshot still sees it.
    LevelWipedForSnapshots,
    /// Layers with common keys become one layer as they are: a lookup finds one of the parts only.
    LevelMovesOverlap,
    /// A checkpoint writes the table without its newest layer.
    LevelNotWritten,

    // ---- verification ----
    /// `verify` pins each index when it comes to it: what one has let go of meanwhile is another's.
    VerifyPinsInTurn,
    /// `verify` does not look at filters.
    VerifySkipsFilters,
    /// `verify` does not look at large values.
    VerifySkipsLargeValues,
}

impl SeededBug {
    /// Whether the engine is to make this mistake.
    #[cfg(all(feature = "seeded-bugs", debug_assertions))]
    #[inline]
    pub fn is_on(self) -> bool {
        switch::ACTIVE.load(std::sync::atomic::Ordering::Relaxed) == self as u8
    }

    /// Whether the engine is to make this mistake: never, in a build without the switch.
    #[cfg(not(all(feature = "seeded-bugs", debug_assertions)))]
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }

    /// The bug of a name, as it is typed.
    pub fn named(name: &str) -> Option<SeededBug> {
        SeededBug::ALL.iter().copied().find(|bug| format!("{bug:?}") == name)
    }
}

/// A release build has no switch: there the answer is a constant, or this does not compile.
#[cfg(not(debug_assertions))]
const _: () = assert!(!SeededBug::AckBeforeSync.is_on());

/// Makes the engine, in the whole process, make this mistake and no other; `None`: none at all.
#[cfg(all(feature = "seeded-bugs", debug_assertions))]
pub fn activate(bug: Option<SeededBug>) {
    switch::ACTIVE.store(bug.map_or(switch::NONE, |bug| bug as u8), std::sync::atomic::Ordering::Relaxed);
}

#[cfg(all(feature = "seeded-bugs", debug_assertions))]
mod switch {
    use std::sync::atomic::AtomicU8;

    /// No bug has this number.
    pub const NONE: u8 = u8::MAX;
    /// The active bug.
    pub static ACTIVE: AtomicU8 = AtomicU8::new(NONE);

    const _: () = assert!(super::SeededBug::ALL.len() < NONE as usize);
}
