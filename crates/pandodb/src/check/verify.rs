//! `verify` reads and checks everything that a store reaches, and accounts for every page.
//!
//! Verification has three steps. First, check both superblock slots and both copies of the catalogue. Then check, for
//! each index, the large values that its memtables refer to, and its nodes, runs, live messages and large values.
//! Finally, check that the superblock names all features that blocks use. The allocation is checked once for all
//! indexes, using the extents that they list: no page has two owners, and every owned page is marked as used. Pages
//! without an owner are not reported, because they belong to unfinished runs or to old views, or were freed and wait
//! for two further superblocks. Problems are collected: verification continues after each problem. The log is not read
//! again, because opening has replayed it, and opening refuses a store whose log is damaged.
//!
//! **A consistent set of pages.** The store may be written during the verification. A page that one index frees is
//! reused two checkpoints later, possibly by another index. Therefore the verification accounts for the pages in use at
//! one moment:
//!
//! ```text
//!   durable_root locked:  read the catalogue ─▶ pin index 1 ─▶ pin index 2 ─▶ …        no checkpoint, create, drop
//!   unlocked:             list the extents of all pins; read index 1 and unpin it, read index 2 and unpin it, …
//! ```
//!
//! 1. The catalogue owns its pages until the next superblock is written, which happens only after the last root is
//!    pinned. The catalogue is read before this superblock is written.
//! 2. A pinned root keeps its nodes, runs and large values: none of their pages is freed before the pin is dropped
//!    ([`Inspect::pin`](crate::index::Inspect::pin)). Therefore, at the moment of the last pin, all pinned roots and
//!    the catalogue own their pages at the same time. So a page with two owners is damage.
//! 3. Blocks written later are excluded: a node that was not on disk at the time of pinning is skipped, even if a
//!    checkpoint writes it during the verification.
//!
//! Cost: runs that compactions replace during the verification keep their pages until their index was read, as during a
//! long scan.

use std::sync::Arc;

use crate::base::{BlobRef, BlockAddr, Entry, EntryBlock, Error, Extent, KeyRange, Kind, Result, seeded};
use crate::index::{Verification, Visitor};
use crate::memtable;
use crate::space::data::DATA_FILE;
use crate::space::ranges::RangeSet;
use crate::space::{BlockKind, DataFile, Superblock};
use crate::store::catalog::Catalog;
use crate::store::engine::Engine;
use crate::store::read::Pinned;
use crate::store::state::KeyspaceState;

/// Bytes copied from a memtable at a time.
const MEMTABLE_BLOCK: usize = 64 << 10;

/// The result of a verification.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Blocks read and checked.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Live messages that were read. Superseded messages count, too.
    pub entries: u64,
    /// The number of runs.
    pub runs: u64,
    /// Copies of the blocks that list the runs of an index (nodes of a trunk, tables of levels). Each block has two
    /// copies.
    pub nodes: u64,
    /// The number of large values.
    pub blobs: u64,
    /// All problems. The list is empty if the store is undamaged.
    pub problems: Vec<Error>,
}

impl VerifyReport {
    /// Whether there are no problems.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}

struct Verifier<'a> {
    data: &'a DataFile,
    report: VerifyReport,
    owned: RangeSet,
    /// The incompatible features that are used by the blocks read until now.
    features: u64,
}

impl Verifier<'_> {
    /// Compares the pages that an index or the catalogue owns with the pages of all other owners, and with the
    /// allocation map.
    fn owns(&mut self, extent: Extent) {
        let (start, len) = (extent.start.0, u64::from(extent.pages));
        let addr = BlockAddr { page: extent.start, pages: extent.pages };
        if self.owned.overlaps(start, len) {
            self.problem(self.data.corrupt(addr, "allocation", format!("{len} pages have two owners")));
            return;
        }
        self.owned.insert(start, len);
        debug_assert!(self.owned.contains(start, len), "a second owner of these pages is found");
        if !self.data.is_taken(extent) {
            self.problem(self.data.corrupt(addr, "allocation", format!("{len} pages are in use but marked as free")));
        }
    }
}

impl Visitor for Verifier<'_> {
    fn block(&mut self, kind: BlockKind, bytes: u64) {
        debug_assert!(bytes > 0, "a block of kind {} has bytes", kind.name());
        self.report.blocks += 1;
        self.report.bytes += bytes;
        self.features |= kind.feature();
        match kind {
            kind if kind.is_node() => self.report.nodes += 1,
            BlockKind::RunFooter => self.report.runs += 1,
            BlockKind::Blob => self.report.blobs += 1,
            _ => {}
        }
    }

    fn entry(&mut self, _entry: &Entry<'_>) {
        self.report.entries += 1;
    }

    fn problem(&mut self, problem: Error) {
        self.report.problems.push(problem);
    }
}

/// Reads the large values that only messages in memtables refer to. The pinned view keeps the large values that
/// compactions drop during the verification.
fn verify_memtables(engine: &Engine, keyspace: &KeyspaceState, verifier: &mut Verifier<'_>) -> Result<()> {
    let Ok(world) = Pinned::at(keyspace, engine.snapshots.visible()) else { return Ok(()) };
    for memtable in world.world().memtables() {
        let mut block = EntryBlock::new();
        let mut cursor = memtable::Cursor::new(memtable.clone(), KeyRange::all(), false);
        loop {
            block.clear();
            cursor.fill(MEMTABLE_BLOCK, &mut block);
            if block.is_empty() {
                break;
            }
            debug_assert!(block.iter().is_sorted_by(|a, b| a.order(b).is_lt()), "messages of a memtable ascend");
            for entry in block.iter().filter(|entry| entry.kind == Kind::BlobPut) {
                match engine.core.data.read_blob(&BlobRef::decode(entry.value)?) {
                    Ok(buf) => verifier.block(BlockKind::Blob, buf.len() as u64),
                    Err(e) => verifier.problem(e),
                }
            }
        }
    }
    Ok(())
}

/// Verifies an open store.
pub(crate) fn verify(engine: &Engine) -> Result<VerifyReport> {
    let data = &engine.core.data;
    let mut verifier = Verifier { data, report: VerifyReport::default(), owned: RangeSet::default(), features: 0 };
    let keyspaces: Vec<Arc<KeyspaceState>>;
    let mut pins: Vec<Box<dyn Verification + '_>> = Vec::new();
    {
        // This lock is held until all roots are pinned, so that no checkpoint changes the roots.
        let root = engine.checkpointer.root.lock();
        for slot in Superblock::read_slots(data.file(), DATA_FILE) {
            match slot {
                Ok(superblock) if superblock.store_id == data.store_id() => verifier.report.blocks += 1,
                Ok(_) => verifier
                    .problem(Error::corruption("superblock", 0, "belongs to another store").in_file(DATA_FILE, 0)),
                Err(e) => verifier.problem(e),
            }
        }
        root.superblock.catalog.extents().into_iter().for_each(|extent| verifier.owns(extent));
        for (copy, addr) in root.superblock.catalog.0.into_iter().enumerate() {
            match Catalog::check_copy(data, &root.superblock, copy) {
                Ok(catalog) if catalog == root.catalog => verifier.block(BlockKind::Catalog, addr.bytes() as u64),
                Ok(_) => verifier.problem(data.corrupt(addr, "catalogue", "the copies differ")),
                Err(e) => verifier.problem(e),
            }
        }
        assert_eq!(root.superblock.store_id, data.store_id(), "checksums cover the identity of the store");
        keyspaces = engine.keyspaces.all();
        let pinned = seeded!(VerifyPinsInTurn: &[], &keyspaces[..]);
        pins.extend(pinned.iter().map(|keyspace| keyspace.index.inspect().pin()));
    }
    pins.iter().for_each(|pin| pin.for_each_extent(&mut |extent| verifier.owns(extent)));
    let mut pins = pins.into_iter();
    for keyspace in &keyspaces {
        verify_memtables(engine, keyspace, &mut verifier)?;
        let pin = pins.next().unwrap_or_else(|| {
            let late = keyspace.index.inspect().pin();
            late.for_each_extent(&mut |extent| verifier.owns(extent));
            late
        });
        pin.check(&mut verifier)?;
    }
    // The features of blocks that were written since this opening are named by the next superblock at the latest.
    let named = engine.checkpointer.root.lock().superblock.incompatible | data.features();
    if verifier.features & !named != 0 {
        let detail = format!("does not name the features {:#x} that blocks use", verifier.features & !named);
        verifier.problem(Error::corruption("superblock", 0, detail).in_file(DATA_FILE, 0));
    }
    let VerifyReport { blocks, runs, nodes, blobs, .. } = verifier.report;
    assert!(blocks >= runs + nodes + blobs, "{blocks} blocks for {runs} runs, {nodes} nodes, {blobs} large values");
    Ok(verifier.report)
}
