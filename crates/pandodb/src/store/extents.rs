//! The allocation map of an opened store: the store marks every page that the indexes own.
//!
//! ```text
//!   all indexes built ─▶ every extent of every index marked ─▶ damaged copies repaired ─▶ first allocation
//! ```
//!
//! Until all pages are marked, nothing is allocated, freed or written. The reason: as long as an index has not listed
//! its pages, these pages look free.

use crate::base::{Error, Result};
use crate::index::{Core, Index};

/// Marks the pages that `indexes` own. Then repairs the damaged copies of metadata blocks that were found when the
/// indexes were opened.
///
/// # Errors
/// [`Error::Corruption`] if a page has two owners or is beyond the file. In that case nothing was written.
pub(super) fn mark<'a>(core: &Core, indexes: impl Iterator<Item = &'a dyn Index>) -> Result<()> {
    let mut failed: Option<Error> = None;
    for index in indexes {
        index.for_each_extent(&mut |extent| {
            if let Err(e) = core.data.mark(extent) {
                failed.get_or_insert(e);
            }
        });
    }
    if let Some(overlap) = failed {
        return Err(overlap);
    }
    core.data.end_marking();
    if core.repair {
        core.repairs.write(&core.data);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::catalog::Catalog;
    use super::super::handle::Store;
    use super::super::roots::Roots;
    use crate::base::PAGE;
    use crate::device::MemDevice;
    use crate::index::{IndexKind, Order};
    use crate::space::DataFile;

    fn open(device: &Arc<MemDevice>) -> crate::Result<Store> {
        Store::builder("two").device(device.clone()).background_threads(0).memory_budget(1 << 20).open()
    }

    /// Changes the newest catalogue with `change`, and writes the result as the newest catalogue.
    fn rewrite(device: &MemDevice, change: impl FnOnce(&mut Catalog)) {
        let Roots { mut superblock, mut catalog, indexes } = Roots::read(device).expect("sound");
        let file = DataFile::open_raw(device, true).expect("there");
        let data = DataFile::open(file, superblock.store_id).expect("there");
        superblock.catalog.mark(&data).expect("its own");
        indexes.iter().for_each(|index| index.for_each_extent(&mut |extent| data.mark(extent).expect("its own")));
        data.end_marking();
        change(&mut catalog);
        superblock.catalog_generation += 1;
        (superblock.catalog, superblock.catalog_len) =
            catalog.write(&data, superblock.catalog_generation).expect("written");
        for _ in 0..2 {
            superblock.generation += 1;
            data.write_superblock(&superblock).expect("written");
        }
    }

    #[test]
    fn two_keyspaces_with_the_same_pages_are_refused() {
        for kind in IndexKind::all().filter(|kind| kind.index_type().order == Order::Sorted) {
            let device = MemDevice::new();
            let store = open(&device).expect("created");
            for name in ["a", "b"] {
                let options = crate::KeyspaceOptions::new().index(kind);
                let keyspace = store.keyspace_with(name, options).expect("created");
                keyspace.put(name, "value").expect("written");
            }
            store.settle().expect("packed");
            store.close().expect("closed");
            rewrite(&device, |_| {});
            open(&device).expect("the catalogue is valid").close().expect("closed");
            rewrite(&device, |catalog| catalog.keyspaces[1].root.bytes = catalog.keyspaces[0].root.bytes.clone());
            let error = open(&device).expect_err("their pages are the same");
            assert!(error.is_corruption() && error.to_string().contains("claimed twice"), "{kind}: {error}");
        }
    }

    #[test]
    fn an_index_lists_all_pages_that_are_in_use() {
        for kind in IndexKind::all().filter(|kind| kind.index_type().order == Order::Sorted) {
            let device = MemDevice::new();
            let store = open(&device).expect("created");
            let options = crate::KeyspaceOptions::new().index(kind).blob_threshold(1000);
            let keyspace = store.keyspace_with("k", options).expect("created");
            for i in 0..20_000u32 {
                keyspace.put(i.wrapping_mul(0x9E37_79B1).to_be_bytes(), [7; 100]).expect("written");
            }
            (0..20).for_each(|i| keyspace.put(format!("large {i}"), vec![i; 9_000]).expect("written"));
            store.settle().expect("packed");
            // Freed pages can be reused after two further superblocks were written.
            (0..3).for_each(|_| store.checkpoint().expect("taken"));
            let mut listed = 0;
            store.engine.keyspaces.all().iter().for_each(|keyspace| {
                keyspace.index.for_each_extent(&mut |extent| listed += extent.bytes());
            });
            let catalog = store.engine.checkpointer.root.lock().superblock.catalog;
            let of_catalog: u64 = catalog.extents().iter().map(|extent| extent.bytes()).sum();
            let stats = store.engine.core.data.stats();
            // Two further pages hold the superblocks.
            let used = stats.allocated_bytes - stats.quarantined_bytes - of_catalog - 2 * PAGE as u64;
            assert!(listed > 2 << 20);
            assert_eq!(listed, used, "{kind}: {stats:?}");
        }
    }
}
