//! What looks at an index and changes nothing: verification, description, salvage.
//!
//! ```text
//!   verify   Inspect::pin ─▶ Verification(visitor): every extent, block, message, problem of one root
//!   inspect  Inspect::describe: the structure, or one object of it, as text; describe_block: one block by its kind
//!   salvage  Inspect::salvage ─▶ SalvagePiece { keys, sources newest first } ─▶ SalvageSource::next: messages and gaps
//! ```
//!
//! Invariant: a message of a piece's keys is in one of its sources, in a gap that a source reports, or the piece says that it is lost.

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, Error, Extent, Fragments, KeyRange, OwnerId, Result};
use crate::space::BlockKind;

/// How `verify`, `inspect` and `salvage` read an index.
pub trait Inspect {
    /// Pins the current root, for a check of everything that it reaches. Called while no checkpoint runs, so that it is known which parts
    /// of the structure are on disk.
    fn pin(&self) -> Verification<'_>;

    /// Describes the structure, or the object with that identity, as lines of text. Whether there is such an object.
    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool;

    /// The whole key space in pieces, in order. Only in a store that is open for reading: nothing pins them.
    fn salvage(&self) -> Vec<SalvagePiece>;
}

/// Reads and checks everything that a pinned root reaches. Until it is done or dropped, no page of that is used for anything else.
pub type Verification<'a> = Box<dyn FnOnce(&mut dyn Visitor) -> Result<()> + 'a>;

/// What a [`Verification`] reports to.
pub trait Visitor {
    /// Pages that the index owns.
    fn extent(&mut self, extent: Extent);
    /// A block that was read and checked.
    fn block(&mut self, kind: BlockKind, bytes: u64);
    /// A message that was read.
    fn entry(&mut self, entry: &Entry<'_>);
    /// Something that is wrong; verification goes on.
    fn problem(&mut self, problem: Error);
}

/// A piece of the key space with everything that the index holds for it.
pub struct SalvagePiece {
    /// The keys.
    pub range: KeyRange,
    /// What a lookup there asks, the newest first.
    pub sources: Vec<Box<dyn SalvageSource>>,
    /// There was more, older than these, and it cannot be read.
    pub lost: Option<Error>,
}

/// One container of messages, read around its damage.
pub trait SalvageSource {
    /// The keys that it covers; messages outside of them are not its own.
    fn range(&self) -> &KeyRange;

    /// Its range tombstones.
    ///
    /// # Errors
    /// Why they cannot be read: then nothing older is certain in its range.
    fn tombstones(&self) -> Result<Arc<Fragments>>;

    /// Appends the next messages in key order to `out`, or reports a gap, or the end.
    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep;

    /// Whether a message of `key` may lie in a gap. Without a filter that says no: true.
    fn may_hold(&self, key: &[u8]) -> bool;
}

/// The next part of a [`SalvageSource`].
#[derive(Debug)]
pub enum SalvageStep {
    /// Messages were appended.
    Entries,
    /// Messages of these keys cannot be read.
    Lost(KeyRange, Error),
    /// There are no more.
    End,
}
