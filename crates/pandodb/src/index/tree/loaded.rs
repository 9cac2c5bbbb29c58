//! [`LoadedPages`]: checks the pages of the tree of a sorted load while a merge reads them. The file may be damaged or
//! hostile, and a merge relies on more than other readers of a page do.
//!
//! ```text
//!   leaf 1, bound a       leaf 2, bound f       leaf 3, bound m       wanted: the bounds of the leaves read ahead
//!   [ a b d ]             [ f g ]               [ n p ]
//!        d < f ≤ f             g < m ≤ n                              checked when a leaf is entered
//! ```
//!
//! Invariants of such a tree: every reference has the seqno of the load; pages have no buffer, and leaves do not
//! continue the messages of a key; each message is a put with the seqno of the load, so each key has one.

use std::collections::VecDeque;

use crate::base::{Kind, Result, Seqno};
use crate::index::pages::{Inner, PageRef, PageSource};
use crate::run::Leaf;

/// Checks a reference to a page of a load.
///
/// # Errors
/// A description of the flaw.
pub(super) fn check_reference(page: &PageRef, newest: Seqno) -> std::result::Result<(), &'static str> {
    if page.totals.newest != newest || page.is_continued {
        return Err("a page of a sorted load with another seqno, or with several messages of a key");
    }
    Ok(())
}

/// Checks an inner page of a load.
///
/// # Errors
/// A description of the flaw.
pub(super) fn check_inner(inner: &Inner<'_>) -> std::result::Result<(), &'static str> {
    if inner.buffer().is_some() { Err("a page of a sorted load with a buffer") } else { Ok(()) }
}

/// Checks the messages of a leaf of a load. Messages with equal seqnos are in order only if their keys differ.
///
/// # Errors
/// A description of the flaw.
pub(super) fn check_leaf(leaf: &Leaf<'_>, newest: Seqno) -> std::result::Result<(), &'static str> {
    let is_row = |i: usize| {
        let slot = leaf.slot(i);
        slot.seqno == newest && matches!(slot.kind, Kind::Put | Kind::BlobPut)
    };
    let is_sound = !leaf.is_continued() && !leaf.continues() && (0..leaf.len()).all(is_row);
    if is_sound { Ok(()) } else { Err("a message of a sorted load that is no put with the seqno of the load") }
}

/// The state of the checks of one cursor.
pub(super) struct LoadedPages {
    newest: Seqno,
    /// The lower bounds of the leaves that were wanted and not entered.
    bounds: VecDeque<Vec<u8>>,
    /// The last key of the leaf that was entered last; empty if there is none.
    last: Vec<u8>,
}

impl LoadedPages {
    /// The checks of the pages of a load with the seqno `newest`.
    pub(super) fn new(newest: Seqno) -> LoadedPages {
        LoadedPages { newest, bounds: VecDeque::new(), last: Vec::new() }
    }

    /// Forgets the leaves, because the cursor continues elsewhere.
    pub(super) fn restart(&mut self) {
        self.bounds.clear();
        self.last.clear();
    }

    /// Notes the lower bound of the next leaf that is wanted.
    pub(super) fn want(&mut self, bound: Vec<u8>) {
        self.bounds.push_back(bound);
    }

    /// Checks a page before the pages below it are visited.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption).
    pub(super) fn reference(&self, page: &PageRef, source: &PageSource) -> Result<()> {
        check_reference(page, self.newest).map_err(|flaw| source.corrupt(page, flaw))
    }

    /// Checks the next leaf that was wanted.
    ///
    /// # Errors
    /// [`Error::Corruption`](crate::Error::Corruption).
    pub(super) fn enter(&mut self, page: &PageRef, leaf: &Leaf<'_>, source: &PageSource) -> Result<()> {
        check_leaf(leaf, self.newest).map_err(|flaw| source.corrupt(page, flaw))?;
        let bound = self.bounds.pop_front().expect("each wanted leaf has a bound");
        let mut key = Vec::new();
        leaf.key(0, &mut key);
        let is_behind = self.last.is_empty() || self.last < bound;
        if !is_behind || key < bound {
            return Err(source.corrupt(page, "a leaf of a sorted load with keys outside its bounds"));
        }
        leaf.key(leaf.len() - 1, &mut key);
        self.last = key;
        Ok(())
    }
}
