//! Read-only inspection of an index: verification, description, salvage.
//!
//! ```text
//!   verify   Inspect::pin ─▶ Verification: every extent; every block, message, problem of one root
//!   inspect  Inspect::describe: the structure, or one object of it, as text; IndexType::describe_block: one block
//!   salvage  Inspect::salvage ─▶ SalvagePiece { keys, sources newest first } ─▶ SalvageSource::next: messages and gaps
//! ```
//!
//! Invariant: every message of a piece's keys is in one of its sources, or in a gap that a source reports, or the piece
//! is marked as lost.

use std::sync::Arc;

use crate::base::{Entry, EntryBlock, Error, Extent, Fragments, KeyRange, OwnerId, Result};
use crate::space::BlockKind;

/// How `verify`, `inspect` and `salvage` read an index.
pub trait Inspect {
    /// Pins the current root, for a check of everything that it reaches. The caller makes sure that no checkpoint runs
    /// during the call, so that it is known which parts of the structure are on disk.
    fn pin(&self) -> Box<dyn Verification + '_>;

    /// Describes the structure, or the object with that identity, as lines of text. Returns false if there is no such
    /// object.
    fn describe(&self, object: Option<OwnerId>, out: &mut String) -> bool;

    /// The whole key space in pieces, in order. Only for a store that is open for reading: nothing pins the pieces.
    fn salvage(&self) -> Vec<SalvagePiece>;
}

/// A pinned root. Until it is dropped, none of the pages that it reaches is reused.
pub trait Verification {
    /// Lists every page that the root owns, each once. Blocks that were not on disk when the root was pinned are left
    /// out, even if a checkpoint has written them since.
    fn for_each_extent(&self, visit: &mut dyn FnMut(Extent));

    /// Reads and checks everything that the root reaches.
    ///
    /// # Errors
    /// One that ends the verification; damage is reported to the visitor.
    fn check(&self, visit: &mut dyn Visitor) -> Result<()>;
}

/// Receives the results of [`Verification::check`].
pub trait Visitor {
    /// A block that was read and checked.
    fn block(&mut self, kind: BlockKind, bytes: u64);
    /// A message that was read.
    fn entry(&mut self, entry: &Entry<'_>);
    /// A problem. Verification continues.
    fn problem(&mut self, problem: Error);
}

/// A piece of the key space with all data that the index holds for it.
pub struct SalvagePiece {
    /// The keys.
    pub range: KeyRange,
    /// The sources that a lookup there asks, newest first.
    pub sources: Vec<Box<dyn SalvageSource>>,
    /// The error that made data older than the sources unreadable, if any.
    pub lost: Option<Error>,
}

/// One container of messages, read around its damage.
pub trait SalvageSource {
    /// The key range of the source. Messages outside do not belong to it.
    fn range(&self) -> &KeyRange;

    /// Its range tombstones.
    ///
    /// # Errors
    /// The error that makes them unreadable: then older data in the range is uncertain.
    fn tombstones(&self) -> Result<Arc<Fragments>>;

    /// Appends the next messages in key order to `out`, or reports a gap or the end.
    fn next(&mut self, out: &mut EntryBlock) -> SalvageStep;

    /// Whether a message of `key` may be in a gap. True unless a filter excludes it.
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
