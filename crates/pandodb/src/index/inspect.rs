//! Read-only inspection of an index: verification, description, salvage.
//!
//! ```text
//!   verify   Inspect::pin ─▶ Verification: every extent; every block, message, problem of one root
//!   inspect  Inspect::describe: the structure, or one object of it, as text; IndexType::describe_block: one block
//!   salvage  Inspect::salvage ─▶ SalvagePiece { keys, sources newest first } ─▶ SalvageSource::next: messages and gaps
//! ```
//!
//! Invariant: a message whose key belongs to a piece is in one of the piece's sources or in a gap that a source
//! reports, unless the piece is marked as lost.

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, Error, Extent, Fragments, KeyRange, OwnerId, Result};
use crate::space::BlockKind;

/// The functions by which `verify`, `inspect` and `salvage` read an index.
pub trait Inspect {
    /// Pins the current root, so that a caller can check everything that this root reaches. The caller ensures that no
    /// checkpoint runs during the call, so that the index knows which parts of the structure are on disk.
    fn pin(&self) -> Box<dyn Verification + '_>;

    /// Describes the structure, or the object with the identity `object`, as lines of text. Returns false if there is
    /// no such object.
    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool;

    /// The whole key space as pieces, in order. Requires a store that is open for reading, because nothing pins the
    /// pieces.
    fn salvage(&self) -> Vec<SalvagePiece>;
}

/// A pinned root. Until the pinned root is dropped, none of the pages that it reaches is reused.
pub trait Verification {
    /// Lists every page that the root owns. Each page is listed once. Blocks that were not on disk at the time of
    /// pinning are left out, even if a checkpoint has written them since then.
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent));

    /// Reads and checks everything that the root reaches.
    ///
    /// # Errors
    /// An error that prevents the rest of the verification, such as an I/O error. Damage is not returned, but reported
    /// to the visitor.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()>;
}

/// Receives the results of [`Verification::check`].
pub trait Visitor {
    /// A block that was read and checked.
    fn block(&mut self, kind: BlockKind, bytes: u64);
    /// A message that was read.
    fn entry(&mut self, entry: &Entry<'_>);
    /// Reports a problem. Verification continues after the report.
    fn problem(&mut self, problem: Error);
}

/// A piece of the key space with all data that the index holds for it.
pub struct SalvagePiece {
    /// The keys of the piece.
    pub range: KeyRange,
    /// The sources that a lookup for these keys searches, newest first.
    pub sources: Vec<Box<dyn SalvageSource>>,
    /// The error that made data older than these sources unreadable, if any.
    pub lost: Option<Error>,
}

/// One container of messages, of which all parts except the damaged ones are read.
pub trait SalvageSource {
    /// The key range of the source. Messages outside this range do not belong to the source.
    fn range(&self) -> &KeyRange;

    /// The range tombstones of the source.
    ///
    /// # Errors
    /// The error that makes the tombstones unreadable. In that case it is unknown which of the older data in the range
    /// is deleted.
    fn tombstones(&self) -> Result<Arc<Fragments>>;

    /// Appends the next messages in key order to `out`, or reports a gap or the end.
    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep;

    /// Whether a gap may contain a message of `key`. The result is true unless a filter excludes the key.
    fn may_hold(&self, key: &[u8]) -> bool;
}

/// The next part of a [`SalvageSource`].
#[derive(Debug)]
pub enum SalvageStep {
    /// Messages were appended to the block.
    Entries,
    /// Messages of these keys cannot be read.
    Lost(KeyRange, Error),
    /// There are no more messages.
    End,
}
