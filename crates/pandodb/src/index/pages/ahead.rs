//! [`LeafAhead`]: reads leaves concurrently, before their reader needs them one after the other.
//!
//! ```text
//!   want(leaf) ─▶ in the pool? ── yes ─▶ kept
//!                   └─ no ─▶ read in flight          take() ─▶ the oldest wanted leaf, when it is there
//! ```
//!
//! A scan reads neighbouring leaves, and a job reads the leaves for which it has messages. Both know the next leaves
//! from the parent of the current one. With several reads in flight, the device is busy while the reader works.
//!
//! Invariant: leaves are taken in the order in which they were wanted.

use std::collections::VecDeque;
use std::sync::Arc;

use super::reference::PageRef;
use super::source::{OnceRead, PageSource};
use crate::base::Result;
use crate::blocks::BlockSource;
use crate::device::{AlignedBuf, Read, Reads};

/// A leaf that was wanted and not taken.
struct Wanted {
    page: PageRef,
    /// The result; `None` while the read is in flight.
    read: Option<Result<OnceRead>>,
}

/// Leaves that are read ahead.
#[derive(Default)]
pub struct LeafAhead {
    reads: Option<Reads>,
    wanted: VecDeque<Wanted>,
    /// The number of leaves that were taken. The tag of a read is the number of its leaf.
    taken: usize,
}

impl LeafAhead {
    /// The number of leaves that were wanted and not taken.
    pub fn len(&self) -> usize {
        self.wanted.len()
    }

    /// The bytes of these leaves in memory.
    pub fn bytes(&self) -> usize {
        self.wanted.iter().map(|wanted| wanted.page.memory_bytes()).sum()
    }

    /// Whether no leaf is waiting to be taken.
    pub fn is_empty(&self) -> bool {
        self.wanted.is_empty()
    }

    /// The leaf that is taken next.
    pub fn front(&self) -> Option<PageRef> {
        self.wanted.front().map(|wanted| wanted.page)
    }

    /// Forgets all leaves that were not taken.
    pub fn clear(&mut self) {
        *self = LeafAhead { taken: self.taken + self.wanted.len(), ..LeafAhead::default() };
    }

    /// Begins to read a leaf, unless the pool has it.
    pub fn want(&mut self, source: &Arc<PageSource>, page: PageRef) {
        let tag = self.taken + self.wanted.len();
        let read = match source.pooled_leaf(&page) {
            Some(block) => Some(Ok(block)),
            None => match source.data().begin_read(page.addr, AlignedBuf::default()) {
                Err(e) => Some(Err(e)),
                Ok(buf) => {
                    let reads = self.reads.get_or_insert_with(|| source.data().reads());
                    reads.submit(Read { tag, offset: page.addr.page.offset(), buf });
                    None
                }
            },
        };
        self.wanted.push_back(Wanted { page, read });
    }

    /// Lets the device work on the reads that were not started yet.
    pub fn start(&mut self) {
        if let Some(reads) = &mut self.reads {
            reads.start();
        }
    }

    /// Takes the oldest wanted leaf. Waits for its read.
    ///
    /// # Errors
    /// If the leaf cannot be read, or is damaged.
    ///
    /// # Panics
    /// If no leaf is wanted.
    pub fn take(&mut self, source: &PageSource) -> Result<OnceRead> {
        while self.wanted.front().expect("a leaf is wanted").read.is_none() {
            let reads = self.reads.as_mut().expect("a read is in flight");
            let (tag, read) = reads.complete().expect("a submitted read completes");
            let wanted = &mut self.wanted[tag - self.taken];
            let page = wanted.page;
            let checked = source.data().end_read(page.addr, read).and_then(|buf| source.check_once(buf, &page));
            wanted.read = Some(checked);
        }
        self.taken += 1;
        self.wanted.pop_front().and_then(|wanted| wanted.read).expect("the leaf was read")
    }
}
