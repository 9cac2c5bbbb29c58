//! Deferred frees of large values. A compaction may drop the last message of a value; the value is kept until no reader
//! can reach it through an older message.
//!
//! ```text
//!   view 1 ──▶     link 1      ──▶     link 2      ──▶     link 3     ◀── current view
//!               dropped      dropped
//!               by 1→2       by 2→3
//! ```
//!
//! Each view holds one link of a chain, and each link holds the next link. The swap from a view to its successor fills
//! the view's link with the extents that the swap drops. A link is dropped when its view and all older views are gone.
//! Dropping the link frees its extents. This starts their quarantine: they are reused only after further superblocks
//! were written.

use std::sync::Arc;

use crate::base::Extent;
use crate::base::sync::{Mutex, OnceLock};
use crate::space::DataFile;

/// One link of the chain.
pub struct DeferredBlobFrees {
    data: Arc<DataFile>,
    extents: Mutex<Vec<Extent>>,
    next: OnceLock<Arc<DeferredBlobFrees>>,
}

impl DeferredBlobFrees {
    /// The first link of a chain.
    pub fn new(data: Arc<DataFile>) -> Arc<DeferredBlobFrees> {
        Arc::new(DeferredBlobFrees { data, extents: Mutex::new(Vec::new()), next: OnceLock::new() })
    }

    /// Fills this link with the extents that the step to the next view has dropped. Returns the link that the next view
    /// holds.
    pub fn succeed(&self, dropped: &[Extent]) -> Arc<DeferredBlobFrees> {
        self.extents.lock().extend_from_slice(dropped);
        let next = DeferredBlobFrees::new(self.data.clone());
        assert!(self.next.set(next.clone()).is_ok(), "a view has one successor");
        next
    }
}

impl Drop for DeferredBlobFrees {
    fn drop(&mut self) {
        self.extents.get_mut().drain(..).for_each(|extent| self.data.free(extent));
        // Drop the links in a loop: one reader may have kept thousands of links alive, which is too many for a
        // recursive drop.
        let mut next = self.next.take();
        while let Some(link) = next {
            next = Arc::into_inner(link).and_then(|mut link| {
                link.extents.get_mut().drain(..).for_each(|extent| link.data.free(extent));
                link.next.take()
            });
        }
    }
}
