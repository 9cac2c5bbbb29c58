//! [`JobAhead`]: reads the leaves that a job will merge with messages, several at a time, before the job reaches them.
//!
//! ```text
//!   children of the open page    [ ■ ][   ][ ■ ][ ■ ][   ][ ■ ] …        ■ a message is for it
//!                                  │         └────┴─────────┴──▶ reads in flight
//!                                  └─ being merged
//! ```
//!
//! A job that reads one leaf after the other waits for the device most of the time, because a memtable is for leaves all
//! over the tree. The open page and the messages in memory tell which leaves are next.
//!
//! Invariant: leaves are wanted in the order in which the job reads them. If the job reads another leaf instead, all
//! wanted leaves are forgotten.

use std::sync::Arc;

use super::feed::Feed;
use crate::base::Result;
use crate::index::pages::rebuild::Open;
use crate::index::pages::source::OnceRead;
use crate::index::pages::{Child, LeafAhead, PageRef, PageSource};

/// The most leaves that are read ahead.
const MOST: usize = 16;
/// No further leaf is read ahead while the leaves read ahead have this number of bytes.
const MOST_BYTES: usize = 512 << 10;

/// Leaves that are read ahead for a job.
#[derive(Default)]
pub(super) struct JobAhead {
    leaves: LeafAhead,
    /// The open page whose children were looked at.
    page: Option<PageRef>,
    /// The number of its last children that were not looked at yet.
    left: usize,
}

impl JobAhead {
    /// Wants further children of the open page for which the feed has messages in memory.
    pub(super) fn look(&mut self, open: &Open, feed: &Feed, source: &Arc<PageSource>) {
        let rest = open.rest();
        if self.page != open.page() {
            self.leaves.clear();
            (self.page, self.left) = (open.page(), rest.len());
        }
        self.left = self.left.min(rest.len());
        if 2 * self.leaves.len() > MOST {
            return;
        }
        let mut is_wanted = false;
        while self.left > 0 && self.leaves.len() < MOST && self.leaves.bytes() < MOST_BYTES {
            let Child { from, page, .. } = &rest[self.left - 1];
            if !page.is_continued {
                let to = rest[..self.left - 1].last().map(|next| next.from.as_slice()).or(open.to.as_deref());
                let Some(has_message) = feed.has_in_memory(from, to) else { break };
                is_wanted = has_message;
            }
            if is_wanted {
                self.leaves.want(source, *page);
            }
            self.left -= 1;
        }
        self.leaves.start();
    }

    /// Reads a leaf: one that was wanted, or another one.
    ///
    /// # Errors
    /// If the leaf cannot be read, or is damaged.
    pub(super) fn read(&mut self, page: &PageRef, source: &PageSource) -> Result<OnceRead> {
        if self.leaves.front().as_ref() == Some(page) {
            return self.leaves.take(source);
        }
        if !self.leaves.is_empty() {
            self.leaves.clear();
            self.left = usize::MAX;
        }
        source.leaf_once(page)
    }
}
