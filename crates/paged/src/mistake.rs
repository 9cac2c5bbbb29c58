//! Mistakes on purpose, which test the tests of this crate. At most one is active in a process.
//!
//! A mistake is an operand `Mistake::X.is_on()` in the expression that it breaks. `tests/mistakes.rs` activates one after
//! the other and expects that a check fails; those that need a rare schedule are found by `tests/explore.rs`. Without debug
//! assertions `is_on` is the constant `false`.

macro_rules! mistakes {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// A deliberate mistake, and its consequence.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Mistake {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Mistake {
            /// Every mistake.
            pub const ALL: &[Mistake] = &[$(Mistake::$name),+];
        }
    };
}

mistakes! {
    /// Listing 5.6 as printed: after a flush without a split, the messages that arrived are passed on instead of those
    /// that were removed, so the removed ones are lost.
    RemovedMessagesDropped,
    /// Listing 5.7 as printed: after a tombstone, a lookup continues to the leaf and finds the deleted value.
    TombstonePassed,
    /// A lookup applies the updates of upper buffers before those of lower ones.
    UpdatesInWrongOrder,
    /// A split of an inner node leaves all messages in the left half.
    MessagesNotDivided,
    /// A full leaf is split in the middle of its own keys, so the messages for one half may not fit.
    LeafSplitWithoutMessages,
    /// An update that arrives after a tombstone revives the value.
    UpdateRevivesDeleted,
    /// A range lookup reads the leaves, but not the buffers above them.
    RangeSkipsBuffers,
    /// An evicted page that differs from its block on disk is not written.
    DirtyPageDropped,
    /// A page is evicted although it was pinned while it was written.
    PinnedVictimEvicted,
    /// A pin through a hint ignores that the frame is empty, because another thread has evicted its page.
    EmptyFramePinned,
    /// A pin through a hint does not check which page the frame has.
    HintNotChecked,
    /// A reader that does not hold the parent's latch ignores that the parent has flushed in the meantime.
    ChangedParentTrusted,
    /// A flush does not note that messages have left a node, so readers that passed the node miss them.
    FlushNotNoted,
    /// A message is put into a full share of reserved slots, so a later flush passes on more than one share.
    ShareExceeded,
    /// A node gets a smaller ε although too few pivot slots stay free for the splits of its children.
    NarrowedTooFar,
    /// A node is split instead of flushed, but all messages that arrive stay in the left half.
    ArrivedNotDivided,
    /// A lookup finds no messages beside a page.
    FrontNotRead,
    /// A range lookup finds no messages beside a page.
    RangeSkipsFronts,
    /// An exclusive latch leaves the messages beside the page, so a flush or a split does not move them.
    FrontNotFolded,
    /// An evicted page loses the messages beside it.
    FrontDropped,
    /// A page is marked clean although messages have arrived beside it since they were folded.
    FilledFrontCleaned,
    /// A message gets its timestamp before the lock of the messages beside the page is taken.
    StampedBeforeLock,
    /// A message gets its timestamp after the root was released, when another node may be above its buffer already.
    StampedAfterRoot,
}

#[cfg(debug_assertions)]
static ACTIVE: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(u8::MAX);

/// Activates one mistake in the whole process, or none.
#[cfg(debug_assertions)]
pub fn activate(mistake: Option<Mistake>) {
    ACTIVE.store(mistake.map_or(u8::MAX, |mistake| mistake as u8), std::sync::atomic::Ordering::Relaxed);
}

impl Mistake {
    /// Whether this mistake is active.
    #[cfg(debug_assertions)]
    #[inline]
    pub fn is_on(self) -> bool {
        ACTIVE.load(std::sync::atomic::Ordering::Relaxed) == self as u8
    }

    /// Always `false` in a build without debug assertions.
    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub const fn is_on(self) -> bool {
        false
    }
}
