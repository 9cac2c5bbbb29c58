//! Deferred frees of large values, and of the pages of a tree. A compaction may drop the last message of a value, or
//! replace a page; the value or page is kept until no reader can reach it through an older root.
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

use super::Core;
use crate::base::sync::{Mutex, OnceLock};
use crate::base::{Extent, OwnerId, PageNo, seeded};
use crate::pool::Pool;
use crate::space::DataFile;

/// One link of the chain.
pub struct DeferredFrees {
    data: Arc<DataFile>,
    pool: Arc<Pool>,
    extents: Mutex<Vec<(OwnerId, Extent)>>,
    next: OnceLock<Arc<DeferredFrees>>,
}

impl DeferredFrees {
    /// The first link of a chain.
    pub fn new(core: &Core) -> Arc<DeferredFrees> {
        DeferredFrees::link(core.data.clone(), core.pool.clone())
    }

    fn link(data: Arc<DataFile>, pool: Arc<Pool>) -> Arc<DeferredFrees> {
        Arc::new(DeferredFrees { data, pool, extents: Mutex::new(Vec::new()), next: OnceLock::new() })
    }

    /// Fills this link with the large values that the step to the next view has dropped. Returns the link that the next
    /// view holds.
    pub fn succeed(&self, dropped: &[Extent]) -> Arc<DeferredFrees> {
        self.succeed_with(dropped.iter().map(|extent| (OwnerId::VALUES, *extent)))
    }

    /// Like [`DeferredFrees::succeed`], for extents with the owners under which their blocks are cached.
    pub fn succeed_with(&self, dropped: impl IntoIterator<Item = (OwnerId, Extent)>) -> Arc<DeferredFrees> {
        self.extents.lock().extend(dropped);
        let next = DeferredFrees::link(self.data.clone(), self.pool.clone());
        assert!(self.next.set(next.clone()).is_ok(), "a view has one successor");
        next
    }
}

impl DeferredFrees {
    /// Frees the extents of this link. Their blocks leave the pool first: no reader can ask for them any more, and other
    /// blocks of the same owner may be written to the same pages later.
    fn free_all(&mut self) {
        for (owner, extent) in self.extents.get_mut().drain(..) {
            let pages = extent.start.0..extent.end();
            let forget = |page| self.pool.forget(owner, PageNo(page));
            seeded!(ValueOutlivesPages: (), pages.for_each(forget));
            self.data.free(extent);
        }
    }
}

impl Drop for DeferredFrees {
    fn drop(&mut self) {
        self.free_all();
        // Drop the links in a loop: one reader may have kept thousands of links alive, which is too many for a
        // recursive drop.
        let mut next = self.next.take();
        while let Some(link) = next {
            next = Arc::into_inner(link).and_then(|mut link| {
                link.free_all();
                link.next.take()
            });
        }
    }
}
